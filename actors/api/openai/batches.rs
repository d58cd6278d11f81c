//! OpenAI's Batch API: `/v1/batches` and the paths below it.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, Query, State};
use serde_json::{Map, Value, json};

use crate::api::caller::Caller;
use crate::api::extract::JsonBody;
use crate::api::fields::{Fields, missing};
use crate::api::listing::{Items, ListQuery};
use crate::api::server::SharedServer;
use crate::core::shared_limit::Client;
use crate::serving::batch::answer::Usage;
use crate::serving::batch::requests::URLS;
use crate::serving::batch::store::{BatchRecord, BatchStore, NewBatch, Problem, Protocol, Purpose, Status};
use crate::serving::blocking::on_blocking_thread;
use crate::serving::error::{ApiError, clip};

const WINDOW: &str = "24h";

/// `POST /v1/batches`.
pub(in crate::api) async fn create(
    State(server): State<SharedServer>,
    caller: Caller,
    JsonBody { value: body, .. }: JsonBody,
) -> Result<Json<Value>, ApiError> {
    let store = server.batches()?;
    let new = read(&store, caller.owner(), &Fields::of_body(&body)?)?;
    on_blocking_thread(move || Ok(Json(object(&*store.add_batch(new)?)))).await
}

fn read(store: &BatchStore, owner: Client, fields: &Fields<'_>) -> Result<NewBatch, ApiError> {
    const INPUT: &str = "input_file_id";
    const KEPT: &str = "output_expires_after";
    let input = fields.string(INPUT)?.ok_or_else(|| missing(INPUT, "the id of a file of requests"))?;
    let endpoint = one_of(fields, "endpoint", &URLS)?;
    one_of(fields, "completion_window", &[WINDOW])?;
    if fields.get(KEPT).is_some() {
        let message =
            format!("`{KEPT}` is not supported: answers are kept for 30 days, unless they are deleted before");
        return Err(ApiError::Unsupported { param: KEPT.to_owned(), message });
    }
    let file = store.file(&owner, input).ok().filter(|file| file.purpose == Purpose::Batch);
    let unknown =
        || ApiError::invalid(INPUT, format!("`{INPUT}` must be the id of a file of requests, not {}", clip(input)));
    let input_file = file.ok_or_else(unknown)?.id.clone();
    let (endpoint, metadata) = (endpoint.to_owned(), metadata(fields)?);
    Ok(NewBatch { owner, protocol: Protocol::OpenAi, endpoint, input_file, metadata, total: 0 })
}

/// Reads a text that is required and must be one of a few.
fn one_of<'a>(fields: &Fields<'a>, name: &str, possible: &[&str]) -> Result<&'a str, ApiError> {
    let wanted = match possible {
        [only] => format!("{only:?}"),
        possible => format!("one of {}", possible.join(", ")),
    };
    let value = fields.string(name)?.ok_or_else(|| missing(name, &wanted))?;
    if possible.contains(&value) {
        return Ok(value);
    }
    Err(ApiError::invalid(name, format!("`{name}` must be {wanted}, not {:?}", clip(value))))
}

/// Reads `metadata`: up to 16 short texts, which a batch repeats.
fn metadata(fields: &Fields<'_>) -> Result<Option<Value>, ApiError> {
    const NAME: &str = "metadata";
    let Some(metadata) = fields.object(NAME)? else { return Ok(None) };
    let is_short = |(key, value): (&String, &Value)| {
        key.chars().count() <= 64 && value.as_str().is_some_and(|text| text.chars().count() <= 512)
    };
    if metadata.map().len() <= 16 && metadata.map().iter().all(is_short) {
        return Ok(Some(Value::Object(metadata.map().clone())));
    }
    let message = "`metadata` must have at most 16 texts of at most 512 characters, with names of at most 64";
    Err(ApiError::invalid(NAME, message))
}

/// `GET /v1/batches`.
pub(in crate::api) async fn list(
    State(server): State<SharedServer>,
    caller: Caller,
    Query(query): Query<ListQuery>,
) -> Result<Json<Value>, ApiError> {
    let batches = server.batches()?.batches(&caller.owner(), Protocol::OpenAi);
    let list = Items { what: "a batch", default: 20, most: 100 };
    let page = query.page(batches, |batch: &Arc<BatchRecord>| &batch.id, &list)?;
    Ok(Json(page.whole(|batch| &batch.id, |batch| object(batch))))
}

