//! The state that all handlers share, and the model that a request is served by.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::error::ApiError;
use super::options::{LiveOptions, ServerOptions};
use super::request_memory::RequestMemory;
use crate::core::request::SubmitError;
use crate::models::{ModelLease, Models};
use crate::pipeline::runtime::{Runtime, ServedModel};

/// The state that all handlers share.
pub(super) struct Server {
    pub models: Models,
    options: LiveOptions,
    pub request_memory: Arc<RequestMemory>,
    /// Start of the server, in seconds of Unix time.
    pub started: u64,
}

pub(super) type SharedServer = Arc<Server>;

impl Server {
    pub fn new(models: Models, options: LiveOptions) -> Self {
        let request_memory = RequestMemory::new(options.get().request_memory_bytes);
        Server { started: unix_seconds(), models, options, request_memory }
    }

    /// The options that apply to a new request.
    pub fn options(&self) -> Arc<ServerOptions> {
        self.options.get()
    }

    /// Leases the model that a request names. Waits while the model is being loaded.
    pub async fn served(&self, name: Option<&str>) -> Result<Served, ApiError> {
        let lease = self.models.acquire(name).await?;
        Ok(Served { id: lease.id().to_owned(), runtime: lease.runtime().clone(), _lease: Arc::new(lease) })
    }
}

/// The model that serves a request. It stays loaded while any clone of this exists.
#[derive(Clone)]
pub(super) struct Served {
    /// The name that responses carry.
    pub id: String,
    pub runtime: Runtime,
    _lease: Arc<ModelLease>,
}

impl Served {
    /// The loaded model.
    ///
    /// # Errors
    /// [`SubmitError::Unavailable`] while it is being loaded.
    pub fn model(&self) -> Result<Arc<ServedModel>, ApiError> {
        self.runtime.model().ok_or_else(|| {
            let reason = "the model is still loading".to_owned();
            SubmitError::Unavailable { reason, retry_after: Duration::from_secs(1) }.into()
        })
    }

    /// Counts a refusal that was decided before the runtime saw the request.
    ///
    /// # Errors
    /// The given error.
    pub fn counted<T>(&self, checked: Result<T, SubmitError>) -> Result<T, ApiError> {
        Ok(checked.inspect_err(|error| self.runtime.count_rejection(error))?)
    }
}

/// The current time in seconds of Unix time; 0 when the clock is before 1970.
pub(super) fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_secs())
}
