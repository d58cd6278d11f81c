//! Chooses how many tokens of each draft to verify in a step.

/// The least gain in tokens per time. A step with drafts does not overlap with sampling, which costs a part of this.
const LEAST_GAIN: f64 = 1.05;

/// A draft that may take part in a step.
#[derive(Debug, Clone, Copy)]
pub(in crate::pipeline::policy) struct Candidate {
    /// The probability that a token is accepted when those before it are.
    pub probability: f64,
    /// Number of tokens that may be verified.
    pub most: usize,
    /// Seconds that the row of one token takes.
    pub row_seconds: f64,
}

/// The number of tokens of each draft to verify, for the most accepted tokens per time. The step takes `seconds` without
/// drafts and gives `tokens` tokens. At most `rows` rows are added, and none if the gain is small.
///
/// A row is worth its time if it gives more tokens per time than the step does without it. The rows are tried in the order of
/// this ratio, so the first that is not worth its time ends the choice.
pub(in crate::pipeline::policy) fn select(
    seconds: f64,
    tokens: usize,
    rows: usize,
    candidates: &[Candidate],
) -> Vec<usize> {
    let mut chosen = vec![0; candidates.len()];
    let (mut seconds, mut tokens) = (seconds, tokens as f64);
    let least = LEAST_GAIN * tokens / seconds;
    for _ in 0..rows {
        let gain = |index: usize, verified: usize| candidates[index].probability.powi(verified as i32 + 1);
        let ratio = |(index, verified): (usize, usize)| gain(index, verified) / candidates[index].row_seconds.max(1e-9);
        let open = chosen.iter().copied().enumerate().filter(|&(index, verified)| verified < candidates[index].most);
        let Some((index, verified)) = open.max_by(|&a, &b| ratio(a).total_cmp(&ratio(b))) else { break };
        if ratio((index, verified)) * seconds <= tokens {
            break;
        }
        tokens += gain(index, verified);
        seconds += candidates[index].row_seconds;
        chosen[index] += 1;
    }
    if tokens < least * seconds {
        chosen.fill(0);
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(probability: f64, row_seconds: f64) -> Candidate {
        Candidate { probability, most: 15, row_seconds }
    }

    /// Tokens per second of a step with `drafted` tokens of a draft.
    fn speed(seconds: f64, candidate: Candidate, drafted: usize) -> f64 {
        let tokens: f64 = (0..=drafted).map(|verified| candidate.probability.powi(verified as i32)).sum();
        tokens / (seconds + candidate.row_seconds * drafted as f64)
    }

    #[test]
    fn one_sequence_gets_the_fastest_length() {
        for probability in [0.05, 0.3, 0.5, 0.8, 0.95] {
            for row in [0.01, 0.1, 0.3, 1.0] {
                let candidate = candidate(probability, row);
                let chosen = select(1.0, 1, 15, &[candidate])[0];
                let best = (0..=15).map(|drafted| speed(1.0, candidate, drafted)).fold(0.0, f64::max);
                let expected = if best < LEAST_GAIN { 1.0 } else { best };
                assert!((speed(1.0, candidate, chosen) - expected).abs() < 1e-9, "{probability} {row}: {chosen}");
            }
        }
    }

    #[test]
    fn a_full_batch_has_no_drafts() {
        let drafts = |sequences: usize| {
            let seconds = 1.0 + sequences as f64 * 0.5;
            select(seconds, sequences, 200, &vec![candidate(0.9, 0.5); sequences]).iter().sum::<usize>()
        };
        assert_eq!(drafts(32), 0);
        assert!(drafts(1) > 0);
    }

    #[test]
    fn likely_drafts_come_first_and_limits_hold() {
        let candidates = [candidate(0.5, 0.1), Candidate { most: 2, ..candidate(0.95, 0.1) }, candidate(0.9, 0.1)];
        assert_eq!(select(1.0, 3, 5, &candidates), [0, 2, 3]);
    }
}
