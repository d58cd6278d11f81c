//! Output parsers, compared with llama.cpp's on its own cases, and read back from what chat templates render.
//!
//! `CUELIGHT_TEST_CHAT_CASES` names the folder that `tests/fetch_chat_cases.py` writes; without it those tests print that they are
//! skipped and pass. `CUELIGHT_TEST_TEMPLATES` names a folder with chat templates, as for `tests/chat_templates.rs`.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cuelight::output::{ArgumentChecks, Delta, OutputFormat, OutputParser, ParserOptions, ToolSpec};
use cuelight::pipeline::simulation::tokenizer;
use cuelight_engine::constraint::{Constraint, ConstraintCompiler, Grammar};
use cuelight_engine::format::chat_template::{ChatTemplate, TemplateInputs};
use cuelight_engine::format::tokenizer::Tokenizer;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed, TestRunner};
use serde_json::{Map, Value, json};

fn folder() -> Option<PathBuf> {
    let folder = std::env::var_os("CUELIGHT_TEST_CHAT_CASES");
    if folder.is_none() {
        println!("skipped: CUELIGHT_TEST_CHAT_CASES names no folder");
    }
    folder.map(PathBuf::from)
}

/// A template with the format of its answers.
struct Model {
    template: ChatTemplate,
    format: OutputFormat,
}

impl Model {
    fn read(path: &Path) -> Model {
        let source = fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let template = ChatTemplate::new(&source, "<s>", "</s>").expect("the template compiles");
        let format = OutputFormat::of_template(&source, &|messages, tools, variables, prompt| {
            render(&template, messages, tools, variables, prompt)
        });
        Model { template, format }
    }

    fn parser(&self, options: &ParserOptions) -> OutputParser {
        OutputParser::new(&self.format, options.clone())
    }
}

fn render(
    template: &ChatTemplate,
    messages: &Value,
    tools: Option<&Value>,
    variables: &Map<String, Value>,
    add_generation_prompt: bool,
) -> Option<String> {
    let variables = Some(variables);
    template.render(&TemplateInputs { messages, tools, documents: None, add_generation_prompt, variables }).ok()
}

/// An answer in its parts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Answer {
    text: String,
    reasoning: String,
    /// Name, arguments and id.
    calls: Vec<(String, String, String)>,
}

impl Answer {
    fn add(&mut self, delta: Delta) {
        match delta {
            Delta::Text(text) => self.text += &text,
            Delta::Reasoning(text) => self.reasoning += &text,
            Delta::ToolCallStart { index, id, name } => {
                assert_eq!(index, self.calls.len(), "calls are counted");
                self.calls.push((name, String::new(), id));
            }
            Delta::ToolCallArguments { index, fragment } => self.calls[index].1 += &fragment,
        }
    }

    /// The answer without ids, which are new each time.
    fn without_ids(&self) -> Answer {
        let mut answer = self.clone();
        answer.calls.iter_mut().for_each(|call| call.2.clear());
        answer
    }
}

/// Parses a text in pieces of some characters.
fn parse(mut parser: OutputParser, text: &str, piece: usize) -> Answer {
    let (mut answer, mut deltas) = (Answer::default(), Vec::new());
    let characters: Vec<char> = text.chars().collect();
    for piece in characters.chunks(piece) {
        parser.push(&piece.iter().collect::<String>(), &mut deltas);
        deltas.drain(..).for_each(|delta| answer.add(delta));
    }
    parser.finish(&mut deltas);
    deltas.drain(..).for_each(|delta| answer.add(delta));
    answer
}

fn tools_of(case: &Value) -> Vec<ToolSpec> {
    let tools = case["tools"].as_array().expect("tools");
    let tool = |tool: &Value| ToolSpec {
        name: tool["name"].as_str().expect("a name").to_owned(),
        parameters: tool["parameters"].clone(),
        is_strict: false,
    };
    tools.iter().map(tool).collect()
}

fn declared(tools: &[ToolSpec]) -> Value {
    let tool = |tool: &ToolSpec| json!({"type": "function", "function": {"name": tool.name, "description": "A tool.", "parameters": tool.parameters}});
    tools.iter().map(tool).collect()
}

