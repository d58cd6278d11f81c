//! Tests of calls of strict tools without the markers of the format.

use std::sync::Arc;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::argument_checks::ArgumentChecks;
use super::delta::{Delta, ToolSpec};
use super::options::ParserOptions;
use super::output_format::OutputFormat;
use super::parser::OutputParser;
use super::samples::{Answer, json_format, options, parse_with};

fn hermes() -> OutputFormat {
    json_format("<tool_call>", "</tool_call>")
}

/// The strict tool `f` with a schema, and `g`, which is not strict and needs an integer `n`.
fn with_schema(schema: Value) -> ParserOptions {
    let of_g = json!({ "type": "object", "properties": { "n": { "type": "integer" } }, "required": ["n"] });
    let tool = |name: &str, parameters, is_strict| ToolSpec { name: name.to_owned(), parameters, is_strict };
    let tools: Arc<[ToolSpec]> = [tool("f", schema, true), tool("g", of_g, false)].into();
    let checks = ArgumentChecks::of(&tools).unwrap_or_else(|error| panic!("{error}"));
    ParserOptions { unmarked_calls: Some(checks), tools, ..options() }
}

/// As Pydantic writes the schema of `f(city: str, unit: Literal["c", "f"], day: Day | None, places: list[Place])`.
fn weather() -> ParserOptions {
    with_schema(json!({
        "$defs": {
            "Day": { "type": "object", "properties": { "day": { "type": "integer", "minimum": 1 }, "of": { "type": "string" } },
                     "required": ["day", "of"], "additionalProperties": false },
            "Place": { "type": "object", "properties": { "name": { "type": "string" }, "within": {
                         "anyOf": [{ "$ref": "#/$defs/Place" }, { "type": "null" }] } },
                       "required": ["name", "within"], "additionalProperties": false },
        },
        "type": "object",
        "properties": {
            "city": { "type": "string", "description": "its name" },
            "unit": { "enum": ["c", "f"], "type": "string" },
            "day": { "anyOf": [{ "$ref": "#/$defs/Day" }, { "type": "null" }] },
            "places": { "type": "array", "items": { "$ref": "#/$defs/Place" } },
        },
        "required": ["city", "unit", "day", "places"],
        "additionalProperties": false,
    }))
}

const RIGHT: &str = r#"{"city": "Rome", "unit": "c", "day": null, "places": []}"#;

fn call(arguments: &str) -> String {
    format!("{{\"name\": \"f\", \"arguments\": {arguments}}}")
}

fn parse(options: &ParserOptions, text: &str) -> (Vec<(String, String)>, String) {
    let answer = parse_with(&hermes(), options, text);
    (answer.calls, answer.text)
}

fn called(arguments: &str) -> (String, String) {
    ("f".to_owned(), arguments.to_owned())
}

#[test]
fn a_call_with_arguments_of_the_schema_is_read() {
    for arguments in [
        RIGHT,
        r#"{"places":[],"day":null,"unit":"f","city":""}"#,
        "{\n    \"day\" :\t{\"of\": \"May\", \"day\": 1},\r\n    \"unit\": \"c\", \"city\": \"R\\u00f3me\", \"places\": [ ]\n}",
        r#"{"city": "Rome", "unit": "c", "day": {"day": 31.0, "of": "May"}, "places": [{"within": {"name": "a: b", "within": null}, "name": "c"}]}"#,
    ] {
        let one = call(arguments);
        for text in [
            one.clone(),
            format!("{{{one}}}"),
            format!("```json\n{one}\n```"),
            format!("```\n[{one}]\n```"),
            format!("<tools>\n{one}\n</tools>"),
            format!("{{\"arguments\": {arguments}, \"name\": \"f\"}}"),
        ] {
            assert_eq!(parse(&weather(), &text), (vec![called(arguments)], String::new()), "{text}");
        }
    }
}

