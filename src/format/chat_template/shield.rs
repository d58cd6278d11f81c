//! Keeps untrusted text from acting as special tokens.
//!
//! A template copies text in ways that cannot be followed: it trims, slices, joins and encodes as JSON. So before it runs, each
//! spelling of a special token in untrusted text is split by a sentinel, a Unicode noncharacter that occurs nowhere else in the
//! conversation or the template. Afterwards the sentinels are removed and their positions kept: no special token is recognised
//! across them ([`Tokenizer::encode_guarded`](crate::format::tokenizer::Tokenizer::encode_guarded)). Text without such spellings
//! is not touched.
//!
//! Untrusted are the messages of all roles but `system`, `developer` and `assistant`, with all their fields; tool definitions; and
//! documents. Between upper and lower case no difference is made, because templates convert one to the other.

use std::sync::LazyLock;

use aho_corasick::{AhoCorasick, MatchKind};
use serde_json::{Map, Value};

use super::error::ChatTemplateError;
use super::inputs::{RenderedPrompt, TemplateInputs};

/// The roles whose text may contain special tokens.
const TRUSTED_ROLES: &[&str] = &["system", "developer", "assistant"];

/// Finds spellings of special tokens in untrusted text.
#[derive(Debug)]
pub(super) struct Shield {
    spellings: AhoCorasick,
}

/// Inputs with sentinels in their untrusted text.
pub(super) struct Shielded {
    sentinel: Sentinel,
    messages: Value,
    tools: Option<Value>,
    documents: Option<Value>,
}

impl Shield {
    /// Splits the given spellings. `None` when there are none.
    ///
    /// # Errors
    /// [`ChatTemplateError::Limit`] when there are too many.
    pub(super) fn new(spellings: &[String]) -> Result<Option<Self>, ChatTemplateError> {
        if spellings.is_empty() {
            return Ok(None);
        }
        let mut builder = AhoCorasick::builder();
        let built = builder.match_kind(MatchKind::Standard).ascii_case_insensitive(true).build(spellings);
        let too_many =
            |error| ChatTemplateError::Limit(format!("its special tokens are too many or too long: {error}"));
        built.map(|spellings| Some(Shield { spellings })).map_err(too_many)
    }

    /// The inputs with sentinels, or `None` when no untrusted text needs one. `sources` are the model's templates.
    ///
    /// # Errors
    /// [`ChatTemplateError::Refused`] when every possible sentinel occurs in the conversation.
    pub(super) fn apply<'a>(
        &self,
        inputs: &TemplateInputs<'_>,
        sources: impl Iterator<Item = &'a str>,
    ) -> Result<Option<Shielded>, ChatTemplateError> {
        let others = [inputs.tools, inputs.documents];
        let is_clean = untrusted(inputs.messages).chain(others.into_iter().flatten()).all(|value| !self.is_in(value));
        if is_clean {
            return Ok(None);
        }
        let sentinel = Sentinel::absent_from(inputs, sources)?;
        let split = |value: &Value| self.split_value(value, &sentinel);
        let messages = match inputs.messages {
            Value::Array(messages) => messages.iter().map(|message| self.split_message(message, &sentinel)).collect(),
            other => split(other),
        };
        let (tools, documents) = (inputs.tools.map(split), inputs.documents.map(split));
        Ok(Some(Shielded { messages, tools, documents, sentinel }))
    }

    /// Whether a string in `value` has a spelling.
    fn is_in(&self, value: &Value) -> bool {
        match value {
            Value::String(text) => self.spellings.is_match(text),
            Value::Array(items) => items.iter().any(|item| self.is_in(item)),
            Value::Object(entries) => {
                entries.iter().any(|(key, value)| self.spellings.is_match(key) || self.is_in(value))
            }
            _ => false,
        }
    }

    fn split_message(&self, message: &Value, sentinel: &Sentinel) -> Value {
        let mut split = if is_untrusted(message) { self.split_value(message, sentinel) } else { message.clone() };
        // Templates compare roles.
        if let (Some(split), Some(role)) = (split.as_object_mut(), message.get("role")) {
            split.insert("role".to_owned(), role.clone());
        }
        split
    }

    fn split_value(&self, value: &Value, sentinel: &Sentinel) -> Value {
        match value {
            Value::String(text) => Value::String(self.split_text(text, sentinel)),
            Value::Array(items) => items.iter().map(|item| self.split_value(item, sentinel)).collect(),
            Value::Object(entries) => {
                let entries = entries.iter();
                let split =
                    entries.map(|(key, value)| (self.split_text(key, sentinel), self.split_value(value, sentinel)));
                Value::Object(split.collect::<Map<String, Value>>())
            }
            other => other.clone(),
        }
    }

    /// Puts a sentinel into every occurrence of a spelling.
    fn split_text(&self, text: &str, sentinel: &Sentinel) -> String {
        let mut split = String::with_capacity(text.len() + 16);
        let mut copied = 0;
        for point in self.points(text) {
            split.push_str(&text[copied..point]);
            split.push(sentinel.character);
            copied = point;
        }
        split.push_str(&text[copied..]);
        split
    }

    /// Positions such that every occurrence of a spelling has one inside, in order.
    fn points(&self, text: &str) -> Vec<usize> {
        let mut points: Vec<usize> = Vec::new();
        // Matches come in the order of their ends, so the last character is the best place in each.
        for found in self.spellings.find_overlapping_iter(text) {
            let last = text[..found.end()].char_indices().next_back().map_or(0, |(index, _)| index);
            if last == found.start() {
                // There is no place inside one character; a tokenizer takes one that stands alone between two sentinels as text.
                points.extend([found.start(), found.end()]);
            } else if !points.iter().rev().take_while(|point| **point > found.start()).any(|point| *point < found.end())
            {
                points.push(last);
            }
        }
        points.sort_unstable();
        points.dedup();
        points
    }
}

