//! The HTTP API over a simulated model, called in-process.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, StatusCode};
use cuelight::api::ServerOptions;
use cuelight::metrics::exposition::{Compat, Exposition};
use cuelight::pipeline::executor::EngineHost;
use cuelight::pipeline::loader::{ModelSource, SourceError};
use cuelight::pipeline::runtime::{Runtime, RuntimeOptions};
use cuelight::pipeline::simulation::{Fault, SimulatedEngine, SimulatedModel};
use cuelight_engine::load::{LoadCancel, LoadProgress, LoadedModel};
use http_body_util::BodyExt;
use serde_json::{Value, json};

use common::listening::Listening;
use common::openai::{CHAT, COMPLETIONS, assert_error, chat, completion, tireless};
use common::{MODEL, Server, model, post};

#[tokio::test]
async fn a_chat_answer_has_its_choice_and_its_usage() {
    let server = Server::start(tireless()).await;
    let answer = server.ok(CHAT, &chat(json!({}))).await;
    assert!(answer["id"].as_str().unwrap().starts_with("chatcmpl-"));
    assert_eq!((&answer["object"], &answer["model"]), (&json!("chat.completion"), &json!(MODEL)));
    let choice = &answer["choices"][0];
    assert_eq!(choice["message"]["role"], "assistant");
    assert!(!choice["message"]["content"].as_str().unwrap().is_empty());
    assert_eq!((&choice["finish_reason"], &choice["index"]), (&json!("length"), &json!(0)));
    assert_eq!((&choice["logprobs"], &choice["stop_reason"]), (&Value::Null, &Value::Null));
    let usage = &answer["usage"];
    assert_eq!(usage["completion_tokens"], 8);
    assert_eq!(usage["total_tokens"], usage["prompt_tokens"].as_u64().unwrap() + 8);
    assert_eq!(usage["prompt_tokens_details"]["cached_tokens"], 0);
}

#[tokio::test]
async fn a_chat_stream_is_role_text_finish_usage_done() {
    let server = Server::start(tireless()).await;
    let whole = server.ok(CHAT, &chat(json!({}))).await;
    let request = chat(json!({ "stream": true, "stream_options": { "include_usage": true } }));
    let chunks = server.post(CHAT, &request).await.chunks();

    for chunk in &chunks {
        assert_eq!(chunk["object"], "chat.completion.chunk");
        for same in ["id", "created", "model"] {
            assert_eq!(chunk[same], chunks[0][same]);
        }
    }
    let [role, text @ .., finish, usage] = chunks.as_slice() else { panic!("{chunks:?}") };
    let choice =
        |delta: Value, finish: Value| json!({ "index": 0, "delta": delta, "logprobs": null, "finish_reason": finish });
    assert_eq!(role["choices"], json!([choice(json!({ "role": "assistant", "content": "" }), Value::Null)]));
    let mut said = String::new();
    for chunk in text {
        let content = chunk["choices"][0]["delta"]["content"].as_str().unwrap();
        assert_eq!(chunk["choices"], json!([choice(json!({ "content": content }), Value::Null)]));
        said.push_str(content);
    }
    assert_eq!(json!(said), whole["choices"][0]["message"]["content"]);
    assert_eq!(finish["choices"][0]["delta"], json!({}));
    assert_eq!(finish["choices"][0]["finish_reason"], "length");
    // The same prompt was computed a moment ago.
    let mut expected = whole["usage"].clone();
    expected["prompt_tokens_details"]["cached_tokens"] = json!(16);
    assert_eq!((&usage["choices"], &usage["usage"]), (&json!([]), &expected));
    assert!(chunks[..chunks.len() - 1].iter().all(|chunk| chunk.as_object().unwrap()["usage"].is_null()));
}

#[tokio::test]
async fn without_include_usage_no_chunk_has_usage() {
    let server = Server::start(model()).await;
    let chunks = server.post(CHAT, &chat(json!({ "stream": true }))).await.chunks();
    assert!(chunks.iter().all(|chunk| chunk.get("usage").is_none()));
}

#[tokio::test]
async fn continuous_usage_counts_up_to_the_last() {
    let server = Server::start(tireless()).await;
    let options = json!({ "include_usage": true, "continuous_usage_stats": true });
    let chunks =
        server.post(COMPLETIONS, &completion(json!({ "stream": true, "stream_options": options }))).await.chunks();
    let counts: Vec<u64> = chunks.iter().map(|chunk| chunk["usage"]["completion_tokens"].as_u64().unwrap()).collect();
    assert!(counts.is_sorted(), "{counts:?}");
    assert_eq!((counts[0], counts[counts.len() - 1]), (1, 8));
}

