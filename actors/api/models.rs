//! `/v1/models`: what is served here. One path, two schemas: OpenAI's, and Anthropic's for a client that says its
//! `anthropic-version`.

use axum::Json;
use axum::extract::{Path, State};
use axum::http::HeaderMap;
use serde_json::{Value, json};

use super::error::{ApiError, clip};
use super::{Server, SharedServer};
use crate::runtime::Status;

pub(super) async fn list(State(server): State<SharedServer>, headers: HeaderMap) -> Json<Value> {
    let describe = if is_anthropic(&headers) { describe_anthropic } else { describe_openai };
    let models: Vec<Value> = server.model_ids().map(|id| describe(&server, id)).collect();
    Json(if is_anthropic(&headers) {
        let id_of = |model: Option<&Value>| model.map(|model| model["id"].clone());
        json!({ "has_more": false, "first_id": id_of(models.first()), "last_id": id_of(models.last()), "data": models })
    } else {
        json!({ "object": "list", "data": models })
    })
}

pub(super) async fn show(
    State(server): State<SharedServer>,
    Path(id): Path<String>,
    headers: HeaderMap,
) -> Result<Json<Value>, ApiError> {
    let id = if id == "default" { server.options.model_id.clone() } else { id };
    if !server.model_ids().any(|known| known == id) {
        return Err(ApiError::ModelNotFound(clip(&id)));
    }
    let describe = if is_anthropic(&headers) { describe_anthropic } else { describe_openai };
    Ok(Json(describe(&server, &id)))
}

fn is_anthropic(headers: &HeaderMap) -> bool {
    headers.contains_key("anthropic-version")
}

/// `max_model_len` is the length that a request can really have, not the one the model was trained with: clients size
/// their context by it.
fn describe_openai(server: &Server, id: &str) -> Value {
    let mut described = json!({
        "id": id,
        "object": "model",
        "created": server.started,
        "owned_by": "cuelight",
        "root": server.options.model_id,
        "parent": null,
        "max_model_len": null,
        "architecture": { "input_modalities": ["text"], "output_modalities": ["text"] },
        "status": { "value": load_state(&server.runtime.status()) },
    });
    if let Some(model) = server.runtime.model() {
        described["max_model_len"] = json!(model.limits.context_tokens);
        described["meta"] = json!({
            "name": model.card.name,
            "architecture": model.card.architecture,
            "quantization": model.card.quantization,
            "license": model.card.license,
            "n_ctx": model.limits.context_tokens,
            "n_ctx_train": model.card.context_train,
            "n_params": model.card.n_params,
            "n_vocab": model.limits.vocab_size,
            "size": model.card.size_bytes,
        });
    }
    described
}

fn describe_anthropic(server: &Server, id: &str) -> Value {
    let display_name = server.runtime.model().map_or_else(|| id.to_owned(), |model| model.card.name.clone());
    json!({ "type": "model", "id": id, "display_name": display_name, "created_at": created_at(server) })
}

/// When the server started, as RFC 3339 writes it.
fn created_at(server: &Server) -> String {
    let seconds = i64::try_from(server.started).unwrap_or_default();
    jiff::Timestamp::from_second(seconds).unwrap_or_default().to_string()
}

fn load_state(status: &Status) -> &'static str {
    match status {
        Status::Loading(_) => "loading",
        Status::Failed(_) => "unloaded",
        Status::Ready | Status::Recovering | Status::Draining => "loaded",
    }
}
