//! A graph without some of its ops, which are computed elsewhere: the parts before, between and after them, and the graphs that
//! run in parallel to them.
//!
//! Ops that neither feed a removed op nor depend on it can run while it is computed elsewhere. An example is the shared expert,
//! which runs in parallel to the routed experts. Such ops form graphs of their own.

use std::collections::{HashMap, HashSet};

use cuelight_shaders::op::Op;

use super::{Graph, Node, Rows, ValueId, part};

/// A graph without some of its ops.
#[derive(Debug, Default)]
pub struct CutGraph {
    /// The parts in order; one more than the removed ops.
    pub parts: Vec<Graph>,
    /// The graphs that run in parallel to removed ops, for the ops that have one.
    pub parallel: Vec<Graph>,
    /// The removed ops. Each is between two parts.
    pub removed: Vec<Box<dyn Op>>,
    /// For each removed op, how values pass from the part before it to the part after it.
    pub handovers: Vec<Handover>,
}

/// How values pass from one part of a cut graph to the next, around the removed op between them.
///
/// The inputs of the next part are the carried values, then the outputs of the parallel graph, then those of the removed op.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Handover {
    /// Which outputs of the previous part the removed op reads, in its order.
    pub inputs: Vec<usize>,
    /// Which outputs of the previous part the next part takes.
    pub carried: Vec<usize>,
    /// The graph that runs in parallel to the removed op.
    pub parallel: Option<ParallelGraph>,
}

/// A graph that runs in parallel to a removed op.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParallelGraph {
    /// Its index in [`CutGraph::parallel`].
    pub graph: usize,
    /// Which outputs of the previous part it takes, in its order.
    pub inputs: Vec<usize>,
}

/// When a node is computed. The numbers count parts and removed ops; removed op `n` follows part `n`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Time {
    /// In a part.
    Part(usize),
    /// In parallel to a removed op.
    Parallel(usize),
    /// As a removed op.
    Removed(usize),
}

impl Time {
    /// The order of computation. A removed op and its parallel graph have the same tick.
    fn tick(self) -> usize {
        match self {
            Time::Part(number) => 2 * number,
            Time::Parallel(number) | Time::Removed(number) => 2 * number + 1,
        }
    }
}

impl Graph {
    /// Removes the ops at these ascending indices.
    #[must_use]
    pub fn cut_out(self, ops: &[usize]) -> CutGraph {
        let times = self.times(ops);
        // Only the last part, which samples tokens, takes the sampling parameters.
        let params = self.token_sampling.map(|sampling| sampling.params);
        let passed_on = self.outputs();
        let lifetimes = Lifetimes::new(&self, &times, params);
        let mut nodes: HashMap<Time, Vec<Node>> = HashMap::new();
        for (node, time) in self.nodes.into_iter().zip(times) {
            nodes.entry(time).or_default().push(node);
        }
        let mut nodes_at = |time| nodes.remove(&time).unwrap_or_default();
        let graph = |nodes: Vec<Node>, taken: &[ValueId], given: &[ValueId]| {
            part(&self.values, nodes.into_iter(), (taken, given), None, None)
        };
        let mut cut = CutGraph::default();
        let mut taken: Vec<ValueId> = self.inputs.iter().filter(|value| Some(**value) != params).copied().collect();
        for number in 0..ops.len() {
            let Some(removed) = nodes_at(Time::Removed(number)).pop() else { break };
            let (given, carried) = lifetimes.across(number);
            let index = |value: &ValueId| given.iter().position(|other| other == value).unwrap_or_default();
            cut.parts.push(graph(nodes_at(Time::Part(number)), &taken, &given));
            taken = given[..carried].to_vec();
            let parallel = nodes_at(Time::Parallel(number));
            let mut handover = Handover {
                inputs: removed.inputs.iter().map(index).collect(),
                carried: (0..carried).collect(),
                parallel: None,
            };
            if !parallel.is_empty() {
                let is_read = |value: &&ValueId| parallel.iter().any(|node| node.inputs.contains(value));
                let reads: Vec<ValueId> = given.iter().filter(is_read).copied().collect();
                let written = parallel.iter().flat_map(|node| &node.outputs);
                let outputs: Vec<ValueId> =
                    written.filter(|value| lifetimes.outlives(**value, number)).copied().collect();
                handover.parallel =
                    Some(ParallelGraph { graph: cut.parallel.len(), inputs: reads.iter().map(index).collect() });
                cut.parallel.push(graph(parallel, &reads, &outputs));
                taken.extend(outputs);
            }
            taken.extend(removed.outputs);
            cut.handovers.push(handover);
            cut.removed.push(removed.op);
        }
        taken.extend(params);
        let last = nodes_at(Time::Part(ops.len())).into_iter();
        cut.parts.push(part(&self.values, last, (&taken, &passed_on), self.token_sampling, self.hidden));
        cut
    }