#[tokio::test]
async fn a_stream_reports_the_prompt_and_its_times_to_those_who_ask() {
    let server = Server::start(tireless()).await;
    let asked = json!({ "stream": true, "return_progress": true, "timings_per_token": true });
    for (path, request) in [(CHAT, chat(asked.clone())), (COMPLETIONS, completion(asked.clone()))] {
        let chunks = server.post(path, &request).await.chunks();
        let progress: Vec<_> = chunks.iter().filter_map(|chunk| chunk.get("prompt_progress")).collect();
        let total = progress[0]["total"].as_u64().unwrap();
        let processed: Vec<_> = progress.iter().map(|one| one["processed"].as_u64().unwrap()).collect();
        assert!(processed.is_sorted() && processed.len() >= 2, "{path}: {processed:?}");
        assert_eq!((processed[0], processed.last()), (progress[0]["cache"].as_u64().unwrap(), Some(&total)), "{path}");
        assert!(progress.iter().all(|one| one["total"] == total && one["time_ms"].is_number()), "{path}");
        let predicted: Vec<_> = chunks.iter().filter_map(|chunk| chunk["timings"]["predicted_n"].as_u64()).collect();
        assert!(predicted.is_sorted() && predicted.last() == Some(&8), "{path}: {predicted:?}");
        let last = chunks.iter().rfind(|chunk| chunk.get("timings").is_some()).unwrap();
        assert_eq!(last["timings"]["prompt_n"], total - progress[0]["cache"].as_u64().unwrap(), "{path}");
    }
    let plain = server.post(CHAT, &chat(json!({ "stream": true }))).await.chunks();
    assert!(plain.iter().all(|chunk| chunk.get("prompt_progress").is_none() && chunk.get("timings").is_none()));
    let whole = server.ok(CHAT, &chat(json!({ "timings_per_token": true, "return_progress": true }))).await;
    assert_eq!(whole["timings"]["predicted_n"], 8);
    assert_eq!(server.ok(CHAT, &chat(json!({}))).await.get("timings"), None);
}

#[tokio::test]
async fn an_answer_that_broke_off_is_continued_with_the_same_random_numbers() {
    let server = Server::start(tireless()).await;
    let sampled = |prompt: Value, tokens: usize| {
        let options = json!({ "temperature": 1, "top_p": 0.95, "seed": 7, "return_token_ids": true });
        let mut body = completion(options);
        (body["prompt"], body["max_tokens"]) = (prompt, json!(tokens));
        body
    };
    let ids = |choice: &Value, field: &str| choice[field].as_array().unwrap().clone();
    let whole = server.ok(COMPLETIONS, &sampled(json!("the sky is"), 24)).await["choices"][0].clone();
    let (prompt, answer) = (ids(&whole, "prompt_token_ids"), ids(&whole, "token_ids"));
    for known in [1, 7, 23] {
        let begun: Vec<_> = prompt.iter().chain(&answer[..known]).collect();
        let rest = server.ok(COMPLETIONS, &sampled(json!(begun), 24 - known)).await;
        assert_eq!(ids(&rest["choices"][0], "token_ids"), answer[known..], "after {known} tokens");
    }
}

#[tokio::test]
async fn several_answers_differ_by_seed_and_stream_the_same_text() {
    let server = Server::start(tireless()).await;
    let request =
        |n: u64, seed: u64, stream: bool| chat(json!({ "n": n, "seed": seed, "temperature": 1, "stream": stream }));
    let whole = server.ok(CHAT, &request(3, 7, false)).await;
    let texts: Vec<&str> = (0..3).map(|i| whole["choices"][i]["message"]["content"].as_str().unwrap()).collect();
    assert!(texts[0] != texts[1] && texts[1] != texts[2]);
    assert_eq!(whole["usage"]["completion_tokens"], 24);

    let second = server.ok(CHAT, &request(1, 8, false)).await;
    assert_eq!(second["choices"][0]["message"]["content"], texts[1], "answer 1 of seed 7 is answer 0 of seed 8");
    assert_eq!(second["usage"]["prompt_tokens"], whole["usage"]["prompt_tokens"], "a prompt counts once");

    let chunks = server.post(CHAT, &request(3, 7, true)).await.chunks();
    let mut streamed = [const { String::new() }; 3];
    let mut finished = [0; 3];
    for chunk in &chunks {
        let choice = &chunk["choices"][0];
        let index = choice["index"].as_u64().unwrap() as usize;
        streamed[index].push_str(choice["delta"]["content"].as_str().unwrap_or(""));
        finished[index] += usize::from(choice["finish_reason"].is_string());
    }
    assert_eq!(streamed.each_ref().map(String::as_str), texts[..]);
    assert_eq!(finished, [1; 3]);
    assert!(chunks[..3].iter().all(|chunk| chunk["choices"][0]["delta"]["role"] == "assistant"));
}

#[tokio::test]
async fn a_stop_string_ends_the_text_and_is_reported() {
    let server = Server::start(tireless()).await;
    let whole = server.ok(COMPLETIONS, &completion(json!({ "max_tokens": 24 }))).await;
    let text = whole["choices"][0]["text"].as_str().unwrap();
    let stop = &text[4..9];
    let begin = text.find(stop).unwrap();
    let choice = &server.ok(COMPLETIONS, &completion(json!({ "max_tokens": 24, "stop": stop }))).await["choices"][0];
    assert_eq!(choice["text"], text[..begin]);
    assert_eq!((&choice["finish_reason"], &choice["stop_reason"]), (&json!("stop"), &json!(stop)));

    let more = json!({ "max_tokens": 24, "stop": ["never", stop], "include_stop_str_in_output": true, "stream": true });
    let chunks = server.post(COMPLETIONS, &completion(more)).await.chunks();
    let streamed: String = chunks.iter().map(|chunk| chunk["choices"][0]["text"].as_str().unwrap()).collect();
    assert_eq!(streamed, text[..begin + stop.len()]);
}

