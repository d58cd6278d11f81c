//! Requests whose tokens are denoised in blocks.

use cuelight_engine::engine::{BLOCK_TOKENS, CanvasLimits, DenoisedRow, SampledToken, Step};
use cuelight_engine::sample::{Denoised, Denoising, DenoisingRule};
use proptest::prelude::*;

use super::random::action;
use super::world::{End, RequestState, World, hash, next_token};
use super::*;

const BLOCK: usize = 6;

const DENOISING: Denoising = Denoising {
    rule: DenoisingRule {
        tokens: BLOCK,
        max_steps: 5,
        least_temperature: 0.4,
        greatest_temperature: 0.8,
        entropy_bound: 0.1,
        stable_steps: 1,
        confident_entropy: 0.005,
    },
    sampling: RowSamplingParams::GREEDY,
    seed: 3,
    vocab_size: 1000,
};

fn canvas_limits() -> EngineLimits {
    let canvas = Some(CanvasLimits { tokens: BLOCK, width: 1 });
    EngineLimits { canvas, max_logits_rows: 2 * BLOCK, ..limits() }
}

fn world(config: PolicyConfig, limits: EngineLimits) -> World {
    let mut world = World::new(config, limits);
    world.denoising = Some(DENOISING);
    world
}

/// The steps of the block at a position.
fn steps_at(position: usize) -> usize {
    2 + position % 3
}

/// Adds a step to a block, whose tokens follow from those before it.
pub(super) fn denoise(state: &mut RequestState, CanvasTask { denoising, block }: CanvasTask, stops: bool) -> Verdict {
    assert_eq!(block.position, state.tokens.len());
    let mut text = state.tokens.clone();
    while text.len() < block.position + BLOCK {
        text.push(next_token(&text, false));
    }
    let steps = block.steps + 1;
    let entropy = if steps >= steps_at(block.position) { 0.0 } else { 1.0 };
    let row = |best: &TokenId| DenoisedRow { best: *best, sampled: SampledToken::Token(*best), entropy };
    let rows: Vec<_> = text[block.position..].iter().map(row).collect();
    let finished = match denoising.advance(block, &rows).unwrap() {
        Denoised::Again(block) => return Verdict::Denoised(CanvasState { block, hidden: [steps as f32].into() }),
        Denoised::Finished(tokens) => tokens,
    };
    for token in &finished {
        state.tokens.push(*token);
        if state.tokens.len() >= state.until || (stops && token.is_multiple_of(97)) {
            state.end = Some(End::Sampled);
            return Verdict::Ended;
        }
    }
    Verdict::Tokens(finished)
}

impl World {
    /// Checks that a canvas comes after all tokens of its sequence, and has what the step before returned.
    pub(super) fn check_canvas(&self, step: &Step, task: &SampleTask, CanvasTask { denoising, block }: &CanvasTask) {
        let state = &self.requests[&task.id];
        let is_of_task =
            |rows: &&cuelight_engine::engine::SequenceRows| rows.tokens == block.tokens && rows.canvas.is_some();
        let rows = step.sequences.iter().filter(is_of_task).find(|rows| rows.first_position as usize == block.position);
        let rows = rows.expect("the rows of a canvas are in the step");
        let given: Vec<f32> = (block.steps > 0).then_some(block.steps as f32).into_iter().collect();
        assert_eq!((&rows.hidden, rows.canvas.as_ref()), (&given, Some(&denoising.canvas(block))));
        assert_eq!((task.first_position, task.hidden_rows, task.rows), (block.position, BLOCK, 0));
        if state.end.is_none() {
            assert_eq!(state.tokens.len(), block.position);
        }
        let before = block.position - 1;
        let expected = state.tokens[..=before].iter().fold(0, |before, &token| hash(before, token));
        let slot = (rows.block_table[before / BLOCK_TOKENS], before % BLOCK_TOKENS);
        assert_eq!(self.kv[&slot], expected, "{:?} was computed from wrong blocks", task.id);
    }
}

#[test]
fn a_block_is_a_canvas_in_some_steps_and_then_part_of_the_prompt() {
    let mut world = world(CONFIG, canvas_limits());
    world.submit(submission(1, 9), 2 * BLOCK);
    let mut rows = Vec::new();
    while !world.computing.is_empty() {
        rows.push((world.rows_per_sequence()[0], world.computing[0].step.sequences[0].canvas.is_some()));
        world.finish_step();
        world.sample(false);
    }
    world.assert_all_ended();
    let prompt = [(7, false), (2, false)];
    let first = [(BLOCK, true); 2];
    let commit = [(BLOCK, false)];
    let second = [(BLOCK, true); 2];
    assert_eq!(rows, [&prompt[..], &first, &commit, &second].concat());
}

#[test]
fn canvases_share_steps_with_prompts_and_with_each_other() {
    let mut world = world(CONFIG, canvas_limits());
    for id in 1..=3 {
        world.submit(submission(id, 5), BLOCK);
    }
    world.finish_step();
    world.sample(false);
    world.submit(submission(4, 20), BLOCK);
    let mut most = 0;
    while !world.computing.is_empty() {
        most = most.max(world.rows_per_sequence().len());
        world.finish_step();
        world.sample(false);
    }
    assert!(most >= 3, "two canvases and a prompt");
    world.assert_all_ended();
}

#[test]
fn a_prompt_without_space_for_a_block_is_refused() {
    let mut policy = Policy::new(CONFIG, canvas_limits());
    let of = |id, tokens| Submission { denoising: Some(DENOISING), max_tokens: 1, ..submission(id, tokens) };
    assert!(policy.submit(of(1, 128 - BLOCK)).is_ok());
    assert!(matches!(policy.submit(of(2, 129 - BLOCK)), Err(SubmitError::ContextLengthExceeded { .. })));
    assert_eq!((policy.context_tokens_after(100), policy.context_tokens_after(122)), (124, 128));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]
    #[test]
    fn every_request_ends_once_with_the_tokens_of_its_blocks(
        actions in prop::collection::vec(action(), 1..300),
        chunk in prop::sample::select(vec![1usize, 7, 512]),
        steps_in_flight in 1usize..4,
        steps_at_executor in 1usize..3,
        prefix_cache in any::<bool>(),
        kv_blocks in 8usize..40,
        tiers in [0usize..30, 0usize..60],
    ) {
        let config = PolicyConfig {
            prefill_chunk_tokens: chunk, steps_in_flight, steps_at_executor, prefix_cache,
            speculation: SpeculationMode::Auto, ..CONFIG
        };
        let mut world = world(config, EngineLimits { kv_blocks, ..canvas_limits() });
        world.stops = true;
        world.start_tiers(tiers);
        actions.into_iter().for_each(|action| world.act(action));
        world.run_out();
        world.assert_all_ended();
        for (id, state) in &world.requests {
            let mut text = state.tokens[..state.prompt_tokens].to_vec();
            while text.len() < state.tokens.len() {
                text.push(next_token(&text, false));
            }
            prop_assert_eq!(&text, &state.tokens, "{:?}", id);
            let stopped = state.tokens.last().is_some_and(|token| token.is_multiple_of(97));
            prop_assert!(state.end != Some(End::Sampled) || state.tokens.len() == state.until || stopped, "{:?}", id);
        }
    }
}
