//! The new directory until it is complete: it has another name, and is locked by the process that writes it.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::companions::CONFIG;
use super::config::is_written;
use super::error::W8a8Error;

/// The file that marks an unfinished directory. The process that writes the directory has locked it.
const MARK: &str = ".cuelight-quantize";

/// An unfinished directory.
pub(super) struct PartialFolder {
    path: PathBuf,
    /// Its mark, which is locked.
    mark: File,
}

impl PartialFolder {
    /// Makes the unfinished directory of `out`, without what an earlier process left there.
    pub(super) fn create(out: &Path) -> Result<Self, W8a8Error> {
        let path = out.with_added_extension("partial");
        let failed = |source| W8a8Error::Write { path: path.clone(), source };
        let mark_path = path.join(MARK);
        if path.exists() && !mark_path.is_file() {
            return Err(W8a8Error::NotPartial { path });
        }
        fs::create_dir_all(&path).map_err(failed)?;
        let mark = OpenOptions::new().write(true).create(true).truncate(false).open(&mark_path).map_err(failed)?;
        mark.try_lock().map_err(|_| W8a8Error::Locked { path: path.clone() })?;
        empty(&path).map_err(failed)?;
        Ok(PartialFolder { path, mark })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Gives the directory its name. One that an earlier quantization wrote is replaced.
    pub(super) fn publish(self, out: &Path) -> Result<(), W8a8Error> {
        let PartialFolder { path, mark } = self;
        let failed = |source| W8a8Error::Write { path: out.to_owned(), source };
        let old = out.with_added_extension("replaced");
        let replaces = out.exists();
        // Some systems move no folder with an open file.
        drop(mark);
        if replaces {
            fs::rename(out, &old).map_err(failed)?;
        }
        fs::rename(&path, out).and_then(|()| fs::remove_file(out.join(MARK))).map_err(failed)?;
        if replaces { fs::remove_dir_all(&old).map_err(failed) } else { Ok(()) }
    }

    /// Removes the directory.
    pub(super) fn discard(self) {
        // The error that led here is the one to report.
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Removes all of an unfinished directory but its mark.
fn empty(path: &Path) -> io::Result<()> {
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        match entry.file_type()?.is_dir() {
            true => fs::remove_dir_all(entry.path())?,
            false if entry.file_name() == MARK => {}
            false => fs::remove_file(entry.path())?,
        }
    }
    Ok(())
}

/// Checks that a directory made of `model` can be written to `out`: neither is inside the other, and `out` is missing or was
/// written by an earlier quantization.
pub(super) fn check_place(model: &Path, out: &Path) -> Result<(), W8a8Error> {
    let path = || out.to_owned();
    let canonical =
        |path: &Path| fs::canonicalize(path).map_err(|source| W8a8Error::Write { path: path.to_owned(), source });
    let parent = out.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let (model, parent) = (canonical(model)?, canonical(parent)?);
    if parent.starts_with(&model) {
        return Err(W8a8Error::Inside { path: path() });
    }
    let Some(place) = out.exists().then(|| canonical(out)).transpose()? else { return Ok(()) };
    if model.starts_with(&place) {
        return Err(W8a8Error::Around { path: path() });
    }
    let config = fs::read(out.join(CONFIG)).ok().and_then(|bytes| serde_json::from_slice::<Value>(&bytes).ok());
    let is_replaceable = config.is_some_and(|config| is_written(&config));
    if is_replaceable { Ok(()) } else { Err(W8a8Error::NotReplaceable { path: path() }) }
}
