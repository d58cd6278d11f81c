//! The ops of a vision tower: from patches to rows, one for each patch and one for the class token where there is one.
//!
//! Rows are the patches of one tile, and each sees all of them, or those of its window. The token of a row is its row in the table
//! of positions. Layers that see alike are a segment, which also ends after a layer whose rows leave the tower.
//!
//! Source: Dosovitskiy et al. 2020, "An Image is Worth 16x16 Words"; Zhai et al. 2023, "Sigmoid Loss for Language Image
//! Pre-Training".

use std::sync::Arc;

use cuelight_shaders::activate::{Activate, Pointwise};
use cuelight_shaders::add::Add;
use cuelight_shaders::attention::{Attention, KvShape};
use cuelight_shaders::embed::Embed;
use cuelight_shaders::glu::{Activation, Glu};
use cuelight_shaders::layer_norm::LayerNorm;
use cuelight_shaders::matmul::Linear;
use cuelight_shaders::rms_norm::RmsNorm;
use cuelight_shaders::scale::Scale;
use cuelight_shaders::scale_columns::ScaleColumns;
use cuelight_shaders::weight::Weight;

use super::family::Family;
use super::positions::{Encoding, PositionTable};
use super::sizes::{TowerActivation, TowerSizes};
use crate::graph::{Graph, ValueId};
use crate::model::builder::BuildError;
use crate::model::weights::Weights;

/// The layer of the cache that holds keys and values: each layer replaces those of the layer before it.
const SHARED_LAYER: usize = 0;
/// The tensor of the table of positions.
const TABLE: &str = "v.position_embd.weight";
/// The tensor of the class token.
const CLASS: &str = "v.class_embd";

/// A graph of a vision tower under construction.
pub struct TowerBuilder<'a, 'b> {
    /// The tensors of the file.
    pub weights: &'a mut Weights<'b>,
    /// The ops so far.
    pub graph: Graph,
    /// The sizes of the tower.
    pub sizes: &'a TowerSizes,
    /// How its layers are built.
    pub family: &'static Family,
}

/// Consecutive layers of a tower. The output of one segment is the input of the next.
pub struct Segment {
    /// The ops.
    pub graph: Graph,
    /// How the tower runs them.
    pub kind: SegmentKind,
}

/// How a tower runs a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentKind {
    /// Whether rows see those of their window only.
    pub is_windowed: bool,
    /// Whether its output is also turned into values for a layer of the text model.
    pub is_deep: bool,
}

/// Whether the first row of a tile is that of a class token, which has no patch.
#[must_use]
pub fn has_class_token(weights: &Weights<'_>) -> bool {
    weights.has(CLASS)
}

/// The table that is stretched to tiles, if the family has one.
///
/// # Errors
/// [`BuildError`] when the tensor is missing or has the wrong shape.
pub fn stretched_table(
    weights: &mut Weights<'_>,
    family: &Family,
    sizes: &TowerSizes,
) -> Result<Option<PositionTable>, BuildError> {
    let TowerSizes { grid: side, hidden, .. } = *sizes;
    match family.positions {
        Encoding::Table | Encoding::Rotation(_) => Ok(None),
        Encoding::TableAndRotation(_) => {
            let values = weights.flattened(TABLE, side * side, hidden)?.to_f32();
            Ok(Some(PositionTable { values: values.into(), side }))
        }
    }
}

/// The keys and values of a tower.
#[must_use]
pub fn kv_shape(sizes: &TowerSizes) -> KvShape {
    KvShape::grouped(sizes.heads, sizes.hidden / sizes.heads)
}

impl TowerBuilder<'_, '_> {
    /// All segments of the tower, from the patches, [rows, values of a patch], to the rows, [rows, hidden].
    ///
    /// # Errors
    /// [`BuildError`] when a tensor is missing or has the wrong shape.
    pub fn build(mut self) -> Result<Vec<Segment>, BuildError> {
        let (mut segments, layers) = (Vec::new(), self.sizes.layers);
        let mut x = self.embed_patches()?;
        x = self.optional_norm("v.pre_ln", x)?;
        for layer in 0..layers {
            x = self.layer(&format!("v.blk.{layer}"), x)?;
            let kind = self.kind(layer);
            if layer + 1 < layers && (kind.is_deep || kind.is_windowed != self.kind(layer + 1).is_windowed) {
                segments.push(Segment { graph: std::mem::take(&mut self.graph), kind });
                x = self.graph.take(self.sizes.hidden);
            }
        }
        if self.sizes.has_last_layer {
            x = self.optional_norm("v.post_ln", x)?;
        }
        if let Some(stem) = self.family.norm_before_merging {
            self.optional_norm(stem, x)?;
        }
        segments.push(Segment { kind: self.kind(layers - 1), graph: self.graph });
        Ok(segments)
    }

