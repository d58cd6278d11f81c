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
//! is free again, the others never hear of it, and it may be tried again. A broker that dies, which nothing but a bug can
//! cause, is followed by another that takes up what the entries say; the models that are loaded go on meanwhile.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use cuelight_engine::load::MemoryPlan;
use ractor::{Actor, ActorProcessingErr, ActorRef, MessagingErr, SpawnErr};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::ModelsError;
use super::entry::{Entry, Phase};
use super::registry::{Held, Registry};
use super::room::{Decision, Hold, Resident, Room};
use super::source::{PlanError, PlannedModel};
use crate::metrics;
use crate::runtime::{Runtime, RuntimeOptions, Status};

/// The address of whoever is the broker now.
#[derive(Clone, Default)]
pub(super) struct Broker(Arc<RwLock<Option<ActorRef<BrokerMsg>>>>);

impl Broker {
    /// Starts a broker over these models, and another whenever one dies.
    pub async fn start(registry: Arc<Registry>) -> Result<Broker, SpawnErr> {
        let broker = Broker::default();
        let (_, mut died) = Actor::spawn(None, BrokerActor, (registry.clone(), broker.clone())).await?;
        let address = broker.clone();
        tokio::spawn(async move {
            loop {
                let _ = died.await;
                if registry.is_stopping() {
                    return;
                }
                tracing::error!("the broker of models died; another takes its place");
                tokio::time::sleep(RESTART_PAUSE).await;
                match Actor::spawn(None, BrokerActor, (registry.clone(), address.clone())).await {
                    Ok((_, handle)) => died = handle,
                    Err(error) => return tracing::error!(%error, "no broker of models can be started"),
                }
            }
        });
        Ok(broker)
    }

    /// The actor itself; `None` before the first has started.
    pub fn actor(&self) -> Option<ActorRef<BrokerMsg>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Tells it something that the entries say too, should it be dead.
    pub fn tell(&self, message: BrokerMsg) {
        if let Some(actor) = self.actor() {
            let _ = actor.cast(message);
        }
    }

    /// Tells it something that nobody else knows: after its death, its successor.
    async fn report(&self, registry: &Registry, mut message: BrokerMsg) {
        while let Some(actor) = self.actor() {
            match actor.cast(message) {
                Err(MessagingErr::SendErr(undelivered)) if !registry.is_stopping() => message = undelivered,
                _ => return,
            }
            tokio::time::sleep(RESTART_PAUSE).await;
        }
    }

    fn move_to(&self, actor: ActorRef<BrokerMsg>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Some(actor);
    }
}

/// Between the death of a broker and the next.
const RESTART_PAUSE: Duration = Duration::from_millis(100);

/// What the broker hears.
pub(super) enum BrokerMsg {
    /// Go on where the last broker died, if there was one.
    TakeUp,
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
    /// Its engine is dropped.
    Unloaded { entry: Arc<Entry>, cause: Cause },
    /// Its last call ended.
    Idle(Arc<Entry>),
    /// It may have been idle for long enough.
    LookAgain(Arc<Entry>),
    /// Load nothing more, and end every cast within this time.
    Shutdown { drain: Duration, reply: oneshot::Sender<()> },
}

/// Why a model is unloaded.
pub(super) enum Cause {
    /// Somebody asked for it.
    Request,
    /// Nobody called it for as long as it stays.
    Idle,
    /// Another needs its room.
    Room,
    /// Its cast gave up, for this reason.
    Fault(String),
}

impl Cause {
    fn word(&self) -> &'static str {
        match self {
            Cause::Request => "request",
            Cause::Idle => "idle",
            Cause::Room => "room",
            Cause::Fault(_) => "failed",
        }
    }
}

/// The broker's own.
pub(super) struct BrokerState {
    registry: Arc<Registry>,
    me: Broker,
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
    type Arguments = (Arc<Registry>, Broker);

    async fn pre_start(
        &self,
        actor: ActorRef<BrokerMsg>,
        (registry, me): (Arc<Registry>, Broker),
    ) -> Result<BrokerState, ActorProcessingErr> {
        // In this order: what is asked for from here on comes as a message, what was before is in the entries.
        me.move_to(actor.clone());
        actor.cast(BrokerMsg::TakeUp)?;
        let (queue, leaving) = (VecDeque::new(), HashMap::new());
        Ok(BrokerState { registry, me, queue, current: None, leaving })
    }

