//! The Loader actor loads the model, at startup and again after the executor was lost.
//!
//! Receives `Load` from the supervisor. Sends `LoadProgress` and `Loaded` to the supervisor.
//!
//! Loading blocks, so it runs on its own thread. When the loader stops, its load is cancelled and ends soon.
//!
//! Faults: an error or a panic during a load is sent as `Loaded(Err(..))`. The supervisor decides what follows.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;

use cuelight_engine::heap::release_freed;
use cuelight_engine::load::LoadCancel;
use ractor::{Actor, ActorProcessingErr, ActorRef};

use super::messages::{LoaderMsg, SupervisorMsg};
use super::model_source::EngineHost;
pub use super::model_source::{ModelSource, SourceError};
use crate::core::panic_message::panic_message;

/// Startup arguments of the loader.
pub struct LoaderArguments<S: ModelSource> {
    /// Loads the model.
    pub source: Arc<S>,
    /// Receives progress and the loaded model.
    pub supervisor: ActorRef<SupervisorMsg<S::Engine>>,
}

/// The state of the loader. Dropping it cancels the load in progress.
pub struct LoaderState<S: ModelSource> {
    source: Arc<S>,
    supervisor: ActorRef<SupervisorMsg<S::Engine>>,
    cancel: LoadCancel,
}

impl<S: ModelSource> Drop for LoaderState<S> {
    fn drop(&mut self) {
        self.cancel.cancel();
    }
}

/// The loader actor.
pub struct Loader<S>(std::marker::PhantomData<fn(S)>);

impl<S> Default for Loader<S> {
    fn default() -> Self {
        Loader(std::marker::PhantomData)
    }
}

impl<S: ModelSource> Actor for Loader<S> {
    type Msg = LoaderMsg;
    type State = LoaderState<S>;
    type Arguments = LoaderArguments<S>;

    async fn pre_start(
        &self,
        _me: ActorRef<LoaderMsg>,
        LoaderArguments { source, supervisor }: LoaderArguments<S>,
    ) -> Result<LoaderState<S>, ActorProcessingErr> {
        Ok(LoaderState { source, supervisor, cancel: LoadCancel::default() })
    }

    async fn handle(
        &self,
        _me: ActorRef<LoaderMsg>,
        message: LoaderMsg,
        state: &mut LoaderState<S>,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            LoaderMsg::Load => state.load()?,
        }
        Ok(())
    }
}

impl<S: ModelSource> LoaderState<S> {
    fn load(&self) -> Result<(), ActorProcessingErr> {
        #[cfg(debug_assertions)]
        super::faults::Fault::Loader.panic_if_armed();
        let (source, supervisor, cancel) = (self.source.clone(), self.supervisor.clone(), self.cancel.clone());
        let host = source.host();
        let load = move || {
            let mut progress = |progress| {
                let _ = supervisor.cast(SupervisorMsg::LoadProgress(progress));
            };
            let result = catch_unwind(AssertUnwindSafe(|| source.load(&cancel, &mut progress)));
            let result = result.unwrap_or_else(|panic| {
                Err(format!("loading the model panicked: {}", panic_message(panic.as_ref())).into())
            });
            // The supervisor may have stopped. Then nothing waits for the model.
            let _ = supervisor.cast(SupervisorMsg::Loaded(result.map(Box::new)));
        };
        match host {
            EngineHost::Thread => drop(thread::Builder::new().name("cuelight-loader".into()).spawn(move || {
                load();
                // The allocator would keep the memory of what a load needs for a moment.
                release_freed();
            })?),
            EngineHost::VirtualTime => load(),
        }
        Ok(())
    }
}
