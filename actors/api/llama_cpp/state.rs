//! `GET /props` and `GET /slots`: a loaded model and what it is doing. A model is not loaded for them.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use cuelight_engine::engine::TokenId;
use cuelight_engine::media::MediaKind;
use serde::Deserialize;
use serde_json::{Value, json};

use super::options;
use crate::api::server::{Server, SharedServer};
use crate::core::request::SubmitError;
use crate::models::{ModelInfo, ModelState, ModelsError};
use crate::pipeline::runtime::ServedModel;
use crate::serving::error::ApiError;

/// The query of both routes.
#[derive(Deserialize)]
pub(super) struct StateQuery {
    model: Option<String>,
    fail_on_no_slot: Option<String>,
}

type StateQueryResult = Result<Query<StateQuery>, QueryRejection>;

pub(super) async fn props(
    State(server): State<SharedServer>,
    query: StateQueryResult,
) -> Result<Json<Value>, ApiError> {
    let loaded = Loaded::find(&server, &read(query)?).await?;
    let Loaded { info, model } = &loaded;
    let token = |token: Option<TokenId>| token.map_or_else(String::new, |token| model.tokenizer.token_text(token));
    Ok(Json(json!({
        "default_generation_settings": {
            "n_ctx": model.limits.context_tokens,
            "params": options::default_params(model.card.sampling.stated),
        },
        "total_slots": loaded.slots(),
        "model_alias": info.id,
        // Clients show it as a name. The real path would reveal the folders of this machine.
        "model_path": info.id,
        "chat_template": model.chat_template.as_ref().map_or("", |template| template.source()),
        "bos_token": token(model.tokenizer.bos()),
        "eos_token": token(model.tokenizer.eos()),
        "build_info": concat!("cuelight-", env!("CARGO_PKG_VERSION")),
        "modalities": { "vision": model.takes(MediaKind::Image), "audio": model.takes(MediaKind::Audio) },
        "is_sleeping": false,
    })))
}

pub(super) async fn slots(
    State(server): State<SharedServer>,
    query: StateQueryResult,
) -> Result<Json<Value>, ApiError> {
    let query = read(query)?;
    let loaded = Loaded::find(&server, &query).await?;
    let (slots, running) = (loaded.slots(), loaded.info.counts.running);
    if running >= slots && query.fail_on_no_slot.is_some_and(|value| !value.is_empty()) {
        return Err(unavailable("no slot is free"));
    }
    let slot = |id: usize| {
        json!({
            "id": id,
            "n_ctx": loaded.model.limits.context_tokens,
            "speculative": false,
            "is_processing": id < running,
        })
    };
    Ok(Json((0..slots).map(slot).collect()))
}

fn read(query: StateQueryResult) -> Result<StateQuery, ApiError> {
    match query {
        Ok(Query(query)) => Ok(query),
        Err(rejection) => Err(ApiError::invalid_body(format!("the query is invalid: {}", rejection.body_text()))),
    }
}

fn unavailable(reason: &str) -> ApiError {
    SubmitError::Unavailable { reason: reason.to_owned(), retry_after: Duration::from_secs(1) }.into()
}

/// A model that is loaded.
struct Loaded {
    info: ModelInfo,
    model: Arc<ServedModel>,
}

impl Loaded {
    /// The model that a query names, otherwise the default model.
    async fn find(server: &Server, query: &StateQuery) -> Result<Self, ApiError> {
        let info = server.models.show(query.model.as_deref().unwrap_or("default")).await?;
        match (info.model.clone(), &info.state) {
            (Some(model), _) => Ok(Loaded { info, model }),
            (None, ModelState::Failed(reason)) => {
                Err(ModelsError::Failed { id: info.id.clone(), reason: reason.clone() }.into())
            }
            (None, ModelState::Unloaded) => Err(ModelsError::NotLoaded(info.id).into()),
            (None, _) => Err(unavailable("the model is still loading")),
        }
    }

    /// How many sequences run at once, of all replicas together.
    fn slots(&self) -> usize {
        // The count is 0 until the scheduler has seen an event.
        match self.info.counts.max_running {
            0 => self.model.limits.max_sequences,
            slots => slots,
        }
    }
}
