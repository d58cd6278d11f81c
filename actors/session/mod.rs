//! A model inside of another program: open it, generate text, and continue, without HTTP and without the command line.
//!
//! - [`Session`], below: a model and a context, which grows by what the program appends and what the model generates
//! - [`options`]: how to load the model and how to generate
//! - [`text_stream`]: the text of one generation
//! - [`error`]: why something failed
//! - [`blocking`]: the same for programs without async code
//!
//! A session owns its context as tokens and submits all of them for each generation. The prefix cache of the model keeps
//! what was computed, so continuing costs only the new tokens, and a fork shares the keys and values of its origin.
//!
//! ```
//! use cuelight::session::{GenerateOptions, Session, SessionError, SessionOptions};
//!
//! # async fn run(model: &str) -> Result<String, SessionError> {
//! let mut session = Session::open(SessionOptions::new(model)).await?;
//! session.extend("Once upon a time")?;
//! let options = GenerateOptions { max_tokens: Some(8), ..GenerateOptions::default() };
//! let mut stream = session.generate(&options).await?;
//! let mut story = String::new();
//! while let Some(text) = stream.next().await {
//!     story.push_str(&text?);
//! }
//! # Ok(story) }
//! # let model = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/families/llama.gguf");
//! # let story = tokio::runtime::Runtime::new().unwrap().block_on(run(model)).unwrap();
//! # assert!(!story.is_empty());
//! ```

pub mod blocking;
mod error;
mod options;
mod text_stream;

use std::sync::Arc;
use std::time::Duration;

pub use cuelight_engine::constraint::Grammar;
use cuelight_engine::engine::TokenId;
use cuelight_engine::load;

pub use self::error::SessionError;
pub use self::options::{GenerateOptions, Message, SessionOptions};
pub use self::text_stream::{Ending, TextStream};
use crate::models::Models;
use crate::pipeline::planned_file::PlannedFile;
use crate::pipeline::runtime::{Runtime, ServedModel};
use crate::serving::accept::{ServingLimits, accept};
use crate::serving::media_limits::MediaLimits;
use crate::serving::prompt::{PlainPrompt, PromptField};
use crate::serving::request::{OutputOptions, PromptInput, ServingRequest};

/// A session is bounded by nothing but its model.
fn limits() -> ServingLimits {
    ServingLimits { highest_priority: i32::MIN, request_timeout: None, media: MediaLimits::default() }
}

/// A loaded model and a context.
///
/// Forks share the model. It is unloaded when the last of them is dropped.
pub struct Session {
    models: Models,
    model: Arc<ServedModel>,
    runtime: Runtime,
    context: Vec<TokenId>,
}

impl Session {
    /// Plans the memory of a model, loads it, and returns an empty context. Call it on a tokio runtime; the model computes on
    /// threads of its own.
    ///
    /// # Errors
    /// [`SessionError::Plan`] when the model cannot run or does not fit, [`SessionError::NotReady`] when its load fails.
    pub async fn open(options: SessionOptions) -> Result<Self, SessionError> {
        let SessionOptions { load, runtime } = options;
        let plan = tokio::task::spawn_blocking(move || load::plan(&load));
        let plan = plan.await.map_err(|panic| SessionError::NotReady(panic.to_string()))??;
        Self::over(Runtime::start(PlannedFile::new(plan), runtime).await?).await
    }

    /// An empty context of a model that a runtime loads or has loaded.
    ///
    /// # Errors
    /// [`SessionError::NotReady`] when its load fails.
    pub async fn over(runtime: Runtime) -> Result<Self, SessionError> {
        let model = runtime.wait_ready().await.map_err(SessionError::of_status)?;
        let models = Models::fixed(runtime.clone(), &model.card.name, Vec::new());
        Ok(Session { models, model, runtime, context: Vec::new() })
    }

    /// The model.
    #[must_use]
    pub fn model(&self) -> &ServedModel {
        &self.model
    }

    /// The tokens so far: those that were appended and those that the model generated.
    #[must_use]
    pub fn tokens(&self) -> &[TokenId] {
        &self.context
    }

    /// The text of these tokens, without special tokens.
    #[must_use]
    pub fn text(&self) -> String {
        self.model.tokenizer.decode(&self.context, true)
    }

    /// Appends a text. The spelling of a special token becomes that token, and the first text gets the token for the
    /// beginning if the model wants one.
    ///
    /// # Errors
    /// [`SessionError::Tokenizer`] when the text cannot be tokenized; the context is unchanged.
    pub fn extend(&mut self, text: &str) -> Result<(), SessionError> {
        let tokenizer = &self.model.tokenizer;
        let tokens = tokenizer.encode(text, false, true)?;
        let beginning = tokenizer.added_bos().filter(|_| self.context.is_empty());
        self.context.extend(beginning);
        self.context.extend(tokens);
        Ok(())
    }

    /// Appends tokens as they are.
    ///
    /// # Errors
    /// [`SessionError::NotInVocabulary`]; the context is unchanged.
    pub fn extend_tokens(&mut self, tokens: &[TokenId]) -> Result<(), SessionError> {
        let vocab_size = self.model.limits.vocab_size;
        if let Some(&token) = tokens.iter().find(|token| **token as usize >= vocab_size) {
            return Err(SessionError::NotInVocabulary { token, vocab_size });
        }
        self.context.extend_from_slice(tokens);
        Ok(())
    }

    /// Replaces the context by a conversation, as the model's chat template renders it up to where the answer begins. Text
    /// in a message never becomes a special token. What an earlier context had in common is not computed again.
    ///
    /// # Errors
    /// [`SessionError::Refused`] when the model has no chat template, or it refuses the messages; the context is unchanged.
    pub async fn converse(&mut self, messages: &[Message]) -> Result<(), SessionError> {
        self.context = options::chat_prompt(messages).tokens_of_text(&self.model).await?;
        Ok(())
    }

    /// Generates text after the context, token by token. What is read of the stream becomes part of the context; dropping
    /// the stream ends the generation.
    ///
    /// # Errors
    /// [`SessionError`] when the context is empty or full, an option is out of range, or a grammar cannot be enforced.
    pub async fn generate(&mut self, options: &GenerateOptions) -> Result<TextStream<'_>, SessionError> {
        if self.context.is_empty() {
            return Err(SessionError::EmptyContext);
        }
        let prompt = PromptField { path: "context".to_owned(), prompt: PlainPrompt::Tokens(self.context.clone()) };
        let request = ServingRequest {
            model: None,
            prompt: PromptInput::Plain { prompts: vec![prompt], add_special: false },
            options: options.serving()?,
            constraint: options.constraint(),
            output: OutputOptions::plain(),
        };
        let accepted = accept(&self.models, limits(), request, ()).await?;
        Ok(TextStream::new(&mut self.context, accepted.answers))
    }

    /// Empties the context. The model keeps what it has computed as long as no other context needs the memory.
    pub fn reset(&mut self) {
        self.context.clear();
    }

    /// Another session with the same model and context. They continue independently, also at the same time, and share the
    /// keys and values of the common prefix.
    #[must_use]
    pub fn fork(&self) -> Self {
        Session {
            models: self.models.clone(),
            model: self.model.clone(),
            runtime: self.runtime.clone(),
            context: self.context.clone(),
        }
    }

    /// Unloads the model, and returns when its actors have stopped. Generations of forks end with an error.
    pub async fn close(self) {
        self.runtime.shutdown(Duration::ZERO).await;
    }
}
