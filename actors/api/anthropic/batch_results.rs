//! `GET /v1/messages/batches/{id}/results`: a line for each request of a batch.

use std::io;
use std::path::PathBuf;

use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use futures_util::Stream;
use serde_json::{Value, json};
use tokio::fs::File;
use tokio::io::{AsyncBufReadExt, BufReader};

use super::errors;
use crate::api::caller::Caller;
use crate::api::server::SharedServer;
use crate::serving::batch::answer::{Answer, UnsentCode};
use crate::serving::batch::store::Protocol;
use crate::serving::batch::store::error::BatchStoreError;
use crate::serving::error::ApiError;

pub(super) async fn results(
    State(server): State<SharedServer>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<Response, ApiError> {
    let store = server.batches()?;
    let batch = store.batch(&caller.owner(), Protocol::Anthropic, &id)?;
    if !batch.status.is_end() {
        return Err(BatchStoreError::NotEnded(batch.id.clone()).into());
    }
    let files = [&batch.output_file, &batch.error_file].map(|id| store.content_path(id));
    Ok(([(header::CONTENT_TYPE, "application/x-jsonl")], Body::from_stream(lines(files))).into_response())
}

/// The results in these files, of which any may be missing: one line at a time, so that a slow client needs no memory.
fn lines(files: [PathBuf; 2]) -> impl Stream<Item = io::Result<String>> {
    async_stream::stream! {
        for path in files {
            let file = match File::open(&path).await {
                Ok(file) => file,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => {
                    yield Err(error);
                    continue;
                }
            };
            let mut lines = BufReader::new(file).lines();
            while let Some(line) = lines.next_line().await.transpose() {
                let is_last = line.is_err();
                yield line.and_then(|line| result(&line));
                if is_last {
                    break;
                }
            }
        }
    }
}

/// The line of a result, from that of an answer.
fn result(line: &str) -> io::Result<String> {
    let Answer { custom_id, response, error, .. } = serde_json::from_str(line)?;
    let result = match (response, error.map(|error| error.code)) {
        (Some(response), _) if response.status_code == 200 => json!({ "type": "succeeded", "message": response.body }),
        (Some(response), _) => json!({ "type": "errored", "error": response.body }),
        (None, Some(UnsentCode::Expired)) => json!({ "type": "expired" }),
        (None, Some(UnsentCode::Cancelled)) => json!({ "type": "canceled" }),
        (None, None) => json!({ "type": "errored", "error": errors::body(&ApiError::Internal) }),
    };
    let line: Value = json!({ "custom_id": custom_id, "result": result });
    Ok(format!("{line}\n"))
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use super::*;

    fn of(answer: Value) -> Value {
        serde_json::from_str(&result(&answer.to_string()).unwrap()).unwrap()
    }

    #[test]
    fn each_end_of_a_request_has_its_type() {
        let response = |status: u16, body: Value| {
            let response = json!({ "status_code": status, "request_id": "req_1", "body": body });
            json!({ "id": "1", "custom_id": "a", "response": response, "error": null })
        };
        let message = of(response(200, json!({ "id": "msg_1" })));
        assert_eq!(
            message,
            json!({ "custom_id": "a", "result": { "type": "succeeded", "message": { "id": "msg_1" } } })
        );
        assert_eq!(of(response(400, json!({ "type": "error" })))["result"]["error"]["type"], "error");
        for (code, kind) in [("batch_expired", "expired"), ("batch_cancelled", "canceled")] {
            let error = json!({ "code": code, "message": "" });
            let line = of(json!({ "id": "1", "custom_id": "a", "response": null, "error": error }));
            assert_eq!(line["result"], json!({ "type": kind }));
        }
    }
}
