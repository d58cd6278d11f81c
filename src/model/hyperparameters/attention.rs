//! The heads of each layer, and the scale of their scores.

use cuelight_shaders::attention::Window;

use super::keys::Keys;
use crate::model::arch::{AttentionScale, QkNorm, QkNormKind, UnwindowedRotary};
use crate::model::error::ModelError;
use crate::model::layer::{Heads, LatentSizes};

/// The key with the length of the latent vector.
const LATENT_RANK: &str = "attention.kv_lora_rank";

/// The lengths of a head.
#[derive(Clone, Copy)]
struct HeadShape {
    head_dim: usize,
    value_dim: usize,
    /// The rotated values; `None` for all.
    rotary_dim: Option<usize>,
}

impl Keys<'_> {
    /// The heads of each layer. Windowed layers may have their own sizes, in keys that end in `_swa`. Files may give 0 heads,
    /// or 0 heads of keys, to layers that do not attend.
    pub(super) fn heads(
        &self,
        hidden_size: usize,
        unwindowed: UnwindowedRotary,
        windows: &[Option<Window>],
    ) -> Result<Vec<Heads>, ModelError> {
        let Some(counts) = self.size_or_none_of_layers("attention.head_count", windows.len())? else {
            return Err(self.missing("attention.head_count"));
        };
        let kv_counts = self.size_or_none_of_layers("attention.head_count_kv", windows.len())?;
        let kv_counts = kv_counts.unwrap_or_else(|| counts.clone());
        let of_layers = counts.into_iter().zip(kv_counts).zip(windows);
        let heads = |((count, kv_count), window): ((usize, usize), &Option<Window>)| {
            let mut heads = self.heads_of([count, kv_count], hidden_size, *window)?;
            if window.is_none() && unwindowed == UnwindowedRotary::Half {
                heads.rotary_dim /= 2;
            }
            Ok(heads)
        };
        of_layers.map(heads).collect()
    }

    /// The heads of one layer with these numbers of query heads and of key heads.
    fn heads_of(
        &self,
        [n_heads, n_kv_heads]: [usize; 2],
        hidden_size: usize,
        window: Option<Window>,
    ) -> Result<Heads, ModelError> {
        if n_kv_heads != 0 && !n_heads.is_multiple_of(n_kv_heads) {
            let expected = format!("a divisor of {n_heads} heads");
            return Err(self.invalid("attention.head_count_kv", n_kv_heads, expected));
        }
        if n_heads == 0 && n_kv_heads > 0 {
            return Err(self.invalid("attention.head_count", 0, "above 0 in layers with heads of keys"));
        }
        let dim = hidden_size / n_heads.max(1);
        let of_all = self.head_shape("", HeadShape { head_dim: dim, value_dim: dim, rotary_dim: None })?;
        let shape = if window.is_some() { self.head_shape("_swa", of_all)? } else { of_all };
        let HeadShape { head_dim, value_dim, rotary_dim } = shape;
        Ok(Heads { n_heads, n_kv_heads, head_dim, value_dim, rotary_dim: rotary_dim.unwrap_or(head_dim) })
    }

    /// The lengths of a head from the keys with this suffix, else the given lengths.
    fn head_shape(&self, suffix: &str, given: HeadShape) -> Result<HeadShape, ModelError> {
        let (key, value) = (format!("attention.key_length{suffix}"), format!("attention.value_length{suffix}"));
        let rotary = format!("rope.dimension_count{suffix}");
        let own_dim = self.optional_size(&key)?;
        let head_dim = own_dim.unwrap_or(given.head_dim);
        let rotary_dim = match self.rotary_dim(&rotary)? {
            Some(rotary_dim) => Some(rotary_dim),
            None if own_dim.is_some() => None,
            None => given.rotary_dim,
        };
        let value_dim = self.optional_size(&value)?.or(own_dim).unwrap_or(given.value_dim);
        match rotary_dim {
            Some(wrong) if wrong > head_dim || wrong % 2 == 1 => {
                Err(self.invalid(&rotary, wrong, format!("even and at most {head_dim}")))
            }
            rotary_dim => Ok(HeadShape { head_dim, value_dim, rotary_dim }),
        }
    }

    /// The rotated values of a head. Latent attention may rotate none.
    fn rotary_dim(&self, key: &str) -> Result<Option<usize>, ModelError> {
        match self.checkpoint.optional_u32(&self.name(key))? {
            Some(0) if self.checkpoint.value(&self.name(LATENT_RANK)).is_some() => Ok(Some(0)),
            _ => self.optional_size(key),
        }
    }

    /// The sizes of latent attention.
    pub(super) fn latent(&self, heads: Heads) -> Result<LatentSizes, ModelError> {
        let rank = self.size(LATENT_RANK)?;
        let Heads { head_dim, rotary_dim, .. } = heads;
        if self.checkpoint.value(&self.name("attention.key_length_mla")).is_none() {
            let expected = "present: the file was written by an older converter; convert the model again";
            return Err(self.invalid("attention.key_length_mla", "missing", expected));
        }
        if head_dim != rank + rotary_dim {
            let expected = format!("{rank} (the latent vector) plus {rotary_dim} (rotated)");
            return Err(self.invalid("attention.key_length", head_dim, expected));
        }
        let key_dim = self.size("attention.key_length_mla")?;
        if key_dim <= rotary_dim {
            return Err(self.invalid("attention.key_length_mla", key_dim, format!("above {rotary_dim}")));
        }
        Ok(LatentSizes { rank, key_dim: key_dim - rotary_dim, value_dim: self.size("attention.value_length_mla")? })
    }

    /// For each layer the earlier one whose keys and values it reads: the last layers read those of the last layer before them
    /// that has a window as they do, or none as they do.
    pub(super) fn layers_to_read(
        &self,
        heads: &[Heads],
        windows: &[Option<Window>],
    ) -> Result<Vec<Option<usize>>, ModelError> {
        const KEY: &str = "attention.shared_kv_layers";
        let n_layers = windows.len();
        let shared = self.checkpoint.optional_u32(&self.name(KEY))?.unwrap_or(0) as usize;
        let Some(own) = n_layers.checked_sub(shared).filter(|own| *own > 0) else {
            return Err(self.invalid(KEY, shared, format!("below {n_layers}")));
        };
        let source = |layer: usize| {
            let alike = |other: &usize| windows[*other].is_some() == windows[layer].is_some();
            let shape = |layer: usize| (heads[layer].n_kv_heads, heads[layer].head_dim, heads[layer].value_dim);
            let source = (0..own).rev().find(alike).filter(|source| shape(*source) == shape(layer));
            let expected =
                format!("fewer, so that layer {layer} finds keys and values of its size in an earlier layer");
            source.map(Some).ok_or_else(|| self.invalid(KEY, shared, expected))
        };
        let of_layer = |layer: usize| match windows[layer] {
            Some(Window::Before(_)) => self.self_attention_before(layer, heads, windows).map(Some),
            _ if layer < own => Ok(None),
            _ => source(layer),
        };
        (0..n_layers).map(of_layer).collect()
    }

    /// The layer whose cache also has the rows of the encoder that a layer of cross-attention reads: no position has both.
    fn self_attention_before(
        &self,
        layer: usize,
        heads: &[Heads],
        windows: &[Option<Window>],
    ) -> Result<usize, ModelError> {
        let attends = |other: &usize| heads[*other].n_kv_heads > 0 && matches!(windows[*other], Some(Window::From(_)));
        let shape = |layer: usize| (heads[layer].n_kv_heads, heads[layer].head_dim, heads[layer].value_dim);
        let found = (0..layer).rev().find(attends).filter(|found| shape(*found) == shape(layer));
        let expected = "layers that follow a layer of self-attention with heads of the same sizes";
        found.ok_or_else(|| self.invalid("attention.cross_attention", layer, expected))
    }

    /// How the queries and keys of a layer are normalised.
    pub(super) fn qk_norm(&self, norm: QkNorm, layer: usize, rotates: bool) -> Result<Option<QkNormKind>, ModelError> {
        let is_stored = || self.checkpoint.tensor(&format!("blk.{layer}.attn_q_norm.weight")).is_some();
        Ok(match norm {
            QkNorm::Never => None,
            QkNorm::Always(kind) => Some(kind),
            QkNorm::WhereStored(kind) => is_stored().then_some(kind),
            QkNorm::UnweightedByKey => {
                let stored = self.checkpoint.optional_bool(&self.name("use_qk_norm"))?;
                let step = self.checkpoint.optional_u32(&self.name("interleave_moe_layer_step"))?;
                let applies = stored.unwrap_or(step.is_none_or(|step| step <= 1));
                (rotates && applies).then_some(QkNormKind::RotatedUnweighted)
            }
        })
    }
}

impl AttentionScale {
    /// The scale of a layer with these sizes.
    pub(super) fn value(self, hidden_size: usize, n_heads: usize, head_dim: usize) -> f32 {
        let width = match self {
            AttentionScale::HeadDim => head_dim,
            AttentionScale::HiddenPerHead { most } => (hidden_size / n_heads).clamp(head_dim, most.max(head_dim)),
            AttentionScale::One => 1,
        };
        1.0 / (width as f32).sqrt()
    }
}
