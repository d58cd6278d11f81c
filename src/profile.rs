//! The measured time and the minimum work of each op of a step, for benchmarks and timelines.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cuelight_shaders::op::Op;

use crate::graph::Graph;

pub use cuelight_shaders::cost::Cost;

/// One op of a model.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OpLabel {
    /// The name of the op: "linear".
    pub op: &'static str,
    /// The names of its weights without the layer and without `.weight`: "attn_q, attn_k, attn_v". Empty for an op without
    /// weights.
    pub weights: String,
    /// The layer of its weights; `None` if their names do not contain one.
    pub layer: Option<u32>,
}

impl OpLabel {
    fn new(op: &dyn Op) -> Self {
        let names: Vec<(Option<u32>, &str)> = op.weights().iter().map(|weight| split_name(&weight.name)).collect();
        let weights: Vec<&str> = names.iter().map(|(_, name)| *name).collect();
        let layer = names.iter().find_map(|(layer, _)| *layer);
        OpLabel { op: op.name(), weights: weights.join(", "), layer }
    }

    /// The name that the op shares with the same op in other layers: "linear ffn_down".
    #[must_use]
    pub fn kind(&self) -> String {
        if self.weights.is_empty() { self.op.to_owned() } else { format!("{} {}", self.op, self.weights) }
    }
}

/// Splits `blk.7.attn_q.weight` into layer 7 and `attn_q`.
fn split_name(name: &str) -> (Option<u32>, &str) {
    let name = name.strip_suffix(".weight").unwrap_or(name);
    let of_layer = name.strip_prefix("blk.").and_then(|rest| rest.split_once('.'));
    match of_layer.and_then(|(layer, rest)| Some((layer.parse().ok()?, rest))) {
        Some((layer, rest)) => (Some(layer), rest),
        None => (None, name),
    }
}

/// One op of one step, measured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpSpan {
    /// The op.
    pub op: Arc<OpLabel>,
    /// When the op began, relative to the begin of the step.
    pub start: Duration,
    /// How long it took.
    pub elapsed: Duration,
    /// The minimum work of the op.
    pub cost: Cost,
}

/// Records the ops of a step as they run.
pub(crate) struct Profiler {
    labels: Vec<Arc<OpLabel>>,
    spans: Vec<OpSpan>,
    step_began: Instant,
}

impl Profiler {
    /// A profiler for the ops of a graph, in its order.
    pub fn new(graph: &Graph) -> Self {
        let labels = graph.nodes().iter().map(|node| Arc::new(OpLabel::new(&*node.op))).collect();
        Profiler { labels, spans: Vec::new(), step_began: Instant::now() }
    }

    /// Marks the begin of a step.
    pub fn begin(&mut self, at: Instant) {
        self.step_began = at;
    }

    /// Records the next op, which ran from `began` until now.
    pub fn record(&mut self, began: Instant, cost: Cost) {
        self.record_elapsed(began.duration_since(self.step_began), began.elapsed(), cost);
    }

    /// Records the next op, which began `start` after the begin of the step and ran for `elapsed` by the device's clock.
    pub fn record_elapsed(&mut self, start: Duration, elapsed: Duration, cost: Cost) {
        let op = Arc::clone(&self.labels[self.spans.len()]);
        self.spans.push(OpSpan { op, start, elapsed, cost });
    }

    /// Ends the step and returns its ops.
    pub fn finish(&mut self) -> Vec<OpSpan> {
        std::mem::replace(&mut self.spans, Vec::with_capacity(self.labels.len()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cuelight_shaders::matmul::Linear;
    use cuelight_shaders::weight::Weight;

    fn label(names: &[&str]) -> OpLabel {
        let weights: Vec<Weight> = names.iter().map(|name| Weight::from_f32(name, 1, 1, &[0.0])).collect();
        let biases = vec![None; weights.len()];
        OpLabel::new(&Linear::new(weights, biases).expect("weights of equal width"))
    }

    #[test]
    fn ops_are_named_after_their_weights_and_grouped_across_layers() {
        let label = label(&["blk.12.attn_q.weight", "blk.12.attn_k.weight"]);
        assert_eq!(label, OpLabel { op: "linear", weights: "attn_q, attn_k".into(), layer: Some(12) });
        assert_eq!(label.kind(), "linear attn_q, attn_k");
    }

    #[test]
    fn a_weight_outside_the_layers_keeps_its_full_name() {
        assert_eq!(label(&["output.weight"]), OpLabel { op: "linear", weights: "output".into(), layer: None });
        assert_eq!(label(&["blk.x.odd"]).weights, "blk.x.odd");
    }
}