#[tokio::test]
async fn only_a_stop_token_of_the_client_is_reported_as_stop_reason() {
    let server = Server::start(SimulatedModel { end_one_in: 1, ..model() }).await;
    let choice = &server.ok(COMPLETIONS, &completion(json!({}))).await["choices"][0];
    assert_eq!(
        (&choice["text"], &choice["finish_reason"], &choice["stop_reason"]),
        (&json!(""), &json!("stop"), &Value::Null)
    );

    let server = Server::start(tireless()).await;
    let whole = server.ok(COMPLETIONS, &completion(json!({ "return_token_ids": true }))).await;
    let token = &whole["choices"][0]["token_ids"][2];
    let choice = &server.ok(COMPLETIONS, &completion(json!({ "stop_token_ids": [token] }))).await["choices"][0];
    assert_eq!((&choice["finish_reason"], &choice["stop_reason"]), (&json!("stop"), token));
}

#[tokio::test]
async fn choices_of_several_prompts_are_in_the_order_of_the_prompts() {
    let server = Server::start(tireless()).await;
    let alone = |prompt: &str| completion(json!({ "prompt": prompt, "return_token_ids": true }));
    let first = server.ok(COMPLETIONS, &alone("the sky is")).await;
    let second = server.ok(COMPLETIONS, &alone("grass")).await;
    let ids = [&first, &second].map(|answer| answer["choices"][0]["prompt_token_ids"].clone());
    for prompt in [json!(["the sky is", "grass"]), json!(ids)] {
        let both = server.ok(COMPLETIONS, &completion(json!({ "prompt": prompt, "n": 2 }))).await;
        let texts: Vec<&Value> = both["choices"].as_array().unwrap().iter().map(|choice| &choice["text"]).collect();
        let (a, b) = (&first["choices"][0]["text"], &second["choices"][0]["text"]);
        assert_eq!(texts, [a, a, b, b]);
        assert_eq!(both["usage"]["prompt_tokens"], ids[0].as_array().unwrap().len() + ids[1].as_array().unwrap().len());
        assert_eq!(both["usage"]["completion_tokens"], 32);
    }
}

#[tokio::test]
async fn a_logit_bias_excludes_a_token() {
    let server = Server::start(tireless()).await;
    let whole = server.ok(COMPLETIONS, &completion(json!({ "return_token_ids": true }))).await;
    let token = whole["choices"][0]["token_ids"][0].to_string();
    let more = json!({ "logit_bias": { token.as_str(): -100 }, "return_token_ids": true });
    let biased = server.ok(COMPLETIONS, &completion(more)).await;
    let ids = biased["choices"][0]["token_ids"].as_array().unwrap();
    assert!(ids.iter().all(|id| json!(id) != whole["choices"][0]["token_ids"][0]), "{ids:?}");
}

