//! What [`Linear`](super::Linear) runs on a GPU.

use super::Linear;
use crate::gpu::weight::{RUN_COLUMNS, WeightLayout};
use crate::gpu::{DeviceValue, DeviceWeight, Dispatch, GpuArgs, Module, Region};
use crate::weight::Weight;

/// The most rows that share what is unpacked of the weights.
const MAX_ROWS_TOGETHER: usize = 8;

/// One weight with its input and output.
struct Product<'a> {
    weight: &'a Weight,
    on_device: DeviceWeight,
    bias: Option<Region>,
    input: DeviceValue,
    output: DeviceValue,
}

/// A dispatch for each weight; they do not depend on one another.
pub(super) fn dispatches(linear: &Linear, args: &GpuArgs<'_>) -> Vec<Dispatch> {
    let mut biases = args.tables.iter().copied();
    let bias_of = |bias: &Option<_>| bias.as_ref().and_then(|_| biases.next());
    let biases: Vec<Option<Region>> = linear.biases.iter().map(bias_of).collect();
    let weights = linear.weights.iter().zip(args.weights);
    let products = weights.zip(args.outputs).zip(biases).map(|(((weight, on_device), output), bias)| Product {
        weight,
        on_device: *on_device,
        bias,
        input: args.inputs[0],
        output: *output,
    });
    products.map(|product| product.mat_vec(args)).collect()
}

impl Product<'_> {
    fn mat_vec(&self, args: &GpuArgs<'_>) -> Dispatch {
        const OUTPUTS: usize = 4;
        let Weight { format, rows: outputs, columns, .. } = *self.weight;
        let rows = args.rows.most().next_power_of_two().min(MAX_ROWS_TOGETHER);
        let layout = WeightLayout::new(format, outputs, columns);
        let push = self
            .on_device
            .push()
            .address(self.input.region.address)
            .address(self.bias.map_or(0, |bias| bias.address))
            .address(self.output.region.address)
            .address(args.step)
            .word(args.rows.kind())
            .size(columns)
            .size(outputs)
            .word(u32::from(self.bias.is_some()));
        let mut constants =
            vec![(0, lanes(args, columns)), (1, rows as u32), (2, OUTPUTS as u32), (3, u32::from(layout.whole_runs()))];
        constants.extend(layout.constants());
        Dispatch {
            module: Module::MatVec,
            constants,
            push,
            groups: args.spread(outputs, OUTPUTS, args.rows.most().div_ceil(rows)),
            reads: vec![self.input.region],
            writes: vec![self.output.region],
        }
    }
}

/// Invocations that share a result: a subgroup, or more where a row has many runs.
fn lanes(args: &GpuArgs<'_>, columns: usize) -> u32 {
    const MOST: u32 = 128;
    const RUNS_EACH: usize = 2;
    let wanted = columns.div_ceil(RUN_COLUMNS * RUNS_EACH).next_power_of_two();
    let wanted = u32::try_from(wanted).unwrap_or(MOST).min(MOST);
    wanted.max(args.device.subgroup_size).min(args.device.max_workgroup_size)
}
