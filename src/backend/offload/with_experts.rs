//! An engine that computes its experts itself.

use crate::engine::{CacheLayout, CacheUnit, Engine, EngineError, EngineLimits, ExpertResult, Progress, Step, StepId};
use crate::experts::HostExperts;
use crate::profile::Cost;

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

impl<E: Engine> Engine for WithExperts<E> {
    fn limits(&self) -> &EngineLimits {
        self.engine.limits()
    }

    fn begin(&mut self, step: Step) -> Result<Progress, EngineError> {
        let progress = self.engine.begin(step)?;
        self.finish(progress)
    }

    fn run_overlapped(&mut self, step: StepId) -> Result<bool, EngineError> {
        self.engine.run_overlapped(step)
    }

    fn resume(&mut self, result: ExpertResult) -> Result<Progress, EngineError> {
        let progress = self.engine.resume(result)?;
        self.finish(progress)
    }

    fn cost(&self, step: &Step) -> Option<Cost> {
        self.engine.cost(step)
    }

    fn cache_layout(&self) -> Option<CacheLayout> {
        self.engine.cache_layout()
    }

    fn read_units(&mut self, copies: &mut [(CacheUnit, &mut [u8])]) -> Result<(), EngineError> {
        self.engine.read_units(copies)
    }

    fn write_units(&mut self, contents: &[(CacheUnit, &[u8])]) -> Result<(), EngineError> {
        self.engine.write_units(contents)
    }
}
