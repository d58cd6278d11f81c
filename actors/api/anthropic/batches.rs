//! Anthropic's Message Batches API: `/v1/messages/batches` and the paths below it.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, Query, State};
use serde::Deserialize;
use serde_json::{Value, json};

use super::batch_requests;
use crate::api::caller::Caller;
use crate::api::extract::JsonBody;
use crate::api::fields::Fields;
use crate::api::listing::{Items, limit, position};
use crate::api::server::SharedServer;
use crate::serving::batch::store::{BatchRecord, NewBatch, Protocol, Status, Upload};
use crate::serving::blocking::on_blocking_thread;
use crate::serving::error::ApiError;

/// The route of all requests.
const ENDPOINT: &str = "/v1/messages";

/// The query of a list.
#[derive(Debug, Default, Deserialize)]
pub(super) struct PageQuery {
    limit: Option<String>,
    before_id: Option<String>,
    after_id: Option<String>,
}

/// `POST /v1/messages/batches`.
pub(super) async fn create(
    State(server): State<SharedServer>,
    caller: Caller,
    JsonBody { value: body, memory }: JsonBody,
) -> Result<Json<Value>, ApiError> {
    let store = server.batches()?;
    let read = on_blocking_thread(move || {
        // The memory is held until the body is dropped.
        let _memory = memory;
        batch_requests::read(&Fields::of_body(&body)?, ENDPOINT)
    });
    let (lines, total) = read.await?;
    let mut upload = Upload::begin(&store).await?;
    upload.write(&lines).await?;
    drop(lines);
    let (owner, protocol, endpoint) = (caller.owner(), Protocol::Anthropic, ENDPOINT.to_owned());
    let input_file = upload.finish().await?.id;
    let new = NewBatch { owner, protocol, endpoint, input_file, metadata: None, total };
    on_blocking_thread(move || Ok(Json(object(&*store.add_batch(new)?)))).await
}

/// `GET /v1/messages/batches`.
pub(super) async fn list(
    State(server): State<SharedServer>,
    caller: Caller,
    Query(query): Query<PageQuery>,
) -> Result<Json<Value>, ApiError> {
    let batches = server.batches()?.batches(&caller.owner(), Protocol::Anthropic);
    let (items, has_more) = query.page(batches, |batch: &Arc<BatchRecord>| &batch.id)?;
    let [first_id, last_id] = [items.first(), items.last()].map(|batch| batch.map(|batch| batch.id.clone()));
    let data: Vec<Value> = items.iter().map(|batch| object(batch)).collect();
    Ok(Json(json!({ "data": data, "has_more": has_more, "first_id": first_id, "last_id": last_id })))
}

/// `GET /v1/messages/batches/{id}`.
pub(super) async fn show(
    State(server): State<SharedServer>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    Ok(Json(object(&*server.batches()?.batch(&caller.owner(), Protocol::Anthropic, &id)?)))
}

/// `POST /v1/messages/batches/{id}/cancel`.
pub(super) async fn cancel(
    State(server): State<SharedServer>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let store = server.batches()?;
    on_blocking_thread(move || Ok(Json(object(&*store.cancel(&caller.owner(), Protocol::Anthropic, &id)?)))).await
}

/// `DELETE /v1/messages/batches/{id}`.
pub(super) async fn delete(
    State(server): State<SharedServer>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let store = server.batches()?;
    on_blocking_thread(move || {
        store.delete_batch(&caller.owner(), Protocol::Anthropic, &id)?;
        Ok(Json(json!({ "id": id, "type": "message_batch_deleted" })))
    })
    .await
}

/// The object of a batch.
fn object(batch: &BatchRecord) -> Value {
    let BatchRecord { id, status, total, tally, expires_at, .. } = batch;
    let processing_status = match status {
        Status::Cancelling => "canceling",
        status if status.is_end() => "ended",
        _ => "in_progress",
    };
    // As in Anthropic's API, requests count as processed when all of them are.
    let counts = |count: usize| if status.is_end() { count } else { 0 };
    json!({
        "id": id, "type": "message_batch", "processing_status": processing_status,
        "request_counts": {
            "processing": if status.is_end() { 0 } else { *total },
            "succeeded": counts(tally.succeeded), "errored": counts(tally.failed),
            "canceled": counts(tally.cancelled), "expired": counts(tally.expired),
        },
        "created_at": timestamp(batch.created_at()), "expires_at": timestamp(*expires_at),
        "ended_at": batch.ended_at().map(timestamp),
        "cancel_initiated_at": batch.entered.get(&Status::Cancelling).copied().map(timestamp),
        "archived_at": null,
        // Without a host, which only a proxy in front of the server may know: clients add the address that they use.
        "results_url": status.is_end().then(|| format!("/v1/messages/batches/{id}/results")),
    })
}

/// Seconds of Unix time as RFC 3339 has them.
fn timestamp(seconds: u64) -> String {
    let seconds = i64::try_from(seconds).unwrap_or(i64::MAX);
    jiff::Timestamp::from_second(seconds).unwrap_or_default().to_string()
}

impl PageQuery {
    /// The part of `items`, which are in ascending order, that the query asks for, in descending order; and whether more follow in
    /// its direction.
    fn page<T>(&self, mut items: Vec<T>, id: impl Fn(&T) -> &str) -> Result<(Vec<T>, bool), ApiError> {
        let of = Items { what: "a batch", default: 20, most: 1000 };
        let limit = limit(self.limit.as_deref(), &of)?;
        items.reverse();
        if let Some(after) = &self.after_id {
            let at = position(&items, &id, ("after_id", after), of.what)?;
            items.drain(..=at);
        }
        if let Some(before) = &self.before_id {
            let at = position(&items, &id, ("before_id", before), of.what)?;
            items.truncate(at);
            let excess = items.len().saturating_sub(limit);
            items.drain(..excess);
            return Ok((items, excess > 0));
        }
        let has_more = items.len() > limit;
        items.truncate(limit);
        Ok((items, has_more))
    }
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use super::*;

    fn page(query: [Option<&str>; 3]) -> Result<(String, bool), ApiError> {
        let items: Vec<String> = (0..5).map(|number| number.to_string()).collect();
        let [limit, before_id, after_id] = query.map(|value| value.map(str::to_owned));
        let (items, has_more) = PageQuery { limit, before_id, after_id }.page(items, |item| item)?;
        Ok((items.concat(), has_more))
    }

    #[test]
    fn pages_go_in_both_directions() {
        assert_eq!(page([None, None, None]), Ok(("43210".to_owned(), false)));
        assert_eq!(page([Some("2"), None, None]), Ok(("43".to_owned(), true)));
        assert_eq!(page([Some("2"), None, Some("3")]), Ok(("21".to_owned(), true)));
        assert_eq!(page([Some("2"), Some("1"), None]), Ok(("32".to_owned(), true)));
        assert_eq!(page([None, Some("1"), None]), Ok(("432".to_owned(), false)));
    }

    #[test]
    fn a_wrong_query_is_named() {
        for (query, name) in [
            ([Some("1001"), None, None], "limit"),
            ([None, Some("9"), None], "before_id"),
            ([None, None, Some("9")], "after_id"),
        ] {
            assert!(page(query).unwrap_err().to_string().starts_with(&format!("`{name}` must be")), "{query:?}");
        }
    }

    #[test]
    fn times_are_those_of_rfc_3339() {
        assert_eq!(timestamp(1_700_000_000), "2023-11-14T22:13:20Z");
    }
}
