//! Chooses the replica of a request: the one that has the longest prefix cached, unless another is clearly less loaded.
//! A pure function of the requests, without clock or actor.
//!
//! Only a replica's scheduler knows what its prefix cache contains. The router keeps an estimate instead: hashes of the
//! blocks of the prompts that it sent there recently. That needs no message and no waiting. A wrong estimate only costs
//! time: an evicted prefix is computed again, and two prompts with equal hashes go to one replica but never share a block.

use std::cmp::Reverse;
use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};

use cuelight_engine::engine::{BLOCK_TOKENS, TokenId};

use crate::core::prefix_scope::PrefixScope;
use crate::core::prompt_media::PromptMedia;

/// A replica with a cached prefix is chosen while its load is at most 1.5 times the lowest load plus this many requests.
const SLACK: usize = 4;

/// Number of prompt tokens left to compute that count as one more request in the load.
const TOKENS_PER_REQUEST: usize = 512;

/// Number of cached tokens for which a busier replica is chosen. Half of the prompt is enough, too.
const LONG_PREFIX: usize = 1024;

/// The prefix of a prompt, as hashes of its blocks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Prefix {
    /// Tokens of the prompt.
    tokens: usize,
    /// For each full block, a hash of all tokens up to its end.
    blocks: Vec<u64>,
}

impl Prefix {
    /// The prefix of a prompt. The hashes depend on the scope, because blocks are shared only within one.
    #[must_use]
    pub fn of(scope: &PrefixScope, prompt: &[TokenId], media: &PromptMedia) -> Self {
        let mut hasher = DefaultHasher::new();
        scope.hash(&mut hasher);
        let block = |(index, tokens): (usize, &[TokenId])| {
            tokens.hash(&mut hasher);
            media.key_of_block(index).hash(&mut hasher);
            hasher.finish()
        };
        Prefix { tokens: prompt.len(), blocks: prompt.chunks_exact(BLOCK_TOKENS).enumerate().map(block).collect() }
    }

    /// The prefix of a prompt whose content does not matter.
    #[must_use]
    pub fn unknown(tokens: usize) -> Self {
        Prefix { tokens, blocks: Vec::new() }
    }
}

/// Whether a replica accepts requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Availability {
    /// It accepts no requests.
    Closed,
    /// Its executor is being rebuilt. Requests wait.
    Recovering,
    /// Requests run.
    Ready,
}

/// The replica chosen for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Route {
    /// Index of the replica.
    pub replica: usize,
    /// Estimated number of prompt tokens that the replica has to compute.
    pub pending_tokens: usize,
}

/// The router's view of all replicas.
#[derive(Debug)]
pub struct Router {
    replicas: Vec<Replica>,
    /// Requests routed so far.
    routed: u64,
}

/// The router's view of one replica.
#[derive(Debug)]
struct Replica {
    availability: Availability,
    /// Requests that were routed to it and have not ended.
    requests: usize,
    /// Prompt tokens of these requests that are still to be computed.
    pending_tokens: usize,
    known: KnownBlocks,
    /// Value of [`Router::routed`] when it last received a request.
    last_routed: u64,
}

impl Replica {
    /// The load, in requests.
    fn load(&self) -> usize {
        self.requests + self.pending_tokens / TOKENS_PER_REQUEST
    }
}

impl Router {
    /// A router for this number of replicas, all closed.
    #[must_use]
    pub fn new(replicas: usize) -> Self {
        let replica = |_| Replica {
            availability: Availability::Closed,
            requests: 0,
            pending_tokens: 0,
            known: KnownBlocks::default(),
            last_routed: 0,
        };
        Router { replicas: (0..replicas).map(replica).collect(), routed: 0 }
    }

    /// Sets whether a replica accepts requests. A replica that is not ready has lost its cache.
    pub fn set_availability(&mut self, replica: usize, availability: Availability) {
        let replica = &mut self.replicas[replica];
        replica.availability = availability;
        if availability != Availability::Ready {
            replica.known.forget();
        }
    }

    /// Sets the number of blocks in a replica's prefix cache.
    pub fn set_cache_blocks(&mut self, replica: usize, blocks: usize) {
        self.replicas[replica].known.capacity = blocks;
    }

    /// Whether the choice depends on the prefix of a prompt.
    #[must_use]
    pub fn uses_prefixes(&self) -> bool {
        self.replicas.len() > 1 && self.replicas.iter().any(|replica| replica.known.capacity > 0)
    }

