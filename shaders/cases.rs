//! Cases: ops with inputs and expected results, which the tests of every backend run.
//!
//! Each op defines its cases next to its contract and its reference; the [registry](crate::ops) collects them. A case
//! is an op and some steps. A step has rows, inputs, and the expected results in float64, each with a tolerance. Inputs
//! are chosen so that the tolerance is tight: where a backend rounds (activations to 15 bits, keys to 8), they are
//! values that the rounding preserves.

use crate::gpu::RowCount;
use crate::kv::{KvShape, KvType};
use crate::layer_state::LayerState;
use crate::lora::adapter::AdapterUse;
use crate::op::{Batch, DenoiseParams, Op, Sight};

/// An op and its expected results.
#[derive(Debug)]
pub struct Case {
    /// What distinguishes the case, for messages.
    pub name: String,
    /// The op.
    pub op: Box<dyn Op>,
    /// The KV cache and the recurrent state of all steps, if the op uses them.
    pub cache: Option<CaseCache>,
    /// The steps, in the order in which they run.
    pub steps: Vec<CaseStep>,
}

/// The KV cache and the recurrent state of a case.
#[derive(Debug, Clone)]
pub struct CaseCache {
    /// The shapes of its layers.
    pub shapes: Vec<KvShape>,
    /// The shapes of the index keys of the same layers; empty if none has any.
    pub indexes: Vec<KvShape>,
    /// How it stores values.
    pub kv_type: KvType,
    /// The number of blocks of every layer.
    pub blocks: usize,
    /// The values of recurrent state of its layers.
    pub state_lens: Vec<usize>,
    /// The number of slots of every layer.
    pub slots: usize,
}

/// One call of the op.
#[derive(Debug)]
pub struct CaseStep {
    /// The rows of the step.
    pub batch: CaseBatch,
    /// The rows that the inputs have.
    pub rows: RowCount,
    /// The inputs, each [rows, width].
    pub inputs: Vec<Vec<f32>>,
    /// The expected outputs, each [output rows, width].
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
    /// `[sequences]`, or empty if they are the same
    pub window_tables: Vec<Vec<u32>>,
    /// `[selected]`
    pub selected: Vec<u32>,
    /// `[hidden]`
    pub hidden: Vec<u32>,
    /// `[sequences]`
    pub state_from: Vec<u32>,
    /// `[rows]`
    pub state_to: Vec<u32>,
    /// `[sequences]`, or empty
    pub sights: Vec<Sight>,
    /// See [`Batch::rope_positions`].
    pub rope_positions: Vec<[u32; 3]>,
    /// `[sequences]`, or empty
    pub second_texts: Vec<u32>,
    /// `[selected]`, or empty
    pub denoised: Vec<DenoiseParams>,
    /// `[sequences]`, or empty
    pub adapters: Vec<Option<AdapterUse>>,
}

/// What a [`Batch`] of a case refers to by sequence.
#[derive(Debug, Clone, Default)]
pub struct OfSequences<'a> {
    tables: Vec<&'a [u32]>,
    window_tables: Vec<&'a [u32]>,
    adapters: Vec<Option<&'a AdapterUse>>,
}

/// An expected value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Expected {
    /// The value, from the reference.
    pub value: f64,
    /// The largest permitted distance of the computed value.
    pub tolerance: f64,
}

impl Case {
    /// A case without a KV cache.
    #[must_use]
    pub fn new(name: impl Into<String>, op: impl Op + 'static, steps: Vec<CaseStep>) -> Self {
        Case { name: name.into(), op: Box::new(op), cache: None, steps }
    }

    /// Checks the outputs of a step.
    ///
    /// # Errors
    /// A description of the first value that is out of tolerance.
    pub fn check(&self, step: usize, found: &[Vec<f32>]) -> Result<(), String> {
        let expected = &self.steps[step].expected;
        let name = |output: usize| format!("{} {}: step {step}, output {output}", self.op.name(), self.name);
        if found.len() != expected.len() {
            return Err(format!("{} has {} outputs instead of {}", name(0), found.len(), expected.len()));
        }
        for (output, (found, expected)) in found.iter().zip(expected).enumerate() {
            if found.len() != expected.len() {
                return Err(format!("{} has {} values instead of {}", name(output), found.len(), expected.len()));
            }
            let mut pairs = found.iter().zip(expected).enumerate();
            if let Some((index, (found, expected))) = pairs.find(|(_, (found, expected))| !expected.admits(**found)) {
                return Err(format!("{}: value {index} is {found}, must be {expected:?}", name(output)));
            }
        }
        Ok(())
    }
}

impl CaseStep {
    /// A step of an op that computes each row by itself: rows at positions 0, 1, … of one sequence.
    #[must_use]
    pub fn of_rows(rows: usize, inputs: Vec<Vec<f32>>, expected: Vec<Vec<Expected>>) -> Self {
        CaseStep { batch: CaseBatch::of_rows(rows), rows: RowCount::All(rows), inputs, expected }
    }

