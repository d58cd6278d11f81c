//! Token sampling: the most likely token, or a draw from the truncated distribution of a row of logits.
//!
//! - this file: the formula and the op
//! - [`params`]: the parameters of a row, and the result
//! - `terms`: the parameters of a row as the formula uses them, and their encoding
//! - [`weight`]: the relative probability of a token, as an integer
//! - [`reference`](mod@reference): a direct implementation of the formula, for tests and for the op on the CPU
//! - `gpu`: the passes over a row on a GPU
//!
//! The host samples by the same formula where more than the row matters (penalties, logit bias). Both must agree, so no
//! result may depend on the order in which the tokens of a row are processed: see [`weight`].

mod cases;
pub(crate) mod gpu;
mod op;
pub mod params;
pub mod reference;
mod terms;
pub mod weight;

pub use cases::cases;
pub use params::{LARGEST_VOCABULARY, RowSamplingParams, SampledToken};
pub use terms::{PARAMS_WORDS, floor, inverse, words};

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