    /// Chooses a replica that is not in `refused`, or `None` when there is none. The request counts in the replica's load
    /// until [`Self::ended`].
    pub fn route(&mut self, prefix: &Prefix, refused: &[usize]) -> Option<Route> {
        let may =
            |&index: &usize| !refused.contains(&index) && self.replicas[index].availability != Availability::Closed;
        let availability = (0..self.replicas.len()).filter(may).map(|index| self.replicas[index].availability).max()?;
        // Each candidate with the number of prompt tokens in its cache.
        let open: Vec<(usize, usize)> = (0..self.replicas.len())
            .filter(|index| may(index) && self.replicas[*index].availability == availability)
            .map(|index| (index, self.replicas[index].known.matched(&prefix.blocks) * BLOCK_TOKENS))
            .collect();
        let load = |index: usize| self.replicas[index].load();
        let least = |&&(index, matched): &&(usize, usize)| {
            (load(index), Reverse(matched), self.replicas[index].last_routed, index)
        };
        let most = |&&(index, matched): &&(usize, usize)| (matched, Reverse(load(index)), Reverse(index));
        let (idlest, idlest_known) = *open.iter().min_by_key(least)?;
        let (knower, known) = *open.iter().max_by_key(most)?;
        let gain = known.saturating_sub(idlest_known);
        let is_worth_it = gain > 0 && (2 * gain >= prefix.tokens || gain >= LONG_PREFIX);
        let is_clearly_busier = load(knower) > load(idlest) + load(idlest) / 2 + SLACK;
        let (replica, matched) =
            if is_worth_it && !is_clearly_busier { (knower, known) } else { (idlest, idlest_known) };
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

    /// Records that `tokens` prompt tokens of a replica are computed.
    pub fn computed(&mut self, replica: usize, tokens: usize) {
        let replica = &mut self.replicas[replica];
        replica.pending_tokens = replica.pending_tokens.saturating_sub(tokens);
    }

    /// Records the end of a request. Its [`Route::pending_tokens`] are those not yet passed to [`Self::computed`].
    pub fn ended(&mut self, route: Route) {
        self.computed(route.replica, route.pending_tokens);
        let replica = &mut self.replicas[route.replica];
        replica.requests = replica.requests.saturating_sub(1);
    }
}

/// Hashes of the blocks that a replica received recently, at most as many as its cache holds.
///
/// They are kept in two generations. A full young generation replaces the old one, so that blocks that are not requested
/// again are dropped without tracking every use.
#[derive(Debug, Default)]
struct KnownBlocks {
    capacity: usize,
    young: HashSet<u64>,
    old: HashSet<u64>,
}

impl KnownBlocks {
    /// Number of leading blocks that are known.
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

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn router(replicas: usize) -> Router {
        let mut router = Router::new(replicas);
        for replica in 0..replicas {
            router.set_availability(replica, Availability::Ready);
            router.set_cache_blocks(replica, 1000);
        }
        router
    }

    /// The prompt of a conversation. Different conversations have no prefix in common.
    fn prompt(conversation: u32, tokens: usize) -> Prefix {
        let tokens: Vec<TokenId> = (0..tokens as u32).map(|token| conversation * 1_000_000 + token).collect();
        Prefix::of(&PrefixScope::default(), &tokens, &PromptMedia::default())
    }

    fn send(router: &mut Router, prefix: &Prefix) -> usize {
        router.route(prefix, &[]).unwrap().replica
    }

    #[test]
    fn unknown_prompts_go_to_the_least_loaded_replica_and_rotate_when_all_are_idle() {
        let mut router = router(3);
        let sent: Vec<usize> = (0..6).map(|conversation| send(&mut router, &prompt(conversation, 40))).collect();
        assert_eq!(sent, [0, 1, 2, 0, 1, 2]);
        let route = Route { replica: 1, pending_tokens: 40 };
        router.ended(route);
        assert_eq!(send(&mut router, &prompt(9, 40)), 1);
    }

