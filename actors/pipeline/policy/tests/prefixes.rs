//! Tests of the prefix cache, and of requests that wait for a common prefix.

use super::*;

/// Runs one request to its end and returns the number of computed rows.
fn rows_for(world: &mut World, submission: Submission, generate: usize) -> usize {
    let before = world.rows_computed;
    world.submit(submission, generate);
    world.run_out();
    world.rows_computed - before
}

#[test]
fn the_next_message_of_a_conversation_computes_only_new_tokens() {
    let mut world = World::new(PolicyConfig { prefill_chunk_tokens: 512, ..CONFIG }, large_limits());
    assert_eq!(rows_for(&mut world, submission(1, 100), 5), 100 + 4);
    let mut prompt = world.requests[&RequestId(1)].tokens.clone();
    prompt.extend(0..10);
    let second = Submission { id: RequestId(2), prompt, ..submission(1, 1) };
    assert_eq!(rows_for(&mut world, second, 1), 115 - 96);
    assert_eq!(world.cached[&RequestId(2)], 96, "the cache also contains the tokens of the answer");
}

#[test]
fn tenants_do_not_share_cached_prefixes() {
    let mut world = World::new(PolicyConfig { prefill_chunk_tokens: 512, ..CONFIG }, large_limits());
    let of = |id: u64, salt: &str| Submission {
        id: RequestId(id),
        scope: PrefixScope { salt: Some(salt.into()), adapter: None },
        ..submission(1, 64)
    };
    assert_eq!(rows_for(&mut world, of(1, "a"), 1), 64);
    assert_eq!(rows_for(&mut world, of(2, "b"), 1), 64);
    assert_eq!(rows_for(&mut world, of(3, "a"), 1), 16, "all except the block of the last token");
}

#[test]
fn sequences_share_cached_prefixes_only_with_those_of_the_same_adapter_and_scale() {
    let mut world = World::new(PolicyConfig { prefill_chunk_tokens: 512, ..CONFIG }, large_limits());
    let of = |id: u64, key: Option<(u64, u32)>| Submission {
        id: RequestId(id),
        scope: PrefixScope { salt: None, adapter: key.map(adapter) },
        ..submission(1, 64)
    };
    for (id, adapter) in [(1, None), (2, Some((7, 1))), (3, Some((8, 1))), (4, Some((7, 2)))] {
        assert_eq!(rows_for(&mut world, of(id, adapter), 1), 64, "request {id}");
    }
    assert_eq!(rows_for(&mut world, of(5, Some((7, 1))), 1), 16);
}

#[test]
fn several_answers_compute_their_common_prompt_once() {
    let config = PolicyConfig { prefill_chunk_tokens: 32, steps_in_flight: 2, ..CONFIG };
    let mut world = World::new(config, large_limits());
    for id in 1..=8 {
        world.submit(Submission { id: RequestId(id), ..submission(1, 200) }, 1);
    }
    let used = world.policy.counts().blocks_used;
    world.run_out();
    world.assert_all_ended();
    assert_eq!(used, 13, "the others wait for the first");
    assert_eq!(world.rows_computed, 200 + 7 * 8);
}

#[test]
fn a_request_does_not_wait_for_a_prefix_that_a_request_behind_it_computes() {
    let limits = EngineLimits { max_batched_tokens: 32, ..large_limits() };
    let mut world = World::new(PolicyConfig { prefill_chunk_tokens: 32, ..CONFIG }, limits);
    world.submit(Submission { priority: 1, ..submission(1, 400) }, 1);
    for _ in 0..2 {
        world.finish_step();
        world.sample(false);
    }
    // Each of these takes a whole step from the one behind them.
    let urgent = |id: u64| submission(id, 32);
    world.submit(urgent(2), 1);
    world.submit(Submission { id: RequestId(3), ..submission(1, 300) }, 1);
    for id in 4..8 {
        world.submit(urgent(id), 1);
        world.finish_step();
        world.sample(false);
    }
    assert!(world.cached.contains_key(&RequestId(3)), "it comes before the later ones: {:?}", world.cached);
    world.run_out();
    world.assert_all_ended();
}

#[test]
fn a_request_that_waits_for_a_prefix_continues_when_the_other_is_cancelled() {
    let mut world = World::new(CONFIG, large_limits());
    world.submit(submission(1, 200), 1);
    world.submit(Submission { id: RequestId(2), ..submission(1, 200) }, 1);
    for _ in 0..10 {
        world.finish_step();
        world.sample(false);
    }
    assert_eq!(world.policy.counts().waiting, 1);
    world.on(PolicyEvent::Cancel(RequestId(1)));
    world.run_out();
    world.assert_all_ended();
    assert_eq!(world.requests[&RequestId(2)].end, Some(End::Sampled));
    assert!(world.cached[&RequestId(2)] > 0, "it uses what was computed until then");
}
