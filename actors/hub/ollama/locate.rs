//! Finds a model of a registry on this machine, or downloads it.

use std::path::{Path, PathBuf};

use cuelight_engine::checkpoint::{self, Checkpoint};

use super::blob::{Arrived, Downloader};
use super::manifest::{Kind, Manifest};
use super::name::OllamaName;
use super::parameters::Published;
use super::registry::{Registry, host_of};
use super::store::StoredModel;
use crate::hub::error::HubError;
use crate::hub::progress::Progress;
use crate::hub::sources::Hub;

impl Hub {
    /// The configured registry's host.
    #[must_use]
    pub fn registry_host(&self) -> Option<String> {
        self.registry.as_deref().map(host_of)
    }

    /// A model on this machine. A name without a host is one of the configured registry, or of any if none is configured.
    #[must_use]
    pub fn find_ollama(&self, name: &OllamaName) -> Option<StoredModel> {
        let host = name.host.clone().or_else(|| self.registry_host());
        self.ollama.find(&OllamaName { host, ..name.clone() })
    }

    /// What the publisher of a model recommends. Nothing for a reference of another kind, or a model that is not here.
    ///
    /// # Errors
    /// [`HubError::BadManifest`] when it cannot be read.
    pub fn published(&self, reference: &str) -> Result<Published, HubError> {
        if !OllamaName::is_meant_by(reference) {
            return Ok(Published::default());
        }
        self.published_as(&OllamaName::parse(reference)?)
    }

    /// The same for a name.
    ///
    /// # Errors
    /// As [`Self::published`].
    pub fn published_as(&self, name: &OllamaName) -> Result<Published, HubError> {
        let model = self.find_ollama(name);
        model.map_or_else(|| Ok(Published::default()), |model| Published::read(&self.ollama, &model))
    }

    /// The GGUF file of a model, downloaded if it is not here.
    pub(in crate::hub) fn locate_ollama(
        &self,
        name: &OllamaName,
        progress: &impl Progress,
    ) -> Result<PathBuf, HubError> {
        match self.find_ollama(name) {
            Some(model) => Ok(model.path),
            None => self.pull_ollama(name, progress),
        }
    }

    /// Downloads what the registry has under this name now, and returns the GGUF file.
    pub(in crate::hub) fn pull_ollama(&self, name: &OllamaName, progress: &impl Progress) -> Result<PathBuf, HubError> {
        if self.offline {
            return Err(HubError::Offline { reference: name.to_string() });
        }
        let registry = Registry::of(name, self.registry.as_deref(), self.response_timeout)?;
        let json = registry.manifest(name, progress)?;
        let manifest = Manifest::parse(name, &json)?;
        if let Some(left_out) = manifest.left_out() {
            progress.notice(&format!("{name}: downloading the model without {left_out}"));
        }
        self.ollama.prepare()?;
        let downloader = Downloader { registry: &registry, store: &self.ollama, name, progress };
        for blob in manifest.blobs().filter(|blob| self.projectors || manifest.needed().any(|needed| needed == *blob)) {
            let arrived = downloader.receive(blob)?;
            if *blob == manifest.model {
                progress.verifying();
            }
            arrived.map_or(Ok(()), Arrived::keep)?;
        }
        progress.writing_manifest();
        let stored = name.clone().at(registry.host());
        self.ollama.add(&stored.manifest_path().unwrap_or_default(), &json)?;
        let model = self.ollama.find(&stored).ok_or_else(|| HubError::NotCached(stored.to_string()))?;
        explain(&model, &Published::read(&self.ollama, &model)?, progress);
        Ok(model.path)
    }
}

/// Says what of a downloaded model is not used.
fn explain(model: &StoredModel, published: &Published, progress: &impl Progress) {
    let name = &model.name;
    if !published.unused.is_empty() {
        progress.notice(&format!("{name}: these of its parameters are not used: {}", published.unused.join(", ")));
    }
    if model.manifest.layer(Kind::Template).is_some() && !has_chat_template(&model.path) {
        progress.notice(&format!(
            "{name}: its GGUF file has no chat template, and its template in Go's language is not executed; --chat-template FILE \
             gives it one"
        ));
    }
}

/// Whether a GGUF file has a chat template. A file that cannot be read is reported when it is loaded.
fn has_chat_template(path: &Path) -> bool {
    let read = |file: Box<dyn Checkpoint>| file.optional_str("tokenizer.chat_template").ok().flatten().is_some();
    checkpoint::open(path).map_or(true, read)
}
