//! The text of one generation, as it is generated.

use cuelight_engine::engine::TokenId;
use futures_util::stream::{self, Stream};

use super::error::SessionError;
use crate::core::request::{FinishReason, Usage};
use crate::output::Delta;
use crate::serving::answers::{AnswerEvent, Answers};

/// The text of one generation. Dropping it ends the generation; the context of the session keeps what was read.
pub struct TextStream<'session> {
    context: &'session mut Vec<TokenId>,
    answers: Answers,
    ending: Option<Ending>,
}

/// How a generation ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ending {
    /// Why it ended.
    pub reason: FinishReason,
    /// Its tokens and times.
    pub usage: Usage,
}

impl<'session> TextStream<'session> {
    pub(super) fn new(context: &'session mut Vec<TokenId>, answers: Answers) -> Self {
        TextStream { context, answers, ending: None }
    }

    /// The next piece of text: whole characters, at least one. `None` after the last one.
    ///
    /// Cancel-safe: no text is lost by dropping the future.
    ///
    /// # Errors
    /// [`SessionError::Generation`] when the generation failed; no more text follows.
    pub async fn next(&mut self) -> Option<Result<String, SessionError>> {
        while let Some(event) = self.answers.next().await {
            let text = match event {
                Ok((_, event)) => self.take(event),
                Err(error) => return Some(Err(error.into())),
            };
            if !text.is_empty() {
                return Some(Ok(text));
            }
        }
        None
    }

    /// Records an event and returns its text.
    fn take(&mut self, event: AnswerEvent) -> String {
        let deltas = match event {
            AnswerEvent::Progress(_) | AnswerEvent::Prompt(_) => Vec::new(),
            AnswerEvent::Token { token, deltas, .. } => {
                self.context.push(token);
                deltas
            }
            AnswerEvent::Block { tokens, deltas } => {
                self.context.extend(tokens);
                deltas
            }
            AnswerEvent::Finished { finish, deltas } => {
                // The token by which the model ended would stand between this text and the next one.
                if matches!(finish.reason, FinishReason::StopToken(end) if self.context.last() == Some(&end)) {
                    self.context.pop();
                }
                self.ending = Some(Ending { reason: finish.reason, usage: finish.usage });
                deltas
            }
        };
        let text = |delta| match delta {
            Delta::Text(text) | Delta::Reasoning(text) => text,
            Delta::ToolCallStart { .. } | Delta::ToolCallArguments { .. } => String::new(),
        };
        deltas.into_iter().map(text).collect()
    }

    /// How the generation ended, once [`Self::next`] has returned `None`.
    #[must_use]
    pub fn ending(&self) -> Option<&Ending> {
        self.ending.as_ref()
    }

    /// All text that is still to come.
    ///
    /// # Errors
    /// As [`Self::next`].
    pub async fn into_text(mut self) -> Result<String, SessionError> {
        let mut all = String::new();
        while let Some(text) = self.next().await {
            all.push_str(&text?);
        }
        Ok(all)
    }

    /// The same as a stream, for combinators.
    pub fn into_stream(self) -> impl Stream<Item = Result<String, SessionError>> + 'session {
        stream::unfold(self, |mut this| async move { Some((this.next().await?, this)) })
    }
}
