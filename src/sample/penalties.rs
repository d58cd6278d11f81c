//! Changes to logits before sampling: penalties for tokens already seen, and bias.

use std::collections::{HashMap, HashSet};

use super::params::SamplingParams;
use super::repeats::{RepeatPenalty, Repeats};
use crate::engine::TokenId;

/// The tokens of a sequence, as the penalties need them.
#[derive(Debug, Clone, Default)]
pub struct TokenCounts {
    prompt: HashSet<TokenId>,
    generated: HashMap<TokenId, u32>,
    repeats: Option<Repeats>,
}

impl TokenCounts {
    /// Counts for a sequence that consists of its prompt only.
    #[must_use]
    pub fn new(prompt: &[TokenId]) -> Self {
        TokenCounts { prompt: prompt.iter().copied().collect(), ..TokenCounts::default() }
    }

    /// Searches for repetitions from now on, beginning with a prompt.
    pub fn watch_repeats<'a>(
        &mut self,
        penalty: &RepeatPenalty,
        prompt: &[TokenId],
        text_of: impl Fn(TokenId) -> &'a [u8],
    ) {
        let mut repeats = Repeats::new(penalty.clone());
        prompt.iter().for_each(|&token| repeats.push(token, text_of(token)));
        self.repeats = Some(repeats);
    }

    /// Counts a generated token with its text.
    pub fn record(&mut self, token: TokenId, text: &[u8]) {
        *self.generated.entry(token).or_default() += 1;
        if let Some(repeats) = &mut self.repeats {
            repeats.push(token, text);
        }
    }
}

/// Applies the repetition penalty, then the frequency and presence penalties, then the bias, then the penalty on repetitions of
/// several tokens.
pub(super) fn apply(logits: &mut [f32], params: &SamplingParams, counts: &TokenCounts) {
    if params.repetition_penalty != 1.0 {
        let only_prompt = counts.prompt.iter().filter(|token| !counts.generated.contains_key(token));
        for &token in counts.generated.keys().chain(only_prompt) {
            if let Some(logit) = logits.get_mut(token as usize) {
                *logit =
                    if *logit > 0.0 { *logit / params.repetition_penalty } else { *logit * params.repetition_penalty };
            }
        }
    }
    if params.presence_penalty != 0.0 || params.frequency_penalty != 0.0 {
        for (&token, &count) in &counts.generated {
            if let Some(logit) = logits.get_mut(token as usize) {
                *logit -= params.presence_penalty + params.frequency_penalty * count as f32;
            }
        }
    }
    for &(token, bias) in &params.logit_bias {
        if let Some(logit) = logits.get_mut(token as usize) {
            *logit += bias;
        }
    }
    for (token, penalty) in counts.repeats.iter().flat_map(Repeats::penalties) {
        if let Some(logit) = logits.get_mut(token as usize) {
            *logit -= penalty;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_penalty_changes_only_its_own_tokens() {
        let mut counts = TokenCounts::new(&[0, 1, 1]);
        for token in [1, 2, 2, 2] {
            counts.record(token, b"");
        }
        let check = |params: SamplingParams, expected: [f32; 4]| {
            let mut logits = [2.0, -2.0, 4.0, 1.0];
            apply(&mut logits, &params, &counts);
            assert_eq!(logits, expected);
            assert!(!params.keeps_logits());
        };
        check(SamplingParams { repetition_penalty: 2.0, ..Default::default() }, [1.0, -4.0, 2.0, 1.0]);
        check(SamplingParams { presence_penalty: 0.5, ..Default::default() }, [2.0, -2.5, 3.5, 1.0]);
        check(SamplingParams { frequency_penalty: 0.5, ..Default::default() }, [2.0, -2.5, 2.5, 1.0]);
        let logit_bias = vec![(3, 1.5), (99, 5.0)];
        check(SamplingParams { logit_bias, ..Default::default() }, [2.0, -2.0, 4.0, 2.5]);
        assert!(SamplingParams::default().keeps_logits());
    }
}
