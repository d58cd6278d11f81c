//! How each layer encodes positions: rotation, its scaling for long contexts, the scale of queries, and the bias of distance.

use cuelight_shaders::attention::Window;
use cuelight_shaders::rope::RopeAxes;

use super::keys::Keys;
use crate::model::arch::{
    Alibi, AttentionSpec, AxesOrder, RopePairs, Rotation, Temperature, WindowedRope, YarnMultiplier, YarnRamp,
};
use crate::model::error::ModelError;
use crate::model::layer::{PositionScale, RopeSpec};
use crate::model::rope::{RopeScaling, yarn_magnitude};

/// The tensors of divisors for contexts longer than in training and for the others.
const FACTORS_BY_CONTEXT: [&str; 2] = ["rope_factors_long.weight", "rope_factors_short.weight"];

/// The tensor of divisors for all contexts.
const FACTORS: &str = "rope_freqs.weight";

impl Keys<'_> {
    /// The rotation of each layer, for sequences of up to `context_tokens` tokens. Windows come with whether scores fall with
    /// distance.
    pub(super) fn ropes(
        &self,
        attention: &AttentionSpec,
        (windows, has_alibi): (&[Option<Window>], bool),
        context_tokens: usize,
    ) -> Result<Vec<Option<RopeSpec>>, ModelError> {
        let axes = self.rope_axes(attention.rope_axes)?;
        let of_all = RopeSpec {
            base: self.first_positive(&["rope.freq_base", "rope.global.freq_base"])?.unwrap_or(10_000.0),
            scaling: self.rope_scaling(attention.yarn_ramp)?,
            magnitude: self.rope_magnitude(attention.yarn_multiplier)?,
            factors: self.rope_factors(context_tokens)?,
            axes,
            pairs: match attention.rope_axes {
                AxesOrder::RunsOfHalves if axes != RopeAxes::Time => RopePairs::Halves,
                _ => attention.rope_pairs,
            },
        };
        let of_windowed = match attention.windowed_rope {
            WindowedRope::AsOthers => of_all,
            WindowedRope::Unscaled(base) => {
                let stored = self.first_positive(&["rope.freq_base_swa", "rope.local.freq_base"])?;
                let base = stored.or(base).unwrap_or(of_all.base);
                RopeSpec { base, scaling: RopeScaling::None, magnitude: 1.0, factors: None, ..of_all }
            }
        };
        let of_layer = |(rotates, window): (bool, &Option<Window>)| {
            rotates.then_some(if window.is_some() { of_windowed } else { of_all })
        };
        Ok(self
            .rotated_layers(attention.rotation, windows, has_alibi)?
            .into_iter()
            .zip(windows)
            .map(of_layer)
            .collect())
    }

    /// The positions that rotate each pair: all by one where the file has no sections.
    fn rope_axes(&self, order: AxesOrder) -> Result<RopeAxes, ModelError> {
        const KEY: &str = "rope.dimension_sections";
        let Some(stored) = self.checkpoint.optional_integers(&self.name(KEY))?.filter(|_| order != AxesOrder::Never)
        else {
            return Ok(RopeAxes::Time);
        };
        let pairs: Option<Vec<u32>> = stored.iter().map(|pairs| u32::try_from(*pairs).ok()).collect();
        match (order, pairs.as_deref()) {
            (AxesOrder::InTurns, Some([_, row, column, ..])) => Ok(RopeAxes::InTurns([*row, *column])),
            (_, Some([time, row, column, ..])) => Ok(RopeAxes::Runs([*time, *row, *column])),
            _ => Err(self.invalid(KEY, format!("{stored:?}"), "at least three numbers of pairs")),
        }
    }

    /// Whether each layer rotates: as in the file's pattern where it has one, else as in the family.
    fn rotated_layers(
        &self,
        rotation: Rotation,
        windows: &[Option<Window>],
        has_alibi: bool,
    ) -> Result<Vec<bool>, ModelError> {
        const PATTERN: &str = "attention.rope_pattern";
        let n_layers = windows.len();
        if self.checkpoint.value(&self.name(PATTERN)).is_some() {
            return self.bool_of_layers(PATTERN, n_layers);
        }
        let has_windows = windows.iter().any(Option::is_some);
        let is_finetuned = self.checkpoint.optional_bool(&self.name("rope.scaling.finetuned"))?.unwrap_or(true);
        let rotates = |layer: usize| match rotation {
            Rotation::EveryLayer => true,
            Rotation::LayersWithWindow => !has_windows || windows[layer].is_some(),
            Rotation::LayersWithWindowOrDense => {
                windows[layer].is_some() || !self.has_tensor(layer, "ffn_gate_inp.weight")
            }
            Rotation::AllButEvery(layers) => !(layer + 1).is_multiple_of(layers),
            Rotation::WhereFinetuned => is_finetuned,
            Rotation::WithoutAlibi => !has_alibi,
            Rotation::Never => false,
        };
        Ok((0..n_layers).map(rotates).collect())
    }

    /// How a layer scales its queries by their position.
    pub(super) fn position_scale(
        &self,
        temperature: Temperature,
        rotates: bool,
    ) -> Result<Option<PositionScale>, ModelError> {
        let stored = |key| self.checkpoint.optional_f32(&self.name(key));
        let stored = stored("attention.temperature_scale")?.or(stored("rope.scaling_beta")?);
        let stored_step = self.checkpoint.optional_u32(&self.name("attention.temperature_length"))?;
        Ok(match (temperature, stored.filter(|strength| *strength != 0.0)) {
            (Temperature::UnrotatedLayers { step, strength }, _) if !rotates => Some(PositionScale {
                step: stored_step.unwrap_or(step),
                strength: stored.unwrap_or(strength),
                first: 1,
            }),
            (Temperature::WhereStored, Some(strength)) => {
                let step = stored_step.map_or_else(|| self.original_context().map(|tokens| tokens as u32), Ok)?;
                Some(PositionScale { step, strength, first: 0 })
            }
            _ => None,
        })
    }

    /// The bias of ALiBi in a model of `n_layers` layers: that of the file, else that of the family.
    pub(super) fn max_alibi_bias(&self, alibi: Alibi, n_layers: usize) -> Result<Option<f32>, ModelError> {
        const KEY: &str = "attention.max_alibi_bias";
        let of_family = match alibi {
            Alibi::Always(bias) => bias,
            Alibi::InDepth { layers, bias } if layers == n_layers => bias,
            Alibi::ByKey | Alibi::InDepth { .. } => 0.0,
        };
        let bias = self.checkpoint.optional_f32(&self.name(KEY))?.unwrap_or(of_family);
        if bias == 0.0 { Ok(None) } else { self.checked_positive(KEY, bias).map(Some) }
    }

    /// The tensor of divisors of the frequencies.
    fn rope_factors(&self, context_tokens: usize) -> Result<Option<&'static str>, ModelError> {
        let has = |tensor: &&&str| self.checkpoint.tensor(tensor).is_some();
        match FACTORS_BY_CONTEXT.iter().filter(has).count() {
            0 => Ok(Some(FACTORS).filter(|tensor| has(&tensor))),
            1 => Err(self.lacks_factors()),
            _ => Ok(Some(FACTORS_BY_CONTEXT[usize::from(context_tokens <= self.original_context()?)])),
        }
    }

    /// The error of a file with only one of the two tensors of divisors.
    fn lacks_factors(&self) -> ModelError {
        let [long, short] = FACTORS_BY_CONTEXT;
        ModelError::OneOfTwoTensors { file: self.file(), tensors: format!("{long:?} and {short:?}") }
    }

    /// The context length of training before it was extended.
    fn original_context(&self) -> Result<usize, ModelError> {
        self.size("rope.scaling.original_context_length")
    }

    /// The context length over that of training.
    fn rope_factor(&self) -> Result<f32, ModelError> {
        Ok(match self.optional_positive("rope.scaling.factor")? {
            Some(factor) => factor,
            None => self.optional_positive("rope.scale_linear")?.unwrap_or(1.0),
        })
    }

    /// The strength of YaRN's temperature; `None` where the file leaves it to the rule.
    fn yarn_multiplier(&self) -> Result<Option<f32>, ModelError> {
        self.optional_positive("rope.scaling.yarn_log_multiplier")
    }

    /// The factor that YaRN's temperature puts on the scale of scores.
    pub(super) fn yarn_score_scale(&self, multiplier: YarnMultiplier) -> Result<f32, ModelError> {
        let (factor, strength) = (self.rope_factor()?, self.yarn_multiplier()?);
        let of_scores = strength.filter(|_| multiplier == YarnMultiplier::OfScores);
        // Files store it multiplied by the 0.1 of the rule.
        Ok(of_scores.map_or(1.0, |strength| yarn_magnitude(factor, strength / 0.1).powi(2)))
    }

    /// The factor on rotated values.
    fn rope_magnitude(&self, multiplier: YarnMultiplier) -> Result<f32, ModelError> {
        let stored = self.optional_positive("rope.scaling.attn_factor")?.unwrap_or(1.0);
        if self.scaling_type()? != Some("yarn") {
            return Ok(stored);
        }
        let factor = self.rope_factor()?;
        let usual = yarn_magnitude(factor, 1.0);
        let strengths =
            (self.optional_positive("rope.scaling.mscale")?, self.optional_positive("rope.scaling.mscale_all_dim")?);
        let of_strengths = match strengths {
            (Some(own), Some(of_all)) => yarn_magnitude(factor, own) / yarn_magnitude(factor, of_all),
            _ => usual,
        };
        Ok(stored
            * match (self.yarn_multiplier()?, multiplier) {
                (None, _) => of_strengths,
                (Some(_), YarnMultiplier::OfScores) => 1.0,
                (Some(strength), YarnMultiplier::OfRotated) => usual / yarn_magnitude(factor, strength),
            })
    }

    /// The rule of scaling; `None` where the file leaves it to the factor. One converter writes an empty text.
    fn scaling_type(&self) -> Result<Option<&str>, ModelError> {
        let stated = self.checkpoint.optional_str(&self.name("rope.scaling.type"))?;
        Ok(stated.filter(|kind| !["", "default"].contains(kind)))
    }

    /// How rotary frequencies are scaled.
    fn rope_scaling(&self, ramp: YarnRamp) -> Result<RopeScaling, ModelError> {
        let factor = self.rope_factor()?;
        match self.scaling_type()?.unwrap_or(if factor == 1.0 { "none" } else { "linear" }) {
            // The tensors of divisors are the whole rule of `longrope`.
            "none" | "longrope" => Ok(RopeScaling::None),
            "linear" => Ok(RopeScaling::Linear { factor }),
            "yarn" => Ok(RopeScaling::Yarn {
                factor,
                original_context: self.original_context()?,
                beta_fast: self
                    .first_positive(&["rope.scaling.yarn_beta_fast", "rope.scaling.beta_fast"])?
                    .unwrap_or(32.0),
                beta_slow: self
                    .first_positive(&["rope.scaling.yarn_beta_slow", "rope.scaling.beta_slow"])?
                    .unwrap_or(1.0),
                whole_pairs: ramp == YarnRamp::WholePairs,
            }),
            other => {
                let expected = "\"none\", \"linear\", \"yarn\" or \"longrope\"";
                Err(self.invalid("rope.scaling.type", format!("{other:?}"), expected))
            }
        }
    }
}
