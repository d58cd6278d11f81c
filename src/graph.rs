//! A model as an ordered list of coarse ops over named values, and where the values live in memory.

use std::fmt;

use cuelight_shaders::cpu::{Kernel, Team};
use cuelight_shaders::op::{Op, ShapeError};

/// A value of a graph: a matrix with a row for each token of the step, or for each row that reaches the head.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ValueId(usize);

/// Which rows a value has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rows {
    /// One for each token of the step.
    All,
    /// One for each row whose logits are wanted.
    Selected,
}

#[derive(Debug)]
struct Value {
    width: usize,
    rows: Rows,
}

/// One op with what it reads and writes.
#[derive(Debug)]
pub struct Node {
    /// The op.
    pub op: Box<dyn Op>,
    /// What it reads.
    pub inputs: Vec<ValueId>,
    /// What it writes; each value is written once.
    pub outputs: Vec<ValueId>,
}

/// Ops in the order they run.
#[derive(Debug, Default)]
pub struct Graph {
    values: Vec<Value>,
    nodes: Vec<Node>,
}

impl Graph {
    /// Appends an op; its shapes are checked here, so that a graph that was built can run.
    ///
    /// # Errors
    /// [`ShapeError`] when the inputs do not fit the op.
    pub fn push(&mut self, op: impl Op + 'static, inputs: &[ValueId]) -> Result<Vec<ValueId>, ShapeError> {
        let widths: Vec<usize> = inputs.iter().map(|input| self.values[input.0].width).collect();
        let output_widths = op.output_widths(&widths)?;
        let selected = op.selects_rows() || inputs.iter().any(|input| self.rows(*input) == Rows::Selected);
        let rows = if selected { Rows::Selected } else { Rows::All };
        let outputs = output_widths
            .into_iter()
            .map(|width| {
                self.values.push(Value { width, rows });
                ValueId(self.values.len() - 1)
            })
            .collect::<Vec<_>>();
        self.nodes.push(Node { op: Box::new(op), inputs: inputs.to_vec(), outputs: outputs.clone() });
        Ok(outputs)
    }

    /// Appends an op with one output.
    ///
    /// # Errors
    /// [`ShapeError`] when the inputs do not fit the op, or it has another number of outputs.
    pub fn push_one(&mut self, op: impl Op + 'static, inputs: &[ValueId]) -> Result<ValueId, ShapeError> {
        let name = op.name();
        let outputs = self.push(op, inputs)?;
        ShapeError::check(name, "number of outputs", outputs.len(), 1)?;
        Ok(outputs[0])
    }

    /// The ops in order.
    #[must_use]
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The ops alone, in order.
    #[must_use]
    pub fn ops(&self) -> Vec<&dyn Op> {
        self.nodes.iter().map(|node| &*node.op).collect()
    }

    /// Arranges the weights for a kernel, op after op; `progress` hears of each op when it is done.
    pub fn prepare_cpu(&mut self, kernel: Kernel, team: &dyn Team, progress: &mut dyn FnMut(&dyn Op)) {
        for node in &mut self.nodes {
            node.op.prepare_cpu(kernel, team);
            progress(&*node.op);
        }
    }

    /// By how many bytes the weights grow when they are arranged for a kernel.
    #[must_use]
    pub fn growth(&self, kernel: Kernel) -> u64 {
        self.nodes.iter().map(|node| node.op.growth(kernel)).sum()
    }

    /// The scratch memory that any op wants on the CPU, in values, for steps up to a size.
    #[must_use]
    pub fn scratch_len(&self, kernel: Kernel, max_rows: usize, max_selected: usize, context_tokens: usize) -> usize {
        let of_node = |node: &Node| {
            let all = self.input_rows(node) == Rows::All;
            node.op.scratch_len(kernel, if all { max_rows } else { max_selected }, context_tokens)
        };
        self.nodes.iter().map(of_node).max().unwrap_or(0)
    }

    /// Values in a row.
    #[must_use]
    pub fn width(&self, value: ValueId) -> usize {
        self.values[value.0].width
    }

    /// Which rows the value has.
    #[must_use]
    pub fn rows(&self, value: ValueId) -> Rows {
        self.values[value.0].rows
    }

    /// Which rows an op computes with.
    #[must_use]
    pub fn input_rows(&self, node: &Node) -> Rows {
        node.inputs.first().map_or(Rows::All, |input| self.rows(*input))
    }

    /// The value the last op wrote: the logits.
    #[must_use]
    pub fn output(&self) -> Option<ValueId> {
        self.nodes.last().and_then(|node| node.outputs.last().copied())
    }
}

