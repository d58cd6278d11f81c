//! Requests for the hidden values of their prompt.

use cuelight_engine::engine::{BLOCK_TOKENS, HiddenLimits, HiddenRows};

use super::world::World;
use super::*;

fn embedding(id: u64, tokens: usize, rows: HiddenRows) -> Submission {
    Submission { hidden: Some(rows), ..submission(id, tokens) }
}

/// Limits of an engine that returns at most `max_rows` rows of hidden values.
fn hidden(max_rows: usize, whole_sequences: bool) -> EngineLimits {
    EngineLimits { hidden: HiddenLimits { width: 4, max_rows, whole_sequences, ..HiddenLimits::default() }, ..limits() }
}

#[test]
fn a_mean_needs_every_row_and_the_last_token_only_the_last_chunk() {
    for (rows, returned) in [(HiddenRows::All, [5, 5, 2]), (HiddenRows::Last, [0, 0, 1])] {
        let mut world = World::new(PolicyConfig { prefill_chunk_tokens: 5, ..CONFIG }, hidden(6, false));
        world.submit(embedding(1, 12, rows), 0);
        for expected in returned {
            assert_eq!(world.computing[0].step.hidden_rows(), expected);
            world.finish_step();
            world.sample(false);
        }
        world.assert_all_ended();
        assert_eq!(world.policy.counts().blocks_cached, 0, "nothing of it is kept");
    }
}

#[test]
fn rows_before_the_first_that_is_needed_return_nothing_and_come_from_the_cache() {
    let mut world = World::new(PolicyConfig { prefill_chunk_tokens: 50, ..CONFIG }, hidden(6, false));
    let from = 2 * BLOCK_TOKENS + 3;
    let text = |id| Submission { id: RequestId(id), hidden_from: from, ..embedding(1, from + 8, HiddenRows::All) };
    let rows = |world: &mut World, id| {
        world.submit(text(id), 0);
        let mut rows = Vec::new();
        while let Some(planned) = world.computing.front() {
            rows.push((planned.step.rows(), planned.step.hidden_rows()));
            world.finish_step();
            world.sample(false);
        }
        rows
    };
    assert_eq!(rows(&mut world, 1), [(32, 0), (3, 0), (6, 6), (2, 2)]);
    assert_eq!(rows(&mut world, 2), [(3, 0), (6, 6), (2, 2)], "the blocks before are known");
    world.assert_all_ended();
}

#[test]
fn rows_of_hidden_values_are_limited_in_each_step() {
    let mut world = World::new(PolicyConfig { prefill_chunk_tokens: 64, ..CONFIG }, hidden(8, false));
    for id in 1..=4 {
        world.submit(embedding(id, 10, HiddenRows::All), 0);
    }
    world.run_out();
    world.assert_all_ended();
}

#[test]
fn texts_whose_rows_see_later_rows_are_never_divided() {
    let limits = EngineLimits { max_logits_rows: 0, ..hidden(32, true) };
    let mut world = World::new(CONFIG, limits.clone());
    for id in 1..=12 {
        world.submit(embedding(id, 3 + (id as usize * 13) % 30, HiddenRows::All), 0);
    }
    while let Some(planned) = world.computing.front() {
        assert!(planned.step.sequences.iter().all(|rows| rows.first_position == 0));
        world.finish_step();
        world.sample(false);
    }
    world.assert_all_ended();
    let mut world = World::new(CONFIG, limits);
    world.submit(embedding(1, 30, HiddenRows::First), 0);
    let step = &world.computing[0].step;
    assert_eq!((step.rows(), step.hidden_rows()), (30, 1), "more rows than a chunk has");
}

#[test]
fn steps_say_where_the_second_text_of_a_sequence_begins() {
    let mut world = World::new(CONFIG, hidden(32, true));
    world.submit(Submission { second_text: Some(4), ..embedding(1, 9, HiddenRows::All) }, 0);
    assert_eq!(world.computing[0].step.sequences[0].second_text, Some(4));
    world.run_out();
    world.assert_all_ended();
}

#[test]
fn they_share_steps_with_requests_that_generate() {
    let mut world = World::new(CONFIG, hidden(4, false));
    world.submit(submission(1, 3), 20);
    world.finish_step();
    world.sample(false);
    world.submit(embedding(2, 6, HiddenRows::Last), 0);
    world.finish_step();
    world.sample(false);
    assert_eq!(world.rows_per_sequence(), [1, 6]);
    world.run_out();
    world.assert_all_ended();
}

#[test]
fn a_text_of_several_chunks_ends_although_there_is_only_its_own_slot_of_state() {
    for rows in [HiddenRows::All, HiddenRows::Last] {
        let limits = EngineLimits { state_slots: 1, max_batched_tokens: 64, ..hidden(64, false) };
        let mut world = World::new(PolicyConfig { prefill_chunk_tokens: 64, ..CONFIG }, limits);
        world.submit(embedding(1, 80, rows), 0);
        world.run_out();
        world.assert_all_ended();
    }
}

#[test]
fn what_a_model_does_not_make_is_refused() {
    let refused = |limits: EngineLimits, submission: Submission| match Policy::new(CONFIG, limits).submit(submission) {
        Err(SubmitError::InvalidPrompt(reason)) => reason,
        other => panic!("{other:?}"),
    };
    assert!(refused(limits(), embedding(1, 3, HiddenRows::All)).contains("no embeddings"));
    let only = EngineLimits { max_logits_rows: 0, ..hidden(8, false) };
    assert!(refused(only, submission(1, 3)).contains("generates no text"));
    let mut policy = Policy::new(CONFIG, hidden(64, true));
    let refusal = policy.submit(Submission { max_tokens: 0, ..embedding(1, 33, HiddenRows::All) }).unwrap_err();
    assert_eq!(refusal, SubmitError::ContextLengthExceeded { prompt_tokens: 33, context_tokens: 32 });
}
