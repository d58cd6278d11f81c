//! Memory that stays on the device from load to unload: weights, tables and the KV cache.

use std::collections::HashMap;
use std::sync::Arc;

use cuelight_shaders::attention::KvType;
use cuelight_shaders::experts::Experts;
use cuelight_shaders::gpu::weight::WeightLayout;
use cuelight_shaders::gpu::{DeviceWeight, Region};
use cuelight_shaders::kv::{BlockCounts, DeviceKv, PositionBytes, plane_block_bytes};
use cuelight_shaders::layer_state::LayerState;
use cuelight_shaders::op::Op;
use cuelight_shaders::recurrent::DeviceStates;
use cuelight_shaders::weight::Weight;

use super::arena::{Arena, total_bytes};
use super::buffer::BufferSlice;
use super::device::Device;
use super::error::VulkanError;
use super::expert_upload::PoolBuffers;
use super::record::{CommandPool, Recorder};
use super::upload::Upload;
use crate::cancel::LoadCancelled;
use crate::engine::{BLOCK_TOKENS, CacheUnit, UnitBytes};
use crate::memory::BlockBytes;

/// The most bytes of weights that are copied at once.
const STAGING_BYTES: usize = 16 << 20;

/// The weights and tables of some ops on a device.
pub(super) struct DeviceWeights {
    pub arena: Arc<Arena>,
    /// The weights and tables of each op.
    pub of_ops: Vec<(Vec<DeviceWeight>, Vec<Region>)>,
}

/// The distinct weights of ops in the order of first use, and the index of each by name. Ops may share a weight, such as a
/// matrix that is both the embedding and the head.
fn distinct_weights<'a>(ops: &[&'a dyn Op]) -> (Vec<&'a Weight>, HashMap<Arc<str>, usize>) {
    let mut weights: Vec<&'a Weight> = Vec::new();
    let mut index_of = HashMap::new();
    for weight in ops.iter().flat_map(|op| op.weights()) {
        index_of.entry(Arc::clone(&weight.name)).or_insert_with(|| {
            weights.push(weight);
            weights.len() - 1
        });
    }
    (weights, index_of)
}

fn layout_of(weight: &Weight) -> WeightLayout {
    WeightLayout::new(weight.format, weight.rows, weight.columns)
}

fn tables<'a>(ops: &[&'a dyn Op]) -> impl Iterator<Item = &'a [f32]> {
    ops.iter().flat_map(|op| op.gpu_tables())
}

/// Bytes of device memory that the weights and tables of ops need.
pub(super) fn weights_bytes(ops: &[&dyn Op]) -> u64 {
    let (weights, _) = distinct_weights(ops);
    let weights = weights.into_iter().map(|weight| layout_of(weight).bytes());
    total_bytes(weights.chain(tables(ops).map(|table| size_of_val(table) as u64)))
}

/// Bytes of one KV block over all layers.
pub(super) fn kv_block_bytes(states: &[LayerState], kv_type: KvType) -> BlockBytes {
    let bytes = |state: &LayerState| BlockBytes::of_layer(state, planes(state, kv_type).into_iter().sum());
    states.iter().map(bytes).sum()
}

/// Bytes of one block of a layer's keys, of its values and of its index keys.
fn planes(state: &LayerState, kv_type: KvType) -> [u64; 3] {
    let ([keys, values], [index, _]) = (plane_block_bytes(state.kv, kv_type), plane_block_bytes(state.index, kv_type));
    [keys, values, index]
}

impl DeviceWeights {
    /// Uploads the weights and calls `progress` after each.
    pub fn load(
        device: &Arc<Device>,
        ops: &[&dyn Op],
        progress: &mut dyn FnMut(&Weight) -> Result<(), LoadCancelled>,
    ) -> Result<Self, VulkanError> {
        let (weights, index_of) = distinct_weights(ops);
        let layouts: Vec<WeightLayout> = weights.iter().map(|weight| layout_of(weight)).collect();
        let table_bytes = tables(ops).map(|table| size_of_val(table) as u64);
        let sizes: Vec<u64> = layouts.iter().map(WeightLayout::bytes).chain(table_bytes).collect();
        let mut arena = Arena::new(device, "the weights", &sizes)?;
        let mut upload = Upload::new(device, STAGING_BYTES)?;
        for (index, (weight, layout)) in weights.iter().zip(&layouts).enumerate() {
            let (buffer, start) = arena.buffer_and_offset(index);
            upload.write(buffer, start, &layout.table())?;
            if !weight.is_blank() {
                upload.weight(weight, layout, buffer, start)?;
            }
            progress(weight)?;
        }
        for (index, table) in tables(ops).enumerate() {
            let (buffer, start) = arena.buffer_and_offset(weights.len() + index);
            let bytes: Vec<u8> = table.iter().flat_map(|value| value.to_le_bytes()).collect();
            upload.write(buffer, start, &bytes)?;
        }
        upload.finish()?;

        let mut next_table = weights.len();
        let of_op = |op: &&dyn Op| {
            let weights = op.weights().into_iter().map(|weight| {
                let index = index_of[&weight.name];
                layouts[index].at(arena.region(index).address)
            });
            let tables = op.gpu_tables().into_iter().map(|_| {
                next_table += 1;
                arena.region(next_table - 1)
            });
            (weights.collect(), tables.collect())
        };
        let of_ops = ops.iter().map(of_op).collect();
        Ok(DeviceWeights { arena: Arc::new(arena), of_ops })
    }

