//! A loaded model as the pipeline serves it.

use std::sync::Arc;

use cuelight_engine::constraint::ConstraintCompiler;
use cuelight_engine::engine::{EngineLimits, TokenId};
use cuelight_engine::format::chat_template::{Cancellation, ChatTemplate, TemplateInputs};
use cuelight_engine::format::tokenizer::Tokenizer;
use cuelight_engine::load::{MemoryPlan, ModelCard};
use cuelight_engine::media::MediaKind;
use serde_json::{Map, Value};
use tokio::sync::{OnceCell, Semaphore};

use super::adapters::Adapters;
use super::media::ModelMedia;
use crate::core::request::{Marker, ReasoningOptions};
use crate::core::stop_strings::StopStrings;
use crate::output::{ArgumentChecks, OutputFormat, OutputParser, ParserOptions, ToolSpec};

/// A loaded model, without its engine.
pub struct ServedModel {
    /// Description of the model, shown to users and by `/v1/models`.
    pub card: ModelCard,
    /// The memory that the model uses.
    pub memory: MemoryPlan,
    /// The limits of the engine.
    pub limits: EngineLimits,
    /// Converts text to tokens and back.
    pub tokenizer: Arc<Tokenizer>,
    /// Renders a conversation as a prompt. `None` when the file has no chat template.
    pub chat_template: Option<Arc<ChatTemplate>>,
    /// How many more conversations may be rendered now. A slow template delays only its own model.
    pub rendering_slots: Arc<Semaphore>,
    /// Compiles constraints on the output.
    pub constraints: Arc<ConstraintCompiler>,
    /// The adapters of the model; `None` for a model without adapters.
    pub adapters: Option<Arc<Adapters>>,
    /// The media of its prompts; `None` for a model that takes none.
    pub media: Option<Arc<ModelMedia>>,
    /// How its chat template takes messages. Found for the first conversation of a model with media, because it needs renderings.
    pub content_form: OnceCell<ContentForm>,
    /// The stop strings of requests that name none.
    pub stop: Arc<StopStrings>,
    /// How the model writes reasoning and tool calls. Found for the first chat, because it needs renderings.
    pub output_rules: OnceCell<OutputRules>,
}

/// How a chat template takes the content of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContentForm {
    /// As a text.
    Text,
    /// As a text, or as a list of texts and media.
    TextOrParts,
    /// As a list of texts and media only.
    Parts,
}

/// How a model writes reasoning and tool calls.
#[derive(Debug, Clone)]
pub struct OutputRules {
    /// The format.
    pub format: OutputFormat,
    /// Special tokens that are part of the format's markers, sorted. They stay in the text for the output parser.
    pub visible_tokens: Arc<[TokenId]>,
}

impl ServedModel {
    /// Most conversations of one model that are rendered at the same time.
    pub const RENDERING_SLOTS: usize = 2;

    /// A model of which nothing was derived yet.
    #[must_use]
    pub fn new(
        card: ModelCard,
        memory: MemoryPlan,
        limits: EngineLimits,
        tokenizer: Arc<Tokenizer>,
        chat_template: Option<Arc<ChatTemplate>>,
    ) -> Self {
        let constraints = Arc::new(ConstraintCompiler::new(tokenizer.clone(), limits.vocab_size));
        // A list that is too long for a search is of no use to anyone.
        let stop = Arc::new(StopStrings::new(card.stop.clone()).unwrap_or_default());
        ServedModel {
            stop,
            card,
            memory,
            limits,
            tokenizer,
            chat_template,
            rendering_slots: Arc::new(Semaphore::new(Self::RENDERING_SLOTS)),
            constraints,
            adapters: None,
            media: None,
            content_form: OnceCell::new(),
            output_rules: OnceCell::new(),
        }
    }

    /// The model with adapters.
    #[must_use]
    pub fn with_adapters(self, adapters: Option<Arc<Adapters>>) -> Self {
        ServedModel { adapters, ..self }
    }

    /// Whether it takes media of a kind.
    #[must_use]
    pub fn takes(&self, kind: MediaKind) -> bool {
        self.media.as_ref().is_some_and(|media| media.spec(kind).is_some())
    }

