//! The Hugging Face cache on disk: lists, finds and removes its models.
//!
//! The layout is shared with all programs that use the hub: `models--org--repo/refs/main` contains a commit, and
//! `snapshots/<commit>/<file>` is a link to `blobs/<etag>`, which contains the data.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::directory;
use super::error::HubError;
use super::gguf_names::{is_gguf, is_projector, quant_of, shard_of};
use super::reference::{ModelFormat, Wanted, WantedFile};

/// The cache's directory.
#[derive(Debug, Clone)]
pub struct Cache {
    root: PathBuf,
}

/// A model in the cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CachedModel {
    /// The repository, as "org/repo".
    pub repo: String,
    /// The format of its files.
    pub format: ModelFormat,
    /// The quantization in the file name.
    pub quant: Option<String>,
    /// The names of the files within the repository, first shard first. A directory begins with its `config.json`.
    pub files: Vec<String>,
    /// The paths of the files.
    pub paths: Vec<PathBuf>,
    /// Size of all files together, in bytes.
    pub bytes: u64,
    /// When the first file was written.
    pub modified: Option<SystemTime>,
}

impl CachedModel {
    /// What is loaded: the first shard, or the directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.format.path(&self.paths)
    }

    /// The shortest reference to this model alone: "org/repo:quant", "org/repo:safetensors", or "org/repo/file" when the
    /// quantization is unknown.
    #[must_use]
    pub fn reference(&self) -> String {
        if self.format == ModelFormat::Safetensors {
            return format!("{}:{}", self.repo, self.format);
        }
        match &self.quant {
            Some(quant) => format!("{}:{quant}", self.repo),
            None => format!("{}/{}", self.repo, self.files[0]),
        }
    }
}

impl Cache {
    /// The cache in a directory. The directory need not exist.
    #[must_use]
    pub fn new(root: PathBuf) -> Self {
        Cache { root }
    }

    /// The directory of the cache.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// All complete models, sorted by reference. Unreadable entries are skipped.
    #[must_use]
    pub fn models(&self) -> Vec<CachedModel> {
        let mut models: Vec<CachedModel> =
            self.repositories().into_iter().flat_map(|(repo, directory)| models_of(&repo, &directory)).collect();
        models.sort_by_key(CachedModel::reference);
        models
    }

    /// The model of a reference. Upper and lower case are not distinguished.
    #[must_use]
    pub fn find(&self, wanted: &Wanted) -> Option<CachedModel> {
        let repositories = self.repositories().into_iter();
        let mut models = repositories
            .filter(|(repo, _)| repo.eq_ignore_ascii_case(&wanted.repo))
            .flat_map(|(repo, directory)| models_of(&repo, &directory));
        if let WantedFile::Quant(_) | WantedFile::Name(_) = wanted.file {
            return models.find(|model| wanted.choose(&model.files).is_ok());
        }
        // With several cached models the default quantization is required. A single cached model is used only when the
        // default quantization is not cached.
        let cached: Vec<CachedModel> = models.collect();
        let files: Vec<String> = cached.iter().flat_map(|model| model.files.clone()).collect();
        if wanted.format(&files) == ModelFormat::Safetensors {
            return cached.into_iter().find(|model| model.format == ModelFormat::Safetensors);
        }
        let chosen = wanted.choose(&files).ok()?;
        cached.into_iter().find(|model| model.files == chosen)
    }

    /// The spelling of a repository name in the cache, if the repository is cached.
    #[must_use]
    pub fn spelling(&self, repo: &str) -> Option<String> {
        self.repositories().into_iter().map(|(name, _)| name).find(|name| name.eq_ignore_ascii_case(repo))
    }

