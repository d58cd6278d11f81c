//! Checks a conversation and converts it to the form that chat templates expect: content as one string, the role `system`
//! for instructions, and the arguments of a tool call as an object.

use serde_json::{Map, Value, json};

use super::custom_tool;
use crate::api::content::{self, Content};
use crate::api::fields::{Fields, missing, wrong_type};
use crate::serving::error::{ApiError, clip};
use crate::serving::media_source::MediaField;

const ROLES: [&str; 6] = ["system", "developer", "user", "assistant", "tool", "function"];

/// Reads `messages`, and adds their media.
///
/// # Errors
/// [`ApiError::InvalidRequest`] or [`ApiError::Unsupported`] that names the field by its path.
pub(super) fn read(fields: &Fields<'_>, media: &mut Vec<MediaField>) -> Result<Value, ApiError> {
    let path = fields.path("messages");
    let messages = fields.array("messages")?.ok_or_else(|| missing(&path, "a list of messages"))?;
    if messages.is_empty() {
        return Err(ApiError::invalid(path, "`messages` must have at least one message"));
    }
    let messages = messages.iter().enumerate();
    messages.map(|(index, message)| read_message(&Fields::of(message, format!("{path}[{index}]"))?, media)).collect()
}

fn read_message(message: &Fields<'_>, media: &mut Vec<MediaField>) -> Result<Value, ApiError> {
    let role = read_role(message)?;
    let tool_calls = message.array("tool_calls")?.filter(|calls| !calls.is_empty());
    let content = match message.get("content") {
        Some(content) if matches!(role, "user" | "tool") => {
            read_parts(content, &message.path("content"), media)?.json()
        }
        Some(content) => Value::String(read_content(content, &message.path("content"))?),
        // A turn that only called tools, or an empty answer, has no content, and a tool may have nothing to say.
        None if role == "assistant" || message.map().contains_key("content") => json!(""),
        None => return Err(missing(&message.path("content"), "a string or a list of text parts")),
    };
    let mut read = Map::new();
    read.insert("role".to_owned(), json!(role));
    read.insert("content".to_owned(), content);
    if let Some(calls) = tool_calls {
        let calls = calls.iter().enumerate();
        let path = message.path("tool_calls");
        let calls: Result<Value, _> =
            calls.map(|(index, call)| read_tool_call(call, format!("{path}[{index}]"))).collect();
        read.insert("tool_calls".to_owned(), calls?);
    }
    for name in ["name", "tool_call_id"] {
        if let Some(text) = message.string(name)? {
            read.insert(name.to_owned(), json!(text));
        }
    }
    // Clients and templates use either name for the model's reasoning.
    let reasoning = message.string("reasoning_content")?.or(message.string("reasoning")?);
    if let Some(reasoning) = reasoning {
        read.insert("reasoning_content".to_owned(), json!(reasoning));
        read.insert("reasoning".to_owned(), json!(reasoning));
    }
    Ok(Value::Object(read))
}

