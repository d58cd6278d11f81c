//! Memory that stays on the device from load to unload: weights, tables and the KV cache.

use std::collections::HashMap;
use std::sync::Arc;

use cuelight_shaders::attention::KvType;
use cuelight_shaders::experts::Experts;
use cuelight_shaders::gpu::weight::WeightLayout;
use cuelight_shaders::gpu::{DeviceWeight, Region};
use cuelight_shaders::kv::{DeviceKv, PositionBytes, plane_block_bytes};
use cuelight_shaders::layer_state::LayerState;
use cuelight_shaders::op::Op;
use cuelight_shaders::recurrent::DeviceStates;
use cuelight_shaders::weight::Weight;

use super::arena::{Arena, total_bytes};
use super::buffer::{Buffer, BufferSlice};
use super::device::Device;
use super::error::VulkanError;
use super::expert_upload::PoolBuffers;
use super::memory::MemoryKind;
use super::record::{CommandPool, Recorder};
use crate::cancel::LoadCancelled;
use crate::engine::{BLOCK_TOKENS, BlockId};

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
pub(super) fn kv_block_bytes(states: &[LayerState], kv_type: KvType) -> u64 {
    states.iter().flat_map(|state| planes(state, kv_type)).sum()
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
        let mut upload = Upload::new(device)?;
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
    pub kv: DeviceKv,
    pub states: DeviceStates,
    /// Bytes of one position, per layer.
    pub position_bytes: Vec<PositionBytes>,
}

impl DeviceCache {
    /// Allocates `n_blocks` blocks and `n_slots` slots per layer. Blocks are filled with zeros: kernels also read padding, which
    /// must not affect sums.
    pub fn new(
        device: &Arc<Device>,
        states: &[LayerState],
        (n_blocks, n_slots): (usize, usize),
        kv_type: KvType,
    ) -> Result<Self, VulkanError> {
        let of_layer = |state: &LayerState| planes(state, kv_type).map(|bytes| bytes * n_blocks as u64);
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
            n_blocks,
        })
    }

    /// The keys, values and index keys of all layers.
    fn planes(&self) -> impl Iterator<Item = &Region> {
        self.kv.layers.iter().flatten().chain(&self.kv.indexes)
    }

    /// Bytes of one block over all layers.
    pub fn block_bytes(&self) -> u64 {
        self.planes().map(|plane| plane.bytes / self.n_blocks.max(1) as u64).sum()
    }

    /// The parts of a block: the keys, values and index keys of each layer.
    ///
    /// # Panics
    /// When there is no such block.
    pub fn block_slices(&self, block: BlockId) -> impl Iterator<Item = BufferSlice> {
        assert!((block as usize) < self.n_blocks, "block {block} is in the cache");
        self.planes().filter(|plane| plane.bytes > 0).map(move |plane| {
            let bytes = plane.bytes / self.n_blocks as u64;
            let plane = self.arenas[0].slice(*plane).expect("the regions of the cache are in its arena");
            plane.slice(u64::from(block) * bytes, bytes)
        })
    }
}

/// Copies bytes from host memory to device memory.
///
/// If the CPU can write the device's memory, it writes there directly. Otherwise bytes pass through two staging buffers: one is
/// filled while the device reads the other.
struct Upload {
    device: Arc<Device>,
    pool: CommandPool,
    staging: Vec<StagingBuffer>,
    /// Index of the staging buffer that is being filled.
    current: usize,
}

struct StagingBuffer {
    buffer: Buffer,
    commands: ash::vk::CommandBuffer,
    filled: u64,
    /// The copies from this buffer to their targets.
    copies: Vec<(BufferSlice, BufferSlice)>,
    /// The submission that reads it last.
    last_read: u64,
}

impl Upload {
    const STAGING_BYTES: usize = 16 << 20;

    fn new(device: &Arc<Device>) -> Result<Self, VulkanError> {
        let pool = CommandPool::new(device)?;
        Ok(Upload { device: Arc::clone(device), pool, staging: Vec::new(), current: 0 })
    }

    /// Packs a weight and writes it at offset `start`, a number of rows at a time.
    fn weight(
        &mut self,
        weight: &Weight,
        layout: &WeightLayout,
        buffer: &mut Buffer,
        start: u64,
    ) -> Result<(), VulkanError> {
        let rows_at_once = (Self::STAGING_BYTES / weight.row_bytes().max(1)).clamp(1, weight.rows.max(1));
        for first in (0..weight.rows).step_by(rows_at_once) {
            let count = rows_at_once.min(weight.rows - first);
            for (offset, bytes) in layout.pack(weight, first, count) {
                self.write(buffer, start + offset, &bytes)?;
            }
        }
        weight.release();
        Ok(())
    }

    /// Writes bytes at offset `start`. They are on the device after [`Upload::finish`].
    fn write(&mut self, to: &mut Buffer, start: u64, bytes: &[u8]) -> Result<(), VulkanError> {
        if let Some(mapped) = to.mapped() {
            mapped[start as usize..start as usize + bytes.len()].copy_from_slice(bytes);
            return Ok(());
        }
        let (mut start, mut rest) = (start, bytes);
        while !rest.is_empty() {
            let staging = self.current_staging()?;
            let (filled, free) = (staging.filled as usize, Self::STAGING_BYTES - staging.filled as usize);
            let (chunk, later) = rest.split_at(rest.len().min(free));
            let Some(mapped) = staging.buffer.mapped() else {
                return Err(VulkanError::OutOfMemory { what: "uploads".to_owned(), bytes: rest.len() as u64 });
            };
            mapped[filled..filled + chunk.len()].copy_from_slice(chunk);
            let len = chunk.len() as u64;
            staging.copies.push((staging.buffer.slice(staging.filled, len), to.slice(start, len)));
            // Aligned copies are faster on some devices.
            staging.filled = (staging.filled + len).next_multiple_of(16).min(Self::STAGING_BYTES as u64);
            (start, rest) = (start + len, later);
            if staging.filled as usize == Self::STAGING_BYTES {
                self.submit()?;
            }
        }
        Ok(())
    }

    /// The staging buffer that is being filled; allocated on first use.
    fn current_staging(&mut self) -> Result<&mut StagingBuffer, VulkanError> {
        if self.staging.len() <= self.current {
            let buffer = Buffer::new(&self.device, "uploads", Self::STAGING_BYTES as u64, MemoryKind::Host)?;
            let commands = self.pool.allocate()?;
            self.staging.push(StagingBuffer { buffer, commands, filled: 0, copies: Vec::new(), last_read: 0 });
        }
        let staging = &mut self.staging[self.current];
        if staging.filled == 0 {
            self.device.wait(staging.last_read)?;
        }
        Ok(staging)
    }

    /// Submits the copies that have not been submitted yet.
    fn submit(&mut self) -> Result<(), VulkanError> {
        const STAGING_BUFFERS: usize = 2;
        let Some(staging) = self.staging.get_mut(self.current).filter(|staging| staging.filled > 0) else {
            return Ok(());
        };
        let mut recorder = Recorder::begin(&self.device, staging.commands)?;
        for (from, to) in staging.copies.drain(..) {
            recorder.copy_slice(from, to);
        }
        staging.last_read = self.device.submit(&[recorder.end()?])?;
        staging.filled = 0;
        self.current = (self.current + 1) % STAGING_BUFFERS;
        Ok(())
    }

    /// Submits the remaining copies and waits for all of them.
    fn finish(&mut self) -> Result<(), VulkanError> {
        self.submit()?;
        self.device.wait_for_all()
    }
}
