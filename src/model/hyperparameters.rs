//! What a file's metadata says about its model.

use cuelight_shaders::experts::{Groups, RouteWeighting, Scoring};

use super::ModelError;
use super::arch::{AttentionScale, Family, RoutingSpec, Windows};
use super::rope::RopeScaling;
use crate::format::gguf::{Gguf, Value};

/// The sizes and constants of a model, checked to be possible.
#[derive(Debug, Clone, PartialEq)]
pub struct HyperParameters {
    /// `general.architecture`.
    pub architecture: String,
    /// Tokens in the vocabulary.
    pub vocab_size: usize,
    /// Longest sequence it was trained on.
    pub context_train: usize,
    /// Layers.
    pub n_layers: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width of the dense feed-forward.
    pub intermediate_size: usize,
    /// The experts of layers that have some.
    pub experts: Option<ExpertSizes>,
    /// Query heads.
    pub n_heads: usize,
    /// Key and value heads.
    pub n_kv_heads: usize,
    /// Values in a head.
    pub head_dim: usize,
    /// Added to the mean square in every norm.
    pub rms_norm_epsilon: f32,
    /// Multiplies attention scores.
    pub attention_scale: f32,
    /// Soft cap on attention scores.
    pub attention_softcap: Option<f32>,
    /// Soft cap on logits.
    pub logit_softcap: Option<f32>,
    /// For each layer, how many positions it sees; `None`: all.
    pub windows: Vec<Option<usize>>,
    /// Values of a head that are rotated.
    pub rotary_dim: usize,
    /// Base of the rotary frequencies.
    pub rope_base: f32,
    /// Base in layers with a window, where the family has one of its own.
    pub rope_base_windowed: Option<f32>,
    /// How the frequencies are stretched for long contexts.
    pub rope_scaling: RopeScaling,
}

/// The experts of a layer, and how rows find them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ExpertSizes {
    /// How many there are.
    pub n_experts: usize,
    /// How many of them a row uses.
    pub top_k: usize,
    /// Width of one expert's feed-forward.
    pub intermediate_size: usize,
    /// How a router's logits become scores.
    pub scoring: Scoring,
    /// The weights of a row's experts add up to 1 before they are scaled.
    pub renormalise: bool,
    /// What multiplies the weights.
    pub scale: f32,
    /// Groups of experts, of which a row looks at some.
    pub groups: Option<Groups>,
    /// Where a weight takes effect.
    pub weighting: RouteWeighting,
}

/// Sizes beyond this are a damaged file: they would only fail later, and less clearly.
const LARGEST_SIZE: usize = 1 << 24;

/// More experts than any model has; their numbers are exact in float32.
const MOST_EXPERTS: usize = 1 << 12;

impl HyperParameters {
    /// Reads them as the family wants them.
    ///
    /// # Errors
    /// [`ModelError`] when a key is missing, of a wrong type, or has an impossible value.
    pub fn read(gguf: &Gguf, family: &Family) -> Result<Self, ModelError> {
        let keys = Keys::new(gguf)?;
        let hidden_size = keys.size("embedding_length")?;
        let n_heads = keys.size("attention.head_count")?;
        let n_kv_heads = keys.optional_size("attention.head_count_kv")?.unwrap_or(n_heads);
        let head_dim = match keys.optional_size("attention.key_length")? {
            Some(head_dim) => head_dim,
            None => hidden_size / n_heads,
        };
        if let Some(value_length) = keys.optional_size("attention.value_length")?
            && value_length != head_dim
        {
            return Err(keys.invalid("attention.value_length", value_length, format!("the key length {head_dim}")));
        }
        if !n_heads.is_multiple_of(n_kv_heads) {
            return Err(keys.invalid("attention.head_count_kv", n_kv_heads, format!("a divisor of {n_heads} heads")));
        }
        let n_layers = keys.layers()?;
        let rotary_dim = keys.optional_size("rope.dimension_count")?.unwrap_or(head_dim);
        if rotary_dim > head_dim || rotary_dim % 2 == 1 {
            return Err(keys.invalid("rope.dimension_count", rotary_dim, format!("even and at most {head_dim}")));
        }
        let attention_scale = match keys.optional_positive("attention.scale")? {
            Some(scale) => scale,
            None => family.attention.scale.value(n_layers, hidden_size, n_heads, head_dim),
        };
        let intermediate_size = keys.size("feed_forward_length")?;
        Ok(HyperParameters {
            vocab_size: vocab_size(gguf)?,
            context_train: keys.size("context_length")?,
            experts: family.routing.map(|routing| keys.experts(routing, intermediate_size)).transpose()?.flatten(),
            intermediate_size,
            rms_norm_epsilon: keys.positive("attention.layer_norm_rms_epsilon")?,
            attention_scale,
            attention_softcap: keys.optional_positive("attn_logit_softcapping")?,
            logit_softcap: keys.optional_positive("final_logit_softcapping")?,
            windows: keys.windows(family.attention.windows, n_layers)?,
            rope_base: keys.optional_positive("rope.freq_base")?.unwrap_or(10_000.0),
            rope_base_windowed: match family.attention.rope_base_windowed {
                Some(base) => Some(keys.optional_positive("rope.freq_base_swa")?.unwrap_or(base)),
                None => None,
            },
            rope_scaling: keys.rope_scaling()?,
            architecture: keys.architecture,
            n_layers,
            hidden_size,
            n_heads,
            n_kv_heads,
            head_dim,
            rotary_dim,
        })
    }
}

