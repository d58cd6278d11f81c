//! The vision tower of the configuration or of the model: with it a model takes images.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use cuelight_engine::format::tokenizer::Tokenizer;
use cuelight_engine::load::{
    self, CompanionMemory, ComputeDevice, LoadCancel, LoadOptions, LoadPlan, ModelFiles, Source,
};
use cuelight_engine::memory::format_bytes;
use cuelight_engine::vision::{self, ImageEncoder, ImagePreparation, ImageSpec, VisionOptions, VisionPlan};

use super::hints::explain_load;
use super::{CliError, Context};
use crate::config::Config;
use crate::core::error_chain::error_chain;
use crate::hub::projector;
use crate::pipeline::loader::SourceError;
use crate::pipeline::model_source::VisionModel;

/// Whether a model is loaded with a vision tower, and with which.
#[derive(Debug, Clone)]
pub struct VisionSettings {
    /// The tower that is given; `None` for that of the model, if it has one.
    mmproj: Option<PathBuf>,
    is_off: bool,
    /// Bytes of rows that are kept.
    cache_bytes: u64,
    device: ComputeDevice,
}

impl VisionSettings {
    /// Those of the configuration.
    #[must_use]
    pub fn of_config(config: &Config) -> Self {
        VisionSettings {
            mmproj: config.mmproj.clone(),
            is_off: config.no_mmproj,
            cache_bytes: config.image_cache.0,
            device: config.device.0.first().copied().unwrap_or(ComputeDevice::Cpu),
        }
    }

    /// The same with the tower of each model, and not a given one.
    #[must_use]
    pub fn of_each_model(self) -> Self {
        VisionSettings { mmproj: None, ..self }
    }

    /// The vision tower of a model: the given one, `published` with it, one next to its file, or that of its directory. One that
    /// was not given, and that does not belong to the model or cannot be computed, is left out with a warning.
    ///
    /// # Errors
    /// Why the given one cannot be used.
    pub fn find(&self, options: &LoadOptions, published: Option<PathBuf>) -> Result<Option<VisionFile>, String> {
        if self.is_off {
            return Ok(None);
        }
        if let Some(path) = &self.mmproj {
            return self.open(path, options).map(Some);
        }
        let Source::File(model) = &options.source else { return Ok(None) };
        let is_directory = model.is_dir();
        let found = published.or_else(|| if is_directory { has_vision(model) } else { projector::next_to(model) });
        let Some(path) = found else { return Ok(None) };
        Ok(self.open(&path, options).inspect_err(|reason| tracing::warn!("the model takes no images: {reason}")).ok())
    }

    /// Plans a tower, and checks that it belongs to the model.
    fn open(&self, path: &Path, options: &LoadOptions) -> Result<VisionFile, String> {
        let vision_options = VisionOptions {
            path: path.to_owned(),
            device: self.device,
            threads: options.threads,
            kernel: options.kernel,
            tuning: options.tuning,
            vulkan: options.vulkan.clone(),
            activation_bits: options.activation_bits,
        };
        let plan = vision::plan(&vision_options).map_err(|error| explain_load(&error))?;
        let file = VisionFile::new(plan, vision_options, self.cache_bytes);
        let model = load::plan(&LoadOptions { takes_embeddings: true, ..options.clone() });
        check(file.preparation.spec(), path, &model.map_err(|error| explain_load(&error))?)?;
        Ok(file)
    }
}

/// The directory of a model, if its configuration names a vision tower.
fn has_vision(directory: &Path) -> Option<PathBuf> {
    let config = std::fs::read(directory.join("config.json")).ok()?;
    let config: serde_json::Value = serde_json::from_slice(&config).ok()?;
    config["vision_config"].is_object().then(|| directory.to_owned())
}

