//! [`Session`](super::Session) for programs without async code: it brings its own threads.
//!
//! ```
//! use cuelight::session::blocking::Session;
//! use cuelight::session::{GenerateOptions, SessionError, SessionOptions};
//!
//! # fn run(model: &str) -> Result<String, SessionError> {
//! let mut session = Session::open(SessionOptions::new(model))?;
//! session.extend("Once upon a time")?;
//! let options = GenerateOptions { max_tokens: Some(8), ..GenerateOptions::default() };
//! let story: String = session.generate(&options)?.collect::<Result<_, _>>()?;
//! # Ok(story) }
//! # let model = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/families/llama.gguf");
//! # assert!(!run(model).unwrap().is_empty());
//! ```

use std::sync::Arc;

use cuelight_engine::engine::TokenId;
use tokio::runtime::{Builder, Runtime};

use super::error::SessionError;
use super::options::{GenerateOptions, Message, SessionOptions};
use super::text_stream::{self, Ending};
use crate::pipeline::runtime::ServedModel;

/// The threads that the actors run on. Forks share them.
struct Threads(Option<Runtime>);

impl Threads {
    fn start() -> Result<Self, SessionError> {
        let runtime = Builder::new_multi_thread().worker_threads(2).thread_name("cuelight").enable_all().build();
        runtime.map(|runtime| Threads(Some(runtime))).map_err(SessionError::Threads)
    }

    fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        self.0.as_ref().expect("it is taken only when this is dropped").block_on(future)
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        // Waiting for the threads would panic inside of async code, where a session may be dropped.
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

/// A loaded model and a context, as [`super::Session`]. Its methods block, and panic inside of async code.
pub struct Session {
    session: super::Session,
    threads: Arc<Threads>,
}

impl Session {
    /// As [`super::Session::open`].
    ///
    /// # Errors
    /// As [`super::Session::open`]; [`SessionError::Threads`] when no threads can be started.
    pub fn open(options: SessionOptions) -> Result<Self, SessionError> {
        let threads = Arc::new(Threads::start()?);
        let session = threads.block_on(super::Session::open(options))?;
        Ok(Session { session, threads })
    }

    /// The model.
    #[must_use]
    pub fn model(&self) -> &ServedModel {
        self.session.model()
    }

    /// As [`super::Session::tokens`].
    #[must_use]
    pub fn tokens(&self) -> &[TokenId] {
        self.session.tokens()
    }

    /// As [`super::Session::text`].
    #[must_use]
    pub fn text(&self) -> String {
        self.session.text()
    }

    /// As [`super::Session::extend`].
    ///
    /// # Errors
    /// As [`super::Session::extend`].
    pub fn extend(&mut self, text: &str) -> Result<(), SessionError> {
        self.session.extend(text)
    }

    /// As [`super::Session::extend_tokens`].
    ///
    /// # Errors
    /// As [`super::Session::extend_tokens`].
    pub fn extend_tokens(&mut self, tokens: &[TokenId]) -> Result<(), SessionError> {
        self.session.extend_tokens(tokens)
    }

    /// As [`super::Session::converse`].
    ///
    /// # Errors
    /// As [`super::Session::converse`].
    pub fn converse(&mut self, messages: &[Message]) -> Result<(), SessionError> {
        self.threads.block_on(self.session.converse(messages))
    }

    /// As [`super::Session::generate`].
    ///
    /// # Errors
    /// As [`super::Session::generate`].
    pub fn generate(&mut self, options: &GenerateOptions) -> Result<TextStream<'_>, SessionError> {
        let stream = self.threads.block_on(self.session.generate(options))?;
        Ok(TextStream { stream, threads: &self.threads })
    }

    /// As [`super::Session::reset`].
    pub fn reset(&mut self) {
        self.session.reset();
    }

    /// As [`super::Session::fork`].
    #[must_use]
    pub fn fork(&self) -> Self {
        Session { session: self.session.fork(), threads: self.threads.clone() }
    }

    /// As [`super::Session::close`].
    pub fn close(self) {
        self.threads.block_on(self.session.close());
    }
}

/// The pieces of text of one generation, as [`super::TextStream`].
pub struct TextStream<'session> {
    stream: text_stream::TextStream<'session>,
    threads: &'session Threads,
}

impl TextStream<'_> {
    /// How the generation ended, after the last piece.
    #[must_use]
    pub fn ending(&self) -> Option<&Ending> {
        self.stream.ending()
    }
}

impl Iterator for TextStream<'_> {
    type Item = Result<String, SessionError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.threads.block_on(self.stream.next())
    }
}
