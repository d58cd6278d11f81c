//! Models that generate blocks of tokens: compared with transformers, and invariant under everything around them.
//!
//! `tests/generate/diffusion.py` writes the file and the expected values.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};

use cuelight_engine::engine::{
    Canvas, DenoisedRow, Engine, LogitsWanted, Progress, RowSamplingParams, SampledToken, SequenceRows, Step, StepId,
    StepOutput, TokenId,
};
use cuelight_engine::load::{ComputeDevice, Kernel, KvType, LoadOptions, plan};
use cuelight_engine::sample::{Denoised, Denoising, DenoisingRule};
use serde::Deserialize;

/// Mean distance of entropies and expected embeddings from those of transformers, with float32 weights and a float32 cache.
const GATE: f64 = 1e-4;

#[derive(Deserialize)]
struct Expected {
    prompts: Vec<Prompt>,
}

#[derive(Deserialize)]
struct Prompt {
    tokens: Vec<TokenId>,
    rows: Vec<Rows>,
    generated: Vec<Generated>,
}

/// A step of a canvas, which follows from the one before it.
#[derive(Deserialize)]
struct Rows {
    canvas: Vec<TokenId>,
    temperature: f32,
    best: Vec<TokenId>,
    margins: Vec<f64>,
    entropies: Vec<f64>,
    /// The first values of each row.
    means: Vec<Vec<f64>>,
}

/// Blocks, and the steps that each took.
#[derive(Deserialize)]
struct Generated {
    seed: u64,
    tokens: Vec<TokenId>,
    steps: Vec<usize>,
}

fn file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/diffusion/diffusion-gemma.gguf")
}

fn expected() -> Vec<Prompt> {
    let bytes = std::fs::read(file().with_extension("json")).unwrap();
    serde_json::from_slice::<Expected>(&bytes).unwrap().prompts
}

/// An engine and the rule of its blocks.
fn load(path: &Path, kernel: Kernel, kv_type: KvType, threads: usize) -> (Box<dyn Engine>, DenoisingRule) {
    let options = LoadOptions {
        kv_type,
        context_tokens: Some(256),
        threads,
        kernel,
        device: ComputeDevice::Cpu.into(),
        ..LoadOptions::new(path)
    };
    let plan = plan(&options).unwrap_or_else(|error| panic!("{error}"));
    let rule = plan.card().denoising.unwrap();
    (plan.load_engine(&mut |_| {}).unwrap(), rule)
}

fn rows(tokens: &[TokenId], position: usize, first_block: u32) -> SequenceRows {
    SequenceRows {
        tokens: tokens.to_vec(),
        first_position: position as u32,
        block_table: (first_block..first_block + 12).collect(),
        ..SequenceRows::default()
    }
}

fn canvas_rows(tokens: &[TokenId], position: usize, first_block: u32, canvas: Canvas, hidden: &[f32]) -> SequenceRows {
    let (logits, hidden) = (LogitsWanted::All, hidden.to_vec());
    SequenceRows { canvas: Some(canvas), logits, hidden, ..rows(tokens, position, first_block) }
}

fn run(engine: &mut dyn Engine, sequences: Vec<SequenceRows>) -> StepOutput {
    match engine.begin(Step { id: StepId(0), sequences }).unwrap() {
        Progress::Done(output) => output,
        Progress::AwaitExperts(_) => panic!("the engine computes its experts"),
    }
}

