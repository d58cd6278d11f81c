//! The Responses API over a simulated model. A constraint makes the model write what a test needs.

#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;
use std::time::Duration;

use axum::http::StatusCode;
use cuelight::api::ServerOptions;
use cuelight::pipeline::runtime::RuntimeOptions;
use cuelight::pipeline::simulation::{Fault, SimulatedModel, tokenizer};
use cuelight_engine::engine::EngineLimits;
use cuelight_engine::format::chat_template::ChatTemplate;
use serde_json::{Value, json};

use common::{Answer, MODEL, Server, model};

const RESPONSES: &str = "/v1/responses";

/// Every key that the Open Responses suite requires.
const KEYS: [&str; 32] = [
    "id",
    "object",
    "created_at",
    "completed_at",
    "status",
    "incomplete_details",
    "model",
    "previous_response_id",
    "instructions",
    "output",
    "error",
    "tools",
    "tool_choice",
    "truncation",
    "parallel_tool_calls",
    "text",
    "top_p",
    "presence_penalty",
    "frequency_penalty",
    "top_logprobs",
    "temperature",
    "reasoning",
    "user",
    "usage",
    "max_output_tokens",
    "max_tool_calls",
    "store",
    "background",
    "service_tier",
    "metadata",
    "safety_identifier",
    "prompt_cache_key",
];

/// Renders tools, calls and reasoning as Hermes-style templates do.
const TOOL_TEMPLATE: &str = "{% if tools %}tools:{% for tool in tools %}{{ tool | tojson }}{% endfor %}\n\
    call as <tool_call>\n{\"name\": n, \"arguments\": a}\n</tool_call>\n{% endif %}\
    {% for message in messages %}{{ message.role }}:\
    {% if message.reasoning_content %}<think>\n{{ message.reasoning_content }}\n</think>\n{% endif %}\
    {{ message.content }}\
    {% for call in message.tool_calls %}\n<tool_call>\n{\"name\": \"{{ call.function.name }}\", \"arguments\": \
    {{ call.function.arguments | tojson }}}\n</tool_call>{% endfor %}\n{% endfor %}\
    {% if add_generation_prompt %}assistant:\
    {% if enable_thinking is defined and not enable_thinking %}<think>\n</think>\n{% endif %}{% endif %}";

fn tool_model() -> SimulatedModel {
    let template = ChatTemplate::new(TOOL_TEMPLATE, "", "").unwrap();
    let base = SimulatedModel::new(tokenizer());
    let limits = EngineLimits { context_tokens: 4000, kv_blocks: 1024, ..base.limits.clone() };
    SimulatedModel { chat_template: Some(Arc::new(template)), limits, ..base }
}

/// A request whose answer is `text`. The model reasons only if the text begins with reasoning.
fn saying(text: &str, more: Value) -> Value {
    let mut body = json!({ "input": "go", "structured_outputs": { "choice": [text] } });
    if !text.starts_with("<think>") {
        body["reasoning"] = json!({ "effort": "none" });
    }
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

fn weather() -> Value {
    json!({
        "type": "function", "name": "weather", "description": "The weather.", "strict": true,
        "parameters": { "type": "object", "properties": { "city": { "type": "string" } }, "required": ["city"] },
    })
}

/// The events of a stream. Each has its type as its name, and its number.
fn events(answer: &Answer) -> Vec<Value> {
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.text());
    assert_eq!(answer.headers["content-type"], "text/event-stream");
    let text = answer.text();
    let frames = text.split("\n\n").filter(|frame| !frame.is_empty() && !frame.starts_with(':'));
    let event = |(number, frame): (usize, &str)| {
        let (name, data) = frame.split_once('\n').unwrap();
        let event: Value = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
        assert_eq!(name.strip_prefix("event: "), event["type"].as_str(), "{frame}");
        assert_eq!(event["sequence_number"], number);
        event
    };
    frames.enumerate().map(event).collect()
}

async fn stream(server: &Server, body: &Value) -> Vec<Value> {
    let mut body = body.clone();
    body["stream"] = json!(true);
    events(&server.post(RESPONSES, &body).await)
}

/// The types, without `response.` and with repetitions left out.
fn kinds(events: &[Value]) -> Vec<&str> {
    let mut kinds: Vec<_> =
        events.iter().map(|event| event["type"].as_str().unwrap().strip_prefix("response.").unwrap()).collect();
    kinds.dedup();
    kinds
}

