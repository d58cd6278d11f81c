//! Calls without the markers of the model's format, over HTTP: those of strict tools match the schema, or they are text.

#![allow(clippy::unwrap_used)]

mod common;

#[path = "support/tool_template.rs"]
mod tool_template;

use std::sync::Arc;

use cuelight::pipeline::simulation::{SimulatedModel, tokenizer_of_words};
use cuelight_engine::engine::EngineLimits;
use cuelight_engine::format::chat_template::ChatTemplate;
use serde_json::{Value, json};

use common::Server;
use tool_template::TOOL_TEMPLATE;

const CHAT: &str = "/v1/chat/completions";
const RIGHT: &str = r#"{"name":"clock","arguments":{"utc":true}}"#;
const WRONG: &str = r#"{"name":"clock","arguments":{"utc":"yes"}}"#;

/// Prompts after which the model writes its text a different number of times.
const PROMPTS: std::ops::Range<usize> = 0..12;

/// A model that writes a text without spaces, several times or not at all.
fn writer(text: &str) -> SimulatedModel {
    let base = SimulatedModel::new(tokenizer_of_words(&[text]));
    let limits = EngineLimits { context_tokens: 1024, ..base.limits.clone() };
    let chat_template = Some(Arc::new(ChatTemplate::new(TOOL_TEMPLATE, "", "").unwrap()));
    SimulatedModel { chat_template, output_tokens: [257].into(), end_one_in: 3, limits, ..base }
}

fn parameters() -> Value {
    json!({ "type": "object", "properties": { "utc": { "type": "boolean" } }, "required": ["utc"], "additionalProperties": false })
}

fn messages(prompt: usize) -> Value {
    json!([{ "role": "user", "content": format!("{prompt}: now?") }])
}

