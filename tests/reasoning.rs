//! Reasoning over the API: it is separated from the answer, ends when its budget is spent, and neither stop strings nor
//! constraints apply to it.

#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;

use cuelight::pipeline::simulation::SimulatedModel;
use cuelight_engine::format::chat_template::ChatTemplate;
use serde_json::{Value, json};

use common::{Server, model};

const CHAT: &str = "/v1/chat/completions";

/// The prompt ends inside of the reasoning, unless thinking is off.
const TEMPLATE: &str = "{% for message in messages %}{{ message.role }}:\
    {% if message.reasoning_content %}<think>\n{{ message.reasoning_content }}\n</think>\n\n{% endif %}{{ message.content }}\n\
    {% endfor %}{% if add_generation_prompt %}assistant:<think>\n\
    {% if enable_thinking is defined and not enable_thinking %}\n</think>\n\n{% endif %}{% endif %}";

/// A model that reasons without end.
fn thinker() -> SimulatedModel {
    let template = Arc::new(ChatTemplate::new(TEMPLATE, "", "").unwrap());
    SimulatedModel { chat_template: Some(template), end_one_in: u64::MAX, ..model() }
}

fn body(seed: u64, more: Value) -> Value {
    let mut body = json!({
        "messages": [{ "role": "user", "content": "why?" }],
        "thinking_token_budget": 40,
        "seed": seed,
        "max_tokens": 100,
    });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// The reasoning and the content of a stream.
fn joined(chunks: &[Value]) -> (String, String) {
    let text = |name: &str| {
        let deltas = chunks.iter().filter_map(|chunk| chunk["choices"].get(0)?["delta"][name].as_str());
        deltas.collect::<String>()
    };
    assert_eq!(text("reasoning"), text("reasoning_content"));
    (text("reasoning_content"), text("content"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_spent_budget_ends_the_reasoning_and_the_answer_follows() {
    let server = Server::start(thinker()).await;
    for seed in 0..4 {
        let whole = server.ok(CHAT, &body(seed, json!({}))).await;
        let message = &whole["choices"][0]["message"];
        let (reasoning, content) =
            (message["reasoning_content"].as_str().unwrap(), message["content"].as_str().unwrap());
        assert!((30..=40).contains(&reasoning.len()) && content.len() > 30, "{message}");
        assert!(!reasoning.contains('<') && !content.contains('<'), "{message}");
        let details = &whole["usage"]["completion_tokens_details"];
        assert!((40..=60).contains(&details["reasoning_tokens"].as_u64().unwrap()), "{details}");
        let streamed = server.post(CHAT, &body(seed, json!({ "stream": true }))).await.chunks();
        assert_eq!(joined(&streamed), (reasoning.to_owned(), content.to_owned()));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn stop_strings_end_the_answer_only() {
    let server = Server::start(thinker()).await;
    let stops: Vec<String> = ('a'..='m').map(String::from).collect();
    let whole = server.ok(CHAT, &body(1, json!({ "stop": stops }))).await;
    let (choice, message) = (&whole["choices"][0], &whole["choices"][0]["message"]);
    assert!(message["reasoning_content"].as_str().unwrap().contains(['a', 'b', 'c', 'd', 'e', 'f']), "{message}");
    assert!(!message["content"].as_str().unwrap().contains(['a', 'b', 'c', 'd', 'e', 'f']), "{message}");
    assert_eq!(choice["finish_reason"], "stop");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_constraint_begins_after_the_reasoning() {
    let server = Server::start(thinker()).await;
    let choice = json!({ "structured_outputs": { "choice": ["yes", "no"] } });
    for (more, reasons) in [(json!({}), true), (json!({ "chat_template_kwargs": { "enable_thinking": false } }), false)]
    {
        let mut body = body(3, choice.clone());
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let whole = server.ok(CHAT, &body).await;
        let message = &whole["choices"][0]["message"];
        assert!(message["content"] == "yes" || message["content"] == "no", "{message}");
        assert_eq!(message.get("reasoning").is_some(), reasons, "{message}");
        assert_eq!(whole["choices"][0]["finish_reason"], "stop");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn reasoning_may_stay_in_the_text_and_be_sent_back() {
    let server = Server::start(thinker()).await;
    for hidden in [json!({ "include_reasoning": false }), json!({ "reasoning_format": "hidden" })] {
        let mut more = json!({ "thinking_token_budget": 6, "max_tokens": 40 });
        more.as_object_mut().unwrap().extend(hidden.as_object().unwrap().clone());
        let whole = server.ok(CHAT, &body(1, more)).await;
        let message = &whole["choices"][0]["message"];
        assert!(message.get("reasoning").is_none_or(Value::is_null), "{whole}");
        assert!(!message["content"].as_str().unwrap().is_empty(), "{whole}");
        assert!(whole["usage"]["completion_tokens_details"]["reasoning_tokens"].as_u64().unwrap() > 0, "{whole}");
    }
    let whole = server.ok(CHAT, &body(1, json!({ "reasoning_format": "none", "max_tokens": 20 }))).await;
    let message = &whole["choices"][0]["message"];
    assert!(message["content"].as_str().unwrap().len() >= 15 && message.get("reasoning").is_none(), "{message}");
    for name in ["reasoning", "reasoning_content"] {
        let messages = json!([
            { "role": "user", "content": "why?" },
            { "role": "assistant", "content": "so", name: "because it is long enough to be counted" },
            { "role": "user", "content": "and?" },
        ]);
        let answer = server.ok(CHAT, &body(1, json!({ "messages": messages }))).await;
        assert!(answer["usage"]["prompt_tokens"].as_u64().unwrap() > 90, "{}", answer["usage"]);
    }
}

/// Messages with channels, as gpt-oss writes them.
const CHANNELS: &str = "{% for message in messages %}<|start|>{{ message.role }}<|message|>{{ message.content }}<|end|>\
    {% endfor %}{% if add_generation_prompt %}<|start|>assistant{% endif %}\
    {% if false %}<|channel|>analysis<|message|> {% for tool in tools %}functions.{{ tool.function.name }}{% endfor %}{% endif %}";

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_in_a_channel_has_its_header_before_what_the_constraint_describes() {
    let template = Arc::new(ChatTemplate::new(CHANNELS, "", "").unwrap());
    let server = Server::start(SimulatedModel { chat_template: Some(template), ..thinker() }).await;
    let mut answered = 0;
    for seed in 0..12 {
        let more = json!({ "structured_outputs": { "choice": ["yes", "no"] }, "thinking_token_budget": null });
        let whole = server.ok(CHAT, &body(seed, more)).await;
        let choice = &whole["choices"][0];
        match choice["finish_reason"].as_str().unwrap() {
            "stop" => {
                assert!(choice["message"]["content"] == "yes" || choice["message"]["content"] == "no", "{choice}");
                answered += 1;
            }
            // It reasons without end.
            _ => assert!(choice["message"]["content"].as_str().is_none_or(str::is_empty), "{choice}"),
        }
    }
    assert!(answered > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_spent_budget_ends_the_reasoning_in_a_channel() {
    let template = Arc::new(ChatTemplate::new(CHANNELS, "", "").unwrap());
    let server = Server::start(SimulatedModel { chat_template: Some(template), ..thinker() }).await;
    let mut reasoned = 0;
    for seed in 0..12 {
        let more = json!({
            "structured_outputs": { "choice": ["yes", "no"] }, "thinking_token_budget": 20, "max_tokens": 400,
        });
        let whole = server.ok(CHAT, &body(seed, more.clone())).await;
        let (choice, message) = (&whole["choices"][0], &whole["choices"][0]["message"]);
        assert_eq!(choice["finish_reason"], "stop", "{choice}");
        assert!(message["content"] == "yes" || message["content"] == "no", "{message}");
        let reasoning = message["reasoning_content"].as_str().unwrap_or_default().to_owned();
        assert!(reasoning.len() <= 20 && !reasoning.contains("<|"), "{message}");
        reasoned += usize::from(!reasoning.is_empty());
        let mut streamed = body(seed, more);
        streamed["stream"] = json!(true);
        let chunks = server.post(CHAT, &streamed).await.chunks();
        assert_eq!(joined(&chunks), (reasoning, message["content"].as_str().unwrap().to_owned()));
    }
    assert!(reasoned > 0);
}
