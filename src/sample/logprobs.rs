//! Log-probabilities of tokens under the model's own distribution, before sampling parameters apply.

use super::error::InvalidLogits;
use super::exp::sum_exp;
use super::token_sampler::{best_first, largest};
use crate::engine::TokenId;

/// A token and its log-probability.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TokenLogprob {
    /// The token.
    pub token: TokenId,
    /// Natural logarithm of its probability under the model (before sampling parameters).
    pub logprob: f32,
}

/// The log-probability of a token at its position, with the most likely alternatives.
#[derive(Debug, Clone, PartialEq)]
pub struct PositionLogprobs {
    /// The token at this position.
    pub sampled: TokenLogprob,
    /// Rank of the sampled token among all tokens, from 1; of equally likely tokens the lower id ranks first.
    pub rank: usize,
    /// The requested alternatives: the most likely tokens, best first, or those of a list in its order.
    pub top: Vec<TokenLogprob>,
}

/// The tokens whose log-probabilities are reported next to that of the token at a position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Alternatives<'a> {
    /// This many of the most likely tokens, or all if there are fewer.
    MostLikely(usize),
    /// These tokens.
    Listed(&'a [TokenId]),
}

/// The log-probability and rank of `sampled` in one row of logits, and those of its alternatives.
///
/// `logprob[t] = logits[t] - max - ln(sum_i exp(logits[i] - max))`. The sum is computed in f64 in a fixed order, so that the
/// same logits always give the same bits.
///
/// # Errors
/// [`InvalidLogits`] when the row is not a distribution, or has no entry for `sampled` or a listed token.
pub fn position_logprobs(
    logits: &[f32],
    sampled: TokenId,
    alternatives: Alternatives<'_>,
) -> Result<PositionLogprobs, InvalidLogits> {
    let sampled_logit = logit_of(logits, sampled)?;
    let (_, max) = largest(logits)?;
    let log_sum = f64::from(max) + sum_exp(logits, |logit| logit - max).ln();
    let logprob = |token: TokenId, logit: f32| TokenLogprob { token, logprob: (f64::from(logit) - log_sum) as f32 };
    let above = logits.iter().filter(|&&logit| logit > sampled_logit).count();
    let tied = logits[..sampled as usize].iter().filter(|&&logit| logit == sampled_logit).count();
    Ok(PositionLogprobs {
        sampled: logprob(sampled, sampled_logit),
        rank: above + tied + 1,
        top: match alternatives {
            Alternatives::MostLikely(count) => {
                best_first(logits, count).into_iter().map(|(token, logit)| logprob(token, logit)).collect()
            }
            Alternatives::Listed(tokens) => {
                let listed = |&token: &TokenId| Ok(logprob(token, logit_of(logits, token)?));
                tokens.iter().map(listed).collect::<Result<_, InvalidLogits>>()?
            }
        },
    })
}

fn logit_of(logits: &[f32], token: TokenId) -> Result<f32, InvalidLogits> {
    logits.get(token as usize).copied().ok_or(InvalidLogits::MissingToken(token))
}

#[cfg(test)]
mod tests {
    use super::Alternatives::{Listed, MostLikely};
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn equal_logits_rank_by_id_and_have_equal_probabilities() {
        let found = position_logprobs(&[1.0, 1.0, 1.0, 1.0], 2, MostLikely(2)).unwrap();
        assert_eq!(found.rank, 3);
        assert_eq!(found.top.iter().map(|t| t.token).collect::<Vec<_>>(), [0, 1]);
        assert!((found.sampled.logprob - 0.25f32.ln()).abs() < 1e-6);
    }

    #[test]
    fn rows_that_are_not_distributions_are_errors() {
        let of = |logits: &[f32], sampled| position_logprobs(logits, sampled, MostLikely(0));
        assert_eq!(of(&[0.0, f32::NAN], 0), Err(InvalidLogits::NotFinite(1)));
        assert_eq!(of(&[0.0, f32::INFINITY], 0), Err(InvalidLogits::NotFinite(1)));
        assert_eq!(of(&[f32::NEG_INFINITY; 3], 0), Err(InvalidLogits::Empty));
        assert_eq!(of(&[0.0], 5), Err(InvalidLogits::MissingToken(5)));
        assert_eq!(position_logprobs(&[0.0], 0, Listed(&[0, 7])), Err(InvalidLogits::MissingToken(7)));
    }

    proptest! {
        #[test]
        fn logprobs_and_ranks_match_the_definition(
            logits in prop::collection::vec(-30f32..30.0, 1..200), pick in 0usize..200, top_n in 0usize..30
        ) {
            let sampled = pick % logits.len();
            let found = position_logprobs(&logits, sampled as TokenId, MostLikely(top_n)).unwrap();
            let sum: f64 = logits.iter().map(|&l| f64::from(l).exp()).sum();
            let mut sorted: Vec<usize> = (0..logits.len()).collect();
            sorted.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]).then(a.cmp(&b)));
            prop_assert!((f64::from(found.sampled.logprob) - (f64::from(logits[sampled]) - sum.ln())).abs() < 1e-4);
            prop_assert_eq!(found.rank, sorted.iter().position(|&t| t == sampled).unwrap() + 1);
            let top: Vec<usize> = found.top.iter().map(|t| t.token as usize).collect();
            prop_assert_eq!(&top[..], &sorted[..top_n.min(logits.len())]);
        }

        #[test]
        fn listed_tokens_have_the_log_softmax_in_the_order_of_the_list(
            logits in prop::collection::vec(-30f32..30.0, 1..200), picks in prop::collection::vec(0usize..200, 0..20)
        ) {
            let listed: Vec<TokenId> = picks.iter().map(|pick| (pick % logits.len()) as TokenId).collect();
            let found = position_logprobs(&logits, 0, Listed(&listed)).unwrap();
            let sum: f64 = logits.iter().map(|&logit| f64::from(logit).exp()).sum();
            prop_assert_eq!(found.top.len(), listed.len());
            for (found, &token) in found.top.iter().zip(&listed) {
                let expected = f64::from(logits[token as usize]) - sum.ln();
                prop_assert_eq!(found.token, token);
                prop_assert!((f64::from(found.logprob) - expected).abs() < 1e-4);
            }
        }
    }
}
