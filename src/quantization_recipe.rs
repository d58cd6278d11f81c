//! Quantization recipes: llama.cpp's rules for the format of each tensor, as data.
//!
//! Source: `llama-quant.cpp` of llama.cpp, without its rules for models with eight experts. Some rules are only for models that are
//! quantized with an importance matrix, or without one.

use cuelight_shaders::quant::Format::{
    self, BF16, F16, F32, IQ1_M, IQ1_S, IQ2_S, IQ2_XS, IQ2_XXS, IQ3_S, IQ3_XXS, IQ4_NL, IQ4_XS, MXFP4, NVFP4, Q1_0,
    Q2_0, Q2_K, Q3_K, Q4_0, Q4_1, Q4_K, Q5_0, Q5_1, Q5_K, Q6_K, Q8_0, TQ1_0, TQ2_0,
};
use cuelight_shaders::quantize::is_target;

/// The use of a matrix, as recipes distinguish it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// The embedding.
    Embedding,
    /// The head, or the embedding that is also the head.
    Head,
    /// Projections of query, key and value in one matrix.
    QueryKeyValue,
    /// The query projection of attention.
    Query,
    /// The key projection of attention.
    Key,
    /// The value projection of attention.
    Values,
    /// The output projection of attention.
    AttentionOutput,
    /// The gate or the up projection of the feed-forward network.
    GateOrUp,
    /// The down projection of the feed-forward network.
    Down,
    /// Anything else.
    Other,
}

impl Role {
    /// The use of a matrix with a name. `is_tied` tells whether the embedding is also the head.
    #[must_use]
    pub fn of(name: &str, is_tied: bool) -> Role {
        let stem = name.strip_suffix(".weight").unwrap_or(name);
        match stem.rsplit('.').next().unwrap_or(stem) {
            "token_embd" if is_tied => Role::Head,
            "token_embd" | "per_layer_token_embd" => Role::Embedding,
            "output" => Role::Head,
            "attn_qkv" => Role::QueryKeyValue,
            "attn_v" | "attn_kv_b" | "attn_v_b" => Role::Values,
            "attn_q" => Role::Query,
            "attn_k" => Role::Key,
            "attn_output" | "attn_out" => Role::AttentionOutput,
            "ffn_gate" | "ffn_gate_exps" | "ffn_gate_shexp" | "ffn_up" | "ffn_up_exps" | "ffn_up_shexp"
            | "ffn_gate_up_exps" => Role::GateOrUp,
            "ffn_down" | "ffn_down_exps" | "ffn_down_shexp" => Role::Down,
            _ => Role::Other,
        }
    }
}

/// Parts of the names of matrices that keep their format: small, or sensitive to rounding.
const KEPT: [&str; 20] = [
    "_norm.weight",
    "ffn_gate_inp",
    "ssm_conv1d",
    "shortconv.conv",
    "position_embd",
    "token_types",
    "per_layer_model_proj",
    // The coefficients of residual streams, and a residual of low rank.
    "altup",
    "hc_attn_fn",
    "hc_ffn_fn",
    "output_hc_fn",
    "hc_attn_inject",
    "hc_ffn_inject",
    "laurel",
    // A convolution of few rows, and an indexer.
    "ple_conv1d",
    "indexer.q_proj",
    "indexer.k_proj",
    // The keys and the entries of pools.
    "indexer_compressor_",
    "attn_compressor_",
    // The head of a reranker.
    "cls.",
];

/// Whether a matrix keeps its format.
#[must_use]
pub fn keeps_format(name: &str) -> bool {
    KEPT.iter().any(|kept| name.contains(kept))
}

/// A matrix, as recipes see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Matrix {
    /// The use of the matrix.
    pub role: Role,
    /// Its layer; 0 outside the layers.
    pub layer: usize,
    /// Whether it holds the matrices of routed experts.
    pub is_routed: bool,
    /// Input dimension.
    pub columns: usize,
}

/// What recipes depend on besides a matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ModelFacts {
    /// Number of layers.
    pub n_layers: usize,
    /// Query heads per head of keys and values.
    pub queries_per_key: usize,
    /// Whether the model has routed experts.
    pub has_experts: bool,
    /// Whether an importance matrix is given.
    pub has_importance: bool,
}

/// The rules that assign formats to tensors.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct QuantizationRecipe {
    /// The name of the recipe.
    pub name: &'static str,
    /// llama.cpp's number of the recipe, `general.file_type`.
    pub file_type: u32,
    /// The format of a matrix for which no other rule applies.
    pub base: Format,
    /// The format of the head, or of the embedding that is also the head.
    pub head: Format,
    /// The formats of some tensors; the first exception that applies counts.
    pub exceptions: &'static [Exception],
    /// The format of routed experts, if it differs.
    pub experts: Option<Format>,
}

