//! The events that the policy receives and the effects that it returns.

use std::sync::Arc;
use std::time::Duration;

use cuelight_engine::engine::{
    AdapterUse, CacheUnit, EngineLimits, HiddenRows, RowSamplingParams, Step, StepId, TokenId,
};
use cuelight_engine::sample::{Block, Denoising, Draw};

use crate::core::cache_change::CacheChange;
use crate::core::cached_unit::{KeptUnit, UnitContent, UnitId};
use crate::core::draft::{DraftReply, DraftRequest, DraftSource};
use crate::core::kv_transfer::{KvTransfer, PeerAddress};
use crate::core::prefix_scope::PrefixScope;
use crate::core::prompt_media::PromptMedia;
use crate::core::request::{GenerationError, RequestId, SpeculationOptions};
use crate::core::tier::{FetchId, Tier, TierLimits};

/// The parts of a request that matter for scheduling.
#[derive(Debug, Clone, PartialEq)]
pub struct Submission {
    /// The request.
    pub id: RequestId,
    /// Its prompt.
    pub prompt: Vec<TokenId>,
    /// The media whose rows take the place of some of its tokens.
    pub media: PromptMedia,
    /// Maximum number of generated tokens. 0 reserves no space for an answer.
    pub max_tokens: usize,
    /// Lower values run first.
    pub priority: i32,
    /// The client. Clients share the engine fairly. All requests without a client count as one client.
    pub client: Option<Arc<str>>,
    /// Requests share cached prefixes only with requests of the same scope.
    pub scope: PrefixScope,
    /// The adapter that changes the model.
    pub adapter: Option<AdapterUse>,
    /// Whether the logits of all rows of the prompt are needed.
    pub scores_prompt: bool,
    /// Whether its client wants to know how much of the prompt is computed.
    pub reports_progress: bool,
    /// The rows of the prompt whose hidden values are needed. Then no token is generated.
    pub hidden: Option<HiddenRows>,
    /// The position of the first of these rows. Rows before it return nothing, and may come from the cache.
    pub hidden_from: usize,
    /// The position of the first token of the second of two texts, if the prompt is two texts.
    pub second_text: Option<u32>,
    /// How the engine may sample its tokens. `None` when the sampler needs the logits.
    pub engine_sampling: Option<EngineSampling>,
    /// How the draft model samples its tokens.
    pub draft_sampling: EngineSampling,
    /// Whether several of its tokens may be computed in a step, and what its client expects them to be.
    pub speculation: SpeculationOptions,
    /// How blocks of its tokens are denoised, for a model that generates blocks.
    pub denoising: Option<Denoising>,
    /// What it has to do with the KV caches of other servers.
    pub kv_transfer: KvTransfer,
}

impl Submission {
    /// A request that asks for nothing but up to `max_tokens` tokens after its prompt.
    #[must_use]
    pub fn new(id: RequestId, prompt: Vec<TokenId>, max_tokens: usize) -> Self {
        Submission {
            id,
            prompt,
            media: PromptMedia::default(),
            max_tokens,
            priority: 0,
            client: None,
            scope: PrefixScope::default(),
            adapter: None,
            scores_prompt: false,
            reports_progress: false,
            hidden: None,
            hidden_from: 0,
            second_text: None,
            engine_sampling: None,
            draft_sampling: EngineSampling { params: RowSamplingParams::GREEDY, seed: 0, from: 0 },
            speculation: SpeculationOptions::default(),
            denoising: None,
            kv_transfer: KvTransfer::default(),
        }
    }
}

/// How an engine may sample the tokens of a request by itself.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EngineSampling {
    /// The sampling parameters, without the random number.
    pub params: RowSamplingParams,
    /// The seed of the random numbers.
    pub seed: u64,
    /// Position of the first token that the engine may sample; the sampler samples those before it.
    pub from: usize,
}

impl EngineSampling {
    /// The sampling parameters of the token at `position` of the sequence. `None` when the sampler samples it.
    #[must_use]
    pub fn of_token(&self, position: usize) -> Option<RowSamplingParams> {
        let random = Draw { seed: self.seed, position: position as u64 }.random();
        (position >= self.from).then_some(RowSamplingParams { random, ..self.params })
    }
}

