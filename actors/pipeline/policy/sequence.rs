//! The scheduling state of one request.

use cuelight_engine::engine::{AdapterUse, BLOCK_TOKENS, HiddenRows, LogitsWanted, RowSamplingParams, StepId, TokenId};
use cuelight_engine::sample::Denoising;

use super::drafts::Drafter;
use super::events::{CanvasState, EngineSampling};
use super::fair_queue::VirtualSpan;
use super::kv_blocks::BlockHandle;
use super::prefix_cache::Content;
use super::recurrent_state::RecurrentState;
use super::sequence_window::SequenceWindow;
use super::tiers::loading::Loading;
use crate::core::block_hash::{BlockContent, BlockHash};
use crate::core::kv_transfer::KvTransfer;
use crate::core::prefix_scope::PrefixScope;
use crate::core::prompt_media::{NextRows, PromptMedia};
use crate::core::request::{MAX_STEP_TOKENS, RequestId};
use crate::core::shared_limit::Client;

/// The position of a request in the order of service: earlier virtual finish first, then earlier arrival.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rank {
    /// From [`FairQueue::enqueue`](super::fair_queue::FairQueue::enqueue).
    pub virtual_finish: i64,
    pub arrival: u64,
    pub id: RequestId,
}

/// Whether a sequence holds blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Residency {
    /// It holds no blocks: it is new, was preempted, or its executor was lost.
    Waiting,
    /// It holds the blocks of everything it has computed.
    Running,
}

/// A sequence that computes a prefix which another sequence waits for instead of computing it again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Leader {
    pub id: RequestId,
    /// Number of leading blocks that both have in common.
    pub blocks: usize,
}

/// A sequence: its tokens, how many of them are computed, and the blocks that hold them.
///
/// Steps overlap: a step may be formed while an earlier one is computed or sampled. So `planned` may be ahead of
/// `computed`, and even ahead of the tokens that are known.
#[derive(Debug)]
pub(super) struct Sequence {
    pub rank: Rank,
    /// Its place in the virtual time of its client.
    pub span: VirtualSpan,
    pub priority: i32,
    /// Clients share the engine fairly.
    pub client: Client,
    /// It shares cached prefixes only with sequences of the same scope.
    pub scope: PrefixScope,
    pub adapter: Option<AdapterUse>,
    /// Prompt tokens and sampled tokens: everything needed to recompute the sequence.
    pub tokens: Vec<TokenId>,
    pub prompt_tokens: usize,
    /// The media of the prompt, whose rows take the place of tokens.
    pub media: PromptMedia,
    /// Whether its client wants to know how much of the prompt is computed.
    pub reports_progress: bool,
    /// Length at which the sampler ends it.
    pub most_tokens: usize,
    /// Whether all rows of the prompt return logits, so that none may come from the cache.
    pub scores_prompt: bool,
    /// The rows of the prompt that return hidden values, if it is computed for these.
    pub hidden: Option<HiddenRows>,
    /// The position of the first of these rows.
    pub hidden_from: usize,
    /// The position of the first token of its second text, if it is two texts.
    pub second_text: Option<u32>,
    /// Number of leading prompt rows whose logits have been returned. `prompt_tokens` when none are missing.
    pub scored: usize,
    pub engine_sampling: Option<EngineSampling>,
    /// How its blocks are denoised, if it generates these.
    pub denoising: Option<Denoising>,
    /// The block that is being denoised, after its first step.
    pub canvas: Option<CanvasState>,
    /// How the draft model samples its tokens.
    pub draft_sampling: EngineSampling,
    /// Number of tokens whose keys and values are in `blocks`.
    pub computed: usize,
    /// The same once all formed steps are computed.
    pub planned: usize,
    pub blocks: Vec<BlockHandle>,
    /// Its recurrent state.
    pub state: RecurrentState,
    /// What it uses of layers that keep windows.
    pub window: SequenceWindow,
    /// The identities of its leading blocks, as far as they were needed.
    pub hashes: Vec<BlockHash>,
    /// What it waits for, to be loaded from lower tiers.
    pub loading: Option<Loading>,
    /// Whether a load took too long, so that it computes its tokens instead of trying once more.
    pub computes: bool,
    /// Number of leading blocks whose content is in the prefix cache.
    pub cached_blocks: usize,
    /// What it has to do with the KV caches of other servers.
    pub kv_transfer: KvTransfer,
    /// Number of leading blocks that were offered to other servers.
    pub shared_blocks: usize,
    pub residency: Residency,
    pub leader: Option<Leader>,
    /// Number of formed steps that include it and still have results for it.
    pub in_flight: usize,
    /// The tokens that the steps among them sample for it, in order.
    pub pending: Vec<PendingToken>,
    /// Number of drafted tokens in the step in flight.
    pub unverified: usize,
    /// Whether it may have drafts.
    pub speculates: bool,
    /// Proposes its drafts.
    pub drafter: Drafter,
    /// Whether its client does not read. A paused sequence takes part in no further step.
    pub paused: bool,
    /// A step failed that would have computed it up to here. It runs alone until it has more computed tokens. 0 when it is
    /// not a suspect.
    pub suspect_until: usize,
    /// How often it was preempted for another client.
    pub yielded: u32,
    /// Whether it has taken part in a step.
    pub started: bool,
    /// The last step it took part in. When not all sequences fit, the least recently served go first.
    pub last_step: StepId,
}

