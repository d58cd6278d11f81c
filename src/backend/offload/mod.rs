//! A model on a device, some of whose experts are computed elsewhere, as an [`Engine`].
//!
//! The graph is cut at those experts. A step runs segment by segment: each segment ends with rows and their routes, which are
//! returned as an [`ExpertJob`], and the next segment starts with the result. Between segments only a step's keys and values
//! are on the device. So several steps can be in progress: one is computed while another waits for experts.
//!
//! While a step's experts are computed elsewhere, the device computes the experts that every row uses, and those of the step's
//! experts that its cache holds ([`cache`], [`hot_set`]). All results are added when the other experts have been computed.
//!
//! A step of many rows uses nearly every expert. All of them may be streamed to the device ([`stream`]) if that was measured to
//! be faster ([`break_even`]).

mod break_even;
mod cache;
mod hot_set;
mod stream;
mod uploads;
mod with_experts;

use std::collections::HashMap;
use std::time::Instant;

use self::break_even::BreakEven;
use self::cache::Chunk;
pub use self::cache::{ExpertCache, ExpertPool};
use self::stream::Passes;
pub use self::with_experts::WithExperts;
use crate::backend::ragged::validate;
use crate::backend::stage::{PipelineStage, StageOutput};
use crate::device::ExpertStreaming;
use crate::engine::{
    CacheLayout, CacheUnit, Engine, EngineError, EngineLimits, ExpertCounts, ExpertJob, ExpertResult, Progress, Step,
    StepId, StepOutput, logits_or_denoised,
};

use crate::graph::Handover;
use crate::profile::{Cost, OpSpan};

/// A model on a device, some of whose experts are computed elsewhere.
pub struct OffloadedEngine {
    /// Dropped before the stage, because its threads write to the stage.
    cache: Option<ExpertCache>,
    /// Its segments are, in this order: the segments between experts, one more than there are cuts; the segments that run while
    /// experts are computed elsewhere; the pools of the cache.
    stage: Box<dyn PipelineStage>,
    /// One between each segment and the next.
    cuts: Vec<Handover>,
    break_even: BreakEven,
    limits: EngineLimits,
    cache_layout: Option<CacheLayout>,
    waiting: HashMap<StepId, Waiting>,
}

/// A step that waits for experts.
struct Waiting {
    step: Step,
    /// The segment that runs next.
    segment: usize,
    /// The inputs of that segment, except the result of the experts.
    carried: Vec<Vec<f32>>,
    /// A segment, with its inputs, that the device can run before that.
    overlapped: Option<(usize, Vec<Vec<f32>>)>,
    device_experts: Option<DeviceExperts>,
    /// The result of the experts that the device computed.
    routed: Option<Vec<f32>>,
    /// Whether all of the step's experts are streamed to the device.
    streams: bool,
    /// The chunk of streamed experts that was prefetched.
    prefetched: Option<Chunk>,
    /// Whether no other step was in progress meanwhile.
    is_alone: bool,
    began: Instant,
    ops: Vec<OpSpan>,
    counts: ExpertCounts,
}

/// Experts that the device computes.
enum DeviceExperts {
    /// Those in its cache: the segment and its inputs.
    Cached(usize, Vec<Vec<f32>>),
    /// All experts that the routes [rows, 2 top_k] of a layer use.
    Streamed { layer: usize, hidden: Vec<f32>, routes: Vec<f32> },
}

impl Waiting {
    fn new(step: Step) -> Self {
        Waiting {
            step,
            segment: 0,
            carried: Vec::new(),
            overlapped: None,
            device_experts: None,
            routed: None,
            streams: false,
            prefetched: None,
            is_alone: true,
            began: Instant::now(),
            ops: Vec::new(),
            counts: ExpertCounts::default(),
        }
    }

    /// The inputs of the next segment. `elsewhere` is the result of the experts computed elsewhere, if there were any.
    fn inputs(&mut self, elsewhere: Option<Vec<f32>>) -> Vec<Vec<f32>> {
        let routed = match (elsewhere, self.routed.take()) {
            (Some(mut elsewhere), Some(here)) => {
                elsewhere.iter_mut().zip(here).for_each(|(sum, value)| *sum += value);
                Some(elsewhere)
            }
            (elsewhere, here) => elsewhere.or(here),
        };
        let mut inputs = std::mem::take(&mut self.carried);
        inputs.extend(routed);
        inputs
    }
}

impl OffloadedEngine {
    /// The engine of a stage that has a segment for each part of a cut graph, followed by the overlapped segments.
    #[must_use]
    pub fn new(stage: Box<dyn PipelineStage>, cuts: Vec<Handover>, limits: EngineLimits) -> Self {
        let break_even = BreakEven::new(ExpertStreaming::Off, 0);
        let (cache, cache_layout, waiting) = Default::default();
        OffloadedEngine { stage, cuts, cache, break_even, limits, cache_layout, waiting }
    }

