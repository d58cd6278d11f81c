//! The vision tower of a directory, with the keys and tensors that a GGUF file of it would have.
//!
//! - [`families`]: which towers load, as data
//! - `names`: the names of tensors
//! - `keys`: from `config.json` and `preprocessor_config.json` to keys

mod families;
mod keys;
mod names;

use std::path::Path;

use cuelight_shaders::quant::Format;

use super::Directory;
use super::config::Config;
use super::error::{HuggingFaceError, HuggingFaceFault};
use super::small_files::SmallFiles;
use super::table::{Entry, computed};
use super::text::Text;
use crate::format::gguf::TensorInfo;
use crate::format::safetensors::{Safetensors, Tensor};
use crate::mapped_file::ModelFiles;
use families::TowerFamily;
use keys::TowerConfig;

impl Directory {
    /// Opens the vision tower of a directory. Reads headers and configurations only.
    ///
    /// # Errors
    /// [`HuggingFaceError`] naming the file and what is wrong with it or not supported.
    pub fn open_vision_tower(path: &Path) -> Result<Self, HuggingFaceError> {
        let mut small = SmallFiles::new(path.to_owned());
        let bytes = small.bytes("config.json")?.ok_or_else(|| HuggingFaceFault::NoConfig.in_file(path))?;
        let config = TowerConfig::read(path, &mut small)?;
        let found = config.model_type()?;
        let unknown = || HuggingFaceFault::UnknownTower { found: found.to_owned(), known: families::known() };
        let family = families::of(found).ok_or_else(|| config.fault(unknown()))?;
        let files = Safetensors::open(path)?;
        let entries = files.tensors().iter().filter_map(|tensor| entry(&files, family, tensor).transpose());
        let entries = entries.collect::<Result<Vec<_>, _>>()?;
        let text =
            Text::read(path, &Config::parse(&path.join("config.json"), &bytes)?, &serde_json::Value::Null, &mut small)?;
        let mapped = ModelFiles::new(small.mapped.iter().map(|mapped| &**mapped).chain(files.mapped()));
        mapped.check().map_err(|change| HuggingFaceFault::Changed(change.change).in_file(&change.path))?;
        Ok(Directory::of(path, keys::keys(&config, family)?, entries, mapped, text))
    }
}

/// The tensor of the table; `None` for one that is not part of the tower.
fn entry(files: &Safetensors, family: &TowerFamily, tensor: &Tensor) -> Result<Option<Entry>, HuggingFaceError> {
    let Some(name) = names::of(family, &tensor.name) else { return Ok(None) };
    let fault = |fault: HuggingFaceFault| fault.in_file(files.path(tensor));
    let shape = || HuggingFaceFault::TensorShape { tensor: tensor.name.clone(), shape: tensor.shape.clone() };
    let format = match tensor.dtype.name {
        "F32" => Format::F32,
        "F16" => Format::F16,
        "BF16" => Format::BF16,
        dtype => {
            let (tensor, dtype) = (tensor.name.clone(), dtype.to_owned());
            return Err(fault(HuggingFaceFault::TensorType { tensor, dtype }));
        }
    };
    let bytes = files.bytes(tensor).ok_or_else(|| fault(shape()))?;
    if family.one_added.contains(&&*name) {
        let mut values = vec![0.0; tensor.shape.iter().product()];
        format.dequantize(bytes.as_slice(), &mut values);
        values.iter_mut().for_each(|value| *value += 1.0);
        return Ok(Some(computed(&name, &values)));
    }
    let dims = tensor.shape.iter().rev().map(|&size| size as u64).collect();
    let (start, n_bytes) = (tensor.range.start as u64, Some(tensor.range.len() as u64));
    Ok(Some((TensorInfo { name, dims, ggml_type: format.ggml_id(), shard: tensor.shard, start, n_bytes }, bytes)))
}