    /// Removes the links of a model and the blobs that no other file links to. Returns the number of freed bytes.
    ///
    /// # Errors
    /// [`HubError::Io`] when a file cannot be removed.
    pub fn remove(&self, model: &CachedModel) -> Result<u64, HubError> {
        let directory = self.root.join(directory_name(&model.repo));
        let snapshots = directory.join("snapshots");
        let wanted: HashSet<&str> = model.files.iter().map(String::as_str).collect();
        let mut blobs = HashSet::new();
        let mut kept = HashSet::new();
        let links_before = links(&snapshots);
        // The projector file of a repository goes with the last of its models.
        let is_other_model = |name: &str| is_gguf(name) && !is_projector(name) && !wanted.contains(name);
        let is_last = !links_before.iter().any(|(name, _)| is_other_model(name));
        for (name, path) in links_before {
            let Ok(blob) = path.canonicalize() else { continue };
            if wanted.contains(name.as_str()) || (is_last && is_projector(&name)) {
                std::fs::remove_file(&path).map_err(HubError::io("remove", &path))?;
                blobs.insert(blob);
            } else {
                kept.insert(blob);
            }
        }
        let mut freed = 0;
        for blob in blobs.difference(&kept) {
            // A cache without links (on Windows) has the data in the snapshot, which is removed already.
            if let Ok(metadata) = blob.metadata() {
                std::fs::remove_file(blob).map_err(HubError::io("remove", blob))?;
                freed += metadata.len();
            }
        }
        if links(&snapshots).is_empty() {
            std::fs::remove_dir_all(&directory).map_err(HubError::io("remove", &directory))?;
        }
        Ok(freed)
    }

    fn repositories(&self) -> Vec<(String, PathBuf)> {
        let entries = std::fs::read_dir(&self.root).into_iter().flatten().flatten();
        entries
            .filter_map(|entry| {
                let name = entry.file_name().into_string().ok()?;
                let (org, repo) = name.strip_prefix("models--")?.split_once("--")?;
                Some((format!("{org}/{repo}"), entry.path()))
            })
            .collect()
    }
}

/// The directory name of a repository.
pub(super) fn directory_name(repo: &str) -> String {
    format!("models--{}", repo.replace('/', "--"))
}

/// The models of one repository, each from the first snapshot that has it: that of `refs/main`, then from the newest to the oldest.
fn models_of(repo: &str, directory: &Path) -> Vec<CachedModel> {
    let mut models: Vec<CachedModel> = Vec::new();
    for snapshot in snapshots_of(directory) {
        for model in models_in(repo, &snapshot) {
            if models.iter().all(|known| known.reference() != model.reference()) {
                models.push(model);
            }
        }
    }
    models
}

/// The models of a snapshot.
fn models_in(repo: &str, snapshot: &Path) -> Vec<CachedModel> {
    let mut files: Vec<String> = files_below(snapshot, snapshot);
    files.sort_unstable();
    let firsts = files.iter().filter(|name| shard_of(name).is_none_or(|shard| shard.number == 1));
    let ggufs = firsts.filter_map(|first| {
        let wanted = Wanted { repo: repo.to_owned(), file: WantedFile::Name(first.clone()) };
        Some(model_of(repo, snapshot, ModelFormat::Gguf, wanted.choose(&files).ok()?))
    });
    let directory = directory_of(repo, snapshot, &files);
    ggufs.chain(directory.map(|files| model_of(repo, snapshot, ModelFormat::Safetensors, files))).collect()
}

/// The snapshots of a repository: that of `refs/main`, then from the newest to the oldest.
fn snapshots_of(directory: &Path) -> Vec<PathBuf> {
    let main = std::fs::read_to_string(directory.join("refs/main")).unwrap_or_default();
    let entries = std::fs::read_dir(directory.join("snapshots")).into_iter().flatten().flatten();
    let mut snapshots: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect();
    let changed = |path: &PathBuf| path.metadata().and_then(|metadata| metadata.modified()).ok();
    let is_main = |path: &PathBuf| path.file_name().is_some_and(|name| name == main.trim());
    snapshots.sort_by_key(|path| std::cmp::Reverse((is_main(path), changed(path))));
    snapshots
}

/// The model of these files, at least one.
fn model_of(repo: &str, snapshot: &Path, format: ModelFormat, files: Vec<String>) -> CachedModel {
    let paths: Vec<PathBuf> = files.iter().map(|file| snapshot.join(file)).collect();
    let metadata: Vec<_> = paths.iter().filter_map(|path| path.metadata().ok()).collect();
    CachedModel {
        repo: repo.to_owned(),
        format,
        quant: quant_of(&files[0]),
        bytes: metadata.iter().map(std::fs::Metadata::len).sum(),
        modified: metadata.first().and_then(|metadata| metadata.modified().ok()),
        files,
        paths,
    }
}

