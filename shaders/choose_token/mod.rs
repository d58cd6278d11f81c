//! The choice of a token: greedy, or drawn from the truncated distribution of a row of logits.
//!
//! - this file: the formula, what a row is asked for, and the op
//! - [`weight`]: how likely a token is, as an integer
//! - [`reference`](mod@reference): the formula as it is written here, for tests and for the op on the CPU
//! - `gpu`: the passes over a row on a GPU, and the words that tell them what to do
//!
//! The host chooses by the same formula where more than the row counts (penalties, logit bias). Both must agree, so nothing
//! in it may depend on the order in which a row is gone through: see [`weight`].

pub mod cases;
mod gpu;
pub mod reference;
pub mod weight;

use crate::cost::{Cost, CostArgs};
use crate::gpu::{DeviceLimits, Dispatch, GpuArgs};
use crate::op::{CpuArgs, Op, ShapeError};

/// How a token is chosen from a row of logits, by nothing but the row.
///
/// The values are in their ranges: whoever fills them in has checked that.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TokenChoice {
    /// Divides the logits; 0 takes the most likely token.
    pub temperature: f32,
    /// Keep the k most likely tokens; 0 keeps all.
    pub top_k: u32,
    /// Keep the fewest most likely tokens whose probabilities sum to this; 1 keeps all.
    pub top_p: f32,
    /// Keep tokens at least this likely relative to the most likely; 0 keeps all.
    pub min_p: f32,
    /// The random number of this draw: 64 even bits.
    pub random: u64,
}

impl TokenChoice {
    /// The most likely token.
    pub const GREEDY: TokenChoice = TokenChoice { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, random: 0 };

    /// Whether the most likely token is chosen whatever the random number.
    #[must_use]
    pub fn is_greedy(&self) -> bool {
        self.temperature <= 0.0 || self.top_k == 1
    }
}

/// What logits are multiplied by: a product is the same everywhere, a quotient on a GPU is not.
#[must_use]
pub fn inverse(temperature: f32) -> f32 {
    // Of the smallest temperatures the inverse would be infinite, and the best token's 0 times it no number.
    (1.0 / temperature).min(f32::MAX)
}

/// The least scaled logit that `min_p` keeps; never that of a token without probability.
#[must_use]
pub fn floor(min_p: f32) -> f32 {
    min_p.ln().clamp(f32::MIN, 0.0)
}

/// A choice in the numbers of the formula.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Terms {
    greedy: bool,
    inverse_temperature: f32,
    /// 0 keeps all.
    top_k: u32,
    floor: f32,
    /// In 64 bits behind the point; 0 keeps all.
    top_p: u64,
    random: u64,
}

impl Terms {
    fn of(choice: &TokenChoice) -> Self {
        let TokenChoice { temperature, top_k, top_p, min_p, random } = *choice;
        Terms {
            greedy: choice.is_greedy(),
            inverse_temperature: inverse(temperature),
            top_k,
            floor: floor(min_p),
            top_p: if top_p < 1.0 { weight::share_bits(top_p).max(1) } else { 0 },
            random,
        }
    }
}

/// What a row led to. Where a token is missing the row is no distribution: a fault of whoever computed it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Chosen {
    /// This token.
    Token(u32),
    /// Nobody asked, or no token has a logit above minus infinity.
    Nothing,
    /// This token's logit, the first such, is NaN or infinitely large.
    NotFinite(u32),
}

impl Chosen {
    /// The value that stands for it: a token's number, -1, or -2 less a token's number.
    ///
    /// Values are float32, which has every number that a vocabulary may ([`ChooseToken`] checks that).
    #[must_use]
    pub fn to_value(self) -> f32 {
        match self {
            Chosen::Token(token) => token as f32,
            Chosen::Nothing => -1.0,
            Chosen::NotFinite(token) => -2.0 - token as f32,
        }
    }

    /// What a value stands for.
    #[must_use]
    pub fn of_value(value: f32) -> Self {
        match value {
            value if value >= 0.0 => Chosen::Token(value as u32),
            value if value <= -2.0 => Chosen::NotFinite((-2.0 - value) as u32),
            _ => Chosen::Nothing,
        }
    }
}

