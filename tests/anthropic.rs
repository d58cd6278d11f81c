//! Anthropic's protocol over a simulated model, called in-process.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{Method, Request, StatusCode};
use cuelight::api::ServerOptions;
use cuelight::pipeline::runtime::RuntimeOptions;
use cuelight::pipeline::simulation::{Fault, SimulatedModel, tokenizer};
use cuelight_engine::format::chat_template::ChatTemplate;
use serde_json::{Value, json};

use common::{Answer, MODEL, Server, model, post};

const MESSAGES: &str = "/v1/messages";
const COUNT: &str = "/v1/messages/count_tokens";

/// A template with tools and reasoning. Calls are JSON objects with `name` and `parameters`.
const TEMPLATE: &str = "{# <|python_tag|> \"parameters\" #}\
    {% for tool in tools or [] %}tool:{{ tool | tojson }}\n{% endfor %}\
    {% for message in messages %}{{ message.role }}:\
    {% if message.reasoning_content %}<think>{{ message.reasoning_content }}</think>{% endif %}\
    {{ message.content }}\
    {% for call in message.tool_calls or [] %}{{ call | tojson }}{% endfor %}\n{% endfor %}\
    {% if add_generation_prompt %}assistant:{% if reasoning_effort %}{{ reasoning_effort }}:{% endif %}\
    {% if enable_thinking %}<think>{% elif enable_thinking is defined %}<think></think>{% endif %}{% endif %}";

/// A request with more fields.
fn request(more: Value) -> Value {
    let mut body =
        json!({ "model": MODEL, "messages": [{ "role": "user", "content": "hi" }], "max_tokens": 8, "temperature": 0 });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// A model that never ends an answer itself.
fn tireless() -> SimulatedModel {
    SimulatedModel { end_one_in: u64::MAX, ..model() }
}

/// A model with a template for tools and reasoning, and a context for long prompts.
fn agent() -> SimulatedModel {
    let template = ChatTemplate::new(TEMPLATE, "", "").unwrap();
    let mut model = SimulatedModel { chat_template: Some(Arc::new(template)), ..SimulatedModel::new(tokenizer()) };
    model.limits.context_tokens = 4096;
    model.limits.kv_blocks = 1024;
    SimulatedModel { end_one_in: u64::MAX, ..model }
}

fn tool(name: &str) -> Value {
    let x = json!({ "type": "string", "enum": ["north", "south"] });
    json!({ "name": name, "description": "a tool",
            "input_schema": { "type": "object", "properties": { "x": x }, "required": ["x"] } })
}

/// Fields with a tool that must be called: the simulated model writes letters otherwise.
fn calling() -> Value {
    let mut tool = tool("go");
    tool["input_schema"]["additionalProperties"] = json!(false);
    json!({ "tools": [tool], "tool_choice": { "type": "any", "disable_parallel_tool_use": true }, "max_tokens": 300,
            "thinking": { "type": "disabled" } })
}

/// The events of a stream: what `event:` and `data:` say, which must be the same type.
fn events(answer: &Answer) -> Vec<Value> {
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.text());
    assert_eq!(answer.headers["content-type"], "text/event-stream");
    let read = |frame: &str| {
        let (event, data) = frame.split_once('\n').unwrap_or_else(|| panic!("{frame:?}"));
        let data: Value = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
        assert_eq!(json!(event.strip_prefix("event: ").unwrap()), data["type"]);
        data
    };
    answer.text().split("\n\n").filter(|frame| !frame.is_empty()).map(read).collect()
}

