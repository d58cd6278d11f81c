//! Adds ops to a graph that prefetch experts from their file before they are computed; see [`ReadAhead`].

use std::any::Any;
use std::sync::Arc;

use cuelight_shaders::experts::{Experts, NextLayer, ReadAhead, Reader, Route};
use cuelight_shaders::matmul::Linear;
use cuelight_shaders::op::Op;
use cuelight_shaders::rms_norm::RmsNorm;

use super::{Graph, Node, ValueId};

/// The router of a layer and its input.
struct Router<'g> {
    /// The residual stream.
    x: ValueId,
    norm: &'g RmsNorm,
    linear: &'g Linear,
    route: &'g Route,
}

impl Graph {
    /// The same graph with a prefetch op before each layer's experts, where some are left in the file.
    ///
    /// The op requests the experts that rows were routed to. With `ahead` it also requests those of the next layer, predicted by
    /// applying the next layer's router to the current residual stream.
    #[must_use]
    pub fn with_read_ahead(mut self, reader: &Arc<Reader>, ahead: bool) -> Self {
        let layers: Vec<usize> =
            (0..self.nodes.len()).filter(|index| self.nodes[*index].op.as_experts().is_some()).collect();
        let next_layers = layers.iter().skip(1).map(|next| Some(*next)).chain([None]);
        let prefetches: Vec<(usize, Node)> = layers
            .iter()
            .zip(next_layers)
            .filter_map(|(layer, next)| Some((*layer, self.prefetch_before(*layer, next.filter(|_| ahead), reader)?)))
            .collect();
        for (index, node) in prefetches.into_iter().rev() {
            self.nodes.insert(index, node);
        }
        self
    }

    /// The prefetch op before the experts of a layer; `None` if there is nothing to prefetch.
    fn prefetch_before(&self, layer: usize, next: Option<usize>, reader: &Arc<Reader>) -> Option<Node> {
        let [experts, next_experts] = [Some(layer), next].map(|layer| layer.map(|layer| &self.nodes[layer]));
        let experts = experts?;
        let router = self.router_of(experts);
        let next = next_experts.and_then(|next| {
            let (_, experts, Router { norm, linear, route, .. }) = (
                router.as_ref()?,
                in_file(next)?,
                self.router_of(next).filter(|router| !router.route.takes_experts())?,
            );
            Some(NextLayer { norm: norm.clone(), router: linear.clone(), route: route.clone(), experts })
        });
        let own = in_file(experts);
        if own.is_none() && next.is_none() {
            return None;
        }
        let [x, routes] = experts.inputs[..] else { return None };
        // Without a next layer the op does not use the rows.
        let inputs = vec![router.map_or(x, |router| router.x), routes];
        let op = ReadAhead::new(own, next, Arc::clone(reader));
        let widths: Vec<usize> = inputs.iter().map(|input| self.width(*input)).collect();
        op.output_widths(&widths).ok()?;
        Some(Node { op: Box::new(op), inputs, outputs: Vec::new() })
    }

    /// The router of some experts, if it is a norm, a linear op and a routing op.
    fn router_of(&self, experts: &Node) -> Option<Router<'_>> {
        let (route, logits) = self.made_by::<Route>(*experts.inputs.get(1)?)?;
        let (linear, normed) = self.made_by::<Linear>(logits)?;
        let (norm, x) = self.made_by::<RmsNorm>(normed)?;
        Some(Router { x, norm, linear, route })
    }

    /// The op of type `Wanted` whose only output is `value`, and its first input.
    fn made_by<Wanted: Op>(&self, value: ValueId) -> Option<(&Wanted, ValueId)> {
        let node = self.nodes.iter().find(|node| node.outputs[..] == [value])?;
        let op: &dyn Any = &*node.op;
        Some((op.downcast_ref()?, *node.inputs.first()?))
    }
}

/// A layer's experts, if they are left in the file.
fn in_file(node: &Node) -> Option<Experts> {
    node.op.as_experts().filter(|experts| experts.is_left_in_file()).cloned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ModelGraph;
    use crate::synthetic::Synthetic;

    fn graph_of(model: &str) -> Graph {
        let synthetic: Synthetic = model.parse().unwrap();
        ModelGraph::build(&synthetic.outline().unwrap().0).unwrap().graph
    }

    /// For each prefetch op of a graph with these layers' experts in the file, how many routers it has.
    fn prefetches(model: &str, in_file: &[usize], ahead: bool) -> Vec<usize> {
        let mut graph = graph_of(model);
        for (layer, experts) in graph.experts_mut().enumerate() {
            if in_file.contains(&layer) {
                experts.leave_in_file();
            }
        }
        let before = graph.nodes().len();
        let graph = graph.with_read_ahead(&Arc::new(Reader::start().unwrap()), ahead);
        let ops = graph.nodes().iter().filter(|node| node.op.name() == "read_ahead");
        let routers: Vec<usize> = ops.map(|node| node.op.weights().len()).collect();
        assert_eq!(graph.nodes().len(), before + routers.len());
        for pair in graph.nodes().windows(2).filter(|pair| pair[0].op.name() == "read_ahead") {
            assert!(pair[1].op.as_experts().is_some() && pair[0].inputs[1] == pair[1].inputs[1]);
        }
        routers
    }

    #[test]
    fn a_layer_prefetches_for_the_next_if_that_has_experts_in_the_file() {
        for model in ["qwen3-moe-8x32:q4_k_m", "gpt-oss-20b:mxfp4_moe"] {
            assert_eq!(prefetches(model, &[], true), [0; 0], "{model}");
            assert_eq!(prefetches(model, &[0], true), [0], "{model}");
            assert_eq!(prefetches(model, &[4], true), [1, 0], "{model}");
            // Layers 1 and 4 prefetch only for the next layer, 3 and 5 only for themselves.
            assert_eq!(prefetches(model, &[2, 3, 5], true), [1, 1, 0, 1, 0], "{model}");
            assert_eq!(prefetches(model, &[2, 3], false), [0, 0], "{model}");
        }
    }
}
