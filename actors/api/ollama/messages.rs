//! Checks a conversation and converts it to the form that chat templates expect.

use std::collections::VecDeque;

use cuelight_engine::media::MediaKind;
use serde_json::{Map, Value, json};

use crate::api::content::Content;
use crate::api::fields::{Fields, missing, wrong_type};
use crate::api::openai::messages::{call_arguments, read_role};
use crate::serving::error::ApiError;
use crate::serving::media_source::{MediaField, MediaSource};

/// Reads `messages`, and adds their images.
///
/// # Errors
/// [`ApiError::InvalidRequest`] or [`ApiError::Unsupported`] that names the field by its path.
pub(super) fn read(fields: &Fields<'_>, images: &mut Vec<MediaField>) -> Result<Value, ApiError> {
    let path = fields.path("messages");
    let messages = fields.array("messages")?.ok_or_else(|| missing(&path, "a list of messages"))?;
    let mut calls = OpenCalls::default();
    let messages = messages.iter().enumerate();
    messages
        .map(|(index, message)| read_message(&Fields::of(message, format!("{path}[{index}]"))?, &mut calls, images))
        .collect()
}

/// Reads `images`: files in base64, or data URLs.
///
/// # Errors
/// [`ApiError::InvalidRequest`].
pub(super) fn read_images(fields: &Fields<'_>) -> Result<Vec<MediaField>, ApiError> {
    let path = fields.path("images");
    let images = fields.array("images")?.into_iter().flatten().enumerate();
    let read = |(index, image): (usize, &Value)| {
        let image_path = format!("{path}[{index}]");
        let Value::String(text) = image else { return Err(wrong_type(&image_path, "an image in base64", image)) };
        let source = match text.starts_with("data:") {
            true => MediaSource::of_url(text, MediaKind::Image, &image_path)?,
            false => MediaSource::Base64(text.clone()),
        };
        Ok(MediaField { media: MediaKind::Image, path: image_path, kind_path: path.clone(), kind: None, source })
    };
    images.map(read).collect()
}

/// The content of a message with images: they come before its text.
pub(super) fn with_images(images: usize, text: &str) -> Value {
    let mut content = Content::media(std::iter::repeat_n(MediaKind::Image, images));
    content.push_text("\n", text);
    content.json()
}

fn read_message(message: &Fields<'_>, calls: &mut OpenCalls, images: &mut Vec<MediaField>) -> Result<Value, ApiError> {
    let role = read_role(message)?;
    let own = read_images(message)?;
    let mut read = Map::new();
    read.insert("role".to_owned(), json!(role));
    read.insert("content".to_owned(), with_images(own.len(), message.string("content")?.unwrap_or_default()));
    images.extend(own);
    if let Some(thinking) = message.string("thinking")?.filter(|text| !text.is_empty()) {
        // Templates use any of these names.
        for name in ["reasoning_content", "reasoning", "thinking"] {
            read.insert(name.to_owned(), json!(thinking));
        }
    }
    let listed = message.array("tool_calls")?.filter(|listed| !listed.is_empty());
    if let Some(listed) = listed {
        let path = message.path("tool_calls");
        let each = listed.iter().enumerate();
        let each = each.map(|(index, call)| read_call(&Fields::of(call, format!("{path}[{index}]"))?, calls));
        read.insert("tool_calls".to_owned(), each.collect::<Result<_, ApiError>>()?);
    }
    if role == "tool" {
        let name = message.string("tool_name")?.or(message.string("name")?);
        let id = calls.answered(message.string("tool_call_id")?, name);
        let texts = [("name", name.map(str::to_owned)), ("tool_call_id", id)];
        read.extend(texts.into_iter().filter_map(|(field, text)| Some((field.to_owned(), json!(text?)))));
    }
    Ok(Value::Object(read))
}

fn read_call(call: &Fields<'_>, calls: &mut OpenCalls) -> Result<Value, ApiError> {
    let function = call.object("function")?.ok_or_else(|| missing(&call.path("function"), "the function called"))?;
    let name = function.string("name")?.ok_or_else(|| missing(&function.path("name"), "the function's name"))?;
    let id = calls.begin(call.string("id")?, name);
    // Some clients send the text that other protocols use.
    let arguments = call_arguments(function.get("arguments"));
    Ok(json!({ "id": id, "type": "function", "function": { "name": name, "arguments": arguments } }))
}

/// The calls without a result yet. Ollama's clients may leave out ids, but some templates require them.
#[derive(Default)]
struct OpenCalls {
    /// The name and the id of each, oldest first.
    waiting: VecDeque<(String, String)>,
    count: usize,
}

impl OpenCalls {
    /// The id of a new call: the client's, or a new one of the nine characters that the strictest templates want.
    fn begin(&mut self, id: Option<&str>, name: &str) -> String {
        self.count += 1;
        let id = id.filter(|id| !id.is_empty()).map_or_else(|| format!("call{:05}", self.count), str::to_owned);
        self.waiting.push_back((name.to_owned(), id.clone()));
        id
    }

