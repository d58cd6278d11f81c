//! The Broker actor loads and unloads models. No other code does.
//!
//! Receives `Load`, `Unload`, `Idle` and `Shutdown` from [`Models`](super::Models) and its leases, and `Planned`, `Loaded`,
//! `Unloaded`, `GaveUp` and `KeepAliveExpired` from its own tasks. It writes the phase of a model to its entry, which wakes
//! the calls that wait for the model.
//!
//! For a load, first the memory plan is made. Then idle models are unloaded until the model fits. Its pipelines are started
//! when the engines of those models have been dropped and the memory is still free. Several models may be loaded at the same
//! time, so a slow load does not delay the others; memory is given out in the order of the requests. Everything that takes
//! time runs as a task that sends a message when it is done.
//!
//! Faults: a model that cannot be planned or loaded, and one whose pipelines give up, is refused with the reason. Its
//! memory is free again and it may be loaded later. Other models are not affected. When the broker dies, which only a bug
//! can cause, a new one is started and continues from the entries. Loaded models keep running.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use cuelight_engine::load::{MemoryBreakdown, MemoryPlan};
use ractor::{Actor, ActorProcessingErr, ActorRef, SpawnErr};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::entry::{Entry, Phase};
use super::error::ModelsError;
use super::memory_budget::{Decision, Hold, MemoryBudget, Resident};
use super::messages::{BrokerAddress, BrokerMsg, UnloadCause};
use super::registry::{Registry, ResidentModel};
use super::source::{PlanError, PlannedModel};
use crate::core::status::Status;
use crate::metrics;
use crate::pipeline::options::RuntimeOptions;
use crate::pipeline::runtime::Runtime;

/// Starts a broker for these models, and a new one whenever it dies.
pub(super) async fn start(registry: Arc<Registry>) -> Result<BrokerAddress, SpawnErr> {
    let address = BrokerAddress::default();
    let (_, mut died) = Actor::spawn(None, Broker, (registry.clone(), address.clone())).await?;
    let broker = address.clone();
    tokio::spawn(async move {
        loop {
            let _ = died.await;
            if registry.is_stopping() {
                return;
            }
            tracing::error!("the model broker died; starting a new one");
            tokio::time::sleep(BrokerAddress::RESTART_PAUSE).await;
            match Actor::spawn(None, Broker, (registry.clone(), broker.clone())).await {
                Ok((_, handle)) => died = handle,
                Err(error) => return tracing::error!(%error, "no model broker can be started"),
            }
        }
    });
    Ok(address)
}

/// The state of the broker.
pub(super) struct BrokerState {
    registry: Arc<Registry>,
    address: BrokerAddress,
    /// The models that are being loaded, in the order of the requests.
    loading: Vec<Loading>,
    /// Number of models whose pipelines were started.
    starts: u64,
    /// Replies to send when a model is unloaded, by model.
    unload_replies: HashMap<Arc<str>, Vec<oneshot::Sender<Result<(), ModelsError>>>>,
}

/// A load in progress.
struct Loading {
    entry: Arc<Entry>,
    phase: LoadPhase,
    /// [`BrokerState::starts`] when its memory was planned.
    planned_at: u64,
}

/// The memory and slots for which earlier loads wait.
#[derive(Default)]
struct Ahead {
    bytes: u64,
    models: usize,
}

enum LoadPhase {
    /// A task makes the memory plan.
    Planning,
    /// It waits until other models are unloaded.
    AwaitsMemory(Box<PlannedModel>),
    /// Its pipelines load it.
    Starting,
}

/// The broker actor.
struct Broker;

impl Actor for Broker {
    type Msg = BrokerMsg;
    type State = BrokerState;
    type Arguments = (Arc<Registry>, BrokerAddress);

    async fn pre_start(
        &self,
        actor: ActorRef<BrokerMsg>,
        (registry, address): (Arc<Registry>, BrokerAddress),
    ) -> Result<BrokerState, ActorProcessingErr> {
        // In this order: later requests arrive as messages, and earlier ones are in the entries.
        address.set(actor.clone());
        actor.cast(BrokerMsg::TakeOver)?;
        Ok(BrokerState { registry, address, loading: Vec::new(), starts: 0, unload_replies: HashMap::new() })
    }

