//! Which device computes which layers of a model on several devices.
//!
//! A graph is cut between layers, where only one value crosses: the residual stream. The first part has the embedding, the last
//! the output head.

use std::collections::HashSet;

use crate::graph::{Graph, Node, Rows};

/// How a model is divided among devices.
#[derive(Debug, Clone, PartialEq)]
pub enum Split {
    /// In proportion to these shares of the layers' bytes, one for each device.
    Shares(Vec<f64>),
    /// This many layers, counted from the last, and the output head on the second of two devices; the others on the first.
    LastLayers(usize),
}

/// Why a model cannot be divided as requested.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SplitError {
    /// The model has too few layers.
    #[error("the model has {layers} layers, too few for {devices} devices")]
    TooFewLayers {
        /// Number of layers of the model.
        layers: usize,
        /// Number of devices.
        devices: usize,
    },
    /// The number of shares differs from the number of devices.
    #[error("{shares} shares of the layers were given for {devices} devices")]
    WrongShares {
        /// Number of shares.
        shares: usize,
        /// Number of devices.
        devices: usize,
    },
    /// A share is not a finite number above 0.
    #[error("a device's share of the layers must be a finite number above 0")]
    BadShare,
}

/// The indices of the ops before which to cut a graph for `devices` devices.
///
/// # Errors
/// [`SplitError`] when the model cannot be divided as requested.
pub fn cuts(graph: &Graph, split: &Split, devices: usize) -> Result<Vec<usize>, SplitError> {
    let starts = layer_starts(graph);
    match split {
        Split::LastLayers(count) => {
            let first = starts.len().saturating_sub(*count);
            // With no layers or all of them, one of the two devices would have none.
            let cut = starts.get(first).filter(|_| first > 0);
            cut.map(|start| vec![*start]).ok_or(SplitError::TooFewLayers { layers: starts.len(), devices })
        }
        Split::Shares(shares) => by_shares(graph, &starts, shares, devices),
    }
}

/// Number of layers of the graph: of its mixers, each of which may be several ops with the state of one layer.
#[must_use]
pub fn layers(graph: &Graph) -> usize {
    let mixers: Vec<(usize, &str)> =
        graph.nodes().iter().filter_map(|node| Some((node.op.state_layer()?, node.op.name()))).collect();
    let is_first =
        |index: usize| index == 0 || mixers[index].0 != mixers[index - 1].0 || mixers[index].1 == mixers[index - 1].1;
    (0..mixers.len()).filter(|index| is_first(*index)).count()
}

fn by_shares(graph: &Graph, starts: &[usize], shares: &[f64], devices: usize) -> Result<Vec<usize>, SplitError> {
    let layers = starts.len();
    if shares.len() != devices {
        return Err(SplitError::WrongShares { shares: shares.len(), devices });
    }
    if shares.iter().any(|share| !share.is_finite() || *share <= 0.0) {
        return Err(SplitError::BadShare);
    }
    if layers < devices {
        return Err(SplitError::TooFewLayers { layers, devices });
    }
    let ends = starts.iter().skip(1).copied().chain([graph.nodes().len()]);
    let bytes: Vec<f64> =
        starts.iter().zip(ends).map(|(start, end)| weights_bytes(graph, *start, end) as f64).collect();
    let (all_bytes, all_shares): (f64, f64) = (bytes.iter().sum(), shares.iter().sum());
    let mut cuts = Vec::new();
    let (mut layer, mut assigned, mut target) = (0, 0.0, 0.0);
    for (device, share) in shares[..devices - 1].iter().enumerate() {
        target += share / all_shares * all_bytes;
        // Each device gets at least one layer, and one is left for each further device.
        let most = layers - (devices - 1 - device);
        let first = layer;
        while layer < most && (layer == first || assigned + bytes[layer] / 2.0 <= target) {
            assigned += bytes[layer];
            layer += 1;
        }
        cuts.push(starts[layer]);
    }
    Ok(cuts)
}

/// The first op of each layer: the last op up to its mixer before which the graph can be cut.
fn layer_starts(graph: &Graph) -> Vec<usize> {
    let can_be_cut = |cut: &usize| {
        matches!(graph.values_across(*cut)[..], [value] if graph.rows(value) == Rows::All) && !shares_state(graph, *cut)
    };
    let mixers = (0..graph.nodes().len()).filter(|index| graph.nodes()[*index].op.state_layer().is_some());
    let mut starts: Vec<usize> = mixers.filter_map(|mixer| (1..=mixer).rev().find(can_be_cut)).collect();
    starts.dedup();
    starts
}

/// Whether ops before and after a cut use the state of the same layer.
fn shares_state(graph: &Graph, cut: usize) -> bool {
    let (before, after) = graph.nodes().split_at(cut);
    let of = |nodes: &[Node]| nodes.iter().filter_map(|node| node.op.state_layer()).collect::<HashSet<_>>();
    !of(before).is_disjoint(&of(after))
}

/// Bytes of the weights of some ops, each counted once.
fn weights_bytes(graph: &Graph, start: usize, end: usize) -> u64 {
    let mut seen = HashSet::new();
    let weights = graph.nodes()[start..end].iter().flat_map(|node| node.op.weights());
    weights.filter(|weight| seen.insert(&weight.name)).map(|weight| weight.byte_len() as u64).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ModelGraph;
    use crate::synthetic::Synthetic;

    fn graph() -> Graph {
        // Sixteen layers of equal size.
        let synthetic: Synthetic = "llama-1b:q4_0".parse().unwrap();
        ModelGraph::build(&synthetic.outline().unwrap().0).unwrap().graph
    }

    fn layers_of(graph: Graph, cuts: &[usize]) -> Vec<usize> {
        graph.split(cuts).iter().map(layers).collect()
    }

    #[test]
    fn layers_are_divided_in_proportion() {
        let split = |shares: &[f64]| {
            let graph = graph();
            let cuts = cuts(&graph, &Split::Shares(shares.to_vec()), shares.len()).unwrap();
            layers_of(graph, &cuts)
        };
        assert_eq!(split(&[1.0, 1.0]), [11, 5], "the head is on the last device and has as many bytes as six layers");
        assert_eq!(split(&[1.0, 3.0]).iter().sum::<usize>(), 16);
        assert_eq!(split(&[1e-9, 1.0]), [1, 15]);
        assert_eq!(split(&[1.0, 1e-9]), [15, 1]);
        assert_eq!(split(&[1.0; 16]), [1; 16]);
    }

    #[test]
    fn the_last_layers_are_on_the_device_of_the_head() {
        let graph = graph();
        let cuts = cuts(&graph, &Split::LastLayers(5), 2).unwrap();
        let parts = graph.split(&cuts);
        assert_eq!(parts.iter().map(layers).collect::<Vec<_>>(), [11, 5]);
        assert_eq!(parts[1].inputs().len(), 1);
    }

    #[test]
    fn impossible_splits_are_refused() {
        let refuse = |split: Split, devices| cuts(&graph(), &split, devices).unwrap_err();
        assert_eq!(
            refuse(Split::Shares(vec![1.0; 17]), 17).to_string(),
            "the model has 16 layers, too few for 17 devices"
        );
        assert_eq!(refuse(Split::Shares(vec![1.0]), 2), SplitError::WrongShares { shares: 1, devices: 2 });
        assert_eq!(refuse(Split::Shares(vec![1.0, 0.0]), 2), SplitError::BadShare);
        assert_eq!(refuse(Split::Shares(vec![1.0, f64::NAN]), 2), SplitError::BadShare);
        refuse(Split::LastLayers(0), 2);
        refuse(Split::LastLayers(16), 2);
    }
}
