//! The files of a directory other than its weights. They are mapped, so that a change of them is noticed as that of weights is.

use std::path::PathBuf;
use std::sync::Arc;

use serde_json::Value as Json;

use super::error::{HuggingFaceError, HuggingFaceFault};
use crate::mapped_file::MappedFile;

/// Most bytes of a configuration or a template.
const MOST_BYTES: usize = 16 << 20;

/// The files that were read.
pub(super) struct SmallFiles {
    folder: PathBuf,
    pub mapped: Vec<Arc<MappedFile>>,
}

impl SmallFiles {
    pub(super) fn new(folder: PathBuf) -> Self {
        SmallFiles { folder, mapped: Vec::new() }
    }

    /// A file of at most `most` bytes; `None` if there is none.
    pub(super) fn map(&mut self, name: &str, most: usize) -> Result<Option<Arc<MappedFile>>, HuggingFaceError> {
        let path = self.folder.join(name);
        let mapped = match MappedFile::open(&path) {
            Ok(mapped) => Arc::new(mapped),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(HuggingFaceFault::Unreadable(error).in_file(&path)),
        };
        let bytes = (*mapped).as_ref().len();
        if bytes > most {
            return Err(HuggingFaceFault::Long { bytes, most }.in_file(&path));
        }
        self.mapped.push(Arc::clone(&mapped));
        Ok(Some(mapped))
    }

    /// The bytes of a configuration.
    pub(super) fn bytes(&mut self, name: &str) -> Result<Option<Vec<u8>>, HuggingFaceError> {
        Ok(self.map(name, MOST_BYTES)?.map(|mapped| (*mapped).as_ref().to_vec()))
    }

    pub(super) fn text(&mut self, name: &str) -> Result<Option<String>, HuggingFaceError> {
        let Some(bytes) = self.bytes(name)? else { return Ok(None) };
        String::from_utf8(bytes).map(Some).map_err(|_| HuggingFaceFault::NotUtf8.in_file(&self.folder.join(name)))
    }

    pub(super) fn json(&mut self, name: &str) -> Result<Option<Json>, HuggingFaceError> {
        let Some(bytes) = self.bytes(name)? else { return Ok(None) };
        let parsed = serde_json::from_slice(&bytes);
        parsed.map(Some).map_err(|error| HuggingFaceFault::BadJson(error).in_file(&self.folder.join(name)))
    }
}
