//! The files of a model: one, or shards that an index names.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Deserialize;

use super::error::{SafetensorsError, SafetensorsFault};
use super::unique_map::UniqueMap;
use crate::mapped_file::MappedFile;

pub(super) const SINGLE: &str = "model.safetensors";
pub(super) const INDEX: &str = "model.safetensors.index.json";

/// Most bytes of an index. The largest models have some MiB.
const MOST_INDEX_BYTES: usize = 64 << 20;

#[derive(Deserialize)]
struct Index {
    weight_map: UniqueMap<String>,
}

/// The files of a directory.
pub(super) struct Files {
    /// Each file and its mapping, in the order of their names.
    pub shards: Vec<(PathBuf, Arc<MappedFile>)>,
    /// The index, where there is one.
    pub index: Option<Arc<MappedFile>>,
    /// For each tensor of the index its shard.
    pub stated: Vec<(String, usize)>,
}

impl Files {
    /// Maps the files of a directory. An index takes precedence over a single file.
    pub(super) fn open(folder: &Path) -> Result<Self, SafetensorsError> {
        let (single, index) = (folder.join(SINGLE), folder.join(INDEX));
        if index.is_file() {
            return Self::open_indexed(folder, &index);
        }
        if !single.is_file() {
            return Err(missing_weights(folder).in_file(folder));
        }
        Files::single(single)
    }

    /// Maps one file.
    pub(super) fn single(path: PathBuf) -> Result<Self, SafetensorsError> {
        let mapped = map(&path)?;
        Ok(Files { shards: vec![(path, mapped)], index: None, stated: Vec::new() })
    }

    fn open_indexed(folder: &Path, path: &Path) -> Result<Self, SafetensorsError> {
        let mapped = map(path)?;
        let bytes: &[u8] = (*mapped).as_ref();
        let names = parse(bytes).map_err(|fault| fault.in_file(path))?;
        let mut first_tensor: BTreeMap<&str, &str> = BTreeMap::new();
        for (tensor, file) in &names {
            first_tensor.entry(file).or_insert(tensor);
        }
        let shard = |(file, tensor): (&&str, &&str)| {
            let path = folder.join(file);
            let missing = |error| SafetensorsFault::MissingShard { tensor: (*tensor).to_owned(), error }.in_file(&path);
            let mapped = MappedFile::open(&path).map(Arc::new).map_err(missing)?;
            Ok((path, mapped))
        };
        let shards = first_tensor.iter().map(shard).collect::<Result<Vec<_>, _>>()?;
        let position: BTreeMap<&str, usize> = first_tensor.keys().copied().zip(0..).collect();
        let stated = names.iter().map(|(tensor, file)| (tensor.clone(), position[file.as_str()])).collect();
        Ok(Files { shards, index: Some(mapped), stated })
    }
}

/// The names of the shards in an index, sorted, each a name without a folder.
///
/// # Errors
/// [`SafetensorsFault`] when it is no index of shards.
pub fn shard_names(index: &[u8]) -> Result<Vec<String>, SafetensorsFault> {
    let names: BTreeSet<String> = parse(index)?.into_iter().map(|(_, file)| file).collect();
    Ok(names.into_iter().collect())
}

/// The tensors of an index and their files.
fn parse(bytes: &[u8]) -> Result<Vec<(String, String)>, SafetensorsFault> {
    if bytes.len() > MOST_INDEX_BYTES {
        return Err(SafetensorsFault::LongIndex { bytes: bytes.len(), most: MOST_INDEX_BYTES });
    }
    let index: Index = serde_json::from_slice(bytes).map_err(SafetensorsFault::BadIndex)?;
    let UniqueMap(names) = index.weight_map;
    if names.is_empty() {
        return Err(SafetensorsFault::EmptyIndex);
    }
    match names.iter().find(|(_, file)| !is_file_name(file)) {
        Some((tensor, file)) => Err(SafetensorsFault::ShardName { tensor: tensor.clone(), file: file.clone() }),
        None => Ok(names),
    }
}

/// Whether a text is the name of a safetensors file without a folder.
fn is_file_name(text: &str) -> bool {
    text.ends_with(".safetensors") && !text.contains(['/', '\\', ':', '\0'])
}

fn map(path: &Path) -> Result<Arc<MappedFile>, SafetensorsError> {
    MappedFile::open(path).map(Arc::new).map_err(|error| SafetensorsFault::Unreadable(error).in_file(path))
}

/// Why a directory has no weights that can be read.
fn missing_weights(folder: &Path) -> SafetensorsFault {
    const PICKLED: &[&str] = &[".bin", ".pt", ".pth", ".ckpt"];
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    match names.find(|name| PICKLED.iter().any(|ending| name.ends_with(ending))) {
        Some(file) => SafetensorsFault::PickleOnly { file },
        None => SafetensorsFault::NoWeights,
    }
}
