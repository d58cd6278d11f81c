//! Sampling parameters: their ranges, and when an engine can apply them itself.

use serde::{Deserialize, Serialize};

use super::draw::Draw;
use super::repeats::RepeatPenalty;
use crate::engine::{RowSamplingParams, TokenId};

/// How the next token is sampled from the logits. The default samples from the model's unmodified distribution.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SamplingParams {
    /// Divides the logits; 0 is greedy.
    pub temperature: f32,
    /// Changes the temperature by how certain the model is.
    pub dynamic_temperature: DynamicTemperature,
    /// Keep the k most likely tokens; 0 keeps all.
    pub top_k: usize,
    /// Keep the most likely tokens whose probabilities sum to this; 1 keeps all.
    pub top_p: f32,
    /// Keep tokens at least this likely relative to the most likely; 0 keeps all.
    pub min_p: f32,
    /// Locally typical sampling (Meister et al. 2022); 1 keeps all.
    pub typical_p: f32,
    /// Divides positive logits and multiplies negative logits of tokens already seen, including the prompt; 1 is off.
    pub repetition_penalty: f32,
    /// Subtracted from the logits of tokens already generated.
    pub presence_penalty: f32,
    /// Subtracted once for each time a token has been generated.
    pub frequency_penalty: f32,
    /// Keep tokens whose logits are within this many standard deviations of the largest (Tang et al. 2024); 0 keeps all.
    pub top_n_sigma: f32,
    /// Removes the most likely tokens from time to time.
    pub xtc: TopExclusion,
    /// A penalty on repetitions of several tokens.
    pub repeats: Option<RepeatPenalty>,
    /// Added to the logits of these tokens.
    pub logit_bias: Vec<(TokenId, f32)>,
    /// Only these tokens may appear. `None`: all.
    pub allowed_tokens: Option<Vec<TokenId>>,
    /// Sequences of tokens that never appear in what is generated.
    pub banned_sequences: Vec<Vec<TokenId>>,
    /// Tokens that are weighed as one.
    pub joint_tokens: Option<JointTokens>,
    /// Makes sampling repeatable; with `None` a random seed is used.
    pub seed: Option<u64>,
}

impl Default for SamplingParams {
    fn default() -> Self {
        SamplingParams {
            temperature: 1.0,
            dynamic_temperature: DynamicTemperature::default(),
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            typical_p: 1.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            top_n_sigma: 0.0,
            xtc: TopExclusion::default(),
            repeats: None,
            logit_bias: Vec::new(),
            allowed_tokens: None,
            banned_sequences: Vec::new(),
            joint_tokens: None,
            seed: None,
        }
    }
}

/// Consecutive tokens that are weighed as one: if one of them is likelier than every other token, only they may come next.
///
/// Source: the times of Whisper, of which many are likely where one ends a sentence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct JointTokens {
    /// The first of them.
    pub first: TokenId,
    /// The last of them.
    pub last: TokenId,
}

/// A temperature that is low where the model is certain and high where it is not, known as dynatemp.
///
/// It is taken from `temperature - range` to `temperature + range` by the entropy of the tokens that the truncations keep, and applies
/// after these. Source: the parameters of llama.cpp.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct DynamicTemperature {
    /// How far the temperature may be from the stated one; 0 is off.
    pub range: f32,
    /// The power of the entropy's share of its maximum; 1 is in proportion.
    pub exponent: f32,
}

impl Default for DynamicTemperature {
    fn default() -> Self {
        DynamicTemperature { range: 0.0, exponent: 1.0 }
    }
}

impl DynamicTemperature {
    pub(super) fn is_on(self) -> bool {
        self.range > 0.0
    }

    /// The temperature around `middle`, for an entropy from 0 to 1, in parts of its maximum.
    pub(super) fn at(self, middle: f32, entropy: f64) -> f32 {
        let lowest = (middle - self.range).max(0.0);
        let share = entropy.clamp(0.0, 1.0).powf(self.exponent.into()) as f32;
        lowest + (middle + self.range - lowest) * share
    }
}

/// Removes the most likely tokens from time to time, known as XTC ("exclude top choices"): those of at least some probability,
/// except the least likely of them.
///
/// Source: its proposal in text-generation-webui (pull request 6335), and the parameters of llama.cpp.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct TopExclusion {
    /// How often; 0 is never.
    pub probability: f32,
    /// The probability of a token from which on it may be removed.
    pub threshold: f32,
}

impl TopExclusion {
    /// Whether tokens are removed in this draw. It uses another random number than the choice of the token.
    pub(super) fn applies(self, draw: Draw) -> bool {
        let random = Draw { seed: draw.seed ^ 0x5854_4358_5443_5854, ..draw }.random();
        self.probability > 0.0 && (random as f64) < f64::from(self.probability) * 64f64.exp2()
    }
}

/// A sampling parameter outside its range.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{param} {reason}")]
pub struct InvalidSamplingParam {
    /// The parameter's name in the API.
    pub param: &'static str,
    /// What the value must be, and what it is.
    pub reason: String,
}

