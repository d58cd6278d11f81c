//! The sequences of one request: submitted under one permit and merged into one stream of events.
//!
//! Dropping a [`Generations`] drops every [`Generation`] in it, which cancels them. So no sequence outlives its
//! connection.

use std::time::Duration;

use futures_util::stream::{self, BoxStream, SelectAll, Stream, StreamExt};
use tokio::time::{Instant, timeout_at};

use super::error::ApiError;
use super::served::Served;
use crate::core::request::{Event, FinishReason, GenerationError, GenerationRequest};
use crate::pipeline::runtime::{Generation, Permit};

/// The running sequences of one request, numbered from 0 in the order of its choices.
pub(crate) struct Generations {
    events: SelectAll<BoxStream<'static, (usize, Event)>>,
    unfinished: usize,
    timeout: Option<(Instant, Duration)>,
    /// Holds the request's admission slots until it ends.
    _permit: Permit,
    /// Keeps the model loaded until then.
    _served: Served,
    /// The memory of what it holds until then.
    _memory: Option<Box<dyn Send + Sync>>,
}

impl Generations {
    /// Submits every sequence of a request.
    ///
    /// # Errors
    /// [`ApiError::Submit`] when one is not accepted; those before it are cancelled.
    pub async fn submit(
        served: &Served,
        permit: Permit,
        requests: Vec<GenerationRequest>,
        timeout: Option<Duration>,
    ) -> Result<Self, ApiError> {
        let timeout = timeout.map(|limit| (Instant::now() + limit, limit));
        let unfinished = requests.len();
        let mut events = SelectAll::new();
        for (choice, request) in requests.into_iter().enumerate() {
            let generation = served.runtime.submit(&permit, request).await?;
            events.push(events_of(choice, generation).boxed());
        }
        Ok(Generations { events, unfinished, timeout, _permit: permit, _served: served.clone(), _memory: None })
    }

    /// The sequences with memory that they hold until they end.
    #[must_use]
    pub fn holding(self, memory: Box<dyn Send + Sync>) -> Self {
        Generations { _memory: Some(memory), ..self }
    }

    /// The next event of any sequence, with the sequence's number. `None` when all have finished.
    ///
    /// Cancel-safe: an event is never lost by dropping the future.
    ///
    /// # Errors
    /// [`ApiError::Generation`] when a sequence failed, [`ApiError::Timeout`] when the request took too long. Either ends
    /// the whole request.
    pub async fn next(&mut self) -> Option<Result<(usize, Event), ApiError>> {
        if self.unfinished == 0 {
            return None;
        }
        let next = match self.timeout {
            Some((deadline, limit)) => match timeout_at(deadline, self.events.next()).await {
                Ok(next) => next,
                Err(_) => return Some(Err(self.fail(ApiError::Timeout(limit)))),
            },
            None => self.events.next().await,
        };
        Some(match next {
            Some((_, Event::Failed(error))) => Err(self.fail(error.into())),
            Some((_, Event::Finished { reason: FinishReason::Cancelled, .. })) => {
                Err(self.fail(GenerationError::ShuttingDown.into()))
            }
            Some((choice, event)) => {
                self.unfinished -= usize::from(matches!(event, Event::Finished { .. } | Event::Embedded { .. }));
                Ok((choice, event))
            }
            None => Err(self.fail(GenerationError::Engine("it stopped without a result".to_owned()).into())),
        })
    }

    fn fail(&mut self, error: ApiError) -> ApiError {
        self.unfinished = 0;
        self.events.clear();
        error
    }
}

fn events_of(choice: usize, generation: Generation) -> impl Stream<Item = (usize, Event)> + Send {
    stream::unfold(generation, move |mut generation| async move {
        let event = generation.next().await?;
        Some(((choice, event), generation))
    })
}
