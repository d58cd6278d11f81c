//! A graph without some of its ops, which somebody else computes: what is left before, between, behind and *beside* them.
//!
//! What an op that was taken out is not needed for can be computed while that op is computed elsewhere, such as the
//! experts that every row uses beside those it is routed to. Those ops are parts of their own.

use std::collections::{HashMap, HashSet};

use cuelight_shaders::op::Op;

use super::{Graph, Node, Rows, ValueId, part};

/// A graph without some of its ops.
#[derive(Debug, Default)]
pub struct CutGraph {
    /// What is left, in order: one more than the ops taken out.
    pub parts: Vec<Graph>,
    /// What can be computed beside ops that were taken out, for those that have something.
    pub beside: Vec<Graph>,
    /// The ops taken out; each stands between two parts.
    pub removed: Vec<Box<dyn Op>>,
    /// For each of them, what becomes of the values that the part before it gives.
    pub handovers: Vec<Handover>,
}

/// How values go from one part of a cut graph to the next, past an op that was taken out between them. The next part takes
/// those that are carried, in this order, then what was made beside the op, and then what the op makes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Handover {
    /// Which of the given values the op reads, in its order.
    pub inputs: Vec<usize>,
    /// Which of them go on.
    pub carried: Vec<usize>,
    /// What can be computed meanwhile.
    pub beside: Option<Beside>,
}

/// A graph that is computed beside an op that was taken out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Beside {
    /// Its number among [`CutGraph::beside`].
    pub graph: usize,
    /// Which of the given values it takes, in its order.
    pub inputs: Vec<usize>,
}

/// When a node is computed: in a part, or beside the op behind that part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Time {
    Part(usize),
    Beside(usize),
    Removed(usize),
}

impl Time {
    /// Orders what is computed one after the other: beside an op is when the op is.
    fn tick(self) -> usize {
        match self {
            Time::Part(number) => 2 * number,
            Time::Beside(number) | Time::Removed(number) => 2 * number + 1,
        }
    }
}

impl Graph {
    /// Takes some ops out, by their numbers, ascending.
    #[must_use]
    pub fn cut_out(self, ops: &[usize]) -> CutGraph {
        let times = self.times(ops);
        // What is asked of the choice of tokens is for the last part alone.
        let choices = self.token_choice.map(|choice| choice.choices);
        let handed_on = self.outputs();
        let lives = Lives::new(&self, &times, choices);
        let mut nodes: HashMap<Time, Vec<Node>> = HashMap::new();
        for (node, time) in self.nodes.into_iter().zip(times) {
            nodes.entry(time).or_default().push(node);
        }
        let mut nodes_at = |time| nodes.remove(&time).unwrap_or_default();
        let graph = |nodes: Vec<Node>, taken: &[ValueId], given: &[ValueId]| {
            part(&self.values, nodes.into_iter(), taken, given, None)
        };
        let mut cut = CutGraph::default();
        let mut taken: Vec<ValueId> = self.inputs.iter().filter(|value| Some(**value) != choices).copied().collect();
        for number in 0..ops.len() {
            let Some(removed) = nodes_at(Time::Removed(number)).pop() else { break };
            let (given, carried) = lives.across(number);
            let place = |value: &ValueId| given.iter().position(|other| other == value).unwrap_or_default();
            cut.parts.push(graph(nodes_at(Time::Part(number)), &taken, &given));
            taken = given[..carried].to_vec();
            let meanwhile = nodes_at(Time::Beside(number));
            let mut handover = Handover {
                inputs: removed.inputs.iter().map(place).collect(),
                carried: (0..carried).collect(),
                beside: None,
            };
            if !meanwhile.is_empty() {
                let is_read = |value: &&ValueId| meanwhile.iter().any(|node| node.inputs.contains(value));
                let reads: Vec<ValueId> = given.iter().filter(is_read).copied().collect();
                let written = meanwhile.iter().flat_map(|node| &node.outputs);
                let made: Vec<ValueId> = written.filter(|value| lives.outlives(**value, number)).copied().collect();
                handover.beside = Some(Beside { graph: cut.beside.len(), inputs: reads.iter().map(place).collect() });
                cut.beside.push(graph(meanwhile, &reads, &made));
                taken.extend(made);
            }
            taken.extend(removed.outputs);
            cut.handovers.push(handover);
            cut.removed.push(removed.op);
        }
        taken.extend(choices);
        let last = nodes_at(Time::Part(ops.len())).into_iter();
        cut.parts.push(part(&self.values, last, &taken, &handed_on, self.token_choice));
        cut
    }

