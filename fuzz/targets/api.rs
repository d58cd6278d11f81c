//! Bodies of `/v1/chat/completions`, `/v1/completions` and `/v1/responses`, answered by a simulated model.
//!
//! An input that starts with a control character is not a body but a choice of fields and values for one, so that mutations
//! also reach what is behind the JSON parser.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arbitrary::{Result, Unstructured};
use axum::Router;
use axum::body::Body;
use axum::http::{Request, Response, StatusCode};
use cuelight::api::{ServerOptions, router};
use cuelight::pipeline::runtime::{Runtime, RuntimeOptions};
use cuelight::pipeline::simulation::{SimulatedModel, tokenizer};
use cuelight_engine::format::chat_template::ChatTemplate;
use http_body_util::BodyExt;
use serde_json::{Map, Value, json};
use tower::ServiceExt;

const MODEL: &str = "m";
const TEMPLATE: &str = "{% for message in messages %}{{ message.role }}:{{ message.content }}\n{% endfor %}\
                        {% if tools %}{{ tools | tojson }}{% endif %}{% if add_generation_prompt %}assistant:{% endif %}";

/// Fields of both routes.
const FIELDS: &[&str] = &[
    "model",
    "stream",
    "stream_options",
    "n",
    "max_tokens",
    "max_completion_tokens",
    "min_tokens",
    "stop",
    "stop_token_ids",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "typical_p",
    "repetition_penalty",
    "frequency_penalty",
    "presence_penalty",
    "seed",
    "logit_bias",
    "logprobs",
    "top_logprobs",
    "prompt_logprobs",
    "echo",
    "best_of",
    "suffix",
    "user",
    "priority",
    "cache_salt",
    "ignore_eos",
    "include_stop_str_in_output",
    "skip_special_tokens",
    "add_special_tokens",
    "spaces_between_special_tokens",
    "tools",
    "tool_choice",
    "response_format",
    "chat_template_kwargs",
    "documents",
    "add_generation_prompt",
    "continue_final_message",
    "reasoning_effort",
    "prompt",
    "messages",
    "metadata",
    "timeout",
    "penalty_last_n",
    "return_token_ids",
];

/// Names in nested objects.
const KEYS: &[&str] = &[
    "role",
    "content",
    "type",
    "text",
    "name",
    "tool_calls",
    "tool_call_id",
    "function",
    "arguments",
    "id",
    "parameters",
    "include_usage",
    "continuous_usage_stats",
    "1",
    "256",
    "-1",
    "image_url",
    "refusal",
    "reasoning_content",
    "json_schema",
];

/// Strings with a meaning somewhere.
const WORDS: &[&str] = &[
    "",
    "user",
    "assistant",
    "system",
    "tool",
    "developer",
    "text",
    "auto",
    "none",
    "required",
    "function",
    "json_object",
    "a",
    "<|end|>",
    "\u{0}",
    "é\u{301}🙂",
    MODEL,
    "low",
    "\u{202e}",
    "1",
];

/// Fields of `/v1/responses`.
const RESPONSE_FIELDS: &[&str] = &[
    "stream",
    "instructions",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "text",
    "reasoning",
    "include",
    "top_logprobs",
    "metadata",
    "max_tool_calls",
    "temperature",
    "stop",
    "n",
    "store",
];

/// Fields of items.
const ITEM_KEYS: &[&str] =
    &["role", "content", "call_id", "name", "arguments", "input", "output", "summary", "encrypted_content", "text"];

/// Types of items and of their parts.
const ITEM_TYPES: &[&str] = &[
    "message",
    "reasoning",
    "function_call",
    "function_call_output",
    "custom_tool_call",
    "custom_tool_call_output",
    "item_reference",
    "input_text",
    "output_text",
    "input_image",
    "function",
    "custom",
];

pub fn run_chat(data: &[u8]) {
    run("/v1/chat/completions", data);
}

pub fn run_completions(data: &[u8]) {
    run("/v1/completions", data);
}

pub fn run_responses(data: &[u8]) {
    run("/v1/responses", data);
}

