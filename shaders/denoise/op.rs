//! The op that denoises: its shapes, its cost, and how it runs.

use super::{Denoise, DenoisedRow, STATISTICS, gpu};
use crate::cost::{Cost, CostArgs};
use crate::cpu::{Kernel, SharedMut};
use crate::gpu::{DeviceLimits, Dispatch, GpuArgs};
use crate::lanes::{exp, multiply_add};
use crate::op::{CpuArgs, DenoiseParams, Op, ShapeError};
use crate::per_kernel;
use crate::sample_token::weight::{RowScale, below, sum_of_row, weight};
use crate::sample_token::{RowSamplingParams, SampledToken, floor, inverse, reference};
use crate::weight::Weight;

/// Rows of a task that share the decoded rows of the table.
const TASK_ROWS: usize = 16;
/// Tokens whose weights are summed before one of them is searched for the sampled token.
const BLOCK: usize = 1024;

/// What the mean needs of a row: its largest logit, and the factors of logits and of their exponentials.
#[derive(Clone, Copy)]
struct Softmax {
    largest: f32,
    inverse: f32,
    /// One over the sum of the exponentials; 0 for a row that is not a distribution.
    share: f32,
}

impl Op for Denoise {
    fn name(&self) -> &'static str {
        "denoise"
    }

    fn output_widths(&self, inputs: &[usize]) -> Result<Vec<usize>, ShapeError> {
        ShapeError::check(self.name(), "number of inputs", inputs.len(), 1)?;
        ShapeError::check(self.name(), "width of the logits", inputs[0], self.table.rows)?;
        Ok(vec![self.table.columns, STATISTICS])
    }

    fn weights(&self) -> Vec<&Weight> {
        vec![&self.table]
    }

    /// As if no probability was negligible.
    fn cost(&self, args: &CostArgs<'_>) -> Cost {
        let memory_bytes = if args.rows > 0 { self.table.byte_len() as u64 } else { 0 };
        let float_operations = 2 * (args.rows * self.table.rows * self.table.columns) as u64;
        Cost { memory_bytes, activation_bytes: args.activation_bytes(), float_operations, ..Cost::default() }
    }

    /// # Panics
    /// When the step says not of each row how it is denoised. The engine checks it before it forms the batch.
    fn run_cpu(&self, args: &mut CpuArgs<'_>) {
        let (rows, params, logits) = (args.rows, args.batch.denoised, args.inputs[0]);
        assert_eq!(params.len(), rows, "rows with parameters of denoising");
        let [means, statistics] = &mut *args.outputs else { panic!("denoise: needs two outputs") };
        let (means, statistics) = (SharedMut::new(means), SharedMut::new(statistics));
        let kernel = args.kernel;
        args.team.for_each(rows.div_ceil(TASK_ROWS), &|task| {
            let task = task * TASK_ROWS..rows.min((task + 1) * TASK_ROWS);
            let logits = &logits[task.start * self.table.rows..task.end * self.table.rows];
            // SAFETY: each task has its own rows.
            let (means, statistics) = unsafe {
                let width = self.table.columns;
                let means = means.slice(task.start * width, task.len() * width);
                (means, statistics.slice(task.start * STATISTICS, task.len() * STATISTICS))
            };
            let rows = logits.chunks_exact(self.table.rows).zip(&params[task]).zip(statistics.as_chunks_mut().0);
            let softmax = rows.map(|((logits, params), out)| {
                let (row, softmax) = statistics_of(kernel, logits, params);
                *out = row.to_values();
                softmax
            });
            let softmax: Vec<Softmax> = softmax.collect();
            self.add_embeddings(kernel, logits, &softmax, means);
        });
    }

    fn gpu_scratch_bytes(&self, device: &DeviceLimits, rows: usize, _context_tokens: usize) -> u64 {
        gpu::scratch_bytes(self, device, rows)
    }

    fn dispatches(&self, args: &GpuArgs<'_>) -> Vec<Dispatch> {
        gpu::dispatches(self, args)
    }
}

