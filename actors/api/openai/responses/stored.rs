//! The routes of responses that are kept: `/v1/responses/{id}` and the paths below it.

use std::convert::Infallible;
use std::sync::Arc;

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::{Path, Query, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use serde_json::{Value, json};

use super::store::{InputItem, StoredResponse};
use crate::api::caller::Caller;
use crate::api::listing::{Items, ListQuery};
use crate::api::server::{Server, SharedServer};
use crate::serving::error::{ApiError, clip};

/// The query of [`show`].
#[derive(serde::Deserialize)]
pub(in crate::api) struct ShowQuery {
    stream: Option<String>,
}

/// `GET /v1/responses/{id}`.
pub(in crate::api) async fn show(
    State(server): State<SharedServer>,
    caller: Caller,
    Path(id): Path<String>,
    Query(query): Query<ShowQuery>,
) -> Result<Response, ApiError> {
    if query.stream.is_some_and(|stream| stream != "false") {
        let message = "`stream` must be false: a stored response is returned whole, without its events";
        return Err(ApiError::Unsupported { param: "stream".to_owned(), message: message.to_owned() });
    }
    Ok(whole(&*find(&server, &caller, &id)?))
}

/// `DELETE /v1/responses/{id}`.
pub(in crate::api) async fn delete(
    State(server): State<SharedServer>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    if !server.responses.remove(&caller.client(), &id) {
        return Err(ApiError::ResponseNotFound(clip(&id)));
    }
    Ok(Json(json!({ "id": id, "object": "response", "deleted": true })))
}

/// `GET /v1/responses/{id}/input_items`.
pub(in crate::api) async fn input_items(
    State(server): State<SharedServer>,
    caller: Caller,
    Path(id): Path<String>,
    Query(query): Query<ListQuery>,
) -> Result<Response, ApiError> {
    let response = find(&server, &caller, &id)?;
    let list = Items { what: "an input item of this response", default: 20, most: 100 };
    let page = query.page(response.input.iter().collect(), |item: &&InputItem| &item.id, &list)?;
    let ends = page.ends(|item| &item.id).to_string();
    let items: Vec<&Bytes> = page.items.into_iter().map(|item| &item.json).collect();
    Ok(with_list(ends.into(), "data", &items))
}

/// `POST /v1/responses/{id}/cancel`. Every stored response is complete.
pub(in crate::api) async fn cancel(
    State(server): State<SharedServer>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<Response, ApiError> {
    find(&server, &caller, &id)?;
    let message = "only a response with `background` can be cancelled, and this server has none; a client cancels its \
                   own request by closing the connection";
    Err(ApiError::invalid_body(message))
}

fn find(server: &Server, caller: &Caller, id: &str) -> Result<Arc<StoredResponse>, ApiError> {
    server.responses.get(&caller.client(), id).ok_or_else(|| ApiError::ResponseNotFound(clip(id)))
}

fn whole(response: &StoredResponse) -> Response {
    with_list(response.object.clone(), "output", &response.output.iter().collect::<Vec<_>>())
}

/// A JSON object with one more field, a list. `object` has other fields. The texts are not copied, so that slow clients need
/// no memory.
fn with_list(mut object: Bytes, name: &str, items: &[&Bytes]) -> Response {
    object.truncate(object.len().saturating_sub(1));
    let mut parts = vec![object, format!(",\"{name}\":[").into()];
    for (index, item) in items.iter().enumerate() {
        parts.extend((index > 0).then(|| Bytes::from_static(b",")));
        parts.push((*item).clone());
    }
    parts.push(Bytes::from_static(b"]}"));
    let body = Body::from_stream(stream::iter(parts.into_iter().map(Ok::<_, Infallible>)));
    ([(header::CONTENT_TYPE, "application/json")], body).into_response()
}
