//! What stays on the device from load to unload: weights, tables, and the KV cache.

use std::collections::HashMap;
use std::sync::Arc;

use cuelight_shaders::attention::gpu::{DeviceKv, plane_block_bytes};
use cuelight_shaders::attention::{KvShape, KvType};
use cuelight_shaders::experts::Experts;
use cuelight_shaders::gpu::weight::WeightLayout;
use cuelight_shaders::gpu::{DeviceWeight, Region};
use cuelight_shaders::op::Op;
use cuelight_shaders::weight::Weight;

use super::arena::{Arena, total_bytes};
use super::device::Device;
use super::error::VulkanError;
use super::expert_upload::PoolParts;
use super::memory::{Buffer, BufferPart, Place};
use super::record::{CommandPool, Recorder};
use crate::engine::BLOCK_TOKENS;

/// The weights and tables of some ops on a device.
pub(super) struct DeviceWeights {
    pub arena: Arc<Arena>,
    /// For each op its weights and its tables.
    pub of_ops: Vec<(Vec<DeviceWeight>, Vec<Region>)>,
}

/// The weights of ops, each once, in the order of their first use: a matrix may serve as embedding and as head.
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

/// Bytes that the weights and tables of ops take on a device.
pub(super) fn weights_bytes(ops: &[&dyn Op]) -> u64 {
    let (weights, _) = distinct_weights(ops);
    let weights = weights.into_iter().map(|weight| layout_of(weight).bytes());
    total_bytes(weights.chain(tables(ops).map(|table| size_of_val(table) as u64)))
}

/// Bytes of one KV block over all layers.
pub(super) fn kv_block_bytes(shapes: &[KvShape], kv_type: KvType) -> u64 {
    shapes.iter().flat_map(|shape| plane_block_bytes(*shape, kv_type)).sum()
}

