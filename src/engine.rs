//! The [`Engine`] trait: the only interface through which actors compute.
//!
//! An engine owns a device, the weights on it and the storage of the KV blocks. It does not own the assignment of blocks to
//! sequences: the scheduler does, and every [`Step`] contains the block tables it needs. The same holds for the slots of recurrent
//! state. So an engine keeps no state of a sequence except the KV cache and these slots, which makes replay after a fault,
//! preemption and prefix sharing simple.
//!
//! A step is resumable. [`Engine::begin`] runs until the step is done or needs experts that are computed elsewhere. In the
//! second case it returns an [`ExpertJob`], and [`Engine::resume`] continues with the result.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use cuelight_shaders::kv::BlockCounts;

pub use cuelight_shaders::denoise::DenoisedRow;
pub use cuelight_shaders::lora::{Adapter, AdapterUse};
pub use cuelight_shaders::op::Sight;
pub use cuelight_shaders::sample_token::{RowSamplingParams, SampledToken};

pub use crate::cache_unit::{BlockId, CacheLayout, CacheUnit, SlotId, UnitBytes, UnitKind};

use crate::graph::MostRows;
use crate::mapped_file::FileChange;
use crate::profile::{Cost, OpSpan};

/// A token of the model's vocabulary.
pub type TokenId = u32;

/// Tokens in one KV block.
pub const BLOCK_TOKENS: usize = cuelight_shaders::kv::BLOCK_TOKENS;

/// Numbers the steps of one executor, from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct StepId(pub u64);

/// What a step returns for the rows of a sequence.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum LogitsWanted {
    /// No rows: for a prefill chunk that is not the last.
    #[default]
    None,
    /// The last row: the next token is sampled from it.
    Last,
    /// Every row: for the log-probabilities of the prompt.
    All,
    /// The token sampled from the last row with these parameters. An engine that does not sample returns the row instead.
    Token(RowSamplingParams),
    /// No logits, but the hidden values of these rows.
    Hidden(HiddenRows),
}

/// The rows whose hidden values are returned: those after the last norm, from which embeddings are made, or what the model returns
/// in their place: the logits of classes, or [the weights of attention](crate::embedding::AttentionShape) to the rows of an
/// encoder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum HiddenRows {
    /// The first row.
    First,
    /// The last row.
    Last,
    /// Every row.
    All,
}

impl LogitsWanted {
    /// The number of rows of logits that are computed for `rows` tokens.
    #[must_use]
    pub fn rows(self, rows: usize) -> usize {
        match self {
            LogitsWanted::None | LogitsWanted::Hidden(_) => 0,
            LogitsWanted::Last | LogitsWanted::Token(_) => rows.min(1),
            LogitsWanted::All => rows,
        }
    }

    /// Which of `rows` rows return hidden values.
    #[must_use]
    pub fn hidden_rows(self, rows: usize) -> Range<usize> {
        match self {
            LogitsWanted::Hidden(HiddenRows::First) => 0..rows.min(1),
            LogitsWanted::Hidden(HiddenRows::Last) => rows.saturating_sub(1)..rows,
            LogitsWanted::Hidden(HiddenRows::All) => 0..rows,
            LogitsWanted::None | LogitsWanted::Last | LogitsWanted::All | LogitsWanted::Token(_) => 0..0,
        }
    }
}

