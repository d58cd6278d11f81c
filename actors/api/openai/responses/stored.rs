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
use crate::api::server::{Server, SharedServer};
use crate::serving::error::{ApiError, clip};

/// The query of [`show`].
#[derive(serde::Deserialize)]
pub(in crate::api) struct ShowQuery {
    stream: Option<String>,
}

/// The query of [`input_items`].
#[derive(serde::Deserialize)]
pub(in crate::api) struct PageQuery {
    limit: Option<String>,
    order: Option<String>,
    after: Option<String>,
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
    Query(query): Query<PageQuery>,
) -> Result<Response, ApiError> {
    let response = find(&server, &caller, &id)?;
    let Page { items, has_more } = query.page(&response.input)?;
    let [first_id, last_id] = [items.first(), items.last()].map(|item| item.map(|item| item.id.as_str()));
    let ends = json!({ "object": "list", "first_id": first_id, "last_id": last_id, "has_more": has_more });
    let items: Vec<&Bytes> = items.into_iter().map(|item| &item.json).collect();
    Ok(with_list(ends.to_string().into(), "data", &items))
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

/// A part of a list.
struct Page<'a> {
    items: Vec<&'a InputItem>,
    /// There are items behind these.
    has_more: bool,
}

impl PageQuery {
    /// The page of `items`, which are in the order of the conversation.
    fn page<'a>(&self, items: &'a [InputItem]) -> Result<Page<'a>, ApiError> {
        let limit = self.limit()?;
        let mut items: Vec<&InputItem> = items.iter().collect();
        if self.is_descending()? {
            items.reverse();
        }
        if let Some(after) = &self.after {
            let message = || format!("`after` must be the id of an input item of this response, not {}", clip(after));
            let at = items.iter().position(|item| item.id == *after);
            items.drain(..=at.ok_or_else(|| ApiError::invalid("after", message()))?);
        }
        let has_more = items.len() > limit;
        items.truncate(limit);
        Ok(Page { items, has_more })
    }

    fn limit(&self) -> Result<usize, ApiError> {
        let Some(limit) = &self.limit else { return Ok(20) };
        let message = || format!("`limit` must be an integer from 1 to 100, not {}", clip(limit));
        let parsed = limit.parse().ok().filter(|limit| (1..=100).contains(limit));
        parsed.ok_or_else(|| ApiError::invalid("limit", message()))
    }

    fn is_descending(&self) -> Result<bool, ApiError> {
        match self.order.as_deref() {
            None | Some("desc") => Ok(true),
            Some("asc") => Ok(false),
            Some(other) => Err(ApiError::invalid("order", format!("`order` must be asc or desc, not {}", clip(other)))),
        }
    }
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use super::*;

    fn page(query: [Option<&str>; 3], count: usize) -> Result<(String, bool), ApiError> {
        let item = |number: usize| InputItem { id: number.to_string(), json: Bytes::new() };
        let items: Vec<InputItem> = (0..count).map(item).collect();
        let [limit, order, after] = query.map(|value| value.map(str::to_owned));
        let page = PageQuery { limit, order, after };
        let page = page.page(&items)?;
        Ok((page.items.iter().map(|item| item.id.as_str()).collect(), page.has_more))
    }

    #[test]
    fn a_page_is_a_part_of_the_items_in_either_order() {
        assert_eq!(page([None, None, None], 3), Ok(("210".to_owned(), false)));
        assert_eq!(page([Some("2"), Some("asc"), None], 3), Ok(("01".to_owned(), true)));
        assert_eq!(page([Some("2"), Some("asc"), Some("1")], 4), Ok(("23".to_owned(), false)));
        assert_eq!(page([Some("1"), None, Some("1")], 3), Ok(("0".to_owned(), false)));
        assert_eq!(page([None, None, Some("0")], 3), Ok((String::new(), false)));
        assert_eq!(page([None, Some("asc"), None], 21).unwrap().0.len(), 10 + 2 * 10);
        assert!(page([None, None, None], 21).unwrap().1);
    }

    #[test]
    fn a_wrong_query_is_named() {
        for (query, name) in [
            ([Some("0"), None, None], "limit"),
            ([Some("101"), None, None], "limit"),
            ([Some("x"), None, None], "limit"),
            ([None, Some("up"), None], "order"),
            ([None, None, Some("9")], "after"),
        ] {
            assert!(page(query, 3).unwrap_err().to_string().starts_with(&format!("`{name}` must be")), "{query:?}");
        }
    }
}
