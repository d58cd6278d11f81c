//! Reranking and scoring over HTTP: the routes of Jina, Cohere, vLLM, llama.cpp and Text Embeddings Inference, with simulated
//! models and with tiny real ones.

#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::http::StatusCode;
use cuelight::api::ServerOptions;
use cuelight::pipeline::runtime::RuntimeOptions;
use cuelight::pipeline::simulation::{Fault, SimulatedModel};
use cuelight_engine::embedding::Relevance;
use serde_json::{Value, json};

use common::vectors::{encoder, real};
use common::{MODEL, Server, model};

const RERANK: &str = "/v1/rerank";
const SCORE: &str = "/v1/score";

/// A model whose only hidden value is a logit.
fn reranker() -> SimulatedModel {
    SimulatedModel { relevance: Some(Relevance::Logit), ..encoder(1) }
}

fn close(value: &Value, expected: &Value) -> bool {
    (value.as_f64().unwrap() - expected.as_f64().unwrap()).abs() < 1e-4
}

/// The score of each document by its index, of an answer that must be ordered.
fn scores(results: &Value, name: &str) -> Vec<f64> {
    let results = results.as_array().unwrap();
    let score = |result: &Value| result[name].as_f64().unwrap();
    assert!(results.is_sorted_by(|left, right| score(left) >= score(right)), "{results:?}");
    let mut by_index: Vec<_> =
        results.iter().map(|result| (result["index"].as_u64().unwrap(), score(result))).collect();
    by_index.sort_by_key(|(index, _)| *index);
    by_index.into_iter().map(|(_, score)| score).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn real_models_give_the_scores_of_transformers() {
    for name in ["bert.gguf", "bert", "xlm-roberta.gguf", "xlm-roberta", "qwen3.gguf"] {
        let server = real(&format!("rerankers/{name}")).await;
        let stem = name.trim_end_matches(".gguf");
        let path = format!("{}/tests/fixtures/rerankers/{stem}.json", env!("CARGO_MANIFEST_DIR"));
        let expected: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        for pair in expected["pairs"].as_array().unwrap() {
            let (query, document) = (&pair["query"], &pair["document"]);
            let tokens = pair["tokens"].as_array().unwrap().len();
            let jina = server.ok(RERANK, &json!({ "model": MODEL, "query": query, "documents": [document] })).await;
            assert_eq!(jina["usage"], json!({ "prompt_tokens": tokens, "total_tokens": tokens }));
            assert!(close(&jina["results"][0]["relevance_score"], &pair["score"]), "{name}: {jina} {pair}");
            let tei = server.ok("/rerank", &json!({ "query": query, "texts": [document], "raw_scores": true })).await;
            assert!(close(&tei[0]["score"], &pair["logit"]), "{name}: {tei} {pair}");
        }
        let pairs = expected["pairs"].as_array().unwrap();
        let side = |key: &str| pairs[..4].iter().map(|pair| pair[key].clone()).collect::<Vec<_>>();
        let scored = server.ok(SCORE, &json!({ "text_1": side("query"), "text_2": side("document") })).await;
        let data = scored["data"].as_array().unwrap();
        assert!(data.iter().zip(pairs).all(|(found, pair)| close(&found["score"], &pair["score"])), "{name}");
        server.settle().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_score_of_embeddings_is_their_cosine() {
    let server = real("embeddings/bert-mean.gguf").await;
    let texts = ["The harbour was quiet.", "the storm", "rope"];
    let embedded = server.ok("/v1/embeddings", &json!({ "input": texts })).await;
    let vector = |index: usize| {
        let values = embedded["data"][index]["embedding"].as_array().unwrap();
        values.iter().map(|value| value.as_f64().unwrap()).collect::<Vec<_>>()
    };
    let cosine =
        |left: usize, right: usize| -> f64 { vector(left).iter().zip(vector(right)).map(|(a, b)| a * b).sum() };
    let scored = server.ok(SCORE, &json!({ "queries": texts[0], "documents": texts[1..] })).await;
    assert_eq!(scored["object"], "list");
    assert_eq!(scored["data"][1]["object"], "score");
    for index in [1, 2] {
        assert!((scored["data"][index - 1]["score"].as_f64().unwrap() - cosine(0, index)).abs() < 1e-5);
    }
    let prompt_tokens = &embedded["usage"]["prompt_tokens"];
    assert_eq!(scored["usage"]["prompt_tokens"], *prompt_tokens);
    let pairs = server.ok("/score", &json!({ "text_1": texts, "text_2": texts })).await;
    let data = pairs["data"].as_array().unwrap();
    assert!(data.iter().all(|pair| (pair["score"].as_f64().unwrap() - 1.0).abs() < 1e-5));
    let (message, param) = server.refused(RERANK, &json!({ "query": "a", "documents": ["b"] })).await;
    assert_eq!(param, "model");
    assert!(message.contains("no reranker") && message.contains("/v1/score"), "{message}");
}

#[tokio::test]
async fn every_route_gives_the_same_scores_in_its_own_form() {
    let server = Server::start(reranker()).await;
    let documents = ["one", "another", "a third"];
    let body = json!({ "query": "what", "documents": documents });
    let answer = server.ok(RERANK, &body).await;
    assert!(answer["id"].as_str().unwrap().starts_with("rerank-"));
    assert_eq!(answer["model"], MODEL);
    let expected = scores(&answer["results"], "relevance_score");
    assert!(expected.iter().all(|score| (0.0..=1.0).contains(score)));
    for result in answer["results"].as_array().unwrap() {
        assert_eq!(result["document"]["text"], documents[result["index"].as_u64().unwrap() as usize]);
    }
    for path in ["/rerank", "/v1/reranking", "/reranking"] {
        assert_eq!(server.ok(path, &body).await["results"], answer["results"]);
    }
    let cohere = server.ok("/v2/rerank", &json!({ "model": MODEL, "query": "what", "documents": documents })).await;
    assert_eq!(scores(&cohere["results"], "relevance_score"), expected);
    assert!(cohere["results"][0].get("document").is_none());
    let objects: Vec<Value> = documents.iter().map(|text| json!({ "text": text })).collect();
    let short = json!({ "query": "what", "documents": objects, "top_n": 1, "return_documents": false });
    let short = server.ok(RERANK, &short).await;
    assert_eq!(short["results"].as_array().unwrap().len(), 1);
    assert_eq!(short["results"][0]["index"], answer["results"][0]["index"]);
    assert!(short["results"][0].get("document").is_none());
    let tei = server.ok("/rerank", &json!({ "query": "what", "texts": documents, "return_text": true })).await;
    assert_eq!(scores(&tei, "score"), expected);
    assert_eq!(tei[0]["text"], documents[tei[0]["index"].as_u64().unwrap() as usize]);
    let raw = server.ok(RERANK, &json!({ "query": "what", "documents": documents, "use_activation": false })).await;
    let logits = scores(&raw["results"], "relevance_score");
    assert!(logits.iter().zip(&expected).all(|(logit, score)| (1.0 / (1.0 + (-logit).exp()) - score).abs() < 1e-6));
    let scored = server.ok(SCORE, &json!({ "text_1": "what", "text_2": documents })).await;
    let in_order: Vec<f64> =
        scored["data"].as_array().unwrap().iter().map(|item| item["score"].as_f64().unwrap()).collect();
    assert_eq!(in_order, expected, "they stay in the order of the request");
}

#[tokio::test]
async fn a_document_has_the_same_score_alone_and_among_many() {
    let server = Server::start(reranker()).await;
    let documents: Vec<String> = (0..150).map(|index| format!("text {index} ").repeat(1 + index % 9)).collect();
    let many = server.ok(RERANK, &json!({ "query": "what", "documents": documents })).await;
    let many = scores(&many["results"], "relevance_score");
    assert_eq!(many.len(), documents.len());
    for index in [0, 7, 149] {
        let alone = server.ok(RERANK, &json!({ "query": "what", "documents": [documents[index]] })).await;
        assert_eq!(scores(&alone["results"], "relevance_score"), [many[index]]);
    }
    server.settle().await;
    assert_eq!(server.runtime.snapshot().blocks_cached, 0, "nothing of a document is kept");
}

#[tokio::test]
async fn a_lost_engine_delays_scores_only() {
    let body = json!({ "query": "q", "documents": (0..30).map(|index| format!("text {index}")).collect::<Vec<_>>() });
    let expected = Server::start(reranker()).await.ok(RERANK, &body).await;
    let faults = |step: u64, _: &_| [1, 4].contains(&step).then_some(Fault::Panic);
    let server = Server::start(SimulatedModel { faults: Some(Arc::new(faults)), ..reranker() }).await;
    assert_eq!(server.ok(RERANK, &body).await["results"], expected["results"]);
}

#[tokio::test]
async fn a_client_that_leaves_ends_the_work() {
    let slow = SimulatedModel { step_time: Duration::from_millis(20), ..reranker() };
    let counters = slow.counters.clone();
    let server = Server::start(slow).await;
    let documents: Vec<String> = (0..2000).map(|index| format!("text {index} ").repeat(6)).collect();
    let body = json!({ "query": "q", "documents": documents });
    let left = tokio::time::timeout(Duration::from_millis(200), server.post(RERANK, &body)).await;
    assert!(left.is_err(), "it takes seconds");
    server.settle().await;
    let steps = counters.steps.load(Ordering::Relaxed);
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(counters.steps.load(Ordering::Relaxed), steps);
}

#[tokio::test]
async fn a_pair_beyond_the_context_is_refused_or_cut() {
    let server = Server::start(reranker()).await;
    let long = "a".repeat(500);
    let request = |more: Value| {
        let mut body = json!({ "query": "q", "documents": ["b", long] });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let answer = server.post(RERANK, &request(json!({}))).await;
    assert_eq!(answer.status, StatusCode::BAD_REQUEST);
    assert_eq!(answer.json()["error"]["code"], "context_length_exceeded");
    let cut = server.ok(RERANK, &request(json!({ "truncate_prompt_tokens": -1 }))).await;
    let to_context = cut["usage"]["prompt_tokens"].as_u64().unwrap();
    assert!((200..300).contains(&to_context), "{to_context}");
    let cut = server.ok(RERANK, &request(json!({ "truncate_prompt_tokens": 50 }))).await;
    assert!(cut["usage"]["prompt_tokens"].as_u64().unwrap() < 100);
    let cut = server.ok(RERANK, &request(json!({ "max_tokens_per_doc": 20 }))).await;
    assert!(cut["usage"]["prompt_tokens"].as_u64().unwrap() < 60);
    assert_eq!(server.ok("/v2/rerank", &request(json!({}))).await["usage"]["prompt_tokens"], to_context);
    let tei = server.ok("/rerank", &json!({ "query": "q", "texts": [long], "truncate": true })).await;
    assert_eq!(tei.as_array().unwrap().len(), 1);
    let (message, _) =
        server.refused(RERANK, &json!({ "query": long, "documents": ["b"], "truncate_prompt_tokens": -1 })).await;
    assert!(message.contains("200"), "a query is never cut: {message}");
}

#[tokio::test]
async fn wrong_requests_are_refused_by_name() {
    let server = Server::start(reranker()).await;
    let many = vec!["a"; 10_001];
    for (path, body, param) in [
        (RERANK, json!({ "documents": ["a"] }), "query"),
        (RERANK, json!({ "query": "", "documents": ["a"] }), "query"),
        (RERANK, json!({ "query": ["a"], "documents": ["a"] }), "query"),
        (RERANK, json!({ "query": "q" }), "documents"),
        (RERANK, json!({ "query": "q", "documents": [] }), "documents"),
        (RERANK, json!({ "query": "q", "documents": "a" }), "documents"),
        (RERANK, json!({ "query": "q", "documents": many }), "documents"),
        (RERANK, json!({ "query": "q", "documents": ["a", 7] }), "documents[1]"),
        (RERANK, json!({ "query": "q", "documents": [{ "title": "a" }] }), "documents[0].text"),
        (RERANK, json!({ "query": "q", "documents": ["a"], "top_n": -1 }), "top_n"),
        (RERANK, json!({ "query": "q", "documents": ["a"], "max_tokens_per_doc": 0 }), "max_tokens_per_doc"),
        (RERANK, json!({ "query": "q", "documents": ["a"], "rank_fields": ["title"] }), "rank_fields"),
        (RERANK, json!({ "query": "q", "documents": ["a"], "truncate_prompt_tokens": 0 }), "truncate_prompt_tokens"),
        ("/rerank", json!({ "query": "q", "texts": "a" }), "texts"),
        ("/rerank", json!({ "query": "q", "texts": ["a"], "raw_scores": 1 }), "raw_scores"),
        ("/rerank", json!({ "query": "q", "texts": ["a"], "truncation_direction": "left" }), "truncation_direction"),
        (SCORE, json!({ "text_2": "a" }), "text_1"),
        (SCORE, json!({ "text_1": "a" }), "text_2"),
        (SCORE, json!({ "text_1": ["a", "b"], "text_2": ["c"] }), "text_1"),
        (SCORE, json!({ "queries": "a", "documents": ["b", ""] }), "documents[1]"),
        ("/embed", json!({}), "inputs"),
        ("/embed", json!({ "inputs": ["a"], "prompt_name": "query" }), "prompt_name"),
    ] {
        assert_eq!(server.refused(path, &body).await.1, param, "{path}");
    }
    server.settle().await;
}

#[tokio::test]
async fn a_model_says_what_it_can_do_and_refuses_the_rest() {
    let server = Server::start(reranker()).await;
    let listed = server.get("/v1/models").await.json();
    assert_eq!(listed["data"][0]["architecture"]["output_modalities"], json!(["rerank"]));
    assert_eq!(server.get("/api/tags").await.json()["models"][0]["capabilities"], json!([]));
    let chat = json!({ "messages": [{ "role": "user", "content": "hi" }] });
    for (path, body) in [
        ("/v1/chat/completions", &chat),
        ("/v1/completions", &json!({ "prompt": "a" })),
        ("/v1/embeddings", &json!({ "input": "a" })),
        ("/embed", &json!({ "inputs": "a" })),
    ] {
        let (message, param) = server.refused(path, body).await;
        assert_eq!(param, "model");
        assert!(message.contains("/v1/rerank"), "{message}");
    }
    let decoder = Server::start(model()).await;
    for (path, body) in [
        (RERANK, json!({ "query": "q", "documents": ["a"] })),
        (SCORE, json!({ "text_1": "q", "text_2": "a" })),
        ("/rerank", json!({ "query": "q", "texts": ["a"] })),
    ] {
        let (message, param) = decoder.refused(path, &body).await;
        assert_eq!(param, "model");
        assert!(message.contains("is no reranker"), "{message}");
    }
}

#[tokio::test]
async fn a_request_takes_few_slots_however_many_documents_it_has() {
    let runtime = RuntimeOptions { max_requests: 40, ..RuntimeOptions::default() };
    let server = Server::start_with(reranker(), runtime, ServerOptions::new(MODEL)).await;
    let documents: Vec<String> = (0..500).map(|index| format!("text {index}")).collect();
    let answer = server.ok(RERANK, &json!({ "query": "q", "documents": documents })).await;
    assert_eq!(answer["results"].as_array().unwrap().len(), 500);
}

#[tokio::test]
async fn vectors_in_the_form_of_text_embeddings_inference() {
    let server = Server::start(encoder(8)).await;
    let openai = server.ok("/v1/embeddings", &json!({ "input": ["a", "b"] })).await;
    let vectors = server.ok("/embed", &json!({ "inputs": ["a", "b"] })).await;
    let expected: Vec<&Value> = openai["data"].as_array().unwrap().iter().map(|item| &item["embedding"]).collect();
    assert_eq!(vectors.as_array().unwrap().iter().collect::<Vec<_>>(), expected);
    let one = server.ok("/embed", &json!({ "inputs": "a", "normalize": false, "dimensions": 3 })).await;
    assert_eq!((one.as_array().unwrap().len(), one[0].as_array().unwrap().len()), (1, 3));
    let long = "a".repeat(500);
    let answer = server.post("/embed", &json!({ "inputs": long })).await;
    assert_eq!(answer.status, StatusCode::BAD_REQUEST);
    server.ok("/embed", &json!({ "inputs": long, "truncate": true })).await;
}