/// What does not change between two runs of the same request.
fn lasting(mut output: Value) -> Value {
    for item in output.as_array_mut().unwrap() {
        item.as_object_mut().unwrap().remove("id");
        item.as_object_mut().unwrap().remove("call_id");
    }
    output
}

#[tokio::test(flavor = "multi_thread")]
async fn a_response_has_every_key_and_repeats_the_request() {
    let server = Server::start(model()).await;
    let body = json!({
        "model": MODEL, "input": "hi", "instructions": "be brief", "max_output_tokens": 8, "temperature": 0.1,
        "metadata": { "a": "b" }, "store": true, "service_tier": "auto", "prompt_cache_key": "k", "user": "u",
        "safety_identifier": "s", "truncation": "auto", "reasoning": { "effort": "low" }, "ignore_eos": true,
        "seed": 1,
    });
    let response = server.ok(RESPONSES, &body).await;
    for key in KEYS {
        assert!(response.get(key).is_some(), "{key}");
    }
    for key in ["model", "instructions", "max_output_tokens", "temperature", "metadata", "prompt_cache_key", "user"] {
        assert_eq!(response[key], body[key], "{key}");
    }
    assert!(response["id"].as_str().unwrap().starts_with("resp_"));
    assert_eq!(response["reasoning"], json!({ "effort": "low", "summary": null }));
    assert_eq!((&response["store"], &response["tool_choice"]), (&json!(true), &json!("auto")));
    assert_eq!(response["status"], "incomplete");
    assert_eq!(response["incomplete_details"], json!({ "reason": "max_output_tokens" }));
    let message = &response["output"][0];
    assert_eq!((&message["type"], &message["role"]), (&json!("message"), &json!("assistant")));
    assert_eq!(message["status"], "incomplete");
    assert!((1..=8).contains(&message["content"][0]["text"].as_str().unwrap().len()), "{message}");
    assert_eq!(response["usage"]["output_tokens"], 8);
    let prompt = "system:be brief\nuser:hi\nassistant:".len();
    assert_eq!(response["usage"]["input_tokens"], prompt);
    assert_eq!(response["usage"]["total_tokens"], prompt + 8);
    let counted = server.ok("/v1/responses/input_tokens", &body).await;
    assert_eq!(counted, json!({ "object": "response.input_tokens", "input_tokens": prompt }));
}

#[tokio::test(flavor = "multi_thread")]
async fn text_streams_in_the_order_that_clients_accept() {
    let server = Server::start(model()).await;
    let body = saying("yes it is", json!({}));
    let whole = server.ok(RESPONSES, &body).await;
    assert_eq!((&whole["status"], &whole["incomplete_details"]), (&json!("completed"), &Value::Null));
    assert!(whole["completed_at"].is_u64());
    let events = stream(&server, &body).await;
    assert_eq!(
        kinds(&events),
        [
            "created",
            "in_progress",
            "output_item.added",
            "content_part.added",
            "output_text.delta",
            "output_text.done",
            "content_part.done",
            "output_item.done",
            "completed",
        ]
    );
    let deltas: String = events.iter().filter_map(|event| event["delta"].as_str()).collect();
    assert_eq!(deltas, "yes it is");
    let id = &events[2]["item"]["id"];
    assert!(id.as_str().unwrap().starts_with("msg_"));
    for event in &events[3..events.len() - 2] {
        assert_eq!((&event["item_id"], &event["output_index"], &event["content_index"]), (id, &json!(0), &json!(0)));
    }
    assert_eq!(events[2]["item"]["content"], json!([]));
    assert_eq!(events[4]["logprobs"], json!([]));
    let last = &events.last().unwrap()["response"];
    assert_eq!(last["id"], events[0]["response"]["id"]);
    assert_eq!(last["output"][0], events[events.len() - 2]["item"]);
    assert_eq!(lasting(last["output"].clone()), lasting(whole["output"].clone()));
}