fn chat(prompt: usize, is_strict: bool, more: Value) -> Value {
    let function = json!({ "name": "clock", "description": "", "parameters": parameters(), "strict": is_strict });
    let mut body = json!({
        "messages": messages(prompt), "tools": [{ "type": "function", "function": function }], "temperature": 0, "max_tokens": 20,
    });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// The arguments of the calls of an answer or of a stream, its text, and how it ended.
fn parts(choices: &[&Value]) -> (Vec<String>, String, String) {
    let (mut calls, mut text, mut end) = (Vec::<String>::new(), String::new(), String::new());
    for choice in choices {
        let message = choice.get("delta").unwrap_or(&choice["message"]);
        text += message["content"].as_str().unwrap_or_default();
        for call in message["tool_calls"].as_array().into_iter().flatten() {
            if call["id"].is_string() {
                assert_eq!(call["function"]["name"], "clock");
                calls.push(String::new());
            }
            *calls.last_mut().unwrap() += call["function"]["arguments"].as_str().unwrap();
        }
        end += choice["finish_reason"].as_str().unwrap_or_default();
    }
    (calls, text, end)
}

/// The parts of an answer, which are the same in a stream.
async fn answered(server: &Server, body: &Value) -> (Vec<String>, String, String) {
    let whole = server.ok(CHAT, body).await;
    let mut body = body.clone();
    body["stream"] = json!(true);
    let chunks = server.post(CHAT, &body).await.chunks();
    let streamed: Vec<&Value> = chunks.iter().filter_map(|chunk| chunk["choices"].get(0)).collect();
    let parts_of_whole = parts(&[&whole["choices"][0]]);
    assert_eq!(parts(&streamed), parts_of_whole);
    parts_of_whole
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_of_a_strict_tool_matches_its_schema_or_is_text() {
    for (text, is_strict, is_call) in [(RIGHT, true, true), (WRONG, true, false), (WRONG, false, true)] {
        let server = Server::start(writer(text)).await;
        let mut written = 0;
        for prompt in PROMPTS {
            let (calls, content, end) = answered(&server, &chat(prompt, is_strict, json!({}))).await;
            let count = if is_call { calls.len() } else { content.len() / text.len() };
            if is_call {
                assert!(content.is_empty() && calls.iter().all(|arguments| text.contains(arguments)), "{content:?}");
            } else {
                assert_eq!((calls.len(), content.as_str()), (0, text.repeat(count).as_str()));
            }
            assert_eq!(end, if is_call && count > 0 { "tool_calls" } else { "stop" });
            written += count;
        }
        assert!(written > 4, "{written}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_is_cut_off_or_not_wanted_is_text() {
    let half = &RIGHT[..RIGHT.len() - 2];
    let server = Server::start(SimulatedModel { end_one_in: u64::MAX, ..writer(half) }).await;
    let cut_off = answered(&server, &chat(0, true, json!({ "max_tokens": 1 }))).await;
    assert_eq!(cut_off, (vec![], half.to_owned(), "length".to_owned()));

    let server = Server::start(SimulatedModel { end_one_in: u64::MAX, ..writer(RIGHT) }).await;
    let unwanted = answered(&server, &chat(0, true, json!({ "max_tokens": 1, "tool_choice": "none" }))).await;
    assert_eq!(unwanted, (vec![], RIGHT.to_owned(), "length".to_owned()));
    // The answer that the client asked for looks like a call.
    let asked = json!({ "structured_outputs": { "choice": [RIGHT] }, "max_tokens": 100 });
    assert_eq!(answered(&server, &chat(0, true, asked)).await, (vec![], RIGHT.to_owned(), "stop".to_owned()));
}

#[tokio::test(flavor = "multi_thread")]
async fn responses_have_calls_only_if_they_match() {
    for (text, is_call) in [(RIGHT, true), (WRONG, false)] {
        let server = Server::start(writer(text)).await;
        let mut written = 0;
        for prompt in PROMPTS {
            let tool = json!({ "type": "function", "name": "clock", "parameters": parameters(), "strict": true });
            let input = format!("{prompt}: now?");
            let mut body =
                json!({ "input": input, "tools": [tool], "temperature": 0, "max_output_tokens": 20, "store": false });
            let whole = server.ok("/v1/responses", &body).await;
            assert_eq!(whole["status"], "completed");
            let items = whole["output"].as_array().unwrap();
            let calls = items.iter().filter(|item| item["type"] == "function_call");
            let calls: Vec<&Value> = calls.map(|call| &call["arguments"]).collect();
            assert!(calls.iter().all(|arguments| **arguments == r#"{"utc":true}"#), "{whole}");
            let all_text: String = items.iter().filter_map(|item| item["content"][0]["text"].as_str()).collect();
            let expected = if is_call { String::new() } else { text.repeat(all_text.len() / text.len()) };
            assert_eq!(all_text, expected);
            assert!(is_call || calls.is_empty(), "{whole}");
            written += calls.len() + all_text.len() / text.len();
            body["stream"] = json!(true);
            let streamed = server.post("/v1/responses", &body).await.text();
            let has_calls = streamed.contains("response.function_call_arguments.done");
            let has_text = streamed.contains("response.output_text.delta");
            let is_empty = calls.is_empty() && all_text.is_empty();
            assert_eq!((has_calls, has_text), (is_call && !is_empty, !is_call && !is_empty), "{streamed}");
        }
        assert!(written > 4, "{written}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_stop_for_a_tool_only_if_a_call_matches() {
    for (text, is_call) in [(RIGHT, true), (WRONG, false)] {
        let server = Server::start(writer(text)).await;
        let mut written = 0;
        for prompt in PROMPTS {
            let tool = json!({ "name": "clock", "input_schema": parameters(), "strict": true });
            let mut body = json!({ "model": common::MODEL, "messages": messages(prompt), "tools": [tool], "temperature": 0, "max_tokens": 20 });
            let whole = server.ok("/v1/messages", &body).await;
            let blocks = whole["content"].as_array().unwrap();
            let kind = if is_call { "tool_use" } else { "text" };
            assert!(blocks.iter().all(|block| block["type"] == kind), "{whole}");
            let reason = if is_call && !blocks.is_empty() { "tool_use" } else { "end_turn" };
            assert_eq!(whole["stop_reason"], reason, "{whole}");
            body["stream"] = json!(true);
            let streamed = server.post("/v1/messages", &body).await.text();
            assert!(streamed.contains(&format!("\"stop_reason\":\"{reason}\"")), "{streamed}");
            written += blocks.len();
        }
        assert!(written > 4, "{written}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_schema_that_cannot_be_checked_is_refused() {
    let server = Server::start(writer(RIGHT)).await;
    let mut body = chat(0, true, json!({}));
    body["tools"][0]["function"]["parameters"]["properties"]["utc"] = json!({ "not": { "type": "string" } });
    let answer = server.post(CHAT, &body).await;
    assert_eq!(answer.status.as_u16(), 400, "{}", answer.text());
    assert_eq!(answer.json()["error"]["param"], "tools");
}
