//! Why a constraint cannot be compiled or continued.

/// Why a grammar was refused. The message is for the client that sent it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GrammarError {
    /// The grammar is malformed, or contains what cannot be enforced.
    #[error("{message}")]
    Refused {
        /// Where in the grammar: a JSON pointer into a schema, as `#/properties/a/not`. `None` when unknown.
        pointer: Option<String>,
        /// One sentence.
        message: String,
    },
    /// Compiling it took too long and was cancelled.
    #[error("compiling it was cancelled")]
    Cancelled,
    /// The vocabulary of the model cannot be used for constraints.
    #[error("this model's vocabulary cannot be constrained: {0}")]
    Vocabulary(String),
}

impl GrammarError {
    /// A refusal without a known place.
    pub(super) fn refused(message: impl Into<String>) -> Self {
        GrammarError::Refused { pointer: None, message: message.into() }
    }
}

/// Why a sequence cannot continue under its constraint.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the constraint on the output cannot be continued: {0}")]
pub struct ConstraintError(pub String);
