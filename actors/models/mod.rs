//! The models of a server: which there are, which are loaded, and how a call gets hold of one.
//!
//! - [`Models`], below: the front door. A call asks for a model by name and gets a [`Call`], which holds the model until
//!   the response is over; a model that is not loaded is loaded first.
//! - [`entry`]: one model, and everything about it that changes
//! - [`broker`]: the actor that loads and unloads, one at a time, never beyond the memory there is
//! - [`room`]: what fits beside what, as pure decisions
//! - [`source`]: where a model comes from, and the proof that its memory is free again
//! - [`directory`]: models found as files
//!
//! Each loaded model is a [`Runtime`]: a cast of its own, whose faults the others never hear of.

mod broker;
mod directory;
mod entry;
mod room;
mod source;

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use cuelight_engine::load::{LoadProgress, MemoryPlan};
use futures_util::future::join_all;
use tokio::sync::oneshot;
use tokio::time::timeout;

use self::broker::{Broker, BrokerMsg};
pub use self::directory::ModelsDirectory;
pub use self::entry::Call;
use self::entry::{Caller, Entry, Found, Phase};
pub use self::room::Machine;
use self::room::Resident;
pub use self::source::{ModelFactory, PlanError, PlannedModel};
use crate::policy::Counts;
use crate::runtime::{Model, Runtime, RuntimeOptions, StartError};

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

/// Why a call does not get its model.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ModelsError {
    /// No model has this name.
    #[error("the model `{0}` does not exist here; GET /v1/models lists those that do")]
    Unknown(String),
    /// No name was given, and there is more than one model, or none.
    #[error("name a model in `model`; GET /v1/models lists those that are here")]
    Unnamed,
    /// It is not loaded, and calls do not load models here.
    #[error("the model `{0}` is not loaded, and calls do not load models here: POST /models/load does, with this name")]
    NotLoaded(String),
    /// It can never be loaded here.
    #[error("{0}")]
    TooLarge(String),
    /// It could not be loaded, or failed too often.
    #[error("the model `{id}` is not available: {reason}")]
    Failed {
        /// The model.
        id: String,
        /// Why, in a sentence.
        reason: String,
    },
    /// Not now.
    #[error("{reason}")]
    Unavailable {
        /// Why, in a sentence.
        reason: String,
        /// When to try again.
        retry_after: Duration,
    },
    /// Too many calls wait for it already.
    #[error("{waiting} calls wait for the model `{id}` to be loaded; try again later")]
    Overloaded {
        /// The model.
        id: String,
        /// How many.
        waiting: usize,
    },
    /// It is not the broker's to unload.
    #[error("the model `{0}` is served for as long as this program runs; it cannot be unloaded")]
    Fixed(String),
}

impl ModelsError {
    fn unavailable(reason: String, seconds: u64) -> Self {
        ModelsError::Unavailable { reason, retry_after: Duration::from_secs(seconds) }
    }

    fn stopping() -> Self {
        Self::unavailable("the server is shutting down".to_owned(), 5)
    }
}

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
    is_first_load: bool,
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

/// The models that are known, and how they are kept.
struct Registry {
    entries: RwLock<Vec<Arc<Entry>>>,
    directory: Option<ModelsDirectory>,
    options: ModelsOptions,
    stopping: AtomicBool,
}

/// A model that holds memory.
struct Held {
    entry: Arc<Entry>,
    resident: Resident,
}

