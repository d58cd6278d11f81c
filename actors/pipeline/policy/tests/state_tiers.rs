//! Lower tiers of a model with recurrent state: a prompt continues where both the state and the blocks before it are found, in
//! whatever tier. That each row starts from the right state and keys is checked by the simulation in every test.

use cuelight_engine::engine::UnitKind;

use super::recurrent::{cached, tokens};
use super::tiers::{from_peer, peer};
use super::*;
use crate::core::tier::Tier;

/// A world with this many blocks and slots. A prompt of 100 tokens takes 7 blocks, and its last checkpoint is at 80.
fn world(kv_blocks: usize, state_slots: usize, tiers: [usize; 2]) -> World {
    let limits = EngineLimits { kv_blocks, state_slots, context_tokens: 512, ..limits() };
    let mut world = World::new(PolicyConfig { prefill_chunk_tokens: 64, ..CONFIG }, limits);
    world.start_fast_tiers(tiers);
    world
}

fn again(id: u64, like: u64) -> Submission {
    Submission { id: RequestId(id), ..submission(like, 100) }
}

/// Units that were loaded from a tier: blocks and states.
fn loaded(world: &World, tier: Tier) -> (u64, u64) {
    let counts = world.tier_counts(tier);
    (counts.blocks.loaded, counts.states.loaded)
}

#[test]
fn a_prompt_and_the_state_after_it_are_loaded_from_the_host() {
    let mut world = world(7, 3, [40, 0]);
    world.compute(submission(1, 100));
    world.compute(submission(2, 100));
    let before = world.rows_computed;
    world.compute(again(3, 1));
    assert_eq!((world.cached[&RequestId(3)], loaded(&world, Tier::Host)), (80, (5, 1)));
    assert_eq!(world.rows_computed - before, 20 + 3, "the rest of the prompt and three of the tokens");
    world.compute(again(4, 1));
    // The third one made a checkpoint at the end of the blocks that it found.
    assert_eq!((world.cached[&RequestId(4)], loaded(&world, Tier::Host)), (96, (5, 1)));
    world.assert_all_ended();
}

#[test]
fn a_state_alone_is_loaded_when_its_blocks_are_on_the_device() {
    let mut world = world(40, 2, [40, 0]);
    (1..=3).for_each(|id| world.compute(submission(id, 100)));
    world.compute(again(4, 1));
    assert_eq!((world.cached[&RequestId(4)], loaded(&world, Tier::Host)), (80, (0, 1)));
    world.assert_all_ended();
}

#[test]
fn what_the_host_gives_up_is_loaded_from_the_disk() {
    let mut world = world(7, 3, [3, 80]);
    (1..=4).for_each(|id| world.compute(submission(id, 100)));
    world.compute(again(9, 1));
    assert_eq!((world.cached[&RequestId(9)], loaded(&world, Tier::Disk)), (80, (5, 1)));
}

#[test]
fn an_answer_is_continued_from_its_checkpoint_in_a_tier() {
    let mut world = world(10, 4, [60, 0]);
    cached(&mut world, 1, &tokens(1, 100), 40);
    let next = [world.requests[&RequestId(1)].tokens.clone(), tokens(2, 10)].concat();
    cached(&mut world, 2, &tokens(3, 150), 1);
    assert_eq!(cached(&mut world, 3, &next, 1), 128);
}

#[test]
fn a_state_without_its_blocks_and_blocks_without_their_state_are_of_no_use() {
    for (lost, states_loaded) in [(UnitKind::Block, 1), (UnitKind::State, 0)] {
        let mut world = world(7, 3, [40, 0]);
        world.compute(submission(1, 100));
        world.compute(submission(2, 100));
        world.tiers.lose(Tier::Host, lost);
        world.compute(again(3, 1));
        let counts = world.tier_counts(Tier::Host);
        assert_eq!((world.cached[&RequestId(3)], counts[lost].lost), (0, 1), "{lost:?}");
        assert_eq!(counts.states.loaded, states_loaded);
        world.assert_all_ended();
    }
}

