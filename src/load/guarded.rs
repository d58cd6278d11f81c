//! An engine whose results are used only while its model files are unchanged.

use crate::engine::{CacheLayout, CacheUnit, Engine, EngineError, EngineLimits, ExpertResult, Progress, Step, StepId};
use crate::mapped_file::ModelFiles;
use crate::profile::Cost;

/// An engine that computes with mapped files. It checks them after each part of a step, before the results are given out, so
/// that no result depends on bytes that changed.
pub(super) struct GuardedEngine {
    pub engine: Box<dyn Engine>,
    pub files: ModelFiles,
}

impl GuardedEngine {
    fn checked<T>(&self, result: Result<T, EngineError>) -> Result<T, EngineError> {
        self.files.check().map_err(EngineError::FileChanged)?;
        result
    }
}

impl Engine for GuardedEngine {
    fn limits(&self) -> &EngineLimits {
        self.engine.limits()
    }

    fn begin(&mut self, step: Step) -> Result<Progress, EngineError> {
        let result = self.engine.begin(step);
        self.checked(result)
    }

    fn run_overlapped(&mut self, step: StepId) -> Result<bool, EngineError> {
        let result = self.engine.run_overlapped(step);
        self.checked(result)
    }

    fn resume(&mut self, result: ExpertResult) -> Result<Progress, EngineError> {
        let result = self.engine.resume(result);
        self.checked(result)
    }

    fn cost(&self, step: &Step) -> Option<Cost> {
        self.engine.cost(step)
    }

    fn cache_layout(&self) -> Option<CacheLayout> {
        self.engine.cache_layout()
    }

    fn read_units(&mut self, copies: &mut [(CacheUnit, &mut [u8])]) -> Result<(), EngineError> {
        let result = self.engine.read_units(copies);
        self.checked(result)
    }

    fn write_units(&mut self, contents: &[(CacheUnit, &[u8])]) -> Result<(), EngineError> {
        self.engine.write_units(contents)
    }
}
