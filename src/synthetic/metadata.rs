//! The metadata of a file: the keys that a loader needs.

use super::shape::{Key, RopeStretch, Shape, letter};
use crate::format::gguf::write::{GgufBuilder, ToValue};
use crate::quantization_recipe::QuantizationRecipe;

/// A file with its metadata and without tensors.
pub(super) fn describe(shape: &Shape, recipe: &QuantizationRecipe) -> GgufBuilder {
    let file = hyperparameters(shape)
        .key("general.type", "model")
        .key("general.name", format!("Synthetic {}", shape.title))
        .key("general.file_type", recipe.file_type)
        .key("general.quantization_version", 2_u32);
    shape.vocabulary.describe(shape.vocab_size, file)
}

/// A file with the keys that determine the graph.
pub(super) fn hyperparameters(shape: &Shape) -> GgufBuilder {
    let file = GgufBuilder::new().key("general.architecture", shape.architecture);
    let mut keys = Keys { shape, file };
    for (key, size) in [
        ("context_length", shape.context_train),
        ("embedding_length", shape.hidden_size),
        ("block_count", shape.n_layers),
        ("vocab_size", shape.vocab_size),
        ("attention.head_count", shape.n_heads),
        ("attention.head_count_kv", shape.n_kv_heads),
        ("attention.key_length", shape.head_dim),
        ("attention.value_length", shape.head_dim),
        ("rope.dimension_count", shape.rotary_dim.unwrap_or(shape.head_dim)),
    ] {
        keys = keys.size(key, size);
    }
    if shape.intermediate_size > 0 {
        keys = keys.size("feed_forward_length", shape.intermediate_size);
    }
    keys = keys.key("attention.layer_norm_rms_epsilon", shape.rms_norm_epsilon).key("rope.freq_base", shape.rope_base);
    if let RopeStretch::Linear { factor } = shape.rope_stretch {
        keys = keys.key("rope.scaling.type", "linear").key("rope.scaling.factor", factor);
    }
    if let RopeStretch::Yarn { factor, original_context } = shape.rope_stretch {
        keys = keys.key("rope.scaling.type", "yarn").key("rope.scaling.factor", factor);
        keys = keys.size("rope.scaling.original_context_length", original_context);
    }
    if let Some(experts) = shape.experts {
        keys = keys
            .size("expert_count", experts.count)
            .size("expert_used_count", experts.used)
            .size("expert_feed_forward_length", experts.intermediate_size);
        if experts.shared_size > 0 {
            keys = keys.size("expert_shared_feed_forward_length", experts.shared_size);
        }
    }
    if let Some(window) = shape.window {
        keys = keys.size("attention.sliding_window", window);
    }
    if let Some((scores, logits)) = shape.softcaps {
        keys = keys.key("attn_logit_softcapping", scores).key("final_logit_softcapping", logits);
    }
    shape.keys.iter().fold(keys.file, |file, (name, key)| add(file, shape, name, *key))
}

/// Adds a further key of the architecture.
fn add(file: GgufBuilder, shape: &Shape, name: &str, key: Key) -> GgufBuilder {
    let name = format!("{}.{name}", shape.architecture);
    let layers = 0..shape.n_layers;
    match key {
        Key::Size(size) => file.key(&name, size),
        Key::Number(number) => file.key(&name, number),
        Key::Flag(flag) => file.key(&name, flag),
        Key::Integers(integers) => file.key(&name, integers),
        Key::Longs(numbers) => file.key(&name, numbers),
        Key::Flags(letters, wanted) => {
            file.key(&name, layers.map(|layer| letter(letters, layer) == Some(wanted)).collect::<Vec<bool>>())
        }
        Key::Sizes(letters, sizes) => {
            let size =
                |layer| sizes.iter().find(|(of, _)| letter(letters, layer) == Some(*of)).map_or(0, |size| size.1);
            file.key(&name, layers.map(size).collect::<Vec<u32>>())
        }
    }
}

/// Adds keys with the prefix of the architecture, except those that the shape replaces.
struct Keys<'a> {
    shape: &'a Shape,
    file: GgufBuilder,
}

impl Keys<'_> {
    fn key(self, key: &str, value: impl ToValue) -> Self {
        if self.shape.keys.iter().any(|(name, _)| *name == key) {
            return self;
        }
        let file = self.file.key(&format!("{}.{key}", self.shape.architecture), value);
        Keys { file, ..self }
    }

    fn size(self, key: &str, size: usize) -> Self {
        #[allow(clippy::cast_possible_truncation)] // The sizes in the table are far smaller.
        self.key(key, size as u32)
    }
}
