//! A graph recorded for a bucket of steps: once, and then replayed.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ash::vk;
use cuelight_shaders::cost::Cost;
use cuelight_shaders::gpu::{DeviceLimits, DeviceValue, GpuArgs, Region, RowCount};
use cuelight_shaders::op::Batch;

use super::device::Device;
use super::error::VulkanError;
use super::record::Recorder;
use super::{Piece, StepBuffers, VulkanStage};
use crate::engine::EngineLimits;
use crate::graph::{Graph, Node, Rows, ValueId};

/// Steps that run the same commands: they have at most so many rows, and so long contexts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Bucket {
    pub rows: usize,
    pub selected: usize,
    /// As many as rows where sequences have few rows each: decode steps of a size are all one bucket.
    pub sequences: usize,
    pub context_tokens: usize,
}

impl Bucket {
    /// The bucket of a step: powers of two, so that there are few, within what the engine takes.
    pub fn of(batch: &Batch<'_>, limits: &EngineLimits) -> Self {
        const SHORTEST_CONTEXT: usize = 256;
        const FEW_ROWS_OF_SEQUENCE: usize = 4;
        let up_to = |count: usize, most: usize| count.max(1).next_power_of_two().min(most.max(1));
        let longest = batch.positions.iter().max().map_or(0, |position| *position as usize + 1);
        let rows = up_to(batch.rows(), limits.max_batched_tokens);
        let sequences = up_to(batch.run_starts().count(), rows);
        Bucket {
            rows,
            sequences: if sequences * FEW_ROWS_OF_SEQUENCE > rows { rows } else { sequences },
            selected: up_to(batch.selected.len(), limits.max_logits_rows),
            context_tokens: up_to(longest.max(SHORTEST_CONTEXT), limits.context_tokens.max(SHORTEST_CONTEXT)),
        }
    }

    /// How many rows a value has in it, at most.
    pub fn rows(self, rows: Rows) -> RowCount {
        match rows {
            Rows::All => RowCount::All(self.rows),
            Rows::Selected => RowCount::Selected(self.selected),
        }
    }
}

/// The most scratch that any op wants, in bytes.
pub(super) fn scratch_bytes(graph: &Graph, device: &DeviceLimits, limits: &EngineLimits) -> u64 {
    let of_node = |node: &Node| {
        let rows = match graph.input_rows(node) {
            Rows::All => limits.max_batched_tokens,
            Rows::Selected => limits.max_logits_rows,
        };
        node.op.gpu_scratch_bytes(device, rows, limits.context_tokens)
    };
    graph.nodes().iter().map(of_node).max().unwrap_or(0)
}

/// The commands of a bucket, cut into submissions that none takes long: systems reset devices that do not answer for a
/// second or two.
pub(super) struct Plan {
    pub submissions: Vec<vk::CommandBuffer>,
    timestamps: Option<Timestamps>,
    /// The longest that all of it took.
    slowest: Duration,
}

/// How long a submission may take.
const SUBMISSION_TIME: Duration = Duration::from_millis(300);

/// What any device does in a second, for plans that were not measured yet.
const SLOWEST_OPERATIONS: u64 = 20_000_000_000;

