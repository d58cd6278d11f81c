//! The format of each tensor of a quantized model.

use cuelight_shaders::quant::Format;
use cuelight_shaders::quantize::is_target;

use super::error::QuantizeError;
use super::options::{Override, QuantizeOptions};
use crate::checkpoint::{Checkpoint, TensorInfo};
use crate::format::gguf::GGML_I32;
use crate::quantization_recipe::{Matrix, ModelFacts, Role, fitting, keeps_format, needs_importance};
use crate::tower::file::ARCHITECTURE;

/// A tensor and its new format.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedTensor {
    /// The name.
    pub name: String,
    /// The present format.
    pub from: Format,
    /// The new format; the same for tensors that are copied.
    pub to: Format,
    /// Whether it has 32-bit integers, which are copied. The formats are then float32, which is as wide.
    pub has_integers: bool,
    /// Present bytes.
    pub from_bytes: u64,
    /// New bytes.
    pub to_bytes: u64,
    /// Dimensions, innermost first.
    pub dims: Vec<u64>,
}

/// What a quantization writes.
pub struct QuantizePlan<'a> {
    pub(super) checkpoint: &'a dyn Checkpoint,
    pub(super) options: &'a QuantizeOptions,
    /// The tensors in file order.
    pub tensors: Vec<PlannedTensor>,
}

impl<'a> QuantizePlan<'a> {
    /// Chooses the format of each tensor.
    ///
    /// # Errors
    /// [`QuantizeError`] when a tensor cannot be quantized, or the importance matrix belongs to another model.
    pub fn new(checkpoint: &'a dyn Checkpoint, options: &'a QuantizeOptions) -> Result<Self, QuantizeError> {
        let mut plan = QuantizePlan { checkpoint, options, tensors: Vec::new() };
        let rules = Rules::new(checkpoint, options)?;
        plan.check_overrides()?;
        for tensor in checkpoint.tensors() {
            let planned = plan.plan_tensor(tensor, &rules)?;
            plan.tensors.push(planned);
        }
        Ok(plan)
    }

    /// Bytes of all tensors: at present, and after.
    #[must_use]
    pub fn bytes(&self) -> (u64, u64) {
        self.tensors.iter().fold((0, 0), |(from, to), tensor| (from + tensor.from_bytes, to + tensor.to_bytes))
    }

    /// Number of values.
    #[must_use]
    pub fn values(&self) -> u64 {
        self.tensors.iter().map(|tensor| tensor.dims.iter().product::<u64>()).sum()
    }

    fn plan_tensor(&self, tensor: &TensorInfo, rules: &Rules<'_>) -> Result<PlannedTensor, QuantizeError> {
        let path = || self.checkpoint.path().to_owned();
        if tensor.name.ends_with(".input_order") {
            return Err(QuantizeError::InputOrder { path: path(), tensor: tensor.name.clone() });
        }
        if tensor.ggml_type == GGML_I32 {
            return Ok(planned_integers(tensor));
        }
        let from = self.checkpoint.weight(&tensor.name)?.format;
        let to = rules.format(tensor, from)?;
        // As float32 the values are the same.
        let is_rounded = to != from && to != Format::F32;
        if is_rounded && from.integers().is_some() && !self.options.allow_requantize {
            return Err(QuantizeError::AlreadyQuantized { path: path(), tensor: tensor.name.clone(), format: from });
        }
        if to != from && !is_target(to) {
            let source = cuelight_shaders::quantize::QuantizeError::NotATarget { format: to };
            return Err(QuantizeError::Tensor { path: path(), tensor: tensor.name.clone(), source });
        }
        let columns = tensor.n_columns();
        let row_bytes = usize::try_from(columns).ok().and_then(|columns| to.row_bytes(columns));
        let row_bytes = row_bytes.ok_or_else(|| QuantizeError::Ragged {
            path: path(),
            tensor: tensor.name.clone(),
            columns,
            format: to,
        })?;
        if to != from {
            self.check_importance(&tensor.name, columns, to)?;
        }
        Ok(PlannedTensor {
            name: tensor.name.clone(),
            from,
            to,
            has_integers: false,
            from_bytes: tensor.bytes(),
            to_bytes: row_bytes as u64 * tensor.n_rows(),
            dims: tensor.dims.clone(),
        })
    }
}

/// A tensor of 32-bit integers.
fn planned_integers(tensor: &TensorInfo) -> PlannedTensor {
    let bytes = tensor.bytes();
    PlannedTensor {
        name: tensor.name.clone(),
        from: Format::F32,
        to: Format::F32,
        has_integers: true,
        from_bytes: bytes,
        to_bytes: bytes,
        dims: tensor.dims.clone(),
    }
}

impl PlannedTensor {
    /// The present and the new type, as GGUF files name them.
    #[must_use]
    pub fn types(&self) -> [String; 2] {
        match self.has_integers {
            true => [(); 2].map(|()| "I32".to_owned()),
            false => [self.from, self.to].map(|format| format.to_string()),
        }
    }

