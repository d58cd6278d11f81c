//! A model in a directory as published on the Hugging Face Hub: `config.json`, safetensors, `tokenizer.json`.
//!
//! [`Directory`] gives it the keys and tensors of a GGUF file. Tensors that are only renamed stay mapped from their files; the
//! others are made when they are first read and then stay in memory. Pickled weights are never read.
//!
//! - [`families`]: which models load, as data; `family`: what each states; `family_values`: their names of values and their texts
//! - [`names`]: the names of tensors, and how they change, by [`rules`]
//! - `scheme`: how the weights are quantized; `stored`: the tensors with unpacked ones under their names; `packed`, `float4`,
//!   `nvfp4`, `float8`, `normal_float4`: how other tools pack them
//! - [`table`]: the tensors and their bytes; `steps`, `row_order`, `transform`, `derived`: how bytes change
//! - `origins`: the tensors as they are stored, and what becomes of each, for a copy of the directory
//! - `described`: the config with what its family adds
//! - [`keys`], [`rope`], `layer_sizes`, `half_layers`, `encoder_decoder`, `quantile`: from `config.json` to keys; `config`: its values as types
//! - `ngrams`: models with embeddings of n-grams
//! - `drafter`: draft models that compute with another model
//! - `scalars`: tensors that become keys, and keys that become tensors
//! - `adapter`: where adapters find a module's weight
//! - `sentence`: how embeddings are made; `classifier`: which models classify texts; `answers`: which score by their answers
//! - [`text`]: tokenizer, chat template, tokens that end a text; `pieces`: what belongs to a `tokenizer.model`
//! - `encoders`: the encoder of a model that also sees or hears
//! - `layout`: the files that hold a model; `small_files`: the files other than weights

mod adapter;
mod answers;
mod classifier;
mod config;
mod denoising;
mod derived;
mod described;
mod drafter;
mod encoder_decoder;
mod encoders;
mod error;
mod families;
mod family;
mod family_rules;
mod family_values;
mod float4;
mod float8;
mod float8_and_4;
mod half_layers;
mod keys;
mod layer_sizes;
mod layout;
mod ling_rules;
mod names;
mod ngrams;
mod normal_float4;
mod numbers;
mod nvfp4;
mod origins;
mod packed;
mod pieces;
mod pools;
mod quantile;
mod rope;
mod row_order;
mod rules;
mod scalars;
mod scheme;
mod sentence;
mod small_files;
mod steps;
mod stored;
mod table;
mod text;
mod transform;

use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};

use cuelight_shaders::quant::Format;
use cuelight_shaders::weight::{SharedBytes, Weight};
use serde_json::Value as Json;

pub use adapter::{NoPlace, Place, layer_of, place};
use described::Described;
pub use error::{HuggingFaceError, HuggingFaceFault};
use keys::Keys;
use layer_sizes::recurrent_layers;
use names::Layers;
pub use origins::{Change, Origin, Origins, Use};
use sentence::Sentence;
use small_files::SmallFiles;
pub use steps::HeadCounts;
use stored::stored;
use table::{Entry, Table, computed};
pub use text::Text;

use crate::format::gguf::{GGML_I32, GgufError, GgufFault, Metadata, TensorInfo, Value};
use crate::format::safetensors::Safetensors;
use crate::format::sampling;
use crate::mapped_file::ModelFiles;
use crate::sample::RecommendedSampling;

/// An open directory with the keys and tensors that a GGUF file of the model would have.
pub struct Directory {
    path: PathBuf,
    metadata: Vec<(String, Value)>,
    key_index: HashMap<String, usize>,
    tensors: Vec<TensorInfo>,
    bytes: Vec<SharedBytes>,
    tensor_index: HashMap<String, usize>,
    files: ModelFiles,
    text: Text,
    sampling: RecommendedSampling,
}