/// Chooses a token from each row that asks for one.
///
/// - logits: [rows, vocab_size]; choices: [rows, [`CHOICE_WORDS`]] words, from [`words`]; output: [rows, 1], as
///   [`Chosen::to_value`] says
/// - Ranks: a larger logit first; of equals the lower token.
/// - `s[t] = (logit[t] - max) * inverse(temperature)`, all in float32; `w[t] = weight(s[t])`.
/// - Kept are, each of what the one before left: `s[t] >= floor(min_p)`; the first `top_k`; the fewest first ones with
///   `sum w >= top_p * (sum w of what is left)`.
/// - Chosen is the first token t, by number, with `sum_{kept i <= t} w[i] > random / 2^64 * (sum w of all kept)`.
///
/// All sums are of integers, so a row's token does not depend on the device, nor on the rows beside it.
#[derive(Debug, Clone, Copy, Default)]
pub struct ChooseToken;

/// Words of a row of choices.
pub const CHOICE_WORDS: usize = gpu::WORDS;

/// The row of choices for a row of logits, as float32 values of these bits; `None` chooses nothing.
#[must_use]
pub fn words(choice: Option<&TokenChoice>) -> [f32; CHOICE_WORDS] {
    gpu::words(choice.map(Terms::of).as_ref()).map(f32::from_bits)
}

impl Op for ChooseToken {
    fn name(&self) -> &'static str {
        "choose_token"
    }

    fn output_widths(&self, inputs: &[usize]) -> Result<Vec<usize>, ShapeError> {
        /// Up to here every whole number is a float32.
        const LARGEST_VOCABULARY: usize = 1 << 23;
        ShapeError::check(self.name(), "number of inputs", inputs.len(), 2)?;
        ShapeError::check(self.name(), "words of a choice", inputs[1], CHOICE_WORDS)?;
        match inputs[0] {
            1..=LARGEST_VOCABULARY => Ok(vec![1]),
            found => Err(ShapeError::Mismatch {
                op: self.name(),
                what: "vocabulary".to_owned(),
                found,
                expected: format!("from 1 to {LARGEST_VOCABULARY}"),
            }),
        }
    }

    fn cost(&self, args: &CostArgs<'_>) -> Cost {
        // Each logit is looked at once for the largest; draws look again, but mostly at what is in the cache.
        Cost {
            activation_bytes: args.activation_bytes(),
            float_operations: args.activation_bytes() / size_of::<f32>() as u64,
            ..Cost::default()
        }
    }

    fn run_cpu(&self, args: &mut CpuArgs<'_>) {
        if args.rows == 0 {
            return;
        }
        let [logits, choices] = args.inputs else { panic!("logits and choices") };
        let rows = logits.chunks_exact(logits.len() / args.rows).zip(choices.as_chunks().0);
        for ((logits, words), output) in rows.zip(args.outputs[0].iter_mut()) {
            let terms = gpu::of_words(&words.map(f32::to_bits));
            let chosen = terms.map_or(Chosen::Nothing, |terms| reference::choose_by(logits, &terms));
            *output = chosen.to_value();
        }
    }

    fn gpu_scratch_bytes(&self, device: &DeviceLimits, rows: usize, _context_tokens: usize) -> u64 {
        gpu::scratch_bytes(device, rows)
    }

    fn dispatches(&self, args: &GpuArgs<'_>) -> Vec<Dispatch> {
        gpu::dispatches(args)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_comes_of_a_row_has_a_value_of_its_own() {
        for token in [0, 1, 2, 151_935, (1 << 23) - 1] {
            for chosen in [Chosen::Token(token), Chosen::NotFinite(token), Chosen::Nothing] {
                assert_eq!(Chosen::of_value(chosen.to_value()), chosen);
            }
        }
    }

    #[test]
    fn a_vocabulary_whose_tokens_are_no_float32_is_refused() {
        assert_eq!(ChooseToken.output_widths(&[151_936, CHOICE_WORDS]), Ok(vec![1]));
        for inputs in [vec![10], vec![10, 3], vec![0, CHOICE_WORDS], vec![1 << 24, CHOICE_WORDS]] {
            assert!(ChooseToken.output_widths(&inputs).is_err(), "{inputs:?}");
        }
    }
}
