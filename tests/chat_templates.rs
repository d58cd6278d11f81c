//! Chat templates, compared with transformers byte by byte.
//!
//! `tests/fixtures/chat_templates` has templates with transformers' renderings, written by
//! `tests/generate/chat_template_fixtures.py`. `CUELIGHT_TEST_TEMPLATES` names a folder with llama.cpp's collection, which
//! `tests/fetch_vocabularies.sh` unpacks; without it those tests print that they are skipped and pass. CI always has it. If the
//! generator was run on that folder, its renderings are compared too.

use std::fs;
use std::path::{Path, PathBuf};

use cuelight_engine::format::chat_template::{ChatTemplate, ChatTemplateError, TemplateInputs};
use serde_json::{Value, json};

const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/chat_templates");

fn collection() -> Option<PathBuf> {
    let folder = std::env::var_os("CUELIGHT_TEST_TEMPLATES");
    if folder.is_none() {
        println!("skipped: CUELIGHT_TEST_TEMPLATES names no folder");
    }
    folder.map(PathBuf::from)
}

/// The templates in a folder, in order: name and source.
fn templates(folder: &Path) -> Vec<(PathBuf, String)> {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("the folder stays readable").path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "jinja"));
    paths.sort();
    let read = |path: PathBuf| {
        let source = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        (path, source)
    };
    paths.into_iter().map(read).collect()
}

fn render(source: &str, conversation: &Value) -> Result<String, ChatTemplateError> {
    let inputs = TemplateInputs {
        messages: &conversation["messages"],
        tools: conversation.get("tools"),
        documents: None,
        add_generation_prompt: conversation["add_generation_prompt"] == true,
        variables: conversation.get("variables").and_then(Value::as_object),
    };
    ChatTemplate::new(source, "<s>", "</s>")?.render(&inputs)
}

/// A conversation with a system message, and one without it for templates that refuse system messages.
fn conversations() -> [Value; 2] {
    let turns = [
        json!({"role": "user", "content": "What is the capital of France?"}),
        json!({"role": "assistant", "content": "Paris."}),
        json!({"role": "user", "content": "And of Spain?"}),
    ];
    let system = json!({"role": "system", "content": "Answer in one word."});
    [json!([system, turns[0], turns[1], turns[2]]), json!(turns)]
        .map(|messages| json!({"messages": messages, "add_generation_prompt": true}))
}

#[test]
fn every_template_of_the_collection_renders_a_plain_conversation() {
    let Some(folder) = collection() else { return };
    let mut failures = Vec::new();
    let templates = templates(&folder);
    for (path, source) in &templates {
        let [with_system, without_system] = conversations();
        let rendered = match render(source, &with_system) {
            Err(ChatTemplateError::Refused(_)) => render(source, &without_system),
            other => other,
        };
        match rendered {
            Ok(text) if text.contains("And of Spain?") => {}
            Ok(text) => failures.push(format!("{}: the question is missing from {text:?}", path.display())),
            Err(error) => failures.push(format!("{}: {error}", path.display())),
        }
    }
    println!("{} templates", templates.len());
    assert!(templates.len() >= 60, "only {} templates in {}", templates.len(), folder.display());
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// Templates that are rendered differently on purpose: Jinja2 escapes text that is joined to a `safe` text as HTML and writes
/// `&#39;` for an apostrophe, which no model expects.
const DIFFERENT: &[&str] = &["meetkai-functionary-medium-v3.1.jinja"];

/// Compares templates with transformers' renderings, where these exist. Returns the number of equal renderings, and the different
/// ones. Conversations that transformers refuses are not compared.
fn compare(folder: &Path) -> (usize, Vec<String>) {
    let (mut equal, mut different) = (0, Vec::new());
    for (path, source) in templates(folder) {
        if DIFFERENT.iter().any(|name| path.ends_with(name)) {
            continue;
        }
        let Ok(cases) = fs::read_to_string(path.with_extension("json")) else { continue };
        let cases: Vec<Value> =
            serde_json::from_str(&cases).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        for (number, case) in cases.iter().enumerate() {
            let rendered = render(&source, &case["conversation"]);
            let Some(expected) = case["expected"].as_str() else { continue };
            if rendered.as_deref().is_ok_and(|text| text == expected) {
                equal += 1;
            } else {
                different.push(format!("{} {number}:\n  {rendered:?}\n  {expected:?}", path.display()));
            }
        }
    }
    (equal, different)
}

#[test]
fn the_templates_of_this_repository_render_the_bytes_of_transformers() {
    let (equal, different) = compare(Path::new(FIXTURES));
    assert!(different.is_empty(), "{}", different.join("\n"));
    assert_eq!(equal, 20, "transformers refuses one of the 21 conversations");
}

#[test]
fn the_collection_renders_the_bytes_of_transformers() {
    let Some(folder) = collection() else { return };
    let (equal, different) = compare(&folder);
    println!("{equal} conversations render as in transformers, {} do not", different.len());
    assert!(different.is_empty(), "{}", different.join("\n"));
}
