//! A model whose other parts are on a device, and whose experts are partly computed elsewhere, as an [`Engine`].
//!
//! The graph is cut where those experts stood. A step runs piece by piece: each piece ends with rows and their routes, which
//! go out as an [`ExpertJob`], and the next begins with what comes back. Between pieces nothing of a step is on the device but
//! its keys and values, so that any number of steps can be under way, and one is computed while another waits.
//!
//! While a step's experts are computed elsewhere the device computes what does not need them: experts that every row uses, and
//! those of the step's own that it has in its cache ([`cache`], [`hot_set`]). All of it is added up when the others come back.
//!
//! For a step of many rows nearly every expert is used, and all of them may come to the device ([`stream`]) where that
//! was measured to be faster ([`break_even`]).

mod break_even;
mod cache;
mod hot_set;
mod stream;
mod uploads;

use std::collections::HashMap;
use std::time::Instant;

use self::break_even::BreakEven;
use self::cache::Chunk;
pub use self::cache::{ExpertCache, ExpertPool};
use self::stream::Passes;
use crate::backend::ragged::validate;
use crate::backend::stage::{Stage, StageOutput};
use crate::device::ExpertStreaming;
use crate::engine::{
    Engine, EngineError, EngineLimits, ExpertCounts, ExpertJob, ExpertResult, Progress, Step, StepId, StepOutput,
};
use crate::experts::HostExperts;
use crate::graph::Handover;
use crate::profile::{Cost, OpSpan};

/// A model on a device that hands some experts out.
pub struct OffloadedEngine {
    /// Dropped before the stage: its threads write to it.
    cache: Option<ExpertCache>,
    /// Its pieces are those between experts, one more than there are handovers, then what is computed beside experts, and then
    /// the cache's pools.
    stage: Box<dyn Stage>,
    /// Between each piece and the next.
    handovers: Vec<Handover>,
    break_even: BreakEven,
    limits: EngineLimits,
    waiting: HashMap<StepId, Waiting>,
}

/// A step that waits for experts.
struct Waiting {
    step: Step,
    /// The piece that comes next.
    piece: usize,
    /// What it takes beside the experts' result.
    carried: Vec<Vec<f32>>,
    /// What the device has still to do before, each a piece and what it takes.
    beside: Option<(usize, Vec<Vec<f32>>)>,
    own_experts: Option<OwnExperts>,
    /// What the device's own experts made.
    routed: Option<Vec<f32>>,
    /// Whether all of its experts come to the device.
    streams: bool,
    /// Of those some that were sent for ahead.
    ahead: Option<Chunk>,
    /// Whether no other step was under way meanwhile.
    is_alone: bool,
    began: Instant,
    ops: Vec<OpSpan>,
    counts: ExpertCounts,
}

/// Experts that the device computes.
enum OwnExperts {
    /// Those in its cache: the piece, and what it takes.
    Cached(usize, Vec<Vec<f32>>),
    /// All that the routes [rows, 2 top_k] of a layer name.
    Streamed { layer: usize, hidden: Vec<f32>, routes: Vec<f32> },
}

impl Waiting {
    fn new(step: Step) -> Self {
        Waiting {
            step,
            piece: 0,
            carried: Vec::new(),
            beside: None,
            own_experts: None,
            routed: None,
            streams: false,
            ahead: None,
            is_alone: true,
            began: Instant::now(),
            ops: Vec::new(),
            counts: ExpertCounts::default(),
        }
    }

    /// What the next piece takes, with what experts elsewhere made, if there were any.
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
    /// The engine of a stage that has a piece for each part of a cut graph, and then one for each graph beside.
    #[must_use]
    pub fn new(stage: Box<dyn Stage>, handovers: Vec<Handover>, limits: EngineLimits) -> Self {
        let break_even = BreakEven::new(ExpertStreaming::Off, 0);
        OffloadedEngine { stage, handovers, cache: None, break_even, limits, waiting: HashMap::new() }
    }

    /// The same with room for experts on the device, whose pools are pieces of the stage, and when `bytes` of them come
    /// to it for a long prompt.
    #[must_use]
    pub fn with_cache(self, cache: ExpertCache, streaming: ExpertStreaming, bytes: u64) -> Self {
        OffloadedEngine { cache: Some(cache), break_even: BreakEven::new(streaming, bytes), ..self }
    }