impl Plan {
    /// Records a piece's graph: by what its ops have to do, or by what the same plan took when it ran before.
    pub fn record(
        engine: &VulkanStage,
        piece: &Piece,
        bucket: Bucket,
        costs: &[Cost],
        before: Option<&Plan>,
    ) -> Result<Self, VulkanError> {
        let nodes = piece.graph.nodes();
        let operations: u64 = costs.iter().map(Cost::operations).sum();
        let wanted = match before {
            Some(plan) => submissions(plan.slowest),
            None => submissions(Duration::from_secs_f64(operations as f64 / SLOWEST_OPERATIONS as f64)),
        };
        let each = (operations / wanted.clamp(1, nodes.len().max(1)) as u64).max(1);
        let timestamps = piece.profiler.as_ref().map(|_| Timestamps::new(engine, nodes.len())).transpose()?;
        let begin = || Recorder::begin(&engine.device, engine.pool.allocate()?);

        let mut submissions = Vec::new();
        let (mut recorder, mut recorded) = (begin()?, 0);
        let StepBuffers { work, taken_stage, given_stage, .. } = &engine.buffers;
        piece.taken.record_in(&mut recorder, bucket, work, taken_stage.as_ref());
        if let Some(timestamps) = &timestamps {
            recorder.timestamp(timestamps.queries, 0);
        }
        for (index, (node, cost)) in nodes.iter().zip(costs).enumerate() {
            record_node(&mut recorder, (engine, piece), bucket, index, node)?;
            if let Some(timestamps) = &timestamps {
                recorder.timestamp(timestamps.queries, index as u32 + 1);
            }
            recorded += cost.operations();
            if recorded >= each && index + 1 < nodes.len() {
                submissions.push(std::mem::replace(&mut recorder, begin()?).end()?);
                recorded = 0;
            }
        }
        piece.given.record_out(&mut recorder, bucket, work, given_stage.as_ref());
        submissions.push(recorder.end()?);
        Ok(Plan { submissions, timestamps, slowest: Duration::ZERO })
    }

    /// Whether it is in about as many submissions as it should be, by what it took so far.
    pub fn is_cut_well(&self) -> bool {
        let (wanted, found) = (submissions(self.slowest), self.submissions.len());
        self.slowest.is_zero() || (wanted <= 2 * found && found <= 2 * wanted)
    }

    /// Runs it after `first` and before `last`, and waits for the end.
    pub fn run(
        &mut self,
        device: &Device,
        first: Option<vk::CommandBuffer>,
        last: Option<vk::CommandBuffer>,
    ) -> Result<(), VulkanError> {
        if let Some(timestamps) = &self.timestamps {
            timestamps.reset(device);
        }
        let began = Instant::now();
        let mut done = 0;
        for commands in first.iter().chain(&self.submissions).chain(&last) {
            done = device.submit(&[*commands])?;
        }
        device.wait(done)?;
        self.slowest = self.slowest.max(began.elapsed());
        Ok(())
    }

    /// When each op began, since the first did, and how long it took, in the run that has ended.
    pub fn times(&self, device: &Device) -> Result<Vec<(Duration, Duration)>, VulkanError> {
        self.timestamps.as_ref().map_or(Ok(Vec::new()), |timestamps| timestamps.read(device))
    }
}

/// How many submissions should share what takes so long.
fn submissions(time: Duration) -> usize {
    (time.as_secs_f64() / SUBMISSION_TIME.as_secs_f64()).ceil().max(1.0) as usize
}

/// The device's clock before each op and after the last.
struct Timestamps {
    queries: vk::QueryPool,
    count: u32,
    device: Arc<Device>,
}

impl Timestamps {
    fn new(engine: &VulkanStage, ops: usize) -> Result<Self, VulkanError> {
        let (device, count) = (Arc::clone(&engine.device), ops as u32 + 1);
        let info = vk::QueryPoolCreateInfo::default().query_type(vk::QueryType::TIMESTAMP).query_count(count);
        // SAFETY: the device is alive.
        let queries = unsafe { device.raw.create_query_pool(&info, None) };
        Ok(Timestamps { queries: queries.map_err(VulkanError::of("vkCreateQueryPool"))?, count, device })
    }

    fn reset(&self, device: &Device) {
        // SAFETY: the pool is the device's, and no commands that use it are running.
        unsafe { device.raw.reset_query_pool(self.queries, 0, self.count) };
    }

    fn read(&self, device: &Device) -> Result<Vec<(Duration, Duration)>, VulkanError> {
        let mut ticks = vec![0_u64; self.count as usize];
        // SAFETY: the pool is the device's, and the commands that wrote to it have ended.
        unsafe { device.raw.get_query_pool_results(self.queries, 0, &mut ticks, vk::QueryResultFlags::TYPE_64) }
            .map_err(VulkanError::of("vkGetQueryPoolResults"))?;
        let since = |ticks: u64, start: u64| {
            let nanoseconds = ticks.saturating_sub(start) as f64 * f64::from(device.info.timestamp_ns);
            Duration::from_nanos(nanoseconds as u64)
        };
        Ok(ticks.windows(2).map(|pair| (since(pair[0], ticks[0]), since(pair[1], pair[0]))).collect())
    }
}

