//! A model as an ordered list of coarse ops over values, and the layout of the values in memory.

mod cut;
mod fuse;
mod read_ahead;

use std::collections::HashMap;
use std::fmt;

use cuelight_shaders::cpu::{Kernel, Team};
use cuelight_shaders::experts::Experts;
use cuelight_shaders::op::{Op, Selection, ShapeError};
use cuelight_shaders::sample_token::{PARAMS_WORDS, SampleToken};

use crate::cancel::LoadCancelled;

pub use cut::{CutGraph, Handover, ParallelGraph};

/// A value of a graph: a matrix with one row per token of the step, or one per row whose logits or hidden values are requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ValueId(usize);

/// Which rows a value has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rows {
    /// One per token of the step.
    All,
    /// One per row whose logits are requested.
    Selected,
    /// One per row whose hidden values are requested.
    Hidden,
}

/// The largest number of rows of each kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MostRows {
    /// Of all rows of a step.
    pub all: usize,
    /// Of rows whose logits are requested.
    pub selected: usize,
    /// Of rows whose hidden values are requested.
    pub hidden: usize,
}

impl MostRows {
    /// The largest number of rows of a value.
    #[must_use]
    pub fn of(self, rows: Rows) -> usize {
        match rows {
            Rows::All => self.all,
            Rows::Selected => self.selected,
            Rows::Hidden => self.hidden,
        }
    }
}

#[derive(Debug, Clone)]
struct Value {
    width: usize,
    rows: Rows,
}

/// One op with the values that it reads and writes.
#[derive(Debug)]
pub struct Node {
    /// The op.
    pub op: Box<dyn Op>,
    /// The values that it reads.
    pub inputs: Vec<ValueId>,
    /// The values that it writes. Each value is written once.
    pub outputs: Vec<ValueId>,
}

/// Ops in execution order.
#[derive(Debug, Default)]
pub struct Graph {
    values: Vec<Value>,
    nodes: Vec<Node>,
    /// The values that a model, or a part of one, takes from its caller.
    inputs: Vec<ValueId>,
    /// The values that a part of a model passes to the next. Empty for the last part and for a whole model, unless it samples
    /// tokens.
    passed_on: Vec<ValueId>,
    token_sampling: Option<RowSamplingValues>,
    /// The hidden values that leave the engine; the first of the values that are passed on.
    hidden: Option<ValueId>,
}

/// The values of a graph that samples tokens itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowSamplingValues {
    /// The sampling parameters of each row ([`sample_token::words`](cuelight_shaders::sample_token::words)); the graph's last
    /// input.
    pub params: ValueId,
    /// The logits to sample from.
    pub logits: ValueId,
    /// The sampled tokens ([`SampledToken`](cuelight_shaders::sample_token::SampledToken)).
    pub tokens: ValueId,
}

impl Graph {
    /// A graph of one op with one output. Its inputs have these widths and one row per token.
    ///
    /// # Errors
    /// [`ShapeError`] when the op does not accept these widths.
    pub fn of_op(op: impl Op + 'static, widths: &[usize]) -> Result<Self, ShapeError> {
        let mut graph = Graph::default();
        let inputs: Vec<ValueId> = widths.iter().map(|width| graph.take(*width)).collect();
        graph.push_one(op, &inputs)?;
        Ok(graph)
    }

    /// A value that the caller writes before the first op runs, with one row per token.
    pub fn take(&mut self, width: usize) -> ValueId {
        self.values.push(Value { width, rows: Rows::All });
        let value = ValueId(self.values.len() - 1);
        self.inputs.push(value);
        value
    }