/// The rows of one sequence in a step: consecutive tokens.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct SequenceRows {
    /// The tokens to compute: one for a decode step, more for a prefill chunk.
    pub tokens: Vec<TokenId>,
    /// Position of the first token. All earlier positions are in the KV cache.
    pub first_position: u32,
    /// The blocks that hold positions `0..first_position + tokens.len()`, in order.
    pub block_table: Vec<BlockId>,
    /// The blocks that hold the same positions in layers that keep a window, for an engine with [`EngineLimits::window`]; else empty.
    /// The blocks before the window of the first row are not read: each may be any block.
    pub window_table: Vec<BlockId>,
    /// The slots of its recurrent state. Empty for a model without recurrent state.
    pub state: SequenceState,
    /// The adapter that changes the model's projections, if the sequence has one. Its keys and values in the cache are of no use
    /// to a sequence with another adapter.
    pub adapter: Option<AdapterUse>,
    /// Which logits to return.
    pub logits: LogitsWanted,
    /// Whether the hidden values of all rows are returned, whatever `logits` is.
    pub returns_hidden: bool,
    /// [rows, width of [`HiddenInput`]]: the hidden values that an engine with [`HiddenLimits::reads`] computes with; else empty.
    /// For a canvas [rows, width of [`CanvasLimits`]], or empty for zeros.
    pub hidden: Vec<f32>,
    /// The position of the first token of the second text, if the sequence is two texts. Only models with an embedding of which
    /// text a token belongs to tell them apart.
    pub second_text: Option<u32>,
    /// Set if the rows are a canvas.
    pub canvas: Option<Canvas>,
    /// Rows with other embeddings than those of their tokens, ascending; only for an engine with
    /// [`EngineLimits::embeddings`].
    pub embeddings: Vec<EmbeddingRows>,
    /// Whether each row also sees the rows after it, as the rows of an image do in some models. They are not a canvas.
    pub sees_later: bool,
    /// `[rows]` positions in time, and of the row and the column of an image, by which some models rotate. Empty when all three are
    /// the position of the row in the sequence.
    pub rope_positions: Vec<[u32; 3]>,
}

/// Rows of a sequence that have these embeddings, and not those of their tokens.
#[derive(Debug, Clone, PartialEq)]
pub struct EmbeddingRows {
    /// The index of the first of them among the rows of the sequence in the step.
    pub first: usize,
    /// [n, [`EmbeddingLimits::values`]]: embeddings, of which some rows are used.
    pub values: Arc<[f32]>,
    /// The rows of `values` that are used.
    pub range: Range<usize>,
}

/// Rows that see each other and are denoised together, instead of each seeing the rows before it.
///
/// They see the positions before them as the first of them does. What they write to the KV cache is of no use to later steps, and
/// `hidden` is what the step before returned for them ([`StepOutput::hidden`]). The rows return no logits but
/// [`StepOutput::denoised`] and hidden values, and must ask for [`LogitsWanted::All`].
#[derive(Debug, Clone, PartialEq)]
pub struct Canvas {
    /// Divides the logits before their entropy and the hidden values are computed; above 0.
    pub temperature: f32,
    /// How a token is sampled from each row, with the random number of `draws`.
    pub sampling: RowSamplingParams,
    /// `[rows]` random numbers: 64 uniform bits each.
    pub draws: Vec<u64>,
}

impl SequenceRows {
    /// What the rows see of each other.
    #[must_use]
    pub fn sight(&self) -> Sight {
        match (&self.canvas, self.sees_later) {
            (Some(_), _) => Sight::Canvas,
            (None, true) => Sight::EachOther,
            (None, false) => Sight::Before,
        }
    }

    /// The rows that return hidden values.
    #[must_use]
    pub fn hidden_rows(&self) -> Range<usize> {
        let rows = self.tokens.len();
        if self.returns_hidden { 0..rows } else { self.logits.hidden_rows(rows) }
    }
}

/// The slots that a step reads and writes for one sequence of a model with recurrent state.
///
/// The state that a step starts from stays as it is unless its slot is also written. So a slot can be kept as a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SequenceState {
    /// The slot with the state before the first row; `None` at the start of a sequence.
    pub from: Option<SlotId>,
    /// Slots that get the state after a number of rows, by ascending numbers. The last is that of all rows.
    pub to: Vec<(u32, SlotId)>,
}

impl SequenceState {
    /// The state of a sequence that keeps one slot, for `rows` rows from `first_position` on.
    #[must_use]
    pub fn in_place(limits: &EngineLimits, slot: SlotId, first_position: u32, rows: usize) -> Self {
        if limits.state_slots == 0 || rows == 0 {
            return SequenceState::default();
        }
        SequenceState { from: (first_position > 0).then_some(slot), to: vec![(rows as u32, slot)] }
    }
}

