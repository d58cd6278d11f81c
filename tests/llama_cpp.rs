//! Filling in the middle over the protocols that have it, and the routes of llama.cpp's server.

#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::Request;
use cuelight::api::{ServerOptions, models_router};
use cuelight::models::{Models, ModelsOptions, NamedModel};
use cuelight::pipeline::runtime::RuntimeOptions;
use cuelight::pipeline::simulation::{SimulatedModel, infill_tokenizer};
use cuelight_engine::engine::EngineLimits;
use cuelight_engine::format::chat_template::ChatTemplate;
use serde_json::{Value, json};
use tower::ServiceExt;

use common::{Answer, MODEL, Server, model, post};

const INFILL: &str = "/infill";
const COMPLETION: &str = "/completion";
const COMPLETIONS: &str = "/v1/completions";
const GENERATE: &str = "/api/generate";
const APPLY: &str = "/apply-template";
const RENDER: &str = "/v1/chat/completions/render";
const COUNT: &str = "/v1/chat/completions/input_tokens";

/// A model with tokens for filling in the middle that never ends by itself.
fn coder() -> SimulatedModel {
    let model = SimulatedModel::new(infill_tokenizer());
    SimulatedModel { end_one_in: u64::MAX, chat_template: common::model().chat_template, ..model }
}

/// `a(` and `)` around a gap.
fn gap(more: Value) -> Value {
    with(json!({ "input_prefix": "a", "prompt": "(", "input_suffix": ")", "n_predict": 12, "temperature": 0 }), more)
}

/// The tokens of [`gap`].
fn gap_tokens() -> Vec<u32> {
    vec![257, u32::from(b'a'), u32::from(b'('), 258, u32::from(b')'), 259]
}

fn conversation() -> Value {
    json!({ "messages": [{ "role": "user", "content": "hi" }] })
}

