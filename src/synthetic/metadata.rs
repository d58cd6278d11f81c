//! The metadata of a file: the keys that a loader needs.

use super::Synthetic;
use super::models::{DeltaHeads, RopeStretch};
use crate::format::gguf::write::{GgufBuilder, ToValue};

/// A file with its metadata and without tensors.
pub(super) fn describe(synthetic: &Synthetic) -> GgufBuilder {
    let Synthetic { shape, recipe } = synthetic;
    let file = GgufBuilder::new()
        .key("general.architecture", shape.architecture)
        .key("general.type", "model")
        .key("general.name", format!("Synthetic {}", shape.title))
        .key("general.file_type", recipe.file_type)
        .key("general.quantization_version", 2_u32);
    let mut keys = Keys { architecture: shape.architecture, file };
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
    if let Some(heads) = shape.delta {
        keys = keys
            .size("ssm.conv_kernel", DeltaHeads::CONV_WIDTH)
            .size("ssm.state_size", DeltaHeads::HEAD_DIM)
            .size("ssm.inner_size", heads.values * DeltaHeads::HEAD_DIM)
            .size("ssm.group_count", heads.keys)
            .size("ssm.time_step_rank", heads.values)
            .size("full_attention_interval", DeltaHeads::ATTENTION_INTERVAL)
            // Other programs need it. For text the sections rotate as one.
            .key("rope.dimension_sections", vec![11_i32, 11, 10, 0]);
    }
    if let Some(window) = shape.window {
        keys = keys.size("attention.sliding_window", window);
    }
    if let Some((scores, logits)) = shape.softcaps {
        keys = keys.key("attn_logit_softcapping", scores).key("final_logit_softcapping", logits);
    }
    shape.vocabulary.describe(shape.vocab_size, keys.file)
}

/// Adds keys with the prefix of the architecture.
struct Keys {
    architecture: &'static str,
    file: GgufBuilder,
}

impl Keys {
    fn key(self, key: &str, value: impl ToValue) -> Self {
        let file = self.file.key(&format!("{}.{key}", self.architecture), value);
        Keys { file, ..self }
    }

    fn size(self, key: &str, size: usize) -> Self {
        #[allow(clippy::cast_possible_truncation)] // The sizes in the table are far smaller.
        self.key(key, size as u32)
    }
}
