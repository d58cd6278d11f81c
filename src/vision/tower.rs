//! The ops of a vision tower: from patches to rows, one for each patch and one for the class token where there is one.
//!
//! Rows are the patches of one tile, and each sees all of them. The token of a row is its row in the table of positions.
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
use cuelight_shaders::reorder_columns::ReorderColumns;
use cuelight_shaders::rms_norm::RmsNorm;
use cuelight_shaders::scale::Scale;
use cuelight_shaders::scale_columns::ScaleColumns;
use cuelight_shaders::weight::Weight;

use super::family::Family;
use super::positions::Encoding;
use super::sizes::{TowerActivation, TowerSizes};
use crate::graph::{Graph, ValueId};
use crate::model::builder::BuildError;
use crate::model::weights::Weights;

/// The layer of the cache that holds keys and values: each layer replaces those of the layer before it.
const SHARED_LAYER: usize = 0;
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
    /// The factors of rotated queries and keys, and of the other values of their pairs.
    pub rotation: Option<[ValueId; 2]>,
}

/// Whether the first row of a tile is that of a class token, which has no patch.
#[must_use]
pub fn has_class_token(weights: &Weights<'_>) -> bool {
    weights.has(CLASS)
}

/// The keys and values of a tower.
#[must_use]
pub fn kv_shape(sizes: &TowerSizes) -> KvShape {
    KvShape::grouped(sizes.heads, sizes.hidden / sizes.heads)
}

impl TowerBuilder<'_, '_> {
    /// Appends all ops of the tower, from the patches, [rows, values of a patch], to the rows, [rows, hidden].
    ///
    /// # Errors
    /// [`BuildError`] when a tensor is missing or has the wrong shape.
    pub fn build(&mut self) -> Result<(), BuildError> {
        let mut x = self.embed_patches()?;
        x = self.optional_norm("v.pre_ln", x)?;
        for layer in 0..self.sizes.layers {
            x = self.layer(&format!("v.blk.{layer}"), x)?;
        }
        if self.sizes.has_last_layer {
            x = self.optional_norm("v.post_ln", x)?;
        }
        if let Some(stem) = self.family.norm_before_merging {
            self.optional_norm(stem, x)?;
        }
        Ok(())
    }

    /// The patches times the kernel of the convolution, plus the embeddings of their positions.
    fn embed_patches(&mut self) -> Result<ValueId, BuildError> {
        let TowerSizes { patches, hidden, .. } = self.sizes;
        let pixels = self.graph.take(patches.width());
        if self.family.positions == Encoding::Rotation {
            self.rotation = Some([*hidden; 2].map(|width| self.graph.take(width)));
        }
        let kernel = self.weights.flattened("v.patch_embd.weight", *hidden, patches.width())?;
        let bias = self.weights.optional_vector("v.patch_embd.bias", *hidden)?;
        let x = self.graph.push_one(Linear::new(vec![kernel], vec![bias.clone()])?, &[pixels])?;
        if self.rotation.is_some() {
            return Ok(x);
        }
        let table = self.position_table(bias)?;
        let positions = self.graph.push_one(Embed::new(table, 1.0), &[])?;
        Ok(self.graph.push_one(Add, &[x, positions])?)
    }

    /// The embeddings of positions. That of the class token is added to its own, without the bias of patches, as its patch is 0.
    fn position_table(&mut self, bias: Option<Arc<[f32]>>) -> Result<Weight, BuildError> {
        const TABLE: &str = "v.position_embd.weight";
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
        let [query, key] = [self.rotate(query)?, self.rotate(key)?];
        let kv = kv_shape(self.sizes);
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

    /// Each value times its factor, plus the other one of its pair times that one's.
    fn rotate(&mut self, x: ValueId) -> Result<ValueId, BuildError> {
        let Some([own, of_partner]) = self.rotation else { return Ok(x) };
        let order = self.sizes.rotation().partners();
        let partners = self.graph.push_one(ReorderColumns::new(order.into()), &[x])?;
        let times = |factors: ValueId, x: ValueId, graph: &mut Graph| {
            graph.push_one(Glu::new(Activation::Bilinear), &[factors, x])
        };
        let (x, partners) = (times(own, x, &mut self.graph)?, times(of_partner, partners, &mut self.graph)?);
        Ok(self.graph.push_one(Add, &[x, partners])?)
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
        let TowerSizes { hidden, feed_forward, .. } = *self.sizes;
        let [up, gate, down] = ["ffn_up", "ffn_gate", "ffn_down"].map(|name| format!("{stem}.{name}"));
        // Older converters have exchanged the names.
        let columns = |stem: &String| self.weights.columns(&format!("{stem}.weight"));
        let are_exchanged =
            columns(&down) == Some(hidden) && columns(&up) == Some(feed_forward) && hidden != feed_forward;
        let (up, down) = if are_exchanged { (down, up) } else { (up, down) };
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
