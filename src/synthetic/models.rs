//! The table of shapes: one row per model, with the values of the publisher's `config.json`.

use super::vocabulary::Vocabulary;

/// A model's sizes and constants.
///
/// A row starts from the shared row of its series. A new part of a layer is a new field here, which only the series that have
/// it need to set.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Shape {
    /// The name in Cuelight.
    pub name: &'static str,
    /// The publisher's name.
    pub title: &'static str,
    /// `general.architecture`.
    pub architecture: &'static str,
    /// Published number of weights, which tests compare with the tensors that follow from the other fields.
    pub parameters: u64,
    /// Number of layers.
    pub n_layers: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width of the feed-forward network.
    pub intermediate_size: usize,
    /// Number of query heads.
    pub n_heads: usize,
    /// Number of key-value heads.
    pub n_kv_heads: usize,
    /// Dimension of a head.
    pub head_dim: usize,
    /// Tokens in the vocabulary, and rows of the embedding.
    pub vocab_size: usize,
    /// The kind of tokenizer.
    pub vocabulary: Vocabulary,
    /// Maximum length of a training sequence.
    pub context_train: usize,
    /// The epsilon added to the mean square in every norm.
    pub rms_norm_epsilon: f32,
    /// Base of the rotary frequencies.
    pub rope_base: f32,
    /// How the frequencies are scaled for long contexts.
    pub rope_stretch: RopeStretch,
    /// Positions in the sliding window; the architecture determines which layers have one.
    pub window: Option<usize>,
    /// Soft caps of attention scores and of logits.
    pub softcaps: Option<(f32, f32)>,
    /// Which products have biases.
    pub biases: Biases,
    /// Whether attention has a sink per head.
    pub sinks: bool,
    /// Whether the embedding is also the head.
    pub tied: bool,
    /// The experts of its layers.
    pub experts: Option<ExpertShape>,
    /// Values of a head that are rotated; `None` for all.
    pub rotary_dim: Option<usize>,
    /// The layers with the gated delta rule, in place of three of four layers of attention.
    pub delta: Option<DeltaHeads>,
}

/// The heads of layers with the gated delta rule. All have 128 values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeltaHeads {
    /// Heads of queries and keys.
    pub keys: usize,
    /// Heads of values.
    pub values: usize,
}

impl DeltaHeads {
    /// Values of a head.
    pub const HEAD_DIM: usize = 128;
    /// Rows that the convolution spans.
    pub const CONV_WIDTH: usize = 4;
    /// Every how many layers one attends.
    pub const ATTENTION_INTERVAL: usize = 4;

    /// Whether a layer has the delta rule.
    #[must_use]
    pub fn has_layer(layer: usize) -> bool {
        !(layer + 1).is_multiple_of(Self::ATTENTION_INTERVAL)
    }
}

/// Which products have biases.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Biases {
    /// None.
    Never,
    /// Query, key and value.
    QueryKeyValue,
    /// All products of a layer, including the router and the experts.
    EveryProduct,
}

/// Experts that replace the dense feed-forward network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpertShape {
    /// Number of experts.
    pub count: usize,
    /// Number of experts that a row uses.
    pub used: usize,
    /// Width of the feed-forward network of an expert.
    pub intermediate_size: usize,
    /// Width of the gated expert that every row uses; 0 if there is none.
    pub shared_size: usize,
}

/// How rotary frequencies are scaled for long contexts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum RopeStretch {
    /// No scaling.
    None,
    /// All frequencies by one factor, in layers without a window.
    Linear {
        /// The factor by which the context becomes longer.
        factor: f32,
    },
    /// YaRN, in layers with and without a window.
    Yarn {
        /// The factor by which the context becomes longer.
        factor: f32,
        /// Tokens of the original context.
        original_context: usize,
    },
    /// Llama 3's rule: low frequencies by the factor, high frequencies unchanged, interpolated between (see [`tensors`](super::tensors)).
    Llama3 {
        /// The factor by which the context becomes longer.
        factor: f32,
    },
}

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
        delta: Some(DeltaHeads { keys: 16, values: 32 }),
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
        delta: Some(DeltaHeads { keys: 16, values: 32 }),
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
    biases: Biases::Never,
    sinks: false,
    tied: false,
    experts: None,
    rotary_dim: None,
    delta: None,
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
    biases: Biases::QueryKeyValue,
    ..LLAMA_3
};

const QWEN_3: Shape = Shape { architecture: "qwen3", context_train: 40960, biases: Biases::Never, ..QWEN_2 };

const QWEN_3_5: Shape = Shape {
    architecture: "qwen35",
    vocab_size: 248_320,
    vocabulary: Vocabulary::BytePair { pre_tokenizer: "qwen35" },
    context_train: 262_144,
    head_dim: 256,
    n_kv_heads: 2,
    rope_base: 10_000_000.0,
    rotary_dim: Some(64),
    delta: Some(DeltaHeads { keys: 16, values: 16 }),
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
    biases: Biases::EveryProduct,
    sinks: true,
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
