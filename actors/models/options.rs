//! Settings for loading and unloading models, and the models named at startup.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use super::entry::Entry;
use super::keep_alive::KeepAlive;
use super::memory_budget::Machine;
use super::source::{ModelFactory, PlannedModel};
use crate::pipeline::options::RuntimeOptions;

/// Settings for loading and unloading models.
#[derive(Debug, Clone)]
pub struct ModelsOptions {
    /// Settings of each model's pipelines. `model_id` is replaced by the name of the model.
    pub runtime: RuntimeOptions,
    /// Memory limit for all loaded models together, in bytes. `None`: the memory of the machine.
    pub memory_bytes: Option<u64>,
    /// Maximum number of loaded models. `None`: as many as fit.
    pub max_loaded_models: Option<NonZeroUsize>,
    /// How long models stay loaded without calls. `None`: those named at startup stay loaded, others stay for
    /// [`Self::FOUND_KEEP_ALIVE`].
    pub keep_alive: Option<KeepAlive>,
    /// Whether calls load the model that they name.
    pub autoload: bool,
    /// Whether calls that name an unknown model use the default one.
    pub any_name: bool,
    /// How long a call waits for its model to be loaded.
    pub load_timeout: Duration,
    /// Maximum number of calls that wait for one model.
    pub max_waiting_calls: usize,
    /// Returns the memory of the machine.
    pub machine: fn() -> Machine,
}

impl ModelsOptions {
    /// Default keep-alive time of models found in a directory.
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
            any_name: false,
            load_timeout: Duration::from_secs(5 * 60),
            max_waiting_calls: 256,
            machine: Machine::now,
        }
    }
}

/// A model that is named at startup.
pub struct NamedModel {
    /// The name of the model, used in responses.
    pub id: String,
    /// Other names of the model.
    pub aliases: Vec<String>,
    /// The names of the adapters that are loaded with it.
    pub adapters: Vec<String>,
    /// Plans and starts the model.
    pub factory: Arc<dyn ModelFactory>,
    /// A memory plan that was made already. The first load uses it.
    pub planned: Option<PlannedModel>,
}

impl NamedModel {
    pub(super) fn entry(self, keep_alive: Option<KeepAlive>) -> Entry {
        let mut entry = Entry::new(&self.id, self.factory);
        entry.change(|slot| slot.planned = self.planned);
        entry.aliases = self.aliases;
        entry.adapters = self.adapters;
        entry.named = true;
        entry.kept = keep_alive.is_none();
        entry.keep_alive = keep_alive.and_then(KeepAlive::limit);
        entry
    }
}
