//! The families of models, one declarative file each.
//!
//! A family says which parts its layers are made of; sizes come from the file's metadata, tensor names are common to all.
//! A new mathematical idea is a new mixer or feed-forward and a variant here, never a test for a family's name.

mod deepseek2;
mod gemma2;
mod gemma3;
mod gemma4;
mod glm4moe;
mod gpt_oss;
mod llama;
mod llama4;
mod qwen2;
mod qwen2moe;
mod qwen3;
mod qwen3moe;

use cuelight_shaders::experts::{RouteWeighting, Scoring};
use cuelight_shaders::glu::Activation;
use cuelight_shaders::rope::RopePairs;

use super::ModelError;
use crate::format::gguf::Gguf;

/// All families.
pub const FAMILIES: &[&Family] = &[
    &llama::FAMILY,
    &qwen2::FAMILY,
    &qwen3::FAMILY,
    &gemma2::FAMILY,
    &gemma3::FAMILY,
    &qwen2moe::FAMILY,
    &qwen3moe::FAMILY,
    &glm4moe::FAMILY,
    &gpt_oss::FAMILY,
    &deepseek2::FAMILY,
    &llama4::FAMILY,
    &gemma4::FAMILY,
];

/// What a family's layers are made of.
#[derive(Debug)]
pub struct Family {
    /// The value of `general.architecture`.
    pub architecture: &'static str,
    /// What multiplies the embedded tokens.
    pub embedding_scale: EmbeddingScale,
    /// Where a layer's norms stand.
    pub norms: Norms,
    /// How rows look at one another.
    pub mixer: Mixer,
    /// What differs between families in that.
    pub attention: AttentionSpec,
    /// The activation of the gated feed-forward.
    pub activation: Activation,
    /// How rows find their experts, in layers that have some.
    pub routing: Option<RoutingSpec>,
}

/// What multiplies the embedded tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EmbeddingScale {
    /// Nothing.
    One,
    /// The square root of the hidden size.
    SqrtHiddenSize,
}

/// Where a layer's norms stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Norms {
    /// Before the mixer and before the feed-forward.
    Before,
    /// The same, where the second is called the norm after attention.
    BeforeButNamedAfter,
    /// Also after each, before the residual is added.
    BeforeAndAfter,
}

/// How rows look at one another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mixer {
    /// Some query heads share a head of keys and values.
    GroupedQueryAttention,
    /// All heads share one latent vector, of which keys and values are made.
    LatentAttention,
}

/// The parts of attention that differ between families. Biases and sinks are used where the file has them.
#[derive(Debug)]
pub struct AttentionSpec {
    /// Whether queries and keys are normed head by head before they are rotated.
    pub qk_norm: QkNorm,
    /// Which values of a head are rotated together.
    pub rope_pairs: RopePairs,
    /// What multiplies the scores when the file does not say.
    pub scale: AttentionScale,
    /// Which layers see only a window.
    pub windows: Windows,
    /// The rotary base of layers with a window, when it differs from the others' and the file does not say.
    pub rope_base_windowed: Option<f32>,
    /// Which layers rotate queries and keys.
    pub rotation: Rotation,
    /// Where YaRN's ramp begins and ends.
    pub yarn_ramp: YarnRamp,
    /// What the values of a head go through.
    pub values: Values,
}

impl AttentionSpec {
    /// What most families have: nothing but scores and a rotation.
    pub const PLAIN: AttentionSpec = AttentionSpec {
        qk_norm: QkNorm::Never,
        rope_pairs: RopePairs::Halves,
        scale: AttentionScale::HeadDim,
        windows: Windows::Never,
        rope_base_windowed: None,
        rotation: Rotation::EveryLayer,
        yarn_ramp: YarnRamp::WholePairs,
        values: Values::AsProjected,
    };
}

/// Which layers rotate queries and keys.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Rotation {
    /// All.
    EveryLayer,
    /// Those with a window, where a model has such; in the others queries grow with their position.
    LayersWithWindow {
        /// Positions after which they grow again, when the file does not say.
        step: u32,
        /// How strongly, when the file does not say.
        strength: f32,
    },
}

/// Where the ramp begins and ends by which YaRN goes from frequencies that it keeps to those that it interpolates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum YarnRamp {
    /// At whole pairs, outside of what the rule says.
    WholePairs,
    /// Where the rule says.
    Exact,
}

/// What the values of a head go through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Values {
    /// Nothing.
    AsProjected,
    /// A norm without weight; in layers without a projection of their own values are the keys before their norm and rotation.
    Normed,
}

/// Whether queries and keys are normed head by head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QkNorm {
    /// No.
    Never,
    /// Yes; a file without these norms is not of the family.
    Always,
    /// In models whose files have these norms.
    WhereStored,
    /// Without weight and after they are rotated, in layers that rotate them; but not in the family's model of so many experts.
    UnweightedBut {
        /// Experts of that model.
        n_experts: usize,
    },
}

/// What multiplies attention scores: one over the square root of …
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttentionScale {
    /// … the head's size.
    HeadDim,
    /// … the head's size, but hidden size over heads in the family's model of this depth.
    HeadDimBut {
        /// Layers of that model.
        n_layers: usize,
    },
    /// … one.
    One,
}

/// How rows find their experts. Groups, bias and scale are used where the file has them, and so is a shared expert.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RoutingSpec {
    /// How logits become scores, when the file does not say.
    pub scoring: Scoring,
    /// The weights of a row's experts add up to 1, when the file does not say.
    pub renormalise: bool,
    /// Where a weight takes effect.
    pub weighting: RouteWeighting,
    /// How experts stand to the dense feed-forward.
    pub stance: ExpertStance,
}

/// How experts stand to the dense feed-forward.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExpertStance {
    /// In its place.
    Instead,
    /// Beside it: each has norms of its own before and after, the router one more, and what they give is added.
    Beside,
}

/// Which layers see only the file's window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Windows {
    /// None, whatever the file says.
    Never,
    /// All, when the file has a window.
    EveryLayer,
    /// All but every n-th.
    AllButEvery(usize),
    /// All but every n-th see only their own chunk of the positions, unless the file has no window.
    ChunksButEvery {
        /// Every how many layers one sees all.
        layers: usize,
        /// Positions of a chunk, when the file does not say.
        positions: u32,
    },
}

/// The architectures that can run.
#[must_use]
pub fn known() -> Vec<&'static str> {
    FAMILIES.iter().map(|family| family.architecture).collect()
}

/// The family of a file.
///
/// # Errors
/// [`ModelError::UnknownArchitecture`], or a missing `general.architecture`.
pub fn of(gguf: &Gguf) -> Result<&'static Family, ModelError> {
    let found = gguf.str("general.architecture")?;
    FAMILIES.iter().copied().find(|family| family.architecture == found).ok_or_else(|| {
        ModelError::UnknownArchitecture { file: gguf.path().display().to_string(), found: found.to_owned() }
    })
}
