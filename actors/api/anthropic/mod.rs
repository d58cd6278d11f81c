//! Anthropic's protocol: messages, the count of a prompt's tokens, and [`batches`] of messages ([`batch_requests`],
//! [`batch_results`]).
//!
//! [`request`] reads the body with [`conversation`], [`content`], [`tools`] and [`thinking`],
//! [`serving`](crate::serving) runs the sequence, and [`messages`] writes the answer, whole ([`answer`]) or as a stream
//! ([`stream`]), divided into content [`blocks`]. [`errors`] gives all errors on the paths of this protocol its form.

mod answer;
mod batch_requests;
mod batch_results;
mod batches;
mod blocks;
mod content;
mod conversation;
mod count_tokens;
pub(super) mod errors;
mod messages;
mod request;
mod stream;
mod thinking;
mod tools;

use axum::Router;
use axum::routing::{get, post};

use super::server::SharedServer;

/// The routes of the protocol.
pub(super) fn routes() -> Router<SharedServer> {
    Router::new()
        .route("/v1/messages", post(messages::create))
        .route("/v1/messages/count_tokens", post(count_tokens::count))
        .route("/v1/messages/batches", get(batches::list).post(batches::create))
        .route("/v1/messages/batches/{id}", get(batches::show).delete(batches::delete))
        .route("/v1/messages/batches/{id}/cancel", post(batches::cancel))
        .route("/v1/messages/batches/{id}/results", get(batch_results::results))
}
