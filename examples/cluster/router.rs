//! Routers: which server gets a request. The rules follow what SMG, vllm-router and Dynamo describe; the constants were chosen
//! here.

use std::collections::HashMap;

use cuelight::core::block_hash::{BlockContent, BlockHash};
use cuelight::core::cache_change::CacheChange;

use crate::random::Random;

/// A rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// One server after the other.
    RoundRobin,
    /// The server with the fewest requests.
    LeastRequests,
    /// Always the same server for a conversation.
    Session,
    /// `cache_aware` of SMG and vllm-router: the server that was sent the longest beginning of the prompt, unless loads differ too
    /// much.
    CacheAware,
    /// Dynamo's `kv`: the least blocks to compute and to hold, known from KV events.
    KvEvents,
}

impl Rule {
    pub const ALL: [Rule; 5] = [Rule::RoundRobin, Rule::LeastRequests, Rule::Session, Rule::CacheAware, Rule::KvEvents];
}

/// `cache_aware`: the least part of a prompt that a server must have been sent to count.
const CACHE_THRESHOLD: f64 = 0.5;

/// `cache_aware`: loads differ too much when both their difference and their ratio exceed these.
const BALANCE: (usize, f64) = (32, 1.1);

/// A router.
pub struct Router {
    rule: Rule,
    /// Requests at each server; `None` for one that is dead.
    loads: Vec<Option<usize>>,
    next: usize,
    random: Random,
    /// The servers that hold a block, or were sent it last.
    holders: HashMap<BlockHash, Vec<u32>>,
    /// Blocks of the running requests of each server.
    active_blocks: Vec<usize>,
}

impl Router {
    pub fn new(rule: Rule, servers: usize) -> Self {
        Router {
            rule,
            loads: vec![Some(0); servers],
            next: 0,
            random: Random(7),
            holders: HashMap::new(),
            active_blocks: vec![0; servers],
        }
    }

    pub fn uses_events(&self) -> bool {
        self.rule == Rule::KvEvents
    }

    /// Chooses a live server for a request of a conversation.
    pub fn choose(&mut self, conversation: u64, prompt: &[BlockContent]) -> usize {
        let server = match self.rule {
            Rule::RoundRobin => self.live_from(self.next),
            Rule::LeastRequests => self.least_loaded(),
            Rule::Session => self.live_from(Random(conversation).next() as usize % self.loads.len()),
            Rule::CacheAware => self.cache_aware(prompt),
            Rule::KvEvents => self.by_cost(prompt),
        };
        self.next = server + 1;
        if self.rule == Rule::CacheAware {
            prompt.iter().for_each(|block| drop(self.holders.insert(block.hash, vec![server as u32])));
        }
        self.loads[server] = self.loads[server].map(|load| load + 1);
        self.active_blocks[server] += prompt.len();
        server
    }

    pub fn ended(&mut self, server: usize, prompt_blocks: usize) {
        self.loads[server] = self.loads[server].map(|load| load - 1);
        self.active_blocks[server] -= prompt_blocks;
    }

    pub fn set_alive(&mut self, server: usize, is_alive: bool) {
        self.loads[server] = is_alive.then_some(0);
        self.active_blocks[server] = 0;
        if !is_alive {
            self.holders.values_mut().for_each(|servers| servers.retain(|one| *one != server as u32));
        }
    }

    /// A server reports what its cache holds.
    pub fn cache_changed(&mut self, server: usize, changes: Vec<CacheChange>) {
        for change in changes {
            match change {
                CacheChange::Stored(content, _) => self.holders.entry(content.hash).or_default().push(server as u32),
                CacheChange::Removed(hash) => {
                    if let Some(servers) = self.holders.get_mut(&hash) {
                        servers.retain(|one| *one != server as u32);
                    }
                }
                CacheChange::Cleared | CacheChange::Copied(..) | CacheChange::Dropped(..) => {}
            }
        }
    }

    fn live_from(&self, first: usize) -> usize {
        let servers = self.loads.len();
        (first..first + servers)
            .map(|server| server % servers)
            .find(|server| self.loads[*server].is_some())
            .unwrap_or(0)
    }

    /// The first one of those with the fewest requests, from a random one on.
    fn least_loaded(&mut self) -> usize {
        let (first, servers) = (self.random.next() as usize % self.loads.len(), self.loads.len());
        let in_turn = (first..first + servers).map(|server| server % servers);
        in_turn.min_by_key(|server| self.loads[*server].unwrap_or(usize::MAX)).unwrap_or(0)
    }

    fn cache_aware(&mut self, prompt: &[BlockContent]) -> usize {
        let loads = || self.loads.iter().flatten().copied();
        let (least, most) = (loads().min().unwrap_or(0), loads().max().unwrap_or(0));
        if most - least > BALANCE.0 && most as f64 > least as f64 * BALANCE.1 {
            return self.least_loaded();
        }
        let known = prompt.iter().rposition(|block| self.holders.get(&block.hash).is_some_and(|all| !all.is_empty()));
        let Some(last) = known.filter(|last| (last + 1) as f64 > CACHE_THRESHOLD * prompt.len() as f64) else {
            return self.least_loaded();
        };
        self.holders[&prompt[last].hash][0] as usize
    }

    fn by_cost(&mut self, prompt: &[BlockContent]) -> usize {
        let mut cached: HashMap<u32, usize> = HashMap::new();
        // The server of the end of a prefix has its beginning, too.
        for (index, block) in prompt.iter().enumerate().rev() {
            let holders = self.holders.get(&block.hash).into_iter().flatten().take(16);
            for server in holders {
                cached.entry(*server).or_insert(index + 1);
            }
            if cached.len() >= 16 {
                break;
            }
        }
        let other = self.least_loaded() as u32;
        cached.entry(other).or_insert(0);
        let cost = |(server, cached): &(&u32, &usize)| prompt.len() - **cached + self.active_blocks[**server as usize];
        let live = cached.iter().filter(|(server, _)| self.loads[**server as usize].is_some());
        live.min_by_key(|one| (cost(one), *one.0)).map_or(other as usize, |(server, _)| *server as usize)
    }
}
