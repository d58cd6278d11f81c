//! Whole steps of a tiny checkpoint: the overhead of the engine around its kernels.
//!
//! `cargo bench --bench step`

use cuelight_engine::engine::{BLOCK_TOKENS, Engine, LogitsWanted, SequenceRows, Step, StepId};
use cuelight_engine::load::{LoadOptions, plan};
use divan::Bencher;

fn main() {
    divan::main();
}

fn step(sequences: u32, tokens: usize, first_position: u32) -> Step {
    let blocks = (first_position as usize + tokens).div_ceil(BLOCK_TOKENS) as u32;
    let sequences = (0..sequences).map(|sequence| SequenceRows {
        tokens: (0..tokens as u32).map(|i| (i * 37 + sequence) % 500).collect(),
        first_position,
        block_table: (sequence * blocks..(sequence + 1) * blocks).collect(),
        logits: LogitsWanted::Last,
        ..SequenceRows::default()
    });
    Step { id: StepId(0), sequences: sequences.collect() }
}

fn run(bencher: Bencher<'_, '_>, step: &Step) {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/families/llama-q4_0.gguf");
    let options = LoadOptions { context_tokens: Some(1024), ..LoadOptions::new(path) };
    let mut engine = plan(&options).expect("the fixture fits").load_engine(&mut |_| {}).expect("the CPU engine loads");
    bencher.counter(divan::counter::ItemsCount::new(step.rows())).bench_local(|| engine.begin(step.clone()));
}

/// Sequences that each add one token at position 200.
#[divan::bench(args = [1, 4, 16])]
fn decode(bencher: Bencher<'_, '_>, sequences: u32) {
    run(bencher, &step(sequences, 1, 200));
}

/// One prompt.
#[divan::bench(args = [32, 256])]
fn prefill(bencher: Bencher<'_, '_>, tokens: usize) {
    run(bencher, &step(1, tokens, 0));
}