#[tokio::test(flavor = "multi_thread")]
async fn reasoning_and_a_call_are_items_of_their_own() {
    let server = Server::start(tool_model()).await;
    let text = "<think>\nlook it up\n</think>\n\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Rome\"}}\n</tool_call>";
    let body = saying(text, json!({ "tools": [weather()], "include": ["reasoning.encrypted_content"] }));
    let events = stream(&server, &body).await;
    assert_eq!(
        kinds(&events),
        [
            "created",
            "in_progress",
            "output_item.added",
            "content_part.added",
            "reasoning_text.delta",
            "reasoning_text.done",
            "content_part.done",
            "output_item.done",
            "output_item.added",
            "function_call_arguments.delta",
            "function_call_arguments.done",
            "output_item.done",
            "completed",
        ]
    );
    let response = &events.last().unwrap()["response"];
    let [reasoning, call] = response["output"].as_array().unwrap().as_slice() else { panic!("{response}") };
    assert_eq!(reasoning["type"], "reasoning");
    assert_eq!(reasoning["content"][0]["type"], "reasoning_text");
    assert!(reasoning["encrypted_content"].as_str().unwrap().contains("look it up"));
    assert_eq!(reasoning["content"][0]["text"].as_str().unwrap().trim(), "look it up");
    assert_eq!(
        (&call["type"], &call["name"], &call["status"]),
        (&json!("function_call"), &json!("weather"), &json!("completed"))
    );
    assert!(call["call_id"].as_str().unwrap().starts_with("call_"));
    let arguments: Value = serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap();
    assert_eq!(arguments, json!({ "city": "Rome" }));
    let deltas = events.iter().filter(|event| event["type"] == "response.function_call_arguments.delta");
    assert_eq!(
        deltas.map(|event| event["delta"].as_str().unwrap()).collect::<String>(),
        call["arguments"].as_str().unwrap()
    );
    assert!(response["usage"]["output_tokens_details"]["reasoning_tokens"].as_u64().unwrap() > 0);
    assert_eq!(response["tools"], json!([weather()]));

    // The items go back as they came, with the output of the call.
    let output = json!({ "type": "function_call_output", "call_id": call["call_id"], "output": "sunny" });
    let input = json!([{ "role": "user", "content": "go" }, reasoning, call, output]);
    let next = saying("It is sunny.", json!({ "input": input, "tools": [weather()] }));
    let whole = server.ok(RESPONSES, &next).await;
    assert_eq!(whole["output"][0]["content"][0]["text"], "It is sunny.");
    let without = json!([input[0], input[2], input[3]]);
    let mut counts = Vec::new();
    for input in [input, without] {
        let body = json!({ "input": input, "tools": [weather()] });
        counts.push(server.ok("/v1/responses/input_tokens", &body).await["input_tokens"].as_u64().unwrap());
    }
    assert!(counts[0] > counts[1], "{counts:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_custom_tool_is_called_with_text() {
    let server = Server::start(tool_model()).await;
    let text = "<tool_call>\n{\"name\": \"patch\", \"arguments\": {\"input\": \"*** Begin\\nend\"}}\n</tool_call>";
    let tools = json!([{ "type": "custom", "name": "patch" }, { "type": "web_search" }]);
    let events = stream(&server, &saying(text, json!({ "tools": tools }))).await;
    assert_eq!(
        kinds(&events)[2..],
        [
            "output_item.added",
            "custom_tool_call_input.delta",
            "custom_tool_call_input.done",
            "output_item.done",
            "completed",
        ]
    );
    let deltas = events.iter().filter(|event| event["type"] == "response.custom_tool_call_input.delta");
    let deltas: Vec<&str> = deltas.map(|event| event["delta"].as_str().unwrap()).collect();
    assert!(deltas.len() > 1 && deltas.concat() == "*** Begin\nend", "{deltas:?}");
    let item = &events.last().unwrap()["response"]["output"][0];
    assert_eq!((&item["type"], &item["input"]), (&json!("custom_tool_call"), &json!("*** Begin\nend")));
}

/// As Codex sends the tools of an MCP server, and the result of a call of one.
#[tokio::test(flavor = "multi_thread")]
async fn a_tool_in_a_namespace_is_called_by_both_names() {
    let server = Server::start(tool_model()).await;
    let text = "<tool_call>\n{\"name\": \"mcp__sky__weather\", \"arguments\": {\"city\": \"Rome\"}}\n</tool_call>";
    let tools = json!([{ "type": "namespace", "name": "mcp__sky", "description": "The sky.", "tools": [weather()] }]);
    let body = saying(text, json!({ "tools": tools }));
    let whole = server.ok(RESPONSES, &body).await;
    let events = stream(&server, &body).await;
    let added = events.iter().find(|event| event["type"] == "response.output_item.added").unwrap();
    for item in [&whole["output"][0], &added["item"], &events.last().unwrap()["response"]["output"][0]] {
        assert_eq!((&item["type"], &item["name"]), (&json!("function_call"), &json!("weather")), "{item}");
        assert_eq!(item["namespace"], "mcp__sky", "{item}");
    }
    let call = whole["output"][0].clone();
    let result = json!({ "type": "function_call_output", "call_id": call["call_id"], "output": "sunny" });
    let count = |call: Value| {
        let body = json!({ "input": [{ "role": "user", "content": "go" }, call, result.clone()], "tools": tools });
        let (server, body) = (&server, body);
        async move { server.ok("/v1/responses/input_tokens", &body).await["input_tokens"].as_u64().unwrap() }
    };
    let mut plain = call.clone();
    (plain["name"], plain["namespace"]) = (json!("mcp__sky__weather"), json!(null));
    assert_eq!(count(call).await, count(plain).await, "the model reads its own name of the tool");
}

#[tokio::test(start_paused = true)]
async fn events_fill_the_time_without_output() {
    let slow = SimulatedModel { step_time: Duration::from_secs(25), ..tool_model() };
    let server = Server::start(slow).await;
    let body = json!({ "input": "go", "stream": true, "max_output_tokens": 1, "ignore_eos": true });
    let events = events(&server.post(RESPONSES, &body).await);
    assert!(events[1..4].iter().all(|event| event["type"] == "response.in_progress"), "{events:?}");
    assert_eq!(events[3]["response"]["status"], "in_progress");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_call_is_left_out_unless_calls_may_be_parallel() {
    let server = Server::start(tool_model()).await;
    let call = |city: &str| {
        format!("<tool_call>\n{{\"name\": \"weather\", \"arguments\": {{\"city\": \"{city}\"}}}}\n</tool_call>")
    };
    let text = format!("{}\n{}", call("Rome"), call("Oslo"));
    for (parallel, count) in [(true, 2), (false, 1)] {
        let body = saying(&text, json!({ "tools": [weather()], "parallel_tool_calls": parallel }));
        let whole = server.ok(RESPONSES, &body).await;
        let events = stream(&server, &body).await;
        for response in [&whole, &events.last().unwrap()["response"]] {
            let calls = response["output"].as_array().unwrap();
            assert_eq!(calls.len(), count, "{response}");
            assert!(calls[0]["arguments"].as_str().unwrap().contains("Rome"), "{response}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_request_of_codex_is_answered() {
    let server = Server::start(tool_model()).await;
    let body = json!({
        "model": MODEL, "instructions": "You are a coding agent.", "stream": true, "store": false,
        "input": [
            { "type": "message", "role": "developer", "content": [{ "type": "input_text", "text": "rules" }] },
            { "type": "message", "role": "user", "content": [{ "type": "input_text", "text": "hi" }] },
        ],
        "tools": [
            { "type": "function", "name": "shell", "strict": false, "parameters": { "type": "object" } },
            { "type": "custom", "name": "apply_patch", "format": {
                "type": "grammar", "syntax": "lark", "definition": "start: \"x\""
            } },
            { "type": "namespace", "name": "mcp__sky", "description": "The sky.", "tools": [weather()] },
            { "type": "web_search" }, { "type": "tool_search" },
            { "type": "image_generation" },
        ],
        "tool_choice": "auto", "parallel_tool_calls": true, "include": ["reasoning.encrypted_content"],
        "reasoning": { "effort": "medium", "summary": "auto" }, "prompt_cache_key": "thread", "text": { "verbosity": "low" },
        "client_metadata": { "a": "b" }, "max_output_tokens": 5, "ignore_eos": true,
    });
    let events = events(&server.post(RESPONSES, &body).await);
    assert_eq!(kinds(&events).last(), Some(&"incomplete"));
    let response = &events.last().unwrap()["response"];
    assert_eq!(response["tools"].as_array().unwrap().len(), 6);
    assert!(response["usage"]["total_tokens"].is_u64());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_matches_its_format() {
    let server = Server::start(model()).await;
    let schema = json!({
        "type": "object", "properties": { "a": { "enum": ["x", "y"] } }, "required": ["a"], "additionalProperties": false,
    });
    let format = json!({ "type": "json_schema", "name": "n", "strict": true, "schema": schema });
    let response = server.ok(RESPONSES, &json!({ "input": "go", "text": { "format": format } })).await;
    let text = response["output"][0]["content"][0]["text"].as_str().unwrap();
    assert!(["x", "y"].map(Value::from).contains(&serde_json::from_str::<Value>(text).unwrap()["a"]), "{text}");
    for key in ["type", "name", "strict", "schema"] {
        assert_eq!(response["text"]["format"][key], format[key], "{key}");
    }

    let format = json!({ "type": "json_schema", "name": "n", "schema": { "type": "nothing" } });
    let refused = server.post(RESPONSES, &json!({ "input": "go", "text": { "format": format } })).await;
    assert_eq!(refused.status, StatusCode::BAD_REQUEST);
    assert!(refused.json()["error"]["param"].as_str().unwrap().starts_with("text.format.schema"), "{}", refused.text());
}

#[tokio::test(flavor = "multi_thread")]
async fn log_probabilities_come_with_the_text_when_included() {
    let server = Server::start(model()).await;
    let body = saying("yes", json!({ "include": ["message.output_text.logprobs"], "top_logprobs": 2 }));
    let events = stream(&server, &body).await;
    let deltas = events.iter().filter(|event| event["type"] == "response.output_text.delta");
    let streamed: Vec<Value> = deltas.flat_map(|event| event["logprobs"].as_array().unwrap().clone()).collect();
    let response = &events.last().unwrap()["response"];
    assert_eq!(response["output"][0]["content"][0]["logprobs"], json!(streamed));
    assert_eq!(streamed.iter().map(|one| one["token"].as_str().unwrap()).collect::<String>(), "yes");
    assert_eq!(streamed[0]["top_logprobs"].as_array().unwrap().len(), 2);
    assert_eq!(response["top_logprobs"], 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_done_is_refused_by_name() {
    let server = Server::start(model()).await;
    let image = json!([{ "role": "user", "content": [{ "type": "input_image", "image_url": "data:;base64,aGk=" }] }]);
    for (body, param) in [
        (json!({}), "input"),
        (json!({ "input": [] }), "input"),
        (json!({ "input": image }), "input[0].content[0].type"),
        (json!({ "input": [{ "type": "item_reference", "id": "msg_1" }] }), "input[0].type"),
        (json!({ "input": "a", "background": true }), "background"),
        (json!({ "input": "a", "previous_response_id": "resp_1" }), "previous_response_id"),
        (json!({ "input": "a", "previous_response_id": 5 }), "previous_response_id"),
        (json!({ "input": "a", "store": 5 }), "store"),
        (json!({ "input": "a", "conversation": "conv_1" }), "conversation"),
        (json!({ "input": "a", "metadata": "x" }), "metadata"),
        (json!({ "input": "a", "reasoning": { "effort": "huge" } }), "reasoning.effort"),
        (json!({ "input": "a", "tool_choice": "required" }), "tool_choice"),
        (json!({ "input": "a", "tools": [weather()] }), "tools"),
        (json!({ "input": "a", "max_output_tokens": 0 }), "max_output_tokens"),
    ] {
        let answer = server.post(RESPONSES, &body).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{body}");
        assert_eq!(answer.json()["error"]["param"], param, "{}", answer.text());
    }
    let long = server.post(RESPONSES, &json!({ "input": "a".repeat(600) })).await;
    assert_eq!(long.json()["error"]["code"], "context_length_exceeded");
    let unknown = server.post(RESPONSES, &json!({ "model": "none", "input": "a" })).await;
    assert_eq!(unknown.status, StatusCode::NOT_FOUND);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failure_in_the_stream_is_its_last_event() {
    let faults: cuelight::pipeline::simulation::FaultInjector =
        Arc::new(|step, _| (step >= 4).then_some(Fault::InvalidStep));
    let broken = SimulatedModel { faults: Some(faults), end_one_in: u64::MAX, ..model() };
    let server = Server::start_with(broken, RuntimeOptions::default(), ServerOptions::new(MODEL)).await;
    let events = stream(&server, &json!({ "input": "go", "max_output_tokens": 50 })).await;
    assert_eq!(kinds(&events).last(), Some(&"failed"));
    let response = &events.last().unwrap()["response"];
    assert_eq!((&response["status"], &response["error"]["code"]), (&json!("failed"), &json!("server_error")));
    assert!(response["error"]["message"].is_string());
}