impl Registry {
    fn entries(&self) -> Vec<Arc<Entry>> {
        self.entries.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The model of this name.
    fn entry(&self, name: &str) -> Option<Arc<Entry>> {
        let entries = self.entries.read().unwrap_or_else(PoisonError::into_inner);
        entries.iter().find(|entry| entry.answers_to(name)).cloned()
    }

    /// The first model named at the start, or the only one there is.
    fn default_entry(&self) -> Option<Arc<Entry>> {
        let entries = self.entries.read().unwrap_or_else(PoisonError::into_inner);
        let only = if entries.len() == 1 { entries.first() } else { None };
        entries.iter().find(|entry| entry.named).or(only).cloned()
    }

    /// The models that hold memory.
    fn residents(&self) -> Vec<Held> {
        let held = |entry: Arc<Entry>| {
            let (memory, hold) = entry.resident()?;
            Some(Held { entry, resident: Resident { bytes: memory.total_bytes(), hold } })
        };
        self.entries().into_iter().filter_map(held).collect()
    }

    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// Refuses calls from now on, also those that wait.
    fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        for entry in self.entries() {
            entry.change(|_| ());
        }
    }

    /// What is held, and what is free beside it.
    fn room(&self) -> MemoryRoom {
        let held_bytes = self.residents().iter().map(|model| model.resident.bytes).sum();
        let limit_bytes = self.options.memory_bytes;
        MemoryRoom { limit_bytes, held_bytes, free_bytes: (self.options.machine)().free(limit_bytes, held_bytes) }
    }

    /// Ends all casts at the same time.
    async fn shutdown_casts(&self, drain: Duration) {
        let entries = self.entries();
        let runtimes: Vec<Runtime> =
            entries.iter().filter_map(|entry| entry.read(|slot| slot.runtime.clone())).collect();
        join_all(runtimes.iter().map(|runtime| runtime.shutdown(drain))).await;
    }

    /// Takes in what the directory holds now. Blocks for as long as listing a directory does.
    fn rescan(&self) {
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

impl KeepAlive {
    fn limit(self) -> Option<Duration> {
        match self {
            KeepAlive::For(limit) => Some(limit),
            KeepAlive::Forever => None,
        }
    }
}

/// A cheap handle on the models of a server. The broker stops when the last handle is dropped.
#[derive(Clone)]
pub struct Models(Arc<Inner>);

struct Inner {
    registry: Arc<Registry>,
    /// `None` where nothing is ever loaded or unloaded.
    broker: Option<Broker>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.registry.stop();
        if let Some(actor) = self.broker.as_ref().and_then(Broker::actor) {
            actor.stop(None);
        }
    }
}

impl Models {
    /// Starts the broker for models that are named now, and for those of a directory. Nothing is loaded yet.
    ///
    /// # Errors
    /// [`StartError`] when no actor can be started.
    pub async fn start(
        options: ModelsOptions,
        named: Vec<NamedModel>,
        directory: Option<ModelsDirectory>,
    ) -> Result<Models, StartError> {
        let entries = named.into_iter().map(|model| Arc::new(model.entry(options.keep_alive))).collect();
        let registry = Registry { entries: RwLock::new(entries), directory, options, stopping: AtomicBool::new(false) };
        registry.rescan();
        let registry = Arc::new(registry);
        let broker = Broker::start(registry.clone()).await?;
        Ok(Models(Arc::new(Inner { registry, broker: Some(broker) })))
    }

    /// One model that runs already, for tests and for embedding.
    #[must_use]
    pub fn fixed(runtime: Runtime, id: &str, aliases: Vec<String>) -> Models {
        let mut entry = Entry::running(id, runtime);
        entry.aliases = aliases;
        let registry = Registry {
            entries: RwLock::new(vec![Arc::new(entry)]),
            directory: None,
            options: ModelsOptions::default(),
            stopping: AtomicBool::new(false),
        };
        Models(Arc::new(Inner { registry: Arc::new(registry), broker: None }))
    }

    /// Gets hold of a model for a call, loading it if need be. No name, or `default`, means the first model that was
    /// named at the start, or the only one there is.
    ///
    /// # Errors
    /// [`ModelsError`].
    pub async fn call(&self, name: Option<&str>) -> Result<Call, ModelsError> {
        let entry = self.find(name).await?;
        self.acquire(&entry, Caller::Call { autoload: self.0.registry.options.autoload }).await
    }

