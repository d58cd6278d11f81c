//! The models of a server: which there are, which are loaded, and how a call gets hold of one.
//!
//! - [`Models`], below: the front door. A call asks for a model by name and gets a [`Call`], which holds the model until
//!   the response is over; a model that is not loaded is loaded first.
//! - [`options`], [`registry`]: how models are kept, and which are known
//! - [`entry`]: one model, and everything about it that changes
//! - [`broker`]: the actor that loads and unloads, one at a time, never beyond the memory there is
//! - [`room`]: what fits beside what, as pure decisions
//! - [`source`]: where a model comes from, and the proof that its memory is free again
//! - [`directory`]: models found as files
//! - [`info`]: what is told about them
//!
//! Each loaded model is a [`Runtime`]: a cast of its own, whose faults the others never hear of.

mod broker;
mod directory;
mod entry;
mod info;
mod options;
mod registry;
mod room;
mod source;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::timeout;

use self::broker::{Broker, BrokerMsg};
pub use self::directory::ModelsDirectory;
pub use self::entry::Call;
use self::entry::{Caller, Entry, Found};
use self::info::readiness_of;
pub use self::info::{MemoryRoom, ModelInfo, ModelState, Readiness};
pub use self::options::{KeepAlive, ModelsOptions, NamedModel};
use self::registry::Registry;
pub use self::room::Machine;
pub use self::source::{ModelFactory, PlanError, PlannedModel};
use crate::runtime::{Runtime, StartError};

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
        let registry = Arc::new(Registry::new(entries, directory, options));
        registry.rescan();
        let broker = Broker::start(registry.clone()).await?;
        Ok(Models(Arc::new(Inner { registry, broker: Some(broker) })))
    }

    /// One model that runs already, for tests and for embedding.
    #[must_use]
    pub fn fixed(runtime: Runtime, id: &str, aliases: Vec<String>) -> Models {
        let mut entry = Entry::running(id, runtime);
        entry.aliases = aliases;
        let registry = Registry::new(vec![Arc::new(entry)], None, ModelsOptions::default());
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
