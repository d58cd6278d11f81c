//! The layers of a conformer: half a feed-forward, attention to the last rows, a convolution over them, and half a feed-forward.
//!
//! The token of a row is its position modulo the number of rows that a row sees.
//!
//! Source: Gulati et al. 2020, "Conformer"; Gemma Team 2026, "Gemma 4" and its reference code.

use std::f64::consts::{E, LN_2};
use std::sync::Arc;

use cuelight_shaders::activate::{Activate, Pointwise};
use cuelight_shaders::add::Add;
use cuelight_shaders::attention::{Attention, EachOther, KvShape, Window};
use cuelight_shaders::causal_conv::CausalConv;
use cuelight_shaders::glu::{Activation, Glu};
use cuelight_shaders::heads::SplitHeads;
use cuelight_shaders::layer_state::LayerState;
use cuelight_shaders::recurrent::StatePart;
use cuelight_shaders::scale::Scale;
use cuelight_shaders::scale_columns::ScaleColumns;

use super::sinusoids::sinusoids;
use crate::graph::ValueId;
use crate::model::builder::BuildError;
use crate::tower::blocks::{BlockBuilder, BlockSizes};
use crate::tower::relative::RelativePositions;

/// The layer of the cache that all layers share: each step has all rows of a window.
const SHARED_LAYER: usize = 0;

/// The sizes of conformers that no key has.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Conformer {
    /// The rows that a row sees: itself and those before it.
    pub span: usize,
    /// The rows of a convolution: itself and those before it.
    pub kernel: usize,
    /// The soft cap of scores.
    pub softcap: f32,
    /// The factor of feed-forwards.
    pub feed_forward_factor: f32,
}

impl Conformer {
    /// What a layer stores of a window.
    #[must_use]
    pub fn state(&self, sizes: &BlockSizes) -> LayerState {
        let recurrent_len = CausalConv::state_len(sizes.hidden, self.kernel);
        LayerState { recurrent_len, ..LayerState::of_kv(self.kv(sizes)) }
    }

    /// Keys are longer than values by those for relative positions.
    fn kv(&self, sizes: &BlockSizes) -> KvShape {
        let kv = sizes.kv();
        KvShape { key_dim: kv.key_dim + self.span, ..kv }
    }

    /// Appends the layer of a stem.
    ///
    /// # Errors
    /// [`BuildError`] when a tensor is missing or has the wrong shape.
    pub fn layer(&self, blocks: &mut BlockBuilder<'_, '_>, stem: &str, x: ValueId) -> Result<ValueId, BuildError> {
        let x = self.half_feed_forward(blocks, (stem, ""), x)?;
        let normed = blocks.norm(&format!("{stem}.attn_pre_norm"), x)?;
        let attended = self.attention(blocks, stem, normed)?;
        let attended = blocks.norm(&format!("{stem}.attn_post_norm"), attended)?;
        let x = blocks.graph.push_one(Add, &[x, attended])?;
        // The names of its two norms are exchanged in files.
        let normed = blocks.norm(&format!("{stem}.conv_norm"), x)?;
        let convolved = self.convolution(blocks, stem, normed)?;
        let x = blocks.graph.push_one(Add, &[x, convolved])?;
        let x = self.half_feed_forward(blocks, (stem, "_1"), x)?;
        blocks.norm(&format!("{stem}.ln2"), x)
    }

    /// The feed-forward whose tensors end in `number`, between norms, with its factor and its input.
    fn half_feed_forward(
        &self,
        blocks: &mut BlockBuilder<'_, '_>,
        (stem, number): (&str, &str),
        x: ValueId,
    ) -> Result<ValueId, BuildError> {
        let [up, down] = ["ffn_up", "ffn_down"].map(|name| format!("{stem}.{name}{number}"));
        let normed = blocks.norm(&format!("{stem}.ffn_norm{number}"), x)?;
        // A missing tensor is reported as such.
        let rows = blocks.weights.rows(&format!("{up}.weight")).unwrap_or(1);
        let fed = blocks.linear(&[(up, rows)], normed)?[0];
        let fed = blocks.graph.push_one(Activate::new(Pointwise::Silu), &[fed])?;
        let fed = blocks.linear(&[(down, blocks.sizes.hidden)], fed)?[0];
        let fed = blocks.norm(&format!("{stem}.ffn_post_norm{number}"), fed)?;
        let fed = blocks.graph.push_one(Scale::new(self.feed_forward_factor), &[fed])?;
        Ok(blocks.graph.push_one(Add, &[x, fed])?)
    }