/// What the case's parser gets.
fn options(case: &Value, model: &Model) -> ParserOptions {
    let tools = tools_of(case);
    let mut variables = Map::new();
    let thinking = case["options"].get("enable_thinking").cloned().unwrap_or(json!(true));
    variables.insert("enable_thinking".to_owned(), thinking.clone());
    variables.insert("thinking".to_owned(), thinking);
    let declared = (!tools.is_empty()).then(|| declared(&tools));
    let mut prompt = render(
        &model.template,
        &json!([{"role": "user", "content": "Hey there!"}]),
        declared.as_ref(),
        &variables,
        true,
    )
    .unwrap_or_default();
    let marks = model.format.reasoning();
    match (case["options"]["continue_final_message"].as_str(), &marks) {
        (Some(kind), Some(marks)) if kind.ends_with("REASONING") => prompt += &marks.start,
        // Where both are messages, the prompt ends with the header of the one that goes on.
        (Some(_), Some(marks)) => prompt += &marks.answer,
        _ => {}
    }
    let reasoning = case["options"]["reasoning_format"].as_str().unwrap_or("NONE");
    ParserOptions {
        parse_reasoning: !reasoning.ends_with("NONE"),
        parse_tool_calls: !tools.is_empty(),
        unmarked_calls: Some(ArgumentChecks::default()),
        tools: Arc::from(tools),
        prompt_tail: prompt,
    }
}

/// What the case expects of the text that the model adds.
fn expected(case: &Value) -> Answer {
    let text = |key: &str| case["expect"][key].as_str().unwrap_or_default().to_owned();
    let (mut content, mut reasoning) = (text("content"), text("reasoning_content"));
    if case["options"].get("continue_final_message").is_some() {
        let prefill = case["messages"].as_array().and_then(|messages| messages.last()).expect("a message to continue");
        let strip = |text: &str, key: &str| {
            let begun = prefill[key].as_str().unwrap_or_default();
            text.strip_prefix(begun).unwrap_or(text).to_owned()
        };
        (content, reasoning) = (strip(&content, "content"), strip(&reasoning, "reasoning_content"));
    }
    let calls = case["expect"]["tool_calls"].as_array().expect("calls").iter().map(|call| {
        let part = |index: usize| call[index].as_str().expect("a text").to_owned();
        (part(0), part(1), part(2))
    });
    Answer { text: content, reasoning, calls: calls.collect() }
}

/// Arguments are equal as JSON; what is no JSON is incomplete, and not compared.
fn same(expected: &Answer, actual: &Answer, prompt: &str) -> bool {
    let json = |text: &str| serde_json::from_str::<Value>(text).ok();
    let calls = expected.calls.len() == actual.calls.len()
        && expected.calls.iter().zip(&actual.calls).all(|(expected, actual)| {
            let id = expected.2.is_empty() || expected.2 == actual.2;
            let arguments = json(&expected.1).is_none_or(|arguments| Some(arguments) == json(&actual.1));
            expected.0 == actual.0 && arguments && id
        });
    // llama.cpp repeats the prompt's marker if reasoning stays in the text.
    let (text, of_answer) = (expected.text.trim(), actual.text.trim());
    let marker = text.strip_suffix(of_answer).map(str::trim);
    let same_text = marker.is_some_and(|marker| prompt.trim().ends_with(marker));
    calls && same_text && expected.reasoning.trim() == actual.reasoning.trim()
}

