//! The Broker loads models and unloads them: the only one that does.
//!
//! Hears from: calls and operators, through [`super::Models`] (`Load`, `Unload`, `Idle`, `Shutdown`); its own tasks
//! (`Planned`, `Loaded`, `Unloaded`, `GaveUp`, `LookAgain`). Says: how far a model is, in its entry, which wakes those who
//! wait for it.
//!
//! One model is loaded at a time, in the order in which they were asked for. First its plan says what it takes; then
//! idle models go until that fits; and only when their engines have been dropped, and the machine still has the room, is
//! its cast started. Whatever takes time is a task that comes back as a message.
//!
//! Failure: a model that cannot be planned or loaded, and one whose cast gives up, is refused with the reason. Its room
//! is free again, the others never hear of it, and it may be tried again. A broker that is gone loads and unloads nothing
//! more; the models that are loaded go on.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use cuelight_engine::load::MemoryPlan;
use ractor::{Actor, ActorProcessingErr, ActorRef};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::entry::{Entry, Phase};
use super::room::{Decision, Hold, Resident, Room};
use super::source::{PlanError, PlannedModel};
use super::{Held, ModelsError, Registry};
use crate::runtime::{Runtime, RuntimeOptions, Status};

/// The broker's address.
pub(super) type Broker = ActorRef<BrokerMsg>;

/// What the broker hears.
pub(super) enum BrokerMsg {
    /// Load a model that is [`Phase::Queued`].
    Load(Arc<Entry>),
    /// What the model takes is known, or that it cannot be loaded.
    Planned { entry: Arc<Entry>, planned: Result<PlannedModel, PlanError> },
    /// Its cast is ready, or has failed and is gone.
    Loaded { entry: Arc<Entry>, result: Result<(), String> },
    /// Its cast failed too often.
    GaveUp { entry: Arc<Entry>, reason: String },
    /// Unload a model once its calls have ended, or this long after; the reply comes when it is gone.
    Unload { entry: Arc<Entry>, drain: Duration, reply: oneshot::Sender<Result<(), ModelsError>> },
    /// Its engine is dropped; it is in this phase now.
    Unloaded { entry: Arc<Entry>, phase: Phase },
    /// Its last call ended.
    Idle(Arc<Entry>),
    /// It may have been idle for long enough.
    LookAgain(Arc<Entry>),
    /// Load nothing more, and end every cast within this time.
    Shutdown { drain: Duration, reply: oneshot::Sender<()> },
}

/// The broker's own.
pub(super) struct BrokerState {
    registry: Arc<Registry>,
    /// Models to load after the current one.
    queue: VecDeque<Arc<Entry>>,
    /// The model being loaded.
    current: Option<Loading>,
    /// Who waits for models that are on their way out.
    leaving: HashMap<Arc<str>, Vec<oneshot::Sender<Result<(), ModelsError>>>>,
}

/// How far the current load is.
struct Loading {
    entry: Arc<Entry>,
    stage: Stage,
}

enum Stage {
    /// A task looks at the model.
    Planning,
    /// It waits for its room.
    Waiting(PlannedModel),
    /// Its cast loads it.
    Starting,
}

/// The actor; everything it knows is in [`BrokerState`].
pub(super) struct BrokerActor;

impl Actor for BrokerActor {
    type Msg = BrokerMsg;
    type State = BrokerState;
    type Arguments = Arc<Registry>;

    async fn pre_start(&self, _me: Broker, registry: Arc<Registry>) -> Result<BrokerState, ActorProcessingErr> {
        let (queue, leaving) = (VecDeque::new(), HashMap::new());
        Ok(BrokerState { registry, queue, current: None, leaving })
    }

    async fn handle(&self, me: Broker, message: BrokerMsg, state: &mut BrokerState) -> Result<(), ActorProcessingErr> {
        match message {
            BrokerMsg::Load(entry) => state.queue.push_back(entry),
            BrokerMsg::Planned { entry, planned } => state.planned(entry, planned),
            BrokerMsg::Loaded { entry, result } => state.loaded(&me, &entry, result),
            BrokerMsg::GaveUp { entry, reason } => state.gave_up(&me, &entry, reason),
            BrokerMsg::Unload { entry, drain, reply } => state.unload(&me, &entry, drain, reply),
            BrokerMsg::Unloaded { entry, phase } => state.unloaded(&entry, phase),
            BrokerMsg::Idle(entry) => state.set_timer(&me, &entry),
            BrokerMsg::LookAgain(entry) => state.look_again(&me, &entry),
            BrokerMsg::Shutdown { drain, reply } => state.shutdown(&me, drain, reply),
        }
        state.advance(&me);
        Ok(())
    }
}

