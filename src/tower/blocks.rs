//! The transformer layers of a tower, each row of which sees all others of its sequence.

use std::cmp::Ordering;
use std::sync::Arc;

use cuelight_shaders::activate::{Activate, Pointwise};
use cuelight_shaders::add::Add;
use cuelight_shaders::attention::{Attention, EachOther, KvShape};
use cuelight_shaders::clamp::Clamp;
use cuelight_shaders::glu::{Activation, Glu};
use cuelight_shaders::layer_norm::LayerNorm;
use cuelight_shaders::matmul::Linear;
use cuelight_shaders::op::ShapeError;
use cuelight_shaders::rms_norm::RmsNorm;
use cuelight_shaders::rope::Rope;
use cuelight_shaders::scale::Scale;
use cuelight_shaders::scale_columns::ScaleColumns;

use crate::graph::{Graph, ValueId};
use crate::model::builder::BuildError;
use crate::model::weights::Weights;

/// The layer of the cache that holds keys and values: each layer replaces those of the layer before it.
const SHARED_LAYER: usize = 0;

/// The sizes of layers.
#[derive(Debug, Clone)]
pub struct BlockSizes {
    /// Values of a row.
    pub hidden: usize,
    /// Heads of attention, which divide `hidden`.
    pub heads: usize,
    /// Heads of keys and values, which divide `heads`.
    pub kv_heads: usize,
    /// The epsilon of norms.
    pub epsilon: f32,
    /// The activation of the feed-forwards.
    pub activation: BlockActivation,
    /// The rotation of queries and keys, if there is one.
    pub rotation: Option<Rope>,
    /// How heads attend.
    pub heads_form: HeadForm,
}

/// How heads attend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeadForm {
    /// Scores are divided by the root of the length of a head.
    Scaled,
    /// Scores stay as they are, and the values of each head have a root mean square of 1.
    NormedValues,
}

/// The activation of the feed-forwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockActivation {
    /// A function of each value.
    Pointwise(Pointwise),
    /// `x / (1 + e^(-1.702 x))`.
    QuickGelu,
    /// SiLU. Where it has a gate, [`Activation::ClampedSilu`] with this limit.
    ClampedSilu(u16),
}

impl BlockActivation {
    /// How SiLU gates the feed-forwards of projectors, with the limit of those of the layers.
    #[must_use]
    pub fn silu_gate(self) -> Activation {
        match self {
            BlockActivation::ClampedSilu(limit) => Activation::ClampedSilu(limit),
            BlockActivation::Pointwise(_) | BlockActivation::QuickGelu => Activation::Silu,
        }
    }
}

impl BlockSizes {
    /// The keys and values of a layer.
    #[must_use]
    pub fn kv(&self) -> KvShape {
        KvShape::grouped(self.kv_heads, self.hidden / self.heads)
    }
}

/// A graph of layers under construction.
pub struct BlockBuilder<'a, 'b> {
    /// The tensors of the file.
    pub weights: &'a mut Weights<'b>,
    /// The ops so far.
    pub graph: Graph,
    /// The sizes of the layers.
    pub sizes: BlockSizes,
}

impl BlockBuilder<'_, '_> {
    /// A norm with the tensors of a stem: a layer norm if it has a bias.
    ///
    /// # Errors
    /// [`BuildError`] when a tensor is missing or has the wrong shape.
    pub fn norm(&mut self, stem: &str, x: ValueId) -> Result<ValueId, BuildError> {
        let width = self.graph.width(x);
        let weight = self.weights.vector(&format!("{stem}.weight"), width)?;
        match self.weights.optional_vector(&format!("{stem}.bias"), width)? {
            Some(bias) => Ok(self.graph.push_one(LayerNorm::new(weight, Some(bias), self.sizes.epsilon)?, &[x])?),
            None => Ok(self.graph.push_one(RmsNorm::new(weight, self.sizes.epsilon), &[x])?),
        }
    }

    /// A norm, if the file has its tensors.
    ///
    /// # Errors
    /// As [`BlockBuilder::norm`].
    pub fn optional_norm(&mut self, stem: &str, x: ValueId) -> Result<ValueId, BuildError> {
        if self.weights.has(&format!("{stem}.weight")) { self.norm(stem, x) } else { Ok(x) }
    }

