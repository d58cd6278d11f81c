//! A request of any protocol, read and checked as far as that needs no model.

use std::sync::Arc;

use cuelight_engine::constraint::Grammar;

use super::answers::Shown;
use super::chat_prompt::ChatPrompt;
use super::media_source::MediaField;
use super::options::GenerationOptions;
use super::prompt::PromptField;
use super::transcription::request::TranscriptionRequest;
use crate::output::ToolSpec;

/// What a client asks for.
pub(crate) struct ServingRequest {
    /// The name of the model. `None`: the default.
    pub model: Option<String>,
    pub prompt: PromptInput,
    pub options: GenerationOptions,
    /// What the answer has to match.
    pub constraint: Option<ConstraintField>,
    pub output: OutputOptions,
}

/// What the model continues.
pub(crate) enum PromptInput {
    /// A conversation.
    Chat(Box<ChatPrompt>),
    /// Audio whose words are wanted. The model decides which conversation asks for them.
    Transcription(Box<TranscriptionRequest>),
    /// Texts or tokens, each a prompt of its own.
    Plain {
        prompts: Vec<PromptField>,
        /// Add BOS and EOS to a text as the tokenizer specifies.
        add_special: bool,
    },
}

impl PromptInput {
    /// Takes the media out of a conversation.
    pub fn take_media(&mut self) -> Vec<MediaField> {
        match self {
            PromptInput::Chat(chat) => std::mem::take(&mut chat.media),
            PromptInput::Transcription(request) => std::mem::take(&mut request.audio),
            PromptInput::Plain { .. } => Vec::new(),
        }
    }

    /// The number of prompts.
    pub fn count(&self) -> usize {
        match self {
            PromptInput::Chat(_) | PromptInput::Transcription(_) => 1,
            PromptInput::Plain { prompts, .. } => prompts.len(),
        }
    }
}

/// A grammar, and the field of the request that it comes from.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ConstraintField {
    pub path: String,
    pub grammar: Grammar,
}

/// How the text of an answer is taken apart.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct OutputOptions {
    /// Separate the reasoning from the answer.
    pub parses_reasoning: bool,
    /// Leave the reasoning out of the answer.
    pub hides_reasoning: bool,
    /// Most tokens of reasoning, then its end is forced.
    pub reasoning_budget: Option<usize>,
    /// The tools that the model may call.
    pub tools: Arc<[ToolSpec]>,
    pub tool_choice: ToolChoice,
    /// The answer may have several calls. Otherwise calls after the first are left out.
    pub parallel_tool_calls: bool,
}

/// Whether the model may or must call a tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ToolChoice {
    /// Text that looks like a call is text.
    None,
    /// The model decides.
    Auto,
    /// The answer is at least one call.
    Required,
}

impl OutputOptions {
    /// All output is text.
    pub fn plain() -> Self {
        OutputOptions {
            parses_reasoning: false,
            hides_reasoning: false,
            reasoning_budget: None,
            tools: Arc::default(),
            tool_choice: ToolChoice::None,
            parallel_tool_calls: true,
        }
    }

    /// What the client gets to see of an answer.
    pub fn shown(&self) -> Shown {
        Shown { reasoning: !self.hides_reasoning, more_calls: self.parallel_tool_calls }
    }

    /// Whether the text is more than text.
    pub fn parses(&self) -> bool {
        self.parses_reasoning || self.tool_choice != ToolChoice::None
    }
}
