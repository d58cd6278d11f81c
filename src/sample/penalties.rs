//! Changes to logits before sampling: penalties for tokens already seen, and bias.

use std::collections::{HashMap, HashSet};

use super::params::SamplingParams;
use crate::engine::TokenId;

/// The tokens of a sequence, as the penalties need them.
#[derive(Debug, Clone, Default)]
pub struct TokenCounts {
    prompt: HashSet<TokenId>,
    generated: HashMap<TokenId, u32>,
}

impl TokenCounts {
    /// Counts for a sequence that consists of its prompt only.
    #[must_use]
    pub fn new(prompt: &[TokenId]) -> Self {
        TokenCounts { prompt: prompt.iter().copied().collect(), generated: HashMap::new() }
    }

    /// Counts a generated token.
    pub fn record(&mut self, token: TokenId) {
        *self.generated.entry(token).or_default() += 1;
    }
}

/// Applies the repetition penalty, then the frequency and presence penalties, then the bias.
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_penalty_changes_only_its_own_tokens() {
        let mut counts = TokenCounts::new(&[0, 1, 1]);
        for token in [1, 2, 2, 2] {
            counts.record(token);
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
