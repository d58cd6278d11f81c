//! The identity of a model's content, by which its units are found again after a restart and by other servers.
//!
//! All bytes of the model's files are hashed once. With a disk tier, the result is kept next to the units, with the path, size and
//! time of the last change of each file, so that the next start need not read them.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

use cuelight_engine::load::ModelFiles;
use sha2::{Digest, Sha256};

use crate::core::cached_unit::UnitBytes;

/// The file with the known results, one in a line: the hash of the files' names and versions, and the hash of their bytes.
const KNOWN: &str = "models.txt";

/// Maximum number of known results.
const MOST_KNOWN: usize = 1000;

/// What identifies the content of a model.
#[derive(Clone)]
pub enum ModelIdentity {
    /// Its files.
    Files(ModelFiles),
    /// A name that no other content has.
    Name(String),
}

impl ModelIdentity {
    /// A text that is equal for equal contents only. `known_in` is the directory where results are kept.
    ///
    /// # Errors
    /// When a file cannot be read or has changed since it was loaded.
    pub(super) fn content(&self, known_in: Option<&Path>) -> io::Result<String> {
        match (self, known_in) {
            (ModelIdentity::Files(files), Some(directory)) => hash_once(files, directory),
            (ModelIdentity::Files(files), None) => hash_files(files),
            (ModelIdentity::Name(name), _) => Ok(name.clone()),
        }
    }
}

/// Hashes the bytes of a model's files, unless that is known already.
fn hash_once(files: &ModelFiles, directory: &Path) -> io::Result<String> {
    let version = hex(&Sha256::digest(files.fingerprint().as_bytes()));
    let known = fs::read_to_string(directory.join(KNOWN)).unwrap_or_default();
    let found = known.lines().find_map(|line| line.strip_prefix(&version)?.strip_prefix(' '));
    if let Some(found) = found.filter(|found| found.len() == version.len()) {
        return Ok(found.to_owned());
    }
    let content = hash_files(files)?;
    let kept = known.lines().rev().take(MOST_KNOWN).collect::<Vec<_>>().into_iter().rev();
    let lines: String =
        kept.map(str::to_owned).chain([format!("{version} {content}")]).map(|line| line + "\n").collect();
    // Without it, the next start reads the files again.
    let _ = fs::write(directory.join(KNOWN), lines);
    Ok(content)
}

/// Hashes the bytes of a model's files.
fn hash_files(files: &ModelFiles) -> io::Result<String> {
    let mut hash = Sha256::new();
    for path in files.paths() {
        add_file(&mut hash, path)?;
    }
    files.check_paths().map_err(io::Error::other)?;
    Ok(hex(&hash.finalize()))
}

/// What the units of a model mean: a text that is equal for servers that may use each other's units only. Another version of the
/// program may round differently.
pub(super) fn meaning(model: &str, bytes: UnitBytes, description: &str) -> String {
    let UnitBytes { block, state } = bytes;
    let states = if state > 0 { format!(" and states of {state}") } else { String::new() };
    let version = env!("CARGO_PKG_VERSION");
    format!("KV blocks of {block} bytes{states}, format 1, of version {version}\nmodel {model}\n{description}\n")
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

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_of_another_version_mean_something_else() {
        let text = |state| meaning("model", UnitBytes { block: 64, state }, "layout");
        assert!(text(0).contains(concat!(" version ", env!("CARGO_PKG_VERSION"), "\n")), "{}", text(0));
        assert_ne!(text(4), text(8));
    }
}
