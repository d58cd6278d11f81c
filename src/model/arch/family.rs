//! What a model family declares about its layers, as plain data.
//!
//! Sizes come from the file's metadata and tensor names are common to all families. A family file holds one [`Family`] and
//! nothing else. Rules depend on keys and tensors of the file, never on the name or size of one model.

pub use cuelight_shaders::experts::{RouteWeighting, Scoring};
pub use cuelight_shaders::glu::Activation;
pub use cuelight_shaders::rope::RopePairs;

/// What a family's layers are made of.
#[derive(Debug)]
pub struct Family {
    /// The value of the key `general.architecture`.
    pub architecture: &'static str,
    /// The factor on token embeddings.
    pub embedding_scale: EmbeddingScale,
    /// Where a layer applies norms.
    pub norms: Norms,
    /// How rows of a sequence exchange information.
    pub mixer: Mixer,
    /// The options of the mixer.
    pub attention: AttentionSpec,
    /// The activation of the gated feed-forward.
    pub activation: Activation,
    /// How rows are routed to experts, in layers that have a router.
    pub routing: Option<RoutingSpec>,
}

/// The factor on token embeddings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EmbeddingScale {
    /// 1.
    One,
    /// The square root of the hidden size.
    SqrtHiddenSize,
}

/// Where a layer applies norms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Norms {
    /// Before the mixer and before the feed-forward.
    Before,
    /// As [`Norms::Before`], but files name the second norm `post_attention_norm`.
    BeforeButNamedAfter,
    /// Before and after the mixer and the feed-forward; the latter before the residual is added.
    BeforeAndAfter,
}

/// How rows of a sequence exchange information.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mixer {
    /// Groups of query heads share one head of keys and values.
    GroupedQueryAttention,
    /// All heads share one latent vector, from which keys and values are computed.
    LatentAttention,
}

/// The options of attention. Biases and attention sinks are used where the file has their tensors.
#[derive(Debug)]
pub struct AttentionSpec {
    /// Whether each head of queries and keys is normalised.
    pub qk_norm: QkNorm,
    /// Which two values of a head form a rotated pair.
    pub rope_pairs: RopePairs,
    /// The factor on attention scores, unless the file has the key `attention.scale`.
    pub scale: AttentionScale,
    /// Which layers attend within a window only.
    pub windows: Windows,
    /// The rotary base of windowed layers where it differs from that of the others, unless the file has the key
    /// `rope.freq_base_swa`.
    pub rope_base_windowed: Option<f32>,
    /// Which layers rotate queries and keys.
    pub rotation: Rotation,
    /// Where YaRN's ramp starts and ends.
    pub yarn_ramp: YarnRamp,
    /// How the values of a head are computed.
    pub values: Values,
}

impl AttentionSpec {
    /// The options of most families: no norms on heads, no windows, every layer rotated.
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
    /// All layers.
    EveryLayer,
    /// Windowed layers, in models that have some. The other layers scale queries by their position instead.
    LayersWithWindow {
        /// Positions between two increments of the scale, unless the file has the key `attention.temperature_length`.
        step: u32,
        /// Strength of the scale, unless the file has the key `attention.temperature_scale`.
        strength: f32,
    },
}

/// Where YaRN's ramp from kept to interpolated frequencies starts and ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum YarnRamp {
    /// At whole pairs: the start is rounded down, the end up.
    WholePairs,
    /// Exactly where the rule puts them.
    Exact,
}

/// How the values of a head are computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Values {
    /// By their projection alone.
    AsProjected,
    /// By their projection and a norm without weight. Layers without a value projection use the keys as they are before
    /// their norm and rotation.
    Normed,
}

/// Whether each head of queries and keys is normalised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QkNorm {
    /// No.
    Never,
    /// Yes, before rotation; a file without these norms is refused.
    Always,
    /// Before rotation, if the file has the norms' tensors.
    WhereStored,
    /// After rotation and without weight, in layers that rotate. The key `use_qk_norm` turns it on or off; files without the
    /// key have it unless the key `interleave_moe_layer_step` says that dense layers alternate with expert layers.
    AfterRotation,
}

/// The factor on attention scores: one over the square root of a width.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttentionScale {
    /// The width is the size of a head.
    HeadDim,
    /// The width is the hidden size divided by the number of heads, at least the size of a head and at most `most`.
    HiddenPerHead {
        /// The upper bound, unless a head is larger.
        most: usize,
    },
    /// The width is 1.
    One,
}

/// How rows are routed to experts. Groups, bias, scale and a shared expert are used where the file has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RoutingSpec {
    /// How a router's logits become scores, unless the file has the key `expert_gating_func`.
    pub scoring: Scoring,
    /// Whether the weights of a row's experts are scaled to sum to 1, unless the file has the key `expert_weights_norm`.
    pub renormalise: bool,
    /// Whether an expert's weight applies to its input or to its output.
    pub weighting: RouteWeighting,
    /// Whether experts replace the dense feed-forward or run in parallel to it.
    pub placement: ExpertPlacement,
}

/// How experts relate to the dense feed-forward.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExpertPlacement {
    /// The experts replace it.
    Replace,
    /// Both are computed and their outputs added. Each has its own norms before and after, and the router has one more.
    Parallel,
}

/// Which layers attend within a window only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Windows {
    /// None, even if the file names a window.
    Never,
    /// All, if the file names a window.
    EveryLayer,
    /// All except every n-th, if the file names a window.
    AllButEvery(usize),
    /// All except every n-th attend within their chunk of positions, unless the file names a window of 0.
    ChunksButEvery {
        /// Every how many layers one attends to all positions.
        layers: usize,
        /// Positions in a chunk, unless the file has the key `attention.chunk_size`.
        positions: u32,
    },
}
