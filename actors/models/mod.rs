//! The models of a server: which exist, which are loaded, and how a call uses one.
//!
//! - [`Models`], below: the entry point. A call names a model and gets a [`ModelLease`], which keeps the model loaded until the
//!   response is complete. A model that is not loaded is loaded first.
//! - [`options`], [`registry`]: settings, and all models by name
//! - [`entry`], [`lease`]: one model with its changing state, and what calls hold of it
//! - [`broker`], [`messages`]: the actor that loads and unloads models within the memory limit
//! - [`memory_budget`]: decides which models fit, as a pure function
//! - [`source`]: plans and starts a model, and counts its engines
//! - [`directory`]: finds models in a directory
//! - [`changes`], [`pulls`], [`store`]: downloads models into that directory, and deletes them
//! - [`keep_alive`], [`info`], [`error`]: how long a model stays, descriptions and errors
//!
//! Each loaded model is a [`Runtime`] with its own pipelines. A fault in one model does not affect the others.

mod broker;
mod changes;
mod directory;
mod entry;
mod error;
mod info;
mod keep_alive;
mod lease;
mod memory_budget;
mod messages;
mod options;
mod pulls;
mod registry;
mod simulated;
mod source;
mod store;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::timeout;

pub use self::changes::DeleteError;
pub use self::directory::ModelsDirectory;
use self::entry::{Access, Caller, Entry};
pub use self::error::ModelsError;
use self::info::readiness_of;
pub use self::info::{MemoryUse, ModelInfo, ModelState, Readiness, memory_json};
pub use self::keep_alive::KeepAlive;
pub use self::lease::ModelLease;
use self::lease::WaitTicket;
pub use self::memory_budget::Machine;
use self::messages::{BrokerAddress, BrokerMsg};
pub use self::options::{ModelsOptions, NamedModel};
use self::registry::Registry;
pub use self::source::{ModelFactory, PlanError, PlannedModel};
pub use self::store::{ModelStore, PullProgress, PullState, PullStep, StoreError};
use crate::pipeline::runtime::{Runtime, StartError};

/// A cheap handle on the models of a server. The broker stops when the last handle is dropped.
#[derive(Clone)]
pub struct Models(Arc<Inner>);

struct Inner {
    registry: Arc<Registry>,
    /// `None` when no model is ever loaded or unloaded.
    broker: Option<BrokerAddress>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.registry.stop();
        if let Some(actor) = self.broker.as_ref().and_then(BrokerAddress::actor) {
            actor.stop(None);
        }
    }
}

impl Models {
    /// Starts the broker for the named models and those of a directory. No model is loaded yet.
    ///
    /// # Errors
    /// [`StartError`] when the broker cannot be started.
    pub async fn start(
        options: ModelsOptions,
        named: Vec<NamedModel>,
        directory: Option<ModelsDirectory>,
    ) -> Result<Models, StartError> {
        let entries = named.into_iter().map(|model| Arc::new(model.entry(options.keep_alive))).collect();
        let registry = Arc::new(Registry::new(entries, directory, options));
        registry.rescan();
        let broker = broker::start(registry.clone()).await?;
        Ok(Models(Arc::new(Inner { registry, broker: Some(broker) })))
    }

    /// A single model that runs already, for tests and for embedding.
    #[must_use]
    pub fn fixed(runtime: Runtime, id: &str, aliases: Vec<String>) -> Models {
        Self::running(runtime, id, aliases, ModelsOptions::default())
    }

    /// A single model that runs already and is meant by every name, other than those of its adapters.
    #[must_use]
    pub fn of_any_name(runtime: Runtime, id: &str) -> Models {
        Self::running(runtime, id, Vec::new(), ModelsOptions { any_name: true, ..ModelsOptions::default() })
    }

    fn running(runtime: Runtime, id: &str, aliases: Vec<String>, options: ModelsOptions) -> Models {
        let mut entry = Entry::running(id, runtime);
        entry.aliases = aliases;
        let registry = Registry::new(vec![Arc::new(entry)], None, options);
        Models(Arc::new(Inner { registry: Arc::new(registry), broker: None }))
    }

