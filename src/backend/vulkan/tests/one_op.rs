//! Runs one op on a device. Weights and cache are stored as for a model; values are in one buffer with guard regions between
//! them.
//!
//! The buffer is filled with a pattern, which must be unchanged afterwards wherever no dispatch declares a write.

use std::cell::RefCell;
use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

use cuelight_shaders::attention::KvType;
use cuelight_shaders::cases::{CaseBatch, CaseCache};
use cuelight_shaders::gpu::{DeviceLimits, DeviceValue, Dispatch, GpuArgs, Module, Region, RowCount, StepLayout};
use cuelight_shaders::kv::BlockCounts;
use cuelight_shaders::lora::DeviceAdapters;
use cuelight_shaders::op::{Batch, Op, Selection};

use crate::backend::vulkan::Device;
use crate::backend::vulkan::adapters::AdapterSlots;
use crate::backend::vulkan::bucket::Bucket;
use crate::backend::vulkan::buffer::{Buffer, HostBuffer};
use crate::backend::vulkan::error::VulkanError;
use crate::backend::vulkan::memory::MemoryKind;

use crate::backend::vulkan::record::{CommandPool, Recorder};
use crate::backend::vulkan::resident::{DeviceCache, DeviceWeights};
use crate::engine::{EngineLimits, HiddenLimits};

/// The initial content of memory: a NaN, so that a result computed from it is detected.
const PATTERN: u32 = 0x7fc0_c0de;

/// The most adapters of a step.
const CASE_ADAPTERS: usize = 8;

/// The alignment of regions in the buffer and the minimum distance between two.
const GUARD_BYTES: u64 = 256;

/// An op that is ready to run.
pub struct OneOp<'a> {
    op: &'a dyn Op,
    weights: DeviceWeights,
    cache: DeviceCache,
    pool: CommandPool,
    /// The device limits passed to the op.
    pub limits: DeviceLimits,
    /// Whether the op must be deterministic.
    pub deterministic: bool,
    /// The shaders that ran in the last step.
    pub ran: RefCell<HashSet<Module>>,
    device: Arc<Device>,
}

/// A step that is ready to run: its dispatches and the memory that they use.
pub struct Ready {
    pub dispatches: Vec<Dispatch>,
    work: Buffer,
    regions: Regions,
    /// The content of `work` before the step.
    before: Vec<u32>,
    /// The first word of each output, and its width.
    outputs: Vec<(usize, usize)>,
    rows_out: usize,
    _adapters: AdapterSlots,
}

/// The regions of the buffer.
struct Regions {
    step: Region,
    inputs: Vec<DeviceValue>,
    outputs: Vec<DeviceValue>,
    scratch: Region,
}

impl<'a> OneOp<'a> {
    /// Uploads the op's weights and allocates its cache.
    pub fn new(device: &Arc<Device>, op: &'a dyn Op, cache: Option<&CaseCache>) -> Result<Self, VulkanError> {
        let none = CaseCache::of_kv(Vec::new(), KvType::F32, 0);
        let cache = cache.unwrap_or(&none);
        Ok(OneOp {
            op,
            weights: DeviceWeights::load(device, &[op], &mut |_| Ok(()))?,
            cache: DeviceCache::new(
                device,
                &cache.layers(),
                (BlockCounts::equal(cache.blocks), cache.slots),
                cache.kv_type,
            )?,
            pool: CommandPool::new(device)?,
            limits: device.info.limits.clone(),
            deterministic: false,
            ran: RefCell::default(),
            device: Arc::clone(device),
        })
    }

    /// Runs a step in the bucket that an engine would use. Returns the outputs.
    pub fn run(&self, batch: &CaseBatch, rows: RowCount, inputs: &[Vec<f32>]) -> Result<Vec<Vec<f32>>, VulkanError> {
        self.run_in(bucket(batch), batch, rows, inputs)
    }

    /// Runs a step in the given bucket.
    pub fn run_in(
        &self,
        bucket: Bucket,
        batch: &CaseBatch,
        rows: RowCount,
        inputs: &[Vec<f32>],
    ) -> Result<Vec<Vec<f32>>, VulkanError> {
        let ready = self.prepare(bucket, batch, rows, inputs)?;
        self.ran.replace(ready.dispatches.iter().map(|dispatch| dispatch.module).collect());
        self.assert_declared(&ready);
        let after = self.execute(&ready.work, &ready.before, &ready.dispatches)?;
        assert_untouched(&ready, &after);
        let output = |&(start, width): &(usize, usize)| {
            after[start..start + ready.rows_out * width].iter().map(|word| f32::from_bits(*word)).collect()
        };
        Ok(ready.outputs.iter().map(output).collect())
    }

