//! Rotary position embedding.

use std::sync::Arc;

use crate::cases::{Case, CaseBatch, CaseStep, Expected};
use crate::cpu::SharedMut;
use crate::gpu::{DeviceValue, Dispatch, GpuArgs, Module, Push, RowCount};
use crate::op::{CpuArgs, Op, ShapeError};
use crate::quant::random;

/// The values of a head that form a pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RopePairs {
    /// Neighbours: `(0, 1), (2, 3), …`, as in the paper and in GGUF files of the llama family.
    Interleaved,
    /// Halves: `(0, d/2), (1, d/2 + 1), …`, as in GPT-NeoX.
    Halves,
    /// The quarters of each half: `(0, d/4), (1, d/4 + 1), …`, then `(d/2, 3d/4), …`, as in the vision tower of Gemma 4.
    Quarters,
}

/// By which of the three positions of a row each pair is rotated: that in time (0), or that of the row (1) or the column (2) of an
/// image. In text the three are equal.
///
/// Source: Bai et al. 2025, "Qwen2.5-VL Technical Report" (M-RoPE); "Qwen3-VL Technical Report" (every third pair).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RopeAxes {
    /// All by the first.
    #[default]
    Time,
    /// Runs of these numbers of pairs, by one position after the other.
    Runs([u32; 3]),
    /// By each position in turn: the row for the first of these numbers of pairs, the column for the second, else time.
    InTurns([u32; 2]),
}

impl RopeAxes {
    /// The position by which a pair is rotated.
    #[must_use]
    pub fn axis(self, pair: usize) -> usize {
        let [kind, first, second] = self.words().map(|word| word as usize);
        match kind {
            1 => usize::from(pair >= first) + usize::from(pair >= second),
            2 if pair % 3 == 1 && pair < first => 1,
            2 if pair % 3 == 2 && pair < second => 2,
            _ => 0,
        }
    }

    /// The kind, and where its two bounds are, as `gpu/rotation.glsl` reads them.
    fn words(self) -> [u32; 3] {
        match self {
            RopeAxes::Time => [0; 3],
            RopeAxes::Runs([time, row, _]) => [1, time, time + row],
            RopeAxes::InTurns([row, column]) => [2, 3 * row, 3 * column],
        }
    }

    /// The specialization constants of `gpu/rotation.glsl`.
    pub(crate) fn constants(self) -> [(u32, u32); 3] {
        let [kind, first, second] = self.words();
        [(27, kind), (28, first), (29, second)]
    }
}

/// Rotary position embedding of queries and keys:
/// the pair `(a, b)` with frequency `f` at position `p` becomes
/// `m (a cos pf - b sin pf, a sin pf + b cos pf)`.
///
/// - One or two inputs and outputs: query [rows, n_heads * head_dim] and key [rows, n_kv_heads * head_dim].
/// - `frequencies`: [rotary_dim / 2], after scaling rules; the other values of a head are copied.
/// - `magnitude`: m, which is above 1 with YaRN.
/// - Source: Su et al. 2021; YaRN: Peng et al. 2023.
#[derive(Debug, Clone)]
pub struct Rope {
    head_dim: usize,
    pairs: RopePairs,
    frequencies: Arc<[f32]>,
    magnitude: f32,
    axes: RopeAxes,
    pool: usize,
}

impl Rope {
    /// A rotation of heads of `head_dim` values.
    ///
    /// # Errors
    /// [`ShapeError`] when there are more frequencies than pairs in a head, or an odd number of them for quarters.
    pub fn new(head_dim: usize, pairs: RopePairs, frequencies: Arc<[f32]>, magnitude: f32) -> Result<Self, ShapeError> {
        if frequencies.len() * 2 > head_dim {
            return Err(ShapeError::Mismatch {
                op: "rope",
                what: "rotary dimension".into(),
                found: frequencies.len() * 2,
                expected: format!("at most head_dim {head_dim}"),
            });
        }
        if pairs == RopePairs::Quarters {
            ShapeError::check("rope", "number of pairs modulo 2", frequencies.len() % 2, 0)?;
        }
        Ok(Rope { head_dim, pairs, frequencies, magnitude, axes: RopeAxes::Time, pool: 1 })
    }

    /// The same rotation by these positions.
    #[must_use]
    pub fn with_axes(self, axes: RopeAxes) -> Self {
        Rope { axes, ..self }
    }