    async fn handle(
        &self,
        _actor: ActorRef<BrokerMsg>,
        message: BrokerMsg,
        state: &mut BrokerState,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            BrokerMsg::TakeOver => state.take_over(),
            BrokerMsg::Load(entry) => state.begin(&entry),
            BrokerMsg::Planned { entry, planned } => state.planned(&entry, *planned),
            BrokerMsg::Loaded { entry, result } => state.loaded(&entry, result),
            BrokerMsg::GaveUp { entry, cause } => state.gave_up(&entry, cause),
            BrokerMsg::Unload { entry, drain, reply } => state.unload(&entry, drain, reply),
            BrokerMsg::Unloaded { entry, cause } => state.unloaded(&entry, cause),
            BrokerMsg::Idle(entry) => state.set_timer(&entry),
            BrokerMsg::KeepAliveExpired(entry) => state.keep_alive_expired(&entry),
            BrokerMsg::Shutdown { drain, reply } => state.shutdown(drain, reply),
        }
        state.advance();
        Ok(())
    }
}

impl BrokerState {
    /// Reads from the entries what the previous broker had begun. Its tasks continue and send their messages to this one.
    fn take_over(&mut self) {
        for entry in self.registry.entries() {
            match entry.read(|slot| slot.phase.clone()) {
                Phase::Queued => self.begin(&entry),
                Phase::Loading => self.loading.push(Loading { entry, phase: LoadPhase::Starting, planned_at: 0 }),
                Phase::Loaded => self.set_timer(&entry),
                Phase::Unloaded | Phase::Unloading | Phase::Refused { .. } => {}
            }
        }
    }

    /// Begins a load. A request that [`Self::take_over`] has found in the entry, too, is begun once.
    fn begin(&mut self, entry: &Arc<Entry>) {
        if self.loading.iter().any(|load| Arc::ptr_eq(&load.entry, entry)) {
            return;
        }
        if let Some(phase) = self.plan(entry) {
            self.loading.push(Loading { entry: entry.clone(), phase, planned_at: self.starts });
        }
    }

    /// Continues the loads that wait for memory, as far as possible.
    fn advance(&mut self) {
        let mut ahead = Ahead::default();
        for load in std::mem::take(&mut self.loading) {
            let Loading { entry, phase, planned_at } = load;
            let load = match phase {
                LoadPhase::AwaitsMemory(planned) => self.load_if_free(&entry, *planned, planned_at, &mut ahead),
                phase => Some((phase, planned_at)),
            };
            // `None`: the model was refused.
            self.loading.extend(load.map(|(phase, planned_at)| Loading { entry, phase, planned_at }));
        }
    }

    /// Makes the memory plan of a model. `None` when the model is not loaded.
    fn plan(&self, entry: &Arc<Entry>) -> Option<LoadPhase> {
        if entry.read(|slot| slot.phase != Phase::Queued) {
            return None;
        }
        let Some(factory) = entry.factory.clone().filter(|_| !self.registry.is_stopping()) else {
            refuse(entry, ModelsError::stopping());
            return None;
        };
        if let Some(planned) = entry.change(|slot| slot.planned.take()) {
            return Some(LoadPhase::AwaitsMemory(Box::new(planned)));
        }
        let limit = self.limit();
        let (broker, registry, entry) = (self.address.clone(), self.registry.clone(), entry.clone());
        tokio::spawn(async move {
            let planned = tokio::task::spawn_blocking(move || factory.plan(limit)).await;
            let planned =
                planned.unwrap_or_else(|panic| Err(PlanError::Unusable(format!("planning it failed: {panic}"))));
            broker.deliver(&registry, BrokerMsg::Planned { entry, planned: Box::new(planned) }).await;
        });
        Some(LoadPhase::Planning)
    }

