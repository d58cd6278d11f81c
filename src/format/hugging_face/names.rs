//! From the names of tensors in a directory to those in GGUF files, as data.

use super::family::Family;
use super::ngrams::HASH;
use super::rules::{Op, Rule};

/// Tensors outside layers, in all families.
const OUTSIDE: &[Rule] = &[
    ("embed_tokens", "token_embd", &[]),
    ("norm", "output_norm", &[Op::Norm]),
    ("lm_head", "output", &[]),
    ("score", "cls.output", &[]),
    ("embed_tokens_per_layer", "per_layer_token_embd", &[]),
    ("per_layer_model_projection", "per_layer_model_proj", &[]),
    ("per_layer_projection_norm", "per_layer_proj_norm", &[Op::Norm]),
    ("altup_projections.*.weight", "altup_proj.weight", &[]),
    ("altup_unembed_projections.*.weight", "altup_unembd_proj.weight", &[]),
    ("norm_f", "output_norm", &[]),
    ("final_layernorm", "output_norm", &[]),
    ("final_layer_norm", "output_norm", &[]),
    ("embedding_norm", "token_embd_norm", &[]),
    ("embeddings", "token_embd", &[]),
    ("word_embeddings", "token_embd", &[]),
    ("word_embeddings_layernorm", "token_embd_norm", &[]),
    ("tok_embeddings", "token_embd", &[]),
    ("output", "output", &[]),
    ("embed_in", "token_embd", &[]),
    ("embedding.word_embeddings", "token_embd", &[]),
    ("encoder.final_layernorm", "output_norm", &[]),
    ("output_layer", "output", &[]),
    ("embed_out", "output", &[]),
    ("wte", "token_embd", &[]),
    ("wpe", "position_embd", &[]),
    ("ln_f", "output_norm", &[]),
    ("embeddings.word_embeddings", "token_embd", &[]),
    ("embeddings.position_embeddings", "position_embd", &[Op::FromFirstPosition]),
    ("embeddings.token_type_embeddings", "token_types", &[]),
    ("embeddings.LayerNorm", "token_embd_norm", &[]),
    ("emb_ln", "token_embd_norm", &[]),
    ("self_conditioning.pre_norm", "self_cond_pre_norm", &[]),
    ("self_conditioning.gate_proj", "self_cond_gate", &[]),
    ("self_conditioning.up_proj", "self_cond_up", &[]),
    ("self_conditioning.down_proj", "self_cond_down", &[]),
];

/// Tensors of layers that have the same names in most families.
pub(super) const COMMON: &[Rule] = &[
    ("input_layernorm", "attn_norm", &[Op::Norm]),
    ("self_attn.q_proj", "attn_q", &[]),
    ("self_attn.k_proj", "attn_k", &[]),
    ("self_attn.v_proj", "attn_v", &[]),
    ("self_attn.qkv_proj", "attn_qkv", &[]),
    ("self_attn.o_proj", "attn_output", &[]),
    ("self_attn.q_norm", "attn_q_norm", &[Op::Norm]),
    ("self_attn.k_norm", "attn_k_norm", &[Op::Norm]),
    ("self_attn.sinks", "attn_sinks.weight", &[]),
    ("post_attention_layernorm", "ffn_norm", &[Op::Norm]),
    ("pre_feedforward_layernorm", "ffn_norm", &[Op::Norm]),
    ("post_feedforward_layernorm", "post_ffw_norm", &[Op::Norm]),
    ("mlp.gate_proj", "ffn_gate", &[]),
    ("mlp.up_proj", "ffn_up", &[]),
    ("mlp.gate_up_proj", "ffn_up", &[]),
    ("mlp.down_proj", "ffn_down", &[]),
    ("mlp.gate", "ffn_gate_inp", &[]),
    ("mlp.experts.*.gate_proj.weight", "ffn_gate_exps.weight", &[]),
    ("mlp.experts.*.up_proj.weight", "ffn_up_exps.weight", &[]),
    ("mlp.experts.*.down_proj.weight", "ffn_down_exps.weight", &[]),
    ("mlp.experts.gate_up_proj", "ffn_gate_exps.weight", &[Op::Half { part: 0, axis: 1 }]),
    ("mlp.experts.gate_up_proj", "ffn_up_exps.weight", &[Op::Half { part: 1, axis: 1 }]),
    ("mlp.experts.down_proj", "ffn_down_exps.weight", &[]),
    ("mlp.gate.e_score_correction_bias", "exp_probs_b.bias", &[]),
    ("mlp.e_score_correction_bias", "exp_probs_b.bias", &[]),
    ("mlp.shared_expert.gate_proj", "ffn_gate_shexp", &[]),
    ("mlp.shared_expert.up_proj", "ffn_up_shexp", &[]),
    ("mlp.shared_expert.down_proj", "ffn_down_shexp", &[]),
    ("mlp.shared_expert_gate", "ffn_gate_inp_shexp", &[]),
    ("mlp.shared_experts.gate_proj", "ffn_gate_shexp", &[]),
    ("mlp.shared_experts.up_proj", "ffn_up_shexp", &[]),
    ("mlp.shared_experts.down_proj", "ffn_down_shexp", &[]),
];

