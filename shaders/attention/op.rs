//! The attention op: its shapes, its cost, and how it runs.

use super::{Attention, RowsInStep, cpu, gpu};
use crate::cost::{Cost, CostArgs};
use crate::cpu::Kernel;
use crate::gpu::{DeviceLimits, Dispatch, GpuArgs};
use crate::op::{CpuArgs, Op, ShapeError};

impl Op for Attention {
    fn name(&self) -> &'static str {
        "attention"
    }

    fn output_widths(&self, inputs: &[usize]) -> Result<Vec<usize>, ShapeError> {
        let stored = match self.stores {
            true => 1 + usize::from(self.kv.stored_value_dim() > 0),
            false => 0,
        };
        let expected = 1 + stored + usize::from(self.selection.is_some());
        ShapeError::check(self.name(), "number of inputs", inputs.len(), expected)?;
        let (inputs, selected) = inputs.split_at(1 + stored);
        if let (Some(selection), Some(&selected)) = (self.selection, selected.first()) {
            ShapeError::check(self.name(), "width of the selected positions", selected, selection.width())?;
        }
        ShapeError::check(self.name(), "width of the query", inputs[0], self.n_heads * self.kv.key_dim)?;
        if let Some(&key) = inputs.get(1) {
            ShapeError::check(self.name(), "width of the key", key, self.kv.key_width())?;
        }
        if let Some(&value) = inputs.get(2) {
            ShapeError::check(self.name(), "width of the value", value, self.kv.value_width())?;
        }
        Ok(vec![self.n_heads * self.kv.value_dim])
    }

    fn state_layer(&self) -> Option<usize> {
        Some(self.layer)
    }

    fn scratch_len(&self, _: Kernel, rows: usize, context_tokens: usize) -> usize {
        cpu::scratch_len(self, rows, context_tokens)
    }

    /// Two products for each row, head and visible position: `q·k` and the weighted sum of values. The softmax is not
    /// counted.
    fn cost(&self, args: &CostArgs<'_>) -> Cost {
        let (mut positions, mut seen) = (0, 0);
        let batch = &args.batch;
        let starts: Vec<usize> = batch.run_starts().collect();
        let ends = starts.iter().skip(1).copied().chain([batch.sequences.len()]);
        for (start, end) in starts.iter().copied().zip(ends) {
            let after = batch.positions[end - 1] as usize + 1;
            let of_sequence =
                RowsInStep { sight: batch.sight(start), start: batch.positions[start] as usize, end: after };
            let visible = |row: usize| self.visible(batch.positions[row] as usize, of_sequence);
            seen += (start..end).map(|row| visible(row).len()).sum::<usize>();
            // The positions of the rows of a sequence overlap, and each is read once. Of selected positions this is the least.
            positions += visible(end - 1).end - visible(start).start;
        }
        Cost {
            memory_bytes: positions as u64 * args.kv_position_bytes[self.layer].kv,
            activation_bytes: args.activation_bytes(),
            float_operations: 2 * (seen * self.n_heads * (self.kv.key_dim + self.kv.value_dim)) as u64,
            ..Cost::default()
        }
    }

    fn run_cpu(&self, args: &mut CpuArgs<'_>) {
        if self.stores {
            let values = if self.kv.stored_value_dim() == 0 { &[][..] } else { args.inputs[2] };
            cpu::store((self.layer, self.kv), [args.inputs[1], values], args);
        }
        cpu::attend(self, args);
    }

    fn gpu_tables(&self) -> Vec<&[f32]> {
        [&self.sinks, &self.slopes].into_iter().flat_map(Option::as_deref).collect()
    }

    fn gpu_scratch_bytes(&self, device: &DeviceLimits, rows: usize, context_tokens: usize) -> u64 {
        gpu::scratch_bytes(self, device, rows, context_tokens)
    }

    fn dispatches(&self, args: &GpuArgs<'_>) -> Vec<Dispatch> {
        gpu::dispatches(self, args)
    }
}
