//! Puts models of the hub and of a registry into a models directory, as links to where they are kept.
//!
//! - [`named`]: what a client's name means
//! - [`link`]: the links
//! - [`reported`]: passes on how far a download is

mod link;
mod named;
mod reported;

use std::ffi::OsString;
use std::path::{Path, PathBuf, absolute};

use self::named::Named;
use self::reported::Reported;
use super::cache::CachedModel;
use super::error::HubError;
use super::ollama::{OllamaName, Published, StoredModel};
use super::reference::{ModelFormat, ModelReference, Wanted, WantedFile};
use super::sources::Hub;
use crate::models::{ModelStore, PullProgress, StoreError};

/// The models of the hub and of the registry for a models directory.
#[derive(Debug, Clone)]
pub struct HubStore {
    hub: Hub,
    directory: PathBuf,
    /// Models that are not removed from the disk.
    kept: Vec<String>,
}

/// A model that a link in the directory leads to.
#[derive(Debug, PartialEq, Eq)]
enum Linked {
    /// In the shared cache of the hub.
    Cached(CachedModel),
    /// In the store of registries' models.
    Stored(StoredModel),
}

impl Linked {
    /// Whether `other` may take the place of the link.
    fn is_version_of(&self, other: &Named) -> bool {
        match (self, other) {
            (Linked::Cached(model), Named::Hub(wanted)) => model.repo.eq_ignore_ascii_case(&wanted.repo),
            (Linked::Stored(model), Named::Registry(name)) => name.matches(&model.name),
            _ => false,
        }
    }

    /// The names of its links in the directory.
    fn link_names(&self) -> Vec<OsString> {
        match self {
            Linked::Cached(model) => {
                links(model.format, &model.repo, &model.paths).into_iter().map(|(name, _)| name).collect()
            }
            Linked::Stored(model) => vec![model.name.file_name().into()],
        }
    }
}

impl HubStore {
    /// Downloads with `hub` and puts links into `directory`.
    #[must_use]
    pub fn new(hub: Hub, directory: PathBuf) -> Self {
        HubStore { hub, directory, kept: Vec::new() }
    }

    /// As before, without ever removing these models, which are references or paths.
    #[must_use]
    pub fn keeping(self, models: impl IntoIterator<Item = String>) -> Self {
        HubStore { kept: models.into_iter().collect(), ..self }
    }

    /// What the publisher of the model behind a link recommends. Nothing for other files.
    ///
    /// # Errors
    /// As [`Hub::published`].
    pub fn published(&self, link: &Path) -> Result<Published, HubError> {
        match self.name_of_link(link) {
            Some(name) => self.hub.published_as(&name),
            None => Ok(Published::default()),
        }
    }

    fn keeps(&self, linked: &Linked) -> bool {
        let files: Vec<PathBuf> = match linked {
            Linked::Cached(model) => model.paths.iter().map(PathBuf::as_path).chain([model.path()]).collect(),
            Linked::Stored(model) => vec![model.path.as_path()],
        }
        .into_iter()
        .filter_map(|path| path.canonicalize().ok())
        .collect();
        let is_kept = |kept: &String| match (ModelReference::parse(kept), linked) {
            (Ok(ModelReference::Path(path)), _) => path.canonicalize().is_ok_and(|path| files.contains(&path)),
            (Ok(ModelReference::Repository(wanted)), Linked::Cached(model)) => {
                self.hub.cache.find(&wanted).as_ref() == Some(model)
            }
            (Ok(ModelReference::Ollama(name)), Linked::Stored(model)) => {
                self.hub.find_ollama(&name).as_ref() == Some(model)
            }
            _ => false,
        };
        self.kept.iter().any(is_kept)
    }

    /// The model that a link in the directory leads to. `None` for other files.
    fn linked(&self, link: &Path) -> Option<Linked> {
        if let Some(name) = self.name_of_link(link) {
            return self.hub.find_ollama(&name).map(Linked::Stored);
        }
        let target = std::fs::read_link(link).ok()?;
        let root = absolute(self.hub.cache.root()).ok()?;
        let mut parts = target.strip_prefix(&root).ok()?.iter().map(|part| part.to_str());
        let (org, repo) = parts.next()??.strip_prefix("models--")?.split_once("--")?;
        // The directory of the snapshots, and that of a commit.
        let file = parts.skip(2).collect::<Option<Vec<&str>>>()?;
        let file = match file[..] {
            [] => WantedFile::Format(ModelFormat::Safetensors),
            _ => WantedFile::Name(file.join("/")),
        };
        self.hub.cache.find(&Wanted { repo: format!("{org}/{repo}"), file }).map(Linked::Cached)
    }

    /// The name of the registry's model that a link in the directory leads to. Several names may have the same data.
    fn name_of_link(&self, link: &Path) -> Option<OllamaName> {
        let target = std::fs::read_link(link).ok()?;
        let is_ours = target.parent() == absolute(self.hub.ollama.blobs()).ok().as_deref();
        OllamaName::of_file_name(link.file_name()?.to_str()?).filter(|_| is_ours)
    }

    /// The files of a model, downloaded, with the names of their links.
    fn fetch(&self, named: &Named, progress: PullProgress) -> Result<Vec<(OsString, PathBuf)>, HubError> {
        let progress = Reported(progress);
        let wanted = match named {
            Named::Registry(name) => {
                let stored = self.hub.find_ollama(name).filter(|_| self.hub.offline);
                let path = stored.map_or_else(|| self.hub.pull_ollama(name, &progress), |model| Ok(model.path))?;
                return Ok(vec![(name.file_name().into(), path)]);
            }
            Named::Hub(wanted) => wanted,
        };
        let cached = self.hub.cache.find(wanted).filter(|_| self.hub.offline);
        let (format, files) = match cached {
            Some(model) => (model.format, model.paths),
            None => self.hub.download_all(wanted, &progress)?,
        };
        let repo = self.hub.cache.spelling(&wanted.repo).unwrap_or_else(|| wanted.repo.clone());
        Ok(links(format, &repo, &files))
    }