/// Tensors of the layer that predicts one more token which other layers do not have: those of layers after the last one, and
/// those of a part of its own.
const PREDICTION: &[Rule] = &[
    ("eh_proj", "nextn.eh_proj", &[]),
    ("enorm", "nextn.enorm", &[Op::Norm]),
    ("hnorm", "nextn.hnorm", &[Op::Norm]),
    ("embed_tokens", "nextn.embed_tokens", &[]),
    ("shared_head.norm", "nextn.shared_head_norm", &[Op::Norm]),
    ("shared_head.head", "nextn.shared_head_head", &[]),
    ("fc", "nextn.eh_proj", &[]),
    ("pre_fc_norm_embedding", "nextn.enorm", &[Op::Norm]),
    ("pre_fc_norm_hidden", "nextn.hnorm", &[Op::Norm]),
    ("norm", "nextn.shared_head_norm", &[Op::Norm]),
];

/// The part of some models that predicts more tokens.
const PREDICTION_PART: &str = "mtp.";

/// What models of blocks put before the layers that compute causal rows. These share their weights with the layers of blocks,
/// except for one factor.
const CAUSAL_LAYERS: &str = "encoder.language_model.layers.";

const CAUSAL_LAYER: &[Rule] = &[("layer_scalar", "enc_layer_output_scale.weight", &[])];

/// What models put before the names of their text model.
const PREFIXES: &[&str] = &[
    "model.language_model.",
    "model.text_model.",
    "language_model.model.",
    "language_model.",
    "thinker.model.",
    "thinker.",
    "model.decoder.",
    "model.",
    "bert.",
    "roberta.",
    "transformer.",
    "gpt_neox.",
    "backbone.",
];

/// What encoders put before the number of a layer, and other models.
const LAYERS: &[&str] = &["layers.", "encoder.layer.", "encoder.layers.", "h.", "blocks."];

/// What draft models with one layer put before the names of its tensors.
const ONLY_LAYER: &str = "midlayer.";

/// Parts of a model that do not compute text, or that it is computed without: images and audio.
const OTHER_PARTS: &[&str] = &[
    "visual.",
    "vision_tower.",
    "vision_model.",
    "embed_vision.",
    "vision_embedder.",
    "multi_modal_projector.",
    "connector.",
    "linear_proj.",
    "vit_large_projector.",
    "audio_tower.",
    "embed_audio.",
    "encoder.vision_tower.",
    "encoder.embed_vision.",
    "talker.",
    "code2wav.",
    "token2wav.",
    "mtp_block.",
    "mtp_emb_norm.",
    "mtp_hidden_norm.",
    "mtp_linear_proj.",
    "pooler.",
    "cls.",
];

