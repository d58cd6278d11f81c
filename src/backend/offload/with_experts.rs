//! An engine that computes its experts itself.

use crate::engine::{Engine, EngineError, ExpertResult, Progress, Step, WrapsEngine};
use crate::experts::HostExperts;

/// An engine that computes the experts itself when a step needs them, for callers without an actor that computes them.
pub struct WithExperts<E> {
    engine: E,
    experts: HostExperts,
}

impl<E: Engine> WithExperts<E> {
    /// Combines an engine with the experts that it does not compute.
    #[must_use]
    pub fn new(engine: E, experts: HostExperts) -> Self {
        WithExperts { engine, experts }
    }

    fn finish(&mut self, mut progress: Progress) -> Result<Progress, EngineError> {
        while let Progress::AwaitExperts(job) = progress {
            self.engine.run_overlapped(job.step)?;
            let invalid = |reason: String| EngineError::InvalidStep { step: job.step, reason };
            let result = self.experts.compute(&job).map_err(|error| invalid(error.to_string()))?;
            progress = self.engine.resume(result)?;
        }
        Ok(progress)
    }
}

impl<E: Engine> WrapsEngine for WithExperts<E> {
    type Inner = E;

    fn inner(&self) -> &E {
        &self.engine
    }

    fn inner_mut(&mut self) -> &mut E {
        &mut self.engine
    }

    fn begin(&mut self, step: Step) -> Result<Progress, EngineError> {
        let progress = self.engine.begin(step)?;
        self.finish(progress)
    }

    fn resume(&mut self, result: ExpertResult) -> Result<Progress, EngineError> {
        let progress = self.engine.resume(result)?;
        self.finish(progress)
    }
}
