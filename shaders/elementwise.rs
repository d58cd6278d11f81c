//! Ops that work on each value by itself.

use std::ops::Range;

use crate::cases::{Case, CaseStep, Expected};
use crate::cpu::{Kernel, SharedMut};
use crate::gpu::{Dispatch, GpuArgs, Module};
use crate::lanes::exp;
use crate::op::{CpuArgs, Op, ShapeError};
use crate::per_kernel;
use crate::quant::random;

/// Residual connection: `y[i] = a[i] + b[i]`, all [rows, width].
#[derive(Debug, Clone)]
pub struct Add;

impl Op for Add {
    fn name(&self) -> &'static str {
        "add"
    }

    fn output_widths(&self, inputs: &[usize]) -> Result<Vec<usize>, ShapeError> {
        ShapeError::check(self.name(), "number of inputs", inputs.len(), 2)?;
        ShapeError::check(self.name(), "width of the second input", inputs[1], inputs[0])?;
        Ok(vec![inputs[0]])
    }

    fn run_cpu(&self, args: &mut CpuArgs<'_>) {
        let (a, b) = (args.inputs[0], args.inputs[1]);
        for_each_row(args, &|kernel, range, y| add_row(kernel, &a[range.clone()], &b[range], y));
    }

    fn dispatches(&self, args: &GpuArgs<'_>) -> Vec<Dispatch> {
        vec![args.each_column(Module::Add, args.elementwise(0, 0.0), args.outputs[0].width)]
    }
}

/// `y[r, i] = x[r, i] / (1 + e^-gate[r])`: x and y [rows, width], gate [rows, 1].
///
/// Source: Yang et al. 2024, "Qwen2 Technical Report", the gate of the shared expert.
#[derive(Debug)]
pub struct GateRows;

impl Op for GateRows {
    fn name(&self) -> &'static str {
        "gate_rows"
    }

    fn output_widths(&self, inputs: &[usize]) -> Result<Vec<usize>, ShapeError> {
        ShapeError::check(self.name(), "number of inputs", inputs.len(), 2)?;
        ShapeError::check(self.name(), "width of the gate", inputs[1], 1)?;
        Ok(vec![inputs[0]])
    }

    fn run_cpu(&self, args: &mut CpuArgs<'_>) {
        let (x, gates) = (args.inputs[0], args.inputs[1]);
        for_each_row(args, &|kernel, range, y| {
            let gate = gates[range.start / range.len().max(1)];
            scale_row(kernel, &x[range], 1.0 / (1.0 + exp(-gate)), y);
        });
    }

    fn dispatches(&self, args: &GpuArgs<'_>) -> Vec<Dispatch> {
        vec![args.each_column(Module::GateRows, args.elementwise(0, 0.0), args.outputs[0].width)]
    }
}

per_kernel! {
    /// `y = factor * x`.
    fn scale_row = scale_row_lanes(x: &[f32], factor: f32, y: &mut [f32])
}

#[inline(always)]
fn scale_row_lanes<const FMA: bool>(x: &[f32], factor: f32, y: &mut [f32]) {
    for (y, x) in y.iter_mut().zip(x) {
        *y = x * factor;
    }
}

/// `y[i] = factor * x[i]`, [rows, width].
#[derive(Debug)]
pub struct Scale {
    factor: f32,
}

impl Scale {
    /// By this factor.
    #[must_use]
    pub fn new(factor: f32) -> Self {
        Scale { factor }
    }
}

impl Op for Scale {
    fn name(&self) -> &'static str {
        "scale"
    }

    fn output_widths(&self, inputs: &[usize]) -> Result<Vec<usize>, ShapeError> {
        ShapeError::check(self.name(), "number of inputs", inputs.len(), 1)?;
        Ok(inputs.to_vec())
    }

    fn run_cpu(&self, args: &mut CpuArgs<'_>) {
        let x = args.inputs[0];
        for_each_row(args, &|kernel, range, y| scale_row(kernel, &x[range], self.factor, y));
    }

    fn dispatches(&self, args: &GpuArgs<'_>) -> Vec<Dispatch> {
        vec![args.each_column(Module::Scale, args.elementwise(0, self.factor), args.outputs[0].width)]
    }
}

/// Queries that grow with their position: `y[r, i] = x[r, i] * (1 + strength * ln(1 + floor((p + 1) / step)))` for a row at
/// position `p`, [rows, width]. Where nothing is rotated, attention would else blur over long contexts.
///
/// Source: Nakanishi 2025, "Scalable-Softmax Is Superior for Attention"; in steps as Llama 4 has it.
#[derive(Debug)]
pub struct ScaleByPosition {
    step: u32,
    strength: f32,
}

