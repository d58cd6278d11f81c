//! One model of the registry: its names, its phase, and the calls that use it.
//!
//! Everything that changes is in one [`Slot`] behind one lock, so that "no call uses the model" and "the model is unloaded"
//! are decided together: a call either holds the model before it is unloaded, or finds it unloaded. No lock is held while
//! waiting.

use std::sync::Arc;
use std::time::Duration;

use cuelight_engine::load::{LoadProgress, MemoryPlan};
use tokio::sync::watch;
use tokio::time::Instant;

use super::error::ModelsError;
use super::info::{ModelInfo, ModelState};
use super::keep_alive::KeepAlive;
use super::memory_budget::Hold;
use super::source::{LiveEngines, ModelFactory, PlannedModel};
use crate::core::status::Status;
use crate::pipeline::runtime::Runtime;

/// A model of the registry.
pub(super) struct Entry {
    pub id: Arc<str>,
    /// Other names of the model.
    pub aliases: Vec<String>,
    /// The names of the adapters that are loaded with it.
    pub adapters: Vec<String>,
    /// Whether the model was named at startup. Such models are loaded then.
    pub named: bool,
    /// Whether the model is unloaded only by request.
    pub kept: bool,
    /// How long the model stays loaded without calls. `None`: until its memory is needed.
    pub keep_alive: Option<Duration>,
    /// Plans and starts the model. `None` for a model that the broker does not load.
    pub factory: Option<Arc<dyn ModelFactory>>,
    /// Counts its engines, which own its memory.
    pub live: LiveEngines,
    slot: watch::Sender<Slot>,
}

/// The changing state of a model.
pub(super) struct Slot {
    pub phase: Phase,
    /// The pipelines, from when they are started until they have stopped.
    pub runtime: Option<Runtime>,
    /// A memory plan that was made ahead of the next load.
    pub planned: Option<PlannedModel>,
    /// The memory that it uses, or will use once loaded.
    pub memory: Option<MemoryPlan>,
    /// Whether the load in progress is to end.
    pub cancels_load: bool,
    /// Whether it has neither been loaded nor refused yet.
    is_first_load: bool,
    /// Number of calls that use the model.
    calls: usize,
    /// Number of calls that wait for it.
    waiting: usize,
    /// How long it stays loaded without calls, when a call said so after it was loaded.
    pub keep_alive: Option<KeepAlive>,
    /// When it was loaded or its last call ended.
    last_used: Option<Instant>,
    /// Whether a timer for its keep-alive time is running.
    timer_set: bool,
}

/// The phase of a model.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Phase {
    /// The model is not loaded.
    Unloaded,
    /// The broker will load it.
    Queued,
    /// Its pipelines are loading it.
    Loading,
    /// Its pipelines run or recover.
    Loaded,
    /// It will be unloaded when its calls have ended.
    Unloading,
    /// It could not be loaded, or its pipelines gave up.
    Refused {
        /// The error that callers get.
        error: ModelsError,
        /// When it was refused.
        at: Instant,
    },
}

/// The kind of a caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Caller {
    /// An API call. With `autoload` it may trigger a load.
    Call { autoload: bool },
    /// An explicit request to load the model.
    Operator,
}

/// The result of an attempt to use a model.
pub(super) enum Access {
    /// The model is loaded and now in use by the caller.
    Loaded(Runtime),
    /// The model is not loaded. This caller has to send a load request to the broker.
    MustLoad,
    /// The model is being loaded.
    MustWait,
    /// The model is being unloaded.
    Leaving,
}

/// After a refusal, how long calls get the same error before one of them triggers another load.
const RETRY_PAUSE: Duration = Duration::from_secs(5);

impl Entry {
    pub fn new(id: &str, factory: Arc<dyn ModelFactory>) -> Self {
        Self::with_slot(id, Some(factory), Phase::Unloaded, None)
    }

    /// A model that runs already and is never loaded or unloaded by the broker.
    pub fn running(id: &str, runtime: Runtime) -> Self {
        let entry = Self::with_slot(id, None, Phase::Loaded, Some(runtime));
        Entry { named: true, kept: true, ..entry }
    }

    fn with_slot(id: &str, factory: Option<Arc<dyn ModelFactory>>, phase: Phase, runtime: Option<Runtime>) -> Self {
        let slot = Slot {
            phase,
            runtime,
            planned: None,
            memory: None,
            cancels_load: false,
            is_first_load: true,
            calls: 0,
            waiting: 0,
            keep_alive: None,
            last_used: None,
            timer_set: false,
        };
        Entry {
            id: id.into(),
            aliases: Vec::new(),
            adapters: Vec::new(),
            named: false,
            kept: false,
            keep_alive: None,
            factory,
            live: LiveEngines::new(),
            slot: watch::Sender::new(slot),
        }
    }

    /// Whether this is its id or an alias.
    pub fn has_name(&self, name: &str) -> bool {
        *self.id == *name || self.aliases.iter().any(|alias| alias == name)
    }

