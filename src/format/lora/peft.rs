//! Adapters in directories of PEFT: `adapter_config.json` and `adapter_model.safetensors`.

use std::path::Path;

use cuelight_shaders::quant::Format;
use cuelight_shaders::weight::Weight;

use super::error::{AdapterError, AdapterFault};
use super::pair::{LoraFile, LoraPair, WeightName};
use super::peft_config::PeftConfig;
use crate::format::safetensors::{Safetensors, Tensor};

const CONFIG: &str = "adapter_config.json";
const WEIGHTS: &str = "adapter_model.safetensors";
const PICKLED: &str = "adapter_model.bin";

/// What PEFT puts before the names of the model's modules.
const PREFIX: &str = "base_model.model.";
/// The ends of the names of A and B: of a projection, and of an embedding, whose columns are the vocabulary.
const HALVES: [[&str; 2]; 2] = [[".lora_A.weight", ".lora_B.weight"], [".lora_embedding_A", ".lora_embedding_B"]];
/// The end of the name of a copy of the model's own weight, which PEFT adds where an adapter changes an embedding or the head.
const BASE: &str = ".base_layer.weight";

/// Opens a PEFT directory.
pub(super) fn open(folder: &Path) -> Result<LoraFile, AdapterError> {
    let config = folder.join(CONFIG);
    if !config.is_file() {
        return Err(AdapterFault::NoConfig.in_file(folder));
    }
    let config = PeftConfig::read(&config)?;
    let path = folder.join(WEIGHTS);
    if !path.is_file() {
        let is_pickled = folder.join(PICKLED).is_file();
        let fault = if is_pickled { AdapterFault::PickleOnly { file: PICKLED } } else { AdapterFault::NoWeights };
        return Err(fault.in_file(folder));
    }
    let files = Safetensors::open_file(&path)?;
    let pairs = pairs(&files, &config).map_err(|fault| fault.in_file(&path))?;
    Ok(LoraFile { path: folder.to_owned(), architecture: None, pairs })
}

fn pairs(files: &Safetensors, config: &PeftConfig) -> Result<Vec<LoraPair>, AdapterFault> {
    let mut pairs = Vec::new();
    for tensor in files.tensors().iter().filter(|tensor| !tensor.name.ends_with(BASE)) {
        let name = &tensor.name;
        let halves = HALVES.iter().flat_map(|[a, b]| [[a, b], [b, a]]);
        let found = halves.filter_map(|[own, other]| Some((name.strip_suffix(*own)?, *own, *other))).next();
        let Some((stem, own, end)) = found else {
            return Err(AdapterFault::UnknownTensor { tensor: name.clone() });
        };
        let other = format!("{stem}{end}");
        let Some(half) = files.tensor(&other) else {
            return Err(AdapterFault::MissingHalf { tensor: name.clone(), other });
        };
        if HALVES.iter().any(|[_, b]| *b == own) {
            continue;
        }
        let module = stem.strip_prefix(PREFIX).unwrap_or(stem);
        let (stated, scale) = config.rank_and_scale(module);
        let (a, b) = (matrix(files, tensor)?, matrix(files, half)?);
        if a.rows != stated {
            return Err(AdapterFault::Rank { tensor: name.clone(), found: a.rows, stated });
        }
        let weight = WeightName::HuggingFace(format!("{module}.weight"));
        pairs.push(LoraPair { weight, a, is_transposed: false, b, experts: None, scale });
    }
    Ok(pairs)
}

fn matrix(files: &Safetensors, tensor: &Tensor) -> Result<Weight, AdapterFault> {
    let name = &tensor.name;
    let dtype = tensor.dtype.name;
    let wrong_type = || AdapterFault::TensorType { tensor: name.clone(), dtype: dtype.to_owned() };
    let [rows, columns] = tensor.shape[..] else {
        return Err(AdapterFault::Dimensions { tensor: name.clone(), found: tensor.shape.len() });
    };
    let format = match dtype {
        "F32" => Format::F32,
        "F16" => Format::F16,
        "BF16" => Format::BF16,
        _ => return Err(wrong_type()),
    };
    let bytes = files.bytes(tensor).ok_or_else(wrong_type)?;
    Weight::new(name, format, rows, columns, bytes).map_err(|_| wrong_type())
}
