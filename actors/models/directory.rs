//! Finds the models in a directory. Each GGUF file is a model, each set of shards, and each Hugging Face directory.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::pulls::Pulls;
use super::source::ModelFactory;
use super::store::ModelStore;

/// A directory of models, with a function that makes a model from a file or directory.
pub struct ModelsDirectory {
    path: PathBuf,
    make: Make,
    /// Downloads models into the directory. `None`: requests do not change it.
    pub(super) store: Option<Arc<dyn ModelStore>>,
    pub(super) pulls: Pulls,
}

type Make = Box<dyn Fn(&Path) -> Arc<dyn ModelFactory> + Send + Sync>;

/// A model in a directory.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Found {
    /// The stem of the file, without a shard number; the name of a directory.
    pub id: String,
    /// The file, its first shard, or the directory.
    pub path: PathBuf,
}

impl ModelsDirectory {
    /// The directory `path`. `make` makes a model from a file or directory.
    ///
    /// # Errors
    /// When the directory cannot be read.
    pub fn open(
        path: impl Into<PathBuf>,
        make: impl Fn(&Path) -> Arc<dyn ModelFactory> + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let path = path.into();
        scan(&path)?;
        Ok(ModelsDirectory { path, make: Box::new(make), store: None, pulls: Pulls::default() })
    }

    /// Lets requests change the directory: `store` downloads models into it and removes them.
    #[must_use]
    pub fn with_store(self, store: Arc<dyn ModelStore>) -> Self {
        ModelsDirectory { store: Some(store), ..self }
    }

    /// The path of the directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The models that are there now, sorted by name. Does not open the files.
    pub(super) fn scan(&self) -> io::Result<Vec<Found>> {
        scan(&self.path)
    }

    /// The references of a model that was downloaded into the directory.
    pub(super) fn references(&self, path: &Path) -> Vec<String> {
        self.store.as_ref().map_or_else(Vec::new, |store| store.references(path))
    }

    pub(super) fn factory(&self, path: &Path) -> Arc<dyn ModelFactory> {
        (self.make)(path)
    }
}

fn scan(directory: &Path) -> io::Result<Vec<Found>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if is_hugging_face(&path) {
            let name = path.file_name().and_then(|name| name.to_str()).map(str::to_owned);
            found.extend(name.map(|id| Found { id, path }));
            continue;
        }
        // Follows links, because files are often links into a download cache.
        if !has_extension(&path, "gguf") || !path.is_file() {
            continue;
        }
        let Some(stem) = path.file_stem().and_then(|stem| stem.to_str()) else { continue };
        // The projector file of another file is not a model of its own.
        if stem.to_ascii_lowercase().contains("mmproj") {
            continue;
        }
        match shard(stem) {
            None => found.push(Found { id: stem.to_owned(), path }),
            Some((name, 1)) => found.push(Found { id: name.to_owned(), path }),
            // A set of shards is listed by its first shard.
            Some(_) => {}
        }
    }
    // Of a file and a directory with the same name, the file is listed.
    found.sort_by_cached_key(|found| (found.id.clone(), found.path.is_dir()));
    found.dedup_by(|a, b| a.id == b.id);
    Ok(found)
}

/// Whether a path is a directory with a `config.json` and safetensors.
fn is_hugging_face(path: &Path) -> bool {
    let has_weights = || {
        let mut entries = fs::read_dir(path).into_iter().flatten().flatten();
        entries.any(|entry| has_extension(&entry.path(), "safetensors"))
    };
    path.join("config.json").is_file() && has_weights()
}

fn has_extension(path: &Path, wanted: &str) -> bool {
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case(wanted))
}

/// Splits `name-00002-of-00003` into the name and the shard number, which starts at 1.
fn shard(stem: &str) -> Option<(&str, usize)> {
    const DIGITS: usize = 5;
    let (rest, total) = stem.rsplit_once("-of-")?;
    let (name, number) = rest.rsplit_once('-')?;
    let is_number = |text: &str| text.len() == DIGITS && text.bytes().all(|byte| byte.is_ascii_digit());
    (is_number(total) && is_number(number)).then(|| number.parse().ok().map(|number| (name, number)))?
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_file_is_a_model_and_so_is_each_set_of_shards() {
        let directory = tempfile::tempdir().unwrap();
        let names = [
            "b.gguf",
            "a.Q4_K_M.GGUF",
            "big-00002-of-00002.gguf",
            "big-00001-of-00002.gguf",
            "second-half-00002-of-00002.gguf",
            "part-of-it.gguf",
            "notes.txt",
            "mmproj-b-f16.gguf",
        ];
        for name in names {
            fs::write(directory.path().join(name), b"").unwrap();
        }
        fs::create_dir(directory.path().join("folder.gguf")).unwrap();
        let found = scan(directory.path()).unwrap();
        let ids: Vec<&str> = found.iter().map(|found| found.id.as_str()).collect();
        assert_eq!(ids, ["a.Q4_K_M", "b", "big", "part-of-it"]);
        assert!(found[2].path.ends_with("big-00001-of-00002.gguf"));
    }

    #[test]
    fn a_hugging_face_directory_is_a_model_with_its_name() {
        let directory = tempfile::tempdir().unwrap();
        for (folder, files) in [
            ("Tiny-1.5B", &["config.json", "model.safetensors"][..]),
            ("only-config", &["config.json"]),
            ("only-weights", &["model.safetensors"]),
            ("both", &["config.json", "model.safetensors"]),
        ] {
            fs::create_dir(directory.path().join(folder)).unwrap();
            files.iter().for_each(|file| fs::write(directory.path().join(folder).join(file), b"").unwrap());
        }
        fs::write(directory.path().join("both.gguf"), b"").unwrap();
        fs::write(directory.path().join("config.json"), b"").unwrap();
        let found = scan(directory.path()).unwrap();
        let seen: Vec<_> = found.iter().map(|found| (found.id.as_str(), found.path.is_dir())).collect();
        assert_eq!(seen, [("Tiny-1.5B", true), ("both", false)]);
    }

    #[test]
    fn a_missing_directory_is_an_error() {
        assert!(scan(Path::new("/no/such/directory")).is_err());
    }
}