/// Cases that come out otherwise on purpose: template and line, with the reason.
const DIFFERENT: &[(&str, u64, &str)] = &[
    ("Qwen3.5-4B.jinja", 2377, "a marker that repeats the prompt's is no reasoning"),
    ("mistralai-Ministral-3-14B-Reasoning-2512.jinja", 2648, "a fence around JSON that a schema asks for stays"),
    ("meta-llama-Llama-3.1-8B-Instruct.jinja", 6302, "a fence around JSON that a schema asks for stays"),
    ("inclusionai-ling-3.0-flash.jinja", 4742, "the end of the turn is the stop token's matter"),
    ("inclusionai-ling-3.0-flash.jinja", 4748, "the end of the turn is the stop token's matter"),
    ("Apriel-1.6-15b-Thinker-fixed.jinja", 6211, "the marker before the reasoning is no reasoning"),
    ("Apriel-1.6-15b-Thinker-fixed.jinja", 6219, "the marker before the reasoning is no reasoning"),
    ("openai-gpt-oss-120b.jinja", 6547, "a call that is no JSON is text, not lost"),
    ("openai-gpt-oss-120b.jinja", 6556, "a call that is no JSON is text, not lost"),
];

#[test]
fn the_cases_of_llama_cpp_give_what_llama_cpp_expects() {
    let Some(folder) = folder() else { return };
    let cases = fs::read_to_string(folder.join("cases.json")).expect("cases.json, written by the script");
    let cases: Vec<Value> = serde_json::from_str(&cases).expect("cases");
    let mut models = BTreeMap::new();
    let (mut equal, mut failures) = (0, Vec::new());
    for case in &cases {
        let name = case["template"].as_str().expect("a template");
        let model = models.entry(name).or_insert_with(|| Model::read(&folder.join("templates").join(name)));
        let (options, text) = (options(case, model), case["input"].as_str().expect("a text"));
        let expected = expected(case);
        let whole = parse(model.parser(&options), text, usize::MAX);
        for piece in [1, 2, 3, 7] {
            let split = parse(model.parser(&options), text, piece);
            assert_eq!(whole.without_ids(), split.without_ids(), "{name} {} in pieces of {piece}", case["line"]);
        }
        let differs = DIFFERENT.iter().any(|(template, line, _)| *template == name && case["line"] == *line);
        match same(&expected, &whole, &options.prompt_tail) {
            true if !differs => equal += 1,
            false if differs => {}
            _ => failures
                .push(format!("{name} {}: {text:?}\n  expected {expected:?}\n  parsed   {whole:?}", case["line"])),
        }
    }
    println!("{equal} of {} cases are equal, {} differ on purpose", cases.len(), DIFFERENT.len());
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
}

/// A tool with a parameter of each type.
fn probe_tools() -> Vec<ToolSpec> {
    let parameters = json!({"type": "object", "properties": {
        "text": {"type": "string"}, "count": {"type": "integer"}, "flag": {"type": "boolean"},
        "list": {"type": "array", "items": {"type": "string"}},
        "object": {"type": "object", "properties": {"inner": {"type": "string"}, "number": {"type": "number"}}}}});
    let tool = |name: &str| ToolSpec { name: name.to_owned(), parameters: parameters.clone(), is_strict: false };
    vec![tool("look_up"), tool("write_file")]
}

/// Text as it may stand in a file, without the markers of any format.
fn text() -> impl Strategy<Value = String> {
    let parts = [
        "a", "Word", " ", "\n", "\"", "'", "\\", "<b>", "{", "}", "[1]", ":", ",", "=", "é", "12", "true", "null",
        "\\n",
    ];
    prop::collection::vec(prop::sample::select(parts.to_vec()), 1..8).prop_map(|parts| parts.concat())
}

/// The arguments of a call.
fn arguments() -> impl Strategy<Value = Value> {
    let parts = (text(), any::<i32>(), any::<bool>(), prop::collection::vec(text(), 1..3), text(), 0..32u8);
    parts.prop_map(|(text, count, flag, list, inner, present)| {
        let all = [
            ("text", json!(text)),
            ("count", json!(count)),
            ("flag", json!(flag)),
            ("list", json!(list)),
            ("object", json!({"inner": inner, "number": 1.5})),
        ];
        let present = all.into_iter().enumerate().filter(|(at, _)| present & (1 << at) != 0);
        present.map(|(_, (key, value))| (key.to_owned(), value)).collect::<Map<String, Value>>().into()
    })
}

