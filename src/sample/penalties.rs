//! What changes logits before the choice: penalties for tokens that were seen, bias, and tokens that may not come yet.

use std::collections::{HashMap, HashSet};

use super::SamplingParams;
use crate::engine::TokenId;

/// The tokens a sequence contains, as far as penalties ask.
#[derive(Debug, Clone, Default)]
pub struct TokenCounts {
    prompt: HashSet<TokenId>,
    generated: HashMap<TokenId, u32>,
}

impl TokenCounts {
    /// Counts for a sequence that has only its prompt.
    #[must_use]
    pub fn new(prompt: &[TokenId]) -> Self {
        TokenCounts { prompt: prompt.iter().copied().collect(), generated: HashMap::new() }
    }

    /// Counts a generated token.
    pub fn record(&mut self, token: TokenId) {
        *self.generated.entry(token).or_default() += 1;
    }
}

/// Whether [`apply`] would leave every logit as it is.
pub(super) fn is_identity(params: &SamplingParams) -> bool {
    params.repetition_penalty == 1.0
        && params.presence_penalty == 0.0
        && params.frequency_penalty == 0.0
        && params.logit_bias.is_empty()
}

/// Applies the repetition penalty, then frequency and presence penalties, then bias, to the tokens they concern.
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
    fn each_penalty_changes_exactly_the_tokens_it_speaks_of() {
        let mut counts = TokenCounts::new(&[0, 1, 1]);
        for token in [1, 2, 2, 2] {
            counts.record(token);
        }
        let check = |params: SamplingParams, expected: [f32; 4]| {
            let mut logits = [2.0, -2.0, 4.0, 1.0];
            apply(&mut logits, &params, &counts);
            assert_eq!(logits, expected);
            assert!(!is_identity(&params));
        };
        check(SamplingParams { repetition_penalty: 2.0, ..Default::default() }, [1.0, -4.0, 2.0, 1.0]);
        check(SamplingParams { presence_penalty: 0.5, ..Default::default() }, [2.0, -2.5, 3.5, 1.0]);
        check(SamplingParams { frequency_penalty: 0.5, ..Default::default() }, [2.0, -2.5, 2.5, 1.0]);
        let logit_bias = vec![(3, 1.5), (99, 5.0)];
        check(SamplingParams { logit_bias, ..Default::default() }, [2.0, -2.0, 4.0, 2.5]);
        assert!(is_identity(&SamplingParams::default()));
    }
}
