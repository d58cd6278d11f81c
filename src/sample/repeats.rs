//! A penalty on tokens that would continue a repetition of earlier text, known as DRY ("don't repeat yourself").
//!
//! Source: its proposal in text-generation-webui (pull request 5677), and the parameters of llama.cpp.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::engine::TokenId;

/// How much repetitions are penalised.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RepeatPenalty {
    /// The penalty of a token that would continue a repetition of `allowed_length` tokens.
    pub multiplier: f32,
    /// The penalty grows by this factor with each further token of the repetition.
    pub base: f32,
    /// Shorter repetitions are not penalised.
    pub allowed_length: usize,
    /// Number of last tokens in which repetitions are searched for. `None`: all.
    pub window: Option<usize>,
    /// No repetition goes beyond a token whose text contains one of these.
    pub breakers: Vec<String>,
}

impl RepeatPenalty {
    /// Where repetitions end unless a request says otherwise.
    pub const BREAKERS: [&'static str; 4] = ["\n", ":", "\"", "*"];
}

/// The tokens of a sequence, as the penalty needs them.
#[derive(Debug, Clone)]
pub(super) struct Repeats {
    penalty: RepeatPenalty,
    /// `None` for a token at which repetitions end.
    tokens: Vec<Option<TokenId>>,
}

impl Repeats {
    pub fn new(penalty: RepeatPenalty) -> Self {
        Repeats { penalty, tokens: Vec::new() }
    }

    /// Adds a token with its text.
    pub fn push(&mut self, token: TokenId, text: &[u8]) {
        let contains = |breaker: &String| text.windows(breaker.len().max(1)).any(|part| part == breaker.as_bytes());
        let breaks = self.penalty.breakers.iter().any(contains);
        self.tokens.push((!breaks).then_some(token));
    }

    /// Tokens and what is subtracted from their logits.
    pub fn penalties(&self) -> impl Iterator<Item = (TokenId, f32)> {
        let RepeatPenalty { multiplier, base, allowed_length, window, .. } = self.penalty;
        let start = window.map_or(0, |window| self.tokens.len().saturating_sub(window));
        let lengths = repeated_lengths(&self.tokens[start..]);
        lengths.into_iter().filter(move |&(_, length)| length >= allowed_length).map(move |(token, length)| {
            let steps = i32::try_from(length - allowed_length).unwrap_or(i32::MAX);
            (token, (f64::from(multiplier) * f64::from(base).powi(steps)).min(f64::from(f32::MAX)) as f32)
        })
    }
}

/// For each token that followed an earlier occurrence of the end of `tokens`: the length of the longest such occurrence.
fn repeated_lengths(tokens: &[Option<TokenId>]) -> BTreeMap<TokenId, usize> {
    let backwards: Vec<_> = tokens.iter().rev().copied().collect();
    let mut longest = BTreeMap::new();
    for (at, length) in common_lengths(&backwards).into_iter().enumerate().skip(1) {
        if let (Some(next), 1..) = (backwards[at - 1], length) {
            let known = longest.entry(next).or_insert(length);
            *known = length.max(*known);
        }
    }
    longest
}

/// For each place, how long the tokens from there on are equal to those from the start on, up to a `None`. This is the Z
/// algorithm (Gusfield 1997), which takes linear time.
fn common_lengths(tokens: &[Option<TokenId>]) -> Vec<usize> {
    let end = tokens.iter().position(Option::is_none).unwrap_or(tokens.len());
    let mut lengths = vec![0; tokens.len()];
    // The part that reaches furthest among those that are equal to a start.
    let (mut from, mut until) = (0, 0);
    for at in 1..tokens.len() {
        let mut length = if at < until { lengths[at - from].min(until - at) } else { 0 };
        while length < end && at + length < tokens.len() && tokens[at + length] == tokens[length] {
            length += 1;
        }
        lengths[at] = length;
        if at + length > until {
            (from, until) = (at, at + length);
        }
    }
    lengths
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn penalties(tokens: &[TokenId], penalty: RepeatPenalty) -> Vec<(TokenId, f32)> {
        let mut repeats = Repeats::new(penalty);
        // Token 9 is a line break.
        tokens.iter().for_each(|&token| repeats.push(token, if token == 9 { b"a\n" } else { b"a" }));
        repeats.penalties().collect()
    }

    fn penalty() -> RepeatPenalty {
        let breakers = RepeatPenalty::BREAKERS.map(str::to_owned).to_vec();
        RepeatPenalty { multiplier: 0.5, base: 2.0, allowed_length: 2, window: None, breakers }
    }

    #[test]
    fn the_longest_repetition_counts_and_breakers_end_it() {
        assert_eq!(penalties(&[1, 2, 3, 4, 1, 2, 3], penalty()), [(4, 1.0)], "three tokens are repeated");
        assert_eq!(penalties(&[1, 2, 5, 1, 2, 6, 1, 2], penalty()), [(5, 0.5), (6, 0.5)]);
        assert_eq!(penalties(&[1, 2, 1], penalty()), [], "one token is allowed");
        assert_eq!(penalties(&[1, 2, 9, 3, 4, 1, 2, 9, 3], penalty()), [], "a line break ends it");
        assert_eq!(penalties(&[1, 2, 9, 1, 2], penalty()), [], "a line break is never penalised");
        assert_eq!(penalties(&[7, 7, 7, 7], penalty()), [(7, 1.0)]);
        let window = RepeatPenalty { window: Some(3), ..penalty() };
        assert_eq!(penalties(&[1, 2, 3, 4, 1, 2, 3], window), []);
    }

    #[test]
    fn long_repetitions_stay_finite() {
        let long = vec![3; 5000];
        assert_eq!(penalties(&long, penalty()), [(3, f32::MAX)]);
    }

    proptest! {
        #[test]
        fn lengths_are_those_of_a_direct_search(tokens in prop::collection::vec(prop::option::weighted(0.9, 0u32..3), 0..40)) {
            let found = common_lengths(&tokens);
            for at in 1..tokens.len() {
                let pairs = tokens[at..].iter().zip(&tokens);
                let expected = pairs.take_while(|(a, b)| a == b && a.is_some()).count();
                prop_assert_eq!(found[at], expected, "at {}", at);
            }
        }
    }
}
