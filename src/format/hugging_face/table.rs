//! The table of tensors under the names of GGUF files, each with its bytes: mapped, or made when they are first read.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use cuelight_shaders::quant::Format;
use cuelight_shaders::weight::SharedBytes;

use super::config::Config;
use super::derived::{Derived, Part};
use super::error::{HuggingFaceError, HuggingFaceFault};
use super::families::Family;
use super::names::{Fate, fate};
use super::rules::{Heads, Op};
use super::stored::Stored;
use super::transform::{Step, outcome};
use crate::format::gguf::TensorInfo;
use crate::format::safetensors::Safetensors;

/// A tensor and its bytes.
pub(super) type Entry = (TensorInfo, SharedBytes);

/// A tensor of a file that becomes a tensor of the table, or an expert's part of one.
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
    pub n_layers: usize,
    pub heads: HeadCounts,
    /// Whether the output matrix is the embedding, even if the files have another.
    pub is_tied: bool,
}

/// The numbers of heads that decide the order of rows.
#[derive(Debug, Clone, Copy, Default)]
pub struct HeadCounts {
    /// Heads of queries.
    pub query: usize,
    /// Heads of keys.
    pub key: usize,
    /// Heads of keys and values of the gated delta rule, and the length of those of keys.
    pub delta: [usize; 3],
}

impl HeadCounts {
    pub(super) fn read(config: &Config) -> Result<Self, HuggingFaceError> {
        let size = |key: &str| config.u32(key).map(|size| size.unwrap_or(0) as usize);
        let query = config.size("num_attention_heads")?;
        let delta = [size("linear_num_key_heads")?, size("linear_num_value_heads")?, size("linear_key_head_dim")?];
        Ok(HeadCounts { query, key: config.u32("num_key_value_heads")?.map_or(query, |heads| heads as usize), delta })
    }
}

