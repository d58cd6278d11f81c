//! How models are loaded and kept, and which ones a server is started for.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use super::entry::Entry;
use super::room::Machine;
use super::source::{ModelFactory, PlannedModel};
use crate::runtime::RuntimeOptions;

/// How long a model stays loaded that nobody calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeepAlive {
    /// This long; zero: it goes with its last call.
    For(Duration),
    /// As long as its room is not needed.
    Forever,
}

/// How models are loaded and kept.
#[derive(Debug, Clone)]
pub struct ModelsOptions {
    /// How each model's cast runs; the name is the model's own.
    pub runtime: RuntimeOptions,
    /// What all loaded models may take together; `None`: what the machine has.
    pub memory_bytes: Option<u64>,
    /// Most models loaded at once; `None`: as many as fit.
    pub max_loaded_models: Option<NonZeroUsize>,
    /// How long models stay that nobody calls; `None`: those named at the start stay for good, others for
    /// [`Self::FOUND_KEEP_ALIVE`].
    pub keep_alive: Option<KeepAlive>,
    /// Calls load the model that they name.
    pub autoload: bool,
    /// How long a call waits for its model.
    pub load_timeout: Duration,
    /// Most calls that wait for one model.
    pub max_waiting_calls: usize,
    /// How much memory the machine has.
    pub machine: fn() -> Machine,
}

impl ModelsOptions {
    /// How long a model that was found in a directory stays without calls, when nothing else is said.
    pub const FOUND_KEEP_ALIVE: Duration = Duration::from_secs(5 * 60);
}

impl Default for ModelsOptions {
    fn default() -> Self {
        ModelsOptions {
            runtime: RuntimeOptions::default(),
            memory_bytes: None,
            max_loaded_models: None,
            keep_alive: None,
            autoload: true,
            load_timeout: Duration::from_secs(5 * 60),
            max_waiting_calls: 256,
            machine: Machine::now,
        }
    }
}

/// A model that the server is started for.
pub struct NamedModel {
    /// The name that answers carry.
    pub id: String,
    /// More names for it.
    pub aliases: Vec<String>,
    /// Where it comes from.
    pub factory: Arc<dyn ModelFactory>,
    /// Its plan, if there is one already; used up by the first load.
    pub planned: Option<PlannedModel>,
}

impl KeepAlive {
    /// The longest idle time; `None`: there is none.
    pub(super) fn limit(self) -> Option<Duration> {
        match self {
            KeepAlive::For(limit) => Some(limit),
            KeepAlive::Forever => None,
        }
    }
}

impl NamedModel {
    pub(super) fn entry(self, keep_alive: Option<KeepAlive>) -> Entry {
        let mut entry = Entry::new(&self.id, self.factory);
        entry.change(|slot| slot.planned = self.planned);
        entry.aliases = self.aliases;
        entry.named = true;
        entry.kept = keep_alive.is_none();
        entry.keep_alive = keep_alive.and_then(KeepAlive::limit);
        entry
    }
}