impl BrokerState {
    /// Takes the current load as far as it goes now, and begins the next.
    fn advance(&mut self, me: &Broker) {
        loop {
            let Some(Loading { entry, stage }) = self.current.take() else {
                let Some(entry) = self.queue.pop_front() else { return };
                let stage = self.plan(me, &entry);
                self.current = stage.map(|stage| Loading { entry, stage });
                continue;
            };
            match stage {
                Stage::Waiting(planned) => match self.place(me, &entry, planned) {
                    Some(stage) => {
                        self.current = Some(Loading { entry, stage });
                        return;
                    }
                    // It was refused.
                    None => continue,
                },
                stage => {
                    self.current = Some(Loading { entry, stage });
                    return;
                }
            }
        }
    }

    /// Finds out what a model takes. `None` when it is not to be loaded.
    fn plan(&self, me: &Broker, entry: &Arc<Entry>) -> Option<Stage> {
        let Some(factory) = entry.factory.clone().filter(|_| !self.registry.is_stopping()) else {
            refuse(entry, ModelsError::stopping());
            return None;
        };
        if let Some(planned) = entry.change(|slot| slot.planned.take()) {
            return Some(Stage::Waiting(planned));
        }
        let limit = self.limit();
        let (me, entry) = (me.clone(), entry.clone());
        tokio::spawn(async move {
            let planned = tokio::task::spawn_blocking(move || factory.plan(limit)).await;
            let planned =
                planned.unwrap_or_else(|panic| Err(PlanError::Unusable(format!("planning it failed: {panic}"))));
            let _ = me.cast(BrokerMsg::Planned { entry, planned });
        });
        Some(Stage::Planning)
    }

    fn planned(&mut self, entry: Arc<Entry>, planned: Result<PlannedModel, PlanError>) {
        match planned {
            Ok(planned) => self.current = Some(Loading { entry, stage: Stage::Waiting(planned) }),
            Err(error) => {
                self.current = None;
                tracing::error!(model = %entry.id, %error, "the model cannot be loaded");
                let error = match error {
                    PlanError::TooLarge(reason) => ModelsError::TooLarge(reason),
                    PlanError::Unusable(reason) => ModelsError::Failed { id: entry.id.to_string(), reason },
                };
                refuse(&entry, error);
            }
        }
    }

    /// Starts the model if its room is free, else makes room. `None` when there can be none.
    fn place(&self, me: &Broker, entry: &Arc<Entry>, planned: PlannedModel) -> Option<Stage> {
        if self.registry.is_stopping() {
            refuse(entry, ModelsError::stopping());
            return None;
        }
        let needed_bytes = planned.memory().total_bytes();
        loop {
            let others = self.registry.residents();
            let free_bytes = self.free_bytes(&others);
            let max_models = self.registry.options.max_loaded_models.map_or(usize::MAX, |most| most.get());
            let residents: Vec<Resident> = others.iter().map(|other| other.resident).collect();
            let room = Room { free_bytes, max_models };
            let error = match room.decide(needed_bytes, &residents) {
                Decision::Load => {
                    self.start(me, entry, planned);
                    return Some(Stage::Starting);
                }
                Decision::Wait => return Some(Stage::Waiting(planned)),
                Decision::Unload(going) => {
                    for index in going {
                        // One that was called a moment ago stays; the next look finds it busy.
                        if let Some(runtime) = others[index].entry.give_up(true) {
                            tracing::info!(model = %others[index].entry.id, newcomer = %entry.id, "unloading to make room");
                            self.unload_now(me, &others[index].entry, runtime, Duration::ZERO, Phase::Unloaded);
                        }
                    }
                    continue;
                }
                Decision::Busy => {
                    ModelsError::unavailable(room.explain(&entry.id, needed_bytes, &residents), BUSY_RETRY_SECONDS)
                }
                Decision::Never => ModelsError::TooLarge(room.explain(&entry.id, needed_bytes, &residents)),
            };
            refuse(entry, error);
            return None;
        }
    }