#[test]
fn without_the_last_state_the_one_before_it_is_loaded() {
    let mut world = world(10, 4, [60, 0]);
    cached(&mut world, 1, &tokens(1, 100), 40);
    let next = [world.requests[&RequestId(1)].tokens.clone(), tokens(2, 10)].concat();
    cached(&mut world, 2, &tokens(3, 150), 1);
    world.submit(Submission { id: RequestId(3), prompt: next, ..submission(1, 1) }, 1);
    world.fetch(0);
    world.run_out();
    assert_eq!((world.cached[&RequestId(3)], world.tier_counts(Tier::Host).states.lost), (80, 1));
}

#[test]
fn a_slow_read_is_given_up_and_not_tried_again() {
    let mut world = world(7, 3, [40, 0]);
    world.compute(submission(1, 100));
    world.compute(submission(2, 100));
    world.submit(again(3, 1), 4);
    world.fetch_times_out();
    world.tiers.fetching.clear();
    assert!(!world.computing.is_empty(), "it is computed");
    world.run_out();
    assert_eq!((world.cached[&RequestId(3)], loaded(&world, Tier::Host)), (0, (0, 0)));
    world.assert_all_ended();
}

#[test]
fn other_requests_go_on_while_one_waits_for_its_state() {
    let mut world = world(14, 4, [40, 0]);
    world.compute(submission(1, 100));
    world.compute(submission(2, 100));
    world.compute(submission(5, 100));
    world.submit(again(3, 1), 4);
    assert_eq!(world.tiers.fetching.len(), 1);
    world.submit(submission(4, 20), 2);
    world.finish_step();
    world.sample(false);
    assert!(world.cached.contains_key(&RequestId(4)) && !world.cached.contains_key(&RequestId(3)));
    world.run_out();
    assert_eq!(world.cached[&RequestId(3)], 80);
    world.assert_all_ended();
}

#[test]
fn a_state_that_two_requests_need_is_read_once() {
    // Their blocks are in the tier as well, or on the device.
    for (kv_blocks, slots) in [(14, 4), (40, 3)] {
        let mut world = world(kv_blocks, slots, [60, 0]);
        (1..=4).for_each(|id| world.compute(submission(id, 100)));
        world.submit(again(11, 1), 4);
        world.submit(again(12, 1), 4);
        assert_eq!(world.tiers.fetching.len(), 1);
        world.run_out();
        assert_eq!(world.cached[&RequestId(11)], 80);
        assert!(world.cached[&RequestId(12)] >= 80, "the first one may have made a later checkpoint by then");
        assert_eq!(world.tier_counts(Tier::Host).states.loaded, 1);
        world.assert_all_ended();
    }
}

#[test]
fn a_lost_executor_or_a_new_scheduler_ends_a_load() {
    for fault in [
        |world: &mut World| {
            world.lose_executor(false);
            world.restart_executor();
        },
        |world: &mut World| world.replace_scheduler(false, false),
    ] {
        let mut world = world(7, 3, [40, 0]);
        world.compute(submission(1, 100));
        world.compute(submission(2, 100));
        world.submit(again(3, 1), 4);
        world.fetch(1);
        fault(&mut world);
        world.run_out();
        assert_eq!(world.cached[&RequestId(3)], 80);
        world.assert_all_ended();
    }
}

#[test]
fn prompts_with_a_beginning_in_common_get_a_checkpoint_there() {
    let mut world = world(13, 4, [80, 0]);
    let system = tokens(1, 128);
    let found = [2, 3, 4].map(|seed| {
        let prompt = [system.clone(), tokens(seed, 60)].concat();
        let found = cached(&mut world, seed as u64, &prompt, 1);
        cached(&mut world, seed as u64 + 10, &tokens(seed + 10, 190), 1);
        found
    });
    assert_eq!(found, [0, 0, 128], "the blocks in the tier show where the second one parts from the first");
}

