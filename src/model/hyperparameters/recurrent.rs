//! The sizes of recurrent layers.

use cuelight_shaders::gated_delta::{DecayForm, DeltaShape, HeadOrder};
use cuelight_shaders::glu::Activation;
use cuelight_shaders::selective_scan::ScanShape;
use cuelight_shaders::state_space::SpaceShape;

use super::keys::Keys;
use crate::model::arch::Recurrent;
use crate::model::error::ModelError;
use crate::model::layer::{ConvLayer, DeltaLayer, MixerSpec, ScanLayer, SpaceLayer};

/// Most rows that a convolution spans.
pub(super) const WIDEST_CONVOLUTION: usize = 64;

impl Keys<'_> {
    /// The mixer of a layer if it is recurrent.
    pub(super) fn recurrent_mixer(
        &self,
        recurrent: Recurrent,
        layer: usize,
        (hidden_size, n_heads): (usize, usize),
    ) -> Result<Option<MixerSpec>, ModelError> {
        let conv = match recurrent {
            Recurrent::Never => return Ok(None),
            Recurrent::ShortConv => "shortconv.conv.weight",
            Recurrent::KeyDelta => "ssm_conv1d_q.weight",
            Recurrent::GatedDelta(..) | Recurrent::SelectiveScan | Recurrent::StateSpace => "ssm_conv1d.weight",
        };
        if !self.has_tensor(layer, conv) {
            return Ok(None);
        }
        Ok(match recurrent {
            Recurrent::Never => None,
            Recurrent::GatedDelta(order, gate) => Some(MixerSpec::GatedDelta(self.delta_layer(order, gate)?)),
            Recurrent::KeyDelta => Some(MixerSpec::KeyDelta(self.key_delta_layer(n_heads)?)),
            Recurrent::ShortConv => {
                let width = self.conv_width("shortconv.l_cache")?;
                Some(MixerSpec::ShortConv(ConvLayer { channels: hidden_size, width }))
            }
            Recurrent::SelectiveScan => Some(MixerSpec::SelectiveScan(self.scan_layer()?)),
            Recurrent::StateSpace => Some(MixerSpec::StateSpace(self.space_layer()?)),
        })
    }

    fn scan_layer(&self) -> Result<ScanLayer, ModelError> {
        let shape = ScanShape { channels: self.size("ssm.inner_size")?, state_dim: self.size("ssm.state_size")? };
        Ok(ScanLayer {
            shape,
            rank: self.size("ssm.time_step_rank")?,
            unweighted_epsilon: self.unweighted_epsilon()?,
            conv_width: self.conv_width("ssm.conv_kernel")?,
        })
    }

    /// The epsilon of the norms of dt, B and C that have no weight. Files by other converters do not have it.
    fn unweighted_epsilon(&self) -> Result<Option<f32>, ModelError> {
        if !self.checkpoint.optional_bool(&self.name("ssm.dt_b_c_rms"))?.unwrap_or(false) {
            return Ok(None);
        }
        Ok(Some(self.optional_positive("ssm.dt_b_c_rms_epsilon")?.unwrap_or(1e-6)))
    }

    fn space_layer(&self) -> Result<SpaceLayer, ModelError> {
        let (state_dim, inner) = (self.size("ssm.state_size")?, self.size("ssm.inner_size")?);
        let (groups, heads) = (self.size("ssm.group_count")?, self.size("ssm.time_step_rank")?);
        if !heads.is_multiple_of(groups) {
            return Err(self.invalid("ssm.group_count", groups, format!("a divisor of {heads} heads")));
        }
        if !inner.is_multiple_of(heads) {
            return Err(self.invalid("ssm.inner_size", inner, format!("a multiple of {heads} heads")));
        }
        let shape = SpaceShape { heads, head_dim: inner / heads, groups, state_dim };
        Ok(SpaceLayer { shape, conv_width: self.conv_width("ssm.conv_kernel")? })
    }

    fn delta_layer(&self, order: HeadOrder, gate: Activation) -> Result<DeltaLayer, ModelError> {
        let (key_dim, inner) = (self.size("ssm.state_size")?, self.size("ssm.inner_size")?);
        let (key_heads, value_heads) = (self.size("ssm.group_count")?, self.size("ssm.time_step_rank")?);
        if !value_heads.is_multiple_of(key_heads) {
            return Err(self.invalid("ssm.group_count", key_heads, format!("a divisor of {value_heads} value heads")));
        }
        if !inner.is_multiple_of(value_heads) {
            return Err(self.invalid("ssm.inner_size", inner, format!("a multiple of {value_heads} value heads")));
        }
        let shape = DeltaShape { key_heads, value_heads, key_dim, value_dim: inner / value_heads, order };
        let conv_width = self.conv_width("ssm.conv_kernel")?;
        Ok(DeltaLayer { shape, decays: DecayForm::Softplus, gate, conv_width })
    }

    /// A decay for each key: as many heads of keys as of values, of the same length.
    fn key_delta_layer(&self, heads: usize) -> Result<DeltaLayer, ModelError> {
        let dim = self.size("kda.head_dim")?;
        let order = HeadOrder::Grouped;
        let shape = DeltaShape { key_heads: heads, value_heads: heads, key_dim: dim, value_dim: dim, order };
        let (decays, conv_width) = (self.decays()?, self.conv_width("ssm.conv_kernel")?);
        Ok(DeltaLayer { shape, decays, gate: Activation::Sigmoid, conv_width })
    }

    /// How decays are computed: with the bound of the file, if it has one and does not say that it is unused.
    fn decays(&self) -> Result<DecayForm, ModelError> {
        const BOUND: &str = "kda.gate_lower_bound";
        let is_bounded = self.checkpoint.optional_bool(&self.name("kda.safe_gate"))?.unwrap_or(true);
        match self.checkpoint.optional_f32(&self.name(BOUND))?.filter(|_| is_bounded) {
            None => Ok(DecayForm::Softplus),
            Some(bound) if bound < 0.0 && bound.is_finite() => Ok(DecayForm::Bounded(bound)),
            Some(bound) => Err(self.invalid(BOUND, bound, "below 0")),
        }
    }

    pub(super) fn conv_width(&self, key: &str) -> Result<usize, ModelError> {
        match self.size(key)? {
            width if width <= WIDEST_CONVOLUTION => Ok(width),
            width => Err(self.invalid(key, width, format!("at most {WIDEST_CONVOLUTION}"))),
        }
    }
}
