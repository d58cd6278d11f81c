//! A model whose other parts are on a device, and whose experts are partly computed elsewhere, as an [`Engine`].
//!
//! The graph is cut where those experts stood. A step runs piece by piece: each piece ends with rows and their routes, which
//! go out as an [`ExpertJob`], and the next begins with what comes back. Between pieces nothing of a step is on the device but
//! its keys and values, so that any number of steps can be under way, and one is computed while another waits.
//!
//! While a step's experts are computed elsewhere the device computes what does not need them: experts that every row uses, and
//! those of the step's own that it has in its cache ([`cache`], [`hot_set`]). All of it is added up when the others come back.

mod cache;
mod hot_set;

use std::collections::HashMap;
use std::time::Instant;

pub use self::cache::{ExpertCache, ExpertPool};
use crate::backend::ragged::validate;
use crate::backend::stage::{Stage, StageOutput};
use crate::engine::{
    Engine, EngineError, EngineLimits, ExpertCounts, ExpertJob, ExpertResult, Progress, Step, StepId, StepOutput,
};
use crate::experts::HostExperts;
use crate::graph::Handover;
use crate::profile::{Cost, OpSpan};

/// A model on a device that hands some experts out.
pub struct OffloadedEngine {
    /// Its pieces are those between experts, one more than there are handovers, then what is computed beside experts, and then
    /// the cache's pools.
    stage: Box<dyn Stage>,
    /// Between each piece and the next.
    handovers: Vec<Handover>,
    cache: Option<ExpertCache>,
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
    cached: Option<(usize, Vec<Vec<f32>>)>,
    /// What the device's own experts made.
    routed: Option<Vec<f32>>,
    began: Instant,
    ops: Vec<OpSpan>,
    counts: ExpertCounts,
}

impl Waiting {
    fn new(step: Step) -> Self {
        Waiting {
            step,
            piece: 0,
            carried: Vec::new(),
            beside: None,
            cached: None,
            routed: None,
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
        OffloadedEngine { stage, handovers, cache: None, limits, waiting: HashMap::new() }
    }

    /// The same with a cache of experts on the device, whose pools are pieces of the stage.
    #[must_use]
    pub fn with_cache(self, cache: Option<ExpertCache>) -> Self {
        OffloadedEngine { cache, ..self }
    }

    /// Runs a step until it needs experts from elsewhere.
    fn run(&mut self, mut waiting: Waiting, mut inputs: Vec<Vec<f32>>) -> Result<Progress, EngineError> {
        loop {
            let StageOutput { mut values, chosen, .. } = self.run_piece(waiting.piece, &inputs, &mut waiting)?;
            if waiting.piece == self.handovers.len() {
                return Ok(Progress::Done(StepOutput {
                    id: waiting.step.id,
                    logits: values.pop().unwrap_or_default(),
                    chosen,
                    elapsed: waiting.began.elapsed(),
                    ops: waiting.ops,
                    experts: waiting.counts,
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
        let split = cache.split(layer, routes);
        let Some((piece, routes)) = split.device else { return split.host.map(|routes| job(routes, n_routes, hidden)) };
        let job = split.host.map(|routes| job(routes, n_routes - split.device_routes, hidden.clone()));
        waiting.counts.cached_routes += split.device_routes as u64;
        waiting.cached = Some((piece, vec![hidden, routes]));
        job
    }

    /// Computes what the device can compute of a step that waits.
    fn compute_beside(&mut self, waiting: &mut Waiting) -> Result<(), EngineError> {
        if let Some((piece, inputs)) = waiting.cached.take() {
            waiting.routed = self.run_piece(piece, &inputs, waiting)?.values.pop();
        }
        if let Some((piece, inputs)) = waiting.beside.take() {
            let made = self.run_piece(piece, &inputs, waiting)?.values;
            waiting.carried.extend(made);
        }
        self.bring_experts(waiting)
    }

    /// Brings experts to the device that are ready to come, unless a step still counts on what they drive out.
    fn bring_experts(&mut self, waiting: &mut Waiting) -> Result<(), EngineError> {
        let Some(cache) = self.cache.as_mut().filter(|_| self.waiting.values().all(|other| other.cached.is_none()))
        else {
            return Ok(());
        };
        for arrival in cache.arrivals() {
            self.stage.place_expert(arrival.piece, arrival.place, &arrival.expert)?;
            waiting.counts.uploads += 1;
            waiting.counts.uploaded_bytes += arrival.expert.bytes();
        }
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
        self.run(Waiting::new(step), Vec::new())
    }

    fn work_beside(&mut self, step: StepId) -> Result<bool, EngineError> {
        let Some(mut waiting) = self.waiting.remove(&step) else { return Ok(false) };
        let had_work = waiting.cached.is_some() || waiting.beside.is_some();
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
        if waiting.cached.is_some() || waiting.beside.is_some() {
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
