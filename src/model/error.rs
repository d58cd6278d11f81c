//! Why a file is not a model that can run.

use cuelight_shaders::op::ShapeError;

use crate::format::gguf::GgufError;

/// Why a file is not a model that can run.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// The file is damaged, or lacks a key or tensor.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// No family has this architecture.
    #[error("{file}: architecture {found:?} is not supported; supported are: {known}")]
    UnknownArchitecture {
        /// The file.
        file: String,
        /// The value of `general.architecture`.
        found: String,
        /// The supported architectures, separated by commas.
        known: String,
    },
    /// A key has a value that no model can have.
    #[error("{file}: key {key:?} is {found}, but must be {expected}")]
    Hyperparameter {
        /// The file.
        file: String,
        /// The key.
        key: String,
        /// Its value.
        found: String,
        /// The values that are allowed.
        expected: String,
    },
    /// A tensor's shape differs from the one that the hyperparameters require.
    #[error("{file}: tensor {tensor:?} is {found:?}, but the metadata says {expected:?}")]
    TensorShape {
        /// The file.
        file: String,
        /// The tensor.
        tensor: String,
        /// [rows, columns].
        found: [usize; 2],
        /// [rows, columns].
        expected: [usize; 2],
    },
    /// A tensor of integers has another type or shape, or numbers that it cannot have.
    #[error("{file}: tensor {tensor:?} has {found}, but must have {expected}")]
    Numbers {
        /// The file.
        file: String,
        /// The tensor.
        tensor: String,
        /// What it has.
        found: String,
        /// What it must have.
        expected: String,
    },
    /// The file has a layer tensor that the family does not use, so a result computed without it would be wrong.
    #[error("{file}: tensor {tensor:?} is not part of the architecture {architecture:?} as this version implements it")]
    UnusedTensor {
        /// The file.
        file: String,
        /// The tensor.
        tensor: String,
        /// The architecture.
        architecture: String,
    },
    /// A model of blocks has a feed-forward for the input of their rows, which must be gated.
    #[error("the architecture {architecture:?} generates blocks of tokens, but its feed-forward has no gate")]
    UngatedCanvas {
        /// The architecture.
        architecture: String,
    },
    /// A layer has a router, but the metadata has no expert count or the family has no routing rule.
    #[error(
        "{file}: a layer has a router of experts, but the metadata and the architecture {architecture:?} have none"
    )]
    NoExperts {
        /// The file.
        file: String,
        /// The architecture.
        architecture: String,
    },
    /// The file has no layer that predicts one more token.
    #[error("{file}: it has no layer for multi-token prediction; use a file whose converter kept it")]
    NoPrediction {
        /// The file.
        file: String,
    },
    /// The file is a draft model that computes with another model.
    #[error("{file}: it is a draft model (EAGLE-3) and cannot run alone, only next to the model that it was made for")]
    DrafterAlone {
        /// The file.
        file: String,
    },
    /// The residuals between layers were requested of a model that has no single ones.
    #[error(
        "{file}: draft models that compute with residuals between layers do not support the architecture {architecture:?}"
    )]
    NoResiduals {
        /// The file.
        file: String,
        /// The architecture.
        architecture: String,
    },
    /// The embeddings of rows were to be given to a model that computes with the tokens of all rows.
    #[error(
        "{file}: images and audio are not supported for the architecture {architecture:?}, which embeds n-grams of tokens"
    )]
    NoMedia {
        /// The file.
        file: String,
        /// The architecture.
        architecture: String,
    },
    /// The file has one of two tensors that belong together.
    #[error("{file}: of the tensors {tensors} one is missing")]
    OneOfTwoTensors {
        /// The file.
        file: String,
        /// The names of both.
        tensors: String,
    },
    /// An op does not accept the shapes of its inputs or weights.
    #[error("{file}: {source}")]
    Shape {
        /// The file.
        file: String,
        /// The op and the shapes.
        source: ShapeError,
    },
}
