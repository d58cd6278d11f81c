//! Tools over the API: which calls an answer has, whole and in a stream, and which tools it may call.

#![allow(clippy::unwrap_used)]

mod common;

#[path = "support/tool_template.rs"]
mod tool_template;

use tool_template::TOOL_TEMPLATE;

use std::sync::Arc;

use cuelight::pipeline::simulation::SimulatedModel;
use cuelight_engine::engine::EngineLimits;
use cuelight_engine::format::chat_template::ChatTemplate;
use serde_json::{Value, json};

use common::{Server, model};

const CHAT: &str = "/v1/chat/completions";

/// A model that calls tools only because it has to.
fn caller() -> SimulatedModel {
    let template = Arc::new(ChatTemplate::new(TOOL_TEMPLATE, "", "").unwrap());
    let model = model();
    let limits = EngineLimits { context_tokens: 1024, ..model.limits.clone() };
    SimulatedModel { chat_template: Some(template), end_one_in: u64::MAX, limits, ..model }
}

/// Tools and calls as Qwen3-Coder and Gemma 4 write them, as far as the format is known by it.
const TAGGED: &str = "<tool_call>\n<function={{ call.function.name }}>\n<parameter=";
const QUOTED: &str = "<|tool_call>call:{{ call.function.name }}";

/// The same model with a template for another format of calls.
fn caller_of(calls: &str) -> SimulatedModel {
    let source = format!(
        "{{% for tool in tools or [] %}}{{{{ tool | tojson }}}}{{% endfor %}}{{% for message in messages %}}{{{{ message.content }}}}\
         {{% for call in message.tool_calls or [] %}}{calls}{{% endfor %}}{{% endfor %}}"
    );
    SimulatedModel { chat_template: Some(Arc::new(ChatTemplate::new(&source, "", "").unwrap())), ..caller() }
}

fn tools() -> Value {
    let tool = |name: &str, parameters: Value| json!({ "type": "function", "function": { "name": name, "description": "", "parameters": parameters } });
    let city = json!({ "type": "string", "enum": ["Oslo", "Rome"] });
    let weather = json!({
        "$defs": { "city": city },
        "type": "object",
        "properties": { "city": { "$ref": "#/$defs/city" } },
        "required": ["city"],
        "additionalProperties": false,
    });
    let clock = json!({ "type": "object", "properties": { "utc": { "type": "boolean" } }, "required": ["utc"], "additionalProperties": false });
    json!([tool("weather", weather), tool("clock", clock)])
}