#[test]
fn before_a_shutdown_states_are_copied_to_the_disk_with_their_blocks() {
    let mut world = world(14, 6, [40, 80]);
    (1..=3).for_each(|id| world.compute(submission(id, 100)));
    world.on(PolicyEvent::Drain);
    world.run_out();
    assert!(world.policy.is_drained());
    assert_eq!(world.tier_counts(Tier::Disk).states.present, 3);
    let mut next = self::world(14, 6, [0, 80]);
    next.tiers.disk = std::mem::take(&mut world.tiers.disk);
    next.connect_tiers();
    for id in 1..=3 {
        next.compute(again(id + 10, id));
        assert_eq!(next.cached[&RequestId(id + 10)], 80);
    }
    assert_eq!(loaded(&next, Tier::Disk), (15, 3));
}

#[test]
fn a_prompt_that_another_server_has_computed_is_loaded_from_it_with_its_state() {
    let mut first = world(40, 6, [40, 0]);
    first.compute(Submission { kv_transfer: KvTransfer { from: None, shared_at: Some(peer()) }, ..submission(1, 100) });
    let counts = first.tier_counts(Tier::Host);
    assert_eq!((counts.blocks.present, counts.states.present), (6, 1), "nothing was evicted");
    for (lost, expected) in [(None, 80), (Some(UnitKind::Block), 0), (Some(UnitKind::State), 0)] {
        let mut second = world(40, 6, [0, 0]);
        second.tiers.peer.clone_from(&first.tiers.peer);
        lost.into_iter().for_each(|kind| second.tiers.lose(Tier::Peer, kind));
        second.compute(Submission { kv_transfer: from_peer(), ..submission(1, 100) });
        assert_eq!(second.cached[&RequestId(1)], expected);
        let counts = second.tier_counts(Tier::Peer);
        assert_eq!(counts.states.loaded, u64::from(lost != Some(UnitKind::State)));
        assert_eq!(counts.blocks.lost + counts.states.lost, u64::from(lost.is_some()), "it is not asked again");
        second.assert_all_ended();
    }
}

#[test]
fn a_model_without_keys_and_values_keeps_its_states_only() {
    let mut world = World::new(CONFIG, EngineLimits { kv_blocks: 7, state_slots: 3, ..limits() });
    world.has_no_kv = true;
    world.start_fast_tiers([8, 40]);
    (1..=5).for_each(|id| world.compute(submission(id, 100)));
    for (id, like, tier) in [(11, 4, Tier::Host), (12, 1, Tier::Disk)] {
        world.compute(again(id, like));
        assert_eq!(world.cached[&RequestId(id)], 80);
        assert!(loaded(&world, tier).1 > 0, "{tier}");
    }
    assert_eq!(world.tier_counts(Tier::Host).blocks.stored, 0);
    world.on(PolicyEvent::Drain);
    world.run_out();
    assert!(world.policy.is_drained());
    world.assert_all_ended();
}

#[test]
fn a_state_that_is_larger_than_a_tier_is_not_kept_there() {
    let mut world = world(7, 3, [1, 0]);
    world.compute(submission(1, 100));
    world.compute(submission(2, 100));
    let counts = world.tier_counts(Tier::Host);
    assert_eq!((counts.states.stored, counts.blocks.present), (0, 1));
    assert!(counts.states.dropped > 0);
    world.compute(again(3, 1));
    assert_eq!(world.cached[&RequestId(3)], 0);
}

#[test]
fn a_state_is_not_loaded_where_computing_is_faster() {
    let mut world = world(7, 3, [40, 0]);
    world.compute(submission(1, 100));
    world.compute(submission(2, 100));
    for bytes in 1..8 {
        world.on(PolicyEvent::UnitsWritten { bytes, elapsed: Duration::from_millis(100) * bytes as u32 });
    }
    world.compute(again(3, 1));
    let counts = world.tier_counts(Tier::Host);
    assert_eq!((world.cached[&RequestId(3)], counts.states.declined), (0, 1));
}
