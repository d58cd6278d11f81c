//! One model of the registry: what it is called, how far it is, and who uses it.
//!
//! Everything that changes is in one [`Slot`] behind one lock, so that "nobody uses it" and "it goes" are one decision:
//! a call either holds the model before it is given up, or finds it gone. No lock is held while waiting.

use std::sync::Arc;
use std::time::Duration;

use cuelight_engine::load::{LoadProgress, MemoryPlan};
use tokio::sync::watch;
use tokio::time::Instant;

use super::broker::{Broker, BrokerMsg};
use super::room::Hold;
use super::source::{LiveEngines, ModelFactory, PlannedModel};
use super::{ModelInfo, ModelState, ModelsError};
use crate::runtime::{Runtime, Status};

/// A model that is known here.
pub(super) struct Entry {
    pub id: Arc<str>,
    /// More names for it.
    pub aliases: Vec<String>,
    /// Named when the server was started, which loads it then.
    pub named: bool,
    /// Never unloaded but by request.
    pub kept: bool,
    /// How long it stays without calls; `None`: as long as its room is not needed.
    pub keep_alive: Option<Duration>,
    /// Where it comes from; `None` for one that is not the broker's to load.
    pub factory: Option<Arc<dyn ModelFactory>>,
    /// Its engines, which hold its memory.
    pub live: LiveEngines,
    slot: watch::Sender<Slot>,
}

/// What changes about a model.
pub(super) struct Slot {
    pub phase: Phase,
    /// The cast, from when it is started until it has stopped.
    pub runtime: Option<Runtime>,
    /// A plan that was made ahead, for the next load.
    pub planned: Option<PlannedModel>,
    /// What it holds of the machine, or is about to.
    pub memory: Option<MemoryPlan>,
    /// Whether it was neither loaded nor refused yet.
    is_first_load: bool,
    /// Calls that hold the runtime.
    calls: usize,
    /// Calls that wait for it.
    waiting: usize,
    /// When it was loaded, or its last call ended.
    last_used: Option<Instant>,
    /// A timer will ask whether it was idle for long enough.
    timer_set: bool,
}

/// Where a model is between file and memory.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Phase {
    /// On disk.
    Unloaded,
    /// The broker will load it.
    Queued,
    /// Its cast is loading it.
    Loading,
    /// Its cast runs, or recovers.
    Loaded,
    /// Calls in progress end, then it goes.
    Unloading,
    /// It could not be loaded, or its cast gave up.
    Refused {
        /// What callers are told.
        error: ModelsError,
        /// Since when.
        at: Instant,
    },
}

/// Who wants a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Caller {
    /// A call; `autoload`: it may have the model loaded.
    Call { autoload: bool },
    /// Somebody who asks for it to be loaded.
    Operator,
}

/// What a caller finds.
pub(super) enum Found {
    /// The model, held.
    Here(Runtime),
    /// Nothing: this caller is the one who asks the broker.
    MustAsk,
    /// Nothing yet.
    MustWait,
}

/// After a refusal, how long calls get the same answer before one of them tries again.
const RETRY_PAUSE: Duration = Duration::from_secs(5);

impl Entry {
    pub fn new(id: &str, factory: Arc<dyn ModelFactory>) -> Self {
        Self::with_slot(id, Some(factory), Phase::Unloaded, None)
    }