/// A format for tensors that need more bits than others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exception {
    role: Role,
    layers: Layers,
    format: Format,
    /// Whether it is only for models with an importance matrix, or only for those without one.
    importance: Option<bool>,
}

/// Some of the layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Layers {
    All,
    /// All layers, in models with at least this many query heads per key-value head, and in models with experts.
    AllWhenShared(usize),
    /// The first layers, this many.
    First(usize),
    /// The first of this many equal parts.
    FirstPart(usize),
    /// The first eighth, the last eighth, and every third layer between.
    Spread,
    /// All but the first and the last eighth.
    Middle,
}

/// All recipes.
pub const QUANTIZATION_RECIPES: &[QuantizationRecipe] = &[
    plain("f32", 0, F32, F32),
    plain("f16", 1, F16, F16),
    plain("bf16", 32, BF16, BF16),
    plain("q8_0", 7, Q8_0, Q8_0),
    QuantizationRecipe {
        exceptions: &[exception(Role::Down, Layers::FirstPart(8), Q4_1).with_importance()],
        ..plain("q4_0", 2, Q4_0, Q6_K)
    },
    plain("q4_1", 3, Q4_1, Q6_K),
    QuantizationRecipe {
        exceptions: &[exception(Role::Down, Layers::FirstPart(8), Q5_1).with_importance()],
        ..plain("q5_0", 8, Q5_0, Q6_K)
    },
    plain("q5_1", 9, Q5_1, Q6_K),
    QuantizationRecipe {
        exceptions: &[
            exception(Role::Values, Layers::AllWhenShared(4), Q4_K),
            exception(Role::Values, Layers::All, Q3_K),
            exception(Role::Down, Layers::All, Q3_K),
            exception(Role::AttentionOutput, Layers::All, Q3_K),
        ],
        ..plain("q2_k", 10, Q2_K, Q6_K)
    },
    plain("q3_k_s", 11, Q3_K, Q6_K),
    QuantizationRecipe {
        exceptions: &[
            exception(Role::Values, Layers::First(2), Q5_K),
            exception(Role::Values, Layers::All, Q4_K),
            exception(Role::Down, Layers::FirstPart(16), Q5_K),
            exception(Role::Down, Layers::All, Q4_K),
            exception(Role::AttentionOutput, Layers::All, Q4_K),
            exception(Role::QueryKeyValue, Layers::All, Q4_K),
        ],
        ..plain("q3_k_m", 12, Q3_K, Q6_K)
    },
    QuantizationRecipe {
        exceptions: &[
            exception(Role::Values, Layers::All, Q5_K),
            exception(Role::Down, Layers::All, Q5_K),
            exception(Role::AttentionOutput, Layers::All, Q5_K),
            exception(Role::QueryKeyValue, Layers::All, Q5_K),
        ],
        ..plain("q3_k_l", 13, Q3_K, Q6_K)
    },
    QuantizationRecipe {
        exceptions: &[
            exception(Role::Values, Layers::First(4), Q5_K),
            exception(Role::Down, Layers::FirstPart(8), Q5_K),
        ],
        ..plain("q4_k_s", 14, Q4_K, Q6_K)
    },
    QuantizationRecipe {
        exceptions: &[
            exception(Role::Values, Layers::Spread, Q6_K),
            exception(Role::Down, Layers::Spread, Q6_K),
            exception(Role::QueryKeyValue, Layers::All, Q5_K),
        ],
        ..plain("q4_k_m", 15, Q4_K, Q6_K)
    },
    plain("q5_k_s", 16, Q5_K, Q6_K),
    QuantizationRecipe {
        exceptions: &[
            exception(Role::Values, Layers::Spread, Q6_K),
            exception(Role::Down, Layers::Spread, Q6_K),
            exception(Role::QueryKeyValue, Layers::All, Q6_K),
        ],
        ..plain("q5_k_m", 17, Q5_K, Q6_K)
    },
    plain("q6_k", 18, Q6_K, Q6_K),
    QuantizationRecipe { exceptions: NON_UNIFORM, ..plain("iq4_nl", 25, IQ4_NL, Q6_K) },
    QuantizationRecipe { exceptions: NON_UNIFORM, ..plain("iq4_xs", 30, IQ4_XS, Q6_K) },
    QuantizationRecipe { experts: Some(MXFP4), ..plain("mxfp4_moe", 38, Q8_0, Q8_0) },
    QuantizationRecipe { exceptions: LEAST_BITS, ..plain("iq1_s", 24, IQ1_S, Q5_K) },
    QuantizationRecipe { exceptions: LEAST_BITS, ..plain("iq1_m", 31, IQ1_M, Q5_K) },
    QuantizationRecipe { exceptions: LEAST_BITS.split_at(FEW_BITS).0, ..plain("iq2_xxs", 19, IQ2_XXS, Q5_K) },
    QuantizationRecipe { exceptions: LEAST_BITS.split_at(FEW_BITS).0, ..plain("iq2_xs", 20, IQ2_XS, Q5_K) },
    QuantizationRecipe { exceptions: WITH_IQ3_S, ..plain("iq2_s", 28, IQ2_XS, Q5_K) },
    QuantizationRecipe { exceptions: WITH_IQ3_S, ..plain("iq2_m", 29, IQ2_S, Q5_K) },
    QuantizationRecipe {
        exceptions: &[
            exception(Role::Embedding, Layers::All, IQ3_S),
            exception(Role::Values, Layers::AllWhenShared(4), Q4_K),
            exception(Role::Values, Layers::All, IQ3_S).without_importance(),
            exception(Role::Query, Layers::All, IQ2_S),
            exception(Role::Key, Layers::All, IQ2_S),
            exception(Role::Down, Layers::FirstPart(8), Q4_K).without_importance(),
            exception(Role::Down, Layers::All, Q3_K).without_importance(),
            exception(Role::AttentionOutput, Layers::All, IQ3_S),
        ],
        ..plain("iq3_xxs", 23, IQ3_XXS, Q5_K)
    },
    QuantizationRecipe {
        exceptions: &[
            exception(Role::Values, Layers::AllWhenShared(4), Q4_K),
            exception(Role::Query, Layers::All, IQ3_XXS),
            exception(Role::Key, Layers::All, IQ3_XXS),
            exception(Role::GateOrUp, Layers::Middle, IQ3_XXS),
        ],
        ..plain("iq3_xs", 22, IQ3_S, Q6_K)
    },
    QuantizationRecipe {
        exceptions: &[exception(Role::Values, Layers::AllWhenShared(4), Q4_K)],
        ..plain("iq3_s", 26, IQ3_S, Q6_K)
    },
    QuantizationRecipe {
        exceptions: &[
            exception(Role::Values, Layers::All, Q4_K),
            exception(Role::Down, Layers::FirstPart(8), Q4_K),
            exception(Role::AttentionOutput, Layers::All, Q4_K),
        ],
        ..plain("iq3_m", 27, IQ3_S, Q6_K)
    },
    QuantizationRecipe { exceptions: TERNARY, ..plain("tq1_0", 36, TQ1_0, Q6_K) },
    QuantizationRecipe { exceptions: TERNARY, ..plain("tq2_0", 37, TQ2_0, Q6_K) },
    plain("nvfp4", 39, NVFP4, Q6_K),
    plain("q1_0", 40, Q1_0, Q6_K),
    QuantizationRecipe { exceptions: TERNARY, ..plain("q2_0", 41, Q2_0, Q6_K) },
];

