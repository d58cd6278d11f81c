//! The sizes of recurrent layers.

use cuelight_shaders::gated_delta::{DeltaShape, HeadOrder};

use super::keys::Keys;
use crate::model::arch::Recurrent;
use crate::model::error::ModelError;
use crate::model::layer::{DeltaLayer, MixerSpec};

/// Most rows that a convolution spans.
const WIDEST_CONVOLUTION: usize = 64;

impl Keys<'_> {
    /// The mixer of a layer if it is recurrent.
    pub(super) fn recurrent_mixer(&self, recurrent: Recurrent, layer: usize) -> Result<Option<MixerSpec>, ModelError> {
        match recurrent {
            Recurrent::GatedDelta(order) if self.has_tensor(layer, "ssm_conv1d.weight") => {
                Ok(Some(MixerSpec::GatedDelta(self.delta_layer(order)?)))
            }
            Recurrent::GatedDelta(_) | Recurrent::Never => Ok(None),
        }
    }

    fn delta_layer(&self, order: HeadOrder) -> Result<DeltaLayer, ModelError> {
        let (key_dim, inner) = (self.size("ssm.state_size")?, self.size("ssm.inner_size")?);
        let (key_heads, value_heads) = (self.size("ssm.group_count")?, self.size("ssm.time_step_rank")?);
        if !value_heads.is_multiple_of(key_heads) {
            return Err(self.invalid("ssm.group_count", key_heads, format!("a divisor of {value_heads} value heads")));
        }
        if !inner.is_multiple_of(value_heads) {
            return Err(self.invalid("ssm.inner_size", inner, format!("a multiple of {value_heads} value heads")));
        }
        let shape = DeltaShape { key_heads, value_heads, key_dim, value_dim: inner / value_heads, order };
        Ok(DeltaLayer { shape, conv_width: self.conv_width()? })
    }

    fn conv_width(&self) -> Result<usize, ModelError> {
        match self.size("ssm.conv_kernel")? {
            width if width <= WIDEST_CONVOLUTION => Ok(width),
            width => Err(self.invalid("ssm.conv_kernel", width, format!("at most {WIDEST_CONVOLUTION}"))),
        }
    }
}
