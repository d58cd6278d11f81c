//! Limits the requests in flight, shares them out between clients, and estimates when a refused request can be retried.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::core::request::SubmitError;
use crate::core::shared_limit::{Client, SharedLimit};

/// Admission of the requests of one call, taken before the call's body is tokenized.
///
/// The slots are released when the permit and all generations submitted with it are dropped.
pub struct Permit(pub(super) Arc<AdmissionSlots>);

/// Slots of requests in flight, until dropped.
pub(super) struct AdmissionSlots {
    control: Arc<AdmissionControl>,
    client: Client,
    requests: usize,
}

impl Drop for AdmissionSlots {
    fn drop(&mut self) {
        self.control.release(&self.client, self.requests);
    }
}

/// Limits the number of requests in flight and measures the rate at which they end.
pub(super) struct AdmissionControl {
    limit: usize,
    in_flight: Mutex<SharedLimit>,
    /// When the latest requests ended, oldest first.
    ends: Mutex<VecDeque<Instant>>,
}

impl AdmissionControl {
    /// Number of ended requests that the rate is measured over.
    const MEASURED_ENDS: usize = 32;

    /// At most `limit` requests in flight.
    pub fn new(limit: usize) -> Self {
        AdmissionControl { limit, in_flight: Mutex::new(SharedLimit::new(limit)), ends: Mutex::new(VecDeque::new()) }
    }

    /// Takes slots for `requests` requests of a client.
    ///
    /// # Errors
    /// [`SubmitError::TooManySequences`] when there are never as many slots, [`SubmitError::Overloaded`] when they are not
    /// free or are other clients' share.
    pub fn acquire(control: &Arc<Self>, client: Client, requests: usize) -> Result<Permit, SubmitError> {
        let most = control.limit;
        if requests > most {
            return Err(SubmitError::TooManySequences { asked: requests, most });
        }
        let mut in_flight = control.in_flight();
        if in_flight.admits(&client, requests) {
            in_flight.take(&client, requests);
            drop(in_flight);
            return Ok(Permit(Arc::new(AdmissionSlots { control: control.clone(), client, requests })));
        }
        Err(SubmitError::Overloaded { waiting: in_flight.used(), retry_after: control.retry_after(requests) })
    }

    fn in_flight(&self) -> MutexGuard<'_, SharedLimit> {
        self.in_flight.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn release(&self, client: &Client, requests: usize) {
        self.in_flight().give_back(client, requests);
        let now = Instant::now();
        let mut ends = self.ends.lock().unwrap_or_else(PoisonError::into_inner);
        for _ in 0..requests.min(Self::MEASURED_ENDS) {
            ends.push_back(now);
        }
        let excess = ends.len().saturating_sub(Self::MEASURED_ENDS);
        ends.drain(..excess);
    }

    /// Estimated time until `requests` more requests have ended, at the rate of the latest ones.
    fn retry_after(&self, requests: usize) -> Duration {
        let ends = self.ends.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(&first) = ends.front() else { return Duration::from_secs(1) };
        let each = first.elapsed() / u32::try_from(ends.len()).unwrap_or(1);
        let all = each.saturating_mul(u32::try_from(requests).unwrap_or(u32::MAX));
        all.clamp(Duration::from_millis(100), Duration::from_secs(60))
    }
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn retry_after_follows_the_rate_at_which_requests_end() {
        let control = Arc::new(AdmissionControl::new(1));
        for _ in 0..10 {
            let permit = AdmissionControl::acquire(&control, None, 1).unwrap();
            tokio::time::sleep(Duration::from_secs(3)).await;
            drop(permit);
        }
        let _permit = AdmissionControl::acquire(&control, None, 1).unwrap();
        let Err(SubmitError::Overloaded { waiting, retry_after }) = AdmissionControl::acquire(&control, None, 1) else {
            panic!()
        };
        assert_eq!(waiting, 1);
        assert!((Duration::from_secs(2)..Duration::from_secs(4)).contains(&retry_after), "{retry_after:?}");
    }
}
