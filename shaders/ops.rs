//! The registry of ops: the table of cases that the tests of every backend run.
//!
//! `build.rs` makes [`ALL`] of the list of ops in `lib.rs`. A new op costs its pair of files, `NAME.rs` and `NAME.comp`
//! (or a folder of both), and one line in that list: its cases then run on the CPU and on Vulkan, and its shaders are
//! compiled.

use crate::cases::Case;

/// An op of the registry.
#[derive(Debug, Clone, Copy)]
pub struct OpEntry {
    /// The module of the op.
    pub name: &'static str,
    /// The expected results of the op.
    pub cases: fn() -> Vec<Case>,
}

include!(concat!(env!("OUT_DIR"), "/ops.rs"));

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cases::{CaseCache, CaseStep};
    use crate::cpu::{ActivationBits, Kernel, Solo};
    use crate::kv::{BlockCounts, KvCache};
    use crate::op::CpuArgs;
    use crate::recurrent::StateCache;
    use crate::testing::supported_kernels;
    use crate::tuning::Tuning;

    /// Ops whose cases take long; they have a test of their own so that the tests run in parallel.
    const LARGE: [&str; 4] = ["attention", "experts", "fusion", "matmul"];

    fn cache_of(case: &Case) -> KvCache {
        let of = |cache: &CaseCache| {
            let shapes = cache.layers().into_iter().map(|layer| layer.shapes());
            KvCache::with_index_keys(shapes, BlockCounts::equal(cache.blocks), cache.kv_type)
        };
        case.cache.as_ref().map_or_else(KvCache::empty, of)
    }

    fn states_of(case: &Case) -> StateCache {
        let slots = |cache: &CaseCache| StateCache::new(cache.state_lens.iter().copied(), cache.slots);
        case.cache.as_ref().map_or_else(StateCache::empty, slots)
    }

    fn run(case: &Case, step: &CaseStep, kernel: Kernel, (kv, states): (&KvCache, &StateCache)) -> Vec<Vec<f32>> {
        let mut outputs: Vec<Vec<f32>> = step.expected.iter().map(|output| vec![f32::NAN; output.len()]).collect();
        let inputs: Vec<&[f32]> = step.inputs.iter().map(Vec::as_slice).collect();
        let rows = step.rows.most();
        case.op.run_cpu(&mut CpuArgs {
            kernel,
            activation_bits: ActivationBits::default(),
            tuning: Tuning::default(),
            team: &Solo,
            batch: step.batch.as_batch(&step.batch.of_sequences()),
            kv,
            states,
            rows,
            scratch: &mut vec![f32::NAN; case.op.scratch_len(kernel, rows, step.batch.context_tokens())],
            inputs: &inputs,
            outputs: &mut outputs.iter_mut().map(Vec::as_mut_slice).collect::<Vec<_>>(),
        });
        outputs
    }

    fn check(cases: Vec<Case>) {
        assert!(!cases.is_empty());
        for mut case in cases {
            for kernel in supported_kernels() {
                case.op.prepare_cpu(kernel, &Solo);
                let (kv, states) = (cache_of(&case), states_of(&case));
                for (index, step) in case.steps.iter().enumerate() {
                    let widths: Vec<usize> =
                        case.op.output_widths(&step.input_widths()).expect("a case is well formed");
                    assert_eq!(widths.len(), step.expected.len(), "{}", case.name);
                    let found = run(&case, step, kernel, (&kv, &states));
                    case.check(index, &found).unwrap_or_else(|error| panic!("{kernel}: {error}"));
                }
            }
        }
    }

    /// Runs the cases of the registered op with this name on every kernel of this machine.
    fn check_op(name: &str) {
        let op = ALL.iter().find(|op| op.name == name).expect("the registry has the op");
        check((op.cases)());
    }

    #[test]
    fn every_kernel_computes_the_small_ops() {
        ALL.iter().filter(|op| !LARGE.contains(&op.name)).for_each(|op| check((op.cases)()));
    }

    #[test]
    fn every_kernel_computes_attention() {
        check_op("attention");
    }

    #[test]
    fn every_kernel_computes_experts() {
        check_op("experts");
    }

    #[test]
    fn every_kernel_computes_fused_ops() {
        check_op("fusion");
    }

    #[test]
    fn every_kernel_computes_linear() {
        check_op("matmul");
    }

    #[test]
    fn every_op_has_a_case_that_bounds_its_values() {
        for op in ALL {
            let cases = (op.cases)();
            let steps = cases.iter().flat_map(|case| &case.steps);
            let mut expected = steps.flat_map(|step| step.expected.iter().flatten());
            assert!(expected.any(|value| value.tolerance < f64::INFINITY), "{}: no value is checked", op.name);
        }
    }
}
