//! The state that all handlers share, and the model that a request is served by.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use super::batch_worker::PRIORITY;
use super::openai::responses::store::ResponseStore;
use super::options::{LiveOptions, ServerOptions};
use super::request_memory::RequestMemory;
use crate::models::Models;
use crate::serving::accept::ServingLimits;
use crate::serving::batch::store::BatchStore;
use crate::serving::batch::store::error::BatchStoreError;
use crate::serving::error::ApiError;
use crate::serving::served::Served;

/// The state that all handlers share.
pub(super) struct Server {
    pub models: Models,
    options: LiveOptions,
    pub request_memory: Arc<RequestMemory>,
    pub responses: Arc<ResponseStore>,
    /// Its requests are those of batches.
    is_for_batches: bool,
    /// Start of the server, in seconds of Unix time.
    pub started: u64,
}

pub(super) type SharedServer = Arc<Server>;

impl Server {
    pub fn new(models: Models, options: LiveOptions) -> Self {
        let request_memory = RequestMemory::new(options.get().request_memory_bytes);
        let responses = ResponseStore::new(options.get().response_store_bytes);
        Server { started: unix_seconds(), models, options, request_memory, responses, is_for_batches: false }
    }

    /// The same server for the requests of batches.
    pub fn for_batches(&self) -> Self {
        Server {
            models: self.models.clone(),
            options: self.options.clone(),
            request_memory: self.request_memory.clone(),
            responses: self.responses.clone(),
            is_for_batches: true,
            started: self.started,
        }
    }

    /// The files and batches of clients.
    ///
    /// # Errors
    /// [`BatchStoreError::Off`] when the server keeps none.
    pub fn batches(&self) -> Result<Arc<BatchStore>, ApiError> {
        Ok(self.options().batches.as_ref().ok_or(BatchStoreError::Off)?.store.clone())
    }

    /// The options that apply to a new request.
    pub fn options(&self) -> Arc<ServerOptions> {
        self.options.get()
    }

    /// The limits that apply to a new request. Those of batches run after the others, so their time says nothing about them.
    pub fn limits(&self) -> ServingLimits {
        let options = self.options();
        let priority = if self.is_for_batches { PRIORITY } else { i32::MIN };
        ServingLimits {
            highest_priority: options.highest_priority.max(priority),
            request_timeout: options.request_timeout.filter(|_| !self.is_for_batches),
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