/// The message that the events of a stream make, as Anthropic's clients put it together.
fn assembled(events: &[Value]) -> Value {
    let mut message = Value::Null;
    let mut input = String::new();
    for event in events {
        let at = event["index"].as_u64().unwrap_or_default() as usize;
        match event["type"].as_str().unwrap() {
            "message_start" => message = event["message"].clone(),
            "content_block_start" => {
                let blocks = message["content"].as_array_mut().unwrap();
                assert_eq!(blocks.len(), at, "blocks are numbered in their order");
                blocks.push(event["content_block"].clone());
                input.clear();
            }
            "content_block_delta" => {
                let delta = &event["delta"];
                let block = &mut message["content"][at];
                for key in ["text", "thinking", "signature"] {
                    if let Some(more) = delta[key].as_str() {
                        block[key] = json!(format!("{}{more}", block[key].as_str().unwrap()));
                    }
                }
                input.push_str(delta["partial_json"].as_str().unwrap_or_default());
            }
            "content_block_stop" if message["content"][at]["type"] == "tool_use" => {
                message["content"][at]["input"] = serde_json::from_str(&input).unwrap();
            }
            "message_delta" => {
                message["stop_reason"] = event["delta"]["stop_reason"].clone();
                message["stop_sequence"] = event["delta"]["stop_sequence"].clone();
                message["usage"] = event["usage"].clone();
            }
            _ => {}
        }
    }
    message
}

fn kinds(events: &[Value]) -> Vec<&str> {
    events.iter().map(|event| event["type"].as_str().unwrap()).collect()
}

#[track_caller]
fn assert_error(answer: &Answer, status: u16, kind: &str, words: &str) {
    let body = answer.json();
    assert_eq!(answer.status, status, "{body}");
    assert_eq!((&body["type"], &body["error"]["type"]), (&json!("error"), &json!(kind)), "{body}");
    let message = body["error"]["message"].as_str().unwrap();
    assert!(message.contains(words), "{message}");
    let id = answer.headers["request-id"].to_str().unwrap();
    assert_eq!((body["request_id"].as_str(), answer.headers["x-request-id"].to_str().unwrap()), (Some(id), id));
    assert_eq!(answer.headers["content-type"], "application/json");
}

#[tokio::test]
async fn an_answer_is_a_message_with_its_usage() {
    let server = Server::start(tireless()).await;
    let answer = server.post(MESSAGES, &request(json!({}))).await;
    assert!(answer.headers["request-id"].to_str().unwrap().starts_with("req_"));
    let message = answer.json();
    assert!(message["id"].as_str().unwrap().starts_with("msg_"));
    assert_eq!(
        (&message["type"], &message["role"], &message["model"]),
        (&json!("message"), &json!("assistant"), &json!(MODEL))
    );
    assert_eq!(message["content"].as_array().unwrap().len(), 1);
    assert_eq!(message["content"][0]["type"], "text");
    assert!(!message["content"][0]["text"].as_str().unwrap().is_empty());
    assert_eq!((&message["stop_reason"], &message["stop_sequence"]), (&json!("max_tokens"), &Value::Null));
    let prompt = "user:hi\nassistant:".len();
    let expected = json!({
        "input_tokens": prompt, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0, "output_tokens": 8,
    });
    assert_eq!(message["usage"], expected);

    let again = server.ok(MESSAGES, &request(json!({}))).await;
    assert_eq!(again["usage"]["cache_read_input_tokens"], 16);
    assert_eq!(again["usage"]["input_tokens"], prompt - 16);
    assert_eq!(again["content"], message["content"]);
}

#[tokio::test]
async fn a_stream_makes_the_same_message() {
    let server = Server::start(tireless()).await;
    let whole = server.ok(MESSAGES, &request(json!({}))).await;
    let events = events(&server.post(MESSAGES, &request(json!({ "stream": true }))).await);
    let [start, ping, block, deltas @ .., stop, delta, end] = events.as_slice() else { panic!("{events:?}") };
    assert_eq!(kinds(&[start.clone(), ping.clone()]), ["message_start", "ping"]);
    assert_eq!(start["message"]["content"], json!([]));
    assert_eq!(start["message"]["stop_reason"], Value::Null);
    assert_eq!(start["message"]["usage"]["output_tokens"], 0);
    let expected =
        json!({ "type": "content_block_start", "index": 0, "content_block": { "type": "text", "text": "" } });
    assert_eq!(*block, expected);
    assert!(deltas.iter().all(|event| event["delta"]["type"] == "text_delta"), "{deltas:?}");
    assert_eq!(*stop, json!({ "type": "content_block_stop", "index": 0 }));
    assert_eq!(delta["type"], "message_delta");
    assert_eq!(*end, json!({ "type": "message_stop" }));

    let mut message = assembled(&events);
    assert!(message["id"].as_str().unwrap().starts_with("msg_"));
    // The same prompt was computed a moment ago.
    assert_eq!(message["usage"]["cache_read_input_tokens"], 16);
    for key in ["id", "usage"] {
        message[key] = whole[key].clone();
    }
    assert_eq!(message, whole);
}