/// The exceptions of the recipes with one bit a weight; without the last, those of the recipes with a little more than two.
const LEAST_BITS: &[Exception] = &[
    exception(Role::Embedding, Layers::All, Q2_K),
    exception(Role::Values, Layers::AllWhenShared(4), Q4_K),
    exception(Role::Values, Layers::All, Q2_K),
    exception(Role::Down, Layers::FirstPart(8), Q2_K),
    exception(Role::AttentionOutput, Layers::All, IQ2_XXS),
];
const FEW_BITS: usize = LEAST_BITS.len() - 1;

/// The exceptions of the recipes with two and a half bits a weight.
const WITH_IQ3_S: &[Exception] = &[
    exception(Role::Embedding, Layers::All, IQ3_S),
    exception(Role::Values, Layers::AllWhenShared(4), Q4_K),
    exception(Role::Values, Layers::All, IQ3_S),
    exception(Role::Down, Layers::FirstPart(8), IQ3_S),
    exception(Role::AttentionOutput, Layers::All, IQ3_S),
];

/// The exceptions of the recipes with three values of a weight.
const TERNARY: &[Exception] = &[exception(Role::Embedding, Layers::All, Q4_K)];

/// The exceptions of both recipes with non-uniform quantization steps.
const NON_UNIFORM: &[Exception] = &[
    exception(Role::Values, Layers::AllWhenShared(4), Q5_K),
    exception(Role::Down, Layers::FirstPart(8), Q5_K).without_importance(),
];

/// Formats with so few bits that matrices of layers are unusable without an importance matrix.
const NEED_IMPORTANCE: [Format; 6] = [IQ1_S, IQ1_M, IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS];

const fn plain(name: &'static str, file_type: u32, base: Format, head: Format) -> QuantizationRecipe {
    QuantizationRecipe { name, file_type, base, head, exceptions: &[], experts: None }
}

const fn exception(role: Role, layers: Layers, format: Format) -> Exception {
    Exception { role, layers, format, importance: None }
}