    /// Starts the cast in room that is free.
    fn start(&self, me: &Broker, entry: &Arc<Entry>, planned: PlannedModel) {
        let memory = planned.memory().clone();
        let MemoryPlan { weights_bytes, kv_bytes, scratch_bytes, context_tokens, .. } = memory;
        tracing::info!(model = %entry.id, weights_bytes, kv_bytes, scratch_bytes, context_tokens, "loading");
        entry.change(|slot| {
            slot.phase = Phase::Loading;
            slot.memory = Some(memory);
        });
        let options = RuntimeOptions { model_id: entry.id.clone(), ..self.registry.options.runtime.clone() };
        let (me, entry, registry) = (me.clone(), entry.clone(), self.registry.clone());
        tokio::spawn(async move {
            let result = run(&registry, &entry, planned, options).await;
            let watched = entry.clone();
            let is_loaded = result.is_ok();
            let _ = me.cast(BrokerMsg::Loaded { entry, result });
            if is_loaded {
                watch(watched, me).await;
            }
        });
    }

    fn loaded(&mut self, me: &Broker, entry: &Arc<Entry>, result: Result<(), String>) {
        self.current = None;
        match result {
            Ok(()) => {
                tracing::info!(model = %entry.id, "loaded");
                entry.change(|slot| slot.loaded());
                self.set_timer(me, entry);
            }
            Err(reason) => {
                tracing::error!(model = %entry.id, reason, "the model could not be loaded");
                entry.change(|slot| slot.memory = None);
                refuse(entry, ModelsError::Failed { id: entry.id.to_string(), reason });
            }
        }
    }

    fn gave_up(&self, me: &Broker, entry: &Arc<Entry>, reason: String) {
        if let Some(runtime) = entry.give_up(false) {
            let error = ModelsError::Failed { id: entry.id.to_string(), reason };
            self.unload_now(me, entry, runtime, Duration::ZERO, Phase::Refused { error, at: Instant::now() });
        }
    }

    fn unload(
        &mut self,
        me: &Broker,
        entry: &Arc<Entry>,
        drain: Duration,
        reply: oneshot::Sender<Result<(), ModelsError>>,
    ) {
        match entry.read(|slot| slot.phase.clone()) {
            Phase::Queued | Phase::Loading => {
                let _ = reply.send(Err(ModelsError::unavailable(
                    format!("the model `{}` is being loaded; it can be unloaded once it is", entry.id),
                    BUSY_RETRY_SECONDS,
                )));
            }
            Phase::Unloading => self.leaving.entry(entry.id.clone()).or_default().push(reply),
            Phase::Loaded => {
                self.leaving.entry(entry.id.clone()).or_default().push(reply);
                if let Some(runtime) = entry.give_up(false) {
                    tracing::info!(model = %entry.id, "unloading by request");
                    self.unload_now(me, entry, runtime, drain, Phase::Unloaded);
                }
            }
            Phase::Unloaded | Phase::Refused { .. } => {
                let _ = reply.send(Ok(()));
            }
        }
    }

    /// Lets the calls of a model that was given up end for at most `drain`, stops its cast, and waits until its memory
    /// is free.
    fn unload_now(&self, me: &Broker, entry: &Arc<Entry>, runtime: Runtime, drain: Duration, phase: Phase) {
        let (me, entry) = (me.clone(), entry.clone());
        tokio::spawn(async move {
            let _ = tokio::time::timeout(drain, entry.released()).await;
            stop(&entry, runtime).await;
            let _ = me.cast(BrokerMsg::Unloaded { entry, phase });
        });
    }

    fn unloaded(&mut self, entry: &Arc<Entry>, phase: Phase) {
        tracing::info!(model = %entry.id, "unloaded");
        entry.change(|slot| {
            slot.memory = None;
            slot.phase = phase;
        });
        for reply in self.leaving.remove(&entry.id).unwrap_or_default() {
            let _ = reply.send(Ok(()));
        }
    }

