//! A model of the directory of models.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;

use cuelight_engine::load::LoadOptions;

use super::model::{GgufModel, recommended_by};
use crate::hub::HubStore;
use crate::models::{ModelFactory, PlanError, PlannedModel};

/// A file or directory of the directory of models. What its publisher recommends is read for each load, because a download may
/// have changed it.
pub struct FoundModel {
    /// Where it is in the directory.
    pub link: PathBuf,
    /// How it is loaded.
    pub options: LoadOptions,
    /// How often it is loaded.
    pub replicas: NonZeroUsize,
    /// Knows which of the directory's models clients have downloaded.
    pub store: Arc<HubStore>,
}

impl ModelFactory for FoundModel {
    fn plan(&self, limit: Option<u64>) -> Result<PlannedModel, PlanError> {
        let published = self.store.published(&self.link).map_err(|error| PlanError::Unusable(error.to_string()))?;
        GgufModel::new(recommended_by(published, self.options.clone()), self.replicas).plan(limit)
    }
}