    /// Uploads a step, so that its dispatches can be recorded any number of times.
    pub fn ready(&self, batch: &CaseBatch, rows: RowCount, inputs: &[Vec<f32>]) -> Result<Ready, VulkanError> {
        let ready = self.prepare(bucket(batch), batch, rows, inputs)?;
        self.execute(&ready.work, &ready.before, &[])?;
        Ok(ready)
    }

    fn prepare(
        &self,
        bucket: Bucket,
        batch: &CaseBatch,
        rows: RowCount,
        inputs: &[Vec<f32>],
    ) -> Result<Ready, VulkanError> {
        let entries = batch.block_tables.iter().chain(&batch.window_tables).map(Vec::len).sum();
        let selected = [bucket.selected, bucket.hidden];
        let layout = StepLayout::new(bucket.rows, selected, batch.block_tables.len(), entries);
        let input_widths: Vec<usize> = inputs.iter().map(|input| input.len() / rows.most()).collect();
        let output_widths = self.op.output_widths(&input_widths).expect("a case is well formed");
        let (bucket_rows, rows_out, bucket_rows_out) = self.rows_in_bucket(bucket, batch, rows);
        let scratch_bytes = self.op.gpu_scratch_bytes(&self.limits, bucket_rows.most(), bucket.context_tokens);
        let value_bytes = |rows: usize, widths: &[usize]| -> Vec<u64> {
            widths.iter().map(|width| (rows * width * size_of::<f32>()) as u64).collect()
        };
        let input_bytes = value_bytes(bucket_rows.most(), &input_widths);
        let output_bytes = value_bytes(bucket_rows_out, &output_widths);
        let sizes = [vec![layout.bytes(), scratch_bytes], input_bytes, output_bytes].concat();
        let (starts, total) = layout_with_guards(&sizes);

        let work = Buffer::new(&self.device, "a test", total, MemoryKind::Device)?;
        let region = |index: usize| Region { address: work.region.address + starts[index], bytes: sizes[index] };
        let values = |first: usize, widths: &[usize]| -> Vec<DeviceValue> {
            let of_each = widths.iter().enumerate();
            of_each.map(|(index, width)| DeviceValue { region: region(first + index), width: *width }).collect()
        };
        let regions = Regions {
            step: region(0),
            scratch: region(1),
            inputs: values(2, &input_widths),
            outputs: values(2 + inputs.len(), &output_widths),
        };

        let mut before = vec![PATTERN; total as usize / size_of::<u32>()];
        let words = |index: usize| starts[index] as usize / 4..(starts[index] + sizes[index]) as usize / 4;
        layout.write_header(regions.step.address, &mut before[words(0)]);
        let mut adapters = AdapterSlots::new(&self.device, &[self.op], CASE_ADAPTERS)?;
        let of_sequences = batch.of_sequences();
        let on_cpu = batch.as_batch(&of_sequences);
        let adapter_slots = &adapters.place(on_cpu.adapters)?;
        layout.write(&Batch { adapter_slots, ..on_cpu }, &mut before[words(0)]);
        for (index, input) in inputs.iter().enumerate() {
            let start = words(2 + index).start;
            before[start..start + input.len()].copy_from_slice(&bits(input));
        }

        let dispatches = self.dispatches(bucket, bucket_rows, &regions, &adapters.regions);
        let start_of = |(index, width): (usize, &usize)| (words(2 + inputs.len() + index).start, *width);
        let outputs = output_widths.iter().enumerate().map(start_of).collect();
        Ok(Ready { dispatches, work, regions, before, outputs, rows_out, _adapters: adapters })
    }

    /// The input rows of a bucket, and the output rows of the step and of the bucket.
    fn rows_in_bucket(&self, bucket: Bucket, batch: &CaseBatch, rows: RowCount) -> (RowCount, usize, usize) {
        match (rows, self.op.selects_rows()) {
            (RowCount::All(_), Some(Selection::Hidden)) => {
                (RowCount::All(bucket.rows), batch.hidden.len(), bucket.hidden)
            }
            (RowCount::All(_), Some(_)) => (RowCount::All(bucket.rows), batch.selected.len(), bucket.selected),
            (RowCount::All(rows), None) => (RowCount::All(bucket.rows), rows, bucket.rows),
            (RowCount::Selected(rows), _) => (RowCount::Selected(bucket.selected), rows, bucket.selected),
            (RowCount::Hidden(rows), _) => (RowCount::Hidden(bucket.hidden), rows, bucket.hidden),
        }
    }

