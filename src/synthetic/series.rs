//! What the models of a series have in common: rows of the table without the sizes of a model, and keys of their architectures.

use super::shape::{ExpertShape, Key, Letters, OptionalTensor, RopeStretch, Shape};
use super::vocabulary::Vocabulary;

/// The shared values of the Llama 3 series.
pub(super) const LLAMA_3: Shape = Shape {
    name: "",
    title: "",
    architecture: "llama",
    parameters: 0,
    n_layers: 0,
    hidden_size: 0,
    intermediate_size: 0,
    n_heads: 0,
    n_kv_heads: 8,
    head_dim: 128,
    vocab_size: 128_256,
    vocabulary: Vocabulary::BytePair { pre_tokenizer: "llama-bpe" },
    context_train: 131_072,
    rms_norm_epsilon: 1e-5,
    rope_base: 500_000.0,
    rope_stretch: RopeStretch::Llama3 { factor: 8.0 },
    window: None,
    softcaps: None,
    tied: false,
    experts: None,
    rotary_dim: None,
    keys: &[],
    optional: &[],
};

pub(super) const SMOLLM_2: Shape = Shape {
    head_dim: 64,
    vocab_size: 49152,
    vocabulary: Vocabulary::BytePair { pre_tokenizer: "smollm" },
    context_train: 8192,
    rope_base: 100_000.0,
    rope_stretch: RopeStretch::None,
    tied: true,
    ..LLAMA_3
};

pub(super) const QWEN_2: Shape = Shape {
    architecture: "qwen2",
    vocab_size: 151_936,
    vocabulary: Vocabulary::BytePair { pre_tokenizer: "qwen2" },
    context_train: 32768,
    rms_norm_epsilon: 1e-6,
    rope_base: 1_000_000.0,
    rope_stretch: RopeStretch::None,
    optional: &QUERY_KEY_VALUE_BIASES,
    ..LLAMA_3
};

pub(super) const QWEN_3: Shape = Shape { architecture: "qwen3", context_train: 40960, optional: &[], ..QWEN_2 };

pub(super) const QWEN_3_5: Shape = Shape {
    architecture: "qwen35",
    vocab_size: 248_320,
    vocabulary: Vocabulary::BytePair { pre_tokenizer: "qwen35" },
    context_train: 262_144,
    head_dim: 256,
    n_kv_heads: 2,
    rope_base: 10_000_000.0,
    rotary_dim: Some(64),
    keys: &delta_keys(16, 16),
    optional: &[OptionalTensor::of_layers("ssm_conv1d.weight", "ddd*", 'd')],
    tied: true,
    ..QWEN_3
};

pub(super) const QWEN_3_MOE: Shape = Shape {
    architecture: "qwen3moe",
    hidden_size: 2048,
    intermediate_size: 6144,
    n_heads: 32,
    n_kv_heads: 4,
    experts: Some(ExpertShape { count: 128, used: 8, intermediate_size: 768, shared_size: 0 }),
    ..QWEN_3
};

pub(super) const GPT_OSS: Shape = Shape {
    architecture: "gpt-oss",
    hidden_size: 2880,
    intermediate_size: 2880,
    n_heads: 64,
    n_kv_heads: 8,
    head_dim: 64,
    vocab_size: 201_088,
    vocabulary: Vocabulary::BytePair { pre_tokenizer: "gpt-4o" },
    rope_base: 150_000.0,
    rope_stretch: RopeStretch::Yarn { factor: 32.0, original_context: 4096 },
    window: Some(128),
    optional: &[
        OptionalTensor::new("attn_q.bias"),
        OptionalTensor::new("attn_k.bias"),
        OptionalTensor::new("attn_v.bias"),
        OptionalTensor::new("attn_output.bias"),
        OptionalTensor::new("attn_sinks.weight"),
        OptionalTensor::new("ffn_gate_inp.bias"),
        OptionalTensor::new("ffn_gate_exps.bias"),
        OptionalTensor::new("ffn_up_exps.bias"),
        OptionalTensor::new("ffn_down_exps.bias"),
    ],
    ..LLAMA_3
};

pub(super) const GEMMA_2: Shape = Shape {
    architecture: "gemma2",
    head_dim: 256,
    vocab_size: 256_000,
    vocabulary: Vocabulary::SentencePiece,
    context_train: 8192,
    rms_norm_epsilon: 1e-6,
    rope_base: 10_000.0,
    rope_stretch: RopeStretch::None,
    window: Some(4096),
    softcaps: Some((50.0, 30.0)),
    tied: true,
    ..LLAMA_3
};

