//! Ollama's protocol over simulated models.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{Method, Request};
use cuelight::api::{ServerOptions, models_router};
use cuelight::models::{KeepAlive, Machine, ModelState, Models, ModelsDirectory, ModelsOptions, NamedModel};
use cuelight::pipeline::runtime::RuntimeOptions;
use cuelight::pipeline::simulation::{Fault, SimulatedModel};
use cuelight_engine::format::chat_template::ChatTemplate;
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tower::ServiceExt;

use common::{Answer, MODEL, Server, model, post};

const CHAT: &str = "/api/chat";
const GENERATE: &str = "/api/generate";

/// A template with reasoning, and with tool calls in the form of LFM2.
const TALENTED: &str = "{% if tools %}<tools>{% for tool in tools %}{{ tool | tojson }}{% endfor %}</tools>\
     Call with <|tool_call_start|>{% endif %}\
     {% for m in messages %}{{ m.role }}:{{ m.reasoning_content }}{{ m.content }}{% for call in m.tool_calls or [] %}\
     {{ call.id }}{{ call.function.name }}{{ call.function.arguments | tojson }}{% endfor %}\
     {{ m.name }}{{ m.tool_call_id }}\n{% endfor %}\
     {% if add_generation_prompt %}assistant:{% if enable_thinking %}<think>{% else %}<think></think>{% endif %}{% endif %}";

fn tireless() -> SimulatedModel {
    SimulatedModel { end_one_in: u64::MAX, ..model() }
}

/// A model that reasons and calls tools.
fn talented() -> SimulatedModel {
    let template = ChatTemplate::new(TALENTED, "", "").unwrap();
    SimulatedModel { chat_template: Some(Arc::new(template)), ..tireless() }
}