/// What the template writes for an answer with these calls, and the prompt before it. Templates differ in the ids, the arguments
/// and the content that they accept. `None` if the template does not write all calls.
fn answer_text(model: &Model, calls: &[(String, Value)]) -> Option<(String, String)> {
    let tools = declared(&probe_tools());
    let user = json!({"role": "user", "content": "Hello."});
    let prompt = render(&model.template, &json!([user]), Some(&tools), &Map::new(), true)?;
    let variants = [(false, false, ""), (true, false, ""), (false, true, ""), (true, false, "null")];
    variants.iter().find_map(|(as_text, named_ids, content)| {
        let written = calls.iter().enumerate().map(|(number, (name, arguments))| {
            let id = if *named_ids { format!("functions.{name}:{number}") } else { format!("call0000{number}") };
            let arguments = if *as_text { json!(arguments.to_string()) } else { arguments.clone() };
            json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}})
        });
        let content = if content.is_empty() { json!("") } else { Value::Null };
        let message = json!({"role": "assistant", "content": content, "tool_calls": written.collect::<Value>()});
        let text = render(&model.template, &json!([user, message]), Some(&tools), &Map::new(), false)?;
        let at = end_of_prompt(&text, &prompt);
        let names = text[at..].matches("look_up").count() + text[at..].matches("write_file").count();
        (names >= calls.len()).then(|| (text[..at].to_owned(), text[at..].to_owned()))
    })
}

/// Where the answer begins: where a rendering differs from the prompt, or before the marker within which it does.
fn end_of_prompt(text: &str, prompt: &str) -> usize {
    let different = text.char_indices().zip(prompt.chars()).find(|((_, a), b)| a != b).map(|((at, _), _)| at);
    match different {
        Some(at) => text[..at].rfind(['<', '[']).filter(|begin| !text[*begin..at].contains(['>', ']'])).unwrap_or(at),
        None => prompt.len().min(text.len()),
    }
}

/// Templates whose rendering does not show what the model writes.
const UNREADABLE: &[(&str, &str)] = &[("LFM2.5-8B-A1B.jinja", "strings stand between quotation marks without escapes")];

#[test]
fn rendered_calls_are_read_back() {
    let Some(folder) = std::env::var_os("CUELIGHT_TEST_TEMPLATES").map(PathBuf::from) else {
        println!("skipped: CUELIGHT_TEST_TEMPLATES names no folder");
        return;
    };
    let entries = fs::read_dir(&folder).expect("a folder").map(|entry| entry.expect("an entry").path());
    let mut paths: Vec<PathBuf> = entries.filter(|path| path.extension().is_some_and(|end| end == "jinja")).collect();
    paths.sort();
    let (mut read, mut without, mut failures) = (Vec::new(), Vec::new(), Vec::new());
    for path in paths {
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        let model = Model::read(&path);
        match read_back(&model) {
            _ if UNREADABLE.iter().any(|(unreadable, _)| *unreadable == name) => {}
            Ok(true) => read.push(name),
            Ok(false) => without.push(name),
            Err(error) => failures.push(format!("{name}: {error}")),
        }
    }
    println!("{} templates are read back, {} render no calls: {without:?}", read.len(), without.len());
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
}

/// Reads random calls back. False if the template renders none.
fn read_back(model: &Model) -> Result<bool, String> {
    let first = [("look_up".to_owned(), json!({"count": 1}))];
    if !model.format.has_tool_calls() || answer_text(model, &first).is_none() {
        return Ok(false);
    }
    let name = prop::sample::select(vec!["look_up", "write_file"]).prop_map(str::to_owned);
    let calls = prop::collection::vec((name, arguments()), 1..3);
    let config = Config { cases: 24, failure_persistence: None, rng_seed: RngSeed::Fixed(17), ..Config::default() };
    let result = TestRunner::new(config).run(&calls, |calls| {
        // Some templates allow only one call.
        let Some((prompt_tail, text)) = answer_text(model, &calls) else { return Ok(()) };
        let tools = Arc::from(probe_tools());
        let options = ParserOptions {
            parse_reasoning: true,
            parse_tool_calls: true,
            unmarked_calls: Some(ArgumentChecks::default()),
            tools,
            prompt_tail,
        };
        let answer = parse(model.parser(&options), &text, 5);
        let json = |text: &str| serde_json::from_str::<Value>(text).unwrap_or_default();
        let read = answer.calls.iter().map(|(name, arguments, _)| (name.clone(), json(arguments)));
        prop_assert_eq!(read.collect::<Vec<_>>(), calls, "{:?}\n{:?}", text, answer);
        Ok(())
    });
    result.map(|()| true).map_err(|error| error.to_string())
}

