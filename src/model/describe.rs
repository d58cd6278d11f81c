//! The layers of a model in words.

use std::fmt;

use cuelight_shaders::attention::Window;

use super::layer::{
    AttentionLayer, DenseSizes, EntryPools, ExpertSizes, FeedForwardSpec, GroupIndexer, Heads, LayerSpec, MixerSpec,
    PositionSelection, SpaceLayer,
};

/// Layers that are built in the same way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayerGroup {
    /// How many.
    pub count: usize,
    /// Their mixer.
    pub mixer: String,
    /// Their feed-forward.
    pub feed_forward: String,
}

/// The groups of layers, in the order of their first layers.
#[must_use]
pub fn groups(layers: &[LayerSpec]) -> Vec<LayerGroup> {
    let mut groups: Vec<LayerGroup> = Vec::new();
    for layer in layers {
        let (mixer, feed_forward) = (layer.mixer.to_string(), layer.feed_forward.to_string());
        match groups.iter_mut().find(|group| group.mixer == mixer && group.feed_forward == feed_forward) {
            Some(group) => group.count += 1,
            None => groups.push(LayerGroup { count: 1, mixer, feed_forward }),
        }
    }
    groups
}

impl fmt::Display for MixerSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MixerSpec::Attention(attention) => write!(f, "{attention}"),
            MixerSpec::SelectiveAttention(attention, indexer) => {
                write!(f, "{attention}, ")?;
                match indexer {
                    GroupIndexer::Shared(one) => write!(f, "selects {} positions in pools of {}", one.top_k, one.pool),
                    GroupIndexer::OfEach(one) => {
                        write!(f, "each selects {} pools of {} positions", one.top_k, one.pool)
                    }
                }
            }
            MixerSpec::LatentAttention(attention, sizes, selection) => {
                write!(f, "latent attention, {} heads of rank {}", attention.heads.n_heads, sizes.rank)?;
                match selection {
                    Some(PositionSelection::Own(indexer)) if indexer.pool > 1 => {
                        write!(f, ", selects {} positions in pools of {}", indexer.top_k, indexer.pool)
                    }
                    Some(PositionSelection::Own(indexer)) => write!(f, ", selects {} positions", indexer.top_k),
                    Some(PositionSelection::OfEarlierLayer) => f.write_str(", positions of an earlier layer"),
                    None => Ok(()),
                }
            }
            MixerSpec::PooledAttention(attention, sizes) => {
                write!(f, "{attention}")?;
                match sizes.pools {
                    Some(EntryPools { pool, indexer: Some(indexer), .. }) => {
                        write!(f, ", {} pools of {pool}", indexer.top_k)
                    }
                    Some(EntryPools { pool, .. }) => write!(f, ", all pools of {pool}"),
                    None => Ok(()),
                }
            }
            MixerSpec::GatedDelta(delta) => {
                let shape = &delta.shape;
                write!(f, "gated delta rule, {} heads of {}", shape.value_heads, shape.value_dim)
            }
            MixerSpec::KeyDelta(delta) => {
                let shape = &delta.shape;
                write!(f, "delta rule with a decay per key, {} heads of {}", shape.value_heads, shape.value_dim)
            }
            MixerSpec::ShortConv(conv) => write!(f, "convolution over {} rows", conv.width),
            MixerSpec::SelectiveScan(scan) => {
                write!(f, "selective scan, {} channels of {}", scan.shape.channels, scan.shape.state_dim)
            }
            MixerSpec::StateSpace(space) => write!(f, "{space}"),
            MixerSpec::AttentionNextToStateSpace(attention, space) => write!(f, "{attention}; {space}"),
            MixerSpec::Matrix => f.write_str("one matrix"),
            MixerSpec::None => f.write_str("no mixer"),
        }
    }
}

impl fmt::Display for AttentionLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Heads { n_heads, n_kv_heads, head_dim, .. } = self.heads;
        write!(f, "attention, {n_heads} heads of {head_dim}, {n_kv_heads} of keys and values")?;
        match self.window {
            Some(Window::Last(positions)) if self.sees_later => write!(f, ", window of {}", 2 * positions - 1)?,
            Some(Window::Last(positions)) => write!(f, ", window of {positions}")?,
            Some(Window::Chunk(positions)) => write!(f, ", chunks of {positions}")?,
            Some(Window::From(first)) => write!(f, ", from position {first} on")?,
            Some(Window::Before(rows)) => write!(f, ", to {rows} rows of the encoder")?,
            None => {}
        }
        if self.sees_later {
            f.write_str(", both ways")?;
        }
        if self.reads_layer.is_some() { f.write_str(" of an earlier layer") } else { Ok(()) }
    }
}

impl fmt::Display for SpaceLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "state space, {} heads of {}", self.shape.heads, self.shape.head_dim)
    }
}

impl fmt::Display for FeedForwardSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FeedForwardSpec::Dense(dense) => write!(f, "{dense}"),
            FeedForwardSpec::Experts(experts) => write!(f, "{experts}"),
            FeedForwardSpec::ExpertsNextToDense(experts, dense) => write!(f, "{dense}; {experts}"),
            FeedForwardSpec::None => f.write_str("no feed-forward"),
        }
    }
}

impl fmt::Display for DenseSizes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "feed-forward of {}", self.intermediate_size)
    }
}

impl fmt::Display for ExpertSizes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} experts of {}", self.top_k, self.n_experts, self.intermediate_size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ModelGraph;
    use crate::synthetic::Synthetic;

    #[test]
    fn equal_layers_are_counted_together() {
        let synthetic: Synthetic = "qwen3.5-35b-a3b:q4_k_m".parse().unwrap();
        let model = ModelGraph::build(&synthetic.outline().unwrap().0).unwrap();
        let groups = groups(&model.hyperparameters.layers);
        let shown: Vec<String> =
            groups.iter().map(|group| format!("{} {} | {}", group.count, group.mixer, group.feed_forward)).collect();
        let experts = "8 of 256 experts of 512";
        assert_eq!(
            shown,
            [
                format!("30 gated delta rule, 32 heads of 128 | {experts}"),
                format!("10 attention, 16 heads of 256, 2 of keys and values | {experts}")
            ]
        );
    }
}