fn with(mut body: Value, more: Value) -> Value {
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// The `code` and `param` of an error.
fn error(answer: &Answer, status: u16) -> (String, Value) {
    assert_eq!(answer.status, status, "{}", answer.text());
    let error = &answer.json()["error"];
    assert!(error["message"].as_str().unwrap().len() > 10, "{error}");
    (error["code"].as_str().unwrap().to_owned(), error["param"].clone())
}

/// What a model writes after these tokens.
async fn continued(server: &Server, tokens: &[u32]) -> String {
    let body = json!({ "prompt": tokens, "max_tokens": 12, "temperature": 0 });
    server.ok(COMPLETIONS, &body).await["choices"][0]["text"].as_str().unwrap().to_owned()
}

/// The objects of a stream, which ends without `[DONE]`.
fn events(answer: &Answer) -> Vec<Value> {
    assert_eq!(answer.headers["content-type"], "text/event-stream");
    let text = answer.text();
    let data = text.split("\n\n").filter_map(|frame| frame.strip_prefix("data: "));
    data.map(|data| serde_json::from_str(data).unwrap()).collect()
}

#[tokio::test]
async fn a_gap_has_the_same_prompt_in_every_protocol() {
    let server = Server::start(coder()).await;
    let expected = continued(&server, &gap_tokens()).await;
    assert_eq!(expected.len(), 12);

    let whole = server.ok(INFILL, &gap(json!({}))).await;
    assert_eq!((&whole["content"], &whole["model"]), (&json!(expected), &json!(MODEL)));
    assert_eq!(
        (&whole["stop"], &whole["stop_type"], &whole["stopping_word"]),
        (&json!(true), &json!("limit"), &json!(""))
    );
    assert_eq!((&whole["tokens_predicted"], &whole["tokens_evaluated"]), (&json!(12), &json!(6)));
    assert_eq!((&whole["truncated"], &whole["timings"]["predicted_n"]), (&json!(false), &json!(12)));

    let body = json!({ "prompt": "a(", "suffix": ")", "max_tokens": 12, "temperature": 0, "return_token_ids": true });
    let choice = &server.ok(COMPLETIONS, &body).await["choices"][0];
    assert_eq!((&choice["text"], &choice["prompt_token_ids"]), (&json!(expected), &json!(gap_tokens())));

    let options = json!({ "temperature": 0, "num_predict": 12 });
    let body = json!({ "model": MODEL, "prompt": "a(", "suffix": ")", "stream": false, "options": options });
    let generated = server.ok(GENERATE, &body).await;
    assert_eq!((&generated["response"], &generated["prompt_eval_count"]), (&json!(expected), &json!(6)));
    let shown = server.ok("/api/show", &json!({ "model": MODEL })).await;
    assert!(shown["capabilities"].as_array().unwrap().contains(&json!("insert")), "{shown}");
}

#[tokio::test]
async fn an_empty_prompt_with_a_suffix_is_a_gap_at_the_start() {
    let server = Server::start(coder()).await;
    let expected = continued(&server, &[257, 258, u32::from(b')'), 259]).await;
    let body = json!({ "prompt": "", "suffix": ")", "max_tokens": 12, "temperature": 0 });
    assert_eq!(server.ok(COMPLETIONS, &body).await["choices"][0]["text"], expected);
    let options = json!({ "temperature": 0, "num_predict": 12 });
    let body = json!({ "model": MODEL, "suffix": ")", "stream": false, "raw": true, "options": options });
    assert_eq!(server.ok(GENERATE, &body).await["response"], expected);
}

#[tokio::test]
async fn other_files_come_before_the_gap() {
    let server = Server::start(coder()).await;
    let bytes = |text: &str| text.bytes().map(u32::from).collect::<Vec<_>>();
    let files = [vec![260], bytes("myproject\n"), vec![261], bytes("x.c\nint x;\n"), vec![261], bytes("filename\n")];
    let tokens = [files.concat(), gap_tokens()].concat();
    let files = json!([{ "filename": "x.c", "text": "int x;\n" }]);
    let whole = server.ok(INFILL, &gap(json!({ "input_extra": files }))).await;
    assert_eq!(whole["content"], continued(&server, &tokens).await);
    assert_eq!(whole["tokens_evaluated"], tokens.len());
}

#[tokio::test]
async fn files_that_do_not_fit_are_left_out_and_reported() {
    let server = Server::start(coder()).await;
    let alone = server.ok(INFILL, &gap(json!({}))).await;
    let file = |name: &str, length: usize| json!({ "filename": name, "text": "x".repeat(length) });
    let crowded = server.ok(INFILL, &gap(json!({ "input_extra": [file("a", 600)] }))).await;
    assert_eq!((&crowded["content"], &crowded["truncated"]), (&alone["content"], &json!(true)));
    let with_last = server.ok(INFILL, &gap(json!({ "input_extra": [file("a", 600), file("b", 9)] }))).await;
    let last = server.ok(INFILL, &gap(json!({ "input_extra": [file("b", 9)] }))).await;
    assert_eq!((&with_last["content"], &with_last["truncated"]), (&last["content"], &json!(true)));
    assert_eq!(last["truncated"], false);
}

#[tokio::test]
async fn text_that_looks_like_a_marker_is_text() {
    let server = Server::start(coder()).await;
    let marker = "<|fim_middle|>";
    let body = json!({ "prompt": marker, "suffix": marker, "max_tokens": 1, "return_token_ids": true });
    let tokens = server.ok(COMPLETIONS, &body).await["choices"][0]["prompt_token_ids"].clone();
    let tokens = tokens.as_array().unwrap();
    assert_eq!(tokens.len(), 3 + 2 * marker.len());
    assert_eq!(tokens.iter().filter(|token| **token == 259).count(), 1);
}

#[tokio::test]
async fn a_stream_has_the_same_text_and_ends_with_the_counts() {
    let server = Server::start(coder()).await;
    let whole = server.ok(INFILL, &gap(json!({}))).await;
    let events = events(&server.post(INFILL, &gap(json!({ "stream": true, "return_tokens": true }))).await);
    let text: String = events.iter().map(|event| event["content"].as_str().unwrap()).collect();
    assert_eq!(json!(text), whole["content"]);
    let (last, parts) = events.split_last().unwrap();
    assert!(parts.iter().all(|part| part["stop"] == false && part["timings"].is_null()), "{parts:?}");
    let tokens: usize = parts.iter().map(|part| part["tokens"].as_array().unwrap().len()).sum();
    assert_eq!((tokens, &last["stop"], &last["tokens_predicted"]), (12, &json!(true), &json!(12)));
    assert!(last["timings"]["predicted_per_second"].is_number(), "{last}");
}

#[tokio::test]
async fn the_end_of_a_text_has_its_reason() {
    let server = Server::start(coder()).await;
    let text = server.ok(INFILL, &gap(json!({}))).await["content"].as_str().unwrap().to_owned();
    let word = &text[4..6];
    let before = &text[..text.find(word).unwrap()];
    let stopped = server.ok(INFILL, &gap(json!({ "stop": [word] }))).await;
    assert_eq!((&stopped["stop_type"], &stopped["stopping_word"]), (&json!("word"), &json!(word)));
    assert_eq!(stopped["content"], before);
    let ending = Server::start(SimulatedModel { end_one_in: 1, ..coder() }).await;
    assert_eq!(ending.ok(INFILL, &gap(json!({}))).await["stop_type"], "eos");
}

#[tokio::test]
async fn editors_get_the_fields_that_they_ask_for() {
    let server = Server::start(coder()).await;
    let more = json!({
        "response_fields": ["content", "timings/prompt_n", "none"],
        "samplers": ["top_k", "infill"], "cache_prompt": true, "n_indent": 0, "t_max_prompt_ms": 500,
        "t_max_predict_ms": 1000, "id_slot": 0, "input_extra": [], "n_predict": 0,
    });
    let answer = server.ok(INFILL, &gap(more)).await;
    assert_eq!(answer, json!({ "content": "", "timings/prompt_n": 6 }));
}

#[tokio::test]
async fn what_cannot_be_filled_in_is_refused() {
    let plain = Server::start(model()).await;
    let ollama = json!({ "model": MODEL, "prompt": "a", "suffix": "b" });
    let refused = error(&plain.post(INFILL, &gap(json!({}))).await, 400);
    assert_eq!(refused, ("unsupported_value".to_owned(), json!("input_suffix")));
    let refused = error(&plain.post(COMPLETIONS, &json!({ "prompt": "a", "suffix": "b" })).await, 400);
    assert_eq!(refused, ("unsupported_value".to_owned(), json!("suffix")));
    let answer = plain.post(GENERATE, &ollama).await;
    assert!(answer.status == 400 && answer.json()["error"].as_str().unwrap().contains("`suffix`"), "{}", answer.text());

    let server = Server::start(coder()).await;
    for (path, body, param) in [
        (INFILL, json!({ "input_prefix": "a" }), "input_suffix"),
        (INFILL, gap(json!({ "input_extra": [{ "filename": "x" }] })), "input_extra[0].text"),
        (INFILL, gap(json!({ "top_k": "many" })), "top_k"),
        (COMPLETIONS, json!({ "prompt": "a", "suffix": "b", "echo": true }), "suffix"),
        (COMPLETIONS, json!({ "prompt": [97], "suffix": "b" }), "suffix"),
    ] {
        assert_eq!(error(&server.post(path, &body).await, 400), ("invalid_value".to_owned(), json!(param)), "{body}");
    }
    for (more, param) in [(json!({ "mirostat": 2 }), "mirostat"), (json!({ "logit_bias": { "a": 2 } }), "logit_bias")] {
        let refused = error(&server.post(INFILL, &gap(more)).await, 400);
        assert_eq!(refused, ("unsupported_value".to_owned(), json!(param)));
    }
    let long = gap(json!({ "input_prefix": "a".repeat(600) }));
    assert_eq!(error(&server.post(INFILL, &long).await, 400).0, "context_length_exceeded");
    let system = with(ollama, json!({ "system": "s" }));
    assert_eq!(server.post(GENERATE, &system).await.status, 400);
}

/// A prompt to continue with 12 tokens.
fn continuation(prompt: Value, more: Value) -> Value {
    with(json!({ "prompt": prompt, "n_predict": 12, "temperature": 0 }), more)
}

#[tokio::test]
async fn a_prompt_has_the_same_answer_as_text_as_ids_and_mixed() {
    let server = Server::start(coder()).await;
    let tokens: Vec<u32> = "ab(<|fim_middle|>".bytes().map(u32::from).collect();
    let expected = continued(&server, &tokens[..3]).await;
    for prompt in [json!("ab("), json!(tokens[..3]), json!(["a", 98, "("]), json!([97, "b("]), json!(["ab("])] {
        let answer = server.ok(COMPLETION, &continuation(prompt.clone(), json!({}))).await;
        assert_eq!((&answer["content"], &answer["tokens_evaluated"]), (&json!(expected), &json!(3)), "{prompt}");
        assert_eq!((&answer["index"], &answer["stop_type"]), (&json!(0), &json!("limit")));
        assert_eq!(
            (&answer["generation_settings"]["n_predict"], &answer["timings"]["predicted_n"]),
            (&json!(12), &json!(12))
        );
    }
}

#[tokio::test]
async fn a_list_of_prompts_has_a_list_of_answers() {
    let server = Server::start(coder()).await;
    let body = continuation(json!(["a", [98, "c"], [100]]), json!({}));
    let answers = server.ok(COMPLETION, &body).await;
    let prompts: [&[u32]; 3] = [&[97], &[98, 99], &[100]];
    assert_eq!(answers.as_array().unwrap().len(), 3);
    for (index, prompt) in prompts.into_iter().enumerate() {
        let answer = &answers[index];
        assert_eq!(answer["content"], continued(&server, prompt).await);
        assert_eq!((&answer["index"], &answer["tokens_evaluated"]), (&json!(index), &json!(prompt.len())));
    }
    let streamed = events(&server.post(COMPLETION, &with(body, json!({ "stream": true }))).await);
    for index in 0..3 {
        let own: Vec<&Value> = streamed.iter().filter(|event| event["index"] == index).collect();
        let text: String = own.iter().map(|event| event["content"].as_str().unwrap()).collect();
        assert_eq!(answers[index]["content"], text);
        assert_eq!(
            (&own.last().unwrap()["stop"], own.iter().filter(|event| event["stop"] == true).count()),
            (&json!(true), 1)
        );
    }
}

#[tokio::test]
async fn each_token_has_its_probabilities_on_request() {
    let server = Server::start(coder()).await;
    let more = json!({ "n_probs": 3, "n_predict": 4, "return_tokens": true });
    let whole = server.ok(COMPLETION, &continuation(json!("a"), more.clone())).await;
    let positions = whole["completion_probabilities"].as_array().unwrap();
    let ids: Vec<&Value> = positions.iter().map(|position| &position["id"]).collect();
    assert_eq!(json!(ids), whole["tokens"]);
    for position in positions {
        let top = position["top_logprobs"].as_array().unwrap();
        assert_eq!((top.len(), &top[0]["id"]), (3, &position["id"]));
        assert!(position["logprob"].as_f64().unwrap() <= 0.0 && position["bytes"].is_array(), "{position}");
    }
    let more = with(more, json!({ "stream": true }));
    let streamed = events(&server.post(COMPLETION, &continuation(json!("a"), more)).await);
    let parts = streamed.iter().filter_map(|event| event["completion_probabilities"].as_array());
    assert_eq!(parts.flatten().collect::<Vec<_>>(), positions.iter().collect::<Vec<_>>());
    let without = server.ok(COMPLETION, &continuation(json!("a"), json!({}))).await;
    assert!(without["completion_probabilities"].is_null(), "{without}");
}

#[tokio::test]
async fn a_completion_can_be_constrained_and_stopped() {
    let server = Server::start(coder()).await;
    let grammar = json!({ "grammar": "root ::= \"xyz\"" });
    assert_eq!(server.ok(COMPLETION, &continuation(json!("a"), grammar)).await["content"], "xyz");
    let schema = json!({ "json_schema": { "const": 7 } });
    assert_eq!(server.ok(COMPLETION, &continuation(json!("a"), schema)).await["content"], "7");
    let text =
        server.ok(COMPLETION, &continuation(json!("a"), json!({}))).await["content"].as_str().unwrap().to_owned();
    let stopped = server.ok(COMPLETION, &continuation(json!("a"), json!({ "stop": [&text[2..4]] }))).await;
    assert_eq!((&stopped["stop_type"], &stopped["stopping_word"]), (&json!("word"), &json!(text[2..4])));
}

#[tokio::test]
async fn biases_forbid_and_favour_tokens() {
    let server = Server::start(coder()).await;
    let text =
        server.ok(COMPLETION, &continuation(json!("a"), json!({}))).await["content"].as_str().unwrap().to_owned();
    let first = text.as_bytes()[0];
    let forbidden = json!({ "logit_bias": [[first, false]] });
    let without = server.ok(COMPLETION, &continuation(json!("a"), forbidden)).await;
    assert!(!without["content"].as_str().unwrap().contains(char::from(first)), "{without}");
    let favoured = json!({ "logit_bias": { "122": 1000 } });
    let only = server.ok(COMPLETION, &continuation(json!("a"), favoured.clone())).await;
    assert_eq!(only["content"], "z".repeat(12));
    assert_eq!(server.ok(INFILL, &gap(favoured)).await["content"], "z".repeat(12));
    let beyond = json!({ "logit_bias": [[900, 1]] });
    assert_eq!(error(&server.post(COMPLETION, &continuation(json!("a"), beyond)).await, 400).1, "logit_bias.900");
}

#[tokio::test]
async fn a_field_that_would_change_the_text_is_refused_and_others_are_ignored() {
    let server = Server::start(coder()).await;
    let plain = server.ok(COMPLETION, &continuation(json!("a"), json!({}))).await;
    let ignored = json!({
        "cache_prompt": true, "id_slot": 0, "samplers": ["top_k"], "timings_per_token": true, "n_keep": 4,
        "t_max_predict_ms": 1, "return_progress": true, "mirostat": 0, "dry_multiplier": 0.0, "n_cmpl": 1, "image_data": [],
    });
    assert_eq!(server.ok(COMPLETION, &continuation(json!("a"), ignored)).await["content"], plain["content"]);
    for (more, param) in [
        (json!({ "mirostat": 2 }), "mirostat"),
        (json!({ "logit_bias": [["a", 2]] }), "logit_bias[0]"),
        (json!({ "n_cmpl": 2 }), "n_cmpl"),
        (json!({ "image_data": [{ "id": 1 }] }), "image_data"),
        (json!({ "post_sampling_probs": true }), "post_sampling_probs"),
    ] {
        let refused = error(&server.post(COMPLETION, &continuation(json!("a"), more)).await, 400);
        assert_eq!(refused, ("unsupported_value".to_owned(), json!(param)));
    }
    for (prompt, param) in
        [(json!(null), "prompt"), (json!(["a", 900]), "prompt[1]"), (json!([[1, 900]]), "prompt[0][1]")]
    {
        let refused = error(&server.post(COMPLETION, &continuation(prompt, json!({}))).await, 400);
        assert_eq!(refused, ("invalid_value".to_owned(), json!(param)));
    }
    assert_eq!(server.ok("/completions", &json!({ "prompt": "a" })).await["object"], "text_completion");
}

#[tokio::test]
async fn a_conversation_is_rendered_as_chat_completions_render_it() {
    let server = Server::start(coder()).await;
    let tokens = server.ok("/tokenize", &conversation()).await["tokens"].clone();
    assert_eq!(server.ok(APPLY, &conversation()).await, json!({ "prompt": "user:hi\nassistant:" }));
    let rendered = server.ok(RENDER, &conversation()).await;
    assert_eq!((&rendered["token_ids"], &rendered["prompt"]), (&tokens, &json!("user:hi\nassistant:")));
    assert_eq!(rendered["model"], MODEL);
    assert!(rendered["request_id"].as_str().unwrap().starts_with("chatcmpl-"), "{rendered}");
    let counted = server.ok(COUNT, &conversation()).await;
    assert_eq!(counted["input_tokens"], json!(tokens.as_array().unwrap().len()));
    let open = with(conversation(), json!({ "add_generation_prompt": false }));
    assert_eq!(server.ok(APPLY, &open).await["prompt"], "user:hi\n");
}

/// The continued text may be any text: also one that the template writes behind messages.
#[tokio::test]
async fn a_continued_message_ends_where_its_text_ends() {
    let chat = |content: &str| {
        let messages = json!([{ "role": "user", "content": "hi" }, { "role": "assistant", "content": content }]);
        json!({ "messages": messages, "continue_final_message": true })
    };
    for (text, trims) in [("{{ m.content }}", false), ("{{ m.content | trim }}", true)] {
        let source = format!("{{% for m in messages %}}<|im_start|>{{{{ m.role }}}}\n{text}<|im_end|>\n{{% endfor %}}");
        let template = Arc::new(ChatTemplate::new(&source, "", "").unwrap());
        let server = Server::start(SimulatedModel { chat_template: Some(template), ..coder() }).await;
        let begin = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n";
        for content in ["<", "|", "im_end", "Yes, ", "user\n"] {
            let content = content.to_owned();
            let expected = if trims { content.trim() } else { &content };
            assert_eq!(server.ok(APPLY, &chat(&content)).await["prompt"], format!("{begin}{expected}"));
        }
        assert_eq!(error(&server.post(APPLY, &chat(" ")).await, 400).1, "continue_final_message");
    }
    let template = Arc::new(ChatTemplate::new("{{ messages[1].content | upper }}", "", "").unwrap());
    let server = Server::start(SimulatedModel { chat_template: Some(template), ..coder() }).await;
    assert_eq!(error(&server.post(APPLY, &chat("hi")).await, 400).1, "continue_final_message");
}

#[tokio::test]
async fn what_cannot_be_rendered_is_refused() {
    let server = Server::start(coder()).await;
    let without = Server::start(SimulatedModel { chat_template: None, ..coder() }).await;
    for path in [APPLY, RENDER, COUNT] {
        for (server, body, param) in [
            (&server, json!({}), "messages"),
            (&server, json!({ "messages": "hi" }), "messages"),
            (&without, conversation(), "messages"),
        ] {
            let refused = error(&server.post(path, &body).await, 400);
            assert_eq!(refused, ("invalid_value".to_owned(), json!(param)), "{path}: {body}");
        }
        let unknown = with(conversation(), json!({ "model": "none" }));
        let found = error(&without.post(path, &unknown).await, 404);
        assert_eq!(found, ("model_not_found".to_owned(), json!("model")));
    }
}

#[tokio::test]
async fn the_properties_describe_the_model_without_its_path() {
    let server = Server::start(coder()).await;
    let props = server.get("/props").await.json();
    assert_eq!(props["default_generation_settings"]["n_ctx"], 512);
    assert_eq!(props["default_generation_settings"]["params"]["temperature"], 0.8);
    assert_eq!((&props["total_slots"], &props["model_path"]), (&json!(16), &json!(MODEL)));
    assert!(props["chat_template"].as_str().unwrap().contains("messages"), "{props}");
    assert_eq!((&props["eos_token"], &props["bos_token"]), (&json!("<|end|>"), &json!("")));
    assert_eq!(props["modalities"], json!({ "vision": false, "audio": false }));
    assert!(props["build_info"].as_str().unwrap().starts_with("cuelight-"));
    assert_eq!(server.get("/props?model=default").await.json(), props);
    assert_eq!(error(&server.get("/props?model=none").await, 404).0, "model_not_found");
    assert_eq!(error(&server.get("/slots?model=none").await, 404).0, "model_not_found");
    assert_eq!(error(&server.get("/props?model=a&model=b").await, 400).0, "invalid_value");
    assert_eq!(error(&server.post("/props", &json!({})).await, 405).0, "method_not_allowed");
}

#[tokio::test]
async fn a_model_is_not_loaded_to_be_described() {
    let named = NamedModel {
        id: "a".to_owned(),
        aliases: Vec::new(),
        adapters: Vec::new(),
        factory: Arc::new(coder()),
        planned: None,
    };
    let models = Models::start(ModelsOptions::default(), vec![named], None).await.unwrap();
    let router = models_router(models, ServerOptions::default()).unwrap();
    for path in ["/props", "/slots", "/props?model=a"] {
        let request = Request::get(path).body(Body::empty()).unwrap();
        assert_eq!(router.clone().oneshot(request).await.unwrap().status(), 503, "{path}");
    }
}

fn processing(slots: &Value) -> usize {
    slots.as_array().unwrap().iter().filter(|slot| slot["is_processing"] == true).count()
}

#[tokio::test]
async fn slots_are_as_many_as_sequences_may_run() {
    let limits = EngineLimits { max_sequences: 2, ..coder().limits };
    let server = Server::start(SimulatedModel { limits, step_time: Duration::from_millis(20), ..coder() }).await;
    let slots = server.get("/slots?fail_on_no_slot=1").await.json();
    assert_eq!((slots.as_array().unwrap().len(), processing(&slots)), (2, 0));
    assert_eq!((&slots[1]["id"], &slots[1]["n_ctx"]), (&json!(1), &json!(512)));
    let endless = json!({ "prompt": "a", "max_tokens": 500, "n": 2, "stream": true });
    let held = server.begin(post(COMPLETIONS, &endless)).await;
    assert_eq!(held.status(), 200);
    while processing(&server.get("/slots").await.json()) < 2 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(error(&server.get("/slots?fail_on_no_slot=1").await, 503).0, "unavailable");
    drop(held);
    server.settle().await;
    assert_eq!(processing(&server.get("/slots?fail_on_no_slot=1").await.json()), 0);
}

#[tokio::test]
async fn every_route_takes_a_slot_and_needs_a_key() {
    let runtime = RuntimeOptions { max_requests: 1, ..RuntimeOptions::default() };
    let slow = SimulatedModel { step_time: Duration::from_millis(50), ..coder() };
    let server = Server::start_with(slow, runtime, ServerOptions::new(MODEL)).await;
    let held = server.begin(post(COMPLETIONS, &json!({ "prompt": "a", "max_tokens": 500, "stream": true }))).await;
    assert_eq!(held.status(), 200);
    for (path, body) in [
        (INFILL, gap(json!({}))),
        (COMPLETION, json!({ "prompt": "a" })),
        (APPLY, conversation()),
        (RENDER, conversation()),
    ] {
        assert_eq!(server.post(path, &body).await.status, 429, "{path}");
    }
    drop(held);

    let options = ServerOptions { api_keys: vec!["one".into()], ..ServerOptions::new(MODEL) };
    let server = Server::start_with(coder(), RuntimeOptions::default(), options).await;
    for path in ["/props", "/slots"] {
        assert_eq!(server.get(path).await.status, 401, "{path}");
    }
    for path in [INFILL, COMPLETION, APPLY, RENDER] {
        assert_eq!(server.post(path, &json!({})).await.status, 401, "{path}");
    }
}
