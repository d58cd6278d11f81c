//! From `config.json` to the keys that GGUF files have.
//!
//! Most values are only renamed, by a table. What a value of the config changes in several keys is written below it.

use serde_json::Value as Json;

use super::config::{BEFORE_ROW, Config, FULL, POOLED, WINDOWED};
use super::error::HuggingFaceError;
use super::families::CLASSIFIES;
use super::family::Family;
use super::quantile::normal_quantile;
use super::rules::Literal;
use crate::format::gguf::Value;

/// What a value of the config is.
#[derive(Debug, Clone, Copy)]
enum Kind {
    Size,
    Float,
    Bool,
}

use Kind::{Bool, Float, Size};

/// The names of a value in configs, of which the first that a config has counts, and its key without the architecture.
const RENAMED: &[(&[&str], &str, Kind)] = &[
    (&["vocab_size"], "vocab_size", Size),
    (&["num_hidden_layers"], "block_count", Size),
    (&["max_position_embeddings"], "context_length", Size),
    (&["hidden_size"], "embedding_length", Size),
    (&["num_attention_heads"], "attention.head_count", Size),
    (&["rms_norm_eps"], "attention.layer_norm_rms_epsilon", Float),
    (&["layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "norm_eps"], "attention.layer_norm_epsilon", Float),
    (&["attn_logit_softcapping"], "attn_logit_softcapping", Float),
    (&["final_logit_softcapping"], "final_logit_softcapping", Float),
    (&["embedding_multiplier", "scale_emb"], "embedding_scale", Float),
    (&["residual_multiplier"], "residual_scale", Float),
    (&["attention_multiplier"], "attention.scale", Float),
    (&["attention_value_scale"], "attention.value_scale", Float),
    (&["logits_scaling", "logit_scale"], "logit_scale", Float),
    (&["num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"], "expert_count", Size),
    (
        &["num_experts_per_tok", "top_k_experts", "num_experts_per_token", "moe_k", "moe_topk", "moe_top_k"],
        "expert_used_count",
        Size,
    ),
    (&["n_shared_experts", "num_shared_experts", "moe_num_shared_experts"], "expert_shared_count", Size),
    (&["first_k_dense_replace", "num_dense_layers", "moe_layer_start_index"], "leading_dense_block_count", Size),
    (&["moe_latent_size"], "moe_latent_size", Size),
    (&["routed_expert_hidden_size"], "expert_latent_length", Size),
    (&["activation_situ_beta"], "activation.situ_beta", Float),
    (&["activation_situ_linear_beta"], "activation.situ_linear_beta", Float),
    (&["moe_intermediate_size"], "expert_feed_forward_length", Size),
    (&["norm_topk_prob", "moe_renormalize", "norm_expert_weight"], "expert_weights_norm", Bool),
    (
        &[
            "routed_scaling_factor",
            "router_scaling_factor",
            "route_scale",
            "moe_routed_scaling_factor",
            "moe_router_scaling_factor",
        ],
        "expert_weights_scale",
        Float,
    ),
    (&["n_group", "num_expert_group"], "expert_group_count", Size),
    (&["topk_group"], "expert_group_used_count", Size),
    (&["num_kv_shared_layers"], "attention.shared_kv_layers", Size),
    (&["index_n_heads", "indexer_n_heads"], "attention.indexer.head_count", Size),
    (&["index_head_dim", "indexer_head_dim"], "attention.indexer.key_length", Size),
    (&["index_topk", "indexer_budget", "index_topk_blocks"], "attention.indexer.top_k", Size),
    (&["index_block_size"], "attention.indexer.block_size", Size),
    (&["index_local_blocks"], "attention.indexer.local_blocks", Size),
    (&["index_kpool"], "attention.indexer.kpool", Size),
    (&["index_kpool_always_select_tail"], "attention.indexer.kpool_select_tail", Bool),
    (&["attn_res_block_size"], "attn_res.block_size", Size),
    (&["hc_mult", "hc_count"], "hyper_connection.count", Size),
    (&["hc_lowrank"], "hyper_connection.low_rank", Size),
    (&["hc_sinkhorn_iters"], "hyper_connection.sinkhorn_iterations", Size),
    (&["hc_eps"], "hyper_connection.epsilon", Float),
    (&["hc_magnitude"], "hyper_connection.magnitude", Float),
    (&["hidden_size_per_layer_input"], "embedding_length_per_layer_input", Size),
    (&["ngram_size"], "ple.ngram_size", Size),
    (&["heads_per_ngram"], "ple.heads_per_ngram", Size),
    (&["ple_conv_kernel_size"], "ple.conv_kernel", Size),
    (&["altup_num_inputs"], "altup.num_inputs", Size),
    (&["altup_active_idx"], "altup.active_idx", Size),
    (&["is_causal"], "attention.causal", Bool),
    (&["max_alibi_bias"], "attention.max_alibi_bias", Float),
    (&["qkv_limit"], "attention.clamp_kqv", Float),
    (&["mamba_inner_size"], "ssm.inner_size", Size),
    (&["mamba_dt_rank"], "ssm.time_step_rank", Size),
    (&["mamba_norms"], "ssm.dt_b_c_rms", Bool),
    (&["mamba_norms_eps"], "ssm.dt_b_c_rms_epsilon", Float),
    (&["linear_conv_kernel_dim", "mamba_d_conv"], "ssm.conv_kernel", Size),
    (&["linear_key_head_dim", "mamba_d_state"], "ssm.state_size", Size),
    (&["linear_num_key_heads", "mamba_n_groups"], "ssm.group_count", Size),
    (&["linear_num_value_heads", "mamba_n_heads"], "ssm.time_step_rank", Size),
    (&["linear_head_dim", "kda_head_dim"], "kda.head_dim", Size),
    (&["kda_safe_gate"], "kda.safe_gate", Bool),
    (&["kda_lower_bound", "linear_lower_bound"], "kda.gate_lower_bound", Float),
    (&["conv_L_cache"], "shortconv.l_cache", Size),
    (&["use_parallel_residual"], "use_parallel_residual", Bool),
    (&["use_qk_norm"], "use_qk_norm", Bool),
    (&["interleave_moe_layer_step"], "interleave_moe_layer_step", Size),
    (&["attention_chunk_size"], "attention.chunk_size", Size),
    (&["floor_scale"], "attention.temperature_length", Size),
    (&["attn_scale"], "attention.temperature_scale", Float),
];

/// The heads of recurrent layers and the length of each, whose product is their width.
const INNER_SIZES: [(&str, &str); 2] =
    [("linear_num_value_heads", "linear_value_head_dim"), ("mamba_n_heads", "mamba_d_head")];

/// The names of the function that makes scores of a router's logits, and their numbers in GGUF files.
const SCORINGS: [(&str, u32); 4] = [("softmax", 1), ("sigmoid", 2), ("noaux_tc", 2), ("sqrtsoftplus", 4)];

/// The keys under construction.
pub(super) struct Keys<'a> {
    pub config: &'a Config,
    architecture: &'static str,
    entries: Vec<(String, Value)>,
}

impl<'a> Keys<'a> {
    /// All keys of a model, except those of its text side.
    pub(super) fn of(config: &'a Config, family: &Family, name: &str) -> Result<Self, HuggingFaceError> {
        let mut keys = Keys { config, architecture: family.architecture, entries: Vec::new() };
        keys.entries.push(("general.architecture".to_owned(), family.architecture.into()));
        keys.entries.push(("general.name".to_owned(), name.into()));
        keys.activation(family)?;
        keys.refuse_variants(family)?;
        for key in ["num_hidden_layers", "max_position_embeddings", "hidden_size", "num_attention_heads"] {
            config.size(key)?;
        }
        for (names, key, kind) in RENAMED {
            keys.rename(names, key, *kind)?;
        }
        keys.skip_first_positions(family.first_position)?;
        keys.head_sizes()?;
        keys.heads_of_layers()?;
        keys.recurrent_heads(family, 0)?;
        keys.feed_forward_length()?;
        keys.leading_dense_layers();
        keys.cutoffs()?;
        keys.activation_limits()?;
        keys.half_layers()?;
        keys.cross_attention()?;
        keys.windows()?;
        keys.indexers()?;
        keys.pools()?;
        keys.deep_layers()?;
        keys.rope(family)?;
        keys.scales()?;
        keys.recurrent_width_and_scoring()?;
        keys.rotated_layers()?;
        if config.is_set(CLASSIFIES) {
            keys.classifier(family)?;
        }
        if let Some(key) = family.media_sight {
            keys.add("attention.causal_media", config.get(key).is_none_or(|sight| *sight != "vision"));
        }
        Ok(keys)
    }

    /// Adds a key of the architecture.
    pub(super) fn add(&mut self, key: &str, value: impl Into<Value>) {
        self.entries.push((format!("{}.{key}", self.architecture), value.into()));
    }

    /// Sets a key of the architecture, replacing the one that it may have.
    pub(super) fn replace(&mut self, key: &str, value: impl Into<Value>) {
        let name = format!("{}.{key}", self.architecture);
        self.entries.retain(|(key, _)| *key != name);
        self.add(key, value);
    }

    /// Adds a key with its full name.
    pub(super) fn add_whole(&mut self, key: &str, value: impl Into<Value>) {
        self.entries.push((key.to_owned(), value.into()));
    }

    pub(super) fn into_entries(self) -> Vec<(String, Value)> {
        self.entries
    }

    fn rename(&mut self, names: &[&str], key: &str, kind: Kind) -> Result<(), HuggingFaceError> {
        let is_stated = |name: &&&str| match kind {
            Size | Float => self.config.number(name).is_some(),
            Bool => self.config.get(name).is_some(),
        };
        let Some(name) = names.iter().find(is_stated) else { return Ok(()) };
        let value = match kind {
            Size => self.config.u32(name)?.map(Value::from),
            Float => self.config.f32(name)?.map(Value::from),
            Bool => self.config.bool(name)?.map(Value::from),
        };
        if let Some(value) = value {
            self.add(key, value);
        }
        Ok(())
    }

    /// The activation, where it is not that of the architecture.
    fn activation(&mut self, family: &Family) -> Result<(), HuggingFaceError> {
        for key in ["hidden_activation", "hidden_act"] {
            let Some(activation) = self.config.str(key)? else { continue };
            if family.other_activations.contains(&activation) {
                self.add("hidden_activation", activation);
            } else if !family.activations.contains(&activation) {
                let known = [family.activations, family.other_activations].concat();
                return Err(self.config.wrong(key, format!("{activation:?}"), known.join(" or ")));
            }
            break;
        }
        Ok(())
    }

    /// Refuses what the architecture of the family would compute wrongly.
    fn refuse_variants(&self, family: &Family) -> Result<(), HuggingFaceError> {
        self.refuse_others(family.requires)?;
        if family.requires.iter().all(|(key, _)| *key != POSITIONS) {
            self.refuse_others(&[(POSITIONS, &[Literal::Text("absolute")])])?;
        }
        // Of the values of the second, "vision" is for images only.
        for key in [
            "use_sliding_window",
            "use_bidirectional_attention",
            "clip_qkv",
            "is_decoder",
            "scale_attn_by_inverse_layer_idx",
        ] {
            let is_used = family.flag == Some(key) || family.aliases.iter().any(|(_, alias)| *alias == key);
            let is_harmless = |value: &Json| *value == Json::Bool(false) || *value == "vision" || is_used;
            if self.config.get(key).is_some_and(|value| !is_harmless(value)) {
                return Err(self.config.wrong(key, "set", "false"));
            }
        }
        self.refuse_state_spaces()
    }

    /// Refuses state spaces with another order of gate and norm, or with bounds on time steps.
    fn refuse_state_spaces(&self) -> Result<(), HuggingFaceError> {
        if self.config.is_set("mamba_rms_norm") && self.config.is_set("mamba_norm_before_gate") {
            return Err(self.config.wrong("mamba_norm_before_gate", true, "false"));
        }
        // Infinity is no number here; larger steps do not occur.
        const LARGEST_STEP: f64 = 1e6;
        let is_bound = |(index, limit): (usize, &Json)| {
            limit.as_f64().is_some_and(|limit| if index == 0 { limit > 0.0 } else { limit < LARGEST_STEP })
        };
        match self.config.list("time_step_limit")? {
            Some(limits) if limits.iter().enumerate().any(is_bound) => {
                let found = Json::from(limits.clone());
                Err(self.config.wrong("time_step_limit", found, "0 and infinity"))
            }
            _ => Ok(()),
        }
    }

    /// Refuses values other than those of each key.
    fn refuse_others(&self, requires: &[(&str, &[Literal])]) -> Result<(), HuggingFaceError> {
        for (key, allowed) in requires {
            let Some(found) = self.config.get(key) else { continue };
            if !allowed.iter().any(|value| value.is(found)) {
                let wanted: Vec<String> = allowed.iter().map(|value| value.json().to_string()).collect();
                return Err(self.config.wrong(key, found, wanted.join(" or ")));
            }
        }
        Ok(())
    }

    /// The context of a model that does not use the first rows of its table of positions.
    fn skip_first_positions(&mut self, first: usize) -> Result<(), HuggingFaceError> {
        if first == 0 {
            return Ok(());
        }
        let rows = self.config.size("max_position_embeddings")?;
        let context = u32::try_from(rows.saturating_sub(first)).unwrap_or(u32::MAX);
        self.replace("context_length", context);
        Ok(())
    }

    /// The heads of keys, and the lengths of heads. Layers with a window may differ from the others.
    fn head_sizes(&mut self) -> Result<(), HuggingFaceError> {
        if let Some(rank) = self.config.u32("kv_lora_rank")? {
            return self.latent_sizes(rank);
        }
        self.sizes_of_layers("num_key_value_heads", "attention.head_count_kv")?;
        let [full, windowed] = [self.head_lengths(FULL)?, self.head_lengths(WINDOWED)?];
        self.add_head_lengths(full, "");
        if windowed != full {
            self.add_head_lengths(windowed, "_swa");
            for (length, suffix) in [(full[0], ""), (windowed[0], "_swa")] {
                if let Some(length) = length {
                    self.add(&format!("rope.dimension_count{suffix}"), length);
                }
            }
        }
        Ok(())
    }

    /// The lengths of keys and of values in layers of a kind, as far as the config has them.
    fn head_lengths(&self, kind: &str) -> Result<[Option<u32>; 2], HuggingFaceError> {
        let key = self.size_of_kind(kind, "head_dim")?;
        Ok([key, self.size_of_kind(kind, "v_head_dim")?.or(key)])
    }

    fn add_head_lengths(&mut self, lengths: [Option<u32>; 2], suffix: &str) {
        for (key, length) in ["attention.key_length", "attention.value_length"].iter().zip(lengths) {
            if let Some(length) = length {
                self.add(&format!("{key}{suffix}"), length);
            }
        }
    }

    /// The heads of queries of each layer, where the config lists them or some layers have others.
    fn heads_of_layers(&mut self) -> Result<(), HuggingFaceError> {
        const KEY: &str = "num_attention_heads_per_layer";
        let Some(list) = self.config.list(KEY)? else {
            return self.sizes_of_layers("num_attention_heads", "attention.head_count");
        };
        let heads = list.iter().map(|value| self.config.as_u32(KEY, value)).collect::<Result<Vec<_>, _>>()?;
        self.replace("attention.head_count", &heads[..]);
        Ok(())
    }

    /// The sizes of attention whose heads share a latent vector of length `rank`.
    fn latent_sizes(&mut self, rank: u32) -> Result<(), HuggingFaceError> {
        let size = |key: &str| self.config.size(key).map(|size| u32::try_from(size).unwrap_or(u32::MAX));
        // A model without positions rotates nothing.
        let rotated = self.config.u32("qk_rope_head_dim")?.filter(|rotated| *rotated == 0);
        let rotated = rotated.map_or_else(|| size("qk_rope_head_dim"), Ok)?;
        let [key, value] = [size("qk_nope_head_dim")?, size("v_head_dim")?];
        if let Some(rank) = self.config.u32("q_lora_rank")? {
            self.add("attention.q_lora_rank", rank);
        }
        for (name, size) in [
            ("attention.head_count_kv", 1),
            ("attention.kv_lora_rank", rank),
            ("attention.key_length", rank.saturating_add(rotated)),
            ("attention.value_length", rank),
            ("attention.key_length_mla", key.saturating_add(rotated)),
            ("attention.value_length_mla", value),
            ("rope.dimension_count", rotated),
        ] {
            self.add(name, size);
        }
        Ok(())
    }

    /// The width of feed-forwards. Layers that read the keys of earlier ones may have wider ones.
    fn feed_forward_length(&mut self) -> Result<(), HuggingFaceError> {
        if let Some(widths) = self.unequal_widths()? {
            self.add("feed_forward_length", &widths[..]);
            return Ok(());
        }
        if self.config.is_set("has_mixers_only") {
            self.add("feed_forward_length", 0u32);
            return Ok(());
        }
        let Some(length) = self.config.u32("intermediate_size")? else { return self.multiple_of_width() };
        let length = self.adjusted(length)?;
        let shared = self.config.u32("num_kv_shared_layers")?.unwrap_or(0) as usize;
        if shared == 0 || !self.config.bool("use_double_wide_mlp")?.unwrap_or(false) {
            self.add("feed_forward_length", length);
            return Ok(());
        }
        let n_layers = self.layers()?;
        let narrow = n_layers.saturating_sub(shared);
        let width = |layer: usize| if layer < narrow { length } else { length.saturating_mul(2) };
        let widths: Vec<u32> = (0..n_layers).map(width).collect();
        self.add("feed_forward_length", &widths[..]);
        Ok(())
    }

    /// The width of feed-forwards as a multiple of that of the model. GPT-2, Falcon, BLOOM and their successors do not say it: 4.
    fn multiple_of_width(&mut self) -> Result<(), HuggingFaceError> {
        let is_usual = ["n_embd", "parallel_attn", "apply_residual_connection_post_layernorm"]
            .iter()
            .any(|key| self.config.get(key).is_some());
        let ratio = self.config.u32("expansion_ratio")?.or(is_usual.then_some(4));
        if let (Some(width), Some(ratio)) = (self.config.u32("hidden_size")?, ratio) {
            self.add("feed_forward_length", width.saturating_mul(ratio));
        }
        Ok(())
    }

    /// The width of the feed-forward of each layer, where the config lists different ones.
    fn unequal_widths(&self) -> Result<Option<Vec<u32>>, HuggingFaceError> {
        const KEY: &str = "intermediate_size";
        let Some(list) = self.config.get(KEY).and_then(Json::as_array) else { return Ok(None) };
        if list.iter().all(|width| *width == list[0]) {
            return Ok(None);
        }
        list.iter().map(|width| self.config.as_u32(KEY, width)).collect::<Result<_, _>>().map(Some)
    }

    /// The number of layers before the first with experts, where the config lists which have some.
    fn leading_dense_layers(&mut self) {
        let lists = ["mlp_layer_types", "moe_layer_freq"].map(|key| self.config.get(key).and_then(Json::as_array));
        let is_dense = |kind: &&Json| **kind == "dense" || kind.as_u64() == Some(0);
        let count = lists.into_iter().flatten().next().map_or(0, |list| list.iter().take_while(is_dense).count());
        if count > 0 && self.config.get("first_k_dense_replace").is_none() {
            self.replace("leading_dense_block_count", u32::try_from(count).unwrap_or(u32::MAX));
        }
    }

    /// The cutoff of the gate in each layer, from the part of its values that are below it.
    fn cutoffs(&mut self) -> Result<(), HuggingFaceError> {
        const KEY: &str = "activation_sparsity_pattern";
        let Some(list) = self.config.get(KEY).and_then(Json::as_array) else { return Ok(()) };
        let deviations = |part: &Json| match part.as_f64() {
            Some(part) if (0.0..1.0).contains(&part) => Ok(normal_quantile(part)),
            _ => Err(self.config.wrong(KEY, part, "parts from 0 to below 1")),
        };
        let cutoffs: Vec<f32> = list.iter().map(deviations).collect::<Result<_, _>>()?;
        self.add("activation_sparsity_scale", &cutoffs[..]);
        Ok(())
    }

    /// The limits of activations in each layer, of which 0 is none: those of routed experts and those of other feed-forwards.
    fn activation_limits(&mut self) -> Result<(), HuggingFaceError> {
        for (name, key) in [("swiglu_limits", "swiglu_clamp_exp"), ("swiglu_limits_shared", "swiglu_clamp_shexp")] {
            if self.config.get(name).is_some_and(Json::is_number) {
                let limit = self.config.f32(name)?.unwrap_or(0.0);
                self.add(key, limit);
                continue;
            }
            let Some(list) = self.config.list(name)? else { continue };
            let limit = |value: &Json| if value.is_null() { Ok(0.0) } else { self.config.as_f32(name, value) };
            let limits: Vec<f32> = list.iter().map(limit).collect::<Result<_, _>>()?;
            self.add(key, &limits[..]);
        }
        Ok(())
    }

    /// The width of feed-forwards that follows from a stated one: two thirds of it, times a factor, rounded up.
    fn adjusted(&self, length: u32) -> Result<u32, HuggingFaceError> {
        if !self.config.is_set("block_auto_adjust_ff_dim") {
            return Ok(length);
        }
        let multiple = self.config.u32("block_multiple_of")?.unwrap_or(256).max(1);
        let factor = self.config.f32("block_ffn_dim_multiplier")?.unwrap_or(1.0);
        let narrow = f64::from(length) * 2.0 / 3.0;
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // Out of range, it is the nearest number.
        let scaled = (narrow.floor() * f64::from(factor)) as u32;
        Ok(scaled.checked_next_multiple_of(multiple).unwrap_or(scaled))
    }

    /// The number of layers, small enough for a list of them.
    pub(super) fn layers(&self) -> Result<usize, HuggingFaceError> {
        const MOST: usize = 1 << 16;
        match self.config.size("num_hidden_layers")? {
            layers if layers <= MOST => Ok(layers),
            layers => Err(self.config.wrong("num_hidden_layers", layers, format!("at most {MOST}"))),
        }
    }

    /// The window, and which layers have it.
    fn windows(&mut self) -> Result<(), HuggingFaceError> {
        let kinds = self.config.layer_types()?.unwrap_or_default();
        if kinds.contains(&CHUNKED) {
            let chunked: Vec<bool> = kinds.iter().map(|kind| *kind == CHUNKED).collect();
            self.add("attention.sliding_window_pattern", &chunked[..]);
        }
        if self.config.is_null("attention_chunk_size") {
            self.add("attention.sliding_window", 0u32);
        }
        // A row's own position comes on top of these.
        let before = self.config.u32(BEFORE_ROW)?.map(|before| before.saturating_add(1));
        let Some(window) = before.or(self.config.u32("sliding_window")?) else { return Ok(()) };
        let kinds = self.config.layer_types()?;
        if let Some(kinds) = &kinds {
            let windowed: Vec<bool> = kinds.iter().map(|kind| *kind == WINDOWED || POOLED.contains(kind)).collect();
            if !windowed.contains(&true) {
                return Ok(());
            }
            self.add("attention.sliding_window_pattern", &windowed[..]);
        } else if let Some(every) = self.config.get("sliding_window_pattern").and_then(Json::as_u64) {
            self.add("attention.sliding_window_pattern", u32::try_from(every).unwrap_or(u32::MAX));
        }
        self.add("attention.sliding_window", window);
        Ok(())
    }

    /// The layers that select positions by an indexer of their own, where the config lists them.
    fn indexers(&mut self) -> Result<(), HuggingFaceError> {
        let Some(kinds) = self.config.list("indexer_types")? else { return Ok(()) };
        let own: Vec<bool> = kinds.iter().map(|kind| kind.as_str() == Some("full")).collect();
        self.add("attention.indexer.types", &own[..]);
        Ok(())
    }

    /// How many layers add rows of the vision tower.
    fn deep_layers(&mut self) -> Result<(), HuggingFaceError> {
        let layers = self.config.list("deepstack_layers")?.map_or(0, Vec::len);
        if layers > 0 {
            self.add("n_deepstack_layers", u32::try_from(layers).unwrap_or(u32::MAX));
        }
        Ok(())
    }

    /// Factors that are computed from values.
    fn scales(&mut self) -> Result<(), HuggingFaceError> {
        if let Some(scalar) = self.config.f32("query_pre_attn_scalar")? {
            self.add("attention.scale", 1.0 / scalar.sqrt());
        }
        let n_layers = self.layers()? as f32;
        if let Some(depth) = self.config.f32("scale_depth")? {
            self.add("residual_scale", depth / n_layers.sqrt());
        }
        if let (Some(width), Some(base)) = (self.config.f32("hidden_size")?, self.config.f32("dim_model_base")?) {
            self.add("logit_scale", width / base);
        }
        if self.config.bool("mup_enabled")? == Some(false) {
            self.add("embedding_scale", 1.0f32);
        }
        Ok(())
    }

    /// The width of recurrent layers, and the scores of routers.
    fn recurrent_width_and_scoring(&mut self) -> Result<(), HuggingFaceError> {
        for (heads, length) in INNER_SIZES {
            if let (Some(heads), Some(length)) = (self.config.u32(heads)?, self.config.u32(length)?) {
                self.add("ssm.inner_size", heads.saturating_mul(length));
            }
        }
        if self.config.get("mamba_dt_rank").is_some() && self.config.get("mamba_inner_size").is_none() {
            let expand = self.config.u32("mamba_expand")?.unwrap_or(2);
            let width = u32::try_from(self.config.size("hidden_size")?).unwrap_or(u32::MAX);
            self.add("ssm.inner_size", width.saturating_mul(expand));
        }
        if let Some(found) = self.config.str("scoring_func")? {
            let scoring = SCORINGS.iter().find(|(name, _)| *name == found);
            let wrong = || {
                self.config.wrong("scoring_func", format!("{found:?}"), "softmax, sigmoid, noaux_tc or sqrtsoftplus")
            };
            self.add("expert_gating_func", scoring.ok_or_else(wrong)?.1);
        }
        Ok(())
    }

    /// Which layers rotate, and how the others scale queries.
    fn rotated_layers(&mut self) -> Result<(), HuggingFaceError> {
        if self.config.str(POSITIONS)? == Some("nope") {
            self.add("rope.scaling.finetuned", false);
        }
        if self.config.get("attn_temperature_tuning").is_some() && !self.config.is_set("attn_temperature_tuning") {
            self.replace("attention.temperature_scale", 0.0f32);
        }
        // Layers that do not rotate have a 0, among flags or among bases of frequencies.
        for key in ["no_rope_layers", "layer_rope_theta"] {
            let Some(rotates) = self.config.list(key)?.filter(|list| !list.is_empty()) else { continue };
            let rotates: Vec<bool> = rotates.iter().map(|value| value.as_f64() != Some(0.0)).collect();
            self.add("attention.rope_pattern", &rotates[..]);
            break;
        }
        Ok(())
    }
}

/// The kind of layers that attend within a chunk of positions.
const CHUNKED: &str = "chunked_attention";

/// The key of how positions are encoded.
const POSITIONS: &str = "position_embedding_type";
