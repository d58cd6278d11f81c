//! The commands of a segment for a bucket of steps, recorded once and then replayed.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ash::vk;
use cuelight_shaders::cost::Cost;
use cuelight_shaders::gpu::{DeviceValue, GpuArgs, Region};
use cuelight_shaders::lora::DeviceAdapters;

use super::bucket::Bucket;
use super::device::Device;
use super::error::VulkanError;
use super::record::{CommandPool, Recorder};
use super::resident::{DeviceCache, DeviceWeights};
use super::segment::Segment;
use super::step_buffers::StepBuffers;
use crate::graph::{Node, ValueId};

/// What recording needs of a stage.
#[derive(Clone, Copy)]
pub(super) struct RecordContext<'a> {
    pub device: &'a Arc<Device>,
    pub pool: &'a CommandPool,
    pub weights: &'a DeviceWeights,
    pub cache: &'a DeviceCache,
    pub adapters: &'a DeviceAdapters,
    pub buffers: &'a StepBuffers,
    pub deterministic: bool,
}

/// The commands of a bucket, split into submissions that are all short: operating systems reset a device that does not
/// respond for a second or two.
pub(super) struct CommandPlan {
    pub submissions: Vec<vk::CommandBuffer>,
    timestamps: Option<Timestamps>,
    /// The longest measured time of all submissions together.
    slowest: Duration,
}

/// The target time of a submission.
const SUBMISSION_TIME: Duration = Duration::from_millis(300);

/// Operations a second that even a slow device reaches; used for plans that have not been measured.
const SLOWEST_OPERATIONS: u64 = 20_000_000_000;

impl CommandPlan {
    /// Records a segment. The number of submissions follows from the cost of its ops, or from the measured time of `before`.
    pub fn record(
        context: RecordContext<'_>,
        segment: &Segment,
        bucket: Bucket,
        costs: &[Cost],
        before: Option<&CommandPlan>,
    ) -> Result<Self, VulkanError> {
        let nodes = segment.graph.nodes();
        let operations: u64 = costs.iter().map(Cost::operations).sum();
        let wanted = match before {
            Some(plan) => submissions(plan.slowest),
            None => submissions(Duration::from_secs_f64(operations as f64 / SLOWEST_OPERATIONS as f64)),
        };
        let each = (operations / wanted.clamp(1, nodes.len().max(1)) as u64).max(1);
        let timestamps = segment.profiler.as_ref().map(|_| Timestamps::new(context.device, nodes.len())).transpose()?;
        let begin = || Recorder::begin(context.device, context.pool.allocate()?);

        let mut submissions = Vec::new();
        let (mut recorder, mut recorded) = (begin()?, 0);
        let StepBuffers { work, input_staging, output_staging, .. } = context.buffers;
        segment.inputs.record_upload(&mut recorder, bucket, work, input_staging.as_ref());
        if let Some(timestamps) = &timestamps {
            recorder.timestamp(timestamps.queries, 0);
        }
        for (index, (node, cost)) in nodes.iter().zip(costs).enumerate() {
            record_node(&mut recorder, (context, segment), bucket, index, node)?;
            if let Some(timestamps) = &timestamps {
                recorder.timestamp(timestamps.queries, index as u32 + 1);
            }
            recorded += cost.operations();
            if recorded >= each && index + 1 < nodes.len() {
                submissions.push(std::mem::replace(&mut recorder, begin()?).end()?);
                recorded = 0;
            }
        }
        segment.outputs.record_download(&mut recorder, bucket, work, output_staging.as_ref());
        submissions.push(recorder.end()?);
        Ok(CommandPlan { submissions, timestamps, slowest: Duration::ZERO })
    }

    /// Whether the number of submissions suits the measured time, within a factor of two.
    pub fn is_cut_well(&self) -> bool {
        let (wanted, found) = (submissions(self.slowest), self.submissions.len());
        self.slowest.is_zero() || (wanted <= 2 * found && found <= 2 * wanted)
    }

    /// Runs `first`, then the plan, then `last`, and waits until all have completed.
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

    /// For each op of the last run: when it began, relative to the first op, and how long it took.
    pub fn times(&self, device: &Device) -> Result<Vec<(Duration, Duration)>, VulkanError> {
        self.timestamps.as_ref().map_or(Ok(Vec::new()), |timestamps| timestamps.read(device))
    }
}