/// One forward pass over a ragged batch.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Step {
    /// Assigned by the scheduler.
    pub id: StepId,
    /// The sequences. No two write the same block, and none writes a slot that another one reads or writes.
    pub sequences: Vec<SequenceRows>,
}

impl Step {
    /// The total number of rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.sequences.iter().map(|sequence| sequence.tokens.len()).sum()
    }

    /// The block table of each sequence.
    #[must_use]
    pub fn block_tables(&self) -> Vec<&[BlockId]> {
        self.sequences.iter().map(|sequence| sequence.block_table.as_slice()).collect()
    }

    /// The block table of each sequence in layers that keep a window; empty if they have the same.
    #[must_use]
    pub fn window_tables(&self) -> Vec<&[BlockId]> {
        let tables: Vec<_> = self.sequences.iter().map(|sequence| sequence.window_table.as_slice()).collect();
        if tables.iter().any(|table| !table.is_empty()) { tables } else { Vec::new() }
    }

    /// The adapter of each sequence; empty if no sequence has one.
    #[must_use]
    pub fn adapters(&self) -> Vec<Option<&AdapterUse>> {
        let adapters: Vec<_> = self.sequences.iter().map(|sequence| sequence.adapter.as_ref()).collect();
        if adapters.iter().any(Option::is_some) { adapters } else { Vec::new() }
    }

    /// The different adapters of the sequences, by their number.
    #[must_use]
    pub fn distinct_adapters(&self) -> BTreeMap<u64, &Adapter> {
        let used = self.sequences.iter().filter_map(|sequence| sequence.adapter.as_ref());
        used.map(|used| (used.adapter.id(), &*used.adapter)).collect()
    }

    /// The number of rows whose logits are computed.
    #[must_use]
    pub fn logits_rows(&self) -> usize {
        self.sequences.iter().map(|sequence| sequence.logits.rows(sequence.tokens.len())).sum()
    }

    /// The inputs of the graph of an engine with these limits: given embeddings, what layers add, then hidden values. The rows of
    /// an encoder are not among them: they have a graph of their own.
    #[must_use]
    pub fn graph_inputs(&self, limits: &EngineLimits) -> Vec<Vec<f32>> {
        let embeddings = limits.embeddings.filter(|limits| limits.leading_rows == 0);
        let mut inputs = embeddings.map(|limits| self.given_embeddings(&limits)).unwrap_or_default();
        if limits.hidden.reads.width() > 0 || limits.canvas.is_some() {
            inputs.push(self.given_hidden(limits));
        }
        inputs
    }

    /// [rows, 1 + width]: 1 and the given embedding of a row that has one, else zeros. Then for each deep layer [rows, width]: what
    /// it adds.
    fn given_embeddings(&self, limits: &EmbeddingLimits) -> Vec<Vec<f32>> {
        let width = limits.width;
        let mut inputs = vec![vec![0.0; self.rows() * (width + 1)]];
        inputs.resize(1 + limits.deep_layers, vec![0.0; self.rows() * width]);
        let mut before = 0;
        for sequence in &self.sequences {
            for EmbeddingRows { first, values, range } in &sequence.embeddings {
                let values = values.chunks_exact(limits.values()).take(range.end).skip(range.start);
                for (row, values) in (before + first..).zip(values) {
                    inputs[0][row * (width + 1)] = 1.0;
                    inputs[0][row * (width + 1) + 1..][..width].copy_from_slice(&values[..width]);
                    for (input, values) in inputs[1..].iter_mut().zip(values[width..].chunks_exact(width)) {
                        input[row * width..][..width].copy_from_slice(values);
                    }
                }
            }
            before += sequence.tokens.len();
        }
        inputs
    }

    /// [rows, width]: the hidden values that are computed with. Rows that are given none have zeros.
    fn given_hidden(&self, limits: &EngineLimits) -> Vec<f32> {
        let width = limits.canvas.map_or(limits.hidden.reads.width(), |canvas| canvas.width);
        let mut given = Vec::with_capacity(self.rows() * width);
        for sequence in &self.sequences {
            given.extend_from_slice(&sequence.hidden);
            given.resize(given.len() + sequence.tokens.len() * width - sequence.hidden.len(), 0.0);
        }
        given
    }

    /// The number of rows whose hidden values are returned.
    #[must_use]
    pub fn hidden_rows(&self) -> usize {
        self.sequences.iter().map(|sequence| sequence.hidden_rows().len()).sum()
    }
}

