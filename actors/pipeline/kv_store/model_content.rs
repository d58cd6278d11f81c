//! The identity of a model's content, by which its blocks are found again after a restart.
//!
//! All bytes of the model's files are hashed once. The result is kept next to the blocks, with the path, size and time of the last
//! change of each file, so that the next start need not read them.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

use cuelight_engine::load::ModelFiles;
use sha2::{Digest, Sha256};

/// The file with the known results, one in a line: the hash of the files' names and versions, and the hash of their bytes.
const KNOWN: &str = "models.txt";

/// Maximum number of known results.
const MOST_KNOWN: usize = 1000;

/// Hashes the bytes of a model's files, unless that is known already.
///
/// # Errors
/// When a file cannot be read or has changed since it was loaded.
pub(super) fn of_files(files: &ModelFiles, directory: &Path) -> io::Result<String> {
    let version = hex(&Sha256::digest(files.fingerprint().as_bytes()));
    let known = fs::read_to_string(directory.join(KNOWN)).unwrap_or_default();
    let found = known.lines().find_map(|line| line.strip_prefix(&version)?.strip_prefix(' '));
    if let Some(found) = found.filter(|found| found.len() == version.len()) {
        return Ok(found.to_owned());
    }
    let mut hash = Sha256::new();
    for path in files.paths() {
        add_file(&mut hash, path)?;
    }
    files.check_paths().map_err(io::Error::other)?;
    let content = hex(&hash.finalize());
    let kept = known.lines().rev().take(MOST_KNOWN).collect::<Vec<_>>().into_iter().rev();
    let lines: String =
        kept.map(str::to_owned).chain([format!("{version} {content}")]).map(|line| line + "\n").collect();
    // Without it, the next start reads the files again.
    let _ = fs::write(directory.join(KNOWN), lines);
    Ok(content)
}

/// Adds the length and the bytes of a file.
fn add_file(hash: &mut Sha256, path: &Path) -> io::Result<()> {
    let mut file = File::open(path)?;
    hash.update(file.metadata()?.len().to_le_bytes());
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(()),
            count => hash.update(&buffer[..count]),
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
