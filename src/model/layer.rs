//! How each layer of a model is built: the options of its family and the metadata of its file, resolved to plain data.

use std::sync::Arc;

use cuelight_shaders::attention::{EachOther, KvShape, Window};
use cuelight_shaders::causal_conv::CausalConv;
use cuelight_shaders::embed_ngrams::NgramHash;
use cuelight_shaders::experts::{Groups, RouteWeighting, Scoring};
use cuelight_shaders::gated_delta::{DecayForm, DeltaShape};
use cuelight_shaders::glu::Activation;
use cuelight_shaders::layer_state::LayerState;
use cuelight_shaders::pool_rows::{Overlap, PoolRows};
use cuelight_shaders::recurrent::StatePart;
use cuelight_shaders::rope::RopeAxes;
use cuelight_shaders::selective_scan::ScanShape;
use cuelight_shaders::state_space::SpaceShape;

use super::arch::{FeedForward, Norms, QkNormKind, RopePairs, SharedExpert};
use super::rope::RopeScaling;
use crate::engine::{HiddenInput, TokenId};

/// One layer.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerSpec {
    /// Where the layer applies norms.
    pub norms: Norms,
    /// Whether the feed-forward reads the layer's input, as the mixer does, instead of the sum with the mixer's output.
    pub is_parallel: bool,
    /// How rows of a sequence exchange information.
    pub mixer: MixerSpec,
    /// How each row is processed by itself.
    pub feed_forward: FeedForwardSpec,
}

/// What a draft model computes with, and the tokens that it drafts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DrafterSpec {
    /// The layers of the model whose inputs it reads, in ascending order.
    pub layers: Vec<usize>,
    /// The hidden size of the model.
    pub model_hidden_size: usize,
    /// Whether the residual stream goes on from the normalised hidden values.
    pub norm_before_residual: bool,
    /// The token of each logit; `None` if they are those of the model.
    pub tokens: Option<Arc<[TokenId]>>,
}

impl DrafterSpec {
    /// The hidden values of a row, given the draft model's hidden size.
    #[must_use]
    pub fn input(&self, hidden_size: usize) -> HiddenInput {
        HiddenInput { of_model: self.layers.len() * self.model_hidden_size, own: hidden_size }
    }
}

/// The residual streams of a model that has several, or one next to earlier residuals.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StreamSizes {
    /// Streams of each row.
    pub count: usize,
    /// How layers read and update them.
    pub connections: StreamConnections,
}

/// How layers read and update residual streams.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum StreamConnections {
    /// A layer computes with a prediction of one of them, and corrects all.
    Alternating {
        /// The stream that layers compute with.
        active: usize,
    },
    /// Each half of a layer reads a combination, and mixes the streams when it adds its output.
    Hyper(HyperSizes),
    /// Each half of a layer reads a combination, and adds its output to each stream by a gate of the stream.
    Independent {
        /// The most that a gate multiplies the output by.
        magnitude: f32,
        /// Added to gates.
        epsilon: f32,
    },
    /// Each half of a layer reads the mean of the streams, normed and with a gate for each of their values, and adds its output to
    /// each by a gate of the stream.
    Gated {
        /// Values between the two projections that make the gates of values.
        low_rank: usize,
    },
    /// There is one. The input of every n-th layer is kept, from the first on, and the stream restarts from the output of this
    /// layer's mixer. Each half of a layer reads a mean of the stream and of what is kept, by weights of the row.
    Kept {
        /// Layers from one whose input is kept to the next.
        every: usize,
    },
}

/// The constants of hyper-connections.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HyperSizes {
    /// Rounds that balance how streams are mixed.
    pub rounds: usize,
    /// Added to gates and sums.
    pub epsilon: f32,
}

