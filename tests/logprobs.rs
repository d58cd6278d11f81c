//! Log-probabilities of answers and prompts, and tokens by number, over a simulated model, called in-process.
#![allow(clippy::unwrap_used)]

mod common;

use serde_json::{Value, json};

use common::openai::{CHAT, COMPLETIONS, assert_error, chat, completion, tireless};
use common::{Server, model};

#[tokio::test]
async fn chat_logprobs_have_bytes_and_alternatives_and_stream_with_their_token() {
    let server = Server::start(tireless()).await;
    let more = json!({ "logprobs": true, "top_logprobs": 2 });
    let whole = server.ok(CHAT, &chat(more)).await;
    let content = whole["choices"][0]["logprobs"]["content"].as_array().unwrap();
    assert_eq!(content.len(), 8);
    for position in content {
        assert_eq!(position["top_logprobs"].as_array().unwrap().len(), 2);
        assert_eq!(position["top_logprobs"][0]["token"], position["token"], "greedy sampling picks the most likely");
        let bytes: Vec<u8> = serde_json::from_value(position["bytes"].clone()).unwrap();
        assert_eq!(position["token"], json!(String::from_utf8(bytes).unwrap()));
        assert!(position["logprob"].as_f64().unwrap() <= 0.0);
    }
    let chunks =
        server.post(CHAT, &chat(json!({ "logprobs": true, "top_logprobs": 2, "stream": true }))).await.chunks();
    let streamed: Vec<&Value> =
        chunks.iter().filter_map(|chunk| chunk["choices"][0]["logprobs"]["content"].as_array()).flatten().collect();
    assert_eq!(streamed, content.iter().collect::<Vec<_>>());
}

#[tokio::test]
async fn listed_tokens_have_the_log_probabilities_that_they_have_among_all() {
    let server = Server::start(tireless()).await;
    let with = |mut more: Value| {
        more["return_tokens_as_token_ids"] = json!(true);
        more
    };
    let top = server.ok(CHAT, &chat(with(json!({ "logprobs": true, "top_logprobs": 3 })))).await;
    let first = top["choices"][0]["logprobs"]["content"][0]["top_logprobs"].as_array().unwrap().clone();
    let id = |entry: &Value| entry["token"].as_str().unwrap().trim_start_matches("token_id:").parse::<u32>().unwrap();
    let listed = [id(&first[2]), id(&first[1])];
    let fields = json!({ "logprobs": true, "top_logprobs": 5, "logprob_token_ids": [listed[0], listed[1], listed[0]] });
    let whole = server.ok(CHAT, &chat(with(fields.clone()))).await;
    let content = whole["choices"][0]["logprobs"]["content"].as_array().unwrap();
    assert_eq!(content[0]["top_logprobs"], json!([first[2], first[1]]), "in the order of the list");
    for (position, before) in content.iter().zip(top["choices"][0]["logprobs"]["content"].as_array().unwrap()) {
        assert_eq!((&position["token"], &position["logprob"]), (&before["token"], &before["logprob"]));
        assert_eq!(position["top_logprobs"].as_array().unwrap().iter().map(id).collect::<Vec<_>>(), listed);
    }
    let mut streamed = fields;
    streamed["stream"] = json!(true);
    let chunks = server.post(CHAT, &chat(with(streamed))).await.chunks();
    let streamed: Vec<&Value> =
        chunks.iter().filter_map(|chunk| chunk["choices"][0]["logprobs"]["content"].as_array()).flatten().collect();
    assert_eq!(streamed, content.iter().collect::<Vec<_>>());
    let more = json!({ "logprobs": 0, "logprob_token_ids": listed, "echo": true });
    let legacy = &server.ok(COMPLETIONS, &completion(with(more))).await["choices"][0]["logprobs"];
    let of_last = legacy["top_logprobs"].as_array().unwrap().last().unwrap();
    for token in listed {
        assert!(of_last[format!("token_id:{token}")].as_f64().unwrap() <= 0.0, "{of_last}");
    }
}

#[tokio::test]
async fn listed_tokens_that_cannot_be_reported_are_refused() {
    let server = Server::start(model()).await;
    let many: Vec<u32> = (0..129).collect();
    for (list, named) in [
        (json!([999_999]), "logprob_token_ids"),
        (json!([]), "logprob_token_ids"),
        (json!(many), "logprob_token_ids"),
        (json!(5), "logprob_token_ids"),
        (json!([1, "x"]), "logprob_token_ids[1]"),
        (json!([1, -2]), "logprob_token_ids[1]"),
    ] {
        let answer = server.post(CHAT, &chat(json!({ "logprobs": true, "logprob_token_ids": list }))).await;
        assert_error(&answer, 400, "invalid_request_error", "invalid_value", Some(named));
        let answer = server.post(COMPLETIONS, &completion(json!({ "logprobs": 1, "logprob_token_ids": list }))).await;
        assert_error(&answer, 400, "invalid_request_error", "invalid_value", Some(named));
    }
    let alone = json!({ "logprob_token_ids": [1] });
    for answer in [server.post(CHAT, &chat(alone.clone())).await, server.post(COMPLETIONS, &completion(alone)).await] {
        assert_error(&answer, 400, "invalid_request_error", "invalid_value", Some("logprob_token_ids"));
    }
}

