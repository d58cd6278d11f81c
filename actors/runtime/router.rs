//! Which replica of a model takes a request: the one that has computed its prefix already, unless others are clearly less
//! busy. Requests in, a choice out; no clock and no actor.
//!
//! What a replica has in its prefix cache is known to its scheduler alone. The router keeps an estimate instead: hashes of
//! the blocks of the prompts that it sent there lately. That takes no message and no wait, and being wrong costs time only:
//! a prefix that is gone is computed again, and two prompts of one hash share a replica, never a block.

use std::cmp::Reverse;
use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};

use cuelight_engine::engine::{BLOCK_TOKENS, TokenId};

/// So many requests more than another a replica may have, and half as many again, before a prefix that it knows is not worth
/// waiting for it.
const SLACK: usize = 4;

/// Prompt tokens that are still to be computed weigh as much as another request.
const TOKENS_PER_REQUEST: usize = 512;

/// A prefix of so many tokens is worth going to a busier replica for, and so is one that is half of the prompt.
const LONG_PREFIX: usize = 1024;

/// What a prompt begins with, as far as the router looks at it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Prefix {
    /// Tokens of the prompt.
    tokens: usize,
    /// For each of its full blocks a hash of everything up to its end.
    blocks: Vec<u64>,
}

impl Prefix {
    /// Of a prompt, whose blocks are shared within its salt only.
    #[must_use]
    pub fn of(salt: Option<&str>, prompt: &[TokenId]) -> Self {
        let mut hasher = DefaultHasher::new();
        salt.hash(&mut hasher);
        let block = |tokens: &[TokenId]| {
            tokens.hash(&mut hasher);
            hasher.finish()
        };
        Prefix { tokens: prompt.len(), blocks: prompt.chunks_exact(BLOCK_TOKENS).map(block).collect() }
    }

    /// Of a prompt whose content does not matter.
    #[must_use]
    pub fn unknown(tokens: usize) -> Self {
        Prefix { tokens, blocks: Vec::new() }
    }
}

/// Whether a replica takes requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Openness {
    /// It takes none.
    Closed,
    /// Its executor is being rebuilt; requests wait there.
    Recovering,
    /// Requests run.
    Ready,
}

/// Where a request goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Route {
    /// The replica.
    pub replica: usize,
    /// Tokens of the prompt that it will have to compute, as far as is known.
    pub pending_tokens: usize,
}

/// The router's view of all replicas.
#[derive(Debug)]
pub struct Router {
    replicas: Vec<Replica>,
    /// Requests routed so far.
    routed: u64,
}

/// The router's view of one.
#[derive(Debug)]
struct Replica {
    openness: Openness,
    /// Requests that were sent there and have not ended.
    requests: usize,
    /// Tokens of their prompts that are still to be computed.
    pending_tokens: usize,
    known: KnownBlocks,
    /// When it last got a request, in requests.
    last_routed: u64,
}

impl Replica {
    /// In requests.
    fn load(&self) -> usize {
        self.requests + self.pending_tokens / TOKENS_PER_REQUEST
    }
}

impl Router {
    /// For so many replicas, all closed.
    #[must_use]
    pub fn new(replicas: usize) -> Self {
        let replica = |_| Replica {
            openness: Openness::Closed,
            requests: 0,
            pending_tokens: 0,
            known: KnownBlocks::default(),
            last_routed: 0,
        };
        Router { replicas: (0..replicas).map(replica).collect(), routed: 0 }
    }

    /// Whether a replica takes requests from now on. One that does not run has lost its cache.
    pub fn set_openness(&mut self, replica: usize, openness: Openness) {
        let replica = &mut self.replicas[replica];
        replica.openness = openness;
        if openness != Openness::Ready {
            replica.known.forget();
        }
    }

    /// A replica's prefix cache holds so many blocks.
    pub fn set_cache_blocks(&mut self, replica: usize, blocks: usize) {
        self.replicas[replica].known.capacity = blocks;
    }

