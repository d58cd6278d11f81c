//! The plan of a tower on its device, before its memory is reserved.

use cuelight_shaders::attention::KvType;
use cuelight_shaders::layer_state::LayerState;

use super::TowerOptions;
use crate::backend::stage::PipelineStage;
use crate::cancel::LoadCancel;
use crate::checkpoint::Checkpoint;
use crate::engine::EngineLimits;
use crate::graph::Graph;
use crate::load::{LoadError, LoadOptions, ModelPart, Target};
use crate::mapped_file::ModelFiles;
use crate::memory::MemoryId;

/// The graphs of a tower on their device.
pub struct TowerPlan {
    part: ModelPart,
    options: LoadOptions,
    limits: EngineLimits,
    /// Bytes of its rows in host memory.
    host_bytes: u64,
    files: ModelFiles,
}

/// What a tower needs next to its graphs.
pub struct TowerNeeds {
    /// What a layer stores of its rows.
    pub state: LayerState,
    /// The limits of an engine for its steps.
    pub limits: EngineLimits,
    /// Bytes of its rows in host memory.
    pub host_bytes: u64,
}

impl TowerPlan {
    /// The plan of the graphs of a file.
    ///
    /// # Errors
    /// [`LoadError`] when they cannot be computed on this device.
    pub fn new(
        file: &dyn Checkpoint,
        options: &TowerOptions,
        graphs: Vec<Graph>,
        needs: TowerNeeds,
    ) -> Result<Self, LoadError> {
        let options = load_options(options);
        let target = Target::find(options.device.0[0], &options)?;
        let graphs = graphs.into_iter().map(|graph| target.fuse(graph)).collect();
        let TowerNeeds { state, limits, host_bytes } = needs;
        let mut part = ModelPart { target, graphs, states: vec![state], host_ops: None, weights_bytes: 0 };
        part.count_weights();
        Ok(TowerPlan { part, options, limits, host_bytes, files: file.files().clone() })
    }

    /// The memory that it uses.
    #[must_use]
    pub fn memory(&self) -> MemoryId {
        self.part.target.memory(&self.options)
    }

    /// Bytes of its weights and of its working memory.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let footprint = self.part.footprint(&self.options, &self.limits);
        let kv = footprint.kv_block.total() * self.limits.kv_blocks as u64;
        let states = footprint.state_slot * self.limits.state_slots as u64;
        footprint.weights + footprint.scratch + kv + states + self.host_bytes
    }

    /// Its files, which must not change while it is used.
    #[must_use]
    pub fn files(&self) -> ModelFiles {
        self.files.clone()
    }

    /// Loads the weights and reserves the working memory.
    ///
    /// # Errors
    /// [`LoadError`] when the device fails, the file has changed, or the load was cancelled.
    pub fn load(self, cancel: &LoadCancel) -> Result<Box<dyn PipelineStage>, LoadError> {
        let stage = self.part.build(&self.options, &self.limits, &mut |_| cancel.check());
        // An error that was found in a file that changed meanwhile means nothing.
        self.files.check()?;
        stage
    }
}

/// The options of a load on one device, with keys and values as they are computed.
fn load_options(options: &TowerOptions) -> LoadOptions {
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