/// The files of a snapshot that make a complete Hugging Face directory.
fn directory_of(repo: &str, snapshot: &Path, files: &[String]) -> Option<Vec<String>> {
    let mut needed = directory::before_shards(repo, files).ok()?;
    let shards = directory::shards(&snapshot.join(needed.last()?)).ok()?;
    // The list is sorted.
    let is_complete = shards.iter().all(|shard| files.binary_search(shard).is_ok());
    needed.extend(shards);
    is_complete.then_some(needed)
}

/// Names, relative to `root`, of all files. Broken links are left out.
fn files_below(root: &Path, directory: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for path in std::fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path()) {
        if path.is_dir() {
            found.extend(files_below(root, &path));
        } else if path.is_file()
            && let Some(name) = path.strip_prefix(root).ok().and_then(Path::to_str)
        {
            found.push(name.replace('\\', "/"));
        }
    }
    found
}

/// All files of all snapshots: the name within the repository, and the path.
fn links(snapshots: &Path) -> Vec<(String, PathBuf)> {
    let commits = std::fs::read_dir(snapshots).into_iter().flatten().flatten().map(|entry| entry.path());
    commits
        .flat_map(|commit| files_below(&commit, &commit).into_iter().map(move |name| (name.clone(), commit.join(name))))
        .collect()
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use super::*;

    /// Adds a file to a cache like the hub clients do.
    fn put(root: &Path, repo: &str, name: &str, blob: &str, bytes: &[u8]) {
        put_at("c0ffee", root, repo, name, blob, bytes);
    }

    fn put_at(commit: &str, root: &Path, repo: &str, name: &str, blob: &str, bytes: &[u8]) {
        let directory = root.join(directory_name(repo));
        let link = directory.join("snapshots").join(commit).join(name);
        for parent in [directory.join("refs"), directory.join("blobs"), link.parent().unwrap().to_owned()] {
            std::fs::create_dir_all(parent).unwrap();
        }
        std::fs::write(directory.join("refs/main"), commit).unwrap();
        std::fs::write(directory.join("blobs").join(blob), bytes).unwrap();
        std::os::unix::fs::symlink(directory.join("blobs").join(blob), link).unwrap();
    }

    fn wanted(text: &str) -> Wanted {
        Wanted::parse(text).unwrap()
    }

    #[test]
    fn shards_are_listed_as_one_model() {
        let root = tempfile::tempdir().unwrap();
        put(root.path(), "Org/One", "one.Q4_K_M.gguf", "a", b"1234");
        put(root.path(), "Org/One", "README.md", "b", b"text");
        put(root.path(), "Org/Two", "two-Q8_0-00001-of-00002.gguf", "c", b"12");
        put(root.path(), "Org/Two", "two-Q8_0-00002-of-00002.gguf", "d", b"345");
        let models = Cache::new(root.path().to_owned()).models();
        let seen: Vec<_> = models.iter().map(|model| (model.reference(), model.bytes)).collect();
        assert_eq!(seen, [("Org/One:Q4_K_M".to_owned(), 4), ("Org/Two:Q8_0".to_owned(), 5)]);
    }

    #[test]
    fn a_model_is_found_in_any_case() {
        let root = tempfile::tempdir().unwrap();
        put(root.path(), "Org/One", "one.Q4_K_M.gguf", "a", b"1234");
        put(root.path(), "Org/One", "one.Q8_0.gguf", "b", b"12345");
        let cache = Cache::new(root.path().to_owned());
        assert_eq!(cache.find(&wanted("org/one")).unwrap().bytes, 4);
        assert_eq!(cache.find(&wanted("ORG/ONE:q8_0")).unwrap().bytes, 5);
        assert_eq!(cache.find(&wanted("org/one/ONE.Q8_0.gguf")).unwrap().bytes, 5);
        assert_eq!(cache.find(&wanted("org/one:Q2_K")), None);
        assert_eq!(cache.spelling("org/one").as_deref(), Some("Org/One"));
    }

    #[test]
    fn removing_keeps_blobs_that_other_files_link_to() {
        let root = tempfile::tempdir().unwrap();
        put(root.path(), "Org/One", "one.Q4_K_M.gguf", "a", b"1234");
        put(root.path(), "Org/One", "copy.Q8_0.gguf", "a", b"1234");
        let cache = Cache::new(root.path().to_owned());
        assert_eq!(cache.remove(&cache.find(&wanted("Org/One:Q8_0")).unwrap()).unwrap(), 0);
        assert_eq!(cache.remove(&cache.find(&wanted("Org/One")).unwrap()).unwrap(), 4);
        assert!(cache.models().is_empty());
        assert!(!root.path().join("models--Org--One").exists());
    }

    #[test]
    fn a_directory_is_a_model_next_to_gguf_files() {
        let root = tempfile::tempdir().unwrap();
        for name in ["config.json", "tokenizer.json", "model.safetensors"] {
            put(root.path(), "Org/One", name, name, b"1234");
        }
        let cache = Cache::new(root.path().to_owned());
        let directory = cache.find(&wanted("org/one")).unwrap();
        assert_eq!((directory.reference().as_str(), directory.bytes), ("Org/One:safetensors", 12));
        assert!(directory.path().ends_with("snapshots/c0ffee"));
        put(root.path(), "Org/One", "one.Q8_0.gguf", "a", b"12345");
        assert_eq!(cache.find(&wanted("org/one")).unwrap().quant.as_deref(), Some("Q8_0"));
        assert_eq!(cache.find(&wanted("org/one:SAFETENSORS")).unwrap(), directory);
        assert_eq!(cache.remove(&directory).unwrap(), 12);
        assert_eq!(cache.models().len(), 1);
        assert_eq!(cache.find(&wanted("org/one:safetensors")), None);
    }

    #[test]
    fn models_of_older_commits_are_found_until_a_newer_one_has_them() {
        let root = tempfile::tempdir().unwrap();
        let cache = Cache::new(root.path().to_owned());
        for name in ["config.json", "tokenizer.json", "model.safetensors"] {
            put_at("a", root.path(), "Org/One", name, &format!("a{name}"), b"1");
        }
        put_at("a", root.path(), "Org/One", "one.Q4_K_M.gguf", "a4", b"1");
        put_at("b", root.path(), "Org/One", "one.Q8_0.gguf", "b8", b"22");
        // A broken download of the directory's next version.
        put_at("b", root.path(), "Org/One", "config.json", "bc", b"22");
        let references: Vec<String> = cache.models().iter().map(CachedModel::reference).collect();
        assert_eq!(references, ["Org/One:Q4_K_M", "Org/One:Q8_0", "Org/One:safetensors"]);
        assert!(cache.find(&wanted("org/one:q4_k_m")).unwrap().path().ends_with("a/one.Q4_K_M.gguf"));
        assert!(cache.find(&wanted("org/one:safetensors")).unwrap().path().ends_with("snapshots/a"));
        put_at("b", root.path(), "Org/One", "one.Q4_K_M.gguf", "b4", b"22");
        let newer = cache.find(&wanted("org/one:q4_k_m")).unwrap();
        assert_eq!(newer.bytes, 2);
        assert_eq!(cache.remove(&newer).unwrap(), 3, "with the data of the older commit");
    }

    #[test]
    fn an_incomplete_download_is_not_listed() {
        let root = tempfile::tempdir().unwrap();
        let index = br#"{"weight_map": {"a": "1.safetensors", "b": "2.safetensors"}}"#;
        for (name, bytes) in [
            ("config.json", &b"{}"[..]),
            ("tokenizer.json", b"{}"),
            ("model.safetensors.index.json", index),
            ("1.safetensors", b"1"),
        ] {
            put(root.path(), "Org/Three", name, name, bytes);
        }
        put(root.path(), "Org/Two", "two-Q8_0-00001-of-00002.gguf", "c", b"12");
        assert!(Cache::new(root.path().to_owned()).models().is_empty());
    }
}