    /// Whether what a prompt begins with matters.
    #[must_use]
    pub fn looks_at_prefixes(&self) -> bool {
        self.replicas.len() > 1 && self.replicas.iter().any(|replica| replica.known.capacity > 0)
    }

    /// Sends a request to a replica that is not among those that `refused` it; `None` when there is none. It counts there
    /// until [`Self::ended`].
    pub fn route(&mut self, prefix: &Prefix, refused: &[usize]) -> Option<Route> {
        let may = |&index: &usize| !refused.contains(&index) && self.replicas[index].openness != Openness::Closed;
        let openness = (0..self.replicas.len()).filter(may).map(|index| self.replicas[index].openness).max()?;
        // With the tokens of the prompt that each knows.
        let open: Vec<(usize, usize)> = (0..self.replicas.len())
            .filter(|index| may(index) && self.replicas[*index].openness == openness)
            .map(|index| (index, self.replicas[index].known.matched(&prefix.blocks) * BLOCK_TOKENS))
            .collect();
        let load = |index: usize| self.replicas[index].load();
        let least = |&&(index, matched): &&(usize, usize)| {
            (load(index), Reverse(matched), self.replicas[index].last_routed, index)
        };
        let most = |&&(index, matched): &&(usize, usize)| (matched, Reverse(load(index)), Reverse(index));
        let (idlest, known_there) = *open.iter().min_by_key(least)?;
        let (knower, known) = *open.iter().max_by_key(most)?;
        let gain = known.saturating_sub(known_there);
        let is_worth_it = gain > 0 && (2 * gain >= prefix.tokens || gain >= LONG_PREFIX);
        let is_clearly_busier = load(knower) > load(idlest) + load(idlest) / 2 + SLACK;
        let (replica, matched) =
            if is_worth_it && !is_clearly_busier { (knower, known) } else { (idlest, known_there) };
        let route = Route { replica, pending_tokens: prefix.tokens.saturating_sub(matched) };
        self.count(route, prefix);
        Some(route)
    }

    fn count(&mut self, route: Route, prefix: &Prefix) {
        self.routed += 1;
        let replica = &mut self.replicas[route.replica];
        replica.last_routed = self.routed;
        replica.requests += 1;
        replica.pending_tokens += route.pending_tokens;
        replica.known.learn(&prefix.blocks);
    }

    /// So many tokens of a prompt are computed.
    pub fn computed(&mut self, replica: usize, tokens: usize) {
        let replica = &mut self.replicas[replica];
        replica.pending_tokens = replica.pending_tokens.saturating_sub(tokens);
    }

    /// A request has ended; [`Route::pending_tokens`] are those of it that [`Self::computed`] was not told of.
    pub fn ended(&mut self, route: Route) {
        self.computed(route.replica, route.pending_tokens);
        let replica = &mut self.replicas[route.replica];
        replica.requests = replica.requests.saturating_sub(1);
    }
}

/// Blocks that a replica got lately, as many as its cache holds at most. In two halves: when the young one is full it takes
/// the old one's place, so that what nobody asks for is forgotten without a list of uses.
#[derive(Debug, Default)]
struct KnownBlocks {
    capacity: usize,
    young: HashSet<u64>,
    old: HashSet<u64>,
}

impl KnownBlocks {
    /// How many blocks, from the first on, are known.
    fn matched(&self, blocks: &[u64]) -> usize {
        blocks.iter().take_while(|block| self.young.contains(block) || self.old.contains(block)).count()
    }

    fn learn(&mut self, blocks: &[u64]) {
        for &block in blocks.iter().take(self.capacity) {
            self.young.insert(block);
            if self.young.len() > self.capacity / 2 {
                self.old = std::mem::take(&mut self.young);
            }
        }
    }

