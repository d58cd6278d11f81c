//! Tokens sampled on the device, compared with those of the host, for random rows and parameters.

use cuelight_shaders::cases::CaseBatch;
use cuelight_shaders::gpu::RowCount;
use cuelight_shaders::quant::random;
use cuelight_shaders::sample_token::{SampleToken, SampledToken, words};

use super::one_op::{OneOp, bits};
use super::{assert_clean, shared_device};
use crate::sample::{Draw, SamplingParams, TokenCounts, TokenSampler, token_of};

/// Random numbers for one row.
struct Dice(Draw);

impl Dice {
    /// The next number between 0 and 1.
    fn roll(&mut self) -> f32 {
        self.0.position += 1;
        (self.0.random() >> 40) as f32 / (1 << 24) as f32
    }

    /// `value` with probability 1/2, otherwise `neutral`.
    fn perhaps<T>(&mut self, value: T, neutral: T) -> T {
        if self.roll() < 0.5 { value } else { neutral }
    }

    fn params(&mut self) -> SamplingParams {
        let (k, p, min_p) = (self.roll(), self.roll(), self.roll());
        let temperature = 0.05 + 2.0 * self.roll();
        SamplingParams {
            temperature: self.perhaps(temperature, 1.0),
            top_k: self.perhaps((k * k * 300.0) as usize, 0),
            top_p: self.perhaps(p.max(1e-6), 1.0),
            min_p: self.perhaps(min_p * min_p, 0.0),
            ..SamplingParams::default()
        }
    }
}

#[test]
fn the_device_samples_the_same_tokens_as_the_host() {
    const ROWS: usize = 64;
    let Some(device) = shared_device() else { return };
    let op = OneOp::new(&device, &SampleToken, None).unwrap();
    let mut sampler = TokenSampler::default();
    for (round, vocab_size) in [300, 4096, 4097, 20_000].into_iter().enumerate() {
        let spread = [2.0, 5.0, 9.0, 4.0][round];
        let logits: Vec<f32> =
            random::activations(ROWS * vocab_size, round as u64).iter().map(|value| value * spread).collect();
        let requests: Vec<(SamplingParams, Draw)> = (0..ROWS)
            .map(|row| {
                let draw = Draw { seed: (round * ROWS + row) as u64, position: 0 };
                (Dice(draw).params(), draw)
            })
            .collect();
        let row_params =
            requests.iter().flat_map(|(params, draw)| words(params.of_row_alone(*draw).as_ref())).collect();
        let inputs = [logits.clone(), row_params];
        let found = op.run(&CaseBatch::of_rows(ROWS), RowCount::Selected(ROWS), &inputs).unwrap().remove(0);
        for (row, ((params, draw), found)) in requests.iter().zip(&found).enumerate() {
            let logits = &logits[row * vocab_size..][..vocab_size];
            let expected = sampler.choose(logits, params, &TokenCounts::default(), &[], None, *draw);
            assert_eq!(
                token_of(SampledToken::of_value(*found)),
                expected,
                "{vocab_size} tokens, row {row}: {params:?}"
            );
        }
    }
    assert_clean(&device);
}

#[test]
fn a_row_has_the_same_token_in_a_batch_of_any_size() {
    const ROWS: usize = 16;
    const VOCABULARY: usize = 5000;
    let Some(device) = shared_device() else { return };
    let op = OneOp::new(&device, &SampleToken, None).unwrap();
    let logits = random::activations(ROWS * VOCABULARY, 4);
    let draw = |row: usize| Draw { seed: 9, position: row as u64 };
    let params = SamplingParams { top_p: 0.9, ..SamplingParams::default() };
    let run = |first: usize, count: usize| {
        let logits = logits[first * VOCABULARY..(first + count) * VOCABULARY].to_vec();
        let row_params =
            (first..first + count).flat_map(|row| words(params.of_row_alone(draw(row)).as_ref())).collect();
        bits(&op.run(&CaseBatch::of_rows(count), RowCount::Selected(count), &[logits, row_params]).unwrap()[0])
    };
    let together = run(0, ROWS);
    for count in [1, 3, 8] {
        for first in (0..ROWS - count).step_by(count) {
            assert_eq!(run(first, count), together[first..first + count]);
        }
    }
    assert_clean(&device);
}
