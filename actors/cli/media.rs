//! The projector file of the configuration or of the model: with its encoders a model takes images or audio.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use cuelight_engine::format::tokenizer::Tokenizer;
use cuelight_engine::load::{
    self, CompanionMemory, ComputeDevice, LoadCancel, LoadOptions, LoadPlan, ModelFiles, Source,
};
use cuelight_engine::media::MediaSpec;
use cuelight_engine::memory::{MemoryId, format_bytes};
use cuelight_engine::projector::{self, MediaEncoder, MediaPreparation, ProjectorPlan};
use cuelight_engine::tower::TowerOptions;

use super::hints::explain_load;
use super::{CliError, Context, quantized};
use crate::config::Config;
use crate::core::error_chain::error_chain;
use crate::hub::projector as hub_projector;
use crate::pipeline::loader::SourceError;
use crate::pipeline::model_source::MediaModel;

/// Whether a model is loaded with a projector file, and with which.
#[derive(Debug, Clone)]
pub struct MediaSettings {
    /// The file that is given; `None` for that of the model, if it has one.
    mmproj: Option<PathBuf>,
    is_off: bool,
    /// Bytes of rows that are kept.
    cache_bytes: u64,
    device: ComputeDevice,
}

impl MediaSettings {
    /// Those of the configuration.
    #[must_use]
    pub fn of_config(config: &Config) -> Self {
        MediaSettings {
            mmproj: config.mmproj.clone(),
            is_off: config.no_mmproj,
            cache_bytes: config.media_cache.0,
            device: config.device.0.first().copied().unwrap_or(ComputeDevice::Cpu),
        }
    }

    /// The same with the file of each model, and not a given one.
    #[must_use]
    pub fn of_each_model(self) -> Self {
        MediaSettings { mmproj: None, ..self }
    }

    /// The projector file of a model: the given one, `published` with it, one next to its file, or that of its directory. One that
    /// was not given, and that does not belong to the model or cannot be computed, is left out with a warning.
    ///
    /// # Errors
    /// Why the given one cannot be used.
    pub fn find(&self, options: &LoadOptions, published: Option<PathBuf>) -> Result<Option<MediaFile>, String> {
        if self.is_off {
            return Ok(None);
        }
        if let Some(path) = &self.mmproj {
            return self.open(path, None, options).map(Some);
        }
        let (Source::File(model) | Source::Quantized { original: model, .. }) = &options.source else {
            return Ok(None);
        };
        let is_directory = model.is_dir();
        let found =
            published.or_else(|| if is_directory { with_encoder(model) } else { hub_projector::next_to(model) });
        let Some(path) = found else { return Ok(None) };
        Ok(self
            .open(&path, None, options)
            .inspect_err(|reason| tracing::warn!("the model takes neither images nor audio: {reason}"))
            .ok())
    }

    /// Plans the encoders of a file with the tensors of its quantized copy, if it has one, and checks that they belong to the model.
    fn open(&self, path: &Path, copy: Option<PathBuf>, options: &LoadOptions) -> Result<MediaFile, String> {
        let tower_options = TowerOptions {
            path: path.to_owned(),
            copy,
            device: self.device,
            threads: options.threads,
            kernel: options.kernel,
            tuning: options.tuning,
            vulkan: options.vulkan.clone(),
            activation_bits: options.activation_bits,
        };
        let plan = projector::plan(&tower_options).map_err(|error| explain_load(&error))?;
        if let Some(error) = plan.left_out() {
            tracing::warn!("one of its encoders is not used: {}", explain_load(error));
        }
        let file = MediaFile::new(plan, tower_options, self.cache_bytes);
        let model = load::plan(&LoadOptions { takes_embeddings: true, ..options.clone() });
        let model = model.map_err(|error| explain_load(&error))?;
        file.preparation.specs().try_for_each(|(_, spec)| check(spec, path, &model))?;
        Ok(file)
    }
}

/// The directory of a model, if its configuration has an encoder of images or audio.
fn with_encoder(directory: &Path) -> Option<PathBuf> {
    let config = std::fs::read(directory.join("config.json")).ok()?;
    let config: serde_json::Value = serde_json::from_slice(&config).ok()?;
    // The part that understands of a model that also speaks has the encoders.
    let parts = [&config, &config["thinker_config"]];
    let has_encoder =
        ["vision_config", "audio_config"].iter().any(|section| parts.iter().any(|part| part[*section].is_object()));
    let is_encoder_decoder = config["is_encoder_decoder"] == serde_json::Value::Bool(true);
    (has_encoder || is_encoder_decoder).then(|| directory.to_owned())
}