pub(super) const GEMMA_3: Shape = Shape {
    architecture: "gemma3",
    vocab_size: 262_208,
    context_train: 131_072,
    rope_base: 1_000_000.0,
    rope_stretch: RopeStretch::Linear { factor: 8.0 },
    window: Some(1024),
    softcaps: None,
    ..GEMMA_2
};

pub(super) const GEMMA_4: Shape = Shape {
    architecture: "gemma4",
    head_dim: 512,
    vocab_size: 262_144,
    rope_stretch: RopeStretch::Partial { rotated: 64 },
    optional: &[OptionalTensor::new("layer_output_scale.weight"), OptionalTensor::new("attn_v.weight")],
    ..GEMMA_3
};

/// The heads of layers with a window, and the soft cap of logits.
pub(super) const GEMMA_4_KEYS: [(&str, Key); 5] = [
    ("final_logit_softcapping", Key::Number(30.0)),
    ("attention.key_length_swa", Key::Size(256)),
    ("attention.value_length_swa", Key::Size(256)),
    ("rope.dimension_count_swa", Key::Size(256)),
    ("rope.freq_base_swa", Key::Number(10_000.0)),
];

pub(super) const LFM_2: Shape = Shape {
    architecture: "lfm2",
    n_heads: 32,
    head_dim: 64,
    vocab_size: 65536,
    vocabulary: Vocabulary::BytePair { pre_tokenizer: "lfm2" },
    context_train: 128_000,
    rope_base: 1_000_000.0,
    rope_stretch: RopeStretch::None,
    tied: true,
    ..LLAMA_3
};

/// `c` is a layer with a convolution, `*` one of attention.
pub(super) const LFM_2_LAYERS: Letters = "cc*cc*cc*c*c*c*c";
pub(super) const LFM_2_MOE_LAYERS: Letters = "cc*ccc*ccc*ccc*ccc*cc*cc";

/// `w` is a layer of attention with a window.
pub(super) const LFM_3_LAYERS: Letters = "cc*cwc*cwc*cwc*cwc*cwc*c";

/// `k` is a layer of the delta rule, `l` one of latent attention.
pub(super) const LING_3_LAYERS: Letters = "kkkkkl";

pub(super) const LING_3_KEYS: [(&str, Key); 15] = [
    ("attention.head_count_kv", Key::Sizes(LING_3_LAYERS, [('l', 1), ('k', 0)])),
    ("attention.kv_lora_rank", Key::Size(512)),
    ("attention.key_length", Key::Size(576)),
    ("attention.key_length_mla", Key::Size(192)),
    ("attention.value_length_mla", Key::Size(128)),
    ("ssm.conv_kernel", Key::Size(4)),
    ("kda.head_dim", Key::Size(128)),
    ("kda.safe_gate", Key::Flag(true)),
    ("kda.gate_lower_bound", Key::Number(-5.0)),
    ("leading_dense_block_count", Key::Size(2)),
    // The sigmoid.
    ("expert_gating_func", Key::Size(2)),
    ("expert_weights_norm", Key::Flag(true)),
    ("expert_weights_scale", Key::Number(2.5)),
    ("expert_group_count", Key::Size(8)),
    ("expert_group_used_count", Key::Size(4)),
];

/// Letters as of [`LING_3_LAYERS`].
pub(super) const GLM_5_FLASH_LAYERS: Letters = "kkkl";

pub(super) const GLM_5_FLASH_KEYS: [(&str, Key); 22] = [
    ("attention.head_count_kv", Key::Sizes(GLM_5_FLASH_LAYERS, [('l', 1), ('k', 0)])),
    ("attention.q_lora_rank", Key::Size(1536)),
    ("attention.kv_lora_rank", Key::Size(512)),
    ("attention.key_length", Key::Size(512)),
    ("attention.key_length_mla", Key::Size(256)),
    ("attention.value_length_mla", Key::Size(256)),
    ("attention.indexer.head_count", Key::Size(32)),
    ("attention.indexer.key_length", Key::Size(128)),
    ("attention.indexer.top_k", Key::Size(2048)),
    ("attention.indexer.kpool", Key::Size(4)),
    ("hyper_connection.count", Key::Size(4)),
    ("hyper_connection.sinkhorn_iterations", Key::Size(20)),
    ("hyper_connection.epsilon", Key::Number(1e-6)),
    ("ssm.conv_kernel", Key::Size(4)),
    ("kda.head_dim", Key::Size(128)),
    ("kda.gate_lower_bound", Key::Number(-5.0)),
    ("leading_dense_block_count", Key::Size(3)),
    // The sigmoid.
    ("expert_gating_func", Key::Size(2)),
    ("expert_weights_norm", Key::Flag(true)),
    ("expert_weights_scale", Key::Number(2.5)),
    ("swiglu_clamp_exp", Key::Number(10.0)),
    ("swiglu_clamp_shexp", Key::Number(10.0)),
];

