//! Weighted fair queueing over clients. A priority is a head start.
//!
//! Each request costs tokens. The requests of one client follow each other in virtual time: each starts where the one before
//! finishes, and finishes after as many tokens as it costs. Requests run in the order in which they finish. A client that was idle
//! starts at the current virtual time. So a client with a thousand queued requests delays the first request of another client only
//! by those of its requests that finish earlier, and not by all of them. Virtual time advances as it would if all clients had an
//! equal share of each step, so that no request waits forever. (Demers, Keshav and Shenker, "Analysis and Simulation of a Fair
//! Queueing Algorithm", 1989; for language models compare Sheng et al., "Fairness in Serving Large Language Models", 2024.)

use std::collections::HashMap;

use crate::core::shared_limit::Client;

/// Tokens of head start per level of priority. Large compared with what usually waits, so that priorities are strict in
/// practice. Finite, so that no request waits forever.
const TOKENS_PER_PRIORITY: i64 = 1 << 18;

/// Number of tracked clients above which idle clients are removed.
const MAX_CLIENTS: usize = 1024;

/// What a request occupies of its client's virtual time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct VirtualSpan {
    /// Where it starts, without the head start of its priority.
    pub start: i64,
    /// Where it finishes. Requests that finish earlier run first.
    pub finish: i64,
}

/// A client's place in virtual time.
#[derive(Debug, Default)]
struct ClientQueue {
    /// The virtual start of its next request. A value before the current time has no effect.
    next: i64,
    /// Number of its requests that have not ended.
    requests: usize,
}

/// Virtual time, in tokens.
#[derive(Debug, Default)]
pub(super) struct FairQueue {
    now: i64,
    clients: HashMap<Client, ClientQueue>,
    /// Number of clients with requests.
    active: usize,
    /// Computed rows that virtual time has not advanced by yet.
    rest: usize,
}

impl FairQueue {
    /// Adds a request of a client, which costs `tokens`.
    pub fn enqueue(&mut self, client: Client, tokens: usize, priority: i32) -> VirtualSpan {
        if self.clients.len() >= MAX_CLIENTS {
            let now = self.now;
            self.clients.retain(|_, client| client.requests > 0 || client.next > now);
        }
        let client = self.clients.entry(client).or_default();
        self.active += usize::from(client.requests == 0);
        client.requests += 1;
        let start = self.now.max(client.next);
        client.next = start.saturating_add(i64::try_from(tokens).unwrap_or(i64::MAX));
        let head_start = i64::from(priority) * TOKENS_PER_PRIORITY;
        VirtualSpan { start, finish: client.next.saturating_add(head_start) }
    }

    /// Notes that a request of a client has ended.
    pub fn ended(&mut self, client: &Client) {
        let Some(client) = self.clients.get_mut(client) else { return };
        client.requests = client.requests.saturating_sub(1);
        self.active -= usize::from(client.requests == 0);
    }

    /// Number of clients whose requests have not all ended.
    pub fn active_clients(&self) -> usize {
        self.active
    }

    /// Advances virtual time to the start of an admitted request.
    pub fn admitted(&mut self, request: VirtualSpan) {
        self.now = self.now.max(request.start);
    }

    /// Advances virtual time by a step of `rows` rows.
    pub fn computed(&mut self, rows: usize) {
        let (rows, clients) = (self.rest + rows, self.active.max(1));
        self.now = self.now.saturating_add(i64::try_from(rows / clients).unwrap_or(i64::MAX));
        self.rest = rows % clients;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(name: &str) -> Client {
        Some(name.into())
    }

    #[test]
    fn one_client_is_served_in_order() {
        let mut queue = FairQueue::default();
        let finishes: Vec<_> = (0..5).map(|_| queue.enqueue(None, 100, 0).finish).collect();
        assert_eq!(finishes, [100, 200, 300, 400, 500]);
    }

    #[test]
    fn a_new_client_waits_for_no_larger_request_of_a_busy_client() {
        let mut queue = FairQueue::default();
        let crowd: Vec<_> = (0..1000).map(|_| queue.enqueue(client("crowd"), 100, 0)).collect();
        crowd[..10].iter().for_each(|&request| queue.admitted(request));
        let newcomer = queue.enqueue(client("newcomer"), 99, 0);
        let before = crowd.iter().filter(|request| request.finish < newcomer.finish);
        assert_eq!(before.count(), 9, "the tenth is being computed and finishes later");
    }

    #[test]
    fn an_idle_client_gains_no_credit() {
        let mut queue = FairQueue::default();
        let first = queue.enqueue(client("a"), 10, 0);
        for _ in 0..100 {
            let request = queue.enqueue(client("b"), 1000, 0);
            queue.admitted(request);
        }
        let second = queue.enqueue(client("a"), 10, 0);
        assert_eq!((first.start, second.start), (0, 99_000));
    }

    #[test]
    fn a_long_request_is_overtaken_by_new_clients_only_for_as_long_as_it_costs() {
        let mut queue = FairQueue::default();
        let long = queue.enqueue(client("long"), 2000, 0);
        queue.admitted(long);
        let overtaking = (0..10_000).take_while(|number| {
            let name = client(&number.to_string());
            let short = queue.enqueue(name.clone(), 100, 0);
            queue.admitted(short);
            queue.computed(100);
            queue.ended(&name);
            short.finish < long.finish
        });
        // Two clients are active at a time, so that each has half of the rows.
        assert_eq!(overtaking.count(), 38);
    }

    #[test]
    fn rows_are_divided_between_the_clients_with_requests() {
        let mut queue = FairQueue::default();
        for name in ["a", "b", "b", "c"] {
            queue.enqueue(client(name), 10, 0);
        }
        assert_eq!(queue.active_clients(), 3);
        (0..10).for_each(|_| queue.computed(1));
        assert_eq!(queue.now, 3);
        queue.ended(&client("b"));
        assert_eq!(queue.active_clients(), 3);
        queue.ended(&client("b"));
        queue.ended(&client("c"));
        queue.computed(10);
        assert_eq!((queue.active_clients(), queue.now), (1, 14));
    }

    #[test]
    fn a_priority_is_a_finite_head_start() {
        let mut queue = FairQueue::default();
        let patient = queue.enqueue(client("patient"), 10, 1);
        let mut overtaken = 0;
        loop {
            let request = queue.enqueue(client("urgent"), 1000, 0);
            if request.finish > patient.finish {
                break;
            }
            overtaken += 1;
            queue.admitted(request);
        }
        assert_eq!(overtaken, TOKENS_PER_PRIORITY / 1000);
    }
}