    /// When each node is computed, if these are computed elsewhere.
    fn times(&self, removed: &[usize]) -> Vec<Time> {
        let mut times = Vec::with_capacity(self.nodes.len());
        let starts = std::iter::once(0).chain(removed.iter().map(|op| op + 1));
        let ends = removed.iter().copied().chain([self.nodes.len()]);
        let mut before: Option<&Node> = None;
        for (number, (start, end)) in starts.zip(ends).enumerate() {
            let nodes = &self.nodes[start..end];
            let next = self.nodes.get(end);
            // Keys and values are stored in their turn, and rows that reach the head belong to the last part.
            let can_move = |node: &Node| {
                let of_all_rows = |value: &ValueId| self.rows(*value) == Rows::All;
                node.op.kv_layer().is_none() && node.inputs.iter().chain(&node.outputs).all(of_all_rows)
            };
            // What the op before made is needed for these, one by the other.
            let mut late: HashSet<ValueId> = before.iter().flat_map(|node| &node.outputs).copied().collect();
            let waits = nodes.iter().map(|node| {
                let waits = !can_move(node) || node.inputs.iter().any(|input| late.contains(input));
                late.extend(node.outputs.iter().filter(|_| waits));
                waits
            });
            let waits: Vec<bool> = waits.collect();
            // And these are needed for the next op, seen from the end.
            let mut needed: HashSet<ValueId> = next.iter().flat_map(|node| &node.inputs).copied().collect();
            let mut leads = vec![false; nodes.len()];
            for (leads, node) in leads.iter_mut().zip(nodes).rev() {
                *leads = !can_move(node) || node.outputs.iter().any(|output| needed.contains(output));
                needed.extend(node.inputs.iter().filter(|_| *leads));
            }
            let time = |(waits, leads): (&bool, &bool)| match (before, next) {
                (Some(_), _) if !waits => Time::Beside(number - 1),
                (_, Some(_)) if !leads => Time::Beside(number),
                _ => Time::Part(number),
            };
            times.extend(waits.iter().zip(&leads).map(time));
            times.extend(next.map(|_| Time::Removed(number)));
            before = next;
        }
        times
    }
}

/// When values are written, and when they are read last.
struct Lives {
    written: Vec<Option<usize>>,
    last_read: Vec<Option<usize>>,
}

impl Lives {
    /// Of all values but one that only the last part knows.
    fn new(graph: &Graph, times: &[Time], but: Option<ValueId>) -> Self {
        let mut lives = Lives { written: vec![None; graph.values.len()], last_read: vec![None; graph.values.len()] };
        for input in graph.inputs.iter().filter(|input| Some(**input) != but) {
            lives.written[input.0] = Some(0);
        }
        for (node, time) in graph.nodes.iter().zip(times) {
            let tick = Some(time.tick());
            node.outputs.iter().for_each(|output| lives.written[output.0] = tick);
            for input in &node.inputs {
                lives.last_read[input.0] = lives.last_read[input.0].max(tick);
            }
        }
        graph.outputs().iter().for_each(|value| lives.last_read[value.0] = Some(usize::MAX));
        lives
    }

    /// What part `number` gives, and how many of these, the first ones, go on to the next part.
    fn across(&self, number: usize) -> (Vec<ValueId>, usize) {
        let tick = Time::Part(number).tick();
        let written = (0..self.written.len()).filter(|value| self.written[*value].is_some_and(|at| at <= tick));
        let given = written.map(ValueId).filter(|value| self.last_read[value.0] > Some(tick));
        let (carried, read_here): (Vec<ValueId>, Vec<_>) = given.partition(|value| self.outlives(*value, number));
        let count = carried.len();
        (carried.into_iter().chain(read_here).collect(), count)
    }

    /// Whether a value is read in a part behind op `number`.
    fn outlives(&self, value: ValueId, number: usize) -> bool {
        self.last_read[value.0] >= Some(Time::Part(number + 1).tick())
    }
}
