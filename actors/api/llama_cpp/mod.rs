//! Routes of llama.cpp's server, for editors and clients that are written for it.
//!
//! [`completion`] continues a text and [`infill`] fills in its middle: both read a request with the help of [`options`] and
//! [`logit_bias`], and [`respond`] runs it. [`answer`] encodes what is generated, with [`probabilities`] and only the wanted
//! [`response_fields`]. [`template`] renders a conversation without an answer, as llama.cpp and vLLM do. [`state`] describes a
//! loaded model and its slots.

mod answer;
mod completion;
mod infill;
mod logit_bias;
mod options;
mod probabilities;
mod respond;
mod response_fields;
mod state;
mod template;

use axum::Router;
use axum::routing::{get, post};

use super::server::SharedServer;

/// Every route of the protocol.
pub(super) fn routes() -> Router<SharedServer> {
    Router::new()
        .route("/completion", post(completion::create))
        .route("/infill", post(infill::create))
        .route("/props", get(state::props))
        .route("/slots", get(state::slots))
        .route("/apply-template", post(template::apply))
        .route("/v1/chat/completions/render", post(template::render))
        .route("/v1/chat/completions/input_tokens", post(template::input_tokens))
}
