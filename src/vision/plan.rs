//! The plan of a vision tower: what its headers say, before its memory is reserved.

use std::path::Path;
use std::sync::Arc;

use cuelight_shaders::attention::KvType;
use cuelight_shaders::layer_state::LayerState;

use super::encoder::{TileShape, TowerEncoder};
use super::error::VisionError;
use super::family::{self, Family};
use super::head;
use super::preparation::Preparation;
use super::sizes::TowerSizes;
use super::tower::{TowerBuilder, has_class_token, kv_shape, stretched_table};
use super::{ImageEncoder, ImagePreparation, VisionOptions};
use crate::cancel::LoadCancel;
use crate::checkpoint::{Checkpoint, OpenError};
use crate::format::gguf::Gguf;
use crate::format::hugging_face::Directory;
use crate::graph::Graph;
use crate::load::{LoadError, LoadOptions, ModelPart, Target};
use crate::mapped_file::ModelFiles;
use crate::model::builder::BuildError;
use crate::model::weights::Weights;

/// A vision tower whose headers are read.
pub struct VisionPlan {
    preparation: Arc<Preparation>,
    part: ModelPart,
    shape: TileShape,
    options: LoadOptions,
    files: ModelFiles,
    description: String,
}

/// Reads the headers of a vision tower. Of its weights only small ones are read.
///
/// # Errors
/// [`LoadError`] when the file is not a vision tower that can be computed on this device.
pub fn plan(options: &VisionOptions) -> Result<VisionPlan, LoadError> {
    let file = open(&options.path)?;
    let family = family_of(&*file)?;
    let sizes = TowerSizes::read(&*file, family)?;
    let built = build(&*file, family, &sizes).map_err(|error| error.in_file(&*file))?;
    let options = load_options(options);
    let target = Target::find(options.device.0[0], &options)?;
    let graphs = built.graphs.into_iter().map(|graph| target.fuse(graph)).collect();
    let states = vec![LayerState::of_kv(kv_shape(&sizes))];
    let mut part = ModelPart { target, graphs, states, weights_bytes: 0 };
    part.count_weights();
    let side = sizes.image();
    Ok(VisionPlan {
        preparation: Arc::new(Preparation::new(family, &sizes, built.width)),
        part,
        shape: built.shape,
        options,
        files: file.files().clone(),
        description: format!("{}, {} layers, {side} x {side}", family.tower, sizes.layers),
    })
}

/// A file, or the tower of a directory.
fn open(path: &Path) -> Result<Box<dyn Checkpoint>, OpenError> {
    if path.is_dir() { Ok(Box::new(Directory::open_vision_tower(path)?)) } else { Ok(Box::new(Gguf::open(path)?)) }
}

/// The family of a file.
fn family_of(file: &dyn Checkpoint) -> Result<&'static Family, LoadError> {
    let name = || file.path().display().to_string();
    let architecture = file.str("general.architecture")?;
    if architecture != "clip" {
        return Err(VisionError::NotVision { file: name(), found: architecture.to_owned() }.into());
    }
    let stated = match file.optional_str("clip.projector_type")? {
        None | Some("") => file.optional_str("clip.vision.projector_type")?,
        found => found,
    };
    // The first files of LLaVA name no projector.
    let is_llava = file.optional_bool("clip.has_llava_projector")?.unwrap_or_default();
    let projector = stated.or(is_llava.then_some("mlp")).ok_or_else(|| VisionError::NoTower { file: name() })?;
    family::of(projector).ok_or_else(|| {
        VisionError::UnknownProjector { file: name(), found: projector.to_owned(), known: family::known() }.into()
    })
}

/// The graphs of a tower.
struct Built {
    /// Those of the tower's segments, of the projector, and of the projectors of deep layers.
    graphs: Vec<Graph>,
    shape: TileShape,
    /// Values of an embedding row.
    width: usize,
}

fn build(file: &dyn Checkpoint, family: &'static Family, sizes: &TowerSizes) -> Result<Built, BuildError> {
    let mut weights = Weights::new(file);
    let mut shape = TileShape::new(sizes, family, usize::from(has_class_token(&weights)));
    shape.table = stretched_table(&mut weights, family, sizes)?;
    let builder = TowerBuilder { weights: &mut weights, graph: Graph::default(), sizes, family };
    let (mut graphs, mut width) = (Vec::new(), 0);
    for segment in builder.build()? {
        shape.segments.push(segment.kind);
        graphs.push(segment.graph);
    }
    let deep = sizes.deep_layers.iter().map(|layer| (format!("v.deepstack.{layer}."), family.deep_head));
    for (prefix, ops) in [(String::new(), family.head)].into_iter().chain(deep) {
        let head = head::build(&mut weights, (&prefix, ops), &shape.merged, sizes.epsilon)?;
        width += head.output().map_or(0, |output| head.width(output));
        graphs.push(head);
    }
    Ok(Built { graphs, shape, width })
}

/// The options of a load on one device, with keys and values as they are computed.
fn load_options(options: &VisionOptions) -> LoadOptions {
    LoadOptions {
        device: options.device.into(),
        threads: options.threads.max(1),
        kernel: options.kernel,
        tuning: options.tuning,
        vulkan: options.vulkan.clone(),
        activation_bits: options.activation_bits,
        kv_type: KvType::F32,
        ..LoadOptions::new(&options.path)
    }
}

impl VisionPlan {
    /// Turns images into what the encoder takes.
    #[must_use]
    pub fn preparation(&self) -> Arc<dyn ImagePreparation> {
        Arc::clone(&self.preparation) as _
    }

    /// The device whose memory it uses; `None` for the host's memory.
    #[must_use]
    pub fn device_memory(&self) -> Option<String> {
        self.part.target.own_memory(&self.options)
    }

    /// Bytes of its weights and of its working memory.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let limits = self.shape.limits();
        let footprint = self.part.footprint(&self.options, &limits);
        let kv = footprint.kv_block * limits.kv_blocks as u64;
        footprint.weights + footprint.scratch + kv + self.shape.host_bytes()
    }

    /// Its files, which must not change while it is used.
    #[must_use]
    pub fn files(&self) -> ModelFiles {
        self.files.clone()
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
    pub fn load(self, cancel: &LoadCancel) -> Result<Box<dyn ImageEncoder>, LoadError> {
        let stage = self.part.build(&self.options, &self.shape.limits(), &mut |_| cancel.check());
        // An error that was found in a file that changed meanwhile means nothing.
        self.files.check()?;
        Ok(Box::new(TowerEncoder::new(stage?, self.shape, self.files)))
    }
}
