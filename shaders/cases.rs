//! Test material: what every op must compute, as one table that the tests of every backend run.
//!
//! Each op gives its own cases beside its contract and its reference; [`all`] gathers them. A case is an op and some steps;
//! a step has rows and inputs, and what comes out of them in float64, each value with how far a backend may be from it.
//! Inputs are chosen so that the bound is tight: where a backend rounds (activations to 15 bits, keys to 8), they are values
//! that the rounding keeps.

use crate::attention::{KvShape, KvType};
use crate::gpu::RowCount;
use crate::op::{Batch, Op};
use crate::{
    attention, choose_token, elementwise, embed, experts, fusion, glu, heads, matmul, rms_norm, rope, select_rows,
};

/// An op, and what it must compute.
#[derive(Debug)]
pub struct Case {
    /// What is special about it, for messages.
    pub name: String,
    /// The op.
    pub op: Box<dyn Op>,
    /// The KV cache that it runs over, for all steps.
    pub cache: Option<CaseCache>,
    /// What it computes, in this order.
    pub steps: Vec<CaseStep>,
}

/// The KV cache of a case.
#[derive(Debug, Clone)]
pub struct CaseCache {
    /// Its layers.
    pub shapes: Vec<KvShape>,
    /// How it stores.
    pub kv_type: KvType,
    /// How many blocks every layer has.
    pub blocks: usize,
}

/// One call of the op.
#[derive(Debug)]
pub struct CaseStep {
    /// The step's rows.
    pub batch: CaseBatch,
    /// Which of them the inputs have.
    pub rows: RowCount,
    /// The inputs, each [rows, width].
    pub inputs: Vec<Vec<f32>>,
    /// The outputs, each [rows out, width].
    pub expected: Vec<Vec<Expected>>,
}

/// A [`Batch`] that owns its rows.
#[derive(Debug, Clone, Default)]
pub struct CaseBatch {
    /// `[rows]`
    pub tokens: Vec<u32>,
    /// `[rows]`
    pub positions: Vec<u32>,
    /// `[rows]`
    pub sequences: Vec<u32>,
    /// `[sequences]`
    pub block_tables: Vec<Vec<u32>>,
    /// `[selected]`
    pub selected: Vec<u32>,
}

/// A value that must come out.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Expected {
    /// The value, from the reference.
    pub value: f64,
    /// How far from it the computed one may be.
    pub tolerance: f64,
}

/// The cases of every op.
#[must_use]
pub fn all() -> Vec<Case> {
    let of_ops = [
        embed::cases(),
        rms_norm::cases(),
        rope::cases(),
        glu::cases(),
        elementwise::cases(),
        heads::cases(),
        select_rows::cases(),
        choose_token::cases::cases(),
        matmul::cases(),
        attention::cases(),
        experts::cases(),
        fusion::cases(),
    ];
    of_ops.into_iter().flatten().collect()
}

impl Case {
    /// A case without a KV cache.
    #[must_use]
    pub fn new(name: impl Into<String>, op: impl Op + 'static, steps: Vec<CaseStep>) -> Self {
        Case { name: name.into(), op: Box::new(op), cache: None, steps }
    }

    /// Whether the outputs of a step are what it expects, or where they are not.
    ///
    /// # Errors
    /// The first value that is too far off, in words.
    pub fn check(&self, step: usize, found: &[Vec<f32>]) -> Result<(), String> {
        let expected = &self.steps[step].expected;
        let place = |output: usize| format!("{} {}: step {step}, output {output}", self.op.name(), self.name);
        if found.len() != expected.len() {
            return Err(format!("{} has {} outputs instead of {}", place(0), found.len(), expected.len()));
        }
        for (output, (found, expected)) in found.iter().zip(expected).enumerate() {
            if found.len() != expected.len() {
                return Err(format!("{} has {} values instead of {}", place(output), found.len(), expected.len()));
            }
            let mut pairs = found.iter().zip(expected).enumerate();
            if let Some((index, (found, expected))) = pairs.find(|(_, (found, expected))| !expected.admits(**found)) {
                return Err(format!("{}: value {index} is {found}, must be {expected:?}", place(output)));
            }
        }
        Ok(())
    }
}

impl CaseStep {
    /// A step of an op that treats each row by itself: rows at positions 0, 1, … of one sequence.
    #[must_use]
    pub fn of_rows(rows: usize, inputs: Vec<Vec<f32>>, expected: Vec<Vec<Expected>>) -> Self {
        CaseStep { batch: CaseBatch::of_rows(rows), rows: RowCount::All(rows), inputs, expected }
    }

    /// The same behind the op that selects rows: the step has more rows than the inputs.
    #[must_use]
    pub fn of_selected(self) -> Self {
        let rows = self.rows.most();
        let mut batch = CaseBatch::of_rows(2 * rows + 1);
        batch.selected = (0..rows as u32).map(|row| 2 * row + 1).collect();
        CaseStep { batch, rows: RowCount::Selected(rows), ..self }
    }

    /// Values in a row of each input.
    #[must_use]
    pub fn input_widths(&self) -> Vec<usize> {
        self.inputs.iter().map(|input| input.len() / self.rows.most()).collect()
    }
}

