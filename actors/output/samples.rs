//! A sample of every known format, for tests: what a model writes, and the calls that it makes.

use std::sync::Arc;

use serde_json::json;

use super::argument_checks::ArgumentChecks;
use super::delta::{Delta, ToolSpec};
use super::format::{Body, Format, JsonKeys, ToolFormat};
use super::ids::IdSource;
use super::options::ParserOptions;
use super::output_format::OutputFormat;
use super::parser::OutputParser;
use super::reasoning::of_markers;
use super::table::{ENTRIES, Entry};

/// Two calls in each format: of `f` with text and a number, and of `g` without arguments.
pub(super) const SAMPLES: &[(&str, &str)] = &[
    (
        "gpt-oss",
        " to=functions.f<|channel|>commentary <|constrain|>json<|message|>{\"a\": \"x\\n<y>\", \"n\": 1}<|call|><|start|>assistant<|channel|>commentary to=functions.g<|constrain|>json<|message|>{}<|call|>",
    ),
    (
        "muse-glimmer",
        " to=f<|message|><atem:function_calls>\n<atem:invoke name=\"f\">\n<atem:parameter name=\"a\">x\n<y></atem:parameter>\n<atem:parameter name=\"n\">1</atem:parameter>\n</atem:invoke>\n<atem:invoke name=\"g\">\n</atem:invoke>\n</atem:function_calls>",
    ),
    ("functionary-v3.2", "f\n{\"a\": \"x\\n<y>\", \"n\": 1}>>>g\n{}"),
    ("functionary-v3.1", "<function=f>{\"a\": \"x\\n<y>\", \"n\": 1}</function><function=g>{}</function>"),
    (
        "minimax-m3",
        "]<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name=\"f\">]<]minimax[>[<a>x\n<y>]<]minimax[>[</a>]<]minimax[>[<n>1]<]minimax[>[</n>]<]minimax[>[</invoke>\n]<]minimax[>[<invoke name=\"g\">]<]minimax[>[</invoke>\n]<]minimax[>[</tool_call>",
    ),
    (
        "minimax-m2",
        "<minimax:tool_call>\n<invoke name=\"f\">\n<parameter name=\"a\">x\n<y></parameter>\n<parameter name=\"n\">1</parameter>\n</invoke>\n<invoke name=\"g\">\n</invoke>\n</minimax:tool_call>",
    ),
    (
        "deepseek-v3.2",
        "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"a\" string=\"true\">x\n<y></｜DSML｜parameter>\n<｜DSML｜parameter name=\"n\" string=\"false\">1</｜DSML｜parameter>\n</｜DSML｜invoke>\n<｜DSML｜invoke name=\"g\">\n</｜DSML｜invoke>\n</｜DSML｜function_calls>",
    ),
    (
        "deepseek-v4",
        "<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"a\" string=\"true\">x\n<y></｜DSML｜parameter>\n<｜DSML｜parameter name=\"n\" string=\"false\">1</｜DSML｜parameter>\n</｜DSML｜invoke>\n<｜DSML｜invoke name=\"g\">\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>",
    ),
    (
        "kimi-k3",
        "<|open|>tools<|sep|><|open|>call tool=\"f\" index=\"1\"<|sep|><|open|>argument key=\"a\" type=\"string\"<|sep|>x\n<y><|close|>argument<|sep|><|open|>argument key=\"n\" type=\"number\"<|sep|>1<|close|>argument<|sep|><|close|>call<|sep|><|open|>call tool=\"g\" index=\"2\"<|sep|><|close|>call<|sep|><|close|>tools<|sep|>",
    ),
    (
        "kimi-k2",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{\"a\": \"x\\n<y>\", \"n\": 1}<|tool_call_end|><|tool_call_begin|>functions.g:1<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
    ),
    (
        "deepseek-v3",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{\"a\": \"x\\n<y>\", \"n\": 1}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>g\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    ),
    (
        "deepseek-v3.1",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"a\": \"x\\n<y>\", \"n\": 1}<｜tool▁call▁end｜><｜tool▁call▁begin｜>g<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    ),
    (
        "seed-oss",
        "<seed:tool_call>\n<function=f>\n<parameter=a>x\n<y></parameter>\n<parameter=n>1</parameter>\n</function>\n</seed:tool_call>\n<seed:tool_call>\n<function=g>\n</function>\n</seed:tool_call>",
    ),
    (
        "qwen3-coder",
        "<tool_call>\n<function=f>\n<parameter=a>\nx\n<y>\n</parameter>\n<parameter=n>\n1\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=g>\n</function>\n</tool_call>",
    ),
    (
        "minicpm5",
        "<function name=\"f\"><param name=\"a\"><![CDATA[x\n<y>]]></param><param name=\"n\">1</param></function>\n<function name=\"g\"></function>",
    ),
    (
        "glm",
        "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>x\n<y></arg_value>\n<arg_key>n</arg_key><arg_value>1</arg_value>\n</tool_call>\n<tool_call>g</tool_call>",
    ),
    (
        "mistral-small-3.2",
        "[TOOL_CALLS]f[CALL_ID]123456789[ARGS]{\"a\": \"x\\n<y>\", \"n\": 1}[TOOL_CALLS]g[CALL_ID]123456780[ARGS]{}",
    ),
    ("ministral", "[TOOL_CALLS]f[ARGS]{\"a\": \"x\\n<y>\", \"n\": 1}[TOOL_CALLS]g[ARGS]{}"),
    (
        "mistral-nemo",
        "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"a\": \"x\\n<y>\", \"n\": 1}, \"id\": \"123456789\"}, {\"name\": \"g\", \"arguments\": {}}]",
    ),
    ("gemma-4", "<|tool_call>call:f{a:<|\"|>x\n<y><|\"|>,n:1}<tool_call|><|tool_call>call:g{}<tool_call|>"),
    (
        "functiongemma",
        "<start_function_call>call:f{a:<escape>x\n<y><escape>,n:1}<end_function_call><start_function_call>call:g{}<end_function_call>",
    ),
    ("lfm2", "<|tool_call_start|>[f(a=\"x\\n<y>\", n=1), g()]<|tool_call_end|>"),
    ("lfm2.5", "<|tool_call_start|>[f(a='x\\n<y>', n=1), g()]<|tool_call_end|>"),
    (
        "command-r7b",
        "<|START_ACTION|>[\n {\"tool_call_id\": \"0\", \"tool_name\": \"f\", \"parameters\": {\"a\": \"x\\n<y>\", \"n\": 1}},\n {\"tool_call_id\": \"1\", \"tool_name\": \"g\", \"parameters\": {}}\n]<|END_ACTION|>",
    ),
    (
        "command-r",
        "Action:\n```json\n[{\"tool_name\": \"f\", \"parameters\": {\"a\": \"x\\n<y>\", \"n\": 1}}, {\"tool_name\": \"g\", \"parameters\": {}}]\n```",
    ),
    (
        "nemotron-v2",
        "<TOOLCALL>[{\"name\": \"f\", \"arguments\": {\"a\": \"x\\n<y>\", \"n\": 1}}, {\"name\": \"g\", \"arguments\": {}}]</TOOLCALL>",
    ),
    (
        "solar",
        "<|tool_calls|><|tool_call:begin|>abcdefghi0<|tool_call:name|>f<|tool_call:args|>{\"a\": \"x\\n<y>\", \"n\": 1}<|tool_call:end|><|tool_call:begin|>abcdefghi1<|tool_call:name|>g<|tool_call:args|>{}<|tool_call:end|>",
    ),
    (
        "hunyuan-3",
        "<tool_calls:opensource>\n<tool_call:opensource>f<tool_sep:opensource>\n<arg_key:opensource>a</arg_key:opensource>\n<arg_value:opensource>x\n<y></arg_value:opensource>\n<arg_key:opensource>n</arg_key:opensource>\n<arg_value:opensource>1</arg_value:opensource>\n</tool_call:opensource>\n<tool_call:opensource>g<tool_sep:opensource>\n</tool_call:opensource>\n</tool_calls:opensource>",
    ),
    (
        "granite-3",
        "<|tool_call|>[{\"name\": \"f\", \"arguments\": {\"a\": \"x\\n<y>\", \"n\": 1}}, {\"name\": \"g\", \"arguments\": {}}]",
    ),
    (
        "phi-4-mini",
        "functools[{\"name\": \"f\", \"arguments\": {\"a\": \"x\\n<y>\", \"n\": 1}}, {\"name\": \"g\", \"arguments\": {}}]",
    ),
    (
        "phi-4-mini",
        "<|tool_call|>[{\"name\": \"f\", \"arguments\": {\"a\": \"x\\n<y>\", \"n\": 1}}, {\"name\": \"g\", \"arguments\": {}}]<|/tool_call|>",
    ),
    (
        "llama-json",
        "{\"name\": \"f\", \"parameters\": {\"a\": \"x\\n<y>\", \"n\": 1}}; {\"type\": \"function\", \"name\": \"g\", \"parameters\": {}}",
    ),
    (
        "llama-json",
        "<|python_tag|>{\"name\": \"f\", \"parameters\": {\"a\": \"x\\n<y>\", \"n\": 1}}<|python_tag|>{\"name\": \"g\", \"parameters\": {}}",
    ),
    ("llama-pythonic", "[f(a=\"x\\n<y>\", n=1), g()]"),
    ("llama-4", "<|python_start|>[f(a=\"x\\n<y>\", n=1), g()]<|python_end|>"),
];

/// The same of Hermes, Granite, Phi and others, whose templates show what they write.
pub(super) const JSON_SAMPLES: &[(&str, &str, &str)] = &[
    (
        "<tool_call>",
        "</tool_call>",
        "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"x\\n<y>\", \"n\": 1}}\n</tool_call>\n<tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call>",
    ),
    (
        "<|tool_call|>",
        "",
        "<|tool_call|>[{\"name\": \"f\", \"arguments\": {\"a\": \"x\\n<y>\", \"n\": 1}}, {\"arguments\": {}, \"name\": \"g\"}]",
    ),
    (
        "<|tool_call|>",
        "<|/tool_call|>",
        "<|tool_call|>[{\"name\": \"f\", \"arguments\": \"{\\\"a\\\": \\\"x\\\\n<y>\\\", \\\"n\\\": 1}\"}, {\"name\": \"g\"}]<|/tool_call|>",
    ),
    (
        "functools",
        "",
        "functools[{'name': 'f', 'arguments': {'a': 'x\\n<y>', 'n': 1}}, {\"name\": \"g\", \"arguments\": null}]",
    ),
];

pub(super) fn tools() -> Arc<[ToolSpec]> {
    let parameters = json!({"type": "object", "properties": {"a": {"type": "string"}, "n": {"type": "integer"}}});
    let tool = |name: &str| ToolSpec { name: name.to_owned(), parameters: parameters.clone(), is_strict: false };
    Arc::from(vec![tool("f"), tool("g")])
}

/// The format of an entry, with `<think>` if it has no reasoning.
pub(super) fn format_of(entry: &Entry) -> OutputFormat {
    let (start, end) = entry.reasoning.unwrap_or(("<think>", "</think>"));
    let channels = (entry.channels)();
    OutputFormat::of(Format {
        tools: (entry.tools)(),
        reasoning: channels.is_none().then(|| of_markers(start, end)),
        channels,
        ..Format::default()
    })
}

pub(super) fn json_format(begin: &str, end: &str) -> OutputFormat {
    let call_end = Some(end.to_owned()).filter(|end| !end.is_empty()).into_iter().collect();
    let body = Body::Json(JsonKeys::default());
    let unmarked = !begin.is_empty();
    let tools = ToolFormat { call_begin: begin.to_owned(), call_end, unmarked, body, ..ToolFormat::default() };
    OutputFormat::of(Format {
        tools: Some(tools),
        reasoning: Some(of_markers("<think>", "</think>")),
        ..Format::default()
    })
}

/// Every sample with its format.
pub(super) fn all() -> Vec<(OutputFormat, &'static str)> {
    let format = |name: &str| format_of(ENTRIES.iter().find(|entry| entry.name == name).expect("an entry"));
    let known = SAMPLES.iter().map(|(name, text)| (format(name), *text));
    let json = JSON_SAMPLES.iter().map(|(begin, end, text)| (json_format(begin, end), *text));
    known.chain(json).collect()
}

pub(super) fn options() -> ParserOptions {
    ParserOptions {
        parse_reasoning: true,
        parse_tool_calls: true,
        unmarked_calls: Some(ArgumentChecks::default()),
        tools: tools(),
        prompt_tail: String::new(),
    }
}

/// An answer in its parts. Calls are names with arguments; ids stand apart.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Answer {
    pub text: String,
    pub reasoning: String,
    pub calls: Vec<(String, String)>,
    pub ids: Vec<String>,
    /// Pieces of arguments.
    pub fragments: usize,
}

impl Answer {
    pub(super) fn of(deltas: &[Delta]) -> Answer {
        let mut answer = Answer::default();
        for delta in deltas {
            match delta {
                Delta::Text(text) => answer.text += text,
                Delta::Reasoning(text) => answer.reasoning += text,
                Delta::ToolCallStart { index, id, name } => {
                    assert_eq!(*index, answer.calls.len());
                    answer.calls.push((name.clone(), String::new()));
                    answer.ids.push(id.clone());
                }
                Delta::ToolCallArguments { index, fragment } => {
                    assert_eq!(*index + 1, answer.calls.len());
                    answer.calls[*index].1 += fragment;
                    answer.fragments += 1;
                }
            }
        }
        answer
    }
}

/// All deltas of pieces of a text.
pub(super) fn deltas<'a>(
    format: &OutputFormat,
    options: ParserOptions,
    pieces: impl IntoIterator<Item = &'a str>,
) -> Vec<Delta> {
    let mut parser = OutputParser::with_ids(format, options, IdSource::Counting(0));
    let mut out = Vec::new();
    pieces.into_iter().for_each(|piece| parser.push(piece, &mut out));
    parser.finish(&mut out);
    out
}

/// Parses a text in pieces of 1, 2, 3 and 7 characters and as a whole, which must give the same.
pub(super) fn parse_with(format: &OutputFormat, options: &ParserOptions, text: &str) -> Answer {
    let answer = |size: usize| {
        let characters: Vec<char> = text.chars().collect();
        let pieces: Vec<String> = characters.chunks(size).map(|piece| piece.iter().collect()).collect();
        Answer::of(&deltas(format, options.clone(), pieces.iter().map(String::as_str)))
    };
    let whole = answer(usize::MAX);
    for size in [1, 2, 3, 7] {
        let split = Answer { fragments: whole.fragments, ..answer(size) };
        assert_eq!(split, whole, "pieces of {size}: {text:?}");
    }
    whole
}

pub(super) fn parse(format: &OutputFormat, text: &str) -> Answer {
    parse_with(format, &options(), text)
}