/// The result of a finished step.
#[derive(Debug, Clone, PartialEq)]
pub struct StepOutput {
    /// The step.
    pub id: StepId,
    /// [logits rows, vocab_size]: the requested rows, in the order of the step's sequences, without the rows from which the
    /// engine sampled a token.
    pub logits: Vec<f32>,
    /// [hidden rows, row width of [`HiddenLimits`]]: the hidden values of the requested rows, in the order of the step's sequences. Of
    /// canvases [rows, width of [`CanvasLimits`]]: the embeddings that their tokens are expected to have.
    pub hidden: Vec<f32>,
    /// The rows of canvases, in the order of the step's sequences.
    pub denoised: Vec<DenoisedRow>,
    /// One entry per sequence that requests logits, in the order of the step: the token that the engine sampled, or `None` if
    /// its logits are returned. Empty for an engine that does not sample.
    pub sampled: Vec<Option<SampledToken>>,
    /// The time that the device took.
    pub elapsed: Duration,
    /// The measured ops in their order; empty unless the engine measures ops.
    pub ops: Vec<OpSpan>,
    /// Statistics of the device's expert cache.
    pub experts: ExpertCounts,
    /// The number of rows from which additional rows hardly lengthen a step; `None` if unknown.
    pub prefill_saturation_rows: Option<usize>,
}

impl StepOutput {
    /// The result of a step without rows.
    #[must_use]
    pub fn empty(id: StepId) -> Self {
        StepOutput {
            id,
            logits: Vec::new(),
            hidden: Vec::new(),
            denoised: Vec::new(),
            sampled: Vec::new(),
            elapsed: Duration::ZERO,
            ops: Vec::new(),
            experts: ExpertCounts::default(),
            prefill_saturation_rows: None,
        }
    }
}

/// Divides what the last op of an engine with these limits returns: the logits, or the rows of canvases.
#[must_use]
pub(crate) fn logits_or_denoised(limits: &EngineLimits, values: Vec<f32>) -> (Vec<f32>, Vec<DenoisedRow>) {
    match limits.canvas {
        None => (values, Vec::new()),
        Some(_) => (Vec::new(), values.as_chunks().0.iter().map(|row| DenoisedRow::of_values(*row)).collect()),
    }
}

/// Statistics of a device's expert cache for one step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ExpertCounts {
    /// Routes whose experts were in the cache.
    pub cached_routes: u64,
    /// Routes whose experts were streamed to the device for this step.
    pub streamed_routes: u64,
    /// Experts that were uploaded.
    pub uploads: u64,
    /// Bytes of the uploaded experts.
    pub uploaded_bytes: u64,
}

impl std::ops::Add for ExpertCounts {
    type Output = ExpertCounts;

    fn add(self, other: ExpertCounts) -> ExpertCounts {
        ExpertCounts {
            cached_routes: self.cached_routes + other.cached_routes,
            streamed_routes: self.streamed_routes + other.streamed_routes,
            uploads: self.uploads + other.uploads,
            uploaded_bytes: self.uploaded_bytes + other.uploaded_bytes,
        }
    }
}

/// A request to compute experts outside the engine's device: the routed rows of one layer.
#[derive(Debug, Clone, PartialEq)]
pub struct ExpertJob {
    /// The step that waits.
    pub step: StepId,
    /// The layer, counted among the layers whose experts are elsewhere.
    pub layer: usize,
    /// [rows, hidden_size]: the input of the experts.
    pub hidden: Vec<f32>,
    /// [rows, 2 top_k]: each row's expert numbers, then their weights. A negative number is not computed by this job.
    pub routes: Vec<f32>,
    /// The number of routes that this job computes.
    pub n_routes: usize,
}

