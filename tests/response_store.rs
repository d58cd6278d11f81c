//! The kept responses of the Responses API: conversations that continue, the routes that read them, and their limits.

#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{Method, Request, StatusCode};
use cuelight::api::ServerOptions;
use cuelight::metrics::exposition::{Compat, Exposition};
use cuelight::pipeline::runtime::RuntimeOptions;
use cuelight::pipeline::simulation::{Fault, SimulatedModel, tokenizer};
use cuelight_engine::engine::EngineLimits;
use cuelight_engine::format::chat_template::ChatTemplate;
use http_body_util::BodyExt;
use serde_json::{Value, json};

use common::{Answer, MODEL, Server, model, post};

const RESPONSES: &str = "/v1/responses";
const INPUT_TOKENS: &str = "/v1/responses/input_tokens";

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

async fn server_with(model: SimulatedModel, options: ServerOptions) -> Server {
    Server::start_with(model, RuntimeOptions::default(), options).await
}

/// A server whose store has this size.
async fn server_of(response_store_bytes: usize) -> Server {
    server_with(model(), ServerOptions { response_store_bytes, ..ServerOptions::new(MODEL) }).await
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

fn id_of(response: &Value) -> &str {
    response["id"].as_str().unwrap()
}

fn path_of(response: &Value) -> String {
    format!("{RESPONSES}/{}", id_of(response))
}

fn request(method: Method, path: &str) -> Request<Body> {
    Request::builder().method(method).uri(path).body(Body::empty()).unwrap()
}

fn with_key(mut request: Request<Body>, key: &str) -> Request<Body> {
    request.headers_mut().insert("x-api-key", key.parse().unwrap());
    request
}

#[track_caller]
fn assert_error(answer: &Answer, status: u16, code: &str, param: &Value) {
    assert_eq!(answer.status, status, "{}", answer.text());
    let error = &answer.json()["error"];
    assert_eq!((&error["code"], &error["param"]), (&json!(code), param), "{error}");
}

#[track_caller]
fn assert_not_stored(answer: &Answer) {
    assert_error(answer, 404, "response_not_found", &Value::Null);
}

async fn input_tokens(server: &Server, body: &Value) -> u64 {
    server.ok(INPUT_TOKENS, body).await["input_tokens"].as_u64().unwrap()
}

/// The response of the last event of a stream.
fn last_of(answer: &Answer) -> Value {
    let text = answer.text();
    let data = text.split("\n\n").filter_map(|frame| frame.split_once("data: ")).last().unwrap().1;
    serde_json::from_str::<Value>(data).unwrap()["response"].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_that_continues_has_the_prompt_of_one_that_is_sent_whole() {
    let server = Server::start(tool_model()).await;
    let tool = json!({ "type": "function", "name": "weather", "parameters": { "type": "object" } });
    let text = "<think>\nlook it up\n</think>\n\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Rome\"}}\n</tool_call>";
    let first = saying(text, json!({ "tools": [tool], "instructions": "only for the first response" }));
    let first = server.ok(RESPONSES, &first).await;
    assert_eq!(first["previous_response_id"], Value::Null);
    let [reasoning, call] = first["output"].as_array().unwrap().as_slice() else { panic!("{first}") };
    let output = json!({ "type": "function_call_output", "call_id": call["call_id"], "output": "sunny" });
    let second = json!({ "tools": [tool], "input": [output], "previous_response_id": first["id"] });
    let second = server.ok(RESPONSES, &saying("It is sunny.", second)).await;
    assert_eq!(second["previous_response_id"], first["id"]);

    let options = json!({ "tools": [tool], "instructions": "be brief" });
    let continued = saying("You are welcome.", json!({ "input": "Thank you!", "previous_response_id": second["id"] }));
    let go = json!({ "role": "user", "content": "go" });
    let thanks = json!({ "role": "user", "content": "Thank you!" });
    let whole = json!([go, reasoning, call, output, second["output"][0], thanks]);
    let whole = saying("You are welcome.", json!({ "input": whole }));
    let [continued, whole] = [continued, whole].map(|mut body| {
        body.as_object_mut().unwrap().extend(options.as_object().unwrap().clone());
        body
    });
    let tokens = input_tokens(&server, &whole).await;
    assert_eq!(input_tokens(&server, &continued).await, tokens);
    let third = server.ok(RESPONSES, &continued).await;
    assert_eq!(third["usage"]["input_tokens"], tokens);
    assert_eq!(third["instructions"], "be brief");
    // The whole conversation finds all full blocks of the prompt that was continued.
    let again = server.ok(RESPONSES, &whole).await;
    assert_eq!(again["usage"]["input_tokens"], tokens);
    let cached = again["usage"]["input_tokens_details"]["cached_tokens"].as_u64().unwrap();
    assert!(cached + 16 >= tokens, "{cached} of {tokens} tokens are the same");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_response_can_be_read_and_deleted() {
    let server = Server::start(model()).await;
    let input = json!([{ "role": "user", "content": "a", "id": "msg_a" }, { "role": "user", "content": "b" }]);
    let body = saying("yes", json!({ "input": input, "metadata": { "k": "v" }, "instructions": "i" }));
    let response = server.ok(RESPONSES, &body).await;
    let path = path_of(&response);
    let read = server.get(&path).await;
    assert_eq!((read.status, &read.headers["content-type"]), (StatusCode::OK, &"application/json".parse().unwrap()));
    assert_eq!(read.json(), response);
    assert_eq!(server.get(&format!("/responses/{}", id_of(&response))).await.json(), response);
    assert_eq!(server.get(&format!("{path}?stream=false")).await.status, StatusCode::OK);
    assert_error(&server.get(&format!("{path}?stream=true")).await, 400, "unsupported_value", &json!("stream"));
    assert_error(&server.post(&format!("{path}/cancel"), &json!({})).await, 400, "invalid_value", &Value::Null);

    let listed = server.get(&format!("{path}/input_items")).await.json();
    let [b, a] = listed["data"].as_array().unwrap().as_slice() else { panic!("{listed}") };
    assert_eq!((&listed["object"], &listed["has_more"]), (&json!("list"), &json!(false)));
    assert_eq!((&listed["first_id"], &listed["last_id"]), (&b["id"], &json!("msg_a")));
    assert_eq!(a["content"], json!([{ "type": "input_text", "text": "a" }]));
    let page = server.get(&format!("{path}/input_items?order=asc&limit=1")).await.json();
    assert_eq!((&page["data"], &page["has_more"]), (&json!([a]), &json!(true)));
    let page = server.get(&format!("{path}/input_items?order=asc&limit=1&after=msg_a")).await.json();
    assert_eq!((&page["data"], &page["has_more"]), (&json!([b]), &json!(false)));
    let wrong = server.get(&format!("{path}/input_items?limit=0")).await;
    assert_error(&wrong, 400, "invalid_value", &json!("limit"));

    let deleted = server.call(request(Method::DELETE, &path)).await;
    assert_eq!(deleted.json(), json!({ "id": response["id"], "object": "response", "deleted": true }));
    for gone in [
        server.get(&path).await,
        server.get(&format!("{path}/input_items")).await,
        server.post(&format!("{path}/cancel"), &json!({})).await,
        server.call(request(Method::DELETE, &path)).await,
    ] {
        assert_not_stored(&gone);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_input_of_earlier_responses_is_not_listed_again() {
    let server = Server::start(model()).await;
    let first = server.ok(RESPONSES, &saying("one", json!({ "input": "first" }))).await;
    let body = saying("two", json!({ "input": "second", "previous_response_id": first["id"] }));
    let second = server.ok(RESPONSES, &body).await;
    let listed = server.get(&format!("{}/input_items", path_of(&second))).await.json();
    assert_eq!(listed["data"].as_array().unwrap().len(), 1);
    assert_eq!(listed["data"][0]["content"][0]["text"], "second");
}

#[tokio::test(flavor = "multi_thread")]
async fn another_client_finds_nothing() {
    let api_keys = vec!["one".into(), "two".into()];
    let server = server_with(model(), ServerOptions { api_keys, ..ServerOptions::new(MODEL) }).await;
    let response = server.call(with_key(post(RESPONSES, &saying("yes", json!({}))), "one")).await.json();
    let path = path_of(&response);
    let next = saying("no", json!({ "previous_response_id": response["id"] }));
    for route in [RESPONSES, INPUT_TOKENS] {
        let refused = server.call(with_key(post(route, &next), "two")).await;
        assert_error(&refused, 400, "previous_response_not_found", &json!("previous_response_id"));
    }
    for (method, path) in [
        (Method::GET, path.clone()),
        (Method::DELETE, path.clone()),
        (Method::GET, format!("{path}/input_items")),
        (Method::POST, format!("{path}/cancel")),
    ] {
        assert_not_stored(&server.call(with_key(request(method.clone(), &path), "two")).await);
        assert_eq!(server.call(request(method, &path)).await.status, StatusCode::UNAUTHORIZED);
    }
    assert_eq!(server.call(with_key(request(Method::GET, &path), "one")).await.json(), response);
    assert_eq!(server.call(with_key(post(RESPONSES, &next), "one")).await.status, StatusCode::OK);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_response_that_is_not_wanted_is_not_kept_but_may_continue_another() {
    let server = Server::start(model()).await;
    let kept = server.ok(RESPONSES, &saying("yes", json!({}))).await;
    let body = saying("no", json!({ "store": false, "previous_response_id": kept["id"] }));
    let response = server.ok(RESPONSES, &body).await;
    assert_eq!((&kept["store"], &response["store"]), (&json!(true), &json!(false)));
    assert!(response["usage"]["input_tokens"].as_u64() > kept["usage"]["input_tokens"].as_u64());
    assert_not_stored(&server.get(&path_of(&response)).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_store_nothing_is_kept_and_nothing_is_continued() {
    let server = server_of(0).await;
    let response = server.ok(RESPONSES, &saying("yes", json!({ "store": true }))).await;
    assert_eq!(response["store"], false);
    assert_not_stored(&server.get(&path_of(&response)).await);
    let next = json!({ "input": "a", "previous_response_id": response["id"] });
    for route in [RESPONSES, INPUT_TOKENS] {
        assert_error(&server.post(route, &next).await, 400, "unsupported_value", &json!("previous_response_id"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_responses_are_named() {
    let server = Server::start(model()).await;
    assert_not_stored(&server.get("/v1/responses/resp_none").await);
    for route in [RESPONSES, INPUT_TOKENS] {
        let refused = server.post(route, &json!({ "input": "a", "previous_response_id": "resp_none" })).await;
        assert_error(&refused, 400, "previous_response_not_found", &json!("previous_response_id"));
        assert!(refused.text().contains("resp_none"), "{}", refused.text());
        let refused = server.post(route, &json!({ "input": "a", "conversation": "conv_1" })).await;
        assert_error(&refused, 400, "unsupported_value", &json!("conversation"));
    }
}

/// The value of the store's gauge.
async fn stored_bytes(server: &Server) -> f64 {
    let scraped = server.get("/metrics").await.text();
    let line = scraped.lines().find_map(|line| line.strip_prefix("cuelight_response_store_bytes ")).unwrap();
    line.parse().unwrap()
}

#[tokio::test]
async fn older_responses_make_way_for_newer_ones() {
    const BYTES: usize = 8 << 10;
    let (recorder, exposition) = Exposition::new(Compat::None).unwrap();
    let _guard = metrics::set_default_local_recorder(&recorder);
    let options = ServerOptions { response_store_bytes: BYTES, metrics: Some(exposition), ..ServerOptions::new(MODEL) };
    let server = server_with(model(), options).await;
    assert_eq!(stored_bytes(&server).await, 0.0);
    let first = server.ok(RESPONSES, &saying("one", json!({}))).await;
    let one = stored_bytes(&server).await;
    let next = saying("two", json!({ "previous_response_id": first["id"] }));
    let second = server.ok(RESPONSES, &next).await;
    assert!(stored_bytes(&server).await > one);
    for _ in 0..20 {
        // The second is used, and so it stays.
        server.ok(RESPONSES, &saying("more", json!({}))).await;
        assert_eq!(server.get(&path_of(&second)).await.status, StatusCode::OK);
        assert!(stored_bytes(&server).await <= BYTES as f64);
    }
    assert_not_stored(&server.get(&path_of(&first)).await);
    let refused = server.post(RESPONSES, &json!({ "input": "a", "previous_response_id": second["id"] })).await;
    assert_error(&refused, 400, "previous_response_not_found", &json!("previous_response_id"));
    assert!(refused.text().contains(id_of(&first)), "{}", refused.text());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_response_that_is_larger_than_the_store_says_that_it_is_not_kept() {
    let server = server_of(600).await;
    let response = server.ok(RESPONSES, &saying("yes", json!({}))).await;
    assert_eq!(response["store"], false);
    assert_not_stored(&server.get(&path_of(&response)).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_is_limited_like_a_body() {
    let options = ServerOptions { max_body_bytes: 1000, ..ServerOptions::new(MODEL) };
    let server = server_with(tool_model(), options).await;
    let turn =
        |previous: &Value| saying("yes", json!({ "input": "a".repeat(300), "previous_response_id": previous["id"] }));
    let first = server.ok(RESPONSES, &turn(&Value::Null)).await;
    let second = server.ok(RESPONSES, &turn(&first)).await;
    let refused = server.post(RESPONSES, &turn(&second)).await;
    assert_error(&refused, 400, "invalid_value", &json!("previous_response_id"));
    assert!(refused.text().contains("at most 1000 are accepted"), "{}", refused.text());

    let options = ServerOptions { request_memory_bytes: 40 << 10, ..ServerOptions::new(MODEL) };
    let server = server_with(tool_model(), options).await;
    let mut last = Value::Null;
    let refused = loop {
        let answer = server.post(RESPONSES, &turn(&last)).await;
        if answer.status != StatusCode::OK {
            break answer;
        }
        last = answer.json();
    };
    assert!(last.is_object(), "not even one response: {}", refused.text());
    assert!([413, 429].contains(&refused.status.as_u16()), "{}", refused.text());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_is_kept_when_it_is_complete() {
    let server = Server::start(model()).await;
    let answer = server.post(RESPONSES, &saying("yes", json!({ "stream": true }))).await;
    let response = last_of(&answer);
    assert_eq!((&response["status"], &response["store"]), (&json!("completed"), &json!(true)));
    assert_eq!(server.get(&path_of(&response)).await.json(), response);
    let next = saying("no", json!({ "stream": true, "previous_response_id": response["id"] }));
    let next = last_of(&server.post(RESPONSES, &next).await);
    assert_eq!(next["previous_response_id"], response["id"]);
    assert!(next["usage"]["input_tokens"].as_u64() > response["usage"]["input_tokens"].as_u64());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_fails_is_kept() {
    let faults: cuelight::pipeline::simulation::FaultInjector =
        Arc::new(|step, _| (step >= 4).then_some(Fault::InvalidStep));
    let server = Server::start(SimulatedModel { faults: Some(faults), end_one_in: u64::MAX, ..model() }).await;
    let body = json!({ "input": "go", "max_output_tokens": 50, "stream": true });
    let response = last_of(&server.post(RESPONSES, &body).await);
    assert_eq!(response["status"], "failed");
    assert_eq!(server.get(&path_of(&response)).await.json(), response);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_whose_client_leaves_is_not_kept() {
    let slow = SimulatedModel { step_time: Duration::from_millis(50), end_one_in: u64::MAX, ..model() };
    let server = Server::start(slow).await;
    let body = json!({ "input": "go", "max_output_tokens": 400, "stream": true });
    let mut stream = server.begin(post(RESPONSES, &body)).await.into_body();
    let frame = stream.frame().await.unwrap().unwrap().into_data().unwrap();
    let frame = String::from_utf8(frame.to_vec()).unwrap();
    let created: Value = serde_json::from_str(frame.split_once("data: ").unwrap().1.trim()).unwrap();
    drop(stream);
    server.settle().await;
    assert_not_stored(&server.get(&path_of(&created["response"])).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_of_allowed_origins_may_delete() {
    let cors_origins = vec!["https://chat.example".into()];
    let server = server_with(model(), ServerOptions { cors_origins, ..ServerOptions::new(MODEL) }).await;
    let mut preflight = request(Method::OPTIONS, "/v1/responses/resp_1");
    for (name, value) in [("origin", "https://chat.example"), ("access-control-request-method", "DELETE")] {
        preflight.headers_mut().insert(name, value.parse().unwrap());
    }
    let allowed = server.call(preflight).await.headers["access-control-allow-methods"].clone();
    assert!(allowed.to_str().unwrap().contains("DELETE"), "{allowed:?}");
}
