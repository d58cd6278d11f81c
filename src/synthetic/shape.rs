//! The sizes of a model, and what else a file says of it.

use std::f32::consts::PI;

use super::vocabulary::Vocabulary;

/// A model's sizes and constants.
///
/// A row starts from the shared row of its series. What only some architectures have is in [`Shape::keys`]. The tensors follow
/// from the graph that the architecture builds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Shape {
    /// The name in Cuelight.
    pub name: &'static str,
    /// The publisher's name.
    pub title: &'static str,
    /// `general.architecture`.
    pub architecture: &'static str,
    /// Published number of weights, which tests compare with the tensors that follow from the other fields. The one of a Gemma 4
    /// includes vision and audio; here it is that of the text model.
    pub parameters: u64,
    /// Number of layers.
    pub n_layers: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width of the feed-forward network.
    pub intermediate_size: usize,
    /// Number of query heads.
    pub n_heads: usize,
    /// Number of key-value heads.
    pub n_kv_heads: usize,
    /// Dimension of a head.
    pub head_dim: usize,
    /// Tokens in the vocabulary, and rows of the embedding.
    pub vocab_size: usize,
    /// The kind of tokenizer.
    pub vocabulary: Vocabulary,
    /// Maximum length of a training sequence.
    pub context_train: usize,
    /// The epsilon added to the mean square in every norm.
    pub rms_norm_epsilon: f32,
    /// Base of the rotary frequencies.
    pub rope_base: f32,
    /// How the frequencies are scaled for long contexts.
    pub rope_stretch: RopeStretch,
    /// Positions in the sliding window; the architecture determines which layers have one.
    pub window: Option<usize>,
    /// Soft caps of attention scores and of logits.
    pub softcaps: Option<(f32, f32)>,
    /// Whether the embedding is also the head.
    pub tied: bool,
    /// The experts of its layers.
    pub experts: Option<ExpertShape>,
    /// Values of a head that are rotated; `None` for all.
    pub rotary_dim: Option<usize>,
    /// Further keys of the architecture. A key replaces one that follows from another field.
    pub keys: &'static [(&'static str, Key)],
    /// The tensors of the model that files of its architecture may lack, in all layers or in some.
    pub optional: &'static [OptionalTensor],
}

/// Experts that replace the dense feed-forward network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpertShape {
    /// Number of experts.
    pub count: usize,
    /// Number of experts that a row uses.
    pub used: usize,
    /// Width of the feed-forward network of an expert.
    pub intermediate_size: usize,
    /// Width of the expert that every row uses; 0 if there is none.
    pub shared_size: usize,
}

/// How rotary frequencies are scaled for long contexts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum RopeStretch {
    /// No scaling.
    None,
    /// All frequencies by one factor, in layers without a window.
    Linear {
        /// The factor by which the context becomes longer.
        factor: f32,
    },
    /// YaRN, in layers with and without a window.
    Yarn {
        /// The factor by which the context becomes longer.
        factor: f32,
        /// Tokens of the original context.
        original_context: usize,
    },
    /// Llama 3's rule: low frequencies by the factor, high frequencies unchanged, interpolated between (see [`rope_factors`]).
    Llama3 {
        /// The factor by which the context becomes longer.
        factor: f32,
    },
    /// Only the highest frequencies rotate, in layers without a window.
    Partial {
        /// How many of the frequencies.
        rotated: usize,
    },
}

/// The divisors of the rotary frequencies that a file stores, `[head_dim / 2]`.
#[must_use]
pub fn rope_factors(shape: &Shape) -> Option<Vec<f32>> {
    match shape.rope_stretch {
        RopeStretch::None | RopeStretch::Linear { .. } | RopeStretch::Yarn { .. } => None,
        RopeStretch::Llama3 { factor } => Some(llama_3_factors(shape.rope_base, shape.head_dim, factor)),
        RopeStretch::Partial { rotated } => {
            // Source: `convert_hf_to_gguf.py` of llama.cpp for Gemma 4.
            const NEVER: f32 = 1e30;
            Some((0..shape.head_dim / 2).map(|pair| if pair < rotated { 1.0 } else { NEVER }).collect())
        }
    }
}

/// The value of a key.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Key {
    /// A size.
    Size(u32),
    /// A number.
    Number(f32),
    /// A flag.
    Flag(bool),
    /// Several integers.
    Integers(&'static [i32]),
    /// Several large numbers.
    Longs(&'static [u64]),
    /// A size for each layer: that of the layer's letter.
    Sizes(Letters, [(char, u32); 2]),
    /// A flag for each layer: whether the layer has this letter.
    Flags(Letters, char),
}

/// A letter for each layer. They start again after the last.
pub type Letters = &'static str;

/// The letter of a layer.
#[must_use]
pub fn letter(letters: Letters, layer: usize) -> Option<char> {
    letters.chars().cycle().nth(layer)
}

/// A tensor that files of an architecture may lack, in all layers or in some, and a model has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OptionalTensor {
    /// Its name, without the prefix of a layer.
    pub name: &'static str,
    /// Output dimension, where the sizes of the model do not determine it.
    pub rows: usize,
    /// The layers that have it, those with the letter; `None` for all.
    pub layers: Option<(Letters, char)>,
}

impl OptionalTensor {
    /// A tensor of all layers that use it.
    #[must_use]
    pub const fn new(name: &'static str) -> Self {
        OptionalTensor { name, rows: 1, layers: None }
    }

    /// A tensor of the layers with this letter.
    #[must_use]
    pub const fn of_layers(name: &'static str, letters: Letters, letter: char) -> Self {
        OptionalTensor { name, rows: 1, layers: Some((letters, letter)) }
    }

    /// Whether a layer has it.
    #[must_use]
    pub fn is_in(&self, layer: usize) -> bool {
        self.layers.is_none_or(|(letters, wanted)| letter(letters, layer) == Some(wanted))
    }
}

/// The divisors of Llama 3's rotary frequencies.
///
/// A frequency with at least four periods within the original context of 8192 tokens is unchanged. A frequency with less than
/// one period is divided by `factor`. Between them the divisor is interpolated. Source: Llama 3.1's reference code.
fn llama_3_factors(base: f32, rotary_dim: usize, factor: f32) -> Vec<f32> {
    const ORIGINAL_CONTEXT: f32 = 8192.0;
    const UNCHANGED_FROM_PERIODS: f32 = 4.0;
    const DIVIDED_UP_TO_PERIODS: f32 = 1.0;
    let factor_of = |pair: usize| {
        let frequency = base.powf(-(2.0 * pair as f32) / rotary_dim as f32);
        let periods = ORIGINAL_CONTEXT * frequency / (2.0 * PI);
        let unchanged =
            ((periods - DIVIDED_UP_TO_PERIODS) / (UNCHANGED_FROM_PERIODS - DIVIDED_UP_TO_PERIODS)).clamp(0.0, 1.0);
        1.0 / ((1.0 - unchanged) / factor + unchanged)
    };
    (0..rotary_dim / 2).map(factor_of).collect()
}
