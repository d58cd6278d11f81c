//! The front door to the cast: start it, submit to it, watch it, stop it (contract; being built).
use std::sync::Arc;
use std::time::Duration;

use cuelight_engine::engine::EngineLimits;
use cuelight_engine::format::chat_template::ChatTemplate;
use cuelight_engine::format::tokenizer::Tokenizer;
use cuelight_engine::load::{LoadProgress, MemoryPlan, ModelCard};

use crate::request::{Event, GenerationRequest, RequestId, SubmitError};

/// A model the cast serves.
#[allow(missing_docs)]
pub struct Model {
    pub card: ModelCard,
    pub memory: MemoryPlan,
    pub limits: EngineLimits,
    pub tokenizer: Arc<Tokenizer>,
    pub chat_template: Option<Arc<ChatTemplate>>,
}

/// What the runtime is doing.
#[allow(missing_docs)]
#[derive(Debug, Clone, PartialEq)]
pub enum Status {
    Loading(LoadProgress),
    Ready,
    /// The executor is being rebuilt; requests wait.
    Recovering,
    Draining,
    Failed(String),
}

/// A cheap handle on the running cast.
#[derive(Clone)]
pub struct Runtime;

/// Room for one request, taken before its body is tokenised and given back when dropped.
pub struct Permit;

/// A generation's events; dropping it cancels the request.
pub struct Generation {
    /// The request.
    pub id: RequestId,
}

#[allow(missing_docs, clippy::unimplemented, unused_variables)]
impl Generation {
    /// The next event; `None` after the last.
    pub async fn next(&mut self) -> Option<Event> {
        unimplemented!()
    }
}

#[allow(missing_docs, clippy::unimplemented, unused_variables)]
impl Runtime {
    pub fn status(&self) -> Status {
        unimplemented!()
    }
    /// Resolves whenever the status changes.
    pub async fn status_changed(&mut self) -> Status {
        unimplemented!()
    }
    /// The model, once loaded.
    pub fn model(&self) -> Option<Arc<Model>> {
        unimplemented!()
    }
    /// One permit per sequence the call will submit.
    pub fn try_permit(&self, sequences: usize) -> Result<Permit, SubmitError> {
        unimplemented!()
    }
    pub async fn submit(&self, permit: &Permit, request: GenerationRequest) -> Result<Generation, SubmitError> {
        unimplemented!()
    }
    /// Stops taking requests, lets running ones finish for up to `drain`, then stops the cast.
    pub async fn shutdown(&self, drain: Duration) {
        unimplemented!()
    }
}