/// Whether a matrix of this use and format must not be quantized without the importance of its columns.
#[must_use]
pub fn needs_importance(role: Role, format: Format) -> bool {
    !matches!(role, Role::Embedding | Role::Head) && NEED_IMPORTANCE.contains(&format)
}

impl Exception {
    const fn with_importance(self) -> Self {
        Exception { importance: Some(true), ..self }
    }

    const fn without_importance(self) -> Self {
        Exception { importance: Some(false), ..self }
    }

    fn applies(&self, matrix: &Matrix, model: &ModelFacts) -> bool {
        self.role == matrix.role
            && self.layers.contains(matrix.layer, model)
            && self.importance.is_none_or(|wanted| wanted == model.has_importance)
    }
}

impl QuantizationRecipe {
    /// The recipe with a name; upper and lower case are equal.
    #[must_use]
    pub fn named(name: &str) -> Option<&'static QuantizationRecipe> {
        QUANTIZATION_RECIPES.iter().find(|recipe| recipe.name.eq_ignore_ascii_case(name))
    }

    /// Whether a model can only be quantized with an importance matrix.
    #[must_use]
    pub fn requires_importance(&self) -> bool {
        let exceptions = self.exceptions.iter().map(|exception| (exception.role, exception.format));
        [(Role::Other, self.base)].into_iter().chain(exceptions).any(|(role, format)| needs_importance(role, format))
    }

    /// Whether weights can be quantized to all formats of the recipe.
    #[must_use]
    pub fn is_writable(&self) -> bool {
        let exceptions = self.exceptions.iter().map(|exception| exception.format);
        [self.base, self.head].into_iter().chain(self.experts).chain(exceptions).all(is_target)
    }

    /// The format of a matrix.
    #[must_use]
    pub fn format(&self, matrix: &Matrix, model: &ModelFacts) -> Format {
        let applies = |exception: &&Exception| exception.applies(matrix, model);
        let wanted = match (matrix.role, self.experts) {
            (Role::Head, _) if !fits(self.base, matrix.columns) => Q8_0,
            (Role::Head, _) => self.head,
            (_, Some(experts)) if matrix.is_routed => experts,
            _ => self.exceptions.iter().find(applies).map_or(self.base, |exception| exception.format),
        };
        fitting(wanted, matrix.columns)
    }
}

impl Layers {
    fn contains(self, layer: usize, model: &ModelFacts) -> bool {
        let n_layers = model.n_layers;
        match self {
            Layers::All => true,
            Layers::AllWhenShared(queries) => model.queries_per_key >= queries || model.has_experts,
            Layers::First(count) => layer < count,
            Layers::FirstPart(parts) => layer < n_layers / parts,
            Layers::Spread => {
                let eighth = n_layers / 8;
                layer < eighth || layer >= 7 * n_layers / 8 || (layer - eighth) % 3 == 2
            }
            Layers::Middle => layer >= n_layers / 8 && layer < 7 * n_layers / 8,
        }
    }
}

/// The format, or one with shorter blocks if rows are not a multiple of its block.
#[must_use]
pub fn fitting(format: Format, columns: usize) -> Format {
    let shorter = match format {
        Q2_K | Q3_K => Q4_0,
        Q4_K => Q5_0,
        Q5_K => Q5_1,
        Q6_K => Q8_0,
        IQ1_S | IQ1_M | IQ2_XXS | IQ2_XS | IQ2_S | IQ3_XXS | IQ3_S | IQ4_XS => IQ4_NL,
        TQ1_0 | TQ2_0 => Q4_0,
        _ => F16,
    };
    [format, shorter].into_iter().find(|format| fits(*format, columns)).unwrap_or(F16)
}

/// Whether rows are a multiple of the format's block.
fn fits(format: Format, columns: usize) -> bool {
    columns.is_multiple_of(format.block_len())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// llama.cpp looks at the blocks of the recipe's format, not at those of the head's.
    #[test]
    fn heads_whose_rows_the_recipe_cannot_divide_have_eight_bits() {
        let facts = ModelFacts { n_layers: 4, queries_per_key: 2, has_experts: false, has_importance: true };
        for (recipe, columns, expected) in [
            ("iq3_xxs", 256, Q5_K),
            ("iq3_xxs", 576, Q8_0),
            ("iq1_s", 576, Q8_0),
            ("q4_k_m", 576, Q8_0),
            ("q4_0", 512, Q6_K),
            ("iq2_xs", 100, F16),
        ] {
            let head = Matrix { role: Role::Head, layer: 0, is_routed: false, columns };
            let found = QuantizationRecipe::named(recipe).map(|recipe| recipe.format(&head, &facts));
            assert_eq!(found, Some(expected), "{recipe}, {columns} columns");
        }
    }
}
