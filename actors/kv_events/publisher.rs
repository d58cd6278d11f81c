//! The actor that sends batches to subscribers.
//!
//! Receives the changes of all prefix caches of the process. A subscriber that does not keep up misses batches, which it notices
//! by their numbers.
//!
//! Faults: a socket that fails is logged; the server goes on.

use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use ractor::{Actor, ActorProcessingErr, ActorRef};
use zeromq::{PubSocket, Socket, SocketSend, ZmqMessage};

use super::endpoint::{KvEventsError, listen_address};
use super::history::History;
use super::options::KvEventsOptions;
use super::wire;
use crate::core::cache_change::CacheChange;

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
    socket: PubSocket,
    options: KvEventsOptions,
    history: Arc<History>,
}

impl PublisherArguments {
    /// Listens for subscribers.
    pub async fn new(options: KvEventsOptions, history: Arc<History>) -> Result<Self, KvEventsError> {
        let mut socket = PubSocket::new();
        let address = listen_address(&options.endpoint)?;
        let bound = socket.bind(&address).await;
        bound.map_err(|error| KvEventsError::Bind { endpoint: options.endpoint.clone(), reason: error.to_string() })?;
        Ok(PublisherArguments { socket, options, history })
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
        let number = state.history.add(batch.clone());
        let mut message = ZmqMessage::from(state.options.topic_of(&model).into_bytes());
        message.push_back(Bytes::copy_from_slice(&number.to_be_bytes()));
        message.push_back(batch);
        if let Err(error) = state.socket.send(message).await {
            tracing::warn!(%error, "KV events were not sent");
        }
        Ok(())
    }
}
