//! The batches of clients: their worker, and how their requests reach the routes.

use std::sync::Arc;

use axum::{Extension, Router};
use metrics::{counter, gauge};

use super::caller::Caller;
use super::options::BatchOptions;
use crate::metrics::catalogue::{BATCH_REQUESTS, BATCHES};
use crate::serving::batch::store::Status;
use crate::serving::batch::worker::Worker;

/// The `priority` of a request in a batch, if its own is not larger. Requests of other clients have 0.
pub(super) const PRIORITY: i32 = 1000;

/// Starts what answers batches, if they are kept. `routes`: those without keys. `line_bytes`: longest request.
pub(super) fn start(options: Option<&BatchOptions>, routes: Router, line_bytes: usize) -> Option<Arc<Worker>> {
    for status in Status::ALL {
        gauge!(BATCHES, "status" => status.name()).set(0.0);
    }
    for outcome in ["succeeded", "failed", "expired", "cancelled"] {
        counter!(BATCH_REQUESTS, "outcome" => outcome).increment(0);
    }
    let BatchOptions { store, parallel } = options?;
    let routes_of = move |owner: &_| routes.clone().layer(Extension(Caller::of_owner(owner)));
    Some(Arc::new(Worker::start(store.clone(), *parallel, line_bytes, Box::new(routes_of))))
}
