//! What each op of a step took, and what it had to do: for benchmarks and timelines.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cuelight_shaders::op::Op;

use crate::graph::Graph;

pub use cuelight_shaders::cost::Cost;

/// One op of a model.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OpLabel {
    /// The op: "linear".
    pub op: &'static str,
    /// Its weights without the layer, and without `.weight`: "attn_q, attn_k, attn_v"; empty without weights.
    pub weights: String,
    /// The layer that its weights belong to, where their names say so.
    pub layer: Option<u32>,
}

impl OpLabel {
    fn new(op: &dyn Op) -> Self {
        let names: Vec<(Option<u32>, &str)> = op.weights().iter().map(|weight| split_name(&weight.name)).collect();
        let weights: Vec<&str> = names.iter().map(|(_, name)| *name).collect();
        let layer = names.iter().find_map(|(layer, _)| *layer);
        OpLabel { op: op.name(), weights: weights.join(", "), layer }
    }

    /// What the op is called together with its like in other layers: "linear ffn_down".
    #[must_use]
    pub fn kind(&self) -> String {
        if self.weights.is_empty() { self.op.to_owned() } else { format!("{} {}", self.op, self.weights) }
    }
}

/// `blk.7.attn_q.weight` as layer 7 and `attn_q`.
fn split_name(name: &str) -> (Option<u32>, &str) {
    let name = name.strip_suffix(".weight").unwrap_or(name);
    let of_layer = name.strip_prefix("blk.").and_then(|rest| rest.split_once('.'));
    match of_layer.and_then(|(layer, rest)| Some((layer.parse().ok()?, rest))) {
        Some((layer, rest)) => (Some(layer), rest),
        None => (None, name),
    }
}

/// One op of one step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpSpan {
    /// Which.
    pub op: Arc<OpLabel>,
    /// When it began, since the step's begin.
    pub start: Duration,
    /// How long it took.
    pub elapsed: Duration,
    /// The least that it had to do.
    pub cost: Cost,
}

/// Notes the ops of a step as they run.
pub(crate) struct Profiler {
    labels: Vec<Arc<OpLabel>>,
    spans: Vec<OpSpan>,
    step_began: Instant,
}

impl Profiler {
    /// For the ops of a graph, in its order.
    pub fn new(graph: &Graph) -> Self {
        let labels = graph.nodes().iter().map(|node| Arc::new(OpLabel::new(&*node.op))).collect();
        Profiler { labels, spans: Vec::new(), step_began: Instant::now() }
    }

    /// A step begins.
    pub fn begin(&mut self, at: Instant) {
        self.step_began = at;
    }

    /// The next op ran from `began` until now.
    pub fn note(&mut self, began: Instant, cost: Cost) {
        self.note_elapsed(began.duration_since(self.step_began), began.elapsed(), cost);
    }

    /// The next op ran for `elapsed`, from `start` after the step's begin on, by a device's clock.
    pub fn note_elapsed(&mut self, start: Duration, elapsed: Duration, cost: Cost) {
        let op = Arc::clone(&self.labels[self.spans.len()]);
        self.spans.push(OpSpan { op, start, elapsed, cost });
    }

    /// The ops of the step, which is over.
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
        OpLabel::new(&Linear::new(weights, biases).expect("weights that fit"))
    }

    #[test]
    fn ops_are_named_by_their_weights_and_grouped_over_the_layers() {
        let label = label(&["blk.12.attn_q.weight", "blk.12.attn_k.weight"]);
        assert_eq!(label, OpLabel { op: "linear", weights: "attn_q, attn_k".into(), layer: Some(12) });
        assert_eq!(label.kind(), "linear attn_q, attn_k");
    }

    #[test]
    fn a_weight_outside_the_layers_has_its_own_name() {
        assert_eq!(label(&["output.weight"]), OpLabel { op: "linear", weights: "output".into(), layer: None });
        assert_eq!(label(&["blk.x.odd"]).weights, "blk.x.odd");
    }
}