/// How rows of a sequence exchange information.
#[derive(Debug, Clone, PartialEq)]
pub enum MixerSpec {
    /// Groups of query heads share one head of keys and values.
    Attention(AttentionLayer),
    /// The same to pools of positions that an indexer selects.
    SelectiveAttention(AttentionLayer, GroupIndexer),
    /// All heads share one latent vector. Some layers attend to selected positions only.
    LatentAttention(AttentionLayer, LatentSizes, Option<PositionSelection>),
    /// All heads share one key, which is also the value. Some layers also attend to entries of pools of positions.
    PooledAttention(AttentionLayer, PooledSizes),
    /// The gated delta rule after a convolution.
    GatedDelta(DeltaLayer),
    /// The gated delta rule with a decay for each key, after a convolution.
    KeyDelta(DeltaLayer),
    /// A gated convolution.
    ShortConv(ConvLayer),
    /// The selective scan of Mamba 1 after a convolution.
    SelectiveScan(ScanLayer),
    /// The state space of Mamba 2 after a convolution.
    StateSpace(SpaceLayer),
    /// Attention and a state space read the same rows, and their outputs are added.
    AttentionNextToStateSpace(AttentionLayer, SpaceLayer),
    /// One matrix, so that rows do not exchange information.
    Matrix,
    /// The layer has no mixer.
    None,
}

impl MixerSpec {
    /// Attention whose groups of query heads share one head of keys and values: to all positions, or to those that an indexer
    /// selects.
    #[must_use]
    pub fn grouped(attention: AttentionLayer, indexer: Option<GroupIndexer>) -> Self {
        match indexer {
            Some(indexer) => MixerSpec::SelectiveAttention(attention, indexer),
            None => MixerSpec::Attention(attention),
        }
    }

    /// The attention of the mixer, if it attends.
    #[must_use]
    pub fn attention(&self) -> Option<&AttentionLayer> {
        match self {
            MixerSpec::Attention(attention)
            | MixerSpec::SelectiveAttention(attention, _)
            | MixerSpec::LatentAttention(attention, ..)
            | MixerSpec::PooledAttention(attention, _)
            | MixerSpec::AttentionNextToStateSpace(attention, _) => Some(attention),
            MixerSpec::GatedDelta(_)
            | MixerSpec::KeyDelta(_)
            | MixerSpec::ShortConv(_)
            | MixerSpec::SelectiveScan(_)
            | MixerSpec::StateSpace(_)
            | MixerSpec::Matrix
            | MixerSpec::None => None,
        }
    }

    /// What the mixer stores of a sequence.
    #[must_use]
    pub fn state(&self) -> LayerState {
        match self {
            MixerSpec::Attention(attention) if attention.reads_layer.is_some() => LayerState::NONE,
            MixerSpec::Attention(attention) => LayerState::of_kv(attention.kv_shape()),
            MixerSpec::SelectiveAttention(attention, indexer) => {
                LayerState { kv: attention.kv_shape(), index: indexer.index(), recurrent_len: indexer.recurrent_len() }
            }
            MixerSpec::LatentAttention(attention, sizes, selection) => LayerState {
                kv: attention.latent_shape(*sizes),
                index: selection.map_or(KvShape::NONE, PositionSelection::index),
                recurrent_len: selection.map_or(0, |selection| selection.pool_state(0).len),
            },
            MixerSpec::PooledAttention(attention, sizes) => sizes.state(attention.heads.head_dim),
            MixerSpec::GatedDelta(delta) | MixerSpec::KeyDelta(delta) => {
                LayerState::recurrent(len_of(&delta.state_parts(0)))
            }
            MixerSpec::ShortConv(conv) => LayerState::recurrent(conv.state_part(0).len),
            MixerSpec::SelectiveScan(scan) => LayerState::recurrent(len_of(&scan.state_parts(0))),
            MixerSpec::StateSpace(space) => LayerState::recurrent(len_of(&space.state_parts(0))),
            MixerSpec::AttentionNextToStateSpace(attention, space) => {
                LayerState { kv: attention.kv_shape(), ..LayerState::recurrent(len_of(&space.state_parts(0))) }
            }
            MixerSpec::Matrix | MixerSpec::None => LayerState::NONE,
        }
    }
}