/// The result of an [`ExpertJob`].
#[derive(Debug, Clone, PartialEq)]
pub struct ExpertResult {
    /// The step that waits.
    pub step: StepId,
    /// The layer.
    pub layer: usize,
    /// [rows, hidden_size]: the weighted sum of the experts' outputs.
    pub output: Vec<f32>,
}

/// The progress of a step.
#[derive(Debug, Clone, PartialEq)]
pub enum Progress {
    /// The step is done.
    Done(StepOutput),
    /// The step waits for experts. Pass their result to [`Engine::resume`].
    AwaitExperts(ExpertJob),
}

/// The limits of an engine, fixed when the model is planned.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EngineLimits {
    /// Number of logits in a row.
    pub vocab_size: usize,
    /// The tokens of these logits, for an engine that has no logits of some tokens; `None` if each logit is that of the token with
    /// its number.
    pub logit_tokens: Option<LogitTokens>,
    /// Maximum tokens of a sequence, prompt and answer together.
    pub context_tokens: usize,
    /// Number of KV blocks, numbered from 0.
    pub kv_blocks: usize,
    /// The blocks of layers that keep a window; `None` if these layers have a block for each KV block.
    pub window: Option<WindowLimits>,
    /// Number of slots for recurrent state, numbered from 0; 0 for a model without recurrent state.
    pub state_slots: usize,
    /// The adapters of the sequences of a step.
    pub adapters: AdapterLimits,
    /// Maximum rows of a step.
    pub max_batched_tokens: usize,
    /// Maximum sequences of a step.
    pub max_sequences: usize,
    /// Maximum rows with logits of a step; at least `max_sequences`, or 0 for a model without an output head. For an engine that
    /// denoises the rows of canvases, at least those of one.
    pub max_logits_rows: usize,
    /// The hidden values that it returns.
    pub hidden: HiddenLimits,
    /// The canvases that it denoises; `None` for an engine that generates one token after the other. An engine with canvases
    /// returns no logits.
    pub canvas: Option<CanvasLimits>,
    /// The embeddings that a step may give in the place of those of tokens; `None` for an engine that takes none.
    pub embeddings: Option<EmbeddingLimits>,
    /// A description of the device: "cpu (avx2, 2 threads)".
    pub device: String,
}

/// The KV blocks of layers whose rows read the positions of a window only. They are numbered for themselves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WindowLimits {
    /// The most positions that a row reads, up to its own.
    pub positions: usize,
    /// Number of these blocks.
    pub blocks: usize,
}

impl WindowLimits {
    /// The index of the first block that rows at `position` or later read.
    #[must_use]
    pub fn first_block(&self, position: usize) -> usize {
        (position + 1).saturating_sub(self.positions) / BLOCK_TOKENS
    }
}

/// How many adapters a model may have, and how large they may be; 0 for a model without adapters. Their memory is reserved when
/// the model is planned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AdapterLimits {
    /// Most adapters in memory at the same time, and in a step.
    pub slots: usize,
    /// The largest rank of an adapter.
    pub max_rank: usize,
    /// Whether they may change the token embedding and the output head.
    pub vocabulary: bool,
    /// Whether they may change routed experts.
    pub experts: bool,
}

/// The hidden values that an engine returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HiddenLimits {
    /// Values of a row; 0 for an engine that returns none.
    pub width: usize,
    /// Further values of a row behind them: the residuals between layers that a draft model computes with.
    pub residuals: usize,
    /// Maximum rows of a step.
    pub max_rows: usize,
    /// Whether rows see the later rows of their sequence, so that all rows of a sequence must be in one step.
    pub whole_sequences: bool,
    /// Whether a step may return those of all rows of a sequence next to its logits.
    pub all_rows: bool,
    /// The hidden values that it computes with, as the layer of a model that predicts more tokens does.
    pub reads: HiddenInput,
}

/// The hidden values that an engine computes with to draft tokens for another one; of 0 values for an engine that reads none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HiddenInput {
    /// Values of a row that come from the other engine: its residuals if it returns some, else its other values.
    pub of_model: usize,
    /// Values of a row that the engine itself has returned. They follow those of the model, and a row that has the ones has zeros
    /// for the others. 0 if they take the place of those of the model.
    pub own: usize,
}

