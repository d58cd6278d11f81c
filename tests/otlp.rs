//! Tests of the exported spans: a minimal collector receives and decodes what the server sends.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::HeaderValue;
use axum::routing::post as on_post;
use cuelight::api::ServerOptions;
use cuelight::pipeline::policy::PolicyConfig;
use cuelight::pipeline::runtime::RuntimeOptions;
use cuelight::pipeline::simulation::{Fault, SimulatedModel};
use cuelight::trace;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value as Any;
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use prost::Message;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use common::{Answer, MODEL, Server, model, post};

type Received = Arc<Mutex<Vec<ExportTraceServiceRequest>>>;

async fn receive(State(received): State<Received>, body: Bytes) {
    received.lock().unwrap().push(ExportTraceServiceRequest::decode(body).unwrap());
}

/// Makes one call to a server with tracing. Returns the answer and all spans.
async fn traced(model: SimulatedModel, body: Value, traceparent: Option<&'static str>) -> (Answer, Vec<Span>) {
    let received = Received::default();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let collector = Router::new().route("/v1/traces", on_post(receive)).with_state(received.clone());
    let collector = tokio::spawn(async move { axum::serve(listener, collector).await });

    let tracer = tokio::task::spawn_blocking(move || trace::start(None, Some(&url)).unwrap()).await.unwrap();
    let policy = PolicyConfig { prefill_chunk_tokens: 16, ..RuntimeOptions::default().policy };
    let runtime =
        RuntimeOptions { model_id: MODEL.into(), policy, tracer: tracer.clone(), ..RuntimeOptions::default() };
    let server = Server::start_with(model, runtime, ServerOptions::new(MODEL)).await;
    let mut request = post("/v1/chat/completions", &body);
    request.headers_mut().insert("x-request-id", HeaderValue::from_static("order-66"));
    if let Some(traceparent) = traceparent {
        request.headers_mut().insert("traceparent", HeaderValue::from_static(traceparent));
    }
    let answer = server.call(request).await;
    server.settle().await;
    tokio::task::spawn_blocking(move || tracer.finish()).await.unwrap();
    collector.abort();

    let received = received.lock().unwrap();
    let resources = received.iter().flat_map(|export| &export.resource_spans);
    let spans = resources.flat_map(|resource| resource.scope_spans.iter().flat_map(|scope| scope.spans.clone()));
    (answer, spans.collect())
}

fn chat() -> Value {
    // A prompt of several chunks.
    let content = "the sea ".repeat(10);
    json!({
        "model": MODEL, "messages": [{ "role": "user", "content": content }], "max_tokens": 8, "temperature": 0.5,
        "top_p": 0.75, "seed": 1,
    })
}

fn endless() -> SimulatedModel {
    SimulatedModel { end_one_in: u64::MAX, step_time: Duration::from_millis(1), ..model() }
}

