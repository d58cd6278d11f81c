//! The plan of an audio encoder: what its headers say, before its memory is reserved.

use std::sync::Arc;

use super::family::{self, Family};
use super::preparation::Preparation;
use super::sizes::AudioSizes;
use super::tower;
use super::{AudioEncoder, AudioPreparation};
use crate::cancel::LoadCancel;
use crate::checkpoint::Checkpoint;
use crate::load::LoadError;
use crate::media::MediaKind;
use crate::model::weights::Weights;
use crate::tower::error::TowerError;
use crate::tower::plan::{TowerNeeds, TowerPlan};
use crate::tower::{TowerOptions, file};

/// An audio encoder whose headers are read.
pub struct AudioPlan {
    preparation: Arc<Preparation>,
    tower: TowerPlan,
    sizes: AudioSizes,
    description: String,
}

/// Reads the headers of the audio encoder of an open file.
///
/// # Errors
/// [`LoadError`] when the file has no audio encoder that can be computed on this device.
pub fn plan_of_file(file: &dyn Checkpoint, options: &TowerOptions) -> Result<AudioPlan, LoadError> {
    let family = family_of(file)?;
    let sizes = AudioSizes::read(file, family)?;
    let graphs = tower::build(&mut Weights::new(file), family, &sizes).map_err(|error| error.in_file(file))?;
    let head = graphs.last();
    let width = head.and_then(|head| Some(head.width(head.output()?))).unwrap_or(0);
    let needs = TowerNeeds { state: sizes.state(), limits: sizes.limits(), host_bytes: sizes.host_bytes() };
    Ok(AudioPlan {
        preparation: Arc::new(Preparation::new(family, &sizes, width)),
        tower: TowerPlan::new(file, options, graphs, needs)?,
        description: format!("{}, {} layers, {} mel bins", family.tower, sizes.layers, sizes.bins),
        sizes,
    })
}

/// The family of a file.
fn family_of(file: &dyn Checkpoint) -> Result<&'static Family, LoadError> {
    let found = file::projector(file, MediaKind::Audio)?;
    family::of(&found).ok_or_else(|| {
        let (path, kind) = (file.path().display().to_string(), MediaKind::Audio.several());
        TowerError::UnknownProjector { file: path, kind, found, known: family::known() }.into()
    })
}

impl AudioPlan {
    /// Turns audio into what the encoder takes.
    #[must_use]
    pub fn preparation(&self) -> Arc<dyn AudioPreparation> {
        Arc::clone(&self.preparation) as _
    }

    /// Its memory.
    #[must_use]
    pub fn tower(&self) -> &TowerPlan {
        &self.tower
    }

    /// The encoder for people: "Whisper, 32 layers, 128 mel bins".
    #[must_use]
    pub fn describe(&self) -> String {
        self.description.clone()
    }

    /// Loads the weights and reserves the working memory.
    ///
    /// # Errors
    /// [`LoadError`] when the device fails, the file has changed, or the load was cancelled.
    pub fn load(self, cancel: &LoadCancel) -> Result<AudioEncoder, LoadError> {
        let files = self.tower.files();
        Ok(AudioEncoder::new(self.tower.load(cancel)?, self.sizes, files))
    }
}
