//! The contract of an operation, and what it sees when it runs.
//!
//! Every value that flows between ops is a matrix of f32, `[rows, width]`, row-major. A row is one token of
//! one sequence (a *ragged batch*: prefill chunks and decode rows side by side). Ops never mix rows, but for
//! attention, which reads the KV cache of the row's own sequence: so a row's result does not depend on its
//! neighbours.

use std::any::Any;

use crate::attention::KvCache;
use crate::cost::{Cost, CostArgs};
use crate::cpu::{ActivationBits, Kernel, Team};
use crate::experts::Experts;
use crate::gpu::{DeviceLimits, Dispatch, GpuArgs};
use crate::weight::Weight;

/// Why an op cannot be built or wired.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ShapeError {
    /// A dimension differs from what the op needs.
    #[error("{op}: {what} is {found}, but must be {expected}")]
    Mismatch {
        /// The op that refused.
        op: &'static str,
        /// Which dimension, in words, with the tensor's name where there is one.
        what: String,
        /// The size found.
        found: usize,
        /// The size or rule that holds.
        expected: String,
    },
}

impl ShapeError {
    /// Checks `found == expected`.
    ///
    /// # Errors
    /// [`ShapeError::Mismatch`] when they differ.
    pub fn check(op: &'static str, what: impl Into<String>, found: usize, expected: usize) -> Result<(), ShapeError> {
        if found == expected {
            return Ok(());
        }
        Err(ShapeError::Mismatch { op, what: what.into(), found, expected: expected.to_string() })
    }
}

/// The rows of one step: which token, where, of which sequence, and which rows' logits are wanted.
#[derive(Clone, Copy)]
pub struct Batch<'a> {
    /// `[rows]` token ids.
    pub tokens: &'a [u32],
    /// `[rows]` position of each row in its sequence.
    pub positions: &'a [u32],
    /// `[rows]` index into `block_tables`; the rows of a sequence stand together, at successive positions.
    pub sequences: &'a [u32],
    /// For each sequence the KV blocks that hold its positions, in order.
    pub block_tables: &'a [&'a [u32]],
    /// Rows that reach the output head, ascending.
    pub selected: &'a [u32],
}

impl Batch<'_> {
    /// How many rows the step has.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.tokens.len()
    }

    /// The first row of each run of rows of one sequence.
    pub fn run_starts(&self) -> impl Iterator<Item = usize> {
        let sequences = self.sequences;
        (0..sequences.len()).filter(move |&row| row == 0 || sequences[row] != sequences[row - 1])
    }
}

/// What an op sees when it runs on the CPU.
pub struct CpuArgs<'a> {
    /// The instruction set to use.
    pub kernel: Kernel,
    /// What integer kernels round inputs to.
    pub activation_bits: ActivationBits,
    /// The threads to use.
    pub team: &'a dyn Team,
    /// The step.
    pub batch: Batch<'a>,
    /// The KV cache of all layers.
    pub kv: &'a KvCache,
    /// How many rows the inputs have (`batch.rows()`, or `batch.selected.len()` behind SelectRows).
    pub rows: usize,
    /// Memory to work in, at least [`Op::scratch_len`] values; what is in it has no meaning.
    pub scratch: &'a mut [f32],
    /// The inputs, each [rows, width].
    pub inputs: &'a [&'a [f32]],
    /// The outputs, each [rows out, width]; they never alias an input.
    pub outputs: &'a mut [&'a mut [f32]],
}

/// One operation of a graph, with its parameters and weights.
pub trait Op: Any + Send + Sync + std::fmt::Debug {
    /// The op's name, for profiles and errors.
    fn name(&self) -> &'static str;

    /// The widths of the outputs, given those of the inputs.
    ///
    /// # Errors
    /// [`ShapeError`] when the inputs do not fit the op or its weights.
    fn output_widths(&self, inputs: &[usize]) -> Result<Vec<usize>, ShapeError>;

    /// The weights the op reads, for placement and the memory plan.
    fn weights(&self) -> Vec<&Weight> {
        Vec::new()
    }

    /// The layer of the KV cache that the op stores to and reads, if it does.
    fn kv_layer(&self) -> Option<usize> {
        None
    }

    /// The routed experts, where the op is that: a place where a plan can be cut, and part of the work done elsewhere.
    fn as_experts(&self) -> Option<&Experts> {
        None
    }

    /// The same, to be changed before it is prepared.
    fn as_experts_mut(&mut self) -> Option<&mut Experts> {
        None
    }

    /// Whether the outputs have only the rows that reach the head.
    fn selects_rows(&self) -> bool {
        false
    }

    /// Arranges the weights for a kernel. Called once, before the first [`Op::run_cpu`] and with the same kernel.
    fn prepare_cpu(&mut self, kernel: Kernel, team: &dyn Team) {
        let _ = (kernel, team);
    }

    /// Whether [`Op::prepare_cpu`] makes a copy of a weight, after which the op does not read the weight's own bytes.
    fn replaces(&self, kernel: Kernel, weight: &Weight) -> bool {
        let _ = (kernel, weight);
        false
    }

    /// By how many bytes such copies are larger than what they replace.
    fn growth(&self, kernel: Kernel) -> u64 {
        let _ = kernel;
        0
    }

    /// Scratch memory for `rows` rows of sequences of up to `context_tokens` positions on the CPU, in values.
    fn scratch_len(&self, kernel: Kernel, rows: usize, context_tokens: usize) -> usize {
        let _ = (kernel, rows, context_tokens);
        0
    }

    /// The least that the op does on the CPU; for an op that only passes over its values, that.
    ///
    /// The few operations of such an op on each value are one here: what it takes is decided by the bytes.
    fn cost(&self, args: &CostArgs<'_>) -> Cost {
        Cost {
            activation_bytes: args.activation_bytes(),
            float_operations: args.output_values() as u64,
            ..Cost::default()
        }
    }

    /// Computes the outputs on the CPU.
    fn run_cpu(&self, args: &mut CpuArgs<'_>);

    /// Small tables of f32 that the op's shaders read beside its weights: norms, biases, frequencies.
    fn gpu_tables(&self) -> Vec<&[f32]> {
        Vec::new()
    }

    /// Scratch memory on a device for `rows` rows of sequences of up to `context_tokens` positions, in bytes.
    fn gpu_scratch_bytes(&self, device: &DeviceLimits, rows: usize, context_tokens: usize) -> u64 {
        let _ = (device, rows, context_tokens);
        0
    }

    /// What computes the outputs on a GPU, in order.
    fn dispatches(&self, args: &GpuArgs<'_>) -> Vec<Dispatch>;
}
