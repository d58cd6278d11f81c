//! Tests over a vocabulary of single bytes: which texts a grammar accepts, and what it refuses.

#![allow(clippy::unwrap_used)]

use std::collections::VecDeque;

use serde_json::json;

use super::super::lark_of_schema;
use super::super::testing::{END, accepts, compiler, refusal};
use super::*;
use crate::engine::TokenId;

#[test]
fn a_schema_allows_its_instances_only() {
    let schema = json!({
        "type": "object",
        "properties": { "name": { "type": "string" }, "age": { "type": "integer", "minimum": 0 } },
        "required": ["name", "age"],
        "additionalProperties": false,
    });
    let constraint = compiler().compile(&Grammar::JsonSchema(schema)).unwrap();
    assert!(accepts(&constraint, r#"{"name":"Åsa","age":7}"#));
    assert!(accepts(&constraint, "{\n  \"name\": \"\\n\",\n  \"age\": 0}"));
    for text in ["", "{}", r#"{"name":"a"}"#, r#"{"name":"a","age":-1}"#, r#"{"name":"a","age":1,"x":1}"#, "[]", " {"] {
        assert!(!accepts(&constraint, text), "{text}");
    }
}

#[test]
fn white_space_is_bounded() {
    let constraint = compiler().compile(&Grammar::JsonObject).unwrap();
    for text in ["{}", "{  }", "{\n}", "{\r\n\t}", &format!("{{\n{}}}", " ".repeat(20))] {
        assert!(accepts(&constraint, text), "{text:?}");
    }
    for text in ["{   }", "{\n\n}", "{\t}", &format!("{{\n{}}}", " ".repeat(21))] {
        assert!(!accepts(&constraint, text), "{text:?}");
    }
}

#[test]
fn every_kind_of_grammar_is_compiled() {
    let compiler = compiler();
    for (grammar, good, bad) in [
        (Grammar::JsonObject, r#"{"a":[1,null]}"#, "[1]"),
        (Grammar::Regex(r"\d{3}-[a-z]+".into()), "123-ab", "12-ab"),
        (Grammar::Choice(vec!["yes".into(), "no \"x\"".into()]), "no \"x\"", "no"),
        (Grammar::Lark("start: \"a\" NUMBER+\nNUMBER: /[0-9]/".into()), "a12", "a"),
        (Grammar::Gbnf("root ::= \"a\" list\nlist ::= (\"-\" .){2,}".into()), "a-x-\n", "a-x"),
    ] {
        let constraint = compiler.compile(&grammar).unwrap();
        assert!(accepts(&constraint, good), "{grammar:?} {good}");
        assert!(!accepts(&constraint, bad), "{grammar:?} {bad}");
    }
}

#[test]
fn a_complete_text_allows_the_end_only() {
    let constraint = compiler().compile(&Grammar::Choice(vec!["a".into()])).unwrap();
    let mut state = constraint.start();
    assert!(!state.is_accepting());
    assert_eq!(state.mask().unwrap().only(), Some(TokenId::from(b'a')));
    state.accept(TokenId::from(b'a')).unwrap();
    assert!(state.is_complete() && state.is_accepting());
    assert_eq!(state.mask().unwrap().only(), Some(END));
    state.accept(END).unwrap();
}

#[test]
fn a_token_that_is_not_allowed_is_an_error_from_then_on() {
    let mut state = compiler().compile(&Grammar::Regex("ab".into())).unwrap().start();
    assert!(state.accept(TokenId::from(b'x')).is_err());
    assert!(state.mask().is_err() && !state.is_complete());
}

#[test]
fn what_cannot_be_enforced_is_refused_with_its_place() {
    let schema = json!({ "type": "object", "properties": { "a": { "type": "array", "contains": { "const": 1 } } } });
    let (pointer, message) = refusal(Grammar::JsonSchema(schema));
    assert_eq!(pointer.as_deref(), Some("#/properties/a/contains"), "{message}");
    let schema = json!({ "properties": { "a": { "type": "string", "pattern": "(?=x)y" } } });
    let (pointer, message) = refusal(Grammar::JsonSchema(schema));
    assert_eq!(pointer.as_deref(), Some("#/properties/a/pattern"), "{message}");
    assert!(message.contains("look-around"), "{message}");
    assert!(refusal(Grammar::Regex("(".into())).1.len() < 400);
    assert!(refusal(Grammar::Lark("start: missing".into())).1.contains("missing"));
    assert!(refusal(Grammar::Choice(Vec::new())).1.contains("at least one"));
}

#[test]
fn keywords_that_restrict_nothing_are_no_reason_to_refuse() {
    let schema = json!({
        "type": "object",
        "properties": { "a": { "type": "array", "items": { "type": "integer" }, "uniqueItems": false } },
        "unevaluatedProperties": true,
        "dependentRequired": {},
        "additionalProperties": false,
    });
    let constraint = compiler().compile(&Grammar::JsonSchema(schema)).unwrap();
    assert!(accepts(&constraint, r#"{"a": [1, 1]}"#) && !accepts(&constraint, r#"{"a": ["x"]}"#));
}

#[test]
fn a_property_has_no_other_spelling() {
    let schema = json!({ "type": "object", "properties": { "a": { "type": "integer" } } });
    let lark = format!("start: {}", lark_of_schema(&schema, true));
    for grammar in [Grammar::JsonSchema(schema), Grammar::Lark(lark)] {
        let constraint = compiler().compile(&grammar).unwrap();
        assert!(accepts(&constraint, r#"{"a": 1, "b\n": "\n\t\b\f\r\"\\ å😀"}"#));
        for text in [r#"{"a": 1, "\u0061": "x"}"#, r#"{"\u0061": "x"}"#, r#"{"a": 1, "a": "x"}"#, r#"{"a": "x"}"#] {
            assert!(!accepts(&constraint, text), "{text}");
        }
    }
}

#[test]
fn a_lenient_schema_loses_only_what_cannot_be_enforced() {
    let schema = json!({
        "$schema": "http://json-schema.org/schema#",
        "type": "object",
        "properties": { "n": { "type": "string", "pattern": "^(?!^[-+.]*$)[+-]?0*\\d*\\.?\\d*$", "maxLength": 3 } },
        "patternProperties": { "(?=x)": { "type": "string" } },
        "required": ["n"],
        "additionalProperties": false,
    });
    let compile =
        |is_lenient| compiler().compile(&Grammar::Lark(format!("start: {}", lark_of_schema(&schema, is_lenient))));
    let lenient = compile(true).unwrap();
    assert!(accepts(&lenient, r#"{"n": "1.5"}"#) && !accepts(&lenient, r#"{"n": "12.5"}"#));
    assert!(compile(false).is_err());
}

#[test]
fn a_grammar_is_compiled_once() {
    let compiler = compiler();
    let first = compiler.compile(&Grammar::JsonObject).unwrap();
    let second = compiler.compile(&Grammar::JsonObject).unwrap();
    assert!(Arc::ptr_eq(&first.0, &second.0));
    for number in 0..2 * CACHED {
        compiler.compile(&Grammar::Choice(vec![number.to_string()])).unwrap();
    }
    assert_eq!(compiler.cache.lock().unwrap().len(), CACHED);
}

#[test]
fn a_mask_leaves_only_allowed_logits() {
    let mut state = compiler().compile(&Grammar::Regex("[ab]".into())).unwrap().start();
    let mut logits = vec![1.0f32; 260];
    state.mask().unwrap().apply(&mut logits);
    let kept: Vec<usize> = (0..260).filter(|&token| logits[token] > f32::NEG_INFINITY).collect();
    assert_eq!(kept, [usize::from(b'a'), usize::from(b'b')]);
}

#[test]
fn a_grammar_of_calls_may_contain_any_other_grammar() {
    let schema = json!({
        "type": "object", "properties": { "n": { "type": "integer" } }, "required": ["n"], "additionalProperties": false
    });
    let answers = [
        (Grammar::JsonSchema(schema), "{\"n\": 12}"),
        (Grammar::Regex("[0-9]{3}".into()), "123"),
        (Grammar::Choice(vec!["yes".into(), "no".into()]), "no"),
        (Grammar::Gbnf("root ::= \"{\" [a-z]+".into()), "{abc"),
    ];
    let object = r#"%json {"type": "object", "properties": {"name": {"const": "f"}}, "required": ["name"], "additionalProperties": false}"#;
    for (lark, call) in [
        (
            format!("start: \"<call>\" WS {object} WS \"</call>\" | @answer\nWS: / ?/"),
            "<call>{\"name\": \"f\"} </call>",
        ),
        (format!("start: {object} | @answer"), "{\"name\": \"f\"}"),
    ] {
        for (answer, text) in &answers {
            let whole = Grammar::Around { lark: lark.clone(), answer: Box::new(answer.clone()) };
            let constraint = compiler().compile(&whole).unwrap();
            assert!(accepts(&constraint, call) && accepts(&constraint, text), "{answer:?}");
            for wrong in [&format!("{text}{call}"), "<call>{\"n\": 1}</call>", "text", "{\"name\": 1}"] {
                assert!(!accepts(&constraint, wrong), "{answer:?} {wrong}");
            }
        }
    }
}

#[test]
fn the_memory_of_an_expression_with_many_states_is_bounded() {
    // After n letters an automaton without a limit has about two states for each of them.
    let constraint = compiler().compile(&Grammar::Regex("(a|b)*a(a|b){20}".into())).unwrap();
    let mut state = constraint.start();
    let mut random = 1_u64;
    let end = (0..MAX_STATES).find_map(|_| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let letter = if random >> 63 == 0 { b'a' } else { b'b' };
        state.mask().and_then(|_| state.accept(letter.into())).err()
    });
    assert!(end.unwrap().to_string().contains("too many states"));
}

/// Walks through texts that a grammar allows, with one state that is asked for forced tokens and one that is not.
#[test]
fn forced_tokens_are_all_that_the_masks_allow() {
    let schema = json!({
        "type": "object",
        "properties": {
            "first name": { "type": "string", "maxLength": 6 },
            "colour": { "enum": ["green", "grey"] },
            "sizes": { "type": "array", "items": { "type": "integer" }, "maxItems": 3 },
        },
        "required": ["first name", "colour", "sizes"],
        "additionalProperties": false,
    });
    let grammars = [
        Grammar::JsonSchema(schema),
        Grammar::Regex("(abc|abd)[0-9]{2}(end)?".into()),
        Grammar::Lark("start: \"begin\" (\"one\" | \"other\") \"end\"".into()),
    ];
    let mut forced_tokens = 0;
    for grammar in grammars {
        let constraint = compiler().compile(&grammar).unwrap();
        for walk in 0..8u32 {
            let (mut asked, mut plain) = (constraint.start(), constraint.start());
            let mut forced = VecDeque::new();
            for step in 0..200u32 {
                let allowed = allowed_tokens(&mut plain);
                if forced.is_empty() {
                    forced.extend(asked.forced_tokens());
                    forced_tokens += forced.len();
                }
                let token = match forced.pop_front() {
                    Some(token) => {
                        assert_eq!(allowed, [token]);
                        token
                    }
                    None => allowed[(walk * 7919 + step * 104_729) as usize % allowed.len()],
                };
                if token == END {
                    break;
                }
                asked.accept(token).unwrap();
                plain.accept(token).unwrap();
                assert!(!forced.is_empty() || allowed_tokens(&mut asked) == allowed_tokens(&mut plain));
            }
        }
    }
    assert!(forced_tokens > 100, "{forced_tokens}");
}

fn allowed_tokens(state: &mut ConstraintState) -> Vec<TokenId> {
    let mask = state.mask().unwrap();
    (0..=END).filter(|&token| mask.allows(token)).collect()
}
