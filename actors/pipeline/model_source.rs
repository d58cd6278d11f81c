//! Where a pipeline's model comes from and where its engine runs.

use std::sync::Arc;

use cuelight_engine::engine::Engine;
use cuelight_engine::load::{LoadCancel, LoadError, LoadProgress, LoadedModel};
use cuelight_engine::projector::{MediaEncoder, MediaPreparation};

use super::adapters::Adapters;

/// Loads a model, any number of times.
///
/// Every load must give the same model: after a fault the sequences of the old engine continue on the new one.
pub trait ModelSource: Send + Sync + 'static {
    /// The engine that computes the model.
    type Engine: Engine;

    /// Loads the model and reports progress. Blocks. Ends soon after it is cancelled.
    ///
    /// # Errors
    /// [`SourceError`] when the model cannot be loaded, or must not be loaded again.
    fn load(
        &self,
        cancel: &LoadCancel,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<LoadedModel<Self::Engine>, SourceError>;

    /// The adapters of the model; `None` for a model without adapters.
    fn adapters(&self) -> Option<Arc<Adapters>> {
        None
    }

    /// The model that drafts tokens for this one, if any.
    fn draft_model(&self) -> Option<Arc<dyn DraftModel>> {
        None
    }

    /// What computes the media of its prompts; `None` for a model that takes none.
    fn media_model(&self) -> Option<Arc<dyn MediaModel>> {
        None
    }

    /// What identifies the content of a model without files: no other content has this name.
    fn content(&self) -> Option<String> {
        None
    }

    /// Where the engine runs.
    fn host(&self) -> EngineHost {
        EngineHost::Thread
    }
}

/// Loads a draft model, any number of times.
pub trait DraftModel: Send + Sync {
    /// Loads the draft model. Blocks. Ends soon after it is cancelled.
    ///
    /// # Errors
    /// [`SourceError`] when it cannot be loaded.
    fn load(&self, cancel: &LoadCancel) -> Result<Box<dyn Engine>, SourceError>;
}

/// Prepares media and loads the encoder that computes their rows, any number of times.
pub trait MediaModel: Send + Sync {
    /// Turns media into what the encoder takes.
    fn preparation(&self) -> MediaPreparation;

    /// Loads the encoder. Blocks. Ends soon after it is cancelled.
    ///
    /// # Errors
    /// [`SourceError`] when it cannot be loaded, or must not be loaded again.
    fn load(&self, cancel: &LoadCancel) -> Result<Box<dyn MediaEncoder>, SourceError>;
}

/// Why a model is not loaded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SourceError {
    /// It cannot be loaded now. The text names the file, the problem, and what helps.
    #[error("{0}")]
    Failed(String),
    /// Its file changed, so that another load would give another model. The text names the file.
    #[error("{0}")]
    Changed(String),
    /// The load was cancelled.
    #[error("the load was cancelled")]
    Cancelled,
}

impl SourceError {
    /// Why a load failed; `explain` makes the message.
    pub fn of_load(error: &LoadError, explain: impl FnOnce(&LoadError) -> String) -> Self {
        match error {
            LoadError::FileChanged(change) => SourceError::Changed(change.to_string()),
            error if error.is_cancelled() => SourceError::Cancelled,
            error => SourceError::Failed(explain(error)),
        }
    }
}

impl From<String> for SourceError {
    fn from(reason: String) -> Self {
        SourceError::Failed(reason)
    }
}

/// Where an engine runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EngineHost {
    /// On its own OS thread, which it may block.
    Thread,
    /// In the executor actor, for an engine that computes almost nothing and only reports how long a step would take.
    /// That time passes on tokio's clock, so a test with a paused clock is repeatable.
    VirtualTime,
}