/// Every body gets a complete answer, or an error that says what is wrong with the body.
fn run(path: &str, data: &[u8]) {
    static SERVER: OnceLock<(tokio::runtime::Runtime, Router)> = OnceLock::new();
    let (runtime, router) = SERVER.get_or_init(|| {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().expect("threads can be started");
        let router = runtime.block_on(start());
        (runtime, router)
    });
    let body = match data.first() {
        Some(0..0x09) => structured(path, &data[1..]).unwrap_or_default(),
        _ => data.to_vec(),
    };
    let request = Request::post(path).header("content-type", "application/json").body(Body::from(body));
    let request = request.expect("the path is valid");
    runtime.block_on(async {
        let answer = async {
            let Ok(response) = router.clone().oneshot(request).await;
            check(response).await;
        };
        tokio::time::timeout(Duration::from_secs(8), answer).await.expect("a request is answered");
    });
}

async fn start() -> Router {
    let template = ChatTemplate::new(TEMPLATE, "", "").expect("the template is valid");
    let model = SimulatedModel { chat_template: Some(Arc::new(template)), ..SimulatedModel::new(tokenizer()) };
    let runtime = Runtime::start(model, RuntimeOptions::default()).await.expect("the model needs nothing");
    assert!(runtime.wait_ready().await.is_ok());
    router(runtime, ServerOptions::new(MODEL)).expect("no origin is given")
}

async fn check(response: Response<Body>) {
    let (parts, body) = response.into_parts();
    let body = body.collect().await.expect("a body is complete").to_bytes();
    let text = str::from_utf8(&body).expect("an answer is UTF-8");
    let is_stream = parts.headers.get("content-type").is_some_and(|kind| kind == "text/event-stream");
    match parts.status {
        StatusCode::OK if is_stream && text.starts_with("event:") => check_response_stream(text),
        StatusCode::OK if is_stream => check_stream(text),
        StatusCode::OK => match json_of(text) {
            response if response["object"] == "response" => check_response(&response),
            answer => check_choices(&answer),
        },
        status if status.is_client_error() => {
            let error = &json_of(text)["error"];
            assert!(error["message"].as_str().is_some_and(|message| !message.is_empty()), "{text}");
            assert!(text.len() < 10_000, "an error repeats the request: {} bytes", text.len());
        }
        status => panic!("{status}: {text}"),
    }
}

fn check_stream(text: &str) {
    assert!(text.ends_with("data: [DONE]\n\n"), "the stream has no end: {text}");
    let events = text.split("\n\n").filter_map(|event| event.strip_prefix("data: ")).filter(|data| *data != "[DONE]");
    for event in events {
        let event = json_of(event);
        assert!(event.get("error").is_none(), "{event}");
        assert!(event["choices"].is_array(), "{event}");
    }
}

fn check_response_stream(text: &str) {
    let data = text.split("\n\n").filter_map(|event| event.split_once("\ndata: "));
    let events: Vec<Value> = data.map(|(_, data)| json_of(data)).collect();
    for (number, event) in events.iter().enumerate() {
        assert_eq!(event["sequence_number"], number, "{text}");
    }
    let last = events.last().expect("a stream has events");
    assert_eq!(last["type"], format!("response.{}", last["response"]["status"].as_str().unwrap_or_default()));
    check_response(&last["response"]);
}

fn check_response(response: &Value) {
    assert!(["completed", "incomplete"].map(Value::from).contains(&response["status"]), "{response}");
    assert!(response["output"].as_array().is_some_and(|items| !items.is_empty()), "{response}");
    let tokens = |name: &str| response["usage"][name].as_u64().expect("the usage is a number");
    assert_eq!(tokens("total_tokens"), tokens("input_tokens") + tokens("output_tokens"));
}

fn check_choices(answer: &Value) {
    let choices = answer["choices"].as_array().expect("an answer has choices");
    assert!(!choices.is_empty());
    assert!(choices.iter().all(|choice| choice["finish_reason"].is_string()), "{answer}");
    let tokens = |name: &str| answer["usage"][name].as_u64().expect("the usage is a number");
    assert_eq!(tokens("total_tokens"), tokens("prompt_tokens") + tokens("completion_tokens"));
}