    /// A norm of each head or of all of them, if the file has its tensors.
    fn optional_head_norm(&mut self, stem: &str, x: ValueId) -> Result<ValueId, BuildError> {
        let (name, length) = (format!("{stem}.weight"), self.sizes.kv().key_dim);
        if length == self.sizes.hidden || self.weights.columns(&name) != Some(length) {
            return self.optional_norm(stem, x);
        }
        let weight = self.weights.vector(&name, length)?;
        Ok(self.graph.push_one(RmsNorm::new(weight, self.sizes.epsilon), &[x])?)
    }

    /// Matrices that share their input, with biases and limits of inputs and outputs where the file has them: (stem, outputs).
    ///
    /// # Errors
    /// [`BuildError`] when a tensor is missing or has the wrong shape.
    pub fn linear(&mut self, outputs: &[(String, usize)], x: ValueId) -> Result<Vec<ValueId>, BuildError> {
        let limits = outputs.iter().map(|(stem, _)| self.limits(stem, "input")).collect::<Result<Vec<_>, _>>()?;
        if limits.windows(2).any(|pair| pair[0] != pair[1]) {
            let alone = outputs.iter().map(|output| Ok(self.linear(std::slice::from_ref(output), x)?[0]));
            return alone.collect();
        }
        let x = self.limited(limits.first().copied().flatten(), x)?;
        let products = self.products(outputs, x)?;
        let of_output = |((stem, _), product): (&(String, usize), ValueId)| {
            let limits = self.limits(stem, "output")?;
            self.limited(limits, product)
        };
        outputs.iter().zip(products).map(of_output).collect()
    }

    /// The least and the largest value of the inputs or outputs of a matrix, if the file limits them.
    fn limits(&mut self, stem: &str, side: &str) -> Result<Option<[f32; 2]>, BuildError> {
        let [least, most] = ["min", "max"].map(|end| self.weights.optional_vector(&format!("{stem}.{side}_{end}"), 1));
        let (least, most) = (least?, most?);
        let limit = |stored: Option<Arc<[f32]>>, none: f32| stored.map_or(none, |stored| stored[0]);
        let limits = [limit(least, f32::NEG_INFINITY), limit(most, f32::INFINITY)];
        if limits[0].partial_cmp(&limits[1]).is_none_or(Ordering::is_gt) {
            let what = format!("number of values from {stem}.{side}_min to {stem}.{side}_max");
            return Err(ShapeError::Mismatch { op: "clamp", what, found: 0, expected: "above 0".into() }.into());
        }
        Ok(Some(limits).filter(|limits| *limits != [f32::NEG_INFINITY, f32::INFINITY]))
    }

    fn limited(&mut self, limits: Option<[f32; 2]>, x: ValueId) -> Result<ValueId, BuildError> {
        let Some(limits) = limits else { return Ok(x) };
        Ok(self.graph.push_one(Clamp::within(limits)?, &[x])?)
    }

    /// The products with matrices, plus biases where the file has them.
    fn products(&mut self, outputs: &[(String, usize)], x: ValueId) -> Result<Vec<ValueId>, BuildError> {
        let columns = self.graph.width(x);
        let (mut matrices, mut biases) = (Vec::new(), Vec::new());
        for (stem, rows) in outputs {
            matrices.push(self.weights.matrix(&format!("{stem}.weight"), *rows, columns)?);
            biases.push(self.weights.optional_vector(&format!("{stem}.bias"), *rows)?);
        }
        Ok(self.graph.push(Linear::new(matrices, biases)?, &[x])?)
    }

    /// The layer of a stem: attention and feed-forward, each after a norm and added to its input. Where the file has its tensors, a
    /// norm follows each too.
    ///
    /// # Errors
    /// As [`BlockBuilder::norm`].
    pub fn layer(&mut self, stem: &str, x: ValueId) -> Result<ValueId, BuildError> {
        let normed = self.norm(&format!("{stem}.ln1"), x)?;
        let attended = self.attention(stem, normed)?;
        self.after_mixer(stem, x, attended)
    }

