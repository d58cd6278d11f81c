//! An engine whose results are used only while its model files are unchanged.

use crate::engine::{CacheUnit, Engine, EngineError, ExpertResult, Progress, Step, StepId, WrapsEngine};
use crate::mapped_file::ModelFiles;

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

impl WrapsEngine for GuardedEngine {
    type Inner = dyn Engine;

    fn inner(&self) -> &dyn Engine {
        &*self.engine
    }

    fn inner_mut(&mut self) -> &mut dyn Engine {
        &mut *self.engine
    }

    fn begin(&mut self, step: Step) -> Result<Progress, EngineError> {
        let result = self.inner_mut().begin(step);
        self.checked(result)
    }

    fn run_overlapped(&mut self, step: StepId) -> Result<bool, EngineError> {
        let result = self.inner_mut().run_overlapped(step);
        self.checked(result)
    }

    fn resume(&mut self, result: ExpertResult) -> Result<Progress, EngineError> {
        let result = self.inner_mut().resume(result);
        self.checked(result)
    }

    fn read_units(&mut self, copies: &mut [(CacheUnit, &mut [u8])]) -> Result<(), EngineError> {
        let result = self.inner_mut().read_units(copies);
        self.checked(result)
    }
}
