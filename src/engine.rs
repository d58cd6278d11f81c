//! The Engine: the only door through which actors compute.
//!
//! An engine owns a device, the weights on it and the KV blocks' storage. It does not own the block *table*: which
//! block belongs to whom is the scheduler's business, and every [`Step`] says so anew. An engine therefore keeps no
//! state about a sequence, which is what makes replay after a fault, preemption and prefix sharing simple.
//!
//! A step is resumable: [`Engine::begin`] runs until the step is done or until it needs experts that live elsewhere;
//! then it hands out the job and [`Engine::resume`] takes the result back.

use std::time::Duration;

pub use cuelight_shaders::choose_token::{Chosen, TokenChoice};

use crate::profile::{Cost, OpSpan};

/// A token of the model's vocabulary.
pub type TokenId = u32;

/// A block of the KV cache.
pub type BlockId = u32;

/// Tokens in one KV block.
pub const BLOCK_TOKENS: usize = 16;

/// Numbers the steps of one executor, from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct StepId(pub u64);

/// Which rows of a sequence's share need logits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum LogitsWanted {
    /// None: a prefill chunk that is not the last.
    None,
    /// The last row's: the next token is sampled from them.
    Last,
    /// Every row's: the prompt's log-probabilities were asked for.
    All,
    /// Not the logits but the token that this chooses from the last row's. An engine that does not choose returns the row.
    Token(TokenChoice),
}

impl LogitsWanted {
    /// How many rows of logits are computed for `rows` tokens.
    #[must_use]
    pub fn rows(self, rows: usize) -> usize {
        match self {
            LogitsWanted::None => 0,
            LogitsWanted::Last | LogitsWanted::Token(_) => rows.min(1),
            LogitsWanted::All => rows,
        }
    }
}

/// One sequence's share of a step: consecutive tokens of it.
#[derive(Debug, Clone, PartialEq)]
pub struct SequenceRows {
    /// The tokens to compute; one for a decode row, more for a prefill chunk.
    pub tokens: Vec<TokenId>,
    /// Position of the first of them; all earlier positions are in the cache.
    pub first_position: u32,
    /// The blocks that hold positions `0..first_position + tokens.len()`, in order.
    pub block_table: Vec<BlockId>,
    /// Which logits to return.
    pub logits: LogitsWanted,
}

/// One forward pass over a ragged batch.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Step {
    /// Given by the scheduler.
    pub id: StepId,
    /// The sequences; no two share a block they write.
    pub sequences: Vec<SequenceRows>,
}

impl Step {
    /// Rows in all.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.sequences.iter().map(|sequence| sequence.tokens.len()).sum()
    }

    /// The block table of each sequence.
    #[must_use]
    pub fn block_tables(&self) -> Vec<&[BlockId]> {
        self.sequences.iter().map(|sequence| sequence.block_table.as_slice()).collect()
    }

    /// Rows whose logits are computed.
    #[must_use]
    pub fn logits_rows(&self) -> usize {
        self.sequences.iter().map(|sequence| sequence.logits.rows(sequence.tokens.len())).sum()
    }
}

/// What a finished step brings back.
#[derive(Debug, Clone, PartialEq)]
pub struct StepOutput {
    /// The step.
    pub id: StepId,
    /// [logits rows, vocab_size]: the wanted rows, sequence after sequence in the step's order, without those of sequences
    /// whose token was chosen.
    pub logits: Vec<f32>,
    /// For each sequence that wants logits, in the step's order, what the engine chose; `None` where its logits come back.
    /// Empty from an engine that does not choose.
    pub chosen: Vec<Option<Chosen>>,
    /// Time the device took.
    pub elapsed: Duration,
    /// What each op took, in their order; empty unless the engine was asked to measure it.
    pub ops: Vec<OpSpan>,
    /// What the engine's own cache of experts did.
    pub experts: ExpertCounts,
    /// From how many rows on a step takes hardly longer for more of them, as far as the engine knows.
    pub bulk_rows: Option<usize>,
}

impl StepOutput {
    /// What a step without rows brings.
    #[must_use]
    pub fn empty(id: StepId) -> Self {
        StepOutput {
            id,
            logits: Vec::new(),
            chosen: Vec::new(),
            elapsed: Duration::ZERO,
            ops: Vec::new(),
            experts: ExpertCounts::default(),
            bulk_rows: None,
        }
    }
}

