//! Streams of every protocol go on with the same text and the same calls after a fault of the engine or an actor.
//!
//! `cargo test --test protocol_faults`

#![cfg(debug_assertions)]
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::Semaphore;

#[path = "support/server_process.rs"]
mod server_process;
#[path = "support/tool_template.rs"]
mod tool_template;

use tool_template::TOOL_TEMPLATE;

use server_process::ServerProcess;

/// A protocol: its path, a request for text, a request for a call, and what an event of its stream says.
struct Protocol {
    path: &'static str,
    text: Value,
    call: Value,
    said: fn(&Value) -> String,
}

fn protocols() -> Vec<Protocol> {
    let parameters = json!({
        "type": "object", "properties": { "x": { "type": "string", "minLength": 60, "maxLength": 90 } },
        "required": ["x"], "additionalProperties": false,
    });
    let function = json!({ "name": "f", "description": "", "parameters": parameters });
    let tool = json!({ "type": "function", "function": function });
    let flat = json!({ "type": "function", "name": "f", "description": "", "parameters": parameters });
    let anthropic = json!({ "name": "f", "description": "", "input_schema": parameters });
    let messages = json!([{ "role": "user", "content": "tell me" }]);
    let options = json!({ "num_predict": 120, "temperature": 0 });
    vec![
        Protocol {
            path: "/v1/chat/completions",
            text: json!({ "messages": messages, "max_tokens": 120, "ignore_eos": true }),
            call: json!({ "messages": messages, "max_tokens": 300, "tools": [tool], "tool_choice": "required" }),
            said: |event| {
                let delta = &event["choices"][0]["delta"];
                format!("{}{}", string(&delta["content"]), string(&delta["tool_calls"][0]["function"]["arguments"]))
            },
        },
        Protocol {
            path: "/v1/responses",
            text: json!({ "input": messages, "max_output_tokens": 120, "ignore_eos": true }),
            call: json!({ "input": messages, "max_output_tokens": 300, "tools": [flat], "tool_choice": "required" }),
            said: |event| string(&event["delta"]),
        },
        Protocol {
            path: "/v1/messages",
            text: json!({ "messages": messages, "max_tokens": 120, "ignore_eos": true }),
            call: json!({
                "messages": messages, "max_tokens": 300, "tools": [anthropic], "tool_choice": { "type": "any" }
            }),
            said: |event| {
                let delta = &event["delta"];
                format!("{}{}", string(&delta["text"]), string(&delta["partial_json"]))
            },
        },
        Protocol {
            path: "/api/chat",
            text: json!({ "messages": messages, "options": options, "ignore_eos": true }),
            call: json!({
                "messages": messages, "options": { "num_predict": 300, "temperature": 0 },
                "tools": [tool], "tool_choice": "required"
            }),
            said: |event| {
                let message = &event["message"];
                let call = &message["tool_calls"][0]["function"]["arguments"];
                format!(
                    "{}{}",
                    string(&message["content"]),
                    if call.is_null() { String::new() } else { call.to_string() }
                )
            },
        },
    ]
}

fn string(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// Sends a request for a stream, and returns all that its events say. `begun` gets a permit with the first bytes.
async fn answer(url: String, mut body: Value, said: fn(&Value) -> String, begun: Arc<Semaphore>) -> String {
    for (key, value) in [("model", json!("default")), ("stream", json!(true)), ("temperature", json!(0))] {
        body[key] = value;
    }
    let mut response = reqwest::Client::new().post(&url).json(&body).send().await.unwrap();
    let status = response.status();
    let mut text = String::new();
    while let Some(bytes) = response.chunk().await.unwrap() {
        begun.add_permits(1);
        text.push_str(std::str::from_utf8(&bytes).unwrap());
    }
    assert_eq!(status, 200, "{url}: {text}");
    let data = text.lines().map(|line| line.strip_prefix("data: ").unwrap_or(line));
    let events = data.filter(|line| line.starts_with('{')).map(|line| serde_json::from_str::<Value>(line).unwrap());
    events
        .inspect(|event| assert!(event.get("error").is_none_or(Value::is_null), "{event}"))
        .map(|event| said(&event))
        .collect()
}

/// The answers of all protocols at once, with a fault after the first of them have begun.
async fn answers(server: &ServerProcess, fault: Option<&str>) -> Vec<String> {
    let begun = Arc::new(Semaphore::new(0));
    let mut running = Vec::new();
    for Protocol { path, text, call, said } in protocols() {
        for body in [text, call] {
            running.push(tokio::spawn(answer(format!("{}{path}", server.url), body, said, begun.clone())));
        }
    }
    if let Some(kind) = fault {
        begun.acquire_many(3).await.unwrap().forget();
        server.fault(kind).await;
    }
    let mut answers = Vec::new();
    for answer in running {
        answers.push(tokio::time::timeout(Duration::from_secs(120), answer).await.expect("the stream ends").unwrap());
    }
    answers
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_of_every_protocol_survives_a_fault() {
    let folder = tempfile::tempdir().unwrap();
    let template = folder.path().join("template.jinja");
    std::fs::write(&template, TOOL_TEMPLATE).unwrap();
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/families/llama.gguf");
    let flags = ["--device", "cpu", "--ctx-size", "512", "--chat-template", template.to_str().unwrap()];
    let server = ServerProcess::start_model(&model, &flags).await;
    let expected = answers(&server, None).await;
    for (index, text) in expected.iter().enumerate() {
        assert!(text.chars().count() > 50, "{index}: {text:?}");
    }
    for (restarts, kind) in ["panic", "sampler", "scheduler", "device_lost"].into_iter().enumerate() {
        assert_eq!(answers(&server, Some(kind)).await, expected, "{kind}");
        assert_eq!(server.metric("cuelight_actor_restarts_total").await, (restarts + 1) as f64, "{kind}");
    }
}
