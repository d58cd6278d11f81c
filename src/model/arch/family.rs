//! What a model family declares about its layers, as plain data.
//!
//! Sizes come from the file's metadata and tensor names are common to all families. A family file holds one [`Family`] and
//! nothing else. Rules depend on keys and tensors of the file, never on the name or size of one model. From both the loader
//! makes a [`LayerSpec`](crate::model::layer::LayerSpec) for each layer.

pub use cuelight_shaders::activate::Pointwise;
pub use cuelight_shaders::experts::{RouteWeighting, Scoring};
pub use cuelight_shaders::gated_delta::HeadOrder;
pub use cuelight_shaders::glu::Activation;
pub use cuelight_shaders::rope::RopePairs;

/// What a family's layers are made of. A layer has biases, attention sinks and fused projections where the file has their
/// tensors.
#[derive(Debug)]
pub struct Family {
    /// The value of the key `general.architecture`.
    pub architecture: &'static str,
    /// Other values of the key, by which some converters name the same layers.
    pub other_names: &'static [&'static str],
    /// The models of the family, for the table in `docs/models.md`.
    pub models: &'static str,
    /// The factor on token embeddings, unless the file has the key `embedding_scale`.
    pub embedding_scale: EmbeddingScale,
    /// The norm of token embeddings.
    pub embedding_norm: EmbeddingNorm,
    /// What follows the last layer.
    pub output: Output,
    /// What a step generates.
    pub generation: Generation,
    /// The use of the key `logit_scale`.
    pub logit_scale: LogitScale,
    /// The kind of all norms, except those of heads.
    pub norm: NormKind,
    /// Where a layer applies norms.
    pub norms: Norms,
    /// The epsilon of norms after the mixer and the feed-forward; `None` for that of the others.
    pub epsilon_after: Option<f32>,
    /// What the feed-forward reads.
    pub residual: Residual,
    /// How rows of a sequence exchange information.
    pub mixer: Mixer,
    /// The options of the mixer.
    pub attention: AttentionSpec,
    /// The mixer of recurrent layers: those with a convolution.
    pub recurrent: Recurrent,
    /// The form of dense feed-forwards and of experts.
    pub feed_forward: FeedForward,
    /// What the keys `swiglu_clamp_exp` and `swiglu_clamp_shexp` limit.
    pub activation_limit: ActivationLimit,
    /// How rows are routed to experts, in layers that have a router.
    pub routing: Option<RoutingSpec>,
    /// The head of models that classify texts.
    pub classifier: ClassifierHead,
    /// Keys that files with parts for images leave out, and their values.
    pub omitted_with_images: &'static [(&'static str, f32)],
}

impl Family {
    /// The layers of Llama, of which most families change a few options: RMS norms before each half, grouped-query
    /// attention, a feed-forward gated by SiLU.
    pub const PLAIN: Family = Family {
        architecture: "",
        other_names: &[],
        models: "",
        embedding_scale: EmbeddingScale::One,
        embedding_norm: EmbeddingNorm::Never,
        output: Output::NormAndHead,
        generation: Generation::Tokens,
        logit_scale: LogitScale::Unused,
        norm: NormKind::Rms,
        norms: Norms::Before,
        epsilon_after: None,
        residual: Residual::Sequential,
        mixer: Mixer::GroupedQueryAttention,
        attention: AttentionSpec::PLAIN,
        recurrent: Recurrent::Never,
        feed_forward: FeedForward::Gated(Activation::Silu),
        activation_limit: ActivationLimit::Activated,
        routing: None,
        classifier: ClassifierHead::Tanh,
        omitted_with_images: &[],
    };
}

/// The factor on token embeddings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EmbeddingScale {
    /// 1.
    One,
    /// The square root of the hidden size.
    SqrtHiddenSize,
    /// That of the key; a file without it is refused.
    ByKey,
}

/// The norm of token embeddings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EmbeddingNorm {
    /// None.
    Never,
    /// A root-mean-square norm without weight.
    Unweighted,
    /// That of the file, after the embeddings of position and token type are added where the file has them.
    Stored,
}

