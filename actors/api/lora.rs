//! The routes about low-rank adapters: those of vLLM, which load and unload one, and llama-server's list.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde_json::{Value, json};

use super::extract::JsonBody;
use super::fields::{Fields, missing};
use super::server::{Server, SharedServer};
use crate::models::ModelsError;
use crate::pipeline::adapters::{AdapterSpec, Adapters, AdaptersError};
use crate::serving::blocking::on_blocking_thread;
use crate::serving::error::ApiError;

/// `GET /lora-adapters`: the adapters of all loaded models.
pub(super) async fn list(State(server): State<SharedServer>) -> Json<Value> {
    let infos = server.models.list().await;
    let adapters = infos.iter().filter_map(|info| info.model.as_ref()?.adapters.as_ref()).flat_map(|all| all.list());
    let described = adapters.map(|one| {
        json!({ "id": one.id, "name": one.spec.name, "path": one.spec.path.display().to_string(), "scale": one.spec.scale })
    });
    Json(described.collect())
}

/// `POST /v1/load_lora_adapter`.
pub(super) async fn load(
    State(server): State<SharedServer>,
    JsonBody { value: body, .. }: JsonBody,
) -> Result<String, ApiError> {
    let fields = Fields::of_body(&body)?;
    let name = required(&fields, "lora_name")?;
    let path = required(&fields, "lora_path")?;
    let adapters = adapters_of(&server).await?;
    if server.models.show(name).await.is_ok() {
        return Err(ApiError::invalid("lora_name", format!("a model or adapter has the name `{name}` already")));
    }
    let spec = AdapterSpec { name: name.to_owned(), path: path.into(), scale: 1.0 };
    on_blocking_thread(move || Ok(adapters.load(spec))).await?.map_err(refused)?;
    Ok(format!("Success: LoRA adapter '{name}' added successfully."))
}

/// `POST /v1/unload_lora_adapter`.
pub(super) async fn unload(
    State(server): State<SharedServer>,
    JsonBody { value: body, .. }: JsonBody,
) -> Result<String, ApiError> {
    let fields = Fields::of_body(&body)?;
    let name = required(&fields, "lora_name")?;
    adapters_of(&server).await?.unload(name).map_err(refused)?;
    Ok(format!("Success: LoRA adapter '{name}' removed successfully."))
}

fn required<'a>(fields: &Fields<'a>, field: &'static str) -> Result<&'a str, ApiError> {
    let value = fields.string(field)?.filter(|value| !value.is_empty());
    value.ok_or_else(|| missing(field, "a name or path"))
}

/// The adapters of the default model, if clients may load some.
async fn adapters_of(server: &Server) -> Result<Arc<Adapters>, ApiError> {
    if !server.options().allow_lora_loading {
        return Err(ApiError::AdapterLoadingNotAllowed);
    }
    let served = server.served(None).await?;
    let adapters = served.model()?.adapters.clone();
    adapters.ok_or_else(|| ApiError::invalid("lora_name", "the model was loaded without slots for adapters"))
}

fn refused(error: AdaptersError) -> ApiError {
    match error {
        AdaptersError::Unknown(name) => ModelsError::Unknown(name).into(),
        error @ AdaptersError::Unusable(_) => ApiError::invalid("lora_path", error.to_string()),
        error => ApiError::invalid("lora_name", error.to_string()),
    }
}