impl SamplingParams {
    /// Checks every range.
    ///
    /// # Errors
    /// The first parameter that is outside its range.
    pub fn validate(&self) -> Result<(), InvalidSamplingParam> {
        let SamplingParams { temperature, top_p, min_p, typical_p, repetition_penalty, .. } = *self;
        let SamplingParams { presence_penalty, frequency_penalty, .. } = *self;
        let finite = f32::is_finite;
        check("temperature", finite(temperature) && temperature >= 0.0, temperature, "a number of at least 0")?;
        check("top_p", top_p > 0.0 && top_p <= 1.0, top_p, "above 0 and at most 1")?;
        check("min_p", (0.0..=1.0).contains(&min_p), min_p, "from 0 to 1")?;
        check("typical_p", typical_p > 0.0 && typical_p <= 1.0, typical_p, "above 0 and at most 1")?;
        let positive = finite(repetition_penalty) && repetition_penalty > 0.0;
        check("repetition_penalty", positive, repetition_penalty, "a number above 0")?;
        check("presence_penalty", finite(presence_penalty), presence_penalty, "a finite number")?;
        check("frequency_penalty", finite(frequency_penalty), frequency_penalty, "a finite number")?;
        let DynamicTemperature { range, exponent } = self.dynamic_temperature;
        check("dynatemp_range", finite(range) && range >= 0.0, range, "a number of at least 0")?;
        check("dynatemp_exponent", finite(exponent) && exponent >= 0.0, exponent, "a number of at least 0")?;
        let TopExclusion { probability, threshold } = self.xtc;
        check(
            "top_n_sigma",
            finite(self.top_n_sigma) && self.top_n_sigma >= 0.0,
            self.top_n_sigma,
            "a number of at least 0",
        )?;
        check("xtc_probability", (0.0..=1.0).contains(&probability), probability, "from 0 to 1")?;
        check("xtc_threshold", (0.0..=1.0).contains(&threshold), threshold, "from 0 to 1")?;
        if let Some(RepeatPenalty { multiplier, base, .. }) = self.repeats {
            check("dry_multiplier", finite(multiplier) && multiplier >= 0.0, multiplier, "a number of at least 0")?;
            check("dry_base", finite(base) && base >= 1.0, base, "a number of at least 1")?;
        }
        for &(token, bias) in &self.logit_bias {
            check("logit_bias", !bias.is_nan() && bias < f32::INFINITY, bias, &format!("a number for token {token}"))?;
        }
        Ok(())
    }

    /// The parameters with which an engine samples the token itself; `None` if the result depends on more than a row of
    /// logits and the draw.
    #[must_use]
    pub fn of_row_alone(&self, draw: Draw) -> Option<RowSamplingParams> {
        let truncates_by_row = self.typical_p >= 1.0 && self.top_n_sigma <= 0.0 && self.xtc.probability <= 0.0;
        let by_row = truncates_by_row && !self.dynamic_temperature.is_on();
        let depends_on_row_only = self.keeps_logits() && by_row;
        depends_on_row_only.then(|| self.of_row(draw))
    }

    /// Those parameters that depend on nothing but a row of logits and the draw.
    #[must_use]
    pub fn of_row(&self, draw: Draw) -> RowSamplingParams {
        let SamplingParams { temperature, top_p, min_p, .. } = *self;
        let top_k = u32::try_from(self.top_k).unwrap_or(u32::MAX);
        RowSamplingParams { temperature, top_k, top_p, min_p, random: draw.random() }
    }

    /// Whether no token is removed.
    pub(super) fn keeps_all_tokens(&self) -> bool {
        let keeps_ranks = self.top_k == 0 && self.top_p >= 1.0 && self.typical_p >= 1.0;
        keeps_ranks && self.min_p <= 0.0 && self.top_n_sigma <= 0.0 && self.xtc.probability <= 0.0
    }

    /// Whether penalties, bias and forbidden tokens leave every logit unchanged.
    pub(super) fn keeps_logits(&self) -> bool {
        self.repetition_penalty == 1.0
            && self.presence_penalty == 0.0
            && self.frequency_penalty == 0.0
            && self.logit_bias.is_empty()
            && self.allowed_tokens.is_none()
            && self.banned_sequences.is_empty()
            && self.joint_tokens.is_none()
            && self.repeats.is_none()
    }
}

fn check(param: &'static str, holds: bool, value: f32, expected: &str) -> Result<(), InvalidSamplingParam> {
    if holds {
        return Ok(());
    }
    Err(InvalidSamplingParam { param, reason: format!("must be {expected}, but is {value}") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_parameter_outside_its_range_is_reported_by_name() {
        assert_eq!(SamplingParams::default().validate(), Ok(()));
        let xtc = |probability, threshold| TopExclusion { probability, threshold };
        let dynamic = |range, exponent| DynamicTemperature { range, exponent };
        let bad: [(&str, SamplingParams); 13] = [
            ("dynatemp_range", SamplingParams { dynamic_temperature: dynamic(-1.0, 1.0), ..Default::default() }),
            ("dynatemp_exponent", SamplingParams { dynamic_temperature: dynamic(1.0, f32::NAN), ..Default::default() }),
            ("top_n_sigma", SamplingParams { top_n_sigma: -1.0, ..Default::default() }),
            ("xtc_probability", SamplingParams { xtc: xtc(1.5, 0.1), ..Default::default() }),
            ("xtc_threshold", SamplingParams { xtc: xtc(0.5, f32::NAN), ..Default::default() }),
            ("temperature", SamplingParams { temperature: -1.0, ..Default::default() }),
            ("temperature", SamplingParams { temperature: f32::NAN, ..Default::default() }),
            ("top_p", SamplingParams { top_p: 0.0, ..Default::default() }),
            ("min_p", SamplingParams { min_p: 1.5, ..Default::default() }),
            ("typical_p", SamplingParams { typical_p: f32::NAN, ..Default::default() }),
            ("repetition_penalty", SamplingParams { repetition_penalty: 0.0, ..Default::default() }),
            ("presence_penalty", SamplingParams { presence_penalty: f32::INFINITY, ..Default::default() }),
            ("logit_bias", SamplingParams { logit_bias: vec![(3, f32::NAN)], ..Default::default() }),
        ];
        for (param, params) in bad {
            assert_eq!(params.validate().map_err(|error| error.param), Err(param));
        }
    }
}
