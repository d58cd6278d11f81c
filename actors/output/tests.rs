//! Tests of the parser over all formats.

use std::time::{Duration, Instant};

use proptest::prelude::*;
use serde_json::{Value, json};

use super::delta::Delta;
use super::options::ParserOptions;
use super::output_format::OutputFormat;
use super::parser::OutputParser;
use super::samples::{Answer, SAMPLES, all, deltas, format_of, json_format, options, parse, parse_with};
use super::table::ENTRIES;

fn format(name: &str) -> OutputFormat {
    format_of(ENTRIES.iter().find(|entry| entry.name == name).expect("an entry"))
}

fn arguments(answer: &Answer) -> Vec<(&str, Value)> {
    let parse = |text: &str| serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"));
    answer.calls.iter().map(|(name, arguments)| (name.as_str(), parse(arguments))).collect()
}

#[test]
fn every_format_has_a_sample_and_its_calls_are_read() {
    for entry in ENTRIES {
        assert!(SAMPLES.iter().any(|(name, _)| *name == entry.name), "{} has no sample", entry.name);
    }
    for (format, text) in all() {
        let answer = parse(&format, text);
        let expected = vec![("f", json!({"a": "x\n<y>", "n": 1})), ("g", json!({}))];
        assert_eq!(arguments(&answer), expected, "{text}");
        assert_eq!((answer.text.as_str(), answer.reasoning.as_str()), ("", ""), "{text}");
    }
}

#[test]
fn text_around_calls_is_text() {
    for (format, text) in all() {
        if ["f\n{", " to=", "{", "["].iter().any(|begin| text.starts_with(begin)) && !text.starts_with("[TOOL") {
            continue;
        }
        let marks = format.reasoning().expect("markers");
        let (start, end) = (marks.start, marks.answer);
        let answer = parse(&format, &format!("{start}\nWell.\n{end}\n\nLook: a < b.\n\n{text}\n\nDone."));
        assert_eq!(answer.calls.len(), 2, "{text}");
        assert_eq!((answer.reasoning.as_str(), answer.text.as_str()), ("Well.", "Look: a < b.Done."), "{text}");
    }
}

#[test]
fn calls_stay_in_the_text_if_they_are_not_parsed() {
    let options = ParserOptions { parse_tool_calls: false, parse_reasoning: false, ..options() };
    for (format, text) in all() {
        let answer = parse_with(&format, &options, text);
        assert!(answer.calls.is_empty() && answer.reasoning.is_empty(), "{text}");
        if !text.contains("<|message|>") && !text.starts_with("f\n") {
            assert_eq!(answer.text, text);
        }
    }
}

#[test]
fn the_models_ids_are_kept() {
    let ids = |name: &str| {
        let sample = SAMPLES.iter().find(|(sample, _)| *sample == name).expect("a sample");
        parse(&format(name), sample.1).ids
    };
    assert_eq!(ids("kimi-k2"), ["functions.f:0", "functions.g:1"]);
    assert_eq!(ids("mistral-small-3.2"), ["123456789", "123456780"]);
    assert_eq!(ids("mistral-nemo"), ["123456789", "000000001"]);
    assert_eq!(ids("command-r7b"), ["0", "1"]);
    assert_eq!(ids("solar"), ["abcdefghi0", "abcdefghi1"]);
    assert_eq!(ids("glm"), ["call_000000001000000000000000", "call_000000002000000000000000"]);
}

#[test]
fn an_answer_that_stops_in_the_middle_loses_nothing_but_markers() {
    for (format, text) in all() {
        let characters: Vec<char> = text.chars().collect();
        for end in 0..characters.len() {
            let beginning: String = characters[..end].iter().collect();
            let answer = parse(&format, &beginning);
            if answer.calls.is_empty() {
                assert_eq!(answer.text, beginning);
            }
        }
    }
}

