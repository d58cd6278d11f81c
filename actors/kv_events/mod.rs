//! Publishes which blocks the prefix caches hold, so that a router can send a prompt to the server that has its beginning.
//!
//! The messages are those of vLLM: a ZeroMQ PUB socket sends `[topic, sequence number, batch]`, and a ROUTER socket repeats
//! past batches. llm-d, Dynamo and vllm-router read them.
//!
//! - [`options`], [`endpoint`]: what to publish and where
//! - [`wire`]: the bytes of a batch
//! - [`history`]: the batches that can be repeated
//! - [`publisher`]: the actor that publishes them
//! - [`subscriber`]: sends them to one subscriber
//! - [`replay`]: answers those who ask for past batches
//! - [`zmtp`]: the protocol of the sockets

mod endpoint;
mod history;
mod options;
mod publisher;
mod replay;
mod subscriber;
mod wire;
mod zmtp;

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use ractor::{Actor, ActorRef};

pub use self::endpoint::KvEventsError;
pub(crate) use self::endpoint::listen_address;
use self::history::History;
pub use self::options::KvEventsOptions;
use self::publisher::{Changes, Publisher, PublisherArguments};
pub use self::wire::EventFormat;
use crate::core::cache_change::CacheChange;

/// A handle through which changes of a prefix cache are published. The default publishes nothing.
#[derive(Clone, Default)]
pub struct KvEvents(Option<ActorRef<Changes>>);

impl KvEvents {
    /// Listens for subscribers.
    ///
    /// # Errors
    /// [`KvEventsError`] when an address is wrong or in use.
    pub async fn start(options: KvEventsOptions) -> Result<Self, KvEventsError> {
        let history = Arc::new(History::default());
        if let Some(endpoint) = &options.replay_endpoint {
            replay::start(endpoint, history.clone()).await?;
        }
        let arguments = PublisherArguments::new(options, history).await?;
        let started = Actor::spawn(None, Publisher, arguments).await;
        let (publisher, _) = started.map_err(|error| KvEventsError::Start(error.to_string()))?;
        Ok(KvEvents(Some(publisher)))
    }

    /// Whether anything is published.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Publishes changes of the prefix cache of a replica of a model.
    pub fn publish(&self, model: &Arc<str>, replica: usize, changes: Vec<CacheChange>) {
        if let Some(publisher) = &self.0 {
            let message = Changes { model: model.clone(), replica, changes, at: SystemTime::now() };
            // Fails only when the publisher is gone; the server goes on without it.
            let _ = publisher.cast(message);
        }
    }
}

impl PartialEq for KvEvents {
    /// Whether both publish at the same place.
    fn eq(&self, other: &Self) -> bool {
        let id = |events: &Self| events.0.as_ref().map(|publisher| publisher.get_id());
        id(self) == id(other)
    }
}

impl Eq for KvEvents {}

impl fmt::Debug for KvEvents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("KvEvents").field(&self.is_on()).finish()
    }
}

#[cfg(test)]
mod tests;