impl HiddenInput {
    /// Values of a row.
    #[must_use]
    pub fn width(self) -> usize {
        self.of_model + self.own
    }
}

impl HiddenLimits {
    /// All values of a row that leaves the engine.
    #[must_use]
    pub fn row_width(&self) -> usize {
        self.width + self.residuals
    }
}

/// The tokens that an engine has logits of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogitTokens {
    /// The token of each logit.
    pub tokens: Arc<[TokenId]>,
    /// Tokens of the vocabulary. Rows may have any of them.
    pub vocab_size: usize,
}

/// The embeddings that an engine takes in the place of those of tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EmbeddingLimits {
    /// Values of the embedding of a token.
    pub width: usize,
    /// How many of the first layers add values of their own to the rows that leave them (Qwen3-VL's "DeepStack").
    pub deep_layers: usize,
    /// The rows of an encoder with which every sequence starts, and the only ones with given embeddings; 0 for a model that does
    /// not need any.
    pub leading_rows: usize,
}

impl EmbeddingLimits {
    /// Values of a given row: its embedding, then what each of these layers adds.
    #[must_use]
    pub fn values(&self) -> usize {
        self.width * (1 + self.deep_layers)
    }
}

/// The canvases that an engine denoises.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CanvasLimits {
    /// Rows of a canvas: the tokens of a block.
    pub tokens: usize,
    /// Hidden values of a row.
    pub width: usize,
}

/// Why a step failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    /// The step violates the engine's limits or is inconsistent. The scheduler is at fault.
    #[error("the engine cannot run step {}: {reason}", step.0)]
    InvalidStep {
        /// The step.
        step: StepId,
        /// What is wrong with the step.
        reason: String,
    },
    /// The device failed. The engine must be reloaded.
    #[error("the device was lost: {0}")]
    DeviceLost(String),
    /// The model file changed, so nothing that was computed from it can be used. Loading it again would give another model.
    #[error(transparent)]
    FileChanged(FileChange),
    /// The caller no longer wants the result.
    #[error("the computation was cancelled")]
    Cancelled,
}

impl EngineLimits {
    /// Numbers of KV blocks.
    #[must_use]
    pub fn block_counts(&self) -> BlockCounts {
        let all = self.kv_blocks;
        BlockCounts { all, windowed: self.window.map_or(all, |window| window.blocks) }
    }

    /// Number of tokens that rows may have.
    #[must_use]
    pub fn row_tokens(&self) -> usize {
        self.logit_tokens.as_ref().map_or(self.vocab_size, |logits| logits.vocab_size)
    }

    /// Hidden values of a row, of a canvas for an engine that denoises.
    #[must_use]
    pub fn hidden_width(&self) -> usize {
        self.canvas.map_or(self.hidden.width, |canvas| canvas.width)
    }

    /// The largest number of rows of each kind in a step.
    #[must_use]
    pub fn most_rows(&self) -> MostRows {
        MostRows { all: self.max_batched_tokens, selected: self.max_logits_rows, hidden: self.hidden.max_rows }
    }
}