    /// The same rotation by the first position of the pool of this many adjacent positions.
    #[must_use]
    pub fn of_pools(self, pool: usize) -> Self {
        Rope { pool: pool.max(1), ..self }
    }

    /// Positions of a pool; 1 if each row is rotated by its own.
    #[must_use]
    pub fn pool(&self) -> usize {
        self.pool
    }

    /// The positions that rotate each pair.
    #[must_use]
    pub fn axes(&self) -> RopeAxes {
        self.axes
    }

    /// Values in a head.
    #[must_use]
    pub fn head_dim(&self) -> usize {
        self.head_dim
    }

    /// The number of pairs of a head that are rotated.
    #[must_use]
    pub fn n_pairs(&self) -> usize {
        self.frequencies.len()
    }

    /// How many values after the first one of a pair the second one is. As many pairs follow one another.
    #[must_use]
    pub fn distance(&self) -> usize {
        let distance = match self.pairs {
            RopePairs::Interleaved => 1,
            RopePairs::Halves => self.frequencies.len(),
            RopePairs::Quarters => self.frequencies.len() / 2,
        };
        distance.max(1)
    }

    /// The factor of rotated values.
    #[must_use]
    pub fn magnitude(&self) -> f32 {
        self.magnitude
    }

    /// The indices of the values of a pair in a head.
    fn pair(&self, index: usize) -> (usize, usize) {
        let distance = self.distance();
        let first = index / distance * 2 * distance + index % distance;
        (first, first + distance)
    }

    fn rotate_heads(&self, angles: &[(f32, f32)], x: &[f32], y: &mut [f32]) {
        let (distance, rotary) = (self.distance(), 2 * angles.len());
        for (x, y) in x.chunks_exact(self.head_dim).zip(y.chunks_exact_mut(self.head_dim)) {
            let groups = x.chunks_exact(2 * distance).zip(y.chunks_exact_mut(2 * distance));
            for ((x, y), angles) in groups.zip(angles.chunks_exact(distance)) {
                rotate_pairs(angles, x.split_at(distance), y.split_at_mut(distance));
            }
            y[rotary..].copy_from_slice(&x[rotary..]);
        }
    }
}

/// Rotates the pairs of values with the same index in both halves.
fn rotate_pairs(angles: &[(f32, f32)], (a, b): (&[f32], &[f32]), (first, second): (&mut [f32], &mut [f32])) {
    let outputs = first.iter_mut().zip(second);
    for (((sin, cos), (a, b)), (first, second)) in angles.iter().zip(a.iter().zip(b)).zip(outputs) {
        *first = a * cos - b * sin;
        *second = a * sin + b * cos;
    }
}

impl Op for Rope {
    fn name(&self) -> &'static str {
        "rope"
    }

    fn output_widths(&self, inputs: &[usize]) -> Result<Vec<usize>, ShapeError> {
        ShapeError::check(self.name(), "number of inputs", inputs.len(), inputs.len().clamp(1, 2))?;
        for width in inputs {
            ShapeError::check(self.name(), format!("width {width} modulo head_dim"), width % self.head_dim, 0)?;
        }
        Ok(inputs.to_vec())
    }

    fn run_cpu(&self, args: &mut CpuArgs<'_>) {
        let rows = args.rows;
        let batch = args.batch;
        let inputs = args.inputs;
        let outputs: Vec<_> = args.outputs.iter_mut().map(|output| SharedMut::new(output)).collect();
        args.team.for_each(rows, &|row| {
            let angle = |(pair, frequency): (usize, &f32)| {
                let position = batch.rope_position(row, self.axes.axis(pair)) as usize;
                let (sin, cos) = ((position - position % self.pool) as f32 * frequency).sin_cos();
                (sin * self.magnitude, cos * self.magnitude)
            };
            let angles: Vec<(f32, f32)> = self.frequencies.iter().enumerate().map(angle).collect();
            for (input, output) in inputs.iter().zip(&outputs) {
                let width = input.len() / rows;
                // SAFETY: each task writes its own row of each output.
                let y = unsafe { output.slice(row * width, width) };
                self.rotate_heads(&angles, &input[row * width..][..width], y);
            }
        });
    }

    fn gpu_tables(&self) -> Vec<&[f32]> {
        vec![&self.frequencies]
    }

    fn dispatches(&self, args: &GpuArgs<'_>) -> Vec<Dispatch> {
        args.inputs.iter().zip(args.outputs).map(|(input, output)| self.dispatch(args, *input, *output)).collect()
    }
}