impl Table<'_> {
    /// All tensors, in the order of the files.
    pub(super) fn entries(&self) -> Result<Vec<Entry>, HuggingFaceError> {
        let mut groups: Vec<(String, Vec<Source<'_>>)> = Vec::new();
        let mut by_name: HashMap<String, usize> = HashMap::new();
        for tensor in self.stored {
            if self.is_tied && tensor.name.ends_with("lm_head.weight") {
                continue;
            }
            let Fate::Targets(targets) = fate(self.family, self.n_layers, &tensor.name) else { continue };
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
        let entries = groups.into_iter().map(|(name, sources)| self.entry(name, sources));
        entries.chain(factors.into_iter().map(Ok)).collect()
    }

    fn fault(&self, stored: &Stored<'_>, fault: HuggingFaceFault) -> HuggingFaceError {
        fault.in_file(self.files.path(stored.tensor))
    }

    /// The tensor `name`, made of `sources`: one, or one of each expert.
    fn entry(&self, name: String, mut sources: Vec<Source<'_>>) -> Result<Entry, HuggingFaceError> {
        sources.sort_by_key(|source| source.expert);
        let first = sources[0];
        self.check_sources(&sources)?;
        let format = self.format(first.tensor)?;
        let mut shape = first.tensor.shape.clone();
        if first.expert.is_some() {
            shape.insert(0, sources.len());
        }
        let (stored_shape, stored_format) = (shape.clone(), format);
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

    /// Checks that there is one source, or one of each expert, all of one shape and type.
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
                _ if (&source.tensor.shape, self.format(source.tensor)?) != (&first.shape, self.format(first)?) => {
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
            dtype => {
                let (name, dtype) = (tensor.name.clone(), dtype.to_owned());
                Err(self.fault(tensor, HuggingFaceFault::TensorType { tensor: name, dtype }))
            }
        }
    }
}

/// What an op does to a tensor of this shape; `None` for nothing, and an error where the shape does not allow it.
pub(super) fn step(op: Op, shape: &[usize], family: &Family, heads: &HeadCounts) -> Option<Result<Step, ()>> {
    let from_innermost = |axis: usize| shape.len().checked_sub(axis + 1).ok_or(());
    let take = |axis: usize, indices: Vec<usize>| Step::Take { axis, indices };
    Some(match op {
        Op::Norm => {
            return family.norms_lack_one.then_some(Ok(Step::AddOne));
        }
        Op::FromFirstPosition if family.first_position == 0 => return None,
        Op::FromFirstPosition => match shape.first() {
            Some(rows) if *rows > family.first_position => Ok(take(0, (family.first_position..*rows).collect())),
            _ => Err(()),
        },
        Op::NegExp => Ok(Step::NegExp),
        Op::Transpose => Ok(Step::Transpose),
        Op::Half { part, axis } => from_innermost(axis).and_then(|axis| {
            let half = Some(shape[axis] / 2).filter(|half| 2 * half == shape[axis]).ok_or(())?;
            Ok(take(axis, (part * half..(part + 1) * half).collect()))
        }),
        Op::EverySecond { first, axis } => from_innermost(axis)
            .and_then(|axis| if shape[axis].is_multiple_of(2) { Ok(axis) } else { Err(()) })
            .map(|axis| take(axis, (first..shape[axis]).step_by(2).collect())),
        Op::RotaryRows(of) => {
            let heads = if of == Heads::Query { heads.query } else { heads.key };
            rotary_rows(shape.first().copied().unwrap_or(0), heads).map(|indices| take(0, indices)).ok_or(())
        }
        Op::ValueHeads { axis, after_keys } => {
            let [keys, values, key_dim] = heads.delta;
            let before = if after_keys { keys.saturating_mul(key_dim).saturating_mul(2) } else { 0 };
            let length = shape.get(axis).copied().unwrap_or(0);
            value_heads(length, before, [keys, values]).map(|indices| take(axis, indices)).ok_or(())
        }
    })
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

/// The rows of heads, from pairs in two halves to pairs of neighbours. `None` when the heads do not divide the rows.
fn rotary_rows(rows: usize, heads: usize) -> Option<Vec<usize>> {
    let half = rows.checked_div(heads.checked_mul(2)?).filter(|half| half * 2 * heads == rows)?;
    let of_pair = move |head: usize, pair: usize| [0, 1].map(|side| head * 2 * half + side * half + pair);
    Some((0..heads).flat_map(|head| (0..half).flat_map(move |pair| of_pair(head, pair))).collect())
}

/// The indices after the first `before`, reordered so that the key head of value heads changes fastest.
fn value_heads(length: usize, before: usize, [keys, values]: [usize; 2]) -> Option<Vec<usize>> {
    let of_key = values.checked_div(keys).filter(|of_key| of_key * keys == values)?;
    let size = length.checked_sub(before)?.checked_div(values)?;
    if size * values + before != length {
        return None;
    }
    let of_head = move |head: usize| before + head * size..before + (head + 1) * size;
    let heads = (0..of_key).flat_map(|value| (0..keys).map(move |key| key * of_key + value));
    Some((0..before).chain(heads.flat_map(of_head)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_of_a_head_become_neighbours() {
        assert_eq!(rotary_rows(8, 2), Some(vec![0, 2, 1, 3, 4, 6, 5, 7]));
        for (rows, heads) in [(8, 3), (6, 2), (8, 0)] {
            assert_eq!(rotary_rows(rows, heads), None, "{rows} rows of {heads} heads");
        }
    }

    #[test]
    fn the_key_head_of_value_heads_changes_fastest() {
        assert_eq!(value_heads(4, 0, [2, 4]), Some(vec![0, 2, 1, 3]));
        assert_eq!(value_heads(10, 2, [2, 4]), Some(vec![0, 1, 2, 3, 6, 7, 4, 5, 8, 9]));
        for (length, before, heads) in [(5, 0, [2, 4]), (4, 5, [2, 4]), (4, 0, [0, 4]), (4, 0, [3, 4]), (4, 0, [2, 0])]
        {
            assert_eq!(value_heads(length, before, heads), None, "{length}, {before}, {heads:?}");
        }
    }
}