#[test]
fn a_call_with_other_arguments_stays_text() {
    for arguments in [
        "{}",
        "null",
        r#"{"city": "Rome", "unit": "c", "day": null}"#,
        r#"{"city": "Rome", "unit": "c", "day": null, "places": [], "more": 1}"#,
        r#"{"city": 1, "unit": "c", "day": null, "places": []}"#,
        r#"{"city": "Rome", "unit": "k", "day": null, "places": []}"#,
        r#"{"city": "Rome", "unit": "c", "day": {"day": 0, "of": "May"}, "places": []}"#,
        r#"{"city": "Rome", "unit": "c", "day": {"day": 1}, "places": []}"#,
        r#"{"city": "Rome", "unit": "c", "day": null, "places": {}}"#,
        r#"{"city": "Rome", "unit": "c", "day": null, "places": [{"name": "a", "within": {"name": null, "within": null}}]}"#,
        r#"{"city": 5, "unit": "c", "day": null, "places": [], "city": "Rome"}"#,
        r#"{"city": "Rome", "unit": "c", "day": null, "places": [{"name": "a", "name": "b", "within": null}]}"#,
    ] {
        let one = call(arguments);
        for text in [
            one.clone(),
            format!("{{{one}}}"),
            format!("Here:\n\n```json\n{one}\n```\n\nDone."),
            format!("```\n[{one}]\n```"),
            format!("{{\"arguments\": {arguments}, \"name\": \"f\"}}"),
        ] {
            assert_eq!(parse(&weather(), &text), (vec![], text.clone()), "{text}");
        }
    }
}

#[test]
fn each_of_several_calls_is_checked() {
    let (good, bad) = (call(RIGHT), call("{}"));
    let of_g = r#"{"name": "g", "arguments": {"n": true}}"#;
    for (text, calls, rest) in [
        (format!("{good}\n{good}"), 2, String::new()),
        (format!("{good}\n{bad}"), 1, bad.clone()),
        (format!("{bad}\n{good}"), 1, bad.clone()),
        (format!("{bad}\n{bad}\n{good}\nDone."), 1, format!("{bad}\n{bad}Done.")),
        (format!("{good}\n{bad}\n{of_g}"), 2, bad.clone()),
        (format!("{bad}\n\nDone."), 0, format!("{bad}\n\nDone.")),
        (format!("```json\n{bad}\n```\n\n```json\n{good}\n```"), 1, format!("```json\n{bad}\n```")),
        (format!("```json\n[{good}, {bad}]\n```"), 1, format!(", {bad}]\n```")),
        (format!("<tool_call>\n{of_g}\n</tool_call>\n{bad}"), 1, bad.clone()),
        (format!("<tool_call>\n{of_g}\n</tool_call>\n{good}"), 2, String::new()),
    ] {
        let (called, text_around) = parse(&weather(), &text);
        assert_eq!((called.len(), text_around.as_str()), (calls, rest.as_str()), "{text}");
    }
}

#[test]
fn a_call_that_was_cut_off_stays_text() {
    let one = format!("```json\n{}\n```", call(RIGHT));
    let complete = one.rfind('}').expect("an object");
    for end in (0..=complete).filter(|end| one.is_char_boundary(*end)) {
        assert_eq!(parse(&weather(), &one[..end]), (vec![], one[..end].to_owned()));
    }
    assert_eq!(parse(&weather(), &one[..=complete]), (vec![called(RIGHT)], String::new()));
}

