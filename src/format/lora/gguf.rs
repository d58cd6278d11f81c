//! Adapters in GGUF files: `NAME.lora_a` [rank, columns] and `NAME.lora_b` [outputs, rank] for each weight `NAME`. A of the token
//! embedding is transposed. Those of experts have a third dimension, the experts.

use std::path::Path;

use super::error::{AdapterError, AdapterFault};
use super::pair::{LoraFile, LoraPair, WeightName};
use crate::format::gguf::{Gguf, Metadata, TensorInfo};

const A: &str = ".lora_a";
const B: &str = ".lora_b";

/// The weight whose A is looked up by token, so that it is stored as [vocabulary, rank].
const TOKEN_EMBEDDING: &str = "token_embd.weight";

/// Opens a GGUF adapter.
pub(super) fn open(path: &Path) -> Result<LoraFile, AdapterError> {
    let gguf = Gguf::open(path)?;
    for (key, expected) in [("general.type", "adapter"), ("adapter.type", "lora")] {
        let found = gguf.optional_str(key)?.unwrap_or("");
        if found != expected {
            return Err(AdapterFault::Kind { key, found: found.to_owned(), expected }.in_file(path));
        }
    }
    let alpha = gguf.optional_f32("adapter.lora.alpha")?.unwrap_or(0.0);
    let architecture = gguf.optional_str("general.architecture")?.map(str::to_owned);
    let pairs = pairs(&gguf, alpha)?;
    Ok(LoraFile { path: path.to_owned(), architecture, pairs })
}

fn pairs(gguf: &Gguf, alpha: f32) -> Result<Vec<LoraPair>, AdapterError> {
    let mut pairs = Vec::new();
    for tensor in gguf.tensors() {
        let name = &tensor.name;
        let (weight, other) = match (name.strip_suffix(A), name.strip_suffix(B)) {
            (Some(weight), _) => (weight, format!("{weight}{B}")),
            (_, Some(weight)) => (weight, format!("{weight}{A}")),
            (None, None) => return Err(AdapterFault::UnknownTensor { tensor: name.clone() }.in_file(gguf.path())),
        };
        if gguf.tensor(&other).is_none() {
            return Err(AdapterFault::MissingHalf { tensor: name.clone(), other }.in_file(gguf.path()));
        }
        let weight = WeightName::Gguf(weight.to_owned());
        let experts = experts(tensor, &weight).map_err(|fault| fault.in_file(gguf.path()))?;
        if name.ends_with(A) {
            let (a, b) = (gguf.weight(name)?, gguf.weight(&other)?);
            // Without an alpha the product is used as it is.
            let scale = if alpha == 0.0 { 1.0 } else { alpha / b.columns as f32 };
            let is_transposed = weight == WeightName::Gguf(TOKEN_EMBEDDING.to_owned());
            pairs.push(LoraPair { weight, a, is_transposed, b, experts, scale });
        }
    }
    Ok(pairs)
}

/// The experts of a tensor with a matrix for each of them; `None` for one matrix.
fn experts(tensor: &TensorInfo, weight: &WeightName) -> Result<Option<usize>, AdapterFault> {
    match tensor.dims[..] {
        [_, _] => Ok(None),
        [_, _, experts] if weight.is_of_experts() && experts > 0 => Ok(usize::try_from(experts).ok()),
        _ => Err(AdapterFault::Dimensions { tensor: tensor.name.clone(), found: tensor.dims.len() }),
    }
}
