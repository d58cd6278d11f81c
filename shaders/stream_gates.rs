//! How much of each residual stream a layer reads, and what it adds to each.

use std::sync::Arc;

use crate::cases::{Case, CaseStep, Expected};
use crate::cpu::SharedMut;
use crate::gpu::{Dispatch, GpuArgs, Module, Push, word};
use crate::lanes::exp;
use crate::op::{CpuArgs, Op, ShapeError};
use crate::per_kernel;
use crate::quant::random;

/// The gates of manifold-constrained hyper-connections between n residual streams.
///
/// From the values x of a row, in three parts `r`, `w` (n values each) and `c` (n x n), and their scales and biases:
/// - `read[i] = sigmoid(scale[0] r[i] + bias_r[i]) + epsilon`: the factor of stream i in what the layer reads
/// - `update[j, n] = 2 sigmoid(scale[1] w[j] + bias_w[j])`: the factor of the layer's output in stream j
/// - `update[j, i] = m[i, j]`: the factor of stream i in stream j, where `m` is the softmax of each row of
///   `scale[2] c + bias_c`, plus epsilon, made doubly stochastic by Sinkhorn and Knopp's algorithm: columns, then rows
///   and columns for each further round, are divided by their sum plus epsilon.
///
/// - x: [rows, (n + 2) n]; outputs: read [rows, n], update [rows, n (n + 1)], the coefficients of
///   [`MixStreams`](crate::mix_streams::MixStreams) from the n streams and the layer's output.
/// - The gates after the last layer are [only read](StreamGates::read_only): x and the output are then [rows, n].
/// - Source: Xie et al. 2026, "mHC: Manifold-Constrained Hyper-Connections".
#[derive(Debug, Clone)]
pub struct StreamGates {
    count: usize,
    scale: [f32; 3],
    bias: Arc<[f32]>,
    rounds: usize,
    epsilon: f32,
}

/// Most streams.
pub const MOST_STREAMS: usize = 8;

impl StreamGates {
    /// The gates between `count` streams with these scales and biases, [(n + 2) n].
    ///
    /// # Errors
    /// [`ShapeError`] when there are too many streams, or the number of biases is another.
    pub fn new(
        count: usize,
        scale: [f32; 3],
        bias: Arc<[f32]>,
        (rounds, epsilon): (usize, f32),
    ) -> Result<Self, ShapeError> {
        if !(1..=MOST_STREAMS).contains(&count) {
            let expected = format!("between 1 and {MOST_STREAMS}");
            let what = "number of streams".to_owned();
            return Err(ShapeError::Mismatch { op: "stream_gates", what, found: count, expected });
        }
        ShapeError::check("stream_gates", "number of biases", bias.len(), (count + 2) * count)?;
        Ok(StreamGates { count, scale, bias, rounds, epsilon })
    }

    /// The gates of what is read of `count` streams, with this scale and these biases, `[n]`, and nothing of what is added to them.
    ///
    /// # Errors
    /// As [`StreamGates::new`].
    pub fn read_only(count: usize, scale: f32, bias: Arc<[f32]>, epsilon: f32) -> Result<Self, ShapeError> {
        ShapeError::check("stream_gates", "number of biases", bias.len(), count)?;
        let padded = vec![0.0; (count + 2) * count].into();
        let gates = StreamGates::new(count, [scale, 0.0, 0.0], padded, (0, epsilon))?;
        Ok(StreamGates { bias, ..gates })
    }

    fn is_read_only(&self) -> bool {
        self.bias.len() == self.count
    }
}