    /// The tensors and tables of op number `op`, which is a pool of experts.
    pub fn pool_buffers(&self, op: usize, pool: &Experts) -> PoolBuffers {
        let (weights, tables) = &self.of_ops[op];
        let slice = |region| self.arena.slice(region).expect("the regions of ops are in the arena");
        let weights = weights.iter().map(|weight| slice(weight.region)).collect();
        PoolBuffers { pool: pool.clone(), weights, tables: tables.iter().map(|table| slice(*table)).collect() }
    }
}

/// The KV cache and the recurrent state on a device.
pub(super) struct DeviceCache {
    arenas: [Arena; 2],
    n_blocks: usize,
    n_slots: usize,
    pub kv: DeviceKv,
    pub states: DeviceStates,
    /// Bytes of one position, per layer.
    pub position_bytes: Vec<PositionBytes>,
}

impl DeviceCache {
    /// Allocates these blocks and `n_slots` slots per layer. Blocks are filled with zeros: kernels also read padding, which
    /// must not affect sums.
    pub fn new(
        device: &Arc<Device>,
        states: &[LayerState],
        (blocks, n_slots): (BlockCounts, usize),
        kv_type: KvType,
    ) -> Result<Self, VulkanError> {
        let of_layer = |state: &LayerState| planes(state, kv_type).map(|bytes| bytes * blocks.of(state.kv) as u64);
        let sizes: Vec<u64> = states.iter().flat_map(of_layer).collect();
        let arena = Arena::new(device, "the KV cache", &sizes)?;
        let sizes: Vec<u64> = states.iter().map(|state| state.slot_bytes() * n_slots as u64).collect();
        let slots = Arena::new(device, "the recurrent state", &sizes)?;
        let pool = CommandPool::new(device)?;
        let mut recorder = Recorder::begin(device, pool.allocate()?)?;
        for buffer in &arena.buffers {
            recorder.clear(buffer);
        }
        device.wait(device.submit(&[recorder.end()?])?)?;
        let layers = (0..states.len()).map(|layer| [0, 1].map(|plane| arena.region(3 * layer + plane))).collect();
        let indexes = (0..states.len()).map(|layer| arena.region(3 * layer + 2)).collect();
        let position = |state: &LayerState| {
            let [keys, values, index] = planes(state, kv_type).map(|bytes| bytes / BLOCK_TOKENS as u64);
            PositionBytes { kv: keys + values, index }
        };
        Ok(DeviceCache {
            kv: DeviceKv { kv_type, layers, indexes },
            states: DeviceStates {
                layers: (0..states.len()).map(|layer| slots.region(layer)).collect(),
                slot_lens: states.iter().map(|state| state.recurrent_len).collect(),
            },
            position_bytes: states.iter().map(position).collect(),
            arenas: [arena, slots],
            n_blocks: blocks.all,
            n_slots,
        })
    }

    /// The keys, values and index keys of all layers.
    fn planes(&self) -> impl Iterator<Item = &Region> {
        self.kv.layers.iter().flatten().chain(&self.kv.indexes)
    }

    /// Bytes of a unit over all layers.
    pub fn unit_bytes(&self) -> UnitBytes {
        let bytes = |regions: &mut dyn Iterator<Item = &Region>, count: usize| {
            regions.map(|region| region.bytes / count.max(1) as u64).sum::<u64>() as usize
        };
        UnitBytes {
            block: bytes(&mut self.planes(), self.n_blocks),
            state: bytes(&mut self.states.layers.iter(), self.n_slots),
        }
    }

    /// The parts of a unit: of a block the keys, values and index keys of each layer, of a slot the state of each layer.
    ///
    /// # Panics
    /// When there is no such unit.
    pub fn slices(&self, unit: CacheUnit) -> Vec<BufferSlice> {
        let (index, count, arena) = match unit {
            CacheUnit::Block(block) => (block, self.n_blocks, &self.arenas[0]),
            CacheUnit::State(slot) => (slot, self.n_slots, &self.arenas[1]),
        };
        assert!((index as usize) < count, "{unit:?} is in the cache");
        let part = |region: &Region| {
            let bytes = region.bytes / count as u64;
            let all = arena.slice(*region).expect("the regions of the cache are in its arenas");
            all.slice(u64::from(index) * bytes, bytes)
        };
        let is_stored = |region: &&Region| region.bytes > 0;
        match unit {
            CacheUnit::Block(_) => self.planes().filter(is_stored).map(part).collect(),
            CacheUnit::State(_) => self.states.layers.iter().filter(is_stored).map(part).collect(),
        }
    }
}
