//! Ollama's protocol under `/api`, for clients that speak no other.
//!
//! [`chat`] and [`generate`] read a request with the help of [`messages`], [`options`], [`think`] and [`format`](mod@format).
//! [`call`] runs it, or only loads or unloads the model ([`keep_alive`]). [`embed`] makes embeddings. [`answer`] encodes what is
//! generated, as one object or as lines ([`ndjson`]). [`models`] describes the models with [`describe`], [`names`] finds them,
//! [`management`] answers requests that change the disk, and [`errors`] writes every error under `/api` in Ollama's form.

mod answer;
mod call;
mod chat;
mod describe;
mod embed;
pub(super) mod errors;
mod format;
mod generate;
mod keep_alive;
mod management;
mod messages;
mod models;
mod names;
mod ndjson;
mod options;
mod think;

use axum::routing::{any, delete, get, post};
use axum::{Json, Router};
use serde_json::{Value, json};

use super::server::SharedServer;

/// The version of Ollama whose protocol this is. Clients compare it with the least version that they need (VS Code wants 0.6.4),
/// so it is a version of Ollama and not of this program.
const VERSION: &str = "0.13.0";

/// What clients expect at `/`, which some compare as a whole.
pub(super) const GREETING: &str = "Ollama is running";

/// Every route of the protocol.
pub(super) fn routes() -> Router<SharedServer> {
    Router::new()
        .route("/api/version", get(version))
        .route("/api/tags", get(models::tags))
        .route("/api/ps", get(models::ps))
        .route("/api/show", post(models::show))
        .route("/api/chat", post(chat::create))
        .route("/api/generate", post(generate::create))
        .route("/api/embed", post(embed::create))
        .route("/api/embeddings", post(embed::create_one))
        .route("/api/pull", post(management::pull))
        .route("/api/delete", delete(management::delete))
        .route("/api/create", post(management::refuse_create))
        .route("/api/copy", post(management::refuse_create))
        .route("/api/push", post(management::refuse_create))
        .route("/api/blobs/{digest}", any(management::refuse_create))
}

async fn version() -> Json<Value> {
    Json(json!({ "version": VERSION }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_three_numbers_and_new_enough_for_all_clients() {
        let numbers: Vec<u32> = VERSION.split('.').map(|number| number.parse().unwrap()).collect();
        assert_eq!(numbers.len(), 3);
        assert!(numbers >= vec![0, 6, 4], "{VERSION}");
    }
}
