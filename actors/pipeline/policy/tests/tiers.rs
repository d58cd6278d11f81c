//! Lower tiers: blocks that the device gives up are found there, and nothing else ever is.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use cuelight_engine::engine::{BLOCK_TOKENS, CacheUnit, UnitBytes, UnitKind};

use super::*;
use crate::core::block_hash::BlockHash;
use crate::core::cached_unit::{KeptUnit, UnitContent, UnitId};
use crate::core::kv_transfer::PeerAddress;
use crate::core::tier::{FetchId, Tier, TierLimits};

/// For each token of a block, the hash of all tokens up to it.
type Content = [u64; BLOCK_TOKENS];

/// A copy of a unit.
#[derive(Clone, Copy)]
pub(super) enum Copied {
    Block(Content),
    State(u64),
}

type Copies = HashMap<UnitId, Copied>;

/// Simulated lower tiers.
#[derive(Default)]
pub(super) struct SimulatedTiers {
    limits: [TierLimits; 2],
    /// The units of the other server.
    pub(super) peer: Copies,
    host: Copies,
    pub(super) disk: Copies,
    /// Units that are there and not reported.
    stored: VecDeque<(Tier, UnitId)>,
    pub(super) fetching: VecDeque<(FetchId, Tier, Vec<UnitContent>)>,
    /// The units of the read that is being reported.
    fetched: Vec<Copied>,
}

impl SimulatedTiers {
    fn tier(&mut self, tier: Tier) -> &mut Copies {
        match tier {
            Tier::Host => &mut self.host,
            Tier::Disk => &mut self.disk,
            Tier::Peer => &mut self.peer,
        }
    }

    pub(super) fn demote(&mut self, id: UnitId) {
        let content = self.host.remove(&id).expect("a unit that is moved is in host memory");
        self.disk.insert(id, content);
        self.stored.push_back((Tier::Disk, id));
    }

    pub(super) fn discard(&mut self, tier: Tier, id: UnitId) {
        self.tier(tier).remove(&id);
    }

    pub(super) fn is_busy(&self) -> bool {
        !self.stored.is_empty() || !self.fetching.is_empty()
    }

    /// Loses what a tier has of a kind, without a report.
    pub(super) fn lose(&mut self, tier: Tier, kind: UnitKind) {
        self.tier(tier).retain(|id, _| id.kind != kind);
    }
}

/// Another server.
pub(super) fn peer() -> Arc<PeerAddress> {
    Arc::new(PeerAddress { host: "peer".to_owned(), port: 1 })
}

fn kept(id: UnitId) -> KeptUnit {
    KeptUnit { id, is_portable: true }
}

/// A state takes as much as two blocks.
const OF_UNIT: UnitBytes = UnitBytes { block: 1, state: 2 };

impl World {
    /// Starts a host and a disk tier for these numbers of blocks.
    pub(super) fn start_tiers(&mut self, blocks: [usize; 2]) {
        let of_unit = if self.has_no_kv { UnitBytes { block: 0, ..OF_UNIT } } else { OF_UNIT };
        self.tiers.limits = blocks.map(|blocks| TierLimits { bytes: blocks as u64, arriving: 4, piece: 3, of_unit });
        self.connect_tiers();
    }

    /// Reports what the tiers hold to a new policy. There are none where layers keep windows.
    pub(super) fn connect_tiers(&mut self) {
        if self.limits.window.is_some() {
            return;
        }
        for (tier, limits) in Tier::ALL.into_iter().zip(self.tiers.limits) {
            let mut units: Vec<_> = self.tiers.tier(tier).keys().copied().map(kept).collect();
            units.sort_unstable();
            self.on(PolicyEvent::Tier(tier, TierReport::Ready(limits, units)));
        }
        let limits = TierLimits { piece: 3, of_unit: self.tiers.limits[0].of_unit, ..TierLimits::default() };
        self.on(PolicyEvent::Tier(Tier::Peer, TierReport::Ready(limits, Vec::new())));
    }

    pub(super) fn store(&mut self, copies: Vec<UnitCopy>) {
        for UnitCopy { unit, content, to } in copies {
            let copied = match unit {
                CacheUnit::Block(block) => Copied::Block(std::array::from_fn(|position| self.kv[&(block, position)])),
                CacheUnit::State(slot) => Copied::State(self.states[&slot]),
            };
            self.tiers.tier(to).insert(content.id(), copied);
            self.tiers.peer.insert(content.id(), copied);
            self.tiers.stored.push_back((to, content.id()));
        }
    }

