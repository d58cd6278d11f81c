//! A graph that asks for experts in their file before it computes them: see [`ReadAhead`].

use std::any::Any;
use std::sync::Arc;

use cuelight_shaders::experts::{Experts, NextLayer, ReadAhead, Reader, Route};
use cuelight_shaders::matmul::Linear;
use cuelight_shaders::op::Op;
use cuelight_shaders::rms_norm::RmsNorm;

use super::{Graph, Node, ValueId};

/// How a layer chooses its experts, and by what.
struct Router<'g> {
    /// The residual stream.
    x: ValueId,
    norm: &'g RmsNorm,
    linear: &'g Linear,
    route: &'g Route,
}

impl Graph {
    /// The same graph, which asks for the experts that are left in their file when they have been routed to, and, with
    /// `ahead`, has those of the next layer read at the same time, by what its router makes of the residual stream that is
    /// there.
    #[must_use]
    pub fn with_read_ahead(mut self, reader: &Arc<Reader>, ahead: bool) -> Self {
        let layers: Vec<usize> =
            (0..self.nodes.len()).filter(|index| self.nodes[*index].op.as_experts().is_some()).collect();
        let next_layers = layers.iter().skip(1).map(|next| Some(*next)).chain([None]);
        let asks: Vec<(usize, Node)> = layers
            .iter()
            .zip(next_layers)
            .filter_map(|(layer, next)| Some((*layer, self.asks_before(*layer, next.filter(|_| ahead), reader)?)))
            .collect();
        for (place, node) in asks.into_iter().rev() {
            self.nodes.insert(place, node);
        }
        self
    }

    /// What is asked for before the experts of a layer are computed.
    fn asks_before(&self, layer: usize, next: Option<usize>, reader: &Arc<Reader>) -> Option<Node> {
        let [experts, next_experts] = [Some(layer), next].map(|layer| layer.map(|layer| &self.nodes[layer]));
        let experts = experts?;
        let router = self.router_of(experts);
        let next = next_experts.and_then(|next| {
            let (_, experts, Router { norm, linear, route, .. }) =
                (router.as_ref()?, in_file(next)?, self.router_of(next)?);
            Some(NextLayer { norm: norm.clone(), router: linear.clone(), route: route.clone(), experts })
        });
        let own = in_file(experts);
        if own.is_none() && next.is_none() {
            return None;
        }
        let [x, routes] = experts.inputs[..] else { return None };
        // Without a next layer the rows do not count.
        let inputs = vec![router.map_or(x, |router| router.x), routes];
        let op = ReadAhead::new(own, next, Arc::clone(reader));
        let widths: Vec<usize> = inputs.iter().map(|input| self.width(*input)).collect();
        op.output_widths(&widths).ok()?;
        Some(Node { op: Box::new(op), inputs, outputs: Vec::new() })
    }

    /// How experts are chosen, where that is a norm, a product and a choice.
    fn router_of(&self, experts: &Node) -> Option<Router<'_>> {
        let (route, logits) = self.made_by::<Route>(*experts.inputs.get(1)?)?;
        let (linear, normed) = self.made_by::<Linear>(logits)?;
        let (norm, x) = self.made_by::<RmsNorm>(normed)?;
        Some(Router { x, norm, linear, route })
    }

    /// The op that makes a value alone, if it is one of these, and the value that it makes it of.
    fn made_by<Wanted: Op>(&self, value: ValueId) -> Option<(&Wanted, ValueId)> {
        let node = self.nodes.iter().find(|node| node.outputs[..] == [value])?;
        let op: &dyn Any = &*node.op;
        Some((op.downcast_ref()?, *node.inputs.first()?))
    }
}

/// A layer's experts, if they are left in their file.
fn in_file(node: &Node) -> Option<Experts> {
    node.op.as_experts().filter(|experts| experts.is_left_in_file()).cloned()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::model::Model;
    use crate::synthetic::Synthetic;

    fn graph_of(model: &str) -> Graph {
        let synthetic: Synthetic = model.parse().unwrap();
        Model::build(&synthetic.outline().unwrap().0).unwrap().graph
    }

    /// How many routers there are where something is asked for, in a graph with these layers' experts in the file.
    fn asks(model: &str, in_file: &[usize], ahead: bool) -> Vec<usize> {
        let mut graph = graph_of(model);
        for (layer, experts) in graph.experts_mut().enumerate() {
            if in_file.contains(&layer) {
                experts.leave_in_file();
            }
        }
        let before = graph.nodes().len();
        let graph = graph.with_read_ahead(&Arc::new(Reader::start().unwrap()), ahead);
        let asks = graph.nodes().iter().filter(|node| node.op.name() == "read_ahead");
        let routers: Vec<usize> = asks.map(|node| node.op.weights().len()).collect();
        assert_eq!(graph.nodes().len(), before + routers.len());
        for pair in graph.nodes().windows(2).filter(|pair| pair[0].op.name() == "read_ahead") {
            assert!(pair[1].op.as_experts().is_some() && pair[0].inputs[1] == pair[1].inputs[1]);
        }
        routers
    }

    #[test]
    fn a_layer_looks_ahead_where_the_next_has_experts_in_the_file() {
        for model in ["qwen3-moe-8x32:q4_k_m", "gpt-oss-20b:mxfp4_moe"] {
            assert_eq!(asks(model, &[], true), [0; 0], "{model}");
            assert_eq!(asks(model, &[0], true), [0], "{model}");
            assert_eq!(asks(model, &[4], true), [1, 0], "{model}");
            // Layers 1 and 4 ask only for the next, 3 and 5 only for their own.
            assert_eq!(asks(model, &[2, 3, 5], true), [1, 1, 0, 1, 0], "{model}");
            assert_eq!(asks(model, &[2, 3], false), [0, 0], "{model}");
        }
    }
}
