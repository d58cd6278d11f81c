//! How models that generate blocks denoise them.

use super::keys::Keys;
use crate::model::arch::Generation;
use crate::model::error::ModelError;
use crate::sample::DenoisingRule;

impl Keys<'_> {
    /// The rule, for models that generate blocks. These keys do not start with the architecture.
    pub(super) fn denoising(&self, generation: Generation) -> Result<Option<DenoisingRule>, ModelError> {
        if generation != Generation::Blocks {
            return Ok(None);
        }
        let size = |key: &str, usual: usize| -> Result<usize, ModelError> {
            let found = self.checkpoint.optional_u32(key)?.map_or(usual, |size| size as usize);
            if found > 0 { Ok(found) } else { Err(self.invalid_denoising(key, found, "at least 1")) }
        };
        let number = |key: &str, usual: f32| -> Result<f32, ModelError> {
            let found = self.checkpoint.optional_f32(key)?.unwrap_or(usual);
            let is_usable = found > 0.0 && found.is_finite();
            if is_usable { Ok(found) } else { Err(self.invalid_denoising(key, found, "above 0")) }
        };
        let tokens = self.checkpoint.u32("diffusion.canvas_length")?;
        let stable_steps = self.checkpoint.optional_u32("diffusion.eb_stability_threshold")?.unwrap_or(1) as usize;
        Ok(Some(DenoisingRule {
            tokens: size("diffusion.canvas_length", tokens as usize)?,
            max_steps: size("diffusion.eb_max_steps", 48)?,
            least_temperature: number("diffusion.eb_t_min", 0.4)?,
            greatest_temperature: number("diffusion.eb_t_max", 0.8)?,
            entropy_bound: number("diffusion.eb_entropy_bound", 0.1)?,
            stable_steps,
            confident_entropy: number("diffusion.eb_confidence_threshold", 0.005)?,
        }))
    }

    fn invalid_denoising(&self, key: &str, found: impl ToString, expected: &str) -> ModelError {
        ModelError::Hyperparameter {
            file: self.file(),
            key: key.to_owned(),
            found: found.to_string(),
            expected: expected.to_owned(),
        }
    }
}
