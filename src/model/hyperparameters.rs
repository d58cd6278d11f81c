//! The hyperparameters of a model, read from the file's metadata and checked.

use cuelight_shaders::attention::Window;
use cuelight_shaders::experts::{Groups, RouteWeighting, Scoring};

use super::arch::{AttentionScale, ExpertPlacement, Family, Mixer, QkNorm, Rotation, RoutingSpec, Windows, YarnRamp};
use super::error::ModelError;
use super::rope::{RopeScaling, yarn_magnitude};
use crate::format::gguf::{Gguf, Value};

/// The sizes and constants of a model. Every value is within its allowed range.
#[derive(Debug, Clone, PartialEq)]
pub struct HyperParameters {
    /// The value of `general.architecture`.
    pub architecture: String,
    /// Tokens in the vocabulary.
    pub vocab_size: usize,
    /// The longest sequence in training, in tokens.
    pub context_train: usize,
    /// Number of layers.
    pub n_layers: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width of the dense feed-forward.
    pub intermediate_size: usize,
    /// Sizes and routing of experts, in models that have them.
    pub experts: Option<ExpertSizes>,
    /// Number of query heads.
    pub n_heads: usize,
    /// The heads of each layer.
    pub heads: Vec<Heads>,
    /// The sizes of latent attention, in models that have it.
    pub latent: Option<LatentSizes>,
    /// Whether heads of queries and keys are normalised after rotation, without weight.
    pub norms_rotated_heads: bool,
    /// Added to the mean square in every norm.
    pub rms_norm_epsilon: f32,
    /// The factor on attention scores.
    pub attention_scale: f32,
    /// Soft cap on attention scores.
    pub attention_softcap: Option<f32>,
    /// Soft cap on logits.
    pub logit_softcap: Option<f32>,
    /// The attention window of each layer; `None` for full attention.
    pub windows: Vec<Option<Window>>,
    /// How layers without rotation scale their queries by position.
    pub position_scale: Option<PositionScale>,
    /// Base of the rotary frequencies.
    pub rope_base: f32,
    /// Base of the rotary frequencies in windowed layers, where it differs.
    pub rope_base_windowed: Option<f32>,
    /// How rotary frequencies are scaled for long contexts.
    pub rope_scaling: RopeScaling,
}

/// The heads of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Heads {
    /// Number of key and value heads.
    pub n_kv_heads: usize,
    /// Values in a head; with latent attention, those of the latent vector and of the rotated section.
    pub head_dim: usize,
    /// Rotated values in a head.
    pub rotary_dim: usize,
}

/// The sizes of latent attention, without the rotated section.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LatentSizes {
    /// Length of the latent vector.
    pub rank: usize,
    /// Length of a head's key without the rotated section.
    pub key_dim: usize,
    /// Length of a head's value.
    pub value_dim: usize,
}

/// How queries are scaled by their position.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PositionScale {
    /// Positions between two increments.
    pub step: u32,
    /// Strength of an increment.
    pub strength: f32,
}

/// The sizes of a layer's experts and how rows are routed to them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ExpertSizes {
    /// Experts in a layer.
    pub n_experts: usize,
    /// Experts that a row is routed to.
    pub top_k: usize,
    /// Width of one expert's feed-forward.
    pub intermediate_size: usize,
    /// How a router's logits become scores.
    pub scoring: Scoring,
    /// Whether the weights of a row's experts are made to sum to 1 before `scale` applies.
    pub renormalise: bool,
    /// The factor on the weights.
    pub scale: f32,
    /// Groups of experts; a row considers only some of them.
    pub groups: Option<Groups>,
    /// Whether a weight applies to an expert's input or output.
    pub weighting: RouteWeighting,
    /// Whether experts replace the dense feed-forward or run in parallel to it.
    pub placement: ExpertPlacement,
}

/// A larger size means a damaged file, which would otherwise fail later with a less clear error.
const LARGEST_SIZE: usize = 1 << 24;

/// Most experts in a layer. Expert indices up to this are exact in float32.
const MOST_EXPERTS: usize = 1 << 12;