/// A text that a grammar of calls accepts, by random choices among the tokens that it allows. `None` when it gets too long.
fn random_text(constraint: &Constraint, tokenizer: &Tokenizer, seed: u64) -> Option<String> {
    let (mut state, mut random) = (constraint.start(), seed);
    let mut tokens = Vec::new();
    for _ in 0..3000 {
        let mask = state.mask().expect("some token is allowed");
        let allowed: Vec<u32> = (0..tokenizer.vocab_size() as u32).filter(|&token| mask.allows(token)).collect();
        if allowed.iter().any(|token| tokenizer.end_of_generation().contains(token)) {
            return Some(tokenizer.decode(&tokens, true));
        }
        random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let token = allowed[(random >> 33) as usize % allowed.len()];
        state.accept(token).expect("an allowed token is accepted");
        tokens.push(token);
    }
    None
}

/// Whatever a grammar of required calls accepts is read as calls that match the tools.
#[test]
fn required_calls_are_read_back() {
    let Some(folder) = std::env::var_os("CUELIGHT_TEST_TEMPLATES").map(PathBuf::from) else {
        println!("skipped: CUELIGHT_TEST_TEMPLATES names no folder");
        return;
    };
    let parameters = json!({
        "type": "object",
        "properties": { "on": { "type": "boolean" }, "kind": { "type": "string", "enum": ["a", "b c"] } },
        "required": ["on", "kind"],
        "additionalProperties": false,
    });
    let tools: Arc<[ToolSpec]> = ["set", "get"]
        .map(|name| ToolSpec { name: name.into(), parameters: parameters.clone(), is_strict: true })
        .into();
    let tokenizer = tokenizer();
    let compiler = ConstraintCompiler::new(tokenizer.clone(), tokenizer.vocab_size());
    let (mut checked, mut failures) = (0, Vec::new());
    let files = fs::read_dir(folder).expect("the folder can be read").map(|file| file.expect("a file").path());
    for path in files.filter(|path| path.extension().is_some_and(|extension| extension == "jinja")) {
        let model = Model::read(&path);
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let lark = model.format.call_grammar(&tools, false, &[], true).expect("the schema can be enforced");
        let Some(lark) = lark else { continue };
        let constraint = match compiler.compile(&Grammar::Lark(lark.clone())) {
            Ok(constraint) => constraint,
            Err(error) => {
                failures.push(format!("{name}: {error}\n{lark}"));
                continue;
            }
        };
        for seed in 0..8 {
            let Some(text) = random_text(&constraint, &tokenizer, seed) else { continue };
            let options = ParserOptions {
                parse_reasoning: true,
                parse_tool_calls: true,
                unmarked_calls: Some(ArgumentChecks::default()),
                tools: tools.clone(),
                prompt_tail: String::new(),
            };
            let answer = parse(model.parser(&options), &text, 1);
            let is_valid = |arguments: &Value| {
                arguments["on"].is_boolean() && (arguments["kind"] == "a" || arguments["kind"] == "b c")
            };
            let holds = answer.calls.len() == 1
                && answer
                    .calls
                    .iter()
                    .all(|(_, arguments, _)| serde_json::from_str(arguments).is_ok_and(|parsed| is_valid(&parsed)));
            if !holds {
                failures.push(format!("{name}: {text:?} gave {answer:?}"));
            }
            checked += 1;
        }
    }
    println!("{checked} texts were read");
    assert!(failures.is_empty() && checked > 100, "{}", failures.join("\n"));
}