/// The ends of the names of tensors that follow from the config or become keys, or that GGUF files leave out.
const COMPUTED: &[&str] = &[
    ".rotary_emb.inv_freq",
    "rotary_pos_emb.inv_freq",
    ".mlp.experts.bias",
    ".embed_positions.inv_freq",
    ".self_attn.masked_bias",
    ".attn.masked_bias",
    ".attn.bias",
    ".attention.masked_bias",
    ".attention.bias",
    ".act_fn.alpha_p",
    ".act_fn.alpha_n",
    ".act_fn.beta",
    ".act_fn.eps",
    "embeddings.position_ids",
    "embeddings.token_type_ids",
];

fn is_computed(name: &str) -> bool {
    COMPUTED.iter().chain(HASH.iter().map(|(end, _)| end)).any(|end| name.ends_with(end))
}

/// What a tensor of a directory becomes.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// Nothing.
    Ignored,
    /// Tensors of a GGUF file, or parts of them. None if the name is not known.
    Targets(Vec<Target>),
    /// As [`Fate::Targets`], of the layer that predicts one more token.
    Prediction(Vec<Target>),
}

/// A tensor of a GGUF file.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Target {
    pub name: String,
    /// The expert whose part of the tensor it is, or the number of the factor.
    pub expert: Option<usize>,
    pub ops: &'static [Op],
}

/// The layers of a model.
#[derive(Clone, Copy)]
pub(super) struct Layers<'a> {
    pub count: usize,
    /// Whether a layer is recurrent.
    pub is_recurrent: &'a dyn Fn(usize) -> bool,
}

/// The tensors that the tensor `name` becomes in a model with these layers.
pub(super) fn fate(family: &Family, layers: Layers<'_>, name: &str) -> Fate {
    let n_layers = layers.count;
    let short = PREFIXES.iter().find_map(|prefix| name.strip_prefix(prefix)).unwrap_or(name);
    let of_only_layer = short.strip_prefix(ONLY_LAYER).map(|inner| format!("layers.0.{inner}"));
    let short = of_only_layer.as_deref().unwrap_or(short);
    let own = targets(&[family.outside], short, "");
    if !own.is_empty() {
        return Fate::Targets(own);
    }
    let starts = |text: &str| OTHER_PARTS.iter().chain(family.other_parts).any(|part| text.starts_with(part));
    if starts(name) || starts(short) || is_computed(name) {
        return Fate::Ignored;
    }
    if let Some((layer, inner)) = short.strip_prefix(CAUSAL_LAYERS).and_then(|rest| rest.split_once('.')) {
        let own = targets(&[CAUSAL_LAYER], inner, &format!("blk.{layer}."));
        return if own.is_empty() { Fate::Ignored } else { Fate::Targets(own) };
    }
    let (part, first) = match short.strip_prefix(PREDICTION_PART) {
        Some(part) => (part, n_layers),
        None => (short, 0),
    };
    let in_layers = LAYERS.iter().find_map(|prefix| part.strip_prefix(prefix));
    let Some((layer, inner)) = in_layers.and_then(|rest| rest.split_once('.')) else {
        return match first {
            0 => Fate::Targets(targets(&[OUTSIDE], part, "")),
            layer => Fate::Prediction(targets(&[PREDICTION], part, &format!("blk.{layer}."))),
        };
    };
    let of_layer = family.names.iter().copied().chain([COMMON]);
    let parts = family.parts_of_layer;
    match layer.parse::<usize>().map(|layer| first + layer) {
        Ok(layer) if !parts.is_empty() => {
            if layer >= n_layers / parts.len() {
                return Fate::Ignored;
            }
            let of_part = |(part, rules): (usize, &&[Rule])| {
                targets(&[rules], inner, &format!("blk.{}.", layer * parts.len() + part))
            };
            Fate::Targets(parts.iter().enumerate().flat_map(of_part).collect())
        }
        Ok(layer) if layer < n_layers => {
            let own = Some(family.recurrent_names).filter(|_| (layers.is_recurrent)(layer));
            let tables: Vec<&[Rule]> = own.into_iter().chain(of_layer).collect();
            Fate::Targets(targets(&tables, inner, &format!("blk.{layer}.")))
        }
        // Of the layers after the last one, which predict more tokens, the first is used.
        Ok(layer) if layer == n_layers => {
            let tables: Vec<&[Rule]> = [PREDICTION].into_iter().chain(of_layer).collect();
            Fate::Prediction(targets(&tables, inner, &format!("blk.{layer}.")))
        }
        Ok(_) => Fate::Ignored,
        Err(_) => Fate::Targets(Vec::new()),
    }
}

