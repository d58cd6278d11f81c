//! Why a session cannot be opened or does not generate.

use cuelight_engine::engine::TokenId;
use cuelight_engine::format::tokenizer::TokenizerError;
use cuelight_engine::load::LoadError;
use cuelight_engine::sample::InvalidSamplingParam;

use crate::core::request::{GenerationError, SubmitError};
use crate::core::status::Status;
use crate::pipeline::runtime::StartError;
use crate::serving::error::ApiError;

/// Why a session cannot be opened or does not generate.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The model cannot run, or does not fit.
    #[error(transparent)]
    Plan(#[from] LoadError),
    /// The actors of the model could not be started.
    #[error(transparent)]
    Start(#[from] StartError),
    /// No threads for the actors could be started.
    #[error("the threads of the session could not be started: {0}")]
    Threads(std::io::Error),
    /// The model was not loaded, for this reason.
    #[error("{0}")]
    NotReady(String),
    /// The text cannot be tokenized.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The model has no such token.
    #[error("there is no token {token}: the model's vocabulary has {vocab_size} tokens")]
    NotInVocabulary {
        /// The token.
        token: TokenId,
        /// Tokens of the vocabulary.
        vocab_size: usize,
    },
    /// There is nothing to continue.
    #[error("the context is empty: append a text before generating")]
    EmptyContext,
    /// A sampling parameter is out of range.
    #[error(transparent)]
    Sampling(#[from] InvalidSamplingParam),
    /// The stop strings cannot be searched for.
    #[error("the stop strings cannot be used: {0}")]
    Stop(String),
    /// The context is full, or the model does not run.
    #[error(transparent)]
    Submit(#[from] SubmitError),
    /// Something that was asked for cannot be done.
    #[error("{0}")]
    Refused(String),
    /// The generation began and then failed.
    #[error(transparent)]
    Generation(#[from] GenerationError),
}

impl SessionError {
    /// Why a model with this status is not ready.
    pub(super) fn of_status(status: Status) -> Self {
        let stopped = || "the model was stopped before it was ready".to_owned();
        SessionError::NotReady(status.failure().map_or_else(stopped, str::to_owned))
    }
}

impl From<ApiError> for SessionError {
    fn from(error: ApiError) -> Self {
        match error {
            ApiError::Submit(error) => error.into(),
            ApiError::Generation(error) => error.into(),
            other => SessionError::Refused(other.to_string()),
        }
    }
}