/// Letters as of [`LING_3_LAYERS`].
pub(super) const KIMI_3_LAYERS: Letters =
    "kkklkkklkkklkkklkkklkkklkkklkkklkkklkkklkkklkkklkkklkkklkkklkkklkkklkkklkkklkkklkkklkkklkkkll";

/// `d` is a layer with a dense feed-forward, `e` one with experts.
pub(super) const KIMI_3_EXPERTS: Letters =
    "deeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee";

pub(super) const KIMI_3_KEYS: [(&str, Key); 18] = [
    ("attention.head_count_kv", Key::Sizes(KIMI_3_LAYERS, [('l', 1), ('k', 0)])),
    ("attention.q_lora_rank", Key::Size(1536)),
    ("attention.kv_lora_rank", Key::Size(512)),
    ("attention.key_length", Key::Size(576)),
    ("attention.value_length", Key::Size(512)),
    ("attention.key_length_mla", Key::Size(192)),
    ("attention.value_length_mla", Key::Size(128)),
    ("attn_res.block_size", Key::Size(12)),
    ("activation.situ_beta", Key::Number(4.0)),
    ("activation.situ_linear_beta", Key::Number(25.0)),
    ("ssm.conv_kernel", Key::Size(4)),
    ("kda.head_dim", Key::Size(128)),
    ("kda.gate_lower_bound", Key::Number(-5.0)),
    ("leading_dense_block_count", Key::Size(1)),
    ("expert_latent_length", Key::Size(3584)),
    // The sigmoid.
    ("expert_gating_func", Key::Size(2)),
    ("expert_weights_norm", Key::Flag(true)),
    ("expert_weights_scale", Key::Number(2.827)),
];

/// `s` is a layer with a window only, `c` one with pools of 4 and an indexer, `h` one with pools of 128.
pub(super) const DEEPSEEK_4_FLASH_LAYERS: Letters = "sschchchchchchchchchchchchchchchchchchchchc";

pub(super) const DEEPSEEK_4_FLASH_KEYS: [(&str, Key); 18] = [
    ("attention.head_count_kv", Key::Size(1)),
    ("attention.q_lora_rank", Key::Size(1024)),
    ("attention.compress_ratios", Key::Sizes(DEEPSEEK_4_FLASH_LAYERS, [('c', 4), ('h', 128)])),
    ("attention.compress_rope_freq_base", Key::Number(160_000.0)),
    ("attention.output_group_count", Key::Size(8)),
    ("attention.output_lora_rank", Key::Size(1024)),
    ("attention.indexer.head_count", Key::Size(64)),
    ("attention.indexer.key_length", Key::Size(128)),
    ("attention.indexer.top_k", Key::Size(512)),
    ("hyper_connection.count", Key::Size(4)),
    ("hyper_connection.sinkhorn_iterations", Key::Size(20)),
    ("hyper_connection.epsilon", Key::Number(1e-6)),
    ("hash_layer_count", Key::Size(0)),
    // The square root of softplus.
    ("expert_gating_func", Key::Size(4)),
    ("expert_weights_norm", Key::Flag(true)),
    ("expert_weights_scale", Key::Number(1.5)),
    ("swiglu_clamp_exp", Key::Number(10.0)),
    ("swiglu_clamp_shexp", Key::Number(10.0)),
];

/// `d` is a layer with the gated delta rule, `*` one of attention to pools.
pub(super) const QWEN_3_8_FLASH_LAYERS: Letters = "ddd*";

/// Rows of the table of n-grams.
pub(super) const QWEN_3_8_FLASH_NGRAMS: usize = 320_001_536;

