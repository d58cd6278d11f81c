//! A limit that clients share, so that none of them can use all of it for long.
//!
//! One client alone may use the whole limit. While others use some of it too, each has an equal share. A client within its
//! share may go beyond the limit, into a reserve of a quarter; a client above its share is refused until the total is
//! below the limit again. So a newcomer always finds something free, and a client that took everything shrinks to its
//! share as its requests end.

use std::collections::HashMap;
use std::sync::Arc;

/// A client, or `None` for all requests without one.
pub type Client = Option<Arc<str>>;

/// The use of a limit by each client.
#[derive(Debug, Clone)]
pub struct SharedLimit {
    limit: usize,
    used: usize,
    of_clients: HashMap<Client, usize>,
}

impl SharedLimit {
    /// An unused limit.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        SharedLimit { limit, used: 0, of_clients: HashMap::new() }
    }

    /// The amount in use.
    #[must_use]
    pub fn used(&self) -> usize {
        self.used
    }

    /// The amount in use by one client.
    #[must_use]
    pub fn used_by(&self, client: &Client) -> usize {
        self.of_clients.get(client).copied().unwrap_or(0)
    }

    /// Whether a client may use `amount` more.
    #[must_use]
    pub fn admits(&self, client: &Client, amount: usize) -> bool {
        let total = self.used.saturating_add(amount);
        let own = self.used_by(client);
        let others = self.of_clients.len() - usize::from(own > 0);
        let share = (self.limit / (others + 1)).max(1);
        let is_within_share = others > 0 && own.saturating_add(amount) <= share;
        total <= self.limit || (is_within_share && total <= self.limit.saturating_add(self.reserve()))
    }

    /// What is left for clients within their share when the limit is used up.
    fn reserve(&self) -> usize {
        (self.limit / 4).max(1)
    }

    /// Counts `amount` as used, also beyond the limit.
    pub fn take(&mut self, client: &Client, amount: usize) {
        if amount == 0 {
            return;
        }
        self.used += amount;
        match self.of_clients.get_mut(client) {
            Some(used) => *used += amount,
            None => {
                self.of_clients.insert(client.clone(), amount);
            }
        }
    }

    /// Counts `amount` as no longer used. It must have been taken.
    pub fn give_back(&mut self, client: &Client, amount: usize) {
        self.used = self.used.saturating_sub(amount);
        if let Some(used) = self.of_clients.get_mut(client) {
            *used = used.saturating_sub(amount);
            if *used == 0 {
                self.of_clients.remove(client);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(name: &str) -> Client {
        Some(name.into())
    }

    /// Takes single units until the limit refuses one, and returns their number.
    fn fill(limit: &mut SharedLimit, client: &Client) -> usize {
        (0..).take_while(|_| limit.admits(client, 1).then(|| limit.take(client, 1)).is_some()).count()
    }

    #[test]
    fn one_client_may_use_the_whole_limit() {
        let mut limit = SharedLimit::new(8);
        assert!(limit.admits(&None, 8) && !limit.admits(&None, 9));
        assert_eq!(fill(&mut limit, &None), 8);
    }

    #[test]
    fn a_newcomer_finds_a_reserve_and_the_first_client_shrinks_to_its_share() {
        let (greedy, modest) = (client("greedy"), client("modest"));
        let mut limit = SharedLimit::new(16);
        assert_eq!(fill(&mut limit, &greedy), 16);
        assert_eq!(fill(&mut limit, &modest), 4);
        for _ in 0..100 {
            // Whenever a request of the greedy client ends, both try again.
            limit.give_back(&greedy, 1);
            fill(&mut limit, &greedy);
            fill(&mut limit, &modest);
        }
        assert_eq!((limit.used_by(&greedy), limit.used_by(&modest)), (8, 8));
    }

    #[test]
    fn what_is_given_back_is_forgotten() {
        let mut limit = SharedLimit::new(4);
        limit.take(&client("a"), 3);
        limit.give_back(&client("a"), 3);
        assert_eq!((limit.used(), limit.of_clients.len()), (0, 0));
        assert!(limit.admits(&client("b"), 4));
    }
}