impl CaseBatch {
    /// Rows at positions 0, 1, … of one sequence, all selected.
    #[must_use]
    pub fn of_rows(rows: usize) -> Self {
        let numbers: Vec<u32> = (0..rows as u32).collect();
        CaseBatch {
            tokens: vec![0; rows],
            positions: numbers.clone(),
            sequences: vec![0; rows],
            block_tables: vec![Vec::new()],
            selected: numbers,
        }
    }

    /// The block tables, for [`CaseBatch::as_batch`].
    #[must_use]
    pub fn tables(&self) -> Vec<&[u32]> {
        self.block_tables.iter().map(Vec::as_slice).collect()
    }

    /// The rows as an op sees them.
    #[must_use]
    pub fn as_batch<'a>(&'a self, tables: &'a [&'a [u32]]) -> Batch<'a> {
        Batch {
            tokens: &self.tokens,
            positions: &self.positions,
            sequences: &self.sequences,
            block_tables: tables,
            selected: &self.selected,
        }
    }

    /// As long as its longest sequence is.
    #[must_use]
    pub fn context_tokens(&self) -> usize {
        self.positions.iter().max().map_or(0, |position| *position as usize + 1)
    }
}

impl Expected {
    /// Any number: for rows whose reference would take too long.
    pub const ANY: Expected = Expected { value: 0.0, tolerance: f64::INFINITY };

    /// Values, each within `tolerance * max(1, |value|)`.
    #[must_use]
    pub fn within(tolerance: f64, values: impl IntoIterator<Item = f64>) -> Vec<Expected> {
        let each = |value: f64| Expected { value, tolerance: tolerance * value.abs().max(1.0) };
        values.into_iter().map(each).collect()
    }

    /// These values and no others.
    #[must_use]
    pub fn exactly(values: &[f32]) -> Vec<Expected> {
        values.iter().map(|value| Expected { value: f64::from(*value), tolerance: 0.0 }).collect()
    }

    fn admits(self, found: f32) -> bool {
        found.is_finite() && (f64::from(found) - self.value).abs() <= self.tolerance
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attention::KvCache;
    use crate::cpu::{ActivationBits, Kernel, Solo};
    use crate::op::CpuArgs;
    use crate::testing::supported_kernels;

    fn cache_of(case: &Case) -> KvCache {
        case.cache
            .as_ref()
            .map_or_else(KvCache::empty, |cache| KvCache::new(cache.shapes.clone(), cache.blocks, cache.kv_type))
    }

    fn run(case: &Case, step: &CaseStep, kernel: Kernel, kv: &KvCache) -> Vec<Vec<f32>> {
        let mut outputs: Vec<Vec<f32>> = step.expected.iter().map(|output| vec![f32::NAN; output.len()]).collect();
        let inputs: Vec<&[f32]> = step.inputs.iter().map(Vec::as_slice).collect();
        let rows = step.rows.most();
        case.op.run_cpu(&mut CpuArgs {
            kernel,
            activation_bits: ActivationBits::default(),
            team: &Solo,
            batch: step.batch.as_batch(&step.batch.tables()),
            kv,
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
                let kv = cache_of(&case);
                for (index, step) in case.steps.iter().enumerate() {
                    let widths: Vec<usize> =
                        case.op.output_widths(&step.input_widths()).expect("a case is well formed");
                    assert_eq!(widths.len(), step.expected.len(), "{}", case.name);
                    let found = run(&case, step, kernel, &kv);
                    case.check(index, &found).unwrap_or_else(|error| panic!("{kernel}: {error}"));
                }
            }
        }
    }

    #[test]
    fn every_kernel_computes_what_the_small_ops_must() {
        let small: [fn() -> Vec<Case>; 8] = [
            embed::cases,
            rms_norm::cases,
            rope::cases,
            glu::cases,
            elementwise::cases,
            heads::cases,
            select_rows::cases,
            choose_token::cases::cases,
        ];
        small.into_iter().for_each(|cases| check(cases()));
    }

    #[test]
    fn every_kernel_computes_what_linear_must() {
        check(matmul::cases());
    }

    #[test]
    fn every_kernel_computes_what_experts_must() {
        check(experts::cases());
    }

    #[test]
    fn every_kernel_computes_what_fused_ops_must() {
        check(fusion::cases());
    }

    #[test]
    fn every_kernel_computes_what_attention_must() {
        check(attention::cases());
    }

    #[test]
    fn a_case_tells_what_is_wrong() {
        let step = CaseStep::of_rows(1, vec![], vec![Expected::within(1e-3, [1.0, 2.0])]);
        let case = Case::new("two values", elementwise::Add, vec![step]);
        assert_eq!(case.check(0, &[vec![1.0, 2.001]]), Ok(()));
        let place = "add two values: step 0, output 0";
        assert_eq!(case.check(0, &[vec![1.0]]), Err(format!("{place} has 1 values instead of 2")));
        assert_eq!(case.check(0, &[]), Err(format!("{place} has 0 outputs instead of 1")));
        let wrong = format!("{place}: value 1 is NaN, must be Expected {{ value: 2.0, tolerance: 0.002 }}");
        assert_eq!(case.check(0, &[vec![1.0, f32::NAN]]), Err(wrong));
    }
}