pub(super) const QWEN_3_8_FLASH_KEYS: [(&str, Key); 22] = {
    let [conv, state, inner, keys, values, interval, sections] = delta_keys(16, 48);
    [
        conv,
        state,
        inner,
        keys,
        values,
        interval,
        sections,
        ("attention.compress_ratios", Key::Sizes(QWEN_3_8_FLASH_LAYERS, [('*', 4), ('d', 0)])),
        ("attention.indexer.head_count", Key::Size(4)),
        ("attention.indexer.key_length", Key::Size(128)),
        ("attention.indexer.top_k", Key::Size(2048)),
        ("hyper_connection.count", Key::Size(4)),
        ("hyper_connection.low_rank", Key::Size(320)),
        ("embedding_length_per_layer_input", Key::Size(160)),
        ("ple.layers", Key::Integers(&[1])),
        ("ple.ngram_size", Key::Size(3)),
        ("ple.heads_per_ngram", Key::Size(8)),
        ("ple.conv_kernel", Key::Size(4)),
        ("ple.eos_token_id", Key::Size(248_044)),
        ("ple.layer_multipliers", Key::Longs(&[23_703_573_157_769, 20_109_073_645_365, 8_052_911_324_071])),
        (
            "ple.head_offsets",
            Key::Longs(&[
                0,
                20_000_003,
                40_000_026,
                60_000_059,
                80_000_106,
                100_000_165,
                120_000_228,
                140_000_297,
                160_000_374,
                180_000_455,
                200_000_548,
                220_000_655,
                240_000_802,
                260_000_955,
                280_001_114,
                300_001_275,
            ]),
        ),
        (
            "ple.head_vocab_sizes",
            Key::Longs(&[
                20_000_003, 20_000_023, 20_000_033, 20_000_047, 20_000_059, 20_000_063, 20_000_069, 20_000_077,
                20_000_081, 20_000_093, 20_000_107, 20_000_147, 20_000_153, 20_000_159, 20_000_161, 20_000_171,
            ]),
        ),
    ]
};

/// `d` is a layer with a dense feed-forward, `e` one with experts and an indexer.
pub(super) const MINIMAX_3_LAYERS: Letters = "dddeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee";

pub(super) const MINIMAX_3_KEYS: [(&str, Key); 9] = [
    ("attention.indexer.head_count", Key::Size(4)),
    ("attention.indexer.key_length", Key::Size(128)),
    ("attention.indexer.top_k", Key::Size(16)),
    ("attention.indexer.block_size", Key::Size(128)),
    ("attention.indexer.local_blocks", Key::Size(1)),
    ("leading_dense_block_count", Key::Size(3)),
    // The sigmoid.
    ("expert_gating_func", Key::Size(2)),
    ("expert_weights_norm", Key::Flag(true)),
    ("expert_weights_scale", Key::Number(2.0)),
];

/// `f` is a layer with an indexer of its own, `s` one that reads the selection of an earlier one.
pub(super) const HUNYUAN_4_LAYERS: Letters =
    "ffsssfsssfsssfsssfsssfsssfsssfsssfsssfsssfsssfsssfsssfsssfsssfsssfsssfsssfsssf";

/// `d` is a layer with a dense feed-forward, `e` one with experts.
pub(super) const HUNYUAN_4_FEED_FORWARDS: Letters =
    "deeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee";

pub(super) const HUNYUAN_4_KEYS: [(&str, Key); 18] = [
    ("attention.head_count_kv", Key::Size(1)),
    ("attention.q_lora_rank", Key::Size(2048)),
    ("attention.kv_lora_rank", Key::Size(512)),
    ("attention.key_length", Key::Size(576)),
    ("attention.key_length_mla", Key::Size(256)),
    ("attention.value_length_mla", Key::Size(256)),
    ("attention.indexer.head_count", Key::Size(32)),
    ("attention.indexer.key_length", Key::Size(128)),
    ("attention.indexer.top_k", Key::Size(2048)),
    ("attention.indexer.types", Key::Flags(HUNYUAN_4_LAYERS, 'f')),
    ("hyper_connection.count", Key::Size(4)),
    ("hyper_connection.epsilon", Key::Number(1e-6)),
    ("hyper_connection.magnitude", Key::Number(2.0)),
    ("leading_dense_block_count", Key::Size(1)),
    // The sigmoid.
    ("expert_gating_func", Key::Size(2)),
    ("expert_weights_norm", Key::Flag(true)),
    ("expert_weights_scale", Key::Number(2.827)),
    ("swiglu_clamp_exp", Key::Number(10.0)),
];

/// `M` is a layer with a state space, `*` one of attention, `-` one with a feed-forward, `E` one with experts.
pub(super) const NEMOTRON_2_LAYERS: Letters = "M-M-M-MM-M-M-M*-M-M-M*-M-M-M-M*-M-M-M-M*-M-MM-M-M-M-M-M-";
pub(super) const NEMOTRON_3_LAYERS: Letters = "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME";

