//! Answers that have to match a schema, a regular expression or a grammar: they match, with every other option, and the same
//! text comes back after a fault, in a batch, and after preemption.

#![allow(clippy::unwrap_used)]

#[path = "support/actor_deaths.rs"]
mod actor_deaths;
mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cuelight::api::ServerOptions;
use cuelight::pipeline::policy::PolicyConfig;
use cuelight::pipeline::runtime::RuntimeOptions;
use cuelight::pipeline::simulation::{Fault, SimulatedModel};
use cuelight_engine::engine::EngineLimits;
use serde_json::{Value, json};

use actor_deaths::Role;
use common::{MODEL, Server, model};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

/// A model that ends an answer only when it has to.
fn tireless() -> SimulatedModel {
    SimulatedModel { end_one_in: u64::MAX, ..model() }
}

fn person() -> Value {
    json!({
        "type": "object",
        "properties": {
            "name": { "type": "string", "minLength": 1, "maxLength": 12 },
            "kind": { "enum": ["cat", "dog"] },
            "legs": { "type": "integer", "minimum": 0, "maximum": 8 },
            "tags": { "type": "array", "items": { "type": "boolean" }, "minItems": 2, "maxItems": 2 },
        },
        "required": ["name", "kind", "legs", "tags"],
        "additionalProperties": false,
    })
}

fn is_person(text: &str) -> bool {
    let Ok(value) = serde_json::from_str::<Value>(text) else { return false };
    let name = value["name"].as_str().map_or(0, |name| name.chars().count());
    let tags = value["tags"].as_array();
    (1..=12).contains(&name)
        && ["cat", "dog"].map(Value::from).contains(&value["kind"])
        && value["legs"].as_u64().is_some_and(|legs| legs <= 8)
        && tags.is_some_and(|tags| tags.len() == 2 && tags.iter().all(Value::is_boolean))
        && value.as_object().is_some_and(|object| object.len() == 4)
}