/// A model on a device.
pub trait Engine: Send + 'static {
    /// The limits of the engine.
    fn limits(&self) -> &EngineLimits;

    /// Starts a step. Blocks until the step is done or waits for experts. While it waits, other steps may be started to keep
    /// the device busy. Their ids must differ, and no two steps may write the same block.
    ///
    /// # Errors
    /// [`EngineError`] when the step is invalid or the device is lost.
    fn begin(&mut self, step: Step) -> Result<Progress, EngineError>;

    /// Computes the parts of a waiting step that do not need the awaited experts. To be called after the expert job was sent.
    /// Blocks. The call is optional: without it, [`Engine::resume`] computes these parts. Returns whether there was work to do.
    ///
    /// # Errors
    /// [`EngineError`] when the device is lost.
    fn run_overlapped(&mut self, step: StepId) -> Result<bool, EngineError> {
        let _ = step;
        Ok(false)
    }

    /// Continues a step that waited for experts.
    ///
    /// # Errors
    /// [`EngineError`] when no step waits for this result, or the device is lost.
    fn resume(&mut self, result: ExpertResult) -> Result<Progress, EngineError>;

    /// The layout of copied KV blocks and recurrent states; `None` if they cannot be copied.
    fn cache_layout(&self) -> Option<CacheLayout> {
        None
    }

    /// Copies the contents of units to memory of [`CacheLayout::bytes`]. Blocks until that is done.
    ///
    /// # Errors
    /// [`EngineError::DeviceLost`] when the device fails or copies nothing.
    fn read_units(&mut self, copies: &mut [(CacheUnit, &mut [u8])]) -> Result<(), EngineError> {
        let _ = copies;
        Err(EngineError::DeviceLost("it copies nothing from its cache".to_owned()))
    }

    /// Replaces the contents of units by copies that an engine with the same [`CacheLayout`] has made. Blocks until that is done.
    ///
    /// # Errors
    /// As [`Engine::read_units`].
    fn write_units(&mut self, contents: &[(CacheUnit, &[u8])]) -> Result<(), EngineError> {
        let _ = contents;
        Err(EngineError::DeviceLost("it copies nothing to its cache".to_owned()))
    }

    /// The minimum work of the step's ops; `None` if the engine does not know it.
    fn cost(&self, step: &Step) -> Option<Cost> {
        let _ = step;
        None
    }
}

/// An engine around another one, whose methods are those of the other unless it says otherwise.
pub trait WrapsEngine: Send + 'static {
    /// The other engine.
    type Inner: Engine + ?Sized;

    /// The other engine.
    fn inner(&self) -> &Self::Inner;

    /// The other engine.
    fn inner_mut(&mut self) -> &mut Self::Inner;

    /// As [`Engine::begin`].
    ///
    /// # Errors
    /// As [`Engine::begin`].
    fn begin(&mut self, step: Step) -> Result<Progress, EngineError> {
        self.inner_mut().begin(step)
    }

    /// As [`Engine::run_overlapped`].
    ///
    /// # Errors
    /// As [`Engine::run_overlapped`].
    fn run_overlapped(&mut self, step: StepId) -> Result<bool, EngineError> {
        self.inner_mut().run_overlapped(step)
    }

    /// As [`Engine::resume`].
    ///
    /// # Errors
    /// As [`Engine::resume`].
    fn resume(&mut self, result: ExpertResult) -> Result<Progress, EngineError> {
        self.inner_mut().resume(result)
    }

    /// As [`Engine::read_units`].
    ///
    /// # Errors
    /// As [`Engine::read_units`].
    fn read_units(&mut self, copies: &mut [(CacheUnit, &mut [u8])]) -> Result<(), EngineError> {
        self.inner_mut().read_units(copies)
    }
}

impl<E: WrapsEngine> Engine for E {
    fn limits(&self) -> &EngineLimits {
        self.inner().limits()
    }

    fn begin(&mut self, step: Step) -> Result<Progress, EngineError> {
        WrapsEngine::begin(self, step)
    }

    fn run_overlapped(&mut self, step: StepId) -> Result<bool, EngineError> {
        WrapsEngine::run_overlapped(self, step)
    }

    fn resume(&mut self, result: ExpertResult) -> Result<Progress, EngineError> {
        WrapsEngine::resume(self, result)
    }

    fn cache_layout(&self) -> Option<CacheLayout> {
        self.inner().cache_layout()
    }

    fn read_units(&mut self, copies: &mut [(CacheUnit, &mut [u8])]) -> Result<(), EngineError> {
        WrapsEngine::read_units(self, copies)
    }

    fn write_units(&mut self, contents: &[(CacheUnit, &[u8])]) -> Result<(), EngineError> {
        self.inner_mut().write_units(contents)
    }

    fn cost(&self, step: &Step) -> Option<Cost> {
        self.inner().cost(step)
    }
}

impl WrapsEngine for Box<dyn Engine> {
    type Inner = dyn Engine;

    fn inner(&self) -> &dyn Engine {
        &**self
    }

    fn inner_mut(&mut self) -> &mut dyn Engine {
        &mut **self
    }
}