/// What follows the last layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Output {
    /// A norm, then the output head. A file that says how embeddings are pooled has no use for the head.
    NormAndHead,
    /// A norm. The model makes embeddings only.
    Norm,
    /// Nothing. The model makes embeddings only.
    Nothing,
}

impl Output {
    /// Whether models of the family make embeddings only.
    #[must_use]
    pub fn is_embedding_only(self) -> bool {
        self != Output::NormAndHead
    }
}

/// The head of models that classify texts: an activated layer where the file has one, a norm where it has one, the logits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClassifierHead {
    /// The activation is the hyperbolic tangent. The head reads the first token of an encoder, unless the key
    /// `classifier.pooling_type` says that it reads the mean, and the last token of other models.
    Tanh,
    /// The activation is GELU. The head reads the mean of all tokens, unless the key says that it reads the first.
    GeluOfMean,
}

/// What a step generates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Generation {
    /// One token after the other.
    Tokens,
    /// Drafts for another model, with its residuals.
    Drafts,
    /// Blocks of as many tokens as the key `diffusion.canvas_length` says. They are denoised together, in some steps.
    Blocks,
}

/// The use of the key `logit_scale`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogitScale {
    /// None.
    Unused,
    /// Logits are multiplied by it.
    Multiplies,
    /// Logits are divided by it.
    Divides,
}

/// The kind of a norm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NormKind {
    /// Root-mean-square norm.
    Rms,
    /// Layer norm, with a bias where the file has one.
    Layer,
    /// Layer norm without weight and bias.
    LayerUnweighted,
}

/// Where a layer applies norms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Norms {
    /// Before the mixer and before the feed-forward.
    Before,
    /// As [`Norms::Before`], but the mixer of the first layer has none: the embedding is already normalised.
    BeforeButFirstMixer,
    /// As [`Norms::Before`], but files name the second norm `post_attention_norm`.
    BeforeButNamedAfter,
    /// As [`Norms::Before`], but files name the second norm `attn_output_norm`.
    BeforeButNamedOutput,
    /// As [`Norms::Before`], but in files with a norm `attn_norm_2` that one is before the mixer, and `attn_norm` before the
    /// feed-forward.
    BeforeWithSecond,
    /// Before and after the mixer and the feed-forward; the latter before the residual is added.
    BeforeAndAfter,
    /// After the mixer and after the feed-forward, before the residual is added.
    After,
    /// After the mixer and after the feed-forward, once the residual is added.
    AfterSum,
    /// Before the mixer or the feed-forward: a layer has only one of them. Files give it 0 heads of keys and a feed-forward of
    /// length 0 where it has none.
    BeforeOnlyHalf,
    /// As [`Norms::Before`]. A layer may lack the mixer or the feed-forward, or both. Files give it 0 heads of keys and a feed-forward
    /// of length 0 where it has none.
    BeforeEitherHalf,
    /// None but those of the residual streams.
    InStreams,
}

impl Norms {
    /// Whether a layer may lack the mixer or the feed-forward.
    #[must_use]
    pub fn may_lack_halves(self) -> bool {
        matches!(self, Norms::BeforeOnlyHalf | Norms::BeforeEitherHalf)
    }
}

/// What the feed-forward reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Residual {
    /// The sum of the layer's input and the mixer's output.
    Sequential,
    /// The layer's input, as the mixer does. Both have the same norm, unless the file has one for the feed-forward.
    Parallel,
    /// As [`Residual::Parallel`], unless the key `use_parallel_residual` is false.
    ParallelByKey,
    /// As [`Residual::Parallel`] in layers whose feed-forward has no norm of its own, else as [`Residual::Sequential`].
    ParallelWithOneNorm,
}

/// The form of a feed-forward.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FeedForward {
    /// Gate and up projections, whose product is activated. Files may hold both in `ffn_up`, the gate first. The keys
    /// `activation.situ_beta` and `activation.situ_linear_beta` have the bounds of an activation that has such.
    Gated(Activation),
    /// As [`FeedForward::Gated`], by a function that is applied to the gate alone. The key `hidden_activation` chooses between the
    /// two forms of GELU.
    GatedBy(Pointwise),
    /// One activated projection. The key `hidden_activation` chooses between the two forms of GELU.
    Ungated(Pointwise),
    /// One projection, activated by xIELU with parameters of each layer.
    UngatedXielu,
}

