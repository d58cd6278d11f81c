//! SelectRows: keeps the rows whose logits or hidden values are requested.

use crate::cases::{Case, CaseStep, Expected};
use crate::cost::{Cost, CostArgs};
use crate::gpu::{Dispatch, GpuArgs, Module, Push, RowCount};
use crate::op::{CpuArgs, Op, Selection, ShapeError};
use crate::quant::random;

/// `y[i] = x[selected[i]]`: all later ops (the last norm, the output head) compute only the selected rows.
///
/// - x: [rows, width] f32, y: [selected, width] f32
/// - [`Batch::selection`](crate::op::Batch::selection) gives the rows, ascending
#[derive(Clone, Copy, Debug, Default)]
pub struct SelectRows {
    selection: Selection,
}

impl SelectRows {
    /// Keeps the rows whose logits are requested.
    #[must_use]
    pub fn new() -> Self {
        SelectRows::default()
    }

    /// Keeps the rows whose hidden values are requested.
    #[must_use]
    pub fn hidden() -> Self {
        SelectRows { selection: Selection::Hidden }
    }
}

impl Op for SelectRows {
    fn name(&self) -> &'static str {
        "select_rows"
    }

    fn output_widths(&self, inputs: &[usize]) -> Result<Vec<usize>, ShapeError> {
        ShapeError::check(self.name(), "number of inputs", inputs.len(), 1)?;
        Ok(inputs.to_vec())
    }

    fn selects_rows(&self) -> Option<Selection> {
        Some(self.selection)
    }

    fn cost(&self, args: &CostArgs<'_>) -> Cost {
        // The selected rows are read and written; the others are not read.
        Cost { activation_bytes: (2 * args.output_values() * size_of::<f32>()) as u64, ..Cost::default() }
    }

    /// # Panics
    /// When the selection names a row that the input does not have.
    fn run_cpu(&self, args: &mut CpuArgs<'_>) {
        let (input, output) = (args.inputs[0], &mut args.outputs[0]);
        if args.rows == 0 {
            return;
        }
        let (width, selected) = (input.len() / args.rows, args.batch.selection(self.selection));
        assert_eq!(output.len(), selected.len() * width, "output of the selected rows");
        for (output, &row) in output.chunks_exact_mut(width).zip(selected) {
            let start = row as usize * width;
            output.copy_from_slice(&input[start..start + width]);
        }
    }

    fn dispatches(&self, args: &GpuArgs<'_>) -> Vec<Dispatch> {
        let (input, output) = (args.inputs[0], args.outputs[0]);
        let rows = match self.selection {
            Selection::Logits => RowCount::Selected(args.selected),
            Selection::Hidden => RowCount::Hidden(args.hidden),
        };
        let push = Push::new()
            .address(input.region.address)
            .address(output.region.address)
            .address(args.step)
            .size(input.width)
            .word(rows.kind());
        let selected = GpuArgs { rows, ..*args };
        vec![selected.each_column(Module::SelectRows, push, input.width)]
    }
}

/// The expected results: one row, some rows and all rows, in their order.
#[must_use]
pub fn cases() -> Vec<Case> {
    let step = |(rows, width, selected): (usize, usize, &[u32])| {
        let x = random::activations(rows * width, rows as u64);
        let chosen = selected.iter().flat_map(|&row| &x[row as usize * width..][..width]);
        let expected = Expected::exactly(&chosen.copied().collect::<Vec<f32>>());
        let mut step = CaseStep::of_rows(rows, vec![x], vec![expected]);
        step.batch.selected = selected.into();
        step
    };
    let shapes: [(usize, usize, &[u32]); 4] =
        [(1, 1, &[0]), (3, 77, &[0, 2]), (3, 576, &[0, 1, 2]), (100, 64, &[17, 98, 99])];
    let hidden = |shape| {
        let mut step = step(shape);
        step.batch.hidden = std::mem::take(&mut step.batch.selected);
        step
    };
    vec![
        Case::new("of logits", SelectRows::new(), shapes.map(step).into()),
        Case::new("of hidden values", SelectRows::hidden(), shapes.map(hidden).into()),
    ]
}

#[cfg(test)]
mod tests {
    use super::SelectRows;
    use crate::cpu::{ActivationBits, Kernel, Solo};
    use crate::kv::KvCache;
    use crate::op::{Batch, CpuArgs, Op, Selection};
    use crate::recurrent::StateCache;
    use crate::tuning::Tuning;

    fn select(selected: &[u32], rows: usize, input: &[f32]) -> Vec<f32> {
        let mut output = vec![f32::NAN; selected.len() * 2];
        let batch = Batch { selected, ..Batch::default() };
        SelectRows::new().run_cpu(&mut CpuArgs {
            kernel: Kernel::Scalar,
            activation_bits: ActivationBits::default(),
            tuning: Tuning::default(),
            team: &Solo,
            batch,
            kv: &KvCache::empty(),
            states: &StateCache::empty(),
            rows,
            scratch: &mut [],
            inputs: &[input],
            outputs: &mut [&mut output],
        });
        output
    }

    #[test]
    fn without_selected_rows_the_output_is_empty() {
        assert_eq!(select(&[], 1, &[1.0, 2.0]), []);
        assert_eq!(select(&[], 0, &[]), []);
    }

    #[test]
    fn the_output_has_the_width_of_the_input() {
        assert_eq!(SelectRows::new().output_widths(&[576]), Ok(vec![576]));
        assert!(SelectRows::new().output_widths(&[1, 2]).is_err());
        assert_eq!(SelectRows::new().selects_rows(), Some(Selection::Logits));
        assert_eq!(SelectRows::hidden().selects_rows(), Some(Selection::Hidden));
    }
}
