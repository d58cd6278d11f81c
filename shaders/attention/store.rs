//! The op that stores keys and values which later ops read.

use super::{KvShape, cpu, gpu};
use crate::cost::{Cost, CostArgs};
use crate::gpu::{Dispatch, GpuArgs};
use crate::op::{CpuArgs, Op, ShapeError};

/// Stores the keys and values of the rows in the cache, for an [`Attention`](super::Attention) that does not store its own.
///
/// Inputs: key [rows, n_kv_heads * key_dim], value [rows, n_kv_heads * value_dim]; no outputs.
#[derive(Debug, Clone, Copy)]
pub struct StoreKv {
    /// The layer of the cache.
    pub layer: usize,
    /// The heads, whose values are not part of their keys.
    pub kv: KvShape,
}

impl Op for StoreKv {
    fn name(&self) -> &'static str {
        "store_kv"
    }

    fn output_widths(&self, inputs: &[usize]) -> Result<Vec<usize>, ShapeError> {
        ShapeError::check(self.name(), "number of inputs", inputs.len(), 2)?;
        ShapeError::check(self.name(), "width of the key", inputs[0], self.kv.key_width())?;
        ShapeError::check(self.name(), "width of the value", inputs[1], self.kv.stored_value_width())?;
        Ok(Vec::new())
    }

    fn state_layer(&self) -> Option<usize> {
        Some(self.layer)
    }

    fn cost(&self, args: &CostArgs<'_>) -> Cost {
        Cost {
            memory_bytes: args.rows as u64 * args.kv_position_bytes[self.layer].kv,
            activation_bytes: args.activation_bytes(),
            ..Cost::default()
        }
    }

    fn run_cpu(&self, args: &mut CpuArgs<'_>) {
        cpu::store((self.layer, self.kv), [args.inputs[0], args.inputs[1]], args);
    }

    fn dispatches(&self, args: &GpuArgs<'_>) -> Vec<Dispatch> {
        vec![gpu::store_keys_and_values(self.layer, self.kv, args)]
    }
}