/// The values of all parts of a layer's state.
fn len_of(parts: &[StatePart]) -> usize {
    parts.iter().map(|part| part.len).sum()
}

/// The state of a convolution and of the op after it, in layer number `layer`.
fn parts_of(layer: usize, [conv, op]: [usize; 2]) -> [StatePart; 2] {
    [StatePart { layer, start: 0, len: conv }, StatePart { layer, start: conv, len: op }]
}

impl AttentionLayer {
    /// The keys and values of each position.
    #[must_use]
    pub fn kv_shape(&self) -> KvShape {
        let Heads { n_kv_heads, head_dim, value_dim, .. } = self.heads;
        KvShape { value_dim, ..KvShape::grouped(n_kv_heads, head_dim) }.windowed(self.kept_window().is_some())
    }

    /// The most positions up to its own that a row reads, if these are not all before it.
    #[must_use]
    pub fn kept_window(&self) -> Option<usize> {
        match self.window {
            Some(Window::Last(positions) | Window::Chunk(positions)) if !self.sees_later => Some(positions),
            _ => None,
        }
    }

    /// The layer of the cache that the layer with number `own` reads.
    #[must_use]
    pub fn cache_layer(&self, own: usize) -> usize {
        self.reads_layer.unwrap_or(own)
    }

    /// Whether heads also rotate by the positions of images.
    #[must_use]
    pub fn rotates_by_images(&self) -> bool {
        self.rope.is_some_and(|rope| rope.axes != RopeAxes::Time)
    }

    /// Whether the layer attends to the rows of an encoder, and to no others.
    #[must_use]
    pub fn reads_encoder(&self) -> bool {
        matches!(self.window, Some(Window::Before(_)))
    }

    /// The keys and values of each position if all heads share a latent vector.
    #[must_use]
    pub fn latent_shape(&self, sizes: LatentSizes) -> KvShape {
        KvShape::latent(sizes.rank + self.heads.rotary_dim, sizes.rank)
    }
}

/// A layer with the gated delta rule.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DeltaLayer {
    /// Its heads.
    pub shape: DeltaShape,
    /// How its decays are computed.
    pub decays: DecayForm,
    /// What the outputs of heads are multiplied by: this function of their gates.
    pub gate: Activation,
    /// Rows that the convolution of queries, keys and values spans.
    pub conv_width: usize,
}

impl DeltaLayer {
    /// The state of the convolution and of the delta rule, in layer number `layer`.
    #[must_use]
    pub fn state_parts(&self, layer: usize) -> [StatePart; 2] {
        let conv = CausalConv::state_len(self.shape.mixed_width(), self.conv_width);
        parts_of(layer, [conv, self.shape.state_len()])
    }
}

/// The embeddings of n-grams, which one layer adds to all streams.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NgramSpec {
    /// The layer.
    pub layer: usize,
    /// How n-grams select rows of the table.
    pub hash: NgramHash,
    /// Values of a row of the table.
    pub columns: usize,
    /// Rows over which the embeddings are convolved. Their distance is the length of the longest n-gram.
    pub conv_width: usize,
}

impl NgramSpec {
    /// The rows that the convolution reads and their distance.
    #[must_use]
    pub fn conv(&self) -> (usize, usize) {
        (self.conv_width, self.hash.multipliers.len())
    }

    /// The state of the convolution of this many channels, behind the `start` values of the layer's mixer.
    #[must_use]
    pub fn conv_part(&self, start: usize, channels: usize) -> StatePart {
        let len = CausalConv::state_len(channels, CausalConv::spanned(self.conv()));
        StatePart { layer: self.layer, start, len }
    }

    /// The last tokens of a sequence, in the part of the state with this number.
    #[must_use]
    pub fn context_part(&self, layer: usize) -> StatePart {
        StatePart { layer, start: 0, len: self.hash.multipliers.len() - 1 }
    }
}