/// Something that happened.
#[derive(Debug, Clone, PartialEq)]
pub enum PolicyEvent {
    /// The client has cancelled the request.
    Cancel(RequestId),
    /// The device finished a step. Its logits are at the sampler.
    StepDone {
        /// The step.
        step: StepId,
        /// Time that the device took.
        elapsed: Duration,
        /// Number of prompt rows from which on a step takes hardly longer for more rows, if the engine knows it.
        prefill_saturation_rows: Option<usize>,
    },
    /// The engine refused a step. The executor runs on and has dropped the steps behind it.
    StepFailed {
        /// The step.
        step: StepId,
        /// Why it was refused.
        reason: String,
    },
    /// The sampler finished a step.
    Sampled {
        /// The step.
        step: StepId,
        /// One outcome for each [`SampleTask`] whose request has not ended.
        outcomes: Vec<Outcome>,
    },
    /// The client of a paused request reads again.
    Resume(RequestId),
    /// A new executor is ready. Its KV blocks are empty.
    ExecutorReady(Box<EngineLimits>),
    /// The executor and all KV blocks are lost.
    ExecutorLost {
        /// The step that caused it. `None` when unknown: every step at the executor may have caused it.
        failed: Option<StepId>,
        /// The error message.
        reason: String,
    },
    /// The draft model can be asked for drafts. It has computed no sequence yet.
    DrafterReady,
    /// The draft model is lost, and with it the replies to what it was asked.
    DrafterLost,
    /// The draft model replied.
    Drafted(DraftReply),
    /// A lower tier reports what it holds.
    Tier(Tier, TierReport),
    /// Units were read from a lower tier.
    Fetched {
        /// The read.
        fetch: FetchId,
        /// What was read.
        found: Found,
        /// How long the read took.
        elapsed: Duration,
    },
    /// A read from a lower tier has taken too long.
    FetchTimedOut(FetchId),
    /// Units from a lower tier were written to the device.
    UnitsWritten {
        /// Their bytes.
        bytes: u64,
        /// How long that took.
        elapsed: Duration,
    },
    /// Accept no new requests.
    Drain,
    /// End every request with this error.
    EndAll(GenerationError),
}

/// The result of a read from a lower tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found {
    /// Number of leading units that are in host memory now.
    pub units: usize,
    /// Whether the tier does not have the unit after them, or not as it was.
    pub next_is_lost: bool,
}

/// What a lower tier reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TierReport {
    /// It can be used. It holds these units, the least recently used first.
    Ready(TierLimits, Vec<KeptUnit>),
    /// These units have arrived.
    Kept(Vec<KeptUnit>),
    /// These units have not arrived and will not.
    Refused(Vec<UnitId>),
    /// It has no space for more than it holds.
    Full,
}

/// What the sampler made of the logits of one sequence.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// The request.
    pub id: RequestId,
    /// How the request continues.
    pub verdict: Verdict,
    /// How many of its new tokens, at the end, a constraint forced: they were not sampled, and nothing is computed for them.
    pub forced: usize,
    /// The client's channel is full: pause the request until [`PolicyEvent::Resume`].
    pub pause: bool,
}

/// How a request continues.
#[derive(Debug, Clone, PartialEq)]
pub enum Verdict {
    /// With these tokens, at least one: the accepted ones of a draft, the one sampled after them, and forced ones; or those of a
    /// block.
    Tokens(Vec<TokenId>),
    /// With another step of its block.
    Denoised(CanvasState),
    /// Without another token: rows of the prompt were scored, or a constraint had forced the token before.
    Unchanged,
    /// The request ended and the client was informed.
    Ended,
}

/// Something that the scheduler has to do.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    /// Send the step to the executor.
    Run(PlannedStep),
    /// Ask the draft model.
    Draft(DraftRequest),
    /// Tell the executor that the failed step was handled. All steps from here on are formed with that knowledge.
    Resync,
    /// Copy, move, read or remove units of the lower tiers.
    Tier(TierEffect),
    /// The prefix cache has changed.
    CacheChanged(Vec<CacheChange>),
    /// A request takes part in a step for the first time.
    Started {
        /// The request.
        id: RequestId,
        /// Tokens of its prompt that were found in the prefix cache.
        cached_tokens: usize,
    },
    /// A part of the prompt of a request is computed that reports it.
    PromptComputed {
        /// The request.
        id: RequestId,
        /// Tokens of its prompt that are computed or were found in the prefix cache.
        tokens: usize,
    },
    /// A request was preempted: it lost its blocks and waits again.
    Preempted(RequestId),
    /// A request was cancelled and removed.
    Cancelled(RequestId),
    /// A request failed and was removed.
    Failed(RequestId, GenerationError),
}