fn body(seed: u64, more: Value) -> Value {
    let mut body = json!({
        "messages": [{ "role": "user", "content": "now" }],
        "tools": tools(),
        "tool_choice": "required",
        "parallel_tool_calls": false,
        "seed": seed,
        "max_tokens": 150,
    });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// The names and parsed arguments of the calls of a whole answer.
fn calls(message: &Value) -> Vec<(String, Value)> {
    let call = |call: &Value| {
        assert_eq!(call["type"], "function");
        assert!(call["id"].as_str().unwrap().len() > 8, "{call}");
        let arguments = call["function"]["arguments"].as_str().unwrap();
        (call["function"]["name"].as_str().unwrap().to_owned(), serde_json::from_str(arguments).unwrap())
    };
    message["tool_calls"].as_array().map(|calls| calls.iter().map(call).collect()).unwrap_or_default()
}

fn is_valid((name, arguments): &(String, Value)) -> bool {
    match name.as_str() {
        "weather" => arguments["city"] == "Oslo" || arguments["city"] == "Rome",
        "clock" => arguments["utc"].is_boolean(),
        _ => false,
    }
}

/// What the chunks of a stream join to, in the form of a whole message.
fn joined(chunks: &[Value]) -> Value {
    let mut calls: Vec<Value> = Vec::new();
    for delta in chunks.iter().filter_map(|chunk| chunk["choices"].get(0)?.get("delta")) {
        for part in delta["tool_calls"].as_array().into_iter().flatten() {
            let index = part["index"].as_u64().unwrap() as usize;
            if index == calls.len() {
                assert!(part["id"].is_string() && part["function"]["name"].is_string(), "{part}");
                assert_eq!(part["function"]["arguments"], "");
                calls.push(part.clone());
            } else {
                assert!(part.get("id").is_none() && part["function"].get("name").is_none(), "{part}");
                let more = part["function"]["arguments"].as_str().unwrap();
                let arguments = calls[index]["function"]["arguments"].as_str().unwrap().to_owned() + more;
                calls[index]["function"]["arguments"] = json!(arguments);
            }
        }
    }
    json!({ "tool_calls": calls })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_required_call_matches_its_schema_whole_and_in_a_stream() {
    let server = Server::start(caller()).await;
    for seed in 0..8 {
        let whole = server.ok(CHAT, &body(seed, json!({}))).await;
        let choice = &whole["choices"][0];
        let found = calls(&choice["message"]);
        assert!(found.len() == 1 && found.iter().all(is_valid), "{choice}");
        assert_eq!((&choice["finish_reason"], &choice["message"]["content"]), (&json!("tool_calls"), &Value::Null));
        let streamed = server.post(CHAT, &body(seed, json!({ "stream": true }))).await.chunks();
        assert_eq!(calls(&joined(&streamed)), found);
        assert_eq!(streamed.last().unwrap()["choices"][0]["finish_reason"], "tool_calls");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_required_call_matches_its_schema_in_notations_other_than_json() {
    for calls in [TAGGED, QUOTED] {
        let server = Server::start(caller_of(calls)).await;
        for seed in 0..8 {
            let answer = server.ok(CHAT, &body(seed, json!({ "max_tokens": 400 }))).await;
            let found = self::calls(&answer["choices"][0]["message"]);
            assert!(found.len() == 1 && found.iter().all(is_valid), "{answer}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_notation_cannot_enforce_is_refused_for_strict_tools_only() {
    let server = Server::start(caller_of(TAGGED)).await;
    for (strict, choice, status) in [(false, "required", 200), (true, "required", 400), (true, "auto", 400)] {
        let mut tools = tools();
        tools[0]["function"]["parameters"]["properties"]["day"] = json!({ "type": "string", "format": "date" });
        tools[0]["function"]["strict"] = json!(strict);
        let answer =
            server.post(CHAT, &body(1, json!({ "tools": tools, "tool_choice": choice, "max_tokens": 300 }))).await;
        assert_eq!(answer.status.as_u16(), status, "{}", answer.text());
        assert!(!strict || answer.text().contains("`weather`, #/properties/day/format"), "{}", answer.text());
    }
}

/// What a client gets of an answer with two calls, whole and in a stream.
#[tokio::test(flavor = "multi_thread")]
async fn a_second_call_is_left_out_unless_calls_may_be_parallel() {
    let server = Server::start(caller()).await;
    let call =
        |utc: bool| format!("<tool_call>\n{{\"name\": \"clock\", \"arguments\": {{\"utc\": {utc}}}}}\n</tool_call>");
    let text = format!("{}\n{}", call(true), call(false));
    for (parallel, expected) in [(true, vec![true, false]), (false, vec![true])] {
        let more = json!({ "tool_choice": "auto", "parallel_tool_calls": parallel, "structured_outputs": { "choice": [text] } });
        let whole = server.ok(CHAT, &body(1, more.clone())).await;
        let mut streamed = body(1, more);
        streamed["stream"] = json!(true);
        let chunks = server.post(CHAT, &streamed).await.chunks();
        for message in [&whole["choices"][0]["message"], &joined(&chunks)] {
            let found: Vec<bool> = calls(message).iter().map(|(_, arguments)| arguments["utc"] == true).collect();
            assert_eq!(found, expected, "{message}");
        }
    }
}

/// A number as Pydantic describes it.
#[tokio::test(flavor = "multi_thread")]
async fn a_pattern_that_cannot_be_enforced_is_refused_for_strict_tools_only() {
    let server = Server::start(caller()).await;
    let decimal = json!({ "type": "string", "pattern": "^(?!^[-+.]*$)[+-]?0*\\d*\\.?\\d*$", "maxLength": 9 });
    for (strict, status) in [(false, 200), (true, 400)] {
        let mut tools = tools();
        tools[0]["function"]["parameters"]["$schema"] = json!("http://json-schema.org/schema#");
        tools[0]["function"]["parameters"]["properties"]["price"] = decimal.clone();
        tools[0]["function"]["strict"] = json!(strict);
        let answer = server.post(CHAT, &body(1, json!({ "tools": tools }))).await;
        assert_eq!(answer.status.as_u16(), status, "{}", answer.text());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn only_chosen_tools_are_called() {
    let server = Server::start(caller()).await;
    let named = json!({ "type": "function", "function": { "name": "clock" } });
    let allowed = json!({ "type": "allowed_tools", "allowed_tools": { "mode": "required", "tools": [named] } });
    for choice in [named, allowed] {
        for seed in 0..4 {
            let answer = server.ok(CHAT, &body(seed, json!({ "tool_choice": choice }))).await;
            let found = calls(&answer["choices"][0]["message"]);
            assert!(found.len() == 1 && found[0].0 == "clock" && is_valid(&found[0]), "{answer}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_that_need_not_call_answers_with_text() {
    let server = Server::start(caller()).await;
    for choice in ["auto", "none"] {
        let answer = server.ok(CHAT, &body(1, json!({ "tool_choice": choice, "max_tokens": 20 }))).await;
        let message = &answer["choices"][0]["message"];
        assert!(message["content"].as_str().unwrap().len() >= 10 && message.get("tool_calls").is_none(), "{message}");
    }
}

/// A model whose text is made of the marker of a call, so that it often begins one.
fn stammerer() -> SimulatedModel {
    let template = Arc::new(ChatTemplate::new(&TOOL_TEMPLATE.replace("tool_call>", "c>"), "", "").unwrap());
    let output_tokens = b"<c>".iter().map(|&byte| u32::from(byte)).collect();
    SimulatedModel { chat_template: Some(template), output_tokens, end_one_in: 40, ..caller() }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_of_a_strict_tool_matches_its_schema_and_text_is_free() {
    let server = Server::start(stammerer()).await;
    let mut tools = tools();
    tools[0]["function"]["strict"] = json!(true);
    let (mut answered, mut called) = (0, 0);
    for seed in 0..24 {
        let more = json!({ "tool_choice": "auto", "tools": tools, "max_tokens": 400 });
        let answer = server.ok(CHAT, &body(seed, more)).await;
        let message = &answer["choices"][0]["message"];
        let found = calls(message);
        assert!(found.len() <= 1 && found.iter().all(is_valid), "{answer}");
        assert!(!message["content"].as_str().unwrap_or_default().contains("<c>"), "{answer}");
        called += found.len();
        answered += usize::from(found.is_empty() && answer["choices"][0]["finish_reason"] == "stop");
    }
    assert!(answered > 0 && called > 0, "{answered} answers, {called} calls");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_with_a_schema_is_a_call_or_matches_it() {
    let server = Server::start(caller()).await;
    let schema = json!({
        "type": "object", "properties": { "n": { "type": "boolean" } }, "required": ["n"], "additionalProperties": false,
    });
    let format = json!({ "type": "json_schema", "json_schema": { "name": "n", "schema": schema } });
    let (mut answered, mut called) = (0, 0);
    for seed in 0..24 {
        let more = json!({ "tool_choice": "auto", "response_format": format });
        let answer = server.ok(CHAT, &body(seed, more)).await;
        let message = &answer["choices"][0]["message"];
        let found = calls(message);
        if found.is_empty() {
            let content: Value = serde_json::from_str(message["content"].as_str().unwrap()).unwrap();
            assert!(content["n"].is_boolean(), "{answer}");
            answered += 1;
        } else {
            assert!(found.len() == 1 && found.iter().all(is_valid), "{answer}");
            called += 1;
        }
        let more = json!({ "tool_choice": "required", "response_format": format });
        let answer = server.ok(CHAT, &body(seed, more)).await;
        assert!(calls(&answer["choices"][0]["message"]).iter().all(is_valid), "{answer}");
        assert_eq!(answer["choices"][0]["finish_reason"], "tool_calls");
    }
    assert!(answered > 0 && called > 0, "{answered} answers, {called} calls");
}

#[tokio::test(flavor = "multi_thread")]
async fn keywords_that_no_grammar_has_are_refused_for_strict_tools_only() {
    let server = Server::start(caller()).await;
    for (strict, status) in [(false, 200), (true, 400)] {
        let mut tools = tools();
        tools[0]["function"]["parameters"]["not"] = json!({ "required": ["utc"] });
        tools[0]["function"]["strict"] = json!(strict);
        let answer = server.post(CHAT, &body(1, json!({ "tools": tools }))).await;
        assert_eq!(answer.status.as_u16(), status, "{}", answer.text());
        match strict {
            true => assert_eq!(answer.json()["error"]["param"], "tool_choice"),
            false => assert!(calls(&answer.json()["choices"][0]["message"]).iter().all(is_valid)),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_and_its_result_may_be_sent_back() {
    let server = Server::start(caller()).await;
    let first = server.ok(CHAT, &body(2, json!({}))).await;
    let message = first["choices"][0]["message"].clone();
    let id = message["tool_calls"][0]["id"].clone();
    let messages = json!([
        { "role": "user", "content": "now" },
        message,
        { "role": "tool", "tool_call_id": id, "content": "12:00" },
    ]);
    server.ok(CHAT, &body(3, json!({ "messages": messages, "tool_choice": "auto", "max_tokens": 5 }))).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_custom_tool_is_called_with_text_whole_and_in_a_stream() {
    let server = Server::start(caller()).await;
    let format = json!({ "type": "grammar", "grammar": { "syntax": "regex", "definition": "[a-c]{2}\n\"d\"" } });
    let tool = json!({ "type": "custom", "custom": { "name": "patch", "description": "edits", "format": format } });
    let named = json!({ "type": "custom", "custom": { "name": "patch" } });
    let more = json!({ "tools": [tool], "tool_choice": named });
    let whole = server.ok(CHAT, &body(1, more.clone())).await;
    let call = &whole["choices"][0]["message"]["tool_calls"][0];
    let input = call["custom"]["input"].as_str().unwrap();
    assert!(input.len() == 6 && input.ends_with("\n\"d\""), "{whole}");
    assert_eq!((&call["type"], &call["custom"]["name"]), (&json!("custom"), &json!("patch")));
    let mut streamed = body(1, more);
    streamed["stream"] = json!(true);
    let chunks = server.post(CHAT, &streamed).await.chunks();
    let parts = chunks.iter().filter_map(|chunk| chunk["choices"].get(0)?["delta"].get("tool_calls")?.get(0));
    let parts: Vec<&Value> = parts.collect();
    assert_eq!((&parts[0]["type"], &parts[0]["custom"]), (&json!("custom"), &json!({ "name": "patch", "input": "" })));
    let joined: String = parts.iter().map(|part| part["custom"]["input"].as_str().unwrap()).collect();
    assert_eq!(joined, input);
    let messages = json!([
        { "role": "user", "content": "now" },
        whole["choices"][0]["message"],
        { "role": "tool", "tool_call_id": call["id"], "content": "done" },
    ]);
    let next = json!({ "messages": messages, "tools": [tool], "tool_choice": "none", "max_tokens": 5 });
    server.ok(CHAT, &body(3, next)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_cannot_be_required_is_a_400() {
    let server = Server::start(caller()).await;
    let unknown = json!({ "type": "function", "function": { "name": "nothing" } });
    for more in [json!({ "tool_choice": unknown }), json!({ "tools": [] }), json!({ "tool_choice": "perhaps" })] {
        let answer = server.post(CHAT, &body(1, more.clone())).await;
        assert_eq!((answer.status.as_u16(), &answer.json()["error"]["param"]), (400, &json!("tool_choice")), "{more}");
    }
    // A template that shows tools but no calls.
    let template = Arc::new(ChatTemplate::new("{{ tools }}{{ messages[0].content }}", "", "").unwrap());
    let server = Server::start(SimulatedModel { chat_template: Some(template), ..model() }).await;
    let answer = server.post(CHAT, &body(1, json!({}))).await;
    assert_eq!((answer.status.as_u16(), &answer.json()["error"]["param"]), (400, &json!("tool_choice")));
}
