//! Requests that would change the models on disk, and embeddings. This server refuses them; only `pull` of a model that is
//! here already succeeds, because many clients pull each model before its first use.

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde_json::json;

use super::{names, ndjson};
use crate::api::extract::JsonBody;
use crate::api::fields::Fields;
use crate::api::server::SharedServer;
use crate::models::ModelsError;
use crate::serving::error::{ApiError, clip};

/// `POST /api/pull`.
pub(super) async fn pull(
    State(server): State<SharedServer>,
    JsonBody { value: body, .. }: JsonBody,
) -> Result<Response, ApiError> {
    let fields = Fields::of_body(&body)?;
    let is_streamed = fields.bool("stream")?.unwrap_or(true);
    match names::find(&server.models, names::named(&fields)?).await {
        Ok(_) if is_streamed => {
            Ok(ndjson::whole(&[json!({ "status": "pulling manifest" }), json!({ "status": "success" })]))
        }
        Ok(_) => Ok(Json(json!({ "status": "success" })).into_response()),
        Err(ApiError::Model(ModelsError::Unknown(name))) => {
            let name = clip(&name);
            Err(refusal(format!(
                "model '{name}' not found, and this server does not download models: run `cuelight pull` on its machine and \
                 serve the model"
            )))
        }
        Err(error) => Err(error),
    }
}

/// `DELETE /api/delete`.
pub(super) async fn refuse_delete() -> ApiError {
    refusal("this server does not delete models: run `cuelight rm` on its machine".to_owned())
}

/// `/api/create`, `/api/copy`, `/api/push` and `/api/blobs`.
pub(super) async fn refuse_create() -> ApiError {
    refusal("this server does not create, copy or push models".to_owned())
}

/// `/api/embed` and `/api/embeddings`.
pub(super) async fn refuse_embeddings() -> ApiError {
    refusal("this server does not support embeddings yet".to_owned())
}

fn refusal(message: String) -> ApiError {
    ApiError::Unsupported { param: "model".to_owned(), message }
}
