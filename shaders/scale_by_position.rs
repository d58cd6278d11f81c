//! A factor that grows with the position of a row.

use crate::cases::{Case, CaseStep, Expected};
use crate::elementwise::{for_each_row, scale_row};
use crate::gpu::{Dispatch, GpuArgs, Module};
use crate::op::{CpuArgs, Op, ShapeError};
use crate::quant::random;

/// `y[r, i] = x[r, i] * (1 + strength * ln(1 + floor((p + first) / step)))` for a row at position `p`; x and y are
/// [rows, width], and positions are counted from `first`, 0 or 1.
///
/// It scales queries, whose attention would otherwise flatten over long contexts.
///
/// Source: Nakanishi 2025, "Scalable-Softmax Is Superior for Attention"; the steps are those of Llama 4.
#[derive(Debug)]
pub struct ScaleByPosition {
    step: u32,
    strength: f32,
    first: u32,
}

impl ScaleByPosition {
    /// A scale that grows every `step` positions, which are counted from `first`.
    ///
    /// # Errors
    /// [`ShapeError`] when `step` is 0.
    pub fn new(step: u32, strength: f32, first: u32) -> Result<Self, ShapeError> {
        if step == 0 {
            let (what, expected) = ("positions of a step".to_owned(), "at least 1".to_owned());
            return Err(ShapeError::Mismatch { op: "scale_by_position", what, found: 0, expected });
        }
        Ok(ScaleByPosition { step, strength, first })
    }

    /// The factor of a row at a position.
    fn factor(&self, position: u32) -> f32 {
        let steps = (position.saturating_add(self.first) / self.step) as f32;
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
        let mut dispatch = args.each_column(Module::ScaleByPosition, push, args.outputs[0].width);
        dispatch.constants.push((1, self.first));
        vec![dispatch]
    }
}

/// The expected results: positions within a step, at its end, and far out.
#[must_use]
pub fn cases() -> Vec<Case> {
    const POSITIONS: [u32; 6] = [0, 6, 7, 13, 14, 100_000];
    let case = |first: u32| {
        let (width, op) = (37, ScaleByPosition { step: 7, strength: 0.1, first });
        let x = random::activations(POSITIONS.len() * width, 1);
        let factor = |position: u32| 1.0 + f64::from(op.strength) * f64::from((position + first) / op.step).ln_1p();
        let expected = x.iter().enumerate().map(|(index, x)| f64::from(*x) * factor(POSITIONS[index / width]));
        let expected = vec![Expected::within(1e-6, expected)];
        let mut step = CaseStep::of_rows(POSITIONS.len(), vec![x.clone()], expected);
        step.batch.positions = POSITIONS.into();
        Case::new(format!("in steps of 7, counted from {first}"), op, vec![step])
    };
    [1, 0].map(case).into()
}
