//! Whether the hub answers.

use std::time::{Duration, Instant};

use super::demo;
use super::download::block_on;
use super::error::HubError;
use super::sources::Hub;

impl Hub {
    /// Asks the hub about the demo's repository, and returns the time to its answer. A hub that does not know the
    /// repository answers too; one that fails, or a proxy that wants a password, does not.
    ///
    /// # Errors
    /// [`HubError::Timeout`] or [`HubError::Request`].
    pub fn probe(&self, timeout: Duration) -> Result<Duration, HubError> {
        let started = Instant::now();
        let request = async {
            let response = self.api()?.model(demo::REPOSITORY.to_owned()).info_request().send().await?;
            let status = response.status();
            if status.is_server_error() || status.as_u16() == 407 { response.error_for_status() } else { Ok(response) }
                .map_err(hf_hub::api::tokio::ApiError::from)
        };
        let timed = async { tokio::time::timeout(timeout, request).await };
        match block_on(timed)? {
            Err(_) => Err(HubError::Timeout { hub: self.name(), seconds: timeout.as_secs() }),
            Ok(Err(error)) => {
                Err(HubError::Request { hub: self.name(), what: "an answer".to_owned(), source: Box::new(error) })
            }
            Ok(Ok(_)) => Ok(started.elapsed()),
        }
    }
}
