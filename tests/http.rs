//! How the server treats HTTP itself: origins, host names, content types, compression, routes and formats.
#![allow(clippy::unwrap_used)]

mod common;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::request::Builder;
use axum::http::{Method, Request};
use cuelight::api::ServerOptions;
use cuelight::metrics::exposition::{Compat, Exposition};
use cuelight::models::{Machine, ModelFactory, Models, ModelsDirectory, ModelsError, ModelsOptions};
use cuelight::pipeline::runtime::RuntimeOptions;
use cuelight::pipeline::simulation::SimulatedModel;
use cuelight_engine::format::chat_template::ChatTemplate;
use serde_json::{Value, json};

use common::listening::Listening;
use common::{Answer, MODEL, Server, model, post};

const CHAT: &str = "/v1/chat/completions";
const TOKENIZE: &str = "/tokenize";

fn chat() -> Value {
    json!({ "model": MODEL, "messages": [{ "role": "user", "content": "hi" }], "max_tokens": 2 })
}

/// A request to `/tokenize`, without a content type.
fn tokenize(body: impl Into<Body>) -> impl FnOnce(Builder) -> Request<Body> {
    let body = body.into();
    move |request: Builder| request.method(Method::POST).uri(TOKENIZE).body(body).unwrap()
}

#[track_caller]
fn assert_refused(answer: &Answer, status: u16, code: &str) {
    assert_eq!(answer.status, status, "{}", answer.text());
    let body = answer.json();
    assert_eq!(body["error"]["code"], code, "{body}");
    assert!(body["error"]["message"].as_str().is_some_and(|message| !message.is_empty()));
    assert!(answer.headers.contains_key("x-request-id"));
}

