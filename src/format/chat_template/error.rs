//! Why a chat template does not compile or render.

use serde::{Deserialize, Serialize};

/// Why a template does not compile or render.
#[derive(Debug, Clone, PartialEq, thiserror::Error, Serialize, Deserialize)]
pub enum ChatTemplateError {
    /// The source is not a valid template.
    #[error("{message}{}", at_line(*line))]
    Syntax {
        /// What is wrong.
        message: String,
        /// The line of the template, if known.
        line: Option<usize>,
    },
    /// The template called `raise_exception`: it does not support the conversation.
    #[error("the chat template refuses this conversation: {0}")]
    Refused(String),
    /// The template failed on the conversation.
    #[error("the chat template failed on this conversation: {message}{}", at_line(*line))]
    Render {
        /// What went wrong.
        message: String,
        /// The line of the template, if known.
        line: Option<usize>,
    },
    /// The template is over one of its limits.
    #[error("the chat template exceeds a limit: {0}")]
    Limit(String),
    /// The caller no longer wants the prompt.
    #[error("the rendering was cancelled")]
    Cancelled,
    /// The process that renders cannot be used. The reason is on this machine, not in the template.
    #[error("the process that renders chat templates failed: {0}")]
    Worker(String),
}

fn at_line(line: Option<usize>) -> String {
    line.map(|line| format!(" (line {line} of the template)")).unwrap_or_default()
}