/// A token that a step in flight samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PendingToken {
    pub step: StepId,
    /// Its position in the sequence. It may be known already, because a constraint allowed no other one.
    pub position: usize,
}

/// How many rows of a step may still return something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct OutputRowsLeft {
    pub logits: usize,
    pub hidden: usize,
}

/// The rows of a sequence for the next step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct ScheduledRows {
    pub rows: usize,
    pub logits: LogitsWanted,
}

impl Sequence {
    /// Number of tokens once the steps in flight are sampled, if all drafted tokens are accepted.
    pub fn length(&self) -> usize {
        let pending = self.pending.last().map_or(0, |pending| pending.position + 1);
        self.tokens.len().max(pending) + self.unverified
    }

    /// Number of tokens that are not part of any formed step.
    pub fn remaining(&self) -> usize {
        self.length() - self.planned
    }

    /// Whether only its newest token is left to compute.
    pub fn decodes(&self) -> bool {
        self.remaining() == 1 && self.length() > self.prompt_tokens
    }

    /// Whether only the newest tokens of its answer are left to compute, few enough to be decode rows.
    pub fn is_answering(&self) -> bool {
        self.planned >= self.prompt_tokens && self.length() > self.prompt_tokens && self.remaining() <= MAX_STEP_TOKENS
    }

    /// The step that samples the next token to compute, when that token is not known yet.
    pub fn awaits_token_from(&self) -> Option<StepId> {
        let is_next = |pending: &&PendingToken| pending.position == self.planned && self.planned >= self.tokens.len();
        self.pending.iter().find(is_next).map(|pending| pending.step)
    }

    /// Whether a running sequence may take part in the next step.
    pub fn is_ready(&self) -> bool {
        let is_ending = !self.pending.is_empty() && self.length() >= self.most_tokens;
        // A suspect takes part in one step at a time.
        let settled = !self.is_suspect() || self.in_flight == 0;
        !self.paused && self.loading.is_none() && settled && !is_ending && self.unverified == 0 && self.remaining() > 0
    }

    /// Whether a waiting sequence may be admitted.
    pub fn is_admissible(&self) -> bool {
        !self.paused && self.in_flight == 0
    }

    /// Whether what is computed for it may serve later sequences. If hidden values are needed of all rows, nothing of the text is
    /// found in the cache or kept there.
    pub fn is_kept(&self) -> bool {
        self.hidden.is_none() || self.hidden_from > 0
    }

    pub fn is_suspect(&self) -> bool {
        self.suspect_until > 0
    }

    /// The most rows of it that a step can have.
    pub fn most_next_rows(&self) -> usize {
        match self.media.next_rows(self.planned) {
            NextRows::Any => self.remaining(),
            NextRows::AtMost(rows) | NextRows::Exactly(rows) => rows.min(self.remaining()),
        }
    }

    /// The number of its next rows, if they are those of a media item that must be in one step.
    pub fn next_media_rows(&self) -> Option<usize> {
        match self.media.next_rows(self.planned) {
            NextRows::Exactly(rows) => Some(rows),
            NextRows::Any | NextRows::AtMost(_) => None,
        }
    }

    /// Its next rows, at most `rows` rows of which at most `outputs` return something. `None` when it can use none.
    pub fn schedule(&self, rows: usize, outputs: OutputRowsLeft) -> Option<ScheduledRows> {
        let most = self.most_next_rows();
        let mut rows = rows.min(most);
        let logits_rows = outputs.logits;
        if let Some(media_rows) = self.next_media_rows() {
            return self.schedule_media(rows, media_rows, logits_rows);
        }
        if let Some(hidden) = self.hidden {
            return self.schedule_hidden(rows, hidden, outputs.hidden);
        }
        if self.denoising.is_some() {
            // The canvas of the next block returns what is needed.
            rows = if rows < self.remaining() { self.whole_blocks(rows) } else { rows };
            return (rows > 0).then_some(ScheduledRows { rows, logits: LogitsWanted::None });
        }
        let mut logits = LogitsWanted::Last;
        if self.planned + rows > self.scored && self.scored < self.prompt_tokens {
            rows = rows.min(self.prompt_tokens - self.planned).min(logits_rows);
            logits = LogitsWanted::All;
        } else if rows < self.remaining() {
            // Up to the rows of a media item a chunk ends anyway.
            rows = if rows == most { rows } else { self.whole_blocks(rows) };
            logits = LogitsWanted::None;
        } else if logits_rows == 0 {
            rows -= 1;
            logits = LogitsWanted::None;
        }
        (rows > 0).then_some(ScheduledRows { rows, logits })
    }