    /// Runs a step until it needs experts from elsewhere.
    fn run(&mut self, mut waiting: Waiting, mut inputs: Vec<Vec<f32>>) -> Result<Progress, EngineError> {
        loop {
            let StageOutput { mut values, chosen, .. } = self.run_piece(waiting.piece, &inputs, &mut waiting)?;
            if waiting.piece == self.handovers.len() {
                if waiting.is_alone {
                    self.break_even.took(waiting.streams, waiting.step.rows(), waiting.began.elapsed());
                }
                return Ok(Progress::Done(StepOutput {
                    id: waiting.step.id,
                    logits: values.pop().unwrap_or_default(),
                    chosen,
                    elapsed: waiting.began.elapsed(),
                    ops: waiting.ops,
                    experts: waiting.counts,
                    bulk_rows: self.break_even.streams_from(),
                }));
            }
            if let Some(job) = self.hand_over(&mut waiting, values) {
                self.waiting.insert(job.step, waiting);
                return Ok(Progress::AwaitExperts(job));
            }
            self.compute_beside(&mut waiting)?;
            inputs = waiting.inputs(None);
        }
    }

    /// Runs a piece, and takes note of what its ops took.
    fn run_piece(
        &mut self,
        piece: usize,
        inputs: &[Vec<f32>],
        waiting: &mut Waiting,
    ) -> Result<StageOutput, EngineError> {
        let before = waiting.began.elapsed();
        let mut output = self.stage.run(piece, &waiting.step, inputs)?;
        waiting.ops.extend(output.ops.drain(..).map(|op| OpSpan { start: op.start + before, ..op }));
        Ok(output)
    }

    /// Divides what a piece gave: for the next piece, for what is computed beside, for the cache, and for whoever computes
    /// the other experts, if they are needed.
    fn hand_over(&mut self, waiting: &mut Waiting, mut values: Vec<Vec<f32>>) -> Option<ExpertJob> {
        let handover = &self.handovers[waiting.piece];
        let layer = waiting.piece;
        waiting.piece += 1;
        let [hidden, routes] = [handover.inputs[0], handover.inputs[1]];
        waiting.beside = handover.beside.as_ref().map(|beside| {
            let inputs = beside.inputs.iter().map(|input| values[*input].clone()).collect();
            (self.handovers.len() + 1 + beside.graph, inputs)
        });
        // What also goes on is copied.
        let mut take = |index: usize| {
            if handover.carried.contains(&index) { values[index].clone() } else { std::mem::take(&mut values[index]) }
        };
        let (hidden, routes) = (take(hidden), take(routes));
        waiting.carried = handover.carried.iter().map(|carried| std::mem::take(&mut values[*carried])).collect();
        let step = waiting.step.id;
        let job = |routes, n_routes, hidden| ExpertJob { step, layer, hidden, routes, n_routes };
        let n_routes = routes.len() / 2;
        let Some(cache) = &mut self.cache else { return Some(job(routes, n_routes, hidden)) };
        if waiting.streams && cache.places_of_half(layer).is_some() {
            waiting.own_experts = Some(OwnExperts::Streamed { layer, hidden, routes });
            return None;
        }
        let split = cache.split(layer, routes);
        let Some((piece, routes)) = split.device else { return split.host.map(|routes| job(routes, n_routes, hidden)) };
        let job = split.host.map(|routes| job(routes, n_routes - split.device_routes, hidden.clone()));
        waiting.counts.cached_routes += split.device_routes as u64;
        waiting.own_experts = Some(OwnExperts::Cached(piece, vec![hidden, routes]));
        job
    }

    /// Computes what the device can compute of a step that waits.
    fn compute_beside(&mut self, waiting: &mut Waiting) -> Result<(), EngineError> {
        match waiting.own_experts.take() {
            Some(OwnExperts::Cached(piece, inputs)) => {
                waiting.routed = self.run_piece(piece, &inputs, waiting)?.values.pop();
            }
            Some(OwnExperts::Streamed { layer, hidden, routes }) => self.stream(waiting, (layer, hidden, routes))?,
            None => {}
        }
        self.compute_what_all_rows_use(waiting)?;
        self.bring_experts(waiting)
    }

    fn compute_what_all_rows_use(&mut self, waiting: &mut Waiting) -> Result<(), EngineError> {
        if let Some((piece, inputs)) = waiting.beside.take() {
            let made = self.run_piece(piece, &inputs, waiting)?.values;
            waiting.carried.extend(made);
        }
        Ok(())
    }

