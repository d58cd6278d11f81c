//! The file of an unfinished quantization, and its journal: which tensors the file has. A later run continues behind them.
//!
//! The journal is a text file. Its first line identifies the model, the options and the program. Each other line stands for a
//! finished tensor: the end of its bytes in the file, and their checksum. Nothing in the journal is trusted: a tensor counts as
//! finished if the file has its bytes with that checksum, and all tensors before it are finished.

use std::fs::{File, OpenOptions};
use std::hash::{DefaultHasher, Hasher};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};

use crate::format::gguf::write::FileHeader;

/// The first word of a journal, with the version of its form.
const MAGIC: &str = "cuelight-quantize-1";

/// A file that is being written.
pub(super) struct PartialFile {
    file: File,
    journal: File,
    /// Tensors that the file had when it was opened.
    finished: usize,
    /// Bytes written.
    position: usize,
}

impl PartialFile {
    /// Opens the file at `path` and its journal, or starts both again if they are not those of the same quantization. `identity`
    /// differs between quantizations that give other bytes.
    ///
    /// # Errors
    /// When a file cannot be read or written; `WouldBlock` when another process writes it.
    pub(super) fn open(path: &Path, identity: u64, header: &FileHeader) -> io::Result<Self> {
        let file = lock(path)?;
        let mut partial = PartialFile { file, journal: open(&journal_path(path))?, finished: 0, position: 0 };
        let first = format!("{MAGIC} {identity:016x}\n");
        let journal_bytes = partial.find_finished(&first, header)?;
        if partial.position == 0 {
            partial.file.set_len(0)?;
            partial.file.rewind()?;
            partial.journal.set_len(0)?;
            partial.journal.rewind()?;
            partial.journal.write_all(first.as_bytes())?;
            partial.write(&header.bytes)?;
        } else {
            partial.file.set_len(partial.position as u64)?;
            partial.journal.set_len(journal_bytes as u64)?;
        }
        partial.file.seek(SeekFrom::End(0))?;
        partial.journal.seek(SeekFrom::End(0))?;
        Ok(partial)
    }

    /// Tensors that were finished by an earlier run.
    pub(super) fn finished(&self) -> usize {
        self.finished
    }

    /// Writes the bytes of the next tensor, which begins at `start`.
    pub(super) fn append(&mut self, start: usize, bytes: &[u8]) -> io::Result<()> {
        self.write(&vec![0; start - self.position])?;
        self.write(bytes)?;
        let line = line(self.position, checksum(bytes));
        self.journal.write_all(line.as_bytes())
    }

    /// Writes the padding at the end of the file.
    pub(super) fn finish(mut self, file_bytes: usize) -> io::Result<()> {
        self.write(&vec![0; file_bytes - self.position])?;
        self.file.sync_all()
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.position += bytes.len();
        self.file.write_all(bytes)
    }

    /// Counts the tensors that the file has, sets the position after the last of them, and returns the bytes of the journal until
    /// there. The position stays 0 if the files belong to another quantization.
    fn find_finished(&mut self, first: &str, header: &FileHeader) -> io::Result<usize> {
        let mut journal = String::new();
        // A journal that is not text is not one of ours.
        if self.journal.read_to_string(&mut journal).is_err() {
            return Ok(0);
        }
        let Some(lines) = journal.strip_prefix(first) else { return Ok(0) };
        if self.bytes(0..header.bytes.len())?.as_deref() != Some(&header.bytes[..]) {
            return Ok(0);
        }
        (self.position, self.finished) = (header.bytes.len(), 0);
        let mut journal_bytes = first.len();
        for (found, range) in lines.split_inclusive('\n').zip(&header.ranges) {
            let Some(bytes) = self.bytes(range.clone())? else { break };
            if found != line(range.end, checksum(&bytes)) {
                break;
            }
            (self.position, self.finished) = (range.end, self.finished + 1);
            journal_bytes += found.len();
        }
        Ok(journal_bytes)
    }

    /// The bytes of a range of the file; `None` if the file is shorter.
    fn bytes(&mut self, range: Range<usize>) -> io::Result<Option<Vec<u8>>> {
        if self.file.metadata()?.len() < range.end as u64 {
            return Ok(None);
        }
        let mut bytes = vec![0; range.len()];
        self.file.seek(SeekFrom::Start(range.start as u64))?;
        self.file.read_exact(&mut bytes)?;
        Ok(Some(bytes))
    }
}

/// The name of a file that is not complete.
pub(super) fn partial_path(path: &Path) -> PathBuf {
    with_suffix(path, ".partial")
}

/// The name of the journal of a partial file.
pub(super) fn journal_path(partial: &Path) -> PathBuf {
    with_suffix(partial, ".journal")
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Opens and locks the file at `path`. A file that another process completed and renamed in between is left alone.
fn lock(path: &Path) -> io::Result<File> {
    loop {
        let file = open(path)?;
        file.try_lock()?;
        if is_at(&file, path) {
            return Ok(file);
        }
    }
}

/// Whether `path` is the name of this file.
#[cfg(unix)]
fn is_at(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let identity = |metadata: io::Result<std::fs::Metadata>| metadata.ok().map(|found| (found.dev(), found.ino()));
    identity(file.metadata()) == identity(std::fs::metadata(path))
}

/// Open files cannot be renamed on other systems.
#[cfg(not(unix))]
fn is_at(_: &File, _: &Path) -> bool {
    true
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)
}

fn line(end: usize, checksum: u64) -> String {
    format!("{end} {checksum:016x}\n")
}

fn checksum(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(bytes);
    hasher.finish()
}