#[tokio::test]
async fn each_end_of_an_answer_has_its_reason() {
    let server = Server::start(SimulatedModel { end_one_in: 1, ..model() }).await;
    let message = server.ok(MESSAGES, &request(json!({}))).await;
    assert_eq!((&message["content"], &message["stop_reason"]), (&json!([]), &json!("end_turn")));

    let server = Server::start(tireless()).await;
    let whole = server.ok(MESSAGES, &request(json!({ "max_tokens": 24 }))).await;
    let text = whole["content"][0]["text"].as_str().unwrap();
    let stop = &text[4..9];
    for stream in [false, true] {
        let more = json!({ "max_tokens": 24, "stop_sequences": ["never", stop], "stream": stream });
        let answer = server.post(MESSAGES, &request(more)).await;
        let message = if stream { assembled(&events(&answer)) } else { answer.json() };
        assert_eq!((&message["stop_reason"], &message["stop_sequence"]), (&json!("stop_sequence"), &json!(stop)));
        assert_eq!(message["content"][0]["text"], text[..text.find(stop).unwrap()]);
    }
}

#[tokio::test]
async fn a_call_of_a_tool_is_a_block_with_an_object() {
    let server = Server::start(agent()).await;
    let whole = server.ok(MESSAGES, &request(calling())).await;
    assert_eq!(whole["stop_reason"], "tool_use", "{whole}");
    let block = &whole["content"][0];
    assert_eq!((&block["type"], &block["name"]), (&json!("tool_use"), &json!("go")));
    assert!(block["input"] == json!({ "x": "north" }) || block["input"] == json!({ "x": "south" }), "{block}");
    assert!(!block["id"].as_str().unwrap().is_empty());

    let mut more = calling();
    more["stream"] = json!(true);
    let events = events(&server.post(MESSAGES, &request(more)).await);
    assert_eq!(events[2]["content_block"]["input"], json!({}));
    assert_eq!(events[3]["delta"]["type"], "input_json_delta");
    let message = assembled(&events);
    assert_eq!(message["stop_reason"], "tool_use");
    assert_eq!(message["content"][0]["input"], block["input"]);
}

#[tokio::test]
async fn the_conversation_with_results_of_tools_reaches_the_model() {
    let server = Server::start(agent()).await;
    let conversation = json!([
        { "role": "user", "content": "Where?" },
        { "role": "assistant", "content": [
            { "type": "thinking", "thinking": "Hm.", "signature": "s" },
            { "type": "text", "text": "I look." },
            { "type": "tool_use", "id": "toolu_1", "name": "go", "input": { "x": "north" } },
        ] },
        { "role": "user", "content": [
            { "type": "tool_result", "tool_use_id": "toolu_1", "content": "a wall", "is_error": true },
            { "type": "text", "text": "Well?" },
        ] },
        { "role": "system", "content": "Answer now." },
    ]);
    let body = request(json!({ "system": "Be brief.", "tools": [tool("go")], "messages": conversation }));
    let count = server.ok(COUNT, &body).await;
    let function = json!({ "name": "go", "description": "a tool", "parameters": tool("go")["input_schema"] });
    let call = json!({ "id": "toolu_1", "type": "function",
                       "function": { "name": "go", "arguments": { "x": "north" } } });
    let same = json!({
        "tools": [{ "type": "function", "function": function }],
        "messages": [
            { "role": "system", "content": "Be brief." },
            { "role": "user", "content": "Where?" },
            { "role": "assistant", "content": "I look.", "reasoning_content": "Hm.", "tool_calls": [call] },
            { "role": "tool", "tool_call_id": "toolu_1", "name": "go", "content": "Error: a wall" },
            { "role": "user", "content": "Well?" },
            { "role": "system", "content": "Answer now." },
        ],
    });
    let tokens = server.ok("/tokenize", &same).await;
    assert_eq!(count, json!({ "input_tokens": tokens["count"] }));
    let message = server.ok(MESSAGES, &body).await;
    assert_eq!(message["usage"]["input_tokens"], tokens["count"]);
}

