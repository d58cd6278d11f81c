//! Anthropic's protocol: messages, and the count of a prompt's tokens.
//!
//! [`request`] reads the body with [`conversation`], [`content`], [`tools`] and [`thinking`],
//! [`serving`](crate::serving) runs the sequence, and [`messages`] writes the answer, whole ([`answer`]) or as a stream
//! ([`stream`]), divided into content [`blocks`]. [`errors`] gives all errors on the paths of this protocol its form.

mod answer;
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
use axum::routing::post;

use super::server::SharedServer;

/// The routes of the protocol.
pub(super) fn routes() -> Router<SharedServer> {
    Router::new()
        .route("/v1/messages", post(messages::create))
        .route("/v1/messages/count_tokens", post(count_tokens::count))
}
