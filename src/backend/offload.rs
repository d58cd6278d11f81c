//! A model whose other parts are on a device, and whose experts are partly computed elsewhere, as an [`Engine`].
//!
//! The graph is cut where those experts stood. A step runs piece by piece: each piece ends with rows and their routes, which
//! go out as an [`ExpertJob`], and the next begins with what comes back. Between pieces nothing of a step is on the device but
//! its keys and values, so that any number of steps can be under way, and one is computed while another waits.

use std::collections::HashMap;
use std::time::Instant;

use crate::backend::ragged::validate;
use crate::backend::stage::{Stage, StageOutput};
use crate::engine::{Engine, EngineError, EngineLimits, ExpertJob, ExpertResult, Progress, Step, StepId, StepOutput};
use crate::experts::HostExperts;
use crate::graph::Handover;
use crate::profile::{Cost, OpSpan};

/// A model on a device that hands some experts out.
pub struct OffloadedEngine {
    stage: Box<dyn Stage>,
    /// Between each piece and the next.
    handovers: Vec<Handover>,
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
    began: Instant,
    ops: Vec<OpSpan>,
}

impl OffloadedEngine {
    /// The engine of a stage that has one piece more than there are handovers.
    #[must_use]
    pub fn new(stage: Box<dyn Stage>, handovers: Vec<Handover>, limits: EngineLimits) -> Self {
        OffloadedEngine { stage, handovers, limits, waiting: HashMap::new() }
    }

    /// Runs the next piece of a step.
    fn run(&mut self, mut waiting: Waiting, inputs: &[Vec<f32>]) -> Result<Progress, EngineError> {
        let before = waiting.began.elapsed();
        let StageOutput { mut values, chosen, ops } = self.stage.run(waiting.piece, &waiting.step, inputs)?;
        waiting.ops.extend(ops.into_iter().map(|op| OpSpan { start: op.start + before, ..op }));
        let id = waiting.step.id;
        let Some(handover) = self.handovers.get(waiting.piece) else {
            let logits = values.pop().unwrap_or_default();
            let elapsed = waiting.began.elapsed();
            return Ok(Progress::Done(StepOutput { id, logits, chosen, elapsed, ops: waiting.ops }));
        };
        let layer = waiting.piece;
        let mut input = |index: usize| {
            let given = handover.inputs[index];
            // What also goes on is copied.
            if handover.carried.contains(&given) { values[given].clone() } else { std::mem::take(&mut values[given]) }
        };
        let (hidden, routes) = (input(0), input(1));
        waiting.carried = handover.carried.iter().map(|carried| std::mem::take(&mut values[*carried])).collect();
        waiting.piece += 1;
        self.waiting.insert(id, waiting);
        Ok(Progress::AwaitExperts(ExpertJob { step: id, layer, hidden, routes }))
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
        let began = Instant::now();
        if step.rows() == 0 {
            let (id, elapsed) = (step.id, began.elapsed());
            return Ok(Progress::Done(StepOutput {
                id,
                logits: Vec::new(),
                chosen: Vec::new(),
                elapsed,
                ops: Vec::new(),
            }));
        }
        let (carried, ops) = (Vec::new(), Vec::new());
        self.run(Waiting { step, piece: 0, carried, began, ops }, &[])
    }

    fn resume(&mut self, result: ExpertResult) -> Result<Progress, EngineError> {
        let invalid = |reason: &str| EngineError::InvalidStep { step: result.step, reason: reason.to_owned() };
        let Some(mut waiting) = self.waiting.remove(&result.step) else {
            return Err(invalid("it does not wait for experts"));
        };
        if result.layer + 1 != waiting.piece {
            return Err(invalid("it waits for the experts of another layer"));
        }
        let mut inputs = std::mem::take(&mut waiting.carried);
        inputs.push(result.output);
        self.run(waiting, &inputs)
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

    fn resume(&mut self, result: ExpertResult) -> Result<Progress, EngineError> {
        let progress = self.engine.resume(result)?;
        self.finish(progress)
    }

    fn cost(&self, step: &Step) -> Option<Cost> {
        self.engine.cost(step)
    }
}