#[tokio::test]
async fn thinking_is_a_block_and_a_variable_of_the_template() {
    let server = Server::start(agent()).await;
    let message = server.ok(MESSAGES, &request(json!({ "thinking": { "type": "disabled" } }))).await;
    assert_eq!(message["content"][0]["type"], "text");
    for thinking in [json!({ "type": "adaptive" }), json!({ "type": "enabled", "budget_tokens": 1024 })] {
        let more = json!({ "thinking": thinking, "output_config": { "effort": "low" } });
        let whole = server.ok(MESSAGES, &request(more.clone())).await;
        let block = &whole["content"][0];
        assert_eq!(block["type"], "thinking", "{whole}");
        assert!(!block["thinking"].as_str().unwrap().is_empty() && !block["signature"].as_str().unwrap().is_empty());

        let mut streamed = more.clone();
        streamed["stream"] = json!(true);
        let events = events(&server.post(MESSAGES, &request(streamed)).await);
        let of_block: Vec<&Value> = events.iter().filter(|event| event["delta"]["type"].is_string()).collect();
        assert_eq!(of_block[0]["delta"]["type"], "thinking_delta");
        assert_eq!(of_block.last().unwrap()["delta"]["type"], "signature_delta");
        assert_eq!(assembled(&events)["content"], whole["content"]);
        let with = server.ok(COUNT, &request(more)).await["input_tokens"].as_u64().unwrap();
        let without = server.ok(COUNT, &request(json!({}))).await["input_tokens"].as_u64().unwrap();
        assert_eq!(with - without, "low:<think>".len() as u64);
    }
}

#[tokio::test]
async fn a_last_message_of_the_assistant_is_continued() {
    let server = Server::start(tireless()).await;
    let messages = json!([{ "role": "user", "content": "hi" }, { "role": "assistant", "content": "Well," }]);
    let count = server.ok(COUNT, &request(json!({ "messages": messages }))).await;
    assert_eq!(count["input_tokens"], "user:hi\nassistant:Well,".len());
}

/// What Claude Code sends, in short.
fn claude_code(stream: bool) -> Value {
    let cached = json!({ "type": "ephemeral", "ttl": "1h" });
    json!({
        "model": MODEL,
        "max_tokens": 32000,
        "stream": stream,
        "system": [
            { "type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.165; cch=0a1b2;" },
            { "type": "text", "text": "You are an agent.", "cache_control": cached },
        ],
        "messages": [
            { "role": "user", "content": [
                { "type": "text", "text": "<system-reminder>Today is a day.</system-reminder>" },
                { "type": "text", "text": "Say hi.", "cache_control": cached },
            ] },
            { "role": "system", "content": "The user opened a file." },
        ],
        "tools": [tool("go"), { "type": "web_search_20250305", "name": "web_search", "max_uses": 8 }],
        "thinking": { "type": "adaptive" },
        "output_config": { "effort": "medium" },
        "context_management": { "edits": [{ "type": "clear_thinking_20251015", "keep": "all" }] },
        "metadata": { "user_id": "{\"device_id\":\"d\",\"session_id\":\"s\"}" },
        "a_field_of_a_later_version": { "x": [1] },
    })
}

