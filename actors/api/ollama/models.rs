//! `/api/tags`, `/api/ps` and `/api/show`: which models there are, which are loaded, and what one of them can do.

use std::time::{Duration, UNIX_EPOCH};

use axum::Json;
use axum::extract::State;
use serde_json::{Value, json};

use super::describe::{capabilities, details, digest, expires_at, model_info, size_bytes, timestamp};
use super::names;
use crate::api::extract::JsonBody;
use crate::api::fields::Fields;
use crate::api::server::{Server, SharedServer};
use crate::models::{ModelInfo, ModelState};
use crate::pipeline::runtime::ServedModel;
use crate::serving::error::ApiError;

/// Every name that a request may use.
pub(super) async fn tags(State(server): State<SharedServer>) -> Json<Value> {
    let mut models = Vec::new();
    for info in server.models.list().await {
        let capabilities = capabilities(&info).await;
        for name in std::iter::once(&info.id).chain(&info.aliases) {
            let mut described = describe(name, &info);
            described["modified_at"] = json!(modified_at(&server));
            described["capabilities"] = json!(capabilities);
            models.push(described);
        }
    }
    Json(json!({ "models": models }))
}

/// The loaded models.
pub(super) async fn ps(State(server): State<SharedServer>) -> Json<Value> {
    let infos = server.models.list().await;
    let is_loaded =
        |info: &&ModelInfo| matches!(info.state, ModelState::Ready | ModelState::Recovering | ModelState::Unloading);
    let models: Vec<Value> = infos.iter().filter(is_loaded).map(describe_loaded).collect();
    Json(json!({ "models": models }))
}

/// One model. Facts of its file are there once it is loaded.
pub(super) async fn show(
    State(server): State<SharedServer>,
    JsonBody { value: body, .. }: JsonBody,
) -> Result<Json<Value>, ApiError> {
    let info = names::find(&server.models, names::named(&Fields::of_body(&body)?)?).await?;
    let mut shown = json!({
        "modelfile": format!("FROM {}\n", info.id),
        "parameters": "",
        "template": "",
        "details": details(&info),
        "model_info": {},
        "capabilities": capabilities(&info).await,
        "modified_at": modified_at(&server),
    });
    if let Some(model) = &info.model {
        add_facts(&mut shown, model);
    }
    Ok(Json(shown))
}

/// The context length, the recommended sampling and the stop strings, as lines of a model file.
fn parameters(model: &ServedModel) -> String {
    let mut lines = format!("num_ctx {}", model.limits.context_tokens);
    for (name, value) in model.card.sampling.stated.entries() {
        let name = if name == "repetition_penalty" { "repeat_penalty" } else { name };
        lines.push_str(&format!("\n{name} {value}"));
    }
    for stop in &model.card.stop {
        lines.push_str(&format!("\nstop {}", Value::from(stop.as_str())));
    }
    lines
}

fn add_facts(shown: &mut Value, model: &ServedModel) {
    shown["model_info"] = model_info(model);
    shown["parameters"] = json!(parameters(model));
    if let Some(template) = &model.chat_template {
        shown["template"] = json!(template.source());
    }
    if let Some(system) = &model.card.system {
        shown["system"] = json!(system);
    }
    if let Some(license) = &model.card.license {
        shown["license"] = json!(license);
    }
}

fn describe(name: &str, info: &ModelInfo) -> Value {
    json!({
        "name": name,
        "model": name,
        "size": size_bytes(info),
        "digest": digest(&info.id),
        "details": details(info),
    })
}

fn describe_loaded(info: &ModelInfo) -> Value {
    let mut described = describe(&info.id, info);
    let (total, host) = info.memory.as_ref().map_or((0, 0), |memory| (memory.total_bytes(), memory.host_bytes()));
    described["size"] = json!(total);
    described["size_vram"] = json!(total.saturating_sub(host));
    described["expires_at"] = json!(expires_at(info));
    described["context_length"] = json!(info.model.as_ref().map_or(0, |model| model.limits.context_tokens));
    described
}

/// The start of the server, because a model is not changed while it is served.
fn modified_at(server: &Server) -> String {
    timestamp(UNIX_EPOCH + Duration::from_secs(server.started))
}
