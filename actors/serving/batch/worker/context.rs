//! What all batches of a server share.

use std::sync::Arc;

use axum::Router;
use tokio::sync::Semaphore;

use crate::core::shared_limit::Client;
use crate::serving::batch::requests::Rules;
use crate::serving::batch::sender::Sender;
use crate::serving::batch::store::{BatchRecord, BatchStore, Status};

/// Most requests of a batch, as in OpenAI's API.
pub const MOST_REQUESTS: usize = 50_000;

/// Batches whose requests are answered at the same time; others wait for their turn, which limits the memory for their ids.
const MOST_RUNNING: usize = 64;

/// The routes as a client reaches them.
pub type RoutesOf = Box<dyn Fn(&Client) -> Router + Send + Sync>;

/// What all batches of a server share.
pub(super) struct Context {
    pub store: Arc<BatchStore>,
    routes_of: RoutesOf,
    /// Requests of all batches that are answered at the same time.
    slots: Arc<Semaphore>,
    /// Requests of one batch that are answered or wait for a slot.
    pub parallel: usize,
    /// The turns of batches.
    pub running: Semaphore,
    /// Most bytes of a request.
    pub line_bytes: usize,
}

impl Context {
    pub fn new(store: Arc<BatchStore>, parallel: usize, line_bytes: usize, routes_of: RoutesOf) -> Arc<Self> {
        let (slots, running) = (Arc::new(Semaphore::new(parallel)), Semaphore::new(MOST_RUNNING));
        Arc::new(Context { store, routes_of, slots, parallel, running, line_bytes })
    }

    /// What sends the requests of a batch.
    pub fn sender(&self, batch: &BatchRecord) -> Arc<Sender> {
        Arc::new(Sender { router: (self.routes_of)(&batch.owner), slots: self.slots.clone(), is_patient: true })
    }

    /// What the requests of a batch may be.
    pub fn rules(&self, batch: &BatchRecord) -> Rules {
        Rules { line_bytes: self.line_bytes, requests: MOST_REQUESTS, endpoint: Some(batch.endpoint.clone()) }
    }

    /// Whether a client has cancelled a batch that is not at its end.
    pub fn is_cancelled(&self, id: &str) -> bool {
        self.store.any_batch(id).is_some_and(|batch| batch.status == Status::Cancelling)
    }
}
