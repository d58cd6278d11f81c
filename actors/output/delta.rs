//! The pieces of an answer, and the tools that it may call.

/// One piece of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Delta {
    /// Text for the reader.
    Text(String),
    /// Text of the model's reasoning.
    Reasoning(String),
    /// A call of a tool begins.
    ToolCallStart {
        /// The call's position among the calls of the answer, from zero.
        index: usize,
        /// The model's own id, or a new one.
        id: String,
        /// The whole name of the tool.
        name: String,
    },
    /// More of a call's arguments.
    ToolCallArguments {
        /// The call's position.
        index: usize,
        /// A piece of the arguments. All pieces of a complete call together are a JSON object.
        fragment: String,
    },
}

impl Delta {
    /// Its text for the reader, if it is that.
    #[must_use]
    pub fn into_text(self) -> Option<String> {
        match self {
            Delta::Text(text) => Some(text),
            _ => None,
        }
    }
}

/// A tool that the model may call.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolSpec {
    /// The tool's name.
    pub name: String,
    /// The JSON schema of the arguments, `{}` if there is none.
    pub parameters: serde_json::Value,
    /// Calls match all of the schema, also those that the model makes of its own accord. Otherwise only calls that a request
    /// demands match it, and the keywords that no grammar can express are ignored.
    pub is_strict: bool,
}