/// The targets of a name by the first table that has it, with `before` put before their names unless they start with a slash.
pub(super) fn targets(tables: &[&[Rule]], name: &str, before: &str) -> Vec<Target> {
    let named = |(stored, expert, ops): (String, Option<usize>, &'static [Op])| {
        let outside = stored.strip_prefix('/').map(str::to_owned);
        Target { name: outside.unwrap_or_else(|| format!("{before}{stored}")), expert, ops }
    };
    let of_table = |table: &&[Rule]| table.iter().filter_map(|rule| applied(rule, name)).map(named).collect::<Vec<_>>();
    tables.iter().map(of_table).find(|found| !found.is_empty()).unwrap_or_default()
}

/// What follows the name of a module, and what it becomes. A linear with bounds is in a module that has these too.
const ENDS: [(&str, &str); 9] = [
    ("", ""),
    (".weight", ".weight"),
    (".bias", ".bias"),
    (".linear.weight", ".weight"),
    (".linear.bias", ".bias"),
    (".input_min", ".input_min"),
    (".input_max", ".input_max"),
    (".output_min", ".output_min"),
    (".output_max", ".output_max"),
];

/// The target of a name, the expert or the number of the factor, and the changes if a rule is for that name.
fn applied(&(from, to, ops): &Rule, name: &str) -> Option<(String, Option<usize>, &'static [Op])> {
    if let Some((before, after)) = from.split_once('*') {
        let digits = name.strip_prefix(before)?.strip_suffix(after)?;
        let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        return is_number.then(|| Some((to.to_owned(), Some(digits.parse().ok()?), ops)))?;
    }
    let end = name.strip_prefix(from)?;
    let (_, end) = ENDS.iter().find(|(stored, _)| *stored == end)?;
    let number = ops.iter().find_map(|op| if let Op::Factor(number) = op { Some(*number) } else { None });
    Some((format!("{to}{end}"), number, ops))
}

#[cfg(test)]
mod tests {
    use super::super::families::of_type;
    use super::*;

