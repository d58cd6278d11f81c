//! Embeddings over HTTP: OpenAI's and Ollama's routes, with simulated models and with tiny real ones.

#![allow(clippy::unwrap_used)]

mod common;

use axum::http::StatusCode;
use cuelight::api::ServerOptions;
use cuelight::pipeline::runtime::RuntimeOptions;
use cuelight::pipeline::simulation::{Fault, SimulatedModel};
use cuelight_engine::engine::{EngineLimits, HiddenLimits};
use serde_json::{Value, json};

use common::vectors::{encoder, real};
use common::{MODEL, Server, model};

const OPENAI: &str = "/v1/embeddings";

fn vector(value: &Value) -> Vec<f32> {
    value.as_array().unwrap().iter().map(|value| value.as_f64().unwrap() as f32).collect()
}

/// The vectors of an answer of OpenAI's route, in the order of their indices.
fn vectors(answer: &Value) -> Vec<Vec<f32>> {
    let data = answer["data"].as_array().unwrap();
    assert!(data.iter().enumerate().all(|(index, item)| item["index"] == index && item["object"] == "embedding"));
    data.iter().map(|item| vector(&item["embedding"])).collect()
}

fn length(vector: &[f32]) -> f32 {
    vector.iter().map(|value| value * value).sum::<f32>().sqrt()
}

#[tokio::test(flavor = "multi_thread")]
async fn real_models_give_the_vectors_of_transformers() {
    for name in ["bert-mean", "qwen3", "gemma-embedding"] {
        let server = real(&format!("embeddings/{name}.gguf")).await;
        let path = format!("{}/tests/fixtures/embeddings/{name}.json", env!("CARGO_MANIFEST_DIR"));
        let expected: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        let texts = expected["texts"].as_array().unwrap();
        let tokens: usize = texts.iter().map(|text| text["tokens"].as_array().unwrap().len()).sum();
        let of_texts = |key: &str| texts.iter().map(|text| text[key].clone()).collect::<Vec<_>>();
        let by_text = server.ok(OPENAI, &json!({ "model": MODEL, "input": of_texts("text") })).await;
        assert_eq!(by_text["usage"], json!({ "prompt_tokens": tokens, "total_tokens": tokens }));
        for (found, text) in vectors(&by_text).iter().zip(texts) {
            let expected = vector(&text["vector"]);
            assert_eq!(found.len(), expected.len());
            assert!(found.iter().zip(&expected).all(|(left, right)| (left - right).abs() < 2e-5), "{name}");
        }
        let by_tokens = server.ok(OPENAI, &json!({ "input": of_texts("tokens") })).await;
        assert_eq!(by_tokens["data"], by_text["data"], "the texts have these tokens");
        let ollama = server.ok("/api/embed", &json!({ "model": MODEL, "input": of_texts("text") })).await;
        assert_eq!(ollama["embeddings"].as_array().unwrap().len(), texts.len());
        assert_eq!(ollama["embeddings"][0], by_text["data"][0]["embedding"]);
        assert_eq!(ollama["prompt_eval_count"], tokens);
        server.settle().await;
    }
}

#[tokio::test]
async fn a_text_has_the_same_vector_alone_and_among_many() {
    for simulated in [model(), encoder(8)] {
        let server = Server::start(simulated).await;
        // More than fit into steps at once, and than are submitted at once.
        let texts: Vec<String> = (0..100).map(|index| format!("text {index} ").repeat(1 + index % 9)).collect();
        let many = vectors(&server.ok(OPENAI, &json!({ "input": texts })).await);
        assert_eq!(many.len(), texts.len());
        for index in [0, 7, 42, 99] {
            let alone = vectors(&server.ok(OPENAI, &json!({ "input": texts[index] })).await);
            assert_eq!(alone, [many[index].clone()]);
            assert!((length(&alone[0]) - 1.0).abs() < 1e-5);
        }
        server.settle().await;
        assert_eq!(server.runtime.snapshot().blocks_cached, 0, "nothing of a text is kept");
    }
}

