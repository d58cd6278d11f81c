//! An op from outside of the crates, in a graph of its own, on the CPU engine: no actors and no async code.
//!
//! The model knows how often each byte of a text follows another, and continues the text byte by byte.
//!
//! `cargo run --release --example own_op -- abracadabra`

use std::error::Error;

use cuelight_engine::backend::cpu::CpuStage;
use cuelight_engine::backend::stage::StagedEngine;
use cuelight_engine::engine::{
    BLOCK_TOKENS, Engine, EngineLimits, LogitsWanted, Progress, SequenceRows, Step, StepId, TokenId,
};
use cuelight_engine::graph::Graph;
use cuelight_engine::load::Kernel;
use cuelight_shaders::embed::Embed;
use cuelight_shaders::gpu::{Dispatch, GpuArgs};
use cuelight_shaders::kv::KvCache;
use cuelight_shaders::matmul::Linear;
use cuelight_shaders::op::{CpuArgs, Op, ShapeError};
use cuelight_shaders::recurrent::StateCache;
use cuelight_shaders::select_rows::SelectRows;
use cuelight_shaders::weight::Weight;

const BYTES: usize = 256;
const CONTEXT: usize = 128;

/// Logits to log-probabilities: `y[i] = x[i] - ln(sum_j(exp(x[j])))`, both [rows, width].
#[derive(Debug)]
pub struct LogSoftmax;

impl Op for LogSoftmax {
    fn name(&self) -> &'static str {
        "log_softmax"
    }

    fn output_widths(&self, inputs: &[usize]) -> Result<Vec<usize>, ShapeError> {
        ShapeError::check(self.name(), "number of inputs", inputs.len(), 1)?;
        Ok(inputs.to_vec())
    }

    fn run_cpu(&self, args: &mut CpuArgs<'_>) {
        let width = args.inputs[0].len() / args.rows.max(1);
        let rows = args.inputs[0].chunks_exact(width).zip(args.outputs[0].chunks_exact_mut(width));
        rows.for_each(|(x, y)| log_softmax(x, y));
    }

    /// None: this op has no shader, so its graph runs on the CPU only.
    fn dispatches(&self, _args: &GpuArgs<'_>) -> Vec<Dispatch> {
        Vec::new()
    }
}

fn log_softmax(x: &[f32], y: &mut [f32]) {
    let largest = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f32 = x.iter().map(|x| (x - largest).exp()).sum();
    y.iter_mut().zip(x).for_each(|(y, x)| *y = x - largest - sum.ln());
}

/// The engine of a text: a byte in, the log-probabilities of the next byte out.
pub fn engine(text: &[u8]) -> Result<impl Engine, Box<dyn Error>> {
    let mut graph = Graph::default();
    let bytes = graph.push_one(Embed::new(one_hot(), 1.0), &[])?;
    let last = graph.push_one(SelectRows::new(), &[bytes])?;
    let logits = graph.push_one(Linear::new(vec![followers(text)], vec![None])?, &[last])?;
    graph.push_one(LogSoftmax, &[logits])?;
    let limits = EngineLimits {
        vocab_size: BYTES,
        context_tokens: CONTEXT,
        kv_blocks: CONTEXT / BLOCK_TOKENS,
        max_batched_tokens: CONTEXT,
        max_sequences: 1,
        max_logits_rows: CONTEXT,
        device: "cpu".to_owned(),
        ..EngineLimits::default()
    };
    let state = (KvCache::empty(), StateCache::empty());
    let stage = CpuStage::new(vec![graph], state, Kernel::detect(), 1, &limits, &mut |_| Ok(()))?;
    Ok(StagedEngine::new(vec![Box::new(stage)], limits)?)
}

/// [byte, byte]: the identity.
fn one_hot() -> Weight {
    let value = |index: usize| if index / BYTES == index % BYTES { 1.0 } else { 0.0 };
    Weight::from_f32("one_hot", BYTES, BYTES, &(0..BYTES * BYTES).map(value).collect::<Vec<f32>>())
}

/// [next byte, byte]: the logarithm of how often `next` follows, where 0 times count as a thousandth.
fn followers(text: &[u8]) -> Weight {
    let mut counts = vec![1e-3f32; BYTES * BYTES];
    text.windows(2).for_each(|pair| counts[pair[1] as usize * BYTES + pair[0] as usize] += 1.0);
    let logarithms: Vec<f32> = counts.into_iter().map(f32::ln).collect();
    Weight::from_f32("followers", BYTES, BYTES, &logarithms)
}

/// The rows of the last op for these tokens, each [BYTES].
pub fn rows(engine: &mut impl Engine, tokens: Vec<TokenId>, logits: LogitsWanted) -> Result<Vec<f32>, Box<dyn Error>> {
    let sequence = SequenceRows {
        block_table: (0..tokens.len().div_ceil(BLOCK_TOKENS) as u32).collect(),
        tokens,
        first_position: 0,
        logits,
        ..SequenceRows::default()
    };
    match engine.begin(Step { id: StepId(0), sequences: vec![sequence] })? {
        Progress::Done(output) => Ok(output.logits),
        Progress::AwaitExperts(_) => Err("the graph has no experts".into()),
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let text = std::env::args().nth(1).unwrap_or_else(|| "abracadabra".to_owned());
    let mut engine = engine(text.as_bytes())?;
    let mut byte = *text.as_bytes().last().ok_or("the text is empty")?;
    for _ in 0..8 {
        let row = rows(&mut engine, vec![byte.into()], LogitsWanted::Last)?;
        let (next, log_probability) =
            (0..=u8::MAX).zip(row).max_by(|a, b| a.1.total_cmp(&b.1)).ok_or("there are no logits")?;
        println!("{:?} with probability {:.2}", char::from(next), log_probability.exp());
        byte = next;
    }
    Ok(())
}