impl Drop for Timestamps {
    fn drop(&mut self) {
        // SAFETY: the engine waits for the device before it drops its plans.
        unsafe { self.device.raw.destroy_query_pool(self.queries, None) };
    }
}

fn record_node(
    recorder: &mut Recorder<'_>,
    (engine, piece): (&VulkanStage, &Piece),
    bucket: Bucket,
    index: usize,
    node: &Node,
) -> Result<(), VulkanError> {
    let work = engine.buffers.work.region;
    let scratch_start = engine.buffers.scratch_start;
    let value = |value: &ValueId| {
        let width = piece.graph.width(*value);
        let rows = bucket.rows(piece.graph.rows(*value)).most();
        let address = work.address + (piece.layout.offset(*value) * size_of::<f32>()) as u64;
        DeviceValue { region: Region { address, bytes: (rows * width * size_of::<f32>()) as u64 }, width }
    };
    let inputs: Vec<DeviceValue> = node.inputs.iter().map(value).collect();
    let outputs: Vec<DeviceValue> = node.outputs.iter().map(value).collect();
    let (weights, tables) = &engine.weights.of_ops[piece.first_op + index];
    let dispatches = node.op.dispatches(&GpuArgs {
        device: &engine.device.info.limits,
        deterministic: engine.options.deterministic,
        step: engine.buffers.step.region.address,
        rows: bucket.rows(piece.graph.input_rows(node)),
        selected: bucket.selected,
        sequences: bucket.sequences,
        context_tokens: bucket.context_tokens,
        inputs: &inputs,
        outputs: &outputs,
        weights,
        tables,
        kv: &engine.cache.kv,
        scratch: Region { address: work.address + scratch_start, bytes: work.bytes - scratch_start },
    });
    dispatches.iter().try_for_each(|dispatch| recorder.dispatch(dispatch))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(submissions: usize, slowest: Duration) -> Plan {
        Plan { submissions: vec![vk::CommandBuffer::null(); submissions], timestamps: None, slowest }
    }

    #[test]
    fn a_bucket_tells_sequences_apart_where_they_have_many_rows() {
        let limits = EngineLimits {
            vocab_size: 0,
            context_tokens: 4096,
            kv_blocks: 0,
            max_batched_tokens: 512,
            max_sequences: 64,
            max_logits_rows: 64,
            device: String::new(),
        };
        let bucket = |rows_of_each: &[usize]| {
            let of_each = || (0..).zip(rows_of_each);
            let sequences: Vec<u32> = of_each().flat_map(|(index, rows)| vec![index; *rows]).collect();
            let positions: Vec<u32> = of_each().flat_map(|(_, rows)| 0..*rows as u32).collect();
            let (tokens, tables) = (&positions, vec![&[][..]; rows_of_each.len()]);
            let batch =
                Batch { tokens, positions: &positions, sequences: &sequences, block_tables: &tables, selected: &[] };
            let bucket = Bucket::of(&batch, &limits);
            (bucket.rows, bucket.sequences)
        };
        assert_eq!(bucket(&[300]), (512, 1));
        assert_eq!(bucket(&[300, 1, 1]), (512, 4));
        assert_eq!(bucket(&[1; 9]), (16, 16), "every decode step of as many rows");
        assert_eq!(bucket(&[2; 9]), (32, 32));
    }

    #[test]
    fn a_plan_is_cut_anew_when_it_takes_far_longer_or_shorter_than_was_thought() {
        assert!(plan(50, Duration::ZERO).is_cut_well(), "not measured");
        assert!(plan(1, Duration::from_millis(10)).is_cut_well());
        assert!(plan(4, Duration::from_secs(1)).is_cut_well());
        assert!(!plan(1, Duration::from_secs(1)).is_cut_well());
        assert!(!plan(50, Duration::from_secs(1)).is_cut_well());
    }
}
