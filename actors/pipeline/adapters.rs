//! The low-rank adapters of a model by name: loaded with the model or while it runs.
//!
//! They belong to the source of the model. So they stay when an engine is loaded again after a fault, replicas share them, and
//! they go when the model is unloaded. A request holds its adapter itself: one that is unloaded answers the requests that use it
//! to their ends, and its slot is free afterwards.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cuelight_engine::adapters::AdapterModel;
use cuelight_engine::engine::{Adapter, AdapterUse};
use sha2::{Digest, Sha256};

/// An adapter to load.
#[derive(Debug, Clone, PartialEq)]
pub struct AdapterSpec {
    /// Its name, which requests give as their model.
    pub name: String,
    /// Its file, or its directory.
    pub path: PathBuf,
    /// A factor on its changes.
    pub scale: f32,
}

/// A loaded adapter.
#[derive(Debug, Clone)]
pub struct NamedAdapter {
    /// Its number, which is not used again.
    pub id: usize,
    /// Its name and file.
    pub spec: AdapterSpec,
    /// The adapter for a request.
    pub adapter: AdapterUse,
}

/// Why an adapter is not loaded or unloaded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AdaptersError {
    /// The model is still loading.
    #[error("the model is still loading")]
    NotReady,
    /// The name is taken.
    #[error("the adapter `{0}` is already loaded")]
    Exists(String),
    /// There is no such adapter.
    #[error("the adapter `{0}` is not loaded")]
    Unknown(String),
    /// All slots are in use.
    #[error(
        "all {0} slots for adapters are in use; unload one, or wait until the requests that use an unloaded one end"
    )]
    Full(usize),
    /// The adapter cannot be loaded. The text names the file and the reason.
    #[error("{0}")]
    Unusable(String),
}

/// The adapters of a model.
#[derive(Debug)]
pub struct Adapters {
    /// Those that are loaded with the model.
    specs: Vec<AdapterSpec>,
    state: Mutex<State>,
    /// Adapters in memory.
    live: Arc<AtomicUsize>,
}

#[derive(Debug, Default)]
struct State {
    /// What adapters must fit, once the model is loaded.
    model: Option<Arc<AdapterModel>>,
    loaded: Vec<NamedAdapter>,
    next_id: usize,
}

/// A slot, until it is dropped.
struct SlotGuard(Arc<AtomicUsize>);