    /// The id of the call that a result belongs to: the client's, or that of the oldest call of this tool, or of any tool.
    fn answered(&mut self, id: Option<&str>, name: Option<&str>) -> Option<String> {
        let is_it = |(called, known): &(String, String)| match id {
            Some(id) => known == id,
            None => name.is_none_or(|name| called == name),
        };
        let found = self.waiting.iter().position(is_it);
        let removed = self.waiting.remove(found.unwrap_or(0)).map(|(_, id)| id);
        id.map(str::to_owned).or(removed)
    }
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use super::*;

    fn messages(messages: Value) -> Result<Value, ApiError> {
        let body = json!({ "messages": messages });
        read(&Fields::of_body(&body).unwrap(), &mut Vec::new())
    }

    #[test]
    fn reasoning_has_every_name_that_templates_use() {
        let read = messages(json!([{ "role": "assistant", "content": "a", "thinking": "t" }])).unwrap();
        let expected = json!([{ "role": "assistant", "content": "a", "reasoning_content": "t", "reasoning": "t", "thinking": "t" }]);
        assert_eq!(read, expected);
    }

    #[test]
    fn calls_and_results_without_ids_get_matching_ones() {
        let call = |name: &str| json!({ "function": { "name": name, "arguments": { "x": 1 } } });
        let read = messages(json!([
            { "role": "assistant", "tool_calls": [call("f"), call("g")] },
            { "role": "tool", "tool_name": "g", "content": "2" },
            { "role": "tool", "content": "1" },
        ]))
        .unwrap();
        let calls = &read[0]["tool_calls"];
        assert_eq!(
            calls[0],
            json!({ "id": "call00001", "type": "function", "function": { "name": "f", "arguments": { "x": 1 } } })
        );
        assert_eq!((&read[1]["tool_call_id"], &read[1]["name"]), (&calls[1]["id"], &json!("g")));
        assert_eq!(read[2]["tool_call_id"], calls[0]["id"]);
    }

    #[test]
    fn the_clients_ids_are_kept() {
        let read = messages(json!([
            { "role": "assistant", "content": "", "tool_calls": [
                { "id": "one", "function": { "name": "f", "arguments": "{\"x\": 1}" } },
                { "id": "two", "function": { "name": "f" } },
            ] },
            { "role": "tool", "tool_call_id": "two", "content": "2" },
            { "role": "tool", "content": "1" },
        ]))
        .unwrap();
        assert_eq!(read[0]["tool_calls"][0]["function"]["arguments"], json!({ "x": 1 }));
        assert_eq!(read[0]["tool_calls"][1]["function"]["arguments"], json!({}));
        assert_eq!((&read[1]["tool_call_id"], &read[2]["tool_call_id"]), (&json!("two"), &json!("one")));
    }

    #[test]
    fn images_come_before_the_text_of_their_message() {
        let body = json!({ "messages": [{ "role": "user", "content": "a", "images": ["aGk=", "data:image/png;base64,aGk="] }] });
        let mut images = Vec::new();
        let read = read(&Fields::of_body(&body).unwrap(), &mut images).unwrap();
        let image = json!({ "type": "image" });
        assert_eq!(read[0]["content"], json!([image, image, { "type": "text", "text": "a" }]));
        assert!(images.iter().all(|image| image.source == MediaSource::Base64("aGk=".to_owned())));
        assert_eq!(
            (images[1].path.as_str(), images[1].kind_path.as_str()),
            ("messages[0].images[1]", "messages[0].images")
        );
    }

    #[test]
    fn an_invalid_field_is_named_by_its_path() {
        for (conversation, path) in [
            (json!("hi"), "messages"),
            (json!([5]), "messages[0]"),
            (json!([{ "content": "a" }]), "messages[0].role"),
            (json!([{ "role": "wizard" }]), "messages[0].role"),
            (json!([{ "role": "user", "content": [] }]), "messages[0].content"),
            (json!([{ "role": "user", "content": "a", "images": "aGk=" }]), "messages[0].images"),
            (json!([{ "role": "user", "content": "a", "images": [5] }]), "messages[0].images[0]"),
            (json!([{ "role": "assistant", "tool_calls": [{}] }]), "messages[0].tool_calls[0].function"),
            (
                json!([{ "role": "assistant", "tool_calls": [{ "function": {} }] }]),
                "messages[0].tool_calls[0].function.name",
            ),
        ] {
            match messages(conversation.clone()).unwrap_err() {
                ApiError::InvalidRequest { param: Some(param), .. } | ApiError::Unsupported { param, .. } => {
                    assert_eq!(param, path, "{conversation}");
                }
                other => panic!("{other:?}"),
            }
        }
    }
}
