//! The files of a model in shards: `name-00001-of-00003.gguf`, `name-00002-of-00003.gguf`, ...

use std::path::{Path, PathBuf};

use super::error::GgufFault;
use super::header::Header;
use super::value::{FromValue, Value};

/// The name of a shard.
pub(super) struct ShardName {
    /// Everything before `-00001-of-00003.gguf`, with the folder.
    prefix: PathBuf,
    /// Number of shards, at least 2.
    pub(super) count: usize,
}

impl ShardName {
    /// Parses a shard's name; `None` for any other name, and for a single shard of one.
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

/// Checks that a file's keys state the index and count that its name has.
pub(super) fn check_position(header: &Header, index: usize, count: usize) -> Result<(), GgufFault> {
    let stated = |key| header.value(key).and_then(|value: &Value| u64::from_value(value).ok());
    let (stated_index, stated_count) = (stated("split.no"), stated("split.count"));
    if (stated_index, stated_count) == (Some(index as u64), Some(count as u64)) {
        return Ok(());
    }
    let show = |value: Option<u64>| value.map_or_else(|| "nothing".to_owned(), |value| value.to_string());
    let found = format!("{} and {}", show(stated_index), show(stated_count));
    Err(GgufFault::ShardPosition { index: index + 1, count, found })
}