    /// Computes all routed experts of a layer, which come to the device for it.
    fn stream(
        &mut self,
        waiting: &mut Waiting,
        (layer, hidden, routes): (usize, Vec<f32>, Vec<f32>),
    ) -> Result<(), EngineError> {
        let Some(cache) = &mut self.cache else { return Ok(()) };
        let next_layer = Some(layer + 1).filter(|next| *next < self.handovers.len());
        let mut passes = Passes::begin(cache, (layer, routes), next_layer, waiting.ahead.take())?;
        waiting.counts.cached_routes += passes.cached_routes as u64;
        waiting.counts.streamed_routes += passes.streamed_routes as u64;
        // While the first are on their way.
        self.compute_what_all_rows_use(waiting)?;
        let mut sum = vec![0.0; hidden.len()];
        let mut inputs = vec![hidden, Vec::new()];
        while let Some(cache) = &mut self.cache
            && let Some((piece, routes)) = passes.next(cache)?
        {
            inputs[1] = routes;
            let made = self.run_piece(piece, &inputs, waiting)?.values.pop().unwrap_or_default();
            sum.iter_mut().zip(made).for_each(|(sum, value)| *sum += value);
        }
        waiting.ahead = passes.ahead();
        waiting.routed = Some(sum);
        Ok(())
    }

    /// Lets experts come to the cache, unless a step still counts on what they drive out.
    fn bring_experts(&mut self, waiting: &mut Waiting) -> Result<(), EngineError> {
        let counts_on_it = |other: &Waiting| other.own_experts.is_some();
        let Some(cache) = self.cache.as_mut().filter(|_| !self.waiting.values().any(counts_on_it)) else {
            return Ok(());
        };
        cache.bring()?;
        let brought = cache.brought();
        waiting.counts.uploads += brought.experts;
        waiting.counts.uploaded_bytes += brought.bytes;
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
            return Err(invalid("a step of this number waits for experts".to_owned()));
        }
        if step.rows() == 0 {
            return Ok(Progress::Done(StepOutput::empty(step.id)));
        }
        self.waiting.values_mut().for_each(|other| other.is_alone = false);
        let (streams, is_alone) = (self.break_even.streams(step.rows()), self.waiting.is_empty());
        self.run(Waiting { streams, is_alone, ..Waiting::new(step) }, Vec::new())
    }

    fn work_beside(&mut self, step: StepId) -> Result<bool, EngineError> {
        let Some(mut waiting) = self.waiting.remove(&step) else { return Ok(false) };
        let had_work = waiting.own_experts.is_some() || waiting.beside.is_some();
        let result = self.compute_beside(&mut waiting);
        self.waiting.insert(step, waiting);
        result.map(|()| had_work)
    }

    fn resume(&mut self, result: ExpertResult) -> Result<Progress, EngineError> {
        let invalid = |reason: &str| EngineError::InvalidStep { step: result.step, reason: reason.to_owned() };
        let Some(mut waiting) = self.waiting.remove(&result.step) else {
            return Err(invalid("it does not wait for experts"));
        };
        if result.layer + 1 != waiting.piece {
            return Err(invalid("it waits for the experts of another layer"));
        }
        if waiting.own_experts.is_some() || waiting.beside.is_some() {
            self.compute_beside(&mut waiting)?;
        }
        let inputs = waiting.inputs(Some(result.output));
        self.run(waiting, inputs)
    }

    fn cost(&self, step: &Step) -> Option<Cost> {
        Some(self.stage.cost(step))
    }
}

/// An engine that computes the experts itself when a step needs them: for whoever has no actor to hand them to.
pub struct WithExperts<E> {
    engine: E,
    experts: HostExperts,
}

impl<E: Engine> WithExperts<E> {
    /// The engine and the experts that it hands out.
    #[must_use]
    pub fn new(engine: E, experts: HostExperts) -> Self {
        WithExperts { engine, experts }
    }

    fn finish(&mut self, mut progress: Progress) -> Result<Progress, EngineError> {
        while let Progress::AwaitExperts(job) = progress {
            self.engine.work_beside(job.step)?;
            let invalid = |reason: String| EngineError::InvalidStep { step: job.step, reason };
            let result = self.experts.compute(&job).map_err(|error| invalid(error.to_string()))?;
            progress = self.engine.resume(result)?;
        }
        Ok(progress)
    }
}

impl<E: Engine> Engine for WithExperts<E> {
    fn limits(&self) -> &EngineLimits {
        self.engine.limits()
    }

    fn begin(&mut self, step: Step) -> Result<Progress, EngineError> {
        let progress = self.engine.begin(step)?;
        self.finish(progress)
    }

    fn work_beside(&mut self, step: StepId) -> Result<bool, EngineError> {
        self.engine.work_beside(step)
    }

    fn resume(&mut self, result: ExpertResult) -> Result<Progress, EngineError> {
        let progress = self.engine.resume(result)?;
        self.finish(progress)
    }

    fn cost(&self, step: &Step) -> Option<Cost> {
        self.engine.cost(step)
    }
}
