//! Two neighbouring ops as one.

use std::any::Any;

use crate::cost::{Cost, CostArgs};
use crate::cpu::{Kernel, Team};
use crate::gpu::{DeviceLimits, Dispatch, GpuArgs};
use crate::op::{CpuArgs, Op, ShapeError};
use crate::weight::Weight;

/// An op that a GPU computes together with the next one. The outputs of this op are the first inputs of the next.
pub trait FusesWith<Next: Op>: Op {
    /// The name of the pair.
    const NAME: &'static str;
    /// The number of inputs of this op.
    const INPUTS: usize;
    /// Whether the values between the two ops are outputs too, before the one output of the next op. Otherwise no other
    /// op may read them.
    const GIVES_BETWEEN: bool;

    /// Whether these two ops can be computed together.
    fn fuses_with(&self, next: &Next) -> bool {
        let _ = next;
        true
    }

    /// The widths of the values between the two ops, if they are not outputs.
    fn widths_between(&self, next: &Next) -> Vec<usize> {
        let _ = next;
        Vec::new()
    }

    /// The scratch memory of the pair, as [`Op::gpu_scratch_bytes`].
    fn scratch_bytes_with(&self, next: &Next, device: &DeviceLimits, rows: usize, context_tokens: usize) -> u64 {
        let _ = (next, device, rows, context_tokens);
        0
    }

    /// The dispatches of the pair, as [`Op::dispatches`]. Weights and tables are those of this op, then those of the
    /// next.
    fn dispatches_with(&self, next: &Next, args: &GpuArgs<'_>) -> Vec<Dispatch>;
}

/// Two ops as one.
#[derive(Debug)]
pub struct Fused {
    /// The pair. Its inputs are those of the first op, then those inputs of the second that the first does not compute.
    pub op: Box<dyn Op>,
    /// Whether its outputs are those of the first op and then of the second, or those of the second only.
    pub gives_between: bool,
}

/// Both ops as one, if they are of these types and fuse.
pub(crate) fn pair<First, Second>(first: &dyn Op, second: &dyn Op) -> Option<Fused>
where
    First: FusesWith<Second> + Clone,
    Second: Op + Clone,
{
    let (first, second): (&dyn Any, &dyn Any) = (first, second);
    let (first, second) = (first.downcast_ref::<First>()?, second.downcast_ref::<Second>()?);
    let pair = || Box::new(Pair { first: first.clone(), second: second.clone() });
    first.fuses_with(second).then(|| Fused { op: pair(), gives_between: First::GIVES_BETWEEN })
}

/// An op and the next one.
#[derive(Debug)]
struct Pair<First, Second> {
    first: First,
    second: Second,
}

impl<First: FusesWith<Second>, Second: Op> Pair<First, Second> {
    fn ops(&self) -> [&dyn Op; 2] {
        [&self.first, &self.second]
    }

    fn ops_mut(&mut self) -> [&mut dyn Op; 2] {
        [&mut self.first, &mut self.second]
    }

    /// The width of all values between the two ops, if they are not outputs.
    fn width_between(&self) -> usize {
        self.first.widths_between(&self.second).iter().sum()
    }
}

impl<First: FusesWith<Second>, Second: Op> Op for Pair<First, Second> {
    fn name(&self) -> &'static str {
        First::NAME
    }

    fn output_widths(&self, inputs: &[usize]) -> Result<Vec<usize>, ShapeError> {
        let (of_first, others) = inputs.split_at(First::INPUTS.min(inputs.len()));
        let between = self.first.output_widths(of_first)?;
        let outputs = self.second.output_widths(&[&between, others].concat())?;
        Ok(if First::GIVES_BETWEEN { [between, outputs].concat() } else { outputs })
    }

    fn weights(&self) -> Vec<&Weight> {
        self.ops().iter().flat_map(|op| op.weights()).collect()
    }

    fn state_layer(&self) -> Option<usize> {
        self.ops().iter().find_map(|op| op.state_layer())
    }

