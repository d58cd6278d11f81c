//! The plan of a vision tower: what its headers say, before its memory is reserved.

use std::sync::Arc;

use cuelight_shaders::attention::KvShape;
use cuelight_shaders::layer_state::LayerState;

use super::ImagePreparation;
use super::encoder::{TileShape, VisionEncoder};
use super::family::{self, Family};
use super::preparation::Preparation;
use super::sizes::TowerSizes;
use super::tower::{TowerBuilder, block_sizes, has_class_token, place_table};
use crate::cancel::LoadCancel;
use crate::checkpoint::Checkpoint;
use crate::graph::Graph;
use crate::load::LoadError;
use crate::media::MediaKind;
use crate::model::builder::BuildError;
use crate::model::weights::Weights;
use crate::tower::error::TowerError;
use crate::tower::head::{self, HeadOptions};
use crate::tower::plan::{TowerNeeds, TowerPlan};
use crate::tower::{TowerOptions, file};

/// A vision tower whose headers are read.
pub struct VisionPlan {
    preparation: Arc<Preparation>,
    tower: TowerPlan,
    shape: TileShape,
    description: String,
}

/// Reads the headers of a vision tower. Of its weights only small ones are read.
///
/// # Errors
/// [`LoadError`] when the file is not a vision tower that can be computed on this device.
pub fn plan(options: &TowerOptions) -> Result<VisionPlan, LoadError> {
    plan_of_file(&*file::open(&options.path, options.copy.as_deref())?, options)
}

/// As [`plan`], of an open file.
///
/// # Errors
/// As [`plan`].
pub fn plan_of_file(file: &dyn Checkpoint, options: &TowerOptions) -> Result<VisionPlan, LoadError> {
    let family = family_of(file)?;
    let sizes = TowerSizes::read(file, family)?;
    let Built { graphs, shape, width, kv } = build(file, family, &sizes).map_err(|error| error.in_file(file))?;
    let needs = TowerNeeds { state: LayerState::of_kv(kv), limits: shape.limits(), host_bytes: shape.host_bytes() };
    let side = sizes.image();
    Ok(VisionPlan {
        preparation: Arc::new(Preparation::new(family, &sizes, width)),
        tower: TowerPlan::new(file, options, graphs, needs)?,
        shape,
        description: format!("{}, {} layers, {side} x {side}", family.tower, sizes.layers),
    })
}

/// The family of a file.
fn family_of(file: &dyn Checkpoint) -> Result<&'static Family, LoadError> {
    let found = file::projector(file, MediaKind::Image)?;
    family::of(&found).ok_or_else(|| {
        let (path, kind) = (file.path().display().to_string(), MediaKind::Image.several());
        TowerError::UnknownProjector { file: path, kind, found, known: family::known() }.into()
    })
}

/// The graphs of a tower.
struct Built {
    /// Those of the tower's segments, of the projector, and of the projectors of deep layers.
    graphs: Vec<Graph>,
    shape: TileShape,
    /// Values of an embedding row.
    width: usize,
    /// The keys and values of a layer.
    kv: KvShape,
}

fn build(file: &dyn Checkpoint, family: &'static Family, sizes: &TowerSizes) -> Result<Built, BuildError> {
    let mut weights = Weights::new(file);
    let mut shape = TileShape::new(sizes, family, usize::from(has_class_token(&weights)));
    shape.table = place_table(&mut weights, family, sizes, shape.longest_side())?;
    let (mut graphs, mut width) = (Vec::new(), 0);
    for segment in TowerBuilder::new(&mut weights, sizes, family)?.build()? {
        shape.segments.push(segment.kind);
        graphs.push(segment.graph);
    }
    let deep = sizes.deep_layers.iter().map(|layer| (format!("v.deepstack.{layer}."), family.deep_head));
    let options = HeadOptions { epsilon: sizes.epsilon, gate: sizes.activation.silu_gate() };
    for (prefix, ops) in [(String::new(), family.head)].into_iter().chain(deep) {
        let head = head::build(&mut weights, (&prefix, ops), &shape.merged, options)?;
        width += head.output().map_or(0, |output| head.width(output));
        graphs.push(head);
    }
    let kv = if family.has_layers { block_sizes(sizes, family)?.kv() } else { KvShape::NONE };
    Ok(Built { graphs, shape, width, kv })
}

impl VisionPlan {
    /// Turns images into what the encoder takes.
    #[must_use]
    pub fn preparation(&self) -> Arc<dyn ImagePreparation> {
        Arc::clone(&self.preparation) as _
    }

    /// Its memory.
    #[must_use]
    pub fn tower(&self) -> &TowerPlan {
        &self.tower
    }

    /// The tower for people: "SigLIP, 27 layers, 896 x 896".
    #[must_use]
    pub fn describe(&self) -> String {
        self.description.clone()
    }

    /// Loads the weights and reserves the working memory.
    ///
    /// # Errors
    /// [`LoadError`] when the device fails, the file has changed, or the load was cancelled.
    pub fn load(self, cancel: &LoadCancel) -> Result<VisionEncoder, LoadError> {
        let files = self.tower.files();
        Ok(VisionEncoder::new(self.tower.load(cancel)?, self.shape, files))
    }
}