/// What a device's cache of experts that the host has did in a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ExpertCounts {
    /// Routes whose experts were there.
    pub cached_routes: u64,
    /// Routes whose experts came for this step.
    pub streamed_routes: u64,
    /// Experts that were brought there.
    pub uploads: u64,
    /// Their bytes.
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

/// Experts to compute away from the engine's device: one layer's routed rows.
#[derive(Debug, Clone, PartialEq)]
pub struct ExpertJob {
    /// The step that waits.
    pub step: StepId,
    /// The layer, counted among those whose experts are elsewhere.
    pub layer: usize,
    /// [rows, hidden_size] input of the experts.
    pub hidden: Vec<f32>,
    /// [rows, 2 top_k]: each row's experts, then their weights; a negative expert is computed by somebody else.
    pub routes: Vec<f32>,
    /// How many of the routes are to be computed.
    pub n_routes: usize,
}

/// The answer to an [`ExpertJob`].
#[derive(Debug, Clone, PartialEq)]
pub struct ExpertResult {
    /// The step that waits.
    pub step: StepId,
    /// The layer.
    pub layer: usize,
    /// [rows, hidden_size] weighted sum of the experts' outputs.
    pub output: Vec<f32>,
}

/// How far a step got.
#[derive(Debug, Clone, PartialEq)]
pub enum Progress {
    /// Finished.
    Done(StepOutput),
    /// Waits for experts; pass their result to [`Engine::resume`].
    AwaitExperts(ExpertJob),
}

/// What the engine can take, fixed when it was planned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineLimits {
    /// Logits in a row.
    pub vocab_size: usize,
    /// Longest sequence, prompt and answer together, in tokens.
    pub context_tokens: usize,
    /// KV blocks, numbered from 0.
    pub kv_blocks: usize,
    /// Most rows in a step.
    pub max_batched_tokens: usize,
    /// Most sequences in a step.
    pub max_sequences: usize,
    /// Most rows with logits in a step; at least `max_sequences`.
    pub max_logits_rows: usize,
    /// What computes, for people: "cpu (avx2, 2 threads)".
    pub device: String,
}

/// Why a step failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    /// The step breaks the engine's limits or its own rules: a fault of the scheduler.
    #[error("step {step:?} is not one this engine can run: {reason}")]
    InvalidStep {
        /// The step.
        step: StepId,
        /// What is wrong with it.
        reason: String,
    },
    /// The device is gone; the engine must be rebuilt.
    #[error("the device was lost: {0}")]
    DeviceLost(String),
}

impl Engine for Box<dyn Engine> {
    fn limits(&self) -> &EngineLimits {
        (**self).limits()
    }

    fn begin(&mut self, step: Step) -> Result<Progress, EngineError> {
        (**self).begin(step)
    }

    fn work_beside(&mut self, step: StepId) -> Result<bool, EngineError> {
        (**self).work_beside(step)
    }

    fn resume(&mut self, result: ExpertResult) -> Result<Progress, EngineError> {
        (**self).resume(result)
    }

    fn cost(&self, step: &Step) -> Option<Cost> {
        (**self).cost(step)
    }
}

/// A model on a device.
pub trait Engine: Send + 'static {
    /// What it can take.
    fn limits(&self) -> &EngineLimits;

    /// Starts a step. Blocks until the step is done or waits for experts. While it waits other steps may be started, so that
    /// the device has something to do; their numbers differ, and no two steps write the same blocks.
    ///
    /// # Errors
    /// [`EngineError`] when the step is invalid or the device is lost.
    fn begin(&mut self, step: Step) -> Result<Progress, EngineError>;

    /// Does what can be done of a step that waits for experts before they are there; to be called when the job was handed out.
    /// Blocks. Nothing is lost but time when it is not called. Returns whether there was anything to do.
    ///
    /// # Errors
    /// [`EngineError`] when the device is lost.
    fn work_beside(&mut self, step: StepId) -> Result<bool, EngineError> {
        let _ = step;
        Ok(false)
    }

    /// Continues a step that waited for experts.
    ///
    /// # Errors
    /// [`EngineError`] when no step waits for this result, or the device is lost.
    fn resume(&mut self, result: ExpertResult) -> Result<Progress, EngineError>;

    /// The least that the step's ops have to do; `None` when the engine does not know.
    fn cost(&self, step: &Step) -> Option<Cost> {
        let _ = step;
        None
    }
}
