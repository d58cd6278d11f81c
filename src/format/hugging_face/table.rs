//! The table of tensors under the names of GGUF files, each with its bytes: mapped, or made when they are first read.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use cuelight_shaders::quant::Format;
use cuelight_shaders::weight::SharedBytes;

use super::derived::{Derived, Part};
use super::error::{HuggingFaceError, HuggingFaceFault};
use super::family::Family;
use super::names::{Fate, Target};
use super::numbers;
use super::rules::Op;
use super::steps::{HeadCounts, step};
use super::stored::Stored;
use super::transform::{Step, outcome};
use crate::format::gguf::TensorInfo;
use crate::format::safetensors::Safetensors;

/// The ends of the names of output matrices.
const OUTPUTS: [&str; 3] = ["lm_head.weight", "embed_out.weight", "proj_out.weight"];

/// A tensor and its bytes.
pub(super) type Entry = (TensorInfo, SharedBytes);

/// A tensor of a file that becomes a tensor of the table, or an expert's part or a factor of one.
#[derive(Clone, Copy)]
struct Source<'a> {
    tensor: &'a Stored<'a>,
    expert: Option<usize>,
    ops: &'static [Op],
}

/// What the tensors of a model become.
pub(super) struct Table<'a> {
    pub files: &'a Safetensors,
    pub stored: &'a [Stored<'a>],
    pub family: &'static Family,
    pub model_type: &'a str,
    /// What becomes of a tensor with this name.
    pub fate: &'a dyn Fn(&str) -> Fate,
    pub heads: HeadCounts,
    /// Whether the output matrix is the embedding, even if the files have another.
    pub is_tied: bool,
    /// Matrices whose rows get the length 1.
    pub unit_rows: Vec<&'static str>,
}