#[tokio::test]
async fn a_page_of_another_origin_cannot_unload_a_model() {
    let server = Server::start(model()).await;
    let request = Request::post("/models/unload").header("host", "127.0.0.1:8080").header("content-type", "text/plain");
    let page = request.header("origin", "https://evil.example").body(Body::from(r#"{"model": "default"}"#)).unwrap();
    assert_refused(&server.call(page).await, 403, "origin_not_allowed");
    let own = Request::get("/v1/models").header("host", "chat.example:80").header("origin", "http://chat.example:80");
    assert_eq!(server.call(own.body(Body::empty()).unwrap()).await.status, 200);
}

/// Without these headers a browser keeps the answer from the page.
#[tokio::test]
async fn browsers_may_show_answers_to_pages_of_this_machine_and_of_the_setting() {
    let options = ServerOptions { cors_origins: vec!["https://app.example".into()], ..ServerOptions::new(MODEL) };
    let server = Listening::start(model(), options).await;
    for (origin, is_allowed) in [
        ("http://localhost:3000", true),
        ("http://[::1]:8000", true),
        ("https://app.example", true),
        ("https://evil.example", false),
    ] {
        let request = reqwest::Client::new().request(Method::OPTIONS, format!("{}{CHAT}", server.url));
        let request = request.header("origin", origin).header("access-control-request-method", "POST");
        let answer = request.send().await.unwrap();
        let allowed = answer.headers().get("access-control-allow-origin").map(|value| value.to_str().unwrap());
        assert_eq!(allowed, is_allowed.then_some(origin));
    }
    server.stop().await;
}

#[tokio::test]
async fn an_origin_of_the_cors_setting_is_accepted() {
    let options = ServerOptions { cors_origins: vec!["https://app.example".into()], ..ServerOptions::new(MODEL) };
    let server = Server::start_with(model(), RuntimeOptions::default(), options).await;
    for (origin, status) in [("https://app.example", 200), ("https://evil.example", 403), ("null", 403)] {
        let request = Request::get("/v1/models").header("origin", origin).body(Body::empty()).unwrap();
        assert_eq!(server.call(request).await.status, status, "{origin}");
    }
}

#[tokio::test]
async fn a_loopback_server_refuses_the_host_name_of_another_machine() {
    let options = ServerOptions { allowed_hosts: vec!["chat.example".into()], ..ServerOptions::new(MODEL) };
    let server = Listening::start(model(), options).await;
    let status = |host: &'static str, origin: Option<&'static str>| {
        let request = reqwest::Client::new().get(format!("{}/v1/models", server.url)).header("host", host);
        let request = origin.into_iter().fold(request, |request, origin| request.header("origin", origin));
        async { request.send().await.unwrap().status().as_u16() }
    };
    for host in ["localhost:8080", "app.localhost", "127.0.0.1", "[::1]:8080", "chat.example"] {
        assert_eq!(status(host, None).await, 200, "{host}");
    }
    for host in ["evil.example", "evil.example:8080", "!"] {
        assert_eq!(status(host, None).await, 403, "{host}");
    }
    assert_eq!(status("127.0.0.1", Some("http://localhost:3000")).await, 200, "a page of this machine");
    assert_eq!(status("127.0.0.1", Some("https://evil.example")).await, 403);
    server.stop().await;
}

#[tokio::test]
async fn a_web_page_must_declare_a_body_as_json() {
    let server = Server::start(model()).await;
    let body = r#"{"prompt": "the sky"}"#;
    let page = || Request::builder().header("host", "chat.example").header("origin", "http://chat.example");
    for kind in ["application/json", "application/json; charset=utf-8", "application/vnd.api+json"] {
        for request in [Request::builder(), page()] {
            let request = tokenize(body)(request.header("content-type", kind));
            assert_eq!(server.call(request).await.status, 200, "{kind}");
        }
    }
    for kind in ["text/plain", "application/x-www-form-urlencoded"] {
        let request = tokenize(body)(page().header("content-type", kind));
        assert_refused(&server.call(request).await, 415, "unsupported_media_type");
        let request = tokenize(body)(Request::builder().header("content-type", kind));
        assert_eq!(server.call(request).await.status, 200, "{kind}");
    }
    assert_refused(&server.call(tokenize(body)(page())).await, 415, "unsupported_media_type");
    assert_eq!(server.call(tokenize(body)(Request::builder())).await.status, 200);
    let form = tokenize(body)(Request::builder().header("content-type", "multipart/form-data"));
    assert_refused(&server.call(form).await, 415, "unsupported_media_type");
}

/// `{"prompt": "the sky"}`, compressed with gzip.
#[rustfmt::skip]
const COMPRESSED: &[u8] = &[
    31, 139, 8, 0, 0, 0, 0, 0, 2, 3, 171, 86, 42, 40, 202, 207, 45, 40, 81, 178, 82, 80, 42, 201,
    72, 85, 40, 206, 174, 84, 170, 5, 0, 119, 192, 142, 51, 21, 0, 0, 0,
];

/// The same with a prompt of 4,000 letters, compressed to less than 64 bytes.
#[rustfmt::skip]
const BOMB: &[u8] = &[
    31, 139, 8, 0, 0, 0, 0, 0, 2, 3, 237, 193, 193, 13, 0, 16, 0, 4, 176, 85, 228, 198, 176, 141,
    1, 132, 136, 159, 216, 221, 24, 62, 109, 79, 230, 26, 125, 238, 212, 146, 6, 0, 0, 0, 124, 151, 251, 0,
    136, 132, 183, 157, 174, 15, 0, 0,
];

#[tokio::test]
async fn a_body_may_be_compressed_and_its_limit_counts_decompressed_bytes() {
    let options = ServerOptions { max_body_bytes: 1000, ..ServerOptions::new(MODEL) };
    let server = Server::start_with(model(), RuntimeOptions::default(), options).await;
    let encoded = |encoding: &str, body: &'static [u8]| {
        let request = Request::builder().header("content-type", "application/json");
        tokenize(body)(request.header("content-encoding", encoding))
    };
    let plain = server.ok(TOKENIZE, &json!({ "prompt": "the sky" })).await;
    assert_eq!(server.call(encoded("gzip", COMPRESSED)).await.json(), plain);
    assert!(BOMB.len() < 1000);
    assert_refused(&server.call(encoded("gzip", BOMB)).await, 413, "request_too_large");
    assert_refused(&server.call(encoded("gzip", b"not compressed")).await, 400, "invalid_value");
    assert_refused(&server.call(encoded("br", COMPRESSED)).await, 415, "unsupported_media_type");
}

/// A model whose chat template is `source`.
fn with_template(source: &str) -> SimulatedModel {
    SimulatedModel { chat_template: Some(Arc::new(ChatTemplate::new(source, "", "").unwrap())), ..model() }
}

const PLAIN_TEMPLATE: &str = "{% for m in messages %}{{ m.role }}:{{ m.content }}\n{% endfor %}";
const TOOL_TEMPLATE: &str = "{% if tools %}{{ tools[0].function.name }} {% endif %}{% for m in messages %}{{ m.role }}:\
                             {{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function.name }}{% endfor %}\n{% endfor %}";

#[tokio::test]
async fn tools_and_calls_that_the_template_ignores_are_refused() {
    let tool = json!({ "type": "function", "function": { "name": "weather" } });
    let call = json!({ "id": "1", "type": "function", "function": { "name": "weather", "arguments": "{}" } });
    let with = |more: Value| {
        let mut body = chat();
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let tools = with(json!({ "tools": [tool] }));
    let required = with(json!({ "tools": [tool], "tool_choice": "required" }));
    let unused = with(json!({ "tools": [tool], "tool_choice": "none" }));
    let calls = with(json!({ "messages": [
        { "role": "user", "content": "hi" },
        { "role": "assistant", "tool_calls": [call] },
        { "role": "tool", "tool_call_id": "1", "content": "sunny" },
    ] }));
    let ignoring = Server::start(with_template(PLAIN_TEMPLATE)).await;
    for (body, param) in [(&tools, "tools"), (&required, "tools"), (&calls, "messages[1].tool_calls")] {
        let refused = ignoring.post(CHAT, body).await;
        assert_refused(&refused, 400, "unsupported_value");
        assert_eq!(refused.json()["error"]["param"], param);
    }
    ignoring.ok(CHAT, &unused).await;
    let rendering = Server::start(with_template(TOOL_TEMPLATE)).await;
    for body in [&tools, &calls, &unused] {
        rendering.ok(CHAT, body).await;
    }
    let refused = rendering.post(CHAT, &required).await;
    assert_refused(&refused, 400, "unsupported_value");
    assert_eq!(refused.json()["error"]["param"], "tool_choice");
    let mut body = calls;
    body["messages"].as_array_mut().unwrap().pop();
    let tokens = rendering.ok(TOKENIZE, &body).await;
    let text = rendering.ok("/detokenize", &json!({ "tokens": tokens["tokens"] })).await;
    assert!(text["prompt"].as_str().unwrap().contains("assistant:weather"), "{text}");
}

/// A server that records metrics, with the recorder installed for this thread.
async fn with_metrics() -> (Server, metrics::LocalRecorderGuard<'static>) {
    let (recorder, exposition) = Exposition::new(Compat::Vllm).unwrap();
    // The guard borrows the recorder, which lives as long as the process.
    let guard = metrics::set_default_local_recorder(Box::leak(Box::new(recorder)));
    exposition.start();
    let options = ServerOptions { metrics: Some(exposition), ..ServerOptions::new(MODEL) };
    (Server::start_with(model(), RuntimeOptions::default(), options).await, guard)
}

#[tokio::test]
async fn a_prompt_longer_than_the_context_is_counted() {
    let (server, _guard) = with_metrics().await;
    let counted = |text: &str| {
        let mut lines = text.lines().filter(|line| line.starts_with("cuelight_rejections_total{"));
        lines.any(|line| line.contains("reason=\"context_length_exceeded\"") && line.ends_with(" 2"))
    };
    server.post("/v1/completions", &json!({ "prompt": vec![5; 600] })).await;
    let long = json!([{ "role": "user", "content": "a ".repeat(600) }]);
    assert_refused(&server.post(CHAT, &json!({ "messages": long })).await, 400, "context_length_exceeded");
    let text = server.get("/metrics").await.text();
    assert!(counted(&text), "{text}");
}

#[tokio::test]
async fn metrics_are_open_metrics_when_the_client_accepts_them() {
    let (server, _guard) = with_metrics().await;
    server.ok(CHAT, &chat()).await;
    server.settle().await;
    let accept = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5";
    let request = Request::get("/metrics").header("accept", accept).body(Body::empty()).unwrap();
    let scraped = server.call(request).await;
    assert_eq!(scraped.headers["content-type"], "application/openmetrics-text; version=1.0.0; charset=utf-8");
    let text = scraped.text();
    assert!(text.ends_with("\n# EOF\n") && !text.contains("\n\n"), "{text}");
    assert!(text.contains("# TYPE cuelight_http_requests counter\n"), "{text}");
    assert!(text.contains("\ncuelight_http_requests_total{"), "{text}");
    let edges = text.split("le=\"").skip(1).map(|rest| rest.split('"').next().unwrap());
    assert!(edges.clone().count() > 10);
    assert!(edges.into_iter().all(|edge| edge == "+Inf" || edge.contains('.')), "{text}");
    let plain = server.get("/metrics").await;
    assert_eq!(plain.headers["content-type"], "text/plain; version=0.0.4; charset=utf-8");
}

#[tokio::test]
async fn routes_are_found_with_a_final_slash_and_without_v1() {
    let server = Server::start(model()).await;
    assert_eq!(server.get("/v1/models/").await.json(), server.get("/v1/models").await.json());
    assert_eq!(server.get(&format!("/models/{MODEL}")).await.json()["id"], MODEL);
    assert_eq!(server.ok("/chat/completions", &chat()).await["object"], "chat.completion");
    assert_eq!(server.ok("/completions", &json!({ "prompt": "a" })).await["object"], "text_completion");
}

#[tokio::test]
async fn default_means_the_only_loaded_model_of_a_directory() {
    let folder = tempfile::tempdir().unwrap();
    for file in ["a.gguf", "b.gguf"] {
        std::fs::write(folder.path().join(file), b"").unwrap();
    }
    let make = |_: &Path| -> Arc<dyn ModelFactory> { Arc::new(model()) };
    let directory = ModelsDirectory::open(folder.path(), make).unwrap();
    let machine = || Machine { available_bytes: None, occupied_bytes: 0 };
    let options = ModelsOptions { machine, ..ModelsOptions::default() };
    let models = Models::start(options, Vec::new(), Some(directory)).await.unwrap();
    let name = async || models.acquire(Some("default")).await.map(|lease| lease.id().to_owned());
    assert_eq!(name().await, Err(ModelsError::Unnamed));
    models.load("b").await.unwrap();
    assert_eq!(name().await, Ok("b".to_owned()));
    models.load("a").await.unwrap();
    assert_eq!(name().await, Err(ModelsError::Unnamed), "two models are loaded");
}

#[tokio::test]
async fn the_root_greets_without_a_key() {
    let options = ServerOptions { api_keys: vec!["key".into()], ..ServerOptions::new(MODEL) };
    let server = Server::start_with(model(), RuntimeOptions::default(), options).await;
    let request = Request::get("/").header("accept", "text/plain").body(Body::empty()).unwrap();
    let greeting = server.call(request).await;
    assert_eq!(greeting.status, 200);
    let text = greeting.text();
    assert!(text.starts_with(&format!("Cuelight {}", env!("CARGO_PKG_VERSION"))) && text.contains("/v1"), "{text}");
}

#[tokio::test]
async fn options_without_a_preflight_is_an_empty_204() {
    let options = ServerOptions { api_keys: vec!["key".into()], ..ServerOptions::new(MODEL) };
    let server = Server::start_with(model(), RuntimeOptions::default(), options).await;
    let answer = server.call(Request::options(CHAT).body(Body::empty()).unwrap()).await;
    assert_eq!((answer.status.as_u16(), answer.body.len()), (204, 0));
    assert!(answer.headers.contains_key("allow"));
}

#[tokio::test]
async fn tokenizer_info_has_what_a_remote_tokenizer_needs() {
    let server = Server::start(model()).await;
    let info = server.get("/tokenizer_info").await.json();
    assert!(info["chat_template"].as_str().unwrap().contains("messages"), "{info}");
    assert!(info["tokenizer_class"].is_string());
    assert_eq!(info["model_max_length"], 512);
    let end = info["eos_token"].as_str().unwrap();
    let tokens = server.ok(TOKENIZE, &json!({ "prompt": end, "add_special_tokens": false })).await;
    assert_eq!(tokens["tokens"], json!([info["eos_token_id"]]), "{info}");
    for absent in ["bos_token", "pad_token"] {
        assert!(info.as_object().unwrap().contains_key(absent));
    }
    assert_eq!(server.get("/tokenizer_info?model=other").await.status, 404);
}

#[tokio::test(start_paused = true)]
async fn the_headers_of_a_stream_do_not_wait_for_its_first_token() {
    let slow = SimulatedModel { step_time: Duration::from_secs(5), ..model() };
    let server = Server::start(slow).await;
    let started = tokio::time::Instant::now();
    let mut body = chat();
    body["stream"] = json!(true);
    let response = server.begin(post(CHAT, &body)).await;
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    assert!(started.elapsed() < Duration::from_secs(1), "{:?}", started.elapsed());
}

#[tokio::test]
async fn clients_are_told_not_to_retry_what_will_never_work() {
    let server = Server::start(model()).await;
    let mut body = chat();
    body["echo"] = json!(true);
    let refused = server.post(CHAT, &body).await;
    assert_refused(&refused, 400, "unsupported_value");
    assert_eq!(refused.headers["x-should-retry"], "false");
}
