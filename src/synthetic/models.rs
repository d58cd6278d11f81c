//! The table of shapes: one row per model, with the values of the publisher's `config.json`.

use super::shape::{ExpertShape, Key, Letters, OptionalTensor, RopeStretch, Shape};
use super::vocabulary::Vocabulary;

/// All models, grouped by series.
pub const MODELS: &[Shape] = &[
    Shape {
        name: "llama-1b",
        title: "Llama 3.2 1B",
        parameters: 1_235_814_400,
        n_layers: 16,
        hidden_size: 2048,
        intermediate_size: 8192,
        n_heads: 32,
        head_dim: 64,
        rope_stretch: RopeStretch::Llama3 { factor: 32.0 },
        tied: true,
        ..LLAMA_3
    },
    Shape {
        name: "llama-3b",
        title: "Llama 3.2 3B",
        parameters: 3_212_749_824,
        n_layers: 28,
        hidden_size: 3072,
        intermediate_size: 8192,
        n_heads: 24,
        rope_stretch: RopeStretch::Llama3 { factor: 32.0 },
        tied: true,
        ..LLAMA_3
    },
    Shape {
        name: "llama-8b",
        title: "Llama 3.1 8B",
        parameters: 8_030_261_248,
        n_layers: 32,
        hidden_size: 4096,
        intermediate_size: 14336,
        n_heads: 32,
        ..LLAMA_3
    },
    Shape {
        name: "mistral-7b",
        title: "Mistral 7B v0.3",
        parameters: 7_248_023_552,
        n_layers: 32,
        hidden_size: 4096,
        intermediate_size: 14336,
        n_heads: 32,
        vocab_size: 32768,
        vocabulary: Vocabulary::SentencePiece,
        context_train: 32768,
        rope_base: 1_000_000.0,
        rope_stretch: RopeStretch::None,
        ..LLAMA_3
    },
    Shape {
        name: "smollm2-135m",
        title: "SmolLM2 135M",
        parameters: 134_515_008,
        n_layers: 30,
        hidden_size: 576,
        intermediate_size: 1536,
        n_heads: 9,
        n_kv_heads: 3,
        ..SMOLLM_2
    },
    Shape {
        name: "smollm2-360m",
        title: "SmolLM2 360M",
        parameters: 361_821_120,
        n_layers: 32,
        hidden_size: 960,
        intermediate_size: 2560,
        n_heads: 15,
        n_kv_heads: 5,
        ..SMOLLM_2
    },
    Shape {
        name: "smollm2-1.7b",
        title: "SmolLM2 1.7B",
        parameters: 1_711_376_384,
        n_layers: 24,
        hidden_size: 2048,
        intermediate_size: 8192,
        n_heads: 32,
        n_kv_heads: 32,
        rope_base: 130_000.0,
        ..SMOLLM_2
    },
    Shape {
        name: "qwen2.5-0.5b",
        title: "Qwen2.5 0.5B",
        parameters: 494_032_768,
        n_layers: 24,
        hidden_size: 896,
        intermediate_size: 4864,
        n_heads: 14,
        n_kv_heads: 2,
        head_dim: 64,
        tied: true,
        ..QWEN_2
    },
    Shape {
        name: "qwen2.5-1.5b",
        title: "Qwen2.5 1.5B",
        parameters: 1_543_714_304,
        n_layers: 28,
        hidden_size: 1536,
        intermediate_size: 8960,
        n_heads: 12,
        n_kv_heads: 2,
        tied: true,
        ..QWEN_2
    },
    Shape {
        name: "qwen2.5-3b",
        title: "Qwen2.5 3B",
        parameters: 3_085_938_688,
        n_layers: 36,
        hidden_size: 2048,
        intermediate_size: 11008,
        n_heads: 16,
        n_kv_heads: 2,
        tied: true,
        ..QWEN_2
    },
    Shape {
        name: "qwen2.5-7b",
        title: "Qwen2.5 7B",
        parameters: 7_615_616_512,
        n_layers: 28,
        hidden_size: 3584,
        intermediate_size: 18944,
        n_heads: 28,
        n_kv_heads: 4,
        vocab_size: 152_064,
        ..QWEN_2
    },
    Shape {
        name: "qwen2.5-14b",
        title: "Qwen2.5 14B",
        parameters: 14_770_033_664,
        n_layers: 48,
        hidden_size: 5120,
        intermediate_size: 13824,
        n_heads: 40,
        n_kv_heads: 8,
        vocab_size: 152_064,
        ..QWEN_2
    },
    Shape {
        name: "qwen2.5-32b",
        title: "Qwen2.5 32B",
        parameters: 32_763_876_352,
        n_layers: 64,
        hidden_size: 5120,
        intermediate_size: 27648,
        n_heads: 40,
        n_kv_heads: 8,
        vocab_size: 152_064,
        ..QWEN_2
    },
    Shape {
        name: "qwen3-0.6b",
        title: "Qwen3 0.6B",
        parameters: 596_049_920,
        n_layers: 28,
        hidden_size: 1024,
        intermediate_size: 3072,
        n_heads: 16,
        tied: true,
        ..QWEN_3
    },
    Shape {
        name: "qwen3-1.7b",
        title: "Qwen3 1.7B",
        parameters: 1_720_574_976,
        n_layers: 28,
        hidden_size: 2048,
        intermediate_size: 6144,
        n_heads: 16,
        tied: true,
        ..QWEN_3
    },
    Shape {
        name: "qwen3-4b",
        title: "Qwen3 4B",
        parameters: 4_022_468_096,
        n_layers: 36,
        hidden_size: 2560,
        intermediate_size: 9728,
        n_heads: 32,
        tied: true,
        ..QWEN_3
    },
    Shape {
        name: "qwen3-8b",
        title: "Qwen3 8B",
        parameters: 8_190_735_360,
        n_layers: 36,
        hidden_size: 4096,
        intermediate_size: 12288,
        n_heads: 32,
        ..QWEN_3
    },
    Shape {
        name: "qwen3-14b",
        title: "Qwen3 14B",
        parameters: 14_768_307_200,
        n_layers: 40,
        hidden_size: 5120,
        intermediate_size: 17408,
        n_heads: 40,
        ..QWEN_3
    },
    Shape {
        name: "qwen3-32b",
        title: "Qwen3 32B",
        parameters: 32_762_123_264,
        n_layers: 64,
        hidden_size: 5120,
        intermediate_size: 25600,
        n_heads: 64,
        ..QWEN_3
    },
    Shape {
        name: "gemma2-2b",
        title: "Gemma 2 2B",
        parameters: 2_614_341_888,
        n_layers: 26,
        hidden_size: 2304,
        intermediate_size: 9216,
        n_heads: 8,
        n_kv_heads: 4,
        ..GEMMA_2
    },
    Shape {
        name: "gemma2-9b",
        title: "Gemma 2 9B",
        parameters: 9_241_705_984,
        n_layers: 42,
        hidden_size: 3584,
        intermediate_size: 14336,
        n_heads: 16,
        n_kv_heads: 8,
        ..GEMMA_2
    },
    Shape {
        name: "qwen1.5-moe-a2.7b",
        title: "Qwen1.5 MoE A2.7B",
        architecture: "qwen2moe",
        parameters: 14_315_784_192,
        n_layers: 24,
        hidden_size: 2048,
        intermediate_size: 5632,
        n_heads: 16,
        n_kv_heads: 16,
        context_train: 8192,
        experts: Some(ExpertShape { count: 60, used: 4, intermediate_size: 1408, shared_size: 5632 }),
        optional: &[
            QUERY_KEY_VALUE_BIASES[0],
            QUERY_KEY_VALUE_BIASES[1],
            QUERY_KEY_VALUE_BIASES[2],
            OptionalTensor::new("ffn_gate_inp_shexp.weight"),
        ],
        ..QWEN_2
    },
    Shape { name: "qwen3-30b-a3b", title: "Qwen3 30B A3B", parameters: 30_532_122_624, n_layers: 48, ..QWEN_3_MOE },
    Shape {
        name: "qwen3.5-0.8b",
        title: "Qwen3.5 0.8B",
        parameters: 752_393_024,
        n_layers: 24,
        hidden_size: 1024,
        intermediate_size: 3584,
        n_heads: 8,
        ..QWEN_3_5
    },
    Shape {
        name: "qwen3.5-4b",
        title: "Qwen3.5 4B",
        parameters: 4_205_751_296,
        n_layers: 32,
        hidden_size: 2560,
        intermediate_size: 9216,
        n_heads: 16,
        n_kv_heads: 4,
        keys: &delta_keys(16, 32),
        ..QWEN_3_5
    },
    Shape {
        name: "qwen3.5-35b-a3b",
        title: "Qwen3.5 35B A3B",
        architecture: "qwen35moe",
        parameters: 34_660_610_688,
        n_layers: 40,
        hidden_size: 2048,
        n_heads: 16,
        experts: Some(ExpertShape { count: 256, used: 8, intermediate_size: 512, shared_size: 512 }),
        optional: &[QWEN_3_5.optional[0], OptionalTensor::new("ffn_gate_inp_shexp.weight")],
        keys: &delta_keys(16, 32),
        tied: false,
        ..QWEN_3_5
    },
    // Reduced to fit in the memory of a machine with 24 GB, together with a file of the same weights.
    Shape {
        name: "qwen3-moe-16x64",
        title: "Qwen3 30B A3B with 16 layers and 64 experts",
        parameters: 5_758_326_784,
        n_layers: 16,
        experts: Some(ExpertShape { count: 64, used: 8, intermediate_size: 768, shared_size: 0 }),
        ..QWEN_3_MOE
    },
    Shape {
        name: "qwen3-moe-8x32",
        title: "Qwen3 30B A3B with 8 layers and 32 experts",
        parameters: 1_981_845_504,
        n_layers: 8,
        experts: Some(ExpertShape { count: 32, used: 8, intermediate_size: 768, shared_size: 0 }),
        ..QWEN_3_MOE
    },
    Shape {
        name: "qwen3-235b-a22b",
        title: "Qwen3 235B A22B",
        parameters: 235_093_634_560,
        n_layers: 94,
        hidden_size: 4096,
        intermediate_size: 12288,
        n_heads: 64,
        experts: Some(ExpertShape { count: 128, used: 8, intermediate_size: 1536, shared_size: 0 }),
        ..QWEN_3_MOE
    },
    Shape {
        name: "gpt-oss-20b",
        title: "gpt-oss 20B",
        parameters: 20_914_757_184,
        n_layers: 24,
        experts: Some(ExpertShape { count: 32, used: 4, intermediate_size: 2880, shared_size: 0 }),
        ..GPT_OSS
    },
    Shape {
        name: "gpt-oss-120b",
        title: "gpt-oss 120B",
        parameters: 116_829_156_672,
        n_layers: 36,
        experts: Some(ExpertShape { count: 128, used: 4, intermediate_size: 2880, shared_size: 0 }),
        ..GPT_OSS
    },
    Shape {
        name: "gemma3-270m",
        title: "Gemma 3 270M",
        parameters: 268_098_176,
        n_layers: 18,
        hidden_size: 640,
        intermediate_size: 2048,
        n_heads: 4,
        n_kv_heads: 1,
        vocab_size: 262_144,
        context_train: 32768,
        rope_stretch: RopeStretch::None,
        window: Some(512),
        ..GEMMA_3
    },
    Shape {
        name: "gemma3-1b",
        title: "Gemma 3 1B",
        parameters: 999_885_952,
        n_layers: 26,
        hidden_size: 1152,
        intermediate_size: 6912,
        n_heads: 4,
        n_kv_heads: 1,
        vocab_size: 262_144,
        context_train: 32768,
        rope_stretch: RopeStretch::None,
        window: Some(512),
        ..GEMMA_3
    },
    Shape {
        name: "gemma3-4b",
        title: "Gemma 3 4B",
        parameters: 3_880_263_168,
        n_layers: 34,
        hidden_size: 2560,
        intermediate_size: 10240,
        n_heads: 8,
        n_kv_heads: 4,
        ..GEMMA_3
    },
    Shape {
        name: "gemma3-12b",
        title: "Gemma 3 12B",
        parameters: 11_766_034_176,
        n_layers: 48,
        hidden_size: 3840,
        intermediate_size: 15360,
        n_heads: 16,
        n_kv_heads: 8,
        ..GEMMA_3
    },
    Shape {
        name: "gemma3-27b",
        title: "Gemma 3 27B",
        parameters: 27_009_346_304,
        n_layers: 62,
        hidden_size: 5376,
        intermediate_size: 21504,
        n_heads: 32,
        n_kv_heads: 16,
        head_dim: 128,
        ..GEMMA_3
    },
    Shape {
        name: "gemma4-e2b",
        title: "Gemma 4 E2B",
        parameters: 4_628_569_379,
        n_layers: 35,
        hidden_size: 1536,
        n_heads: 8,
        n_kv_heads: 1,
        window: Some(512),
        keys: &[
            GEMMA_4_KEYS[0],
            GEMMA_4_KEYS[1],
            GEMMA_4_KEYS[2],
            GEMMA_4_KEYS[3],
            GEMMA_4_KEYS[4],
            ("attention.sliding_window_pattern", Key::Flags("ssssf", 's')),
            ("attention.shared_kv_layers", Key::Size(20)),
            ("embedding_length_per_layer_input", Key::Size(256)),
            // The layers that read the keys and values of earlier ones are twice as wide.
            ("feed_forward_length", Key::Sizes("nnnnnnnnnnnnnnnwwwwwwwwwwwwwwwwwwww", [('n', 6144), ('w', 12288)])),
        ],
        ..GEMMA_4
    },
    Shape {
        name: "gemma4-26b-a4b",
        title: "Gemma 4 26B A4B",
        parameters: 25_233_141_790,
        n_layers: 30,
        hidden_size: 2816,
        intermediate_size: 2112,
        n_heads: 16,
        n_kv_heads: 8,
        experts: Some(ExpertShape { count: 128, used: 8, intermediate_size: 704, shared_size: 0 }),
        keys: &[
            GEMMA_4_KEYS[0],
            GEMMA_4_KEYS[1],
            GEMMA_4_KEYS[2],
            GEMMA_4_KEYS[3],
            GEMMA_4_KEYS[4],
            ("attention.sliding_window_pattern", Key::Flags("sssssf", 's')),
            ("attention.head_count_kv", Key::Sizes("sssssf", [('s', 8), ('f', 2)])),
        ],
        optional: &[
            OptionalTensor::new("layer_output_scale.weight"),
            OptionalTensor::of_layers("attn_v.weight", "sssssf", 's'),
            OptionalTensor::new("ffn_gate_up_exps.weight"),
            OptionalTensor::new("ffn_down_exps.scale"),
        ],
        ..GEMMA_4
    },
    Shape {
        name: "lfm2-1.2b",
        title: "LFM 2 1.2B",
        parameters: 1_170_340_608,
        n_layers: 16,
        hidden_size: 2048,
        intermediate_size: 8192,
        keys: &[
            ("attention.head_count_kv", Key::Sizes(LFM_2_LAYERS, [('*', 8), ('c', 0)])),
            ("shortconv.l_cache", Key::Size(3)),
        ],
        optional: &[
            OptionalTensor::new("token_embd_norm.weight"),
            OptionalTensor::of_layers("shortconv.conv.weight", LFM_2_LAYERS, 'c'),
        ],
        ..LFM_2
    },
    Shape {
        name: "lfm2-8b-a1b",
        title: "LFM 2 8B A1B",
        architecture: "lfm2moe",
        parameters: 8_339_929_856,
        n_layers: 24,
        hidden_size: 2048,
        intermediate_size: 7168,
        experts: Some(ExpertShape { count: 32, used: 4, intermediate_size: 1792, shared_size: 0 }),
        keys: &[
            ("attention.head_count_kv", Key::Sizes(LFM_2_MOE_LAYERS, [('*', 8), ('c', 0)])),
            ("shortconv.l_cache", Key::Size(3)),
            ("leading_dense_block_count", Key::Size(2)),
            // The sigmoid.
            ("expert_gating_func", Key::Size(2)),
        ],
        optional: &[
            OptionalTensor::new("token_embd_norm.weight"),
            OptionalTensor::of_layers("shortconv.conv.weight", LFM_2_MOE_LAYERS, 'c'),
            OptionalTensor::of_layers("ffn_gate_inp.weight", "ddeeeeeeeeeeeeeeeeeeeeee", 'e'),
            OptionalTensor::new("exp_probs_b.bias"),
        ],
        ..LFM_2
    },
    Shape {
        name: "nemotron-nano-9b-v2",
        title: "Nemotron Nano 9B v2",
        parameters: 8_888_227_328,
        n_layers: 56,
        hidden_size: 4480,
        n_heads: 40,
        n_kv_heads: 8,
        keys: &nemotron_keys(
            NEMOTRON_2_LAYERS,
            8,
            15680,
            StateSpace { heads: 128, head_dim: 80, state: 128, groups: 8 },
        ),
        optional: &state_space_tensors(NEMOTRON_2_LAYERS),
        ..NEMOTRON_H
    },
    Shape {
        name: "nemotron-3-nano-30b-a3b",
        title: "Nemotron 3 Nano 30B A3B",
        architecture: "nemotron_h_moe",
        parameters: 31_577_937_344,
        n_layers: 52,
        hidden_size: 2688,
        n_heads: 32,
        n_kv_heads: 2,
        experts: Some(ExpertShape { count: 128, used: 6, intermediate_size: 1856, shared_size: 3712 }),
        keys: &nemotron_keys(NEMOTRON_3_LAYERS, 2, 1856, StateSpace { heads: 64, head_dim: 64, state: 128, groups: 8 }),
        optional: &NEMOTRON_3_TENSORS,
        ..NEMOTRON_H
    },
    Shape {
        name: "granite-4-h-tiny",
        title: "Granite 4.0 H Tiny",
        architecture: "granitehybrid",
        parameters: 6_939_037_248,
        n_layers: 40,
        hidden_size: 1536,
        intermediate_size: 512,
        n_heads: 12,
        n_kv_heads: 4,
        vocab_size: 100_352,
        vocabulary: Vocabulary::BytePair { pre_tokenizer: "dbrx" },
        experts: Some(ExpertShape { count: 64, used: 6, intermediate_size: 512, shared_size: 1024 }),
        keys: &granite_4_keys("MMMMM*MMMM", 4, StateSpace { heads: 48, head_dim: 64, state: 128, groups: 1 }),
        optional: &state_space_tensors("MMMMM*MMMM"),
        tied: true,
        ..NEMOTRON_H
    },
];