    /// How the segment of a layer is run, if it ends with this one.
    fn kind(&self, layer: usize) -> SegmentKind {
        let is_windowed = self.sizes.windows.is_some_and(|windows| !(layer + 1).is_multiple_of(windows.every));
        SegmentKind { is_windowed, is_deep: self.sizes.deep_layers.contains(&layer) }
    }

    /// The patches times the kernel of the convolution, plus the embeddings of their positions.
    fn embed_patches(&mut self) -> Result<ValueId, BuildError> {
        let TowerSizes { patches, hidden, .. } = self.sizes;
        let pixels = self.graph.take(patches.width());
        let kernel = self.patch_kernel()?;
        let bias = self.weights.optional_vector("v.patch_embd.bias", *hidden)?;
        let x = self.graph.push_one(Linear::new(vec![kernel], vec![bias.clone()])?, &[pixels])?;
        let positions = match self.family.positions {
            Encoding::Rotation(_) => return Ok(x),
            Encoding::TableAndRotation(_) => self.graph.take(*hidden),
            Encoding::Table => {
                let table = self.position_table(bias)?;
                self.graph.push_one(Embed::new(table, 1.0), &[])?
            }
        };
        Ok(self.graph.push_one(Add, &[x, positions])?)
    }

    /// The kernel of patches. Towers for videos have one for each of two frames, which are alike in an image.
    fn patch_kernel(&mut self) -> Result<Weight, BuildError> {
        const KERNELS: [&str; 2] = ["v.patch_embd.weight", "v.patch_embd.weight.1"];
        let (hidden, width) = (self.sizes.hidden, self.sizes.patches.width());
        let first = self.weights.flattened(KERNELS[0], hidden, width)?;
        if !self.weights.has(KERNELS[1]) {
            return Ok(first);
        }
        let mut values = first.to_f32();
        let second = self.weights.flattened(KERNELS[1], hidden, width)?.to_f32();
        values.iter_mut().zip(second).for_each(|(value, second)| *value += second);
        Ok(Weight::from_f32(KERNELS[0], hidden, width, &values))
    }

    /// The embeddings of positions. That of the class token is added to its own, without the bias of patches, as its patch is 0.
    fn position_table(&mut self, bias: Option<Arc<[f32]>>) -> Result<Weight, BuildError> {
        let TowerSizes { grid, hidden, .. } = *self.sizes;
        if !has_class_token(self.weights) {
            return Ok(self.weights.flattened(TABLE, grid * grid, hidden)?);
        }
        let table = self.weights.flattened(TABLE, grid * grid + 1, hidden)?;
        let class = self.weights.flattened(CLASS, 1, hidden)?.to_f32();
        let mut values = table.to_f32();
        for (index, (value, class)) in values.iter_mut().zip(class).enumerate() {
            *value += class - bias.as_ref().map_or(0.0, |bias| bias[index]);
        }
        Ok(Weight::from_f32(TABLE, table.rows, hidden, &values))
    }

    /// A norm with the tensors of a stem: a layer norm if it has a bias.
    ///
    /// # Errors
    /// As [`TowerBuilder::build`].
    pub fn norm(&mut self, stem: &str, x: ValueId) -> Result<ValueId, BuildError> {
        let width = self.graph.width(x);
        let weight = self.weights.vector(&format!("{stem}.weight"), width)?;
        match self.weights.optional_vector(&format!("{stem}.bias"), width)? {
            Some(bias) => Ok(self.graph.push_one(LayerNorm::new(weight, Some(bias), self.sizes.epsilon)?, &[x])?),
            None => Ok(self.graph.push_one(RmsNorm::new(weight, self.sizes.epsilon), &[x])?),
        }
    }

    fn optional_norm(&mut self, stem: &str, x: ValueId) -> Result<ValueId, BuildError> {
        if self.weights.has(&format!("{stem}.weight")) { self.norm(stem, x) } else { Ok(x) }
    }

    /// Matrices that share their input, with biases where the file has them: (stem, outputs).
    ///
    /// # Errors
    /// As [`TowerBuilder::build`].
    pub fn linear(&mut self, outputs: &[(String, usize)], x: ValueId) -> Result<Vec<ValueId>, BuildError> {
        let columns = self.graph.width(x);
        let (mut matrices, mut biases) = (Vec::new(), Vec::new());
        for (stem, rows) in outputs {
            matrices.push(self.weights.matrix(&format!("{stem}.weight"), *rows, columns)?);
            biases.push(self.weights.optional_vector(&format!("{stem}.bias"), *rows)?);
        }
        Ok(self.graph.push(Linear::new(matrices, biases)?, &[x])?)
    }

    /// Attention and feed-forward, each after a norm and added to its input.
    fn layer(&mut self, stem: &str, x: ValueId) -> Result<ValueId, BuildError> {
        let normed = self.norm(&format!("{stem}.ln1"), x)?;
        let attended = self.attention(stem, normed)?;
        let x = self.add(&format!("{stem}.ls1"), x, attended)?;
        let normed = self.norm(&format!("{stem}.ln2"), x)?;
        let fed = self.feed_forward(stem, normed)?;
        self.add(&format!("{stem}.ls2"), x, fed)
    }