#[test]
fn a_call_begins_when_it_is_complete_and_those_of_other_tools_at_once() {
    let (format, text) = (hermes(), call(RIGHT));
    let mut parser = OutputParser::new(&format, weather());
    let mut out = Vec::new();
    parser.push(&text[..text.len() - 1], &mut out);
    assert!(out.is_empty() && !parser.has_called(), "{out:?}");
    parser.push("}", &mut out);
    let [Delta::ToolCallStart { index: 0, name, .. }, Delta::ToolCallArguments { index: 0, fragment }] = &out[..]
    else {
        panic!("{out:?}")
    };
    assert_eq!((name.as_str(), fragment.as_str()), ("f", RIGHT));

    let mut out = Vec::new();
    OutputParser::new(&format, weather()).push(r#"{"name": "g", "arguments": {"n": "#, &mut out);
    assert_eq!(Answer::of(&out).calls, [("g".to_owned(), "{\"n\": ".to_owned())]);
}

#[test]
fn arguments_that_are_no_json_are_checked_as_what_they_stand_for() {
    let text = "{'name': 'f', 'arguments': {'city': 'Rome', 'unit': 'c', 'day': None, 'places': [],}}";
    let expected = r#"{"city": "Rome", "unit": "c", "day": null, "places": []}"#;
    assert_eq!(parse(&weather(), text), (vec![called(expected)], String::new()));
    let quoted = json!({ "name": "f", "arguments": RIGHT }).to_string();
    assert_eq!(parse(&weather(), &quoted), (vec![called(RIGHT)], String::new()));
}

#[test]
fn a_strict_tool_without_a_check_has_no_unmarked_calls() {
    let unchecked = ParserOptions { unmarked_calls: Some(ArgumentChecks::default()), ..weather() };
    let text = call(RIGHT);
    assert_eq!(parse(&unchecked, &text), (vec![], text.clone()));
    let constrained = ParserOptions { unmarked_calls: None, ..weather() };
    assert_eq!(parse(&constrained, &text), (vec![], text));
}

#[test]
fn calls_with_markers_are_left_to_the_grammar() {
    let (calls, text) = parse(&weather(), &format!("<tool_call>\n{}\n</tool_call>", call("{}")));
    assert_eq!((calls, text.as_str()), (vec![called("{}")], ""));
}

/// The schema of one argument, with values of it and others.
#[test]
fn all_keywords_are_checked() {
    let cases = [
        (json!({ "type": ["string", "null"] }), r#""a""#, "1"),
        (json!({ "const": { "a": [1, 2.0] } }), r#"{"a": [1.0, 2]}"#, r#"{"a": [2, 1]}"#),
        (json!({ "enum": [1, "1", null] }), "1.0", "true"),
        (json!({ "type": "integer", "exclusiveMinimum": 0, "multipleOf": 3 }), "9", "10"),
        (json!({ "type": "number", "maximum": 1 }), "-1e3", "1.5"),
        (json!({ "type": "string", "minLength": 2, "maxLength": 3 }), r#""\ud83d\ude00a""#, r#""a""#),
        (json!({ "type": "string", "pattern": "^[A-Z]{2}-\\d+$" }), r#""AB-12""#, r#""ab-12""#),
        (json!({ "type": "string", "format": "date" }), r#""2026-02-28""#, r#""2026-02-30""#),
        (
            json!({ "type": "array", "minItems": 1, "maxItems": 2, "items": { "type": "integer" } }),
            "[1, 2]",
            "[1, 2, 3]",
        ),
        (json!({ "type": "array", "prefixItems": [{ "type": "string" }], "items": false }), r#"["a"]"#, r#"["a", 1]"#),
        (
            json!({ "type": "object", "patternProperties": { "^x": { "type": "integer" } }, "additionalProperties": false }),
            r#"{"x1": 1}"#,
            r#"{"y": 1}"#,
        ),
        (
            json!({ "type": "object", "additionalProperties": { "type": "string" }, "minProperties": 1 }),
            r#"{"a": "b"}"#,
            "{}",
        ),
        (json!({ "oneOf": [{ "type": "integer" }, { "type": "string" }] }), "1", "1.5"),
        (
            json!({ "allOf": [{ "required": ["a"] }, { "properties": { "a": { "type": "null" } } }], "type": "object" }),
            r#"{"a": null}"#,
            r#"{"a": 1}"#,
        ),
        (
            json!({ "anyOf": [{ "type": "object", "properties": { "kind": { "const": "a" }, "n": { "type": "integer" } },
                             "required": ["kind", "n"], "additionalProperties": false },
                           { "type": "object", "properties": { "n": { "type": "string" }, "kind": { "const": "b" } },
                             "required": ["kind", "n"], "additionalProperties": false }] }),
            r#"{"kind": "b", "n": "1"}"#,
            r#"{"kind": "b", "n": 1}"#,
        ),
    ];
    for (schema, right, wrong) in cases {
        let options = with_schema(json!({ "type": "object", "properties": { "v": schema }, "required": ["v"] }));
        let written = |value: &str| call(&format!("{{\"v\": {value}}}"));
        assert_eq!(parse(&options, &written(right)).0.len(), 1, "{schema} {right}");
        assert_eq!(parse(&options, &written(wrong)), (vec![], written(wrong)), "{schema}");
    }
}

#[test]
fn an_empty_array_is_text() {
    for text in ["```json\n[]", "```json\n[]\n```", "```\n[ ]```", "<tools>[]</tools>"] {
        assert_eq!(parse(&weather(), text), (vec![], text.to_owned()));
    }
}

#[test]
fn a_schema_that_cannot_be_checked_is_refused_with_its_place() {
    for (schema, place) in [
        (json!({ "not": {} }), "#/not: "),
        (json!({ "properties": { "a/b": { "uniqueItems": true } } }), "#/properties/a~1b/uniqueItems: "),
        (json!({ "properties": { "a": { "pattern": "(?=x)" } } }), "#/properties/a: "),
        (json!({ "properties": { "a": { "format": "color" } } }), "#/properties/a: "),
        (json!({ "$ref": "#/$defs/a" }), "#/$ref: "),
        (json!({ "$ref": "#/$defs/a", "$defs": { "a": { "type": "text" } } }), "#/$defs/a/type: "),
        (json!({ "items": [1] }), "#/items/0: "),
        (json!({ "minLength": -1 }), "#/minLength: "),
    ] {
        let tool = |is_strict| ToolSpec { name: "f".to_owned(), parameters: schema.clone(), is_strict };
        let error = ArgumentChecks::of(&[tool(true)]).expect_err("refused").to_string();
        assert!(error.starts_with(&format!("tool `f`, {place}")), "{error}");
        assert!(ArgumentChecks::of(&[tool(false)]).is_ok(), "only those of strict tools are checked");
    }
    assert!(
        ArgumentChecks::of(&[ToolSpec {
            name: "f".to_owned(),
            parameters: json!({ "$defs": { "unused": { "not": {} } }, "items": { "uniqueItems": false } }),
            is_strict: true,
        }])
        .is_ok()
    );
}

#[test]
fn references_to_themselves_end_and_deep_values_take_little_time() {
    let options = with_schema(json!({ "$ref": "#" }));
    assert!(parse(&options, &call("{}")).0.is_empty());
    let either = json!({ "properties": { "c": { "$ref": "#/$defs/s" } }, "additionalProperties": false });
    let options = with_schema(json!({ "$ref": "#/$defs/s", "$defs": { "s": {
        "anyOf": [{ "allOf": [either, { "required": ["x"] }] }, either] } } }));
    let deep_value = |levels: usize| (0..levels).fold("{}".to_owned(), |inner, _| format!("{{\"c\": {inner}}}"));
    let deep = deep_value(80);
    assert_eq!(parse(&options, &call(&deep)).0.len(), 1);
    assert!(parse(&options, &call(&deep.replacen("{}", "{\"d\": 1}", 1))).0.is_empty());
    assert!(parse(&options, &call(&deep_value(115))).0.is_empty(), "a depth that is not compared");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// The same for every split; and calls of the strict tool match its schema.
    #[test]
    fn any_text_is_parsed_alike_in_all_pieces(parts in prop::collection::vec(prop::sample::select(vec![
        "```json\n", "```", "\n", "[", "]", ", ", "{", "}", "<tools>", "<tool_call>", "</tool_call>", "a ", RIGHT,
        r#"{"name": "f", "arguments": "#, r#"{"name": "f", "arguments": {}}"#, r#"{"name": "g", "arguments": {"n": 1}}"#,
        r#"{"name": "f", "arguments": {"city": "Rome", "unit": "c", "day": null, "places": []}}"#,
    ]), 0..9)) {
        let text = parts.concat();
        let (calls, rest) = parse(&weather(), &text);
        if !text.contains("<tool_call>") {
            let is_valid = |(name, arguments): &(String, String)| name == "g" || arguments == RIGHT;
            prop_assert!(calls.iter().all(is_valid), "{text:?}: {calls:?}");
            prop_assert!(!calls.is_empty() || rest == text, "{text:?}: {rest:?}");
        }
    }
}
