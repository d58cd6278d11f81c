//! Continues requests of a scheduler that died.

use cuelight_engine::engine::{EngineLimits, StepId, TokenId};

use super::events::Submission;
use super::{Policy, PolicyConfig};

/// How far a request was when its scheduler died.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Progress {
    /// The tokens that were generated.
    pub tokens: Vec<TokenId>,
    /// Whether the logits of the prompt's rows were returned, if they are needed.
    pub is_scored: bool,
    /// Whether its client does not read.
    pub is_paused: bool,
    /// Whether it may be the cause of the death. Then it runs alone until it has one more token.
    pub is_suspect: bool,
}

impl Policy {
    /// A policy without requests, which continues the step ids of another one.
    #[must_use]
    pub fn starting_at(step: StepId, config: PolicyConfig, limits: EngineLimits) -> Self {
        Policy { next_step: step, ..Policy::new(config, limits) }
    }

    /// Continues a request that another policy accepted. It waits until an executor is ready.
    pub fn resume(&mut self, submission: Submission, progress: Progress) {
        let Progress { tokens, is_scored, is_paused, is_suspect } = progress;
        let id = submission.id;
        let sequence = self.enqueue(submission);
        if is_scored {
            sequence.scored = sequence.prompt_tokens;
        }
        sequence.tokens.extend(tokens);
        if is_suspect {
            // One more than it has, so that the step that samples its next token is over before another request runs.
            sequence.suspect_until = sequence.tokens.len() + 1;
        }
        self.set_paused(id, is_paused);
    }
}