    fn forget(&mut self) {
        self.young.clear();
        self.old.clear();
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn router(replicas: usize) -> Router {
        let mut router = Router::new(replicas);
        for replica in 0..replicas {
            router.set_openness(replica, Openness::Ready);
            router.set_cache_blocks(replica, 1000);
        }
        router
    }

    /// A conversation's prompt: its first tokens are its own.
    fn prompt(conversation: u32, tokens: usize) -> Prefix {
        let tokens: Vec<TokenId> = (0..tokens as u32).map(|token| conversation * 1_000_000 + token).collect();
        Prefix::of(None, &tokens)
    }

    fn send(router: &mut Router, prefix: &Prefix) -> usize {
        router.route(prefix, &[]).unwrap().replica
    }

    #[test]
    fn strangers_go_to_the_least_loaded_and_in_turn_when_all_are_idle() {
        let mut router = router(3);
        let sent: Vec<usize> = (0..6).map(|conversation| send(&mut router, &prompt(conversation, 40))).collect();
        assert_eq!(sent, [0, 1, 2, 0, 1, 2]);
        let route = Route { replica: 1, pending_tokens: 40 };
        router.ended(route);
        assert_eq!(send(&mut router, &prompt(9, 40)), 1);
    }

    #[test]
    fn the_next_turn_of_a_conversation_goes_where_the_last_one_was() {
        let mut router = router(2);
        let first = router.route(&prompt(1, 200), &[]).unwrap();
        assert_eq!(first, Route { replica: 0, pending_tokens: 200 });
        router.ended(first);
        let other = router.route(&prompt(2, 200), &[]).unwrap();
        assert_eq!(other.replica, 1);
        router.ended(other);
        for (conversation, replica) in [(1, 0), (1, 0), (2, 1), (1, 0)] {
            let route = router.route(&prompt(conversation, 230), &[]).unwrap();
            assert_eq!(route.replica, replica);
            assert!(route.pending_tokens < 60, "{route:?}");
            router.ended(route);
        }
    }

    #[test]
    fn a_known_prefix_is_left_when_its_replica_is_clearly_busier_and_soon_known_twice() {
        let mut router = router(2);
        let sent: Vec<usize> = (0..12).map(|_| send(&mut router, &prompt(1, 200))).collect();
        let busy = sent.iter().position(|replica| *replica == 1).unwrap();
        assert_eq!(busy, SLACK + 1, "{sent:?}");
        assert_eq!(sent.iter().filter(|replica| **replica == 0).count(), 6, "then both know it: {sent:?}");
    }

    #[test]
    fn a_short_common_beginning_gathers_nobody() {
        let mut router = router(2);
        let template: Vec<TokenId> = (0..32).collect();
        let sent: Vec<usize> = (1..=4)
            .map(|own| {
                let tokens: Vec<TokenId> = template.iter().copied().chain(own * 1000..own * 1000 + 300).collect();
                send(&mut router, &Prefix::of(None, &tokens))
            })
            .collect();
        assert_eq!(sent, [0, 1, 0, 1]);
    }

    #[test]
    fn a_long_prompt_weighs_until_it_is_computed() {
        let mut router = router(2);
        let long = router.route(&prompt(1, 4096), &[]).unwrap();
        let short: Vec<usize> = (2..6).map(|conversation| send(&mut router, &prompt(conversation, 16))).collect();
        assert_eq!(short, [1, 1, 1, 1]);
        router.computed(long.replica, long.pending_tokens);
        assert_eq!(send(&mut router, &prompt(9, 16)), 0);
    }

    #[test]
    fn those_that_run_come_before_those_that_recover_and_a_lost_cache_is_not_counted_on() {
        let mut router = router(3);
        let first = router.route(&prompt(1, 200), &[]).unwrap();
        router.ended(first);
        router.set_openness(0, Openness::Recovering);
        router.set_openness(1, Openness::Closed);
        assert_eq!(send(&mut router, &prompt(1, 200)), 2);
        assert_eq!(router.route(&prompt(1, 200), &[2]).unwrap().replica, 0, "who waits there is served in the end");
        assert_eq!(router.route(&prompt(1, 200), &[0, 2]), None);
        router.set_openness(0, Openness::Ready);
        let route = router.route(&prompt(1, 200), &[2]).unwrap();
        assert_eq!(route, Route { replica: 0, pending_tokens: 8 }, "it was sent there again meanwhile");
    }

    #[test]
    fn prefixes_of_another_salt_are_others() {
        let tokens: Vec<TokenId> = (0..64).collect();
        let (mine, yours) = (Prefix::of(Some("a"), &tokens), Prefix::of(Some("b"), &tokens));
        assert!(mine.blocks.iter().zip(&yours.blocks).all(|(mine, yours)| mine != yours));
        assert_eq!(Prefix::of(None, &tokens[..63]).blocks[..], Prefix::of(None, &tokens).blocks[..3]);
    }

    #[test]
    fn no_more_is_remembered_than_a_cache_holds_and_what_is_asked_for_stays() {
        let mut known = KnownBlocks { capacity: 100, ..KnownBlocks::default() };
        let kept = prompt(0, 10 * BLOCK_TOKENS).blocks;
        for conversation in 1..50 {
            known.learn(&prompt(conversation, 30 * BLOCK_TOKENS).blocks);
            known.learn(&kept);
            assert!(known.young.len() + known.old.len() <= 101);
        }
        assert_eq!(known.matched(&kept), kept.len());
        assert_eq!(known.matched(&prompt(1, 100).blocks), 0);
        known.capacity = 0;
        known.forget();
        known.learn(&kept);
        assert_eq!(known.matched(&kept), 0, "without a cache there is nothing to know");
    }

    #[derive(Debug, Clone)]
    enum Happening {
        Request { conversation: u32, tokens: usize },
        End(usize),
        Open(usize, bool),
    }

    fn happening() -> impl Strategy<Value = Happening> {
        prop_oneof![
            4 => (0..6u32, 1..800usize).prop_map(|(conversation, tokens)| Happening::Request { conversation, tokens }),
            3 => any::<usize>().prop_map(Happening::End),
            1 => (0..3usize, any::<bool>()).prop_map(|(replica, open)| Happening::Open(replica, open)),
        ]
    }

    proptest! {
        #[test]
        fn whatever_happens_counts_are_kept_and_nobody_is_sent_to_a_much_busier_replica(
            happenings in prop::collection::vec(happening(), 1..200)
        ) {
            let mut router = router(3);
            let mut open = [true; 3];
            let mut live: Vec<Route> = Vec::new();
            for happening in happenings {
                match happening {
                    Happening::Request { conversation, tokens } => {
                        let loads: Vec<usize> = router.replicas.iter().map(Replica::load).collect();
                        let least = (0..3).filter(|index| open[*index]).map(|index| loads[index]).min();
                        match router.route(&prompt(conversation, tokens), &[]) {
                            None => prop_assert_eq!(open, [false; 3]),
                            Some(route) => {
                                prop_assert!(open[route.replica]);
                                let least = least.unwrap();
                                prop_assert!(loads[route.replica] <= least + least / 2 + SLACK);
                                prop_assert!(route.pending_tokens <= tokens);
                                live.push(route);
                            }
                        }
                    }
                    Happening::End(index) if !live.is_empty() => router.ended(live.swap_remove(index % live.len())),
                    Happening::End(_) => {}
                    Happening::Open(replica, is_open) => {
                        open[replica] = is_open;
                        router.set_openness(replica, if is_open { Openness::Ready } else { Openness::Closed });
                    }
                }
                for (index, replica) in router.replicas.iter().enumerate() {
                    let here = || live.iter().filter(|route| route.replica == index);
                    prop_assert_eq!(replica.requests, here().count());
                    prop_assert_eq!(replica.pending_tokens, here().map(|route| route.pending_tokens).sum::<usize>());
                }
            }
        }
    }
}
