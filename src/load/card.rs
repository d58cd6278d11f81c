//! Facts about a model, for people and for `/v1/models`.

use std::path::Path;

use super::error::LoadError;
use super::options::LoadOptions;
use crate::checkpoint::Checkpoint;
use crate::embedding::EmbeddingSpec;
use crate::model::describe::{LayerGroup, groups};
use crate::model::{BuildOptions, ModelGraph, Section};
use crate::sample::{DenoisingRule, RecommendedSampling};

/// Facts about a model, for people and for `/v1/models`.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelCard {
    /// `general.name`, else the file's stem.
    pub name: String,
    /// `general.architecture`.
    pub architecture: String,
    /// The file format that holds the weights, "gguf" or "safetensors".
    pub file_format: &'static str,
    /// Number of weights.
    pub n_params: u64,
    /// Bytes of all tensors.
    pub size_bytes: u64,
    /// The format with the most bytes, such as "Q4_K".
    pub quantization: String,
    /// The context length in training, in tokens.
    pub context_train: usize,
    /// `general.license`, if the file has it.
    pub license: Option<String>,
    /// The layers.
    pub layers: Vec<LayerGroup>,
    /// The layer that predicts one more token, if the file has one that can be built.
    pub prediction: Option<LayerGroup>,
    /// The layers of another model whose inputs it computes with, if it is a draft model that does so.
    pub residuals: Vec<usize>,
    /// Its embeddings.
    pub embedding: EmbeddingSpec,
    /// The names of its classes, if it classifies texts.
    pub labels: Vec<String>,
    /// The template of a query and a document, if a reranker has one.
    pub rerank_template: Option<String>,
    /// How it denoises blocks of tokens, if it generates these.
    pub denoising: Option<DenoisingRule>,
    /// How to sample where a request says nothing, with the warnings about what the publisher recommends.
    pub sampling: RecommendedSampling,
    /// Texts that end an answer, where a request names none.
    pub stop: Vec<String>,
    /// Instructions before a conversation that begins without any.
    pub system: Option<String>,
}

impl ModelCard {
    /// Reads the facts from a file, the model built from it, and the options that it is loaded with.
    pub(super) fn read(
        checkpoint: &dyn Checkpoint,
        model: &ModelGraph,
        options: &LoadOptions,
    ) -> Result<Self, LoadError> {
        let LoadOptions { recommended, defaults, .. } = options;
        let mut bytes_of_format: Vec<(String, u64)> = Vec::new();
        for tensor in checkpoint.tensors() {
            let format = tensor.type_name();
            let bytes = tensor.n_bytes.unwrap_or(0);
            match bytes_of_format.iter_mut().find(|(name, _)| *name == format) {
                Some((_, sum)) => *sum += bytes,
                None => bytes_of_format.push((format, bytes)),
            }
        }
        let quantization = bytes_of_format.iter().max_by_key(|(_, bytes)| *bytes);
        Ok(ModelCard {
            name: checkpoint.optional_str("general.name")?.map_or_else(|| stem(checkpoint.path()), str::to_owned),
            architecture: model.hyperparameters.architecture.clone(),
            file_format: checkpoint.file_format(),
            n_params: checkpoint.tensors().iter().map(|tensor| tensor.n_elements()).sum(),
            size_bytes: bytes_of_format.iter().map(|(_, bytes)| bytes).sum(),
            quantization: quantization.map_or_else(String::new, |(name, _)| name.clone()),
            context_train: model.hyperparameters.context_train,
            license: checkpoint.optional_str("general.license")?.map(str::to_owned),
            layers: groups(&model.hyperparameters.layers),
            prediction: prediction(checkpoint),
            residuals: model.hyperparameters.drafter.as_ref().map_or_else(Vec::new, |spec| spec.layers.clone()),
            embedding: model.embedding,
            labels: model.hyperparameters.classifier.as_ref().map_or_else(Vec::new, |of| of.labels.clone()),
            rerank_template: checkpoint.optional_str("tokenizer.chat_template.rerank")?.map(str::to_owned),
            denoising: model.hyperparameters.denoising,
            sampling: sampling(checkpoint, options),
            stop: recommended.stop.clone(),
            system: defaults.system.clone().or_else(|| recommended.system.clone()),
        })
    }
}

/// How to sample where a request says nothing.
fn sampling(checkpoint: &dyn Checkpoint, options: &LoadOptions) -> RecommendedSampling {
    let recommended = match options.ignore_model_sampling {
        true => RecommendedSampling::default(),
        false => options.recommended.sampling_over(checkpoint.sampling()),
    };
    RecommendedSampling { stated: options.defaults.sampling.or(recommended.stated), ..recommended }
}

/// The layer that predicts one more token. That it cannot be built matters only to those who load it.
fn prediction(checkpoint: &dyn Checkpoint) -> Option<LayerGroup> {
    let options = BuildOptions { section: Section::Prediction, ..BuildOptions::default() };
    let model = ModelGraph::build_with(checkpoint, &options).ok()?;
    groups(&model.hyperparameters.layers).pop()
}

fn stem(path: &Path) -> String {
    path.file_stem().map_or_else(String::new, |stem| stem.to_string_lossy().into_owned())
}