impl HyperParameters {
    /// Reads the hyperparameters that the family needs.
    ///
    /// # Errors
    /// [`ModelError`] when a key is missing, of a wrong type, or has an impossible value.
    pub fn read(gguf: &Gguf, family: &Family) -> Result<Self, ModelError> {
        let keys = Keys::new(gguf)?;
        let hidden_size = keys.size("embedding_length")?;
        let (n_heads, n_layers) = (keys.size("attention.head_count")?, keys.layers()?);
        let windows = keys.windows(family.attention.windows, n_layers)?;
        let heads = keys.heads(n_heads, hidden_size / n_heads, &windows)?;
        let latent = match family.mixer {
            Mixer::GroupedQueryAttention => None,
            Mixer::LatentAttention => Some(keys.latent(heads[0])?),
        };
        let key_dim = latent.map_or(heads[0].head_dim, |latent| latent.key_dim + heads[0].rotary_dim);
        let attention_scale = match keys.optional_positive("attention.scale")? {
            Some(scale) => scale,
            None => family.attention.scale.value(hidden_size, n_heads, key_dim) * keys.yarn_score_scale()?,
        };
        keys.refuse_shared_keys()?;
        let intermediate_size = keys.size("feed_forward_length")?;
        Ok(HyperParameters {
            vocab_size: vocab_size(gguf)?,
            context_train: keys.size("context_length")?,
            experts: family.routing.map(|routing| keys.experts(routing, intermediate_size)).transpose()?.flatten(),
            intermediate_size,
            rms_norm_epsilon: keys.positive("attention.layer_norm_rms_epsilon")?,
            norms_rotated_heads: keys.norms_rotated_heads(family.attention.qk_norm)?,
            attention_scale,
            attention_softcap: keys.optional_positive("attn_logit_softcapping")?,
            logit_softcap: keys.optional_positive("final_logit_softcapping")?,
            position_scale: keys.position_scale(family.attention.rotation, &windows)?,
            windows,
            rope_base: keys.optional_positive("rope.freq_base")?.unwrap_or(10_000.0),
            rope_base_windowed: match family.attention.rope_base_windowed {
                Some(base) => Some(keys.optional_positive("rope.freq_base_swa")?.unwrap_or(base)),
                None => None,
            },
            rope_scaling: keys.rope_scaling(family.attention.yarn_ramp)?,
            architecture: keys.architecture,
            n_layers,
            hidden_size,
            n_heads,
            heads,
            latent,
        })
    }
}

/// The vocabulary's size: the number of rows of the embedding.
fn vocab_size(gguf: &Gguf) -> Result<usize, ModelError> {
    Ok(gguf.weight("token_embd.weight")?.rows)
}

