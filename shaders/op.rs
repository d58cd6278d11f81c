//! The contract of an operation, and its arguments when it runs.
//!
//! Every value that flows between ops is a matrix of f32, `[rows, width]`, row-major. A row is one token of one sequence. A batch
//! is *ragged*: it mixes prefill chunks and decode rows. Ops never mix rows, except those that read what is stored of the row's own
//! sequence: attention and recurrent mixers. So a row's result does not depend on the other rows of the batch.
//!
//! - `batch`: the rows of one step
//! - `observe`: what the matrices of an op multiply
//! - `shape`: the error of an op whose dimensions do not fit
//!
//! This file names no particular op. The modules of the ops provide what only some ops have:
//! [`experts`](crate::experts) implements `dyn Op::as_experts`, and [`fusion`](crate::fusion) finds pairs that a GPU
//! computes together.

mod batch;
mod observe;
mod shape;

use std::any::Any;

use crate::cost::{Cost, CostArgs};
use crate::cpu::{ActivationBits, Kernel, Team};
use crate::gpu::{DeviceLimits, Dispatch, GpuArgs};
use crate::kv::KvCache;
use crate::lora::target::Target;
use crate::recurrent::StateCache;
use crate::tuning::Tuning;
use crate::weight::Weight;

pub use batch::{Batch, DenoiseParams, NO_SECOND_TEXT, Selection, Sight};
pub use observe::{InputObserver, MatrixInput};
pub use shape::ShapeError;

/// The arguments of an op on the CPU.
pub struct CpuArgs<'a> {
    /// The instruction set to use.
    pub kernel: Kernel,
    /// The bits to which integer kernels round inputs.
    pub activation_bits: ActivationBits,
    /// What the kernels adapt to the CPU.
    pub tuning: Tuning,
    /// The threads to use.
    pub team: &'a dyn Team,
    /// The rows of the step.
    pub batch: Batch<'a>,
    /// The KV cache of all layers.
    pub kv: &'a KvCache,
    /// The recurrent state of all layers.
    pub states: &'a StateCache,
    /// The number of rows of the inputs: `batch.rows()`, or that of a [`Batch::selection`] after an op that [selects
    /// rows](Op::selects_rows).
    pub rows: usize,
    /// Scratch memory of at least [`Op::scratch_len`] values, with undefined contents.
    pub scratch: &'a mut [f32],
    /// The inputs, each [rows, width].
    pub inputs: &'a [&'a [f32]],
    /// The outputs, each [output rows, width]. They never alias an input.
    pub outputs: &'a mut [&'a mut [f32]],
}

/// One operation of a graph, with its parameters and its weights.
pub trait Op: Any + Send + Sync + std::fmt::Debug {
    /// The op's name, for profiles and errors.
    fn name(&self) -> &'static str;

    /// The widths of the outputs for inputs of these widths.
    ///
    /// # Errors
    /// [`ShapeError`] when the inputs do not fit the op or its weights.
    fn output_widths(&self, inputs: &[usize]) -> Result<Vec<usize>, ShapeError>;

    /// The weights that the op reads, for placement and the memory plan.
    fn weights(&self) -> Vec<&Weight> {
        Vec::new()
    }

    /// The weights that multiply the input with this index, if the op reads it for nothing else: dividing a column of the input by
    /// a factor, and multiplying that column of these weights by it, changes no output. By default there are none.
    fn multiplies(&self, input: usize) -> Option<Vec<&Weight>> {
        let _ = input;
        None
    }

    /// The layer whose keys and values or recurrent state the op reads and writes, if it does.
    fn state_layer(&self) -> Option<usize> {
        None
    }

    /// The projections whose changes by adapters the op adds.
    fn adapter_targets(&self) -> &[Target] {
        &[]
    }

    /// Which rows the outputs have, if not all.
    fn selects_rows(&self) -> Option<Selection> {
        None
    }

    /// Whether the CPU computes the op before the others of a step, also in a model on another device, which takes its outputs.
    /// Such an op has no inputs, and comes first in its graph.
    fn runs_on_host(&self) -> bool {
        false
    }

    /// Repacks or copies the weights for a kernel. Called once, before the first [`Op::run_cpu`] and with the same kernel.
    fn prepare_cpu(&mut self, kernel: Kernel, team: &dyn Team) {
        let _ = (kernel, team);
    }

    /// Whether [`Op::prepare_cpu`] makes a copy of a weight, packed or not. The op then no longer reads the weight's own
    /// bytes.
    fn repacks(&self, kernel: Kernel, weight: &Weight) -> bool {
        let _ = (kernel, weight);
        false
    }

    /// The bytes by which repacked copies are larger than the weights that they replace.
    fn repack_overhead_bytes(&self, kernel: Kernel) -> u64 {
        let _ = kernel;
        0
    }

    /// Scratch memory on the CPU for `rows` rows of sequences of up to `context_tokens` positions, in values.
    fn scratch_len(&self, kernel: Kernel, rows: usize, context_tokens: usize) -> usize {
        let _ = (kernel, rows, context_tokens);
        0
    }

    /// The least work that the op does on the CPU. The default is that of an op that passes once over its values.
    ///
    /// Such an op counts one operation for each value, even if it does a few: its time depends on the bytes.
    fn cost(&self, args: &CostArgs<'_>) -> Cost {
        Cost {
            activation_bytes: args.activation_bytes(),
            float_operations: args.output_values() as u64,
            ..Cost::default()
        }
    }

    /// Computes the outputs on the CPU.
    fn run_cpu(&self, args: &mut CpuArgs<'_>);

    /// As [`Op::run_cpu`], and shows the observer what the op's matrices multiply. The default is for ops without matrices.
    fn run_observed(&self, args: &mut CpuArgs<'_>, observer: &mut dyn InputObserver) {
        let _ = observer;
        self.run_cpu(args);
    }

    /// Small tables of f32 that the op's shaders read in addition to its weights: norms, biases, frequencies.
    fn gpu_tables(&self) -> Vec<&[f32]> {
        Vec::new()
    }

    /// Scratch memory on a device for `rows` rows of sequences of up to `context_tokens` positions, in bytes.
    fn gpu_scratch_bytes(&self, device: &DeviceLimits, rows: usize, context_tokens: usize) -> u64 {
        let _ = (device, rows, context_tokens);
        0
    }

    /// The dispatches that compute the outputs on a GPU, in order.
    fn dispatches(&self, args: &GpuArgs<'_>) -> Vec<Dispatch>;
}