impl Op for StreamGates {
    fn name(&self) -> &'static str {
        "stream_gates"
    }

    fn output_widths(&self, inputs: &[usize]) -> Result<Vec<usize>, ShapeError> {
        ShapeError::check(self.name(), "number of inputs", inputs.len(), 1)?;
        ShapeError::check(self.name(), "width of the input", inputs[0], self.bias.len())?;
        let widths = [self.count, self.count * (self.count + 1)];
        Ok(if self.is_read_only() { vec![widths[0]] } else { widths.into() })
    }

    fn run_cpu(&self, args: &mut CpuArgs<'_>) {
        let (x, kernel, count) = (args.inputs[0], args.kernel, self.count);
        let outputs: Vec<_> = args.outputs.iter_mut().map(|output| SharedMut::new(output)).collect();
        args.team.for_each(args.rows, &|row| {
            let x = &x[row * self.bias.len()..][..self.bias.len()];
            // SAFETY: each task writes its own row of each output.
            read_of_row(kernel, self, x, unsafe { outputs[0].slice(row * count, count) });
            if let Some(update) = outputs.get(1) {
                let width = count * (count + 1);
                // SAFETY: as above.
                update_of_row(kernel, self, x, unsafe { update.slice(row * width, width) });
            }
        });
    }

    fn gpu_tables(&self) -> Vec<&[f32]> {
        vec![&self.bias]
    }

    fn dispatches(&self, args: &GpuArgs<'_>) -> Vec<Dispatch> {
        let push = Push::new()
            .address(args.inputs[0].region.address)
            .address(args.tables[0].address)
            .address(args.outputs[0].region.address)
            .address(args.outputs.get(1).map_or(0, |update| update.region.address))
            .address(args.step)
            .word(args.rows.kind())
            .size(self.rounds)
            .float(self.scale[0])
            .float(self.scale[1])
            .float(self.scale[2])
            .float(self.epsilon);
        // One invocation for each row.
        let dispatch = args.each_column(Module::StreamGates, push, args.rows.most());
        let constants = vec![dispatch.constants[0], (1, word(self.count)), (2, u32::from(self.is_read_only()))];
        vec![Dispatch { groups: [dispatch.groups[0], 1, 1], constants, ..dispatch }]
    }
}

per_kernel! {
    /// What is read in one row.
    fn read_of_row = read_of_row_lanes(op: &StreamGates, x: &[f32], read: &mut [f32])
}

#[inline(always)]
fn read_of_row_lanes<const FMA: bool>(op: &StreamGates, x: &[f32], read: &mut [f32]) {
    for (read, (x, bias)) in read.iter_mut().zip(x.iter().zip(&*op.bias)) {
        *read = sigmoid(x * op.scale[0] + bias) + op.epsilon;
    }
}

per_kernel! {
    /// The update of one row.
    fn update_of_row = update_of_row_lanes(op: &StreamGates, x: &[f32], update: &mut [f32])
}

#[inline(always)]
fn update_of_row_lanes<const FMA: bool>(op: &StreamGates, x: &[f32], update: &mut [f32]) {
    let n = op.count;
    let affine = |index: usize, scale: f32| x[index] * scale + op.bias[index];
    let mut between = [[0.0; MOST_STREAMS]; MOST_STREAMS];
    for (from, row) in between[..n].iter_mut().enumerate() {
        let logits = |to: usize| affine((2 + from) * n + to, op.scale[2]);
        softmax(&mut row[..n], logits);
        row[..n].iter_mut().for_each(|value| *value += op.epsilon);
    }
    balance(&mut between, n, (op.rounds, op.epsilon));
    for (to, update) in update.chunks_exact_mut(n + 1).enumerate() {
        (0..n).for_each(|from| update[from] = between[from][to]);
        update[n] = 2.0 * sigmoid(affine(n + to, op.scale[1]));
    }
}

#[inline(always)]
fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

#[inline(always)]
fn softmax(row: &mut [f32], logit: impl Fn(usize) -> f32) {
    let highest = (0..row.len()).map(&logit).fold(f32::NEG_INFINITY, f32::max);
    row.iter_mut().enumerate().for_each(|(index, value)| *value = exp(logit(index) - highest));
    let sum: f32 = row.iter().sum();
    row.iter_mut().for_each(|value| *value /= sum);
}

/// Sinkhorn and Knopp's algorithm on the first n rows and columns.
#[inline(always)]
fn balance(matrix: &mut [[f32; MOST_STREAMS]; MOST_STREAMS], n: usize, (rounds, epsilon): (usize, f32)) {
    for round in 0..rounds {
        for row in matrix[..n].iter_mut().filter(|_| round > 0) {
            let sum = row[..n].iter().sum::<f32>() + epsilon;
            row[..n].iter_mut().for_each(|value| *value /= sum);
        }
        for column in 0..n {
            let sum = matrix[..n].iter().map(|row| row[column]).sum::<f32>() + epsilon;
            matrix[..n].iter_mut().for_each(|row| row[column] /= sum);
        }
    }
}

