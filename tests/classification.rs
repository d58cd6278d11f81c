//! Classification over HTTP: the routes of vLLM and Text Embeddings Inference, with simulated models and with tiny real ones.

#![allow(clippy::unwrap_used)]

mod common;

use axum::http::StatusCode;
use cuelight::api::ServerOptions;
use cuelight::pipeline::runtime::RuntimeOptions;
use cuelight::pipeline::simulation::SimulatedModel;
use cuelight_engine::embedding::Relevance;
use serde_json::{Value, json};

use common::vectors::{encoder, real};
use common::{MODEL, Server, model};

const CLASSIFY: &str = "/classify";
const PREDICT: &str = "/predict";

/// A model whose hidden values are the logits of three classes.
fn classifier() -> SimulatedModel {
    SimulatedModel { labels: ["bad", "fair", "good"].map(str::to_owned).to_vec(), ..encoder(3) }
}

fn expected(path: &str) -> Value {
    let path = format!("{}/tests/fixtures/{path}.json", env!("CARGO_MANIFEST_DIR"));
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|number| number.as_f64().unwrap()).collect()
}

fn are_close(found: &[f64], expected: &[f64]) -> bool {
    found.len() == expected.len() && found.iter().zip(expected).all(|(found, expected)| (found - expected).abs() < 1e-4)
}

