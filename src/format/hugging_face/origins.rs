//! The tensors of a directory as its files store them, and what becomes of each: for a copy of the directory with other values.

use std::path::Path;

use cuelight_shaders::quant::Format;
use cuelight_shaders::quant::integer::IntegerLayout;
use cuelight_shaders::weight::SharedBytes;

use super::described::Described;
use super::error::HuggingFaceError;
use super::family::Family;
use super::layer_sizes::recurrent_layers;
use super::layout;
use super::names::{Fate, Layers, Target, fate};
use super::rules::Op;
use super::scheme;
use super::small_files::SmallFiles;
use super::steps::{HeadCounts, step};
use super::transform::{Step, outcome};
use crate::format::safetensors::{Safetensors, Tensor};
use crate::mapped_file::ModelFiles;

/// A format of 8-bit integers with a scale for each 32 values. What keeps its blocks keeps every row in groups of 32 columns.
fn blocks() -> Option<Format> {
    Format::with_integers(IntegerLayout::new(8, 128, 32))
}

/// The stored tensors of a directory.
pub struct Origins {
    files: Safetensors,
    tensors: Vec<Origin>,
    is_quantized: bool,
}

/// A stored tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    /// As the file describes it.
    pub tensor: Tensor,
    /// What it becomes. Empty for a tensor that is not read, and for the layer that predicts one more token.
    pub uses: Vec<Use>,
}

/// A tensor that a stored tensor becomes, as a whole or in part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Use {
    /// The name of GGUF files.
    pub tensor: String,
    /// How it differs.
    pub change: Change,
}

/// How a tensor differs from the stored one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// It has some rows, or all in another order.
    Rows,
    /// It has also its columns in another order, in groups of 32.
    Columns,
    /// Its values are larger by 1.
    AddOne,
    /// In another way.
    Other,
}

impl Origins {
    /// Opens a directory. Reads headers and configurations only.
    ///
    /// # Errors
    /// [`HuggingFaceError`] naming the file and what is wrong with it or not supported.
    pub fn open(path: &Path) -> Result<Self, HuggingFaceError> {
        let mut small = SmallFiles::new(path.to_owned());
        let Described { config, family, .. } = Described::read(path, &mut small)?;
        let is_quantized = scheme::read(&config, small.json("hf_quant_config.json")?.as_ref())?.is_some();
        let files = layout::weights(path)?;
        let (n_layers, heads) = (config.size("num_hidden_layers")?, HeadCounts::read(&config)?);
        let is_recurrent = recurrent_layers(&config)?;
        let layers = Layers { count: n_layers, is_recurrent: &|layer| is_recurrent.get(layer) == Some(&true) };
        let uses = |tensor: &Tensor| match fate(family, layers, &tensor.name) {
            Fate::Targets(targets) => targets.into_iter().map(|target| used(target, tensor, family, &heads)).collect(),
            Fate::Ignored | Fate::Prediction(_) => Vec::new(),
        };
        let origin = |tensor: &Tensor| Origin { tensor: tensor.clone(), uses: uses(tensor) };
        let tensors = files.tensors().iter().map(origin).collect();
        Ok(Origins { files, tensors, is_quantized })
    }

    /// The tensors, in the order of the files.
    #[must_use]
    pub fn tensors(&self) -> &[Origin] {
        &self.tensors
    }

    /// Whether the config states that weights are quantized.
    #[must_use]
    pub fn is_quantized(&self) -> bool {
        self.is_quantized
    }

    /// The bytes of a tensor of this directory, mapped from its file.
    #[must_use]
    pub fn bytes(&self, tensor: &Tensor) -> Option<SharedBytes> {
        self.files.bytes(tensor)
    }

    /// The files of tensors.
    #[must_use]
    pub fn files(&self) -> ModelFiles {
        ModelFiles::new(self.files.mapped())
    }
}

impl Origin {
    /// The format of its values; `None` for other types than those of unquantized weights.
    #[must_use]
    pub fn format(&self) -> Option<Format> {
        [Format::F32, Format::F16, Format::BF16].into_iter().find(|format| format.name() == self.tensor.dtype.name)
    }
}

fn used(target: Target, tensor: &Tensor, family: &'static Family, heads: &HeadCounts) -> Use {
    let is_bias = target.name.ends_with(".bias");
    let mut shape = tensor.shape.clone();
    let mut change = if target.expert.is_some() && !target.ops.is_empty() { Change::Other } else { Change::Rows };
    for op in target.ops.iter().filter(|op| !(is_bias && **op == Op::Norm)) {
        let Some(step) = step(*op, &shape, family, heads) else { continue };
        let next =
            step.ok().and_then(|step| Some((changed(&step, &shape, change), outcome(&step, blocks()?, &shape)?.1)));
        let Some((next_change, next_shape)) = next else { return Use { tensor: target.name, change: Change::Other } };
        (change, shape) = (next_change, next_shape);
    }
    Use { tensor: target.name, change }
}

/// What differs after a step, for a tensor that differs by `before`.
fn changed(step: &Step, shape: &[usize], before: Change) -> Change {
    let is_of_columns = |axis: usize| axis + 1 == shape.len();
    match (step, before) {
        (Step::Take { axis, .. }, Change::Rows | Change::Columns) if !is_of_columns(*axis) => before,
        (Step::Take { .. }, Change::Rows | Change::Columns) if shape.len() > 1 => Change::Columns,
        (Step::Reshape(new), Change::Rows | Change::Columns) if new.last() == shape.last() => before,
        (Step::AddOne, Change::Rows) => Change::AddOne,
        _ => Change::Other,
    }
}
