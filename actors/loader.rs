//! The Loader builds models: once at start, and again whenever an executor is lost.
//!
//! Hears from: the supervisor (`Load`). Says: `LoadProgress` and `Loaded` to the supervisor.
//!
//! Loading blocks, so it has a thread of its own.
//!
//! Failure: an error or a panic while loading is an answer, `Loaded(Err(..))`; the supervisor decides what follows.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;

use cuelight_engine::engine::Engine;
use cuelight_engine::load::{LoadProgress, LoadedModel};
use ractor::{Actor, ActorProcessingErr, ActorRef};

use crate::executor::{EngineHost, panic_message};
use crate::supervisor::SupervisorMsg;

/// Where models come from. Loading twice must give the same model: a lost executor's sequences go on with the second.
pub trait ModelSource: Send + Sync + 'static {
    /// Computes the model.
    type Engine: Engine;

    /// Loads the model. Blocks; `progress` may be called as often as there is news.
    ///
    /// # Errors
    /// One sentence that says what is wrong with which file and what would help.
    fn load(&self, progress: &mut dyn FnMut(LoadProgress)) -> Result<LoadedModel<Self::Engine>, String>;

    /// Where the engine runs.
    fn host(&self) -> EngineHost {
        EngineHost::Thread
    }
}

/// What the loader hears.
pub enum LoaderMsg {
    /// Load the model.
    Load,
}

/// What a loader needs to start.
pub struct LoaderArguments<S: ModelSource> {
    /// Where the model comes from.
    pub source: Arc<S>,
    /// Who waits for it.
    pub supervisor: ActorRef<SupervisorMsg<S::Engine>>,
}

/// The actor; everything it knows is in its arguments.
pub struct Loader<S>(std::marker::PhantomData<fn(S)>);

impl<S> Default for Loader<S> {
    fn default() -> Self {
        Loader(std::marker::PhantomData)
    }
}

impl<S: ModelSource> Actor for Loader<S> {
    type Msg = LoaderMsg;
    type State = LoaderArguments<S>;
    type Arguments = LoaderArguments<S>;

    async fn pre_start(
        &self,
        _me: ActorRef<LoaderMsg>,
        arguments: LoaderArguments<S>,
    ) -> Result<LoaderArguments<S>, ActorProcessingErr> {
        Ok(arguments)
    }

    async fn handle(
        &self,
        _me: ActorRef<LoaderMsg>,
        message: LoaderMsg,
        state: &mut LoaderArguments<S>,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            LoaderMsg::Load => state.load()?,
        }
        Ok(())
    }
}

impl<S: ModelSource> LoaderArguments<S> {
    fn load(&self) -> Result<(), ActorProcessingErr> {
        let (source, supervisor) = (self.source.clone(), self.supervisor.clone());
        let host = source.host();
        let load = move || {
            let mut progress = |progress| {
                let _ = supervisor.cast(SupervisorMsg::LoadProgress(progress));
            };
            let result = catch_unwind(AssertUnwindSafe(|| source.load(&mut progress)));
            let result = result
                .unwrap_or_else(|panic| Err(format!("loading the model panicked: {}", panic_message(panic.as_ref()))));
            // A supervisor that is gone does not wait for a model.
            let _ = supervisor.cast(SupervisorMsg::Loaded(result.map(Box::new)));
        };
        match host {
            EngineHost::Thread => drop(thread::Builder::new().name("cuelight-loader".into()).spawn(load)?),
            EngineHost::VirtualTime => load(),
        }
        Ok(())
    }
}