impl Directory {
    /// Opens a directory. Reads headers and configurations only.
    ///
    /// # Errors
    /// [`HuggingFaceError`] naming the file and what is wrong with it or not supported.
    pub fn open(path: &Path) -> Result<Self, HuggingFaceError> {
        let mut small = SmallFiles::new(path.to_owned());
        let Described { config, family, model_type } = Described::read(path, &mut small)?;
        let of_modelopt = small.json("hf_quant_config.json")?;
        let scheme = scheme::read(&config, of_modelopt.as_ref())?;
        let mut keys = Keys::of(&config, family, &name_of(path))?;
        let files = layout::weights(path)?;
        let is_tied = config.bool("tie_word_embeddings")?.unwrap_or(false);
        let (n_layers, heads) = (keys.layers()?, HeadCounts::read(&config)?);
        let stored = stored(&files, scheme.as_deref())?;
        let unit_rows = family.unit_rows_of(&config);
        let is_recurrent = recurrent_layers(&config)?;
        let layers = Layers { count: n_layers, is_recurrent: &|layer| is_recurrent.get(layer) == Some(&true) };
        let fate = |name: &str| names::fate(family, layers, name);
        let table = Table {
            files: &files,
            stored: &stored,
            family,
            model_type: &model_type,
            fate: &fate,
            heads,
            is_tied,
            unit_rows,
        };
        let mut entries = table.entries()?;
        let prediction = table.prediction_entries();
        if !prediction.is_empty() {
            keys.replace("block_count", u32::try_from(n_layers + 1).unwrap_or(u32::MAX));
            keys.add("nextn_predict_layers", 1u32);
            keys.recurrent_heads(family, 1)?;
            entries.extend(prediction);
        }
        entries.extend(keys.rope_tensors()?.into_iter().map(|(name, values)| computed(name, &values)));
        entries.extend(scalars::factors(&config, family, &entries)?);
        entries.extend(scalars::head_norms(&config, family, &entries)?);
        for (key, values) in scalars::keys(path, &files, family, n_layers)? {
            keys.add_whole(&key, values);
        }
        let sentence = Sentence::read(path, &mut small)?;
        entries.extend(sentence.entries()?);
        if let Some(pooling) = sentence.pooling.filter(|_| !config.is_set(families::CLASSIFIES)) {
            keys.add("pooling_type", pooling);
        }
        let generation = small.json("generation_config.json")?.unwrap_or_default();
        let sampling = sampling::of_json(&path.join("generation_config.json"), &generation);
        add_keys_of_files(&mut keys, &generation, &files)?;
        let text = Text::read(path, &config, &generation, &mut small)?;
        answers::add((&mut keys, &mut entries), family, &text, sentence.answers)?;
        add_templates(&mut keys, &text, family.chat_template);
        let projections = sentence.projections.iter().flat_map(|(_, files)| files.mapped());
        let mapped = small.mapped.iter().map(|mapped| &**mapped).chain(files.mapped()).chain(projections);
        let mapped = ModelFiles::new(mapped);
        // What was read of a file that changed meanwhile means nothing.
        mapped.check().map_err(|change| HuggingFaceFault::Changed(change.change).in_file(&change.path))?;
        let directory = Directory::of(path, keys.into_entries(), entries, mapped, text);
        Ok(Directory { sampling, ..directory })
    }

    fn of(path: &Path, metadata: Vec<(String, Value)>, entries: Vec<Entry>, files: ModelFiles, text: Text) -> Self {
        let key_index = metadata.iter().map(|(key, _)| key.clone()).zip(0..).collect();
        let tensor_index = entries.iter().map(|(tensor, _)| tensor.name.clone()).zip(0..).collect();
        let (tensors, bytes) = entries.into_iter().unzip();
        let sampling = RecommendedSampling::default();
        Directory { path: path.to_owned(), metadata, key_index, tensors, bytes, tensor_index, files, text, sampling }
    }

