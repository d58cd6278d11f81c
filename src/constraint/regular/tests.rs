//! Tests of the translation.

#![allow(clippy::unwrap_used)]

use regex::Regex;
use serde_json::json;

use super::*;
use crate::constraint::Grammar;
use crate::constraint::testing::{accepts, compiler};

/// A grammar of edits, as agents use them.
const EDITS: &str = r#"
// A list of edits.
start: begin edit+ end
begin: "BEGIN" LF
end: "END" LF?   // the last line may have no end
?edit: add | remove
     | update
add.2: "add " name LF ("+" /(.*)/ LF -> line)+
remove: "remove " name LF
update: "update " name LF change~1..3
change: ("+" | "-" | " ") /.*/ LF
name: /[^\n]+/
%import common.LF
"#;

fn matches(grammar: &str, text: &str) -> bool {
    Regex::new(&format!("^(?:{})$", regex_of_lark(grammar).unwrap())).unwrap().is_match(text)
}

#[test]
fn rules_and_terminals_are_replaced_by_what_they_stand_for() {
    for text in ["BEGIN\nadd a.rs\n+fn a() {}\n+\nEND\n", "BEGIN\nremove a\nupdate b c\n-x\n+\"y\"\nEND"] {
        assert!(matches(EDITS, text), "{text}");
    }
    for text in ["", "BEGIN\nEND", "BEGIN\nadd a\nEND", "BEGIN\nupdate a\n+\n+\n+\n+\nEND", "BEGIN\nremove \nEND"] {
        assert!(!matches(EDITS, text), "{text}");
    }
}

#[test]
fn each_notation_means_what_lark_says() {
    for (grammar, accepted, refused) in [
        ("start: \"a.b\"i", "A.b", "axb"),
        ("start: \"a\"..\"f\" DIGIT\n%import common.DIGIT", "c7", "g7"),
        ("start: X ~ 2 [Y]\nX: \"x\"\nY: /y/", "xxy", "xy"),
        ("start: (\"a\"\n | \"b\") \"c\"", "bc", "b"),
        ("start: A*\nA: /[a-c]/i", "aBC", "d"),
        ("start: | \"a\"", "", "b"),
        ("start: /a\\/b/", "a/b", "ab"),
        ("start: /a.b/s", "a\nb", "ab"),
        (r#"start: "\"\n\x41\u00e9\\""#, "\"\nA\u{e9}\\", "A"),
        ("start: A B\nA: \"a\"\nB: \"b\" \"c\"\n%ignore WS\n%import common (WS, INT)", " a  bc ", "a b c"),
        ("start: INT SPACE INT\n%import common.INT\n%import common.WS -> SPACE", "1 22", "1  x"),
    ] {
        assert!(matches(grammar, accepted), "{grammar:?} accepts {accepted:?}: {}", regex_of_lark(grammar).unwrap());
        assert!(!matches(grammar, refused), "{grammar:?} refuses {refused:?}: {}", regex_of_lark(grammar).unwrap());
    }
}

#[test]
fn what_is_wrong_or_not_regular_is_named() {
    for (grammar, message, is_mistake) in [
        ("start: a\na: \"(\" a? \")\"", "the rule `a` of the grammar contains itself", false),
        ("start: a", "the grammar does not define `a`", true),
        ("rule: \"a\"", "the grammar does not define `start`", true),
        ("start: \"a\n", "line 1 of the grammar: the text has no end", true),
        ("start: \"a\"\n\nstart: \"b\"", "line 3 of the grammar: `start` is defined twice", true),
        ("start: (\"a\"", "line 1 of the grammar: `)` is missing", true),
        ("start: \"a\" )", "line 1 of the grammar: a rule, a terminal or a directive must begin here", true),
        ("start: list{a}\na: \"a\"", "line 1 of the grammar: a template cannot be translated", false),
        (
            "%import python.NAME\nstart: NAME",
            "line 1 of the grammar: an import from another library than `common` cannot be translated",
            false,
        ),
        ("start: <|end|>", "line 1 of the grammar: the sign '<' cannot be translated", false),
        ("%import common.NONE", "line 1 of the grammar: the library `common` has no `NONE`", true),
    ] {
        let error = regex_of_lark(grammar).unwrap_err();
        assert_eq!((error.to_string().as_str(), error.is_mistake()), (message, is_mistake), "{grammar:?}");
    }
    let doubling: String = (0..40).map(|n| format!("r{n}: r{0} r{0}\n", n + 1)).collect();
    let grammar = format!("start: r0\n{doubling}r40: \"a\"");
    assert_eq!(regex_of_lark(&grammar), Err(LarkError::TooLarge));
    let deep = format!("start: {}", "(".repeat(100_000));
    assert!(regex_of_lark(&deep).unwrap_err().is_mistake());
}

#[test]
fn the_library_has_valid_expressions() {
    for name in ["DECIMAL", "SIGNED_FLOAT", "NUMBER", "SIGNED_NUMBER", "ESCAPED_STRING", "C_COMMENT", "NEWLINE"] {
        let regex = Regex::new(&format!("^(?:{})$", common::regex_of(name).unwrap())).unwrap();
        let text = match name {
            "ESCAPED_STRING" => r#""a\"b""#,
            "C_COMMENT" => "/* a **/",
            "NEWLINE" => "\r\n\n",
            _ => "1.5",
        };
        assert!(regex.is_match(text), "{name}");
    }
}

#[test]
fn a_string_in_json_is_constrained_by_it() {
    let pattern = format!("^(?:{})$", regex_of_lark(EDITS).unwrap());
    let schema = json!({
        "type": "object", "properties": { "input": { "type": "string", "pattern": pattern } },
        "required": ["input"], "additionalProperties": false,
    });
    let constraint = compiler().compile(&Grammar::JsonSchema(schema)).unwrap();
    let arguments = |input: &str| json!({ "input": input }).to_string();
    assert!(accepts(&constraint, &arguments("BEGIN\nadd a\n+say \"hi\"\nEND")));
    assert!(!accepts(&constraint, &arguments("BEGIN\nadd a\nEND")));
}