impl Table<'_> {
    /// All tensors of the model, in the order of the files.
    pub(super) fn entries(&self) -> Result<Vec<Entry>, HuggingFaceError> {
        self.entries_of(|fate| if let Fate::Targets(targets) = fate { Some(targets) } else { None })
    }

    /// The tensors of the layer that predicts one more token. None if the model has no such layer, or one that is not known: the
    /// model is complete without it.
    pub(super) fn prediction_entries(&self) -> Vec<Entry> {
        let entries = self.entries_of(|fate| if let Fate::Prediction(targets) = fate { Some(targets) } else { None });
        entries.unwrap_or_default()
    }

    /// The tensors of the fates that `choose` chooses, in the order of the files.
    fn entries_of(&self, choose: impl Fn(Fate) -> Option<Vec<Target>>) -> Result<Vec<Entry>, HuggingFaceError> {
        let mut groups: Vec<(String, Vec<Source<'_>>)> = Vec::new();
        let mut by_name: HashMap<String, usize> = HashMap::new();
        for tensor in self.stored {
            if self.is_tied && OUTPUTS.iter().any(|output| tensor.name.ends_with(output)) {
                continue;
            }
            let Some(targets) = choose((self.fate)(&tensor.name)) else { continue };
            if targets.is_empty() {
                let (tensor_name, model_type) = (tensor.name.clone(), self.model_type.to_owned());
                return Err(self.fault(tensor, HuggingFaceFault::UnknownTensor { tensor: tensor_name, model_type }));
            }
            for target in targets {
                let source = Source { tensor, expert: target.expert, ops: target.ops };
                let next = groups.len();
                let group = *by_name.entry(target.name.clone()).or_insert(next);
                if group == next {
                    groups.push((target.name, Vec::new()));
                }
                groups[group].1.push(source);
            }
        }
        let factors: Vec<Entry> = groups.iter().filter_map(|(name, sources)| factors(name, sources)).collect();
        let orders: Vec<Entry> = groups.iter().filter_map(|(name, sources)| order(name, sources)).collect();
        let entries = groups.into_iter().map(|(name, sources)| self.entry(name, sources));
        entries.chain(factors.into_iter().chain(orders).map(Ok)).collect()
    }

    fn fault(&self, stored: &Stored<'_>, fault: HuggingFaceFault) -> HuggingFaceError {
        fault.in_file(self.files.path(stored.tensor))
    }

    /// The tensor `name`, made of `sources`: one, or one of each expert.
    fn entry(&self, name: String, mut sources: Vec<Source<'_>>) -> Result<Entry, HuggingFaceError> {
        sources.sort_by_key(|source| source.expert);
        let first = sources[0];
        if first.ops == [Op::Numbers] {
            return numbers::entry(&name, self.files, first.tensor.tensor).ok_or_else(|| self.wrong_type(first.tensor));
        }
        self.check_sources(&sources)?;
        let format = self.format(first.tensor)?;
        let mut shape = first.tensor.shape.clone();
        if first.expert.is_some() {
            shape.insert(0, sources.len());
        }
        let (stored_shape, stored_format) = (shape.clone(), format);
        let order = first.tensor.packed.as_ref().and_then(|packed| packed.order.as_ref());
        let (mut format, mut steps) = (format, Vec::new());
        for op in first.ops {
            let is_bias = name.ends_with(".bias");
            let Some(step) = step(*op, &shape, self.family, &self.heads).filter(|_| !(is_bias && *op == Op::Norm))
            else {
                continue;
            };
            let changed = step.ok().and_then(|step| Some((outcome(&step, format, &shape)?, step)));
            let Some(((new_format, new_shape), step)) = changed else {
                return Err(self.wrong_shape(first.tensor));
            };
            (format, shape) = (new_format, new_shape);
            steps.push(step);
        }
        if self.unit_rows.contains(&&*name) {
            (format, shape) = outcome(&Step::UnitRows, format, &shape).ok_or_else(|| self.wrong_shape(first.tensor))?;
            steps.push(Step::UnitRows);
        }
        // The columns of the matrix stay the inputs of one projection of a layer.
        let keeps_columns = |step: &Step| matches!(step, Step::Take { axis: 0, .. });
        let is_projection = first.expert.is_none() && name.starts_with("blk.") && steps.iter().all(keeps_columns);
        if order.is_some() && !is_projection {
            return Err(self.fault(first.tensor, HuggingFaceFault::OrderedInputs { tensor: first.tensor.name.clone() }));
        }
        let byte_len = format.row_bytes(shape.iter().product()).ok_or_else(|| self.wrong_shape(first.tensor))?;
        let parts = sources.iter().map(|source| self.part(source.tensor)).collect::<Option<Vec<_>>>();
        let bytes = match <[Part; 1]>::try_from(parts.unwrap_or_default()) {
            Ok([Part::Mapped(mapped)]) if steps.is_empty() => Some(mapped),
            Ok([part]) => self.derived(vec![part], (stored_format, stored_shape), steps, byte_len),
            Err(all) => self.derived(all, (stored_format, stored_shape), steps, byte_len),
        };
        let bytes = bytes.ok_or_else(|| self.wrong_shape(first.tensor))?;
        let dims = shape.iter().rev().map(|&size| size as u64).collect();
        let (shard, start) = (first.tensor.tensor.shard, first.tensor.tensor.range.start as u64);
        let n_bytes = Some(byte_len as u64);
        Ok((TensorInfo { name, dims, ggml_type: format.ggml_id(), shard, start, n_bytes }, bytes))
    }

    fn part(&self, stored: &Stored<'_>) -> Option<Part> {
        match &stored.packed {
            Some(packed) => Some(Part::Packed(Arc::clone(&packed.source))),
            None => self.files.bytes(stored.tensor).map(Part::Mapped),
        }
    }

    fn derived(
        &self,
        sources: Vec<Part>,
        (format, shape): (Format, Vec<usize>),
        steps: Vec<Step>,
        byte_len: usize,
    ) -> Option<SharedBytes> {
        let derived = Derived { sources, format, shape, steps, byte_len, made: OnceLock::new() };
        SharedBytes::new(Arc::new(derived), 0..byte_len)
    }

    fn wrong_shape(&self, tensor: &Stored<'_>) -> HuggingFaceError {
        let (name, shape) = (tensor.name.clone(), tensor.shape.clone());
        self.fault(tensor, HuggingFaceFault::TensorShape { tensor: name, shape })
    }

    /// Checks that there is one source, or one of each expert or factor, all of one type and of one shape but for axes of length 1.
    fn check_sources(&self, sources: &[Source<'_>]) -> Result<(), HuggingFaceError> {
        let first = sources[0].tensor;
        if first.shape.contains(&0) {
            return Err(self.wrong_shape(first));
        }
        for (index, source) in sources.iter().enumerate() {
            let (tensor, other) = (source.tensor.name.clone(), first.name.clone());
            match source.expert {
                None if index > 0 => {
                    return Err(self.fault(source.tensor, HuggingFaceFault::SameTensor { tensor, other }));
                }
                Some(expert) if expert != index => {
                    let fault = HuggingFaceFault::MissingExpert { tensors: tensor, expert: index };
                    return Err(self.fault(source.tensor, fault));
                }
                _ if !is_of_shape(source.tensor, first) || self.format(source.tensor)? != self.format(first)? => {
                    return Err(self.wrong_shape(source.tensor));
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn format(&self, tensor: &Stored<'_>) -> Result<Format, HuggingFaceError> {
        if let Some(packed) = &tensor.packed {
            return Ok(packed.format);
        }
        match tensor.tensor.dtype.name {
            "F32" => Ok(Format::F32),
            "F16" => Ok(Format::F16),
            "BF16" => Ok(Format::BF16),
            _ => Err(self.wrong_type(tensor)),
        }
    }

    fn wrong_type(&self, tensor: &Stored<'_>) -> HuggingFaceError {
        let (name, dtype) = (tensor.name.clone(), tensor.tensor.dtype.name.to_owned());
        self.fault(tensor, HuggingFaceFault::TensorType { tensor: name, dtype })
    }
}

/// Whether two tensors have one shape, but for axes of length 1.
fn is_of_shape(tensor: &Stored<'_>, other: &Stored<'_>) -> bool {
    let longer = |tensor: &Stored<'_>| tensor.shape.iter().copied().filter(|length| *length > 1).collect::<Vec<_>>();
    longer(tensor) == longer(other)
}

/// A tensor of values that are known.
pub(super) fn computed(name: &str, values: &[f32]) -> Entry {
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    let (dims, n_bytes) = (vec![values.len() as u64], Some(bytes.len() as u64));
    let ggml_type = Format::F32.ggml_id();
    (TensorInfo { name: name.to_owned(), dims, ggml_type, shard: 0, start: 0, n_bytes }, bytes.into())
}

/// The tensor of the factors of a matrix, or of those of all experts; `None` for a matrix without one.
fn factors(name: &str, sources: &[Source<'_>]) -> Option<Entry> {
    let mut sources = sources.to_vec();
    sources.sort_by_key(|source| source.expert);
    let of_sources = sources.iter().map(|source| source.tensor.packed.as_ref()?.factor);
    Some(computed(&format!("{}.scale", name.strip_suffix(".weight")?), &of_sources.collect::<Option<Vec<f32>>>()?))
}

/// The tensor of the inputs of a matrix in the order of its columns; `None` for a matrix with its inputs in their own order.
fn order(name: &str, sources: &[Source<'_>]) -> Option<Entry> {
    let order = sources.first()?.tensor.packed.as_ref()?.order.as_ref()?;
    let inputs: Vec<f32> = order.iter().map(|input| *input as f32).collect();
    Some(computed(&format!("{}.input_order", name.strip_suffix(".weight")?), &inputs))
}
