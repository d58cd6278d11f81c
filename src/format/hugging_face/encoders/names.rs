//! From the names of an encoder's tensors in a directory to those in GGUF files.

use super::super::error::HuggingFaceError;
use super::super::names::{Fate, targets};
use super::config::EncoderConfig;
use super::spec::{EncoderFamily, Part};

/// The numbers of the parts of a family that list them.
pub(super) struct Names {
    parts: Vec<(&'static Part, Option<Vec<u32>>)>,
}

impl Names {
    pub(super) fn of(config: &EncoderConfig, family: &EncoderFamily) -> Result<Self, HuggingFaceError> {
        let numbers = |part: &Part| part.numbers.map(|key| config.layers(key)).transpose();
        let with_numbers = |part: &'static Part| numbers(part).map(|numbers| (part, numbers));
        let parts = family.parts.iter().map(with_numbers).collect::<Result<_, _>>()?;
        Ok(Names { parts })
    }

    /// What a tensor becomes. One of a part that is complete is known by a rule, or by none.
    pub(super) fn fate(&self, name: &str) -> Fate {
        let name = ["model.", "thinker."].iter().find_map(|start| name.strip_prefix(start)).unwrap_or(name);
        for (part, numbers) in &self.parts {
            let Some((number, rest)) = part.stored.iter().find_map(|stored| within(stored, name)) else { continue };
            let found = match target(part.target, number, numbers.as_deref()) {
                Some(before) => targets(part.rules, rest, &before),
                None => Vec::new(),
            };
            if part.is_complete || !found.is_empty() {
                return Fate::Targets(found);
            }
        }
        Fate::Ignored
    }
}

/// The number in the start of a name, if it has one, and what follows the start.
fn within<'a>(stored: &str, name: &'a str) -> Option<(Option<usize>, &'a str)> {
    let Some((before, after)) = stored.split_once('*') else { return Some((None, name.strip_prefix(stored)?)) };
    let numbered = name.strip_prefix(before)?;
    let end = numbered.find(|digit: char| !digit.is_ascii_digit())?;
    Some((Some(numbered[..end].parse().ok()?), numbered[end..].strip_prefix(after)?))
}

