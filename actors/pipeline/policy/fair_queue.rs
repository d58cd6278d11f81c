//! Start-time fair queueing over clients. A priority is a head start.
//!
//! Each request costs tokens. The requests of one client follow each other in virtual time, each at a distance equal to
//! the cost of the one before. A client that was idle starts at the current virtual time. A client with a thousand
//! queued requests therefore delays the first request of another client by one request and not by a thousand. Every
//! request is served eventually, because virtual time advances with everything that is admitted. (Goyal, Vin and Cheng,
//! "Start-time Fair Queueing", 1996; for language models compare Sheng et al., "Fairness in Serving Large Language
//! Models", 2024.)

use std::collections::HashMap;
use std::sync::Arc;

/// Tokens of head start per level of priority. Large compared with what usually waits, so that priorities are strict in
/// practice. Finite, so that no request waits forever.
const TOKENS_PER_PRIORITY: i64 = 1 << 18;

/// Number of tracked clients above which idle clients are removed.
const MAX_CLIENTS: usize = 1024;

/// Virtual time, in tokens.
#[derive(Debug, Default)]
pub(super) struct FairQueue {
    now: i64,
    /// The virtual start of each client's next request. A value before `now` has no effect.
    next: HashMap<Option<Arc<str>>, i64>,
}

impl FairQueue {
    /// The virtual start of a client's next request, which costs `tokens`. Requests with a lower start run first.
    pub fn enqueue(&mut self, client: Option<Arc<str>>, tokens: usize, priority: i32) -> i64 {
        if self.next.len() >= MAX_CLIENTS {
            let now = self.now;
            self.next.retain(|_, next| *next > now);
        }
        let next = self.next.entry(client).or_insert(self.now);
        let start = self.now.max(*next);
        *next = start.saturating_add(i64::try_from(tokens).unwrap_or(i64::MAX));
        start.saturating_add(i64::from(priority) * TOKENS_PER_PRIORITY)
    }

    /// Advances virtual time to the start of an admitted request.
    pub fn admitted(&mut self, virtual_start: i64, priority: i32) {
        self.now = self.now.max(virtual_start.saturating_sub(i64::from(priority) * TOKENS_PER_PRIORITY));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(name: &str) -> Option<Arc<str>> {
        Some(name.into())
    }

    #[test]
    fn one_client_is_served_in_order() {
        let mut queue = FairQueue::default();
        let starts: Vec<_> = (0..5).map(|_| queue.enqueue(None, 100, 0)).collect();
        assert_eq!(starts, [0, 100, 200, 300, 400]);
    }

    #[test]
    fn a_new_client_waits_for_one_request_of_a_busy_client_and_not_for_all() {
        let mut queue = FairQueue::default();
        let crowd: Vec<_> = (0..1000).map(|_| queue.enqueue(client("crowd"), 100, 0)).collect();
        for &start in &crowd[..10] {
            queue.admitted(start, 0);
        }
        let newcomer = queue.enqueue(client("newcomer"), 100, 0);
        assert_eq!(crowd.iter().filter(|&&start| start < newcomer).count(), 9);
    }

    #[test]
    fn an_idle_client_gains_no_credit() {
        let mut queue = FairQueue::default();
        let first = queue.enqueue(client("a"), 10, 0);
        for _ in 0..100 {
            let start = queue.enqueue(client("b"), 1000, 0);
            queue.admitted(start, 0);
        }
        let second = queue.enqueue(client("a"), 10, 0);
        assert_eq!((first, second), (0, 99_000));
    }

    #[test]
    fn a_priority_is_a_finite_head_start() {
        let mut queue = FairQueue::default();
        let patient = queue.enqueue(client("patient"), 10, 1);
        let mut overtaken = 0;
        loop {
            let start = queue.enqueue(client("urgent"), 1000, 0);
            if start > patient {
                break;
            }
            overtaken += 1;
            queue.admitted(start, 0);
        }
        assert_eq!(overtaken, TOKENS_PER_PRIORITY / 1000 + 1);
    }
}
