//! The models of registries on this machine, in Ollama's layout, so that its folder can be shared.
//!
//! `manifests/HOST/NAMESPACE/MODEL/TAG` is a manifest, and `blobs/sha256-DIGITS` the data of a layer. What is not complete is
//! `blobs/sha256-DIGITS.part`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::manifest::{Blob, Manifest};
use super::name::OllamaName;
use crate::hub::error::HubError;

/// The folder of the models.
#[derive(Debug, Clone)]
pub struct OllamaStore {
    root: PathBuf,
}

/// A complete model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredModel {
    /// Its name, with its registry.
    pub name: OllamaName,
    /// Its layers.
    pub manifest: Manifest,
    /// The GGUF file.
    pub path: PathBuf,
    /// Size of all of its layers, in bytes.
    pub bytes: u64,
    /// When it was downloaded.
    pub modified: Option<SystemTime>,
}

impl OllamaStore {
    /// The models in a folder, which need not exist.
    #[must_use]
    pub fn new(root: PathBuf) -> Self {
        OllamaStore { root }
    }

    /// All complete models, sorted by name. Unreadable manifests are skipped.
    #[must_use]
    pub fn models(&self) -> Vec<StoredModel> {
        let manifests = self.manifests();
        let mut models: Vec<StoredModel> =
            manifests.into_iter().filter_map(|(name, path)| self.read(name, &path)).collect();
        models.sort_by(|one, other| one.name.cmp(&other.name));
        models
    }

    /// The model of a name. A name without a host is that of any registry.
    #[must_use]
    pub fn find(&self, name: &OllamaName) -> Option<StoredModel> {
        self.models().into_iter().find(|model| name.matches(&model.name))
    }

    fn read(&self, name: OllamaName, path: &Path) -> Option<StoredModel> {
        let manifest = Manifest::parse(&name, &std::fs::read(path).ok()?).ok()?;
        if !manifest.needed().all(|blob| self.has(blob)) {
            return None;
        }
        let modified = path.metadata().and_then(|metadata| metadata.modified()).ok();
        let bytes = manifest.blobs().map(|blob| blob.bytes).sum();
        Some(StoredModel { path: self.blob_path(&manifest.model), name, manifest, bytes, modified })
    }

    /// The path of each manifest, and the name that it says.
    fn manifests(&self) -> Vec<(OllamaName, PathBuf)> {
        let mut paths = vec![self.root.join("manifests")];
        for _ in 0..4 {
            paths = paths.iter().flat_map(|path| entries(path)).collect();
        }
        let of_path = |path: PathBuf| {
            let mut parts = path.iter().rev().map(|part| part.to_str());
            let (tag, model, namespace, host) = (parts.next()??, parts.next()??, parts.next()??, parts.next()??);
            let name = OllamaName::parse(&format!("ollama://{host}/{namespace}/{model}:{tag}")).ok()?;
            path.is_file().then_some((name, path))
        };
        paths.into_iter().filter_map(of_path).collect()
    }

    /// Whether all data of a layer is there.
    pub(super) fn has(&self, blob: &Blob) -> bool {
        self.blob_path(blob).metadata().is_ok_and(|metadata| metadata.len() == blob.bytes)
    }

    /// The file of a layer, if all of it is there.
    pub(super) fn present(&self, blob: &Blob) -> Option<PathBuf> {
        self.has(blob).then(|| self.blob_path(blob))
    }

    /// The folder of the data.
    #[must_use]
    pub fn blobs(&self) -> PathBuf {
        self.root.join("blobs")
    }

    pub(super) fn blob_path(&self, blob: &Blob) -> PathBuf {
        self.blobs().join(format!("sha256-{}", blob.sha256))
    }

    pub(super) fn part_path(&self, blob: &Blob) -> PathBuf {
        self.blobs().join(format!("sha256-{}.part", blob.sha256))
    }

    /// The text of a layer.
    pub(super) fn text(&self, model: &OllamaName, blob: &Blob) -> Result<String, HubError> {
        let path = self.blob_path(blob);
        let bytes = std::fs::read(&path).map_err(HubError::io("read", &path))?;
        let bad = |_| HubError::BadManifest { model: model.to_string(), reason: "a text is not UTF-8".to_owned() };
        String::from_utf8(bytes).map_err(bad)
    }

    /// Creates the folder of the data.
    pub(super) fn prepare(&self) -> Result<(), HubError> {
        let blobs = self.blobs();
        std::fs::create_dir_all(&blobs).map_err(HubError::io("create", &blobs))
    }

    /// Writes the manifest of a model whose layers are complete.
    pub(super) fn add(&self, path_below: &Path, manifest: &[u8]) -> Result<(), HubError> {
        let path = self.root.join("manifests").join(path_below);
        let folder = path.parent().unwrap_or(&path);
        std::fs::create_dir_all(folder).map_err(HubError::io("create", folder))?;
        // Next to the folder of manifests, so that no other program takes it for one.
        let fresh = self.root.join(format!("manifest-{}.new", uuid::Uuid::new_v4()));
        std::fs::write(&fresh, manifest).map_err(HubError::io("write", &fresh))?;
        std::fs::rename(&fresh, &path).map_err(HubError::io("write", &path))
    }

    /// Removes a model, and the data that no other manifest names. Returns the number of freed bytes.
    ///
    /// # Errors
    /// [`HubError::Io`] when a file cannot be read or removed.
    pub fn remove(&self, model: &StoredModel) -> Result<u64, HubError> {
        let manifest = self.root.join("manifests").join(model.name.manifest_path().unwrap_or_default());
        std::fs::remove_file(&manifest).map_err(HubError::io("remove", &manifest))?;
        manifest.ancestors().skip(1).take(3).all(|folder| std::fs::remove_dir(folder).is_ok());
        let mut freed = 0;
        for blob in self.not_named(model.manifest.blobs())? {
            let path = self.blob_path(blob);
            std::fs::remove_file(&path).map_err(HubError::io("remove", &path))?;
            freed += blob.bytes;
        }
        Ok(freed)
    }

    /// Those blobs that no manifest names, each once. A manifest that cannot be understood counts by its text.
    fn not_named<'a>(&self, blobs: impl Iterator<Item = &'a Blob>) -> Result<Vec<&'a Blob>, HubError> {
        let read = |path: &PathBuf| std::fs::read_to_string(path).map_err(HubError::io("read", path));
        let texts = self.manifests().iter().map(|(_, path)| read(path)).collect::<Result<Vec<String>, _>>()?;
        let mut seen = BTreeSet::new();
        let is_named = |blob: &Blob| texts.iter().any(|text| text.contains(&blob.sha256));
        Ok(blobs.filter(|blob| self.has(blob) && !is_named(blob) && seen.insert(&blob.sha256)).collect())
    }
}

/// The paths in a folder.
fn entries(folder: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}
