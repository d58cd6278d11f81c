//! Embeddings that the caller gives, in the place of those of tokens.

use crate::cases::{Case, CaseStep, Expected};
use crate::cpu::for_each_chunk;
use crate::gpu::{Dispatch, GpuArgs, Module};
use crate::op::{CpuArgs, Op, ShapeError};
use crate::quant::random;

/// `y[r] = given[r, 1..]` for a row `r` that is given, where `given[r, 0]` is not 0; else `y[r] = x[r]`.
///
/// - x, y: [rows, width] f32
/// - given: [rows, 1 + width] f32
#[derive(Debug, Clone, Copy)]
pub struct GivenRows;

impl Op for GivenRows {
    fn name(&self) -> &'static str {
        "given_rows"
    }

    fn output_widths(&self, inputs: &[usize]) -> Result<Vec<usize>, ShapeError> {
        ShapeError::check(self.name(), "number of inputs", inputs.len(), 2)?;
        ShapeError::check(self.name(), "width of the given rows", inputs[1], inputs[0] + 1)?;
        Ok(vec![inputs[0]])
    }

    fn run_cpu(&self, args: &mut CpuArgs<'_>) {
        let [x, given] = [0, 1].map(|input| args.inputs[input]);
        let width = x.len() / args.rows.max(1);
        for_each_chunk(args.team, args.outputs[0], width, &|row, y| {
            let given = &given[row * (width + 1)..][..=width];
            y.copy_from_slice(if given[0] == 0.0 { &x[row * width..][..width] } else { &given[1..] });
        });
    }

    fn dispatches(&self, args: &GpuArgs<'_>) -> Vec<Dispatch> {
        let push = args.elementwise(0, 0.0);
        vec![args.each_column(Module::GivenRows, push, args.inputs[0].width)]
    }
}

/// The expected results: some rows are given, and no row is.
#[must_use]
pub fn cases() -> Vec<Case> {
    const WIDTH: usize = 77;
    let step = |are_given: &[bool]| {
        let rows = are_given.len();
        let x = random::activations(rows * WIDTH, 1);
        let mut given = random::activations(rows * (WIDTH + 1), 2);
        let mut expected = Vec::new();
        for ((is_given, x), given) in are_given.iter().zip(x.chunks(WIDTH)).zip(given.chunks_mut(WIDTH + 1)) {
            given[0] = f32::from(u8::from(*is_given));
            expected.extend_from_slice(if *is_given { &given[1..] } else { x });
        }
        let expected = Expected::exactly(&expected);
        CaseStep::of_rows(rows, vec![x, given], vec![expected])
    };
    let steps = vec![step(&[true, false, false, true, true]), step(&[false; 3])];
    vec![Case::new("some rows", GivenRows, steps)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn given_rows_have_one_value_more() {
        assert_eq!(GivenRows.output_widths(&[5, 6]), Ok(vec![5]));
        let error = GivenRows.output_widths(&[5, 5]).unwrap_err().to_string();
        assert_eq!(error, "given_rows: width of the given rows is 5, but must be 6");
    }
}