/// The number of submissions into which work that takes `time` is split.
fn submissions(time: Duration) -> usize {
    (time.as_secs_f64() / SUBMISSION_TIME.as_secs_f64()).ceil().max(1.0) as usize
}

/// The device's timestamps before each op and after the last.
struct Timestamps {
    queries: vk::QueryPool,
    count: u32,
    device: Arc<Device>,
}

impl Timestamps {
    fn new(device: &Arc<Device>, ops: usize) -> Result<Self, VulkanError> {
        let (device, count) = (Arc::clone(device), ops as u32 + 1);
        let info = vk::QueryPoolCreateInfo::default().query_type(vk::QueryType::TIMESTAMP).query_count(count);
        // SAFETY: the device is alive.
        let queries = unsafe { device.raw.create_query_pool(&info, None) };
        Ok(Timestamps { queries: queries.map_err(VulkanError::of("vkCreateQueryPool"))?, count, device })
    }

    fn reset(&self, device: &Device) {
        // SAFETY: the pool belongs to the device, and no commands that use it are running.
        unsafe { device.raw.reset_query_pool(self.queries, 0, self.count) };
    }

    fn read(&self, device: &Device) -> Result<Vec<(Duration, Duration)>, VulkanError> {
        let mut ticks = vec![0_u64; self.count as usize];
        // SAFETY: the pool belongs to the device, and the commands that wrote to it have completed.
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
        // SAFETY: the stage waits for the device before it drops its plans.
        unsafe { self.device.raw.destroy_query_pool(self.queries, None) };
    }
}

fn record_node(
    recorder: &mut Recorder<'_>,
    (context, segment): (RecordContext<'_>, &Segment),
    bucket: Bucket,
    index: usize,
    node: &Node,
) -> Result<(), VulkanError> {
    let work = context.buffers.work.region;
    let scratch_start = context.buffers.scratch_start;
    let value = |value: &ValueId| {
        let width = segment.graph.width(*value);
        let rows = bucket.rows(segment.graph.rows(*value)).most();
        let address = work.address + (segment.layout.offset(*value) * size_of::<f32>()) as u64;
        DeviceValue { region: Region { address, bytes: (rows * width * size_of::<f32>()) as u64 }, width }
    };
    // Of the kinds of rows, only hidden ones may be absent from a bucket.
    if node.outputs.iter().any(|output| bucket.rows(segment.graph.rows(*output)).most() == 0) {
        return Ok(());
    }
    let inputs: Vec<DeviceValue> = node.inputs.iter().map(value).collect();
    let outputs: Vec<DeviceValue> = node.outputs.iter().map(value).collect();
    let (weights, tables) = &context.weights.of_ops[segment.first_op + index];
    let dispatches = node.op.dispatches(&GpuArgs {
        device: &context.device.info.limits,
        deterministic: context.deterministic,
        step: context.buffers.step.region.address,
        rows: bucket.rows(segment.graph.input_rows(node)),
        selected: bucket.selected,
        hidden: bucket.hidden,
        sequences: bucket.sequences,
        context_tokens: bucket.context_tokens,
        inputs: &inputs,
        outputs: &outputs,
        weights,
        tables,
        kv: &context.cache.kv,
        states: &context.cache.states,
        adapters: context.adapters,
        scratch: Region { address: work.address + scratch_start, bytes: work.bytes - scratch_start },
    });
    dispatches.iter().try_for_each(|dispatch| recorder.dispatch(dispatch))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(submissions: usize, slowest: Duration) -> CommandPlan {
        CommandPlan { submissions: vec![vk::CommandBuffer::null(); submissions], timestamps: None, slowest }
    }

    #[test]
    fn a_plan_needs_another_split_if_its_time_differs_much_from_the_estimate() {
        assert!(plan(50, Duration::ZERO).is_cut_well(), "not measured yet");
        assert!(plan(1, Duration::from_millis(10)).is_cut_well());
        assert!(plan(4, Duration::from_secs(1)).is_cut_well());
        assert!(!plan(1, Duration::from_secs(1)).is_cut_well());
        assert!(!plan(50, Duration::from_secs(1)).is_cut_well());
    }
}
