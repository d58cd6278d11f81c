//! The channel between the sampler and one client.
//!
//! Tokens travel through a bounded channel. The end does not: it has a place of its own, so that it always arrives,
//! exactly once, even when the client reads nothing.

use std::sync::{Arc, OnceLock};

use tokio::sync::{Notify, mpsc};

use crate::request::{Event, GenerationError};
use crate::trace::call::Call;

/// Events that one step can send to one client before its end: the prompt's log-probabilities and a token.
pub const EVENTS_PER_STEP: usize = 2;

/// What both sides see.
#[derive(Debug, Default)]
struct Shared {
    end: OnceLock<Event>,
    /// The client has read half of its channel.
    has_read: Notify,
}

/// Where the sampler puts a request's events.
#[derive(Debug)]
pub struct ClientSink {
    events: mpsc::Sender<Event>,
    shared: Arc<Shared>,
    /// The client's call, when it came over HTTP.
    call: Option<Arc<Call>>,
}

/// Where the client takes them.
#[derive(Debug)]
pub struct ClientStream {
    events: mpsc::Receiver<Event>,
    shared: Arc<Shared>,
    ended: bool,
}

/// A channel that holds `capacity` events, at least those of four steps.
#[must_use]
pub fn channel(capacity: usize) -> (ClientSink, ClientStream) {
    let (sender, receiver) = mpsc::channel(capacity.max(4 * EVENTS_PER_STEP));
    let shared = Arc::new(Shared::default());
    let sink = ClientSink { events: sender, shared: shared.clone(), call: None };
    (sink, ClientStream { events: receiver, shared, ended: false })
}

impl ClientSink {
    /// The same for a client whose call is known.
    #[must_use]
    pub fn on_behalf_of(self, call: Option<Arc<Call>>) -> Self {
        ClientSink { call, ..self }
    }

    /// The client's call, when it is known.
    #[must_use]
    pub fn call(&self) -> Option<&Arc<Call>> {
        self.call.as_ref()
    }

    /// Passes an event on. Whoever leaves [`Self::is_full`] clients alone never loses one.
    pub fn send(&self, event: Event) {
        let sent = self.events.try_send(event);
        debug_assert!(!matches!(sent, Err(mpsc::error::TrySendError::Full(_))), "sent to a full client");
    }

    /// Whether the events of another step may not fit, beside those of the step that may be under way.
    #[must_use]
    pub fn is_full(&self) -> bool {
        !self.events.is_closed() && self.events.capacity() < 2 * EVENTS_PER_STEP
    }

    /// Resolves when the client has read half of its channel, or is gone.
    pub fn room(&self) -> impl Future<Output = ()> + Send + 'static {
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

    /// Ends the stream. The first end stands.
    pub fn finish(self, end: Event) {
        let _ = self.shared.end.set(end);
    }
}

impl ClientStream {
    /// The next event; `None` after the end.
    pub async fn next(&mut self) -> Option<Event> {
        if self.ended {
            return None;
        }
        if let Some(event) = self.events.recv().await {
            if self.events.len() == self.events.max_capacity() / 2 {
                self.shared.has_read.notify_one();
            }
            return Some(event);
        }
        self.ended = true;
        let lost = || GenerationError::Engine("the part of the server that served this request had to restart".into());
        Some(self.shared.end.get().cloned().unwrap_or_else(|| Event::Failed(lost())))
    }

    /// Whether the end was read.
    #[must_use]
    pub fn is_ended(&self) -> bool {
        self.ended
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn token(token: u32) -> Event {
        Event::Token { token, text: String::new(), logprobs: None }
    }

    #[tokio::test]
    async fn the_end_arrives_once_though_the_channel_is_full() {
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
    async fn a_sink_that_vanishes_is_a_failure() {
        let (sink, mut stream) = channel(8);
        drop(sink);
        assert!(matches!(stream.next().await, Some(Event::Failed(GenerationError::Engine(_)))));
        assert_eq!(stream.next().await, None);
    }

    #[tokio::test]
    async fn room_comes_with_reading_and_with_leaving() {
        let (sink, mut stream) = channel(4);
        (0..5).for_each(|i| sink.send(token(i)));
        assert!(sink.is_full());
        let room = tokio::spawn(sink.room());
        stream.next().await.unwrap();
        room.await.unwrap();
        sink.send(token(5));
        (6..8).for_each(|i| sink.send(token(i)));
        let room = tokio::spawn(sink.room());
        drop(stream);
        room.await.unwrap();
        assert!(!sink.is_full());
    }
}
