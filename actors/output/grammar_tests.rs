//! The grammars of calls in all notations: what they accept is read as calls that match their schema.

#![allow(clippy::unwrap_used)]

use cuelight_engine::constraint::{Constraint, ConstraintCompiler, Grammar, GrammarError};
use serde_json::{Value, json};

use super::delta::ToolSpec;
use super::options::ParserOptions;
use super::output_format::OutputFormat;
use super::samples::{format_of, parse_with};
use super::table::ENTRIES;
use crate::pipeline::simulation::tokenizer;

const FORMATS: [&str; 12] = [
    "qwen3-coder",
    "glm",
    "deepseek-v3.2",
    "minimax-m2",
    "minicpm5",
    "kimi-k3",
    "seed-oss",
    "hunyuan-3",
    "gemma-4",
    "functiongemma",
    "lfm2",
    "ministral",
];

fn format(name: &str) -> OutputFormat {
    format_of(ENTRIES.iter().find(|entry| entry.name == name).unwrap())
}

fn tool(parameters: &Value, is_strict: bool) -> Vec<ToolSpec> {
    vec![ToolSpec { name: "f".to_owned(), parameters: parameters.clone(), is_strict }]
}

fn compiled(format: &OutputFormat, parameters: &Value, is_strict: bool) -> Result<Constraint, GrammarError> {
    let lark = format.call_grammar(&tool(parameters, is_strict), false, &[], false)?.unwrap();
    ConstraintCompiler::new(tokenizer(), tokenizer().vocab_size()).compile(&Grammar::Lark(lark))
}

/// A text that the constraint accepts, by random choices that end soon.
fn random_text(constraint: &Constraint, seed: u64) -> Option<String> {
    let tokenizer = tokenizer();
    let (mut state, mut random) = (constraint.start(), seed);
    let mut tokens = Vec::new();
    for _ in 0..2000 {
        let mask = state.mask().unwrap();
        let allowed: Vec<u32> = (0..tokenizer.vocab_size() as u32).filter(|&token| mask.allows(token)).collect();
        if allowed.iter().any(|token| tokenizer.end_of_generation().contains(token)) {
            return Some(tokenizer.decode(&tokens, true));
        }
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let token = allowed[(random >> 33) as usize % allowed.len()];
        state.accept(token).unwrap();
        tokens.push(token);
    }
    None
}

/// The arguments of random calls that a grammar accepts.
fn arguments(name: &str, parameters: &Value, is_strict: bool) -> Vec<Value> {
    let format = format(name);
    let constraint =
        compiled(&format, parameters, is_strict).unwrap_or_else(|error| panic!("{name}: {error}: {parameters}"));
    let options = ParserOptions {
        parse_reasoning: false,
        parse_tool_calls: true,
        unmarked_calls: None,
        tools: tool(parameters, is_strict).into(),
        prompt_tail: String::new(),
    };
    let read = |text: String| {
        let answer = parse_with(&format, &options, &text);
        assert!(answer.calls.len() == 1 && answer.text.trim().is_empty(), "{name}: {text:?} gave {answer:?}");
        serde_json::from_str(&answer.calls[0].1).unwrap()
    };
    let all: Vec<Value> = (0..6).filter_map(|seed| random_text(&constraint, seed)).map(read).collect();
    assert!(!all.is_empty(), "{name}: {parameters}");
    all
}

fn required(property: Value) -> Value {
    json!({
        "type": "object", "properties": { "a": property }, "required": ["a"], "additionalProperties": false,
        "$defs": { "colour": { "type": "string", "enum": ["red", "dark blue", "12", ""] } },
    })
}

/// What a value must be.
type Check<'a> = &'a dyn Fn(&Value) -> bool;
/// What a text must be.
type TextCheck = fn(&str) -> bool;