impl fmt::Display for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for node in &self.nodes {
            let names = |values: &[ValueId]| -> String {
                values.iter().map(|v| format!("%{}[{}]", v.0, self.width(*v))).collect::<Vec<_>>().join(", ")
            };
            let weights: Vec<String> = node.op.weights().iter().map(|weight| format!("{weight:?}")).collect();
            let (outputs, inputs) = (names(&node.outputs), names(&node.inputs));
            writeln!(f, "{outputs} = {}({inputs}) {}", node.op.name(), weights.join(", "))?;
        }
        Ok(())
    }
}

/// Values start at a multiple of so many: a cache line, and more than any kernel or shader loads at once.
const VALUE_ALIGNMENT: usize = 16;

/// Where each value lives in one arena of f32, for steps up to a size.
///
/// Values whose lifetimes overlap never share memory, so that an op's inputs and outputs are always apart.
#[derive(Debug, PartialEq, Eq)]
pub struct MemoryLayout {
    offsets: Vec<usize>,
    arena_len: usize,
}

impl MemoryLayout {
    /// Places the values, first fit in order of their birth.
    #[must_use]
    pub fn new(graph: &Graph, max_rows: usize, max_selected: usize) -> Self {
        let size = |value: usize| {
            let Value { width, rows } = &graph.values[value];
            (width * if *rows == Rows::All { max_rows } else { max_selected }).next_multiple_of(VALUE_ALIGNMENT)
        };
        let mut last_use = vec![0; graph.values.len()];
        for (index, node) in graph.nodes.iter().enumerate() {
            for value in node.inputs.iter().chain(&node.outputs) {
                last_use[value.0] = index;
            }
        }
        if let Some(output) = graph.output() {
            last_use[output.0] = graph.nodes.len();
        }

        let mut offsets = vec![0; graph.values.len()];
        let mut arena_len = 0;
        // Live values as (offset, end, value), by offset.
        let mut live: Vec<(usize, usize, usize)> = Vec::new();
        for (index, node) in graph.nodes.iter().enumerate() {
            live.retain(|(_, _, value)| last_use[*value] >= index);
            for output in &node.outputs {
                let mut offset = 0;
                for (start, end, _) in &live {
                    if offset + size(output.0) <= *start {
                        break;
                    }
                    offset = offset.max(*end);
                }
                let end = offset + size(output.0);
                offsets[output.0] = offset;
                arena_len = arena_len.max(end);
                live.push((offset, end, output.0));
                live.sort_unstable();
            }
        }
        MemoryLayout { offsets, arena_len }
    }

    /// Where the value starts, in values.
    #[must_use]
    pub fn offset(&self, value: ValueId) -> usize {
        self.offsets[value.0]
    }

    /// Values in the arena.
    #[must_use]
    pub fn arena_len(&self) -> usize {
        self.arena_len
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cuelight_shaders::gpu::{Dispatch, GpuArgs};
    use cuelight_shaders::op::CpuArgs;
    use proptest::prelude::*;

    /// An op of any number of inputs and outputs, as wide as told.
    #[derive(Debug)]
    struct Any {
        widths: Vec<usize>,
    }

    impl Op for Any {
        fn name(&self) -> &'static str {
            "any"
        }

        fn output_widths(&self, _inputs: &[usize]) -> Result<Vec<usize>, ShapeError> {
            Ok(self.widths.clone())
        }

        fn run_cpu(&self, _args: &mut CpuArgs<'_>) {}

        fn dispatches(&self, _args: &GpuArgs<'_>) -> Vec<Dispatch> {
            Vec::new()
        }
    }

    proptest! {
        #[test]
        fn values_that_live_at_the_same_time_never_share_memory(
            nodes in prop::collection::vec((prop::collection::vec(1usize..20, 1..3), any::<u32>()), 1..30),
            max_rows in 1usize..5,
        ) {
            let mut graph = Graph::default();
            let mut values: Vec<ValueId> = Vec::new();
            for (widths, choice) in nodes {
                let inputs: Vec<ValueId> =
                    values.iter().enumerate().filter(|(i, _)| choice >> (i % 32) & 1 == 1).map(|(_, v)| *v).collect();
                values.extend(graph.push(Any { widths }, &inputs).unwrap());
            }
            let layout = MemoryLayout::new(&graph, max_rows, max_rows);
            // Walk the graph with the owner of every cell written down.
            let mut owner: Vec<Option<ValueId>> = vec![None; layout.arena_len()];
            let cells = |value: ValueId| layout.offset(value)..layout.offset(value) + graph.width(value) * max_rows;
            for node in graph.nodes() {
                for output in &node.outputs {
                    owner[cells(*output)].fill(Some(*output));
                }
                for value in node.inputs.iter().chain(&node.outputs) {
                    prop_assert!(owner[cells(*value)].iter().all(|o| *o == Some(*value)));
                }
            }
        }
    }
}
