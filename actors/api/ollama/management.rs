//! Requests that change the models on disk. Whether this server does that is for its [`Models`] to say;
//! a `pull` of a model that is here always succeeds, because many clients pull each model before its first use.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use futures_util::Stream;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::describe::digest;
use super::{errors, names, ndjson};
use crate::api::extract::JsonBody;
use crate::api::fields::Fields;
use crate::api::server::SharedServer;
use crate::models::{Models, ModelsError, PullState, PullStep, StoreError};
use crate::serving::error::ApiError;

/// Least time between two lines of a download.
const LINE_INTERVAL: Duration = Duration::from_millis(100);

/// `POST /api/pull`.
pub(super) async fn pull(
    State(server): State<SharedServer>,
    JsonBody { value: body, .. }: JsonBody,
) -> Result<Response, ApiError> {
    let fields = Fields::of_body(&body)?;
    let is_streamed = fields.bool("stream")?.unwrap_or(true);
    let name = names::named(&fields)?;
    if is_of_operator(&server.models, name).await {
        return Ok(already_here(is_streamed));
    }
    match server.models.pull(name) {
        Ok(state) if is_streamed => Ok(ndjson::objects(progress(state))),
        Ok(state) => {
            end(state).await?;
            Ok(Json(json!({ "status": "success" })).into_response())
        }
        Err(refused) => {
            names::find(&server.models, name).await.map_err(|_| refused)?;
            Ok(already_here(is_streamed))
        }
    }
}

/// Whether a name that a registry could have, too, is that of a model that no client has downloaded.
async fn is_of_operator(models: &Models, name: &str) -> bool {
    match names::find(models, name).await {
        Ok(info) if !name.contains('/') => !models.is_pulled(&info.id).await,
        _ => false,
    }
}

fn already_here(is_streamed: bool) -> Response {
    let success = json!({ "status": "success" });
    if is_streamed {
        return ndjson::whole(&[json!({ "status": "pulling manifest" }), success]);
    }
    Json(success).into_response()
}

/// The objects for a download, until it has ended. Each step has at least one, with the state in which it ended. Dropping the
/// stream may cancel the download.
fn progress(mut state: watch::Receiver<PullState>) -> impl Stream<Item = Value> + Send + 'static {
    async_stream::stream! {
        yield json!({ "status": "pulling manifest" });
        let (mut first, mut last) = (0, None);
        loop {
            let now = state.borrow_and_update().clone();
            for step in now.steps.get(first..).unwrap_or_default() {
                if last.as_ref() != Some(step) {
                    yield describe(step);
                }
            }
            first = now.steps.len().saturating_sub(1);
            last = now.steps.last().cloned();
            match now.result {
                Some(Ok(())) => break yield json!({ "status": "success" }),
                Some(Err(error)) => break yield errors::body(&error.into()),
                None => {}
            }
            if state.changed().await.is_err() {
                break yield errors::body(&ApiError::Internal);
            }
            tokio::time::sleep(LINE_INTERVAL).await;
        }
    }
}

fn describe(step: &PullStep) -> Value {
    match step {
        PullStep::File { name, sha256, total_bytes, completed_bytes } => json!({
            "status": format!("pulling {name}"),
            // Clients tell files apart by it. That of the content is known before only in a registry.
            "digest": format!("sha256:{}", sha256.clone().unwrap_or_else(|| digest(name))),
            "total": total_bytes,
            "completed": completed_bytes,
        }),
        PullStep::Verifying => json!({ "status": "verifying sha256 digest" }),
        PullStep::WritingManifest => json!({ "status": "writing manifest" }),
    }
}

async fn end(mut state: watch::Receiver<PullState>) -> Result<(), ApiError> {
    let ended = state.wait_for(|state| state.result.is_some()).await.map_err(|_| ApiError::Internal)?;
    let result: Option<Result<(), StoreError>> = ended.result.clone();
    result.unwrap_or(Ok(())).map_err(ApiError::from)
}

/// `DELETE /api/delete`.
pub(super) async fn delete(
    State(server): State<SharedServer>,
    JsonBody { value: body, .. }: JsonBody,
) -> Result<StatusCode, ApiError> {
    let fields = Fields::of_body(&body)?;
    let name = names::named(&fields)?;
    // Nothing is deleted without its name.
    if ["", "default"].contains(&name.strip_suffix(":latest").unwrap_or(name)) {
        return Err(ModelsError::Unknown(name.to_owned()).into());
    }
    let found = names::find(&server.models, name).await?;
    server.models.delete(&found.id, server.options().drain_timeout).await?;
    Ok(StatusCode::OK)
}

/// `/api/create`, `/api/copy`, `/api/push` and `/api/blobs`.
pub(super) async fn refuse_create() -> ApiError {
    refusal("this server does not create, copy or push models".to_owned())
}

fn refusal(message: String) -> ApiError {
    ApiError::Unsupported { param: "model".to_owned(), message }
}
