//! How a session loads its model, and how it generates.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use cuelight_engine::constraint::Grammar;
use cuelight_engine::load::LoadOptions;
use cuelight_engine::sample::{PartialSampling, SamplingParams};
use serde_json::{Value, json};

use super::error::SessionError;
use crate::core::request::StopConditions;
use crate::core::stop_strings::StopStrings;
use crate::pipeline::runtime::RuntimeOptions;
use crate::serving::chat_prompt::ChatPrompt;
use crate::serving::options::GenerationOptions;
use crate::serving::request::ConstraintField;
use crate::serving::tenancy::Tenancy;

/// How to load a model.
#[derive(Debug, Clone)]
pub struct SessionOptions {
    /// Which model, on which devices, and how much memory.
    pub load: LoadOptions,
    /// How generations are scheduled.
    pub runtime: RuntimeOptions,
}

impl SessionOptions {
    /// Sessions that may generate at the same time by default; more of them wait for each other.
    const SEQUENCES: usize = 4;

    /// The defaults for a GGUF file or a Hugging Face directory: the model's own context, on all threads of the CPU.
    #[must_use]
    pub fn new(model: impl Into<PathBuf>) -> Self {
        // A program may read a stream as slowly as it likes: no one else waits for it.
        let patience = Duration::from_secs(365 * 24 * 3600);
        SessionOptions {
            load: LoadOptions { max_sequences: Self::SEQUENCES, ..LoadOptions::new(model) },
            runtime: RuntimeOptions { client_stall_timeout: patience, ..RuntimeOptions::default() },
        }
    }
}

/// How to generate. The default samples as the model's publisher recommends, until the model ends.
#[derive(Debug, Clone, Default)]
pub struct GenerateOptions {
    /// Most tokens; `None` for the rest of the context. 0 only computes the context, so that the next generation starts at
    /// once.
    pub max_tokens: Option<usize>,
    /// How tokens are sampled; `None` for what the model's publisher recommends.
    pub sampling: Option<SamplingParams>,
    /// Texts that end the generation. They are not part of the text, but their tokens stay in the context.
    pub stop: Vec<String>,
    /// What the whole text has to match: a JSON schema, a regular expression or a grammar.
    pub grammar: Option<Grammar>,
    /// Continue after the token by which the model ends a text.
    pub ignore_end: bool,
}

impl GenerateOptions {
    /// The options as the serving path takes them.
    ///
    /// # Errors
    /// [`SessionError::Sampling`] and [`SessionError::Stop`].
    pub(super) fn serving(&self) -> Result<GenerationOptions, SessionError> {
        let strings = StopStrings::new(self.stop.clone()).map_err(|error| SessionError::Stop(error.to_string()))?;
        let stop =
            StopConditions { strings: Arc::new(strings), ignore_eos: self.ignore_end, ..StopConditions::default() };
        let sampling = self.sampling.clone().unwrap_or_default();
        sampling.validate()?;
        Ok(GenerationOptions {
            max_tokens: self.max_tokens,
            stated: self.sampling.as_ref().map(all_stated).unwrap_or_default(),
            sampling,
            stop,
            ..GenerationOptions::new(Tenancy::default())
        })
    }

    pub(super) fn constraint(&self) -> Option<ConstraintField> {
        let field = |grammar| ConstraintField { path: "grammar".to_owned(), grammar };
        self.grammar.clone().map(field)
    }
}

/// All parameters that a model may recommend, so that no recommendation replaces one.
fn all_stated(sampling: &SamplingParams) -> PartialSampling {
    PartialSampling {
        temperature: Some(sampling.temperature),
        top_k: Some(sampling.top_k),
        top_p: Some(sampling.top_p),
        min_p: Some(sampling.min_p),
        repetition_penalty: Some(sampling.repetition_penalty),
    }
}

/// A message of a conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// Who speaks, as the model's chat template calls it: "system", "user" or "assistant".
    pub role: String,
    /// The text.
    pub content: String,
}

impl Message {
    /// A message of a role.
    #[must_use]
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Message { role: role.into(), content: content.into() }
    }
}

/// The conversation up to where the answer begins.
pub(super) fn chat_prompt(messages: &[Message]) -> ChatPrompt {
    let message = |message: &Message| json!({ "role": message.role, "content": message.content });
    ChatPrompt {
        messages: Value::Array(messages.iter().map(message).collect()),
        add_generation_prompt: true,
        ..ChatPrompt::default()
    }
}
