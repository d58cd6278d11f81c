//! Custom tools, which take text. To the model they are functions with one parameter, `input`.

use cuelight_engine::constraint::regex_of_lark;
use serde_json::{Map, Value, json};

use crate::api::fields::{Fields, missing};
use crate::serving::error::{ApiError, clip};

/// The parameter of the function.
const INPUT: &str = "input";

/// The function that stands for a custom tool, from the fields `name`, `description` and `format`. A regular expression
/// becomes a part of the function's schema, and so does a Lark grammar without recursion; the description has any grammar.
///
/// # Errors
/// [`ApiError::InvalidRequest`] that names the field.
pub(super) fn function(tool: &Fields<'_>) -> Result<Map<String, Value>, ApiError> {
    let name = tool.string("name")?.ok_or_else(|| missing(&tool.path("name"), "the tool's name"))?;
    let mut description = tool.string("description")?.unwrap_or_default().to_owned();
    let mut input = json!({ "type": "string", "description": "The whole input of the tool." });
    let mut function = Map::new();
    if let Some(grammar) = Grammar::read(tool)? {
        let Grammar { syntax, definition, .. } = grammar;
        description = format!("{description}\n\nThe input must match this {syntax} grammar:\n{definition}");
        if let Some(pattern) = grammar.pattern(name)? {
            input["pattern"] = json!(format!("^(?:{pattern})$"));
            function.insert("strict".to_owned(), json!(true));
        }
    }
    function.insert("name".to_owned(), json!(name));
    function.insert("description".to_owned(), json!(description.trim_start()));
    let parameters = json!({
        "type": "object", "properties": { INPUT: input }, "required": [INPUT], "additionalProperties": false,
    });
    function.insert("parameters".to_owned(), parameters);
    Ok(function)
}

/// The input of a call with these arguments.
pub(super) fn input(arguments: &str) -> String {
    let mut reader = InputReader::default();
    reader.push(arguments) + &reader.finish()
}

/// The arguments of a call with this input.
pub(super) fn arguments(input: &str) -> Value {
    json!({ INPUT: input })
}

/// The grammar of a custom tool's input.
struct Grammar<'a> {
    syntax: &'a str,
    definition: &'a str,
    /// The path of the definition.
    path: String,
}

impl<'a> Grammar<'a> {
    /// Reads `format`. `None`: any text.
    fn read(tool: &Fields<'a>) -> Result<Option<Self>, ApiError> {
        let Some(format) = tool.object("format")? else { return Ok(None) };
        let path = format.path("type");
        match format.string("type")?.ok_or_else(|| missing(&path, "\"text\" or \"grammar\""))? {
            "text" => Ok(None),
            // The Responses API has the fields of the grammar in the format itself.
            "grammar" => Self::of(&format.object("grammar")?.unwrap_or(format)).map(Some),
            other => {
                let message = format!("`{path}` must be \"text\" or \"grammar\", not {}", clip(other));
                Err(ApiError::invalid(path, message))
            }
        }
    }

    fn of(grammar: &Fields<'a>) -> Result<Self, ApiError> {
        let path = grammar.path("definition");
        let definition = grammar.string("definition")?.ok_or_else(|| missing(&path, "the grammar"))?;
        let syntax = grammar.string("syntax")?.unwrap_or("lark");
        if !["lark", "regex"].contains(&syntax) {
            let path = grammar.path("syntax");
            let message = format!("`{path}` must be \"lark\" or \"regex\", not {}", clip(syntax));
            return Err(ApiError::invalid(path, message));
        }
        Ok(Grammar { syntax, definition, path })
    }

    /// The regular expression that the input has to match. `None`: the grammar is only described to the model.
    fn pattern(&self, tool: &str) -> Result<Option<String>, ApiError> {
        if self.syntax == "regex" {
            return Ok(Some(self.definition.to_owned()));
        }
        match regex_of_lark(self.definition) {
            Ok(pattern) => Ok(Some(pattern)),
            Err(error) if error.is_mistake() => Err(ApiError::invalid(self.path.clone(), error.to_string())),
            Err(error) => {
                tracing::warn!(tool, %error, "the grammar of a custom tool is described and not enforced");
                Ok(None)
            }
        }
    }
}

/// Takes the input out of arguments that arrive in pieces.
#[derive(Debug, Default)]
pub(super) struct InputReader {
    place: Place,
    /// What was not read yet.
    pending: String,
}

#[derive(Debug, Default)]
enum Place {
    /// Before the first character of the input.
    #[default]
    Head,
    Input,
    /// Behind it.
    End,
    /// The arguments begin in another way, and are read when they are complete.
    Other,
}

impl InputReader {
    /// Most bytes before the first character of the input.
    const LONGEST_HEAD: usize = 64;

    /// Adds a piece of the arguments. Returns more of the input.
    pub fn push(&mut self, fragment: &str) -> String {
        self.pending.push_str(fragment);
        if matches!(self.place, Place::Head) {
            self.place = match head(&self.pending) {
                Ok(Some(end)) => {
                    self.pending.drain(..end);
                    Place::Input
                }
                Ok(None) if self.pending.len() <= Self::LONGEST_HEAD => Place::Head,
                _ => Place::Other,
            };
        }
        match self.place {
            Place::Input => self.read_input(),
            Place::End => {
                self.pending.clear();
                String::new()
            }
            Place::Head | Place::Other => String::new(),
        }
    }

