//! Values that directories store in a tensor for each layer, and GGUF files in a key with a list; and factors of the config, which
//! become tensors.

use std::path::Path;

use cuelight_shaders::quant::Format;

use super::config::Config;
use super::error::{HuggingFaceError, HuggingFaceFault};
use super::family::Family;
use super::table::{Entry, computed};
use crate::format::gguf::Value;
use crate::format::safetensors::{Safetensors, Tensor};

/// The keys of a family with the value of each layer.
pub(super) fn keys(
    folder: &Path,
    files: &Safetensors,
    family: &Family,
    n_layers: usize,
) -> Result<Vec<(String, Value)>, HuggingFaceError> {
    let key = |(tensor, key): &(&str, &str)| {
        let values: Vec<f32> =
            (0..n_layers).map(|layer| value(folder, files, layer, tensor)).collect::<Result<_, _>>()?;
        Ok(((*key).to_owned(), values[..].into()))
    };
    family.scalars.iter().map(key).collect()
}

/// The only value of a layer's tensor.
fn value(folder: &Path, files: &Safetensors, layer: usize, name: &str) -> Result<f32, HuggingFaceError> {
    let end = format!("layers.{layer}.{name}");
    let found = files.tensors().iter().find(|tensor| tensor.name.ends_with(&end));
    let missing = || HuggingFaceFault::MissingTensor { tensor: end.clone() }.in_file(folder);
    let tensor = found.ok_or_else(missing)?;
    let wrong = || {
        let fault = HuggingFaceFault::TensorShape { tensor: tensor.name.clone(), shape: tensor.shape.clone() };
        fault.in_file(files.path(tensor))
    };
    number(files, tensor).ok_or_else(wrong)
}

fn number(files: &Safetensors, tensor: &Tensor) -> Option<f32> {
    let format = match tensor.dtype.name {
        "F32" => Format::F32,
        "F16" => Format::F16,
        "BF16" => Format::BF16,
        _ => return None,
    };
    let bytes = files.bytes(tensor)?;
    let mut value = [0.0];
    (tensor.shape.iter().product::<usize>() == 1).then(|| format.dequantize(bytes.as_slice(), &mut value))?;
    Some(value[0])
}

/// The tensors of the factors of matrices, where the config has other factors than 1.
pub(super) fn factors(config: &Config, family: &Family, entries: &[Entry]) -> Result<Vec<Entry>, HuggingFaceError> {
    let mut factors = Vec::new();
    for (matrix, keys) in family.factors {
        let factor = keys.iter().map(|key| config.number_at(key)).product::<Result<f32, HuggingFaceError>>()?;
        let of_layer = |layer: &str| computed(&format!("{layer}.{matrix}.scale"), &[factor]);
        factors.extend(layers_with(entries, matrix).filter(|_| factor != 1.0).map(of_layer));
    }
    Ok(factors)
}

/// The norms of heads that directories do not store: the same value for all of a head.
pub(super) fn head_norms(config: &Config, family: &Family, entries: &[Entry]) -> Result<Vec<Entry>, HuggingFaceError> {
    let mut norms = Vec::new();
    for (matrix, norm, key) in family.head_norms {
        let values = vec![config.number_at(key)?; config.checked_head_dim()?];
        let of_layer = |layer: &str| computed(&format!("{layer}.{norm}.weight"), &values);
        norms.extend(layers_with(entries, matrix).map(of_layer));
    }
    Ok(norms)
}

/// The starts of the names of a matrix in each layer that has it.
fn layers_with<'a>(entries: &'a [Entry], matrix: &str) -> impl Iterator<Item = &'a str> {
    let end = format!(".{matrix}.weight");
    entries.iter().filter_map(move |(tensor, _)| tensor.name.strip_suffix(&end))
}
