//! Bodies of `/v1/chat/completions` and `/v1/completions`, answered by a simulated model.
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

pub fn run_chat(data: &[u8]) {
    run("/v1/chat/completions", data);
}

pub fn run_completions(data: &[u8]) {
    run("/v1/completions", data);
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
        StatusCode::OK if is_stream => check_stream(text),
        StatusCode::OK => check_choices(&json_of(text)),
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