fn chat(seed: u64, more: Value) -> Value {
    let mut body = json!({
        "messages": [{ "role": "user", "content": format!("who is number {seed}?") }],
        "response_format": { "type": "json_schema", "json_schema": { "name": "person", "strict": true, "schema": person() } },
        "seed": seed,
        "max_tokens": 300,
    });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

fn content(answer: &Value) -> &str {
    answer["choices"][0]["message"]["content"].as_str().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_match_their_schema_with_every_other_option() {
    let server = Server::start(tireless()).await;
    for (seed, more) in [
        json!({}),
        json!({ "temperature": 0 }),
        json!({ "top_k": 3, "presence_penalty": 1.5, "repetition_penalty": 1.3 }),
        json!({ "logprobs": true, "top_logprobs": 2 }),
        json!({ "logit_bias": { "123": -100 } }),
        json!({ "min_tokens": 290 }),
        json!({ "ignore_eos": true }),
        json!({ "stop": ["never this"] }),
    ]
    .into_iter()
    .enumerate()
    {
        let whole = server.ok(CHAT, &chat(seed as u64, more.clone())).await;
        assert!(is_person(content(&whole)), "{more}: {whole}");
        assert_eq!(whole["choices"][0]["finish_reason"], "stop", "{more}");
        let mut body = chat(seed as u64, more.clone());
        body["stream"] = json!(true);
        let streamed = server.post(CHAT, &body).await;
        let text: String = streamed
            .chunks()
            .iter()
            .filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str().map(str::to_owned))
            .collect();
        assert_eq!(text, content(&whole), "{more}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn several_answers_each_match() {
    let server = Server::start(tireless()).await;
    let answer = server.ok(CHAT, &chat(3, json!({ "n": 4 }))).await;
    let choices = answer["choices"].as_array().unwrap();
    assert_eq!(choices.len(), 4);
    for choice in choices {
        assert!(is_person(choice["message"]["content"].as_str().unwrap()), "{choice}");
    }
}

/// Whether a text matches.
type Check<'a> = &'a dyn Fn(&str) -> bool;

#[tokio::test(flavor = "multi_thread")]
async fn every_kind_of_constraint_is_enforced() {
    let server = Server::start(tireless()).await;
    let is_json_object = |text: &str| serde_json::from_str::<Value>(text).is_ok_and(|value| value.is_object());
    let checks: [(Value, Check<'_>); 6] = [
        (json!({ "structured_outputs": { "choice": ["yes", "no"] } }), &|text| text == "yes" || text == "no"),
        (json!({ "structured_outputs": { "regex": "[0-9]{3}-[xyz]{2}" } }), &|text| {
            text.len() == 6 && text.as_bytes()[3] == b'-'
        }),
        (json!({ "grammar": "root ::= \"<\" [a-c]{2} \">\"" }), &|text| text.len() == 4 && text.ends_with('>')),
        (json!({ "guided_grammar": "start: \"a\" \"b\"" }), &|text| text == "ab"),
        (json!({ "json_schema": { "const": { "a": [1, null] } } }), &|text| {
            serde_json::from_str::<Value>(text).is_ok_and(|value| value == json!({ "a": [1, null] }))
        }),
        (json!({ "structured_outputs": { "json": person() } }), &|text| is_person(text) && is_json_object(text)),
    ];
    for (more, holds) in checks {
        let mut body = json!({ "prompt": "say it", "max_tokens": 300, "seed": 5 });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let answer = server.ok(COMPLETIONS, &body).await;
        let text = answer["choices"][0]["text"].as_str().unwrap();
        assert!(holds(text), "{more}: {text:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_is_cut_off_says_so() {
    let server = Server::start(tireless()).await;
    let answer = server.ok(CHAT, &chat(1, json!({ "max_tokens": 5 }))).await;
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_enforced_is_a_400_that_names_the_keyword() {
    let server = Server::start(tireless()).await;
    let refused = |schema: Value| {
        let format = json!({ "type": "json_schema", "json_schema": { "name": "x", "schema": schema } });
        chat(1, json!({ "response_format": format }))
    };
    for (schema, place) in [
        (json!({ "type": "array", "uniqueItems": true }), "#/uniqueItems"),
        (json!({ "properties": { "a": { "contains": {} } } }), "#/properties/a/contains"),
        (json!({ "properties": { "a": { "type": "string", "pattern": "(?<=a)b" } } }), "#/properties/a/pattern"),
    ] {
        let answer = server.post(CHAT, &refused(schema)).await;
        let error = &answer.json()["error"];
        assert_eq!((answer.status.as_u16(), &error["code"]), (400, &json!("invalid_value")), "{error}");
        assert_eq!(error["param"], format!("response_format.json_schema.schema{place}"), "{error}");
        assert!(error["message"].as_str().unwrap().contains(place), "{error}");
    }
    for more in [json!({ "guided_regex": "(" }), json!({ "grammar": "root ::= nothing" })] {
        let mut body = json!({ "prompt": "a" });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let answer = server.post(COMPLETIONS, &body).await;
        assert_eq!(answer.status, 400, "{more}");
    }
}

/// The texts of sixteen requests, one after another or all at once.
async fn texts(server: &Server, at_once: bool) -> Vec<String> {
    let ask = |seed| async move { content(&server.ok(CHAT, &chat(seed, json!({}))).await).to_owned() };
    if at_once {
        return futures_util::future::join_all((0..16).map(ask)).await;
    }
    let mut texts = Vec::new();
    for seed in 0..16 {
        texts.push(ask(seed).await);
    }
    texts
}

#[tokio::test(flavor = "multi_thread")]
async fn the_text_is_the_same_alone_in_a_batch_and_after_preemption() {
    let expected = texts(&Server::start(tireless()).await, false).await;
    assert!(expected.iter().all(|text| is_person(text)), "{expected:?}");
    let policy = PolicyConfig { steps_in_flight: 2, ..PolicyConfig::default() };
    let runtime = || RuntimeOptions { policy, ..RuntimeOptions::default() };
    let batched = Server::start_with(tireless(), runtime(), ServerOptions::new(MODEL)).await;
    assert_eq!(texts(&batched, true).await, expected);
    let model = tireless();
    let small = SimulatedModel { limits: EngineLimits { kv_blocks: 40, ..model.limits.clone() }, ..model };
    let preempted = Server::start_with(small, runtime(), ServerOptions::new(MODEL)).await;
    assert_eq!(texts(&preempted, true).await, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_text_is_the_same_after_faults() {
    let expected = texts(&Server::start(tireless()).await, false).await;
    for fault in [Fault::Panic, Fault::DeviceLost] {
        let has_failed = Arc::new(AtomicBool::new(false));
        let failed = has_failed.clone();
        let name = format!("{fault:?}");
        let faults =
            move |step: u64, _: &_| (step == 30 && !failed.swap(true, Ordering::Relaxed)).then(|| fault.clone());
        let model = SimulatedModel { faults: Some(Arc::new(faults)), ..tireless() };
        let server = Server::start(model).await;
        assert_eq!(texts(&server, true).await, expected, "{name}");
        assert!(has_failed.load(Ordering::Relaxed));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_text_is_the_same_when_the_sampler_dies() {
    let server = Server::start(tireless()).await;
    let expected = texts(&server, false).await;
    let kill = async {
        for _ in 0..3 {
            tokio::time::sleep(Duration::from_millis(20)).await;
            Role::Sampler.kill(&server.runtime, 0);
        }
    };
    let (found, ()) = tokio::join!(texts(&server, true), kill);
    assert_eq!(found, expected);
}