    /// Returns a lease on a model for a call, and loads the model first if necessary.
    ///
    /// No name, or `default`, means the first model named at startup, or the only model. With [`ModelsOptions::any_name`] an
    /// unknown name means it, too.
    ///
    /// # Errors
    /// [`ModelsError`] when the model does not exist, cannot be loaded, or is not loaded in time.
    pub async fn acquire(&self, name: Option<&str>) -> Result<ModelLease, ModelsError> {
        let found = match self.find(name).await {
            Err(ModelsError::Unknown(_)) if self.0.registry.options.any_name => self.find(None).await,
            found => found,
        };
        let entry = found?;
        self.wait_for_lease(&entry, Caller::Call { autoload: self.0.registry.options.autoload }).await
    }

    /// Loads a model and waits until it is ready. A model that failed recently is tried again.
    ///
    /// # Errors
    /// [`ModelsError`] when the model does not exist or cannot be loaded.
    pub async fn load(&self, name: &str) -> Result<(), ModelsError> {
        let entry = self.find(Some(name)).await?;
        self.wait_for_lease(&entry, Caller::Operator).await.map(drop)
    }

    /// Begins to load a model without waiting for it.
    ///
    /// # Errors
    /// [`ModelsError`] when no load is begun.
    pub async fn begin_load(&self, name: &str) -> Result<(), ModelsError> {
        let entry = self.find(Some(name)).await?;
        self.try_acquire(&entry, Caller::Operator, true).map(drop)
    }

    /// The models named at startup, in order.
    #[must_use]
    pub fn named(&self) -> Vec<String> {
        let entries = self.0.registry.entries();
        entries.iter().filter(|entry| entry.named).map(|entry| entry.id.to_string()).collect()
    }

    /// Waits until every model named at startup has failed and returns a reason. Never resolves when there are none.
    pub async fn all_failed(&self) -> String {
        let named: Vec<_> = self.0.registry.entries().into_iter().filter(|entry| entry.named).collect();
        loop {
            for entry in &named {
                entry.failed().await;
            }
            match self.readiness() {
                Readiness::Failed { reason, all: true } => return reason,
                _ if named.is_empty() => std::future::pending().await,
                // One of them is being loaded again.
                _ => {}
            }
        }
    }

    /// Unloads a model and waits until its memory is free. A load in progress is cancelled. Running calls have at most `drain` to
    /// finish. New calls load the model again.
    ///
    /// # Errors
    /// [`ModelsError::Unknown`] or [`ModelsError::Fixed`].
    pub async fn unload(&self, name: &str, drain: Duration) -> Result<(), ModelsError> {
        let entry = self.find(Some(name)).await?;
        let Some(broker) = &self.0.broker else { return Err(ModelsError::Fixed(entry.id.to_string())) };
        let (reply, unloaded) = oneshot::channel();
        broker.notify(BrokerMsg::Unload { entry, drain, reply });
        unloaded.await.unwrap_or_else(|_| {
            Err(ModelsError::unavailable("the model broker had to restart; try again".to_owned(), 1))
        })
    }

    /// Sets how long a model stays loaded without calls, until it is unloaded. Has no effect on a model that is unloaded only by
    /// request.
    ///
    /// # Errors
    /// [`ModelsError::Unknown`].
    pub async fn set_keep_alive(&self, name: &str, keep_alive: KeepAlive) -> Result<(), ModelsError> {
        self.find(Some(name)).await?.set_keep_alive(keep_alive);
        Ok(())
    }

    /// Accepts no more calls, lets running ones finish for at most `drain`, then stops the pipelines of all models.
    pub async fn shutdown(&self, drain: Duration) {
        let registry = &self.0.registry;
        registry.stop();
        let (reply, stopped) = oneshot::channel();
        match &self.0.broker {
            Some(broker) => {
                broker.notify(BrokerMsg::Shutdown { drain, reply });
                if stopped.await.is_err() {
                    // The broker is gone.
                    registry.shutdown_runtimes(drain).await;
                }
            }
            None => registry.shutdown_runtimes(drain).await,
        }
    }

