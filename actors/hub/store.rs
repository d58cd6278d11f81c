//! Puts models of the hub into a models directory, as links into the shared cache.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf, absolute};

use super::cache::CachedModel;
use super::error::HubError;
use super::progress::Progress;
use super::reference::{ModelFormat, ModelReference, Wanted, WantedFile};
use super::sources::Hub;
use crate::models::{ModelStore, PullProgress, StoreError};

/// The models of the hub for a models directory.
#[derive(Debug, Clone)]
pub struct HubStore {
    hub: Hub,
    directory: PathBuf,
    /// Models that are not removed from the disk.
    kept: Vec<String>,
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

    fn keeps(&self, model: &CachedModel) -> bool {
        let places = model.paths.iter().map(PathBuf::as_path).chain([model.path()]);
        let files: Vec<PathBuf> = places.filter_map(|path| path.canonicalize().ok()).collect();
        let is_kept = |kept: &String| match ModelReference::parse(kept) {
            Ok(ModelReference::Path(path)) => path.canonicalize().is_ok_and(|path| files.contains(&path)),
            Ok(ModelReference::Repository(wanted)) => self.hub.cache.find(&wanted).as_ref() == Some(model),
            _ => false,
        };
        self.kept.iter().any(is_kept)
    }

    /// The model that a link in the directory leads to. `None` for other files.
    fn linked(&self, link: &Path) -> Option<CachedModel> {
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
        self.hub.cache.find(&Wanted { repo: format!("{org}/{repo}"), file })
    }

    /// Puts a link to `file` into the directory, unless something else has its name there.
    fn link(&self, repo: &str, file: &Path, name: &OsStr) -> Result<(), StoreError> {
        let link = self.directory.join(name);
        let is_ours = || self.linked(&link).is_some_and(|model| model.repo.eq_ignore_ascii_case(repo));
        if link.symlink_metadata().is_ok() && link.exists() && !is_ours() {
            let name = name.to_string_lossy();
            return Err(StoreError::Conflict(format!("the models directory has another file with the name {name}")));
        }
        replace(file, &link).map_err(|error| {
            tracing::error!(%error, link = %link.display(), "a downloaded model cannot be linked");
            StoreError::Failed("the models directory cannot be written; the cause is in the server's log".to_owned())
        })
    }
}

/// The links to a model with their names: one to each file, or one to the directory, with the name of the repository.
fn links<'a>(format: ModelFormat, repo: &str, files: &'a [PathBuf]) -> Vec<(OsString, &'a Path)> {
    match format {
        ModelFormat::Gguf => {
            files.iter().filter_map(|file| Some((file.file_name()?.to_owned(), file.as_path()))).collect()
        }
        ModelFormat::Safetensors => {
            let name = repo.rsplit('/').next().unwrap_or(repo);
            vec![(name.into(), format.path(files))]
        }
    }
}

/// Makes `link` lead to `file`, in one step for those who read it.
fn replace(file: &Path, link: &Path) -> std::io::Result<()> {
    let mut fresh = link.as_os_str().to_owned();
    fresh.push(".new");
    let fresh = PathBuf::from(fresh);
    match std::fs::remove_file(&fresh) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    make_link(&absolute(file)?, &fresh)?;
    std::fs::rename(&fresh, link)
}

#[cfg(unix)]
fn make_link(file: &Path, link: &Path) -> std::io::Result<()> {
    std::os::unix::fs::symlink(file, link)
}

#[cfg(not(unix))]
fn make_link(_file: &Path, _link: &Path) -> std::io::Result<()> {
    Err(std::io::ErrorKind::Unsupported.into())
}

impl ModelStore for HubStore {
    fn reference(&self, name: &str) -> Result<String, StoreError> {
        let plain = name.strip_suffix(":latest").unwrap_or(name);
        let after_host = || plain.split_once('/').filter(|(host, _)| is_host(host)).map(|(_, rest)| rest);
        let wanted = Wanted::parse(plain).or_else(|| Wanted::parse(after_host()?));
        // The name is in the answer and in the log.
        let clipped = || name.chars().take(100).collect();
        wanted.map(|wanted| wanted.to_string()).ok_or_else(|| StoreError::NotAReference(clipped()))
    }

    fn download(&self, reference: &str, progress: PullProgress) -> Result<(), StoreError> {
        let wanted = Wanted::parse(reference).ok_or_else(|| StoreError::NotAReference(reference.to_owned()))?;
        let cached = || self.hub.cache.find(&wanted).filter(|_| self.hub.offline);
        let (format, files) = match cached() {
            Some(model) => (model.format, model.paths),
            None => self.hub.download_all(&wanted, &Reported(progress)).map_err(explain)?,
        };
        let repo = self.hub.cache.spelling(&wanted.repo).unwrap_or(wanted.repo);
        // The first shard is last, so that no incomplete set is listed.
        links(format, &repo, &files).iter().rev().try_for_each(|(name, path)| self.link(&repo, path, name))
    }