/// The text of a completion, greedily.
async fn text_of(server: &Server, mut more: Value) -> String {
    more["temperature"] = json!(0);
    server.ok(COMPLETIONS, &completion(more)).await["choices"][0]["text"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn bad_words_never_appear_and_only_allowed_tokens_do() {
    let server = Server::start(tireless()).await;
    let text = text_of(&server, json!({})).await;
    let word: String = text.trim_start().chars().take(3).collect();
    for streams in [1, 4] {
        // Several answers and drafts have the same rule.
        let more =
            json!({ "bad_words": [word, "\u{0}"], "n": streams, "prediction": { "type": "content", "content": text } });
        let other = text_of(&server, more).await;
        assert!(!other.contains(&word) && other != text && !other.is_empty(), "{word:?} in {other:?}");
    }
    let some = text_of(&server, json!({ "allowed_token_ids": [97, 98, 97] })).await;
    assert!(!some.is_empty() && some.chars().all(|letter| letter == 'a' || letter == 'b'), "{some:?}");
    assert_eq!(text_of(&server, json!({ "allowed_token_ids": [], "bad_words": [] })).await, text);
    for (more, param) in [
        (json!({ "bad_words": [""] }), "bad_words[0]"),
        (json!({ "bad_words": 5 }), "bad_words"),
        (json!({ "bad_words": ["a"], "structured_outputs": { "regex": "a+" } }), "bad_words"),
        (json!({ "allowed_token_ids": [97], "structured_outputs": { "regex": "a+" } }), "allowed_token_ids"),
        (json!({ "allowed_token_ids": [999_999] }), "allowed_token_ids"),
        (json!({ "allowed_token_ids": ["a"] }), "allowed_token_ids[0]"),
    ] {
        let answer = server.post(COMPLETIONS, &completion(more)).await;
        assert_error(&answer, 400, "invalid_request_error", "invalid_value", Some(param));
    }
}

#[tokio::test]
async fn a_dynamic_temperature_changes_what_is_drawn() {
    let server = Server::start(tireless()).await;
    let drawn = async |more: Value| {
        let whole = server.ok(COMPLETIONS, &completion(more)).await;
        whole["choices"][0]["text"].as_str().unwrap().to_owned()
    };
    let plain = drawn(json!({ "temperature": 1, "seed": 3 })).await;
    let dynamic = json!({ "temperature": 1, "seed": 3, "dynatemp_range": 0.9, "dynatemp_exponent": 2 });
    assert_eq!(drawn(dynamic.clone()).await, drawn(dynamic).await);
    // The exponent 0 always takes the upper end of the range.
    let raised = json!({ "temperature": 1, "seed": 3, "dynatemp_range": 1, "dynatemp_exponent": 0, "top_k": 3 });
    let usual = json!({ "temperature": 2, "seed": 3, "top_k": 3 });
    assert_eq!(drawn(raised).await, drawn(usual).await);
    assert_eq!(drawn(json!({ "temperature": 1, "seed": 3, "dynatemp_range": 0 })).await, plain);
}

#[tokio::test]
async fn each_invalid_field_is_a_400_that_names_it_with_and_without_stream() {
    let server = Server::start(model()).await;
    for (more, param) in [
        (json!({ "temperature": -1 }), "temperature"),
        (json!({ "temperature": "hot" }), "temperature"),
        (json!({ "messages": [] }), "messages"),
        (json!({ "messages": [{ "role": "wizard", "content": "hi" }] }), "messages[0].role"),
        (json!({ "max_tokens": 0 }), "max_tokens"),
        (json!({ "n": 1000 }), "n"),
        (json!({ "top_logprobs": 2 }), "top_logprobs"),
        (json!({ "logprobs": true, "top_logprobs": 21 }), "top_logprobs"),
        (json!({ "logit_bias": { "999999": 1 } }), "logit_bias.999999"),
        (json!({ "stop": [""] }), "stop[0]"),
        (json!({ "model": 5 }), "model"),
    ] {
        for stream in [false, true] {
            let mut body = chat(more.clone());
            body["stream"] = json!(stream);
            assert_error(&server.post(CHAT, &body).await, 400, "invalid_request_error", "invalid_value", Some(param));
        }
    }
    for (more, param) in [
        (json!({ "prompt": null }), "prompt"),
        (json!({ "prompt": [1, 999_999] }), "prompt[1]"),
        (json!({ "prompt": [[1], [2, 999_999]] }), "prompt[1][1]"),
        (json!({ "logprobs": 21 }), "logprobs"),
    ] {
        let answer = server.post(COMPLETIONS, &completion(more)).await;
        assert_error(&answer, 400, "invalid_request_error", "invalid_value", Some(param));
    }
}

#[tokio::test]
async fn an_unsupported_field_is_a_400_that_names_it() {
    let server = Server::start(model()).await;
    for (more, param) in [
        (json!({ "echo": true }), "echo"),
        (json!({ "functions": [{ "name": "f" }] }), "functions"),
        (
            json!({ "messages": [{ "role": "user", "content": [{ "type": "image_url", "image_url": { "url": "data:;base64,aGk=" } }] }] }),
            "messages[0].content[0].type",
        ),
    ] {
        let answer = server.post(CHAT, &chat(more)).await;
        assert_error(&answer, 400, "invalid_request_error", "unsupported_value", Some(param));
    }
    let answer = server.post(COMPLETIONS, &completion(json!({ "suffix": "end" }))).await;
    assert_error(&answer, 400, "invalid_request_error", "unsupported_value", Some("suffix"));
}

#[tokio::test]
async fn harmless_and_unknown_fields_are_accepted() {
    let server = Server::start(model()).await;
    let more = json!({
        "user": "u", "metadata": { "a": "b" }, "store": true, "service_tier": "auto", "parallel_tool_calls": false,
        "seed": null, "response_format": { "type": "text" }, "tools": [], "best_of": 1, "unknown_field": [1],
        "tool_choice": "auto", "reasoning_effort": "low",
    });
    server.ok(CHAT, &chat(more)).await;
}

#[tokio::test]
async fn a_prompt_longer_than_the_context_is_refused_with_the_numbers() {
    let server = Server::start(model()).await;
    let prompt: Vec<u32> = vec![5; 600];
    for stream in [false, true] {
        let answer = server.post(COMPLETIONS, &completion(json!({ "prompt": prompt, "stream": stream }))).await;
        assert_error(&answer, 400, "invalid_request_error", "context_length_exceeded", None);
        let error = &answer.json()["error"];
        assert_eq!((&error["n_prompt_tokens"], &error["n_ctx"]), (&json!(600), &json!(512)));
        let message = "context_length_exceeded: This model's maximum context length is 512 tokens; the request (600 tokens) \
                       exceeds the available context size (512 tokens)";
        assert_eq!(error["message"], message);
    }
}

#[tokio::test]
async fn the_end_of_a_long_prompt_is_kept_on_request() {
    let server = Server::start(tireless()).await;
    let prompt: Vec<u32> = (0..600).map(|index| 5 + index % 200).collect();
    let cut = |most: i32, echo: bool| {
        let more = json!({ "max_tokens": 10, "return_token_ids": true, "echo": echo });
        let mut body = completion(more);
        (body["prompt"], body["truncate_prompt_tokens"]) = (json!(prompt), json!(most));
        body
    };
    for (most, kept) in [(-1, 502), (700, 502), (40, 40)] {
        let answer = server.ok(COMPLETIONS, &cut(most, false)).await;
        assert_eq!(answer["choices"][0]["prompt_token_ids"], json!(prompt[600 - kept..]), "{most}");
        assert_eq!(answer["usage"]["prompt_tokens"], kept);
        let same =
            server.ok(COMPLETIONS, &completion(json!({ "prompt": prompt[600 - kept..], "max_tokens": 10 }))).await;
        assert_eq!(answer["choices"][0]["text"], same["choices"][0]["text"]);
    }
    let echoed = server.ok(COMPLETIONS, &cut(3, true)).await;
    let last =
        server.ok(COMPLETIONS, &completion(json!({ "prompt": prompt[597..], "echo": true, "max_tokens": 10 }))).await;
    assert_eq!(echoed["choices"][0]["text"], last["choices"][0]["text"]);
    let words = server.ok(CHAT, &chat(json!({ "truncate_prompt_tokens": 7, "max_tokens": 10 }))).await;
    assert_eq!(words["usage"]["prompt_tokens"], 7);
    let answer = server.post(COMPLETIONS, &cut(0, false)).await;
    assert_error(&answer, 400, "invalid_request_error", "invalid_value", Some("truncate_prompt_tokens"));
}

#[tokio::test]
async fn an_answer_ends_at_the_end_of_the_context() {
    let server = Server::start(tireless()).await;
    let prompt: Vec<u32> = vec![5; 500];
    let answer = server.ok(COMPLETIONS, &completion(json!({ "prompt": prompt, "max_tokens": 100 }))).await;
    assert_eq!(
        (&answer["usage"]["total_tokens"], &answer["choices"][0]["finish_reason"]),
        (&json!(512), &json!("length"))
    );
}

#[tokio::test]
async fn one_model_is_served_under_all_its_names_and_as_default() {
    let options = ServerOptions { aliases: vec!["gpt-4o".into()], ..ServerOptions::new(MODEL) };
    let server = Server::start_with(model(), RuntimeOptions::default(), options).await;
    for name in [json!(MODEL), json!("gpt-4o"), json!("default"), json!(""), Value::Null] {
        let answer = server.ok(CHAT, &chat(json!({ "model": name }))).await;
        assert_eq!(answer["model"], MODEL);
    }
    let answer = server.post(CHAT, &chat(json!({ "model": "other" }))).await;
    assert_error(&answer, 404, "not_found_error", "model_not_found", Some("model"));

    let listed = server.get("/v1/models").await.json();
    assert_eq!(listed["object"], "list");
    assert_eq!((&listed["data"][0]["id"], &listed["data"][1]["id"]), (&json!(MODEL), &json!("gpt-4o")));
    let shown = server.get(&format!("/v1/models/{MODEL}")).await.json();
    assert_eq!(
        (&shown["id"], &shown["object"], &shown["max_model_len"]),
        (&json!(MODEL), &json!("model"), &json!(512))
    );
    assert_eq!(shown["status"]["value"], "loaded");
    assert_error(&server.get("/v1/models/other").await, 404, "not_found_error", "model_not_found", Some("model"));

    let request = Request::get("/v1/models").header("anthropic-version", "2023-06-01").body(Body::empty()).unwrap();
    let listed = server.call(request).await.json();
    assert_eq!(
        (&listed["has_more"], &listed["first_id"], &listed["last_id"]),
        (&json!(false), &json!(MODEL), &json!("gpt-4o"))
    );
    assert_eq!(listed["data"][0]["type"], "model");
    assert!(listed["data"][0]["created_at"].as_str().unwrap().ends_with('Z'));
}

#[tokio::test]
async fn malformed_bodies_and_unknown_paths_are_refused() {
    let server = Server::start(model()).await;
    let raw = |body: &'static str| {
        Request::post(CHAT).header("content-type", "application/json").body(Body::from(body)).unwrap()
    };
    for body in ["", "{", "[]", "\"hi\"", "{\"messages\": \u{1}}"] {
        assert_error(&server.call(raw(body)).await, 400, "invalid_request_error", "invalid_value", None);
    }
    assert_error(&server.get("/v1/nothing").await, 404, "not_found_error", "not_found", None);
    assert_error(&server.get(CHAT).await, 405, "invalid_request_error", "method_not_allowed", None);
}

#[tokio::test]
async fn a_body_larger_than_the_limit_is_a_413() {
    let options = ServerOptions { max_body_bytes: 1000, ..ServerOptions::new(MODEL) };
    let server = Server::start_with(model(), RuntimeOptions::default(), options).await;
    let answer = server.post(COMPLETIONS, &completion(json!({ "prompt": "a".repeat(1000) }))).await;
    assert_error(&answer, 413, "request_too_large", "request_too_large", None);
}

#[tokio::test]
async fn with_keys_every_route_except_the_probes_requires_one() {
    let options = ServerOptions { api_keys: vec!["one".into(), "two".into()], ..ServerOptions::new(MODEL) };
    let server = Server::start_with(model(), RuntimeOptions::default(), options).await;
    for path in ["/v1/models", "/v1/nothing", CHAT, "/tokenize"] {
        assert_error(&server.get(path).await, 401, "authentication_error", "invalid_api_key", None);
    }
    for path in ["/health", "/ready", "/ping", "/version"] {
        assert_eq!(server.get(path).await.status, StatusCode::OK, "{path}");
    }
    for (name, value, status) in [
        ("authorization", "Bearer two", 200),
        ("x-api-key", "one", 200),
        ("authorization", "Bearer three", 401),
        ("authorization", "one", 401),
        ("x-api-key", "", 401),
    ] {
        let request = Request::get("/v1/models").header(name, value).body(Body::empty()).unwrap();
        assert_eq!(server.call(request).await.status, status, "{name}: {value}");
    }
}

#[tokio::test]
async fn pages_of_allowed_origins_may_call_and_send_preflights_without_a_key() {
    let options = ServerOptions {
        api_keys: vec!["one".into()],
        cors_origins: vec!["https://chat.example".into()],
        ..ServerOptions::new(MODEL)
    };
    let server = Server::start_with(model(), RuntimeOptions::default(), options).await;
    let preflight = |origin: &str| {
        let request = Request::options(CHAT).header("origin", origin).header("access-control-request-method", "POST");
        request.header("access-control-request-headers", "authorization").body(Body::empty()).unwrap()
    };
    let allowed = server.call(preflight("https://chat.example")).await;
    assert_eq!(allowed.status, StatusCode::OK);
    assert_eq!(allowed.headers["access-control-allow-origin"], "https://chat.example");
    assert_eq!(allowed.headers["access-control-allow-headers"], "authorization");
    assert!(allowed.headers.contains_key("x-request-id"));
    let other = server.call(preflight("https://other.example")).await;
    assert!(!other.headers.contains_key("access-control-allow-origin"));

    let wrong = ServerOptions { cors_origins: vec!["chat".into()], ..ServerOptions::new(MODEL) };
    assert!(cuelight::api::router(server.runtime.clone(), wrong).is_err());
}

#[tokio::test]
async fn every_response_has_the_clients_request_id_or_a_fresh_one() {
    let server = Server::start(model()).await;
    assert!(server.get("/health").await.headers["x-request-id"].to_str().unwrap().starts_with("req_"));
    let request = Request::get("/health").header("x-request-id", "mine").body(Body::empty()).unwrap();
    assert_eq!(server.call(request).await.headers["x-request-id"], "mine");
}

#[tokio::test]
async fn text_becomes_tokens_and_back_with_both_sets_of_fields() {
    let server = Server::start(model()).await;
    let vllm = server.ok("/tokenize", &json!({ "prompt": "the sky", "add_special_tokens": false })).await;
    let llama = server.ok("/tokenize", &json!({ "content": "the sky", "with_pieces": true })).await;
    assert_eq!(vllm["count"].as_u64().unwrap() as usize, vllm["tokens"].as_array().unwrap().len());
    assert_eq!(vllm["max_model_len"], 512);
    let (ids, pieces): (Vec<Value>, Vec<&str>) = llama["tokens"]
        .as_array()
        .unwrap()
        .iter()
        .map(|token| (token["id"].clone(), token["piece"].as_str().unwrap()))
        .unzip();
    assert_eq!((json!(ids), pieces.concat()), (vllm["tokens"].clone(), "the sky".to_owned()));
    let chat = server.ok("/tokenize", &json!({ "messages": [{ "role": "user", "content": "hi" }] })).await;
    let text = server.ok("/detokenize", &json!({ "tokens": chat["tokens"] })).await;
    assert_eq!((&text["prompt"], &text["content"]), (&json!("user:hi\nassistant:"), &json!("user:hi\nassistant:")));
    let wrong = server.post("/detokenize", &json!({ "tokens": [999_999] })).await;
    assert_error(&wrong, 400, "invalid_request_error", "invalid_value", Some("tokens[0]"));
    let wrong = server.post("/tokenize", &json!({})).await;
    assert_error(&wrong, 400, "invalid_request_error", "invalid_value", Some("prompt"));
}

#[tokio::test]
async fn a_full_server_answers_429_until_a_request_ends() {
    let runtime = RuntimeOptions { max_requests: 2, ..RuntimeOptions::default() };
    let slow = SimulatedModel { step_time: Duration::from_millis(20), ..tireless() };
    let server = Server::start_with(slow, runtime, ServerOptions::new(MODEL)).await;
    let held = server.begin(post(CHAT, &chat(json!({ "stream": true, "n": 2, "max_tokens": 400 })))).await;
    assert_eq!(held.status(), StatusCode::OK);
    let refused = server.post(CHAT, &chat(json!({ "stream": true }))).await;
    assert_error(&refused, 429, "server_overloaded", "server_overloaded", None);
    assert!(refused.headers["retry-after"].to_str().unwrap().parse::<u64>().unwrap() >= 1);
    assert!(refused.headers["retry-after-ms"].to_str().unwrap().parse::<u64>().unwrap() >= 1);
    drop(held);
    server.settle().await;
    server.ok(CHAT, &chat(json!({}))).await;
}

#[tokio::test]
async fn dropping_a_body_or_a_request_frees_its_blocks() {
    let slow = SimulatedModel { step_time: Duration::from_millis(5), ..tireless() };
    let server = Server::start(slow).await;
    let mut body = server.begin(post(CHAT, &chat(json!({ "stream": true, "max_tokens": 400 })))).await.into_body();
    body.frame().await.unwrap().unwrap();
    assert!(server.runtime.snapshot().blocks_used > 0);
    drop(body);
    server.settle().await;

    let whole = server.call(post(CHAT, &chat(json!({ "max_tokens": 400 }))));
    assert!(tokio::time::timeout(Duration::from_millis(50), whole).await.is_err(), "it is not done yet");
    server.settle().await;
}

#[tokio::test]
async fn a_fault_is_a_status_without_a_stream_and_an_event_in_a_stream() {
    let at = |step: u64| SimulatedModel {
        faults: Some(Arc::new(move |n, _| (n == step).then_some(Fault::NotANumber))),
        ..tireless()
    };
    let server = Server::start(at(0)).await;
    assert_error(&server.post(CHAT, &chat(json!({}))).await, 500, "server_error", "engine_error", None);
    // A fault happens once, so the stream gets a server of its own.
    let server = Server::start(at(0)).await;
    let chunks = server.post(CHAT, &chat(json!({ "stream": true }))).await.chunks();
    assert_eq!(chunks[0]["error"]["code"], "engine_error");

    let server = Server::start(at(4)).await;
    let chunks = server.post(CHAT, &chat(json!({ "stream": true }))).await.chunks();
    let error = &chunks.last().unwrap()["error"];
    assert_eq!((&error["type"], &error["code"]), (&json!("server_error"), &json!("engine_error")));
    assert_eq!(chunks[0]["choices"][0]["delta"]["role"], "assistant");
}

#[tokio::test(start_paused = true)]
async fn comments_fill_the_time_without_output() {
    let slow = SimulatedModel { step_time: Duration::from_secs(25), ..tireless() };
    let server = Server::start(slow).await;
    let answer = server.post(CHAT, &chat(json!({ "stream": true, "max_tokens": 1 }))).await;
    let text = answer.text();
    assert!(text.starts_with(": ping\n\n"), "{text}");
    assert_eq!(answer.chunks()[0]["choices"][0]["delta"]["role"], "assistant");
}

#[tokio::test(start_paused = true)]
async fn a_request_that_takes_too_long_is_a_408_or_ends_its_stream() {
    let slow = SimulatedModel { step_time: Duration::from_secs(3), ..tireless() };
    let options = ServerOptions { request_timeout: Some(Duration::from_secs(10)), ..ServerOptions::new(MODEL) };
    let server = Server::start_with(slow, RuntimeOptions::default(), options).await;
    assert_error(&server.post(CHAT, &chat(json!({}))).await, 408, "timeout", "timeout", None);
    let chunks = server.post(CHAT, &chat(json!({ "stream": true }))).await.chunks();
    assert_eq!(chunks.last().unwrap()["error"]["code"], "timeout");
    server.settle().await;
}

#[tokio::test]
async fn after_shutdown_requests_get_503() {
    let server = Server::start(model()).await;
    assert_eq!(server.get("/ready").await.json(), json!({ "status": "ready" }));
    assert_eq!(server.get("/health").await.json(), json!({ "status": "ok" }));
    server.runtime.shutdown(Duration::ZERO).await;
    let answer = server.post(CHAT, &chat(json!({}))).await;
    assert_error(&answer, 503, "unavailable_error", "unavailable", None);
    assert!(answer.headers.contains_key("retry-after"));
    assert_eq!(server.get("/ready").await.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(server.get("/health").await.status, StatusCode::OK, "the process is still alive");
}

#[tokio::test]
async fn a_client_that_disconnects_frees_its_blocks_with_and_without_stream() {
    let slow = SimulatedModel { step_time: Duration::from_millis(20), ..tireless() };
    let server = Listening::start(slow, ServerOptions::new(MODEL)).await;
    let used = || server.runtime.snapshot().blocks_used;
    for more in [json!({ "max_tokens": 400 }), json!({ "max_tokens": 400, "stream": true })] {
        let client = reqwest::Client::new();
        let request = client.post(format!("{}{CHAT}", server.url)).json(&chat(more)).send();
        let held = tokio::time::timeout(Duration::from_millis(100), request).await;
        // A stream's headers arrive before the request is scheduled.
        while used() == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        // Dropping the response, or the request that waits for one, closes the connection.
        drop((held, client));
        tokio::time::timeout(Duration::from_secs(5), async {
            while used() > 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        })
        .await
        .expect("the blocks are freed long before the answer would end");
    }
    server.stop().await;
}

#[tokio::test]
async fn two_clients_stream_at_once_and_share_steps() {
    let slow = SimulatedModel { step_time: Duration::from_millis(2), ..tireless() };
    let counters = slow.counters.clone();
    let server = Listening::start(slow, ServerOptions::new(MODEL)).await;
    let call = || async {
        let request = reqwest::Client::new().post(format!("{}{CHAT}", server.url));
        request.json(&chat(json!({ "max_tokens": 64, "stream": true }))).send().await.unwrap().text().await.unwrap()
    };
    let (first, second) = tokio::join!(call(), call());
    assert_eq!(first.matches("\"content\"").count(), second.matches("\"content\"").count());
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    assert!(count(&counters.sequences) > count(&counters.steps) * 3 / 2, "most steps serve both");
    server.stop().await;
}

#[tokio::test]
async fn no_value_of_any_field_causes_a_server_error() {
    let server = Server::start(model()).await;
    let deep = (0..100).fold(json!(1), |inner, _| json!([inner]));
    let values = [
        json!(null),
        json!(true),
        json!(-1),
        json!(0),
        json!(3),
        json!(0.5),
        json!(1e300),
        json!(i64::MIN),
        json!(u64::MAX),
        json!(""),
        json!("none"),
        json!("\u{0}é😀"),
        json!([]),
        json!([[]]),
        json!([null]),
        json!(["a", 1]),
        json!([{}]),
        json!({}),
        json!({ "type": "x" }),
        json!({ "1": 1e300 }),
        json!({ "-1": {} }),
        deep,
    ];
    let fields = [
        "messages",
        "prompt",
        "model",
        "n",
        "max_tokens",
        "max_completion_tokens",
        "min_tokens",
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "typical_p",
        "repetition_penalty",
        "repeat_penalty",
        "repeat_last_n",
        "n_predict",
        "presence_penalty",
        "frequency_penalty",
        "logit_bias",
        "seed",
        "stop",
        "stop_token_ids",
        "ignore_eos",
        "include_stop_str_in_output",
        "skip_special_tokens",
        "priority",
        "logprobs",
        "top_logprobs",
        "logprob_token_ids",
        "prompt_logprobs",
        "echo",
        "best_of",
        "stream",
        "stream_options",
        "return_token_ids",
        "tools",
        "tool_choice",
        "chat_template_kwargs",
        "reasoning_effort",
        "documents",
        "continue_final_message",
        "parallel_tool_calls",
        "reasoning_format",
        "response_format",
        "structured_outputs",
        "guided_json",
        "guided_regex",
        "guided_choice",
        "guided_grammar",
        "grammar",
        "json_schema",
        "add_special_tokens",
        "content",
        "tokens",
    ];
    for path in [CHAT, COMPLETIONS, "/tokenize", "/detokenize"] {
        for field in fields {
            for value in &values {
                let mut body = chat(json!({ "prompt": "the sky", "max_tokens": 2 }));
                body[field] = value.clone();
                let answer = server.post(path, &body).await;
                let expected = [200, 400, 404, 429].contains(&answer.status.as_u16());
                assert!(expected, "{path} {field}: {value} gave {} {}", answer.status, answer.text());
                assert!(
                    answer.status == StatusCode::OK || answer.body.len() < 2000,
                    "{path} {field}: {value} is echoed at length"
                );
            }
        }
    }
}

/// A model whose loading waits for a permission, and may then fail.
struct SlowToLoad {
    model: SimulatedModel,
    allowed: std::sync::Mutex<std::sync::mpsc::Receiver<Result<(), String>>>,
}

impl ModelSource for SlowToLoad {
    type Engine = SimulatedEngine;

    fn load(
        &self,
        cancel: &LoadCancel,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<LoadedModel<SimulatedEngine>, SourceError> {
        self.allowed.lock().unwrap().recv().unwrap()?;
        self.model.load(cancel, progress)
    }

    fn host(&self) -> EngineHost {
        self.model.host()
    }
}

#[tokio::test]
async fn while_the_model_loads_requests_get_503() {
    for (outcome, health) in [(Ok(()), 200), (Err("the file is gone".to_owned()), 503)] {
        let (allow, allowed) = std::sync::mpsc::channel();
        let source = SlowToLoad { model: model(), allowed: allowed.into() };
        let runtime = Runtime::start(source, RuntimeOptions::default()).await.unwrap();
        let router = cuelight::api::router(runtime.clone(), ServerOptions::new(MODEL)).unwrap();
        let server = Server { runtime, router };
        let answer = server.get("/health").await;
        let body = json!({ "error": { "code": 503, "message": "Loading model", "type": "unavailable_error" } });
        assert_eq!((answer.status.as_u16(), answer.json()), (503, body));
        assert_eq!(server.get("/ready").await.json()["status"], "loading");
        assert_eq!(server.get("/v1/models").await.json()["data"][0]["status"]["value"], "loading");
        for path in [CHAT, COMPLETIONS, "/tokenize"] {
            let answer = server.post(path, &chat(json!({ "prompt": "the sky" }))).await;
            assert_error(&answer, 503, "unavailable_error", "unavailable", None);
            assert!(answer.headers.contains_key("retry-after"));
        }
        allow.send(outcome).unwrap();
        let _ = server.runtime.wait_ready().await;
        assert_eq!(server.get("/health").await.status.as_u16(), health);
        assert_eq!(server.get("/ready").await.status.as_u16(), health);
    }
}

#[tokio::test]
async fn requests_are_counted_by_route_pattern_and_not_by_path() {
    let (recorder, exposition) = Exposition::new(Compat::None).unwrap();
    let options = ServerOptions { metrics: Some(exposition), ..ServerOptions::new(MODEL) };
    let _guard = metrics::set_default_local_recorder(&recorder);
    let server = Server::start_with(model(), RuntimeOptions::default(), options).await;
    server.get("/v1/models/one").await;
    server.get("/v1/models/two").await;
    server.get("/invented").await;
    let scraped = server.get("/metrics").await;
    assert_eq!(scraped.headers["content-type"], "text/plain; version=0.0.4; charset=utf-8");
    let text = scraped.text();
    let count =
        |route: &str| format!("cuelight_http_requests_total{{method=\"GET\",route=\"{route}\",status=\"404\"}}");
    assert!(text.contains(&format!("{} 2", count("/v1/models/{*id}"))), "{text}");
    assert!(text.contains(&format!("{} 1", count("unmatched"))), "{text}");
    assert!(!text.contains("invented"), "{text}");
}
