//! Recent answers, for drafts of other sequences: answers of one tenant often repeat each other, as when a file is edited again
//! or a template is filled in.
//!
//! Prefixes are shared within a scope only, and so are answers.

use std::collections::{HashMap, VecDeque};

use cuelight_engine::engine::TokenId;

use super::lookup::{LookupIndex, Match};
use crate::core::prefix_scope::PrefixScope;

/// Most tokens of answers in a scope.
const MAX_TOKENS: usize = 1 << 15;

/// Most scopes. The one whose last answer is the oldest is forgotten.
const MAX_SCOPES: usize = 16;

/// The answers of one scope, one after the other.
#[derive(Debug, Default)]
pub(in crate::pipeline::policy) struct RecentText {
    tokens: Vec<TokenId>,
    index: LookupIndex,
}

/// The recent answers of all scopes.
#[derive(Debug, Default)]
pub(in crate::pipeline::policy) struct RecentAnswers {
    texts: HashMap<PrefixScope, RecentText>,
    /// The scopes, that of the last answer last.
    order: VecDeque<PrefixScope>,
}

impl RecentText {
    /// The tokens.
    pub fn tokens(&self) -> &[TokenId] {
        &self.tokens
    }

    /// Where the end of `suffix` occurs.
    pub fn find(&self, suffix: &[TokenId]) -> Option<Match> {
        self.index.find(&self.tokens, suffix)
    }

    /// Adds an answer. Beyond the limit the older half is forgotten.
    fn add(&mut self, answer: &[TokenId]) {
        self.tokens.extend(&answer[answer.len().saturating_sub(MAX_TOKENS)..]);
        if self.tokens.len() > MAX_TOKENS {
            self.tokens.drain(..self.tokens.len() - MAX_TOKENS / 2);
            self.index = LookupIndex::default();
        }
        self.index.extend(&self.tokens);
    }
}

impl RecentAnswers {
    /// Those of a scope.
    pub fn of(&self, scope: &PrefixScope) -> Option<&RecentText> {
        self.texts.get(scope)
    }

    /// Adds an answer that ended.
    pub fn add(&mut self, scope: &PrefixScope, answer: &[TokenId]) {
        if answer.is_empty() {
            return;
        }
        self.order.retain(|other| other != scope);
        self.order.push_back(scope.clone());
        if self.order.len() > MAX_SCOPES
            && let Some(oldest) = self.order.pop_front()
        {
            self.texts.remove(&oldest);
        }
        self.texts.entry(scope.clone()).or_default().add(answer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scope(salt: usize) -> PrefixScope {
        PrefixScope { salt: Some(salt.to_string().into()), ..PrefixScope::default() }
    }

    #[test]
    fn answers_are_found_within_their_scope() {
        let mut answers = RecentAnswers::default();
        answers.add(&scope(0), &[1, 2, 3, 4]);
        answers.add(&scope(0), &[5, 1, 2, 3, 6]);
        let text = answers.of(&scope(0)).unwrap();
        let found = text.find(&[9, 1, 2, 3]).unwrap();
        assert_eq!((text.tokens()[found.next], found.length), (6, 3), "the last answer");
        assert!(answers.of(&scope(1)).is_none());
    }

    #[test]
    fn memory_is_limited() {
        let mut answers = RecentAnswers::default();
        let answer = |from: usize| (from..from + 1000).map(|token| token as TokenId).collect::<Vec<_>>();
        for index in 0..100 {
            answers.add(&scope(0), &answer(index * 1000));
            assert!(answers.of(&scope(0)).unwrap().tokens().len() <= MAX_TOKENS);
        }
        let text = answers.of(&scope(0)).unwrap();
        let found = text.find(&[99_500, 99_501, 99_502]).unwrap();
        assert_eq!(text.tokens()[found.next], 99_503);
        assert_eq!(text.find(&[500, 501, 502]), None);
        (1..=MAX_SCOPES).for_each(|other| answers.add(&scope(other), &[1]));
        assert!(answers.of(&scope(0)).is_none() && answers.of(&scope(MAX_SCOPES)).is_some());
        assert_eq!(answers.texts.len(), MAX_SCOPES);
    }
}