    #[test]
    fn the_next_message_of_a_conversation_goes_to_the_same_replica() {
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
    fn a_cached_prefix_is_ignored_when_its_replica_is_clearly_busier() {
        let mut router = router(2);
        let sent: Vec<usize> = (0..12).map(|_| send(&mut router, &prompt(1, 200))).collect();
        let busy = sent.iter().position(|replica| *replica == 1).unwrap();
        assert_eq!(busy, SLACK + 1, "{sent:?}");
        assert_eq!(
            sent.iter().filter(|replica| **replica == 0).count(),
            6,
            "afterwards both replicas have it: {sent:?}"
        );
    }

    #[test]
    fn a_short_common_prefix_does_not_bundle_requests() {
        let mut router = router(2);
        let template: Vec<TokenId> = (0..32).collect();
        let sent: Vec<usize> = (1..=4)
            .map(|own| {
                let tokens: Vec<TokenId> = template.iter().copied().chain(own * 1000..own * 1000 + 300).collect();
                send(&mut router, &Prefix::of(&PrefixScope::default(), &tokens, &PromptMedia::default()))
            })
            .collect();
        assert_eq!(sent, [0, 1, 0, 1]);
    }

    #[test]
    fn a_long_prompt_counts_in_the_load_until_it_is_computed() {
        let mut router = router(2);
        let long = router.route(&prompt(1, 4096), &[]).unwrap();
        let short: Vec<usize> = (2..6).map(|conversation| send(&mut router, &prompt(conversation, 16))).collect();
        assert_eq!(short, [1, 1, 1, 1]);
        router.computed(long.replica, long.pending_tokens);
        assert_eq!(send(&mut router, &prompt(9, 16)), 0);
    }

    #[test]
    fn ready_replicas_are_preferred_and_a_recovering_one_has_lost_its_cache() {
        let mut router = router(3);
        let first = router.route(&prompt(1, 200), &[]).unwrap();
        router.ended(first);
        router.set_availability(0, Availability::Recovering);
        router.set_availability(1, Availability::Closed);
        assert_eq!(send(&mut router, &prompt(1, 200)), 2);
        assert_eq!(
            router.route(&prompt(1, 200), &[2]).unwrap().replica,
            0,
            "the only other replica that is not closed"
        );
        assert_eq!(router.route(&prompt(1, 200), &[0, 2]), None);
        router.set_availability(0, Availability::Ready);
        let route = router.route(&prompt(1, 200), &[2]).unwrap();
        assert_eq!(route, Route { replica: 0, pending_tokens: 8 }, "the prefix was routed there again");
    }

    #[test]
    fn prefixes_depend_on_the_salt() {
        let tokens: Vec<TokenId> = (0..64).collect();
        let salted = |salt: &str| PrefixScope { salt: Some(salt.into()), adapter: None };
        let (mine, yours) = (
            Prefix::of(&salted("a"), &tokens, &PromptMedia::default()),
            Prefix::of(&salted("b"), &tokens, &PromptMedia::default()),
        );
        assert!(mine.blocks.iter().zip(&yours.blocks).all(|(mine, yours)| mine != yours));
        assert_eq!(
            Prefix::of(&PrefixScope::default(), &tokens[..63], &PromptMedia::default()).blocks[..],
            Prefix::of(&PrefixScope::default(), &tokens, &PromptMedia::default()).blocks[..3]
        );
    }

    #[test]
    fn known_blocks_are_limited_to_the_cache_size_and_requested_ones_stay() {
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
        assert_eq!(known.matched(&kept), 0, "there is no cache");
    }

    #[derive(Debug, Clone)]
    enum Action {
        Request { conversation: u32, tokens: usize },
        End(usize),
        Open(usize, bool),
    }

    fn action() -> impl Strategy<Value = Action> {
        prop_oneof![
            4 => (0..6u32, 1..800usize).prop_map(|(conversation, tokens)| Action::Request { conversation, tokens }),
            3 => any::<usize>().prop_map(Action::End),
            1 => (0..3usize, any::<bool>()).prop_map(|(replica, open)| Action::Open(replica, open)),
        ]
    }

    proptest! {
        #[test]
        fn loads_are_exact_and_no_request_goes_to_a_much_busier_replica(
            actions in prop::collection::vec(action(), 1..200)
        ) {
            let mut router = router(3);
            let mut open = [true; 3];
            let mut live: Vec<Route> = Vec::new();
            for action in actions {
                match action {
                    Action::Request { conversation, tokens } => {
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
                    Action::End(index) if !live.is_empty() => router.ended(live.swap_remove(index % live.len())),
                    Action::End(_) => {}
                    Action::Open(replica, is_open) => {
                        open[replica] = is_open;
                        router.set_availability(replica, if is_open { Availability::Ready } else { Availability::Closed });
                    }
                }
                for (index, replica) in router.replicas.iter().enumerate() {
                    let routed = || live.iter().filter(|route| route.replica == index);
                    prop_assert_eq!(replica.requests, routed().count());
                    prop_assert_eq!(replica.pending_tokens, routed().map(|route| route.pending_tokens).sum::<usize>());
                }
            }
        }
    }
}
