//! Keeps a response, and the input of its request, when the response is complete.

use std::sync::Arc;

use axum::body::Bytes;
use serde::{Serialize, Serializer};
use serde_json::{Map, Value, json};
use uuid::Uuid;

use super::store::{InputItem, ResponseStore, StoredResponse};
use crate::api::fields::Fields;
use crate::core::shared_limit::Client;
use crate::serving::error::ApiError;

/// Keeps one response.
#[derive(Debug)]
pub(super) struct Keeper {
    store: Arc<ResponseStore>,
    owner: Client,
    previous: Option<String>,
    input: Vec<InputItem>,
}

impl Keeper {
    /// Reads `store`, and what of the request is kept. `None`: nothing is kept.
    ///
    /// # Errors
    /// [`ApiError::InvalidRequest`] that names the field.
    pub fn read(store: &Arc<ResponseStore>, owner: Client, fields: &Fields<'_>) -> Result<Option<Self>, ApiError> {
        let is_wanted = fields.bool("store")?.unwrap_or(true);
        if !is_wanted || !store.is_on() {
            return Ok(None);
        }
        let previous = fields.string("previous_response_id")?.map(str::to_owned);
        let input = fields.get("input").map(input_items).unwrap_or_default();
        Ok(Some(Keeper { store: store.clone(), owner, previous, input }))
    }

    /// The memory that is held until the response is complete, in bytes.
    pub fn bytes(&self) -> usize {
        self.input.iter().map(InputItem::bytes).sum()
    }

    /// Keeps the response object. Returns false when it is too large.
    pub fn keep(self, response: &Value) -> bool {
        let Some(fields) = response.as_object() else { return false };
        let output = fields.get("output").and_then(Value::as_array);
        self.store.insert(StoredResponse {
            id: fields.get("id").and_then(Value::as_str).unwrap_or_default().to_owned(),
            owner: self.owner,
            previous: self.previous,
            object: without_output(fields),
            input: self.input,
            output: output.into_iter().flatten().map(text).collect(),
        })
    }
}

/// JSON in memory of exactly its size.
fn text(value: &impl Serialize) -> Bytes {
    // Values whose keys are strings can always be written.
    serde_json::to_vec(value).unwrap_or_default().into_boxed_slice().into()
}

fn without_output(response: &Map<String, Value>) -> Bytes {
    struct Others<'a>(&'a Map<String, Value>);
    impl Serialize for Others<'_> {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            serializer.collect_map(self.0.iter().filter(|(name, _)| *name != "output"))
        }
    }
    text(&Others(response))
}

/// The items of an input that has been read, each with an id.
fn input_items(input: &Value) -> Vec<InputItem> {
    match input {
        Value::String(text) => vec![with_id(json!({ "type": "message", "role": "user", "content": text }))],
        Value::Array(items) => items.iter().cloned().map(with_id).collect(),
        _ => Vec::new(),
    }
}

/// The item in full: a message has its type, its status and a list of parts.
fn with_id(mut item: Value) -> InputItem {
    set_absent(&mut item, "type", || json!("message"));
    let kind = item["type"].as_str().unwrap_or_default().to_owned();
    if kind == "message" {
        set_absent(&mut item, "status", || json!("completed"));
        if let Some(text) = item["content"].as_str() {
            item["content"] = json!([text_part(text, item["role"] == "assistant")]);
        }
    }
    if item["id"].as_str().is_none_or(str::is_empty) {
        item["id"] = json!(format!("{}_{}", prefix(&kind), Uuid::new_v4().simple()));
    }
    InputItem { id: item["id"].as_str().unwrap_or_default().to_owned(), json: text(&item) }
}

/// Sets a field that is absent or null.
fn set_absent(item: &mut Value, name: &str, value: impl FnOnce() -> Value) {
    if item[name].is_null() {
        item[name] = value();
    }
}

fn text_part(text: &str, is_output: bool) -> Value {
    match is_output {
        true => json!({ "type": "output_text", "text": text, "annotations": [], "logprobs": [] }),
        false => json!({ "type": "input_text", "text": text }),
    }
}

/// What the id of an item begins with.
fn prefix(kind: &str) -> &'static str {
    match kind {
        "message" => "msg",
        "reasoning" => "rs",
        "function_call" => "fc",
        "function_call_output" => "fco",
        "custom_tool_call" => "ctc",
        "custom_tool_call_output" => "ctco",
        _ => "item",
    }
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use super::*;

    fn items(input: &Value) -> Vec<Value> {
        input_items(input).iter().map(|item| serde_json::from_slice(&item.json).unwrap()).collect()
    }

    #[test]
    fn a_string_is_a_message_in_full() {
        let [item] = items(&json!("hi")).try_into().unwrap();
        let id = item["id"].clone();
        assert!(id.as_str().unwrap().starts_with("msg_"), "{id}");
        let content = json!([{ "type": "input_text", "text": "hi" }]);
        assert_eq!(
            item,
            json!({ "type": "message", "role": "user", "content": content, "status": "completed", "id": id })
        );
    }

    #[test]
    fn items_keep_their_fields_and_get_what_is_absent() {
        let read = items(&json!([
            { "role": "assistant", "content": "a", "id": "msg_1", "status": null },
            { "type": "function_call_output", "call_id": "c", "output": "o" },
            { "type": "reasoning", "id": "", "summary": [] },
        ]));
        assert_eq!((&read[0]["id"], &read[0]["status"]), (&json!("msg_1"), &json!("completed")));
        assert_eq!(read[0]["content"][0]["type"], "output_text");
        assert!(read[1]["id"].as_str().unwrap().starts_with("fco_") && read[1].get("status").is_none());
        assert!(read[2]["id"].as_str().unwrap().starts_with("rs_"));
    }

    #[test]
    fn the_object_is_kept_apart_from_its_output() {
        let store = ResponseStore::new(1 << 20);
        let body = json!({ "input": "hi", "previous_response_id": "resp_0" });
        let keep = |body: &Value| Keeper::read(&store, None, &Fields::of_body(body).unwrap()).unwrap();
        assert!(keep(&json!({ "input": "hi", "store": false })).is_none());
        assert!(keep(&body).unwrap().keep(&json!({ "id": "resp_1", "output": [{ "a": 1 }], "usage": null })));
        let kept = store.get(&None, "resp_1").unwrap();
        assert_eq!(kept.object, r#"{"id":"resp_1","usage":null}"#);
        assert_eq!((kept.output.as_slice(), kept.previous.as_deref()), (&[r#"{"a":1}"#.into()][..], Some("resp_0")));
    }
}