    /// Reports the units that have arrived.
    pub(super) fn keep_stored(&mut self) {
        for (tier, id) in std::mem::take(&mut self.tiers.stored) {
            self.on(PolicyEvent::Tier(tier, TierReport::Kept(vec![kept(id)])));
        }
    }

    /// The oldest unit that has not been reported does not arrive.
    pub(super) fn refuse_stored(&mut self, is_full: bool) {
        let Some((tier, id)) = self.tiers.stored.pop_front() else { return };
        self.tiers.discard(tier, id);
        self.on(PolicyEvent::Tier(tier, TierReport::Refused(vec![id])));
        if is_full {
            self.on(PolicyEvent::Tier(tier, TierReport::Full));
        }
    }

    /// Finishes the oldest read, of which at most `most` units are found.
    pub(super) fn fetch(&mut self, most: usize) {
        let Some((fetch, tier, units)) = self.tiers.fetching.pop_front() else { return };
        assert!(units.iter().all(|unit| unit.kind == units[0].kind), "a read is of one kind");
        let tier = self.tiers.tier(tier);
        let found: Vec<Copied> = units.iter().take(most).map_while(|unit| tier.get(&unit.id()).copied()).collect();
        let found_units = Found { units: found.len(), next_is_lost: found.len() < units.len() };
        self.tiers.fetched = found;
        let elapsed = Duration::from_micros(10 * units.len() as u64);
        self.on(PolicyEvent::Fetched { fetch, found: found_units, elapsed });
    }

    pub(super) fn fetch_times_out(&mut self) {
        if let Some((fetch, ..)) = self.tiers.fetching.front() {
            self.on(PolicyEvent::FetchTimedOut(*fetch));
        }
    }

    pub(super) fn write(&mut self, _fetch: FetchId, units: &[CacheUnit]) {
        assert_eq!(units.len(), self.tiers.fetched.len());
        for (unit, copied) in units.iter().zip(std::mem::take(&mut self.tiers.fetched)) {
            match (*unit, copied) {
                (CacheUnit::Block(block), Copied::Block(content)) => {
                    let contents = content.into_iter().enumerate();
                    self.kv.extend(contents.map(|(position, hash)| ((block, position), hash)));
                }
                (CacheUnit::State(slot), Copied::State(hash)) => drop(self.states.insert(slot, hash)),
                (unit, _) => panic!("{unit:?} gets a copy of another kind"),
            }
        }
    }

    /// Computes a prompt and a few tokens, and ends.
    pub(super) fn compute(&mut self, submission: Submission) {
        self.submit(submission, 4);
        self.run_out();
    }

    pub(super) fn tier_counts(&self, tier: Tier) -> crate::core::tier::TierCounts {
        self.policy.counts().tiers[tier as usize]
    }

    /// As [`World::start_tiers`], and everything that is sent to a tier arrives there.
    pub(super) fn start_fast_tiers(&mut self, blocks: [usize; 2]) {
        self.start_tiers(blocks);
        self.tiers.limits.iter_mut().for_each(|tier| tier.arriving = 64);
        self.connect_tiers();
    }
}

/// A world whose device holds one prompt of 100 tokens.
fn world(tiers: [usize; 2]) -> World {
    let limits = EngineLimits { kv_blocks: 7, ..limits() };
    let mut world = World::new(PolicyConfig { prefill_chunk_tokens: 64, ..CONFIG }, limits);
    world.start_fast_tiers(tiers);
    world
}

#[test]
fn a_prompt_is_loaded_from_the_host_instead_of_computed() {
    let mut world = world([40, 0]);
    world.compute(submission(1, 100));
    world.compute(submission(2, 100));
    assert!(world.tier_counts(Tier::Host).blocks.present > 0, "the second prompt evicted the first");
    let before = world.rows_computed;
    world.compute(Submission { id: RequestId(3), ..submission(1, 100) });
    assert_eq!(world.cached[&RequestId(3)], 96);
    assert_eq!(world.rows_computed - before, 4 + 3, "the rest of the prompt and three of the tokens");
    world.assert_all_ended();
}

#[test]
fn what_the_host_gives_up_is_loaded_from_the_disk() {
    let mut world = world([3, 40]);
    (1..=4).for_each(|id| world.compute(submission(id, 100)));
    assert_eq!(world.tier_counts(Tier::Host).blocks.present, 3);
    assert!(world.tier_counts(Tier::Disk).blocks.present >= 12);
    world.compute(Submission { id: RequestId(9), ..submission(1, 100) });
    assert_eq!(world.cached[&RequestId(9)], 96);
    assert_eq!(world.tier_counts(Tier::Disk).blocks.loaded, 6);
}