#[tokio::test]
async fn embeddings_share_steps_with_generation() {
    let server = Server::start(SimulatedModel { end_one_in: u64::MAX, ..model() }).await;
    let completion = json!({ "prompt": "a", "max_tokens": 50, "temperature": 0 });
    let (alone, embedded) =
        (server.ok("/v1/completions", &completion).await, json!({ "input": ["b", "c".repeat(300)] }));
    let vectors_alone = server.ok(OPENAI, &embedded).await;
    let (text, both) = tokio::join!(server.ok("/v1/completions", &completion), server.ok(OPENAI, &embedded));
    assert_eq!(text["choices"], alone["choices"]);
    assert_eq!(both["data"], vectors_alone["data"]);
}

#[tokio::test]
async fn a_lost_engine_delays_embeddings_only() {
    let input: Vec<String> = (0..30).map(|index| format!("text number {index}")).collect();
    for simulated in [model(), encoder(8)] {
        let expected = Server::start(simulated.clone()).await.ok(OPENAI, &json!({ "input": input })).await;
        let faults = |step: u64, _: &_| [1, 4].contains(&step).then_some(Fault::Panic);
        let server = Server::start(SimulatedModel { faults: Some(std::sync::Arc::new(faults)), ..simulated }).await;
        let found = server.ok(OPENAI, &json!({ "input": input })).await;
        assert_eq!(found["data"], expected["data"]);
    }
}

#[tokio::test]
async fn values_that_are_not_numbers_fail_the_request() {
    let faults = |_: u64, _: &_| Some(Fault::NotANumber);
    let server = Server::start(SimulatedModel { faults: Some(std::sync::Arc::new(faults)), ..model() }).await;
    let answer = server.post(OPENAI, &json!({ "input": "a" })).await;
    assert_eq!(answer.status, StatusCode::INTERNAL_SERVER_ERROR, "{}", answer.text());
}

#[tokio::test]
async fn dimensions_keep_the_first_values_and_base64_holds_float32() {
    let server = Server::start(encoder(8)).await;
    let whole = vectors(&server.ok(OPENAI, &json!({ "input": "text" })).await).remove(0);
    let cut = vectors(&server.ok(OPENAI, &json!({ "input": "text", "dimensions": 3 })).await).remove(0);
    assert_eq!((whole.len(), cut.len()), (8, 3));
    let factor = 1.0 / length(&whole[..3]);
    assert!(cut.iter().zip(&whole).all(|(cut, whole)| (cut - whole * factor).abs() < 1e-6));
    let (message, param) = server.refused(OPENAI, &json!({ "input": "text", "dimensions": 9 })).await;
    assert_eq!(param, "dimensions");
    assert!(message.contains("8 values"), "{message}");
    let answer = server.ok(OPENAI, &json!({ "input": "text", "encoding_format": "base64" })).await;
    // 8 values of 4 bytes are 32 bytes, for which base64 has 44 characters.
    assert_eq!(answer["data"][0]["embedding"].as_str().unwrap().len(), 44);
}

