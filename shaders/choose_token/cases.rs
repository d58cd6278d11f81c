//! What the op must choose: rows that end inside tiles and groups, every truncation alone and with the others, ties, and rows
//! that are no distribution.

use super::{ChooseToken, TokenChoice, reference, words};
use crate::cases::{Case, CaseStep, Expected};
use crate::quant::random;

const PLAIN: TokenChoice = TokenChoice { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0, random: 0 };

/// A number for each row, spread over all 64 bits.
fn random_bits(row: usize) -> u64 {
    (row as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

/// A case of one step, in which each row asks for one of the choices in turn, or for nothing.
fn case(name: &str, vocab_size: usize, rows: usize, choices: &[Option<TokenChoice>], logits: Vec<f32>) -> Case {
    let asked: Vec<Option<TokenChoice>> = (0..rows)
        .map(|row| choices[row % choices.len()].map(|choice| TokenChoice { random: random_bits(row), ..choice }))
        .collect();
    let chosen = |(row, choice): (usize, &Option<TokenChoice>)| {
        let logits = &logits[row * vocab_size..][..vocab_size];
        choice.map_or(super::Chosen::Nothing, |choice| reference::choose(logits, &choice)).to_value()
    };
    let expected: Vec<f32> = asked.iter().enumerate().map(chosen).collect();
    let asked = asked.iter().flat_map(|choice| words(choice.as_ref())).collect();
    let step = CaseStep::of_rows(rows, vec![logits, asked], vec![Expected::exactly(&expected)]).of_selected();
    Case::new(name, ChooseToken, vec![step])
}

/// Logits as far apart as a model's are.
fn logits(count: usize, seed: u64) -> Vec<f32> {
    random::activations(count, seed).iter().map(|value| value * 6.0).collect()
}

/// Every truncation, alone and with others.
fn truncations() -> Vec<Option<TokenChoice>> {
    let mut choices = vec![None, Some(TokenChoice::GREEDY)];
    for top_k in [0, 1, 2, 40, 5000] {
        for top_p in [1.0, 0.95, 0.3, 1e-6] {
            for min_p in [0.0, 0.05, 1.0] {
                for temperature in [1.0, 0.2, 1.7] {
                    choices.push(Some(TokenChoice { temperature, top_k, top_p, min_p, random: 0 }));
                }
            }
        }
    }
    choices
}

/// What it must compute.
#[must_use]
pub fn cases() -> Vec<Case> {
    let choices = truncations();
    let rows = choices.len();
    // Of a row of several tiles not every combination: sorting so many takes long.
    let some: Vec<_> = choices.iter().copied().step_by(5).collect();
    let of_size = |(vocab, choices): (usize, &Vec<_>)| {
        let rows = choices.len();
        case(&format!("of {vocab} tokens"), vocab, rows, choices, logits(vocab * rows, vocab as u64))
    };
    let small = [1, 2, 77, 256].map(|vocab| (vocab, &choices));
    let large = [5000, 33_000].map(|vocab| (vocab, &some));
    let mut cases: Vec<Case> = small.into_iter().chain(large).map(of_size).collect();
    // Whole numbers: hundreds of equals at every cutoff.
    let ties = logits(3000 * rows, 5).iter().map(|logit| (logit / 3.0).round()).collect();
    cases.push(case("with ties", 3000, rows, &choices, ties));
    cases.push(case("all equal", 700, rows, &choices, vec![-3.5; 700 * rows]));
    // So hot that far more tokens are near the best than have room at hand.
    let hot: Vec<_> = [(0, 0.9), (2000, 1.0), (4000, 0.5), (0, 0.9999)]
        .map(|(top_k, top_p)| Some(TokenChoice { temperature: 8.0, top_k, top_p, ..PLAIN }))
        .into();
    cases.push(case("nearly flat", 9000, 8, &hot, logits(9000 * 8, 6)));
    let coldest = [f32::MIN_POSITIVE, 1e-42, 3e38].map(|temperature| Some(TokenChoice { temperature, ..PLAIN }));
    cases.push(case("extreme temperatures", 300, 6, &coldest, logits(300 * 6, 7)));
    cases.push(unusable());
    cases
}

/// Rows that are no distribution, rows that look like it and are one, and beside them rows that nothing is wrong with.
fn unusable() -> Case {
    const VOCABULARY: usize = 4500;
    const ROWS: usize = 10;
    let mut all = logits(VOCABULARY * ROWS, 8);
    let mut row = |row: usize, places: &[(usize, f32)]| {
        places.iter().for_each(|(token, value)| all[row * VOCABULARY + token] = *value);
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
    let choices = [Some(PLAIN), Some(TokenChoice::GREEDY), Some(TokenChoice { top_k: 3, top_p: 0.9, ..PLAIN })];
    case("with unusable rows", VOCABULARY, ROWS, &choices, all)
}
