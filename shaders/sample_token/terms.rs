//! The parameters of a row in the form that the formula uses, and their encoding in words.

use super::params::RowSamplingParams;
use super::weight;

/// The factor of the logits. Logits are multiplied and not divided, because a quotient on a GPU can differ in its last
/// bits.
#[must_use]
pub fn inverse(temperature: f32) -> f32 {
    // The inverse of the smallest temperatures would be infinite, and infinity times the 0 of the best token is NaN.
    (1.0 / temperature).min(f32::MAX)
}

/// The smallest scaled logit that `min_p` keeps. It is finite, so tokens with probability 0 are never kept.
#[must_use]
pub fn floor(min_p: f32) -> f32 {
    min_p.ln().clamp(f32::MIN, 0.0)
}

/// The parameters of a row in the form that the formula uses.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Terms {
    pub greedy: bool,
    pub inverse_temperature: f32,
    /// 0 keeps all.
    pub top_k: u32,
    pub floor: f32,
    /// A fraction with 64 bits; 0 keeps all.
    pub top_p: u64,
    pub random: u64,
}

/// Words of the parameters of a row: mode, inverse temperature, top_k, magnitude of the floor, top_p (2), random number
/// (2).
pub const PARAMS_WORDS: usize = 8;

/// The mode of a row, as in `row.glsl`.
const NOTHING: u32 = 0;
const BEST: u32 = 1;
const DRAW: u32 = 2;

/// Encodes the parameters of a row for `row.glsl`, as float32 values with these bits; `None` requests no token.
#[must_use]
pub fn words(params: Option<&RowSamplingParams>) -> [f32; PARAMS_WORDS] {
    params.map_or([NOTHING; PARAMS_WORDS], |params| Terms::of(params).to_words()).map(f32::from_bits)
}

impl Terms {
    pub fn of(params: &RowSamplingParams) -> Self {
        let RowSamplingParams { temperature, top_k, top_p, min_p, random } = *params;
        Terms {
            greedy: params.is_greedy(),
            inverse_temperature: inverse(temperature),
            top_k,
            floor: floor(min_p),
            top_p: if top_p < 1.0 { weight::share_bits(top_p).max(1) } else { 0 },
            random,
        }
    }

    fn to_words(self) -> [u32; PARAMS_WORDS] {
        let Terms { greedy, inverse_temperature, top_k, floor, top_p, random } = self;
        let mode = if greedy { BEST } else { DRAW };
        let halves = |number: u64| [number as u32, (number >> 32) as u32];
        let ([p_low, p_high], [random_low, random_high]) = (halves(top_p), halves(random));
        [mode, inverse_temperature.to_bits(), top_k, floor.abs().to_bits(), p_low, p_high, random_low, random_high]
    }

    /// Decodes the result of [`words`].
    pub fn of_words(words: &[f32; PARAMS_WORDS]) -> Option<Terms> {
        let words = words.map(f32::to_bits);
        let [mode, inverse_temperature, top_k, floor, p_low, p_high, random_low, random_high] = words;
        let number = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        (mode != NOTHING).then(|| Terms {
            greedy: mode == BEST,
            inverse_temperature: f32::from_bits(inverse_temperature),
            top_k,
            floor: -f32::from_bits(floor),
            top_p: number(p_low, p_high),
            random: number(random_low, random_high),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_round_trip() {
        let params = RowSamplingParams { temperature: 0.5, top_k: 40, top_p: 0.9, min_p: 0.25, random: u64::MAX - 7 };
        for params in
            [params, RowSamplingParams { top_k: 1, ..params }, RowSamplingParams { min_p: 1.0, top_p: 1.0, ..params }]
        {
            assert_eq!(Terms::of_words(&words(Some(&params))), Some(Terms::of(&params)));
        }
        assert_eq!(Terms::of_words(&words(None)), None);
    }
}