    /// Sees to it that somebody looks when the model may have been idle for long enough.
    fn set_timer(&self, me: &Broker, entry: &Arc<Entry>) {
        if let Some(expires_at) = entry.expires_at()
            && entry.claim_timer()
        {
            let entry = entry.clone();
            me.send_after(expires_at.saturating_duration_since(Instant::now()), || BrokerMsg::LookAgain(entry));
        }
    }

    fn look_again(&self, me: &Broker, entry: &Arc<Entry>) {
        entry.timer_fired();
        // While calls are in progress there is no such time; the last one to end comes back here.
        match entry.expires_at() {
            Some(at) if at <= Instant::now() => {
                if let Some(runtime) = entry.give_up(true) {
                    tracing::info!(model = %entry.id, "unloading after its idle time");
                    self.unload_now(me, entry, runtime, Duration::ZERO, Phase::Unloaded);
                }
            }
            _ => self.set_timer(me, entry),
        }
    }

    fn shutdown(&self, me: &Broker, drain: Duration, reply: oneshot::Sender<()>) {
        self.registry.stop();
        let (me, registry) = (me.clone(), self.registry.clone());
        tokio::spawn(async move {
            registry.shutdown_casts(drain).await;
            let _ = reply.send(());
            me.stop(None);
        });
    }

    /// Bytes that no model holds: of the budget, and of what the machine has.
    fn free_bytes(&self, others: &[Held]) -> u64 {
        let options = &self.registry.options;
        (options.machine)().free(options.memory_bytes, held_bytes(others)).unwrap_or(u64::MAX)
    }

    /// What a model may be planned into: what is free, and what models hold that may go.
    fn limit(&self) -> Option<u64> {
        let others = self.registry.residents();
        let options = &self.registry.options;
        let free = (options.machine)().limit(options.memory_bytes, held_bytes(&others))?;
        let can_go = others.iter().filter(|other| other.resident.hold != Hold::Kept);
        Some(can_go.map(|other| other.resident.bytes).fold(free, u64::saturating_add))
    }
}

fn held_bytes(models: &[Held]) -> u64 {
    models.iter().map(|model| model.resident.bytes).sum()
}

/// When to try again to load a model that others leave no room for.
const BUSY_RETRY_SECONDS: u64 = 2;

fn refuse(entry: &Entry, error: ModelsError) {
    entry.change(|slot| slot.phase = Phase::Refused { error, at: Instant::now() });
}

/// Starts a cast and waits until it is ready. After an error nothing of it is left.
async fn run(registry: &Registry, entry: &Entry, planned: PlannedModel, options: RuntimeOptions) -> Result<(), String> {
    let runtime = planned.start(options, entry.live.clone()).await.map_err(|error| error.to_string())?;
    entry.change(|slot| slot.runtime = Some(runtime.clone()));
    // A shutdown has seen the runtime, or is seen here.
    let ready = if registry.is_stopping() { Err(Status::Draining) } else { runtime.wait_ready().await };
    let reason = match ready {
        Ok(_) => return Ok(()),
        Err(Status::Failed(reason)) => reason,
        Err(_) => "the server is shutting down".to_owned(),
    };
    stop(entry, runtime).await;
    Err(reason)
}

/// Stops a cast at once. When this resolves, its engine's memory is free.
async fn stop(entry: &Entry, runtime: Runtime) {
    runtime.shutdown(Duration::ZERO).await;
    drop(runtime);
    // Outside the entry's lock: the last handle stops actors.
    let last = entry.change(|slot| slot.runtime.take());
    drop(last);
    entry.live.gone().await;
}

/// Tells the broker should the cast give up, for as long as it runs.
async fn watch(entry: Arc<Entry>, broker: Broker) {
    let Some(mut runtime) = entry.read(|slot| slot.runtime.clone()) else { return };
    loop {
        match runtime.status_changed().await {
            Status::Failed(reason) => {
                let _ = broker.cast(BrokerMsg::GaveUp { entry, reason });
                return;
            }
            Status::Draining => return,
            Status::Loading(_) | Status::Ready | Status::Recovering => {}
        }
    }
}
