//! Tests of the log line of every request, in JSON format.
#![allow(clippy::unwrap_used)]

mod common;

use std::io::{self, Write};
use std::sync::{Arc, Mutex};

use axum::http::HeaderValue;
use cuelight::pipeline::simulation::{Fault, SimulatedModel};
use serde_json::{Value, json};
use tracing_subscriber::fmt::MakeWriter;

use common::{MODEL, Server, model, post};

/// The log output.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Lines {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

/// Calls a server with a request id, and returns the log lines of requests.
async fn logged(model: SimulatedModel, path: &str, body: Value) -> Vec<Value> {
    let lines = Lines::default();
    let subscriber = tracing_subscriber::fmt().json().flatten_event(true).with_writer(lines.clone()).finish();
    let _guard = tracing::subscriber::set_default(subscriber);
    let server = Server::start(model).await;
    let mut request = post(path, &body);
    request.headers_mut().insert("x-request-id", HeaderValue::from_static("order-66"));
    let answer = server.call(request).await;
    assert_eq!(answer.headers["x-request-id"], "order-66");
    server.settle().await;
    let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    lines.filter(|line| line["target"] == "cuelight::trace::request").collect()
}

fn completion() -> Value {
    json!({ "model": MODEL, "prompt": "the sky is", "max_tokens": 8, "temperature": 0 })
}

#[tokio::test]
async fn a_request_has_one_log_line_with_its_id_and_counts() {
    let model = SimulatedModel { end_one_in: u64::MAX, ..model() };
    let lines = logged(model, "/v1/completions", completion()).await;
    let [line] = lines.as_slice() else { panic!("{lines:?}") };
    assert_eq!((&line["level"], &line["request_id"]), (&json!("INFO"), &json!("order-66")));
    assert_eq!((&line["reason"], &line["completion_tokens"]), (&json!("length"), &json!(8)));
    assert!(line["prompt_tokens"].as_u64().unwrap() > 0, "{line}");
    assert_eq!(line["cached_tokens"], 0);
    let [queue, ttft, total] = ["queue_ms", "ttft_ms", "total_ms"].map(|field| line[field].as_f64().unwrap());
    assert!(queue <= ttft && ttft <= total, "{line}");
}

#[tokio::test]
async fn a_failed_request_is_logged_as_a_warning_with_the_reason() {
    let faults = |_, _: &_| Some(Fault::NotANumber);
    let lines = logged(SimulatedModel { faults: Some(Arc::new(faults)), ..model() }, "/v1/completions", completion());
    let lines = lines.await;
    let [line] = lines.as_slice() else { panic!("{lines:?}") };
    assert_eq!((&line["level"], &line["request_id"]), (&json!("WARN"), &json!("order-66")));
    assert_eq!(line["reason"], "engine_error");
    assert!(line["error"].as_str().unwrap().contains("not usable"), "{line}");
    assert_eq!(line["ttft_ms"], Value::Null);
}

#[tokio::test]
async fn a_refused_request_leaves_one_line_with_its_id() {
    let lines = Lines::default();
    let subscriber = tracing_subscriber::fmt().json().flatten_event(true).with_writer(lines.clone()).finish();
    let _guard = tracing::subscriber::set_default(subscriber);
    let server = Server::start(model()).await;
    for (path, body, status, code) in [
        ("/v1/completions", json!({ "prompt": 7 }), 400, "invalid_value"),
        ("/v1/completions", json!({ "prompt": "a", "suffix": "b" }), 400, "unsupported_value"),
        ("/v1/completions", json!({ "prompt": vec![5; 600] }), 400, "context_length_exceeded"),
        ("/v1/nothing", json!({}), 404, "not_found"),
    ] {
        lines.0.lock().unwrap().clear();
        let answer = server.call(post(path, &body)).await;
        assert_eq!(answer.status, status, "{}", answer.text());
        let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
        let all = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let refusals: Vec<Value> = all.filter(|line| line["message"] == "request refused").collect();
        let [line] = refusals.as_slice() else { panic!("{text}") };
        assert_eq!((&line["level"], &line["status"], &line["code"]), (&json!("INFO"), &json!(status), &json!(code)));
        for place in [line, &line["span"]] {
            assert_eq!(place["request_id"], answer.headers["x-request-id"].to_str().unwrap(), "{line}");
            assert_eq!(place["method"], "POST");
            assert_eq!(place["route"], if status == 404 { "unmatched" } else { path });
        }
    }
}
