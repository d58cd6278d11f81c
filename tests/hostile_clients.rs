//! Clients that hold connections, memory or slots do not keep other clients from being served.
#![allow(clippy::unwrap_used)]

mod common;

use std::time::{Duration, Instant};

use cuelight::api::{ConnectionOptions, ServerOptions};
use cuelight::pipeline::runtime::RuntimeOptions;
use cuelight::pipeline::simulation::SimulatedModel;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use common::listening::Listening;
use common::{MODEL, Server, model, post};

const SHORT: Duration = Duration::from_millis(300);
const LONG: Duration = Duration::from_secs(60);

fn options(connections: ConnectionOptions) -> ServerOptions {
    ServerOptions { connections, ..ServerOptions::new(MODEL) }
}

async fn connect(server: &Listening) -> TcpStream {
    TcpStream::connect(server.url.strip_prefix("http://").unwrap()).await.unwrap()
}

/// Waits until the server closes a connection, and returns what it sent.
async fn read_to_end(stream: &mut TcpStream) -> String {
    let mut text = Vec::new();
    // A reset is an end too.
    let _ = timeout(LONG, stream.read_to_end(&mut text)).await.expect("the connection ends");
    String::from_utf8(text).unwrap()
}

/// Reads until the server has sent this.
async fn read_until(stream: &mut TcpStream, wanted: &str) -> String {
    let mut text = Vec::new();
    while !String::from_utf8_lossy(&text).contains(wanted) {
        let mut buffer = [0; 4096];
        let read = timeout(LONG, stream.read(&mut buffer)).await.unwrap().unwrap();
        assert!(read > 0, "the connection ended after {:?}", String::from_utf8_lossy(&text));
        text.extend_from_slice(&buffer[..read]);
    }
    String::from_utf8(text).unwrap()
}

fn request(path: &str, body: &Value) -> String {
    let body = body.to_string();
    format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}

fn endless() -> Value {
    json!({ "model": MODEL, "prompt": "a", "max_tokens": 400, "ignore_eos": true, "stream": true })
}

/// A model whose answers take long.
fn slow_model() -> SimulatedModel {
    SimulatedModel { step_time: Duration::from_millis(50), ..model() }
}

#[tokio::test]
async fn a_connection_must_send_its_headers_in_time() {
    let connections = ConnectionOptions { header_timeout: SHORT, idle_timeout: LONG, ..ConnectionOptions::default() };
    let server = Listening::start(model(), options(connections)).await;
    let (mut silent, mut slow) = (connect(&server).await, connect(&server).await);
    slow.write_all(b"GET /health HTTP/1.1\r\nhost: ").await.unwrap();
    let began = Instant::now();
    read_to_end(&mut silent).await;
    read_to_end(&mut slow).await;
    assert!((SHORT / 2..10 * SHORT).contains(&began.elapsed()), "{:?}", began.elapsed());
    server.stop().await;
}