    fn planned(&mut self, entry: &Arc<Entry>, planned: Result<PlannedModel, PlanError>) {
        let is_awaited = |load: &Loading| Arc::ptr_eq(&load.entry, entry) && matches!(load.phase, LoadPhase::Planning);
        // There is none for a load that was cancelled, or when the plan was made for the previous broker.
        let Some(index) = self.loading.iter().position(is_awaited) else { return };
        match planned {
            Ok(planned) => self.loading[index].phase = LoadPhase::AwaitsMemory(Box::new(planned)),
            Err(error) => {
                tracing::error!(model = %entry.id, %error, "the model cannot be loaded");
                self.loading.remove(index);
                let error = match error {
                    PlanError::TooLarge(reason) => ModelsError::TooLarge(reason),
                    PlanError::Unusable(reason) => ModelsError::Failed { id: entry.id.to_string(), reason },
                };
                refuse(entry, error);
            }
        }
    }

    /// Starts the model if its memory is free, else unloads idle models. Returns the next phase and when its memory was
    /// planned; `None` when the model is refused.
    fn load_if_free(
        &mut self,
        entry: &Arc<Entry>,
        planned: PlannedModel,
        planned_at: u64,
        ahead: &mut Ahead,
    ) -> Option<(LoadPhase, u64)> {
        if self.registry.is_stopping() {
            refuse(entry, ModelsError::stopping());
            return None;
        }
        let needed_bytes = planned.memory().host_bytes();
        loop {
            let others = self.registry.residents();
            let residents: Vec<Resident> = others.iter().map(|other| other.resident).collect();
            let budget = self.budget(&others, ahead);
            let error = match budget.decide(needed_bytes, &residents) {
                Decision::Load => {
                    self.start(entry, planned);
                    return Some((LoadPhase::Starting, planned_at));
                }
                Decision::Wait => return Some((ahead.wait(planned), planned_at)),
                // What is free is promised to earlier loads.
                _ if ahead.models > 0 => return Some((ahead.wait(planned), planned_at)),
                Decision::Unload(unloaded) => {
                    self.unload_for(entry, unloaded.into_iter().map(|index| &others[index].entry));
                    continue;
                }
                // The plan may use memory that another load has taken since.
                Decision::Busy | Decision::Never if planned_at < self.starts => {
                    return self.plan(entry).map(|phase| (phase, self.starts));
                }
                Decision::Busy => {
                    ModelsError::unavailable(budget.explain(&entry.id, needed_bytes, &residents), BUSY_RETRY_SECONDS)
                }
                Decision::Never => ModelsError::TooLarge(budget.explain(&entry.id, needed_bytes, &residents)),
            };
            refuse(entry, error);
            return None;
        }
    }

    /// The memory and slots that are left for a load.
    fn budget(&self, others: &[ResidentModel], ahead: &Ahead) -> MemoryBudget {
        let max_models = self.registry.options.max_loaded_models.map_or(usize::MAX, |most| most.get());
        MemoryBudget {
            free_bytes: self.free_bytes(others).saturating_sub(ahead.bytes),
            max_models: max_models.saturating_sub(ahead.models),
        }
    }