    /// All models, those named at startup first.
    pub async fn list(&self) -> Vec<ModelInfo> {
        self.rescan().await;
        self.0.registry.entries().iter().map(|entry| entry.info()).collect()
    }

    /// Used and free memory.
    #[must_use]
    pub fn memory(&self) -> MemoryUse {
        self.0.registry.memory_use()
    }

    /// The description of a model.
    ///
    /// # Errors
    /// [`ModelsError::Unknown`], or [`ModelsError::Unnamed`] for the name `default` without a default model.
    pub async fn show(&self, name: &str) -> Result<ModelInfo, ModelsError> {
        Ok(self.find(Some(name)).await?.info())
    }

    /// The readiness of the whole server.
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

    /// The settings.
    #[must_use]
    pub fn options(&self) -> &ModelsOptions {
        &self.0.registry.options
    }

    /// The directory that is searched for models.
    #[must_use]
    pub fn directory(&self) -> Option<&ModelsDirectory> {
        self.0.registry.directory.as_ref()
    }

    async fn rescan(&self) {
        if self.0.registry.directory.is_some() {
            let registry = self.0.registry.clone();
            // After a panic the list stays unchanged.
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
        registry
            .entry(name)
            .or_else(|| registry.entry_of_reference(name))
            .ok_or_else(|| ModelsError::Unknown(name.to_owned()))
    }

    /// Waits for a lease: within the limits of a call, or without limit for an explicit load.
    async fn wait_for_lease(&self, entry: &Arc<Entry>, caller: Caller) -> Result<ModelLease, ModelsError> {
        let options = &self.0.registry.options;
        let (limit, max_waiting) = match caller {
            Caller::Call { .. } => (Some(options.load_timeout), options.max_waiting_calls),
            Caller::Operator => (None, usize::MAX),
        };
        let wait = self.wait_for_lease_unbounded(entry, caller, max_waiting);
        let Some(limit) = limit else { return wait.await };
        timeout(limit, wait).await.unwrap_or_else(|_| {
            let seconds = limit.as_secs_f32();
            let reason = format!("the model `{}` was not loaded within {seconds} seconds", entry.id);
            Err(ModelsError::unavailable(reason, 5))
        })
    }

    async fn wait_for_lease_unbounded(
        &self,
        entry: &Arc<Entry>,
        caller: Caller,
        max_waiting: usize,
    ) -> Result<ModelLease, ModelsError> {
        // Subscribed before the first attempt, so that no change is missed.
        let mut changed = entry.subscribe();
        let mut ticket = None;
        let mut retry = caller == Caller::Operator;
        loop {
            match self.try_acquire(entry, caller, retry)? {
                Attempt::Lease(lease) => return Ok(lease),
                Attempt::Loading => retry = false,
                // Why it is unloaded does not concern a request to load it afterwards.
                Attempt::Unloading => {}
            }
            if ticket.is_none() {
                ticket = Some(WaitTicket::take(entry, max_waiting, self.0.broker.clone())?);
            }
            // Cannot fail, because the sender is in the entry.
            let _ = changed.changed().await;
        }
    }

    /// Returns a lease on a loaded model. Requests the load of a model that is not loaded.
    fn try_acquire(&self, entry: &Arc<Entry>, caller: Caller, retry: bool) -> Result<Attempt, ModelsError> {
        let Inner { registry, broker } = &*self.0;
        if registry.is_stopping() {
            return Err(ModelsError::stopping());
        }
        match entry.access(caller, retry)? {
            Access::Loaded(runtime) => {
                return Ok(Attempt::Lease(ModelLease::new(entry.clone(), runtime, broker.clone())));
            }
            Access::MustLoad => broker.iter().for_each(|broker| broker.notify(BrokerMsg::Load(entry.clone()))),
            Access::MustWait => {}
            Access::Leaving => return Ok(Attempt::Unloading),
        }
        Ok(Attempt::Loading)
    }
}

/// The result of an attempt to get a lease.
enum Attempt {
    Lease(ModelLease),
    /// The model is being loaded.
    Loading,
    /// The model is being unloaded.
    Unloading,
}