/// A layer with a gated convolution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConvLayer {
    /// Values of a row that the convolution reads.
    pub channels: usize,
    /// Rows that it spans.
    pub width: usize,
}

impl ConvLayer {
    /// The state of the convolution, in layer number `layer`.
    #[must_use]
    pub fn state_part(&self, layer: usize) -> StatePart {
        StatePart { layer, start: 0, len: CausalConv::state_len(self.channels, self.width) }
    }
}

/// A layer with the selective scan of Mamba 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ScanLayer {
    /// Its channels and their states.
    pub shape: ScanShape,
    /// Values from which dt is projected.
    pub rank: usize,
    /// The epsilon of norms without weight of these values, B and C; `None` if only those are normalised whose norms have a weight.
    pub unweighted_epsilon: Option<f32>,
    /// Rows that the convolution of x spans.
    pub conv_width: usize,
}

impl ScanLayer {
    /// The state of the convolution and of the scan, in layer number `layer`.
    #[must_use]
    pub fn state_parts(&self, layer: usize) -> [StatePart; 2] {
        let conv = CausalConv::state_len(self.shape.channels, self.conv_width);
        parts_of(layer, [conv, self.shape.state_len()])
    }
}

/// A layer with the state space of Mamba 2.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpaceLayer {
    /// Its heads.
    pub shape: SpaceShape,
    /// Rows that the convolution of x, B and C spans.
    pub conv_width: usize,
}

impl SpaceLayer {
    /// The state of the convolution and of the state space, in layer number `layer`.
    #[must_use]
    pub fn state_parts(&self, layer: usize) -> [StatePart; 2] {
        let conv = CausalConv::state_len(self.shape.mixed_width(), self.conv_width);
        parts_of(layer, [conv, self.shape.state_len()])
    }
}

/// The attention of a layer.
#[derive(Debug, Clone, PartialEq)]
pub struct AttentionLayer {
    /// The number and sizes of heads.
    pub heads: Heads,
    /// The earlier layer whose keys and values the layer reads; `None` if it has its own.
    pub reads_layer: Option<usize>,
    /// How queries and keys are normalised.
    pub qk_norm: Option<QkNormKind>,
    /// The window; `None` for full attention.
    pub window: Option<Window>,
    /// Whether a row also sees the later rows of its sequence.
    pub sees_later: bool,
    /// What rows of media see that see each other.
    pub each_other: EachOther,
    /// How queries and keys are rotated; `None` if they are not.
    pub rope: Option<RopeSpec>,
    /// How queries are scaled by their position.
    pub position_scale: Option<PositionScale>,
    /// The bias of ALiBi, from which the slope of each head follows; `None` if scores do not fall with distance.
    pub max_alibi_bias: Option<f32>,
    /// The factor on scores.
    pub scale: f32,
    /// The heads whose weights leave the engine: those that attend to the rows of an encoder where the token is spoken.
    pub alignment_heads: Vec<usize>,
}

/// The heads of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Heads {
    /// Number of query heads.
    pub n_heads: usize,
    /// Number of key and value heads.
    pub n_kv_heads: usize,
    /// Values in a head of queries and keys; with latent attention, those of the latent vector and of the rotated section.
    pub head_dim: usize,
    /// Values in a head of values, except with latent attention.
    pub value_dim: usize,
    /// Rotated values in a head.
    pub rotary_dim: usize,
}

/// The sizes of latent attention, without the rotated section.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LatentSizes {
    /// Length of the latent vector.
    pub rank: usize,
    /// Length of a head's key without the rotated section.
    pub key_dim: usize,
    /// Length of a head's value.
    pub value_dim: usize,
}

/// How a layer selects the positions to which it attends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PositionSelection {
    /// By an indexer of its own.
    Own(Indexer),
    /// It attends to those that the nearest earlier layer with an indexer has selected.
    OfEarlierLayer,
}