/// The shared values of the Llama 3 series.
const LLAMA_3: Shape = Shape {
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

const SMOLLM_2: Shape = Shape {
    head_dim: 64,
    vocab_size: 49152,
    vocabulary: Vocabulary::BytePair { pre_tokenizer: "smollm" },
    context_train: 8192,
    rope_base: 100_000.0,
    rope_stretch: RopeStretch::None,
    tied: true,
    ..LLAMA_3
};

const QWEN_2: Shape = Shape {
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

const QWEN_3: Shape = Shape { architecture: "qwen3", context_train: 40960, optional: &[], ..QWEN_2 };

const QWEN_3_5: Shape = Shape {
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

const QWEN_3_MOE: Shape = Shape {
    architecture: "qwen3moe",
    hidden_size: 2048,
    intermediate_size: 6144,
    n_heads: 32,
    n_kv_heads: 4,
    experts: Some(ExpertShape { count: 128, used: 8, intermediate_size: 768, shared_size: 0 }),
    ..QWEN_3
};

const GPT_OSS: Shape = Shape {
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

const GEMMA_2: Shape = Shape {
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

const GEMMA_3: Shape = Shape {
    architecture: "gemma3",
    vocab_size: 262_208,
    context_train: 131_072,
    rope_base: 1_000_000.0,
    rope_stretch: RopeStretch::Linear { factor: 8.0 },
    window: Some(1024),
    softcaps: None,
    ..GEMMA_2
};

const GEMMA_4: Shape = Shape {
    architecture: "gemma4",
    head_dim: 512,
    vocab_size: 262_144,
    rope_stretch: RopeStretch::Partial { rotated: 64 },
    optional: &[OptionalTensor::new("layer_output_scale.weight"), OptionalTensor::new("attn_v.weight")],
    ..GEMMA_3
};

/// The heads of layers with a window, and the soft cap of logits.
const GEMMA_4_KEYS: [(&str, Key); 5] = [
    ("final_logit_softcapping", Key::Number(30.0)),
    ("attention.key_length_swa", Key::Size(256)),
    ("attention.value_length_swa", Key::Size(256)),
    ("rope.dimension_count_swa", Key::Size(256)),
    ("rope.freq_base_swa", Key::Number(10_000.0)),
];

const LFM_2: Shape = Shape {
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
const LFM_2_LAYERS: Letters = "cc*cc*cc*c*c*c*c";
const LFM_2_MOE_LAYERS: Letters = "cc*ccc*ccc*ccc*ccc*cc*cc";

/// `M` is a layer with a state space, `*` one of attention, `-` one with a feed-forward, `E` one with experts.
const NEMOTRON_2_LAYERS: Letters = "M-M-M-MM-M-M-M*-M-M-M*-M-M-M-M*-M-M-M-M*-M-MM-M-M-M-M-M-";
const NEMOTRON_3_LAYERS: Letters = "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME";

const NEMOTRON_3_TENSORS: [OptionalTensor; 5] = {
    let [conv, conv_bias, norm, query] = state_space_tensors(NEMOTRON_3_LAYERS);
    [conv, conv_bias, norm, query, OptionalTensor::new("exp_probs_b.bias")]
};

const NEMOTRON_H: Shape = Shape {
    architecture: "nemotron_h",
    vocab_size: 131_072,
    vocabulary: Vocabulary::BytePair { pre_tokenizer: "pixtral" },
    rope_base: 10_000.0,
    rope_stretch: RopeStretch::None,
    ..LLAMA_3
};

/// The state space of Mamba 2.
#[derive(Clone, Copy)]
struct StateSpace {
    heads: u32,
    head_dim: u32,
    state: u32,
    groups: u32,
}

/// The tensors of a model in which `M` is a layer with a state space and `*` one of attention.
const fn state_space_tensors(layers: Letters) -> [OptionalTensor; 4] {
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

/// `M` is a layer with a state space, `*` one of attention, any other letter one with a feed-forward.
const fn nemotron_keys(layers: Letters, kv_heads: u32, width: u32, space: StateSpace) -> [(&'static str, Key); 8] {
    let [conv, state, groups, inner, heads] = state_space_keys(space);
    [
        conv,
        state,
        groups,
        inner,
        heads,
        ("rope.scaling.finetuned", Key::Flag(false)),
        ("attention.head_count_kv", Key::Sizes(layers, [('*', kv_heads), ('M', 0)])),
        ("feed_forward_length", Key::Sizes(layers, [('-', width), ('E', width)])),
    ]
}

const fn granite_4_keys(layers: Letters, kv_heads: u32, space: StateSpace) -> [(&'static str, Key); 11] {
    let [conv, state, groups, inner, heads] = state_space_keys(space);
    [
        conv,
        state,
        groups,
        inner,
        heads,
        ("rope.scaling.finetuned", Key::Flag(false)),
        ("attention.head_count_kv", Key::Sizes(layers, [('*', kv_heads), ('M', 0)])),
        ("embedding_scale", Key::Number(12.0)),
        ("residual_scale", Key::Number(0.22)),
        ("attention.scale", Key::Number(0.007_812_5)),
        ("logit_scale", Key::Number(6.0)),
    ]
}

const QUERY_KEY_VALUE_BIASES: [OptionalTensor; 3] =
    [OptionalTensor::new("attn_q.bias"), OptionalTensor::new("attn_k.bias"), OptionalTensor::new("attn_v.bias")];

/// The keys of layers with the gated delta rule, in place of three of four layers of attention, with this many heads of queries
/// and keys and of values. All have 128 values.
const fn delta_keys(keys: u32, values: u32) -> [(&'static str, Key); 7] {
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