#[test]
fn text_that_only_looks_like_a_call_is_text() {
    let hermes = json_format("<tool_call>", "</tool_call>");
    let cases = [
        (&hermes, "The tag <tool_call> begins a call."),
        (&hermes, "<tool_call>\n{\"nothing\": 1}\n</tool_call>"),
        (&hermes, "<tool_call>{\"arguments\": {}, \"name\" 1}"),
        (&hermes, "a <tool_"),
        (&hermes, "a\n\n"),
        (&format("llama-json"), "{\"response\": \"{}\"}"),
        (&format("llama-json"), "{\"name\": \"Bob\", \"age\": 3}"),
        (&format("llama-json"), "{\"name\": \"Bob\"}"),
        (&format("llama-pythonic"), "[a link](https://example.org/f(a=1))"),
        (&format("llama-pythonic"), "[1, 2, 3]"),
        (&format("qwen3-coder"), "Use <function=f> and <tool_call>."),
        (&format("qwen3-coder"), "<tool_call>\n<function=f g>\n</function>"),
        (&format("ministral"), "[TOOL_CALLS] is a marker, [ARGS] too."),
        (&format("gemma-4"), "<|tool_call>said: x<tool_call|>"),
        (&format("kimi-k2"), "<|tool_calls_section_begin|><|tool_calls_section_end|>"),
        (&format("gpt-oss"), "No header at all."),
        (&format("functionary-v3.2"), "No header at all."),
    ];
    for (format, text) in cases {
        let answer = parse(format, text);
        assert_eq!((answer.text.as_str(), answer.calls.len()), (text, 0));
    }
}

const CALL_F: &str = r#"{"name": "f", "arguments": {"n": 1}}"#;
const CALL_G: &str = r#"{"name": "g", "arguments": {}}"#;

#[test]
fn calls_that_small_models_write_without_markers_are_read() {
    let hermes = json_format("<tool_call>", "</tool_call>");
    let doubled = format!("{{{CALL_F}}}");
    let cases = [
        (CALL_F.to_owned(), 1, ""),
        (format!("\n{CALL_F}\n{CALL_G}\n"), 2, ""),
        (
            format!("[{CALL_F}, {CALL_G}]"),
            0,
            "[{\"name\": \"f\", \"arguments\": {\"n\": 1}}, {\"name\": \"g\", \"arguments\": {}}]",
        ),
        (doubled.clone(), 1, ""),
        (format!("{doubled}}}\n{{{CALL_G}}}}}"), 2, ""),
        (format!("```json\n{CALL_F}\n```"), 1, ""),
        (format!("```\n[{CALL_F}, {CALL_G}]\n```"), 2, ""),
        (format!("```{doubled}}}\n```"), 1, ""),
        (format!("```json\n{CALL_F}\n{CALL_G}\n```\nDone."), 2, "Done."),
        (format!("I call it.\n\n```json\n{CALL_F}\n```\n\n```json\n{CALL_G}\n```"), 2, "I call it."),
        (format!("<tools>\n{CALL_F}\n</tools>"), 1, ""),
        (format!("<function_call>{CALL_F}</function_call> <tool_call>{CALL_G}</tool_call>"), 2, ""),
        (format!("```json\n{CALL_F}\n```\n```rust\nfn f() {{}}\n```"), 1, "```rust\nfn f() {}\n```"),
        (format!("<tool_call>{CALL_F}</tool_call>\n```json\n{CALL_G}\n```"), 2, ""),
    ];
    for (text, calls, rest) in cases {
        let answer = parse(&hermes, &text);
        assert_eq!((answer.calls.len(), answer.text.as_str()), (calls, rest), "{text}");
        assert!(arguments(&answer).iter().all(|(_, arguments)| arguments.is_object()), "{answer:?}");
    }
}

#[test]
fn code_and_json_that_call_no_tool_of_the_request_are_text() {
    let hermes = json_format("<tool_call>", "</tool_call>");
    let texts = [
        "{\"name\": \"h\", \"arguments\": {}}",
        "```json\n{\"name\": \"h\", \"arguments\": {}}\n```",
        "```json\n{\"name\": \"f\", \"age\": 3}\n```",
        "```json\n{\"name\": \"f\"}\n```",
        "```json\n{\"type\": \"function\", \"function\": {\"name\": \"f\", \"parameters\": {}}}\n```",
        "```rust\nfn f() { g() }\n```\n\n```\n$ ls\n```\n",
        "```",
        "```js",
        "{{ f }}",
        "Write ```json\n{\"name\": \"f\", \"arguments\": {}}\n``` or <tools> or `{}`.",
        "<tools>\nNone.\n</tools>",
    ];
    for text in texts {
        let answer = parse(&hermes, text);
        assert_eq!((answer.text.as_str(), answer.calls.len()), (text, 0));
    }
    let constrained = ParserOptions { unmarked_calls: None, ..options() };
    let answer = parse_with(&hermes, &constrained, CALL_F);
    assert_eq!((answer.text.as_str(), answer.calls.len()), (CALL_F, 0), "the answer that a schema demands");
}

