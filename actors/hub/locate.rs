//! Finds or downloads the files of a model.

use std::path::PathBuf;

use super::demo;
use super::error::HubError;
use super::progress::Progress;
use super::reference::ModelReference;
use super::sources::Hub;

impl Hub {
    /// The file of a model, its first shard or its directory: an existing path, one in the cache, or a download.
    ///
    /// # Errors
    /// [`HubError`] when the model is not available.
    pub fn locate(&self, model: &str, progress: &impl Progress) -> Result<PathBuf, HubError> {
        match ModelReference::parse(model)? {
            ModelReference::Path(path) => Ok(path),
            ModelReference::Demo => demo::locate(self, progress),
            ModelReference::Ollama(name) => self.locate_ollama(&name, progress),
            ModelReference::Repository(wanted) => match self.cache.find(&wanted) {
                Some(found) => Ok(found.path().to_owned()),
                None => self.download(&wanted, progress),
            },
        }
    }

    /// Downloads a model even if a version of it is in the cache, and returns its file or directory.
    ///
    /// # Errors
    /// [`HubError`] when the model is not available.
    pub fn pull(&self, model: &str, progress: &impl Progress) -> Result<PathBuf, HubError> {
        match ModelReference::parse(model)? {
            ModelReference::Repository(wanted) if !self.offline => self.download(&wanted, progress),
            ModelReference::Ollama(name) if !self.offline => self.pull_ollama(&name, progress),
            _ => self.locate(model, progress),
        }
    }

    /// The file of the demo model, if an earlier run has kept it.
    #[must_use]
    pub fn kept_demo(&self) -> Option<PathBuf> {
        Some(demo::kept_path(self)).filter(|path| path.is_file())
    }
}