#[test]
fn values_match_their_schema_in_every_notation() {
    let is_colour = |value: &Value| ["red", "dark blue", "12", ""].iter().any(|colour| value == colour);
    let cases: [(Value, Check<'_>); 8] = [
        (json!({ "$ref": "#/$defs/colour" }), &is_colour),
        (json!({ "allOf": [{ "$ref": "#/$defs/colour" }], "description": "x" }), &is_colour),
        (json!({ "anyOf": [{ "$ref": "#/$defs/colour" }, { "type": "null" }] }), &|value| {
            value.is_null() || is_colour(value)
        }),
        (json!({ "const": "on" }), &|value| value == "on"),
        (json!({ "enum": ["x", 1, null] }), &|value| value == "x" || value == 1 || value.is_null()),
        (json!({ "type": ["integer", "null"] }), &|value| value.is_number() || value.is_null()),
        (json!({ "type": "array", "items": { "$ref": "#/$defs/colour" }, "maxItems": 2 }), &|value| {
            value.as_array().unwrap().iter().all(is_colour)
        }),
        (required(json!({ "$ref": "#/$defs/colour" })), &|value| is_colour(&value["a"])),
    ];
    for name in FORMATS {
        for (property, is_valid) in &cases {
            for is_strict in [true, false] {
                for arguments in arguments(name, &required(property.clone()), is_strict) {
                    assert!(is_valid(&arguments["a"]), "{name}: {arguments} {property}");
                }
            }
        }
    }
}

#[test]
fn texts_of_strict_tools_are_within_their_limits() {
    let cases: [(Value, TextCheck); 3] = [
        (json!({ "type": "string", "minLength": 2, "maxLength": 3 }), |text| (2..=3).contains(&text.chars().count())),
        (json!({ "type": "string", "pattern": "^[ab]{2}$" }), |text| text.len() == 2),
        (json!({ "anyOf": [{ "type": "string", "pattern": "^[ab]{2}$" }, { "const": "</parameter>" }] }), |text| {
            text.len() == 2 || text == "</parameter>"
        }),
    ];
    for name in FORMATS {
        for (property, is_valid) in &cases {
            for arguments in arguments(name, &required(property.clone()), true) {
                assert!(is_valid(arguments["a"].as_str().unwrap()), "{name}: {arguments} {property}");
            }
        }
    }
}

#[test]
fn what_a_notation_cannot_enforce_is_refused_for_strict_tools_only() {
    let not = json!({ "type": "string", "not": { "const": "x" } });
    let format_of_text = json!({ "type": "string", "format": "date" });
    let mixed = json!({ "anyOf": [{ "type": "string" }, { "type": "integer", "maximum": 3 }] });
    for property in [not, format_of_text, mixed] {
        for name in ["qwen3-coder", "glm", "minimax-m2"] {
            let error = compiled(&format(name), &required(property.clone()), true).unwrap_err().to_string();
            assert!(error.contains("`f`") && error.contains("#/properties/a"), "{error}");
            assert!(compiled(&format(name), &required(property.clone()), false).is_ok());
        }
    }
    for name in FORMATS {
        let parameters = json!({ "type": "object", "properties": { "a": {} }, "minProperties": 1 });
        assert!(compiled(&format(name), &parameters, false).is_ok(), "{name}");
        assert!(name == "ministral" || compiled(&format(name), &parameters, true).is_err(), "{name}");
        let nothing = json!({ "type": "object", "properties": { "a": false }, "required": ["a"] });
        assert!(compiled(&format(name), &nothing, false).is_err(), "{name}");
    }
}

#[test]
fn parameters_come_from_all_parts_of_a_schema() {
    let zip = json!({ "type": "object", "properties": { "zip": { "enum": ["10001"], "type": "string" } }, "required": ["zip"], "additionalProperties": false });
    let schemas = [
        json!({ "$ref": "#/definitions/X", "definitions": { "X": zip } }),
        json!({ "allOf": [zip] }),
        json!({ "anyOf": [zip, zip] }),
        json!({ "type": "object", "additionalProperties": { "const": "10001" }, "required": ["zip"] }),
    ];
    for name in FORMATS {
        for schema in &schemas {
            for arguments in arguments(name, schema, false) {
                assert_eq!(arguments["zip"], "10001", "{name}: {schema}");
            }
        }
    }
}

#[test]
fn one_tool_does_not_make_another_strict() {
    let lenient = json!({ "$schema": "http://json-schema.org/schema#", "type": "object", "properties": { "n": { "type": "string", "pattern": "(?=x)y" } } });
    let tools = [tool(&json!({}), true), tool(&lenient, false)].concat();
    for name in ["ministral", "mistral-nemo", "command-r7b", "qwen3-coder", "gemma-4", "lfm2"] {
        let lark = format(name).call_grammar(&tools, true, &[], false).unwrap().unwrap();
        let compiler = ConstraintCompiler::new(tokenizer(), tokenizer().vocab_size());
        assert!(compiler.compile(&Grammar::Lark(lark)).is_ok(), "{name}");
        let is_refused = compiled(&format(name), &lenient, true).is_err();
        assert!(is_refused, "{name}");
    }
}