#[test]
fn other_requests_go_on_while_one_waits_for_its_blocks() {
    let mut world = world([40, 0]);
    world.compute(submission(1, 60));
    world.compute(submission(2, 100));
    world.submit(Submission { id: RequestId(3), ..submission(1, 60) }, 4);
    assert_eq!(world.tiers.fetching.len(), 1);
    world.submit(submission(4, 20), 2);
    world.finish_step();
    world.sample(false);
    assert!(world.cached.contains_key(&RequestId(4)) && !world.cached.contains_key(&RequestId(3)));
    world.run_out();
    assert_eq!(world.cached[&RequestId(3)], 48);
    world.assert_all_ended();
}

#[test]
fn a_lost_block_ends_the_load_and_the_rest_is_computed() {
    let mut world = world([40, 0]);
    world.compute(submission(1, 100));
    world.compute(submission(2, 100));
    world.submit(Submission { id: RequestId(3), ..submission(1, 100) }, 4);
    world.fetch(2);
    world.run_out();
    assert_eq!((world.cached[&RequestId(3)], world.tier_counts(Tier::Host).blocks.lost), (32, 1));
    world.assert_all_ended();
}

#[test]
fn a_slow_read_is_given_up_and_its_late_result_is_ignored() {
    let mut world = world([40, 0]);
    world.compute(submission(1, 100));
    world.compute(submission(2, 100));
    world.submit(Submission { id: RequestId(3), ..submission(1, 100) }, 4);
    world.fetch_times_out();
    world.run_out();
    assert_eq!(world.cached[&RequestId(3)], 0);
    world.assert_all_ended();
}

pub(super) fn from_peer() -> KvTransfer {
    KvTransfer { from: Some(peer()), shared_at: None }
}

/// A world whose peer has computed a prompt of 100 tokens for it.
fn world_with_peer() -> World {
    let mut first = world([40, 0]);
    first.compute(Submission { kv_transfer: KvTransfer { from: None, shared_at: Some(peer()) }, ..submission(1, 100) });
    assert_eq!(
        first.tier_counts(Tier::Host).blocks.present,
        6,
        "nothing was evicted, and yet the prompt is in host memory"
    );
    let mut second = world([0, 0]);
    second.tiers.peer = std::mem::take(&mut first.tiers.peer);
    second
}

#[test]
fn a_prompt_that_another_server_has_computed_is_loaded_from_it() {
    let mut world = world_with_peer();
    world.compute(Submission { kv_transfer: from_peer(), ..submission(1, 100) });
    assert_eq!((world.cached[&RequestId(1)], world.tier_counts(Tier::Peer).blocks.loaded), (96, 6));
    assert_eq!(world.rows_computed, 4 + 3);
    world.compute(Submission { id: RequestId(2), ..submission(1, 100) });
    assert_eq!(world.cached[&RequestId(2)], 96, "it is in the prefix cache now");
    world.assert_all_ended();
}

#[test]
fn a_prompt_is_loaded_only_from_the_server_that_its_request_names() {
    let mut world = world_with_peer();
    world.compute(submission(1, 100));
    world.compute(Submission { kv_transfer: from_peer(), ..submission(2, 100) });
    assert_eq!((world.cached[&RequestId(1)], world.cached[&RequestId(2)]), (0, 0));
    assert_eq!(world.tier_counts(Tier::Peer).blocks.lost, 1, "the server does not have the second prompt");
    world.assert_all_ended();
}

#[test]
fn what_another_server_does_not_send_in_time_is_computed_and_not_asked_for_again() {
    for fault in [|world: &mut World| world.fetch(2), |world: &mut World| world.fetch_times_out()] {
        let mut world = world_with_peer();
        world.submit(Submission { kv_transfer: from_peer(), ..submission(1, 100) }, 4);
        fault(&mut world);
        world.tiers.fetching.clear();
        world.lose_executor(false);
        world.restart_executor();
        assert!(world.tiers.fetching.is_empty());
        world.run_out();
        assert!(world.tier_counts(Tier::Peer).blocks.lost >= 1);
        world.assert_all_ended();
    }
}

/// A request that another server is asked about.
fn at_peer(id: u64, port: u16) -> Submission {
    let from = Some(Arc::new(PeerAddress { host: "peer".to_owned(), port }));
    Submission { kv_transfer: KvTransfer { from, shared_at: None }, ..submission(id, 40) }
}

