//! Who may come in: a permit for every request, and when to come again for those that get none.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::request::SubmitError;

/// Room for some requests, taken before the call's body is tokenised. It is given back when the permit and all
/// generations submitted with it are dropped.
pub struct Permit(pub(super) Arc<Room>);

/// Requests counted as in the house until dropped.
pub(super) struct Room {
    admission: Arc<Admission>,
    requests: usize,
}

impl Drop for Room {
    fn drop(&mut self) {
        self.admission.give_back(self.requests);
    }
}

/// Bounds the requests in the house, and measures how fast they leave.
pub(super) struct Admission {
    limit: usize,
    inside: AtomicUsize,
    /// When the last few requests left, oldest first.
    departures: Mutex<VecDeque<Instant>>,
}

impl Admission {
    /// Departures that the drain rate is measured over.
    const DEPARTURES: usize = 32;

    /// At most `limit` requests at once.
    pub fn new(limit: usize) -> Self {
        Admission { limit, inside: AtomicUsize::new(0), departures: Mutex::new(VecDeque::new()) }
    }

    pub fn take(admission: &Arc<Self>, requests: usize) -> Result<Permit, SubmitError> {
        let most = admission.limit;
        if requests > most {
            return Err(SubmitError::TooManySequences { asked: requests, most });
        }
        let fits = |inside: usize| inside.checked_add(requests).filter(|&inside| inside <= admission.limit);
        match admission.inside.fetch_update(Ordering::AcqRel, Ordering::Acquire, fits) {
            Ok(_) => Ok(Permit(Arc::new(Room { admission: admission.clone(), requests }))),
            Err(waiting) => Err(SubmitError::Overloaded { waiting, retry_after: admission.retry_after(requests) }),
        }
    }

    fn give_back(&self, requests: usize) {
        self.inside.fetch_sub(requests, Ordering::AcqRel);
        let now = Instant::now();
        let mut departures = self.departures.lock().unwrap_or_else(PoisonError::into_inner);
        for _ in 0..requests.min(Self::DEPARTURES) {
            departures.push_back(now);
        }
        let excess = departures.len().saturating_sub(Self::DEPARTURES);
        departures.drain(..excess);
    }

    /// When `requests` more will have left, at the rate of the last departures.
    fn retry_after(&self, requests: usize) -> Duration {
        let departures = self.departures.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(&first) = departures.front() else { return Duration::from_secs(1) };
        let each = first.elapsed() / u32::try_from(departures.len()).unwrap_or(1);
        let all = each.saturating_mul(u32::try_from(requests).unwrap_or(u32::MAX));
        all.clamp(Duration::from_millis(100), Duration::from_secs(60))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_drain_rate_decides_when_to_come_again() {
        let admission = Arc::new(Admission::new(1));
        for _ in 0..10 {
            let permit = Admission::take(&admission, 1).unwrap();
            tokio::time::sleep(Duration::from_secs(3)).await;
            drop(permit);
        }
        let _permit = Admission::take(&admission, 1).unwrap();
        let Err(SubmitError::Overloaded { waiting, retry_after }) = Admission::take(&admission, 1) else { panic!() };
        assert_eq!(waiting, 1);
        assert!((Duration::from_secs(2)..Duration::from_secs(4)).contains(&retry_after), "{retry_after:?}");
    }
}