    /// When each node is computed, if the ops at these indices are removed.
    fn times(&self, removed: &[usize]) -> Vec<Time> {
        let mut times = Vec::with_capacity(self.nodes.len());
        let starts = std::iter::once(0).chain(removed.iter().map(|op| op + 1));
        let ends = removed.iter().copied().chain([self.nodes.len()]);
        let mut before: Option<&Node> = None;
        for (number, (start, end)) in starts.zip(ends).enumerate() {
            let nodes = &self.nodes[start..end];
            let next = self.nodes.get(end);
            // Ops that write the KV cache keep their order, and selected rows belong to the last part.
            let can_move = |node: &Node| {
                let of_all_rows = |value: &ValueId| self.rows(*value) == Rows::All;
                node.op.state_layer().is_none() && node.inputs.iter().chain(&node.outputs).all(of_all_rows)
            };
            // Nodes that depend on the removed op before them, directly or through others, must wait for it.
            let mut late: HashSet<ValueId> = before.iter().flat_map(|node| &node.outputs).copied().collect();
            let waits = nodes.iter().map(|node| {
                let waits = !can_move(node) || node.inputs.iter().any(|input| late.contains(input));
                late.extend(node.outputs.iter().filter(|_| waits));
                waits
            });
            let waits: Vec<bool> = waits.collect();
            // Nodes that the next removed op depends on must run before it; found from the end backwards.
            let mut needed: HashSet<ValueId> = next.iter().flat_map(|node| &node.inputs).copied().collect();
            let mut leads = vec![false; nodes.len()];
            for (leads, node) in leads.iter_mut().zip(nodes).rev() {
                *leads = !can_move(node) || node.outputs.iter().any(|output| needed.contains(output));
                needed.extend(node.inputs.iter().filter(|_| *leads));
            }
            let time = |(waits, leads): (&bool, &bool)| match (before, next) {
                (Some(_), _) if !waits => Time::Parallel(number - 1),
                (_, Some(_)) if !leads => Time::Parallel(number),
                _ => Time::Part(number),
            };
            times.extend(waits.iter().zip(&leads).map(time));
            times.extend(next.map(|_| Time::Removed(number)));
            before = next;
        }
        times
    }
}

/// When each value is written and last read.
struct Lifetimes {
    written: Vec<Option<usize>>,
    last_read: Vec<Option<usize>>,
}

impl Lifetimes {
    /// The lifetimes of all values except `excluded`, which only the last part takes.
    fn new(graph: &Graph, times: &[Time], excluded: Option<ValueId>) -> Self {
        let mut lifetimes =
            Lifetimes { written: vec![None; graph.values.len()], last_read: vec![None; graph.values.len()] };
        for input in graph.inputs.iter().filter(|input| Some(**input) != excluded) {
            lifetimes.written[input.0] = Some(0);
        }
        for (node, time) in graph.nodes.iter().zip(times) {
            let tick = Some(time.tick());
            node.outputs.iter().for_each(|output| lifetimes.written[output.0] = tick);
            for input in &node.inputs {
                lifetimes.last_read[input.0] = lifetimes.last_read[input.0].max(tick);
            }
        }
        graph.outputs().iter().for_each(|value| lifetimes.last_read[value.0] = Some(usize::MAX));
        lifetimes
    }

    /// The outputs of part `number`. The first ones pass to the next part; the second result is their count.
    fn across(&self, number: usize) -> (Vec<ValueId>, usize) {
        let tick = Time::Part(number).tick();
        let written = (0..self.written.len()).filter(|value| self.written[*value].is_some_and(|at| at <= tick));
        let given = written.map(ValueId).filter(|value| self.last_read[value.0] > Some(tick));
        let (carried, read_here): (Vec<ValueId>, Vec<_>) = given.partition(|value| self.outlives(*value, number));
        let count = carried.len();
        (carried.into_iter().chain(read_here).collect(), count)
    }

    /// Whether a value is read after removed op `number`.
    fn outlives(&self, value: ValueId, number: usize) -> bool {
        self.last_read[value.0] >= Some(Time::Part(number + 1).tick())
    }
}