    /// The rows of a media item, all of them or none.
    fn schedule_media(&self, rows: usize, media_rows: usize, logits_rows: usize) -> Option<ScheduledRows> {
        let is_last = media_rows == self.remaining();
        let logits = if is_last { LogitsWanted::Last } else { LogitsWanted::None };
        (rows == media_rows && (logits_rows > 0 || !is_last)).then_some(ScheduledRows { rows, logits })
    }

    /// Its next `rows` rows, or fewer, of which at most `left` return hidden values.
    fn schedule_hidden(&self, rows: usize, hidden: HiddenRows, left: usize) -> Option<ScheduledRows> {
        let before = self.hidden_from.saturating_sub(self.planned);
        if before > 0 {
            let rows = rows.min(before);
            return (rows > 0).then_some(ScheduledRows { rows, logits: LogitsWanted::None });
        }
        let returns = match hidden {
            HiddenRows::All => true,
            HiddenRows::First => self.planned == 0,
            HiddenRows::Last => rows == self.remaining(),
        };
        let rows = match hidden {
            HiddenRows::All => rows.min(left),
            HiddenRows::First if returns && left == 0 => 0,
            HiddenRows::Last if returns && left == 0 => rows - 1,
            HiddenRows::First | HiddenRows::Last => rows,
        };
        let logits = if returns && left > 0 { LogitsWanted::Hidden(hidden) } else { LogitsWanted::None };
        (rows > 0).then_some(ScheduledRows { rows, logits })
    }

    /// What the row that gives the next token returns: the token if the engine may sample it, else its logits.
    pub fn next_token(&self) -> LogitsWanted {
        let params = self.engine_sampling.and_then(|engine| engine.of_token(self.length()));
        params.map_or(LogitsWanted::Last, LogitsWanted::Token)
    }

    /// How the draft model samples the next `most` tokens.
    pub fn draws(&self, most: usize) -> Vec<RowSamplingParams> {
        let next = self.length();
        (next..next + most).filter_map(|position| self.draft_sampling.of_token(position)).collect()
    }

    /// Reduces `rows` so that a chunk of at least two blocks ends at a block boundary.
    fn whole_blocks(&self, rows: usize) -> usize {
        let over = (self.planned + rows) % BLOCK_TOKENS;
        if rows >= 2 * BLOCK_TOKENS { rows - over } else { rows }
    }

    /// The leading tokens that may come from the cache: whole blocks without the last token, whose logits are needed.
    pub fn cacheable(&self) -> &[TokenId] {
        let end = match self.hidden {
            Some(_) => self.hidden_from.min(self.tokens.len() - 1),
            None if self.scores_prompt && self.scored < self.prompt_tokens => 0,
            None => self.tokens.len() - 1,
        };
        &self.tokens[..end / BLOCK_TOKENS * BLOCK_TOKENS]
    }

    /// The content of block number `index` once it is computed. The blocks before it must be in the prefix cache.
    pub fn content(&self, index: usize) -> Content {
        let before = index.checked_sub(1).map(|before| self.blocks[before].id());
        let tokens = &self.tokens[index * BLOCK_TOKENS..(index + 1) * BLOCK_TOKENS];
        Content::new(&self.scope, before, tokens).with_media(self.media.key_of_block(index))
    }

    /// The content of block number `index`, for copies of it.
    pub fn portable_content(&mut self, index: usize) -> BlockContent {
        let tokens = |index: usize| -> [TokenId; BLOCK_TOKENS] {
            std::array::from_fn(|token| self.tokens[index * BLOCK_TOKENS + token])
        };
        let scope = BlockHash::of_scope(&self.scope);
        while self.hashes.len() <= index {
            let (before, next) = (self.hashes.last().copied().unwrap_or(scope), self.hashes.len());
            self.hashes.push(before.then(&tokens(next), self.media.key_of_block(next).as_ref()));
        }
        let before = index.checked_sub(1).map_or(scope, |before| self.hashes[before]);
        let (hash, is_portable) = (self.hashes[index], self.scope.is_portable());
        let has_media = self.media.key_of_block(index).is_some();
        BlockContent { hash, before, tokens: tokens(index), has_media, is_portable }
    }

    /// Number of leading blocks that two sequences of the same scope have in common.
    pub fn blocks_in_common(&self, other: &Sequence) -> usize {
        if self.scope != other.scope || !other.is_kept() {
            return 0;
        }
        let (mine, theirs) = (self.cacheable(), &other.tokens);
        let same = mine.iter().zip(theirs).take_while(|(mine, theirs)| mine == theirs).count() / BLOCK_TOKENS;
        let has_other_media = |index: &usize| self.media.key_of_block(*index) != other.media.key_of_block(*index);
        (0..same).find(has_other_media).unwrap_or(same)
    }
}
