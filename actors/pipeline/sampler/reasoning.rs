//! The reasoning before an answer: where it ends, and the end of its budget.
//!
//! Stop strings and the constraint apply to the answer, not to the reasoning.

use cuelight_engine::engine::TokenId;

use crate::core::request::ReasoningOptions;

/// Where in its reasoning a sequence is.
#[derive(Debug)]
pub(super) struct Reasoning {
    options: ReasoningOptions,
    phase: Phase,
    /// Tokens of reasoning so far.
    tokens: usize,
    /// Tokens of the end marker that were forced.
    forced: usize,
}

#[derive(Debug)]
enum Phase {
    /// Nothing was generated. Reasoning may begin.
    Start,
    /// In the reasoning, with the last characters of its text.
    Inside { tail: String },
    /// In the answer.
    Over,
}

impl Reasoning {
    pub fn new(options: &ReasoningOptions) -> Self {
        let phase = if options.is_open { Phase::Inside { tail: String::new() } } else { Phase::Start };
        Reasoning { options: options.clone(), phase, tokens: 0, forced: 0 }
    }

    /// Whether the next token is part of the reasoning.
    pub fn is_inside(&self) -> bool {
        matches!(self.phase, Phase::Inside { .. })
    }

    /// The token that may begin the reasoning now.
    pub fn may_begin_with(&self) -> Option<TokenId> {
        self.options.start.filter(|_| matches!(self.phase, Phase::Start))
    }

    /// The token that has to come next, because the budget is spent.
    pub fn forced(&self) -> Option<TokenId> {
        let is_spent = self.options.budget.is_some_and(|budget| self.tokens >= budget + self.forced);
        self.options.end_tokens.get(self.forced).copied().filter(|_| self.is_inside() && is_spent)
    }

    /// Adds a token with its text. Returns whether it is part of the answer.
    pub fn accept(&mut self, token: TokenId, text: &str) -> bool {
        if self.forced() == Some(token) {
            self.forced += 1;
        }
        match &mut self.phase {
            Phase::Start if self.options.start == Some(token) => self.phase = Phase::Inside { tail: String::new() },
            Phase::Start => self.phase = Phase::Over,
            Phase::Inside { tail } => {
                self.tokens += 1;
                tail.push_str(text);
                if tail.contains(&*self.options.end) {
                    self.phase = Phase::Over;
                    return false;
                }
                let kept = tail.len().saturating_sub(self.options.end.len());
                tail.drain(..tail.floor_char_boundary(kept));
            }
            Phase::Over => {}
        }
        matches!(self.phase, Phase::Over)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reasoning(is_open: bool, budget: Option<usize>) -> Reasoning {
        let end_tokens = [7, 8].into();
        Reasoning::new(&ReasoningOptions { is_open, start: Some(5), end: "</think>".into(), end_tokens, budget })
    }

    #[test]
    fn the_answer_begins_after_the_end_marker() {
        let mut reasoning = reasoning(true, None);
        assert!(!reasoning.accept(1, "hm </th") && reasoning.is_inside());
        assert!(!reasoning.accept(2, "ink>") && !reasoning.is_inside());
        assert!(reasoning.accept(3, "yes"));
    }

    #[test]
    fn reasoning_begins_with_its_token_or_not_at_all() {
        let mut begins = reasoning(false, None);
        assert_eq!(begins.may_begin_with(), Some(5));
        assert!(!begins.accept(5, "<think>") && begins.is_inside());
        let mut answers = reasoning(false, None);
        assert!(answers.accept(9, "yes"));
        assert_eq!(answers.may_begin_with(), None);
        assert!(answers.accept(5, "<think>"), "later it is text");
    }

    #[test]
    fn a_spent_budget_forces_the_end() {
        let mut reasoning = reasoning(true, Some(2));
        assert_eq!(reasoning.forced(), None);
        assert!(!reasoning.accept(1, "a") && reasoning.forced().is_none());
        assert!(!reasoning.accept(2, "b"));
        assert_eq!(reasoning.forced(), Some(7));
        assert!(!reasoning.accept(7, "</"));
        assert_eq!(reasoning.forced(), Some(8));
        assert!(!reasoning.accept(8, "think>"));
        assert!(reasoning.forced().is_none() && !reasoning.is_inside());
    }
}
