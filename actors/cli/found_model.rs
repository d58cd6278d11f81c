//! A model of the directory of models.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;

use cuelight_engine::load::LoadOptions;

use super::media::{self, MediaSettings};
use super::model::{GgufModel, recommended_by};
use crate::hub::HubStore;
use crate::models::{ModelFactory, PlanError, PlannedModel};

/// A file or directory of the directory of models. What its publisher recommends is read for each load, because a download may
/// have changed it, and so is its projector file looked for.
pub struct FoundModel {
    /// Where it is in the directory.
    pub link: PathBuf,
    /// How it is loaded.
    pub options: LoadOptions,
    /// How it takes media.
    pub media: MediaSettings,
    /// How often it is loaded.
    pub replicas: NonZeroUsize,
    /// Knows which of the directory's models clients have downloaded.
    pub store: Arc<HubStore>,
}

impl ModelFactory for FoundModel {
    fn plan(&self, limit: Option<u64>) -> Result<PlannedModel, PlanError> {
        let published = self.store.published(&self.link).map_err(|error| PlanError::Unusable(error.to_string()))?;
        let projector = published.projector.clone();
        let options = recommended_by(published, self.options.clone());
        let found = self.media.find(&options, projector).map_err(PlanError::Unusable)?.map(Arc::new);
        let options = media::with_media(options, found.as_deref(), self.replicas);
        GgufModel::new(options, self.replicas).with_media(found).plan(limit)
    }
}
