//! Why a grammar is no regular expression.

/// Most bytes of the regular expression.
pub(super) const LONGEST: usize = 1 << 16;

/// Why a grammar is no regular expression.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LarkError {
    /// The grammar is malformed.
    #[error("line {line} of the grammar: {reason}")]
    Malformed {
        /// The line, from 1 on.
        line: usize,
        /// What is wrong.
        reason: String,
    },
    /// A rule or a terminal is used and not defined.
    #[error("the grammar does not define `{0}`")]
    Undefined(String),
    /// A rule leads back to itself.
    #[error("the rule `{0}` of the grammar contains itself")]
    Recursive(String),
    /// The grammar uses a feature that is not translated.
    #[error("line {line} of the grammar: {feature} cannot be translated")]
    Untranslated {
        /// The line, from 1 on.
        line: usize,
        /// The feature.
        feature: String,
    },
    /// The regular expression would be too long.
    #[error("the grammar is too large for a regular expression of {LONGEST} bytes")]
    TooLarge,
}

impl LarkError {
    /// Whether the grammar is wrong in itself.
    #[must_use]
    pub fn is_mistake(&self) -> bool {
        matches!(self, LarkError::Malformed { .. } | LarkError::Undefined(_))
    }
}