    /// The rest of the input. Arguments without an input are returned as they are.
    pub fn finish(self) -> String {
        if matches!(self.place, Place::Input | Place::End) {
            return String::new();
        }
        let parsed = serde_json::from_str::<Value>(&self.pending).ok();
        let input = parsed.as_ref().and_then(|parsed| parsed.get(INPUT)?.as_str().map(str::to_owned));
        input.unwrap_or(self.pending)
    }

    fn read_input(&mut self) -> String {
        let (length, is_end) = whole_characters(self.pending.as_bytes());
        let quoted = &self.pending[..length];
        let text = serde_json::from_str(&format!("\"{quoted}\"")).unwrap_or_else(|_| quoted.to_owned());
        self.pending.drain(..length);
        if is_end {
            self.place = Place::End;
            self.pending.clear();
        }
        text
    }
}

/// Where the input begins. `None` if more must be read to know.
///
/// # Errors
/// The arguments begin in another way.
fn head(arguments: &str) -> Result<Option<usize>, ()> {
    let mut rest = arguments;
    for part in ["{", "\"input\"", ":", "\""] {
        rest = rest.trim_start();
        match rest.strip_prefix(part) {
            Some(after) => rest = after,
            None if part.starts_with(rest) => return Ok(None),
            None => return Err(()),
        }
    }
    Ok(Some(arguments.len() - rest.len()))
}

/// The bytes of a JSON string's content up to its end, or to an escape that is not complete. Whether its end was found.
fn whole_characters(text: &[u8]) -> (usize, bool) {
    let mut at = 0;
    while let Some(byte) = text.get(at) {
        match byte {
            b'"' => return (at, true),
            b'\\' => match escape(&text[at..]) {
                Some(length) => at += length,
                None => return (at, false),
            },
            _ => at += 1,
        }
    }
    (at, false)
}

/// The length of an escape, with the second half of a character that JSON writes as two numbers. `None` if it is not complete.
fn escape(text: &[u8]) -> Option<usize> {
    match text.get(1)? {
        b'u' => {
            let first = number(text)?;
            if !matches!(text[2..first], [b'd' | b'D', b'8' | b'9' | b'a' | b'b' | b'A' | b'B', ..]) {
                return Some(first);
            }
            match (text.get(first), text.get(first + 1)) {
                (None, _) | (Some(b'\\'), None) => None,
                (Some(b'\\'), Some(b'u')) => Some(first + number(&text[first..])?),
                _ => Some(first),
            }
        }
        byte if byte.is_ascii() => Some(2),
        _ => Some(1),
    }
}

/// The length of `\u` and its digits.
fn number(text: &[u8]) -> Option<usize> {
    let digits = text[2..].iter().take(4).take_while(|digit| digit.is_ascii_hexdigit()).count();
    (digits == 4 || text.len() > 2 + digits).then_some(2 + digits)
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_input_comes_back_out_of_the_arguments() {
        assert_eq!(input(&arguments("a\n\"b\"").to_string()), "a\n\"b\"");
        assert_eq!(input(r#"{"input": "a"#), "a");
        assert_eq!(input(r#"{"x": 1, "input": "a"}"#), "a");
        for other in ["", "{", "[1]", r#"{"input": 5}"#, r#"{"x": "a"#] {
            assert_eq!(input(other), other);
        }
    }

    #[test]
    fn the_input_is_the_same_in_all_pieces() {
        let text = "a\n\"b\" \\ \u{e9} \u{1f600}\u{7f}/";
        let escaped = r#"{"input": "a\n\"b\" \\ \u00e9 \ud83d\ude00\u007f\/"}"#;
        for arguments in [arguments(text).to_string(), escaped.to_owned()] {
            let characters: Vec<String> = arguments.chars().map(String::from).collect();
            for size in [1, 2, 3, 5, 100] {
                let mut reader = InputReader::default();
                let read: String = characters.chunks(size).map(|piece| reader.push(&piece.concat())).collect();
                assert_eq!(read + &reader.finish(), text, "{arguments} in pieces of {size}");
            }
        }
    }

    #[test]
    fn malformed_escapes_lose_no_text_and_do_not_panic() {
        for text in [r"\ud800x\q", "\\u\u{20ac}\u{20ac}", "\\\u{20ac}", r"\ud800\n\x", r"\ud83d\u12"] {
            assert_eq!(input(&format!("{{\"input\": \"{text}\"}}")), text);
        }
        assert_eq!(input(r#"{"input": "a\ud83d\u"#), "a");
    }

    #[test]
    fn a_grammar_may_be_nested_and_is_described() {
        let recursive = "start: \"(\" start? \")\"";
        for (syntax, definition, pattern) in [
            ("lark", recursive, Value::Null),
            ("lark", "start: \"a\" | \"b\"", json!("^(?:(?:(?:a|b)))$")),
            ("regex", "a|b", json!("^(?:a|b)$")),
        ] {
            let grammar = json!({ "syntax": syntax, "definition": definition });
            let tool = json!({ "name": "f", "format": { "type": "grammar", "grammar": grammar } });
            let function = function(&Fields::of_body(&tool).unwrap()).unwrap();
            assert!(
                function["description"].as_str().unwrap().ends_with(&format!("grammar:\n{definition}")),
                "{function:?}"
            );
            assert_eq!(function["parameters"]["properties"]["input"]["pattern"], pattern);
        }
        let mistaken = json!({ "name": "f", "format": { "type": "grammar", "definition": "start: rule" } });
        let error = function(&Fields::of_body(&mistaken).unwrap()).unwrap_err();
        assert!(error.to_string().contains("does not define `rule`"), "{error}");
    }
}