/// The keys of a file's architecture.
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

    /// The number of layers without those for multi-token prediction, which come last and are not computed.
    fn layers(&self) -> Result<usize, ModelError> {
        let (all, extra) = (self.size("block_count")?, self.gguf.optional_u32(&self.name("nextn_predict_layers"))?);
        let extra = extra.unwrap_or(0) as usize;
        if extra < all {
            Ok(all - extra)
        } else {
            Err(self.invalid("nextn_predict_layers", extra, format!("below {all}")))
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

    /// A positive value; `None` when it is 0 or absent.
    fn optional_positive(&self, key: &str) -> Result<Option<f32>, ModelError> {
        let value = self.gguf.optional_f32(&self.name(key))?.filter(|value| *value != 0.0);
        value.map(|value| self.checked_positive(key, value)).transpose()
    }

    fn checked_positive(&self, key: &str, value: f32) -> Result<f32, ModelError> {
        if value > 0.0 && value.is_finite() { Ok(value) } else { Err(self.invalid(key, value, "above 0")) }
    }

    /// A size for each layer: the key holds one for all layers or an array.
    fn size_of_layers(&self, key: &str, n_layers: usize) -> Result<Option<Vec<usize>>, ModelError> {
        let name = self.name(key);
        if !matches!(self.gguf.value(&name), Some(Value::Array(_))) {
            return Ok(self.optional_size(key)?.map(|size| vec![size; n_layers]));
        }
        let sizes = self.gguf.integers(&name)?;
        if sizes.len() < n_layers {
            return Err(self.invalid(key, sizes.len(), format!("one size for each of {n_layers} layers")));
        }
        let checked = |size: &i64| self.checked_size(key, usize::try_from(*size).unwrap_or(0));
        sizes[..n_layers].iter().map(checked).collect::<Result<_, _>>().map(Some)
    }

    /// The heads of each layer. Windowed layers may have their own sizes, in keys that end in `_swa`.
    fn heads(&self, n_heads: usize, default_dim: usize, windows: &[Option<Window>]) -> Result<Vec<Heads>, ModelError> {
        let kv_heads = self.size_of_layers("attention.head_count_kv", windows.len())?;
        let kv_heads = kv_heads.unwrap_or_else(|| vec![n_heads; windows.len()]);
        if let Some(wrong) = kv_heads.iter().find(|kv_heads| !n_heads.is_multiple_of(**kv_heads)) {
            return Err(self.invalid("attention.head_count_kv", wrong, format!("a divisor of {n_heads} heads")));
        }
        let of_all = self.head_shape("", (default_dim, None))?;
        let windowed = self.head_shape("_swa", of_all)?;
        let of_layer = |(n_kv_heads, window): (usize, &Option<Window>)| {
            let (head_dim, rotary_dim) = if window.is_some() { windowed } else { of_all };
            Heads { n_kv_heads, head_dim, rotary_dim: rotary_dim.unwrap_or(head_dim) }
        };
        Ok(kv_heads.into_iter().zip(windows).map(of_layer).collect())
    }

    /// The length of a head and of its rotated section, from the keys with this suffix, else the given lengths.
    fn head_shape(
        &self,
        suffix: &str,
        (dim, rotary_dim): (usize, Option<usize>),
    ) -> Result<(usize, Option<usize>), ModelError> {
        let (key, value) = (format!("attention.key_length{suffix}"), format!("attention.value_length{suffix}"));
        let rotary = format!("rope.dimension_count{suffix}");
        let own_dim = self.optional_size(&key)?;
        let head_dim = own_dim.unwrap_or(dim);
        // With latent attention values are shorter than keys; `latent` checks those lengths.
        let is_latent = self.gguf.value(&self.name("attention.kv_lora_rank")).is_some();
        if let Some(value_dim) = self.optional_size(&value)?
            && value_dim != head_dim
            && !is_latent
        {
            return Err(self.invalid(&value, value_dim, format!("the key length {head_dim}")));
        }
        let rotary_dim = match self.optional_size(&rotary)? {
            Some(rotary_dim) => Some(rotary_dim),
            None if own_dim.is_some() => None,
            None => rotary_dim,
        };
        match rotary_dim {
            Some(wrong) if wrong > head_dim || wrong % 2 == 1 => {
                Err(self.invalid(&rotary, wrong, format!("even and at most {head_dim}")))
            }
            rotary_dim => Ok((head_dim, rotary_dim)),
        }
    }

    /// The sizes of latent attention.
    fn latent(&self, heads: Heads) -> Result<LatentSizes, ModelError> {
        let rank = self.size("attention.kv_lora_rank")?;
        let Heads { head_dim, rotary_dim, .. } = heads;
        if self.gguf.value(&self.name("attention.key_length_mla")).is_none() {
            let expected = "present: the file was written by an older converter; convert the model again";
            return Err(self.invalid("attention.key_length_mla", "missing", expected));
        }
        if head_dim != rank + rotary_dim {
            let expected = format!("{rank} (the latent vector) plus {rotary_dim} (rotated)");
            return Err(self.invalid("attention.key_length", head_dim, expected));
        }
        let key_dim = self.size("attention.key_length_mla")?;
        if key_dim <= rotary_dim {
            return Err(self.invalid("attention.key_length_mla", key_dim, format!("above {rotary_dim}")));
        }
        Ok(LatentSizes { rank, key_dim: key_dim - rotary_dim, value_dim: self.size("attention.value_length_mla")? })
    }

    /// Refuses models whose layers read the keys and values of other layers.
    fn refuse_shared_keys(&self) -> Result<(), ModelError> {
        match self.gguf.optional_u32(&self.name("attention.shared_kv_layers"))?.unwrap_or(0) {
            0 => Ok(()),
            layers => Err(self.invalid("attention.shared_kv_layers", layers, "0: such models are not supported")),
        }
    }

    /// How layers without rotation scale their queries by position.
    fn position_scale(
        &self,
        rotation: Rotation,
        windows: &[Option<Window>],
    ) -> Result<Option<PositionScale>, ModelError> {
        let Rotation::LayersWithWindow { step, strength } = rotation else { return Ok(None) };
        if windows.iter().all(Option::is_none) {
            return Ok(None);
        }
        let step = self.gguf.optional_u32(&self.name("attention.temperature_length"))?.unwrap_or(step);
        let strength = self.gguf.optional_f32(&self.name("attention.temperature_scale"))?.unwrap_or(strength);
        Ok(Some(PositionScale { step, strength }))
    }

    /// Whether heads are normalised after rotation; see [`QkNorm::AfterRotation`].
    fn norms_rotated_heads(&self, norm: QkNorm) -> Result<bool, ModelError> {
        if norm != QkNorm::AfterRotation {
            return Ok(false);
        }
        let stored = self.gguf.optional_bool(&self.name("use_qk_norm"))?;
        let step = self.gguf.optional_u32(&self.name("interleave_moe_layer_step"))?;
        Ok(stored.unwrap_or(step.is_none_or(|step| step <= 1)))
    }

    /// Which layers have a window: the file's pattern where it has one, else the family's.
    fn windows(&self, windows: Windows, n_layers: usize) -> Result<Vec<Option<Window>>, ModelError> {
        let stored = self.gguf.optional_u32(&self.name("attention.sliding_window"))?;
        let window = match windows {
            Windows::ChunksButEvery { .. } if stored == Some(0) => None,
            Windows::ChunksButEvery { positions, .. } => {
                let stored = self.optional_size("attention.chunk_size")?;
                Some(Window::Chunk(stored.unwrap_or(positions as usize)))
            }
            _ => stored.filter(|window| *window > 0).map(|window| Window::Last(window as usize)),
        };
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
                return Ok(windowed.into_iter().map(|windowed| windowed.then_some(window)).collect());
            }
            Some(_) => global_every = self.gguf.u32(&pattern)? as usize,
            None => {}
        }
        let is_global = |layer: usize| global_every > 0 && (layer + 1).is_multiple_of(global_every);
        Ok((0..n_layers).map(|layer| (!is_global(layer)).then_some(window)).collect())
    }

    /// The experts of a model; `None` for a model without experts.
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
            return Err(self.invalid(
                "expert_used_count",
                top_k,
                format!("at most {n_experts}, the number of experts"),
            ));
        }
        let renormalise = self.gguf.optional_bool(&self.name("expert_weights_norm"))?.unwrap_or(routing.renormalise);
        let scoring = match self.gguf.optional_u32(&self.name("expert_gating_func"))? {
            None | Some(0) => routing.scoring,
            Some(1) => Scoring::Softmax,
            Some(2) => Scoring::Sigmoid,
            // A softmax over the chosen experts equals a softmax over all, scaled to sum to 1.
            Some(3) if renormalise => Scoring::Softmax,
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
            // Without the key, experts have the width of the dense feed-forward.
            intermediate_size: self.optional_size("expert_feed_forward_length")?.unwrap_or(dense_size),
            scoring,
            renormalise,
            scale: self.optional_positive("expert_weights_scale")?.unwrap_or(1.0),
            groups,
            weighting: routing.weighting,
            placement: routing.placement,
        }))
    }

    /// The context length over that of training.
    fn rope_factor(&self) -> Result<f32, ModelError> {
        Ok(match self.optional_positive("rope.scaling.factor")? {
            Some(factor) => factor,
            None => self.optional_positive("rope.scale_linear")?.unwrap_or(1.0),
        })
    }

    /// The strength of YaRN's temperature in files that apply it to all scores instead of to rotated values only.
    fn yarn_strength_of_scores(&self) -> Result<Option<f32>, ModelError> {
        // Files store it multiplied by the 0.1 of the rule.
        Ok(self.optional_positive("rope.scaling.yarn_log_multiplier")?.map(|strength| strength / 0.1))
    }

    /// The factor that this temperature puts on the scale of scores.
    fn yarn_score_scale(&self) -> Result<f32, ModelError> {
        let factor = self.rope_factor()?;
        let strength = self.yarn_strength_of_scores()?;
        Ok(strength.map_or(1.0, |strength| yarn_magnitude(factor, strength).powi(2)))
    }

    fn rope_scaling(&self, ramp: YarnRamp) -> Result<RopeScaling, ModelError> {
        let factor = self.rope_factor()?;
        let kind = self.gguf.optional_str(&self.name("rope.scaling.type"))?;
        match kind.unwrap_or(if factor == 1.0 { "none" } else { "linear" }) {
            "none" => Ok(RopeScaling::None),
            "linear" => Ok(RopeScaling::Linear { factor }),
            "yarn" => Ok(RopeScaling::Yarn {
                factor,
                original_context: self.size("rope.scaling.original_context_length")?,
                beta_fast: self.optional_positive("rope.scaling.yarn_beta_fast")?.unwrap_or(32.0),
                beta_slow: self.optional_positive("rope.scaling.yarn_beta_slow")?.unwrap_or(1.0),
                whole_pairs: ramp == YarnRamp::WholePairs,
                magnitude: match self.yarn_strength_of_scores()? {
                    Some(_) => 1.0,
                    None => yarn_magnitude(factor, 1.0),
                } * self.optional_positive("rope.scaling.attn_factor")?.unwrap_or(1.0),
            }),
            other => Err(self.invalid("rope.scaling.type", format!("{other:?}"), "\"none\", \"linear\" or \"yarn\"")),
        }
    }
}

impl AttentionScale {
    /// The scale of a model with these sizes.
    fn value(self, hidden_size: usize, n_heads: usize, head_dim: usize) -> f32 {
        let width = match self {
            AttentionScale::HeadDim => head_dim,
            AttentionScale::HiddenPerHead { most } => (hidden_size / n_heads).clamp(head_dim, most.max(head_dim)),
            AttentionScale::One => 1,
        };
        1.0 / (width as f32).sqrt()
    }
}

impl Windows {
    /// Every how many layers one has full attention; 0 when none has. `None` when the family has no windows.
    fn global_every(self) -> Option<usize> {
        match self {
            Windows::Never => None,
            Windows::EveryLayer => Some(0),
            Windows::AllButEvery(layers) | Windows::ChunksButEvery { layers, .. } => Some(layers),
        }
    }
}

#[cfg(test)]
mod tests;