#[tokio::test]
async fn the_request_of_claude_code_is_accepted() {
    let server = Server::start(SimulatedModel { end_one_in: 40, ..agent() }).await;
    let head = Request::builder().method(Method::HEAD).uri("/").body(Body::empty()).unwrap();
    assert_eq!(server.call(head).await.status, StatusCode::OK);
    for stream in [false, true] {
        let mut call = post("/v1/messages?beta=true", &claude_code(stream));
        let headers = call.headers_mut();
        headers.insert("x-api-key", "any".parse().unwrap());
        headers.insert("anthropic-version", "2023-06-01".parse().unwrap());
        headers.insert("anthropic-beta", "claude-code-20250219,interleaved-thinking-2025-05-14".parse().unwrap());
        let answer = server.call(call).await;
        let message = if stream { assembled(&events(&answer)) } else { answer.json() };
        assert_eq!(answer.status, StatusCode::OK, "{}", answer.text());
        assert_eq!(message["content"][0]["type"], "thinking", "{message}");
        assert_eq!(message["stop_reason"], "end_turn");
    }
    let mut later = claude_code(false);
    later["system"][0]["text"] = json!("x-anthropic-billing-header: cc_version=2.1.165; cch=9f9f9;");
    let message = server.ok(MESSAGES, &later).await;
    let usage = &message["usage"];
    let (cached, new) = (&usage["cache_read_input_tokens"], usage["input_tokens"].as_u64().unwrap());
    assert!(cached.as_u64().unwrap() > 0 && new <= 16, "the line for billing does not disturb the cache: {usage}");
}

#[tokio::test]
async fn an_invalid_request_is_a_400_that_names_the_field() {
    let server = Server::start(model()).await;
    let image = json!([{ "type": "image", "source": { "type": "base64", "media_type": "image/png", "data": "" } }]);
    for (more, words) in [
        (json!({ "max_tokens": null }), "`max_tokens` is required"),
        (json!({ "messages": [] }), "`messages` must have"),
        (
            json!({ "messages": [{ "role": "user", "content": image }] }),
            "`messages[0].content[0].type` cannot be image",
        ),
        (json!({ "temperature": "hot" }), "`temperature` must be a number"),
        (json!({ "tools": [tool("go")] }), "ignores `tools`"),
        (json!({ "tools": [tool("go")], "tool_choice": { "type": "tool", "name": "stop" } }), "`tool_choice.name`"),
        (json!({ "messages": [{ "role": "user", "content": "a".repeat(600) }] }), "prompt is too long: 6"),
    ] {
        for stream in [false, true] {
            let mut body = request(more.clone());
            body["stream"] = json!(stream);
            assert_error(&server.post(MESSAGES, &body).await, 400, "invalid_request_error", words);
        }
    }
    let answer = server.post(MESSAGES, &request(json!({ "model": "another" }))).await;
    assert_error(&answer, 404, "not_found_error", "another");
    assert_error(&server.post(COUNT, &json!({ "messages": 5 })).await, 400, "invalid_request_error", "`messages`");
}

#[tokio::test]
async fn errors_before_the_handler_have_the_same_form() {
    let options = ServerOptions { api_keys: vec!["one".into()], max_body_bytes: 1000, ..ServerOptions::new(MODEL) };
    let server = Server::start_with(model(), RuntimeOptions::default(), options).await;
    assert_error(&server.post(MESSAGES, &request(json!({}))).await, 401, "authentication_error", "API key");
    let with_key = |mut request: Request<Body>| {
        request.headers_mut().insert("x-api-key", "one".parse().unwrap());
        request
    };
    assert_eq!(server.call(with_key(post(MESSAGES, &request(json!({}))))).await.status, 200);
    let long = request(json!({ "system": "a".repeat(1000) }));
    assert_error(&server.call(with_key(post(MESSAGES, &long))).await, 413, "request_too_large", "1000 bytes");
    let get = |path: &str| with_key(Request::get(path).body(Body::empty()).unwrap());
    assert_error(&server.call(get(MESSAGES)).await, 405, "invalid_request_error", "GET");
    assert_error(&server.call(get("/v1/messages/other")).await, 404, "not_found_error", "/v1/messages/other");
    let mut page = with_key(post(MESSAGES, &request(json!({}))));
    page.headers_mut().insert("origin", "https://evil.example".parse().unwrap());
    assert_error(&server.call(page).await, 403, "permission_error", "evil.example");
    let form = Request::post(MESSAGES).header("content-type", "multipart/form-data").body(Body::from("{}"));
    let text = with_key(form.unwrap());
    assert_error(&server.call(text).await, 415, "invalid_request_error", "content type");

    // Other paths keep their form, unless the client speaks this protocol.
    assert!(server.call(get("/v1/nothing")).await.json().get("type").is_none());
    let mut listed = get("/v1/models/nothing");
    listed.headers_mut().insert("anthropic-version", "2023-06-01".parse().unwrap());
    assert_error(&server.call(listed).await, 404, "not_found_error", "nothing");
}