/// The vocabulary's size is that of the embedding, which every family has.
fn vocab_size(gguf: &Gguf) -> Result<usize, ModelError> {
    Ok(gguf.weight("token_embd.weight")?.rows)
}

/// The keys of one architecture.
struct Keys<'a> {
    gguf: &'a Gguf,
    architecture: String,
}

impl<'a> Keys<'a> {
    fn new(gguf: &'a Gguf) -> Result<Self, ModelError> {
        Ok(Keys { gguf, architecture: gguf.str("general.architecture")?.to_owned() })
    }

    fn name(&self, key: &str) -> String {
        format!("{}.{key}", self.architecture)
    }

    fn invalid(&self, key: &str, found: impl ToString, expected: impl Into<String>) -> ModelError {
        ModelError::Hyperparameter {
            file: self.gguf.path().display().to_string(),
            key: self.name(key),
            found: found.to_string(),
            expected: expected.into(),
        }
    }

    fn size(&self, key: &str) -> Result<usize, ModelError> {
        let size = self.gguf.u32(&self.name(key))? as usize;
        self.checked_size(key, size)
    }

    /// Layers that are computed: those that predict further tokens come last, and are left out.
    fn layers(&self) -> Result<usize, ModelError> {
        let (all, beyond) = (self.size("block_count")?, self.gguf.optional_u32(&self.name("nextn_predict_layers"))?);
        let beyond = beyond.unwrap_or(0) as usize;
        if beyond < all {
            Ok(all - beyond)
        } else {
            Err(self.invalid("nextn_predict_layers", beyond, format!("below {all}")))
        }
    }

    fn optional_size(&self, key: &str) -> Result<Option<usize>, ModelError> {
        let size = self.gguf.optional_u32(&self.name(key))?;
        size.map(|size| self.checked_size(key, size as usize)).transpose()
    }

    fn checked_size(&self, key: &str, size: usize) -> Result<usize, ModelError> {
        if (1..=LARGEST_SIZE).contains(&size) {
            return Ok(size);
        }
        Err(self.invalid(key, size, format!("between 1 and {LARGEST_SIZE}")))
    }

    fn positive(&self, key: &str) -> Result<f32, ModelError> {
        let value = self.gguf.f32(&self.name(key))?;
        self.checked_positive(key, value)
    }

    /// A value that 0 or absence switches off.
    fn optional_positive(&self, key: &str) -> Result<Option<f32>, ModelError> {
        let value = self.gguf.optional_f32(&self.name(key))?.filter(|value| *value != 0.0);
        value.map(|value| self.checked_positive(key, value)).transpose()
    }

    fn checked_positive(&self, key: &str, value: f32) -> Result<f32, ModelError> {
        if value > 0.0 && value.is_finite() { Ok(value) } else { Err(self.invalid(key, value, "above 0")) }
    }

