//! Fuses neighbouring ops of a graph; see [`cuelight_shaders::fusion`].

use cuelight_shaders::fusion;

use super::{Graph, Node, ValueId};

impl Graph {
    /// The same graph with some pairs of neighbouring ops fused. The value between two fused ops is dropped, or becomes an extra
    /// output of the fused op.
    ///
    /// Call this after the graph has been cut for its device: a graph cannot be cut between two fused ops.
    #[must_use]
    pub fn fused(mut self) -> Self {
        let mut readers = vec![0_usize; self.values.len()];
        for value in self.nodes.iter().flat_map(|node| &node.inputs).chain(&self.outputs()) {
            readers[value.0] += 1;
        }
        let mut fused: Vec<Node> = Vec::with_capacity(self.nodes.len());
        for node in std::mem::take(&mut self.nodes) {
            match fused.last().and_then(|last| fuse(last, &node, &readers)) {
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

/// Fuses two neighbours, if there is a fused op for them and no other op reads a value that the fused op drops.
fn fuse(first: &Node, second: &Node, readers: &[usize]) -> Option<Node> {
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
mod tests {
    use super::*;
    use crate::model::ModelGraph;
    use crate::synthetic::Synthetic;
    use cuelight_shaders::add::Add;
    use cuelight_shaders::glu::{Activation, Glu};
    use cuelight_shaders::matmul::Linear;
    use cuelight_shaders::quant::{Format, random};
    use cuelight_shaders::rms_norm::RmsNorm;

    fn names(graph: &Graph) -> Vec<&'static str> {
        graph.nodes().iter().map(|node| node.op.name()).collect()
    }

    fn graph_of(model: &str) -> Graph {
        let synthetic: Synthetic = model.parse().unwrap();
        ModelGraph::build(&synthetic.outline().unwrap().0).unwrap().graph
    }

    #[test]
    fn a_dense_layer_is_fused_to_seven_ops() {
        let graph = graph_of("llama-1b:q4_0").fused();
        let layer = ["linear", "rotated_attention", "linear", "add_norm", "gated_linear", "linear", "add_norm"];
        let names = names(&graph);
        assert_eq!(names[..2], ["embed", "rms_norm"]);
        assert_eq!(names[2..2 + layer.len()], layer);
        let count = |name| names.iter().filter(|found| **found == name).count();
        // The last sum is followed by the selection of rows, so it is not fused with a norm.
        assert_eq!(["rotated_attention", "gated_linear", "add_norm", "add"].map(count), [16, 16, 31, 1]);
    }

    #[test]
    fn a_layer_with_experts_keeps_its_router_and_experts() {
        let names = names(&graph_of("qwen3-30b-a3b:q4_k_m").fused());
        let count = |name| names.iter().filter(|found| **found == name).count();
        assert_eq!(["experts", "route", "rotated_attention", "rope", "add"].map(count), [48, 48, 48, 0, 1]);
        assert_eq!(count("add_norm"), 95);
    }

    #[test]
    fn fusion_keeps_weights_and_outputs() {
        let weights = |graph: &Graph| -> Vec<String> {
            graph.ops().iter().flat_map(|op| op.weights()).map(|weight| weight.name.to_string()).collect()
        };
        for model in ["llama-1b:q4_0", "gemma3-4b:q4_k_m", "qwen3-30b-a3b:q4_k_m"] {
            let (unfused, fused) =
                (graph_of(model).with_token_sampling(), graph_of(model).with_token_sampling().fused());
            assert_eq!(weights(&unfused), weights(&fused), "{model}");
            assert_eq!(unfused.outputs(), fused.outputs(), "{model}");
            assert!(fused.nodes().len() < unfused.nodes().len(), "{model}");
        }
    }

    /// Two projections of one input.
    fn halves() -> Linear {
        let weights = [1, 2].map(|seed| random::weight(&format!("w{seed}"), Format::F16, 4, 4, seed));
        Linear::new(weights.into(), vec![None; 2]).unwrap()
    }

    #[test]
    fn a_value_with_other_readers_stays_an_output() {
        let mut graph = graph_of("llama-1b:q4_0");
        let x = graph.outputs()[0];
        let width = graph.width(x);
        let norm = || RmsNorm::new(vec![1.0; width].into(), 1e-5);
        let sum = graph.push_one(Add, &[x, x]).unwrap();
        let normed = graph.push_one(norm(), &[sum]).unwrap();
        // The fused op also outputs the sum, so other ops can read it.
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
        let is_unfused = |graph: &Graph| names(graph) == ["linear", "glu", "add"];
        graph.push_one(Add, &[gated, halves[1]]).unwrap();
        assert!(is_unfused(&graph.fused()));
    }
}
