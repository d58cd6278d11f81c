//! The op on the CPU: which rows it changes.

use super::division::{ChangedRow, Division, Panel};
use super::products::{Outputs, expand_all, shrink_all};
use super::{LoraDelta, Source, Target, gpu};
use crate::cost::{Cost, CostArgs};
use crate::cpu::{Kernel, SharedMut};
use crate::gpu::{DeviceLimits, Dispatch, GpuArgs};
use crate::op::{Batch, CpuArgs, Op, ShapeError};

impl LoraDelta {
    /// The rows of all projections.
    fn division<'a>(&self, batch: &Batch<'a>, rows: usize) -> Division<'a> {
        let mut division = Division::default();
        for (part, target) in self.targets.iter().enumerate() {
            let used = |row| {
                let used = batch.adapter_of(row, rows)?;
                Some(ChangedRow { used, change: used.adapter.change(target.index)?, x_row: row })
            };
            division.add(part, (0..rows).map(used));
        }
        division
    }

    /// Computes `h = A x` of all rows with a change: [projections, rows, max_rank].
    fn compute_h(&self, args: &mut CpuArgs<'_>, division: &Division<'_>) {
        match self.source {
            Source::Values => self.shrink(args, division),
            Source::Tokens => self.look_up(args, division),
        }
    }

    /// Copies a column of A for each row.
    fn look_up(&self, args: &mut CpuArgs<'_>, division: &Division<'_>) {
        let (max_rank, tokens) = (self.max_rank(), args.batch.tokens);
        for Panel { change, rows, .. } in &division.panels {
            for (row, _) in rows {
                for (k, h) in args.scratch[row * max_rank..][..change.rank()].iter_mut().enumerate() {
                    *h = change.a_row(k)[tokens[*row] as usize];
                }
            }
        }
    }

    fn shrink(&self, args: &mut CpuArgs<'_>, division: &Division<'_>) {
        let (max_rank, x) = (self.max_rank(), args.inputs[self.targets.len()]);
        let h: Vec<_> = args.scratch.chunks_mut((args.rows * max_rank).max(1)).map(SharedMut::new).collect();
        shrink_all((args.kernel, args.team), division, x, &h, max_rank);
    }

    /// Computes the outputs from `h`.
    fn expand(&self, args: &mut CpuArgs<'_>, division: &Division<'_>) {
        let max_rank = self.max_rank();
        let h = args.scratch.chunks((args.rows * max_rank).max(1));
        let values = args.inputs.iter().zip(args.outputs.iter_mut()).zip(&self.targets);
        let parts = values.zip(h).map(|(((y, z), target), h)| Outputs {
            y: Some(y),
            h,
            z: SharedMut::new(z),
            outputs: target.outputs,
        });
        let parts: Vec<Outputs<'_>> = parts.collect();
        expand_all((args.kernel, args.team), division, &division.unchanged, &parts, max_rank);
    }
}

impl Op for LoraDelta {
    fn name(&self) -> &'static str {
        "lora"
    }

    /// The inputs are y of each projection, and x.
    fn output_widths(&self, inputs: &[usize]) -> Result<Vec<usize>, ShapeError> {
        ShapeError::check(self.name(), "number of inputs", inputs.len(), self.n_inputs())?;
        for (target, y) in self.targets.iter().zip(inputs) {
            ShapeError::check(self.name(), "width of the projection's output", *y, target.outputs)?;
            if let Some(x) = inputs.get(self.targets.len()) {
                ShapeError::check(self.name(), "width of the projection's input", *x, target.columns)?;
            }
        }
        Ok(inputs[..self.targets.len()].to_vec())
    }

    fn adapter_targets(&self) -> &[Target] {
        &self.targets
    }

    fn scratch_len(&self, _: Kernel, rows: usize, _: usize) -> usize {
        self.targets.len() * rows * self.max_rank()
    }

    fn cost(&self, args: &CostArgs<'_>) -> Cost {
        let division = self.division(&args.batch, args.rows);
        let (mut memory_bytes, mut float_operations, mut last) = (0, 0, None);
        for panel in &division.panels {
            let target = &self.targets[panel.part];
            let columns = if self.source == Source::Values { target.columns } else { panel.rows.len() };
            let values = (panel.change.rank() * (columns + target.outputs)) as u64;
            float_operations += 2 * values * panel.rows.len() as u64;
            // Panels of one adapter follow each other.
            if last.replace(std::ptr::from_ref(panel.change)) != Some(std::ptr::from_ref(panel.change)) {
                memory_bytes += values * size_of::<f32>() as u64;
            }
        }
        Cost { memory_bytes, activation_bytes: args.activation_bytes(), float_operations, ..Cost::default() }
    }

    /// # Panics
    /// When an adapter has a larger rank than the op allows.
    fn run_cpu(&self, args: &mut CpuArgs<'_>) {
        let division = self.division(&args.batch, args.rows);
        let fits = |panel: &Panel<'_>| panel.change.rank() <= self.targets[panel.part].max_rank;
        assert!(division.panels.iter().all(fits), "an adapter has a rank above {}", self.max_rank());
        self.compute_h(args, &division);
        self.expand(args, &division);
    }

    fn gpu_scratch_bytes(&self, _: &DeviceLimits, rows: usize, _: usize) -> u64 {
        self.targets.iter().map(|target| gpu::scratch_bytes(target, rows)).sum()
    }

    fn dispatches(&self, args: &GpuArgs<'_>) -> Vec<Dispatch> {
        match self.source {
            Source::Values => gpu::dispatches(&self.targets, args),
            Source::Tokens => gpu::look_up(&self.targets[0], args),
        }
    }
}