#[tokio::test]
async fn a_text_beyond_the_context_is_refused_or_cut() {
    let server = Server::start(encoder(8)).await;
    let long = "a".repeat(500);
    let (message, _) = server.refused(OPENAI, &json!({ "input": ["b", long] })).await;
    assert!(message.contains("200"), "{message}");
    let cut = server.ok(OPENAI, &json!({ "input": long, "truncate_prompt_tokens": -1 })).await;
    assert_eq!(cut["usage"]["prompt_tokens"], 200);
    let shorter = server.ok(OPENAI, &json!({ "input": long, "truncate_prompt_tokens": 50 })).await;
    assert_eq!(shorter["usage"]["prompt_tokens"], 50);
    let same = server.ok(OPENAI, &json!({ "input": "a".repeat(200) })).await;
    assert_eq!(cut["data"], same["data"]);
    let ollama = server.ok("/api/embed", &json!({ "model": MODEL, "input": long })).await;
    assert_eq!(ollama["prompt_eval_count"], 200);
    let answer = server.post("/api/embed", &json!({ "model": MODEL, "input": long, "truncate": false })).await;
    assert_eq!(answer.status, StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn the_end_of_a_cut_text_is_the_special_token() {
    let server = real("embeddings/bert-cls.gguf").await;
    let long = "the harbour was quiet ".repeat(80);
    let cut = server.ok("/api/embed", &json!({ "model": MODEL, "input": long })).await;
    assert_eq!(cut["prompt_eval_count"], 128);
    let tokens = server.ok("/tokenize", &json!({ "prompt": long })).await["tokens"].as_array().unwrap().clone();
    let expected: Vec<Value> = tokens[..127].iter().chain(tokens.last()).cloned().collect();
    let same = server.ok(OPENAI, &json!({ "input": expected })).await;
    assert_eq!(same["data"][0]["embedding"], cut["embeddings"][0]);
}

#[tokio::test]
async fn ollamas_older_route_gives_one_vector_that_is_not_normalized() {
    let server = Server::start(encoder(8)).await;
    let one = server.ok("/api/embeddings", &json!({ "model": MODEL, "prompt": "text" })).await;
    let raw = vector(&one["embedding"]);
    let normalized = vectors(&server.ok(OPENAI, &json!({ "input": "text" })).await).remove(0);
    let factor = length(&raw);
    assert!((factor - 1.0).abs() > 1e-3);
    assert!(raw.iter().zip(&normalized).all(|(raw, normalized)| (raw - normalized * factor).abs() < 1e-5));
    let nothing = server.ok("/api/embeddings", &json!({ "model": MODEL, "prompt": "" })).await;
    assert_eq!(nothing, json!({ "embedding": [] }));
    let nothing = server.ok("/api/embed", &json!({ "model": MODEL, "input": [] })).await;
    assert_eq!(nothing["embeddings"], json!([]));
}

#[tokio::test]
async fn a_model_says_what_it_can_do_and_refuses_the_rest() {
    let server = Server::start(encoder(8)).await;
    let tags = server.get("/api/tags").await.json();
    assert_eq!(tags["models"][0]["capabilities"], json!(["embedding"]));
    let shown = server.ok("/api/show", &json!({ "model": MODEL })).await;
    assert_eq!(shown["capabilities"], json!(["embedding"]));
    assert_eq!(shown["model_info"]["simulated.embedding_length"], 8);
    let listed = server.get("/v1/models").await.json();
    assert_eq!(listed["data"][0]["architecture"]["output_modalities"], json!(["embedding"]));
    assert_eq!(listed["data"][0]["meta"]["n_embd"], 8);
    let chat = json!({ "messages": [{ "role": "user", "content": "hi" }] });
    for (path, body) in [("/v1/chat/completions", &chat), ("/v1/completions", &json!({ "prompt": "a" }))] {
        let (message, param) = server.refused(path, body).await;
        assert_eq!(param, "model");
        assert!(message.contains("/v1/embeddings"), "{message}");
    }
    // A model that generates text makes embeddings too; it does not list them, because it is not made for them.
    let decoder = Server::start(model()).await;
    let tags = decoder.get("/api/tags").await.json();
    assert!(!tags["models"][0]["capabilities"].as_array().unwrap().contains(&json!("embedding")));
    assert_eq!(vectors(&decoder.ok(OPENAI, &json!({ "input": "a" })).await).len(), 1);
    let without =
        SimulatedModel { limits: EngineLimits { hidden: HiddenLimits::default(), ..model().limits }, ..model() };
    let (message, param) = Server::start(without).await.refused(OPENAI, &json!({ "input": "a" })).await;
    assert_eq!(param, "model");
    assert!(message.contains("no embeddings"), "{message}");
}

#[tokio::test]
async fn wrong_requests_are_refused_by_name() {
    let server = Server::start(encoder(8)).await;
    for (body, param) in [
        (json!({}), "input"),
        (json!({ "input": [] }), "input"),
        (json!({ "input": ["a", ""] }), "input[1]"),
        (json!({ "input": [[]] }), "input[0]"),
        (json!({ "input": [1, 99999999] }), "input[1]"),
        (json!({ "input": "a", "encoding_format": "ubinary" }), "encoding_format"),
        (json!({ "input": "a", "dimensions": 0 }), "dimensions"),
    ] {
        assert_eq!(server.refused(OPENAI, &body).await.1, param, "{body}");
    }
    server.settle().await;
}

#[tokio::test]
async fn a_request_takes_few_slots_however_many_texts_it_has() {
    let runtime = RuntimeOptions { max_requests: 40, ..RuntimeOptions::default() };
    let server = Server::start_with(encoder(8), runtime, ServerOptions::new(MODEL)).await;
    let texts: Vec<String> = (0..500).map(|index| format!("text {index}")).collect();
    assert_eq!(vectors(&server.ok(OPENAI, &json!({ "input": texts })).await).len(), 500);
}
