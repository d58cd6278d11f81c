//! The keys of a tower in a file, checked.

use std::fmt::Display;

use super::error::TowerError;
use super::file::section;
use crate::checkpoint::Checkpoint;
use crate::load::LoadError;
use crate::media::MediaKind;

/// The keys of one kind of encoder.
pub struct Keys<'a> {
    /// The file.
    pub file: &'a dyn Checkpoint,
    kind: MediaKind,
}

impl<'a> Keys<'a> {
    /// The keys of an encoder of this kind.
    #[must_use]
    pub fn new(file: &'a dyn Checkpoint, kind: MediaKind) -> Self {
        Keys { file, kind }
    }

    /// The whole name of a key.
    #[must_use]
    pub fn key(&self, name: &str) -> String {
        format!("{}.{name}", section(self.kind))
    }

    /// The error of a value that is not computed.
    #[must_use]
    pub fn fault(&self, name: &str, found: impl Display, wanted: String) -> LoadError {
        let file = self.file.path().display().to_string();
        TowerError::Key { file, key: self.key(name), found: found.to_string(), wanted }.into()
    }

    /// A number, where the file has it.
    ///
    /// # Errors
    /// [`LoadError::Gguf`] when it is no number.
    pub fn optional(&self, name: &str) -> Result<Option<usize>, LoadError> {
        Ok(self.file.optional_u32(&self.key(name))?.map(|value| value as usize))
    }

    /// A number between two others.
    ///
    /// # Errors
    /// [`LoadError::Gguf`] when it is missing, [`LoadError::Tower`] when it is not between them.
    pub fn within(&self, name: &str, least: usize, most: usize) -> Result<usize, LoadError> {
        let value = self.file.u32(&self.key(name))? as usize;
        if (least..=most).contains(&value) {
            Ok(value)
        } else {
            Err(self.fault(name, value, format!("between {least} and {most}")))
        }
    }
}