#[tokio::test]
async fn an_idle_connection_is_closed_after_its_own_time_limit() {
    let connections = ConnectionOptions { header_timeout: LONG, idle_timeout: SHORT, ..ConnectionOptions::default() };
    let server = Listening::start(model(), options(connections)).await;
    let mut stream = connect(&server).await;
    for _ in 0..2 {
        stream.write_all(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
        read_until(&mut stream, "\"ok\"}").await;
        tokio::time::sleep(SHORT / 3).await;
    }
    let began = Instant::now();
    assert_eq!(read_to_end(&mut stream).await, "");
    assert!(began.elapsed() < 10 * SHORT, "{:?}", began.elapsed());
    server.stop().await;
}

#[tokio::test]
async fn a_body_that_stops_arriving_is_answered_with_408() {
    let server = Listening::start(model(), ServerOptions { body_timeout: SHORT, ..ServerOptions::new(MODEL) }).await;
    let mut stream = connect(&server).await;
    let whole = request("/v1/completions", &json!({ "prompt": "a" }));
    stream.write_all(&whole.as_bytes()[..whole.len() - 1]).await.unwrap();
    let answer = read_to_end(&mut stream).await;
    assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
    server.stop().await;
}

#[tokio::test]
async fn idle_connections_give_way_to_new_ones() {
    let connections = ConnectionOptions { max_connections: 8, ..ConnectionOptions::default() };
    let server = Listening::start(model(), options(connections)).await;
    let mut idle = Vec::new();
    for _ in 0..100 {
        idle.push(connect(&server).await);
    }
    let mut stream = connect(&server).await;
    stream.write_all(request("/v1/completions", &json!({ "prompt": "a", "max_tokens": 2 })).as_bytes()).await.unwrap();
    assert!(read_until(&mut stream, "\"usage\"").await.starts_with("HTTP/1.1 200"));
    read_to_end(&mut idle[0]).await;
    server.stop().await;
}

#[tokio::test]
async fn when_all_connections_are_busy_the_probes_still_answer() {
    let connections = ConnectionOptions { max_connections: 2, ..ConnectionOptions::default() };
    let server = Listening::start(slow_model(), options(connections)).await;
    let mut busy = [connect(&server).await, connect(&server).await];
    for stream in &mut busy {
        stream.write_all(request("/v1/completions", &endless()).as_bytes()).await.unwrap();
        read_until(stream, "data: ").await;
    }
    let mut probe = connect(&server).await;
    probe.write_all(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    assert!(read_until(&mut probe, "\"ok\"}").await.starts_with("HTTP/1.1 200"));
    let mut refused = connect(&server).await;
    refused.write_all(request("/v1/completions", &endless()).as_bytes()).await.unwrap();
    let answer = read_to_end(&mut refused).await;
    assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("retry-after: 1"), "{answer}");
    drop(busy);
    server.stop().await;
}

#[tokio::test]
async fn a_client_that_does_not_read_its_answer_is_cut_off() {
    let connections = ConnectionOptions { stall_timeout: SHORT, ..ConnectionOptions::default() };
    let server = Listening::start(model(), options(connections)).await;
    let mut stream = connect(&server).await;
    // Many times what the buffers of a connection hold.
    let body = json!({ "content": "a".repeat(1 << 20), "with_pieces": true });
    stream.write_all(request("/tokenize", &body).as_bytes()).await.unwrap();
    tokio::time::sleep(SHORT).await;
    timeout(LONG, server.stop()).await.expect("the server does not wait for the client");
    drop(stream);
}

#[tokio::test]
async fn a_small_body_that_becomes_large_is_refused() {
    let options = ServerOptions { request_memory_bytes: 64 << 20, ..ServerOptions::new(MODEL) };
    let server = Server::start_with(model(), RuntimeOptions::default(), options).await;
    let ignored = format!("[{}]", vec!["[0]"; 1 << 20].join(","));
    let body = format!(r#"{{"prompt": "a", "max_tokens": 1, "ignored": {ignored}}}"#);
    assert!(body.len() < 5 << 20);
    let before = resident_bytes();
    let mut request = post("/v1/completions", &json!({}));
    *request.body_mut() = body.into();
    let answer = server.call(request).await;
    assert_eq!(answer.status, 413, "{}", answer.text());
    assert!(answer.text().contains("--request-memory"), "{}", answer.text());
    assert!(resident_bytes() < before + (64 << 20), "{} MiB more", (resident_bytes() - before) >> 20);
    let small = json!({ "prompt": "a", "max_tokens": 1, "ignored": [[0], [0]] });
    server.ok("/v1/completions", &small).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_that_does_not_read_the_body_keeps_the_connection() {
    let server = Listening::start(model(), options(ConnectionOptions::default())).await;
    let mut stream = connect(&server).await;
    for body in ["{\"model\": \"a\"}", ""] {
        let head = format!("POST /api/push HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n", body.len());
        stream.write_all(head.as_bytes()).await.unwrap();
        // The body arrives when the request was refused long ago.
        tokio::time::sleep(Duration::from_millis(100)).await;
        stream.write_all(body.as_bytes()).await.unwrap();
        let refused = read_until(&mut stream, "push models\"}").await;
        assert!(refused.starts_with("HTTP/1.1 400") && !refused.contains("connection: close"), "{refused}");
    }
    stream.write_all(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    assert!(read_until(&mut stream, "\r\n\r\n").await.starts_with("HTTP/1.1 200"));

    let head = format!("POST /nothing HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n", 1 << 20);
    let mut stream = connect(&server).await;
    stream.write_all(head.as_bytes()).await.unwrap();
    let refused = read_to_end(&mut stream).await;
    assert!(refused.starts_with("HTTP/1.1 404") && refused.contains("connection: close"), "{refused}");
    server.stop().await;
}

#[tokio::test]
async fn memory_of_requests_is_shared_and_given_back() {
    let options = ServerOptions { request_memory_bytes: 4 << 20, ..ServerOptions::new(MODEL) };
    let server = Listening::start(model(), options).await;
    // Too long for the context, so nothing is generated.
    let body = json!({ "prompt": "a".repeat(400 << 10) });
    let whole = request("/v1/completions", &body);
    // It waits for the last byte, and holds memory meanwhile.
    let mut first = connect(&server).await;
    first.write_all(&whole.as_bytes()[..whole.len() - 1]).await.unwrap();
    let http = reqwest::Client::new();
    let send = || async { http.post(format!("{}/v1/completions", server.url)).json(&body).send().await.unwrap() };
    let until = Instant::now() + LONG;
    while send().await.status() != 429 {
        assert!(Instant::now() < until, "it was never refused");
    }
    first.write_all(&whole.as_bytes()[whole.len() - 1..]).await.unwrap();
    read_until(&mut first, "context_length_exceeded").await;
    assert_eq!(send().await.status(), 400);
    server.stop().await;
}

/// Resident memory of this process, in bytes.
fn resident_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
}

fn with_key(path: &str, body: &Value, key: &str) -> axum::http::Request<axum::body::Body> {
    let mut request = post(path, body);
    request.headers_mut().insert("x-api-key", key.parse().unwrap());
    request
}

#[tokio::test]
async fn one_client_cannot_hold_every_slot_whatever_its_user_field_says() {
    let runtime = RuntimeOptions { max_requests: 8, ..RuntimeOptions::default() };
    let api_keys = vec!["greedy".into(), "modest".into()];
    let server =
        Server::start_with(slow_model(), runtime, ServerOptions { api_keys, ..ServerOptions::new(MODEL) }).await;
    let mut held = Vec::new();
    for user in 0.. {
        let body = json!({ "prompt": "a", "max_tokens": 400, "ignore_eos": true, "stream": true, "n": 2, "user": user.to_string() });
        let response = server.begin(with_key("/v1/completions", &body, "greedy")).await;
        if response.status() == 429 {
            break;
        }
        assert_eq!(response.status(), 200);
        held.push(response);
    }
    assert_eq!(held.len(), 4, "two slots each");
    let modest = json!({ "prompt": "a", "max_tokens": 1 });
    assert_eq!(server.call(with_key("/v1/completions", &modest, "modest")).await.status, 200);
}

#[tokio::test]
async fn every_route_that_works_on_text_takes_a_slot() {
    let runtime = RuntimeOptions { max_requests: 1, ..RuntimeOptions::default() };
    let server = Server::start_with(slow_model(), runtime, ServerOptions::new(MODEL)).await;
    let held = server.begin(post("/v1/completions", &endless())).await;
    assert_eq!(held.status(), 200);
    for (path, body) in [("/tokenize", json!({ "content": "a" })), ("/detokenize", json!({ "tokens": [97] }))] {
        assert_eq!(server.post(path, &body).await.status, 429, "{path}");
    }
    drop(held);
}
