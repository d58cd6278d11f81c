//! Tests of the slots of recurrent state: what checkpoints save, and that a request never waits for a slot forever. That each
//! row starts from the right state is checked by the simulation in every test with slots.

use super::*;

fn with_slots(state_slots: usize) -> World {
    let config = PolicyConfig { prefill_chunk_tokens: 512, steps_in_flight: 2, ..CONFIG };
    World::new(config, EngineLimits { state_slots, ..large_limits() })
}

/// Runs one request to its end and returns how many tokens of its prompt came from the cache.
pub(super) fn cached(world: &mut World, id: u64, prompt: &[TokenId], generate: usize) -> usize {
    world.submit(Submission { id: RequestId(id), prompt: prompt.to_vec(), ..submission(1, 1) }, generate);
    world.run_out();
    world.cached[&RequestId(id)]
}

pub(super) fn tokens(seed: usize, count: usize) -> Vec<TokenId> {
    (0..count).map(|i| ((seed * 37 + i * 11) % 1000) as TokenId).collect()
}

#[test]
fn the_next_message_of_a_conversation_continues_from_the_end_of_the_last() {
    let mut world = with_slots(20);
    let prompt = tokens(1, 100);
    assert_eq!(cached(&mut world, 1, &prompt, 40), 0);
    // The answer is repeated, with checkpoints at multiples of 64 tokens.
    let next = [world.requests[&RequestId(1)].tokens.clone(), tokens(2, 10)].concat();
    assert_eq!(cached(&mut world, 2, &next, 1), 128);
    // The history has another answer, and the prompt lacks its last tokens.
    let other = [prompt[..95].to_vec(), tokens(3, 30)].concat();
    assert_eq!(cached(&mut world, 3, &other, 1), 80);
    assert_eq!(cached(&mut world, 4, &prompt, 1), 80, "the same prompt again");
}

#[test]
fn a_prefix_that_two_prompts_shared_is_a_checkpoint_for_the_third() {
    let mut world = with_slots(20);
    let system = tokens(1, 128);
    let prompt = |seed| [system.clone(), tokens(seed, 60)].concat();
    assert_eq!([2, 3, 4, 5].map(|seed| cached(&mut world, seed as u64, &prompt(seed), 1)), [0, 0, 128, 128]);
}

/// Six requests with a long beginning in common compute it once.
pub(super) fn check_common_prefix(mut world: World) {
    let system = tokens(1, 192);
    for id in 1..=6 {
        let prompt = [system.clone(), tokens(id + 10, 20)].concat();
        world.submit(Submission { id: RequestId(id as u64), prompt, ..submission(1, 1) }, 1);
    }
    world.run_out();
    world.assert_all_ended();
    assert_eq!(world.rows_computed, 192 + 6 * 20);
}

#[test]
fn requests_that_arrive_together_compute_their_common_prefix_once() {
    check_common_prefix(with_slots(20));
}

#[test]
fn with_one_slot_for_each_sequence_everything_ends_and_nothing_is_cached() {
    for slots in 1..4 {
        let mut world = with_slots(slots);
        for id in 1..=7 {
            world.submit(Submission { id: RequestId(id), ..submission(1 + id % 2, 100) }, 30);
        }
        assert!(world.policy.counts().running <= slots);
        world.run_out();
        world.assert_all_ended();
        let counts = world.policy.counts();
        assert_eq!(counts.slots_used, counts.slots_cached, "only checkpoints are left");
    }
}

#[test]
fn accepted_drafts_keep_the_state_after_them() {
    for slots in [2, 3, 20] {
        let config = PolicyConfig { speculation: SpeculationMode::Ngram, ..CONFIG };
        let mut world = World::new(config, EngineLimits { state_slots: slots, max_logits_rows: 256, ..large_limits() });
        world.repeats = true;
        world.submit(submission(1, 4), 200);
        world.submit(submission(2, 4), 200);
        world.run_out();
        world.assert_all_ended();
        assert_eq!(world.accepted > 0, slots > 2, "without a spare slot there are no drafts");
    }
}
