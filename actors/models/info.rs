//! Descriptions of models and of the server, for the API, probes and the command line.

use std::sync::Arc;
use std::time::Duration;

use cuelight_engine::load::{LoadProgress, MemoryBreakdown, MemoryPlan};
use cuelight_engine::memory::MemoryPurpose;
use serde_json::Value;

use crate::core::counts::Counts;
use crate::pipeline::served_model::ServedModel;

/// The state of a model.
#[derive(Debug, Clone, PartialEq)]
pub enum ModelState {
    /// It is not loaded.
    Unloaded,
    /// It is being loaded, or queued to be loaded.
    Loading(LoadProgress),
    /// It is loaded and serves calls.
    Ready,
    /// It restarts after a fault. Calls wait.
    Recovering,
    /// It will be unloaded when its calls have ended.
    Unloading,
    /// It could not be loaded or failed too often, with the reason.
    Failed(String),
}

/// A snapshot of a model and its state.
#[derive(Clone)]
pub struct ModelInfo {
    /// Its name.
    pub id: String,
    /// Other names of the model.
    pub aliases: Vec<String>,
    /// Whether it was named at startup.
    pub named: bool,
    /// Its state.
    pub state: ModelState,
    /// Its description and limits, once it is loaded.
    pub model: Option<Arc<ServedModel>>,
    /// The memory that it uses.
    pub memory: Option<MemoryPlan>,
    /// Counts of sequences and KV blocks.
    pub counts: Counts,
    /// Number of calls that use it.
    pub calls: usize,
    /// Number of calls that wait for it to be loaded.
    pub waiting_calls: usize,
    /// Time since its last call. `None` while it is in use, or before it was loaded.
    pub idle_for: Option<Duration>,
    /// Time until it is unloaded if no call uses it.
    pub unloads_in: Option<Duration>,
    /// Whether it has neither been loaded nor refused yet.
    pub(super) is_first_load: bool,
}

/// What a model uses memory for, as the API and `cuelight show` report it.
#[must_use]
pub fn memory_json(used: &MemoryBreakdown) -> Value {
    let purposes = used.by_purpose().map(|(purpose, bytes)| (memory_key(purpose), bytes.into()));
    Value::Object(
        purposes.chain([("total_bytes", used.total().into())]).map(|(key, bytes)| (key.to_owned(), bytes)).collect(),
    )
}

/// The field of a purpose.
fn memory_key(purpose: MemoryPurpose) -> &'static str {
    match purpose {
        MemoryPurpose::Weights => "weights_bytes",
        MemoryPurpose::Kv => "kv_bytes",
        MemoryPurpose::State => "state_bytes",
        MemoryPurpose::Scratch => "scratch_bytes",
        MemoryPurpose::Tiers => "tier_bytes",
        MemoryPurpose::Text => "text_bytes",
        MemoryPurpose::Adapters => "adapter_bytes",
        MemoryPurpose::Requests => "request_bytes",
        MemoryPurpose::Draft => "draft_bytes",
        MemoryPurpose::Media => "media_bytes",
    }
}

/// The memory of all models together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryUse {
    /// Limit for all models together. `None`: the memory of the machine.
    pub limit_bytes: Option<u64>,
    /// Memory that they use.
    pub held_bytes: u64,
    /// Memory that is free for another model. `None` when the system does not report it.
    pub free_bytes: Option<u64>,
}

/// The readiness of the whole server.
#[derive(Debug, Clone, PartialEq)]
pub enum Readiness {
    /// Every model named at startup has been loaded, and none is in a fault state.
    Ready,
    /// A model named at startup is being loaded for the first time, with the progress of all of them together.
    Loading(LoadProgress),
    /// A model named at startup restarts after a fault.
    Recovering,
    /// The server accepts no new calls. Running ones finish.
    Draining,
    /// Models named at startup have failed.
    Failed {
        /// The reason.
        reason: String,
        /// Whether all models named at startup have failed.
        all: bool,
    },
}

/// The readiness of a server, given its models that were named at startup.
pub(super) fn readiness_of(named: &[ModelInfo]) -> Readiness {
    let failure = |model: &ModelInfo| match &model.state {
        ModelState::Failed(reason) => Some(reason.clone()),
        _ => None,
    };
    if let Some(reason) = named.iter().find_map(failure) {
        return Readiness::Failed { reason, all: named.iter().all(|model| failure(model).is_some()) };
    }
    let is_starting =
        |model: &ModelInfo| model.is_first_load && matches!(model.state, ModelState::Unloaded | ModelState::Loading(_));
    if named.iter().any(is_starting) {
        let mut sum = LoadProgress { done_bytes: 0, total_bytes: 0 };
        for model in named {
            if let ModelState::Loading(progress) = model.state {
                sum.done_bytes += progress.done_bytes;
                sum.total_bytes += progress.total_bytes;
            }
        }
        return Readiness::Loading(sum);
    }
    if named.iter().any(|model| model.state == ModelState::Recovering) {
        return Readiness::Recovering;
    }
    Readiness::Ready
}
