//! The state that all handlers share, and the model that a request is served by.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use super::openai::responses::store::ResponseStore;
use super::options::{LiveOptions, ServerOptions};
use super::request_memory::RequestMemory;
use crate::models::Models;
use crate::serving::accept::ServingLimits;
use crate::serving::error::ApiError;
use crate::serving::served::Served;

/// The state that all handlers share.
pub(super) struct Server {
    pub models: Models,
    options: LiveOptions,
    pub request_memory: Arc<RequestMemory>,
    pub responses: Arc<ResponseStore>,
    /// Start of the server, in seconds of Unix time.
    pub started: u64,
}

pub(super) type SharedServer = Arc<Server>;

impl Server {
    pub fn new(models: Models, options: LiveOptions) -> Self {
        let request_memory = RequestMemory::new(options.get().request_memory_bytes);
        let responses = ResponseStore::new(options.get().response_store_bytes);
        Server { started: unix_seconds(), models, options, request_memory, responses }
    }

    /// The options that apply to a new request.
    pub fn options(&self) -> Arc<ServerOptions> {
        self.options.get()
    }

    /// The limits that apply to a new request.
    pub fn limits(&self) -> ServingLimits {
        let options = self.options();
        ServingLimits {
            highest_priority: options.highest_priority,
            request_timeout: options.request_timeout,
            media: options.media.clone(),
        }
    }

    /// Leases the model that a request names. Waits while the model is being loaded.
    pub async fn served(&self, name: Option<&str>) -> Result<Served, ApiError> {
        Served::lease(&self.models, name).await
    }
}

/// The current time in seconds of Unix time; 0 when the clock is before 1970.
pub(super) fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_secs())
}