impl PositionSelection {
    /// The shape of the index keys that the layer stores.
    #[must_use]
    pub fn index(self) -> KvShape {
        match self {
            PositionSelection::Own(indexer) => KvShape::index(indexer.head_dim),
            PositionSelection::OfEarlierLayer => KvShape::NONE,
        }
    }

    /// The state of the newest pool, in layer number `layer`; empty if positions are selected one by one.
    #[must_use]
    pub fn pool_state(self, layer: usize) -> StatePart {
        let len = match self {
            PositionSelection::Own(indexer) => match indexer.pool {
                1 => 0,
                _ => PoolRows::state_len(indexer.head_dim, Overlap::None),
            },
            PositionSelection::OfEarlierLayer => 0,
        };
        StatePart { layer, start: 0, len }
    }
}

/// The sizes of an indexer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Indexer {
    /// Number of query heads.
    pub n_heads: usize,
    /// Values in a head of queries, and in the key.
    pub head_dim: usize,
    /// Positions that a row selects.
    pub top_k: usize,
    /// Adjacent positions that are selected together, by one key; 1 if each has its own.
    pub pool: usize,
    /// Which two values of a head form a rotated pair.
    pub rope_pairs: RopePairs,
}

/// The indexer of a layer whose groups of query heads attend to pools of positions.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum GroupIndexer {
    /// All groups attend to the same pools, and to the positions after the last whole one.
    Shared(Indexer),
    /// Each group attends to pools of its own.
    OfEach(HeadIndexer),
}

impl GroupIndexer {
    /// The key of each position.
    #[must_use]
    pub fn index(self) -> KvShape {
        match self {
            GroupIndexer::Shared(indexer) => PositionSelection::Own(indexer).index(),
            GroupIndexer::OfEach(indexer) => KvShape::index(indexer.head_dim),
        }
    }

    /// Values of the recurrent state: the mean of the pool that is not whole.
    #[must_use]
    pub fn recurrent_len(self) -> usize {
        match self {
            GroupIndexer::Shared(indexer) => PositionSelection::Own(indexer).pool_state(0).len,
            GroupIndexer::OfEach(_) => 0,
        }
    }
}

/// The sizes of an indexer with a head for each head of keys, which selects pools of adjacent positions for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeadIndexer {
    /// Values in a head of queries, and in the key.
    pub head_dim: usize,
    /// Pools that a head selects.
    pub top_k: usize,
    /// Positions of a pool.
    pub pool: usize,
    /// The last pools up to the row, which are selected in any case.
    pub last: usize,
}

/// The sizes of attention to one key, which is also the value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PooledSizes {
    /// Values between the two projections of queries.
    pub query_rank: usize,
    /// Groups of heads, each of which is projected by itself.
    pub output_groups: usize,
    /// Values of a projected group.
    pub output_rank: usize,
    /// The pools to whose entries rows attend; `None` if they see their window only.
    pub pools: Option<EntryPools>,
}

impl PooledSizes {
    /// The keys and the entries of each layer, for heads of this many values.
    #[must_use]
    pub fn kv_shape(&self, head_dim: usize) -> KvShape {
        KvShape { pool: self.pools.map_or(0, |pools| pools.pool), ..KvShape::latent(head_dim, head_dim) }
    }

    /// What a layer stores of a sequence.
    fn state(&self, head_dim: usize) -> LayerState {
        let indexer = self.pools.and_then(|pools| pools.indexer);
        LayerState {
            kv: self.kv_shape(head_dim),
            index: indexer.map_or(KvShape::NONE, |indexer| KvShape::index(indexer.head_dim)),
            recurrent_len: self.pools.map_or(0, |pools| pools.state_len(head_dim)),
        }
    }
}

/// Pools of adjacent positions, each with an entry that stands for them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EntryPools {
    /// Positions of a pool.
    pub pool: usize,
    /// Which rows count for an entry.
    pub overlap: Overlap,
    /// The indexer that selects pools; `None` if a row sees all.
    pub indexer: Option<Indexer>,
}