    /// A model that somebody else started and that stays.
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
            is_first_load: true,
            calls: 0,
            waiting: 0,
            last_used: None,
            timer_set: false,
        };
        Entry {
            id: id.into(),
            aliases: Vec::new(),
            named: false,
            kept: false,
            keep_alive: None,
            factory,
            live: LiveEngines::new(),
            slot: watch::Sender::new(slot),
        }
    }

    /// Whether this is one of its names.
    pub fn answers_to(&self, name: &str) -> bool {
        *self.id == *name || self.aliases.iter().any(|alias| alias == name)
    }

    /// Reads the slot.
    pub fn read<T>(&self, read: impl FnOnce(&Slot) -> T) -> T {
        read(&self.slot.borrow())
    }

    /// Changes the slot, and wakes those who wait for that.
    pub fn change<T>(&self, change: impl FnOnce(&mut Slot) -> T) -> T {
        self.update(|slot| (change(slot), true))
    }

    /// Changes the slot quietly: nobody waits for that.
    fn note<T>(&self, note: impl FnOnce(&mut Slot) -> T) -> T {
        self.update(|slot| (note(slot), false))
    }

    /// Changes the slot; the closure says whether to wake those who wait for a change.
    fn update<T>(&self, update: impl FnOnce(&mut Slot) -> (T, bool)) -> T {
        let mut result = None;
        self.slot.send_if_modified(|slot| {
            let (value, wake) = update(slot);
            result = Some(value);
            wake
        });
        result.expect("send_if_modified calls its closure")
    }

    /// Sees every change from now on.
    pub fn subscribe(&self) -> watch::Receiver<Slot> {
        self.slot.subscribe()
    }

    /// Takes hold of the model for a caller, or says what the caller has to do for it. `again`: a refusal stands no
    /// longer.
    ///
    /// # Errors
    /// Why this caller cannot have it.
    pub fn find(&self, caller: Caller, again: bool) -> Result<Found, ModelsError> {
        self.note(|slot| match &slot.phase {
            Phase::Loaded => Ok(slot.hold()),
            Phase::Queued | Phase::Loading if caller != Caller::Operator && self.named && slot.is_first_load => {
                // The server is not up yet, and says so as it does to probes.
                Err(ModelsError::unavailable(format!("the model `{}` is still loading", self.id), 2))
            }
            Phase::Queued | Phase::Loading | Phase::Unloading => Ok(Found::MustWait),
            Phase::Refused { error, at } if !again && at.elapsed() < RETRY_PAUSE => Err(error.clone()),
            Phase::Unloaded | Phase::Refused { .. } => {
                if caller == (Caller::Call { autoload: false }) {
                    return Err(ModelsError::NotLoaded(self.id.to_string()));
                }
                slot.phase = Phase::Queued;
                Ok(Found::MustAsk)
            }
        })
    }

    /// A place among those who wait, of which there are at most `limit`.
    ///
    /// # Errors
    /// [`ModelsError::Overloaded`].
    pub fn wait_in_line(self: &Arc<Self>, limit: usize, broker: Option<Broker>) -> Result<Place, ModelsError> {
        self.note(|slot| {
            if slot.waiting >= limit {
                return Err(ModelsError::Overloaded { id: self.id.to_string(), waiting: slot.waiting });
            }
            slot.waiting += 1;
            Ok(Place { entry: self.clone(), broker })
        })
    }

    /// Gives the model up; `None` when it is not loaded, or somebody uses it and `unused` is asked for.
    pub fn give_up(&self, unused: bool) -> Option<Runtime> {
        self.change(|slot| {
            if slot.phase != Phase::Loaded || (unused && !slot.is_unused()) {
                return None;
            }
            slot.phase = Phase::Unloading;
            slot.runtime.clone()
        })
    }

    /// Resolves once no call holds the model.
    pub async fn released(&self) {
        // Without an error: the sender is in `self`.
        let _ = self.subscribe().wait_for(|slot| slot.calls == 0).await;
    }

    /// Resolves once it has failed.
    pub async fn failed(&self) {
        let is_failed = |slot: &Slot| matches!(slot.phase, Phase::Refused { error: ModelsError::Failed { .. }, .. });
        // Without an error: the sender is in `self`.
        let _ = self.subscribe().wait_for(is_failed).await;
    }

    /// What it holds of the machine, and why it holds it; `None` for nothing.
    pub fn resident(&self) -> Option<(MemoryPlan, Hold)> {
        self.read(|slot| {
            let hold = match slot.phase {
                Phase::Unloading => Hold::Leaving,
                _ if self.kept => Hold::Kept,
                Phase::Loaded if slot.is_unused() => slot.last_used.map_or(Hold::Busy, Hold::Idle),
                _ => Hold::Busy,
            };
            Some((slot.memory.clone()?, hold))
        })
    }

    /// When it will have been idle for long enough; `None` while it is not idle or where it may stay.
    pub fn expires_at(&self) -> Option<Instant> {
        let keep_alive = self.keep_alive?;
        self.read(|slot| match slot.phase {
            Phase::Loaded if slot.is_unused() => slot.last_used?.checked_add(keep_alive),
            _ => None,
        })
    }

    /// Whether the caller is to set the timer, because none is.
    pub fn claim_timer(&self) -> bool {
        self.note(|slot| !std::mem::replace(&mut slot.timer_set, true))
    }

    /// The timer has fired.
    pub fn timer_fired(&self) {
        self.note(|slot| slot.timer_set = false);
    }

    /// Ends a call.
    fn end_call(self: &Arc<Self>, broker: Option<&Broker>) {
        let ask = self.update(|slot| {
            slot.calls -= 1;
            slot.last_used = Some(Instant::now());
            // Only the end of the model's stay waits for the end of its calls.
            (slot.wants_timer(), slot.calls == 0 && slot.phase == Phase::Unloading)
        });
        self.ask_for_timer(ask, broker);
    }

    /// Leaves the line of those who wait.
    fn leave_line(self: &Arc<Self>, broker: Option<&Broker>) {
        let ask = self.note(|slot| {
            slot.waiting -= 1;
            slot.wants_timer()
        });
        self.ask_for_timer(ask, broker);
    }

    fn ask_for_timer(self: &Arc<Self>, ask: bool, broker: Option<&Broker>) {
        if let Some(broker) = broker
            && ask
            && self.keep_alive.is_some()
        {
            broker.tell(BrokerMsg::Idle(self.clone()));
        }
    }

    /// What it is and does, for people and programs.
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
    /// Nobody uses it or waits to.
    fn is_unused(&self) -> bool {
        self.calls == 0 && self.waiting == 0
    }

    /// It has become idle, and nobody looks after its idle time.
    fn wants_timer(&self) -> bool {
        self.phase == Phase::Loaded && self.is_unused() && !self.timer_set
    }

    fn hold(&mut self) -> Found {
        match &self.runtime {
            Some(runtime) => {
                self.calls += 1;
                Found::Here(runtime.clone())
            }
            None => Found::MustWait,
        }
    }

    /// The cast is ready.
    pub fn loaded(&mut self) {
        self.phase = Phase::Loaded;
        self.is_first_load = false;
        self.last_used = Some(Instant::now());
    }

    /// It could not be loaded, or its cast gave up.
    pub fn refused(&mut self, error: ModelsError) {
        self.phase = Phase::Refused { error, at: Instant::now() };
        self.is_first_load = false;
    }

    fn state(&self) -> ModelState {
        let nothing_yet = LoadProgress { done_bytes: 0, total_bytes: 0 };
        match (&self.phase, self.runtime.as_ref().map(Runtime::status)) {
            (Phase::Refused { error: ModelsError::Unavailable { .. }, .. } | Phase::Unloaded, _) => {
                ModelState::Unloaded
            }
            (Phase::Refused { error, .. }, _) => ModelState::Failed(error.to_string()),
            (Phase::Unloading, _) => ModelState::Unloading,
            (_, None) => ModelState::Loading(nothing_yet),
            (_, Some(Status::Loading(progress))) => ModelState::Loading(progress),
            (_, Some(Status::Ready)) => ModelState::Ready,
            (_, Some(Status::Recovering)) => ModelState::Recovering,
            (_, Some(Status::Draining)) => ModelState::Unloading,
            (_, Some(Status::Failed(reason))) => ModelState::Failed(reason),
        }
    }
}

/// A place among those who wait for a model; while it is held, the model is not unloaded for being unused.
pub(super) struct Place {
    entry: Arc<Entry>,
    broker: Option<Broker>,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.entry.leave_line(self.broker.as_ref());
    }
}

/// A loaded model, held: it is not unloaded for being idle or for its room until this is dropped.
pub struct Call {
    entry: Arc<Entry>,
    runtime: Runtime,
    broker: Option<Broker>,
}

impl Call {
    pub(super) fn new(entry: Arc<Entry>, runtime: Runtime, broker: Option<Broker>) -> Self {
        Call { entry, runtime, broker }
    }

    /// The model's own name.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.entry.id
    }

    /// The cast that runs it.
    #[must_use]
    pub fn runtime(&self) -> &Runtime {
        &self.runtime
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.entry.end_call(self.broker.as_ref());
    }
}
