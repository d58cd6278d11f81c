//! All models by name: those named at startup, and those found in a directory.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use futures_util::future::join_all;

use super::directory::ModelsDirectory;
use super::entry::{Entry, Phase};
use super::info::MemoryUse;
use super::keep_alive::KeepAlive;
use super::memory_budget::Resident;
use super::options::ModelsOptions;
use crate::pipeline::runtime::Runtime;

/// All models and their settings.
pub(super) struct Registry {
    entries: RwLock<Vec<Arc<Entry>>>,
    pub directory: Option<ModelsDirectory>,
    pub options: ModelsOptions,
    stopping: AtomicBool,
}

/// A model that uses memory.
pub(super) struct ResidentModel {
    pub entry: Arc<Entry>,
    pub resident: Resident,
}

/// The item of a sequence that has exactly one.
fn only<T>(mut items: impl Iterator<Item = T>) -> Option<T> {
    items.next().filter(|_| items.next().is_none())
}

impl Registry {
    pub fn new(entries: Vec<Arc<Entry>>, directory: Option<ModelsDirectory>, options: ModelsOptions) -> Self {
        Registry { entries: RwLock::new(entries), directory, options, stopping: AtomicBool::new(false) }
    }

    /// All models, those named at startup first.
    pub fn entries(&self) -> Vec<Arc<Entry>> {
        self.entries.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The model with this id or alias, or with an adapter of this name.
    pub fn entry(&self, name: &str) -> Option<Arc<Entry>> {
        let entries = self.entries.read().unwrap_or_else(PoisonError::into_inner);
        let named = entries.iter().find(|entry| entry.has_name(name));
        named.or_else(|| entries.iter().find(|entry| entry.has_adapter(name))).cloned()
    }

    /// The model that was downloaded as this reference, in any of its spellings.
    pub fn entry_of_reference(&self, name: &str) -> Option<Arc<Entry>> {
        let reference = self.directory.as_ref()?.store.as_ref()?.reference(name).ok()?;
        let is_it = |name: &str| name.eq_ignore_ascii_case(&reference);
        let is_meant = |entry: &&Arc<Entry>| is_it(&entry.id) || entry.aliases.iter().any(|alias| is_it(alias));
        self.entries.read().unwrap_or_else(PoisonError::into_inner).iter().find(is_meant).cloned()
    }

    /// The first model named at the start, or the only known model, or the only loaded one.
    pub fn default_entry(&self) -> Option<Arc<Entry>> {
        let entries = self.entries.read().unwrap_or_else(PoisonError::into_inner);
        let is_loaded = |entry: &&Arc<Entry>| entry.read(|slot| slot.phase == Phase::Loaded);
        let named = entries.iter().find(|entry| entry.named);
        named.or_else(|| only(entries.iter())).or_else(|| only(entries.iter().filter(is_loaded))).cloned()
    }

    /// The models that use memory.
    pub fn residents(&self) -> Vec<ResidentModel> {
        let resident = |entry: Arc<Entry>| {
            let (memory, hold) = entry.resident()?;
            Some(ResidentModel { entry, resident: Resident { bytes: memory.host_bytes(), hold } })
        };
        self.entries().into_iter().filter_map(resident).collect()
    }

    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// Refuses all calls from now on, including those that wait.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        for entry in self.entries() {
            entry.change(|_| ());
        }
    }

    /// Used and free memory.
    pub fn memory_use(&self) -> MemoryUse {
        let held_bytes = self.residents().iter().map(|model| model.resident.bytes).sum();
        let limit_bytes = self.options.memory_bytes;
        MemoryUse { limit_bytes, held_bytes, free_bytes: (self.options.machine)().free(limit_bytes, held_bytes) }
    }

    /// Stops the pipelines of all models concurrently.
    pub async fn shutdown_runtimes(&self, drain: Duration) {
        let entries = self.entries();
        let runtimes: Vec<Runtime> =
            entries.iter().filter_map(|entry| entry.read(|slot| slot.runtime.clone())).collect();
        join_all(runtimes.iter().map(|runtime| runtime.shutdown(drain))).await;
    }

    /// Updates the models found in the directory. Blocks while the directory is listed.
    pub fn rescan(&self) {
        let Some(directory) = &self.directory else { return };
        let found = match directory.scan() {
            Ok(found) => found,
            Err(error) => {
                tracing::warn!(%error, directory = %directory.path().display(), "the models directory cannot be read");
                return;
            }
        };
        let mut entries = self.entries.write().unwrap_or_else(PoisonError::into_inner);
        // A loaded model stays listed after its file was removed.
        let is_found = |entry: &Entry| found.iter().any(|found| *found.id == *entry.id);
        let is_unloaded =
            |entry: &Entry| entry.read(|slot| matches!(slot.phase, Phase::Unloaded | Phase::Refused { .. }));
        entries.retain(|entry| entry.named || is_found(entry) || !is_unloaded(entry));
        for file in found {
            // A name given at startup takes precedence.
            if !entries.iter().any(|entry| entry.has_name(&file.id)) {
                let keep_alive = self.options.keep_alive;
                let keep_alive = keep_alive.unwrap_or(KeepAlive::For(ModelsOptions::FOUND_KEEP_ALIVE)).limit();
                let mut entry = Entry::new(&file.id, directory.factory(&file.path));
                entry.keep_alive = keep_alive;
                entry.aliases = directory.references(&file.path);
                entry.aliases.retain(|alias| *alias != file.id);
                entries.push(Arc::new(entry));
            }
        }
    }
}