    /// Puts a link to `file` into the directory, unless something else has its name there.
    fn link(&self, named: &Named, file: &Path, name: &OsString) -> Result<(), StoreError> {
        let link = self.directory.join(name);
        let is_ours = || self.linked(&link).is_some_and(|model| model.is_version_of(named));
        if link.symlink_metadata().is_ok() && link.exists() && !is_ours() {
            let name = name.to_string_lossy();
            return Err(StoreError::Conflict(format!("the models directory has another file with the name {name}")));
        }
        link::replace(file, &link).map_err(|error| {
            tracing::error!(%error, link = %link.display(), "a downloaded model cannot be linked");
            StoreError::Failed("the models directory cannot be written; the cause is in the server's log".to_owned())
        })
    }
}

/// The links to a model of the hub with their names: one to each file, or one to the directory, with the name of the repository.
fn links(format: ModelFormat, repo: &str, files: &[PathBuf]) -> Vec<(OsString, PathBuf)> {
    match format {
        ModelFormat::Gguf => {
            files.iter().filter_map(|file| Some((file.file_name()?.to_owned(), file.clone()))).collect()
        }
        ModelFormat::Safetensors => {
            let name = repo.rsplit('/').next().unwrap_or(repo);
            vec![(name.into(), format.path(files).to_owned())]
        }
    }
}

impl ModelStore for HubStore {
    fn reference(&self, name: &str) -> Result<String, StoreError> {
        Named::parse(name, self.hub.registry_host().as_deref()).map(|named| named.to_string())
    }

    fn download(&self, reference: &str, progress: PullProgress) -> Result<(), StoreError> {
        let named = Named::parse(reference, self.hub.registry_host().as_deref())?;
        let links = self.fetch(&named, progress).map_err(explain)?;
        // The first shard is last, so that no incomplete set is listed.
        links.iter().rev().try_for_each(|(name, path)| self.link(&named, path, name))
    }

    fn references(&self, path: &Path) -> Vec<String> {
        match self.linked(path) {
            Some(Linked::Cached(model)) => vec![model.reference(), model.repo],
            Some(Linked::Stored(model)) => vec![model.name.without_host().short()],
            None => Vec::new(),
        }
    }

    fn remove(&self, path: &Path) -> Result<(), StoreError> {
        let Some(linked) = self.linked(path) else {
            return Err(StoreError::Conflict("the model is no longer there".to_owned()));
        };
        if self.keeps(&linked) {
            let named = self.references(path).into_iter().next().unwrap_or_default();
            let reason = format!("the model `{named}` was named when the server was started, and is not deleted");
            return Err(StoreError::NotAllowed(reason));
        }
        let links = linked.link_names().into_iter().map(|name| self.directory.join(name));
        for link in links.filter(|link| link.is_symlink()) {
            std::fs::remove_file(&link).map_err(HubError::io("remove", &link)).map_err(explain)?;
        }
        match &linked {
            Linked::Cached(model) => self.hub.cache.remove(model).map(drop),
            Linked::Stored(model) => self.hub.ollama.remove(model).map(drop),
        }
        .map_err(explain)
    }
}

/// What a client may know of an error. Paths of this machine and the addresses of its hub and registry are for its log.
fn explain(error: HubError) -> StoreError {
    match error {
        HubError::NoSuchRepository { repo, .. } | HubError::Forbidden { repo, .. } => {
            StoreError::NotFound(format!("the hub has no repository {repo}, or does not let this server read it"))
        }
        HubError::NoSuchModel { model, .. } => {
            let model = OllamaName::without_prefix(&model);
            StoreError::NotFound(format!("the registry has no model {model}, or does not let this server read it"))
        }
        HubError::NoSuchQuant { .. }
        | HubError::MissingShards { .. }
        | HubError::PickleOnly { .. }
        | HubError::MissingFile { .. } => StoreError::NotFound(error.to_string()),
        HubError::Cancelled => StoreError::Cancelled,
        HubError::Io { .. } | HubError::BadIndex { .. } | HubError::Request { .. } | HubError::Timeout { .. } => {
            let cause: &dyn std::error::Error = &error;
            tracing::error!(error = cause, "a model cannot be downloaded or deleted");
            StoreError::Failed("the download or deletion failed; the cause is in the server's log".to_owned())
        }
        other => StoreError::Failed(other.to_string()),
    }
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
#[cfg(unix)]
mod tests {
    use super::*;
    use crate::config::{Given, environment::Environment, resolve};

    fn store(directory: &Path) -> HubStore {
        let config = resolve(None, &Environment::default(), Given::default()).unwrap().config;
        HubStore::new(Hub::new(&config), directory.to_owned())
    }

    #[test]
    fn files_and_links_to_other_places_are_not_the_stores() {
        let folder = tempfile::tempdir().unwrap();
        let (file, link) = (folder.path().join("a.gguf"), folder.path().join("b.gguf"));
        std::fs::write(&file, b"").unwrap();
        link::make(&file, &link).unwrap();
        let store = store(folder.path());
        for path in [&file, &link, &folder.path().join("none.gguf")] {
            assert!(store.references(path).is_empty() && store.remove(path).is_err(), "{}", path.display());
        }
        assert!(file.exists() && link.exists());
    }
}