fn with(mut body: Value, more: Value) -> Value {
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// A chat of eight tokens.
fn chat(more: Value) -> Value {
    let messages = json!([{ "role": "user", "content": "hi" }]);
    let options = json!({ "num_predict": 8, "temperature": 0 });
    with(json!({ "model": MODEL, "messages": messages, "options": options }), more)
}

/// A prompt with an answer of eight tokens.
fn prompt(more: Value) -> Value {
    let options = json!({ "num_predict": 8, "temperature": 0 });
    with(json!({ "model": MODEL, "prompt": "hi", "options": options }), more)
}

/// The lines of a stream.
fn lines(answer: &Answer) -> Vec<Value> {
    assert_eq!(
        (answer.status.as_u16(), &answer.headers["content-type"]),
        (200, &"application/x-ndjson".parse().unwrap())
    );
    let text = answer.text();
    assert!(text.ends_with('\n'), "{text}");
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

async fn stream(server: &Server, path: &str, body: &Value) -> Vec<Value> {
    lines(&server.post(path, body).await)
}

/// The message of an answer that must be an error in Ollama's form.
fn error(answer: &Answer, status: u16) -> String {
    assert_eq!(answer.status, status, "{}", answer.text());
    let body = answer.json();
    assert_eq!(body.as_object().unwrap().len(), 1, "{body}");
    body["error"].as_str().unwrap().to_owned()
}

/// Checks the fields of a last object, and returns its `done_reason`.
fn finished(object: &Value, tokens: u64) -> String {
    assert_eq!((&object["done"], &object["eval_count"]), (&json!(true), &json!(tokens)), "{object}");
    assert!(object["prompt_eval_count"].as_u64().unwrap() > 0);
    for name in ["total_duration", "load_duration", "prompt_eval_duration", "eval_duration"] {
        assert!(object[name].is_u64(), "{name}: {object}");
    }
    assert!(object["total_duration"].as_u64() >= object["load_duration"].as_u64());
    object["done_reason"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_chat_streams_unless_it_is_told_not_to() {
    let server = Server::start(tireless()).await;
    let whole = server.ok(CHAT, &chat(json!({ "stream": false }))).await;
    assert_eq!(finished(&whole, 8), "length");
    assert_eq!((&whole["model"], &whole["message"]["role"]), (&json!(MODEL), &json!("assistant")));
    let expected = whole["message"]["content"].as_str().unwrap();
    assert_eq!(expected.len(), 8);

    let objects = stream(&server, CHAT, &chat(json!({}))).await;
    let (last, chunks) = objects.split_last().unwrap();
    assert_eq!(finished(last, 8), "length");
    assert_eq!(last["message"], json!({ "role": "assistant", "content": "" }));
    let mut said = String::new();
    for chunk in chunks {
        assert_eq!((&chunk["done"], &chunk["model"]), (&json!(false), &json!(MODEL)));
        assert!(chunk.get("done_reason").is_none() && chunk.get("eval_count").is_none());
        assert!(chunk["created_at"].as_str().unwrap().ends_with('Z'));
        said.push_str(chunk["message"]["content"].as_str().unwrap());
    }
    assert_eq!(said, expected);
    assert!(chunks.len() > 1);
}

#[tokio::test]
async fn generate_answers_a_prompt_as_a_message_of_a_user() {
    let server = Server::start(tireless()).await;
    let whole = server.ok(GENERATE, &prompt(json!({ "stream": false, "context": [1, 2] }))).await;
    assert_eq!(finished(&whole, 8), "length");
    let as_chat = server.ok(CHAT, &chat(json!({ "stream": false }))).await;
    assert_eq!(whole["response"], as_chat["message"]["content"]);
    assert_eq!(whole["prompt_eval_count"], as_chat["prompt_eval_count"]);

    let objects = stream(&server, GENERATE, &prompt(json!({}))).await;
    let said: String = objects.iter().map(|object| object["response"].as_str().unwrap()).collect();
    assert_eq!(json!(said), whole["response"]);
    assert_eq!(finished(objects.last().unwrap(), 8), "length");

    let system = server.ok(GENERATE, &prompt(json!({ "stream": false, "system": "be brief" }))).await;
    let count = |answer: &Value| answer["prompt_eval_count"].as_u64().unwrap();
    assert_eq!(count(&system), count(&whole) + "system:be brief\n".len() as u64);
    let raw = server.ok(GENERATE, &prompt(json!({ "stream": false, "raw": true }))).await;
    assert_eq!(count(&raw), 2);
}

#[tokio::test]
async fn a_model_without_a_template_continues_the_prompt() {
    let server = Server::start(SimulatedModel { chat_template: None, ..tireless() }).await;
    let whole = server.ok(GENERATE, &prompt(json!({ "stream": false }))).await;
    assert_eq!((&whole["prompt_eval_count"], &whole["eval_count"]), (&json!(2), &json!(8)));
    let with_system = server.post(GENERATE, &prompt(json!({ "system": "be brief" }))).await;
    assert!(error(&with_system, 400).contains("no chat template"));
    assert!(error(&server.post(CHAT, &chat(json!({}))).await, 400).contains("no chat template"));
}

#[tokio::test]
async fn the_end_of_an_answer_has_its_reason() {
    let server = Server::start(SimulatedModel { end_one_in: 1, ..model() }).await;
    let ended = server.ok(CHAT, &chat(json!({ "stream": false }))).await;
    assert_eq!((&ended["done_reason"], &ended["message"]["content"]), (&json!("stop"), &json!("")));

    let server = Server::start(tireless()).await;
    let options = |more: Value| with(json!({ "num_predict": 24, "temperature": 0 }), more);
    let whole = server.ok(CHAT, &chat(json!({ "stream": false, "options": options(json!({})) }))).await;
    let text = whole["message"]["content"].as_str().unwrap();
    let stop = &text[4..9];
    let more = json!({ "stream": false, "options": options(json!({ "stop": [stop] })) });
    let stopped = server.ok(CHAT, &chat(more)).await;
    assert_eq!(stopped["message"]["content"], text[..text.find(stop).unwrap()]);
    assert_eq!(stopped["done_reason"], "stop");
}

#[tokio::test]
async fn without_a_limit_an_answer_may_fill_the_context() {
    let server = Server::start(tireless()).await;
    let options = json!({ "num_predict": -1, "num_ctx": 1_000_000 });
    let whole = server.ok(CHAT, &chat(json!({ "stream": false, "options": options }))).await;
    let counts = ["prompt_eval_count", "eval_count"].map(|name| whole[name].as_u64().unwrap());
    assert_eq!((counts[0] + counts[1], &whole["done_reason"]), (512, &json!("length")));
}

#[tokio::test]
async fn the_options_decide_how_tokens_are_sampled() {
    let server = Server::start(tireless()).await;
    let answer = async |options: Value| {
        let options = with(json!({ "num_predict": 16 }), options);
        let answer = server.ok(CHAT, &chat(json!({ "stream": false, "options": options }))).await;
        answer["message"]["content"].as_str().unwrap().to_owned()
    };
    let greedy = answer(json!({ "temperature": 0 })).await;
    assert_eq!(answer(json!({ "top_k": 1 })).await, greedy);
    assert_eq!(answer(json!({ "top_p": 0 })).await, greedy);
    let hot = |seed: i64| json!({ "temperature": 1.5, "top_k": 0, "top_p": 1, "seed": seed });
    assert_eq!(answer(hot(7)).await, answer(hot(7)).await);
    assert_ne!(answer(hot(7)).await, answer(hot(8)).await);
}

#[tokio::test]
async fn logprobs_come_with_their_token() {
    let server = Server::start(tireless()).await;
    let more = |stream: bool| json!({ "logprobs": true, "top_logprobs": 2, "stream": stream });
    let whole = server.ok(CHAT, &chat(more(false))).await;
    let positions = whole["logprobs"].as_array().unwrap();
    assert_eq!(positions.len(), 8);
    for position in positions {
        assert!(position["logprob"].as_f64().unwrap() <= 0.0 && position["bytes"].is_array());
        assert_eq!(position["top_logprobs"][0]["token"], position["token"]);
    }
    let objects = stream(&server, CHAT, &chat(more(true))).await;
    let streamed: Vec<&Value> = objects.iter().filter_map(|object| object["logprobs"].as_array()).flatten().collect();
    assert_eq!(streamed, positions.iter().collect::<Vec<_>>());
}

#[tokio::test]
async fn a_format_is_matched() {
    let server = Server::start(tireless()).await;
    let schema = json!({
        "type": "object",
        "properties": { "name": { "const": "cue" }, "old": { "const": true } },
        "required": ["name", "old"],
        "additionalProperties": false,
    });
    let options = json!({ "num_predict": 400, "seed": 1 });
    for (path, body) in [(CHAT, chat(json!({}))), (GENERATE, prompt(json!({})))] {
        let body = with(body, json!({ "format": schema, "options": options }));
        let objects = stream(&server, path, &body).await;
        let text =
            |object: &Value| object["response"].as_str().or(object["message"]["content"].as_str()).unwrap().to_owned();
        let said: String = objects.iter().map(text).collect();
        let said: Value = serde_json::from_str(&said).unwrap();
        assert_eq!(said, json!({ "name": "cue", "old": true }), "{path}");
        assert_eq!(objects.last().unwrap()["done_reason"], "stop");
    }
    let object = server.ok(CHAT, &chat(json!({ "format": "json", "stream": false }))).await;
    assert!(object["message"]["content"].as_str().unwrap().starts_with('{'), "{object}");
    let refused = server.post(CHAT, &chat(json!({ "format": { "type": "strange" } }))).await;
    assert!(error(&refused, 400).contains("`format`"));
}

#[tokio::test]
async fn reasoning_is_separate_from_the_answer() {
    let server = Server::start(talented()).await;
    for think in [json!(true), json!("low")] {
        let whole = server.ok(CHAT, &chat(json!({ "think": think, "stream": false }))).await;
        assert_eq!(whole["message"]["content"], "", "{whole}");
        let thinking = whole["message"]["thinking"].as_str().unwrap();
        assert_eq!(thinking.len(), 8);
        let objects = stream(&server, CHAT, &chat(json!({ "think": think }))).await;
        let streamed: String = objects.iter().filter_map(|object| object["message"]["thinking"].as_str()).collect();
        assert_eq!(streamed, thinking);
        let generated = server.ok(GENERATE, &prompt(json!({ "think": think, "stream": false }))).await;
        assert_eq!((&generated["thinking"], &generated["response"]), (&json!(thinking), &json!("")));
    }
    for more in [json!({ "think": false }), json!({})] {
        let whole = server.ok(CHAT, &chat(with(more, json!({ "stream": false })))).await;
        assert!(whole["message"].get("thinking").is_none(), "{whole}");
        assert_eq!(whole["message"]["content"].as_str().unwrap().len(), 8);
    }
}

#[tokio::test]
async fn a_model_that_does_not_reason_refuses_to() {
    let server = Server::start(model()).await;
    let refused = server.post(CHAT, &chat(json!({ "think": true }))).await;
    assert!(error(&refused, 400).starts_with("\"test/simulated\" does not support thinking"));
    assert!(error(&server.post(GENERATE, &prompt(json!({ "think": "high" }))).await, 400).contains("thinking"));
    assert!(error(&server.post(CHAT, &chat(json!({ "think": "much" }))).await, 400).contains("`think`"));
    server.ok(CHAT, &chat(json!({ "think": false, "stream": false }))).await;
}

fn tool(name: &str, city: &str) -> Value {
    let parameters = json!({
        "type": "object",
        "properties": { "city": { "const": city } },
        "required": ["city"],
        "additionalProperties": false,
    });
    json!({ "type": "function", "function": { "name": name, "description": "d", "parameters": parameters } })
}

/// A chat whose answer must be a call, which Ollama's own clients cannot demand.
fn calling(more: Value) -> Value {
    let required = json!({ "tool_choice": "required", "parallel_tool_calls": false });
    chat(with(with(json!({ "tools": [tool("weather", "Paris")], "think": false }), required), more))
}

#[tokio::test]
async fn tool_calls_are_whole_and_have_arguments_as_an_object() {
    let server = Server::start(talented()).await;
    let more = |stream: bool| json!({ "options": { "num_predict": 300 }, "stream": stream });
    let whole = server.ok(CHAT, &calling(more(false))).await;
    let call = &whole["message"]["tool_calls"][0];
    let function = json!({ "index": 0, "name": "weather", "arguments": { "city": "Paris" } });
    assert_eq!(call["function"], function, "{whole}");
    assert!(!call["id"].as_str().unwrap().is_empty());
    assert_eq!((&whole["message"]["content"], &whole["done_reason"]), (&json!(""), &json!("stop")));

    let objects = stream(&server, CHAT, &calling(more(true))).await;
    let calls: Vec<&Value> =
        objects.iter().filter_map(|object| object["message"]["tool_calls"].as_array()).flatten().collect();
    assert_eq!(calls.len(), 1, "{objects:?}");
    assert_eq!(calls[0]["function"], function);
    assert!(!objects.last().unwrap()["message"].as_object().unwrap().contains_key("tool_calls"));
}

#[tokio::test]
async fn a_call_that_was_cut_off_is_left_out() {
    let server = Server::start(talented()).await;
    for stream in [true, false] {
        let answer = server.post(CHAT, &calling(json!({ "options": { "num_predict": 45 }, "stream": stream }))).await;
        let objects: Vec<Value> = answer.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert!(objects.iter().all(|object| object["message"].get("tool_calls").is_none()), "{objects:?}");
        assert_eq!(objects.last().unwrap()["done_reason"], "length");
    }
}

#[tokio::test]
async fn a_history_with_reasoning_calls_and_results_reaches_the_template() {
    let server = Server::start(talented()).await;
    let call = json!({ "function": { "name": "weather", "arguments": { "city": "Paris" } } });
    let history = json!([
        { "role": "user", "content": "weather?" },
        { "role": "assistant", "content": "", "thinking": "hm", "tool_calls": [call] },
        { "role": "tool", "tool_name": "weather", "content": "sunny" },
    ]);
    let body = chat(json!({ "messages": history, "stream": false }));
    let whole = server.ok(CHAT, &body).await;
    let rendered = "user:weather?\nassistant:hmcall00001weather{\"city\": \"Paris\"}\ntool:sunnyweathercall00001\n\
                    assistant:<think></think>";
    assert_eq!(whole["prompt_eval_count"], rendered.len());
}

#[tokio::test]
async fn the_models_are_listed_and_shown() {
    let server = Server::start(talented()).await;
    assert_eq!(server.get("/api/version").await.json(), json!({ "version": "0.13.0" }));
    let tags = server.get("/api/tags").await.json();
    let listed = &tags["models"][0];
    assert_eq!((&listed["name"], &listed["model"]), (&json!(MODEL), &json!(MODEL)));
    assert_eq!(listed["digest"].as_str().unwrap().len(), 64);
    assert!(listed["size"].is_u64() && listed["modified_at"].as_str().unwrap().ends_with('Z'));
    assert_eq!(listed["details"]["family"], "simulated");
    let all = json!(["completion", "tools", "thinking"]);
    assert_eq!(listed["capabilities"], all);

    for body in [json!({ "model": MODEL }), json!({ "name": MODEL }), json!({ "model": format!("{MODEL}:latest") })] {
        let shown = server.ok("/api/show", &body).await;
        assert_eq!(shown["capabilities"], all, "{body}");
        assert_eq!(shown["details"]["format"], "gguf");
        let info = &shown["model_info"];
        assert_eq!(
            (&info["general.architecture"], &info["general.basename"]),
            (&json!("simulated"), &json!("simulated"))
        );
        assert_eq!((&info["simulated.context_length"], &shown["template"]), (&json!(512), &json!(TALENTED)));
    }
    let plain = Server::start(model()).await;
    assert_eq!(plain.ok("/api/show", &json!({ "model": MODEL })).await["capabilities"], json!(["completion"]));

    let ps = server.get("/api/ps").await.json();
    let loaded = &ps["models"][0];
    assert_eq!(
        (&loaded["name"], &loaded["size_vram"], &loaded["context_length"]),
        (&json!(MODEL), &json!(0), &json!(512))
    );
    assert!(loaded["expires_at"].as_str().unwrap() > "2200", "{loaded}");
}

#[tokio::test]
async fn a_name_may_end_with_latest_and_is_repeated() {
    let server = Server::start(tireless()).await;
    let name = format!("{MODEL}:latest");
    let whole = server.ok(CHAT, &chat(json!({ "model": name, "stream": false }))).await;
    assert_eq!(whole["model"], name);
    let unknown = ["nothing", "nothing:latest"];
    for name in unknown {
        let expected = format!("model '{name}' not found");
        assert_eq!(error(&server.post(CHAT, &chat(json!({ "model": name }))).await, 404), expected);
        assert_eq!(error(&server.post("/api/show", &json!({ "model": name })).await, 404), expected);
    }
    assert!(error(&server.post(CHAT, &json!({ "messages": [] })).await, 400).contains("`model`"));
}

#[tokio::test]
async fn what_cannot_be_done_is_refused() {
    let server = Server::start(model()).await;
    let image = json!([{ "role": "user", "content": "a", "images": ["aGk="] }]);
    for (path, body, word) in [
        (CHAT, chat(json!({ "messages": image })), "messages[0].images"),
        (CHAT, chat(json!({ "tools": [tool("f", "a")] })), "tools"),
        (CHAT, chat(json!({ "options": { "temperature": "hot" } })), "options.temperature"),
        (CHAT, chat(json!({ "keep_alive": "soon" })), "keep_alive"),
        (GENERATE, prompt(json!({ "images": ["aGk="] })), "images"),
        (GENERATE, prompt(json!({ "suffix": "}" })), "suffix"),
        (GENERATE, prompt(json!({ "template": "{{ .Prompt }}" })), "template"),
        ("/api/create", json!({ "model": "a", "from": "b" }), "create"),
        ("/api/copy", json!({ "source": "a", "destination": "b" }), "copy"),
        ("/api/push", json!({ "model": "a" }), "push"),
        ("/api/blobs/sha256:00", json!({}), "create"),
    ] {
        let message = error(&server.post(path, &body).await, 400);
        assert!(message.contains(word), "{path}: {message}");
    }
    for model in ["other", "org/repo:Q4_K_M"] {
        let message = error(&server.post("/api/pull", &json!({ "model": model })).await, 403);
        assert!(message.contains("--allow-pull"), "{message}");
    }
    let delete = Request::delete("/api/delete").header("content-type", "application/json");
    let delete = delete.body(Body::from(json!({ "model": MODEL }).to_string())).unwrap();
    assert!(error(&server.call(delete).await, 403).contains("--allow-pull"));
}

#[tokio::test]
async fn a_model_that_is_here_was_pulled() {
    let server = Server::start(model()).await;
    let objects = stream(&server, "/api/pull", &json!({ "model": MODEL })).await;
    assert_eq!(objects.last(), Some(&json!({ "status": "success" })));
    let whole = server.ok("/api/pull", &json!({ "name": MODEL, "stream": false })).await;
    assert_eq!(whole, json!({ "status": "success" }));
}

#[tokio::test]
async fn errors_of_every_layer_have_ollamas_form() {
    let options = ServerOptions { api_keys: vec!["key".into()], max_body_bytes: 1000, ..ServerOptions::new(MODEL) };
    let server = Server::start_with(model(), RuntimeOptions::default(), options).await;
    assert!(error(&server.get("/api/tags").await, 401).contains("API key"));
    let keyed = |method: Method, path: &str, body: String| {
        let request = Request::builder().method(method).uri(path).header("authorization", "Bearer key");
        request.header("content-type", "application/json").body(Body::from(body)).unwrap()
    };
    for (method, path, body, status) in [
        (Method::POST, CHAT, "{".to_owned(), 400),
        (Method::POST, CHAT, "[]".to_owned(), 400),
        (Method::POST, CHAT, String::new(), 400),
        (Method::POST, CHAT, " ".repeat(2000), 413),
        (Method::GET, CHAT, String::new(), 405),
        (Method::GET, "/api/nothing", String::new(), 404),
    ] {
        error(&server.call(keyed(method, path, body)).await, status);
    }
    let foreign = Request::get("/api/tags").header("host", "a").header("origin", "https://evil.example");
    error(&server.call(foreign.body(Body::empty()).unwrap()).await, 403);
    let untyped =
        Request::post(CHAT).header("authorization", "Bearer key").header("host", "a").header("origin", "http://a");
    let untyped = untyped.body(Body::from("{}")).unwrap();
    assert!(error(&server.call(untyped).await, 415).contains("application/json"));
    // Other protocols keep their own form.
    assert!(server.get("/v1/models").await.json()["error"]["message"].is_string());
}

#[tokio::test]
async fn an_error_during_a_stream_is_its_last_line() {
    let broken = SimulatedModel { faults: Some(Arc::new(|_, _| Some(Fault::InvalidStep))), ..tireless() };
    let server = Server::start(broken).await;
    let objects = stream(&server, CHAT, &chat(json!({}))).await;
    let (last, before) = objects.split_last().unwrap();
    assert!(last["error"].as_str().unwrap().contains("engine"), "{last}");
    assert!(before.iter().all(|object| object.get("error").is_none()));
}

#[tokio::test]
async fn closing_the_connection_ends_the_request() {
    let slow = SimulatedModel { step_time: Duration::from_millis(1), ..tireless() };
    let server = Server::start(slow).await;
    let body = chat(json!({ "options": { "num_predict": -1 } }));
    let mut response = server.begin(post(CHAT, &body)).await;
    assert!(response.body_mut().frame().await.is_some());
    drop(response);
    server.settle().await;
}

#[tokio::test]
async fn the_root_answers_clients_of_ollama() {
    let server = Server::start(model()).await;
    assert_eq!(server.get("/").await.text(), "Ollama is running");
    let head = server.call(Request::head("/").body(Body::empty()).unwrap()).await;
    assert_eq!((head.status.as_u16(), head.body.len()), (200, 0));
}

/// Models that are loaded and unloaded.
struct Loaded {
    models: Models,
    server: axum::Router,
}

impl Loaded {
    async fn start(named: &[&str], keep_alive: Option<KeepAlive>) -> Self {
        let named = named.iter().map(|id| NamedModel {
            id: (*id).to_owned(),
            aliases: Vec::new(),
            adapters: Vec::new(),
            factory: Arc::new(tireless()),
            planned: None,
        });
        let machine = || Machine { available_bytes: None, occupied_bytes: 0 };
        let options = ModelsOptions { machine, keep_alive, ..ModelsOptions::default() };
        let models = Models::start(options, named.collect(), None).await.unwrap();
        Self::over(models)
    }

    fn over(models: Models) -> Self {
        let server = models_router(models.clone(), ServerOptions::default()).unwrap();
        Loaded { models, server }
    }

    async fn post(&self, path: &str, body: &Value) -> Value {
        let (parts, body) = self.server.clone().oneshot(post(path, body)).await.unwrap().into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        assert_eq!(parts.status, 200, "{body:?}");
        serde_json::from_slice(&body).unwrap()
    }

    async fn state(&self, id: &str) -> ModelState {
        self.models.show(id).await.unwrap().state
    }

    /// Waits until a model is unloaded.
    async fn unloaded(&self, id: &str) {
        while self.state(id).await != ModelState::Unloaded {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

#[tokio::test]
async fn a_request_without_a_prompt_loads_or_unloads() {
    let loaded = Loaded::start(&["a"], None).await;
    loaded.models.load("a").await.unwrap();
    for (path, field) in [(CHAT, "message"), (GENERATE, "response")] {
        let unloaded = loaded.post(path, &json!({ "model": "a", "keep_alive": 0 })).await;
        assert_eq!((&unloaded["done"], &unloaded["done_reason"]), (&json!(true), &json!("unload")));
        assert_eq!(loaded.state("a").await, ModelState::Unloaded);
        let answer = loaded.post(path, &json!({ "model": "a", "messages": [], "prompt": "" })).await;
        assert_eq!((&answer["done_reason"], &answer["model"]), (&json!("load"), &json!("a")));
        assert!(answer[field].is_object() || answer[field] == "");
        assert_eq!(loaded.state("a").await, ModelState::Ready);
    }
}

#[tokio::test(start_paused = true)]
async fn keep_alive_decides_how_long_a_model_stays() {
    let minute = Duration::from_secs(60);
    let loaded = Loaded::start(&["a"], Some(KeepAlive::For(minute))).await;
    loaded.models.load("a").await.unwrap();
    let answer = async |keep_alive: Value| {
        let body = json!({ "model": "a", "prompt": "hi", "stream": false, "options": { "num_predict": 2 } });
        loaded.post(GENERATE, &with(body, json!({ "keep_alive": keep_alive }))).await
    };
    let left = async || loaded.models.show("a").await.unwrap().unloads_in;
    answer(json!("10m")).await;
    assert!(left().await.unwrap() > 9 * minute);
    tokio::time::sleep(5 * minute).await;
    assert_eq!(loaded.state("a").await, ModelState::Ready);
    // Shorter than the timer that runs already.
    answer(json!(30)).await;
    tokio::time::sleep(Duration::from_secs(31)).await;
    loaded.unloaded("a").await;

    answer(json!(-1)).await;
    assert_eq!(left().await, None);
    tokio::time::sleep(1000 * minute).await;
    assert_eq!(loaded.state("a").await, ModelState::Ready);
    answer(json!(0)).await;
    loaded.unloaded("a").await;

    // After a load the server's own time counts again.
    loaded.models.load("a").await.unwrap();
    assert!(left().await.unwrap() <= minute);
}

#[tokio::test(start_paused = true)]
async fn a_model_that_the_operator_keeps_stays() {
    let loaded = Loaded::start(&["a"], None).await;
    loaded.models.load("a").await.unwrap();
    let body =
        json!({ "model": "a", "prompt": "hi", "stream": false, "keep_alive": "1s", "options": { "num_predict": 2 } });
    loaded.post(GENERATE, &body).await;
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(loaded.state("a").await, ModelState::Ready);
}

#[tokio::test]
async fn a_model_that_is_not_loaded_is_listed_and_described_without_loading_it() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("found.gguf"), b"").unwrap();
    let directory = ModelsDirectory::open(folder.path(), |_| Arc::new(tireless())).unwrap();
    let machine = || Machine { available_bytes: None, occupied_bytes: 0 };
    let options = ModelsOptions { machine, ..ModelsOptions::default() };
    let loaded = Loaded::over(Models::start(options, Vec::new(), Some(directory)).await.unwrap());
    let get = async |path: &str| {
        let response = loaded.server.clone().oneshot(Request::get(path).body(Body::empty()).unwrap()).await.unwrap();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        serde_json::from_slice::<Value>(&body).unwrap()
    };
    assert_eq!(get("/api/tags").await["models"][0]["name"], "found");
    assert_eq!(get("/api/ps").await["models"], json!([]));
    let shown = loaded.post("/api/show", &json!({ "model": "found" })).await;
    assert_eq!((&shown["capabilities"], &shown["model_info"]), (&json!(["completion"]), &json!({})));
    assert_eq!(loaded.state("found").await, ModelState::Unloaded);
    // A request loads it.
    loaded.post(GENERATE, &json!({ "model": "found:latest", "keep_alive": "1h" })).await;
    assert_eq!(get("/api/ps").await["models"][0]["name"], "found");
    assert_eq!(loaded.state("found").await, ModelState::Ready);
}
