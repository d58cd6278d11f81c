//! The requests of a new batch as the lines of a file.

use std::collections::HashSet;

use serde_json::{Map, Value, json};

use crate::api::fields::{Fields, missing};
use crate::serving::batch::worker::MOST_REQUESTS;
use crate::serving::error::{ApiError, clip};

/// Longest id of a request in bytes.
const LONGEST_ID: usize = 64;

/// Reads `requests`. Returns the lines of a file for them, and their number.
///
/// # Errors
/// [`ApiError::InvalidRequest`] that names the field.
pub(super) fn read(fields: &Fields<'_>, endpoint: &str) -> Result<(Vec<u8>, usize), ApiError> {
    const NAME: &str = "requests";
    let requests = fields.array(NAME)?.ok_or_else(|| missing(NAME, "a list of objects with custom_id and params"))?;
    if requests.is_empty() || requests.len() > MOST_REQUESTS {
        let message = format!("`{NAME}` must have 1 to {MOST_REQUESTS} requests, not {}", requests.len());
        return Err(ApiError::invalid(NAME, message));
    }
    let (mut lines, mut ids) = (Vec::new(), HashSet::new());
    for (index, request) in requests.iter().enumerate() {
        let request = Fields::of(request, format!("{NAME}[{index}]"))?;
        let (id, params) = (custom_id(&request)?, params(&request)?);
        if !ids.insert(id) {
            let path = request.path("custom_id");
            let message = format!("`{path}` must be unique: an earlier request has {id:?}, too");
            return Err(ApiError::invalid(path, message));
        }
        let line = json!({ "custom_id": id, "method": "POST", "url": endpoint, "body": params });
        lines.extend_from_slice(line.to_string().as_bytes());
        lines.push(b'\n');
    }
    Ok((lines, requests.len()))
}

fn custom_id<'a>(request: &Fields<'a>) -> Result<&'a str, ApiError> {
    const NAME: &str = "custom_id";
    let id = request.string(NAME)?.ok_or_else(|| missing(&request.path(NAME), "a text that answers are found by"))?;
    let is_of_ids = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    if (1..=LONGEST_ID).contains(&id.len()) && id.bytes().all(is_of_ids) {
        return Ok(id);
    }
    let path = request.path(NAME);
    let message = format!("`{path}` must be 1 to {LONGEST_ID} letters, digits, _ and -, not {:?}", clip(id));
    Err(ApiError::invalid(path, message))
}

/// Reads the fields of a request, which are checked when it is answered.
fn params<'a>(request: &Fields<'a>) -> Result<&'a Map<String, Value>, ApiError> {
    const NAME: &str = "params";
    let wanted = "an object with the fields of a request to /v1/messages";
    let params = request.object(NAME)?.ok_or_else(|| missing(&request.path(NAME), wanted))?;
    if params.bool("stream")? == Some(true) {
        let param = params.path("stream");
        let message = format!("`{param}` must be false: a batch has no streams");
        return Err(ApiError::Unsupported { param, message });
    }
    Ok(params.map())
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use super::*;

    fn read_in(requests: Value) -> Result<(String, usize), String> {
        let body = json!({ "requests": requests });
        let read = read(&Fields::of_body(&body).unwrap(), "/v1/messages");
        read.map(|(lines, total)| (String::from_utf8(lines).unwrap(), total)).map_err(|error| error.to_string())
    }

    #[test]
    fn a_request_is_a_line() {
        let (lines, total) = read_in(json!([
            { "custom_id": "a", "params": { "max_tokens": 4 } },
            { "custom_id": "b", "params": {} },
        ]))
        .unwrap();
        assert_eq!((total, lines.lines().count()), (2, 2));
        let first = "{\"custom_id\":\"a\",\"method\":\"POST\",\"url\":\"/v1/messages\",\"body\":{\"max_tokens\":4}}\n";
        assert!(lines.starts_with(first), "{lines}");
    }

    #[test]
    fn a_wrong_field_is_named() {
        let of = |id: &str| json!({ "custom_id": id, "params": {} });
        for (requests, expected) in [
            (json!(null), "`requests` is required"),
            (json!([]), "`requests` must have 1 to 50000 requests"),
            (json!([7]), "`requests[0]` must be an object"),
            (json!([of("a"), { "params": {} }]), "`requests[1].custom_id` is required"),
            (json!([of("a/b")]), "`requests[0].custom_id` must be 1 to 64 letters"),
            (json!([of("a"), of("a")]), "`requests[1].custom_id` must be unique"),
            (json!([{ "custom_id": "a" }]), "`requests[0].params` is required"),
            (json!([{ "custom_id": "a", "params": { "stream": true } }]), "`requests[0].params.stream` must be false"),
        ] {
            let error = read_in(requests).unwrap_err();
            assert!(error.starts_with(expected), "{error}");
        }
    }
}
