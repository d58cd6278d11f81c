//! Text of unknown type as JSON of the type that a schema asks for.

use super::json_text::quoted;
use super::literal::literal;
use super::schema::Types;

/// The text as JSON of the first of these types that it can have: null, integer, number, boolean, object, array, string. A text
/// that can have none of the types is a string.
pub(super) fn coerce(text: &str, types: Types) -> String {
    let value = text.trim();
    let other = scalar(value, types).or_else(|| container(value, types));
    other.unwrap_or_else(|| quoted(text))
}

fn scalar(value: &str, types: Types) -> Option<String> {
    let is_number = || serde_json::from_str::<serde_json::Number>(value).is_ok();
    let is_integer = || value.trim_start_matches('-').bytes().all(|byte| byte.is_ascii_digit()) && is_number();
    match value {
        "null" | "None" if types.null => Some("null".to_owned()),
        "true" | "True" if types.boolean => Some("true".to_owned()),
        "false" | "False" if types.boolean => Some("false".to_owned()),
        _ if types.number && is_number() || types.integer && is_integer() => Some(value.to_owned()),
        _ => None,
    }
}

fn container(value: &str, types: Types) -> Option<String> {
    let allowed = types.object && value.starts_with('{') || types.array && value.starts_with('[');
    allowed.then(|| literal(value)).flatten()
}

/// Whether a text that begins like this may still become something else than a string.
pub(super) fn may_be_other(beginning: &str, types: Types) -> bool {
    let value = beginning.trim_start();
    let word = value.trim_end();
    let begins = |whole: [&str; 2]| whole.iter().any(|whole| whole.starts_with(word));
    let number = |character: char| character.is_ascii_digit() || matches!(character, '-' | '+' | '.' | 'e' | 'E');
    value.is_empty()
        || types.object && value.starts_with('{')
        || types.array && value.starts_with('[')
        || types.null && begins(["null", "None"])
        || types.boolean && (begins(["true", "false"]) || begins(["True", "False"]))
        || (types.integer || types.number) && word.len() <= 512 && word.chars().all(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_type_wins() {
        let any = Types::ANY;
        let cases = [
            ("null", any, "null"),
            ("\n 12 \n", any, "12"),
            ("-1.5e2", any, "-1.5e2"),
            ("True", any, "true"),
            ("{'a': 1}", any, "{\"a\": 1}"),
            ("[1, 2]", any, "[1, 2]"),
            ("{a", any, "\"{a\""),
            ("2 dollars", any, "\"2 dollars\""),
            ("12", Types::STRING, "\"12\""),
            ("1.5", Types { integer: true, ..Types::default() }, "\"1.5\""),
            ("-12", Types { integer: true, ..Types::default() }, "-12"),
            ("012", any, "\"012\""),
            ("nope", Types { boolean: true, ..Types::default() }, "\"nope\""),
            ("a\"\n", any, "\"a\\\"\\n\""),
        ];
        for (text, types, expected) in cases {
            assert_eq!(coerce(text, types), expected, "{text:?}");
            let mut end = 0;
            while !expected.starts_with('"') && end < text.len() {
                end += 1;
                assert!(may_be_other(&text[..end], types), "{:?}", &text[..end]);
            }
        }
    }

    #[test]
    fn a_text_that_can_only_be_a_string_is_known_early() {
        assert!(!may_be_other("t", Types::STRING));
        assert!(!may_be_other("nulls", Types::ANY));
        assert!(!may_be_other("He", Types::ANY));
        assert!(!may_be_other("1 ", Types { null: true, string: true, ..Types::default() }));
    }
}
