//! The families whose directories load: which architecture they are in GGUF files, and how their tensors differ from
//! the common rules. A family is data.

use super::config::Config;
use super::family::{Family, PLAIN};
use super::family_rules::*;
use super::family_values::*;
use super::ling_rules::*;
use super::rules::Literal::{self, Bool, Number, Text};

/// The key that [`half_layers`](super::half_layers) adds where some layers have experts.
pub(super) const HAS_EXPERTS: &str = "has_expert_layers";

/// The key that [`classifier`](super::classifier) adds to configs of models that classify texts, such as rerankers.
pub(super) const CLASSIFIES: &str = "classifies_texts";

/// The key that [`drafter`](super::drafter) adds to configs of draft models that compute with another model.
pub(super) const DRAFTS: &str = "drafts_with_residuals";

/// Every family.
pub(super) const FAMILIES: &[Family] = &[
    Family { model_types: &["llama"], architecture: "llama", names: &[ROTARY], nested_defaults: LLAMA_NESTED, ..PLAIN },
    Family {
        model_types: &["llama"],
        architecture: "eagle3",
        names: &[ROTARY, DRAFTER],
        outside: DRAFTER_OUTSIDE,
        other_parts: &["d2t", "t2d"],
        flag: Some(DRAFTS),
        ..PLAIN
    },
    Family {
        model_types: &["mistral"],
        architecture: "llama",
        names: &[ROTARY],
        nested_defaults: MISTRAL_NESTED,
        ..PLAIN
    },
    Family { model_types: &["ministral3"], architecture: "mistral3", names: &[ROTARY], ..PLAIN },
    Family { model_types: &["nemotron-nas"], architecture: "deci", names: &[DECI], ..PLAIN },
    Family { model_types: &["mixtral"], architecture: "llama", names: &[ROTARY, MIXTRAL], ..PLAIN },
    Family { model_types: &["qwen2"], architecture: "qwen2", nested_defaults: QWEN2_NESTED, ..PLAIN },
    Family { model_types: &["qwen2_moe"], architecture: "qwen2moe", ..PLAIN },
    Family {
        model_types: &["qwen3", "qwen3_asr"],
        architecture: "qwen3",
        rerank_template: Some(QWEN3_RERANKER),
        ..PLAIN
    },
    Family { model_types: &["qwen3_moe"], architecture: "qwen3moe", ..PLAIN },
    Family {
        model_types: &["gemma"],
        architecture: "gemma",
        activations: &["gelu", "gelu_pytorch_tanh"],
        norms_lack_one: true,
        ..PLAIN
    },
    Family {
        model_types: &["gemma2"],
        architecture: "gemma2",
        activations: GELU_TANH,
        norms_lack_one: true,
        names: &[NORM_AFTER_MIXER],
        ..PLAIN
    },
    Family {
        model_types: &["gemma3_text", "gemma3"],
        architecture: "gemma3",
        activations: GELU_TANH,
        norms_lack_one: true,
        names: &[NORM_AFTER_MIXER],
        defaults: GEMMA3_DEFAULTS,
        ..PLAIN
    },
    Family {
        model_types: &["gemma3_text"],
        architecture: "gemma-embedding",
        activations: GELU_TANH,
        norms_lack_one: true,
        names: &[NORM_AFTER_MIXER],
        defaults: GEMMA3_DEFAULTS,
        flag: Some("use_bidirectional_attention"),
        ..PLAIN
    },
    Family { model_types: &["bert"], architecture: "bert", activations: GELU, names: &[BERT], ..PLAIN },
    Family {
        model_types: &["bert"],
        architecture: "bert",
        activations: GELU,
        names: &[BERT],
        outside: BERT_CLASSIFIER,
        flag: Some(CLASSIFIES),
        ..PLAIN
    },
    Family {
        model_types: &["nomic_bert"],
        architecture: "nomic-bert",
        activations: &["silu", "swish", "swiglu"],
        names: &[NOMIC_BERT],
        aliases: NOMIC_ALIASES,
        requires: NOMIC_REQUIRES,
        ..PLAIN
    },
    Family {
        model_types: &["nomic_bert"],
        architecture: "nomic-bert-moe",
        activations: GELU,
        names: &[NOMIC_BERT_MOE, NOMIC_BERT],
        aliases: NOMIC_ALIASES,
        requires: NOMIC_REQUIRES,
        flag: Some("moe_every_n_layers"),
        ..PLAIN
    },
    Family {
        model_types: &["jina_embeddings_v3"],
        architecture: "jina-bert-v3",
        activations: GELU,
        names: &[JINA_3],
        defaults: &[("rope_theta", Number(20_000.0))],
        ..PLAIN
    },
    Family { model_types: &["llama_bidirec"], architecture: "llama-embed", names: &[ROTARY], ..PLAIN },
    Family { model_types: &["eurobert"], architecture: "eurobert", ..PLAIN },
    Family {
        model_types: &["modernbert"],
        architecture: "modern-bert",
        activations: GELU,
        other_activations: GELU_TANH,
        names: &[MODERN_BERT],
        outside: MODERN_BERT_OUTSIDE,
        other_parts: &["head.", "decoder."],
        aliases: MODERN_BERT_ALIASES,
        defaults: MODERN_BERT_DEFAULTS,
        ..PLAIN
    },
    Family {
        model_types: &["modernbert"],
        architecture: "modern-bert",
        activations: GELU,
        other_activations: GELU_TANH,
        names: &[MODERN_BERT],
        outside: MODERN_BERT_CLASSIFIER,
        aliases: MODERN_BERT_ALIASES,
        defaults: MODERN_BERT_DEFAULTS,
        requires: &[("classifier_activation", &[Text("gelu")])],
        flag: Some(CLASSIFIES),
        ..PLAIN
    },
    Family {
        model_types: &["roberta", "xlm-roberta"],
        architecture: "bert",
        activations: GELU,
        names: &[BERT],
        // Positions are counted from the number of the padding token, which is 1 in every published model.
        first_position: 2,
        ..PLAIN
    },
    Family {
        model_types: &["roberta", "xlm-roberta"],
        architecture: "bert",
        activations: GELU,
        names: &[BERT],
        outside: ROBERTA_CLASSIFIER,
        flag: Some(CLASSIFIES),
        first_position: 2,
        ..PLAIN
    },
    Family {
        model_types: &["gemma3n_text", "gemma3n"],
        architecture: "gemma3n",
        activations: GELU_TANH,
        names: &[NORM_AFTER_MIXER, GEMMA4, GEMMA3N],
        requires: &[("altup_correct_scale", &[Bool(true)])],
        ..PLAIN
    },
    Family {
        model_types: &["gemma4_text", "gemma4", "gemma4_unified_text", "gemma4_unified"],
        architecture: "gemma4",
        activations: GELU_TANH,
        names: &[NORM_AFTER_MIXER, GEMMA4],
        media_sight: Some("use_bidirectional_attention"),
        ..PLAIN
    },
    Family {
        model_types: &["diffusion_gemma_text", "diffusion_gemma"],
        architecture: "diffusion-gemma",
        activations: GELU_TANH,
        names: &[NORM_AFTER_MIXER, GEMMA4],
        ..PLAIN
    },
    Family { model_types: &["phi3"], architecture: "phi3", ..PLAIN },
    Family { model_types: &["smollm3"], architecture: "smollm3", names: &[ROTARY], ..PLAIN },
    Family { model_types: &["olmo2", "olmo3"], architecture: "olmo2", names: &[NORM_AFTER_MIXER], ..PLAIN },
    Family { model_types: &["olmoe"], architecture: "olmoe", ..PLAIN },
    Family { model_types: &["cohere2"], architecture: "cohere2", requires: COHERE2_REQUIRES, ..PLAIN },
    Family { model_types: &["ernie4_5"], architecture: "ernie4_5", ..PLAIN },
    Family {
        model_types: &["paddleocr_vl_text", "paddleocr_vl"],
        architecture: "paddleocr",
        other_parts: &["mlp_AR.", "projector."],
        ..PLAIN
    },
    Family { model_types: &["minimax_m2"], architecture: "minimax-m2", names: &[MIXTRAL, MINIMAX], ..PLAIN },
    Family {
        model_types: &["minimax_m3_vl_text", "minimax_m3", "minimax_m3_vl"],
        architecture: "minimax-m3",
        activations: &["swigluoai", "silu"],
        norms_lack_one: true,
        names: &[MIXTRAL, MINIMAX, MINIMAX_3],
        other_parts: &["patch_merge_mlp.", "mtp."],
        aliases: MINIMAX_3_ALIASES,
        defaults: &[("scoring_func", Text("sigmoid")), ("n_shared_experts", Number(1.0))],
        nested_defaults: MINIMAX_3_DEFAULTS,
        requires: MINIMAX_3_REQUIRES,
        ..PLAIN
    },
    Family { model_types: &["arcee"], architecture: "arcee", activations: RELU2, names: &[ROTARY], ..PLAIN },
    Family { model_types: &["dots1"], architecture: "dots1", ..PLAIN },
    Family { model_types: &["exaone_moe"], architecture: "exaone-moe", ..PLAIN },
    Family {
        model_types: &["whisper"],
        architecture: "whisper",
        activations: GELU,
        outside: WHISPER_OUTSIDE,
        parts_of_layer: WHISPER,
        other_parts: &["model.encoder."],
        chat_template: Some(WHISPER_TEMPLATE),
        aliases: WHISPER_ALIASES,
        defaults: &[("layer_norm_eps", Number(1e-5)), ("tie_word_embeddings", Bool(true))],
        requires: &[("scale_embedding", &[Bool(false)])],
        ..PLAIN
    },
    Family {
        model_types: &["gpt2"],
        architecture: "gpt2",
        activations: GELU_TANH,
        names: &[GPT2],
        aliases: GPT2_ALIASES,
        ..PLAIN
    },
    Family {
        model_types: &["gpt_bigcode"],
        architecture: "starcoder",
        activations: GELU_TANH,
        other_activations: GELU,
        names: &[STARCODER],
        aliases: GPT2_ALIASES,
        defaults: &[("num_key_value_heads", Number(1.0))],
        ..PLAIN
    },
    Family {
        model_types: &["starcoder2"],
        architecture: "starcoder2",
        activations: GELU_TANH,
        names: &[STARCODER2],
        ..PLAIN
    },
    Family {
        model_types: &["nemotron"],
        architecture: "nemotron",
        activations: RELU2,
        norms_lack_one: true,
        defaults: ROTATES_HALF,
        ..PLAIN
    },
    Family { model_types: &["granite"], architecture: "granite", names: &[ROTARY], ..PLAIN },
    Family { model_types: &["granite_swa"], architecture: "granite_swa", names: &[ROTARY], ..PLAIN },
    Family {
        model_types: &["granitemoe_swa"],
        architecture: "granite_swa",
        names: &[ROTARY, GRANITE_EXPERTS],
        ..PLAIN
    },
    Family { model_types: &["mellum"], architecture: "mellum", ..PLAIN },
    Family { model_types: &["hy_v3"], architecture: "hy_v3", names: &[HUNYUAN3], ..PLAIN },
    Family {
        model_types: &["hy_v4"],
        architecture: "hy_v4",
        names: &[HUNYUAN4, LATENT, INDEXER],
        outside: HUNYUAN4_OUTSIDE,
        other_parts: &["mtp_layers."],
        aliases: &[("swiglu_limits", "swiglu_limit")],
        defaults: &[("scoring_func", Text("sigmoid"))],
        requires: &[("gated_mla", &[Bool(true)]), ("enable_ihc", &[Bool(true)])],
        ..PLAIN
    },
    Family { model_types: &["afmoe"], architecture: "afmoe", names: &[NORM_AFTER_MIXER, AFMOE], ..PLAIN },
    Family {
        model_types: &["exaone4", "exaone4_5_text", "exaone4_5"],
        architecture: "exaone4",
        names: &[NORM_AFTER_MIXER],
        ..PLAIN
    },
    Family { model_types: &["seed_oss"], architecture: "seed_oss", names: &[NORM_AFTER_MIXER], ..PLAIN },
    Family { model_types: &["glm4"], architecture: "glm4", names: &[GLM4], defaults: ROTATES_HALF, ..PLAIN },
    Family {
        model_types: &["glm4v_text", "glm_ocr_text", "glm4v", "glm_ocr"],
        architecture: "glm4",
        names: &[GLM4V, GLM4],
        defaults: ROTATES_HALF,
        ..PLAIN
    },
    Family {
        model_types: &["glm4_moe", "glm4v_moe_text", "glm4v_moe"],
        architecture: "glm4moe",
        names: &[NORM_AFTER_MIXER],
        defaults: ROTATES_HALF,
        ..PLAIN
    },
    Family { model_types: &["solar_open"], architecture: "glm4moe", names: &[NORM_AFTER_MIXER], ..PLAIN },
    Family { model_types: &["gpt_oss"], architecture: "gpt-oss", names: &[NORM_AFTER_MIXER, GPT_OSS], ..PLAIN },
    Family {
        model_types: &["deepseek_v2", "youtu"],
        architecture: "deepseek2",
        names: &[LATENT],
        requires: LATENT_REQUIRES,
        ..PLAIN
    },
    Family {
        model_types: &["deepseek_v3", "kimi_k2", "glm4_moe_lite"],
        architecture: "deepseek2",
        names: &[LATENT],
        defaults: &[("scoring_func", Text("sigmoid"))],
        requires: LATENT_REQUIRES,
        ..PLAIN
    },
    Family {
        model_types: &["mistral4"],
        architecture: "mistral4",
        names: &[LATENT],
        requires: LATENT_REQUIRES,
        ..PLAIN
    },
    Family {
        model_types: &["deepseek_v32"],
        architecture: "deepseek32",
        names: &[LATENT, INDEXER],
        defaults: &[("scoring_func", Text("sigmoid"))],
        requires: &[ROTATES_NEIGHBOURS, ("indexer_rope_interleave", &[Bool(false)])],
        ..PLAIN
    },
    Family {
        model_types: &["deepseek_v4"],
        architecture: "deepseek4",
        names: &[HYPER_CONNECTIONS, DEEPSEEK_4],
        outside: DEEPSEEK_4_OUTSIDE,
        other_parts: &["aligner.", "image_", "vision."],
        aliases: &[("swiglu_limits", "swiglu_limit"), ("swiglu_limits_shared", "swiglu_limit")],
        defaults: &[("scoring_func", Text("sqrtsoftplus"))],
        ..PLAIN
    },
    Family {
        model_types: &["glm_moe_dsa"],
        architecture: "glm-dsa",
        names: &[LATENT, INDEXER],
        defaults: &[("scoring_func", Text("sigmoid"))],
        requires: &[ROTATES_NEIGHBOURS, ("indexer_rope_interleave", &[Bool(true)])],
        ..PLAIN
    },
    Family {
        model_types: &["glm5_next_text", "glm5_next"],
        architecture: "glm5-next",
        names: &[HYPER_CONNECTIONS, GLM5_NEXT, KIMI_LINEAR, LATENT, INDEXER],
        aliases: GLM5_NEXT_ALIASES,
        defaults: &[("scoring_func", Text("sigmoid"))],
        lists_recurrent_heads: true,
        ..PLAIN
    },
    Family {
        model_types: &["llama4_text", "llama4"],
        architecture: "llama4",
        names: &[FEED_FORWARD, LLAMA4],
        // The width of experts comes first.
        aliases: &[("moe_intermediate_size", "intermediate_size"), ("intermediate_size", "intermediate_size_mlp")],
        ..PLAIN
    },
    Family {
        model_types: &["granitemoe", "granitemoeshared"],
        architecture: "granitemoe",
        names: &[ROTARY, GRANITE_EXPERTS],
        ..PLAIN
    },
    Family {
        model_types: &["granitemoehybrid"],
        architecture: "granitehybrid",
        names: &[ROTARY, MAMBA, GRANITE_DENSE],
        aliases: &[("intermediate_size", "shared_intermediate_size")],
        requires: GRANITE_HYBRID_REQUIRES,
        ..PLAIN
    },
    Family {
        model_types: &["granitemoehybrid"],
        architecture: "granitehybrid",
        names: &[ROTARY, MAMBA, GRANITE_EXPERTS],
        requires: GRANITE_HYBRID_REQUIRES,
        flag: Some("num_local_experts"),
        ..PLAIN
    },
    Family {
        model_types: &["olmo"],
        architecture: "olmo",
        names: &[ROTARY],
        aliases: &[("qkv_limit", "clip_qkv")],
        defaults: &[("layer_norm_eps", Number(1e-5))],
        ..PLAIN
    },
    Family {
        model_types: &["phi"],
        architecture: "phi2",
        activations: GELU_TANH,
        names: &[PHI],
        defaults: ROTATES_HALF,
        ..PLAIN
    },
    Family {
        model_types: &["stablelm"],
        architecture: "stablelm",
        names: &[STABLELM],
        defaults: ROTATES_QUARTER,
        ..PLAIN
    },
    Family {
        model_types: &["cohere"],
        architecture: "command-r",
        aliases: &[("max_position_embeddings", "model_max_length")],
        ..PLAIN
    },
    Family { model_types: &["ernie4_5_moe"], architecture: "ernie4_5-moe", names: &[ERNIE_EXPERTS], ..PLAIN },
    Family {
        model_types: &["hunyuan_v1_dense"],
        architecture: "hunyuan-dense",
        names: &[HUNYUAN],
        aliases: &[("head_dim", "attention_head_dim")],
        ..PLAIN
    },
    Family {
        model_types: &["hunyuan_v1_moe"],
        architecture: "hunyuan-moe",
        names: &[HUNYUAN, HUNYUAN_EXPERTS],
        aliases: &[("head_dim", "attention_head_dim")],
        ..PLAIN
    },
    Family { model_types: &["glm"], architecture: "chatglm", defaults: ROTATES_HALF, ..PLAIN },
    Family {
        model_types: &["chatglm"],
        architecture: "chatglm",
        names: &[CHATGLM],
        aliases: CHATGLM_ALIASES,
        defaults: CHATGLM_DEFAULTS,
        requires: CHATGLM_REQUIRES,
        ..PLAIN
    },
    Family { model_types: &["jais2"], architecture: "jais2", activations: RELU2, ..PLAIN },
    Family {
        model_types: &["gpt_neox"],
        architecture: "gptneox",
        activations: GELU,
        other_activations: GELU_TANH,
        names: &[NEOX],
        aliases: NEOX_ALIASES,
        defaults: ROTATES_QUARTER,
        ..PLAIN
    },
    Family {
        model_types: &["falcon"],
        architecture: "falcon",
        activations: GELU,
        names: &[NEOX, FALCON],
        aliases: FALCON_ALIASES,
        defaults: FALCON_DEFAULTS,
        requires: FALCON_REQUIRES,
        ..PLAIN
    },
    Family {
        model_types: &["falcon"],
        architecture: "falcon",
        activations: GELU,
        names: &[NEOX, FALCON],
        aliases: LARGE_FALCON_ALIASES,
        defaults: FALCON_DEFAULTS,
        requires: FALCON_REQUIRES,
        flag: Some("new_decoder_architecture"),
        ..PLAIN
    },
    Family {
        model_types: &["lfm2"],
        architecture: "lfm2",
        names: &[LFM2],
        aliases: &[("intermediate_size", "block_ff_dim"), ("rms_norm_eps", "norm_eps")],
        lists_recurrent_heads: true,
        ..PLAIN
    },
    Family {
        model_types: &["lfm2_moe"],
        architecture: "lfm2moe",
        names: &[LFM2],
        aliases: LFM_ALIASES,
        lists_recurrent_heads: true,
        ..PLAIN
    },
    Family {
        model_types: &["lfm3", "lfm3_vl"],
        architecture: "lfm3",
        names: &[LFM3, LFM2],
        aliases: LFM_ALIASES,
        requires: &[("use_sandwich_norm", &[Bool(true)]), ("use_attention_gate", &[Bool(true)])],
        lists_recurrent_heads: true,
        ..PLAIN
    },
    Family {
        model_types: &["kimi_linear"],
        architecture: "kimi-linear",
        names: &[KIMI_LINEAR, LATENT, MIXTRAL],
        aliases: KIMI_LINEAR_ALIASES,
        ..PLAIN
    },
    Family {
        model_types: &["kimi_linear", "kimi_k3"],
        architecture: "kimi-k3",
        activations: &["situ"],
        names: &[KIMI_3, KIMI_LINEAR, LATENT, MIXTRAL],
        recurrent_names: KIMI_3_RECURRENT,
        outside: KIMI_3_OUTSIDE,
        other_parts: &["mm_projector."],
        aliases: KIMI_3_ALIASES,
        defaults: &[("scoring_func", Text("sigmoid"))],
        requires: KIMI_3_REQUIRES,
        flag: Some("attn_res_block_size"),
        lists_recurrent_heads: true,
        ..PLAIN
    },
    Family {
        model_types: &["nemotron_h"],
        architecture: "nemotron_h",
        activations: RELU2,
        names: &[NEMOTRON_H],
        aliases: NEMOTRON_H_ALIASES,
        defaults: NEMOTRON_H_DEFAULTS,
        requires: NEMOTRON_H_REQUIRES,
        ..PLAIN
    },
    Family {
        model_types: &["nemotron_h"],
        architecture: "nemotron_h_moe",
        activations: RELU2,
        names: &[NEMOTRON_H],
        aliases: NEMOTRON_H_ALIASES,
        defaults: NEMOTRON_H_DEFAULTS,
        requires: NEMOTRON_H_REQUIRES,
        flag: Some(HAS_EXPERTS),
        ..PLAIN
    },
    Family {
        model_types: &["falcon_h1"],
        architecture: "falcon-h1",
        names: &[FALCON_H1, FEED_FORWARD, MAMBA],
        aliases: &[("logit_scale", "lm_head_multiplier")],
        factors: FALCON_H1_FACTORS,
        ..PLAIN
    },
    Family {
        model_types: &["apertus"],
        architecture: "apertus",
        activations: &["xielu"],
        names: &[APERTUS],
        scalars: XIELU,
        ..PLAIN
    },
    Family { model_types: &["mimo_v2_flash"], architecture: "mimo2", names: &[MIMO], aliases: MIMO_ALIASES, ..PLAIN },
    Family {
        model_types: &["step3p5", "step3p7"],
        architecture: "step35",
        norms_lack_one: true,
        names: &[STEP],
        aliases: STEP_ALIASES,
        requires: STEP_REQUIRES,
        rotated_parts: Some([0.5, 1.0]),
        ..PLAIN
    },
    Family {
        model_types: &["baichuan"],
        architecture: "baichuan",
        names: &[BAICHUAN],
        aliases: &[("max_position_embeddings", "model_max_length")],
        // Only the vocabulary tells Baichuan 2 from the first models.
        unit_rows: &[("output.weight", "vocab_size", Number(125_696.0))],
        ..PLAIN
    },
    Family { model_types: &["laguna"], architecture: "laguna", names: &[LAGUNA], requires: LAGUNA_REQUIRES, ..PLAIN },
    Family {
        model_types: &["cohere2_moe"],
        architecture: "cohere2moe",
        aliases: COHERE_MOE_ALIASES,
        requires: COHERE2_MOE_REQUIRES,
        ..PLAIN
    },
    Family { model_types: &["qwen2_vl_text", "qwen2_vl"], architecture: "qwen2vl", ..PLAIN },
    Family { model_types: &["qwen2_5_vl_text", "qwen2_5_vl"], architecture: "qwen2vl", ..PLAIN },
    Family { model_types: &["qwen2_5_omni_text", "qwen2_5_omni"], architecture: "qwen2vl", ..PLAIN },
    Family { model_types: &["qwen3_vl_text", "qwen3_vl"], architecture: "qwen3vl", aliases: QWEN3_VL_ALIASES, ..PLAIN },
    Family {
        model_types: &["qwen3_vl_moe_text", "qwen3_vl_moe"],
        architecture: "qwen3vlmoe",
        names: &[TRANSPOSED_EXPERTS],
        aliases: QWEN3_VL_ALIASES,
        ..PLAIN
    },
    Family {
        model_types: &["muse_glimmer_text", "muse_glimmer"],
        architecture: "muse-glimmer",
        names: &[ROTARY, MUSE_GLIMMER],
        aliases: &[("logit_scale", "output_multiplier")],
        head_norms: &[("attn_q", "attn_q_norm", "qk_scale_factor"), ("attn_k", "attn_k_norm", "")],
        ..PLAIN
    },
    Family {
        model_types: &["bloom"],
        architecture: "bloom",
        names: &[NEOX],
        aliases: BLOOM_ALIASES,
        defaults: &[("max_position_embeddings", Number(2048.0))],
        requires: &[("apply_residual_connection_post_layernorm", &[Bool(false)])],
        ..PLAIN
    },
    Family {
        model_types: &["mpt"],
        architecture: "mpt",
        names: &[MPT],
        aliases: MPT_ALIASES,
        defaults: &[("layer_norm_epsilon", Number(1e-5))],
        requires: MPT_REQUIRES,
        ..PLAIN
    },
    Family {
        model_types: &["dbrx"],
        architecture: "dbrx",
        names: &[DBRX],
        aliases: DBRX_ALIASES,
        defaults: &[("layer_norm_epsilon", Number(1e-5))],
        requires: &[("expert_weights_order", &[Number(1.0)])],
        ..PLAIN
    },
    Family { model_types: &["internlm2"], architecture: "internlm2", names: &[INTERNLM2], ..PLAIN },
    Family {
        model_types: &["bailing_moe"],
        architecture: "bailingmoe",
        names: &[LING],
        requires: &[("norm_head", &[Bool(false)])],
        ..PLAIN
    },
    Family {
        model_types: &["bailing_moe"],
        architecture: "bailingmoe2",
        names: &[LING2],
        aliases: &[("scoring_func", "score_function")],
        defaults: ROTATES_HALF,
        requires: &[("norm_head", &[Bool(false)])],
        flag: Some("use_qk_norm"),
        ..PLAIN
    },
    Family {
        model_types: &["bailing_hybrid", "bailing_moe_v3_vl"],
        architecture: "bailingmoe3",
        names: &[LING3],
        recurrent_names: LING3_RECURRENT,
        aliases: LING3_ALIASES,
        defaults: LING3_DEFAULTS,
        requires: LING3_REQUIRES,
        rotates_section: true,
        lists_recurrent_heads: true,
        ..PLAIN
    },
    Family {
        model_types: &["mamba"],
        architecture: "mamba",
        names: &[MAMBA1],
        aliases: MAMBA_ALIASES,
        defaults: MAMBA_DEFAULTS,
        ..PLAIN
    },
    Family {
        model_types: &["falcon_mamba"],
        architecture: "mamba",
        names: &[MAMBA1],
        aliases: MAMBA_ALIASES,
        defaults: FALCON_MAMBA_DEFAULTS,
        ..PLAIN
    },
    Family {
        model_types: &["mamba2"],
        architecture: "mamba2",
        names: &[NEMOTRON_H],
        aliases: MAMBA2_ALIASES,
        defaults: MAMBA_DEFAULTS,
        ..PLAIN
    },
    Family { model_types: &["jamba"], architecture: "jamba", names: &[JAMBA, FEED_FORWARD], ..PLAIN },
    Family { model_types: &["minicpm"], architecture: "minicpm", names: &[ROTARY], ..PLAIN },
    Family {
        model_types: &["exaone"],
        architecture: "exaone",
        names: &[EXAONE3],
        aliases: &[("num_hidden_layers", "num_layers"), ("hidden_act", "activation_function")],
        ..PLAIN
    },
    Family {
        model_types: &["qwen3_next"],
        architecture: "qwen3next",
        norms_lack_one: true,
        names: &[NORM_AFTER_MIXER, QWEN3_NEXT],
        defaults: ROTATES_QUARTER,
        ..PLAIN
    },
    Family {
        model_types: &["qwen3_5_text", "qwen3_5"],
        architecture: "qwen35",
        norms_lack_one: true,
        names: &[NORM_AFTER_MIXER, QWEN3_5],
        defaults: ROTATES_QUARTER,
        ..PLAIN
    },
    Family {
        model_types: &["qwen3_5_moe_text", "qwen3_5_moe"],
        architecture: "qwen35moe",
        norms_lack_one: true,
        names: &[NORM_AFTER_MIXER, QWEN3_5],
        defaults: ROTATES_QUARTER,
        ..PLAIN
    },
    // Its layer that predicts one more token is not computed.
    Family {
        model_types: &["qwen4_exp_text", "qwen4_exp"],
        architecture: "qwen4exp",
        norms_lack_one: true,
        names: &[QWEN4_EXP, QWEN3_5],
        outside: QWEN4_EXP_OUTSIDE,
        other_parts: &["mtp."],
        defaults: ROTATES_QUARTER,
        requires: &[("indexer_kv_heads", &[Number(1.0)])],
        ..PLAIN
    },
];

impl Family {
    /// The matrices whose rows have the length 1 in a model with this config.
    pub(super) fn unit_rows_of(&self, config: &Config) -> Vec<&'static str> {
        let has = |key: &str, value: &Literal| config.get(key).is_some_and(|found| value.is(found));
        let of_config = self.unit_rows.iter().filter(|(_, key, value)| has(key, value));
        of_config.map(|(tensor, _, _)| *tensor).collect()
    }
}

/// The family with this `model_type`. `is_set` says which keys of the config are true.
pub(super) fn of_type(model_type: &str, is_set: impl Fn(&str) -> bool) -> Option<&'static Family> {
    let of_type = |family: &&Family| family.model_types.contains(&model_type);
    let flagged = FAMILIES.iter().filter(of_type).find(|family| family.flag.is_some_and(&is_set));
    flagged.or_else(|| FAMILIES.iter().filter(of_type).find(|family| family.flag.is_none()))
}

/// All values of `model_type`, for people.
pub(super) fn known() -> String {
    let plain = FAMILIES.iter().filter(|family| family.flag.is_none());
    plain.flat_map(|family| family.model_types).copied().collect::<Vec<_>>().join(", ")
}