    /// Lets callers copy units of the cache, whose content `description` describes ([`CacheLayout::description`]).
    #[must_use]
    pub fn with_cache_copies(self, description: String) -> Self {
        let bytes = self.stage.unit_bytes();
        OffloadedEngine { cache_layout: Some(CacheLayout { bytes, description }), ..self }
    }

    /// Adds a cache of experts, whose pools are segments of the stage. `bytes` is the maximum size of the experts that are
    /// streamed for a step.
    #[must_use]
    pub fn with_cache(self, cache: ExpertCache, streaming: ExpertStreaming, bytes: u64) -> Self {
        OffloadedEngine { cache: Some(cache), break_even: BreakEven::new(streaming, bytes), ..self }
    }

    /// Runs a step until it is done or needs experts from elsewhere.
    fn run(&mut self, mut waiting: Waiting, mut inputs: Vec<Vec<f32>>) -> Result<Progress, EngineError> {
        loop {
            let StageOutput { mut values, hidden, sampled, .. } =
                self.run_segment(waiting.segment, &inputs, &mut waiting)?;
            if waiting.segment == self.cuts.len() {
                if waiting.is_alone {
                    self.break_even.record(waiting.streams, waiting.step.rows(), waiting.began.elapsed());
                }
                let (logits, denoised) = logits_or_denoised(&self.limits, values.pop().unwrap_or_default());
                return Ok(Progress::Done(StepOutput {
                    id: waiting.step.id,
                    logits,
                    hidden,
                    denoised,
                    sampled,
                    elapsed: waiting.began.elapsed(),
                    ops: waiting.ops,
                    experts: waiting.counts,
                    prefill_saturation_rows: self.break_even.stream_from_rows(),
                }));
            }
            if let Some(job) = self.split_outputs(&mut waiting, values) {
                self.waiting.insert(job.step, waiting);
                return Ok(Progress::AwaitExperts(job));
            }
            self.compute_overlapped(&mut waiting)?;
            inputs = waiting.inputs(None);
        }
    }

    /// Runs a segment and records the times of its ops.
    fn run_segment(
        &mut self,
        segment: usize,
        inputs: &[Vec<f32>],
        waiting: &mut Waiting,
    ) -> Result<StageOutput, EngineError> {
        let before = waiting.began.elapsed();
        let mut output = self.stage.run(segment, &waiting.step, inputs)?;
        waiting.ops.extend(output.ops.drain(..).map(|op| OpSpan { start: op.start + before, ..op }));
        Ok(output)
    }

    /// Distributes the outputs of a segment: to the next segment, to the overlapped segment, and to the experts. Returns the job
    /// for experts elsewhere, if there is one.
    fn split_outputs(&mut self, waiting: &mut Waiting, mut values: Vec<Vec<f32>>) -> Option<ExpertJob> {
        let cut = &self.cuts[waiting.segment];
        let layer = waiting.segment;
        waiting.segment += 1;
        let [hidden, routes] = [cut.inputs[0], cut.inputs[1]];
        waiting.overlapped = cut.parallel.as_ref().map(|parallel| {
            let inputs = parallel.inputs.iter().map(|input| values[*input].clone()).collect();
            (self.cuts.len() + 1 + parallel.graph, inputs)
        });
        // A value that is also carried to the next segment is copied.
        let mut take = |index: usize| {
            if cut.carried.contains(&index) { values[index].clone() } else { std::mem::take(&mut values[index]) }
        };
        let (hidden, routes) = (take(hidden), take(routes));
        waiting.carried = cut.carried.iter().map(|carried| std::mem::take(&mut values[*carried])).collect();
        let step = waiting.step.id;
        let job = |routes, n_routes, hidden| ExpertJob { step, layer, hidden, routes, n_routes };
        let n_routes = routes.len() / 2;
        let Some(cache) = &mut self.cache else { return Some(job(routes, n_routes, hidden)) };
        if waiting.streams && cache.slots_of_half(layer).is_some() {
            waiting.device_experts = Some(DeviceExperts::Streamed { layer, hidden, routes });
            return None;
        }
        let split = cache.split(layer, routes);
        let Some((segment, routes)) = split.device else {
            return split.host.map(|routes| job(routes, n_routes, hidden));
        };
        let job = split.host.map(|routes| job(routes, n_routes - split.device_routes, hidden.clone()));
        waiting.counts.cached_routes += split.device_routes as u64;
        waiting.device_experts = Some(DeviceExperts::Cached(segment, vec![hidden, routes]));
        job
    }

    /// Computes the parts of a waiting step that the device can compute.
    fn compute_overlapped(&mut self, waiting: &mut Waiting) -> Result<(), EngineError> {
        match waiting.device_experts.take() {
            Some(DeviceExperts::Cached(segment, inputs)) => {
                waiting.routed = self.run_segment(segment, &inputs, waiting)?.values.pop();
            }
            Some(DeviceExperts::Streamed { layer, hidden, routes }) => self.stream(waiting, (layer, hidden, routes))?,
            None => {}
        }
        self.run_overlapped_segment(waiting)?;
        self.upload_experts(waiting)
    }