/// The messages that are not trusted.
fn untrusted(messages: &Value) -> impl Iterator<Item = &Value> {
    messages.as_array().into_iter().flatten().filter(|message| is_untrusted(message))
}

fn is_untrusted(message: &Value) -> bool {
    message.get("role").and_then(Value::as_str).is_none_or(|role| !TRUSTED_ROLES.contains(&role))
}

impl Shielded {
    /// The inputs for the template.
    pub(super) fn inputs<'a>(&'a self, original: &TemplateInputs<'a>) -> TemplateInputs<'a> {
        let (messages, tools, documents) = (&self.messages, self.tools.as_ref(), self.documents.as_ref());
        TemplateInputs { messages, tools, documents, ..*original }
    }

    /// Removes the sentinels from a rendered text.
    ///
    /// # Errors
    /// [`ChatTemplateError::Worker`] when the search cannot be built.
    pub(super) fn remove(&self, text: &str) -> Result<RenderedPrompt, ChatTemplateError> {
        self.sentinel.remove(text)
    }
}

/// A noncharacter, and how JSON with escapes and a printed list show it.
struct Sentinel {
    character: char,
    forms: [String; 3],
}

impl Sentinel {
    /// A sentinel that occurs neither in the inputs nor in the templates.
    fn absent_from<'a>(
        inputs: &TemplateInputs<'_>,
        sources: impl Iterator<Item = &'a str>,
    ) -> Result<Self, ChatTemplateError> {
        let text = serde_json::to_string(inputs).map_err(|error| ChatTemplateError::Worker(error.to_string()))?;
        let mut present = [false; NONCHARACTERS];
        let texts: Vec<&str> = sources.collect();
        for text in texts.into_iter().chain([text.as_str()]) {
            for found in FORMS.iter().flat_map(|forms| forms.find_overlapping_iter(text)) {
                present[found.pattern().as_usize() / 3] = true;
            }
        }
        let absent = noncharacters().zip(present).find(|(_, present)| !present);
        absent.map(|(character, _)| Sentinel::new(character)).ok_or_else(|| {
            ChatTemplateError::Refused("its text has special tokens and all Unicode noncharacters".to_owned())
        })
    }

    fn new(character: char) -> Self {
        Sentinel { character, forms: forms(character) }
    }

    fn remove(&self, text: &str) -> Result<RenderedPrompt, ChatTemplateError> {
        let finder = finder(&self.forms)?;
        let mut prompt = RenderedPrompt::default();
        let mut copied = 0;
        for found in finder.find_iter(text) {
            prompt.text.push_str(&text[copied..found.start()]);
            prompt.guards.push(prompt.text.len());
            copied = found.end();
        }
        prompt.text.push_str(&text[copied..]);
        prompt.guards.dedup();
        Ok(prompt)
    }
}

/// The number of [`noncharacters`].
const NONCHARACTERS: usize = 66;

/// The code points that Unicode keeps free for uses inside a program.
fn noncharacters() -> impl Iterator<Item = char> {
    let ends = (0..=16).flat_map(|plane: u32| [(plane << 16) | 0xfffe, (plane << 16) | 0xffff]);
    (0xfdd0..=0xfdef).chain(ends).filter_map(char::from_u32)
}