/// Which values of a gate are limited. Those that it multiplies are limited either way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ActivationLimit {
    /// Those after the activation.
    Activated,
    /// Those before it.
    Gate,
}

impl FeedForward {
    /// The same with limits on the values of its activation, if it is gated by SiLU and `limit` is not 0.
    #[must_use]
    pub fn limited(self, values: ActivationLimit, limit: u16) -> Self {
        match (self, values) {
            _ if limit == 0 => self,
            (FeedForward::Gated(Activation::Silu), ActivationLimit::Activated) => {
                FeedForward::Gated(Activation::LimitedSilu(limit))
            }
            (FeedForward::Gated(Activation::Silu), ActivationLimit::Gate) => {
                FeedForward::Gated(Activation::ClampedSilu(limit))
            }
            (form, _) => form,
        }
    }
}

/// The names of GELU by an approximation with the hyperbolic tangent.
const GELU_TANH: [&str; 3] = ["gelu_pytorch_tanh", "gelu_new", "gelu_fast"];

impl FeedForward {
    /// The same with the form of GELU of this name, if it is a GELU that may have either form; `None` for other names.
    #[must_use]
    pub fn with_gelu(self, name: &str) -> Option<Self> {
        let gelu = match name {
            "gelu" => Some(Pointwise::Gelu),
            name => GELU_TANH.contains(&name).then_some(Pointwise::GeluTanh),
        };
        match self {
            FeedForward::Ungated(Pointwise::Gelu | Pointwise::GeluTanh) => gelu.map(FeedForward::Ungated),
            FeedForward::GatedBy(Pointwise::Gelu | Pointwise::GeluTanh) => gelu.map(FeedForward::GatedBy),
            form => Some(form),
        }
    }
}

/// How rows of a sequence exchange information.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mixer {
    /// Groups of query heads share one head of keys and values.
    GroupedQueryAttention,
    /// The same to pools of positions that an indexer selects. The key `attention.compress_ratios` has the positions of a pool.
    SelectiveAttention,
    /// The same, for each group by itself, in layers for which the file has the tensors of an indexer.
    SelectiveAttentionOfGroups,
    /// All heads share one latent vector, from which keys and values are computed.
    LatentAttention,
    /// Latent attention to positions that an indexer selects, in whose heads these two values form a rotated pair.
    SelectiveLatentAttention(RopePairs),
    /// All heads share one key, which is also the value. In layers with pools of positions, by the key `attention.compress_ratios`,
    /// rows also attend to an entry of each pool or of those that an indexer selects.
    PooledAttention,
}

/// The mixer of recurrent layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recurrent {
    /// There are none.
    Never,
    /// The gated delta rule, with this key head for each value head, and outputs times this function of their gates.
    GatedDelta(HeadOrder, Activation),
    /// The gated delta rule with a decay for each key, which has as many heads as attention. The key `kda.gate_lower_bound` bounds
    /// the decays.
    KeyDelta,
    /// A gated convolution over few rows.
    ShortConv,
    /// The selective scan of Mamba 1.
    SelectiveScan,
    /// The state space of Mamba 2.
    StateSpace,
}

/// How the pairs of a head are divided among the positions in time and of the row and the column of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AxesOrder {
    /// They are not: all rotate by the position in the sequence.
    Never,
    /// In runs, one position after the other.
    Runs,
    /// In runs. The halves of a head are pairs in files with the key, whatever the family says of others.
    RunsOfHalves,
    /// By each position in turn.
    InTurns,
}

