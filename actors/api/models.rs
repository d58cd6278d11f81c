//! The routes about models.
//!
//! - `/v1/models` has two schemas: OpenAI's, and Anthropic's for a client that sends `anthropic-version`. It lists every
//!   name that a request may use.
//! - `/models` is for operators: the state and the memory of each model. `/models/load` and `/models/unload` load and unload
//!   a model.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::Json;
use axum::extract::{Path, State};
use axum::http::HeaderMap;
use cuelight_engine::embedding::Product;
use cuelight_engine::load::LoadProgress;
use cuelight_engine::media::MediaKind;
use serde_json::{Value, json};

use super::extract::JsonBody;
use super::fields::{Fields, missing};
use super::server::{Server, SharedServer};
use crate::models::{MemoryUse, ModelInfo, ModelState, memory_json};
use crate::pipeline::adapters::NamedAdapter;
use crate::serving::error::ApiError;

pub(super) async fn list(State(server): State<SharedServer>, headers: HeaderMap) -> Json<Value> {
    let describe = if is_anthropic(&headers) { describe_anthropic } else { describe_openai };
    let infos = server.models.list().await;
    let names = |info: &ModelInfo| -> Vec<Value> {
        let aliases = info.aliases.iter().map(|alias| describe(&server, info, alias));
        let adapters = adapters_of(info).into_iter().map(|adapter| {
            let described = describe(&server, info, &adapter.spec.name);
            if is_anthropic(&headers) { described } else { as_adapter(described, &adapter, &info.id) }
        });
        std::iter::once(describe(&server, info, &info.id)).chain(aliases).chain(adapters).collect()
    };
    let models: Vec<Value> = infos.iter().flat_map(names).collect();
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
    let info = server.models.show(&id).await?;
    let id = if id == "default" { info.id.clone() } else { id };
    if is_anthropic(&headers) {
        return Ok(Json(describe_anthropic(&server, &info, &id)));
    }
    let described = describe_openai(&server, &info, &id);
    let adapter = adapters_of(&info).into_iter().find(|adapter| adapter.spec.name == id);
    Ok(Json(match adapter {
        Some(adapter) => as_adapter(described, &adapter, &info.id),
        None => described,
    }))
}

/// The loaded adapters of a model.
fn adapters_of(info: &ModelInfo) -> Vec<NamedAdapter> {
    let adapters = info.model.as_ref().and_then(|model| model.adapters.as_ref());
    adapters.map(|adapters| adapters.list()).unwrap_or_default()
}

/// The description of a model as that of an adapter of it.
fn as_adapter(mut described: Value, adapter: &NamedAdapter, parent: &str) -> Value {
    described["root"] = json!(adapter.spec.path.display().to_string());
    described["parent"] = json!(parent);
    described
}

/// `GET /models`: the state, the memory and the requests of each model, and the memory that is left.
pub(super) async fn report(State(server): State<SharedServer>) -> Json<Value> {
    let models: Vec<Value> = server.models.list().await.iter().map(describe_state).collect();
    let MemoryUse { limit_bytes, held_bytes, free_bytes } = server.models.memory();
    let memory = json!({ "limit_bytes": limit_bytes, "held_bytes": held_bytes, "free_bytes": free_bytes });
    Json(json!({ "object": "list", "data": models, "memory": memory }))
}

/// `POST /models/load`: answers when the model is ready, or at once with `"wait": false`.
pub(super) async fn load(
    State(server): State<SharedServer>,
    JsonBody { value: body, .. }: JsonBody,
) -> Result<Json<Value>, ApiError> {
    let fields = Fields::of_body(&body)?;
    let name = named_model(&fields)?;
    if fields.bool("wait")?.unwrap_or(true) {
        server.models.load(name).await?;
    } else {
        server.models.begin_load(name).await?;
    }
    changed(&server, name).await
}

/// `POST /models/unload`: answers when the model's requests have ended and its memory is free.
pub(super) async fn unload(
    State(server): State<SharedServer>,
    JsonBody { value: body, .. }: JsonBody,
) -> Result<Json<Value>, ApiError> {
    let fields = Fields::of_body(&body)?;
    let name = named_model(&fields)?;
    server.models.unload(name, server.options().drain_timeout).await?;
    changed(&server, name).await
}

fn named_model<'a>(fields: &Fields<'a>) -> Result<&'a str, ApiError> {
    fields.string("model")?.ok_or_else(|| missing("model", "the name of a model"))
}

async fn changed(server: &Server, name: &str) -> Result<Json<Value>, ApiError> {
    let model = describe_state(&server.models.show(name).await?);
    Ok(Json(json!({ "success": true, "model": model })))
}