    /// The same step after an op that selects rows: the step has more rows than the inputs.
    #[must_use]
    pub fn of_selected(self) -> Self {
        let rows = self.rows.most();
        let mut batch = CaseBatch::of_rows(2 * rows + 1);
        batch.selected = (0..rows as u32).map(|row| 2 * row + 1).collect();
        CaseStep { batch, rows: RowCount::Selected(rows), ..self }
    }

    /// The width of each input.
    #[must_use]
    pub fn input_widths(&self) -> Vec<usize> {
        self.inputs.iter().map(|input| input.len() / self.rows.most()).collect()
    }
}

impl CaseCache {
    /// A cache of keys and values.
    #[must_use]
    pub fn of_kv(shapes: Vec<KvShape>, kv_type: KvType, blocks: usize) -> Self {
        CaseCache { shapes, indexes: Vec::new(), kv_type, blocks, state_lens: Vec::new(), slots: 0 }
    }

    /// What each layer stores.
    #[must_use]
    pub fn layers(&self) -> Vec<LayerState> {
        let indexes = self.indexes.iter().copied().chain(std::iter::repeat(KvShape::NONE));
        let of_kv = self.shapes.iter().zip(indexes).map(|(kv, index)| LayerState { index, ..LayerState::of_kv(*kv) });
        of_kv.chain(self.state_lens.iter().map(|len| LayerState::recurrent(*len))).collect()
    }

    /// A cache of recurrent state.
    #[must_use]
    pub fn of_states(state_lens: Vec<usize>, slots: usize) -> Self {
        CaseCache { state_lens, slots, ..CaseCache::of_kv(Vec::new(), KvType::F32, 0) }
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
            ..CaseBatch::default()
        }
    }

    /// The block tables and adapters, for [`CaseBatch::as_batch`].
    #[must_use]
    pub fn of_sequences(&self) -> OfSequences<'_> {
        OfSequences {
            tables: self.block_tables.iter().map(Vec::as_slice).collect(),
            window_tables: self.window_tables.iter().map(Vec::as_slice).collect(),
            adapters: self.adapters.iter().map(Option::as_ref).collect(),
        }
    }

    /// The rows in the form that ops read.
    #[must_use]
    pub fn as_batch<'a>(&'a self, of_sequences: &'a OfSequences<'a>) -> Batch<'a> {
        Batch {
            tokens: &self.tokens,
            positions: &self.positions,
            sequences: &self.sequences,
            block_tables: &of_sequences.tables,
            window_tables: &of_sequences.window_tables,
            adapters: &of_sequences.adapters,
            selected: &self.selected,
            hidden: &self.hidden,
            state_from: &self.state_from,
            state_to: &self.state_to,
            sights: &self.sights,
            rope_positions: &self.rope_positions,
            second_texts: &self.second_texts,
            denoised: &self.denoised,
            ..Batch::default()
        }
    }

    /// The length of the longest sequence.
    #[must_use]
    pub fn context_tokens(&self) -> usize {
        self.positions.iter().max().map_or(0, |position| *position as usize + 1)
    }
}

impl Expected {
    /// Any finite number, for rows whose reference would take too long.
    pub const ANY: Expected = Expected { value: 0.0, tolerance: f64::INFINITY };

    /// Values with a tolerance of `tolerance * max(1, |value|)` each.
    #[must_use]
    pub fn within(tolerance: f64, values: impl IntoIterator<Item = f64>) -> Vec<Expected> {
        let each = |value: f64| Expected { value, tolerance: tolerance * value.abs().max(1.0) };
        values.into_iter().map(each).collect()
    }

    /// Exactly these values; a subnormal one may also be 0, because a Vulkan device may flush it (`shaderDenormPreserveFloat32`).
    #[must_use]
    pub fn exactly(values: &[f32]) -> Vec<Expected> {
        let tolerance = |value: &f32| if value.is_subnormal() { f64::from(value.abs()) } else { 0.0 };
        values.iter().map(|value| Expected { value: f64::from(*value), tolerance: tolerance(value) }).collect()
    }

    fn admits(self, found: f32) -> bool {
        found.is_finite() && (f64::from(found) - self.value).abs() <= self.tolerance
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::add::Add;

    #[test]
    fn a_case_reports_the_first_wrong_value() {
        let step = CaseStep::of_rows(1, vec![], vec![Expected::within(1e-3, [1.0, 2.0])]);
        let case = Case::new("two values", Add, vec![step]);
        assert_eq!(case.check(0, &[vec![1.0, 2.001]]), Ok(()));
        let output = "add two values: step 0, output 0";
        assert_eq!(case.check(0, &[vec![1.0]]), Err(format!("{output} has 1 values instead of 2")));
        assert_eq!(case.check(0, &[]), Err(format!("{output} has 0 outputs instead of 1")));
        let wrong = format!("{output}: value 1 is NaN, must be Expected {{ value: 2.0, tolerance: 0.002 }}");
        assert_eq!(case.check(0, &[vec![1.0, f32::NAN]]), Err(wrong));
    }
}