/// The score of each label, of a list that must be ordered by them.
fn by_label(predictions: &Value, labels: &Value) -> Vec<f64> {
    let predictions = predictions.as_array().unwrap();
    let score = |prediction: &Value| prediction["score"].as_f64().unwrap();
    assert!(predictions.is_sorted_by(|left, right| score(left) >= score(right)), "{predictions:?}");
    let of_label = |label: &Value| score(predictions.iter().find(|prediction| prediction["label"] == *label).unwrap());
    labels.as_array().unwrap().iter().map(of_label).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn real_models_give_the_scores_of_transformers() {
    for name in ["bert.gguf", "bert", "modern-bert.gguf", "modern-bert", "qwen3"] {
        let server = real(&format!("classifiers/{name}")).await;
        let expected = expected(&format!("classifiers/{}", name.trim_end_matches(".gguf")));
        let labels = &expected["labels"];
        for text in expected["texts"].as_array().unwrap() {
            let (scores, logits) = (numbers(&text["scores"]), numbers(&text["logits"]));
            let pair = server.ok(PREDICT, &json!({ "inputs": text["text"] })).await;
            assert!(are_close(&by_label(&pair, labels), &scores), "{name}: {pair} {text}");
            let raw = server.ok(PREDICT, &json!({ "inputs": [text["text"]], "raw_scores": true })).await;
            assert!(are_close(&by_label(&raw[0], labels), &logits), "{name}: {raw} {text}");
            let [one] = &text["text"].as_array().unwrap()[..] else { continue };
            let vllm = server.ok(CLASSIFY, &json!({ "model": MODEL, "input": one })).await;
            let item = &vllm["data"][0];
            assert!(are_close(&numbers(&item["probs"]), &scores), "{name}: {vllm} {text}");
            let best = (0..scores.len()).max_by(|a, b| scores[*a].total_cmp(&scores[*b])).unwrap();
            assert_eq!((&item["label"], &item["num_classes"]), (&labels[best], &json!(scores.len())));
            assert_eq!(vllm["usage"]["prompt_tokens"], json!(text["tokens"].as_array().unwrap().len()));
            let raw = server.ok(CLASSIFY, &json!({ "input": one, "use_activation": false })).await;
            assert!(are_close(&numbers(&raw["data"][0]["probs"]), &logits), "{name}: {raw} {text}");
        }
        server.settle().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reranker_tells_its_one_class_and_a_reranker_that_answers_none() {
    let server = real("rerankers/bert").await;
    let pair = &expected("rerankers/bert")["pairs"][0];
    let found = server.ok(PREDICT, &json!({ "inputs": [pair["query"], pair["document"]] })).await;
    assert_eq!(found[0]["label"], "LABEL_0");
    assert!((found[0]["score"].as_f64().unwrap() - pair["score"].as_f64().unwrap()).abs() < 1e-4, "{found}");
    let answering = real("rerankers/qwen3-answers").await;
    let (message, param) = answering.refused(CLASSIFY, &json!({ "input": "a" })).await;
    assert_eq!(param, "model");
    assert!(message.contains("yes or no") && message.contains("/v1/rerank"), "{message}");
    let pair = &expected("rerankers/qwen3-answers")["pairs"][0];
    let ranked = server_rerank(&answering, pair).await;
    assert!((ranked - pair["score"].as_f64().unwrap()).abs() < 1e-4);
}

async fn server_rerank(server: &Server, pair: &Value) -> f64 {
    let body = json!({ "query": pair["query"], "documents": [pair["document"]] });
    server.ok("/v1/rerank", &body).await["results"][0]["relevance_score"].as_f64().unwrap()
}

#[tokio::test]
async fn both_protocols_tell_the_same_scores_in_their_own_form() {
    let server = Server::start(classifier()).await;
    let labels = json!(["bad", "fair", "good"]);
    let texts = ["one", "another", "a third"];
    let answer = server.ok(CLASSIFY, &json!({ "input": texts })).await;
    assert!(answer["id"].as_str().unwrap().starts_with("classify-"));
    assert_eq!((&answer["object"], &answer["model"]), (&json!("list"), &json!(MODEL)));
    let probs: Vec<Vec<f64>> = answer["data"].as_array().unwrap().iter().map(|item| numbers(&item["probs"])).collect();
    assert_eq!(probs.len(), texts.len());
    assert!(probs.iter().all(|probs| (probs.iter().sum::<f64>() - 1.0).abs() < 1e-6));
    assert_eq!(server.ok("/v1/classify", &json!({ "input": texts })).await["data"], answer["data"]);
    let batch = server.ok(PREDICT, &json!({ "inputs": texts.map(|text| [text]) })).await;
    for (predictions, probs) in batch.as_array().unwrap().iter().zip(&probs) {
        assert_eq!(by_label(predictions, &labels), *probs);
    }
    for alone in [json!("one"), json!(["one"])] {
        assert_eq!(server.ok(PREDICT, &json!({ "inputs": alone })).await, batch[0]);
    }
    let logits = server.ok(PREDICT, &json!({ "inputs": "one", "raw_scores": true })).await;
    let logits = by_label(&logits, &labels);
    for name in ["use_activation", "activation", "softmax"] {
        let raw = server.ok(CLASSIFY, &json!({ "input": "one", name: false })).await;
        assert_eq!(numbers(&raw["data"][0]["probs"]), logits, "{name}");
    }
    server.settle().await;
    assert_eq!(server.runtime.snapshot().blocks_cached, 0, "nothing of a text is kept");
}

#[tokio::test]
async fn a_text_beyond_the_context_is_refused_or_cut() {
    let server = Server::start(classifier()).await;
    let long = "a".repeat(500);
    for (path, body) in [(CLASSIFY, json!({ "input": long })), (PREDICT, json!({ "inputs": long }))] {
        let answer = server.post(path, &body).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{path}");
        assert_eq!(answer.json()["error"]["code"], "context_length_exceeded");
    }
    let cut = server.ok(CLASSIFY, &json!({ "input": long, "truncate_prompt_tokens": -1 })).await;
    assert_eq!(cut["usage"]["prompt_tokens"], 200);
    let cut = server.ok(CLASSIFY, &json!({ "input": long, "truncate_prompt_tokens": 20 })).await;
    assert_eq!(cut["usage"]["prompt_tokens"], 20);
    server.ok(PREDICT, &json!({ "inputs": long, "truncate": true })).await;
    server.ok(PREDICT, &json!({ "inputs": [["q", long]], "truncate": true })).await;
}

#[tokio::test]
async fn wrong_requests_are_refused_by_name() {
    let server = Server::start(classifier()).await;
    for (path, body, param) in [
        (CLASSIFY, json!({}), "input"),
        (CLASSIFY, json!({ "input": [] }), "input"),
        (CLASSIFY, json!({ "input": "" }), "input"),
        (CLASSIFY, json!({ "input": ["a", ""] }), "input[1]"),
        (CLASSIFY, json!({ "input": vec!["a"; 2049] }), "input"),
        (CLASSIFY, json!({ "input": "a", "use_activation": "no" }), "use_activation"),
        (CLASSIFY, json!({ "input": "a", "truncate_prompt_tokens": 0 }), "truncate_prompt_tokens"),
        (CLASSIFY, json!({ "messages": [{ "role": "user", "content": "a" }] }), "messages"),
        (PREDICT, json!({}), "inputs"),
        (PREDICT, json!({ "inputs": [] }), "inputs"),
        (PREDICT, json!({ "inputs": 5 }), "inputs"),
        (PREDICT, json!({ "inputs": ["a", "b", "c"] }), "inputs"),
        (PREDICT, json!({ "inputs": ["a", 1] }), "inputs[1]"),
        (PREDICT, json!({ "inputs": [["a"], []] }), "inputs[1]"),
        (PREDICT, json!({ "inputs": [["a"], ["b", ""]] }), "inputs[1][1]"),
        (PREDICT, json!({ "inputs": vec![["a"]; 10_001] }), "inputs"),
        (PREDICT, json!({ "inputs": "a", "raw_scores": 1 }), "raw_scores"),
        (PREDICT, json!({ "inputs": "a", "truncation_direction": "left" }), "truncation_direction"),
    ] {
        assert_eq!(server.refused(path, &body).await.1, param, "{path} {body:.60}");
    }
    server.settle().await;
}

#[tokio::test]
async fn a_model_says_what_it_can_do_and_refuses_the_rest() {
    let server = Server::start(classifier()).await;
    let listed = server.get("/v1/models").await.json();
    assert_eq!(listed["data"][0]["architecture"]["output_modalities"], json!(["classify"]));
    assert_eq!(listed["data"][0]["meta"]["labels"], json!(["bad", "fair", "good"]));
    assert_eq!(server.get("/api/tags").await.json()["models"][0]["capabilities"], json!([]));
    let chat = json!({ "messages": [{ "role": "user", "content": "hi" }] });
    for (path, body) in [
        ("/v1/chat/completions", &chat),
        ("/v1/completions", &json!({ "prompt": "a" })),
        ("/v1/embeddings", &json!({ "input": "a" })),
        ("/embed", &json!({ "inputs": "a" })),
        ("/v1/rerank", &json!({ "query": "q", "documents": ["a"] })),
        ("/v1/score", &json!({ "text_1": "q", "text_2": "a" })),
    ] {
        let (message, param) = server.refused(path, body).await;
        assert_eq!(param, "model", "{path}");
        assert!(message.contains("/classify"), "{message}");
    }
    let reranker = SimulatedModel { relevance: Some(Relevance::YesOrNo), ..encoder(3) };
    for (other, advice) in [(model(), "no classifier"), (encoder(3), "/v1/embeddings"), (reranker, "/v1/rerank")] {
        let other = Server::start(other).await;
        for (path, body) in [(CLASSIFY, json!({ "input": "a" })), (PREDICT, json!({ "inputs": "a" }))] {
            let (message, param) = other.refused(path, &body).await;
            assert_eq!(param, "model");
            assert!(message.contains("no classifier") && message.contains(advice), "{message}");
        }
    }
}

#[tokio::test]
async fn a_request_takes_few_slots_however_many_texts_it_has() {
    let runtime = RuntimeOptions { max_requests: 40, ..RuntimeOptions::default() };
    let server = Server::start_with(classifier(), runtime, ServerOptions::new(MODEL)).await;
    let texts: Vec<[String; 1]> = (0..500).map(|index| [format!("text {index}")]).collect();
    let answer = server.ok(PREDICT, &json!({ "inputs": texts })).await;
    assert_eq!(answer.as_array().unwrap().len(), 500);
}