fn json_of(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// A body with a prompt and some other fields.
fn structured(path: &str, data: &[u8]) -> Result<Vec<u8>> {
    let mut u = Unstructured::new(data);
    if path.contains("responses") {
        return structured_response(&mut u);
    }
    let mut body = json!({ "model": MODEL, "max_tokens": 4 });
    if path.contains("chat") {
        body["messages"] = messages(&mut u)?;
    } else {
        body["prompt"] = if u.arbitrary()? { json!("the sky") } else { value(&mut u, 3)? };
    }
    for _ in 0..u.int_in_range(0..=6)? {
        body[*u.choose(FIELDS)?] = value(&mut u, 3)?;
    }
    Ok(body.to_string().into_bytes())
}

/// A body with an input of items and some other fields.
fn structured_response(u: &mut Unstructured<'_>) -> Result<Vec<u8>> {
    let mut body = json!({ "model": MODEL, "max_output_tokens": 4 });
    let mut items = vec![json!({ "role": "user", "content": "hi" })];
    for _ in 0..u.int_in_range(0..=4)? {
        let mut item =
            json!({ "type": *u.choose(ITEM_TYPES)?, "role": *u.choose(WORDS)?, "call_id": "c", "name": "f" });
        for _ in 0..u.int_in_range(0..=3)? {
            item[*u.choose(ITEM_KEYS)?] = parts(u)?;
        }
        items.push(item);
    }
    body["input"] = Value::Array(items);
    for _ in 0..u.int_in_range(0..=4)? {
        body[*u.choose(RESPONSE_FIELDS)?] = parts(u)?;
    }
    Ok(body.to_string().into_bytes())
}

/// A list of parts or tools, or any value.
fn parts(u: &mut Unstructured<'_>) -> Result<Value> {
    if u.arbitrary()? {
        return value(u, 3);
    }
    let part = |u: &mut Unstructured<'_>| {
        let mut part = json!({ "type": *u.choose(ITEM_TYPES)?, "name": "f" });
        part[*u.choose(ITEM_KEYS)?] = value(u, 2)?;
        Ok(part)
    };
    (0..u.int_in_range(0..=3)?).map(|_| part(u)).collect::<Result<_>>().map(Value::Array)
}

fn messages(u: &mut Unstructured<'_>) -> Result<Value> {
    let mut messages = vec![json!({ "role": "user", "content": "hi" })];
    for _ in 0..u.int_in_range(0..=3)? {
        let mut message = json!({ "role": *u.choose(WORDS)?, "content": value(u, 2)? });
        if u.arbitrary()? {
            message[*u.choose(KEYS)?] = value(u, 3)?;
        }
        messages.push(message);
    }
    Ok(Value::Array(messages))
}

fn value(u: &mut Unstructured<'_>, depth: usize) -> Result<Value> {
    Ok(match u.int_in_range(0..=if depth == 0 { 7 } else { 9 })? {
        0 => Value::Null,
        1 => json!(u.arbitrary::<bool>()?),
        2 => json!(u.arbitrary::<i8>()?),
        3 => json!(u.arbitrary::<i64>()?),
        4 => json!(f64::from(u.arbitrary::<i16>()?) / 64.0),
        5 => json!(u.arbitrary::<f64>()?),
        6 => json!(*u.choose(WORDS)?),
        7 => json!(u.arbitrary::<&str>()?),
        8 => Value::Array((0..u.int_in_range(0..=4)?).map(|_| value(u, depth - 1)).collect::<Result<_>>()?),
        _ => {
            let field = |u: &mut Unstructured<'_>| Ok(((*u.choose(KEYS)?).to_owned(), value(u, depth - 1)?));
            Value::Object((0..u.int_in_range(0..=4)?).map(|_| field(u)).collect::<Result<Map<_, _>>>()?)
        }
    })
}