/// What the policy wants done with units of the lower tiers.
#[derive(Debug, Clone, PartialEq)]
pub enum TierEffect {
    /// Copy units from the device to a lower tier, before later steps write to them.
    Store(Vec<UnitCopy>),
    /// Move a unit from host memory to the disk.
    Demote(UnitId),
    /// Remove a unit from a lower tier.
    Discard(Tier, UnitId),
    /// Read units from a lower tier.
    Fetch {
        /// The read.
        fetch: FetchId,
        /// Where they are.
        tier: Tier,
        /// The other server, if they are at one.
        peer: Option<Arc<PeerAddress>>,
        /// Blocks, each after the one before it, or one state.
        units: Vec<UnitContent>,
        /// The time after which [`PolicyEvent::FetchTimedOut`] follows.
        time_limit: Duration,
    },
    /// Write the leading units of a finished read to the device, before later steps read them.
    Write {
        /// The read.
        fetch: FetchId,
        /// Where to on the device.
        units: Vec<CacheUnit>,
    },
}

/// A copy of a unit of the device to a lower tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnitCopy {
    /// The unit of the device.
    pub unit: CacheUnit,
    /// What it contains.
    pub content: UnitContent,
    /// Where the copy is kept.
    pub to: Tier,
}

/// A step with what the executor and the sampler need in addition to the rows.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct PlannedStep {
    /// The rows to compute.
    pub step: Step,
    /// The request of each sequence.
    pub ids: Vec<RequestId>,
    /// What the sampler does with the logits, in the order of the logits.
    pub tasks: Vec<SampleTask>,
    /// Rows whose token is not sampled yet. The step can start when all of these tokens are known.
    pub awaits: Vec<AwaitedToken>,
}

/// A row of a step whose token is sampled by an earlier step that has not finished.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AwaitedToken {
    /// Index of the sequence within the step. The sequence has only this row.
    pub sequence: usize,
    /// The request.
    pub id: RequestId,
    /// The step that samples the token. When the request ends in that step, the row is removed.
    pub from: StepId,
}

/// Tokens that a sequence is likely to continue with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Draft {
    /// Where they come from.
    pub source: DraftSource,
    /// At least one.
    pub tokens: Vec<TokenId>,
}

/// The logits or hidden values of one sequence in a step.
#[derive(Debug, Clone, PartialEq)]
pub struct SampleTask {
    /// The request.
    pub id: RequestId,
    /// Number of rows of logits.
    pub rows: usize,
    /// Position of the token that the first of these rows, or of the rows of hidden values, computed.
    pub first_position: usize,
    /// Whether the rows give the log-probabilities of the prompt's tokens.
    pub scores_prompt: bool,
    /// Number of rows of hidden values, which the step returns instead of logits.
    pub hidden_rows: usize,
    /// Whether the next token is sampled from the last row.
    pub samples: bool,
    /// The tokens of the rows after the first. The token after each row is sampled as long as those before it are equal to
    /// the draft's.
    pub draft: Option<Draft>,
    /// Set if the rows are a canvas. Then `hidden_rows` is their number.
    pub canvas: Option<CanvasTask>,
}

/// A block after some of its steps, and what the last one returned for the next.
#[derive(Debug, Clone, PartialEq)]
pub struct CanvasState {
    /// The block.
    pub block: Block,
    /// [rows, width]: the hidden values of its rows; empty before the first step.
    pub hidden: Arc<[f32]>,
}

/// The block that a canvas is a step of.
#[derive(Debug, Clone, PartialEq)]
pub struct CanvasTask {
    /// How it is denoised.
    pub denoising: Denoising,
    /// The block before the step.
    pub block: Block,
}