/// Checks that the rows of a tower are those of a model.
fn check(spec: &ImageSpec, tower: &Path, model: &LoadPlan) -> Result<(), String> {
    let (tower, path) = (tower.display(), model.path().display());
    let width = model.limits().embeddings.map_or(0, |limits| limits.values());
    if spec.width != width {
        return Err(format!(
            "{tower} does not belong to {path}: its rows have {} values, and those of the model {width}",
            spec.width
        ));
    }
    let tokenizer = model.tokenizer().map_err(|error| error_chain(&error))?;
    match is_token(&tokenizer, &spec.row_token) {
        true => Ok(()),
        false => Err(format!("{tower} does not belong to {path}, whose vocabulary has no token {}", spec.row_token)),
    }
}

fn is_token(tokenizer: &Tokenizer, text: &str) -> bool {
    tokenizer.encode(text, false, true).is_ok_and(|tokens| tokens.len() == 1)
}

/// The vision tower of the configuration or of a model of the command line. Prints what it is.
///
/// # Errors
/// [`CliError`] when it is not found or does not belong to the model.
pub fn of_config(model: &str, options: &LoadOptions, context: &Context) -> Result<Option<Arc<VisionFile>>, CliError> {
    let published = context.hub().published(model)?.projector;
    let found = VisionSettings::of_config(&context.config).find(options, published).map_err(CliError::Failed)?;
    if let Some(vision) = &found {
        context.terminal.notice(&vision.describe());
    }
    Ok(found.map(Arc::new))
}

/// The options of a model with the memory of its vision tower, which its replicas share, and with space for an image in a step.
#[must_use]
pub fn with_vision(options: LoadOptions, vision: Option<&VisionFile>, replicas: NonZeroUsize) -> LoadOptions {
    let Some(vision) = vision else { return options };
    let replicas = replicas.get() as u64;
    let share = |memory: &CompanionMemory| CompanionMemory { bytes: memory.bytes / replicas, ..memory.clone() };
    let spec = vision.preparation.spec();
    // Next to the rows of one image every other sequence can have one.
    let least = if spec.rows_see_each_other { spec.max_rows + options.max_sequences } else { 0 };
    LoadOptions {
        vision: vision.memory.iter().map(share).collect(),
        takes_embeddings: true,
        max_batched_tokens: options.max_batched_tokens.max(least),
        ..options
    }
}

/// A planned vision tower, which is loaded by its plan and, after a fault, loaded again.
pub struct VisionFile {
    options: VisionOptions,
    /// The plan for the first load. Later loads make their own.
    first: Mutex<Option<VisionPlan>>,
    /// The files of the first plan. Later loads must find the same.
    files: ModelFiles,
    preparation: Arc<dyn ImagePreparation>,
    memory: Vec<CompanionMemory>,
    description: String,
}

impl VisionFile {
    fn new(plan: VisionPlan, options: VisionOptions, cache_bytes: u64) -> Self {
        let tower = CompanionMemory { device: plan.device_memory(), bytes: plan.bytes() };
        VisionFile {
            memory: vec![tower, CompanionMemory { device: None, bytes: cache_bytes }],
            description: plan.describe(),
            files: plan.files(),
            preparation: plan.preparation(),
            first: Mutex::new(Some(plan)),
            options,
        }
    }

    /// "images: SigLIP, 27 layers, 896 x 896, on cpu: 812.0 MiB of memory".
    #[must_use]
    pub fn describe(&self) -> String {
        let bytes = format_bytes(self.memory.iter().map(|memory| memory.bytes).sum());
        format!("images: {} on {}: {bytes} of memory", self.description, self.options.device)
    }
}

impl VisionModel for VisionFile {
    fn preparation(&self) -> Arc<dyn ImagePreparation> {
        self.preparation.clone()
    }

    fn load(&self, cancel: &LoadCancel) -> Result<Box<dyn ImageEncoder>, SourceError> {
        let first = self.first.lock().ok().and_then(|mut first| first.take());
        let load = || match first {
            Some(plan) => plan.load(cancel),
            None => {
                self.files.check_paths()?;
                vision::plan(&self.options)?.load(cancel)
            }
        };
        load().map_err(|error| SourceError::of_load(&error, explain_load))
    }
}
