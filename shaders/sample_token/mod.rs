//! Token sampling: the most likely token, or a draw from the truncated distribution of a row of logits.
//!
//! - this file: the formula and the op
//! - [`params`]: the parameters of a row, and the result
//! - [`weight`]: the relative probability of a token, as an integer
//! - [`reference`](mod@reference): a direct implementation of the formula, for tests and for the op on the CPU
//! - `gpu`: the passes over a row on a GPU, and the encoding of their parameters
//!
//! The host samples by the same formula where more than the row matters (penalties, logit bias). Both must agree, so no
//! result may depend on the order in which the tokens of a row are processed: see [`weight`].

mod cases;
mod gpu;
mod op;
pub mod params;
pub mod reference;
pub mod weight;

pub use cases::cases;
pub use op::{PARAMS_WORDS, words};
pub use params::{LARGEST_VOCABULARY, RowSamplingParams, SampledToken};

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
struct Terms {
    greedy: bool,
    inverse_temperature: f32,
    /// 0 keeps all.
    top_k: u32,
    floor: f32,
    /// A fraction with 64 bits; 0 keeps all.
    top_p: u64,
    random: u64,
}

impl Terms {
    fn of(params: &RowSamplingParams) -> Self {
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
}

/// Samples a token from each row for which one is requested.
///
/// - logits: [rows, vocab_size]; parameters: [rows, [`PARAMS_WORDS`]], from [`words`]; output: [rows, 1], encoded by
///   [`SampledToken::to_value`]
/// - Tokens rank by logit, largest first. Of equal logits the lower token ranks first.
/// - `s[t] = (logit[t] - max) * inverse(temperature)`, all in float32; `w[t] = weight(s[t])`.
/// - Three truncations are applied in this order: keep `s[t] >= floor(min_p)`; keep the first `top_k` by rank; keep the
///   fewest first ones by rank with `sum w >= top_p * (sum w of the tokens kept before)`.
/// - The result is the first token t, by number, with `sum_{kept i <= t} w[i] > random / 2^64 * (sum w of all kept)`.
///
/// All sums are sums of integers, so the token of a row depends neither on the device nor on the other rows.
#[derive(Debug, Clone, Copy, Default)]
pub struct SampleToken;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::Op;

    #[test]
    fn every_result_has_a_distinct_value() {
        for token in [0, 1, 2, 151_935, (1 << 23) - 1] {
            for sampled in [SampledToken::Token(token), SampledToken::NotFinite(token), SampledToken::Nothing] {
                assert_eq!(SampledToken::of_value(sampled.to_value()), sampled);
            }
        }
    }

    #[test]
    fn a_vocabulary_too_large_for_float32_is_refused() {
        assert_eq!(SampleToken.output_widths(&[151_936, PARAMS_WORDS]), Ok(vec![1]));
        for inputs in [vec![10], vec![10, 3], vec![0, PARAMS_WORDS], vec![1 << 24, PARAMS_WORDS]] {
            assert!(SampleToken.output_widths(&inputs).is_err(), "{inputs:?}");
        }
    }
}
