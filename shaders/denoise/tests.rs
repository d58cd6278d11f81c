//! Every kernel against the float64 reference, and rows against themselves next to others.

use super::*;
use crate::cpu::{ActivationBits, Kernel, Solo};
use crate::kv::KvCache;
use crate::op::{Batch, CpuArgs, DenoiseParams, Op};
use crate::quant::{Format, random};
use crate::recurrent::StateCache;
use crate::sample_token::RowSamplingParams;
use crate::testing::{assert_close, supported_kernels, values};
use crate::tuning::Tuning;
use proptest::prelude::*;

const HIDDEN: usize = 64;

fn op(vocabulary: usize) -> Denoise {
    Denoise::new(random::weight("table", Format::Q8_0, vocabulary, HIDDEN, 3), 2.5).unwrap()
}

fn run(op: &Denoise, kernel: Kernel, logits: &[f32], params: &[DenoiseParams]) -> Vec<(DenoisedRow, Vec<f32>)> {
    let rows = params.len();
    let (mut means, mut statistics) = (vec![f32::NAN; rows * HIDDEN], vec![f32::NAN; rows * STATISTICS]);
    op.run_cpu(&mut CpuArgs {
        kernel,
        activation_bits: ActivationBits::default(),
        tuning: Tuning::default(),
        team: &Solo,
        batch: Batch { denoised: params, ..Batch::default() },
        kv: &KvCache::empty(),
        states: &StateCache::empty(),
        rows,
        scratch: &mut [],
        inputs: &[logits],
        outputs: &mut [&mut means, &mut statistics],
    });
    let rows = statistics.as_chunks().0.iter().map(|values| DenoisedRow::of_values(*values));
    rows.zip(means.chunks_exact(HIDDEN).map(<[f32]>::to_vec)).collect()
}

fn params() -> impl Strategy<Value = DenoiseParams> {
    let sampling = (prop::sample::select(&[0.0f32, 0.4, 0.8, 1.5]), 0u32..4, 0.2f32..1.2, any::<u64>());
    (0.2f32..2.0, sampling).prop_map(|(temperature, (of_sample, top_k, top_p, random))| DenoiseParams {
        temperature,
        sampling: RowSamplingParams { temperature: of_sample, top_k, top_p: top_p.min(1.0), min_p: 0.0, random },
    })
}

proptest! {
    #[test]
    fn every_kernel_agrees_with_the_reference_and_rows_do_not_depend_on_each_other(
        vocabulary in prop::sample::select(&[1usize, 7, 300, 2100]), sharpness in 0.1f32..40.0,
        params in prop::collection::vec(params(), 1..20), seed: u64,
    ) {
        let op = op(vocabulary);
        let table = op.table.to_f32();
        let logits: Vec<f32> = values(seed, vocabulary * params.len()).iter().map(|x| x * sharpness).collect();
        for kernel in supported_kernels() {
            let found = run(&op, kernel, &logits, &params);
            for (index, ((row, mean), params)) in found.iter().zip(&params).enumerate() {
                let logits = &logits[index * vocabulary..][..vocabulary];
                let (best, sampled, entropy, expected) = reference::denoise(logits, params, &table, 2.5);
                prop_assert_eq!((row.best, row.sampled), (best, sampled));
                assert_close(&[row.entropy], &[entropy], 2e-6);
                assert_close(mean, &expected, 2e-5 * 2.5 * f64::from(random::LIMIT));
                let alone = run(&op, kernel, logits, &[*params]);
                prop_assert_eq!((alone[0].0, &alone[0].1), (*row, mean));
            }
        }
    }
}

#[test]
fn a_row_that_is_no_distribution_is_reported() {
    let params = DenoiseParams { temperature: 1.0, sampling: RowSamplingParams::GREEDY };
    for (bad, expected) in [
        ([0.0, f32::NAN, 1.0], SampledToken::NotFinite(1)),
        ([f32::INFINITY, 0.0, 1.0], SampledToken::NotFinite(0)),
        ([f32::NEG_INFINITY; 3], SampledToken::Nothing),
    ] {
        let found = run(&op(3), Kernel::Scalar, &bad, &[params]);
        assert_eq!((found[0].0.sampled, &found[0].1), (expected, &vec![0.0; HIDDEN]));
    }
}
