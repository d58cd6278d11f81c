//! The op: which rows have which adapter, and how the work is split into tasks.

use super::kernel::{Expand, Shrink, TILE, expand, shrink};
use super::{AdapterUse, LoraDelta, LowRank};
use crate::cost::{Cost, CostArgs};
use crate::cpu::{Kernel, SharedMut};
use crate::gpu::{Dispatch, GpuArgs, Module};
use crate::op::{Batch, CpuArgs, Op, ShapeError};

/// The most rows of a task.
const PANEL_ROWS: usize = 16;
/// Strips of B of a task.
const TASK_STRIPS: usize = 32;

/// Rows of one adapter that changes the projection.
struct Panel<'a> {
    change: &'a LowRank,
    rows: Vec<usize>,
    /// Each row with the factor on its change.
    scaled: Vec<(usize, f32)>,
}

/// The rows of a step: those that a change applies to, and the others.
#[derive(Default)]
struct Division<'a> {
    panels: Vec<Panel<'a>>,
    unchanged: Vec<usize>,
}

impl<'a> Division<'a> {
    fn of(batch: &Batch<'a>, rows: usize, target: usize) -> Self {
        let mut division = Division::default();
        let mut changed: Vec<(u64, usize, &AdapterUse, &LowRank)> = Vec::new();
        for row in 0..rows {
            let used = batch.adapter_of(row, rows);
            match used.and_then(|used| Some((used, used.adapter.change(target)?))) {
                Some((used, change)) => changed.push((used.adapter.id(), row, used, change)),
                None => division.unchanged.push(row),
            }
        }
        changed.sort_unstable_by_key(|(id, row, ..)| (*id, *row));
        for rows in changed.chunk_by(|a, b| a.0 == b.0).flat_map(|rows| rows.chunks(PANEL_ROWS)) {
            let scaled: Vec<(usize, f32)> = rows.iter().map(|(_, row, used, _)| (*row, used.scale)).collect();
            let rows_alone = scaled.iter().map(|(row, _)| *row).collect();
            division.panels.push(Panel { change: rows[0].3, rows: rows_alone, scaled });
        }
        division
    }

    /// The tasks of all panels: the panel, and the number of the task in it.
    fn tasks(&self, count: impl Fn(&Panel<'_>) -> usize) -> Vec<(&Panel<'a>, usize)> {
        self.panels.iter().flat_map(|panel| (0..count(panel)).map(move |task| (panel, task))).collect()
    }
}

impl LoraDelta {
    /// Computes `h = A x` of all rows with a change.
    fn shrink(&self, args: &mut CpuArgs<'_>, division: &Division<'_>) {
        let (kernel, max_rank, x) = (args.kernel, self.max_rank, args.inputs[1]);
        let tasks = division.tasks(|panel| panel.change.rank().div_ceil(TILE));
        let h = SharedMut::new(&mut *args.scratch);
        args.team.for_each(tasks.len(), &|task| {
            let (panel, tile) = tasks[task];
            shrink(kernel, &Shrink { change: panel.change, first: tile * TILE, rows: &panel.rows, x, h: &h, max_rank });
        });
    }

    /// Computes the outputs from `h`.
    fn expand(&self, args: &mut CpuArgs<'_>, division: &Division<'_>) {
        let (kernel, max_rank, outputs, y) = (args.kernel, self.max_rank, self.outputs, args.inputs[0]);
        let tasks = division.tasks(|panel| panel.change.strips().div_ceil(TASK_STRIPS));
        let h = &*args.scratch;
        let z = SharedMut::new(&mut *args.outputs[0]);
        let unchanged = &division.unchanged;
        args.team.for_each(unchanged.len() + tasks.len(), &|task| {
            let Some((panel, part)) = task.checked_sub(unchanged.len()).map(|task| tasks[task]) else {
                let start = unchanged[task] * outputs;
                // SAFETY: each task writes its own rows, or its own columns of them.
                unsafe { z.slice(start, outputs) }.copy_from_slice(&y[start..start + outputs]);
                return;
            };
            let first = part * TASK_STRIPS;
            let strips = first..panel.change.strips().min(first + TASK_STRIPS);
            let (change, rows) = (panel.change, &*panel.scaled);
            expand(kernel, &Expand { change, strips, rows, y, h, max_rank, outputs, z: &z });
        });
    }
}

impl Op for LoraDelta {
    fn name(&self) -> &'static str {
        "lora"
    }

    /// The inputs are y and x.
    fn output_widths(&self, inputs: &[usize]) -> Result<Vec<usize>, ShapeError> {
        ShapeError::check(self.name(), "number of inputs", inputs.len(), 2)?;
        ShapeError::check(self.name(), "width of the projection's output", inputs[0], self.outputs)?;
        ShapeError::check(self.name(), "width of the projection's input", inputs[1], self.columns)?;
        Ok(vec![self.outputs])
    }

    fn scratch_len(&self, _: Kernel, rows: usize, _: usize) -> usize {
        rows * self.max_rank
    }

    fn cost(&self, args: &CostArgs<'_>) -> Cost {
        let division = Division::of(&args.batch, args.rows, self.target);
        let (mut memory_bytes, mut float_operations, mut last) = (0, 0, None);
        for panel in &division.panels {
            let values = (panel.change.rank() * (self.columns + self.outputs)) as u64;
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
        let division = Division::of(&args.batch, args.rows, self.target);
        let fits = |panel: &Panel<'_>| panel.change.rank() <= self.max_rank;
        assert!(division.panels.iter().all(fits), "an adapter has a rank above {}", self.max_rank);
        self.shrink(args, &division);
        self.expand(args, &division);
    }

    /// A copy of y: what the op does for rows without an adapter. Models with adapters are not loaded on a GPU.
    fn dispatches(&self, args: &GpuArgs<'_>) -> Vec<Dispatch> {
        vec![args.each_column(Module::Scale, args.elementwise(0, 1.0), args.outputs[0].width)]
    }
}
