//! Every chat template of llama.cpp's collection renders a plain conversation.
//!
//! The collection lies in the folder that `CUELIGHT_TEST_TEMPLATES` names (`tests/fetch_vocabularies.sh` unpacks it); without
//! it the test says so and passes. CI always has it.

use std::fs;
use std::path::Path;

use cuelight_engine::format::chat_template::{ChatTemplate, ChatTemplateError, TemplateInputs};
use serde_json::{Value, json};

fn render(source: &str, messages: &Value) -> Result<String, ChatTemplateError> {
    let inputs =
        TemplateInputs { messages, tools: None, documents: None, add_generation_prompt: true, variables: None };
    ChatTemplate::new(source, "<s>", "</s>")?.render(&inputs)
}

/// A conversation with a system message, and one without for templates that refuse it.
fn conversations() -> [Value; 2] {
    let turns = [
        json!({"role": "user", "content": "What is the capital of France?"}),
        json!({"role": "assistant", "content": "Paris."}),
        json!({"role": "user", "content": "And of Spain?"}),
    ];
    let system = json!({"role": "system", "content": "Answer in one word."});
    [json!([system, turns[0], turns[1], turns[2]]), json!(turns)]
}

#[test]
fn every_template_of_the_collection_renders_a_plain_conversation() {
    let Some(folder) = std::env::var_os("CUELIGHT_TEST_TEMPLATES") else {
        println!("skipped: CUELIGHT_TEST_TEMPLATES names no folder");
        return;
    };
    let mut failures = Vec::new();
    let mut count = 0;
    for entry in fs::read_dir(Path::new(&folder)).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "jinja") {
            continue;
        }
        count += 1;
        let source = fs::read_to_string(&path).unwrap();
        let [with_system, without_system] = conversations();
        let rendered = match render(&source, &with_system) {
            Err(ChatTemplateError::Refused(_)) => render(&source, &without_system),
            other => other,
        };
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        match rendered {
            Ok(text) if text.contains("And of Spain?") => {}
            Ok(text) => failures.push(format!("{name}: the question is missing from {text:?}")),
            Err(error) => failures.push(format!("{name}: {error}")),
        }
    }
    println!("{count} templates");
    assert!(count >= 60, "only {count} templates in {}", Path::new(&folder).display());
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