impl DeviceWeights {
    /// Brings the weights to the device; `progress` hears of each when it is there.
    pub fn load(device: &Arc<Device>, ops: &[&dyn Op], progress: &mut dyn FnMut(&Weight)) -> Result<Self, VulkanError> {
        let (weights, index_of) = distinct_weights(ops);
        let layouts: Vec<WeightLayout> = weights.iter().map(|weight| layout_of(weight)).collect();
        let table_bytes = tables(ops).map(|table| size_of_val(table) as u64);
        let sizes: Vec<u64> = layouts.iter().map(WeightLayout::bytes).chain(table_bytes).collect();
        let mut arena = Arena::new(device, "the weights", &sizes)?;
        let mut upload = Upload::new(device)?;
        for (index, (weight, layout)) in weights.iter().zip(&layouts).enumerate() {
            let (buffer, start) = arena.place(index);
            if !weight.is_blank() {
                upload.weight(weight, layout, buffer, start)?;
            }
            progress(weight);
        }
        for (index, table) in tables(ops).enumerate() {
            let (buffer, start) = arena.place(weights.len() + index);
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

    /// Where op number `op`, a pool of experts, has its tensors and tables.
    pub fn pool_parts(&self, op: usize, pool: &Experts) -> PoolParts {
        let (weights, tables) = &self.of_ops[op];
        let part = |region| self.arena.part(region).expect("what an op has is in the arena");
        let weights = weights.iter().map(|weight| part(weight.region)).collect();
        PoolParts { pool: pool.clone(), weights, tables: tables.iter().map(|table| part(*table)).collect() }
    }
}

/// The KV cache on a device.
pub(super) struct DeviceCache {
    _arena: Arena,
    pub kv: DeviceKv,
    /// For each layer the bytes of a position's key and value.
    pub position_bytes: Vec<u64>,
}

impl DeviceCache {
    /// Room for so many blocks in every layer, all zeros: what lies between stored values must not spoil sums.
    pub fn new(
        device: &Arc<Device>,
        shapes: &[KvShape],
        n_blocks: usize,
        kv_type: KvType,
    ) -> Result<Self, VulkanError> {
        let planes = |shape: &KvShape| plane_block_bytes(*shape, kv_type).map(|bytes| bytes * n_blocks as u64);
        let sizes: Vec<u64> = shapes.iter().flat_map(planes).collect();
        let arena = Arena::new(device, "the KV cache", &sizes)?;
        let pool = CommandPool::new(device)?;
        let mut recorder = Recorder::begin(device, pool.allocate()?)?;
        for buffer in &arena.buffers {
            recorder.clear(buffer);
        }
        device.wait(device.submit(&[recorder.end()?])?)?;
        let layers = (0..shapes.len()).map(|layer| [arena.region(2 * layer), arena.region(2 * layer + 1)]).collect();
        let position = |shape: &KvShape| plane_block_bytes(*shape, kv_type).iter().sum::<u64>() / BLOCK_TOKENS as u64;
        let position_bytes = shapes.iter().map(position).collect();
        Ok(DeviceCache { kv: DeviceKv { kv_type, layers }, position_bytes, _arena: arena })
    }
}

/// The way of bytes from the processor's memory to the device's.
///
/// Where the processor reaches the device's memory they are written there. Elsewhere they go through two stages in turn:
/// one is filled while the device empties the other.
struct Upload {
    device: Arc<Device>,
    pool: CommandPool,
    stages: Vec<Stage>,
    /// Number of the stage that is being filled.
    current: usize,
}

struct Stage {
    buffer: Buffer,
    commands: ash::vk::CommandBuffer,
    filled: u64,
    /// Where the stretches that it is filled with go.
    copies: Vec<(BufferPart, BufferPart)>,
    /// When the device has emptied it.
    emptied: u64,
}

impl Upload {
    const STAGE_BYTES: usize = 16 << 20;

    fn new(device: &Arc<Device>) -> Result<Self, VulkanError> {
        let pool = CommandPool::new(device)?;
        Ok(Upload { device: Arc::clone(device), pool, stages: Vec::new(), current: 0 })
    }

    /// Packs a weight and writes it from `start` on, some rows at a time.
    fn weight(
        &mut self,
        weight: &Weight,
        layout: &WeightLayout,
        buffer: &mut Buffer,
        start: u64,
    ) -> Result<(), VulkanError> {
        let rows_at_once = (Self::STAGE_BYTES / weight.row_bytes().max(1)).clamp(1, weight.rows.max(1));
        for first in (0..weight.rows).step_by(rows_at_once) {
            let count = rows_at_once.min(weight.rows - first);
            for (place, bytes) in layout.pack(weight, first, count) {
                self.write(buffer, start + place, &bytes)?;
            }
        }
        weight.release();
        Ok(())
    }

    /// Writes bytes from `start` on. They are there after [`Upload::finish`].
    fn write(&mut self, to: &mut Buffer, start: u64, bytes: &[u8]) -> Result<(), VulkanError> {
        if let Some(mapped) = to.mapped() {
            mapped[start as usize..start as usize + bytes.len()].copy_from_slice(bytes);
            return Ok(());
        }
        let (mut start, mut left) = (start, bytes);
        while !left.is_empty() {
            let stage = self.stage()?;
            let (filled, room) = (stage.filled as usize, Self::STAGE_BYTES - stage.filled as usize);
            let (part, rest) = left.split_at(left.len().min(room));
            let Some(mapped) = stage.buffer.mapped() else {
                return Err(VulkanError::OutOfMemory { what: "uploads".to_owned(), bytes: left.len() as u64 });
            };
            mapped[filled..filled + part.len()].copy_from_slice(part);
            let len = part.len() as u64;
            stage.copies.push((stage.buffer.part(stage.filled, len), to.part(start, len)));
            // Copies of whole words are faster on some devices.
            stage.filled = (stage.filled + len).next_multiple_of(16).min(Self::STAGE_BYTES as u64);
            (start, left) = (start + len, rest);
            if stage.filled as usize == Self::STAGE_BYTES {
                self.submit()?;
            }
        }
        Ok(())
    }

    /// The stage that is being filled.
    fn stage(&mut self) -> Result<&mut Stage, VulkanError> {
        if self.stages.len() <= self.current {
            let buffer = Buffer::new(&self.device, "uploads", Self::STAGE_BYTES as u64, Place::Host)?;
            let commands = self.pool.allocate()?;
            self.stages.push(Stage { buffer, commands, filled: 0, copies: Vec::new(), emptied: 0 });
        }
        let stage = &mut self.stages[self.current];
        if stage.filled == 0 {
            self.device.wait(stage.emptied)?;
        }
        Ok(stage)
    }

    /// Sends what was written and is not on its way yet.
    fn submit(&mut self) -> Result<(), VulkanError> {
        const STAGES: usize = 2;
        let Some(stage) = self.stages.get_mut(self.current).filter(|stage| stage.filled > 0) else { return Ok(()) };
        let mut recorder = Recorder::begin(&self.device, stage.commands)?;
        for (from, to) in stage.copies.drain(..) {
            recorder.copy_part(from, to);
        }
        stage.emptied = self.device.submit(&[recorder.end()?])?;
        stage.filled = 0;
        self.current = (self.current + 1) % STAGES;
        Ok(())
    }

    /// Waits until all of it is there.
    fn finish(&mut self) -> Result<(), VulkanError> {
        self.submit()?;
        self.device.wait_for_all()
    }
}
