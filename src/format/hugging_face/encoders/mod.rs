//! The encoder of images or audio of a directory, with the keys and tensors that a GGUF file of it would have.
//!
//! - [`family`]: which encoders load, as data; [`spec`]: what that data consists of
//! - [`config`]: the values that a directory states, as types; [`requirements`]: those that are refused
//! - [`keys`]: from these values to keys; [`names`]: the names of tensors

mod config;
mod family;
mod keys;
mod names;
mod requirements;
mod spec;

use std::path::Path;

use serde_json::Value as Json;

use super::Directory;
use super::config::Config;
use super::error::{HuggingFaceError, HuggingFaceFault};
use super::families::PLAIN;
use super::layout;
use super::scheme;
use super::small_files::SmallFiles;
use super::steps::HeadCounts;
use super::stored::stored;
use super::table::{Entry, Table};
use super::text::Text;
use crate::format::safetensors::Safetensors;
use crate::mapped_file::ModelFiles;
use config::EncoderConfig;
use names::Names;
use spec::{EncoderFamily, HEAD_COUNT};

impl Directory {
    /// Opens the encoder of a directory. Reads headers and configurations only.
    ///
    /// # Errors
    /// [`HuggingFaceError`] naming the file and what is wrong with it or not supported.
    pub fn open_encoder(path: &Path) -> Result<Self, HuggingFaceError> {
        let mut small = SmallFiles::new(path.to_owned());
        let of_model = Config::parse(&path.join("config.json"), &layout::config(path, &mut small)?)?;
        let model = small.json("config.json")?.unwrap_or_default();
        let family = family_of(&model).map_err(|fault| fault.in_file(&path.join("config.json")))?;
        let files = layout::weights(path)?;
        layout::check(path, &of_model, &layout::AUDIO)?;
        let config = EncoderConfig::read(path, model, family, &mut small)?;
        requirements::check(&config, family)?;
        let keys = keys::keys(&config, family)?;
        let entries = entries(&files, &of_model, &mut small, (family, &config))?;
        let text = Text::read(path, &of_model, &Json::Null, &mut small)?;
        let mapped = ModelFiles::new(small.mapped.iter().map(|mapped| &**mapped).chain(files.mapped()));
        mapped.check().map_err(|change| HuggingFaceFault::Changed(change.change).in_file(&change.path))?;
        Ok(Directory::of(path, keys, entries, mapped, text))
    }
}

/// The family of the encoder of a model.
fn family_of(model: &Json) -> Result<&'static EncoderFamily, HuggingFaceFault> {
    let model_type = |config: &Json| config.get("model_type").and_then(Json::as_str).map(str::to_owned);
    let found = model_type(model).ok_or_else(|| HuggingFaceFault::MissingKey { key: "model_type".to_owned() })?;
    let is_of = |family: &EncoderFamily| {
        let stated = model.get(config::section(family.kind)).and_then(model_type);
        family.encoder_type.is_none_or(|wanted| stated.as_deref() == Some(wanted))
    };
    let unknown = |found: String| HuggingFaceFault::UnknownEncoder { found, known: family::known() };
    family::of(&found, is_of).ok_or_else(|| unknown(found))
}

/// The tensors of the encoder.
fn entries(
    files: &Safetensors,
    of_model: &Config,
    small: &mut SmallFiles,
    (family, config): (&EncoderFamily, &EncoderConfig),
) -> Result<Vec<Entry>, HuggingFaceError> {
    let scheme = scheme::read(of_model, small.json("hf_quant_config.json")?.as_ref())?;
    let stored = stored(files, scheme.as_deref())?;
    let names = Names::of(config, family)?;
    let fate = |name: &str| names.fate(name);
    let heads = keys::size_of(config, family, HEAD_COUNT)? as usize;
    let table = Table {
        files,
        stored: &stored,
        family: &PLAIN,
        model_type: family.model_types[0],
        fate: &fate,
        heads: HeadCounts { query: heads, key: heads, ..HeadCounts::default() },
        is_tied: false,
        unit_rows: Vec::new(),
    };
    let entries = table.entries()?;
    match entries.iter().find(|(tensor, _)| tensor.name.ends_with(".scale") || tensor.name.ends_with(".input_order")) {
        Some((tensor, _)) => {
            let tensor = tensor.name.rsplit_once('.').map_or(&*tensor.name, |(stem, _)| stem).to_owned();
            Err(HuggingFaceFault::EncoderWeights { tensor }.in_file(files.path(stored[0].tensor)))
        }
        None => Ok(entries),
    }
}

#[cfg(test)]
mod tests;