/// Reads the role of a message. Templates know `developer` as `system`, and `function` as `tool`.
///
/// # Errors
/// [`ApiError::InvalidRequest`] that names the field.
pub(in crate::api) fn read_role(message: &Fields<'_>) -> Result<&'static str, ApiError> {
    let path = message.path("role");
    let role = message.string("role")?.ok_or_else(|| missing(&path, &format!("one of {}", ROLES.join(", "))))?;
    match ROLES.into_iter().find(|known| *known == role) {
        Some("developer") => Ok("system"),
        // What results of tools were called before there were ids of calls.
        Some("function") => Ok("tool"),
        Some(role) => Ok(role),
        None => {
            Err(ApiError::invalid(&path, format!("`{path}` must be one of {}, not {}", ROLES.join(", "), clip(role))))
        }
    }
}

/// The text of a message that may have no media. Parts are joined by line breaks.
///
/// # Errors
/// As [`read_parts`], and [`ApiError::Unsupported`] for an image.
pub(super) fn read_content(content: &Value, path: &str) -> Result<String, ApiError> {
    let mut media = Vec::new();
    let content = read_parts(content, path, &mut media)?;
    content::refuse_media(&media)?;
    Ok(content.into_text())
}

/// The texts and media of a message. Texts are joined by line breaks.
///
/// # Errors
/// [`ApiError::InvalidRequest`] or [`ApiError::Unsupported`] that names the field by its path.
pub(super) fn read_parts(content: &Value, path: &str, media: &mut Vec<MediaField>) -> Result<Content, ApiError> {
    match content {
        Value::String(text) => Ok(Content::text(text)),
        Value::Array(parts) => {
            let mut read = Content::default();
            for (index, part) in parts.iter().enumerate() {
                read_part(part, format!("{path}[{index}]"), &mut read, media)?;
            }
            Ok(read)
        }
        other => Err(wrong_type(path, "a string or a list of parts", other)),
    }
}

fn read_part(part: &Value, path: String, read: &mut Content, media: &mut Vec<MediaField>) -> Result<(), ApiError> {
    if let Value::String(text) = part {
        read.push_text("\n", text);
        return Ok(());
    }
    let part = Fields::of(part, path)?;
    let path = part.path("type");
    let field = match part.string("type")? {
        Some("text" | "input_text" | "output_text") => "text",
        Some("refusal") => "refusal",
        Some("image_url") => return add(content::read_image_url(&part, "image_url")?, read, media),
        Some("input_image") => return add(content::read_image_url(&part, "input_image")?, read, media),
        Some("input_audio") => return add(content::read_input_audio(&part)?, read, media),
        Some("audio_url") => return add(content::read_audio_url(&part)?, read, media),
        Some(kind @ ("image" | "video_url" | "file" | "input_file")) => {
            let message =
                format!("`{path}` cannot be {kind}: only text, image_url, input_audio and audio_url are accepted");
            return Err(ApiError::Unsupported { param: path, message });
        }
        Some(other) => {
            let message = format!(
                "`{path}` must be \"text\", \"image_url\", \"input_audio\" or \"audio_url\", not {}",
                clip(other)
            );
            return Err(ApiError::invalid(&path, message));
        }
        None => return Err(missing(&path, "\"text\" or \"image_url\"")),
    };
    let text = part.string(field)?.ok_or_else(|| missing(&part.path(field), "the part's text"))?;
    read.push_text("\n", text);
    Ok(())
}

fn add(field: MediaField, read: &mut Content, media: &mut Vec<MediaField>) -> Result<(), ApiError> {
    read.push_media(field.media);
    media.push(field);
    Ok(())
}

/// A tool call as templates expect it. The API carries its arguments as JSON in a string; templates expect an object.
fn read_tool_call(call: &Value, path: String) -> Result<Value, ApiError> {
    let fields = Fields::of(call, path)?;
    if fields.string("type")? == Some("custom") {
        return read_custom_call(&fields);
    }
    let function =
        fields.object("function")?.ok_or_else(|| missing(&fields.path("function"), "the function called"))?;
    function.string("name")?.ok_or_else(|| missing(&function.path("name"), "the function's name"))?;
    let mut call = call.clone();
    call["function"]["arguments"] = call_arguments(function.get("arguments"));
    Ok(call)
}

/// The arguments of a call as templates expect them. Without arguments they are an empty object, and a text that is no object
/// stays as it is.
pub(in crate::api) fn call_arguments(arguments: Option<&Value>) -> Value {
    match arguments {
        None => json!({}),
        Some(Value::String(text)) if text.trim().is_empty() => json!({}),
        Some(Value::String(text)) => match serde_json::from_str(text) {
            Ok(object @ Value::Object(_)) => object,
            _ => json!(text),
        },
        Some(arguments) => arguments.clone(),
    }
}

/// A call of a custom tool, as a call of the function that stands for it.
fn read_custom_call(call: &Fields<'_>) -> Result<Value, ApiError> {
    let custom = call.object("custom")?.ok_or_else(|| missing(&call.path("custom"), "the custom tool called"))?;
    let name = custom.string("name")?.ok_or_else(|| missing(&custom.path("name"), "the tool's name"))?;
    let input = custom.string("input")?.ok_or_else(|| missing(&custom.path("input"), "the tool's input"))?;
    let function = json!({ "name": name, "arguments": custom_tool::arguments(input) });
    Ok(json!({ "id": call.string("id")?.unwrap_or_default(), "type": "function", "function": function }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(messages: Value) -> Result<Value, ApiError> {
        let body = json!({ "messages": messages });
        read(&Fields::of_body(&body).unwrap(), &mut Vec::new())
    }

    #[test]
    fn content_may_be_text_or_text_parts() {
        let parts = json!([{ "type": "text", "text": "a" }, { "type": "text", "text": "b" }]);
        let read = messages(json!([
            { "role": "developer", "content": "be brief" },
            { "role": "user", "content": parts },
            { "role": "assistant", "content": null },
        ]));
        assert_eq!(
            read.unwrap(),
            json!([
                { "role": "system", "content": "be brief" },
                { "role": "user", "content": "a\nb" },
                { "role": "assistant", "content": "" },
            ])
        );
    }

    #[test]
    fn results_may_be_empty_and_have_the_older_role() {
        let read = messages(json!([
            { "role": "function", "name": "f", "content": "2" },
            { "role": "tool", "tool_call_id": "1", "content": null },
            { "role": "user", "content": null },
        ]));
        assert_eq!(
            read.unwrap(),
            json!([
                { "role": "tool", "content": "2", "name": "f" },
                { "role": "tool", "content": "", "tool_call_id": "1" },
                { "role": "user", "content": "" },
            ])
        );
    }

    #[test]
    fn arguments_that_are_not_an_object_stay_as_they_are() {
        for (text, expected) in [("{\"a\":[]}", json!({ "a": [] })), ("{\"a\":", json!("{\"a\":")), ("5", json!("5"))] {
            assert_eq!(call_arguments(Some(&json!(text))), expected);
        }
    }

    #[test]
    fn a_call_without_arguments_has_an_empty_object() {
        for function in
            [json!({ "name": "f" }), json!({ "name": "f", "arguments": "" }), json!({ "name": "f", "arguments": null })]
        {
            let call = json!({ "id": "1", "type": "function", "function": function });
            let read = messages(json!([{ "role": "assistant", "tool_calls": [call] }])).unwrap();
            assert_eq!(read[0]["tool_calls"][0]["function"]["arguments"], json!({}), "{function}");
        }
    }

    #[test]
    fn the_arguments_of_a_tool_call_become_an_object() {
        let read = messages(json!([
            { "role": "assistant", "tool_calls": [
                { "id": "1", "type": "function", "function": { "name": "f", "arguments": "{\"x\": 1}" } },
                { "id": "2", "type": "custom", "custom": { "name": "c", "input": "a" } },
            ] },
            { "role": "tool", "tool_call_id": "1", "content": "2" },
        ]))
        .unwrap();
        assert_eq!(read[0]["tool_calls"][0]["function"]["arguments"], json!({ "x": 1 }));
        let custom =
            json!({ "id": "2", "type": "function", "function": { "name": "c", "arguments": { "input": "a" } } });
        assert_eq!(read[0]["tool_calls"][1], custom);
        assert_eq!(read[1]["tool_call_id"], "1");
    }

    #[test]
    fn an_invalid_field_of_a_conversation_is_named_by_its_path() {
        for (conversation, path) in [
            (json!([]), "messages"),
            (json!("hi"), "messages"),
            (json!([5]), "messages[0]"),
            (json!([{ "role": "user", "content": "a" }, { "role": "wizard", "content": "b" }]), "messages[1].role"),
            (json!([{ "content": "a" }]), "messages[0].role"),
            (json!([{ "role": "user" }]), "messages[0].content"),
            (json!([{ "role": "user", "content": [{ "type": "text" }] }]), "messages[0].content[0].text"),
            (json!([{ "role": "user", "content": [{ "type": "image_url" }] }]), "messages[0].content[0].image_url"),
            (json!([{ "role": "user", "content": [{ "type": "video_url" }] }]), "messages[0].content[0].type"),
            (
                json!([{ "role": "system", "content": [{ "type": "image_url", "image_url": "data:;base64,aGk=" }] }]),
                "messages[0].content[0].type",
            ),
            (json!([{ "role": "user", "content": [{ "type": "smell" }] }]), "messages[0].content[0].type"),
            (
                json!([{ "role": "assistant", "tool_calls": [{ "type": "custom", "custom": { "name": "c" } }] }]),
                "messages[0].tool_calls[0].custom.input",
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
