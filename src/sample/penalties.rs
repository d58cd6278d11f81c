//! Changes to logits before sampling: penalties for tokens already seen, bias, and forbidden tokens.

use std::collections::{HashMap, HashSet};

use super::params::SamplingParams;
use super::repeats::{RepeatPenalty, Repeats};
use crate::engine::TokenId;

/// The tokens of a sequence, as the penalties need them.
#[derive(Debug, Clone, Default)]
pub struct TokenCounts {
    prompt: HashSet<TokenId>,
    generated: HashMap<TokenId, u32>,
    /// The generated tokens in order.
    order: Vec<TokenId>,
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
        self.order.push(token);
        if let Some(repeats) = &mut self.repeats {
            repeats.push(token, text);
        }
    }
}

/// Applies the repetition penalty, then the frequency and presence penalties, then the bias, then the penalty on repetitions of
/// several tokens. At last it forbids the tokens that are not allowed, and those that would complete a banned sequence.
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
    if let Some(allowed) = &params.allowed_tokens {
        keep_only(logits, allowed);
    }
    for sequence in &params.banned_sequences {
        if let Some((&last, before)) = sequence.split_last()
            && counts.order.ends_with(before)
            && let Some(logit) = logits.get_mut(last as usize)
        {
            *logit = f32::NEG_INFINITY;
        }
    }
}

/// Sets the logits of all other tokens to minus infinity.
fn keep_only(logits: &mut [f32], allowed: &[TokenId]) {
    let kept: Vec<Option<f32>> = allowed.iter().map(|&token| logits.get(token as usize).copied()).collect();
    logits.fill(f32::NEG_INFINITY);
    for (&token, logit) in allowed.iter().zip(kept) {
        if let (Some(place), Some(logit)) = (logits.get_mut(token as usize), logit) {
            *place = logit;
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

    #[test]
    fn only_allowed_tokens_are_left_and_no_banned_sequence_is_completed() {
        const NONE: f32 = f32::NEG_INFINITY;
        let mut counts = TokenCounts::new(&[3]);
        let check = |counts: &TokenCounts, params: &SamplingParams, expected: [f32; 4]| {
            let mut logits = [2.0, -2.0, 4.0, 1.0];
            apply(&mut logits, params, counts);
            assert_eq!(logits, expected);
            assert!(!params.keeps_logits());
        };
        let allowed = SamplingParams { allowed_tokens: Some(vec![1, 3, 99]), ..Default::default() };
        check(&counts, &allowed, [NONE, -2.0, NONE, 1.0]);
        let banned_sequences = vec![vec![0], vec![1, 2, 3], vec![3, 1], vec![99]];
        let banned = SamplingParams { banned_sequences, ..Default::default() };
        check(&counts, &banned, [NONE, -2.0, 4.0, 1.0]);
        counts.record(1, b"");
        check(&counts, &banned, [NONE, -2.0, 4.0, 1.0]);
        counts.record(2, b"");
        check(&counts, &banned, [NONE, -2.0, 4.0, NONE]);
        counts.record(3, b"");
        check(&counts, &banned, [NONE, NONE, 4.0, 1.0]);
    }
}