    fn references(&self, path: &Path) -> Vec<String> {
        self.linked(path).map_or_else(Vec::new, |model| vec![model.reference(), model.repo])
    }

    fn remove(&self, path: &Path) -> Result<(), StoreError> {
        let Some(model) = self.linked(path) else {
            return Err(StoreError::Conflict("the model is no longer there".to_owned()));
        };
        if self.keeps(&model) {
            let reason =
                format!("the model `{}` was named when the server was started, and is not deleted", model.reference());
            return Err(StoreError::NotAllowed(reason));
        }
        let names = links(model.format, &model.repo, &model.paths).into_iter().map(|(name, _)| name);
        let links = names.map(|name| self.directory.join(name));
        for link in links.filter(|link| link.is_symlink()) {
            std::fs::remove_file(&link).map_err(HubError::io("remove", &link)).map_err(explain)?;
        }
        self.hub.cache.remove(&model).map(drop).map_err(explain)
    }
}

/// Whether a text looks like the name of a host on a network.
fn is_host(text: &str) -> bool {
    text.contains('.') && text.split('.').all(|label| !label.is_empty())
}

/// What a client may know of an error. Paths of this machine and the address of its hub are for its log.
fn explain(error: HubError) -> StoreError {
    match error {
        HubError::NoSuchRepository { repo, .. } | HubError::Forbidden { repo, .. } => {
            StoreError::NotFound(format!("the hub has no repository {repo}, or does not let this server read it"))
        }
        HubError::NoSuchQuant { .. }
        | HubError::MissingShards { .. }
        | HubError::PickleOnly { .. }
        | HubError::MissingFile { .. } => StoreError::NotFound(error.to_string()),
        HubError::Io { .. } | HubError::BadIndex { .. } | HubError::Request { .. } | HubError::Timeout { .. } => {
            let cause: &dyn std::error::Error = &error;
            tracing::error!(error = cause, "a model cannot be downloaded or deleted");
            StoreError::Failed("the download or deletion failed; the cause is in the server's log".to_owned())
        }
        other => StoreError::Failed(other.to_string()),
    }
}

/// Passes on the progress of a download.
#[derive(Clone)]
struct Reported(PullProgress);

impl Progress for Reported {
    fn start(&self, file: &str, bytes: u64) {
        self.0.start(file, bytes);
    }

    fn advance(&self, bytes: u64) {
        self.0.advance(bytes);
    }

    fn finish(&self) {}

    fn notice(&self, sentence: &str) {
        tracing::warn!("{sentence}");
    }

    fn choice(&self, sentence: &str) {
        tracing::info!("{sentence}");
    }
}

#[allow(clippy::unwrap_used)]
#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use crate::config::{Given, environment::Environment, resolve};

    fn store(directory: &Path) -> HubStore {
        let config = resolve(None, &Environment::default(), Given::default()).unwrap().config;
        HubStore::new(Hub::new(&config), directory.to_owned())
    }

    #[test]
    fn a_name_is_a_reference_with_or_without_a_host() {
        let store = store(Path::new("models"));
        for (name, expected) in [
            ("org/repo", "org/repo"),
            ("org/repo:latest", "org/repo"),
            ("org/repo:Q8_0", "org/repo:Q8_0"),
            ("hub.example/org/repo", "org/repo"),
            ("hub.example/org/repo:Q8_0", "org/repo:Q8_0"),
            ("org.a/repo/dir/file.gguf", "org.a/repo/dir/file.gguf"),
        ] {
            assert_eq!(store.reference(name).as_deref(), Ok(expected), "{name}");
        }
        for name in
            ["", "demo", "llama:8b", "/a/b.gguf", "../a/b", "../../a/b", "a/../b.gguf", "./a/b", "http://a.b/c/d"]
        {
            assert!(matches!(store.reference(name), Err(StoreError::NotAReference(_))), "{name}");
        }
    }

    #[test]
    fn files_and_links_to_other_places_are_not_the_stores() {
        let folder = tempfile::tempdir().unwrap();
        let (file, link) = (folder.path().join("a.gguf"), folder.path().join("b.gguf"));
        std::fs::write(&file, b"").unwrap();
        make_link(&file, &link).unwrap();
        let store = store(folder.path());
        for path in [&file, &link, &folder.path().join("none.gguf")] {
            assert!(store.references(path).is_empty() && store.remove(path).is_err(), "{}", path.display());
        }
        assert!(file.exists() && link.exists());
    }

    #[test]
    fn a_link_is_replaced_and_a_broken_one_too() {
        let folder = tempfile::tempdir().unwrap();
        let (file, link) = (folder.path().join("a"), folder.path().join("b"));
        make_link(Path::new("/no/such/file"), &link).unwrap();
        std::fs::write(&file, b"1").unwrap();
        replace(&file, &link).unwrap();
        replace(&file, &link).unwrap();
        assert_eq!(
            (std::fs::read(&link).unwrap(), std::fs::read_dir(folder.path()).unwrap().count()),
            (b"1".to_vec(), 2)
        );
    }
}