#[test]
fn a_silent_server_delays_no_load_from_elsewhere() {
    let limits = EngineLimits { kv_blocks: 48, max_sequences: 16, ..limits() };
    let mut world = World::new(CONFIG, limits);
    world.start_tiers([80, 0]);
    world.tiers.limits[0].arriving = 80;
    world.connect_tiers();
    world.compute(submission(1, 60));
    (20..30).for_each(|id| world.compute(submission(id, 100)));
    (2..8).for_each(|id| world.submit(at_peer(id, 1), 2));
    assert_eq!(world.tiers.fetching.len(), 4, "two wait for the server");
    world.submit(at_peer(8, 2), 2);
    assert_eq!(world.tiers.fetching.len(), 5, "another server is asked");
    world.submit(Submission { id: RequestId(9), ..submission(1, 60) }, 2);
    assert!(world.tiers.fetching.iter().any(|(_, tier, _)| *tier == Tier::Host), "host memory waits for nothing");
    for _ in 0..4 {
        world.fetch_times_out();
        world.tiers.fetching.pop_front();
    }
    let ports = world.tiers.fetching.iter().filter(|(_, tier, _)| *tier == Tier::Peer).count();
    assert_eq!(ports, 3, "the two that waited are asked about now");
    world.run_out();
    world.assert_all_ended();
}

#[test]
fn the_time_limit_of_a_read_that_was_given_up_ends_no_other() {
    let mut world = world([40, 0]);
    world.compute(submission(1, 100));
    world.compute(submission(2, 100));
    world.submit(Submission { id: RequestId(3), ..submission(1, 100) }, 4);
    let (old, ..) = world.tiers.fetching.pop_front().unwrap();
    let rank = *world.policy.running.iter().find(|rank| rank.id == RequestId(3)).unwrap();
    let mut effects = Vec::new();
    world.policy.preempt(rank, &mut effects);
    world.perform(effects);
    world.on(PolicyEvent::UnitsWritten { bytes: 1, elapsed: Duration::from_micros(1) });
    assert_eq!(world.tiers.fetching.len(), 1, "it is loaded again");
    world.on(PolicyEvent::FetchTimedOut(old));
    world.run_out();
    assert_eq!(world.cached[&RequestId(3)], 96);
    world.assert_all_ended();
}

#[test]
fn no_server_is_asked_when_blocks_are_loaded_from_none() {
    let mut world = World::new(CONFIG, limits());
    world.submit(Submission { kv_transfer: from_peer(), ..submission(1, 60) }, 4);
    assert!(world.tiers.fetching.is_empty());
    world.run_out();
    world.assert_all_ended();
}

#[test]
fn salts_and_adapters_keep_their_blocks_to_themselves() {
    let scoped = |id, salt: Option<&str>, key: Option<(u64, u32)>| Submission {
        id: RequestId(id),
        scope: PrefixScope { salt: salt.map(Into::into), adapter: key.map(adapter) },
        ..submission(1, 60)
    };
    let mut world = world([40, 40]);
    world.compute(scoped(1, Some("mine"), None));
    world.compute(submission(7, 100));
    world.compute(submission(8, 100));
    for (id, salt, adapter) in [(2, None, None), (3, Some("yours"), None), (4, Some("mine"), Some((5, 0)))] {
        world.compute(scoped(id, salt, adapter));
        assert_eq!(world.cached[&RequestId(id)], 0);
        world.compute(submission(10 + id, 100));
    }
    world.compute(scoped(5, Some("mine"), None));
    assert_eq!(world.cached[&RequestId(5)], 48);
}

#[test]
fn blocks_of_an_adapter_go_to_the_disk_if_other_processes_know_the_adapter() {
    let by_number = AdapterIdentity::Process(5);
    for (identity, stored) in [(by_number, 0), (AdapterIdentity::Content([5; 32]), 6)] {
        let mut world = world([0, 40]);
        let scope = PrefixScope { salt: None, adapter: Some(ScopeAdapter { identity, ..adapter((5, 0)) }) };
        world.compute(Submission { scope, ..submission(1, 100) });
        world.compute(submission(2, 100));
        assert_eq!(world.tier_counts(Tier::Disk).blocks.stored, stored, "{identity:?}");
    }
}

#[test]
fn blocks_are_computed_where_that_is_faster_than_loading_them() {
    let mut world = world([40, 0]);
    world.compute(submission(1, 100));
    world.compute(submission(2, 100));
    // 16 tokens take less than 0.1 s, and a block takes as long to write.
    for blocks in 1..8 {
        world.on(PolicyEvent::UnitsWritten { bytes: blocks, elapsed: Duration::from_millis(100) * blocks as u32 });
    }
    world.compute(Submission { id: RequestId(3), ..submission(1, 100) });
    assert_eq!(world.cached[&RequestId(3)], 0);
    assert_eq!(world.tier_counts(Tier::Host).blocks.declined, 6);
}