/// Checks that the rows of a tower are those of a model.
fn check(spec: &MediaSpec, tower: &Path, model: &LoadPlan) -> Result<(), String> {
    let (tower, path) = (tower.display(), model.path().display());
    let width = model.limits().embeddings.map_or(0, |limits| limits.values());
    if spec.width != width {
        return Err(format!(
            "{tower} does not belong to {path}: its rows have {} values, and those of the model {width}",
            spec.width
        ));
    }
    let tokenizer = model.tokenizer().map_err(|error| error_chain(&error))?;
    match spec.row_tokens.iter().any(|token| is_token(&tokenizer, token)) {
        true => Ok(()),
        false => {
            let tokens = spec.row_tokens.join(" or ");
            Err(format!("{tower} does not belong to {path}, whose vocabulary has no token {tokens}"))
        }
    }
}

fn is_token(tokenizer: &Tokenizer, text: &str) -> bool {
    tokenizer.encode(text, false, true).is_ok_and(|tokens| tokens.len() == 1)
}

/// The projector file of the configuration or of a model of the command line. Prints what it is.
///
/// # Errors
/// [`CliError`] when it is not found or does not belong to the model.
pub fn of_config(model: &str, options: &LoadOptions, context: &Context) -> Result<Option<Arc<MediaFile>>, CliError> {
    let published = context.hub().published(model)?.projector;
    let settings = MediaSettings::of_config(&context.config);
    let mut found = settings.find(options, published).map_err(CliError::Failed)?;
    if let Some(path) = found.as_ref().map(MediaFile::path)
        && let Some(copy) = quantized::encoders(path, context)?
    {
        found = Some(settings.open(path, Some(copy), options).map_err(CliError::Failed)?);
    }
    if let Some(media) = &found {
        context.terminal.notice(&media.describe());
    }
    Ok(found.map(Arc::new))
}

/// The options of a model with the memory of its encoders, which its replicas share, and with space for an image in a step.
#[must_use]
pub fn with_media(options: LoadOptions, media: Option<&MediaFile>, replicas: NonZeroUsize) -> LoadOptions {
    let Some(media) = media else { return options };
    let replicas = replicas.get() as u64;
    let share = |memory: &CompanionMemory| CompanionMemory { bytes: memory.bytes / replicas, ..memory.clone() };
    // Next to the rows of one image every other sequence can have one.
    let least = |spec: &MediaSpec| spec.max_rows + options.max_sequences;
    let together = media.preparation.specs().filter(|(_, spec)| spec.rows_see_each_other);
    let least = together.map(|(_, spec)| least(spec)).max().unwrap_or(0);
    LoadOptions {
        media: media.memory.iter().map(share).collect(),
        takes_embeddings: true,
        max_batched_tokens: options.max_batched_tokens.max(least),
        ..options
    }
}

/// A planned projector file, which is loaded by its plan and, after a fault, loaded again.
pub struct MediaFile {
    options: TowerOptions,
    /// The plan for the first load. Later loads make their own.
    first: Mutex<Option<ProjectorPlan>>,
    /// The files of the first plan. Later loads must find the same.
    files: ModelFiles,
    preparation: MediaPreparation,
    memory: Vec<CompanionMemory>,
    description: String,
}

impl MediaFile {
    fn new(plan: ProjectorPlan, options: TowerOptions, cache_bytes: u64) -> Self {
        let tower = CompanionMemory { memory: plan.memory(), bytes: plan.bytes() };
        MediaFile {
            memory: vec![tower, CompanionMemory { memory: MemoryId::Host, bytes: cache_bytes }],
            description: plan.describe(),
            files: plan.files(),
            preparation: plan.preparation(),
            first: Mutex::new(Some(plan)),
            options,
        }
    }

    /// The file or directory.
    fn path(&self) -> &Path {
        &self.options.path
    }

    /// "images: SigLIP, 27 layers, 896 x 896, on cpu: 812.0 MiB of memory".
    #[must_use]
    pub fn describe(&self) -> String {
        let bytes = format_bytes(self.memory.iter().map(|memory| memory.bytes).sum());
        format!("{} on {}: {bytes} of memory", self.description, self.options.device)
    }
}

impl MediaModel for MediaFile {
    fn preparation(&self) -> MediaPreparation {
        self.preparation.clone()
    }

    fn load(&self, cancel: &LoadCancel) -> Result<Box<dyn MediaEncoder>, SourceError> {
        let first = self.first.lock().ok().and_then(|mut first| first.take());
        let load = || match first {
            Some(plan) => plan.load(cancel),
            None => {
                self.files.check_paths()?;
                projector::plan(&self.options)?.load(cancel)
            }
        };
        load().map_err(|error| SourceError::of_load(&error, explain_load))
    }
}