#[test]
fn a_call_after_one_that_is_malformed_is_read() {
    let hermes = json_format("<tool_call>", "</tool_call>");
    let answer = parse(&hermes, "<tool_call>\n<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>");
    assert_eq!((answer.text.as_str(), arguments(&answer)), ("<tool_call>", vec![("f", json!({}))]));
    let answer = parse(&hermes, "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1, ]</tool_call>x");
    assert_eq!(answer.calls, [("f".to_owned(), "{\"a\": 1".to_owned())]);
    assert!(answer.text.ends_with("]</tool_call>x"), "{answer:?}");
}

#[test]
fn an_unknown_tool_is_called_with_what_its_text_says() {
    let answer = parse(
        &format("qwen3-coder"),
        "<function=h>\n<parameter=k>\n[1, true]\n</parameter>\n<parameter=t>\nNo.\n</parameter>\n</function>",
    );
    assert_eq!(arguments(&answer), [("h", json!({"k": [1, true], "t": "No."}))]);
}

#[test]
fn json_in_the_place_of_elements_is_a_call() {
    let answer =
        parse(&format("qwen3-coder"), "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"n\": 2}}\n</tool_call>");
    assert_eq!((arguments(&answer), answer.text.as_str()), (vec![("f", json!({"n": 2}))], ""));
}

#[test]
fn reasoning_begins_and_ends_as_it_should() {
    let hermes = json_format("<tool_call>", "</tool_call>");
    let call = "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>";
    let open = ParserOptions { prompt_tail: "<|assistant|>\n<think>\n".to_owned(), ..options() };
    let closed = ParserOptions { prompt_tail: "<think>\n\n</think>\n\n".to_owned(), ..options() };
    let raw = ParserOptions { parse_reasoning: false, ..options() };
    let (from_text, mention) = (options(), format!("A {call} here."));
    let cases = [
        (&from_text, "<think>\n\n</think>\n\nHi".to_owned(), "", "Hi", 0),
        (&from_text, "</think>\nHi".to_owned(), "", "Hi", 0),
        (&from_text, "Hi <think> there".to_owned(), "", "Hi <think> there", 0),
        (&from_text, "<think>a\nb</thin".to_owned(), "a\nb</thin", "", 0),
        (&open, "a < b\n</think>\n\nHi\n".to_owned(), "a < b", "Hi\n", 0),
        (&open, "<think>\na</think>Hi".to_owned(), "a", "Hi", 0),
        (&open, "still thinking ".to_owned(), "still thinking ", "", 0),
        (&open, format!("I call.\n{call}"), "I call.", "", 1),
        (&open, format!("I call.{call}"), "I call.", "", 1),
        (&open, format!("A {call} here.\n</think>\n{call}"), mention.as_str(), "", 1),
        (
            &open,
            "Not <tool_call> this.\n<tool_call> nor this</think>Hi".to_owned(),
            "Not <tool_call> this.\n<tool_call> nor this",
            "Hi",
            0,
        ),
        (&closed, "Hi".to_owned(), "", "Hi", 0),
        (&raw, "<think>a</think>\nHi".to_owned(), "", "<think>a</think>\nHi", 0),
    ];
    for (options, text, reasoning, content, calls) in cases {
        let answer = parse_with(&hermes, options, &text);
        let actual = (answer.reasoning.as_str(), answer.text.as_str(), answer.calls.len());
        assert_eq!(actual, (reasoning, content, calls), "{text:?}");
    }
}

#[test]
fn strings_are_streamed_as_they_grow() {
    for (name, beginning) in [
        ("qwen3-coder", "<tool_call>\n<function=f>\n<parameter=a>\nOne two"),
        (
            "deepseek-v3.2",
            "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"a\" string=\"true\">One two",
        ),
        ("glm", "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>One two"),
        ("gemma-4", "<|tool_call>call:f{a:<|\"|>One two"),
        ("ministral", "[TOOL_CALLS]f[ARGS]{\"a\": \"One two"),
        ("lfm2", "<|tool_call_start|>[f(a=\"One two"),
        ("command-r7b", "<|START_ACTION|>[{\"tool_name\": \"f\", \"parameters\": {\"a\": \"One two"),
    ] {
        let mut parser = OutputParser::new(&format(name), options());
        let mut out = Vec::new();
        parser.push(beginning, &mut out);
        let answer = Answer::of(&out);
        assert!(answer.calls[0].1.ends_with("One two"), "{name}: {answer:?}");
        assert!(parser.has_called() && !parser.is_reasoning());
    }
}