impl ScaleByPosition {
    /// Growing every `step` positions, of which there must be at least one.
    ///
    /// # Errors
    /// [`ShapeError`] when a step has no positions.
    pub fn new(step: u32, strength: f32) -> Result<Self, ShapeError> {
        if step == 0 {
            let (what, expected) = ("positions of a step".to_owned(), "at least 1".to_owned());
            return Err(ShapeError::Mismatch { op: "scale_by_position", what, found: 0, expected });
        }
        Ok(ScaleByPosition { step, strength })
    }

    /// What multiplies a row at a position.
    fn factor(&self, position: u32) -> f32 {
        let steps = (position.saturating_add(1) / self.step) as f32;
        1.0 + self.strength * steps.ln_1p()
    }
}

impl Op for ScaleByPosition {
    fn name(&self) -> &'static str {
        "scale_by_position"
    }

    fn output_widths(&self, inputs: &[usize]) -> Result<Vec<usize>, ShapeError> {
        ShapeError::check(self.name(), "number of inputs", inputs.len(), 1)?;
        Ok(inputs.to_vec())
    }

    fn run_cpu(&self, args: &mut CpuArgs<'_>) {
        let (x, positions) = (args.inputs[0], args.batch.positions);
        for_each_row(args, &|kernel, range, y| {
            let position = positions[range.start / range.len().max(1)];
            scale_row(kernel, &x[range], self.factor(position), y);
        });
    }

    fn dispatches(&self, args: &GpuArgs<'_>) -> Vec<Dispatch> {
        let push = args.elementwise(self.step, self.strength);
        vec![args.each_column(Module::ScaleByPosition, push, args.outputs[0].width)]
    }
}

/// Soft cap: `y[i] = cap * tanh(x[i] / cap)`, [rows, width].
///
/// Source: Gemma 2 technical report (2024), section 2.
#[derive(Debug)]
pub struct Softcap {
    cap: f32,
}

impl Softcap {
    /// A cap above 0.
    #[must_use]
    pub fn new(cap: f32) -> Self {
        Softcap { cap }
    }
}

impl Op for Softcap {
    fn name(&self) -> &'static str {
        "softcap"
    }

    fn output_widths(&self, inputs: &[usize]) -> Result<Vec<usize>, ShapeError> {
        ShapeError::check(self.name(), "number of inputs", inputs.len(), 1)?;
        Ok(inputs.to_vec())
    }

    fn run_cpu(&self, args: &mut CpuArgs<'_>) {
        let x = args.inputs[0];
        for_each_row(args, &|kernel, range, y| softcap_row(kernel, self.cap, &x[range], y));
    }

    fn dispatches(&self, args: &GpuArgs<'_>) -> Vec<Dispatch> {
        vec![args.each_column(Module::Softcap, args.elementwise(0, self.cap), args.outputs[0].width)]
    }
}

/// `cap * tanh(x / cap)`.
#[inline(always)]
#[must_use]
pub fn softcap(x: f32, cap: f32) -> f32 {
    cap * (1.0 - 2.0 / (1.0 + exp(2.0 * x / cap)))
}

fn for_each_row(args: &mut CpuArgs<'_>, body: &(impl Fn(Kernel, Range<usize>, &mut [f32]) + Sync)) {
    let width = args.inputs[0].len() / args.rows.max(1);
    let y = SharedMut::new(args.outputs[0]);
    let kernel = args.kernel;
    args.team.for_each(args.rows, &|row| {
        // SAFETY: each task writes its own row.
        let y = unsafe { y.slice(row * width, width) };
        body(kernel, row * width..(row + 1) * width, y);
    });
}

per_kernel! {
    fn add_row = add_lanes(a: &[f32], b: &[f32], y: &mut [f32])
}

#[inline(always)]
fn add_lanes<const FMA: bool>(a: &[f32], b: &[f32], y: &mut [f32]) {
    for ((y, a), b) in y.iter_mut().zip(a).zip(b) {
        *y = a + b;
    }
}

per_kernel! {
    fn softcap_row = softcap_lanes(cap: f32, x: &[f32], y: &mut [f32])
}

#[inline(always)]
fn softcap_lanes<const FMA: bool>(cap: f32, x: &[f32], y: &mut [f32]) {
    for (y, x) in y.iter_mut().zip(x) {
        *y = softcap(*x, cap);
    }
}

