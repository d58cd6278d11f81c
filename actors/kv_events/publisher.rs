//! The actor that sends batches to subscribers.
//!
//! Receives the changes of all prefix caches of the process. Each connection has a task of its own, so no subscriber delays
//! another one or this actor.

use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use ractor::{Actor, ActorProcessingErr, ActorRef};
use tokio::sync::broadcast;

use super::endpoint::{KvEventsError, listen_address};
use super::history::{Batch, History};
use super::options::KvEventsOptions;
use super::zmtp::{Kind, listen};
use super::{subscriber, wire};
use crate::core::cache_change::CacheChange;

/// Batches that wait for subscribers that do not keep up, for all of them together.
const WAITING: usize = 1024;

/// Changes of the prefix cache of a replica.
#[derive(Debug)]
pub(super) struct Changes {
    pub model: Arc<str>,
    pub replica: usize,
    pub changes: Vec<CacheChange>,
    pub at: SystemTime,
}

/// Startup arguments of the publisher.
pub(super) struct PublisherArguments {
    subscribers: broadcast::Sender<Batch>,
    options: KvEventsOptions,
    history: Arc<History>,
}

impl PublisherArguments {
    /// Listens for subscribers.
    pub async fn new(options: KvEventsOptions, history: Arc<History>) -> Result<Self, KvEventsError> {
        let address = listen_address(&options.endpoint)?;
        let (subscribers, _) = broadcast::channel(WAITING);
        let batches = subscribers.clone();
        let serve = move |connection| subscriber::serve(connection, batches.subscribe());
        let bound = listen(&address, Kind::Publisher, serve).await;
        bound.map_err(|reason| KvEventsError::Bind { endpoint: options.endpoint.clone(), reason })?;
        Ok(PublisherArguments { subscribers, options, history })
    }
}

/// The publisher.
pub(super) struct Publisher;

impl Actor for Publisher {
    type Msg = Changes;
    type State = PublisherArguments;
    type Arguments = PublisherArguments;

    async fn pre_start(
        &self,
        _me: ActorRef<Changes>,
        arguments: PublisherArguments,
    ) -> Result<PublisherArguments, ActorProcessingErr> {
        Ok(arguments)
    }

    async fn handle(
        &self,
        _me: ActorRef<Changes>,
        Changes { model, replica, changes, at }: Changes,
        state: &mut PublisherArguments,
    ) -> Result<(), ActorProcessingErr> {
        let batch = Bytes::from(wire::encode(&changes, replica, at, state.options.format));
        let batch = state.history.add(&state.options.topic_of(&model), batch);
        // Fails only when there are no subscribers.
        let _ = state.subscribers.send(batch);
        Ok(())
    }
}
