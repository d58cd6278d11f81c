//! The encoders of images and audio of a directory, with the keys and tensors that a GGUF file of it would have.
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
use super::config::{Config, join_thinker};
use super::error::{HuggingFaceError, HuggingFaceFault};
use super::family::PLAIN;
use super::layout;
use super::scheme;
use super::small_files::SmallFiles;
use super::steps::HeadCounts;
use super::stored::stored;
use super::table::{Entry, Table};
use super::text::Text;
use crate::format::safetensors::Safetensors;
use crate::mapped_file::ModelFiles;
use crate::media::MediaKind;
use config::EncoderConfig;
use names::Names;
use spec::{EncoderFamily, HEAD_COUNT};

impl Directory {
    /// Opens the encoders of a directory. Reads headers and configurations only.
    ///
    /// # Errors
    /// [`HuggingFaceError`] naming the file and what is wrong with it or not supported.
    pub fn open_encoder(path: &Path) -> Result<Self, HuggingFaceError> {
        let mut small = SmallFiles::new(path.to_owned());
        let of_model = Config::parse(&path.join("config.json"), &layout::config(path, &mut small)?)?;
        let mut model = small.json("config.json")?.unwrap_or_default();
        if let Some(root) = model.as_object_mut() {
            join_thinker(root);
        }
        let families = families_of(&model).map_err(|fault| fault.in_file(&path.join("config.json")))?;
        let files = layout::weights(path)?;
        layout::check(path, &of_model, &layout::AUDIO)?;
        let mut keys = vec![("general.architecture".to_owned(), "clip".into())];
        let mut all_entries = Vec::new();
        for family in &families {
            let config = EncoderConfig::read(path, model.clone(), family, &mut small)?;
            requirements::check(&config, family)?;
            keys.extend(keys::keys(&config, family, families.len() == 1)?);
            all_entries.extend(entries(&files, &of_model, &mut small, (family, &config))?);
        }
        let text = Text::read(path, &of_model, &Json::Null, &mut small)?;
        let mapped = ModelFiles::new(small.mapped.iter().map(|mapped| &**mapped).chain(files.mapped()));
        mapped.check().map_err(|change| HuggingFaceFault::Changed(change.change).in_file(&change.path))?;
        Ok(Directory::of(path, keys, all_entries, mapped, text))
    }
}

/// The families of the encoders of a model: one of each kind of which it states an encoder, else the first.
fn families_of(model: &Json) -> Result<Vec<&'static EncoderFamily>, HuggingFaceFault> {
    let model_type = |config: &Json| config.get("model_type").and_then(Json::as_str).map(str::to_owned);
    let found = model_type(model).ok_or_else(|| HuggingFaceFault::MissingKey { key: "model_type".to_owned() })?;
    let is_of = |family: &EncoderFamily| {
        let stated = model.get(config::section(family.kind)).and_then(model_type);
        family.encoder_type.is_none_or(|wanted| stated.as_deref() == Some(wanted))
    };
    let of_kind = |kind| family::of(&found, |family| family.kind == kind && is_of(family));
    let of_kinds: Vec<_> = MediaKind::ALL.into_iter().filter_map(of_kind).collect();
    let is_stated = |family: &&&EncoderFamily| model.get(config::section(family.kind)).is_some_and(Json::is_object);
    let stated: Vec<_> = of_kinds.iter().filter(is_stated).copied().collect();
    match (stated.is_empty(), of_kinds.first()) {
        (_, None) => Err(HuggingFaceFault::UnknownEncoder { found, known: family::known() }),
        (true, Some(first)) => Ok(vec![first]),
        (false, _) => Ok(stated),
    }
}

/// The tensors of an encoder.
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