impl Denoise {
    /// The means of some rows. Each row of the table is decoded at most once.
    fn add_embeddings(&self, kernel: Kernel, logits: &[f32], softmax: &[Softmax], means: &mut [f32]) {
        let (vocabulary, width) = (self.table.rows, self.table.columns);
        let least = self.least_probability();
        // Most tokens are far below it, which their logits show.
        let cutoffs: Vec<f32> = softmax.iter().map(|softmax| (least / softmax.share).ln() - 0.01).collect();
        let mut embedding = vec![0.0; width];
        means.fill(0.0);
        for token in 0..vocabulary {
            let mut is_decoded = false;
            for (row, softmax) in softmax.iter().enumerate() {
                let scaled = (logits[row * vocabulary + token] - softmax.largest) * softmax.inverse;
                if softmax.share == 0.0 || scaled < cutoffs[row] {
                    continue;
                }
                let probability = exp(scaled) * softmax.share;
                if probability < least {
                    continue;
                }
                if !std::mem::replace(&mut is_decoded, true) {
                    self.table.format.dequantize(self.table.row(token), &mut embedding);
                }
                add_scaled(kernel, probability * self.scale, &embedding, &mut means[row * width..][..width]);
            }
        }
    }
}

/// The statistics of a row, and what its mean needs.
fn statistics_of(kernel: Kernel, logits: &[f32], params: &DenoiseParams) -> (DenoisedRow, Softmax) {
    let is_bad = |logit: &f32| logit.is_nan() || *logit == f32::INFINITY;
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let bad = logits.iter().position(is_bad).map(|token| SampledToken::NotFinite(token as u32));
    let bad = bad.or((largest == f32::NEG_INFINITY).then_some(SampledToken::Nothing));
    let inverse = inverse(params.temperature);
    if let Some(sampled) = bad {
        return (DenoisedRow { best: 0, sampled, entropy: f32::NAN }, Softmax { largest, inverse, share: 0.0 });
    }
    let best = logits.iter().position(|logit| *logit == largest).unwrap_or_default() as u32;
    let [sum, product] = sums(kernel, logits, largest, inverse);
    let entropy = (sum.ln() - product / sum) as f32;
    let sampled = sample(kernel, logits, (best, largest), &params.sampling);
    (DenoisedRow { best, sampled, entropy }, Softmax { largest, inverse, share: (1.0 / sum) as f32 })
}

/// Draws a token as [`reference::sample`] does, without sorting where nothing is truncated by rank.
fn sample(kernel: Kernel, logits: &[f32], (best, max): (u32, f32), params: &RowSamplingParams) -> SampledToken {
    if params.is_greedy() {
        return SampledToken::Token(best);
    }
    if params.top_k > 0 || params.top_p < 1.0 {
        return reference::sample(logits, params);
    }
    let scale = RowScale { max, inverse: inverse(params.temperature), floor: floor(params.min_p) };
    let sums: Vec<u64> = logits.chunks(BLOCK).map(|block| sum_of_row(kernel, block, scale)).collect();
    let mut left = below(sums.iter().sum(), params.random);
    for (index, (block, sum)) in logits.chunks(BLOCK).zip(sums).enumerate() {
        if left >= sum {
            left -= sum;
            continue;
        }
        for (offset, logit) in block.iter().enumerate() {
            let scaled = scale.apply(*logit);
            let weight = if scaled >= scale.floor { weight(scaled) } else { 0 };
            if left < weight {
                return SampledToken::Token((index * BLOCK + offset) as u32);
            }
            left -= weight;
        }
    }
    SampledToken::Nothing
}

per_kernel! {
    /// `sum_v e^x[v]` and `sum_v e^x[v] x[v]` with `x = (logits - largest) * inverse`.
    fn sums = sums_lanes(logits: &[f32], largest: f32, inverse: f32) -> [f64; 2]
}

#[inline(always)]
fn sums_lanes<const FMA: bool>(logits: &[f32], largest: f32, inverse: f32) -> [f64; 2] {
    const LANES: usize = 8;
    let mut totals = [[0.0_f64; LANES]; 2];
    for values in logits.chunks(LANES) {
        for (lane, logit) in values.iter().enumerate() {
            let x = (logit - largest) * inverse;
            // A product of 0 and minus infinity would not be a number.
            let x = if x > -100.0 { x } else { -100.0 };
            let e = f64::from(exp(x));
            totals[0][lane] += e;
            totals[1][lane] += e * f64::from(x);
        }
    }
    totals.map(|lanes| lanes.iter().sum())
}

per_kernel! {
    /// `y += factor * x`.
    fn add_scaled = add_scaled_lanes(factor: f32, x: &[f32], y: &mut [f32])
}

#[inline(always)]
fn add_scaled_lanes<const FMA: bool>(factor: f32, x: &[f32], y: &mut [f32]) {
    for (y, x) in y.iter_mut().zip(x) {
        *y = multiply_add::<FMA>(factor, *x, *y);
    }
}
