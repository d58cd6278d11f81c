//! The graph of the rows of an encoder: the keys and values of every layer that attends to them.
//!
//! Other rows read nothing else of these rows, so they need no other op of the model.

use cuelight_shaders::attention::StoreKv;

use super::builder::{BuildError, Builder};
use super::layer::{AttentionLayer, Heads};
use crate::graph::{Graph, ValueId};

/// The graph that takes rows of the encoder, [rows, hidden_size], and returns nothing. `None` for a model without an encoder.
///
/// # Errors
/// [`BuildError`] when a tensor is missing or has the wrong shape.
pub fn build(builder: &mut Builder<'_>) -> Result<Option<Graph>, BuildError> {
    let h = builder.h;
    if h.encoder_rows() == 0 {
        return Ok(None);
    }
    let of_other_rows = std::mem::take(&mut builder.graph);
    let rows = builder.graph.take(h.hidden_size);
    for (number, layer) in h.layers.iter().enumerate() {
        if let Some(attention) = layer.mixer.attention().filter(|attention| attention.reads_encoder()) {
            store(builder, number, attention, rows)?;
        }
    }
    Ok(Some(std::mem::replace(&mut builder.graph, of_other_rows)))
}

/// Appends the projections of keys and values of a layer, and stores both where it reads them.
fn store(builder: &mut Builder<'_>, layer: usize, attention: &AttentionLayer, rows: ValueId) -> Result<(), BuildError> {
    let Heads { n_kv_heads, head_dim, value_dim, .. } = attention.heads;
    let projections = [("attn_k", n_kv_heads * head_dim), ("attn_v", n_kv_heads * value_dim)];
    let projected = builder.linear(layer, &projections, rows)?;
    let op = StoreKv { layer: attention.cache_layer(layer), kv: attention.kv_shape() };
    builder.graph.push(op, &projected)?;
    Ok(())
}
