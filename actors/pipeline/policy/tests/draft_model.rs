//! The draft model: fewer steps and the same tokens, whatever it answers and whenever it is lost.

use super::*;
use crate::core::draft::{DraftReply, DraftRequest};

const CONFIGURED: PolicyConfig =
    PolicyConfig { speculation: SpeculationMode::Auto, steps_in_flight: 2, prefill_chunk_tokens: 512, ..CONFIG };

/// A machine on which a row costs a tenth of a step, and a draft model that takes this time per token.
fn world(draft_time: Duration, accuracy: u64) -> World {
    let mut world = World::new(CONFIGURED, EngineLimits { max_sequences: 32, max_logits_rows: 256, ..large_limits() });
    world.machine = Machine {
        base: Duration::from_millis(9),
        per_row: Duration::from_millis(1),
        per_attended: Duration::ZERO,
        saturation: None,
    };
    world.draft_model = Some(DraftModel { accuracy, token_time: draft_time, asked: Default::default() });
    world.on(PolicyEvent::DrafterReady);
    world
}

/// Runs `count` requests of 60 tokens to their end, and returns the number of steps.
fn run(world: &mut World, count: u64) -> usize {
    for id in 1..=count {
        world.submit(submission(id, 4), 60);
    }
    let mut steps = 0;
    while world.draft() || !(world.computing.is_empty() && world.sampling.is_empty()) {
        world.finish_step();
        world.sample(false);
        steps += 1;
        assert!(steps < 1000, "the requests do not end");
    }
    world.assert_all_ended();
    steps
}

fn tokens_of(world: &World, id: u64) -> Vec<TokenId> {
    world.requests[&RequestId(id)].tokens.clone()
}

#[test]
fn good_drafts_that_cost_little_take_fewer_steps() {
    let mut plain = World::new(CONFIGURED, large_limits());
    plain.submit(submission(1, 4), 60);
    let plain_steps = plain.run_out();
    let mut drafted = world(Duration::from_micros(100), 100);
    let steps = run(&mut drafted, 1);
    assert!(3 * steps < plain_steps, "{steps} of {plain_steps} steps");
    assert_eq!(tokens_of(&plain, 1), tokens_of(&drafted, 1));
}

#[test]
fn drafts_are_given_up_when_they_are_wrong_or_take_too_long() {
    for (draft_time, accuracy) in [(Duration::from_micros(100), 0), (Duration::from_millis(20), 100)] {
        let mut world = world(draft_time, accuracy);
        run(&mut world, 1);
        let asked = world.draft_model.as_ref().map_or(0, |model| model.asked.len());
        assert!(asked < 20, "asked {asked} times with {draft_time:?} and accuracy {accuracy}");
    }
}

#[test]
fn sequences_that_run_together_are_asked_about_together() {
    let mut world = world(Duration::from_micros(100), 100);
    let steps = run(&mut world, 4);
    assert!(steps < 40, "{steps} steps for four times 60 tokens");
}

#[test]
fn a_long_prompt_is_computed_by_the_draft_model_next_to_the_steps() {
    let mut world = world(Duration::from_micros(100), 100);
    world.submit(submission(1, 300), 60);
    world.finish_step();
    world.sample(false);
    world.finish_step();
    world.sample(false);
    let DraftRequest { draws, tokens, .. } = world.drafting.front().unwrap();
    assert_eq!((draws.len(), tokens.len()), (0, 301));
    assert!(!world.computing.is_empty(), "the steps go on");
    world.draft();
    world.finish_step();
    world.sample(false);
    assert!(world.drafting.front().is_some_and(|request| !request.draws.is_empty()));
    assert!(world.computing.is_empty(), "the next step waits for the draft");
}

#[test]
fn a_lost_draft_model_delays_no_step() {
    let mut world = world(Duration::from_micros(100), 100);
    world.submit(submission(1, 4), 60);
    while world.drafting.is_empty() {
        world.finish_step();
        world.sample(false);
    }
    assert!(world.computing.is_empty());
    let lost = world.drafting.pop_front().unwrap();
    world.on(PolicyEvent::DrafterLost);
    assert!(!world.computing.is_empty());
    let late = DraftReply { id: lost.id, length: lost.tokens.len(), tokens: Some(vec![1]), token_time: None };
    world.on(PolicyEvent::Drafted(late));
    world.run_out();
    world.assert_all_ended();
}

#[test]
fn a_text_that_is_too_long_for_the_draft_model_continues_without() {
    let mut world = world(Duration::from_micros(100), 100);
    world.submit(submission(1, 4), 60);
    while world.drafting.is_empty() {
        world.finish_step();
        world.sample(false);
    }
    let DraftRequest { id, tokens, .. } = world.drafting.pop_front().unwrap();
    world.on(PolicyEvent::Drafted(DraftReply { id, length: tokens.len(), tokens: None, token_time: None }));
    assert_eq!(world.run_out(), 59);
    assert!(world.drafting.is_empty());
}