    /// Which layers have a window: the file's own pattern where it has one, else the family's.
    fn windows(&self, windows: Windows, n_layers: usize) -> Result<Vec<Option<usize>>, ModelError> {
        let window = self.gguf.optional_u32(&self.name("attention.sliding_window"))?.filter(|window| *window > 0);
        let (Some(window), Some(mut global_every)) = (window, windows.global_every()) else {
            return Ok(vec![None; n_layers]);
        };
        let pattern = self.name("attention.sliding_window_pattern");
        match self.gguf.value(&pattern) {
            Some(Value::Array(_)) => {
                let windowed = self.gguf.bools(&pattern)?;
                if windowed.len() != n_layers {
                    let expected = format!("one truth value for each of {n_layers} layers");
                    return Err(self.invalid("attention.sliding_window_pattern", windowed.len(), expected));
                }
                return Ok(windowed.into_iter().map(|windowed| windowed.then_some(window as usize)).collect());
            }
            Some(_) => global_every = self.gguf.u32(&pattern)? as usize,
            None => {}
        }
        let is_global = |layer: usize| global_every > 0 && (layer + 1).is_multiple_of(global_every);
        Ok((0..n_layers).map(|layer| (!is_global(layer)).then_some(window as usize)).collect())
    }

    /// `None` for a model without experts.
    fn experts(&self, routing: RoutingSpec, dense_size: usize) -> Result<Option<ExpertSizes>, ModelError> {
        let n_experts = self.gguf.optional_u32(&self.name("expert_count"))?.unwrap_or(0);
        if n_experts == 0 {
            return Ok(None);
        }
        let n_experts = self.checked_size("expert_count", n_experts as usize)?;
        if n_experts > MOST_EXPERTS {
            return Err(self.invalid("expert_count", n_experts, format!("at most {MOST_EXPERTS}")));
        }
        let top_k = self.size("expert_used_count")?;
        if top_k > n_experts {
            return Err(self.invalid("expert_used_count", top_k, format!("at most {n_experts}, as many as there are")));
        }
        let scoring = match self.gguf.optional_u32(&self.name("expert_gating_func"))? {
            None | Some(0) => routing.scoring,
            Some(1) => Scoring::Softmax,
            Some(2) => Scoring::Sigmoid,
            Some(other) => return Err(self.invalid("expert_gating_func", other, "1 (softmax) or 2 (sigmoid)")),
        };
        let count = self.optional_size("expert_group_count")?.filter(|count| *count > 1);
        let groups = match count {
            Some(count) => Some(Groups { count, used: self.size("expert_group_used_count")? }),
            None => None,
        };
        Ok(Some(ExpertSizes {
            n_experts,
            top_k,
            // Files that do not name it mean the dense width.
            intermediate_size: self.optional_size("expert_feed_forward_length")?.unwrap_or(dense_size),
            scoring,
            renormalise: self.gguf.optional_bool(&self.name("expert_weights_norm"))?.unwrap_or(routing.renormalise),
            scale: self.optional_positive("expert_weights_scale")?.unwrap_or(1.0),
            groups,
            weighting: routing.weighting,
        }))
    }

    fn rope_scaling(&self) -> Result<RopeScaling, ModelError> {
        let factor = match self.optional_positive("rope.scaling.factor")? {
            Some(factor) => factor,
            None => self.optional_positive("rope.scale_linear")?.unwrap_or(1.0),
        };
        let kind = self.gguf.optional_str(&self.name("rope.scaling.type"))?;
        match kind.unwrap_or(if factor == 1.0 { "none" } else { "linear" }) {
            "none" => Ok(RopeScaling::None),
            "linear" => Ok(RopeScaling::Linear { factor }),
            "yarn" => Ok(RopeScaling::Yarn {
                factor,
                original_context: self.size("rope.scaling.original_context_length")?,
                beta_fast: self.optional_positive("rope.scaling.yarn_beta_fast")?.unwrap_or(32.0),
                beta_slow: self.optional_positive("rope.scaling.yarn_beta_slow")?.unwrap_or(1.0),
                attention_factor: self.optional_positive("rope.scaling.attn_factor")?.unwrap_or(1.0),
            }),
            other => Err(self.invalid("rope.scaling.type", format!("{other:?}"), "\"none\", \"linear\" or \"yarn\"")),
        }
    }
}

impl AttentionScale {
    fn value(self, n_layers: usize, hidden_size: usize, n_heads: usize, head_dim: usize) -> f32 {
        let width = match self {
            AttentionScale::HeadDim => head_dim,
            AttentionScale::HeadDimBut { n_layers: deep } if n_layers == deep => hidden_size / n_heads,
            AttentionScale::HeadDimBut { .. } => head_dim,
        };
        1.0 / (width as f32).sqrt()
    }
}

impl Windows {
    /// Every how many layers one sees all; 0: none does. `None` when the family has no windows.
    fn global_every(self) -> Option<usize> {
        match self {
            Windows::Never => None,
            Windows::EveryLayer => Some(0),
            Windows::AllButEvery(layers) => Some(layers),
        }
    }
}