    /// Unloads idle models, whose memory another one needs.
    fn unload_for<'a>(&self, newcomer: &Entry, unloaded: impl Iterator<Item = &'a Arc<Entry>>) {
        for other in unloaded {
            // A model that is in use by now stays loaded, and the next decision finds it busy.
            if let Some(runtime) = other.begin_unload(true) {
                tracing::info!(model = %newcomer.id, "unloading another model to free memory");
                self.unload_now(other, runtime, Duration::ZERO, UnloadCause::Memory);
            }
        }
    }

    /// Starts the pipelines of a model whose memory is free.
    fn start(&mut self, entry: &Arc<Entry>, planned: PlannedModel) {
        self.starts += 1;
        let memory = planned.memory().clone();
        let MemoryPlan { used, context_tokens, .. } = memory;
        let MemoryBreakdown { weights: weights_bytes, kv: kv_bytes, scratch: scratch_bytes, .. } = used;
        tracing::info!(model = %entry.id, weights_bytes, kv_bytes, scratch_bytes, context_tokens, "loading");
        entry.change(|slot| {
            slot.phase = Phase::Loading;
            slot.memory = Some(memory);
        });
        let options = RuntimeOptions { model_id: entry.id.clone(), ..self.registry.options.runtime.clone() };
        let (broker, entry, registry) = (self.address.clone(), entry.clone(), self.registry.clone());
        tokio::spawn(async move {
            let result = run(&registry, &entry, planned, options).await;
            let is_loaded = result.is_ok();
            broker.deliver(&registry, BrokerMsg::Loaded { entry: entry.clone(), result }).await;
            if is_loaded && let Some(cause) = failure_of(&entry).await {
                broker.deliver(&registry, BrokerMsg::GaveUp { entry, cause }).await;
            }
        });
    }

    fn loaded(&mut self, entry: &Arc<Entry>, result: Result<(), String>) {
        self.loading.retain(|load| !Arc::ptr_eq(&load.entry, entry));
        let is_cancelled = entry.change(|slot| std::mem::take(&mut slot.cancels_load));
        match result {
            Ok(()) => {
                tracing::info!(model = %entry.id, "loaded");
                metrics::load_ended(&entry.id, "loaded");
                entry.change(|slot| slot.loaded());
                self.set_timer(entry);
                if is_cancelled && let Some(runtime) = entry.begin_unload(false) {
                    self.unload_now(entry, runtime, Duration::ZERO, UnloadCause::Request);
                }
            }
            Err(_) if is_cancelled => {
                entry.change(|slot| slot.memory = None);
                cancelled(entry);
                self.reply_unloaded(entry);
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

    fn gave_up(&self, entry: &Arc<Entry>, cause: UnloadCause) {
        if let Some(runtime) = entry.begin_unload(false) {
            self.unload_now(entry, runtime, Duration::ZERO, cause);
        }
    }

    fn unload(&mut self, entry: &Arc<Entry>, drain: Duration, reply: oneshot::Sender<Result<(), ModelsError>>) {
        match entry.read(|slot| slot.phase.clone()) {
            Phase::Queued => {
                self.loading.retain(|load| !Arc::ptr_eq(&load.entry, entry));
                cancelled(entry);
                let _ = reply.send(Ok(()));
            }
            Phase::Loading => {
                self.unload_replies.entry(entry.id.clone()).or_default().push(reply);
                // The task that starts its pipelines sees the flag, or the pipelines are stopped here.
                let started = entry.change(|slot| {
                    slot.cancels_load = true;
                    slot.runtime.clone()
                });
                if let Some(runtime) = started {
                    tokio::spawn(async move { runtime.shutdown(Duration::ZERO).await });
                }
            }
            Phase::Unloading => self.unload_replies.entry(entry.id.clone()).or_default().push(reply),
            Phase::Loaded => {
                self.unload_replies.entry(entry.id.clone()).or_default().push(reply);
                if let Some(runtime) = entry.begin_unload(false) {
                    self.unload_now(entry, runtime, drain, UnloadCause::Request);
                }
            }
            Phase::Unloaded | Phase::Refused { .. } => {
                let _ = reply.send(Ok(()));
            }
        }
    }

    /// Waits at most `drain` for the calls of a model whose unload has begun, stops its pipelines, and waits until its memory
    /// is free.
    fn unload_now(&self, entry: &Arc<Entry>, runtime: Runtime, drain: Duration, cause: UnloadCause) {
        tracing::info!(model = %entry.id, reason = cause.word(), "unloading");
        let (broker, registry, entry) = (self.address.clone(), self.registry.clone(), entry.clone());
        tokio::spawn(async move {
            let _ = tokio::time::timeout(drain, entry.released()).await;
            stop(&entry, runtime).await;
            broker.deliver(&registry, BrokerMsg::Unloaded { entry, cause }).await;
        });
    }

    fn unloaded(&mut self, entry: &Arc<Entry>, cause: UnloadCause) {
        tracing::info!(model = %entry.id, "unloaded");
        metrics::unloaded(&entry.id, cause.word());
        entry.change(|slot| {
            slot.memory = None;
            match cause {
                UnloadCause::Fault(reason) => slot.refused(ModelsError::Failed { id: entry.id.to_string(), reason }),
                UnloadCause::FileChanged(reason) => {
                    slot.refused(ModelsError::FileChanged { id: entry.id.to_string(), reason });
                }
                UnloadCause::Request | UnloadCause::Idle | UnloadCause::Memory => slot.phase = Phase::Unloaded,
            }
        });
        self.reply_unloaded(entry);
    }

    /// Answers those who asked for the unload of a model.
    fn reply_unloaded(&mut self, entry: &Entry) {
        for reply in self.unload_replies.remove(&entry.id).unwrap_or_default() {
            let _ = reply.send(Ok(()));
        }
    }

    /// Starts the keep-alive timer of a model, if it needs one.
    fn set_timer(&self, entry: &Arc<Entry>) {
        if let Some(expires_at) = entry.expires_at()
            && entry.claim_timer()
        {
            let (broker, registry, entry) = (self.address.clone(), self.registry.clone(), entry.clone());
            let mut changes = entry.subscribe();
            let keep_alive = entry.read(|slot| slot.keep_alive);
            tokio::spawn(async move {
                tokio::select! {
                    () = tokio::time::sleep_until(expires_at) => {}
                    // The timer is set again with the new time.
                    _ = changes.wait_for(|slot| slot.keep_alive != keep_alive) => {}
                }
                broker.deliver(&registry, BrokerMsg::KeepAliveExpired(entry)).await;
            });
        }
    }

    fn keep_alive_expired(&self, entry: &Arc<Entry>) {
        entry.timer_fired();
        // While calls are in progress there is no expiry time. The last one to end starts the timer again.
        match entry.expires_at() {
            Some(at) if at <= Instant::now() => {
                if let Some(runtime) = entry.begin_unload(true) {
                    self.unload_now(entry, runtime, Duration::ZERO, UnloadCause::Idle);
                }
            }
            _ => self.set_timer(entry),
        }
    }

    fn shutdown(&self, drain: Duration, reply: oneshot::Sender<()>) {
        self.registry.stop();
        let (broker, registry) = (self.address.clone(), self.registry.clone());
        tokio::spawn(async move {
            registry.shutdown_runtimes(drain).await;
            let _ = reply.send(());
            if let Some(actor) = broker.actor() {
                actor.stop(None);
            }
        });
    }

    /// Free bytes within the memory limit and on the machine.
    fn free_bytes(&self, others: &[ResidentModel]) -> u64 {
        let options = &self.registry.options;
        (options.machine)().free(options.memory_bytes, held_bytes(others)).unwrap_or(u64::MAX)
    }

    /// Memory limit for planning a model, in bytes: free memory and the memory of models that can be unloaded.
    fn limit(&self) -> Option<u64> {
        let others = self.registry.residents();
        let options = &self.registry.options;
        let free = (options.machine)().limit(options.memory_bytes, held_bytes(&others))?;
        let unloadable = others.iter().filter(|other| other.resident.hold != Hold::Kept);
        Some(unloadable.map(|other| other.resident.bytes).fold(free, u64::saturating_add))
    }
}

fn held_bytes(models: &[ResidentModel]) -> u64 {
    models.iter().map(|model| model.resident.bytes).sum()
}

/// When to retry a load for which the memory is in use.
const BUSY_RETRY_SECONDS: u64 = 2;

/// Ends an attempt to load a model with an error.
fn refuse(entry: &Entry, error: ModelsError) {
    let outcome = if matches!(error, ModelsError::Failed { .. }) { "failed" } else { "no_memory" };
    metrics::load_ended(&entry.id, outcome);
    entry.change(|slot| slot.refused(error));
}

/// Ends an attempt to load a model that was unloaded meanwhile.
fn cancelled(entry: &Entry) {
    tracing::info!(model = %entry.id, "the load was cancelled");
    metrics::load_ended(&entry.id, "cancelled");
    let reason = format!("the load of the model `{}` was cancelled, because the model was unloaded", entry.id);
    entry.change(|slot| slot.refused(ModelsError::unavailable(reason, BUSY_RETRY_SECONDS)));
}

impl Ahead {
    /// A load waits for memory. Those behind it do not get that memory.
    fn wait(&mut self, planned: PlannedModel) -> LoadPhase {
        self.bytes = self.bytes.saturating_add(planned.memory().host_bytes());
        self.models += 1;
        LoadPhase::AwaitsMemory(Box::new(planned))
    }
}

/// Starts the pipelines of a model and waits until they are ready. After an error all of them have stopped.
async fn run(registry: &Registry, entry: &Entry, planned: PlannedModel, options: RuntimeOptions) -> Result<(), String> {
    let runtime = planned.start(options, entry.live.clone()).await.map_err(|error| error.to_string())?;
    entry.change(|slot| slot.runtime = Some(runtime.clone()));
    // A concurrent shutdown or unload either sees the runtime or is seen here.
    let is_stopped = registry.is_stopping() || entry.read(|slot| slot.cancels_load);
    let ready = if is_stopped { Err(Status::Draining) } else { runtime.wait_ready().await };
    let Err(status) = ready else { return Ok(()) };
    let reason = status.failure().unwrap_or("the server is shutting down").to_owned();
    stop(entry, runtime).await;
    Err(reason)
}

/// Stops the pipelines of a model at once. Its memory is free when this resolves.
async fn stop(entry: &Entry, runtime: Runtime) {
    runtime.shutdown(Duration::ZERO).await;
    drop(runtime);
    // Dropped outside of the entry's lock, because dropping the last handle stops actors.
    let last = entry.change(|slot| slot.runtime.take());
    drop(last);
    entry.live.gone().await;
}

/// Waits until the pipelines of a model give up and returns the cause. `None` when they were stopped.
async fn failure_of(entry: &Entry) -> Option<UnloadCause> {
    let mut runtime = entry.read(|slot| slot.runtime.clone())?;
    loop {
        match runtime.status_changed().await {
            Status::Failed(reason) => return Some(UnloadCause::Fault(reason)),
            Status::FileChanged(reason) => return Some(UnloadCause::FileChanged(reason)),
            Status::Draining => return None,
            Status::Loading(_) | Status::Ready | Status::Recovering => {}
        }
    }
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use super::*;
    use crate::models::entry::{Access, Caller};
    use crate::models::{KeepAlive, Models, ModelsOptions, NamedModel};
    use crate::pipeline::simulation::{SimulatedModel, tokenizer};

    #[tokio::test]
    async fn a_load_that_is_found_and_requested_is_begun_once() {
        let entry = Arc::new(Entry::new("a", Arc::new(SimulatedModel::new(tokenizer()))));
        let registry = Arc::new(Registry::new(vec![entry.clone()], None, ModelsOptions::default()));
        let address = BrokerAddress::default();
        let mut broker =
            BrokerState { registry, address, loading: Vec::new(), starts: 0, unload_replies: HashMap::new() };
        assert!(matches!(entry.access(Caller::Operator, true), Ok(Access::MustLoad)));
        broker.take_over();
        broker.begin(&entry);
        assert_eq!(broker.loading.len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_dead_broker_is_replaced_and_no_load_is_lost() {
        let named = |id: &str| {
            let factory = Arc::new(SimulatedModel::new(tokenizer()));
            NamedModel { id: id.to_owned(), aliases: Vec::new(), adapters: Vec::new(), factory, planned: None }
        };
        let keep_alive = Some(KeepAlive::For(Duration::from_secs(60)));
        let options = ModelsOptions { keep_alive, ..ModelsOptions::default() };
        let models = Models::start(options, ["a", "b", "c"].map(named).into(), None).await.unwrap();
        models.load("a").await.unwrap();
        let held = models.acquire(Some("a")).await.unwrap();
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
        assert!(models.list().await.iter().all(|model| model.memory.is_none()), "keep-alive times still apply");
        models.unload("a", Duration::ZERO).await.unwrap();
        models.shutdown(Duration::ZERO).await;
    }
}
