//! A planned model file, which is loaded by its plan and, after a fault, loaded again in the same size.

use std::sync::Mutex;

use cuelight_engine::engine::Engine;
use cuelight_engine::load::{
    self, LoadCancel, LoadError, LoadOptions, LoadPlan, LoadProgress, LoadedModel, ModelFiles,
};

use super::model_source::{ModelSource, SourceError};
use crate::core::error_chain::error_chain;

/// A planned file that one actor tree loads, and loads again after its executor was lost.
pub struct PlannedFile {
    options: LoadOptions,
    /// The plan for the first load. Later loads make their own.
    first: Mutex<Option<LoadPlan>>,
    /// The files of the first plan. Later loads must find the same.
    files: ModelFiles,
}

impl PlannedFile {
    /// The file of a plan.
    #[must_use]
    pub fn new(plan: LoadPlan) -> Self {
        let memory = plan.memory();
        // Keep the sizes for later loads: a plan made while the first load still holds memory would be smaller.
        let (context_tokens, kv_bytes) = (Some(memory.context_tokens), Some(memory.used.kv));
        let state_bytes = Some(memory.used.state).filter(|bytes| *bytes > 0);
        let options = LoadOptions { context_tokens, kv_bytes, state_bytes, ..plan.options().clone() };
        PlannedFile { options, files: plan.files().clone(), first: Mutex::new(Some(plan)) }
    }

    /// The plan, the first time.
    pub fn take_plan(&self) -> Option<LoadPlan> {
        self.first.lock().ok().and_then(|mut first| first.take())
    }

    /// Loads the model after the first time.
    ///
    /// # Errors
    /// [`LoadError`], in particular when the files are no longer the same.
    pub fn load_again(
        &self,
        cancel: &LoadCancel,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<LoadedModel<Box<dyn Engine>>, LoadError> {
        self.files.check_paths()?;
        let plan = load::plan(&self.options)?;
        // The files that the plan has opened were at these paths, unless they are changing now.
        self.files.check_paths()?;
        plan.load_cancellable(cancel, progress)
    }
}

impl ModelSource for PlannedFile {
    type Engine = Box<dyn Engine>;

    fn load(
        &self,
        cancel: &LoadCancel,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<LoadedModel<Box<dyn Engine>>, SourceError> {
        let loaded = match self.take_plan() {
            Some(plan) => plan.load_cancellable(cancel, progress),
            None => self.load_again(cancel, progress),
        };
        loaded.map_err(|error| SourceError::of_load(&error, |error| error_chain(error)))
    }
}
