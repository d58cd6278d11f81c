//! Finds a format from what a chat template renders.
//!
//! The template renders an assistant's message with a call of a known name and known arguments. Where these stand in a JSON object,
//! the object's keys and the text around it are the format.

use serde_json::{Map, Value, json};

use super::format::{Body, JsonKeys, Reasoning, ToolFormat};
use super::reasoning::of_markers;
use super::render::Render;

const NAME: &str = "cuelight_probe_tool";
const KEY: &str = "probe_key";
const TEXT: &str = "The probe's text.";
const THOUGHT: &str = "The probe's thought.";

/// A template that is asked for renderings.
pub(super) struct Probe<'a> {
    render: &'a Render<'a>,
}

impl<'a> Probe<'a> {
    pub(super) fn new(render: &'a Render<'a>) -> Self {
        Probe { render }
    }

    /// The text before an answer, without a marker of reasoning.
    pub(super) fn answer_header(&self, reasoning: Option<&Reasoning>) -> String {
        let (with, without) = (self.prompt(None, true), self.prompt(None, false));
        let header = with.strip_prefix(without.as_str()).unwrap_or_default();
        let begins = |marker: &str| header.find(marker.trim()).unwrap_or(header.len());
        let end = reasoning.map_or(header.len(), |reasoning| begins(&reasoning.start).min(begins(&reasoning.end)));
        header[..end].trim_end().to_owned()
    }

    /// The markers around the reasoning of an answer. `None` if the template does not render it.
    pub(super) fn reasoning(&self) -> Option<Reasoning> {
        let message = json!({"role": "assistant", "content": TEXT, "reasoning_content": THOUGHT});
        let answer = self.answer(&message, None)?;
        let (before, after) = answer.split_once(THOUGHT)?;
        let (start, end) = (last_line(before), after.split_once(TEXT)?.0.trim());
        (is_marker(start) && is_marker(end)).then(|| of_markers(start, end))
    }

    /// How a call is written that is a JSON object.
    pub(super) fn json_calls(&self) -> Option<ToolFormat> {
        ["", TEXT].iter().rev().find_map(|content| self.json_calls_after(content))
    }

    fn json_calls_after(&self, content: &str) -> Option<ToolFormat> {
        let answer = self.call_answer(content, 1)?;
        let call = Call::find(&answer)?;
        let before = match content {
            "" => answer[..call.start].trim(),
            content => answer[..call.start].split_once(content)?.1.trim(),
        };
        let begin = if content.is_empty() { last_line(before) } else { before };
        let end = self.end_marker(content, begin, &answer[call.end..]);
        Some(ToolFormat {
            call_begin: begin.to_owned(),
            call_end: Some(end).filter(|end| !end.is_empty()).into_iter().collect(),
            bare: begin.is_empty().then_some(call.first),
            unmarked: !begin.is_empty(),
            body: Body::Json(call.keys),
            ..ToolFormat::default()
        })
    }

    /// The text between a call and the next one's marker, or the end of the message.
    fn end_marker(&self, content: &str, begin: &str, after: &str) -> String {
        let two = self.call_answer(content, 2).unwrap_or_default();
        let between = Call::find(&two).map(|first| &two[first.end..]).and_then(|rest| {
            let second = rest.find(NAME)?;
            (!begin.is_empty()).then(|| rest[..second].split_once(begin)).flatten()
        });
        if let Some((between, _)) = between {
            return between.trim().to_owned();
        }
        let plain = json!({"role": "assistant", "content": TEXT});
        let plain = self.answer(&plain, Some(&tools())).unwrap_or_default();
        let turn_end = plain.split_once(TEXT).map_or("", |(_, end)| end.trim());
        after.trim().strip_suffix(turn_end).unwrap_or_default().trim().to_owned()
    }

    /// The answer with calls. Templates want arguments as an object, or as JSON text.
    fn call_answer(&self, content: &str, count: usize) -> Option<String> {
        let value = json!({KEY: 1});
        [value.clone(), Value::String(value.to_string())].iter().find_map(|arguments| {
            let calls: Value = (0..count).map(|number| call(arguments, number)).collect();
            let message = json!({"role": "assistant", "content": content, "tool_calls": calls});
            self.answer(&message, Some(&tools())).filter(|answer| Call::find(answer).is_some())
        })
    }

    /// What the template writes for a message of the assistant.
    fn answer(&self, message: &Value, tools: Option<&Value>) -> Option<String> {
        let full = (self.render)(&json!([user(), message]), tools, &Map::new(), false)?;
        let prompt = self.prompt(tools, true);
        let common = full.bytes().zip(prompt.bytes()).take_while(|(a, b)| a == b).count();
        let start = (0..=common).rev().find(|at| full.is_char_boundary(*at)).unwrap_or_default();
        Some(full[start..].to_owned())
    }

    fn prompt(&self, tools: Option<&Value>, add_generation_prompt: bool) -> String {
        (self.render)(&json!([user()]), tools, &Map::new(), add_generation_prompt).unwrap_or_default()
    }
}

fn user() -> Value {
    json!({"role": "user", "content": "Hello."})
}

fn tools() -> Value {
    let parameters = json!({"type": "object", "properties": {KEY: {"type": "integer"}}, "required": [KEY]});
    json!([{"type": "function", "function": {"name": NAME, "description": "A tool.", "parameters": parameters}}])
}

fn call(arguments: &Value, number: usize) -> Value {
    // Nine characters, as Mistral's templates demand.
    let id = format!("probe000{number}");
    json!({"id": id, "type": "function", "function": {"name": NAME, "arguments": arguments}})
}

/// A call that is an object in a text.
struct Call {
    /// Where the object or the array around it begins.
    start: usize,
    end: usize,
    first: char,
    keys: JsonKeys,
}

impl Call {
    fn find(text: &str) -> Option<Call> {
        let name = text.find(NAME)?;
        let starts = text[..name].char_indices().filter(|(_, character)| matches!(character, '[' | '{'));
        starts.into_iter().find_map(|(start, first)| {
            let mut values = serde_json::Deserializer::from_str(&text[start..]).into_iter::<Value>();
            let value = values.next()?.ok()?;
            let end = start + values.byte_offset();
            let object = value.get(0).unwrap_or(&value).as_object()?;
            Some(Call { start, end, first, keys: JsonKeys { array: first == '[', ..keys_of(object)? } })
        })
    }
}

fn keys_of(object: &Map<String, Value>) -> Option<JsonKeys> {
    let key = |is: &dyn Fn(&Value) -> bool| object.iter().find(|(_, value)| is(value)).map(|(key, _)| key.clone());
    let has_arguments =
        |value: &Value| value.get(KEY).is_some() || value.as_str().is_some_and(|text| text.contains(KEY));
    let arguments = key(&has_arguments)?;
    if arguments == NAME {
        return Some(JsonKeys { name_is_key: true, ..JsonKeys::default() });
    }
    let name = key(&|value| value == NAME)?;
    let id = key(&|value| value.as_str().is_some_and(|text| text.starts_with("probe0")));
    Some(JsonKeys { name, arguments, id, ..JsonKeys::default() })
}

fn last_line(text: &str) -> &str {
    text.trim().rsplit('\n').next().unwrap_or_default().trim()
}

/// A marker has brackets around it, or it could be any text.
fn is_marker(text: &str) -> bool {
    let brackets = [('<', '>'), ('[', ']')];
    brackets.iter().any(|(open, close)| text.starts_with(*open) && text.ends_with(*close)) && text.len() < 64
}
