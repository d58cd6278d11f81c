//! Whose turn it is: start-time fair queueing over clients, with priorities as a head start.
//!
//! Each request costs tokens. A client's requests stand behind each other in virtual time, each as far behind as the one
//! before it costs; a client that was idle begins at the present. So a client with a thousand requests in the queue
//! delays another's first one by one request and not by a thousand, and everybody's turn comes: virtual time goes on
//! with everything that is admitted. (Goyal, Vin and Cheng, "Start-time Fair Queueing", 1996; for language models
//! compare Sheng et al., "Fairness in Serving Large Language Models", 2024.)

use std::collections::HashMap;
use std::sync::Arc;

/// Tokens that one level of priority is worth. Large against what usually waits, so that priorities are kept strictly;
/// finite, so that nobody waits for ever.
const TOKENS_PER_PRIORITY: i64 = 1 << 18;

/// Clients above which those that are idle are forgotten.
const MANY_CLIENTS: usize = 1024;

/// Virtual time, in tokens.
#[derive(Debug, Default)]
pub(super) struct FairQueue {
    now: i64,
    /// Where each client's next request stands, unless that is in the past.
    next: HashMap<Option<Arc<str>>, i64>,
}

impl FairQueue {
    /// The turn of a client's next request, which costs so many tokens. Lower goes first; lower `priority` does too.
    pub fn turn(&mut self, client: Option<Arc<str>>, tokens: usize, priority: i32) -> i64 {
        if self.next.len() >= MANY_CLIENTS {
            let now = self.now;
            self.next.retain(|_, next| *next > now);
        }
        let next = self.next.entry(client).or_insert(self.now);
        let start = self.now.max(*next);
        *next = start.saturating_add(i64::try_from(tokens).unwrap_or(i64::MAX));
        start.saturating_add(i64::from(priority) * TOKENS_PER_PRIORITY)
    }

    /// A request with this turn and priority was admitted: the present is not before it.
    pub fn admitted(&mut self, turn: i64, priority: i32) {
        self.now = self.now.max(turn.saturating_sub(i64::from(priority) * TOKENS_PER_PRIORITY));
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
        let turns: Vec<_> = (0..5).map(|_| queue.turn(None, 100, 0)).collect();
        assert_eq!(turns, [0, 100, 200, 300, 400]);
    }

    #[test]
    fn a_newcomer_stands_behind_one_request_of_a_crowd_and_not_behind_all() {
        let mut queue = FairQueue::default();
        let crowd: Vec<_> = (0..1000).map(|_| queue.turn(client("crowd"), 100, 0)).collect();
        for &turn in &crowd[..10] {
            queue.admitted(turn, 0);
        }
        let newcomer = queue.turn(client("newcomer"), 100, 0);
        assert_eq!(crowd.iter().filter(|&&turn| turn < newcomer).count(), 9);
    }

    #[test]
    fn idleness_saves_up_nothing() {
        let mut queue = FairQueue::default();
        let first = queue.turn(client("a"), 10, 0);
        for _ in 0..100 {
            let turn = queue.turn(client("b"), 1000, 0);
            queue.admitted(turn, 0);
        }
        let second = queue.turn(client("a"), 10, 0);
        assert_eq!((first, second), (0, 99_000));
    }

    #[test]
    fn a_priority_is_a_head_start_that_an_endless_stream_uses_up() {
        let mut queue = FairQueue::default();
        let patient = queue.turn(client("patient"), 10, 1);
        let mut overtaken = 0;
        loop {
            let turn = queue.turn(client("urgent"), 1000, 0);
            if turn > patient {
                break;
            }
            overtaken += 1;
            queue.admitted(turn, 0);
        }
        assert_eq!(overtaken, TOKENS_PER_PRIORITY / 1000 + 1);
    }
}