/// How templates write a character: as it is, in JSON with escapes, and in a printed list.
fn forms(character: char) -> [String; 3] {
    let escaped = character.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")).collect();
    [character.to_string(), escaped, character.escape_unicode().to_string()]
}

fn finder(texts: &[String]) -> Result<AhoCorasick, ChatTemplateError> {
    AhoCorasick::new(texts).map_err(|error| ChatTemplateError::Worker(error.to_string()))
}

/// Finds all forms of all noncharacters, in their order.
static FORMS: LazyLock<Option<AhoCorasick>> =
    LazyLock::new(|| finder(&noncharacters().flat_map(forms).collect::<Vec<_>>()).ok());

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn shield(spellings: &[&str]) -> Shield {
        Shield::new(&spellings.iter().map(|&text| text.to_owned()).collect::<Vec<_>>()).unwrap().unwrap()
    }

    fn inputs(messages: &Value) -> TemplateInputs<'_> {
        TemplateInputs { messages, tools: None, documents: None, add_generation_prompt: true, variables: None }
    }

    #[test]
    fn every_occurrence_is_split_once() {
        let shield = shield(&["<a>", "<a><a>", "<a", "b<a>c", "€"]);
        let points = |text: &str| shield.points(text);
        assert_eq!(points("x<a>y"), [2]);
        assert_eq!(points("<A><a>"), [1, 4]);
        assert_eq!(points("b<a>c"), [2]);
        assert_eq!(points("1€2"), [1, 4]);
        assert!(points("a<b>").is_empty());
    }

    #[test]
    fn every_occurrence_has_a_point_inside_in_a_long_text_too() {
        let shield = shield(&["<a>", "a><"]);
        // The time must not grow with the square of the length.
        let text = "<a>".repeat(300_000);
        let points = shield.points(&text);
        let holds = |range: std::ops::Range<usize>| {
            let next = points.partition_point(|point| *point <= range.start);
            points.get(next).is_some_and(|point| *point < range.end)
        };
        assert!((0..text.len() - 3).step_by(3).all(|start| holds(start..start + 3) && holds(start + 1..start + 4)));
    }

    #[test]
    fn only_untrusted_messages_are_changed() {
        let shield = shield(&["<x>"]);
        let conversation = json!([
            { "role": "system", "content": "<x>" },
            { "role": "user", "content": ["<x>", { "text": "<x>" }], "name": "<x>" },
            { "role": "assistant", "content": "<x>" },
            { "role": "tool", "content": "no" },
        ]);
        let shielded = shield.apply(&inputs(&conversation), std::iter::empty()).unwrap().unwrap();
        let split = format!("<x{}>", shielded.sentinel.character);
        let expected = json!([
            { "role": "system", "content": "<x>" },
            { "role": "user", "content": [split, { "text": split }], "name": split },
            { "role": "assistant", "content": "<x>" },
            { "role": "tool", "content": "no" },
        ]);
        assert_eq!(shielded.messages, expected);
        let trusted = json!([conversation[0], conversation[2], conversation[3]]);
        assert!(shield.apply(&inputs(&trusted), std::iter::empty()).unwrap().is_none());
    }

    #[test]
    fn a_sentinel_is_removed_in_every_form_and_never_occurs_in_the_conversation() {
        let shield = shield(&["<x>"]);
        let first = noncharacters().next().unwrap();
        let content = format!("<x> {first} \\ufdd1");
        let conversation = json!([{ "role": "user", "content": content }]);
        let shielded = shield.apply(&inputs(&conversation), ["\\u{fdd2}"].into_iter()).unwrap().unwrap();
        assert_eq!(shielded.sentinel.character, '\u{fdd3}');
        let prompt = shielded.remove("<x\u{fdd3}>1<x\\ufdd3>2<x\\u{fdd3}>").unwrap();
        assert_eq!((prompt.text.as_str(), prompt.guards), ("<x>1<x>2<x>", vec![2, 6, 10]));
    }

    #[test]
    fn a_conversation_with_all_noncharacters_is_refused() {
        let content: String = noncharacters().chain("<x>".chars()).collect();
        assert_eq!(noncharacters().count(), NONCHARACTERS);
        let conversation = json!([{ "role": "user", "content": content }]);
        let refused = shield(&["<x>"]).apply(&inputs(&conversation), std::iter::empty()).err().unwrap();
        assert!(refused.to_string().contains("noncharacters"), "{refused}");
    }
}