    /// The sum of a row and a branch, which is scaled by column where the file has the factors.
    fn add(&mut self, scale: &str, x: ValueId, branch: ValueId) -> Result<ValueId, BuildError> {
        let factors = self.weights.optional_vector(&format!("{scale}.weight"), self.sizes.hidden)?;
        let branch = match factors {
            Some(factors) => self.graph.push_one(ScaleColumns::new(factors), &[branch])?,
            None => branch,
        };
        Ok(self.graph.push_one(Add, &[x, branch])?)
    }

    fn attention(&mut self, stem: &str, x: ValueId) -> Result<ValueId, BuildError> {
        let TowerSizes { hidden, heads, .. } = *self.sizes;
        let [query, key, value] = self.queries_keys_values(stem, x)?;
        let query = self.optional_norm(&format!("{stem}.attn_q_norm"), query)?;
        let key = self.optional_norm(&format!("{stem}.attn_k_norm"), key)?;
        let kv = kv_shape(self.sizes);
        let [query, key] = match self.family.positions.turns() {
            None => [query, key],
            Some(turns) => {
                let rotated = self.graph.push(turns.op(kv.key_dim)?, &[query, key])?;
                [rotated[0], rotated[1]]
            }
        };
        let op = Attention {
            layer: SHARED_LAYER,
            stores: true,
            n_heads: heads,
            kv,
            scale: 1.0 / (kv.key_dim as f32).sqrt(),
            window: None,
            sees_later: true,
            softcap: None,
            sinks: None,
            slopes: None,
            most_selected: None,
        };
        let attended = self.graph.push_one(op.checked()?, &[query, key, value])?;
        Ok(self.linear(&[(format!("{stem}.attn_out"), hidden)], attended)?[0])
    }

    fn queries_keys_values(&mut self, stem: &str, x: ValueId) -> Result<[ValueId; 3], BuildError> {
        let hidden = self.sizes.hidden;
        let joined = format!("{stem}.attn_qkv");
        if !self.weights.has(&format!("{joined}.weight")) {
            let outputs = ["attn_q", "attn_k", "attn_v"].map(|name| (format!("{stem}.{name}"), hidden));
            let projected = self.linear(&outputs, x)?;
            return Ok([projected[0], projected[1], projected[2]]);
        }
        let matrix = self.weights.matrix(&format!("{joined}.weight"), 3 * hidden, hidden)?;
        let bias = self.weights.optional_vector(&format!("{joined}.bias"), 3 * hidden)?;
        let rows = [0, 1, 2].map(|part| part * hidden..(part + 1) * hidden);
        let matrices = rows.clone().map(|rows| matrix.part(rows));
        let biases = rows.map(|rows| bias.as_ref().map(|bias| bias[rows].into()));
        let projected = self.graph.push(Linear::new(matrices.into(), biases.into())?, &[x])?;
        Ok([projected[0], projected[1], projected[2]])
    }

    fn feed_forward(&mut self, stem: &str, x: ValueId) -> Result<ValueId, BuildError> {
        let hidden = self.sizes.hidden;
        let [up, gate, down] = ["ffn_up", "ffn_gate", "ffn_down"].map(|name| format!("{stem}.{name}"));
        // Older converters have exchanged the names.
        let takes_rows = |stem: &String| self.weights.columns(&format!("{stem}.weight")) == Some(hidden);
        let (up, down) = if takes_rows(&down) && !takes_rows(&up) { (down, up) } else { (up, down) };
        // The key of this size has another meaning in some files. A missing tensor is reported as such.
        let feed_forward = self.weights.rows(&format!("{up}.weight")).unwrap_or(1);
        let fed = if self.weights.has(&format!("{gate}.weight")) {
            let fed = self.linear(&[(gate, feed_forward), (up, feed_forward)], x)?;
            let gate = self.activate(fed[0])?;
            self.graph.push_one(Glu::new(Activation::Bilinear), &[gate, fed[1]])?
        } else {
            let fed = self.linear(&[(up, feed_forward)], x)?[0];
            self.activate(fed)?
        };
        Ok(self.linear(&[(down, hidden)], fed)?[0])
    }

    fn activate(&mut self, x: ValueId) -> Result<ValueId, BuildError> {
        const QUICK_GELU_SLOPE: f32 = 1.702;
        let function = match self.sizes.activation {
            TowerActivation::Gelu => self.family.gelu,
            TowerActivation::Silu => Pointwise::Silu,
            TowerActivation::QuickGelu => {
                let gate = self.graph.push_one(Scale::new(QUICK_GELU_SLOPE), &[x])?;
                return Ok(self.graph.push_one(Glu::new(Activation::Sigmoid), &[gate, x])?);
            }
        };
        Ok(self.graph.push_one(Activate::new(function), &[x])?)
    }
}