#[test]
fn a_long_prompt_is_not_judged_by_the_time_of_a_few_rows() {
    let mut world = world([40, 0]);
    world.compute(submission(1, 100));
    world.compute(submission(2, 100));
    world.replace_scheduler(false, false);
    world.compute(submission(7, 3));
    for blocks in 1..8 {
        world.on(PolicyEvent::UnitsWritten { bytes: blocks, elapsed: Duration::from_millis(10) * blocks as u32 });
    }
    world.compute(Submission { id: RequestId(3), ..submission(1, 100) });
    assert_eq!(world.cached[&RequestId(3)], 96);
}

#[test]
fn tiers_outlive_the_executor_and_the_scheduler() {
    for faults in
        [|world: &mut World| world.lose_executor(false), |world: &mut World| world.replace_scheduler(false, false)]
    {
        let mut world = world([40, 0]);
        world.compute(submission(1, 100));
        world.compute(submission(2, 100));
        faults(&mut world);
        world.restart_executor();
        world.compute(Submission { id: RequestId(3), ..submission(1, 100) });
        assert_eq!(world.cached[&RequestId(3)], 96);
        world.assert_all_ended();
    }
}

#[test]
fn before_a_shutdown_all_blocks_are_copied_to_the_disk() {
    let mut world = world([40, 80]);
    (1..=3).for_each(|id| world.compute(submission(id, 100)));
    assert_eq!(world.tier_counts(Tier::Disk).blocks.present, 0);
    world.on(PolicyEvent::Drain);
    assert!(!world.policy.is_drained());
    world.run_out();
    assert!(world.policy.is_drained());
    assert_eq!(world.tier_counts(Tier::Disk).blocks.present, 18, "six blocks of each prompt");
    let mut next = self::world([0, 80]);
    next.tiers.disk = std::mem::take(&mut world.tiers.disk);
    next.connect_tiers();
    for id in 1..=3 {
        next.compute(Submission { id: RequestId(id + 10), ..submission(id, 100) });
        assert_eq!(next.cached[&RequestId(id + 10)], 96);
    }
}

#[test]
fn a_shutdown_copies_the_most_recent_blocks_when_the_disk_is_small() {
    let mut world = world([40, 6]);
    (1..=2).for_each(|id| world.compute(submission(id, 100)));
    world.on(PolicyEvent::Drain);
    world.run_out();
    let mut next = self::world([0, 6]);
    next.tiers.disk = std::mem::take(&mut world.tiers.disk);
    next.connect_tiers();
    next.compute(Submission { id: RequestId(9), ..submission(2, 100) });
    assert_eq!(next.cached[&RequestId(9)], 96);
}

#[test]
fn a_full_disk_holds_what_it_has() {
    let mut world = world([0, 40]);
    (1..=3).for_each(|id| world.compute(submission(id, 100)));
    let held = world.tier_counts(Tier::Disk).bytes;
    world.submit(submission(4, 100), 4);
    world.refuse_stored(true);
    world.run_out();
    (5..=7).for_each(|id| world.compute(submission(id, 100)));
    let counts = world.tier_counts(Tier::Disk);
    assert!(counts.bytes <= held + 6 && counts.capacity_bytes <= held + 6, "{counts:?}");
    assert!(counts.blocks.dropped >= 1 && counts.blocks.stored > held);
}

#[test]
fn a_block_that_arrives_before_its_tier_is_ready_is_not_given_up() {
    let mut world = World::new(CONFIG, limits());
    let block = vec![kept(UnitId { block: BlockHash([7; 32]), kind: UnitKind::Block })];
    let arrived = PolicyEvent::Tier(Tier::Disk, TierReport::Kept(block.clone()));
    assert_eq!(world.policy.on(arrived), [], "it was sent by an earlier scheduler");
    let limits = TierLimits { bytes: 9, arriving: 4, piece: 3, of_unit: OF_UNIT };
    let ready = PolicyEvent::Tier(Tier::Disk, TierReport::Ready(limits, block));
    let effects = world.policy.on(ready);
    assert!(!effects.iter().any(|effect| matches!(effect, Effect::Tier(_))), "{effects:?}");
    assert_eq!(world.tier_counts(Tier::Disk).blocks.present, 1);
}