/// The start of a name in a GGUF file; `None` for a number that is not listed.
fn target(start: &str, number: Option<usize>, numbers: Option<&[u32]>) -> Option<String> {
    match (number, numbers) {
        (None, _) => Some(start.to_owned()),
        (Some(number), None) => Some(start.replace('*', &number.to_string())),
        (Some(number), Some(numbers)) => Some(start.replace('*', &numbers.get(number)?.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::family;
    use super::*;
    use crate::media::MediaKind;

    fn targets_of(model_type: &str, encoder_type: &str, name: &str) -> Vec<String> {
        let is_of = |family: &EncoderFamily| family.encoder_type.is_none_or(|wanted| wanted == encoder_type);
        let of_kind = |kind| family::of(model_type, |family| family.kind == kind && is_of(family));
        let is_audio =
            name.contains("audio") || name.contains("multi_modal_projector") && of_kind(MediaKind::Image).is_none();
        let family = of_kind(if is_audio { MediaKind::Audio } else { MediaKind::Image }).unwrap();
        let model = json!({ "vision_config": { "deepstack_visual_indexes": [5, 11] } });
        let names = Names::of(&EncoderConfig::of(model, family), family).unwrap();
        match names.fate(name) {
            Fate::Targets(targets) => targets.into_iter().map(|target| target.name).collect(),
            _ => vec!["ignored".to_owned()],
        }
    }

    #[test]
    fn published_names_become_those_of_gguf_files() {
        for (model_type, encoder_type, name, expected) in [
            ("smolvlm", "", "model.vision_model.encoder.layers.11.self_attn.out_proj.bias", "v.blk.11.attn_out.bias"),
            ("gemma3", "", "vision_tower.vision_model.embeddings.patch_embedding.weight", "v.patch_embd.weight"),
            ("gemma3", "", "multi_modal_projector.mm_input_projection_weight", "mm.input_projection.weight"),
            (
                "gemma4",
                "",
                "model.vision_tower.encoder.layers.2.self_attn.o_proj.linear.weight",
                "v.blk.2.attn_out.weight",
            ),
            ("gemma4", "", "model.vision_tower.encoder.layers.2.mlp.up_proj.output_max", "v.blk.2.ffn_up.output_max"),
            ("gemma4", "", "model.embed_vision.embedding_projection.weight", "mm.input_projection.weight"),
            ("gemma4", "", "model.audio_tower.layers.2.lconv1d.linear_start.linear.weight", "a.blk.2.conv_pw1.weight"),
            (
                "gemma4",
                "",
                "model.audio_tower.layers.2.feed_forward2.ffw_layer_1.output_max",
                "a.blk.2.ffn_up_1.output_max",
            ),
            ("gemma4", "", "model.audio_tower.layers.2.self_attn.per_dim_scale", "a.blk.2.per_dim_scale.weight"),
            ("gemma4", "", "model.audio_tower.subsample_conv_projection.layer1.norm.weight", "a.conv1d.1.norm.weight"),
            ("gemma4", "", "model.embed_audio.embedding_projection.weight", "mm.a.input_projection.weight"),
            ("gemma4_unified", "", "model.vision_embedder.patch_ln1.bias", "v.patch_norm.1.bias"),
            ("gemma4_unified", "", "model.vision_embedder.pos_norm.weight", "v.patch_norm.3.weight"),
            ("internvl", "", "model.vision_tower.encoder.layer.3.lambda_2", "v.blk.3.ls2.weight"),
            ("lfm2_vl", "", "model.vision_tower.vision_model.embeddings.patch_embedding.bias", "v.patch_embd.bias"),
            ("lfm2_vl", "", "model.multi_modal_projector.layer_norm.weight", "mm.input_norm.weight"),
            ("lfm3_vl", "", "model.vision_tower.layers.2.self_attn.q_layernorm.weight", "v.blk.2.attn_q_norm.weight"),
            ("lfm3_vl", "", "model.vision_tower.layers.0.conv.spatial_conv.weight", "v.blk.0.conv2d_spatial.weight"),
            ("lfm3_vl", "", "model.multi_modal_projector.linear_1.bias", "mm.0.bias"),
            ("bailing_moe_v3_vl", "", "model.visual.merger.norm.bias", "mm.input_norm.bias"),
            ("bailing_moe_v3_vl", "", "linear_proj.2.weight", "mm.2.weight"),
            ("exaone4_5", "", "model.visual.blocks.6.attn.qkv.bias", "v.blk.6.attn_qkv.bias"),
            ("llava", "clip_vision_model", "multi_modal_projector.linear_2.bias", "mm.2.bias"),
            ("llava", "pixtral", "vision_tower.transformer.layers.0.attention.q_proj.weight", "v.blk.0.attn_q.weight"),
            (
                "mistral3",
                "pixtral",
                "model.multi_modal_projector.patch_merger.merging_layer.weight",
                "mm.patch_merger.weight",
            ),
            ("qwen2_vl", "", "visual.blocks.31.attn.qkv.bias", "v.blk.31.attn_qkv.bias"),
            ("qwen3_vl", "", "model.visual.deepstack_merger_list.1.linear_fc2.weight", "v.deepstack.11.fc2.weight"),
            ("qwen3_vl_moe", "", "model.visual.merger.linear_fc1.weight", "mm.0.weight"),
            ("qwen2_audio", "", "audio_tower.embed_positions.weight", "a.position_embd.weight"),
            ("voxtral", "", "audio_tower.layers.3.fc2.bias", "a.blk.3.ffn_down.bias"),
            ("qwen2_5_omni", "", "thinker.visual.blocks.7.attn.k.bias", "v.blk.7.attn_k.bias"),
            ("qwen2_5_omni", "", "thinker.visual.merger.mlp.2.weight", "mm.2.weight"),
            ("qwen2_5_omni", "", "thinker.audio_tower.proj.bias", "mm.a.fc.bias"),
            ("qwen3_asr", "", "thinker.audio_tower.conv2d2.bias", "a.conv2d.2.bias"),
            ("qwen3_asr", "", "thinker.audio_tower.proj2.weight", "mm.a.mlp.2.weight"),
            ("qwen3_asr", "", "model.audio_tower.ln_post.weight", "a.post_ln.weight"),
            ("qwen3_asr", "", "model.multi_modal_projector.linear_1.bias", "mm.a.mlp.1.bias"),
            ("ultravox", "", "multi_modal_projector.ln_mid.weight", "mm.a.norm_mid.weight"),
        ] {
            assert_eq!(targets_of(model_type, encoder_type, name), [expected]);
        }
        for (model_type, name) in [
            ("qwen2_5_vl", "visual.patch_embed.proj.weight"),
            ("lfm3_vl", "model.vision_tower.patch_embed.weight"),
            ("lfm3_vl", "model.vision_tower.patchifier.weight"),
        ] {
            assert_eq!(targets_of(model_type, "", name), ["v.patch_embd.weight", "v.patch_embd.weight.1"], "{name}");
        }
    }

    #[test]
    fn other_parts_of_a_model_are_ignored_and_unknown_tensors_of_a_layer_have_no_target() {
        for name in ["vision_tower.vision_model.head.probe", "language_model.model.layers.0.mlp.up_proj.weight"] {
            assert_eq!(targets_of("gemma3", "", name), ["ignored"]);
        }
        for (model_type, name) in [
            ("qwen2_vl", "visual.blocks.0.attn.gate.weight"),
            ("qwen3_vl", "model.visual.deepstack_merger_list.2.norm.weight"),
            ("ultravox", "multi_modal_projector.ln_post.weight"),
        ] {
            assert_eq!(targets_of(model_type, "", name), Vec::<String>::new(), "{name}");
        }
    }
}