    /// Whether an adapter of the model has this name, or one that is loaded with it.
    pub fn has_adapter(&self, name: &str) -> bool {
        let model = self.read(|slot| slot.runtime.clone()).and_then(|runtime| runtime.model());
        match model.and_then(|model| model.adapters.clone()) {
            Some(adapters) => adapters.has_name(name),
            None => self.adapters.iter().any(|adapter| adapter == name),
        }
    }

    /// Reads the slot.
    pub fn read<T>(&self, read: impl FnOnce(&Slot) -> T) -> T {
        read(&self.slot.borrow())
    }

    /// Changes the slot and wakes the waiting calls.
    pub fn change<T>(&self, change: impl FnOnce(&mut Slot) -> T) -> T {
        self.update(|slot| (change(slot), true))
    }

    /// Changes the slot without waking the waiting calls.
    fn change_silently<T>(&self, change: impl FnOnce(&mut Slot) -> T) -> T {
        self.update(|slot| (change(slot), false))
    }

    /// Changes the slot. The closure decides whether the waiting calls are woken.
    fn update<T>(&self, update: impl FnOnce(&mut Slot) -> (T, bool)) -> T {
        let mut result = None;
        self.slot.send_if_modified(|slot| {
            let (value, wake) = update(slot);
            result = Some(value);
            wake
        });
        result.expect("send_if_modified calls its closure")
    }

    /// A receiver of all later changes.
    pub fn subscribe(&self) -> watch::Receiver<Slot> {
        self.slot.subscribe()
    }

    /// Starts to use the model if it is loaded, or returns what the caller has to do. With `retry`, a recent refusal is
    /// ignored.
    ///
    /// # Errors
    /// Why the caller cannot use the model.
    pub fn access(&self, caller: Caller, retry: bool) -> Result<Access, ModelsError> {
        self.change_silently(|slot| match &slot.phase {
            Phase::Loaded => Ok(slot.begin_call()),
            Phase::Queued | Phase::Loading if caller != Caller::Operator && self.named && slot.is_first_load => {
                // The server is still starting, which its probes report, too.
                Err(ModelsError::unavailable(format!("the model `{}` is still loading", self.id), 2))
            }
            Phase::Queued | Phase::Loading => Ok(Access::MustWait),
            Phase::Unloading => Ok(Access::Leaving),
            // A file that is being written would give a damaged model, so a call does not load it.
            Phase::Refused { error: error @ ModelsError::FileChanged { .. }, .. } if !retry => Err(error.clone()),
            Phase::Refused { error, at } if !retry && at.elapsed() < RETRY_PAUSE => Err(error.clone()),
            Phase::Unloaded | Phase::Refused { .. } => {
                if caller == (Caller::Call { autoload: false }) {
                    return Err(ModelsError::NotLoaded(self.id.to_string()));
                }
                slot.phase = Phase::Queued;
                Ok(Access::MustLoad)
            }
        })
    }

    /// Counts a waiting call. At most `limit` may wait.
    ///
    /// # Errors
    /// [`ModelsError::Overloaded`] when the limit is reached.
    pub fn join_queue(&self, limit: usize) -> Result<(), ModelsError> {
        self.change_silently(|slot| {
            if slot.waiting >= limit {
                return Err(ModelsError::Overloaded { id: self.id.to_string(), waiting: slot.waiting });
            }
            slot.waiting += 1;
            Ok(())
        })
    }

    /// Begins to unload the model. `None` when it is not loaded, or when it is in use and `only_if_unused` is set.
    pub fn begin_unload(&self, only_if_unused: bool) -> Option<Runtime> {
        self.change(|slot| {
            if slot.phase != Phase::Loaded || (only_if_unused && !slot.is_unused()) {
                return None;
            }
            slot.phase = Phase::Unloading;
            slot.runtime.clone()
        })
    }

    /// Waits until no call uses the model.
    pub async fn released(&self) {
        // Cannot fail, because the sender is in `self`.
        let _ = self.subscribe().wait_for(|slot| slot.calls == 0).await;
    }

    /// Waits until the model has failed.
    pub async fn failed(&self) {
        let is_failed = |slot: &Slot| matches!(slot.phase, Phase::Refused { error: ModelsError::Failed { .. }, .. });
        // Cannot fail, because the sender is in `self`.
        let _ = self.subscribe().wait_for(is_failed).await;
    }

    /// The memory that it uses, and why it keeps it. `None` when it uses none.
    pub fn resident(&self) -> Option<(MemoryPlan, Hold)> {
        self.read(|slot| {
            let hold = match slot.phase {
                Phase::Unloading => Hold::Leaving,
                _ if self.kept => Hold::Kept,
                Phase::Loading => Hold::Loading,
                Phase::Loaded if slot.is_unused() => slot.last_used.map_or(Hold::Busy, Hold::Idle),
                _ => Hold::Busy,
            };
            Some((slot.memory.clone()?, hold))
        })
    }

