//! OpenAI's Files API: `/v1/files` and the paths below it. Files are requests of [`batches`](super::batches), and their answers.

mod upload;

use std::sync::Arc;

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::{Path, Query, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::fs::File;
use tokio::io::AsyncReadExt;

pub(in crate::api) use self::upload::create;
use crate::api::caller::Caller;
use crate::api::listing::{Items, ListQuery};
use crate::api::server::SharedServer;
use crate::serving::batch::store::FileRecord;
use crate::serving::blocking::on_blocking_thread;
use crate::serving::error::ApiError;

/// The query of [`list`] that lists of other objects do not have.
#[derive(Deserialize)]
pub(in crate::api) struct PurposeQuery {
    purpose: Option<String>,
}

/// `GET /v1/files`.
pub(in crate::api) async fn list(
    State(server): State<SharedServer>,
    caller: Caller,
    Query(query): Query<ListQuery>,
    Query(PurposeQuery { purpose }): Query<PurposeQuery>,
) -> Result<Json<Value>, ApiError> {
    let mut files = server.batches()?.files(&caller.owner());
    files.retain(|file| purpose.as_deref().is_none_or(|purpose| file.purpose.name() == purpose));
    let list = Items { what: "a file in this list", default: 10_000, most: 10_000 };
    let page = query.page(files, |file: &Arc<FileRecord>| &file.id, &list)?;
    Ok(Json(page.whole(|file| &file.id, |file| object(file))))
}

/// `GET /v1/files/{id}`.
pub(in crate::api) async fn show(
    State(server): State<SharedServer>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    Ok(Json(object(&*server.batches()?.file(&caller.owner(), &id)?)))
}

/// `DELETE /v1/files/{id}`.
pub(in crate::api) async fn delete(
    State(server): State<SharedServer>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let store = server.batches()?;
    on_blocking_thread(move || {
        store.delete_file(&caller.owner(), &id)?;
        Ok(Json(json!({ "id": id, "object": "file", "deleted": true })))
    })
    .await
}

/// `GET /v1/files/{id}/content`.
pub(in crate::api) async fn content(
    State(server): State<SharedServer>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<Response, ApiError> {
    let store = server.batches()?;
    let record = store.file(&caller.owner(), &id)?;
    let file = File::open(store.content_path(&record.id)).await.map_err(unreadable)?;
    let headers =
        [(header::CONTENT_TYPE, "application/jsonl".to_owned()), (header::CONTENT_LENGTH, record.bytes.to_string())];
    Ok((headers, streamed(file)).into_response())
}

/// The content of a file, which is read as the client takes it.
fn streamed(mut file: File) -> Body {
    const PART: usize = 64 << 10;
    let parts = async_stream::stream! {
        loop {
            let mut part = Vec::with_capacity(PART);
            match file.read_buf(&mut part).await {
                Ok(0) => break,
                read => yield read.map(|_| Bytes::from(part)),
            }
        }
    };
    Body::from_stream(parts)
}

/// The object of a file.
fn object(file: &FileRecord) -> Value {
    let FileRecord { id, filename, purpose, bytes, created_at, expires_at, .. } = file;
    json!({
        "id": id, "object": "file", "bytes": bytes, "created_at": created_at, "expires_at": expires_at,
        "filename": filename, "purpose": purpose.name(), "status": "processed", "status_details": null,
    })
}

fn unreadable(error: std::io::Error) -> ApiError {
    tracing::error!(%error, "a file of a batch could not be read");
    ApiError::Internal
}
