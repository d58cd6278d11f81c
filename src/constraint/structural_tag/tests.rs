//! Which texts structural tags accept, and what they refuse.

#![allow(clippy::unwrap_used)]

use serde_json::{Value, json};

use super::super::compiler::Constraint;
use super::super::grammar::Grammar;
use super::super::testing::{accepts, compiler, refusal};

fn compile(tag: &Value) -> Constraint {
    compiler().compile(&Grammar::StructuralTag(tag.clone())).unwrap_or_else(|error| panic!("{error}: {tag}"))
}

fn of(format: Value) -> Constraint {
    compile(&json!({ "type": "structural_tag", "format": format }))
}

fn check(constraint: &Constraint, accepted: &[&str], refused: &[&str]) {
    for text in accepted {
        assert!(accepts(constraint, text), "{text:?} must be accepted");
    }
    for text in refused {
        assert!(!accepts(constraint, text), "{text:?} must not be accepted");
    }
}

/// `{"a": integer}`, and nothing else.
fn schema() -> Value {
    json!({ "type": "object", "properties": { "a": { "type": "integer" } }, "required": ["a"], "additionalProperties": false })
}

fn tag(name: &str) -> Value {
    let content = json!({ "type": "json_schema", "json_schema": schema() });
    json!({ "type": "tag", "begin": format!("<f={name}>"), "content": content, "end": "</f>" })
}

#[test]
fn tags_in_free_text_match_their_schemas() {
    let older = json!({
        "structures": [
            { "begin": "<f=x>", "schema": schema(), "end": "</f>" },
            { "begin": "<f=y>", "schema": { "type": "boolean" }, "end": "</f>" },
        ],
        "triggers": ["<f="],
    });
    check(
        &compile(&older),
        &["", "plain < text", "say <f=x>{\"a\": 1}</f> and <f=y>true</f>.", "<f=y>false</f>"],
        &["<f=z>1</f>", "<f=x>true</f>", "a <f=y>{\"a\": 1}</f>", "<f=x>{\"a\": 1}"],
    );
}

#[test]
fn tags_may_be_demanded_and_end_the_text() {
    let format = |at_least_one, stop_after_first| {
        of(json!({
            "type": "triggered_tags", "triggers": ["<f="], "tags": [tag("x"), tag("y")],
            "at_least_one": at_least_one, "stop_after_first": stop_after_first,
        }))
    };
    let (one, more) = ("<f=x>{\"a\": 1}</f>", "<f=x>{\"a\": 1}</f> <f=y>{\"a\": 2}</f>!");
    check(&format(true, false), &[one, more], &["", "text"]);
    check(&format(true, true), &[one], &["", "text", more]);
    check(&format(false, true), &[one, "text", "text <f=x>{\"a\": 1}</f>"], &[more]);
}

#[test]
fn tags_with_separators_are_lists() {
    let format = |at_least_one| {
        of(json!({
            "type": "tags_with_separator", "tags": [tag("x"), tag("y")], "separator": ";", "at_least_one": at_least_one,
        }))
    };
    let (one, two) = ("<f=x>{\"a\": 1}</f>", "<f=x>{\"a\": 1}</f>;<f=y>{\"a\": 2}</f>");
    check(&format(false), &["", one, two], &[";", "<f=x>{\"a\": 1}</f>;"]);
    check(&format(true), &[one, two], &[""]);
}

#[test]
fn formats_combine() {
    let thought =
        json!({ "type": "tag", "begin": "<think>", "content": { "type": "any_text" }, "end": ["</think>", "</t>"] });
    let number = json!({ "type": "regex", "pattern": "[0-9]+" });
    let word = json!({ "type": "grammar", "grammar": "root ::= \"yes\" | \"no\"" });
    let answer = json!({ "type": "or", "elements": [number, word] });
    let repeated = json!({ "type": "repeat", "min": 1, "max": 2, "content": { "type": "const_string", "value": "!" } });
    let format =
        of(json!({ "type": "sequence", "elements": [{ "type": "optional", "content": thought }, answer, repeated] }));
    check(
        &format,
        &["12!", "yes!!", "<think>a < b </x> </think>no!", "<think></t>7!"],
        &["12", "yes!!!", "<think>no!", "maybe!", ""],
    );
    let dispatch = of(json!({
        "type": "dispatch",
        "rules": [["n=", { "type": "regex", "pattern": "[0-9]" }], ["w=", { "type": "const_string", "value": "x" }]],
    }));
    check(&dispatch, &["a n=1 b w=x n=2", ""], &["n=a", "w=y"]);
}

#[test]
fn what_cannot_be_enforced_is_refused_with_its_place() {
    let any = json!({ "type": "any_text" });
    for (format, place) in [
        (json!({ "type": "token", "token": 3 }), "#/format"),
        (json!({ "type": "any_text", "excludes": ["a"] }), "#/format/excludes"),
        (json!({ "type": "sequence", "elements": [any, { "type": "const_string" }] }), "#/format/elements/1"),
        (json!({ "type": "json_schema", "json_schema": { "not": {} }, "style": "qwen_xml" }), "#/format/style"),
        (json!({ "type": "json_schema", "json_schema": { "uniqueItems": true } }), "#/format/json_schema/uniqueItems"),
        (json!({ "type": "triggered_tags", "triggers": [], "tags": [] }), "#/format/triggers"),
        (json!({ "type": "triggered_tags", "triggers": ["<g="], "tags": [tag("x")] }), "#/format/tags/0"),
        (json!({ "type": "repeat", "min": 3, "max": 2, "content": any }), "#/format"),
    ] {
        let (pointer, message) = refusal(Grammar::StructuralTag(json!({ "format": format })));
        assert_eq!(pointer.as_deref(), Some(place), "{message}");
    }
    let ambiguous = json!({ "type": "sequence", "elements": [any, { "type": "regex", "pattern": "a" }] });
    assert!(refusal(Grammar::StructuralTag(json!({ "format": ambiguous }))).1.contains("any_text"));
    assert!(refusal(Grammar::StructuralTag(json!({ "tags": [] }))).1.contains("`format`"));
    let mut deep = any;
    for _ in 0..100 {
        deep = json!({ "type": "optional", "content": deep });
    }
    assert!(refusal(Grammar::StructuralTag(json!({ "format": deep }))).1.contains("levels"));
}
