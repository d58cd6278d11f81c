//! Requests to OpenAI's routes, and what is expected of refusals.
#![allow(dead_code, clippy::unwrap_used)]

use cuelight::pipeline::simulation::SimulatedModel;
use serde_json::{Value, json};

use super::{Answer, MODEL, model};

pub const CHAT: &str = "/v1/chat/completions";
pub const COMPLETIONS: &str = "/v1/completions";

/// A chat request with more fields.
pub fn chat(more: Value) -> Value {
    let mut body =
        json!({ "model": MODEL, "messages": [{ "role": "user", "content": "hi" }], "max_tokens": 8, "temperature": 0 });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// A completion request with more fields.
pub fn completion(more: Value) -> Value {
    let mut body = json!({ "model": MODEL, "prompt": "the sky is", "max_tokens": 8, "temperature": 0 });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// A model that never ends an answer itself.
pub fn tireless() -> SimulatedModel {
    SimulatedModel { end_one_in: u64::MAX, ..model() }
}

/// Checks a refusal's status, type, code and param.
pub fn assert_error(answer: &Answer, status: u16, kind: &str, code: &str, param: Option<&str>) {
    let body = answer.json();
    let error = &body["error"];
    assert_eq!(answer.status, status, "{body}");
    assert_eq!(
        (&error["type"], &error["code"], &error["param"]),
        (&json!(kind), &json!(code), &json!(param)),
        "{body}"
    );
    assert!(!error["message"].as_str().unwrap().is_empty());
    assert!(answer.headers.contains_key("x-request-id"));
}
