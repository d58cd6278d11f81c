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
    /// No line is an entry.
    #[error(transparent)]
    Lines(InvalidLine),
    /// There is nothing to read.
    #[error("{} has no recorded requests (files that end with .jsonl, as `cuelight serve --record` writes them)", .0.display())]
    Empty(PathBuf),
}

/// A line that is no entry.
#[derive(Debug, thiserror::Error)]
#[error("line {line} of {} is not an entry of a recording", path.display())]
pub struct InvalidLine {
    /// The file.
    pub path: PathBuf,
    /// Its number, from 1.
    pub line: usize,
    /// The cause.
    pub source: serde_json::Error,
}

/// What was recorded.
#[derive(Debug, Default)]
pub struct Recorded {
    /// The requests, in the order of their arrival. Those of a file count as after those of the file before it.
    pub entries: Vec<Entry>,
    /// What is not readable.
    pub invalid: Vec<InvalidLine>,
}

/// Reads a file, or all files of a directory.
///
/// The last line of a file may be cut off, because its server was killed. It is left out.
///
/// # Errors
/// [`ReadError`] for a file that cannot be read or is no recording, and when there are no entries.
pub fn read(path: &Path) -> Result<Recorded, ReadError> {
    let failed = |source| ReadError::File { path: path.to_owned(), source };
    let mut files = vec![path.to_owned()];
    if fs::metadata(path).map_err(failed)?.is_dir() {
        let entries = fs::read_dir(path).map_err(failed)?;
        let paths = entries.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>().map_err(failed)?;
        files = paths.into_iter().filter(|path| path.extension().is_some_and(|name| name == "jsonl")).collect();
        files.sort();
    }
    let mut recorded = Recorded::default();
    let mut end_ms = 0.0;
    for file in &files {
        let mut read = read_file(file, &mut recorded.invalid)?;
        read.sort_by(|one, other| one.times.arrived_ms.total_cmp(&other.times.arrived_ms));
        // The times of a file count from the start of its server.
        read.iter_mut().for_each(|entry| entry.times.arrived_ms += end_ms);
        end_ms = read.iter().map(|entry| entry.times.arrived_ms + entry.times.total_ms).fold(end_ms, f64::max);
        recorded.entries.append(&mut read);
    }
    match (recorded.entries.is_empty(), recorded.invalid.is_empty()) {
        (false, _) => Ok(recorded),
        (true, true) => Err(ReadError::Empty(path.to_owned())),
        (true, false) => Err(ReadError::Lines(recorded.invalid.swap_remove(0))),
    }
}

fn read_file(path: &Path, invalid: &mut Vec<InvalidLine>) -> Result<Vec<Entry>, ReadError> {
    let failed = |source| ReadError::File { path: path.to_owned(), source };
    let file = BufReader::new(File::open(path).map_err(failed)?);
    let lines = file.lines().collect::<io::Result<Vec<String>>>().map_err(failed)?;
    let mut entries = Vec::new();
    for (index, line) in lines.iter().enumerate() {
        match serde_json::from_str(line) {
            Ok(entry) => entries.push(entry),
            Err(error) if error.is_eof() && index + 1 == lines.len() => {}
            Err(source) => invalid.push(InvalidLine { path: path.to_owned(), line: index + 1, source }),
        }
    }
    Ok(entries)
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use super::*;
    use crate::recording::EntryTimes;

    fn line(arrived_ms: f64, total_ms: f64) -> String {
        let times = EntryTimes { arrived_ms, first_token_ms: None, total_ms };
        let entry = Entry { times, ..Entry::example() };
        serde_json::to_string(&entry).unwrap() + "\n"
    }

    #[test]
    fn files_follow_each_other_in_time() {
        let directory = tempfile::tempdir().unwrap();
        let write = |name: &str, text: String| fs::write(directory.path().join(name), text).unwrap();
        write("1.jsonl", line(500.0, 100.0) + &line(20.0, 1000.0));
        write("2.jsonl", line(5.0, 1.0));
        write("3.jsonl", line(7.0, 1.0));
        let read = read(directory.path()).unwrap();
        let arrived: Vec<f64> = read.entries.iter().map(|entry| entry.times.arrived_ms).collect();
        assert_eq!(arrived, [20.0, 500.0, 1025.0, 1033.0]);
    }

    #[test]
    fn a_line_that_is_no_entry_is_named_and_the_others_are_read() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), line(1.0, 1.0) + "{\"model\":7}\n" + &line(2.0, 1.0) + "{\"mod").unwrap();
        let recorded = read(file.path()).unwrap();
        assert_eq!((recorded.entries.len(), recorded.invalid.len()), (2, 1));
        assert_eq!(recorded.invalid[0].line, 2);
        fs::write(file.path(), "no recording\n\n").unwrap();
        assert!(matches!(read(file.path()), Err(ReadError::Lines(InvalidLine { line: 1, .. }))));
        fs::write(file.path(), "").unwrap();
        assert!(matches!(read(file.path()), Err(ReadError::Empty(_))));
    }
}
