//! Neighbouring ops as one, where a GPU computes both in fewer passes than one after the other.
//!
//! An op says with which next one it fuses, and what then runs ([`FusesWith`]); [`fuse`] knows the pairs. A pair has the bits
//! that its ops have apart: on the processor it runs one and then the other, and on a GPU the shader of the one takes in what
//! the other does to a value.
//!
//! | pair | dispatches of a decode step, apart and fused |
//! |---|---|
//! | [`Add`], [`RmsNorm`]: the residual stream and its norm | 2, 1 |
//! | [`Linear`] of two weights, [`Glu`]: the first half of a feed-forward | 3, 1 |
//! | [`Rope`], [`Attention`]: queries and keys on their way | 3 and those of the attention, 1 and those |

mod cases;

use std::any::Any;

use crate::attention::Attention;
use crate::cost::{Cost, CostArgs};
use crate::cpu::{Kernel, Team};
use crate::elementwise::Add;
use crate::glu::Glu;
use crate::gpu::{DeviceLimits, Dispatch, GpuArgs};
use crate::matmul::Linear;
use crate::op::{CpuArgs, Op, ShapeError};
use crate::rms_norm::RmsNorm;
use crate::rope::Rope;
use crate::weight::Weight;

pub use cases::{FusedCase, cases, fused_cases};

/// An op that a GPU computes together with the next one, whose first inputs are its outputs.
pub trait FusesWith<Next: Op>: Op {
    /// The name of both together.
    const NAME: &'static str;
    /// How many inputs this op has.
    const INPUTS: usize;
    /// Whether what goes from one op to the other is given too, before the one output of the next op. Else nobody may read it.
    const GIVES_BETWEEN: bool;

    /// Whether it can be done with these two.
    fn fuses_with(&self, next: &Next) -> bool {
        let _ = next;
        true
    }

    /// The widths of what goes from one op to the other, where it is not given.
    fn widths_between(&self, next: &Next) -> Vec<usize> {
        let _ = next;
        Vec::new()
    }

    /// Scratch memory of both together, as [`Op::gpu_scratch_bytes`].
    fn scratch_bytes_with(&self, next: &Next, device: &DeviceLimits, rows: usize, context_tokens: usize) -> u64 {
        let _ = (next, device, rows, context_tokens);
        0
    }

    /// What computes both, as [`Op::dispatches`]. Weights and tables are this op's, then those of the next.
    fn dispatches_with(&self, next: &Next, args: &GpuArgs<'_>) -> Vec<Dispatch>;
}

/// Two ops as one.
#[derive(Debug)]
pub struct Fused {
    /// Takes the inputs of the first, then those of the second that the first does not make.
    pub op: Box<dyn Op>,
    /// Whether its outputs are those of the first and then of the second, or of the second alone.
    pub gives_between: bool,
}

/// The two as one op, if they are a pair that fuses. The outputs of the first must be the first inputs of the second. To be
/// asked before the ops are prepared.
#[must_use]
pub fn fuse(first: &dyn Op, second: &dyn Op) -> Option<Fused> {
    pair::<Add, RmsNorm>(first, second)
        .or_else(|| pair::<Linear, Glu>(first, second))
        .or_else(|| pair::<Rope, Attention>(first, second))
}

fn pair<First, Second>(first: &dyn Op, second: &dyn Op) -> Option<Fused>
where
    First: FusesWith<Second> + Clone,
    Second: Op + Clone,
{
    let (first, second): (&dyn Any, &dyn Any) = (first, second);
    let (first, second) = (first.downcast_ref::<First>()?, second.downcast_ref::<Second>()?);
    let pair = || Box::new(Pair { first: first.clone(), second: second.clone() });
    first.fuses_with(second).then(|| Fused { op: pair(), gives_between: First::GIVES_BETWEEN })
}

/// An op and the one behind it.
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

    /// Values in a row of what goes from one op to the other, where it is not given.
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

    fn kv_layer(&self) -> Option<usize> {
        self.ops().iter().find_map(|op| op.kv_layer())
    }

    fn prepare_cpu(&mut self, kernel: Kernel, team: &dyn Team) {
        self.ops_mut().into_iter().for_each(|op| op.prepare_cpu(kernel, team));
    }

    fn replaces(&self, kernel: Kernel, weight: &Weight) -> bool {
        self.ops().iter().any(|op| op.replaces(kernel, weight))
    }

    fn growth(&self, kernel: Kernel) -> u64 {
        self.ops().iter().map(|op| op.growth(kernel)).sum()
    }

    fn scratch_len(&self, kernel: Kernel, rows: usize, context_tokens: usize) -> usize {
        let of_ops = self.ops().into_iter().map(|op| op.scratch_len(kernel, rows, context_tokens));
        rows * self.width_between() + of_ops.max().unwrap_or(0)
    }

    /// That of both ops, but what goes from one to the other is neither written nor read again.
    fn cost(&self, args: &CostArgs<'_>) -> Cost {
        let (of_first, others) = args.input_widths.split_at(First::INPUTS.min(args.input_widths.len()));
        let between = self.first.output_widths(of_first).unwrap_or_default();
        let inputs = [&between, others].concat();
        let given = if First::GIVES_BETWEEN { between.len() } else { 0 };
        let (rows, outputs) = (args.output_rows, &args.output_widths[given..]);
        let first = CostArgs { input_widths: of_first, output_widths: &between, output_rows: args.rows, ..*args };
        let second = CostArgs { input_widths: &inputs, output_widths: outputs, output_rows: rows, ..*args };
        let both = self.first.cost(&first) + self.second.cost(&second);
        Cost { activation_bytes: args.activation_bytes(), ..both }
    }

    fn run_cpu(&self, args: &mut CpuArgs<'_>) {
        let CpuArgs { kernel, activation_bits, team, batch, kv, rows, .. } = *args;
        let (inputs, others) = args.inputs.split_at(First::INPUTS);
        let mut given: Vec<&mut [f32]> = args.outputs.iter_mut().map(|output| &mut **output).collect();
        let mut outputs = given.split_off(given.len() - 1);
        let (mut free, scratch) = args.scratch.split_at_mut(rows * self.width_between());
        let in_scratch = |width: usize| {
            let (value, rest) = std::mem::take(&mut free).split_at_mut(rows * width);
            free = rest;
            value
        };
        let mut between: Vec<&mut [f32]> = match First::GIVES_BETWEEN {
            true => given,
            false => self.first.widths_between(&self.second).into_iter().map(in_scratch).collect(),
        };
        let mut outputs_of_first: Vec<&mut [f32]> = between.iter_mut().map(|value| &mut **value).collect();
        self.first.run_cpu(&mut CpuArgs {
            outputs: &mut outputs_of_first,
            scratch: &mut *scratch,
            kernel,
            activation_bits,
            team,
            batch,
            kv,
            rows,
            inputs,
        });
        let inputs: Vec<&[f32]> = between.iter().map(|value| &**value).chain(others.iter().copied()).collect();
        let (inputs, outputs) = (&inputs[..], &mut outputs[..]);
        self.second.run_cpu(&mut CpuArgs { kernel, activation_bits, team, batch, kv, rows, scratch, inputs, outputs });
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