/// The formula in float64, for one row: what is read, then the update unless there is none.
#[must_use]
pub fn reference(op: &StreamGates, x: &[f32]) -> Vec<Vec<f64>> {
    let (n, epsilon) = (op.count, f64::from(op.epsilon));
    let affine =
        |index: usize, part: usize| f64::from(x[index]) * f64::from(op.scale[part]) + f64::from(op.bias[index]);
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    let read = (0..n).map(|i| sigmoid(affine(i, 0)) + epsilon).collect();
    if op.is_read_only() {
        return vec![read];
    }
    let exponentials = |i: usize| (0..n).map(move |j| affine((2 + i) * n + j, 2).exp());
    let row = |i: usize| exponentials(i).map(|value| value / exponentials(i).sum::<f64>() + epsilon).collect();
    let mut matrix: Vec<Vec<f64>> = (0..n).map(row).collect();
    for round in 0..op.rounds {
        for row in matrix.iter_mut().filter(|_| round > 0) {
            let sum = row.iter().sum::<f64>() + epsilon;
            row.iter_mut().for_each(|value| *value /= sum);
        }
        for column in 0..n {
            let sum = matrix.iter().map(|row| row[column]).sum::<f64>() + epsilon;
            matrix.iter_mut().for_each(|row| row[column] /= sum);
        }
    }
    let of_stream =
        |j: usize| (0..n).map(|i| matrix[i][j]).chain([2.0 * sigmoid(affine(n + j, 1))]).collect::<Vec<_>>();
    vec![read, (0..n).flat_map(of_stream).collect()]
}

/// Gates with random scales and biases.
fn random_gates(count: usize, rounds: usize, seed: u64) -> StreamGates {
    let bias = random::activations((count + 2) * count, seed);
    StreamGates::new(count, [0.7, -1.3, 2.1], bias.into(), (rounds, 1e-6)).expect("as many biases as needed")
}

/// Gates that are only read.
fn random_reads(count: usize) -> StreamGates {
    StreamGates::read_only(count, 1.3, random::activations(count, 2).into(), 1e-6).expect("as many biases as streams")
}

/// The expected results: the number of streams of models and others, one round, and gates that are only read.
#[must_use]
pub fn cases() -> Vec<Case> {
    let case = |(name, op): (String, StreamGates)| {
        let step = |rows: usize| {
            let width = op.bias.len();
            let x = random::activations(rows * width, rows as u64);
            let of_rows = |output: usize| {
                let values = (0..rows).flat_map(|row| reference(&op, &x[row * width..][..width])[output].clone());
                Expected::within(1e-5, values)
            };
            let outputs = if op.is_read_only() { 1 } else { 2 };
            CaseStep::of_rows(rows, vec![x.clone()], (0..outputs).map(of_rows).collect())
        };
        let steps = vec![step(1), step(3), step(33), step(5).of_selected()];
        Case::new(name, op.clone(), steps)
    };
    let sizes = [(4, 20), (2, 1), (3, 5), (8, 20)].into_iter();
    let both =
        sizes.map(|(count, rounds)| (format!("{count} streams, {rounds} rounds"), random_gates(count, rounds, 1)));
    let read_only = [4, 3].map(|count| (format!("{count} streams, only read"), random_reads(count)));
    both.chain(read_only).map(case).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::{assert_close, run, supported_kernels, values};

    proptest! {
        #[test]
        fn every_kernel_agrees_with_the_reference(rows in 1usize..4, count in 1usize..9, rounds in 1usize..21, seed: u64) {
            let op = random_gates(count, rounds, seed);
            let width = op.bias.len();
            let x = values(seed, rows * width);
            for kernel in supported_kernels() {
                let outputs = run(&op, kernel, rows, &[(&x, width)]);
                for (output, found) in outputs.iter().enumerate() {
                    let of_row = |row: usize| reference(&op, &x[row * width..][..width])[output].clone();
                    assert_close(found, &(0..rows).flat_map(of_row).collect::<Vec<_>>(), 1e-5);
                }
            }
        }
    }

    #[test]
    fn streams_keep_their_sum() {
        let op = random_gates(4, 20, 3);
        let outputs = reference(&op, &random::activations(24, 5));
        for stream in outputs[1].chunks_exact(5) {
            assert!((stream[..4].iter().sum::<f64>() - 1.0).abs() < 1e-5);
        }
    }

    #[test]
    fn shapes_that_do_not_fit_are_refused() {
        let gates = |count, biases: usize| StreamGates::new(count, [1.0; 3], vec![0.0; biases].into(), (1, 0.0));
        assert_eq!(gates(4, 24).unwrap().output_widths(&[24]), Ok(vec![4, 20]));
        assert!(gates(4, 24).unwrap().output_widths(&[20]).is_err());
        let error = gates(4, 23).unwrap_err().to_string();
        assert_eq!(error, "stream_gates: number of biases is 23, but must be 24");
        assert!(gates(0, 0).is_err() && gates(9, 99).is_err());
    }
}
