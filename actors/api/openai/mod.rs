//! OpenAI's protocol: chat completions, legacy completions, [`responses`], [`embeddings`], [`transcriptions`], and [`batches`] of
//! requests in [`files`].
//!
//! A request passes through these files in order: [`unsupported`] refuses fields that are not supported, [`sampling`],
//! [`constraint`], [`tools`], [`messages`], [`kv_transfer`] and [`prompt`] read the others, [`serving`](crate::serving) runs the
//! sequences, and [`chat`] (with [`chat_delta`]) and [`completions`] encode the answer, whole or as a stream ([`sse`]), with
//! [`logprobs`] when requested and with [`usage`].

mod batches;
mod chat;
mod chat_delta;
mod completions;
pub(super) mod constraint;
mod custom_tool;
pub(super) mod embeddings;
mod files;
mod kv_transfer;
pub(super) mod logprobs;
pub(super) mod messages;
pub(super) mod prompt;
pub(super) mod responses;
mod sampling;
mod speculation;
mod sse;
mod tool_name;
pub(super) mod tools;
mod transcriptions;
pub(super) mod unsupported;
mod usage;

use axum::Router;
use axum::routing::{get, post};

use self::responses::stored;
use super::server::SharedServer;

/// The routes of the protocol, below `prefix`.
pub(super) fn routes(prefix: &str) -> Router<SharedServer> {
    let at = |path: &str| format!("{prefix}{path}");
    Router::new()
        .route(&at("/chat/completions"), post(chat::create))
        .route(&at("/completions"), post(completions::create))
        .route(&at("/embeddings"), post(embeddings::create))
        .route(&at("/audio/transcriptions"), post(transcriptions::create))
        .route(&at("/audio/translations"), post(transcriptions::translate))
        .route(&at("/responses"), post(responses::create))
        .route(&at("/responses/input_tokens"), post(responses::input_tokens))
        .route(&at("/responses/{id}"), get(stored::show).delete(stored::delete))
        .route(&at("/responses/{id}/input_items"), get(stored::input_items))
        .route(&at("/responses/{id}/cancel"), post(stored::cancel))
        .route(&at("/files"), get(files::list).post(files::create))
        .route(&at("/files/{id}"), get(files::show).delete(files::delete))
        .route(&at("/files/{id}/content"), get(files::content))
        .route(&at("/batches"), get(batches::list).post(batches::create))
        .route(&at("/batches/{id}"), get(batches::show))
        .route(&at("/batches/{id}/cancel"), post(batches::cancel))
}