#[tokio::test]
async fn a_prompt_is_scored_without_generating() {
    let server = Server::start(tireless()).await;
    let more = json!({ "prompt": "the sky is blue", "max_tokens": 0, "echo": true, "logprobs": 1 });
    let answer = server.ok(COMPLETIONS, &completion(more.clone())).await;
    let choice = &answer["choices"][0];
    assert_eq!((&choice["text"], &choice["finish_reason"]), (&json!("the sky is blue"), &json!("length")));
    assert_eq!(answer["usage"]["completion_tokens"], 0);
    let logprobs = &choice["logprobs"];
    let lengths = ["tokens", "token_logprobs", "top_logprobs", "text_offset"]
        .map(|name| logprobs[name].as_array().unwrap().len());
    assert_eq!(lengths, [answer["usage"]["prompt_tokens"].as_u64().unwrap() as usize; 4]);
    assert_eq!((&logprobs["token_logprobs"][0], &logprobs["top_logprobs"][0]), (&Value::Null, &Value::Null));
    for i in 1..lengths[0] {
        let token = logprobs["tokens"][i].as_str().unwrap();
        assert_eq!(logprobs["top_logprobs"][i][token], logprobs["token_logprobs"][i], "the token is among the top");
        let offset = logprobs["text_offset"][i].as_u64().unwrap() as usize;
        assert!("the sky is blue"[offset..].starts_with(token), "{token:?} at {offset}");
    }

    let mut streamed = more;
    streamed["stream"] = json!(true);
    let chunks = server.post(COMPLETIONS, &completion(streamed)).await.chunks();
    assert_eq!(chunks[0]["choices"][0]["logprobs"], *logprobs);
    assert_eq!(chunks[0]["choices"][0]["text"], "the sky is blue");
    assert_eq!(chunks[1]["choices"][0]["finish_reason"], "length");
}

#[tokio::test]
async fn an_echo_and_its_logprobs_precede_the_answer() {
    let server = Server::start(tireless()).await;
    let plain = server.ok(COMPLETIONS, &completion(json!({ "logprobs": 0 }))).await;
    let echo = server.ok(COMPLETIONS, &completion(json!({ "logprobs": 0, "echo": true }))).await;
    let text = plain["choices"][0]["text"].as_str().unwrap();
    assert_eq!(echo["choices"][0]["text"], format!("the sky is{text}"));
    let tokens = |answer: &Value| answer["choices"][0]["logprobs"]["tokens"].as_array().unwrap().clone();
    assert!(tokens(&echo).ends_with(&tokens(&plain)));
    assert_eq!(tokens(&plain).len(), 8);
    let joined: String = tokens(&plain).iter().map(|token| token.as_str().unwrap()).collect();
    assert_eq!(joined, text);
    let chunks = server.post(COMPLETIONS, &completion(json!({ "echo": true, "stream": true }))).await.chunks();
    assert_eq!(chunks[0]["choices"][0]["text"], "the sky is");
}

#[tokio::test]
async fn tokens_can_be_reported_as_ids() {
    let server = Server::start(tireless()).await;
    let more = json!({ "logprobs": 1, "return_tokens_as_token_ids": true, "return_token_ids": true });
    let choice = &server.ok(COMPLETIONS, &completion(more)).await["choices"][0];
    let named: Vec<String> =
        choice["token_ids"].as_array().unwrap().iter().map(|id| format!("token_id:{id}")).collect();
    assert_eq!(choice["logprobs"]["tokens"], json!(named));
    assert!(choice["logprobs"]["top_logprobs"][0].get(&named[0]).is_some());

    let whole = server.ok(CHAT, &chat(json!({ "return_token_ids": true }))).await;
    assert_eq!(
        whole["prompt_token_ids"].as_array().unwrap().len() as u64,
        whole["usage"]["prompt_tokens"].as_u64().unwrap()
    );
    let chunks = server.post(CHAT, &chat(json!({ "return_token_ids": true, "stream": true }))).await.chunks();
    assert_eq!(chunks[0]["prompt_token_ids"], whole["prompt_token_ids"]);
    let streamed: Vec<&Value> =
        chunks.iter().filter_map(|chunk| chunk["choices"][0]["token_ids"].as_array()).flatten().collect();
    assert_eq!(json!(streamed), whole["choices"][0]["token_ids"]);
}

#[tokio::test]
async fn prompt_logprobs_are_keyed_by_token_id() {
    let server = Server::start(tireless()).await;
    let more = json!({ "prompt_logprobs": 1, "return_token_ids": true });
    let choice = &server.ok(COMPLETIONS, &completion(more.clone())).await["choices"][0];
    let ids = choice["prompt_token_ids"].as_array().unwrap();
    let prompt = choice["prompt_logprobs"].as_array().unwrap();
    assert_eq!((prompt.len(), &prompt[0]), (ids.len(), &Value::Null));
    let entry = &prompt[1][ids[1].to_string()];
    assert!(entry["logprob"].as_f64().unwrap() <= 0.0 && entry["rank"].as_u64().unwrap() >= 1);
    assert!(entry["decoded_token"].is_string());
    assert_eq!(choice["logprobs"], Value::Null);
    let whole = server.ok(CHAT, &chat(more)).await;
    assert_eq!(whole["prompt_logprobs"].as_array().unwrap().len(), whole["prompt_token_ids"].as_array().unwrap().len());
}