    /// The mapped files.
    #[must_use]
    pub fn files(&self) -> &ModelFiles {
        &self.files
    }

    /// The tokenizer and the chat template.
    #[must_use]
    pub fn text(&self) -> &Text {
        &self.text
    }

    /// How its publisher samples from the model.
    #[must_use]
    pub fn sampling(&self) -> &RecommendedSampling {
        &self.sampling
    }

    /// The tensors, in the order of the files.
    #[must_use]
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// A tensor's entry in the table. One that is made of several starts where the first of them does.
    #[must_use]
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.tensor_index.get(name).map(|&index| &self.tensors[index])
    }

    /// A tensor as a matrix.
    ///
    /// # Errors
    /// [`GgufFault::NoSuchTensor`].
    pub fn weight(&self, name: &str) -> Result<Weight, GgufError> {
        let missing = || self.fault(GgufFault::NoSuchTensor { tensor: name.to_owned() });
        let index = *self.tensor_index.get(name).ok_or_else(missing)?;
        let (tensor, bytes) = (&self.tensors[index], self.bytes[index].clone());
        let format = tensor.format().unwrap_or(Format::F32);
        // Both fit: the tensor is in a mapped file, or was made of such.
        let (rows, columns) = (tensor.n_rows() as usize, tensor.n_columns() as usize);
        Weight::new(name, format, rows, columns, bytes).map_err(|error| self.fault(GgufFault::Weight(error)))
    }

    /// The values of a tensor of integers; `None` if there is no such tensor.
    #[must_use]
    pub fn integers_of(&self, name: &str) -> Option<Vec<i64>> {
        let index = *self.tensor_index.get(name)?;
        let is_of_integers = self.tensors[index].ggml_type == GGML_I32;
        let bytes = self.bytes[index].as_slice();
        is_of_integers.then(|| bytes.as_chunks().0.iter().map(|value| i32::from_le_bytes(*value).into()).collect())
    }
}

impl Metadata for Directory {
    fn path(&self) -> &Path {
        &self.path
    }

    fn metadata(&self) -> &[(String, Value)] {
        &self.metadata
    }

    fn value(&self, key: &str) -> Option<&Value> {
        self.key_index.get(key).map(|&index| &self.metadata[index].1)
    }
}

impl fmt::Debug for Directory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({} keys, {} tensors)", self.path.display(), self.metadata.len(), self.tensors.len())
    }
}

/// Adds the keys that follow from `generation_config.json` and from tensors.
fn add_keys_of_files(keys: &mut Keys<'_>, generation: &Json, files: &Safetensors) -> Result<(), HuggingFaceError> {
    denoising::add_keys(keys, generation)?;
    encoder_decoder::add_alignment_heads(keys, generation)?;
    drafter::add_keys(keys, files)?;
    ngrams::add_keys(keys, files)
}

/// Adds the chat templates of a directory, or that of its family.
fn add_templates(keys: &mut Keys<'_>, text: &Text, of_family: Option<&str>) {
    let names = ["tokenizer.chat_template", "tokenizer.chat_template.tool_use"];
    for (key, template) in names.iter().zip(&text.templates) {
        if let Some(template) = template {
            keys.add_whole(key, template.as_str());
        }
    }
    if let (Some(template), [None, None]) = (of_family, &text.templates) {
        keys.add_whole(names[0], template);
    }
}

/// The name of a model: that of its directory, or of its repository in the cache of the Hub.
fn name_of(path: &Path) -> String {
    // A directory of models may have a link to a snapshot in the cache.
    let full = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let mut parts = full.components().rev().filter_map(|part| part.as_os_str().to_str());
    let repository = parts.find_map(|part| part.strip_prefix("models--")?.rsplit("--").next());
    let own = full.file_name().map(|name| name.to_string_lossy().into_owned());
    repository.map(str::to_owned).or(own).unwrap_or_default()
}

#[cfg(test)]
mod tests;