    /// When its keep-alive time ends. `None` while it is in use, and when it has no keep-alive time.
    pub fn expires_at(&self) -> Option<Instant> {
        self.read(|slot| match slot.phase {
            Phase::Loaded if slot.is_unused() => slot.last_used?.checked_add(self.time_alive(slot)?),
            _ => None,
        })
    }

    /// Sets how long the model stays loaded without calls, until it is unloaded. Changes nothing for a kept model. Wakes the timer.
    pub fn set_keep_alive(&self, keep_alive: KeepAlive) {
        if !self.kept {
            self.change(|slot| slot.keep_alive = Some(keep_alive));
        }
    }

    /// How long the model stays loaded without calls. `None`: until its memory is needed.
    fn time_alive(&self, slot: &Slot) -> Option<Duration> {
        slot.keep_alive.map_or(self.keep_alive, KeepAlive::limit)
    }

    /// Whether the caller has to start the keep-alive timer. `false` when one is running.
    pub fn claim_timer(&self) -> bool {
        self.change_silently(|slot| !std::mem::replace(&mut slot.timer_set, true))
    }

    /// Records that the keep-alive timer has fired.
    pub fn timer_fired(&self) {
        self.change_silently(|slot| slot.timer_set = false);
    }

    /// Ends a call. Returns whether the broker has to start the keep-alive timer.
    pub fn end_call(&self) -> bool {
        self.update(|slot| {
            slot.calls -= 1;
            slot.last_used = Some(Instant::now());
            // Only an unload waits for the end of the calls.
            let needs_timer = slot.needs_timer() && self.time_alive(slot).is_some();
            (needs_timer, slot.calls == 0 && slot.phase == Phase::Unloading)
        })
    }

    /// Ends the wait of a call. Returns whether the broker has to start the keep-alive timer.
    pub fn leave_queue(&self) -> bool {
        self.change_silently(|slot| {
            slot.waiting -= 1;
            slot.needs_timer() && self.time_alive(slot).is_some()
        })
    }

    /// A description of the model and its state.
    pub fn info(&self) -> ModelInfo {
        let expires_at = self.expires_at();
        self.read(|slot| {
            let model = slot.runtime.as_ref().and_then(Runtime::model);
            ModelInfo {
                id: self.id.to_string(),
                aliases: self.aliases.clone(),
                named: self.named,
                state: slot.state(),
                memory: slot.memory.clone().or(model.as_ref().map(|model| model.memory.clone())),
                model,
                counts: slot.runtime.as_ref().map(Runtime::snapshot).unwrap_or_default(),
                calls: slot.calls,
                waiting_calls: slot.waiting,
                idle_for: slot.last_used.filter(|_| slot.is_unused()).map(|at| at.elapsed()),
                unloads_in: expires_at.map(|at| at.saturating_duration_since(Instant::now())),
                is_first_load: slot.is_first_load,
            }
        })
    }
}

impl Slot {
    /// Whether no call uses it or waits for it.
    fn is_unused(&self) -> bool {
        self.calls == 0 && self.waiting == 0
    }

    /// Whether it is idle and no keep-alive timer is running.
    fn needs_timer(&self) -> bool {
        self.phase == Phase::Loaded && self.is_unused() && !self.timer_set
    }

    fn begin_call(&mut self) -> Access {
        match &self.runtime {
            Some(runtime) => {
                self.calls += 1;
                Access::Loaded(runtime.clone())
            }
            None => Access::MustWait,
        }
    }

    /// Records that its pipelines are ready.
    pub fn loaded(&mut self) {
        self.phase = Phase::Loaded;
        self.is_first_load = false;
        self.keep_alive = None;
        self.last_used = Some(Instant::now());
    }

    /// Records that it could not be loaded, or that its pipelines gave up.
    pub fn refused(&mut self, error: ModelsError) {
        self.phase = Phase::Refused { error, at: Instant::now() };
        self.is_first_load = false;
    }

    fn state(&self) -> ModelState {
        let no_progress = LoadProgress { done_bytes: 0, total_bytes: 0 };
        match (&self.phase, self.runtime.as_ref().map(Runtime::status)) {
            (Phase::Refused { error: ModelsError::Unavailable { .. }, .. } | Phase::Unloaded, _) => {
                ModelState::Unloaded
            }
            (Phase::Refused { error, .. }, _) => ModelState::Failed(error.to_string()),
            (Phase::Unloading, _) => ModelState::Unloading,
            (_, None) => ModelState::Loading(no_progress),
            (_, Some(Status::Loading(progress))) => ModelState::Loading(progress),
            (_, Some(Status::Ready)) => ModelState::Ready,
            (_, Some(Status::Recovering)) => ModelState::Recovering,
            (_, Some(Status::Draining)) => ModelState::Unloading,
            (_, Some(Status::Failed(reason) | Status::FileChanged(reason))) => ModelState::Failed(reason),
        }
    }
}