pub(super) const NEMOTRON_3_TENSORS: [OptionalTensor; 5] = {
    let [conv, conv_bias, norm, query] = state_space_tensors(NEMOTRON_3_LAYERS);
    [conv, conv_bias, norm, query, OptionalTensor::new("exp_probs_b.bias")]
};

pub(super) const NEMOTRON_H: Shape = Shape {
    architecture: "nemotron_h",
    vocab_size: 131_072,
    vocabulary: Vocabulary::BytePair { pre_tokenizer: "pixtral" },
    rope_base: 10_000.0,
    rope_stretch: RopeStretch::None,
    ..LLAMA_3
};

/// The state space of Mamba 2.
#[derive(Clone, Copy)]
pub(super) struct StateSpace {
    pub(super) heads: u32,
    pub(super) head_dim: u32,
    pub(super) state: u32,
    pub(super) groups: u32,
}

/// The tensors of a model in which `M` is a layer with a state space and `*` one of attention.
pub(super) const fn state_space_tensors(layers: Letters) -> [OptionalTensor; 4] {
    [
        OptionalTensor::of_layers("ssm_conv1d.weight", layers, 'M'),
        OptionalTensor::new("ssm_conv1d.bias"),
        OptionalTensor::new("ssm_norm.weight"),
        OptionalTensor::of_layers("attn_q.weight", layers, '*'),
    ]
}

const fn state_space_keys(space: StateSpace) -> [(&'static str, Key); 5] {
    [
        ("ssm.conv_kernel", Key::Size(4)),
        ("ssm.state_size", Key::Size(space.state)),
        ("ssm.group_count", Key::Size(space.groups)),
        ("ssm.inner_size", Key::Size(space.heads * space.head_dim)),
        ("ssm.time_step_rank", Key::Size(space.heads)),
    ]
}

/// The keys of a model in which `M` is a layer with a state space and `*` one of attention without rotation.
const fn hybrid_keys(layers: Letters, kv_heads: u32, space: StateSpace) -> [(&'static str, Key); 7] {
    let [conv, state, groups, inner, heads] = state_space_keys(space);
    let kv_heads = Key::Sizes(layers, [('*', kv_heads), ('M', 0)]);
    let rotates = ("rope.scaling.finetuned", Key::Flag(false));
    [conv, state, groups, inner, heads, rotates, ("attention.head_count_kv", kv_heads)]
}

/// [`hybrid_keys`] where `-` and `E` are layers with a feed-forward or experts of this width.
pub(super) const fn nemotron_keys(
    layers: Letters,
    kv_heads: u32,
    width: u32,
    space: StateSpace,
) -> [(&'static str, Key); 8] {
    let [conv, state, groups, inner, heads, rotates, kv_heads] = hybrid_keys(layers, kv_heads, space);
    let widths = ("feed_forward_length", Key::Sizes(layers, [('-', width), ('E', width)]));
    [conv, state, groups, inner, heads, rotates, kv_heads, widths]
}

/// [`hybrid_keys`] with the factors of Granite 4.
pub(super) const fn granite_4_keys(layers: Letters, kv_heads: u32, space: StateSpace) -> [(&'static str, Key); 11] {
    let [conv, state, groups, inner, heads, rotates, kv_heads] = hybrid_keys(layers, kv_heads, space);
    [
        conv,
        state,
        groups,
        inner,
        heads,
        rotates,
        kv_heads,
        ("embedding_scale", Key::Number(12.0)),
        ("residual_scale", Key::Number(0.22)),
        ("attention.scale", Key::Number(0.007_812_5)),
        ("logit_scale", Key::Number(6.0)),
    ]
}

pub(super) const QUERY_KEY_VALUE_BIASES: [OptionalTensor; 3] =
    [OptionalTensor::new("attn_q.bias"), OptionalTensor::new("attn_k.bias"), OptionalTensor::new("attn_v.bias")];

/// The keys of a model in which three of four layers have the gated delta rule, with this many heads of queries and keys and of
/// values. All have 128 values.
pub(super) const fn delta_keys(keys: u32, values: u32) -> [(&'static str, Key); 7] {
    [
        ("ssm.conv_kernel", Key::Size(4)),
        ("ssm.state_size", Key::Size(128)),
        ("ssm.inner_size", Key::Size(values * 128)),
        ("ssm.group_count", Key::Size(keys)),
        ("ssm.time_step_rank", Key::Size(values)),
        ("full_attention_interval", Key::Size(4)),
        // Other programs need it. For text the sections rotate as one.
        ("rope.dimension_sections", Key::Integers(&[11, 11, 10, 0])),
    ]
}