/// `GET /v1/batches/{id}`.
pub(in crate::api) async fn show(
    State(server): State<SharedServer>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    Ok(Json(object(&*server.batches()?.batch(&caller.owner(), Protocol::OpenAi, &id)?)))
}

/// `POST /v1/batches/{id}/cancel`.
pub(in crate::api) async fn cancel(
    State(server): State<SharedServer>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let store = server.batches()?;
    on_blocking_thread(move || Ok(Json(object(&*store.cancel(&caller.owner(), Protocol::OpenAi, &id)?)))).await
}

/// The object of a batch.
fn object(batch: &BatchRecord) -> Value {
    let BatchRecord { id, endpoint, input_file, metadata, expires_at, total, tally, .. } = batch;
    let (completed, failed) = (tally.succeeded, tally.without_success());
    let file = |id: &str, answers: usize| (batch.status.is_end() && answers > 0).then(|| id.to_owned());
    let mut object = json!({
        "id": id, "object": "batch", "endpoint": endpoint, "errors": batch.problem.as_ref().map(errors),
        "input_file_id": input_file, "completion_window": WINDOW, "status": batch.status.name(),
        "output_file_id": file(&batch.output_file, completed), "error_file_id": file(&batch.error_file, failed),
        "created_at": batch.created_at(), "expires_at": expires_at,
        "request_counts": { "total": total, "completed": completed, "failed": failed },
        "usage": usage(tally.usage), "metadata": metadata,
    });
    if let Some(fields) = object.as_object_mut() {
        add_times(fields, batch);
    }
    object
}

/// Adds when a batch entered each status after the first.
fn add_times(fields: &mut Map<String, Value>, batch: &BatchRecord) {
    for status in Status::ALL.into_iter().filter(|status| *status != Status::Validating) {
        fields.insert(format!("{}_at", status.name()), json!(batch.entered.get(&status)));
    }
}

fn errors(problem: &Problem) -> Value {
    let Problem { code, message, line, param } = problem;
    json!({ "object": "list", "data": [{ "code": code, "message": message, "line": line, "param": param }] })
}

fn usage(usage: Usage) -> Value {
    let Usage { input, cached, output, reasoning } = usage;
    json!({
        "input_tokens": input, "input_tokens_details": { "cached_tokens": cached },
        "output_tokens": output, "output_tokens_details": { "reasoning_tokens": reasoning },
        "total_tokens": input + output,
    })
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use super::*;

    fn read_in(body: &Value) -> Result<NewBatch, String> {
        let directory = tempfile::tempdir().unwrap();
        let store = BatchStore::open(directory.path(), 1 << 20).unwrap();
        read(&store, None, &Fields::of_body(body).unwrap()).map_err(|error| error.to_string())
    }

    #[test]
    fn a_wrong_field_is_named() {
        let whole = json!({ "input_file_id": "file-1", "endpoint": "/v1/embeddings", "completion_window": "24h" });
        for (name, value, expected) in [
            ("input_file_id", json!(null), "`input_file_id` is required"),
            ("input_file_id", json!("../../etc/passwd"), "`input_file_id` must be the id of a file of requests"),
            ("endpoint", json!(null), "`endpoint` is required: one of /v1/chat/completions, "),
            ("endpoint", json!("/models/unload"), "`endpoint` must be one of /v1/chat/completions, "),
            ("completion_window", json!(null), "`completion_window` is required: \"24h\""),
            ("completion_window", json!("1h"), "`completion_window` must be \"24h\", not \"1h\""),
            ("output_expires_after", json!({ "seconds": 3600 }), "`output_expires_after` is not supported"),
        ] {
            let mut body = whole.clone();
            body[name] = value;
            let error = read_in(&body).unwrap_err();
            assert!(error.starts_with(expected), "{error}");
        }
    }

    #[test]
    fn metadata_is_a_few_short_texts() {
        let read = |value: Value| metadata(&Fields::of_body(&json!({ "metadata": value })).unwrap());
        assert_eq!(read(json!({ "a": "b" })), Ok(Some(json!({ "a": "b" }))));
        assert_eq!(read(json!(null)), Ok(None));
        let many: Map<String, Value> = (0..17).map(|number| (number.to_string(), json!(""))).collect();
        for wrong in [json!({ "a": 1 }), json!({ "a": "b".repeat(513) }), Value::Object(many)] {
            assert!(read(wrong).unwrap_err().to_string().starts_with("`metadata` must have at most 16"));
        }
    }
}
