//! Drafts: fewer steps, the same tokens, and no draft where it does not pay.

use super::*;

/// Runs `count` requests of 60 tokens each with repeated text. Returns their tokens, the number of steps, and the time
/// that the device took.
fn run(speculation: SpeculationMode, machine: Machine, count: u64, repeats: bool) -> (World, usize, Duration) {
    let config = PolicyConfig { speculation, steps_in_flight: 2, prefill_chunk_tokens: 512, ..CONFIG };
    let mut world = World::new(config, EngineLimits { max_sequences: 32, max_logits_rows: 256, ..large_limits() });
    (world.machine, world.repeats) = (machine, repeats);
    for id in 1..=count {
        world.submit(submission(id, 4), 60);
    }
    let (mut steps, mut elapsed) = (0, Duration::ZERO);
    while !(world.computing.is_empty() && world.sampling.is_empty()) {
        elapsed += world.computing.front().map_or(Duration::ZERO, |planned| machine.elapsed(&planned.step));
        world.finish_step();
        world.sample(false);
        steps += 1;
    }
    world.assert_all_ended();
    (world, steps, elapsed)
}

fn texts(world: &World) -> Vec<Vec<TokenId>> {
    let mut ids: Vec<_> = world.requests.keys().copied().collect();
    ids.sort_unstable();
    ids.iter().map(|id| world.requests[id].tokens.clone()).collect()
}

/// A machine on which a row costs this fraction of the time of a step with one row.
fn machine(row: f64) -> Machine {
    let step = Duration::from_millis(10);
    Machine {
        base: step.mul_f64(1.0 - row),
        per_row: step.mul_f64(row),
        per_attended: Duration::ZERO,
        saturation: None,
    }
}

#[test]
fn repeated_text_takes_fewer_steps_and_is_the_same() {
    for mode in [SpeculationMode::Auto, SpeculationMode::Ngram] {
        for count in [1, 5] {
            let (plain, plain_steps, plain_time) = run(SpeculationMode::Off, machine(0.1), count, true);
            let (drafted, steps, time) = run(mode, machine(0.1), count, true);
            assert_eq!(texts(&plain), texts(&drafted));
            assert!(drafted.accepted > 0);
            // With several requests the one that repeats least decides.
            assert!(count > 1 || 10 * steps < 8 * plain_steps, "{mode:?}: {steps} of {plain_steps} steps");
            assert!(count > 1 || time < plain_time, "{mode:?}: {time:?} of {plain_time:?}");
        }
    }
}

#[test]
fn drafts_that_do_not_pay_are_given_up() {
    // A row costs as much as a step.
    let (_, steps, time) = run(SpeculationMode::Auto, machine(1.0), 1, true);
    let (_, plain_steps, plain_time) = run(SpeculationMode::Off, machine(1.0), 1, true);
    assert_eq!((steps, time), (plain_steps, plain_time));
    // Text that does not repeat is hardly ever matched.
    let (world, ..) = run(SpeculationMode::Auto, machine(0.1), 1, false);
    assert_eq!(world.accepted, 0);
}

#[test]
fn a_request_may_turn_drafts_off() {
    let config = PolicyConfig { speculation: SpeculationMode::Ngram, ..CONFIG };
    let mut world = World::new(config, large_limits());
    world.repeats = true;
    let speculation = SpeculationOptions { is_off: true, ..SpeculationOptions::default() };
    world.submit(Submission { speculation, ..submission(1, 4) }, 60);
    world.run_out();
    assert_eq!(world.accepted, 0);
}

#[test]
fn the_answer_that_a_client_expects_is_verified_from_the_first_token_on() {
    let (plain, ..) = run(SpeculationMode::Off, machine(0.1), 1, false);
    let tokens = texts(&plain).remove(0);
    let config = PolicyConfig { speculation: SpeculationMode::Auto, ..CONFIG };
    let mut world = World::new(config, large_limits());
    // One token of the expected answer is another.
    let mut prediction = tokens[4..].to_vec();
    prediction[30] = 999;
    let speculation = SpeculationOptions { is_off: false, prediction: prediction.into() };
    world.submit(Submission { speculation, ..submission(1, 4) }, 60);
    let steps = world.run_out();
    assert_eq!(world.requests[&RequestId(1)].tokens, tokens);
    assert!(steps < 15, "{steps} steps for 60 tokens");
}

#[test]
fn an_answer_to_an_earlier_request_of_the_same_scope_is_a_draft() {
    for (salt, repeats_the_scope) in [(None, true), (Some("other".into()), false)] {
        for mode in [SpeculationMode::Auto, SpeculationMode::Ngram] {
            let mut world = World::new(PolicyConfig { speculation: mode, ..CONFIG }, large_limits());
            world.machine = machine(0.1);
            world.submit(submission(1, 4), 60);
            let first = world.run_out();
            let scope = PrefixScope { salt: salt.clone(), ..PrefixScope::default() };
            world.submit(Submission { id: RequestId(2), scope, ..submission(1, 4) }, 60);
            let second = world.run_out();
            assert_eq!(world.requests[&RequestId(1)].tokens, world.requests[&RequestId(2)].tokens);
            assert_eq!(second < first / 2, repeats_the_scope, "{mode:?}: {second} steps after {first}");
            assert_eq!(world.accepted > 0, repeats_the_scope);
        }
    }
}

/// Forced tokens are computed with the next tokens, several rows at a time.
#[test]
fn forced_tokens_take_fewer_steps_than_sampled_ones() {
    let steps = [false, true].map(|forces| {
        let mut world = World::new(PolicyConfig { speculation: SpeculationMode::Off, ..CONFIG }, large_limits());
        world.forces = forces;
        (1..=4).for_each(|id| world.submit(submission(id, 20), 150));
        let steps = world.run_out();
        world.assert_all_ended();
        assert_eq!(world.forced > 100, forces, "{}", world.forced);
        // A request that ends with a forced token needs no row for the one before it.
        assert!(world.rows_computed <= 4 * (20 + 150 - 1), "a token is computed twice: {}", world.rows_computed);
        steps
    });
    assert!(steps[1] * 10 < steps[0] * 9, "{steps:?}");
}