    /// The rest of a layer with this input, after its attention or what it has instead.
    ///
    /// # Errors
    /// As [`BlockBuilder::norm`].
    pub fn after_mixer(&mut self, stem: &str, x: ValueId, attended: ValueId) -> Result<ValueId, BuildError> {
        let attended = self.optional_norm(&format!("{stem}.attn_post_norm"), attended)?;
        let x = self.add(&format!("{stem}.ls1"), x, attended)?;
        let normed = self.norm(&format!("{stem}.ln2"), x)?;
        let fed = self.feed_forward(stem, normed)?;
        let fed = self.optional_norm(&format!("{stem}.ffn_post_norm"), fed)?;
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
        let BlockSizes { hidden, heads, .. } = self.sizes;
        let [query, key, value] = self.queries_keys_values(stem, x)?;
        let query = self.optional_head_norm(&format!("{stem}.attn_q_norm"), query)?;
        let key = self.optional_head_norm(&format!("{stem}.attn_k_norm"), key)?;
        let kv = self.sizes.kv();
        let (scale, value) = match self.sizes.heads_form {
            HeadForm::Scaled => (1.0 / (kv.key_dim as f32).sqrt(), value),
            HeadForm::NormedValues => {
                let norm = RmsNorm::new(vec![1.0; kv.value_dim].into(), self.sizes.epsilon);
                (1.0, self.graph.push_one(norm, &[value])?)
            }
        };
        let [query, key] = match self.sizes.rotation.clone() {
            None => [query, key],
            Some(rotation) => {
                let rotated = self.graph.push(rotation, &[query, key])?;
                [rotated[0], rotated[1]]
            }
        };
        let op = Attention {
            layer: SHARED_LAYER,
            stores: true,
            n_heads: heads,
            kv,
            scale,
            window: None,
            sees_later: true,
            each_other: EachOther::All,
            softcap: None,
            sinks: None,
            slopes: None,
            selection: None,
        };
        let attended = self.graph.push_one(op.checked()?, &[query, key, value])?;
        Ok(self.linear(&[(format!("{stem}.attn_out"), hidden)], attended)?[0])
    }

    fn queries_keys_values(&mut self, stem: &str, x: ValueId) -> Result<[ValueId; 3], BuildError> {
        let BlockSizes { hidden, heads, kv_heads, .. } = self.sizes;
        let of_keys = hidden / heads * kv_heads;
        let joined = format!("{stem}.attn_qkv");
        if !self.weights.has(&format!("{joined}.weight")) {
            let outputs = [("attn_q", hidden), ("attn_k", of_keys), ("attn_v", of_keys)];
            let outputs = outputs.map(|(name, rows)| (format!("{stem}.{name}"), rows));
            let projected = self.linear(&outputs, x)?;
            return Ok([projected[0], projected[1], projected[2]]);
        }
        let all = hidden + 2 * of_keys;
        let matrix = self.weights.matrix(&format!("{joined}.weight"), all, hidden)?;
        let bias = self.weights.optional_vector(&format!("{joined}.bias"), all)?;
        let rows = [0..hidden, hidden..hidden + of_keys, hidden + of_keys..all];
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
            self.gate(fed[0], fed[1])?
        } else {
            let fed = self.linear(&[(up, feed_forward)], x)?[0];
            self.activate(fed)?
        };
        Ok(self.linear(&[(down, hidden)], fed)?[0])
    }

    fn gate(&mut self, gate: ValueId, up: ValueId) -> Result<ValueId, BuildError> {
        let (gate, activation) = match self.sizes.activation {
            BlockActivation::ClampedSilu(limit) => (gate, Activation::ClampedSilu(limit)),
            BlockActivation::Pointwise(_) | BlockActivation::QuickGelu => (self.activate(gate)?, Activation::Bilinear),
        };
        Ok(self.graph.push_one(Glu::new(activation), &[gate, up])?)
    }

    fn activate(&mut self, x: ValueId) -> Result<ValueId, BuildError> {
        const QUICK_GELU_SLOPE: f32 = 1.702;
        match self.sizes.activation {
            BlockActivation::Pointwise(function) => Ok(self.graph.push_one(Activate::new(function), &[x])?),
            BlockActivation::ClampedSilu(_) => Ok(self.graph.push_one(Activate::new(Pointwise::Silu), &[x])?),
            BlockActivation::QuickGelu => {
                let gate = self.graph.push_one(Scale::new(QUICK_GELU_SLOPE), &[x])?;
                Ok(self.graph.push_one(Glu::new(Activation::Sigmoid), &[gate, x])?)
            }
        }
    }
}