/// The options of attention.
#[derive(Debug)]
pub struct AttentionSpec {
    /// How queries and keys are normalised.
    pub qk_norm: QkNorm,
    /// Which two values of a head form a rotated pair.
    pub rope_pairs: RopePairs,
    /// How pairs are divided among the positions of images, by the key `rope.dimension_sections`.
    pub rope_axes: AxesOrder,
    /// The factor on attention scores, unless the file has the key `attention.scale`.
    pub scale: AttentionScale,
    /// Which layers attend within a window only.
    pub windows: Windows,
    /// Which rows of its sequence a row sees. Where the key `attention.causal` is false, models that make embeddings see all.
    pub direction: Direction,
    /// What rows of media see of each other.
    pub media_rows: MediaRows,
    /// How windowed layers rotate.
    pub windowed_rope: WindowedRope,
    /// How many values of a head layers without a window rotate.
    pub unwindowed_rotary: UnwindowedRotary,
    /// Which layers rotate queries and keys, unless the file has the key `attention.rope_pattern`.
    pub rotation: Rotation,
    /// How queries are scaled by their position.
    pub temperature: Temperature,
    /// Which models have the bias of ALiBi, which lowers scores by distance.
    pub alibi: Alibi,
    /// Where YaRN's ramp starts and ends.
    pub yarn_ramp: YarnRamp,
    /// The use of the key `rope.scaling.yarn_log_multiplier`.
    pub yarn_multiplier: YarnMultiplier,
    /// The epsilon of the norms of latent vectors, which no file has; `None` for that of the other norms.
    pub latent_epsilon: Option<f32>,
    /// The epsilon of the norms of an indexer's keys, which no file has; `None` for that of the other norms.
    pub indexer_epsilon: Option<f32>,
    /// Which values rotate in heads of an indexer that have more than rotate.
    pub indexer_section: Section,
    /// How the values of a head are computed.
    pub values: Values,
    /// What the outputs of heads are multiplied by.
    pub gate: Gate,
}

impl AttentionSpec {
    /// The options of most families: no norms on heads, no windows, every layer rotated.
    pub const PLAIN: AttentionSpec = AttentionSpec {
        qk_norm: QkNorm::Never,
        rope_pairs: RopePairs::Halves,
        rope_axes: AxesOrder::Never,
        scale: AttentionScale::HeadDim,
        windows: Windows::Never,
        direction: Direction::Back,
        media_rows: MediaRows::SeeEachOther,
        windowed_rope: WindowedRope::AsOthers,
        unwindowed_rotary: UnwindowedRotary::AsStored,
        rotation: Rotation::EveryLayer,
        temperature: Temperature::Never,
        alibi: Alibi::ByKey,
        yarn_ramp: YarnRamp::WholePairs,
        yarn_multiplier: YarnMultiplier::OfScores,
        latent_epsilon: Some(1e-6),
        indexer_epsilon: Some(1e-6),
        indexer_section: Section::First,
        values: Values::AsProjected,
        gate: Gate::Never,
    };
}

/// A part of each head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Section {
    /// Its first values.
    First,
    /// Its last values.
    Last,
}

/// Which models have the bias of ALiBi, which lowers scores by distance.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Alibi {
    /// Those with the key `attention.max_alibi_bias`.
    ByKey,
    /// All. The bias is this one, unless the file has the key.
    Always(f32),
    /// Those with the key, and with this bias those with this number of layers: their files say it in no other way.
    InDepth {
        /// The number of layers.
        layers: usize,
        /// The bias.
        bias: f32,
    },
}

/// Which rows of its sequence a row sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// Those before it.
    Back,
    /// All. A window of n positions reaches half of them back and half ahead.
    BothWays,
}

/// What rows of media see that see each other by their projector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MediaRows {
    /// Each other, in every layer.
    SeeEachOther,
    /// Each other in layers with a window, as far as it reaches back; nothing ahead of them if the key `attention.causal_media` is
    /// true or, without it, if layers have inputs of their own.
    SeeEachOtherInWindows,
}

/// How windowed layers rotate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum WindowedRope {
    /// As the other layers.
    AsOthers,
    /// Without the scaling for long contexts. The base is that of the key `rope.freq_base_swa`, else this one, else that of
    /// the other layers.
    Unscaled(Option<f32>),
}