#[tokio::test]
async fn an_overloaded_server_says_when_to_try_again() {
    let slow = SimulatedModel { step_time: Duration::from_millis(20), ..tireless() };
    let runtime = RuntimeOptions { max_requests: 1, ..RuntimeOptions::default() };
    let server = Server::start_with(slow, runtime, ServerOptions::new(MODEL)).await;
    let held = server.begin(post(MESSAGES, &request(json!({ "stream": true, "max_tokens": 400 })))).await;
    assert_eq!(held.status(), StatusCode::OK);
    let answer = server.post(MESSAGES, &request(json!({ "stream": true }))).await;
    assert_error(&answer, 429, "rate_limit_error", "overloaded");
    assert!(answer.headers["retry-after"].to_str().unwrap().parse::<u64>().unwrap() >= 1);
    drop(held);
    server.settle().await;
    server.runtime.shutdown(Duration::ZERO).await;
    let answer = server.post(MESSAGES, &request(json!({}))).await;
    assert_error(&answer, 503, "overloaded_error", "");
    assert!(answer.headers.contains_key("retry-after"));
}

#[tokio::test]
async fn a_fault_is_a_status_without_a_stream_and_an_event_in_a_stream() {
    let failing = || {
        let faults = Arc::new(|step, _: &_| (step == 4).then_some(Fault::NotANumber));
        SimulatedModel { faults: Some(faults), ..tireless() }
    };
    let server = Server::start(failing()).await;
    assert_error(&server.post(MESSAGES, &request(json!({}))).await, 500, "api_error", "engine");
    // A fault happens once, so the stream gets a server of its own.
    let server = Server::start(failing()).await;
    let events = events(&server.post(MESSAGES, &request(json!({ "stream": true }))).await);
    assert_eq!(events[0]["type"], "message_start");
    let last = events.last().unwrap();
    assert_eq!((&last["type"], &last["error"]["type"]), (&json!("error"), &json!("api_error")));
    assert!(!kinds(&events).contains(&"message_stop"));
}

#[tokio::test(start_paused = true)]
async fn pings_fill_the_time_without_output() {
    let slow = SimulatedModel { step_time: Duration::from_secs(25), ..tireless() };
    let server = Server::start(slow).await;
    let events = events(&server.post(MESSAGES, &request(json!({ "stream": true, "max_tokens": 1 }))).await);
    assert_eq!(kinds(&events)[..4], ["message_start", "ping", "ping", "ping"]);
    assert_eq!(events[1], json!({ "type": "ping" }));
}

#[tokio::test]
async fn no_value_of_any_field_causes_a_server_error() {
    let server = Server::start(agent()).await;
    let deep = (0..100).fold(json!(1), |inner, _| json!([inner]));
    let values = [json!(null), json!(true), json!(-1), json!(3), json!("x"), json!([]), json!([{}]), json!({}), deep];
    let fields = [
        "model",
        "messages",
        "system",
        "max_tokens",
        "stop_sequences",
        "stream",
        "temperature",
        "top_p",
        "top_k",
        "tools",
        "tool_choice",
        "thinking",
        "output_config",
        "output_format",
        "metadata",
        "service_tier",
        "context_management",
        "cache_salt",
        "container",
        "mcp_servers",
    ];
    for field in fields {
        for value in &values {
            let answer = server.post(MESSAGES, &request(json!({ field: value }))).await;
            assert!(!answer.status.is_server_error(), "{field}: {value}: {}", answer.text());
        }
    }
    for value in &values {
        let block = request(json!({ "messages": [{ "role": "user", "content": [value] }] }));
        assert!(!server.post(MESSAGES, &block).await.status.is_server_error(), "{value}");
    }
}
