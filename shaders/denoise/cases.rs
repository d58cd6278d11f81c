//! The expected results of [`Denoise`]: vocabularies of one and of several pieces, columns that are not whole runs, flat and
//! steep rows, tables of several formats.

use super::{Denoise, reference};
use crate::cases::{Case, CaseStep, Expected};
use crate::op::DenoiseParams;
use crate::quant::{Format, random};
use crate::sample_token::RowSamplingParams;

/// Each case has steps of one row, and of more rows than share the decoded table.
#[must_use]
pub fn cases() -> Vec<Case> {
    [
        (Format::Q5_0, 1, 64, 1.0),
        (Format::Q4_0, 300, 96, 0.1),
        (Format::F32, 4096, 33, 3.0),
        (Format::F16, 4099, 46, 30.0),
        (Format::Q6_K, 9000, 256, 8.0),
    ]
    .map(|(format, vocabulary, hidden, sharpness)| case(format, (vocabulary, hidden), sharpness))
    .into()
}

fn case(format: Format, (vocabulary, hidden): (usize, usize), sharpness: f32) -> Case {
    const SCALE: f32 = 2.5;
    let table = random::weight("table", format, vocabulary, hidden, 3);
    let values = table.to_f32();
    let step = |rows: usize| {
        let logits: Vec<f32> =
            random::activations(rows * vocabulary, rows as u64).iter().map(|x| x * sharpness).collect();
        let params: Vec<DenoiseParams> = (0..rows).map(params_of).collect();
        let (mut means, mut statistics) = (Vec::new(), Vec::new());
        for (params, logits) in params.iter().zip(logits.chunks_exact(vocabulary)) {
            let (best, sampled, entropy, mean) = reference::denoise(logits, params, &values, SCALE);
            means.extend(Expected::within(4e-5 * f64::from(SCALE * random::LIMIT), mean));
            statistics.extend(Expected::exactly(&[best as f32, sampled.to_value()]));
            statistics.extend(Expected::within(2e-5, [entropy]));
        }
        let mut step = CaseStep::of_rows(rows, vec![logits], vec![means, statistics]).of_selected();
        step.batch.denoised = params;
        step
    };
    let name = format!("{format}, {vocabulary} tokens, {hidden} columns, logits up to {sharpness}");
    Case::new(name, Denoise { table, scale: SCALE }, vec![step(1), step(7)])
}

/// Sampling with and without truncation, and the best token.
fn params_of(row: usize) -> DenoiseParams {
    let random = (row as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let sampling = [
        RowSamplingParams { temperature: 1.0, ..RowSamplingParams::GREEDY },
        RowSamplingParams::GREEDY,
        RowSamplingParams { temperature: 0.7, top_k: 20, top_p: 0.9, ..RowSamplingParams::GREEDY },
    ][row % 3];
    DenoiseParams { temperature: [0.4, 1.0, 0.75][row % 3], sampling: RowSamplingParams { random, ..sampling } }
}
