//! The models that are known, under their names: those named at the start, and those of a directory.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use futures_util::future::join_all;

use super::directory::ModelsDirectory;
use super::entry::{Entry, Phase};
use super::info::MemoryRoom;
use super::options::{KeepAlive, ModelsOptions};
use super::room::Resident;
use crate::runtime::Runtime;

/// The models that are known, and how they are kept.
pub(super) struct Registry {
    entries: RwLock<Vec<Arc<Entry>>>,
    pub directory: Option<ModelsDirectory>,
    pub options: ModelsOptions,
    stopping: AtomicBool,
}

/// A model that holds memory.
pub(super) struct Held {
    pub entry: Arc<Entry>,
    pub resident: Resident,
}

impl Registry {
    pub fn new(entries: Vec<Arc<Entry>>, directory: Option<ModelsDirectory>, options: ModelsOptions) -> Self {
        Registry { entries: RwLock::new(entries), directory, options, stopping: AtomicBool::new(false) }
    }

    /// Every model, those named at the start first.
    pub fn entries(&self) -> Vec<Arc<Entry>> {
        self.entries.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The model of this name.
    pub fn entry(&self, name: &str) -> Option<Arc<Entry>> {
        let entries = self.entries.read().unwrap_or_else(PoisonError::into_inner);
        entries.iter().find(|entry| entry.answers_to(name)).cloned()
    }

    /// The first model named at the start, or the only one there is.
    pub fn default_entry(&self) -> Option<Arc<Entry>> {
        let entries = self.entries.read().unwrap_or_else(PoisonError::into_inner);
        let only = if entries.len() == 1 { entries.first() } else { None };
        entries.iter().find(|entry| entry.named).or(only).cloned()
    }

    /// The models that hold memory.
    pub fn residents(&self) -> Vec<Held> {
        let held = |entry: Arc<Entry>| {
            let (memory, hold) = entry.resident()?;
            Some(Held { entry, resident: Resident { bytes: memory.host_bytes(), hold } })
        };
        self.entries().into_iter().filter_map(held).collect()
    }

    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// Refuses calls from now on, also those that wait.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        for entry in self.entries() {
            entry.change(|_| ());
        }
    }

    /// What is held, and what is free beside it.
    pub fn room(&self) -> MemoryRoom {
        let held_bytes = self.residents().iter().map(|model| model.resident.bytes).sum();
        let limit_bytes = self.options.memory_bytes;
        MemoryRoom { limit_bytes, held_bytes, free_bytes: (self.options.machine)().free(limit_bytes, held_bytes) }
    }

    /// Ends all casts at the same time.
    pub async fn shutdown_casts(&self, drain: Duration) {
        let entries = self.entries();
        let runtimes: Vec<Runtime> =
            entries.iter().filter_map(|entry| entry.read(|slot| slot.runtime.clone())).collect();
        join_all(runtimes.iter().map(|runtime| runtime.shutdown(drain))).await;
    }

    /// Takes in what the directory holds now. Blocks for as long as listing a directory does.
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
        // A model outlives its file for as long as it is loaded.
        let is_here = |entry: &Entry| found.iter().any(|found| *found.id == *entry.id);
        let is_idle = |entry: &Entry| entry.read(|slot| matches!(slot.phase, Phase::Unloaded | Phase::Refused { .. }));
        entries.retain(|entry| entry.named || is_here(entry) || !is_idle(entry));
        for file in found {
            // A name given at the start wins.
            if !entries.iter().any(|entry| entry.answers_to(&file.id)) {
                let keep_alive = self.options.keep_alive;
                let keep_alive = keep_alive.unwrap_or(KeepAlive::For(ModelsOptions::FOUND_KEEP_ALIVE)).limit();
                let mut entry = Entry::new(&file.id, directory.factory(&file.path));
                entry.keep_alive = keep_alive;
                entries.push(Arc::new(entry));
            }
        }
    }
}
