//! Which device computes which layers of a model on several devices.
//!
//! A graph is cut between layers, where the fewest values cross: the residual stream, and in some families the inputs of later
//! layers. The first part has the embedding, the last the output head.

use std::collections::{HashMap, HashSet};

use crate::graph::{Graph, Node, Rows};

/// How a model is divided among devices.
#[derive(Debug, Clone, PartialEq)]
pub enum Split {
    /// In proportion to these shares of the layers' bytes, one for each device.
    Shares(Vec<f64>),
    /// At most this many layers, counted from the last, and the output head on the second of two devices; the others on the first.
    LastLayers(usize),
}

/// Why a model cannot be divided as requested.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SplitError {
    /// The model has too few layers, or too many of them read the keys and values of earlier ones.
    #[error("the model can be divided into at most {parts} parts, too few for {devices} devices")]
    TooFewParts {
        /// The largest number of parts.
        parts: usize,
        /// Number of devices.
        devices: usize,
    },
    /// The second device cannot have this many layers.
    #[error("the device can have {fewest} to {most} layers of the model and the CPU the others, so not {count}")]
    LastLayers {
        /// The requested number.
        count: usize,
        /// The smallest number that can be divided from the others.
        fewest: usize,
        /// The largest number.
        most: usize,
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
    match split {
        Split::LastLayers(count) => Ok(vec![before_last_layers(graph, *count)?]),
        Split::Shares(shares) => by_shares(graph, shares, devices),
    }
}

/// Number of layers of the graph: of its mixers, each of which may be several ops with the state of one layer.
#[must_use]
pub fn layers(graph: &Graph) -> usize {
    mixers(graph).len()
}

/// The index of the first op of each mixer. An op without inputs is none, even if it has state.
fn mixers(graph: &Graph) -> Vec<usize> {
    let ops = graph.nodes().iter().enumerate().filter(|(_, node)| !node.inputs.is_empty());
    let stateful: Vec<(usize, (usize, &str))> =
        ops.filter_map(|(index, node)| Some((index, (node.op.state_layer()?, node.op.name())))).collect();
    let is_first = |place: usize| {
        let (_, (layer, name)) = stateful[place];
        place.checked_sub(1).is_none_or(|before| stateful[before].1.0 != layer || stateful[before].1.1 == name)
    };
    (0..stateful.len()).filter(|place| is_first(*place)).map(|place| stateful[place].0).collect()
}

/// The cut that leaves at most `count` layers after it.
fn before_last_layers(graph: &Graph, count: usize) -> Result<usize, SplitError> {
    let layers = layers(graph);
    let starts = starts(graph);
    let inner = || starts.iter().filter(|start| start.layers_before > 0);
    let (Some(first), Some(last)) = (inner().next(), inner().next_back()) else {
        return Err(SplitError::TooFewParts { parts: 1, devices: 2 });
    };
    let [most, fewest] = [first, last].map(|start| layers - start.layers_before);
    let fits = |start: &&Start| layers - start.layers_before <= count;
    let cut = inner().find(fits).filter(|_| count <= most);
    cut.map(|start| start.op).ok_or(SplitError::LastLayers { count, fewest, most })
}

fn by_shares(graph: &Graph, shares: &[f64], devices: usize) -> Result<Vec<usize>, SplitError> {
    let starts: Vec<usize> = starts(graph).iter().map(|start| start.op).collect();
    let parts = starts.len();
    if shares.len() != devices {
        return Err(SplitError::WrongShares { shares: shares.len(), devices });
    }
    if shares.iter().any(|share| !share.is_finite() || *share <= 0.0) {
        return Err(SplitError::BadShare);
    }
    if parts < devices {
        return Err(SplitError::TooFewParts { parts, devices });
    }
    let ends = starts.iter().skip(1).copied().chain([graph.nodes().len()]);
    let bytes: Vec<f64> =
        starts.iter().zip(ends).map(|(start, end)| weights_bytes(graph, *start, end) as f64).collect();
    let (all_bytes, all_shares): (f64, f64) = (bytes.iter().sum(), shares.iter().sum());
    let mut cuts = Vec::new();
    let (mut part, mut assigned, mut target) = (0, 0.0, 0.0);
    for (device, share) in shares[..devices - 1].iter().enumerate() {
        target += share / all_shares * all_bytes;
        // Each device gets at least one part, and one is left for each further device.
        let most = parts - (devices - 1 - device);
        let first = part;
        while part < most && (part == first || assigned + bytes[part] / 2.0 <= target) {
            assigned += bytes[part];
            part += 1;
        }
        cuts.push(starts[part]);
    }
    Ok(cuts)
}

