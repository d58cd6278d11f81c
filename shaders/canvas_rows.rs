//! Other values for the rows of a canvas.

use crate::cases::{Case, CaseStep, Expected};
use crate::elementwise::{for_each_row, scale_row};
use crate::gpu::{Dispatch, GpuArgs, Module};
use crate::op::{CpuArgs, Op, ShapeError, Sight};
use crate::quant::random;

/// `y[r] = x[r] * plain` for a row `r` outside of a [canvas](Sight::Canvas), `y[r] = c[r] * canvas` for a row of one.
///
/// - x, c, y: [rows, width] f32. With one input, c is x
#[derive(Debug, Clone, Copy)]
pub struct CanvasRows {
    plain: f32,
    canvas: f32,
}

impl CanvasRows {
    /// Takes the rows of a canvas from the second input.
    #[must_use]
    pub fn select() -> Self {
        CanvasRows { plain: 1.0, canvas: 1.0 }
    }

    /// Multiplies rows by a factor, and those of a canvas by another.
    #[must_use]
    pub fn scale(plain: f32, canvas: f32) -> Self {
        CanvasRows { plain, canvas }
    }
}

impl Op for CanvasRows {
    fn name(&self) -> &'static str {
        "canvas_rows"
    }

    fn output_widths(&self, inputs: &[usize]) -> Result<Vec<usize>, ShapeError> {
        if let [width, other] = *inputs {
            ShapeError::check(self.name(), "width of the rows of a canvas", other, width)?;
            return Ok(vec![width]);
        }
        ShapeError::check(self.name(), "number of inputs", inputs.len(), 1)?;
        Ok(inputs.to_vec())
    }

    fn run_cpu(&self, args: &mut CpuArgs<'_>) {
        let (plain, canvas, batch) = (args.inputs[0], args.inputs[args.inputs.len() - 1], args.batch);
        for_each_row(args, &|kernel, range, y| match batch.is_canvas(range.start / range.len().max(1)) {
            true => scale_row(kernel, &canvas[range], self.canvas, y),
            false => scale_row(kernel, &plain[range], self.plain, y),
        });
    }

    fn dispatches(&self, args: &GpuArgs<'_>) -> Vec<Dispatch> {
        let (first, last) = (args.inputs[0], args.inputs[args.inputs.len() - 1]);
        let args = GpuArgs { inputs: &[first, last], ..*args };
        let push = args.elementwise(self.canvas.to_bits(), self.plain);
        vec![args.each_column(Module::CanvasRows, push, first.width)]
    }
}

/// The expected results: rows of two sequences, of which the second, the first or none is a canvas.
#[must_use]
pub fn cases() -> Vec<Case> {
    const WIDTH: usize = 77;
    const ROWS: usize = 5;
    use Sight::{Before, Canvas, EachOther};
    let case = |op: CanvasRows, inputs: usize| {
        let step = |sights: &[Sight]| {
            let inputs: Vec<Vec<f32>> =
                (0..inputs).map(|input| random::activations(ROWS * WIDTH, input as u64)).collect();
            let sequences: Vec<u32> = vec![0, 0, 0, 1, 1];
            let value = |index: usize| match sights.get(sequences[index / WIDTH] as usize) {
                Some(Canvas) => inputs[inputs.len() - 1][index] * op.canvas,
                _ => inputs[0][index] * op.plain,
            };
            let expected = Expected::exactly(&(0..ROWS * WIDTH).map(value).collect::<Vec<_>>());
            let mut step = CaseStep::of_rows(ROWS, inputs.clone(), vec![expected]);
            step.batch.positions = vec![7, 8, 9, 3, 4];
            step.batch.block_tables = vec![Vec::new(); 2];
            step.batch.sequences.clone_from(&sequences);
            step.batch.sights = sights.into();
            step
        };
        Case::new(format!("{op:?}"), op, vec![step(&[Before, Canvas]), step(&[Canvas, EachOther]), step(&[])])
    };
    vec![case(CanvasRows::select(), 2), case(CanvasRows::scale(0.5, -1.5), 1)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::{ActivationBits, Solo};
    use crate::kv::KvCache;
    use crate::op::Batch;
    use crate::recurrent::StateCache;
    use crate::testing::supported_kernels;
    use crate::tuning::Tuning;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn rows_of_a_canvas_get_their_own_values(
            canvases in prop::collection::vec(any::<bool>(), 0..4), plain in -3.0f32..3.0, canvas in -3.0f32..3.0,
        ) {
            const ROWS: usize = 3;
            let sequences: Vec<u32> = (0..canvases.len() as u32).flat_map(|sequence| [sequence; ROWS]).collect();
            let x: Vec<f32> = (0..sequences.len() * 5).map(|value| value as f32).collect();
            let c: Vec<f32> = x.iter().map(|value| -value).collect();
            let sights: Vec<Sight> =
                canvases.iter().map(|canvas| if *canvas { Sight::Canvas } else { Sight::Before }).collect();
            let batch = Batch { tokens: &sequences, sequences: &sequences, sights: &sights, ..Batch::default() };
            let expected = x.iter().enumerate().map(|(index, value)| {
                if canvases[index / 5 / ROWS] { -value * canvas } else { value * plain }
            });
            let expected: Vec<f32> = expected.collect();
            for kernel in supported_kernels() {
                let mut y = vec![f32::NAN; x.len()];
                CanvasRows::scale(plain, canvas).run_cpu(&mut CpuArgs {
                    kernel,
                    activation_bits: ActivationBits::default(),
                    tuning: Tuning::default(),
                    team: &Solo,
                    batch,
                    kv: &KvCache::empty(),
                    states: &StateCache::empty(),
                    rows: sequences.len(),
                    scratch: &mut [],
                    inputs: &[&x, &c],
                    outputs: &mut [&mut y],
                });
                prop_assert_eq!(&y, &expected);
            }
        }
    }
}
