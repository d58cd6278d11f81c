//! Routes of llama.cpp's server, for editors and clients that are written for it.
//!
//! [`infill`] fills in the middle of a text: it reads a request with the help of [`options`], and [`answer`] encodes what is
//! generated. [`template`] renders a conversation without an answer, as llama.cpp and vLLM do. [`state`] describes a loaded
//! model and its slots.

mod answer;
mod infill;
mod options;
mod state;
mod template;

use axum::Router;
use axum::routing::{get, post};

use super::server::SharedServer;

/// Every route of the protocol.
pub(super) fn routes() -> Router<SharedServer> {
    Router::new()
        .route("/infill", post(infill::create))
        .route("/props", get(state::props))
        .route("/slots", get(state::slots))
        .route("/apply-template", post(template::apply))
        .route("/v1/chat/completions/render", post(template::render))
}
