//! What the scheduler knows about one request.

use std::sync::Arc;

use cuelight_engine::engine::{BLOCK_TOKENS, LogitsWanted, StepId, TokenId};

use super::events::EngineChoice;
use super::kv_blocks::BlockHandle;
use super::prefix_cache::Content;
use crate::request::RequestId;

/// Who goes first: the lower turn, then the earlier arrival.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rank {
    /// From [`FairQueue::turn`](super::fair_queue::FairQueue::turn).
    pub turn: i64,
    pub arrival: u64,
    pub id: RequestId,
}

/// Where a sequence stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// It holds no blocks: new, preempted, or its executor was lost.
    Waiting,
    /// It holds the blocks of everything it has computed.
    Running,
}

/// Somebody computes a prefix that this sequence needs as well; it waits for it instead of computing it again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Leader {
    pub id: RequestId,
    /// Leading blocks that both share.
    pub blocks: usize,
}

/// One request as the scheduler sees it: its tokens, how many are computed, and the blocks that hold them.
///
/// Steps overlap: a step may be formed while an earlier one is computed or sampled. So a sequence has two fronts, what
/// is `computed` and what is `planned`, and may be planned further than its tokens are known.
#[derive(Debug)]
pub(super) struct Sequence {
    pub rank: Rank,
    pub priority: i32,
    /// Whose prefixes it may share.
    pub salt: Option<Arc<str>>,
    /// Prompt and generated tokens, as far as they are sampled: everything needed to compute the sequence anew.
    pub tokens: Vec<TokenId>,
    pub prompt_tokens: usize,
    /// With this many tokens the sampler ends it.
    pub most_tokens: usize,
    /// Whether all rows of the prompt bring their logits back, so that none may be taken from the cache.
    pub scores_prompt: bool,
    /// Rows of the prompt that still have to bring their logits back start here; `prompt_tokens` when none do.
    pub scored: usize,
    pub engine_choice: Option<EngineChoice>,
    /// Tokens whose keys and values are in `blocks`.
    pub computed: usize,
    /// The same, once all steps that are formed are done.
    pub planned: usize,
    pub blocks: Vec<BlockHandle>,
    /// Leading blocks whose content the prefix cache knows.
    pub remembered: usize,
    pub place: Place,
    pub leader: Option<Leader>,
    /// Steps that are formed, take it along, and have not said all they will about it.
    pub in_flight: usize,
    /// Steps among them that bring a new token, in order.
    pub pending: Vec<StepId>,
    /// Its client does not read; it takes part in no further step until it does.
    pub paused: bool,
    /// A step failed that computed it up to here; until it gets past, it runs alone. 0: no suspicion.
    pub suspect_until: usize,
    /// Whether it ever took part in a step.
    pub started: bool,
    /// The last step it took part in, so that all get their turn when not all fit a step.
    pub last_step: StepId,
}

/// Rows of a sequence for the next step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Share {
    pub rows: usize,
    pub logits: LogitsWanted,
}

impl Sequence {
    /// Tokens once the steps in flight are sampled.
    pub fn length(&self) -> usize {
        self.tokens.len() + self.pending.len()
    }

    /// Tokens that no step computes yet.
    pub fn remaining(&self) -> usize {
        self.length() - self.planned
    }

    /// Whether only its newest token is left to compute, known or not.
    pub fn decodes(&self) -> bool {
        self.remaining() == 1 && self.length() > self.prompt_tokens
    }

    /// The step that brings the token to compute next, when that is not known yet.
    pub fn awaits_token_of(&self) -> Option<StepId> {
        let ahead = self.planned.checked_sub(self.tokens.len())?;
        self.pending.get(ahead).copied()
    }

    /// Whether a running sequence may take part in the next step.
    pub fn is_ready(&self) -> bool {
        let is_ending = !self.pending.is_empty() && self.length() >= self.most_tokens;
        // Until its step is sampled nobody knows what a suspect did.
        let settled = !self.is_suspect() || self.in_flight == 0;
        !self.paused && settled && !is_ending && self.remaining() > 0
    }

    /// Whether a waiting sequence may be admitted.
    pub fn is_admissible(&self) -> bool {
        !self.paused && self.in_flight == 0
    }

    pub fn is_suspect(&self) -> bool {
        self.suspect_until > 0
    }

    /// The largest share of `rows` rows and `logits_rows` rows of logits that it can use. `None` when it can use none.
    pub fn share(&self, rows: usize, logits_rows: usize) -> Option<Share> {
        let mut rows = rows.min(self.remaining());
        let mut logits = LogitsWanted::Last;
        if self.planned + rows > self.scored && self.scored < self.prompt_tokens {
            rows = rows.min(self.prompt_tokens - self.planned).min(logits_rows);
            logits = LogitsWanted::All;
        } else if rows < self.remaining() {
            rows = self.whole_blocks(rows);
            logits = LogitsWanted::None;
        } else if logits_rows == 0 {
            rows -= 1;
            logits = LogitsWanted::None;
        }
        (rows > 0).then_some(Share { rows, logits })
    }

    /// What is wanted of the row that brings the next token: the token where the engine may choose it, else its logits.
    pub fn next_token(&self) -> LogitsWanted {
        let index = self.length() - self.prompt_tokens;
        let choice = self.engine_choice.and_then(|engine| engine.of_token(index));
        choice.map_or(LogitsWanted::Last, LogitsWanted::Token)
    }

    /// At most `rows`, so that a chunk of some length ends where a block does and the next begins with a whole one.
    fn whole_blocks(&self, rows: usize) -> usize {
        let over = (self.planned + rows) % BLOCK_TOKENS;
        if rows >= 2 * BLOCK_TOKENS { rows - over } else { rows }
    }

    /// Tokens of the prefix that may come from the cache: all but the last, whose logits are wanted.
    pub fn cacheable(&self) -> &[TokenId] {
        let end = if self.scores_prompt && self.scored < self.prompt_tokens { 0 } else { self.tokens.len() - 1 };
        &self.tokens[..end / BLOCK_TOKENS * BLOCK_TOKENS]
    }

    /// What block number `index` holds when it is computed; the blocks before it must be remembered.
    pub fn content(&self, index: usize) -> Content {
        let before = index.checked_sub(1).map(|before| self.blocks[before].id());
        Content::new(self.salt.as_ref(), before, &self.tokens[index * BLOCK_TOKENS..(index + 1) * BLOCK_TOKENS])
    }

    /// Leading blocks that two sequences of one tenant have in common.
    pub fn blocks_in_common(&self, other: &Sequence) -> usize {
        if self.salt != other.salt {
            return 0;
        }
        let (mine, theirs) = (self.cacheable(), &other.tokens);
        let same = mine.iter().zip(theirs).take_while(|(mine, theirs)| mine == theirs).count();
        same / BLOCK_TOKENS
    }
}