    /// The model with media.
    #[must_use]
    pub fn with_media(self, media: Option<Arc<ModelMedia>>) -> Self {
        ServedModel { media, ..self }
    }

    /// Finds how the model writes reasoning and tool calls, by renderings of its chat template. Takes milliseconds, so call it
    /// on a thread that may block.
    #[must_use]
    pub fn find_output_rules(&self, cancellation: &Cancellation) -> OutputRules {
        let Some(template) = &self.chat_template else { return OutputRules::plain() };
        let render = |messages: &Value, tools: Option<&Value>, variables: &Map<String, Value>, generate: bool| {
            let inputs = TemplateInputs {
                messages,
                tools,
                documents: None,
                add_generation_prompt: generate,
                variables: Some(variables),
            };
            template.render_prompt(&inputs, cancellation).ok().map(|prompt| prompt.text)
        };
        let format = OutputFormat::of_template(template.source(), &render);
        let visible_tokens = special_tokens_in(&format.markers(), &self.tokenizer);
        OutputRules { format, visible_tokens }
    }
}

impl OutputRules {
    /// All output is text.
    #[must_use]
    pub fn plain() -> Self {
        OutputRules { format: OutputFormat::plain(), visible_tokens: Arc::default() }
    }
}

impl OutputRules {
    /// The special tokens of the format's markers, with their spellings.
    #[must_use]
    pub fn special_tokens(&self, tokenizer: &Tokenizer) -> Vec<(String, TokenId)> {
        self.visible_tokens.iter().map(|&token| (tokenizer.token_text(token), token)).collect()
    }

    /// The special tokens that may stand in a text, ascending: all but those that end a generation.
    #[must_use]
    pub fn text_tokens(&self, tokenizer: &Tokenizer) -> Vec<TokenId> {
        let is_end = |token: &TokenId| tokenizer.end_of_generation().contains(token);
        let all = 0..tokenizer.vocab_size() as TokenId;
        all.filter(|&token| tokenizer.is_special(token)).filter(|token| !is_end(token)).collect()
    }

    /// The parser of an answer to a prompt. For `unmarked_calls` see [`ParserOptions::unmarked_calls`].
    #[must_use]
    pub fn parser(
        &self,
        parse_reasoning: bool,
        tools: Option<Arc<[ToolSpec]>>,
        unmarked_calls: Option<ArgumentChecks>,
        prompt: &str,
    ) -> OutputParser {
        let options = ParserOptions {
            parse_reasoning,
            parse_tool_calls: tools.is_some(),
            unmarked_calls,
            tools: tools.unwrap_or_default(),
            prompt_tail: prompt.to_owned(),
        };
        OutputParser::new(&self.format, options)
    }

    /// The reasoning that may come before an answer. `None` when there is none, or the prompt has closed it.
    #[must_use]
    pub fn reasoning(&self, tokenizer: &Tokenizer, prompt: &str, budget: Option<usize>) -> Option<ReasoningOptions> {
        let marks = self.format.reasoning()?;
        if prompt.trim_end().ends_with(marks.answer.trim()) {
            return None;
        }
        let is_open = self.parser(true, None, None, prompt).is_reasoning();
        let marker = |text: &str| {
            let tokens = tokenizer.encode(text, false, true).unwrap_or_default();
            Marker { text: text.to_owned(), tokens }
        };
        let (start, answer) = (marker(marks.start.trim_end()), marker(marks.answer.trim_end()));
        let same = start.tokens.iter().zip(&answer.tokens).take_while(|(start, answer)| start == answer);
        let distinct = same.count();
        let end = marker(marks.end.trim());
        Some(ReasoningOptions { is_open, start, end, distinct, repeats: marks.repeats, budget })
    }
}

/// The special tokens whose spelling is part of a marker.
fn special_tokens_in(markers: &[&str], tokenizer: &Tokenizer) -> Arc<[TokenId]> {
    let is_part = |token: &TokenId| {
        let text = tokenizer.token_text(*token);
        !text.is_empty() && markers.iter().any(|marker| marker.contains(&text))
    };
    let all = 0..tokenizer.vocab_size() as TokenId;
    all.filter(|&token| tokenizer.is_special(token)).filter(is_part).collect()
}