/// A place where a graph can be cut.
struct Start {
    /// The op before which it is cut.
    op: usize,
    /// Number of layers before it.
    layers_before: usize,
}

/// The places between the mixers of successive layers where the fewest values cross, and the one before the first mixer. Layers
/// that share state have none between them.
fn starts(graph: &Graph) -> Vec<Start> {
    let crossing = values_across_cuts(graph);
    let (mut starts, mut after) = (Vec::new(), 0);
    for (layers_before, mixer) in mixers(graph).into_iter().enumerate() {
        let places = (after + 1..=mixer).rev().filter_map(|op| Some((crossing[op]?, op)));
        starts.extend(places.min_by_key(|(values, _)| *values).map(|(_, op)| Start { op, layers_before }));
        after = mixer;
    }
    starts
}

/// How many values cross a cut before each op; `None` where the graph cannot be cut, because a value does not have all rows or
/// ops on both sides use the state of the same layer.
fn values_across_cuts(graph: &Graph) -> Vec<Option<usize>> {
    let mut crossing = vec![Some(0); graph.nodes().len()];
    for (value, (written, read)) in ranges(graph, |node| [&node.outputs[..], &node.inputs].concat()) {
        let has_all_rows = graph.rows(value) == Rows::All;
        crossing[written + 1..=read]
            .iter_mut()
            .for_each(|count| *count = count.filter(|_| has_all_rows).map(|n| n + 1));
    }
    for (_, (first, last)) in ranges(graph, |node| node.op.state_layer()) {
        crossing[first + 1..=last].fill(None);
    }
    crossing
}

/// The first and the last op that uses each thing.
fn ranges<T, Things>(graph: &Graph, used_by: impl Fn(&Node) -> Things) -> HashMap<T, (usize, usize)>
where
    T: Eq + std::hash::Hash,
    Things: IntoIterator<Item = T>,
{
    let mut ranges = HashMap::new();
    for (index, node) in graph.nodes().iter().enumerate() {
        for thing in used_by(node) {
            ranges.entry(thing).or_insert((index, index)).1 = index;
        }
    }
    ranges
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
    fn layers_that_read_the_keys_of_earlier_ones_stay_with_them() {
        let synthetic: Synthetic = "gemma4-e2b:q4_0".parse().unwrap();
        let graph = || ModelGraph::build(&synthetic.outline().unwrap().0).unwrap().graph;
        // The last 20 of 35 layers read the keys and values of the two before them.
        let cuts_of = |count| cuts(&graph(), &Split::LastLayers(count), 2);
        for (count, on_device) in [(22, 22), (34, 34)] {
            let parts = graph().split(&cuts_of(count).unwrap());
            assert_eq!(parts.iter().map(layers).collect::<Vec<_>>(), [35 - on_device, on_device]);
            assert_eq!(parts[1].inputs().len(), 2, "the residual stream and the inputs of the layers");
        }
        assert_eq!(cuts_of(21), Err(SplitError::LastLayers { count: 21, fewest: 22, most: 34 }));
    }

    #[test]
    fn impossible_splits_are_refused() {
        let refuse = |split: Split, devices| cuts(&graph(), &split, devices).unwrap_err();
        assert_eq!(refuse(Split::Shares(vec![1.0; 17]), 17), SplitError::TooFewParts { parts: 16, devices: 17 });
        assert_eq!(refuse(Split::Shares(vec![1.0]), 2), SplitError::WrongShares { shares: 1, devices: 2 });
        assert_eq!(refuse(Split::Shares(vec![1.0, 0.0]), 2), SplitError::BadShare);
        assert_eq!(refuse(Split::Shares(vec![1.0, f64::NAN]), 2), SplitError::BadShare);
        for count in [0, 16] {
            assert_eq!(refuse(Split::LastLayers(count), 2), SplitError::LastLayers { count, fewest: 1, most: 15 });
        }
    }
}