fn attribute(span: &Span, key: &str) -> Value {
    let found = span.attributes.iter().find(|attribute| attribute.key == key);
    match found.and_then(|attribute| attribute.value.clone()?.value) {
        Some(Any::StringValue(text)) => json!(text),
        Some(Any::IntValue(number)) => json!(number),
        Some(Any::DoubleValue(number)) => json!(number),
        Some(Any::BoolValue(is)) => json!(is),
        Some(Any::ArrayValue(array)) => {
            let texts = array.values.into_iter().map(|value| match value.value {
                Some(Any::StringValue(text)) => json!(text),
                other => panic!("{other:?} in {key}"),
            });
            texts.collect()
        }
        _ => Value::Null,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_is_a_child_of_the_clients_span_with_its_phases_below() {
    let (answer, spans) =
        traced(endless(), chat(), Some("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")).await;
    let request = spans.iter().find(|span| span.name == format!("chat {MODEL}")).unwrap();
    assert_eq!(request.trace_id, 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736_u128.to_be_bytes());
    assert_eq!(request.parent_span_id, 0x00f0_67aa_0ba9_02b7_u64.to_be_bytes());

    let body = answer.json();
    let prompt_tokens = body["usage"]["prompt_tokens"].clone();
    for (key, value) in [
        ("gen_ai.operation.name", json!("chat")),
        ("gen_ai.provider.name", json!("cuelight")),
        ("gen_ai.request.model", json!(MODEL)),
        ("gen_ai.request.max_tokens", json!(8)),
        ("gen_ai.request.temperature", json!(0.5)),
        ("gen_ai.request.top_p", json!(0.75)),
        ("gen_ai.response.id", body["id"].clone()),
        ("gen_ai.response.model", json!(MODEL)),
        ("gen_ai.response.finish_reasons", json!(["length"])),
        ("gen_ai.usage.input_tokens", prompt_tokens.clone()),
        ("gen_ai.usage.cache_read.input_tokens", json!(0)),
        ("gen_ai.usage.output_tokens", json!(8)),
        ("cuelight.request_id", json!("order-66")),
        ("error.type", Value::Null),
    ] {
        assert_eq!(attribute(request, key), value, "{key}");
    }

    let children: Vec<&Span> = spans.iter().filter(|span| span.parent_span_id == request.span_id).collect();
    assert_eq!(children.len() + 1, spans.len());
    let named = |name: &str| children.iter().filter(|span| span.name == name).copied().collect::<Vec<_>>();
    let prefill = named("prefill");
    assert!(prefill.len() > 2, "{prefill:?}");
    let computed: i64 = prefill.iter().map(|span| attribute(span, "cuelight.prefill.tokens").as_i64().unwrap()).sum();
    // A last chunk of one token looks like a decode row.
    let prompt_tokens = prompt_tokens.as_i64().unwrap();
    assert!((prompt_tokens - 1..=prompt_tokens).contains(&computed), "{computed} of {prompt_tokens}");
    let [queue, decode, detokenise] = ["queue", "decode", "detokenise"].map(|name| {
        let [span] = named(name)[..] else { panic!("{name}: {children:?}") };
        span
    });
    assert_eq!(attribute(detokenise, "cuelight.aggregate"), true);
    for span in &children {
        assert!(request.start_time_unix_nano <= span.start_time_unix_nano, "{span:?}");
        assert!(span.start_time_unix_nano <= span.end_time_unix_nano, "{span:?}");
        assert!(span.end_time_unix_nano <= request.end_time_unix_nano, "{span:?}");
    }
    assert!(queue.end_time_unix_nano <= decode.start_time_unix_nano);
    assert!(prefill.windows(2).all(|pair| pair[0].end_time_unix_nano <= pair[1].start_time_unix_nano));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_does_not_sample_gets_no_spans() {
    let (answer, spans) =
        traced(endless(), chat(), Some("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00")).await;
    assert_eq!(answer.status, 200);
    assert_eq!(spans, []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_request_has_an_error_status() {
    let model = SimulatedModel { faults: Some(Arc::new(|_, _: &_| Some(Fault::NotANumber))), ..endless() };
    let (answer, spans) = traced(model, chat(), None).await;
    assert_eq!(answer.status, 500);
    let request = spans.iter().find(|span| span.name == format!("chat {MODEL}")).unwrap();
    assert_eq!(request.parent_span_id, [0; 0]);
    let status = request.status.clone().unwrap();
    assert_eq!(status.code, StatusCode::Error as i32);
    assert!(status.message.contains("not usable"), "{status:?}");
    assert_eq!(attribute(request, "error.type"), "engine_error");
}

#[test]
fn an_unusable_collector_url_is_reported_in_one_sentence() {
    let error = trace::start(None, Some("https://collector")).unwrap_err().to_string();
    assert!(error.starts_with("the collector's URL \"https://collector\" does not begin with http://"), "{error}");
    let error = trace::start(None, Some("http://bad host")).unwrap_err().to_string();
    assert_eq!(error, "the collector's URL \"http://bad host\" cannot be used");
}
