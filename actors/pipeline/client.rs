//! The channel between the sampler and one client.
//!
//! Tokens go through a bounded channel. The last event is stored separately, so that it always arrives exactly once, even
//! when the channel is full.

use std::sync::{Arc, OnceLock};

use tokio::sync::{Notify, mpsc};

use crate::core::request::{Event, GenerationError, MAX_STEP_TOKENS};
use crate::core::request_context::RequestContext;

/// Maximum number of events that one step sends to a client before the last event: the progress of the prompt, its
/// log-probabilities, and tokens.
pub const EVENTS_PER_STEP: usize = 2 + MAX_STEP_TOKENS;

/// State shared by both ends.
#[derive(Debug, Default)]
struct Shared {
    end: OnceLock<Event>,
    /// Notified when the client has read half of its channel.
    has_read: Notify,
}

/// The sending end, used by the sampler.
#[derive(Debug)]
pub struct ClientSink {
    events: mpsc::Sender<Event>,
    shared: Arc<Shared>,
    /// The HTTP call of the request. `None` when it did not arrive over HTTP.
    context: Option<Arc<RequestContext>>,
}

/// The receiving end, used by the client.
#[derive(Debug)]
pub struct ClientStream {
    events: mpsc::Receiver<Event>,
    shared: Arc<Shared>,
    ended: bool,
}

/// Creates a channel for `capacity` events, at least for those of four steps.
#[must_use]
pub fn channel(capacity: usize) -> (ClientSink, ClientStream) {
    let (sender, receiver) = mpsc::channel(capacity.max(4 * EVENTS_PER_STEP));
    let shared = Arc::new(Shared::default());
    let sink = ClientSink { events: sender, shared: shared.clone(), context: None };
    (sink, ClientStream { events: receiver, shared, ended: false })
}

impl ClientSink {
    /// Sets the HTTP call of the request.
    #[must_use]
    pub fn with_context(self, context: Option<Arc<RequestContext>>) -> Self {
        ClientSink { context, ..self }
    }

    /// The HTTP call of the request, if any.
    #[must_use]
    pub fn context(&self) -> Option<&Arc<RequestContext>> {
        self.context.as_ref()
    }

    /// Sends an event. No event is lost if none is sent while [`Self::is_full`].
    pub fn send(&self, event: Event) {
        let sent = self.events.try_send(event);
        debug_assert!(
            !matches!(sent, Err(mpsc::error::TrySendError::Full(_))),
            "sent to a client whose channel is full"
        );
    }

    /// Whether the channel may have no space for the events of the current step and one more.
    #[must_use]
    pub fn is_full(&self) -> bool {
        !self.events.is_closed() && self.events.capacity() < 2 * EVENTS_PER_STEP
    }

    /// Whether the client is gone.
    #[must_use]
    pub fn is_abandoned(&self) -> bool {
        self.events.is_closed()
    }

    /// Resolves when the client has read half of its channel or is gone.
    pub fn has_capacity(&self) -> impl Future<Output = ()> + Send + use<> {
        let (events, shared) = (self.events.clone(), self.shared.clone());
        async move {
            while events.capacity() < events.max_capacity() / 2 && !events.is_closed() {
                tokio::select! {
                    () = shared.has_read.notified() => {}
                    () = events.closed() => {}
                }
            }
        }
    }

    /// Ends the stream with its last event. Later calls are ignored.
    pub fn finish(self, end: Event) {
        let _ = self.shared.end.set(end);
    }
}

impl ClientStream {
    /// The next event. `None` after the last one.
    pub async fn next(&mut self) -> Option<Event> {
        if self.ended {
            return None;
        }
        if let Some(event) = self.events.recv().await {
            if self.events.len() == self.events.max_capacity() / 2 {
                // The sampler that waits, and one that was replaced and still waits. Or the next one, if none waits.
                self.shared.has_read.notify_waiters();
                self.shared.has_read.notify_one();
            }
            return Some(event);
        }
        self.ended = true;
        let lost = || GenerationError::Engine("the part of the server that served this request had to restart".into());
        Some(self.shared.end.get().cloned().unwrap_or_else(|| Event::Failed(lost())))
    }

    /// Whether the last event was read.
    #[must_use]
    pub fn is_ended(&self) -> bool {
        self.ended
    }
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use super::*;

    fn token(token: u32) -> Event {
        Event::Token { token, text: String::new(), logprobs: None }
    }

    /// Sends events until the channel is full.
    fn fill(sink: &ClientSink) {
        (0..).take_while(|_| !sink.is_full()).for_each(|i| sink.send(token(i)));
    }

    async fn read_half(stream: &mut ClientStream) {
        for _ in 0..2 * EVENTS_PER_STEP {
            stream.next().await.unwrap();
        }
    }

    #[tokio::test]
    async fn the_last_event_arrives_once_even_when_the_channel_is_full() {
        let (sink, mut stream) = channel(0);
        let mut sent = 0;
        while !sink.is_full() {
            sink.send(token(sent));
            sent += 1;
        }
        sink.finish(Event::Failed(GenerationError::StalledClient));
        for expected in 0..sent {
            assert_eq!(stream.next().await, Some(token(expected)));
        }
        assert_eq!(stream.next().await, Some(Event::Failed(GenerationError::StalledClient)));
        assert!(stream.is_ended());
        assert_eq!(stream.next().await, None);
    }

    #[tokio::test]
    async fn dropping_the_sink_is_reported_as_a_failure() {
        let (sink, mut stream) = channel(8);
        drop(sink);
        assert!(matches!(stream.next().await, Some(Event::Failed(GenerationError::Engine(_)))));
        assert_eq!(stream.next().await, None);
    }

    #[tokio::test]
    async fn everything_that_waits_for_capacity_is_woken() {
        let (sink, mut stream) = channel(4);
        fill(&sink);
        let waiting = [tokio::spawn(sink.has_capacity()), tokio::spawn(sink.has_capacity())];
        tokio::task::yield_now().await;
        read_half(&mut stream).await;
        for capacity in waiting {
            capacity.await.unwrap();
        }
    }

    #[tokio::test]
    async fn capacity_returns_when_the_client_reads_or_leaves() {
        let (sink, mut stream) = channel(4);
        fill(&sink);
        let capacity = tokio::spawn(sink.has_capacity());
        read_half(&mut stream).await;
        capacity.await.unwrap();
        assert!(!sink.is_full());
        fill(&sink);
        let capacity = tokio::spawn(sink.has_capacity());
        drop(stream);
        capacity.await.unwrap();
        assert!(!sink.is_full());
    }
}