/// Means of the rows of pools, of which a layer has one or two kinds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EntryMeans {
    /// How the names of their tensors start.
    pub stem: &'static str,
    /// Values of a mean.
    pub channels: usize,
    /// The first value of their state in that of the layer.
    start: usize,
}

impl EntryPools {
    /// The means that become entries of `head_dim` values.
    #[must_use]
    pub fn entries(&self, head_dim: usize) -> EntryMeans {
        let start = self.indexer.map_or(0, |indexer| PoolRows::state_len(indexer.head_dim, self.overlap));
        EntryMeans { stem: "attn_compressor", channels: head_dim, start }
    }

    /// The means that become keys of the indexer.
    #[must_use]
    pub fn index_keys(&self, indexer: Indexer) -> EntryMeans {
        EntryMeans { stem: "indexer_compressor", channels: indexer.head_dim, start: 0 }
    }

    /// The state of means in layer number `layer`.
    #[must_use]
    pub fn state_part(&self, layer: usize, means: EntryMeans) -> StatePart {
        StatePart { layer, start: means.start, len: PoolRows::state_len(means.channels, self.overlap) }
    }

    /// Values of the state of all means of a layer.
    fn state_len(&self, head_dim: usize) -> usize {
        let last = self.state_part(0, self.entries(head_dim));
        last.start + last.len
    }
}

/// The rotation of queries and keys.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RopeSpec {
    /// Base of the frequencies.
    pub base: f32,
    /// How frequencies are scaled for long contexts.
    pub scaling: RopeScaling,
    /// The factor on rotated values.
    pub magnitude: f32,
    /// The tensor of divisors of the frequencies, where the file has one.
    pub factors: Option<&'static str>,
    /// The positions that rotate each pair.
    pub axes: RopeAxes,
    /// Which two values of a head form a pair.
    pub pairs: RopePairs,
}

/// How queries are scaled by their position.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PositionScale {
    /// Positions between two increments.
    pub step: u32,
    /// Strength of an increment.
    pub strength: f32,
    /// The number of the first position.
    pub first: u32,
}

/// The feed-forward of a layer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum FeedForwardSpec {
    /// One for all rows.
    Dense(DenseSizes),
    /// Experts.
    Experts(ExpertSizes),
    /// Experts and a dense one in parallel.
    ExpertsNextToDense(ExpertSizes, DenseSizes),
    /// The layer has no feed-forward.
    None,
}

/// The sizes and the form of a dense feed-forward.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DenseSizes {
    /// Width between its projections.
    pub intermediate_size: usize,
    /// Its form.
    pub form: FeedForward,
    /// The cutoff of its gate, in deviations of a row above its mean; `None` if it has none.
    pub cutoff: Option<f32>,
}

/// The sizes of a layer's experts and how rows are routed to them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ExpertSizes {
    /// Experts in a layer.
    pub n_experts: usize,
    /// Experts that a row is routed to.
    pub top_k: usize,
    /// Width of one expert's feed-forward.
    pub intermediate_size: usize,
    /// Width of the rows that experts read and write, where projections before and after them change it.
    pub latent_size: Option<usize>,
    /// The form of an expert.
    pub form: FeedForward,
    /// The form of a shared expert.
    pub shared_form: FeedForward,
    /// How a router's logits become scores.
    pub scoring: Scoring,
    /// Whether the weights of a row's experts are made to sum to 1 before `scale` applies.
    pub renormalise: bool,
    /// The factor on the weights.
    pub scale: f32,
    /// Groups of experts; a row considers only some of them.
    pub groups: Option<Groups>,
    /// Whether a weight applies to an expert's input or output.
    pub weighting: RouteWeighting,
    /// How the output of a shared expert joins that of the routed ones.
    pub shared: SharedExpert,
}
