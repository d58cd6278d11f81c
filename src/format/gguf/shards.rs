//! The files that make one model: `name-00001-of-00003.gguf`, `name-00002-of-00003.gguf`, ...

use std::path::{Path, PathBuf};

use super::error::{GgufError, GgufFault};
use super::header::Header;
use super::value::FromValue;
use super::{Gguf, Value};

/// A file name that says it is one of several.
pub(super) struct ShardName {
    /// Everything before `-00001-of-00003.gguf`, with the folder.
    prefix: PathBuf,
    /// How many there are, two or more.
    pub(super) count: usize,
}

impl ShardName {
    /// The parts of a shard's name; `None` for any other name, and for the only shard of one.
    pub(super) fn of(path: &Path) -> Option<Self> {
        let stem = path.file_name()?.to_str()?.strip_suffix(".gguf")?;
        let (rest, count) = stem.rsplit_once("-of-")?;
        let (prefix, number) = rest.rsplit_once('-')?;
        let (number, count) = (five_digits(number)?, five_digits(count)?);
        (count > 1 && (1..=count).contains(&number)).then(|| ShardName { prefix: path.with_file_name(prefix), count })
    }

    /// The path of shard `index`, from 0.
    pub(super) fn path(&self, index: usize) -> PathBuf {
        let mut path = self.prefix.clone().into_os_string();
        path.push(format!("-{:05}-of-{:05}.gguf", index + 1, self.count));
        path.into()
    }
}

fn five_digits(text: &str) -> Option<usize> {
    (text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit())).then(|| text.parse().ok())?
}

/// Checks that a file is the shard that its name says.
pub(super) fn check_place(header: &Header, index: usize, count: usize) -> Result<(), GgufFault> {
    let stated = |key| header.value(key).and_then(|value: &Value| u64::from_value(value).ok());
    let (stated_index, stated_count) = (stated("split.no"), stated("split.count"));
    if (stated_index, stated_count) == (Some(index as u64), Some(count as u64)) {
        return Ok(());
    }
    let show = |value: Option<u64>| value.map_or_else(|| "nothing".to_owned(), |value| value.to_string());
    let found = format!("{} and {}", show(stated_index), show(stated_count));
    Err(GgufFault::ShardPlace { index: index + 1, count, found })
}

/// Checks that all shards together hold as many tensors as the first one says.
pub(super) fn check_tensor_count(gguf: &Gguf) -> Result<(), GgufError> {
    let found = gguf.tensors().len();
    match gguf.optional_u64("split.tensors.count")? {
        Some(stated) if stated != found as u64 => Err(gguf.fault(GgufFault::ShardTensors { found, stated })),
        _ => Ok(()),
    }
}