impl Rope {
    /// The dispatch that rotates one of the two inputs.
    fn dispatch(&self, args: &GpuArgs<'_>, input: DeviceValue, output: DeviceValue) -> Dispatch {
        let pairs = self.frequencies.len();
        let push = Push::new()
            .address(input.region.address)
            .address(output.region.address)
            .address(args.tables[0].address)
            .address(args.step)
            .word(args.rows.kind())
            .size(input.width)
            .size(self.head_dim)
            .size(pairs)
            .size(self.distance())
            .size(self.pool)
            .float(self.magnitude);
        let invocations = input.width / self.head_dim * (self.head_dim - pairs);
        let mut dispatch = args.each_column(Module::Rope, push, invocations);
        dispatch.constants.extend(self.axes.constants());
        Dispatch { reads: vec![input.region], writes: vec![output.region], ..dispatch }
    }
}

/// The formula in float64, for one row of heads at these positions in time, rows and columns.
#[must_use]
pub fn reference(rope: &Rope, positions: [u32; 3], x: &[f32]) -> Vec<f64> {
    let mut y: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
    for head in 0..x.len() / rope.head_dim {
        for (index, frequency) in rope.frequencies.iter().enumerate() {
            let (first, second) = rope.pair(index);
            let (first, second) = (head * rope.head_dim + first, head * rope.head_dim + second);
            let position = positions[rope.axes.axis(index)];
            let position = f64::from(position - position % rope.pool as u32);
            let (sin, cos) = (position * f64::from(*frequency)).sin_cos();
            let (a, b) = (f64::from(x[first]), f64::from(x[second]));
            y[first] = f64::from(rope.magnitude) * (a * cos - b * sin);
            y[second] = f64::from(rope.magnitude) * (a * sin + b * cos);
        }
    }
    y
}

/// The expected results: every pairing, whole and partial heads, positions up to 130,000.
#[must_use]
pub fn cases() -> Vec<Case> {
    let shapes = [(64, 32), (128, 64), (40, 10), (6, 3), (7, 2)];
    let pairings = [RopePairs::Interleaved, RopePairs::Halves];
    let plain = shapes.into_iter().flat_map(|shape| pairings.map(|pairs| case(pairs, RopeAxes::Time, shape)));
    let axes = [RopeAxes::Runs([8, 12, 12]), RopeAxes::InTurns([11, 10])];
    let by_axes = axes.into_iter().flat_map(|axes| pairings.map(|pairs| case(pairs, axes, (64, 32))));
    let quarters = [(64, 32), (72, 36), (40, 10), (6, 2)].map(|shape @ (_, pairs)| {
        let half = pairs as u32 / 2;
        case(RopePairs::Quarters, RopeAxes::Runs([0, half, half]), shape)
    });
    let of_pools = pairings.map(|pairs| case_of(with_powers(pairs, (64, 32)).of_pools(4), RopeAxes::Time));
    plain.chain(by_axes).chain(quarters).chain(of_pools).collect()
}

/// Positions on the axes of an image whose first row is at `position`.
pub(crate) fn axes_of(position: u32) -> [u32; 3] {
    [position, position + position % 7, position + position % 5 * 3]
}

fn case(pairs: RopePairs, axes: RopeAxes, shape: (usize, usize)) -> Case {
    case_of(with_powers(pairs, shape), axes)
}

/// A rotation by powers of two, so that float32 represents the angle of any position exactly.
fn with_powers(pairs: RopePairs, (head_dim, frequencies): (usize, usize)) -> Rope {
    let frequencies = (0..frequencies).map(|pair| 0.5_f32.powi(pair as i32 % 16)).collect();
    Rope { head_dim, pairs, frequencies, magnitude: 1.1, axes: RopeAxes::Time, pool: 1 }
}