    fn dispatches(
        &self,
        bucket: Bucket,
        rows: RowCount,
        regions: &Regions,
        adapters: &DeviceAdapters,
    ) -> Vec<Dispatch> {
        let (weights, tables) = &self.weights.of_ops[0];
        self.op.dispatches(&GpuArgs {
            device: &self.limits,
            deterministic: self.deterministic,
            step: regions.step.address,
            rows,
            selected: bucket.selected,
            hidden: bucket.hidden,
            sequences: bucket.sequences,
            context_tokens: bucket.context_tokens,
            inputs: &regions.inputs,
            outputs: &regions.outputs,
            weights,
            tables,
            kv: &self.cache.kv,
            states: &self.cache.states,
            adapters,
            scratch: regions.scratch,
        })
    }

    /// Asserts that each dispatch declares every changing region whose address it receives, because barriers follow from these
    /// declarations.
    fn assert_declared(&self, Ready { dispatches, work, regions, .. }: &Ready) {
        let changing: Vec<Region> = self
            .cache
            .kv
            .layers
            .iter()
            .flatten()
            .chain(&self.cache.kv.indexes)
            .chain(&self.cache.states.layers)
            .copied()
            .chain([work.region])
            .collect();
        let holds = |region: &Region, address: u64| (region.address..region.address + region.bytes).contains(&address);
        for dispatch in dispatches {
            for address in dispatch.push.as_bytes().as_chunks().0.iter().map(|bytes| u64::from_le_bytes(*bytes)) {
                let changes = changing.iter().any(|region| holds(region, address)) && !holds(&regions.step, address);
                let declared = dispatch.reads.iter().chain(&dispatch.writes).any(|region| holds(region, address));
                assert!(!changes || declared, "{:?} does not declare its use of {address:#x}", dispatch.module);
            }
        }
    }

    /// Writes `before` to the buffer, runs the dispatches, and returns the content of the buffer.
    fn execute(&self, work: &Buffer, before: &[u32], dispatches: &[Dispatch]) -> Result<Vec<u32>, VulkanError> {
        let bytes = size_of_val(before) as u64;
        let mut staging = HostBuffer::new(&self.device, "a test", bytes)?;
        staging
            .bytes_mut()
            .as_chunks_mut()
            .0
            .iter_mut()
            .zip(before)
            .for_each(|(bytes, word)| *bytes = word.to_le_bytes());
        let commands = self.pool.allocate()?;
        let mut recorder = Recorder::begin(&self.device, commands)?;
        recorder.copy((staging.as_buffer(), 0), (work, 0), bytes);
        dispatches.iter().try_for_each(|dispatch| recorder.dispatch(dispatch))?;
        recorder.copy((work, 0), (staging.as_buffer(), 0), bytes);
        self.device.wait(self.device.submit(&[recorder.end()?])?)?;
        Ok(staging.bytes().as_chunks().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).take(before.len()).collect())
    }
}

/// The offsets of regions of these sizes, with a guard around each, and the total size.
fn layout_with_guards(sizes: &[u64]) -> (Vec<u64>, u64) {
    let mut end = GUARD_BYTES;
    let starts = sizes.iter().map(|bytes| {
        let start = end;
        end = (start + bytes).next_multiple_of(GUARD_BYTES) + GUARD_BYTES;
        start
    });
    (starts.collect(), end)
}

/// The bucket that an engine with large limits would use.
pub fn bucket(batch: &CaseBatch) -> Bucket {
    let limits = EngineLimits {
        vocab_size: 0,
        context_tokens: 4096,
        kv_blocks: 0,
        max_batched_tokens: 4096,
        max_sequences: 64,
        max_logits_rows: 4096,
        hidden: HiddenLimits { width: 0, max_rows: 4096, ..HiddenLimits::default() },
        device: String::new(),
        ..EngineLimits::default()
    };
    Bucket::of(&batch.as_batch(&batch.of_sequences()), &limits)
}

/// The bits of values.
pub fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Asserts that only the regions that dispatches write have changed.
fn assert_untouched(Ready { dispatches, work, before, .. }: &Ready, after: &[u32]) {
    let mut written = vec![false; before.len()];
    for region in dispatches.iter().flat_map(|dispatch| &dispatch.writes) {
        if let Some(range) = words_of(*region, work.region) {
            written[range].fill(true);
        }
    }
    let changed = (0..before.len()).find(|&index| !written[index] && before[index] != after[index]);
    assert_eq!(changed, None, "a word that no dispatch declares to write has changed");
}

fn words_of(region: Region, work: Region) -> Option<Range<usize>> {
    let start = region.address.checked_sub(work.address)?;
    let end = start + region.bytes;
    (end <= work.bytes).then_some(start as usize / 4..end as usize / 4)
}
