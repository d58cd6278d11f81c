//! The layers of a model, from the options of its family and the keys and tensors of its file.

use cuelight_shaders::glu::{Activation, LARGEST_BETA};

use super::keys::Keys;
use crate::format::gguf::Value;
use crate::model::arch::{Direction, ExpertPlacement, Family, FeedForward, Mixer, Norms, Residual};
use crate::model::error::ModelError;
use crate::model::layer::{AttentionLayer, DenseSizes, ExpertSizes, FeedForwardSpec, LayerSpec, MixerSpec};

impl Keys<'_> {
    /// Every layer, for sequences of up to `context_tokens` tokens.
    pub(super) fn layer_specs(
        &self,
        family: &Family,
        hidden_size: usize,
        context_tokens: usize,
    ) -> Result<Vec<LayerSpec>, ModelError> {
        let mixers = self.mixers(family, hidden_size, context_tokens)?;
        let parallel_by_key = self.checkpoint.optional_bool(&self.name("use_parallel_residual"))?.unwrap_or(true);
        let feed_forwards = self.feed_forwards(family, mixers.len())?;
        let of_layer = |(layer, (mixer, feed_forward)): (usize, (MixerSpec, FeedForwardSpec))| {
            let has_second_norm = self.has_tensor(layer, "ffn_norm.weight");
            let is_parallel = match family.residual {
                Residual::Sequential => false,
                Residual::Parallel => true,
                Residual::ParallelByKey => parallel_by_key,
                Residual::ParallelWithOneNorm => !has_second_norm,
            };
            let norms = match family.norms {
                Norms::BeforeButFirstMixer if layer > 0 => Norms::Before,
                Norms::BeforeWithSecond if !self.has_tensor(layer, "attn_norm_2.weight") => Norms::Before,
                norms => norms,
            };
            LayerSpec { norms, is_parallel, mixer, feed_forward }
        };
        Ok(mixers.into_iter().zip(feed_forwards).enumerate().map(of_layer).collect())
    }

    /// The mixer of each layer.
    fn mixers(&self, family: &Family, hidden_size: usize, context_tokens: usize) -> Result<Vec<MixerSpec>, ModelError> {
        let options = &family.attention;
        let direction = self.direction(family)?;
        let windows = self.windows(options.windows, direction, self.layers()?)?;
        let heads = self.heads(hidden_size, options.unwindowed_rotary, &windows)?;
        let max_alibi_bias = self.max_alibi_bias(options.alibi, windows.len())?;
        let mut ropes = self.ropes(options, (&windows, max_alibi_bias.is_some()), context_tokens)?;
        let pools = self.entry_pool_lengths(family.mixer, windows.len())?;
        if !pools.is_empty() {
            ropes = self.ropes_of_pools(ropes, &pools)?;
        }
        let reads = self.layers_to_read(&heads, &windows)?;
        let (scale, yarn) =
            (self.optional_positive("attention.scale")?, self.yarn_score_scale(options.yarn_multiplier)?);
        let selections = self.position_selections(family.mixer, &heads)?;
        let indexers = self.group_indexers(family.mixer, (&heads, options.rope_pairs))?;
        let mut alignment_heads = self.alignment_heads(&heads, &windows)?;
        let of_layer = |layer: usize| {
            let (heads, rope) = (heads[layer], ropes[layer]);
            let recurrent = self.recurrent_mixer(family.recurrent, layer, (hidden_size, heads.n_heads))?;
            match recurrent {
                Some(MixerSpec::StateSpace(_)) if self.has_tensor(layer, "attn_q.weight") => {}
                Some(mixer) => return Ok(mixer),
                None if heads.n_kv_heads == 0 => return self.no_mixer(family, layer),
                None => {}
            }
            let latent = match family.mixer {
                Mixer::GroupedQueryAttention
                | Mixer::SelectiveAttention
                | Mixer::SelectiveAttentionOfGroups
                | Mixer::PooledAttention => None,
                Mixer::LatentAttention | Mixer::SelectiveLatentAttention(_) => Some(self.latent(heads)?),
            };
            let key_dim = latent.map_or(heads.head_dim, |latent| latent.key_dim + heads.rotary_dim);
            let attention = AttentionLayer {
                reads_layer: reads[layer],
                qk_norm: self.qk_norm(options.qk_norm, layer, rope.is_some())?,
                position_scale: self.position_scale(options.temperature, rope.is_some())?,
                scale: scale.unwrap_or_else(|| options.scale.value(hidden_size, heads.n_heads, key_dim) * yarn),
                max_alibi_bias,
                window: windows[layer],
                sees_later: direction == Direction::BothWays,
                each_other: self.each_other(options.media_rows, windows[layer])?,
                alignment_heads: std::mem::take(&mut alignment_heads[layer]),
                heads,
                rope,
            };
            if let Some(pool) = pools.get(layer) {
                let sizes = self.pooled_sizes(layer, (heads, *pool))?;
                return Ok(MixerSpec::PooledAttention(attention, sizes));
            }
            Ok(match (latent, recurrent) {
                (Some(sizes), _) => MixerSpec::LatentAttention(attention, sizes, selections[layer]),
                (None, Some(MixerSpec::StateSpace(space))) => MixerSpec::AttentionNextToStateSpace(attention, space),
                (None, _) => MixerSpec::grouped(attention, indexers[layer]),
            })
        };
        (0..heads.len()).map(of_layer).collect()
    }

    /// The mixer of a layer without a convolution and without heads of keys.
    fn no_mixer(&self, family: &Family, layer: usize) -> Result<MixerSpec, ModelError> {
        if family.norms.may_lack_halves() {
            let is_matrix = self.has_tensor(layer, "attn_output.weight");
            return Ok(if is_matrix { MixerSpec::Matrix } else { MixerSpec::None });
        }
        let expected = format!("above 0 for layer {layer}, which has no convolution");
        Err(self.invalid("attention.head_count_kv", 0, expected))
    }

    /// The feed-forward of each layer: experts where the layer has a router, else a dense one.
    fn feed_forwards(&self, family: &Family, n_layers: usize) -> Result<Vec<FeedForwardSpec>, ModelError> {
        let widths = if family.norms.may_lack_halves() {
            self.size_or_none_of_layers("feed_forward_length", n_layers)?
        } else {
            self.size_of_layers("feed_forward_length", n_layers)?
        };
        let [routed_limits, other_limits] = [
            self.activation_limits("swiglu_clamp_exp", n_layers)?,
            self.activation_limits("swiglu_clamp_shexp", n_layers)?,
        ];
        let cutoffs = self.cutoffs(n_layers)?;
        let of_family = self.feed_forward_form(family.feed_forward)?;
        let of_layer = |layer: usize| {
            let form = of_family.limited(family.activation_limit, other_limits[layer]);
            let width = widths.as_ref().map(|widths| widths[layer]);
            if width == Some(0) {
                return Ok(FeedForwardSpec::None);
            }
            let cutoff = cutoffs[layer];
            let dense = width.map(|intermediate_size| DenseSizes { intermediate_size, form, cutoff });
            let missing = || self.missing("feed_forward_length");
            if !self.has_tensor(layer, "ffn_gate_inp.weight") {
                return dense.map(FeedForwardSpec::Dense).ok_or_else(missing);
            }
            let forms = [of_family.limited(family.activation_limit, routed_limits[layer]), form];
            let experts = self.layer_experts(family, forms, width)?;
            match family.routing.map(|routing| routing.placement) {
                Some(ExpertPlacement::Parallel) => {
                    Ok(FeedForwardSpec::ExpertsNextToDense(experts, dense.ok_or_else(missing)?))
                }
                Some(ExpertPlacement::Replace) | None => Ok(FeedForwardSpec::Experts(experts)),
            }
        };
        (0..n_layers).map(of_layer).collect()
    }

    /// The form of feed-forwards: that of the family, with the form of GELU or the bounds that the file states.
    fn feed_forward_form(&self, of_family: FeedForward) -> Result<FeedForward, ModelError> {
        const KEY: &str = "hidden_activation";
        if let FeedForward::Gated(Activation::Situ { .. }) = of_family {
            return self.situ().map(FeedForward::Gated);
        }
        let Some(name) = self.checkpoint.optional_str(&self.name(KEY))? else { return Ok(of_family) };
        let expected = "\"gelu\", \"gelu_pytorch_tanh\", \"gelu_new\" or \"gelu_fast\"";
        of_family.with_gelu(name).ok_or_else(|| self.invalid(KEY, format!("{name:?}"), expected))
    }

    /// The activation with the bounds of the file.
    fn situ(&self) -> Result<Activation, ModelError> {
        const GATE: &str = "activation.situ_beta";
        const OTHER: &str = "activation.situ_linear_beta";
        let whole = |key: &str, value: f32| match value as u16 {
            whole if f32::from(whole) == value && (1..=LARGEST_BETA).contains(&whole) => Ok(whole),
            _ => Err(self.invalid(key, value, format!("a whole number from 1 to {LARGEST_BETA}"))),
        };
        let linear = self.checkpoint.optional_f32(&self.name(OTHER))?.filter(|bound| *bound > 0.0);
        Ok(Activation::Situ {
            beta: whole(GATE, self.checkpoint.f32(&self.name(GATE))?)?,
            linear: linear.map_or(Ok(0), |bound| whole(OTHER, bound))?,
        })
    }

    /// The experts of a layer that has a router.
    fn layer_experts(
        &self,
        family: &Family,
        forms: [FeedForward; 2],
        dense_size: Option<usize>,
    ) -> Result<ExpertSizes, ModelError> {
        let experts = family.routing.map(|routing| self.experts(routing, forms, dense_size)).transpose()?.flatten();
        let architecture = || family.architecture.to_owned();
        experts.ok_or_else(|| ModelError::NoExperts { file: self.file(), architecture: architecture() })
    }

    /// The limit of the activation in each layer; 0 for none.
    fn activation_limits(&self, key: &str, n_layers: usize) -> Result<Vec<u16>, ModelError> {
        let name = self.name(key);
        let limits = match self.checkpoint.value(&name) {
            None => return Ok(vec![0; n_layers]),
            Some(Value::Array(_)) => self.checkpoint.floats(&name)?,
            Some(_) => vec![self.checkpoint.f32(&name)?; n_layers],
        };
        if limits.len() < n_layers {
            return Err(self.invalid(key, limits.len(), format!("one limit for each of {n_layers} layers")));
        }
        let checked = |limit: &f32| match *limit as u16 {
            whole if f32::from(whole) == *limit => Ok(whole),
            _ => Err(self.invalid(key, limit, "whole numbers up to 65535")),
        };
        limits[..n_layers].iter().map(checked).collect()
    }

    /// The cutoff of the gate in each layer. Layers without one have minus infinity, which no value is below.
    fn cutoffs(&self, n_layers: usize) -> Result<Vec<Option<f32>>, ModelError> {
        const KEY: &str = "activation_sparsity_scale";
        let name = self.name(KEY);
        if self.checkpoint.value(&name).is_none() {
            return Ok(vec![None; n_layers]);
        }
        let deviations = self.checkpoint.floats(&name)?;
        if deviations.len() < n_layers {
            return Err(self.invalid(KEY, deviations.len(), format!("one number for each of {n_layers} layers")));
        }
        let checked = |deviations: &f32| match *deviations {
            f32::NEG_INFINITY => Ok(None),
            finite if finite.is_finite() => Ok(Some(finite)),
            other => Err(self.invalid(KEY, other, "finite numbers or minus infinity")),
        };
        deviations[..n_layers].iter().map(checked).collect()
    }

    /// Whether a layer has a tensor.
    pub(super) fn has_tensor(&self, layer: usize, tensor: &str) -> bool {
        self.checkpoint.tensor(&format!("blk.{layer}.{tensor}")).is_some()
    }
}
