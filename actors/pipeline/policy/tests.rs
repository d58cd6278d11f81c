//! Tests of the policy against a simulation of everything around it, which detects every wrong block, row and end.
#![allow(clippy::unwrap_used)]

mod canvases;
mod clients;
mod draft_model;
mod embeddings;
mod faults;
mod media;
mod prefixes;
mod prompts;
mod random;
mod recurrent;
mod speculation;
mod state_tiers;
mod tiers;
mod windows;
mod world;

use std::time::Duration;

use cuelight_engine::engine::{EngineLimits, LogitsWanted, RowSamplingParams, StepId, TokenId};

use self::world::*;
use super::*;
use crate::core::kv_transfer::KvTransfer;
use crate::core::prefix_scope::{AdapterIdentity, PrefixScope, ScopeAdapter};
use crate::core::request::{GenerationError, RequestId, SpeculationOptions, SubmitError};

fn limits() -> EngineLimits {
    EngineLimits {
        vocab_size: 1000,
        context_tokens: 128,
        kv_blocks: 12,
        max_batched_tokens: 32,
        max_sequences: 4,
        max_logits_rows: 8,
        device: "none".into(),
        ..EngineLimits::default()
    }
}

const CONFIG: PolicyConfig = PolicyConfig {
    prefill_chunk_tokens: 7,
    inter_token_target: Some(Duration::from_secs(3600)),
    prefill_step_limit: Duration::from_secs(3600),
    steps_in_flight: 1,
    steps_at_executor: 1,
    prefix_cache: true,
    reports_cache: true,
    speculation: SpeculationMode::Off,
    max_queued_tokens: usize::MAX,
    verify: true,
};

fn adapter((id, scale_bits): (u64, u32)) -> ScopeAdapter {
    ScopeAdapter { identity: AdapterIdentity::Process(id), scale_bits, name: "adapter".into() }
}

fn submission(id: u64, prompt_tokens: usize) -> Submission {
    let prompt = (0..prompt_tokens).map(|i| ((id as usize * 37 + i * 11) % 1000) as TokenId).collect();
    Submission::new(RequestId(id), prompt, 1000)
}

fn large_limits() -> EngineLimits {
    EngineLimits {
        kv_blocks: 64,
        context_tokens: 1024,
        max_batched_tokens: 256,
        max_sequences: 8,
        max_logits_rows: 64,
        ..limits()
    }
}

#[test]
fn two_requests_share_a_step_with_decode_rows_first() {
    let mut world = World::new(CONFIG, limits());
    world.submit(submission(1, 3), 10);
    world.finish_step();
    world.sample(false);
    world.submit(submission(2, 20), 10);
    world.finish_step();
    world.sample(false);
    assert_eq!(world.rows_per_sequence(), [1, 7], "one decode row, then a chunk of the prompt");
    world.run_out();
    world.assert_all_ended();
}

#[test]
fn cancel_frees_blocks_when_the_device_has_finished_the_step() {
    let mut world = World::new(CONFIG, limits());
    world.submit(submission(1, 40), 10);
    assert_eq!(world.policy.counts().blocks_used, 3);
    world.on(PolicyEvent::Cancel(RequestId(1)));
    assert_eq!(world.policy.counts().blocks_used, 3, "the device still writes to them");
    world.finish_step();
    assert_eq!(world.policy.counts().blocks_used, 0);
    world.assert_all_ended();
}

#[test]
fn cancel_between_steps_frees_blocks_at_once() {
    let mut world = World::new(CONFIG, limits());
    world.submit(submission(1, 5), 10);
    world.finish_step();
    world.on(PolicyEvent::Cancel(RequestId(1)));
    world.assert_all_ended();
    world.sample(false);
    world.assert_all_ended();
}

#[test]
fn without_free_blocks_the_last_request_in_rank_order_is_preempted() {
    let mut world = World::new(PolicyConfig { prefill_chunk_tokens: 64, ..CONFIG }, limits());
    world.submit(Submission { priority: 1, ..submission(1, 30) }, 60);
    world.submit(submission(2, 30), 60);
    world.submit(submission(3, 30), 60);
    while world.preempted == 0 {
        world.finish_step();
        world.sample(false);
    }
    let waiting: Vec<_> = world.policy.waiting.iter().map(|rank| rank.id.0).collect();
    assert_eq!(waiting, [1], "the oldest request, but of lower priority");
    world.run_out();
    world.assert_all_ended();
}

#[test]
fn a_request_that_cannot_fit_is_refused_with_the_sizes() {
    let mut policy = Policy::new(CONFIG, limits());
    let refused = policy.submit(submission(1, 128)).unwrap_err();
    assert_eq!(refused, SubmitError::ContextLengthExceeded { prompt_tokens: 128, context_tokens: 128 });
    assert!(policy.submit(Submission { max_tokens: 0, ..submission(2, 128) }).is_ok());
    assert!(matches!(policy.submit(submission(3, 0)), Err(SubmitError::InvalidPrompt(_))));
    let prompt = vec![1, 1000];
    assert!(matches!(policy.submit(Submission { prompt, ..submission(4, 1) }), Err(SubmitError::InvalidPrompt(_))));
    policy.on(PolicyEvent::Drain);
    assert!(matches!(policy.submit(submission(5, 1)), Err(SubmitError::Unavailable { .. })));
}

#[test]
fn scored_prompts_are_split_at_the_limit_of_logits_rows() {
    let mut world = World::new(PolicyConfig { prefill_chunk_tokens: 512, ..CONFIG }, limits());
    world.submit(Submission { scores_prompt: true, ..submission(1, 30) }, 3);
    assert_eq!(world.computing[0].step.logits_rows(), 8);
    assert_eq!(world.run_out(), 4 + 2, "30 rows in chunks of 8, then one token per step");
    world.assert_all_ended();
}

#[test]
fn the_engine_samples_from_the_first_allowed_token_on() {
    let engine = EngineSampling { params: RowSamplingParams::GREEDY, seed: 5, from: 22 };
    let mut world = World::new(CONFIG, limits());
    world.submit(Submission { engine_sampling: Some(engine), ..submission(1, 20) }, 4);
    let mut wanted = Vec::new();
    while let Some(planned) = world.computing.front() {
        wanted.extend(planned.step.sequences.iter().map(|rows| rows.logits));
        world.finish_step();
        world.sample(false);
    }
    wanted.retain(|wanted| *wanted != LogitsWanted::None);
    let random = |position| cuelight_engine::sample::Draw { seed: 5, position }.random();
    let token =
        |position| LogitsWanted::Token(RowSamplingParams { random: random(position), ..RowSamplingParams::GREEDY });
    assert_eq!(wanted, [LogitsWanted::Last, LogitsWanted::Last, token(22), token(23)]);
}

#[test]
fn a_step_is_formed_before_its_tokens_are_known() {
    let mut world = World::new(PolicyConfig { steps_in_flight: 2, ..CONFIG }, limits());
    world.submit(submission(1, 5), 3);
    world.finish_step();
    let next = &world.computing[0];
    assert_eq!(next.awaits, [AwaitedToken { sequence: 0, id: RequestId(1), from: StepId(0) }]);
    world.finish_step();
    assert_eq!(world.computing.len(), 1, "without its token it cannot be computed");
    world.sample_tokens(false);
    world.finish_step();
    assert_eq!(world.computing.len(), 0, "two are in flight already");
    world.deliver();
    assert_eq!(world.computing.len(), 1);
    world.run_out();
    world.assert_all_ended();
    assert_eq!(world.rows_computed, 5 + 2);
}