    /// Loads a model and waits until it is ready. One that failed a moment ago is tried again.
    ///
    /// # Errors
    /// [`ModelsError`].
    pub async fn load(&self, name: &str) -> Result<(), ModelsError> {
        let entry = self.find(Some(name)).await?;
        self.acquire(&entry, Caller::Operator).await.map(drop)
    }

    /// The same without waiting.
    ///
    /// # Errors
    /// [`ModelsError`] when nothing is begun.
    pub async fn begin_load(&self, name: &str) -> Result<(), ModelsError> {
        let entry = self.find(Some(name)).await?;
        self.look(&entry, Caller::Operator, true).map(drop)
    }

    /// The models named at the start, in their order.
    #[must_use]
    pub fn named(&self) -> Vec<String> {
        let entries = self.0.registry.entries();
        entries.iter().filter(|entry| entry.named).map(|entry| entry.id.to_string()).collect()
    }

    /// Resolves to a reason when every model named at the start has failed; never when there are none.
    pub async fn all_failed(&self) -> String {
        let named: Vec<_> = self.0.registry.entries().into_iter().filter(|entry| entry.named).collect();
        loop {
            for entry in &named {
                entry.failed().await;
            }
            match self.readiness() {
                Readiness::Failed { reason, all: true } => return reason,
                _ if named.is_empty() => std::future::pending().await,
                // One of them is tried again already.
                _ => {}
            }
        }
    }

    /// Unloads a model: new calls wait for it to be loaded again, running ones end, for at most `drain`. Resolves when its
    /// memory is free.
    ///
    /// # Errors
    /// [`ModelsError::Unknown`], [`ModelsError::Fixed`], or [`ModelsError::Unavailable`] while it is being loaded.
    pub async fn unload(&self, name: &str, drain: Duration) -> Result<(), ModelsError> {
        let entry = self.find(Some(name)).await?;
        let Some(broker) = &self.0.broker else { return Err(ModelsError::Fixed(entry.id.to_string())) };
        let (reply, unloaded) = oneshot::channel();
        broker.tell(BrokerMsg::Unload { entry, drain, reply });
        unloaded.await.unwrap_or_else(|_| {
            Err(ModelsError::unavailable("the broker of models had to restart; try again".to_owned(), 1))
        })
    }

    /// Takes no more calls, lets those of all models end for up to `drain`, then stops every cast.
    pub async fn shutdown(&self, drain: Duration) {
        let registry = &self.0.registry;
        registry.stop();
        let (reply, stopped) = oneshot::channel();
        match &self.0.broker {
            Some(broker) => {
                broker.tell(BrokerMsg::Shutdown { drain, reply });
                if stopped.await.is_err() {
                    // There is no broker any more.
                    registry.shutdown_casts(drain).await;
                }
            }
            None => registry.shutdown_casts(drain).await,
        }
    }

    /// Every model that is known, those named at the start first.
    pub async fn list(&self) -> Vec<ModelInfo> {
        self.rescan().await;
        self.0.registry.entries().iter().map(|entry| entry.info()).collect()
    }

    /// What they hold of the machine, and what is left.
    #[must_use]
    pub fn memory(&self) -> MemoryRoom {
        self.0.registry.room()
    }

    /// One model.
    ///
    /// # Errors
    /// [`ModelsError::Unknown`], [`ModelsError::Unnamed`].
    pub async fn show(&self, name: &str) -> Result<ModelInfo, ModelsError> {
        Ok(self.find(Some(name)).await?.info())
    }

    /// What the server as a whole can do.
    #[must_use]
    pub fn readiness(&self) -> Readiness {
        let registry = &self.0.registry;
        let named: Vec<ModelInfo> =
            registry.entries().iter().filter(|entry| entry.named).map(|entry| entry.info()).collect();
        let is_draining = || named.iter().any(|model| model.state == ModelState::Unloading);
        if registry.is_stopping() || (self.0.broker.is_none() && is_draining()) {
            return Readiness::Draining;
        }
        readiness_of(&named)
    }

