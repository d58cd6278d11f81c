//! From the names of a tower's tensors in a directory to those in GGUF files, as data.

use super::families::TowerFamily;

/// What published models put before the names of a tower.
const TOWERS: &[&str] = &["vision_tower.vision_model.", "vision_tower.", "vision_model."];

/// What they put before the names of a projector.
const PROJECTORS: &[&str] = &["multi_modal_projector.", "connector."];

/// What they put before the number of a layer.
const LAYERS: &[&str] = &["encoder.layers.", "encoder.layer."];

/// Tensors outside layers. One without an ending has none in a file either.
const OUTSIDE: &[(&str, &str)] = &[
    ("embeddings.patch_embedding", "v.patch_embd"),
    ("embeddings.patch_embeddings.projection", "v.patch_embd"),
    ("embeddings.position_embedding", "v.position_embd"),
    ("embeddings.position_embeddings", "v.position_embd.weight"),
    ("embeddings.class_embedding", "v.class_embd"),
    ("embeddings.cls_token", "v.class_embd"),
    ("pre_layrnorm", "v.pre_ln"),
    ("post_layernorm", "v.post_ln"),
    ("layernorm", "v.post_ln"),
];

/// Tensors of a layer.
const IN_LAYER: &[(&str, &str)] = &[
    ("layer_norm1", "ln1"),
    ("layer_norm2", "ln2"),
    ("layernorm_before", "ln1"),
    ("layernorm_after", "ln2"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.out_proj", "attn_out"),
    ("attention.q_proj", "attn_q"),
    ("attention.k_proj", "attn_k"),
    ("attention.v_proj", "attn_v"),
    ("attention.q_norm", "attn_q_norm"),
    ("attention.k_norm", "attn_k_norm"),
    ("attention.projection_layer", "attn_out"),
    ("lambda_1", "ls1.weight"),
    ("lambda_2", "ls2.weight"),
    ("mlp.fc1", "ffn_up"),
    ("mlp.fc2", "ffn_down"),
];

/// The name of a tensor in a GGUF file; `None` for one that is not part of the tower.
pub(super) fn of(family: &TowerFamily, name: &str) -> Option<String> {
    let name = name.strip_prefix("model.").unwrap_or(name);
    let within = |prefixes: &[&str]| prefixes.iter().find_map(|prefix| name.strip_prefix(prefix));
    if let Some(rest) = within(PROJECTORS) {
        return renamed(family.head, rest);
    }
    let rest = within(TOWERS)?;
    match LAYERS.iter().find_map(|prefix| rest.strip_prefix(prefix)) {
        Some(rest) => {
            let (layer, rest) = rest.split_once('.')?;
            let layer: u32 = layer.parse().ok()?;
            renamed(IN_LAYER, rest).map(|name| format!("v.blk.{layer}.{name}"))
        }
        None => renamed(OUTSIDE, rest),
    }
}

/// A name with another stem and the same ending.
fn renamed(rules: &[(&str, &str)], name: &str) -> Option<String> {
    let ending = [".weight", ".bias"].into_iter().find(|ending| name.ends_with(ending)).unwrap_or_default();
    let stem = name.strip_suffix(ending)?;
    let (_, target) = rules.iter().find(|(stored, _)| *stored == stem)?;
    Some(format!("{target}{ending}"))
}

#[cfg(test)]
mod tests {
    use super::super::families::of_projector;
    use super::*;

    #[test]
    fn published_names_become_those_of_gguf_files() {
        let name = |projector: &str, name: &str| of(of_projector(projector).unwrap(), name);
        let found = name("idefics3", "model.vision_model.encoder.layers.11.self_attn.out_proj.bias");
        assert_eq!(found.as_deref(), Some("v.blk.11.attn_out.bias"));
        let found = name("gemma3", "vision_tower.vision_model.embeddings.patch_embedding.weight");
        assert_eq!(found.as_deref(), Some("v.patch_embd.weight"));
        let found = name("gemma3", "multi_modal_projector.mm_input_projection_weight");
        assert_eq!(found.as_deref(), Some("mm.input_projection.weight"));
        let found = name("internvl", "model.vision_tower.encoder.layer.3.lambda_2");
        assert_eq!(found.as_deref(), Some("v.blk.3.ls2.weight"));
        let found = name("mlp", "multi_modal_projector.linear_2.bias");
        assert_eq!(found.as_deref(), Some("mm.2.bias"));
        assert_eq!(name("gemma3", "vision_tower.vision_model.head.probe"), None);
        assert_eq!(name("gemma3", "language_model.model.layers.0.mlp.up_proj.weight"), None);
    }
}