#[test]
fn a_plain_format_passes_everything_on() {
    let text = "<think> a\n\n<tool_call>{}\n ";
    let answer = parse(&OutputFormat::plain(), text);
    assert_eq!(answer.text, text);
    let mut out = Vec::new();
    OutputParser::new(&OutputFormat::plain(), options()).push("a ", &mut out);
    assert_eq!(out, [Delta::Text("a ".to_owned())]);
}

#[test]
fn long_arguments_in_small_pieces_take_little_time() {
    let value = "let x = \"<a>\";\n".repeat(100_000 / 15);
    let in_json = serde_json::to_string(&value).expect("JSON");
    let cases = [
        (
            "qwen3-coder",
            format!("<tool_call>\n<function=f>\n<parameter=a>\n{value}\n</parameter>\n</function>\n</tool_call>"),
        ),
        (
            "qwen3-coder",
            format!(
                "<tool_call>\n<function=f>\n<parameter=other>\n[{in_json}]\n</parameter>\n</function>\n</tool_call>"
            ),
        ),
        ("ministral", format!("[TOOL_CALLS]f[ARGS]{{\"a\": {in_json}}}")),
        (
            "mistral-nemo",
            format!("[TOOL_CALLS][{{\"name\": \"f\", \"arguments\": {{\"a\": {in_json}}}, \"id\": \"123456789\"}}]"),
        ),
        ("gemma-4", format!("<|tool_call>call:f{{a:<|\"|>{value}<|\"|>}}<tool_call|>")),
        ("lfm2", format!("<|tool_call_start|>[f(a={in_json})]<|tool_call_end|>")),
    ];
    for (name, text) in cases {
        let (format, began) = (format(name), Instant::now());
        let characters: Vec<String> = text.chars().map(String::from).collect();
        let answer = Answer::of(&deltas(&format, options(), characters.iter().map(String::as_str)));
        let took = began.elapsed();
        assert!(answer.calls[0].1.len() > 100_000, "{name}");
        // Far above what it takes, far below what quadratic work would take.
        assert!(took < Duration::from_secs(20), "{name}: {took:?}");
        println!("{name}: {took:?}");
    }
}

#[test]
fn grammars_name_the_tools() {
    let tools = super::samples::tools();
    for (format, text) in all() {
        let Some(grammar) = format.call_grammar(&tools, true, &[], true).unwrap() else {
            assert!(text.contains("atem:"), "{text}");
            continue;
        };
        assert!(grammar.starts_with("start: ") && grammar.contains("integer"), "{grammar}");
        assert!(format.call_grammar(&[], true, &[], true).unwrap().is_none());
    }
}

fn fragments() -> impl Strategy<Value = String> {
    let markers: Vec<String> = all().iter().flat_map(|(format, _)| format.markers()).map(str::to_owned).collect();
    let samples: Vec<&str> = all().iter().map(|(_, text)| *text).collect();
    prop_oneof![
        proptest::sample::select(markers),
        proptest::sample::select(samples)
            .prop_flat_map(|text| (0..=text.chars().count()).prop_map(move |end| text.chars().take(end).collect())),
        proptest::sample::select(vec![
            "f", "\"", "{", "}", "[", "]", ":", ",", "\n", " ", "\\", "=", "(", ")", "'", "1", "-", "\\u", "null"
        ])
        .prop_map(str::to_owned),
        any::<String>(),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// Whatever the model writes: no panic, the same for every split, and complete calls are JSON.
    #[test]
    fn any_text_is_parsed_alike_in_all_pieces(parts in prop::collection::vec(fragments(), 0..8), tail in any::<bool>()) {
        let text = parts.concat();
        let prompt_tail = if tail { "<think>\n".to_owned() } else { String::new() };
        let options = ParserOptions { prompt_tail, ..options() };
        for entry in ENTRIES {
            parse_with(&format_of(entry), &options, &text);
        }
        parse_with(&json_format("<tool_call>", "</tool_call>"), &options, &text);
    }
}