    /// How models are loaded and kept.
    #[must_use]
    pub fn options(&self) -> &ModelsOptions {
        &self.0.registry.options
    }

    /// The directory in which models are looked for.
    #[must_use]
    pub fn directory(&self) -> Option<&ModelsDirectory> {
        self.0.registry.directory.as_ref()
    }

    async fn rescan(&self) {
        if self.0.registry.directory.is_some() {
            let registry = self.0.registry.clone();
            // A panic there would leave the list as it is.
            let _ = tokio::task::spawn_blocking(move || registry.rescan()).await;
        }
    }

    async fn find(&self, name: Option<&str>) -> Result<Arc<Entry>, ModelsError> {
        let registry = &self.0.registry;
        let name = match name {
            None | Some("" | "default") => return registry.default_entry().ok_or(ModelsError::Unnamed),
            Some(name) => name,
        };
        if let Some(entry) = registry.entry(name) {
            return Ok(entry);
        }
        self.rescan().await;
        registry.entry(name).ok_or_else(|| ModelsError::Unknown(name.to_owned()))
    }

    /// Takes hold of a model, however long that takes an operator, or within the limits of a call.
    async fn acquire(&self, entry: &Arc<Entry>, caller: Caller) -> Result<Call, ModelsError> {
        let options = &self.0.registry.options;
        let (limit, longest_line) = match caller {
            Caller::Call { .. } => (Some(options.load_timeout), options.max_waiting_calls),
            Caller::Operator => (None, usize::MAX),
        };
        let wait = self.wait_for(entry, caller, longest_line);
        let Some(limit) = limit else { return wait.await };
        timeout(limit, wait).await.unwrap_or_else(|_| {
            let seconds = limit.as_secs_f32();
            let reason = format!("the model `{}` was not loaded within {seconds} seconds", entry.id);
            Err(ModelsError::unavailable(reason, 5))
        })
    }

    async fn wait_for(&self, entry: &Arc<Entry>, caller: Caller, longest_line: usize) -> Result<Call, ModelsError> {
        // Before the first look, so that nothing is missed that happens after it.
        let mut changed = entry.subscribe();
        let mut place = None;
        let mut again = caller == Caller::Operator;
        loop {
            if let Some(call) = self.look(entry, caller, again)? {
                return Ok(call);
            }
            again = false;
            if place.is_none() {
                place = Some(entry.wait_in_line(longest_line, self.0.broker.clone())?);
            }
            // Without an error: the sender is in the entry.
            let _ = changed.changed().await;
        }
    }

    /// Takes hold of a model that is loaded; of another, sees to it that it will be.
    fn look(&self, entry: &Arc<Entry>, caller: Caller, again: bool) -> Result<Option<Call>, ModelsError> {
        let Inner { registry, broker } = &*self.0;
        if registry.is_stopping() {
            return Err(ModelsError::stopping());
        }
        match entry.find(caller, again)? {
            Found::Here(runtime) => return Ok(Some(Call::new(entry.clone(), runtime, broker.clone()))),
            Found::MustAsk => broker.iter().for_each(|broker| broker.tell(BrokerMsg::Load(entry.clone()))),
            Found::MustWait => {}
        }
        Ok(None)
    }
}

impl NamedModel {
    fn entry(self, keep_alive: Option<KeepAlive>) -> Entry {
        let mut entry = Entry::new(&self.id, self.factory);
        entry.change(|slot| slot.planned = self.planned);
        entry.aliases = self.aliases;
        entry.named = true;
        entry.kept = keep_alive.is_none();
        entry.keep_alive = keep_alive.and_then(KeepAlive::limit);
        entry
    }
}

/// What a server can do whose models named at the start are these.
fn readiness_of(named: &[ModelInfo]) -> Readiness {
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
