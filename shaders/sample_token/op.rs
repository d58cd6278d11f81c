//! The op that samples tokens: its shapes, its cost, and how it runs.

use super::terms::{PARAMS_WORDS, Terms};
use super::{LARGEST_VOCABULARY, SampleToken, SampledToken, gpu, reference};
use crate::cost::{Cost, CostArgs};
use crate::gpu::{DeviceLimits, Dispatch, GpuArgs};
use crate::op::{CpuArgs, Op, ShapeError};

impl Op for SampleToken {
    fn name(&self) -> &'static str {
        "sample_token"
    }

    fn output_widths(&self, inputs: &[usize]) -> Result<Vec<usize>, ShapeError> {
        ShapeError::check(self.name(), "number of inputs", inputs.len(), 2)?;
        ShapeError::check(self.name(), "words of the sampling parameters", inputs[1], PARAMS_WORDS)?;
        match inputs[0] {
            1..=LARGEST_VOCABULARY => Ok(vec![1]),
            found => Err(ShapeError::Mismatch {
                op: self.name(),
                what: "vocabulary".to_owned(),
                found,
                expected: format!("from 1 to {LARGEST_VOCABULARY}"),
            }),
        }
    }

    fn cost(&self, args: &CostArgs<'_>) -> Cost {
        // Each logit is read once to find the largest. Draws read it again, mostly from the cache.
        Cost {
            activation_bytes: args.activation_bytes(),
            float_operations: args.activation_bytes() / size_of::<f32>() as u64,
            ..Cost::default()
        }
    }

    fn run_cpu(&self, args: &mut CpuArgs<'_>) {
        if args.rows == 0 {
            return;
        }
        let [logits, params] = args.inputs else { panic!("sample_token: needs logits and sampling parameters") };
        let rows = logits.chunks_exact(logits.len() / args.rows).zip(params.as_chunks().0);
        for ((logits, words), output) in rows.zip(args.outputs[0].iter_mut()) {
            let sampled =
                Terms::of_words(words).map_or(SampledToken::Nothing, |terms| reference::sample_terms(logits, &terms));
            *output = sampled.to_value();
        }
    }

    fn gpu_scratch_bytes(&self, device: &DeviceLimits, rows: usize, _context_tokens: usize) -> u64 {
        gpu::scratch_bytes(device, rows)
    }

    fn dispatches(&self, args: &GpuArgs<'_>) -> Vec<Dispatch> {
        let [logits, params] = *args.inputs else { return Vec::new() };
        let (params, tokens) = (params.region, args.outputs[0].region);
        gpu::passes(args, &gpu::Rows { logits, params, tokens, scratch: args.scratch })
    }
}
