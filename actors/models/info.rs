//! What is told about models, to people, probes and programs.

use std::sync::Arc;
use std::time::Duration;

use cuelight_engine::load::{LoadProgress, MemoryPlan};

use crate::policy::Counts;
use crate::runtime::Model;

/// What a model is doing.
#[derive(Debug, Clone, PartialEq)]
pub enum ModelState {
    /// On disk.
    Unloaded,
    /// Being loaded, or waiting for that.
    Loading(LoadProgress),
    /// Calls run.
    Ready,
    /// After a fault; calls wait.
    Recovering,
    /// Calls in progress end, then it goes.
    Unloading,
    /// It could not be loaded, or failed too often: why.
    Failed(String),
}

/// A model and what it does, at one moment.
#[derive(Clone)]
pub struct ModelInfo {
    /// Its name.
    pub id: String,
    /// More names for it.
    pub aliases: Vec<String>,
    /// Named when the server was started.
    pub named: bool,
    /// What it is doing.
    pub state: ModelState,
    /// Facts, once it is loaded.
    pub model: Option<Arc<Model>>,
    /// What it holds of the machine.
    pub memory: Option<MemoryPlan>,
    /// Sequences and KV blocks.
    pub counts: Counts,
    /// Calls that hold it.
    pub calls: usize,
    /// Calls that wait for it to be loaded.
    pub waiting_calls: usize,
    /// How long nobody has called it; `None` while somebody does, or before it was loaded.
    pub idle_for: Option<Duration>,
    /// When it will be unloaded if nobody calls it.
    pub unloads_in: Option<Duration>,
    /// Whether it was neither loaded nor refused yet.
    pub(super) is_first_load: bool,
}

/// The memory that models share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryRoom {
    /// What they may take together; `None`: what the machine has.
    pub limit_bytes: Option<u64>,
    /// What they hold.
    pub held_bytes: u64,
    /// What another could still take; `None` where the system does not say.
    pub free_bytes: Option<u64>,
}

/// What a server as a whole can do.
#[derive(Debug, Clone, PartialEq)]
pub enum Readiness {
    /// Every model named at the start has been loaded, and none is at fault.
    Ready,
    /// A model named at the start is still being loaded: all of their bytes.
    Loading(LoadProgress),
    /// A model named at the start is at fault and comes back.
    Recovering,
    /// No new calls; running ones end.
    Draining,
    /// Models named at the start are at fault: why. `all`: no other is left.
    Failed {
        /// Why.
        reason: String,
        /// No model named at the start is left.
        all: bool,
    },
}

/// What a server can do whose models named at the start are these.
pub(super) fn readiness_of(named: &[ModelInfo]) -> Readiness {
    let failure = |model: &ModelInfo| match &model.state {
        ModelState::Failed(reason) => Some(reason.clone()),
        _ => None,
    };
    if let Some(reason) = named.iter().find_map(failure) {
        return Readiness::Failed { reason, all: named.iter().all(|model| failure(model).is_some()) };
    }
    let comes_up =
        |model: &ModelInfo| model.is_first_load && matches!(model.state, ModelState::Unloaded | ModelState::Loading(_));
    if named.iter().any(comes_up) {
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