    fn alike(count: usize) -> Layers<'static> {
        Layers { count, is_recurrent: &|_| false }
    }

    fn targets_of(model_type: &str, name: &str) -> Vec<String> {
        let family = of_type(model_type, |_| false).expect("the family is known");
        match fate(family, alike(2), name) {
            Fate::Ignored => vec!["ignored".to_owned()],
            Fate::Targets(targets) | Fate::Prediction(targets) => {
                targets.into_iter().map(|target| target.name).collect()
            }
        }
    }

    #[test]
    fn names_are_found_with_every_prefix() {
        for prefix in PREFIXES {
            let name = format!("{prefix}layers.1.mlp.down_proj.weight");
            assert_eq!(targets_of("llama", &name), ["blk.1.ffn_down.weight"]);
        }
        assert_eq!(targets_of("llama", "lm_head.weight"), ["output.weight"]);
        assert_eq!(targets_of("llama", "model.layers.0.self_attn.q_proj.bias"), ["blk.0.attn_q.bias"]);
    }

    #[test]
    fn the_first_gpts_have_names_of_their_own() {
        for prefix in ["", "transformer."] {
            let targets_of = |name: &str| targets_of("gpt2", &format!("{prefix}{name}"));
            assert_eq!(targets_of("wpe.weight"), ["position_embd.weight"]);
            assert_eq!(targets_of("h.1.attn.c_attn.bias"), ["blk.1.attn_qkv.bias"]);
            assert_eq!(targets_of("h.1.attn.bias"), ["ignored"], "the mask");
        }
    }

    #[test]
    fn one_layer_becomes_several() {
        let family = of_type("whisper", |_| false).expect("the family is known");
        let found = |name: &str| match fate(family, alike(6), &format!("model.decoder.layers.{name}")) {
            Fate::Targets(targets) => targets.into_iter().map(|target| target.name).collect(),
            other => vec![format!("{other:?}")],
        };
        assert_eq!(found("1.self_attn_layer_norm.bias"), ["blk.3.attn_norm.bias"]);
        assert_eq!(found("1.encoder_attn.q_proj.weight"), ["blk.4.attn_q.weight"]);
        assert_eq!(found("0.fc2.weight"), ["blk.2.ffn_down.weight"]);
        assert_eq!(found("2.fc2.weight"), ["Ignored"]);
        assert_eq!(found("0.other.weight"), Vec::<String>::new());
        assert_eq!(fate(family, alike(6), "model.encoder.conv1.weight"), Fate::Ignored);
    }

    #[test]
    fn a_family_names_a_norm_differently() {
        assert_eq!(targets_of("llama", "model.layers.0.post_attention_layernorm.weight"), ["blk.0.ffn_norm.weight"]);
        let gemma = targets_of("gemma2", "model.layers.0.post_attention_layernorm.weight");
        assert_eq!(gemma, ["blk.0.post_attention_norm.weight"]);
    }

    #[test]
    fn rerankers_and_classifiers_keep_what_is_after_the_layers() {
        let targets_of =
            |model_type, name: &str| match fate(of_type(model_type, |_| true).expect("known"), alike(2), name) {
                Fate::Targets(targets) => targets.into_iter().map(|target| target.name).collect(),
                other => vec![format!("{other:?}")],
            };
        assert_eq!(targets_of("bert", "bert.pooler.dense.weight"), ["cls.weight"]);
        assert_eq!(targets_of("bert", "classifier.bias"), ["cls.output.bias"]);
        assert_eq!(targets_of("xlm-roberta", "classifier.dense.bias"), ["cls.bias"]);
        assert_eq!(targets_of("xlm-roberta", "classifier.out_proj.weight"), ["cls.output.weight"]);
        assert_eq!(targets_of("xlm-roberta", "roberta.pooler.dense.weight"), ["Ignored"]);
        assert_eq!(targets_of("modernbert", "model.layers.0.mlp.Wi.weight"), ["blk.0.ffn_up.weight"]);
        assert_eq!(targets_of("modernbert", "head.norm.bias"), ["cls.norm.bias"]);
        assert_eq!(targets_of("modernbert", "classifier.weight"), ["cls.output.weight"]);
        assert_eq!(targets_of("qwen3", "score.weight"), ["cls.output.weight"]);
    }

    #[test]
    fn gates_of_recurrent_layers_have_names_of_their_own() {
        let family = of_type("bailing_hybrid", |_| false).expect("known");
        let layers = Layers { count: 2, is_recurrent: &|layer| layer == 0 };
        for (layer, expected) in
            ["blk.0.ssm_g_a.weight", "blk.1.attn_gate.weight", "blk.2.attn_gate.weight"].iter().enumerate()
        {
            let name = format!("model.layers.{layer}.attention.g_proj.weight");
            let (Fate::Targets(found) | Fate::Prediction(found)) = fate(family, layers, &name) else {
                panic!("{name}")
            };
            assert_eq!(found[0].name, *expected);
        }
    }

    #[test]
    fn two_factors_become_one_tensor() {
        let family = of_type("kimi_linear", |key| key == "attn_res_block_size").expect("known");
        for (name, expected, number) in [
            ("layers.1.mlp_res_norm.weight", "blk.1.ffn_res_score.weight", 0),
            ("layers.1.self_attention_res_proj.weight", "blk.1.attn_res_score.weight", 1),
            ("output_attn_res_proj.weight", "output_res_score.weight", 1),
        ] {
            let fate = fate(family, alike(2), &format!("language_model.model.{name}"));
            let Fate::Targets(found) = fate else { panic!("{name}") };
            assert_eq!((&*found[0].name, found[0].expert), (expected, Some(number)));
        }
        assert_eq!(of_type("kimi_linear", |_| false).expect("known").architecture, "kimi-linear");
    }

    #[test]
    fn a_masked_language_model_is_its_body() {
        for name in ["head.dense.weight", "head.norm.weight", "decoder.weight", "decoder.bias"] {
            assert_eq!(targets_of("modernbert", name), ["ignored"], "{name}");
        }
        let embedding = targets_of("modernbert", "model.embeddings.tok_embeddings.weight");
        assert_eq!(embedding, ["token_embd.weight"]);
    }

    #[test]
    fn a_draft_model_has_one_layer_under_either_name() {
        let family = of_type("llama", |key| key == super::super::families::DRAFTS).expect("known");
        let targets_of = |name: &str| match fate(family, alike(1), name) {
            Fate::Targets(targets) => targets.into_iter().map(|target| target.name).collect(),
            other => vec![format!("{other:?}")],
        };
        for (name, expected) in [
            ("midlayer.hidden_norm.weight", "blk.0.attn_norm_2.weight"),
            ("layers.0.hidden_norm.weight", "blk.0.attn_norm_2.weight"),
            ("midlayer.self_attn.q_proj.weight", "blk.0.attn_q.weight"),
            ("fc.weight", "fc.weight"),
            ("norm.weight", "output_norm.weight"),
            ("d2t", "Ignored"),
            ("t2d", "Ignored"),
        ] {
            assert_eq!(targets_of(name), [expected]);
        }
    }

    #[test]
    fn experts_are_joined_or_divided() {
        let found = fate(
            of_type("qwen3_moe", |_| false).expect("known"),
            alike(2),
            "model.layers.0.mlp.experts.17.up_proj.weight",
        );
        let target = Target { name: "blk.0.ffn_up_exps.weight".to_owned(), expert: Some(17), ops: &[] };
        assert_eq!(found, Fate::Targets(vec![target]));
        let fused = targets_of("qwen3_moe", "model.layers.0.mlp.experts.gate_up_proj");
        assert_eq!(fused, ["blk.0.ffn_gate_exps.weight", "blk.0.ffn_up_exps.weight"]);
    }

    #[test]
    fn the_layer_that_predicts_one_more_token_comes_after_the_last() {
        for (name, expected) in [
            ("model.layers.2.eh_proj.weight", "blk.2.nextn.eh_proj.weight"),
            ("model.layers.2.shared_head.norm.weight", "blk.2.nextn.shared_head_norm.weight"),
            ("model.layers.2.mlp.up_proj.weight", "blk.2.ffn_up.weight"),
            ("mtp.fc.weight", "blk.2.nextn.eh_proj.weight"),
            ("mtp.norm.weight", "blk.2.nextn.shared_head_norm.weight"),
            ("mtp.layers.0.mlp.up_proj.weight", "blk.2.ffn_up.weight"),
        ] {
            assert_eq!(targets_of("qwen3_moe", name), [expected]);
        }
        assert_eq!(targets_of("qwen3_moe", "mtp.other.weight"), Vec::<String>::new());
    }

    #[test]
    fn other_parts_are_ignored_and_other_names_unknown() {
        for name in
            ["model.visual.a", "vision_tower.b", "model.layers.3.mlp.gate_proj.weight", "mtp.layers.1.fc.weight"]
        {
            assert_eq!(targets_of("llama", name), ["ignored"], "{name}");
        }
        for name in [
            "model.layers.0.mlp.extra.weight",
            "model.layers.x.mlp.gate_proj.weight",
            "model.layers.0.norm.weight",
            "model.mlp.gate_proj.weight",
            "value_head.weight",
        ] {
            assert_eq!(targets_of("llama", name), Vec::<String>::new(), "{name}");
        }
    }
}
