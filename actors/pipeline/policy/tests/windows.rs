//! Tests of layers that keep windows: what they save, what of a prompt is found again, and that a request never waits for a window
//! forever. That each row finds the positions that it reads is checked by the simulation in every test with windows.

use cuelight_engine::engine::WindowLimits;
use cuelight_engine::memory::WindowNeeds;

use super::recurrent::{cached, check_common_prefix, tokens};
use super::*;

/// Windows of 32 positions, with memory for steps of 64 rows, for `sequences` sequences and for `more` blocks.
fn with_windows(sequences: usize, more: usize) -> World {
    let config = PolicyConfig { prefill_chunk_tokens: 512, steps_in_flight: 2, ..CONFIG };
    let limits = EngineLimits { max_batched_tokens: 64, ..large_limits() };
    let needs = WindowNeeds { positions: 32, max_sequences: limits.max_sequences, max_batched_tokens: 64 };
    let blocks = needs.blocks_of_steps() + sequences * needs.blocks_of_sequence() + more;
    World::new(config, EngineLimits { window: Some(WindowLimits { positions: 32, blocks }), ..limits })
}

#[test]
fn a_long_text_uses_the_blocks_of_its_window() {
    let mut world = with_windows(1, 0);
    world.submit(submission(1, 900), 100);
    world.run_out();
    world.assert_all_ended();
    let counts = world.policy.counts();
    assert_eq!((counts.windows_used, counts.windows_total), (0, 15));
    assert!(counts.window_evictions > 40, "the first blocks gave theirs to the last");
}

#[test]
fn the_next_message_of_a_conversation_continues_after_its_end_and_after_its_prompt() {
    let mut world = with_windows(2, 12);
    let prompt = tokens(1, 200);
    assert_eq!(cached(&mut world, 1, &prompt, 60), 0);
    let other = tokens(9, 300);
    assert_eq!(cached(&mut world, 2, &other, 1), 0, "another conversation");
    let next = [world.requests[&RequestId(1)].tokens.clone(), tokens(2, 10)].concat();
    assert_eq!(cached(&mut world, 3, &next, 1), 256);
    let changed = [prompt[..195].to_vec(), tokens(3, 30)].concat();
    assert_eq!(cached(&mut world, 4, &changed, 1), 192, "the end of the prompt, whose answer is another one");
}

#[test]
fn a_prefix_that_two_prompts_shared_is_kept_for_the_third() {
    // Too few blocks to keep all that three prompts have passed.
    let mut world = with_windows(1, 4);
    let system = tokens(1, 256);
    let prompt = |seed| [system.clone(), tokens(seed, 300)].concat();
    assert_eq!([2, 3, 4, 5].map(|seed| cached(&mut world, seed as u64, &prompt(seed), 1)), [0, 0, 256, 256]);
}

#[test]
fn requests_that_arrive_together_compute_their_common_prefix_once() {
    check_common_prefix(with_windows(8, 0));
}

#[test]
fn no_more_sequences_run_than_have_a_window() {
    for sequences in 1..4 {
        let mut world = with_windows(sequences, 0);
        for id in 1..=7 {
            world.submit(Submission { id: RequestId(id), ..submission(1 + id % 2, 100) }, 30);
        }
        assert!(world.policy.counts().running <= sequences);
        world.run_out();
        world.assert_all_ended();
        assert_eq!(world.policy.counts().windows_used, 0);
    }
}