    /// Appends an op and returns its outputs. Shapes are checked, so a graph that was built can run.
    ///
    /// # Errors
    /// [`ShapeError`] when the op does not accept its inputs.
    pub fn push(&mut self, op: impl Op + 'static, inputs: &[ValueId]) -> Result<Vec<ValueId>, ShapeError> {
        let widths: Vec<usize> = inputs.iter().map(|input| self.values[input.0].width).collect();
        let output_widths = op.output_widths(&widths)?;
        let rows = match op.selects_rows() {
            Some(Selection::Logits) => Rows::Selected,
            Some(Selection::Hidden) => Rows::Hidden,
            None => inputs.iter().map(|input| self.rows(*input)).find(|rows| *rows != Rows::All).unwrap_or(Rows::All),
        };
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
    /// [`ShapeError`] when the op does not accept its inputs, or has another number of outputs.
    pub fn push_one(&mut self, op: impl Op + 'static, inputs: &[ValueId]) -> Result<ValueId, ShapeError> {
        let name = op.name();
        let outputs = self.push(op, inputs)?;
        ShapeError::check(name, "number of outputs", outputs.len(), 1)?;
        Ok(outputs[0])
    }

    /// Marks a value as the hidden values that leave the engine. The graph's last op must write the logits, or this value.
    pub fn return_hidden(&mut self, value: ValueId) {
        self.hidden = Some(value);
    }

    /// The hidden values that leave the engine, if the graph has any.
    #[must_use]
    pub fn hidden(&self) -> Option<ValueId> {
        self.hidden
    }

    /// Whether the last op writes logits.
    #[must_use]
    pub fn has_logits(&self) -> bool {
        self.output() != self.hidden
    }

    /// The same graph with token sampling appended, for rows that request it. Unchanged if the vocabulary is too large for it.
    #[must_use]
    pub fn with_token_sampling(mut self) -> Self {
        let Some(logits) = self.output().filter(|_| self.has_logits()) else { return self };
        let (rows, widths) = (self.rows(logits), [self.width(logits), PARAMS_WORDS]);
        if SampleToken.output_widths(&widths).is_err() {
            return self;
        }
        let [params, tokens] = [PARAMS_WORDS, 1].map(|width| {
            self.values.push(Value { width, rows });
            ValueId(self.values.len() - 1)
        });
        self.inputs.push(params);
        self.nodes.push(Node { op: Box::new(SampleToken), inputs: vec![logits, params], outputs: vec![tokens] });
        self.passed_on = self.hidden.into_iter().chain([logits, tokens]).collect();
        self.token_sampling = Some(RowSamplingValues { params, logits, tokens });
        self
    }

    /// The values of token sampling, if the graph has it.
    #[must_use]
    pub fn token_sampling(&self) -> Option<RowSamplingValues> {
        self.token_sampling
    }

    /// The ops in order.
    #[must_use]
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The ops that read a value, each with the index of the input. `None` for a value that stays valid after the last op.
    #[must_use]
    pub fn readers(&self, value: ValueId) -> Option<Vec<(&dyn Op, usize)>> {
        let of_node = |node: &'_ Node| node.inputs.iter().copied().enumerate().collect::<Vec<_>>();
        let reads = self.nodes.iter().flat_map(|node| of_node(node).into_iter().map(|read| (&*node.op, read)));
        let of_value = reads.filter(|(_, (_, input))| *input == value).map(|(op, (index, _))| (op, index));
        (!self.outputs().contains(&value)).then(|| of_value.collect())
    }

    /// The ops alone, in order.
    #[must_use]
    pub fn ops(&self) -> Vec<&dyn Op> {
        self.nodes.iter().map(|node| &*node.op).collect()
    }

    /// The routed experts, in layer order.
    pub fn experts_mut(&mut self) -> impl DoubleEndedIterator<Item = &mut Experts> {
        self.nodes.iter_mut().filter_map(|node| node.op.as_experts_mut())
    }

    /// Repacks the weights for a kernel, op by op. `progress` is called after each op.
    ///
    /// # Errors
    /// [`LoadCancelled`] when `progress` returns it.
    pub fn prepare_cpu(
        &mut self,
        kernel: Kernel,
        team: &dyn Team,
        progress: &mut dyn FnMut(&dyn Op) -> Result<(), LoadCancelled>,
    ) -> Result<(), LoadCancelled> {
        self.nodes.iter_mut().try_for_each(|node| {
            node.op.prepare_cpu(kernel, team);
            progress(&*node.op)
        })
    }

    /// Extra bytes of the weights after repacking for a kernel.
    #[must_use]
    pub fn repack_overhead_bytes(&self, kernel: Kernel) -> u64 {
        self.nodes.iter().map(|node| node.op.repack_overhead_bytes(kernel)).sum()
    }

    /// The largest scratch memory of an op on the CPU, in values, for steps up to a size.
    #[must_use]
    pub fn scratch_len(&self, kernel: Kernel, most: MostRows, context_tokens: usize) -> usize {
        let of_node = |node: &Node| node.op.scratch_len(kernel, most.of(self.input_rows(node)), context_tokens);
        self.nodes.iter().map(of_node).max().unwrap_or(0)
    }

    /// Values per row.
    #[must_use]
    pub fn width(&self, value: ValueId) -> usize {
        self.values[value.0].width
    }

    /// Which rows the value has.
    #[must_use]
    pub fn rows(&self, value: ValueId) -> Rows {
        self.values[value.0].rows
    }

    /// Which rows an op reads.
    #[must_use]
    pub fn input_rows(&self, node: &Node) -> Rows {
        node.inputs.first().map_or(Rows::All, |input| self.rows(*input))
    }

    /// The values that the caller writes before the first op runs: hidden values that a model reads, then the parameters of token
    /// sampling. Empty for a model without both.
    #[must_use]
    pub fn inputs(&self) -> &[ValueId] {
        &self.inputs
    }

    /// The values that stay valid after the last op: the hidden values that leave the engine, the logits, and the sampled tokens
    /// if the graph samples; or the inputs of the model's next part.
    #[must_use]
    pub fn outputs(&self) -> Vec<ValueId> {
        if !self.passed_on.is_empty() {
            return self.passed_on.clone();
        }
        let logits = self.output().filter(|_| self.has_logits());
        self.hidden.into_iter().chain(logits).collect()
    }

    /// The values that ops before index `cut` write and later ones read.
    #[must_use]
    pub fn values_across(&self, cut: usize) -> Vec<ValueId> {
        let (before, after) = self.nodes.split_at(cut);
        let written = self.inputs.iter().chain(before.iter().flat_map(|node| &node.outputs));
        let is_read = |value: &&ValueId| after.iter().any(|node| node.inputs.contains(value));
        written.filter(is_read).copied().collect()
    }

    /// Cuts the graph before the ops at these ascending indices. Each part takes the values that previous parts wrote and that it
    /// or a later part reads.
    #[must_use]
    pub fn split(self, cuts: &[usize]) -> Vec<Graph> {
        let across: Vec<Vec<ValueId>> = cuts.iter().map(|cut| self.values_across(*cut)).collect();
        let count = self.nodes.len();
        let ends = cuts.iter().copied().chain([count]);
        let mut nodes = self.nodes.into_iter();
        let (mut parts, mut start) = (Vec::new(), 0);
        for (index, end) in ends.enumerate() {
            let taken = index.checked_sub(1).map_or(&self.inputs, |before| &across[before]);
            let given = across.get(index).unwrap_or(&self.passed_on);
            let hidden = self.hidden.filter(|_| end == count);
            parts.push(part(&self.values, nodes.by_ref().take(end - start), (taken, given), None, hidden));
            start = end;
        }
        parts
    }

    /// The value that the last op writes: the logits, unless the graph samples tokens.
    #[must_use]
    pub fn output(&self) -> Option<ValueId> {
        self.nodes.last().and_then(|node| node.outputs.last().copied())
    }
}

/// A graph of some ops of another graph, with its own value numbers.
fn part(
    values: &[Value],
    nodes: impl Iterator<Item = Node>,
    (taken, given): (&[ValueId], &[ValueId]),
    token_sampling: Option<RowSamplingValues>,
    hidden: Option<ValueId>,
) -> Graph {
    let mut graph = Graph::default();
    let mut numbers = HashMap::new();
    let mut number = |graph: &mut Graph, value: &ValueId| {
        *numbers.entry(*value).or_insert_with(|| {
            graph.values.push(values[value.0].clone());
            ValueId(graph.values.len() - 1)
        })
    };
    graph.inputs = taken.iter().map(|value| number(&mut graph, value)).collect();
    for node in nodes {
        let inputs = node.inputs.iter().map(|value| number(&mut graph, value)).collect();
        let outputs = node.outputs.iter().map(|value| number(&mut graph, value)).collect();
        graph.nodes.push(Node { op: node.op, inputs, outputs });
    }
    graph.passed_on = given.iter().map(|value| number(&mut graph, value)).collect();
    graph.hidden = hidden.map(|value| number(&mut graph, &value));
    graph.token_sampling = token_sampling.map(|RowSamplingValues { params, logits, tokens }| {
        let [params, logits, tokens] = [params, logits, tokens].map(|value| number(&mut graph, &value));
        RowSamplingValues { params, logits, tokens }
    });
    graph
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

/// Values start at a multiple of this many floats: a cache line, and more than any kernel or shader loads at once.
const VALUE_ALIGNMENT: usize = 16;

/// The offset of each value in one arena of f32, for steps up to a size.
///
/// Values whose lifetimes overlap never share memory, so an op's inputs and outputs never overlap.
#[derive(Debug, PartialEq, Eq)]
pub struct MemoryLayout {
    offsets: Vec<usize>,
    arena_len: usize,
}

impl MemoryLayout {
    /// Assigns offsets: first fit, in the order in which values are written.
    #[must_use]
    pub fn new(graph: &Graph, most: MostRows) -> Self {
        let size = |value: usize| {
            let Value { width, rows } = &graph.values[value];
            (width * most.of(*rows)).next_multiple_of(VALUE_ALIGNMENT)
        };
        let mut last_use = vec![0; graph.values.len()];
        for (index, node) in graph.nodes.iter().enumerate() {
            for value in node.inputs.iter().chain(&node.outputs) {
                last_use[value.0] = index;
            }
        }
        for output in graph.outputs() {
            last_use[output.0] = graph.nodes.len();
        }

        let mut offsets = vec![0; graph.values.len()];
        let mut arena_len = 0;
        // Live values as (offset, end, value), by offset.
        let mut live: Vec<(usize, usize, usize)> = Vec::new();
        // Inputs are written before the first op.
        let written = std::iter::once(&graph.inputs).chain(graph.nodes.iter().map(|node| &node.outputs));
        for (index, written) in written.enumerate() {
            live.retain(|(_, _, value)| last_use[*value] + 1 >= index);
            for output in written {
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

    /// The value's offset, in floats.
    #[must_use]
    pub fn offset(&self, value: ValueId) -> usize {
        self.offsets[value.0]
    }

    /// The arena's length, in floats.
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

    /// An op with any inputs and with outputs of the given widths.
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
            let graph = random_graph(nodes);
            check_layout(&graph, max_rows);
        }

        #[test]
        fn a_graph_with_token_sampling_keeps_its_logits_to_the_end(
            nodes in prop::collection::vec((prop::collection::vec(1usize..20, 1..3), any::<u32>()), 1..30),
        ) {
            let graph = random_graph(nodes);
            let logits = graph.output().unwrap();
            let graph = graph.with_token_sampling();
            let RowSamplingValues { params, tokens, .. } = graph.token_sampling().unwrap();
            prop_assert_eq!(graph.outputs(), [logits, tokens]);
            prop_assert_eq!(graph.inputs(), [params]);
            prop_assert_eq!(graph.width(tokens), 1);
            check_layout(&graph, 3);
        }

        #[test]
        fn parts_of_a_graph_pass_on_exactly_the_values_that_are_read_later(
            nodes in prop::collection::vec((prop::collection::vec(1usize..20, 1..3), any::<u32>()), 3..20),
            first in 0usize..20, second in 0usize..20,
        ) {
            let graph = random_graph(nodes);
            let (ops, output) = (graph.nodes().len(), graph.width(graph.output().unwrap()));
            let mut cuts = [1 + first % (ops - 1), 1 + second % (ops - 1)];
            cuts.sort_unstable();
            let parts = graph.split(&cuts);
            prop_assert_eq!(parts.iter().map(|part| part.nodes().len()).sum::<usize>(), ops);
            prop_assert!(parts[0].inputs().is_empty());
            for pair in parts.windows(2) {
                let widths = |graph: &Graph, values: &[ValueId]| -> Vec<usize> {
                    values.iter().map(|value| graph.width(*value)).collect()
                };
                prop_assert_eq!(widths(&pair[0], &pair[0].passed_on), widths(&pair[1], pair[1].inputs()));
            }
            let last = &parts[2];
            prop_assert_eq!(last.width(last.outputs()[0]), output);
            for part in &parts {
                let mut known: Vec<ValueId> = part.inputs().to_vec();
                for node in part.nodes() {
                    prop_assert!(node.inputs.iter().all(|input| known.contains(input)));
                    known.extend(&node.outputs);
                }
                prop_assert!(part.passed_on.iter().all(|value| known.contains(value)));
                check_layout(part, 3);
            }
        }
    }

    #[test]
    fn a_cut_graph_passes_out_the_inputs_of_removed_ops_and_takes_their_outputs() {
        let mut graph = Graph::default();
        let op = |width: usize| Any { widths: vec![width] };
        let x = graph.push_one(op(3), &[]).unwrap();
        let routes = graph.push_one(op(2), &[x]).unwrap();
        let routed = graph.push_one(op(3), &[x, routes]).unwrap();
        let sum = graph.push_one(op(3), &[x, routed]).unwrap();
        let routes = graph.push_one(op(2), &[sum]).unwrap();
        let last = graph.push_one(op(7), &[sum, routes]).unwrap();
        graph.push_one(op(5), &[last]).unwrap();

        let cut = graph.with_token_sampling().cut_out(&[2, 5]);
        assert_eq!(cut.removed.len(), 2);
        let samples: Vec<bool> = cut.parts.iter().map(|part| part.token_sampling().is_some()).collect();
        assert_eq!(samples, [false, false, true]);
        let shapes = |part: &Graph| {
            let widths = |values: &[ValueId]| values.iter().map(|value| part.width(*value)).collect::<Vec<_>>();
            (widths(part.inputs()), part.nodes().len(), widths(&part.outputs()))
        };
        let found: Vec<_> = cut.parts.iter().map(shapes).collect();
        let expected = [(vec![], 2, vec![3, 2]), (vec![3, 3], 2, vec![3, 2]), (vec![7, PARAMS_WORDS], 2, vec![5, 1])];
        assert_eq!(found, expected);
        let handover = |inputs: &[usize], carried: &[usize]| Handover {
            inputs: inputs.into(),
            carried: carried.into(),
            parallel: None,
        };
        assert_eq!(cut.handovers, [handover(&[0, 1], &[0]), handover(&[0, 1], &[])]);
        cut.parts.iter().for_each(|part| check_layout(part, 3));
    }

    #[test]
    fn ops_independent_of_a_removed_op_are_computed_in_parallel_to_it() {
        let mut graph = Graph::default();
        let op = |width: usize| Any { widths: vec![width] };
        let x = graph.push_one(op(3), &[]).unwrap();
        let early = graph.push_one(op(4), &[x]).unwrap();
        let routes = graph.push_one(op(2), &[x]).unwrap();
        let routed = graph.push_one(op(3), &[x, routes]).unwrap();
        let shared = graph.push_one(op(6), &[x, early]).unwrap();
        let shared = graph.push_one(op(5), &[shared]).unwrap();
        graph.push_one(op(7), &[routed, shared]).unwrap();

        let cut = graph.cut_out(&[3]);
        let counts: Vec<usize> = cut.parts.iter().chain(&cut.parallel).map(|part| part.nodes().len()).collect();
        assert_eq!(counts, [2, 1, 3]);
        let widths = |graph: &Graph, values: &[ValueId]| values.iter().map(|v| graph.width(*v)).collect::<Vec<_>>();
        let parallel = &cut.parallel[0];
        assert_eq!((widths(parallel, parallel.inputs()), widths(parallel, &parallel.outputs())), (vec![3], vec![5]));
        let handover = Handover {
            inputs: vec![0, 1],
            carried: vec![],
            parallel: Some(ParallelGraph { graph: 0, inputs: vec![0] }),
        };
        assert_eq!(cut.handovers, [handover]);
        assert_eq!(
            widths(&cut.parts[1], cut.parts[1].inputs()),
            [5, 3],
            "the parallel output, then that of the removed op"
        );
    }

    proptest! {
        #[test]
        fn parts_and_parallel_graphs_have_all_their_inputs_and_every_op_once(
            nodes in prop::collection::vec((prop::collection::vec(1usize..20, 1..3), any::<u32>()), 4..30),
            first in 0usize..30, second in 0usize..30,
        ) {
            let graph = random_graph(nodes);
            let (ops, output) = (graph.nodes().len(), graph.width(graph.output().unwrap()));
            let mut removed = [first % (ops - 1), second % (ops - 1)];
            removed.sort_unstable();
            let removed = if removed[0] == removed[1] { &removed[..1] } else { &removed[..] };
            let cut = graph.cut_out(removed);
            let left: usize = cut.parts.iter().chain(&cut.parallel).map(|part| part.nodes().len()).sum();
            prop_assert_eq!(left + removed.len(), ops);
            let widths = |graph: &Graph, values: &[ValueId]| values.iter().map(|v| graph.width(*v)).collect::<Vec<_>>();
            for (number, handover) in cut.handovers.iter().enumerate() {
                let given = widths(&cut.parts[number], &cut.parts[number].passed_on);
                let mut taken: Vec<usize> = handover.carried.iter().map(|carried| given[*carried]).collect();
                if let Some(ParallelGraph { graph, inputs }) = &handover.parallel {
                    let parallel = &cut.parallel[*graph];
                    prop_assert_eq!(widths(parallel, parallel.inputs()), inputs.iter().map(|i| given[*i]).collect::<Vec<_>>());
                    taken.extend(widths(parallel, &parallel.passed_on));
                }
                taken.extend(cut.removed[number].output_widths(&[]).unwrap());
                let next = &cut.parts[number + 1];
                prop_assert_eq!(widths(next, next.inputs()), taken);
            }
            let last = cut.parts.last().unwrap();
            prop_assert_eq!(last.width(last.outputs()[0]), output);
            for part in cut.parts.iter().chain(&cut.parallel) {
                let mut known: Vec<ValueId> = part.inputs().to_vec();
                for node in part.nodes() {
                    prop_assert!(node.inputs.iter().all(|input| known.contains(input)));
                    known.extend(&node.outputs);
                }
                prop_assert!(part.passed_on.iter().all(|value| known.contains(value)));
                check_layout(part, 3);
            }
        }
    }

    fn random_graph(nodes: Vec<(Vec<usize>, u32)>) -> Graph {
        let mut graph = Graph::default();
        let mut values: Vec<ValueId> = Vec::new();
        for (widths, choice) in nodes {
            let inputs: Vec<ValueId> =
                values.iter().enumerate().filter(|(i, _)| choice >> (i % 32) & 1 == 1).map(|(_, v)| *v).collect();
            values.extend(graph.push(Any { widths }, &inputs).unwrap());
        }
        graph
    }

    /// Runs through the graph and records which value owns each cell of the arena.
    fn check_layout(graph: &Graph, max_rows: usize) {
        let layout = MemoryLayout::new(graph, MostRows { all: max_rows, selected: max_rows, hidden: max_rows });
        let mut owner: Vec<Option<ValueId>> = vec![None; layout.arena_len()];
        let cells = |value: ValueId| layout.offset(value)..layout.offset(value) + graph.width(value) * max_rows;
        for input in graph.inputs() {
            owner[cells(*input)].fill(Some(*input));
        }
        let check = |owner: &[Option<ValueId>], value: &ValueId| {
            assert!(owner[cells(*value)].iter().all(|o| *o == Some(*value)));
        };
        for node in graph.nodes() {
            for output in &node.outputs {
                owner[cells(*output)].fill(Some(*output));
            }
            node.inputs.iter().chain(&node.outputs).for_each(|value| check(&owner, value));
        }
        graph.outputs().iter().for_each(|value| check(&owner, value));
    }
}