fn is_anthropic(headers: &HeaderMap) -> bool {
    headers.contains_key("anthropic-version")
}

/// A model in OpenAI's schema. `max_model_len` is the longest context that a request can use here, not the one that the
/// model was trained with, because clients size their context by it.
fn describe_openai(server: &Server, info: &ModelInfo, id: &str) -> Value {
    let mut described = json!({
        "id": id,
        "object": "model",
        "created": server.started,
        "owned_by": "cuelight",
        "root": info.id,
        "parent": null,
        "max_model_len": null,
        "architecture": { "input_modalities": ["text"], "output_modalities": ["text"] },
        "status": status(&info.state),
    });
    if let Some(model) = &info.model {
        if model.card.embedding.is_only {
            let makes = match model.card.embedding.product() {
                Product::Vectors => "embedding",
                Product::Relevance => "rerank",
                Product::Classes => "classify",
                Product::Alignment => "text",
            };
            described["architecture"]["output_modalities"] = json!([makes]);
        }
        let media = MediaKind::ALL.into_iter().filter(|kind| model.takes(*kind)).map(MediaKind::part_type);
        described["architecture"]["input_modalities"] = ["text"].into_iter().chain(media).collect();
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
            "n_embd": model.card.embedding.width,
            "size": model.card.size_bytes,
            "sampling": model.card.sampling.stated.json(),
        });
        if !model.card.labels.is_empty() {
            described["meta"]["labels"] = json!(model.card.labels);
        }
    }
    described
}

fn describe_anthropic(server: &Server, info: &ModelInfo, id: &str) -> Value {
    let display_name = info.model.as_ref().map_or_else(|| id.to_owned(), |model| model.card.name.clone());
    json!({ "type": "model", "id": id, "display_name": display_name, "created_at": created_at(server) })
}

/// The start of the server in RFC 3339 format.
fn created_at(server: &Server) -> String {
    let seconds = i64::try_from(server.started).unwrap_or_default();
    jiff::Timestamp::from_second(seconds).unwrap_or_default().to_string()
}

/// The status with the names of llama-server's router.
fn status(state: &ModelState) -> Value {
    match state {
        ModelState::Unloaded => json!({ "value": "unloaded" }),
        ModelState::Loading(LoadProgress { done_bytes, total_bytes }) => {
            json!({ "value": "loading", "progress": { "done_bytes": done_bytes, "total_bytes": total_bytes } })
        }
        ModelState::Ready | ModelState::Recovering | ModelState::Unloading => json!({ "value": "loaded" }),
        ModelState::Failed(reason) => json!({ "value": "failed", "failed": true, "reason": reason }),
    }
}

/// The state in one word. It distinguishes more states than [`status`].
fn state_word(state: &ModelState) -> &'static str {
    match state {
        ModelState::Unloaded => "unloaded",
        ModelState::Loading(_) => "loading",
        ModelState::Ready => "ready",
        ModelState::Recovering => "recovering",
        ModelState::Unloading => "unloading",
        ModelState::Failed(_) => "failed",
    }
}

fn describe_state(info: &ModelInfo) -> Value {
    let limits = info.model.as_ref().map(|model| &model.limits);
    json!({
        "id": info.id,
        "object": "model",
        "aliases": info.aliases,
        "named_at_start": info.named,
        "status": status(&info.state),
        "state": state_word(&info.state),
        "device": limits.map(|limits| &limits.device),
        "context_tokens": limits.map(|limits| limits.context_tokens),
        "max_sequences": limits.map(|limits| limits.max_sequences),
        "memory": info.memory.as_ref().map(|memory| memory_json(&memory.used)),
        "requests": {
            "running": info.counts.running,
            "waiting": info.counts.waiting,
            "calls": info.calls,
            "waiting_for_load": info.waiting_calls,
        },
        "kv_blocks": { "used": info.counts.blocks_used, "total": info.counts.blocks_total },
        "idle_seconds": info.idle_for.map(|idle| idle.as_secs_f64()),
        "last_used": info.idle_for.and_then(|idle| timestamp(SystemTime::now().checked_sub(idle))),
        "unloads_in_seconds": info.unloads_in.map(|left| left.as_secs_f64()),
        "expires_at": info.unloads_in.and_then(|left| timestamp(SystemTime::now().checked_add(left))),
    })
}

/// A time in RFC 3339 format, in whole seconds.
fn timestamp(at: Option<SystemTime>) -> Option<String> {
    let since: Duration = at?.duration_since(UNIX_EPOCH).ok()?;
    let at = jiff::Timestamp::from_second(i64::try_from(since.as_secs()).ok()?).ok()?;
    Some(at.to_string())
}
