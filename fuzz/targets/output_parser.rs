//! A chat template, the end of a prompt, and the text of an answer, separated by zero bytes.

use cuelight::output::{ArgumentChecks, Delta, OutputFormat, OutputParser, ParserOptions, ToolSpec};
use cuelight_engine::format::chat_template::{ChatTemplate, TemplateInputs};
use serde_json::{Map, Value, json};

use super::text_parts;

/// The deltas of an answer do not depend on how its text is split, and its calls have whole names.
pub fn run(data: &[u8]) {
    let [template, prompt_tail, answer] = text_parts(data);
    let format = format(&template);
    let parse = |pieces: &[&str]| joined(&format, &prompt_tail, pieces);
    let whole = parse(&[&answer]);
    let characters: Vec<String> = answer.chars().map(String::from).collect();
    let characters: Vec<&str> = characters.iter().map(String::as_str).collect();
    assert_eq!(whole, parse(&characters), "{answer:?}");
}

fn format(source: &str) -> OutputFormat {
    const FUEL: u64 = 20_000;
    let template = ChatTemplate::new(source, "<s>", "</s>").map(|template| template.with_fuel(FUEL));
    let render = |messages: &Value, tools: Option<&Value>, variables: &Map<String, Value>, generate: bool| {
        let inputs = TemplateInputs {
            messages,
            tools,
            documents: None,
            add_generation_prompt: generate,
            variables: Some(variables),
        };
        template.as_ref().ok()?.render(&inputs).ok()
    };
    OutputFormat::of_template(source, &render)
}

/// Text, reasoning, and the name and arguments of each call.
fn joined(format: &OutputFormat, prompt_tail: &str, pieces: &[&str]) -> (String, String, Vec<(String, String)>) {
    let parameters = json!({ "properties": { "a": { "type": "integer" }, "b": { "type": "string" } } });
    let options = ParserOptions {
        parse_reasoning: true,
        parse_tool_calls: true,
        unmarked_calls: Some(ArgumentChecks::default()),
        tools: [ToolSpec { name: "f".to_owned(), parameters, is_strict: false }].into(),
        prompt_tail: prompt_tail.to_owned(),
    };
    let mut parser = OutputParser::new(format, options);
    let mut deltas = Vec::new();
    pieces.iter().for_each(|piece| parser.push(piece, &mut deltas));
    parser.finish(&mut deltas);
    let (mut text, mut reasoning, mut calls) = (String::new(), String::new(), Vec::new());
    for delta in deltas {
        match delta {
            Delta::Text(piece) => text.push_str(&piece),
            Delta::Reasoning(piece) => reasoning.push_str(&piece),
            Delta::ToolCallStart { index, name, .. } => {
                assert_eq!(index, calls.len());
                calls.push((name, String::new()));
            }
            Delta::ToolCallArguments { index, fragment } => calls[index].1.push_str(&fragment),
        }
    }
    assert_eq!(parser.has_called(), !calls.is_empty());
    (text, reasoning, calls)
}