    fn run_overlapped_segment(&mut self, waiting: &mut Waiting) -> Result<(), EngineError> {
        if let Some((segment, inputs)) = waiting.overlapped.take() {
            let values = self.run_segment(segment, &inputs, waiting)?.values;
            waiting.carried.extend(values);
        }
        Ok(())
    }

    /// Computes all routed experts of a layer, which are streamed to the device.
    fn stream(
        &mut self,
        waiting: &mut Waiting,
        (layer, hidden, routes): (usize, Vec<f32>, Vec<f32>),
    ) -> Result<(), EngineError> {
        let Some(cache) = &mut self.cache else { return Ok(()) };
        let next_layer = Some(layer + 1).filter(|next| *next < self.cuts.len());
        let mut passes = Passes::begin(cache, (layer, routes), next_layer, waiting.prefetched.take())?;
        waiting.counts.cached_routes += passes.cached_routes as u64;
        waiting.counts.streamed_routes += passes.streamed_routes as u64;
        // Runs while the first chunk is being uploaded.
        self.run_overlapped_segment(waiting)?;
        let mut sum = vec![0.0; hidden.len()];
        let mut inputs = vec![hidden, Vec::new()];
        while let Some(cache) = &mut self.cache
            && let Some((segment, routes)) = passes.next(cache)?
        {
            inputs[1] = routes;
            let output = self.run_segment(segment, &inputs, waiting)?.values.pop().unwrap_or_default();
            sum.iter_mut().zip(output).for_each(|(sum, value)| *sum += value);
        }
        waiting.prefetched = passes.prefetched();
        waiting.routed = Some(sum);
        Ok(())
    }

    /// Starts uploads to the cache, unless another step still needs cached experts that may be evicted.
    fn upload_experts(&mut self, waiting: &mut Waiting) -> Result<(), EngineError> {
        let needs_cache = |other: &Waiting| other.device_experts.is_some();
        let Some(cache) = self.cache.as_mut().filter(|_| !self.waiting.values().any(needs_cache)) else {
            return Ok(());
        };
        cache.upload()?;
        let uploaded = cache.take_uploaded();
        waiting.counts.uploads += uploaded.experts;
        waiting.counts.uploaded_bytes += uploaded.bytes;
        Ok(())
    }
}

impl Engine for OffloadedEngine {
    fn limits(&self) -> &EngineLimits {
        &self.limits
    }

    fn begin(&mut self, step: Step) -> Result<Progress, EngineError> {
        let invalid = |reason| EngineError::InvalidStep { step: step.id, reason };
        validate(&step, &self.limits).map_err(invalid)?;
        if self.waiting.contains_key(&step.id) {
            return Err(invalid("a step of this id already waits for experts".to_owned()));
        }
        if step.rows() == 0 {
            return Ok(Progress::Done(StepOutput::empty(step.id)));
        }
        self.waiting.values_mut().for_each(|other| other.is_alone = false);
        let (streams, is_alone) = (self.break_even.should_stream(step.rows()), self.waiting.is_empty());
        let inputs = step.graph_inputs(&self.limits);
        self.run(Waiting { streams, is_alone, ..Waiting::new(step) }, inputs)
    }

    fn run_overlapped(&mut self, step: StepId) -> Result<bool, EngineError> {
        let Some(mut waiting) = self.waiting.remove(&step) else { return Ok(false) };
        let had_work = waiting.device_experts.is_some() || waiting.overlapped.is_some();
        let result = self.compute_overlapped(&mut waiting);
        self.waiting.insert(step, waiting);
        result.map(|()| had_work)
    }

    fn resume(&mut self, result: ExpertResult) -> Result<Progress, EngineError> {
        let invalid = |reason: &str| EngineError::InvalidStep { step: result.step, reason: reason.to_owned() };
        let Some(mut waiting) = self.waiting.remove(&result.step) else {
            return Err(invalid("it does not wait for experts"));
        };
        if result.layer + 1 != waiting.segment {
            return Err(invalid("it waits for the experts of another layer"));
        }
        if waiting.device_experts.is_some() || waiting.overlapped.is_some() {
            self.compute_overlapped(&mut waiting)?;
        }
        let inputs = waiting.inputs(Some(result.output));
        self.run(waiting, inputs)
    }

    fn cost(&self, step: &Step) -> Option<Cost> {
        Some((0..self.stage.segments()).map(|segment| self.stage.cost(segment, step)).sum())
    }

    fn cache_layout(&self) -> Option<CacheLayout> {
        self.cache_layout.clone()
    }

    fn read_units(&mut self, copies: &mut [(CacheUnit, &mut [u8])]) -> Result<(), EngineError> {
        self.stage.read_units(copies)
    }

    fn write_units(&mut self, contents: &[(CacheUnit, &[u8])]) -> Result<(), EngineError> {
        self.stage.write_units(contents)
    }
}
