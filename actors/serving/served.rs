//! The model that serves a request.

use std::sync::Arc;
use std::time::Duration;

use cuelight_engine::engine::AdapterUse;

use super::error::ApiError;
use crate::core::request::SubmitError;
use crate::models::{ModelLease, Models, ModelsError};
use crate::pipeline::runtime::{Runtime, ServedModel};

/// The model that serves a request. It stays loaded while any clone of this exists.
#[derive(Clone)]
pub(crate) struct Served {
    /// The name that responses carry.
    pub id: String,
    pub runtime: Runtime,
    /// The adapter that the request names as its model.
    pub adapter: Option<AdapterUse>,
    _lease: Arc<ModelLease>,
}

impl Served {
    /// Leases the model that a request names. Waits while the model is being loaded.
    ///
    /// # Errors
    /// [`ApiError::Model`] when the model does not exist or cannot be used.
    pub async fn lease(models: &Models, name: Option<&str>) -> Result<Self, ApiError> {
        let lease = models.acquire(name).await?;
        let (runtime, lease) = (lease.runtime().clone(), Arc::new(lease));
        let Some(name) = name.filter(|name| lease.is_adapter_name(name)) else {
            return Ok(Served { id: lease.id().to_owned(), runtime, adapter: None, _lease: lease });
        };
        let adapters = runtime.model().and_then(|model| model.adapters.clone());
        let adapter = adapters.and_then(|adapters| adapters.find(name));
        let adapter = adapter.ok_or_else(|| ModelsError::Unknown(name.to_owned()))?;
        Ok(Served { id: name.to_owned(), runtime, adapter: Some(adapter), _lease: lease })
    }

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