fn case_of(rope: Rope, axes: RopeAxes) -> Case {
    const POSITIONS: [u32; 9] = [0, 1, 2, 17, 1000, 4095, 32_768, 100_000, 130_000];
    let rope = rope.with_axes(axes);
    let head_dim = rope.head_dim;
    let rows = POSITIONS.len();
    let rope_positions = if axes == RopeAxes::Time { Vec::new() } else { POSITIONS.map(axes_of).into() };
    let batch = CaseBatch { positions: POSITIONS.into(), rope_positions, ..CaseBatch::of_rows(rows) };
    let inputs = [3, 1].map(|heads| random::activations(rows * heads * head_dim, heads as u64));
    let expected: Vec<Vec<Expected>> = inputs
        .iter()
        .map(|input| {
            let of_rows = input.chunks_exact(input.len() / rows).zip(POSITIONS);
            of_rows.flat_map(|(x, position)| Expected::within(1e-5, reference(&rope, axes_of(position), x))).collect()
        })
        .collect();
    let step = |inputs: &[Vec<f32>], expected: &[Vec<Expected>]| CaseStep {
        batch: batch.clone(),
        rows: RowCount::All(rows),
        expected: expected.to_vec(),
        inputs: inputs.to_vec(),
    };
    let steps = vec![step(&inputs, &expected), step(&inputs[..1], &expected[..1])];
    let pools = if rope.pool > 1 { format!(", pools of {}", rope.pool) } else { String::new() };
    let name = format!("{:?}, {axes:?}, {} pairs of {head_dim}{pools}", rope.pairs, rope.n_pairs());
    Case::new(name, rope, steps)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{assert_close, run, supported_kernels, values};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_kernel_agrees_with_the_reference(rows in 1usize..4, half in 1usize..20, rest in 0usize..5, pairing in 0usize..3, seed: u64) {
            let pairs = [RopePairs::Halves, RopePairs::Interleaved, RopePairs::Quarters][pairing];
            let half = if pairs == RopePairs::Quarters { 2 * half } else { half };
            let head_dim = 2 * half + rest;
            let frequencies: Arc<[f32]> = (0..half).map(|i| 10000f32.powf(-(i as f32) / half as f32)).collect();
            let rope = Rope::new(head_dim, pairs, frequencies, 1.1).unwrap();
            let query = values(seed, rows * 3 * head_dim);
            let key = values(seed ^ 1, rows * head_dim);
            for kernel in supported_kernels() {
                let outputs = run(&rope, kernel, rows, &[(&query, 3 * head_dim), (&key, head_dim)]);
                for row in 0..rows {
                    // `run` puts row r at position r.
                    let expected = reference(&rope, [row as u32; 3], &query[row * 3 * head_dim..][..3 * head_dim]);
                    assert_close(&outputs[0][row * 3 * head_dim..][..3 * head_dim], &expected, 1e-5);
                    let expected = reference(&rope, [row as u32; 3], &key[row * head_dim..][..head_dim]);
                    assert_close(&outputs[1][row * head_dim..][..head_dim], &expected, 1e-5);
                }
            }
        }
    }

    #[test]
    fn every_value_belongs_to_one_pair() {
        let pairs = |pairs| {
            let rope = Rope::new(9, pairs, vec![1.0; 4].into(), 1.0).unwrap();
            (0..4).map(|pair| rope.pair(pair)).collect::<Vec<_>>()
        };
        assert_eq!(pairs(RopePairs::Interleaved), [(0, 1), (2, 3), (4, 5), (6, 7)]);
        assert_eq!(pairs(RopePairs::Halves), [(0, 4), (1, 5), (2, 6), (3, 7)]);
        assert_eq!(pairs(RopePairs::Quarters), [(0, 2), (1, 3), (4, 6), (5, 7)]);
        assert!(Rope::new(6, RopePairs::Quarters, vec![1.0; 3].into(), 1.0).is_err());
    }

    #[test]
    fn axes_are_runs_or_take_turns() {
        let axes = |axes: RopeAxes, pairs: usize| (0..pairs).map(|pair| axes.axis(pair)).collect::<Vec<_>>();
        assert_eq!(axes(RopeAxes::Time, 3), [0, 0, 0]);
        assert_eq!(axes(RopeAxes::Runs([2, 1, 3]), 6), [0, 0, 1, 2, 2, 2]);
        assert_eq!(axes(RopeAxes::InTurns([2, 1]), 8), [0, 1, 2, 0, 1, 0, 0, 0]);
    }

    #[test]
    fn position_zero_changes_nothing() {
        let rope = Rope::new(8, RopePairs::Halves, vec![1.0; 4].into(), 1.0).unwrap();
        let x = values(3, 8);
        let expected: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
        assert_eq!(reference(&rope, [0; 3], &x), expected);
    }
}