    async fn handle(
        &self,
        _actor: ActorRef<BrokerMsg>,
        message: BrokerMsg,
        state: &mut BrokerState,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            BrokerMsg::TakeUp => state.take_up(),
            BrokerMsg::Load(entry) => state.queue.push_back(entry),
            BrokerMsg::Planned { entry, planned } => state.planned(&entry, planned),
            BrokerMsg::Loaded { entry, result } => state.loaded(&entry, result),
            BrokerMsg::GaveUp { entry, reason } => state.gave_up(&entry, reason),
            BrokerMsg::Unload { entry, drain, reply } => state.unload(&entry, drain, reply),
            BrokerMsg::Unloaded { entry, cause } => state.unloaded(&entry, cause),
            BrokerMsg::Idle(entry) => state.set_timer(&entry),
            BrokerMsg::LookAgain(entry) => state.look_again(&entry),
            BrokerMsg::Shutdown { drain, reply } => state.shutdown(drain, reply),
        }
        state.advance();
        Ok(())
    }
}

impl BrokerState {
    /// Reads from the entries what the last broker had begun. Its tasks go on and report to this one.
    fn take_up(&mut self) {
        for entry in self.registry.entries() {
            match entry.read(|slot| slot.phase.clone()) {
                Phase::Queued => self.queue.push_back(entry),
                Phase::Loading => self.current = Some(Loading { entry, stage: Stage::Starting }),
                Phase::Loaded => self.set_timer(&entry),
                Phase::Unloaded | Phase::Unloading | Phase::Refused { .. } => {}
            }
        }
    }

