//! The sampling that a model recommends applies where a request says nothing, in every protocol.
#![allow(clippy::unwrap_used)]

mod common;
#[path = "support/tiny_runtime.rs"]
#[allow(dead_code)]
mod tiny_runtime;

use std::path::Path;

use cuelight::api::{ServerOptions, router};
use cuelight::core::request::PartialSampling;
use cuelight::pipeline::runtime::RuntimeOptions;
use cuelight::pipeline::simulation::{SimulatedModel, infill_tokenizer};
use cuelight_engine::load::{LoadOptions, RequestDefaults};
use serde_json::{Value, json};

use common::{MODEL, Server, model};

const GREEDY: PartialSampling = PartialSampling {
    temperature: Some(0.0),
    top_k: None,
    top_p: Some(0.75),
    min_p: None,
    repetition_penalty: Some(1.5),
};

/// For each protocol a path, a request for 30 tokens, where its text is, and the object with the temperature.
fn protocols() -> Vec<(&'static str, Value, &'static str, Option<&'static str>)> {
    let chat = json!([{ "role": "user", "content": "hi" }]);
    let ollama = json!({ "num_predict": 30 });
    vec![
        (
            "/v1/chat/completions",
            json!({ "messages": chat, "max_tokens": 30, "model": MODEL }),
            "/choices/0/message/content",
            None,
        ),
        ("/v1/completions", json!({ "prompt": "hi", "max_tokens": 30, "model": MODEL }), "/choices/0/text", None),
        ("/v1/responses", json!({ "input": "hi", "max_output_tokens": 30 }), "/output/0/content/0/text", None),
        ("/v1/messages", json!({ "messages": chat, "max_tokens": 30, "model": MODEL }), "/content/0/text", None),
        (
            "/api/chat",
            json!({ "model": MODEL, "messages": chat, "stream": false, "options": ollama }),
            "/message/content",
            Some("options"),
        ),
        (
            "/api/generate",
            json!({ "model": MODEL, "prompt": "hi", "stream": false, "options": ollama }),
            "/response",
            Some("options"),
        ),
        ("/completion", json!({ "prompt": "hi", "n_predict": 30 }), "/content", None),
        ("/infill", json!({ "input_prefix": "a", "input_suffix": "b", "n_predict": 30 }), "/content", None),
    ]
}

async fn greedy_server() -> Server {
    let chat_template = model().chat_template;
    let model = SimulatedModel::new(infill_tokenizer());
    Server::start(SimulatedModel { chat_template, sampling: GREEDY, end_one_in: u64::MAX, ..model }).await
}

/// The texts of two answers.
async fn two_texts(server: &Server, path: &str, body: &Value, text: &str) -> [String; 2] {
    let mut texts = [String::new(), String::new()];
    for one in &mut texts {
        let answer = server.ok(path, body).await;
        *one = answer.pointer(text).and_then(Value::as_str).unwrap_or_else(|| panic!("{path}: {answer}")).to_owned();
        assert!(one.len() > 20, "{path}: {one}");
    }
    texts
}

#[tokio::test]
async fn every_protocol_uses_what_the_model_recommends_unless_the_request_says_otherwise() {
    let server = greedy_server().await;
    for (path, mut body, text, options) in protocols() {
        let [one, two] = two_texts(&server, path, &body, text).await;
        assert_eq!(one, two, "{path}");
        match options {
            Some(options) => body[options]["temperature"] = json!(1.0),
            None => body["temperature"] = json!(1.0),
        }
        let [one, two] = two_texts(&server, path, &body, text).await;
        assert_ne!(one, two, "{path}");
    }
}

#[tokio::test]
async fn the_recommendation_is_shown() {
    let server = greedy_server().await;
    let expected = json!({ "temperature": 0, "top_p": 0.75, "repetition_penalty": 1.5 });
    assert_eq!(server.get("/v1/models").await.json()["data"][0]["meta"]["sampling"], expected);
    let params = &server.get("/props").await.json()["default_generation_settings"]["params"];
    assert_eq!([&params["temperature"], &params["top_p"], &params["top_k"]], [&json!(0.0), &json!(0.75), &json!(40)]);
    let shown = server.ok("/api/show", &json!({ "model": MODEL })).await;
    assert!(shown["parameters"].as_str().unwrap().ends_with("\ntemperature 0\ntop_p 0.75\nrepeat_penalty 1.5"));
    let response = server.ok("/v1/responses", &json!({ "input": "hi", "max_output_tokens": 2, "top_p": 0.5 })).await;
    assert_eq!((&response["temperature"], &response["top_p"]), (&json!(0.0), &json!(0.5)));
}

#[tokio::test]
async fn a_generation_config_decides_how_a_directory_is_sampled_unless_settings_do() {
    let folder = tempfile::tempdir().unwrap();
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/hugging_face/llama-shards");
    for entry in std::fs::read_dir(fixture).unwrap().flatten() {
        std::fs::copy(entry.path(), folder.path().join(entry.file_name())).unwrap();
    }
    let config = json!({ "do_sample": true, "temperature": 0.25, "top_k": 7, "top_p": "high", "eos_token_id": [2, 0] });
    std::fs::write(folder.path().join("generation_config.json"), config.to_string()).unwrap();
    let options = LoadOptions { threads: 1, context_tokens: Some(64), ..LoadOptions::new(folder.path()) };
    let ignored = LoadOptions { ignore_model_sampling: true, ..options.clone() };
    let sampling = PartialSampling { temperature: Some(0.5), ..PartialSampling::default() };
    let defaults = RequestDefaults { sampling, system: None };
    let [set, set_and_ignored] =
        [&options, &ignored].map(|options| LoadOptions { defaults: defaults.clone(), ..options.clone() });
    let body = json!({ "prompt": "hi", "n_predict": 2, "top_k": 3 });
    for (options, expected) in [
        (options, [0.25, 3.0, 0.95]),
        (ignored, [0.8, 3.0, 0.95]),
        (set, [0.5, 3.0, 0.95]),
        (set_and_ignored, [0.5, 3.0, 0.95]),
    ] {
        let runtime = tiny_runtime::start(options, RuntimeOptions::default()).await;
        let server = Server { router: router(runtime.clone(), ServerOptions::new(MODEL)).unwrap(), runtime };
        let settings = server.ok("/completion", &body).await["generation_settings"].clone();
        let used = ["temperature", "top_k", "top_p"].map(|name| settings[name].as_f64().unwrap());
        assert_eq!(used, expected);
    }
}