/// How many values of a head layers without a window rotate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnwindowedRotary {
    /// As many as the file says.
    AsStored,
    /// Half as many as the file says.
    Half,
}

/// Which layers rotate queries and keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rotation {
    /// All layers.
    EveryLayer,
    /// Windowed layers, in models that have some; else all.
    LayersWithWindow,
    /// Windowed layers, and those without experts.
    LayersWithWindowOrDense,
    /// All except every n-th.
    AllButEvery(usize),
    /// All layers, unless the key `rope.scaling.finetuned` is false; then none.
    WhereFinetuned,
    /// All layers, unless scores fall with distance; then none.
    WithoutAlibi,
    /// None.
    Never,
}

/// How queries are scaled by their position.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Temperature {
    /// Not at all.
    Never,
    /// In layers that do not rotate. Positions are counted from 1.
    UnrotatedLayers {
        /// Positions between two increments of the scale, unless the file has the key `attention.temperature_length`.
        step: u32,
        /// Strength of the scale, unless the file has the key `attention.temperature_scale`.
        strength: f32,
    },
    /// In all layers, if the file has the strength `attention.temperature_scale`. The step is the key
    /// `attention.temperature_length` or, without it, the context length of training before it was extended. Positions are
    /// counted from 0.
    WhereStored,
}

/// The use of the key `rope.scaling.yarn_log_multiplier`, the strength of YaRN's temperature.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum YarnMultiplier {
    /// The temperature applies to all scores instead of to rotated values only. Files store the strength times 0.1.
    OfScores,
    /// The factor on rotated values is divided by the temperature of this strength.
    OfRotated,
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

/// What the outputs of heads are multiplied by before their projection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gate {
    /// Nothing.
    Never,
    /// The logistic function of a gate, which the query projection computes: each head's query, then its gate.
    InQuery,
    /// This function of a gate with a projection of its own: for each value, or one for each head, as the file has it.
    Projected(Activation),
}

/// How queries and keys are normalised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QkNorm {
    /// Not at all.
    Never,
    /// In all layers; a file without these norms is refused.
    Always(QkNormKind),
    /// In layers for which the file has the norms' tensors.
    WhereStored(QkNormKind),
    /// Each head after rotation and without weight, in layers that rotate. The key `use_qk_norm` turns it on or off; files
    /// without the key have it unless the key `interleave_moe_layer_step` says that dense layers alternate with expert
    /// layers.
    UnweightedByKey,
}

/// What is normalised, and when.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QkNormKind {
    /// Each head, before rotation.
    Heads,
    /// Each head, after rotation.
    RotatedHeads,
    /// Each head after rotation, without weight.
    RotatedUnweighted,
    /// All heads together, before rotation.
    Row,
    /// Each head, before rotation, by a layer norm with weights of its own.
    LayerPerHead,
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
    /// How the output of a shared expert joins that of the routed ones.
    pub shared: SharedExpert,
}

impl RoutingSpec {
    /// The routing of most families: a softmax, weights that sum to 1, no dense feed-forward next to the experts.
    pub const SOFTMAX: RoutingSpec = RoutingSpec {
        scoring: Scoring::Softmax,
        renormalise: true,
        weighting: RouteWeighting::Output,
        placement: ExpertPlacement::Replace,
        shared: SharedExpert::Added,
    };
}

/// How the output of a shared expert joins that of the routed ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SharedExpert {
    /// By their sum.
    Added,
    /// By their mean.
    Averaged,
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
    /// All except the first of every n, if the file names a window.
    AllButFirstOf(usize),
    /// All except every n-th attend within their chunk of positions, unless the file names a window of 0.
    ChunksButEvery {
        /// Every how many layers one attends to all positions.
        layers: usize,
        /// Positions in a chunk, unless the file has the key `attention.chunk_size`.
        positions: u32,
    },
    /// Every sequence starts with the rows of an encoder, as many as the key `attention.encoder_rows` says. The layers that
    /// the key `attention.cross_attention` lists attend to these, and the others to the rows after them.
    EncoderOrText,
}