fn greedy(temperature: f32, rows: usize) -> Canvas {
    Canvas { temperature, sampling: RowSamplingParams::GREEDY, draws: vec![0; rows] }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// The distances of entropies and of expected embeddings for the canvases of a prompt that is computed in chunks.
fn distances(engine: &mut dyn Engine, prompt: &Prompt, chunk: usize) -> [Vec<f64>; 2] {
    let (mut entropies, mut means, mut hidden) = (Vec::new(), Vec::new(), Vec::new());
    for (index, tokens) in prompt.tokens.chunks(chunk).enumerate() {
        run(engine, vec![rows(tokens, index * chunk, 0)]);
    }
    let width = engine.limits().canvas.unwrap().width;
    for step in &prompt.rows {
        let canvas = greedy(step.temperature, step.canvas.len());
        let output = run(engine, vec![canvas_rows(&step.canvas, prompt.tokens.len(), 0, canvas, &hidden)]);
        assert_eq!((output.denoised.len(), output.logits.len()), (step.canvas.len(), 0));
        for (index, DenoisedRow { best, sampled, entropy }) in output.denoised.iter().enumerate() {
            assert_eq!(*sampled, SampledToken::Token(*best));
            assert!(*best == step.best[index] || step.margins[index] < GATE, "row {index}");
            entropies.push((f64::from(*entropy) - step.entropies[index]).abs());
            let found = &output.hidden[index * width..];
            means.extend(
                step.means[index].iter().zip(found).map(|(expected, found)| (f64::from(*found) - expected).abs()),
            );
        }
        hidden = output.hidden;
    }
    [entropies, means]
}

#[test]
fn canvases_agree_with_transformers_on_every_kernel() {
    for kernel in Kernel::ALL.iter().copied().filter(|kernel| kernel.is_supported()) {
        let (mut engine, _) = load(&file(), kernel, KvType::F32, 1);
        let mut worst = [0.0_f64; 2];
        for prompt in expected() {
            for chunk in [1, 7, 512] {
                let means = distances(&mut *engine, &prompt, chunk).map(|distances| mean(&distances));
                worst = [0, 1].map(|kind| worst[kind].max(means[kind]));
            }
        }
        println!("{kernel}: mean distance of entropies {:.1e}, of embeddings {:.1e}", worst[0], worst[1]);
        assert!(worst.iter().all(|worst| *worst <= GATE), "{kernel}: {worst:?}");
    }
}

/// Generates blocks as the pipeline does: a canvas until it is finished, then its tokens.
fn generate(engine: &mut dyn Engine, denoising: Denoising, prompt: &[TokenId], blocks: usize) -> Generated {
    let (mut tokens, mut steps) = (prompt.to_vec(), Vec::new());
    let mut computed = 0;
    for _ in 0..blocks {
        run(engine, vec![rows(&tokens[computed..], computed, 0)]);
        computed = tokens.len();
        let (mut block, mut hidden) = (denoising.begin(computed), Vec::new());
        let finished = loop {
            let canvas = denoising.canvas(&block);
            let output = run(engine, vec![canvas_rows(&block.tokens, computed, 0, canvas, &hidden)]);
            hidden = output.hidden;
            steps.push(block.steps + 1);
            match denoising.advance(block, &output.denoised).unwrap() {
                Denoised::Again(next) => block = next,
                Denoised::Finished(tokens) => break tokens,
            }
            steps.pop();
        };
        tokens.extend(finished);
    }
    Generated { seed: denoising.seed, tokens: tokens.split_off(prompt.len()), steps }
}

/// transformers' `generate` with the random numbers of Cuelight gives the same blocks in as many steps.
#[test]
fn blocks_are_those_of_transformers() {
    let (mut engine, rule) = load(&file(), Kernel::detect(), KvType::F32, 1);
    let sampling = RowSamplingParams { temperature: 1.0, ..RowSamplingParams::GREEDY };
    let vocab_size = engine.limits().vocab_size;
    for prompt in expected() {
        for Generated { seed, tokens, steps } in &prompt.generated {
            let denoising = Denoising { rule, sampling, seed: *seed, vocab_size };
            let found = generate(&mut *engine, denoising, &prompt.tokens, steps.len());
            assert_eq!((&found.tokens, &found.steps), (tokens, steps), "{} tokens, seed {seed}", prompt.tokens.len());
        }
    }
}

#[test]
fn a_canvas_does_not_depend_on_its_neighbours_threads_or_chunks() {
    for (kernel, kv_type) in Kernel::ALL
        .iter()
        .copied()
        .filter(|kernel| kernel.is_supported())
        .flat_map(|kernel| KvType::ALL.iter().map(move |kv_type| (kernel, *kv_type)))
    {
        let prompts = expected();
        let step = &prompts[2].rows[0];
        let before = prompts[2].tokens.len();
        let canvas = || {
            let mut canvas = greedy(step.temperature, step.canvas.len());
            canvas.sampling.temperature = 0.7;
            canvas.draws = (1..=step.canvas.len() as u64).map(|row| row.wrapping_mul(0x9E37_79B9_7F4A_7C15)).collect();
            canvas
        };
        let (mut alone, _) = load(&file(), kernel, kv_type, 1);
        run(&mut *alone, vec![rows(&prompts[2].tokens, 0, 0)]);
        let expected = run(&mut *alone, vec![canvas_rows(&step.canvas, before, 0, canvas(), &[])]);
        let (mut shared, _) = load(&file(), kernel, kv_type, 2);
        for (index, tokens) in prompts[2].tokens.chunks(7).enumerate() {
            run(&mut *shared, vec![rows(&prompts[1].tokens[..index + 1], 0, 12), rows(tokens, index * 7, 0)]);
        }
        let other = canvas_rows(&step.canvas, 5, 24, greedy(0.5, step.canvas.len()), &[]);
        run(&mut *shared, vec![rows(&prompts[0].tokens, 0, 24)]);
        let sequences =
            vec![rows(&prompts[1].tokens[..9], 0, 12), other, canvas_rows(&step.canvas, before, 0, canvas(), &[])];
        let found = run(&mut *shared, sequences);
        let own = step.canvas.len();
        assert_eq!(found.denoised[own..], expected.denoised, "{kernel} {kv_type}");
        assert_eq!(found.hidden[found.hidden.len() / 2..], expected.hidden, "{kernel} {kv_type}");
    }
}