    fn attention(&self, blocks: &mut BlockBuilder<'_, '_>, stem: &str, x: ValueId) -> Result<ValueId, BuildError> {
        let BlockSizes { hidden, heads, .. } = blocks.sizes;
        let outputs = ["attn_q", "attn_k", "attn_v"].map(|name| (format!("{stem}.{name}"), hidden));
        let projected = blocks.linear(&outputs, x)?;
        let query = ScaleColumns::new(self.query_factors(blocks, stem)?);
        let query = blocks.graph.push_one(query, &[projected[0]])?;
        let key = blocks.graph.push_one(Scale::new(((1.0 + E).ln() / LN_2) as f32), &[projected[1]])?;
        let relative = self.relative_keys(blocks, stem)?;
        let positions = RelativePositions { heads, length: hidden / heads, span: self.span };
        let [query, key] = positions.extend(&mut blocks.graph, (stem, &relative), [query, key])?;
        let op = Attention {
            layer: SHARED_LAYER,
            stores: true,
            n_heads: heads,
            kv: self.kv(&blocks.sizes),
            scale: 1.0,
            window: Some(Window::Last(self.span)),
            sees_later: false,
            each_other: EachOther::All,
            softcap: Some(self.softcap),
            sinks: None,
            slopes: None,
            selection: None,
        };
        let attended = blocks.graph.push_one(op.checked()?, &[query, key, projected[2]])?;
        Ok(blocks.linear(&[(format!("{stem}.attn_out"), hidden)], attended)?[0])
    }

    /// The factors of queries: those of the values of a head, which are alike in all heads, divided by the root of its length and by
    /// the logarithm of 2.
    fn query_factors(&self, blocks: &mut BlockBuilder<'_, '_>, stem: &str) -> Result<Arc<[f32]>, BuildError> {
        let BlockSizes { hidden, heads, .. } = blocks.sizes;
        let length = hidden / heads;
        let of_head = blocks.weights.vector(&format!("{stem}.per_dim_scale.weight"), length)?;
        let factor = 1.0 / ((length as f64).sqrt() * LN_2);
        Ok((0..hidden).map(|column| (f64::from(of_head[column % length]) * factor) as f32).collect())
    }

    /// The keys of relative positions, from the row's own on: [span, hidden].
    fn relative_keys(&self, blocks: &mut BlockBuilder<'_, '_>, stem: &str) -> Result<Vec<f32>, BuildError> {
        let hidden = blocks.sizes.hidden;
        let matrix = blocks.weights.matrix(&format!("{stem}.attn_k_rel.weight"), hidden, hidden)?.to_f32();
        let positions = sinusoids(0..self.span, hidden);
        let product = |position: &[f32], row: &[f32]| -> f64 {
            position.iter().zip(row).map(|(position, weight)| f64::from(*position) * f64::from(*weight)).sum()
        };
        let of_position = |position: &[f32]| -> Vec<f32> {
            matrix.chunks_exact(hidden).map(|row| product(position, row) as f32).collect()
        };
        Ok(positions.chunks_exact(hidden).flat_map(of_position).collect())
    }

    /// A gated convolution over time, of each column on its own.
    fn convolution(&self, blocks: &mut BlockBuilder<'_, '_>, stem: &str, x: ValueId) -> Result<ValueId, BuildError> {
        let hidden = blocks.sizes.hidden;
        let both = blocks.linear(&[(format!("{stem}.conv_pw1"), 2 * hidden)], x)?[0];
        let halves = blocks.graph.push(SplitHeads { first: hidden, second: hidden }, &[both])?;
        let gated = blocks.graph.push_one(Glu::new(Activation::Sigmoid), &[halves[1], halves[0]])?;
        let kernel = blocks.weights.flattened(&format!("{stem}.conv_dw.weight"), hidden, self.kernel)?.to_f32();
        let len = CausalConv::state_len(hidden, self.kernel);
        let part = StatePart { layer: SHARED_LAYER, start: 0, len };
        let convolved = blocks.graph.push_one(CausalConv::new(&kernel, self.kernel, None, part)?, &[gated])?;
        let normed = blocks.norm(&format!("{stem}.norm_conv"), convolved)?;
        let activated = blocks.graph.push_one(Activate::new(Pointwise::Silu), &[normed])?;
        Ok(blocks.linear(&[(format!("{stem}.conv_pw2"), hidden)], activated)?[0])
    }
}
