//! Test cases of token sampling: rows that end inside a tile or a workgroup, each truncation alone and combined, ties,
//! and rows that are not a distribution.

use super::{RowSamplingParams, SampleToken, reference, words};
use crate::cases::{Case, CaseStep, Expected};
use crate::quant::random;

const PLAIN: RowSamplingParams = RowSamplingParams { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0, random: 0 };

/// A different random number for each row.
fn random_bits(row: usize) -> u64 {
    (row as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

/// A case of one step. The rows use the entries of `params` in a cycle; `None` requests no token.
fn case(name: &str, vocab_size: usize, rows: usize, params: &[Option<RowSamplingParams>], logits: Vec<f32>) -> Case {
    let of_rows: Vec<Option<RowSamplingParams>> = (0..rows)
        .map(|row| params[row % params.len()].map(|params| RowSamplingParams { random: random_bits(row), ..params }))
        .collect();
    let sampled = |(row, params): (usize, &Option<RowSamplingParams>)| {
        let logits = &logits[row * vocab_size..][..vocab_size];
        params.map_or(super::SampledToken::Nothing, |params| reference::sample(logits, &params)).to_value()
    };
    let expected: Vec<f32> = of_rows.iter().enumerate().map(sampled).collect();
    let words = of_rows.iter().flat_map(|params| words(params.as_ref())).collect();
    let step = CaseStep::of_rows(rows, vec![logits, words], vec![Expected::exactly(&expected)]).of_selected();
    Case::new(name, SampleToken, vec![step])
}

/// Logits in a range like that of a model.
fn logits(count: usize, seed: u64) -> Vec<f32> {
    random::activations(count, seed).iter().map(|value| value * 6.0).collect()
}

/// Every truncation, alone and combined with the others.
fn truncations() -> Vec<Option<RowSamplingParams>> {
    let mut params = vec![None, Some(RowSamplingParams::GREEDY)];
    for top_k in [0, 1, 2, 40, 5000] {
        for top_p in [1.0, 0.95, 0.3, 1e-6] {
            for min_p in [0.0, 0.05, 1.0] {
                for temperature in [1.0, 0.2, 1.7] {
                    params.push(Some(RowSamplingParams { temperature, top_k, top_p, min_p, random: 0 }));
                }
            }
        }
    }
    params
}

/// The test cases of [`SampleToken`].
#[must_use]
pub fn cases() -> Vec<Case> {
    let all = truncations();
    let rows = all.len();
    // A sample of the combinations for rows of several tiles, because the reference sorts all tokens.
    let some: Vec<_> = all.iter().copied().step_by(5).collect();
    let of_size = |(vocab, params): (usize, &Vec<_>)| {
        let rows = params.len();
        case(&format!("of {vocab} tokens"), vocab, rows, params, logits(vocab * rows, vocab as u64))
    };
    let small = [1, 2, 77, 256].map(|vocab| (vocab, &all));
    let large = [5000, 33_000].map(|vocab| (vocab, &some));
    let mut cases: Vec<Case> = small.into_iter().chain(large).map(of_size).collect();
    // Whole numbers, so that hundreds of logits are equal at every cutoff.
    let ties = logits(3000 * rows, 5).iter().map(|logit| (logit / 3.0).round()).collect();
    cases.push(case("with ties", 3000, rows, &all, ties));
    cases.push(case("all equal", 700, rows, &all, vec![-3.5; 700 * rows]));
    // High temperatures, so that more tokens are near the best than fit the shared memory.
    let hot: Vec<_> = [(0, 0.9), (2000, 1.0), (4000, 0.5), (0, 0.9999)]
        .map(|(top_k, top_p)| Some(RowSamplingParams { temperature: 8.0, top_k, top_p, ..PLAIN }))
        .into();
    cases.push(case("nearly flat", 9000, 8, &hot, logits(9000 * 8, 6)));
    let coldest = [f32::MIN_POSITIVE, 1e-42, 3e38].map(|temperature| Some(RowSamplingParams { temperature, ..PLAIN }));
    cases.push(case("extreme temperatures", 300, 6, &coldest, logits(300 * 6, 7)));
    cases.push(unusable());
    cases
}

/// Rows that are not a distribution, valid rows with extreme values, and ordinary rows.
fn unusable() -> Case {
    const VOCABULARY: usize = 4500;
    const ROWS: usize = 10;
    let mut all = logits(VOCABULARY * ROWS, 8);
    let mut row = |row: usize, changes: &[(usize, f32)]| {
        changes.iter().for_each(|(token, value)| all[row * VOCABULARY + token] = *value);
    };
    row(0, &[(4400, f32::NAN)]);
    row(1, &[(17, f32::INFINITY), (16, -f32::NAN)]);
    row(2, &[(0, f32::NEG_INFINITY), (4499, f32::NEG_INFINITY)]);
    row(3, &[(7, 3e38), (8, -3e38)]);
    let everything = |value| (0..VOCABULARY).map(|token| (token, value)).collect::<Vec<_>>();
    row(4, &everything(f32::NEG_INFINITY));
    row(5, &everything(f32::NAN));
    row(6, &[everything(f32::NEG_INFINITY), vec![(4300, -5.0)]].concat());
    row(7, &[everything(-1.0), vec![(9, -0.0), (10, 0.0)]].concat());
    let params =
        [Some(PLAIN), Some(RowSamplingParams::GREEDY), Some(RowSamplingParams { top_k: 3, top_p: 0.9, ..PLAIN })];
    case("with unusable rows", VOCABULARY, ROWS, &params, all)
}