    /// ggml's number of the new type.
    pub(super) fn ggml_type(&self) -> u32 {
        if self.has_integers { GGML_I32 } else { self.to.ggml_id() }
    }
}

impl QuantizePlan<'_> {
    /// Checks that each override is for a matrix: a pattern that matches none is a mistake.
    fn check_overrides(&self) -> Result<(), QuantizeError> {
        let is_used = |given: &&Override| {
            self.checkpoint.tensors().iter().any(|tensor| is_matrix(tensor) && given.applies(&tensor.name))
        };
        match self.options.overrides.iter().find(|given| !is_used(given)) {
            None => Ok(()),
            Some(unused) => Err(QuantizeError::UnusedPattern {
                path: self.checkpoint.path().to_owned(),
                pattern: unused.pattern().to_owned(),
            }),
        }
    }

    /// Checks that the importance of a tensor belongs to it, and that there is one if the format needs it.
    fn check_importance(&self, tensor: &str, columns: u64, to: Format) -> Result<(), QuantizeError> {
        let importance = self.options.importance.as_ref();
        if needs_importance(Role::of(tensor, false), to) && importance.is_none_or(|all| all.of(tensor, 0).is_none()) {
            let path = self.checkpoint.path().to_owned();
            return Err(QuantizeError::NeedsImportance { path, tensor: tensor.to_owned(), format: to });
        }
        match importance {
            Some(importance) => importance.check(tensor, usize::try_from(columns).unwrap_or(usize::MAX)),
            None => Ok(()),
        }
    }
}

/// What decides about the format of a tensor.
struct Rules<'a> {
    options: &'a QuantizeOptions,
    model: ModelFacts,
    is_tied: bool,
    /// Whether the tensors are those of encoders of images or audio.
    of_encoders: bool,
    /// The layers that have a value projection: its place among them counts, not its layer.
    value_layers: Vec<usize>,
}

impl<'a> Rules<'a> {
    fn new(checkpoint: &dyn Checkpoint, options: &'a QuantizeOptions) -> Result<Self, QuantizeError> {
        let architecture = checkpoint.str("general.architecture")?;
        let number =
            |key: &str| checkpoint.optional_u32(&format!("{architecture}.{key}")).ok().flatten().unwrap_or(1).max(1);
        let value_layers = checkpoint.tensors().iter().filter(|tensor| Role::of(&tensor.name, false) == Role::Values);
        let model = ModelFacts {
            n_layers: number("block_count") as usize,
            queries_per_key: (number("attention.head_count") / number("attention.head_count_kv")) as usize,
            has_experts: number("expert_count") > 1,
            has_importance: options.importance.is_some(),
        };
        Ok(Rules {
            options,
            model,
            is_tied: checkpoint.tensor("output.weight").is_none(),
            of_encoders: architecture == ARCHITECTURE,
            value_layers: value_layers.map(|tensor| layer(&tensor.name)).collect(),
        })
    }

    /// The new format of a tensor.
    fn format(&self, tensor: &TensorInfo, from: Format) -> Result<Format, QuantizeError> {
        let is_matrix = is_matrix(tensor);
        let keeps = keeps_format(&tensor.name) || (self.of_encoders && !is_of_encoder_layer(&tensor.name));
        if let Some(given) = self.options.overrides.iter().find(|given| is_matrix && given.applies(&tensor.name)) {
            return Ok(given.format);
        }
        let Some(target) = self.options.target else {
            return Ok(if from.is_in_gguf() { from } else { Format::F32 });
        };
        if !is_matrix || keeps {
            return Ok(if from.is_in_gguf() { from } else { Format::F32 });
        }
        let role = Role::of(&tensor.name, self.is_tied);
        let (layer, n_layers) = match role {
            Role::Values => self.place_among_values(layer(&tensor.name)),
            _ => (layer(&tensor.name), self.model.n_layers),
        };
        let columns = usize::try_from(tensor.n_columns()).unwrap_or(usize::MAX);
        let matrix = Matrix { role, layer, is_routed: tensor.name.contains("_exps."), columns };
        let format = target.recipe().format(&matrix, &ModelFacts { n_layers, ..self.model });
        Ok(fitting(format, columns))
    }

    fn place_among_values(&self, layer: usize) -> (usize, usize) {
        let place = self.value_layers.iter().filter(|other| **other < layer).count();
        (place, self.value_layers.len())
    }
}

/// Whether the format of a tensor can be chosen.
fn is_matrix(tensor: &TensorInfo) -> bool {
    tensor.dims.len() > 1 && tensor.name.ends_with(".weight")
}

/// Whether a tensor of encoders is a matrix of the attention or the feed-forward of a layer. Others are small, or no matrices of
/// products.
fn is_of_encoder_layer(name: &str) -> bool {
    name.contains(".blk.") && !matches!(Role::of(name, false), Role::Other | Role::Embedding | Role::Head)
}

/// The layer of a tensor; 0 outside the layers.
fn layer(name: &str) -> usize {
    name.strip_prefix("blk.").and_then(|rest| rest.split('.').next()?.parse().ok()).unwrap_or(0)
}