    fn prepare_cpu(&mut self, kernel: Kernel, team: &dyn Team) {
        self.ops_mut().into_iter().for_each(|op| op.prepare_cpu(kernel, team));
    }

    fn repacks(&self, kernel: Kernel, weight: &Weight) -> bool {
        self.ops().iter().any(|op| op.repacks(kernel, weight))
    }

    fn repack_overhead_bytes(&self, kernel: Kernel) -> u64 {
        self.ops().iter().map(|op| op.repack_overhead_bytes(kernel)).sum()
    }

    fn scratch_len(&self, kernel: Kernel, rows: usize, context_tokens: usize) -> usize {
        let of_ops = self.ops().into_iter().map(|op| op.scratch_len(kernel, rows, context_tokens));
        rows * self.width_between() + of_ops.max().unwrap_or(0)
    }

    /// The cost of both ops, but the values between them are neither written nor read again.
    fn cost(&self, args: &CostArgs<'_>) -> Cost {
        let (of_first, others) = args.input_widths.split_at(First::INPUTS.min(args.input_widths.len()));
        let between = self.first.output_widths(of_first).unwrap_or_default();
        let inputs = [&between, others].concat();
        let outputs_between = if First::GIVES_BETWEEN { between.len() } else { 0 };
        let (rows, outputs) = (args.output_rows, &args.output_widths[outputs_between..]);
        let first = CostArgs { input_widths: of_first, output_widths: &between, output_rows: args.rows, ..*args };
        let second = CostArgs { input_widths: &inputs, output_widths: outputs, output_rows: rows, ..*args };
        let both = self.first.cost(&first) + self.second.cost(&second);
        Cost { activation_bytes: args.activation_bytes(), ..both }
    }

    fn run_cpu(&self, args: &mut CpuArgs<'_>) {
        let CpuArgs { kernel, activation_bits, tuning, team, batch, kv, states, rows, .. } = *args;
        let (inputs, others) = args.inputs.split_at(First::INPUTS);
        let mut outputs_between: Vec<&mut [f32]> = args.outputs.iter_mut().map(|output| &mut **output).collect();
        let mut outputs = outputs_between.split_off(outputs_between.len() - 1);
        let (mut free, scratch) = args.scratch.split_at_mut(rows * self.width_between());
        let in_scratch = |width: usize| {
            let (value, rest) = std::mem::take(&mut free).split_at_mut(rows * width);
            free = rest;
            value
        };
        let mut between: Vec<&mut [f32]> = match First::GIVES_BETWEEN {
            true => outputs_between,
            false => self.first.widths_between(&self.second).into_iter().map(in_scratch).collect(),
        };
        let mut outputs_of_first: Vec<&mut [f32]> = between.iter_mut().map(|value| &mut **value).collect();
        self.first.run_cpu(&mut CpuArgs {
            outputs: &mut outputs_of_first,
            scratch: &mut *scratch,
            kernel,
            activation_bits,
            tuning,
            team,
            batch,
            kv,
            states,
            rows,
            inputs,
        });
        let inputs: Vec<&[f32]> = between.iter().map(|value| &**value).chain(others.iter().copied()).collect();
        let (inputs, outputs) = (&inputs[..], &mut outputs[..]);
        self.second.run_cpu(&mut CpuArgs {
            kernel,
            activation_bits,
            tuning,
            team,
            batch,
            kv,
            states,
            rows,
            scratch,
            inputs,
            outputs,
        });
    }

    fn gpu_tables(&self) -> Vec<&[f32]> {
        self.ops().iter().flat_map(|op| op.gpu_tables()).collect()
    }

    fn gpu_scratch_bytes(&self, device: &DeviceLimits, rows: usize, context_tokens: usize) -> u64 {
        self.first.scratch_bytes_with(&self.second, device, rows, context_tokens)
    }

    fn dispatches(&self, args: &GpuArgs<'_>) -> Vec<Dispatch> {
        self.first.dispatches_with(&self.second, args)
    }
}