impl Drop for SlotGuard {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Adapters {
    /// The adapters that are to be loaded with a model.
    #[must_use]
    pub fn new(specs: Vec<AdapterSpec>) -> Self {
        Adapters { specs, state: Mutex::default(), live: Arc::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Loads the first adapters after the model was loaded. Later loads of the model change nothing. Blocks.
    ///
    /// # Errors
    /// [`AdaptersError`] when one of them cannot be loaded.
    pub fn attach(&self, model: &Arc<AdapterModel>) -> Result<(), AdaptersError> {
        if self.state().model.replace(Arc::clone(model)).is_some() {
            return Ok(());
        }
        self.specs.iter().try_for_each(|spec| self.load(spec.clone()))
    }

    /// Loads an adapter. Blocks.
    ///
    /// # Errors
    /// [`AdaptersError`].
    pub fn load(&self, spec: AdapterSpec) -> Result<(), AdaptersError> {
        let model = self.state().model.clone().ok_or(AdaptersError::NotReady)?;
        self.check_is_new(&self.state(), &spec)?;
        let guard = self.take_slot(model.limits().slots)?;
        let loaded = model.load(&spec.path, spec.scale);
        let adapter = with_digest(loaded.map_err(|error| AdaptersError::Unusable(error.to_string()))?);
        let adapter = adapter.guarded_by(guard).named(&spec.name);
        let mut state = self.state();
        self.check_is_new(&state, &spec)?;
        let id = state.next_id;
        state.next_id += 1;
        state.loaded.push(NamedAdapter { id, spec, adapter: AdapterUse { adapter: Arc::new(adapter), scale: 1.0 } });
        Ok(())
    }

    fn check_is_new(&self, state: &State, spec: &AdapterSpec) -> Result<(), AdaptersError> {
        let exists = state.loaded.iter().any(|loaded| loaded.spec.name == spec.name);
        if exists { Err(AdaptersError::Exists(spec.name.clone())) } else { Ok(()) }
    }

    fn take_slot(&self, slots: usize) -> Result<SlotGuard, AdaptersError> {
        let take = |live: usize| (live < slots).then_some(live + 1);
        let taken = self.live.fetch_update(Ordering::AcqRel, Ordering::Acquire, take);
        taken.map(|_| SlotGuard(Arc::clone(&self.live))).map_err(|_| AdaptersError::Full(slots))
    }

    /// Unloads an adapter. Requests that use it continue, and its memory is free when they have ended.
    ///
    /// # Errors
    /// [`AdaptersError::Unknown`].
    pub fn unload(&self, name: &str) -> Result<(), AdaptersError> {
        let mut state = self.state();
        let index = state.loaded.iter().position(|loaded| loaded.spec.name == name);
        let index = index.ok_or_else(|| AdaptersError::Unknown(name.to_owned()))?;
        state.loaded.remove(index);
        Ok(())
    }

    /// The adapter with this name.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<AdapterUse> {
        self.state().loaded.iter().find(|loaded| loaded.spec.name == name).map(|loaded| loaded.adapter.clone())
    }

    /// The adapter with this number, with a scale instead of its own.
    #[must_use]
    pub fn with_scale(&self, id: usize, scale: f32) -> Option<AdapterUse> {
        let state = self.state();
        let NamedAdapter { spec, adapter, .. } = state.loaded.iter().find(|loaded| loaded.id == id)?;
        // The scale that it was loaded with is part of its matrices.
        let scale = if spec.scale == 0.0 { 0.0 } else { scale / spec.scale };
        Some(AdapterUse { scale, ..adapter.clone() })
    }

    /// All adapters, in the order in which they were loaded.
    #[must_use]
    pub fn list(&self) -> Vec<NamedAdapter> {
        self.state().loaded.clone()
    }

    /// Whether a name is that of an adapter: a loaded one, or before the model is loaded, one that is loaded with it.
    #[must_use]
    pub fn has_name(&self, name: &str) -> bool {
        let state = self.state();
        match state.model {
            None => self.specs.iter().any(|spec| spec.name == name),
            Some(_) => state.loaded.iter().any(|loaded| loaded.spec.name == name),
        }
    }
}

/// The adapter with the digest of what it contains, by which the cached prefixes of its requests are found again.
fn with_digest(adapter: Adapter) -> Adapter {
    let mut digest = Sha256::new_with_prefix(b"cuelight adapter");
    adapter.write_content(&mut |part| digest.update(part));
    adapter.with_content(digest.finalize().into())
}

/// Reads `NAME=PATH` or `NAME=PATH:SCALE`.
///
/// # Errors
/// What is wrong with the text.
pub fn parse_spec(text: &str) -> Result<AdapterSpec, String> {
    let (name, path) = text
        .split_once('=')
        .filter(|(name, path)| !name.is_empty() && !path.is_empty())
        .ok_or_else(|| format!("`{text}` is not an adapter; write NAME=PATH or NAME=PATH:SCALE"))?;
    let scaled = path.rsplit_once(':').and_then(|(path, scale)| Some((path, scale.parse::<f32>().ok()?)));
    let (path, scale) = match scaled {
        Some((path_alone, scale)) if scale.is_finite() && !Path::new(path).exists() => (path_alone, scale),
        _ => (path, 1.0),
    };
    Ok(AdapterSpec { name: name.to_owned(), path: PathBuf::from(path), scale })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scale_may_follow_the_path() {
        let spec = |name: &str, path: &str, scale| Ok(AdapterSpec { name: name.into(), path: path.into(), scale });
        assert_eq!(parse_spec("a=dir/x"), spec("a", "dir/x", 1.0));
        assert_eq!(parse_spec("a=dir/x:0.5"), spec("a", "dir/x", 0.5));
        assert_eq!(parse_spec("a=C:/x"), spec("a", "C:/x", 1.0));
        for wrong in ["dir/x", "=x", "a="] {
            assert!(parse_spec(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn without_a_model_nothing_is_loaded() {
        let spec = AdapterSpec { name: "a".to_owned(), path: "nowhere".into(), scale: 1.0 };
        let adapters = Adapters::new(vec![spec.clone()]);
        assert_eq!(adapters.load(spec), Err(AdaptersError::NotReady));
        assert_eq!(adapters.unload("a"), Err(AdaptersError::Unknown("a".to_owned())));
        assert!(adapters.has_name("a") && !adapters.has_name("b"));
    }
}
