//! Reads recordings.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};

use super::entry::Entry;

/// Why a recording cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// A file or the directory cannot be read.
    #[error("the recording {} cannot be read", path.display())]
    File {
        /// The file or directory.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A line is no entry.
    #[error("line {line} of {} is not an entry of a recording", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// Its number, from 1.
        line: usize,
        /// The cause.
        source: serde_json::Error,
    },
    /// There is nothing to read.
    #[error("{} has no recorded requests (files that end with .jsonl, as `cuelight serve --record` writes them)", .0.display())]
    Empty(PathBuf),
}

/// The entries of a file, or of all files of a directory, in the order of their arrival.
///
/// The last line of a file may be cut off, because its server was killed. It is left out.
///
/// # Errors
/// [`ReadError`] for a file that cannot be read or is no recording, and when there are no entries.
pub fn read(path: &Path) -> Result<Vec<Entry>, ReadError> {
    let failed = |source| ReadError::File { path: path.to_owned(), source };
    let mut files = vec![path.to_owned()];
    if fs::metadata(path).map_err(failed)?.is_dir() {
        let entries = fs::read_dir(path).map_err(failed)?;
        let paths = entries.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>().map_err(failed)?;
        files = paths.into_iter().filter(|path| path.extension().is_some_and(|name| name == "jsonl")).collect();
        files.sort();
    }
    let mut entries = Vec::new();
    for file in &files {
        let mut read = read_file(file)?;
        read.sort_by(|one, other| one.times.arrived_ms.total_cmp(&other.times.arrived_ms));
        entries.append(&mut read);
    }
    if entries.is_empty() { Err(ReadError::Empty(path.to_owned())) } else { Ok(entries) }
}

fn read_file(path: &Path) -> Result<Vec<Entry>, ReadError> {
    let failed = |source| ReadError::File { path: path.to_owned(), source };
    let file = BufReader::new(File::open(path).map_err(failed)?);
    let lines = file.lines().collect::<io::Result<Vec<String>>>().map_err(failed)?;
    let mut entries = Vec::new();
    for (index, line) in lines.iter().enumerate() {
        match serde_json::from_str(line) {
            Ok(entry) => entries.push(entry),
            Err(error) if error.is_eof() && index + 1 == lines.len() => {}
            Err(source) => return Err(ReadError::Line { path: path.to_owned(), line: index + 1, source }),
        }
    }
    Ok(entries)
}
