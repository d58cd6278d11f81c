//! What the scheduler knows about one request.

use cuelight_engine::engine::{LogitsWanted, StepId, TokenId};

use super::kv_blocks::BlockHandle;
use crate::request::RequestId;

/// Who goes first: the lower priority number, then the earlier arrival.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rank {
    pub priority: i32,
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

/// One request as the scheduler sees it: its tokens, how many are computed, and the blocks that hold them.
#[derive(Debug)]
pub(super) struct Sequence {
    pub rank: Rank,
    /// Prompt and generated tokens: everything needed to compute the sequence anew.
    pub tokens: Vec<TokenId>,
    pub prompt_tokens: usize,
    /// Rows of the prompt that still have to bring their logits back start here; `prompt_tokens` when none do.
    pub scored: usize,
    /// Tokens whose keys and values are in `blocks`.
    pub computed: usize,
    pub blocks: Vec<BlockHandle>,
    pub place: Place,
    /// The step it takes part in, until that step's tokens are sampled.
    pub in_flight: Option<StepId>,
    /// Its client does not read; it takes part in no step until it does.
    pub paused: bool,
    /// It ended while the device was writing to its blocks; forgotten as soon as the step is done.
    pub ended: bool,
    /// A step failed that computed it up to here; until it gets past, it runs alone. 0: no suspicion.
    pub suspect_until: usize,
    /// Whether it ever took part in a step.
    pub started: bool,
    /// The last step it took part in, so that all get their turn when not all fit a step.
    pub last_step: StepId,
}

impl Sequence {
    /// Tokens that are not computed yet; at least one for a sequence that is not in flight.
    pub fn remaining(&self) -> usize {
        self.tokens.len() - self.computed
    }

    /// Whether it may take part in the next step.
    pub fn is_ready(&self) -> bool {
        self.in_flight.is_none() && !self.paused && !self.ended
    }

    pub fn is_suspect(&self) -> bool {
        self.suspect_until > 0
    }

    /// The largest share of `rows` rows and `logits_rows` rows of logits that it can use, and which logits to ask for.
    /// `None` when it can use none.
    pub fn share(&self, rows: usize, logits_rows: usize) -> Option<(usize, LogitsWanted)> {
        let mut rows = rows.min(self.remaining());
        if self.computed + rows > self.scored && self.scored < self.prompt_tokens {
            rows = rows.min(self.prompt_tokens - self.computed).min(logits_rows);
            return (rows > 0).then_some((rows, LogitsWanted::All));
        }
        if rows < self.remaining() {
            return (rows > 0).then_some((rows, LogitsWanted::None));
        }
        if logits_rows == 0 {
            rows -= 1;
            return (rows > 0).then_some((rows, LogitsWanted::None));
        }
        (rows > 0).then_some((rows, LogitsWanted::Last))
    }
}
