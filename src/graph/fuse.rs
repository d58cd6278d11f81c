//! Neighbouring ops of a graph as one: see [`cuelight_shaders::fusion`].

use cuelight_shaders::fusion;

use super::{Graph, Node, ValueId};

impl Graph {
    /// The same graph for a device that computes some neighbours together: what goes from one to the other is then no value
    /// of the graph any more, or comes out beside what follows it.
    ///
    /// To be done when the graph is what one device runs: between two ops that became one it cannot be cut.
    #[must_use]
    pub fn fused(mut self) -> Self {
        let mut readers = vec![0_usize; self.values.len()];
        for value in self.nodes.iter().flat_map(|node| &node.inputs).chain(&self.outputs()) {
            readers[value.0] += 1;
        }
        let mut fused: Vec<Node> = Vec::with_capacity(self.nodes.len());
        for node in std::mem::take(&mut self.nodes) {
            match fused.last().and_then(|last| together(last, &node, &readers)) {
                Some(both) => {
                    fused.pop();
                    fused.push(both);
                }
                None => fused.push(node),
            }
        }
        self.nodes = fused;
        self
    }
}

/// Two neighbours as one, if they are a pair that fuses and nobody misses what goes from one to the other.
fn together(first: &Node, second: &Node, readers: &[usize]) -> Option<Node> {
    let others = second.inputs.strip_prefix(&first.outputs[..])?;
    let fused = fusion::fuse(&*first.op, &*second.op)?;
    let is_read_once = |value: &ValueId| readers[value.0] == 1;
    if !fused.gives_between && !first.outputs.iter().all(is_read_once) {
        return None;
    }
    let given = if fused.gives_between { &first.outputs[..] } else { &[] };
    Some(Node { op: fused.op, inputs: [&first.inputs, others].concat(), outputs: [given, &second.outputs].concat() })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::model::Model;
    use crate::synthetic::Synthetic;
    use cuelight_shaders::elementwise::Add;
    use cuelight_shaders::glu::{Activation, Glu};
    use cuelight_shaders::matmul::Linear;
    use cuelight_shaders::quant::{Format, random};
    use cuelight_shaders::rms_norm::RmsNorm;

    fn names(graph: &Graph) -> Vec<&'static str> {
        graph.nodes().iter().map(|node| node.op.name()).collect()
    }

    fn graph_of(model: &str) -> Graph {
        let synthetic: Synthetic = model.parse().unwrap();
        Model::build(&synthetic.outline().unwrap().0).unwrap().graph
    }

    #[test]
    fn a_dense_layer_becomes_seven_ops() {
        let graph = graph_of("llama-1b:q4_0").fused();
        let layer = ["linear", "rotated_attention", "linear", "add_norm", "gated_linear", "linear", "add_norm"];
        let names = names(&graph);
        assert_eq!(names[..2], ["embed", "rms_norm"]);
        assert_eq!(names[2..2 + layer.len()], layer);
        let count = |name| names.iter().filter(|found| **found == name).count();
        // Behind the last sum rows are selected for the head.
        assert_eq!(["rotated_attention", "gated_linear", "add_norm", "add"].map(count), [16, 16, 31, 1]);
    }

    #[test]
    fn a_layer_of_experts_keeps_its_router_and_its_experts() {
        let names = names(&graph_of("qwen3-30b-a3b:q4_k_m").fused());
        let count = |name| names.iter().filter(|found| **found == name).count();
        assert_eq!(["experts", "route", "rotated_attention", "rope", "add"].map(count), [48, 48, 48, 0, 1]);
        assert_eq!(count("add_norm"), 95);
    }

    #[test]
    fn weights_and_outputs_are_those_of_the_graph_before() {
        let weights = |graph: &Graph| -> Vec<String> {
            graph.ops().iter().flat_map(|op| op.weights()).map(|weight| weight.name.to_string()).collect()
        };
        for model in ["llama-1b:q4_0", "gemma3-4b:q4_k_m", "qwen3-30b-a3b:q4_k_m"] {
            let (apart, fused) = (graph_of(model).with_token_choice(), graph_of(model).with_token_choice().fused());
            assert_eq!(weights(&apart), weights(&fused), "{model}");
            assert_eq!(apart.outputs(), fused.outputs(), "{model}");
            assert!(fused.nodes().len() < apart.nodes().len(), "{model}");
        }
    }

    /// Weights of one shape, side by side.
    fn halves() -> Linear {
        let weights = [1, 2].map(|seed| random::weight(&format!("w{seed}"), Format::F16, 4, 4, seed));
        Linear::new(weights.into(), vec![None; 2]).unwrap()
    }

    #[test]
    fn what_somebody_else_reads_stays_a_value() {
        let mut graph = graph_of("llama-1b:q4_0");
        let x = graph.outputs()[0];
        let width = graph.width(x);
        let norm = || RmsNorm::new(vec![1.0; width].into(), 1e-5);
        let sum = graph.push_one(Add, &[x, x]).unwrap();
        let normed = graph.push_one(norm(), &[sum]).unwrap();
        // The sum is given beside its norm, so that anybody may read it.
        graph.push_one(Add, &[sum, normed]).unwrap();
        let fused = graph.fused();
        assert_eq!(names(&fused)[fused.nodes().len() - 2..], ["add_norm", "add"]);
    }

    #[test]
    fn gates_that_are_read_again_are_not_fused_away() {
        let mut graph = Graph::default();
        graph.values.push(super::super::Value { width: 4, rows: super::super::Rows::All });
        graph.inputs.push(ValueId(0));
        let halves = graph.push(halves(), &[ValueId(0)]).unwrap();
        let gated = graph.push_one(Glu::new(Activation::Silu), &halves).unwrap();
        let alone = |graph: &Graph| names(graph) == ["linear", "glu", "add"];
        graph.push_one(Add, &[gated, halves[1]]).unwrap();
        assert!(alone(&graph.fused()));
    }
}