/// What these ops must compute: some shapes, and for the cap values far beyond it.
#[must_use]
pub fn cases() -> Vec<Case> {
    let add = |(rows, width): (usize, usize)| {
        let (a, b) = (random::activations(rows * width, 1), random::activations(rows * width, 2));
        let expected = Expected::within(1e-6, a.iter().zip(&b).map(|(a, b)| f64::from(*a) + f64::from(*b)));
        CaseStep::of_rows(rows, vec![a, b], vec![expected])
    };
    let cap = |cap: f32| {
        let step = |(rows, width, scale): (usize, usize, f32)| {
            let x: Vec<f32> = random::activations(rows * width, 1).iter().map(|x| x * scale).collect();
            let wide = f64::from(cap);
            let expected = x.iter().map(|x| wide * (f64::from(*x) / wide).tanh());
            let expected = expected.map(|value| Expected { value, tolerance: 5e-6 * wide });
            CaseStep::of_rows(rows, vec![x.clone()], vec![expected.collect()])
        };
        let steps = vec![step((1, 1, 1.0)), step((3, 77, 100.0)), step((2, 1000, 1e6)).of_selected()];
        Case::new(format!("at {cap}"), Softcap::new(cap), steps)
    };
    let gate = |(rows, width): (usize, usize)| {
        let (x, gates) = (random::activations(rows * width, 1), random::activations(rows, 2));
        let gates: Vec<f32> = gates.iter().map(|gate| gate * 8.0).collect();
        let factor = |index: usize| 1.0 / (1.0 + (-f64::from(gates[index / width])).exp());
        let expected = x.iter().enumerate().map(|(index, x)| f64::from(*x) * factor(index));
        let expected = Expected::within(1e-6, expected);
        CaseStep::of_rows(rows, vec![x.clone(), gates.clone()], vec![expected])
    };
    const SHAPES: [(usize, usize); 4] = [(1, 1), (3, 77), (64, 576), (200, 8)];
    let add = Case::new("of any shape", Add, SHAPES.map(add).into());
    let gate = Case::new("of any shape", GateRows, SHAPES.map(gate).into());
    let scale = |(rows, width): (usize, usize)| {
        let x = random::activations(rows * width, 1);
        let expected = Expected::within(1e-6, x.iter().map(|x| 0.3 * f64::from(*x)));
        CaseStep::of_rows(rows, vec![x.clone()], vec![expected])
    };
    let scale = Case::new("of any shape", Scale::new(0.3), SHAPES.map(scale).into());
    vec![add, gate, cap(30.0), cap(0.5), scale, scale_by_position_case()]
}

fn scale_by_position_case() -> Case {
    const POSITIONS: [u32; 6] = [0, 6, 7, 13, 14, 100_000];
    let (width, op) = (37, ScaleByPosition { step: 7, strength: 0.1 });
    let x = random::activations(POSITIONS.len() * width, 1);
    let factor = |position: u32| 1.0 + f64::from(op.strength) * f64::from((position + 1) / op.step).ln_1p();
    let expected = x.iter().enumerate().map(|(index, x)| f64::from(*x) * factor(POSITIONS[index / width]));
    let expected = vec![Expected::within(1e-6, expected)];
    let mut step = CaseStep::of_rows(POSITIONS.len(), vec![x.clone()], expected);
    step.batch.positions = POSITIONS.into();
    Case::new("in steps of 7", op, vec![step])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{assert_close, run, supported_kernels, values};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn add_agrees_with_float64(rows in 1usize..4, width in 1usize..50, seed: u64) {
            let (a, b) = (values(seed, rows * width), values(seed ^ 1, rows * width));
            let expected: Vec<f64> = a.iter().zip(&b).map(|(a, b)| f64::from(*a) + f64::from(*b)).collect();
            for kernel in supported_kernels() {
                assert_close(&run(&Add, kernel, rows, &[(&a, width), (&b, width)])[0], &expected, 1e-6);
            }
        }

        #[test]
        fn softcap_agrees_with_float64(width in 1usize..50, cap in 0.5f32..60.0, scale in 0.1f32..500.0, seed: u64) {
            let x: Vec<f32> = values(seed, width).iter().map(|x| x * scale).collect();
            let expected: Vec<f64> =
                x.iter().map(|x| f64::from(cap) * (f64::from(*x) / f64::from(cap)).tanh()).collect();
            for kernel in supported_kernels() {
                assert_close(&run(&Softcap::new(cap), kernel, 1, &[(&x, width)])[0], &expected, f64::from(cap) * 1e-6);
            }
        }
    }
}