    /// Takes the current load as far as it goes now, and begins the next.
    fn advance(&mut self) {
        loop {
            let Some(Loading { entry, stage }) = self.current.take() else {
                let Some(entry) = self.queue.pop_front() else { return };
                let stage = self.plan(&entry);
                self.current = stage.map(|stage| Loading { entry, stage });
                continue;
            };
            match stage {
                Stage::Waiting(planned) => match self.place(&entry, planned) {
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
    fn plan(&self, entry: &Arc<Entry>) -> Option<Stage> {
        if entry.read(|slot| slot.phase != Phase::Queued) {
            return None;
        }
        let Some(factory) = entry.factory.clone().filter(|_| !self.registry.is_stopping()) else {
            refuse(entry, ModelsError::stopping());
            return None;
        };
        if let Some(planned) = entry.change(|slot| slot.planned.take()) {
            return Some(Stage::Waiting(planned));
        }
        let limit = self.limit();
        let (me, registry, entry) = (self.me.clone(), self.registry.clone(), entry.clone());
        tokio::spawn(async move {
            let planned = tokio::task::spawn_blocking(move || factory.plan(limit)).await;
            let planned =
                planned.unwrap_or_else(|panic| Err(PlanError::Unusable(format!("planning it failed: {panic}"))));
            me.report(&registry, BrokerMsg::Planned { entry, planned }).await;
        });
        Some(Stage::Planning)
    }

    fn planned(&mut self, entry: &Arc<Entry>, planned: Result<PlannedModel, PlanError>) {
        let Some(Loading { entry: current, stage: stage @ Stage::Planning }) = &mut self.current else { return };
        if !Arc::ptr_eq(current, entry) {
            // A plan for the last broker.
            return;
        }
        match planned {
            Ok(planned) => *stage = Stage::Waiting(planned),
            Err(error) => {
                tracing::error!(model = %entry.id, %error, "the model cannot be loaded");
                self.current = None;
                let error = match error {
                    PlanError::TooLarge(reason) => ModelsError::TooLarge(reason),
                    PlanError::Unusable(reason) => ModelsError::Failed { id: entry.id.to_string(), reason },
                };
                refuse(entry, error);
            }
        }
    }

    /// Starts the model if its room is free, else makes room. `None` when there can be none.
    fn place(&self, entry: &Arc<Entry>, planned: PlannedModel) -> Option<Stage> {
        if self.registry.is_stopping() {
            refuse(entry, ModelsError::stopping());
            return None;
        }
        let needed_bytes = planned.memory().host_bytes();
        loop {
            let others = self.registry.residents();
            let free_bytes = self.free_bytes(&others);
            let max_models = self.registry.options.max_loaded_models.map_or(usize::MAX, |most| most.get());
            let residents: Vec<Resident> = others.iter().map(|other| other.resident).collect();
            let room = Room { free_bytes, max_models };
            let error = match room.decide(needed_bytes, &residents) {
                Decision::Load => {
                    self.start(entry, planned);
                    return Some(Stage::Starting);
                }
                Decision::Wait => return Some(Stage::Waiting(planned)),
                Decision::Unload(going) => {
                    for index in going {
                        // One that was called a moment ago stays; the next look finds it busy.
                        if let Some(runtime) = others[index].entry.give_up(true) {
                            tracing::info!(newcomer = %entry.id, "room is needed");
                            self.unload_now(&others[index].entry, runtime, Duration::ZERO, Cause::Room);
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
    fn start(&self, entry: &Arc<Entry>, planned: PlannedModel) {
        let memory = planned.memory().clone();
        let MemoryPlan { weights_bytes, kv_bytes, scratch_bytes, context_tokens, .. } = memory;
        tracing::info!(model = %entry.id, weights_bytes, kv_bytes, scratch_bytes, context_tokens, "loading");
        entry.change(|slot| {
            slot.phase = Phase::Loading;
            slot.memory = Some(memory);
        });
        let options = RuntimeOptions { model_id: entry.id.clone(), ..self.registry.options.runtime.clone() };
        let (me, entry, registry) = (self.me.clone(), entry.clone(), self.registry.clone());
        tokio::spawn(async move {
            let result = run(&registry, &entry, planned, options).await;
            let is_loaded = result.is_ok();
            me.report(&registry, BrokerMsg::Loaded { entry: entry.clone(), result }).await;
            if is_loaded && let Some(reason) = end_of(&entry).await {
                me.report(&registry, BrokerMsg::GaveUp { entry, reason }).await;
            }
        });
    }

    fn loaded(&mut self, entry: &Arc<Entry>, result: Result<(), String>) {
        self.current = None;
        match result {
            Ok(()) => {
                tracing::info!(model = %entry.id, "loaded");
                metrics::load_ended(&entry.id, "loaded");
                entry.change(|slot| slot.loaded());
                self.set_timer(entry);
            }
            Err(reason) => {
                entry.change(|slot| slot.memory = None);
                if self.registry.is_stopping() {
                    return refuse(entry, ModelsError::stopping());
                }
                tracing::error!(model = %entry.id, reason, "the model could not be loaded");
                refuse(entry, ModelsError::Failed { id: entry.id.to_string(), reason });
            }
        }
    }

    fn gave_up(&self, entry: &Arc<Entry>, reason: String) {
        if let Some(runtime) = entry.give_up(false) {
            self.unload_now(entry, runtime, Duration::ZERO, Cause::Fault(reason));
        }
    }

    fn unload(&mut self, entry: &Arc<Entry>, drain: Duration, reply: oneshot::Sender<Result<(), ModelsError>>) {
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
                    self.unload_now(entry, runtime, drain, Cause::Request);
                }
            }
            Phase::Unloaded | Phase::Refused { .. } => {
                let _ = reply.send(Ok(()));
            }
        }
    }

    /// Lets the calls of a model that was given up end for at most `drain`, stops its cast, and waits until its memory
    /// is free.
    fn unload_now(&self, entry: &Arc<Entry>, runtime: Runtime, drain: Duration, cause: Cause) {
        tracing::info!(model = %entry.id, reason = cause.word(), "unloading");
        let (me, registry, entry) = (self.me.clone(), self.registry.clone(), entry.clone());
        tokio::spawn(async move {
            let _ = tokio::time::timeout(drain, entry.released()).await;
            stop(&entry, runtime).await;
            me.report(&registry, BrokerMsg::Unloaded { entry, cause }).await;
        });
    }

    fn unloaded(&mut self, entry: &Arc<Entry>, cause: Cause) {
        tracing::info!(model = %entry.id, "unloaded");
        metrics::unloaded(&entry.id, cause.word());
        entry.change(|slot| {
            slot.memory = None;
            match cause {
                Cause::Fault(reason) => slot.refused(ModelsError::Failed { id: entry.id.to_string(), reason }),
                Cause::Request | Cause::Idle | Cause::Room => slot.phase = Phase::Unloaded,
            }
        });
        for reply in self.leaving.remove(&entry.id).unwrap_or_default() {
            let _ = reply.send(Ok(()));
        }
    }

    /// Sees to it that somebody looks when the model may have been idle for long enough.
    fn set_timer(&self, entry: &Arc<Entry>) {
        if let Some(expires_at) = entry.expires_at()
            && entry.claim_timer()
        {
            let (me, registry, entry) = (self.me.clone(), self.registry.clone(), entry.clone());
            tokio::spawn(async move {
                tokio::time::sleep_until(expires_at).await;
                me.report(&registry, BrokerMsg::LookAgain(entry)).await;
            });
        }
    }

    fn look_again(&self, entry: &Arc<Entry>) {
        entry.timer_fired();
        // While calls are in progress there is no such time; the last one to end comes back here.
        match entry.expires_at() {
            Some(at) if at <= Instant::now() => {
                if let Some(runtime) = entry.give_up(true) {
                    self.unload_now(entry, runtime, Duration::ZERO, Cause::Idle);
                }
            }
            _ => self.set_timer(entry),
        }
    }

    fn shutdown(&self, drain: Duration, reply: oneshot::Sender<()>) {
        self.registry.stop();
        let (me, registry) = (self.me.clone(), self.registry.clone());
        tokio::spawn(async move {
            registry.shutdown_casts(drain).await;
            let _ = reply.send(());
            if let Some(actor) = me.actor() {
                actor.stop(None);
            }
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

/// Ends an attempt to load a model.
fn refuse(entry: &Entry, error: ModelsError) {
    let outcome = if matches!(error, ModelsError::Failed { .. }) { "failed" } else { "no_room" };
    metrics::load_ended(&entry.id, outcome);
    entry.change(|slot| slot.refused(error));
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

/// Why a cast gave up, once it has; `None` when it was stopped.
async fn end_of(entry: &Entry) -> Option<String> {
    let mut runtime = entry.read(|slot| slot.runtime.clone())?;
    loop {
        match runtime.status_changed().await {
            Status::Failed(reason) => return Some(reason),
            Status::Draining => return None,
            Status::Loading(_) | Status::Ready | Status::Recovering => {}
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::models::{KeepAlive, Models, ModelsOptions, NamedModel};
    use crate::simulation::{SimulatedModel, tokenizer};

    #[tokio::test(start_paused = true)]
    async fn a_broker_that_dies_is_followed_by_another_and_no_load_is_lost() {
        let named = |id: &str| {
            let factory = Arc::new(SimulatedModel::new(tokenizer()));
            NamedModel { id: id.to_owned(), aliases: Vec::new(), factory, planned: None }
        };
        let keep_alive = Some(KeepAlive::For(Duration::from_secs(60)));
        let options = ModelsOptions { keep_alive, ..ModelsOptions::default() };
        let models = Models::start(options, ["a", "b", "c"].map(named).into(), None).await.unwrap();
        models.load("a").await.unwrap();
        let held = models.call(Some("a")).await.unwrap();
        let broker = models.0.broker.clone().unwrap();
        for id in ["b", "c"] {
            let load = models.load(id);
            let kill = async { broker.actor().unwrap().kill() };
            let (loaded, ()) = tokio::join!(load, kill);
            loaded.unwrap();
        }
        assert_eq!(held.runtime().status(), Status::Ready);
        drop(held);
        tokio::time::sleep(Duration::from_secs(70)).await;
        assert!(models.list().await.iter().all(|model| model.memory.is_none()), "idle times are kept");
        models.unload("a", Duration::ZERO).await.unwrap();
        models.shutdown(Duration::ZERO).await;
    }
}
