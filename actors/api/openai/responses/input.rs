//! Reads `instructions` and `input`: a string, or a list of items.

use std::collections::BTreeSet;

use serde_json::Value;

use super::conversation::Conversation;
use super::item::REASONING_PREFIX;
use super::previous;
use crate::api::content::Content;
use crate::api::fields::{Fields, missing, wrong_type};
use crate::api::openai::custom_tool;
use crate::api::openai::messages::{call_arguments, read_content, read_parts};
use crate::api::openai::tool_name::ToolName;
use crate::serving::error::{ApiError, clip};
use crate::serving::media_source::MediaField;

/// Reads the messages of the prompt, in the form that chat templates expect, and their media. The `earlier` items come before
/// those of `input`.
///
/// # Errors
/// [`ApiError::InvalidRequest`] or [`ApiError::Unsupported`] that names the field by its path.
pub(super) fn read(fields: &Fields<'_>, earlier: &[Value]) -> Result<(Value, Vec<MediaField>), ApiError> {
    let mut conversation = Conversation::default();
    if let Some(instructions) = fields.string("instructions")? {
        conversation.system(instructions.to_owned());
    }
    read_items(earlier, previous::FIELD, &mut conversation)?;
    let path = fields.path("input");
    let wanted = "a string or a list of items";
    match fields.get("input").ok_or_else(|| missing(&path, wanted))? {
        Value::String(text) => conversation.user(Content::text(text), Vec::new()),
        Value::Array(items) => read_items(items, &path, &mut conversation)?,
        other => return Err(wrong_type(&path, wanted, other)),
    }
    if conversation.is_empty() {
        return Err(ApiError::invalid(&path, format!("`{path}` must have at least one item")));
    }
    Ok(conversation.json())
}

fn read_items(items: &[Value], path: &str, conversation: &mut Conversation) -> Result<(), ApiError> {
    let mut ignored = BTreeSet::new();
    for (index, item) in items.iter().enumerate() {
        let item = Fields::of(item, format!("{path}[{index}]"))?;
        let kind = match item.string("type")? {
            Some(kind) => kind,
            None if item.get("role").is_some() => "message",
            None => return Err(missing(&item.path("type"), "the type of the item")),
        };
        if !read_item(kind, &item, conversation)? {
            ignored.insert(clip(kind));
        }
    }
    if !ignored.is_empty() {
        tracing::warn!(types = ?ignored, "items of types that this server does not know are ignored");
    }
    Ok(())
}

/// Whether the type of the item is known.
fn read_item(kind: &str, item: &Fields<'_>, conversation: &mut Conversation) -> Result<bool, ApiError> {
    match kind {
        "message" => read_message(item, conversation)?,
        "reasoning" => read_reasoning(item, conversation)?,
        "function_call" => {
            item.string("arguments")?;
            let arguments = call_arguments(item.get("arguments"));
            conversation.call(required(item, "call_id")?, &ToolName::read(item)?.for_model(), arguments);
        }
        "custom_tool_call" => {
            let arguments = custom_tool::arguments(item.string("input")?.unwrap_or_default());
            conversation.call(required(item, "call_id")?, &ToolName::read(item)?.for_model(), arguments);
        }
        "function_call_output" | "custom_tool_call_output" => {
            let (output, media) = parts(item, "output")?;
            conversation.tool_output(required(item, "call_id")?, output, media);
        }
        "item_reference" => {
            let param = item.path("type");
            let message =
                format!("`{param}` cannot be item_reference: items are not found by their ids; send the item itself");
            return Err(ApiError::Unsupported { param, message });
        }
        _ => return Ok(false),
    }
    Ok(true)
}

fn read_message(message: &Fields<'_>, conversation: &mut Conversation) -> Result<(), ApiError> {
    match required(message, "role")? {
        "system" | "developer" => conversation.system(text(message, "content")?),
        "user" => {
            let (content, media) = parts(message, "content")?;
            conversation.user(content, media);
        }
        "assistant" => conversation.assistant(&text(message, "content")?),
        other => {
            let path = message.path("role");
            let wanted = "system, developer, user or assistant";
            let message = format!("`{path}` must be {wanted}, not {}", clip(other));
            return Err(ApiError::invalid(path, message));
        }
    }
    Ok(())
}

/// The text of the reasoning: that of the item, or else what this server has put into `encrypted_content`, which some
/// clients return instead. A summary is not what the model wrote.
fn read_reasoning(item: &Fields<'_>, conversation: &mut Conversation) -> Result<(), ApiError> {
    let parts = item.array("content")?.filter(|parts| !parts.is_empty());
    for (index, part) in parts.into_iter().flatten().enumerate() {
        let part = Fields::of(part, format!("{}[{index}]", item.path("content")))?;
        conversation.reasoning(part.string("text")?.unwrap_or_default());
    }
    let kept = item.string("encrypted_content")?.and_then(|kept| kept.strip_prefix(REASONING_PREFIX));
    if let Some(kept) = kept.filter(|_| parts.is_none()) {
        conversation.reasoning(kept);
    }
    Ok(())
}

/// The texts and media of a field that is a string or a list of parts.
fn parts(item: &Fields<'_>, name: &str) -> Result<(Content, Vec<MediaField>), ApiError> {
    let path = item.path(name);
    let value = item.get(name).ok_or_else(|| missing(&path, "a string or a list of parts"))?;
    let mut media = Vec::new();
    Ok((read_parts(value, &path, &mut media)?, media))
}

/// The text of a field that is a string or a list of parts.
fn text(item: &Fields<'_>, name: &str) -> Result<String, ApiError> {
    let path = item.path(name);
    let value = item.get(name).ok_or_else(|| missing(&path, "a string or a list of text parts"))?;
    read_content(value, &path)
}

fn required<'a>(item: &Fields<'a>, name: &str) -> Result<&'a str, ApiError> {
    item.string(name)?.ok_or_else(|| missing(&item.path(name), "a string"))
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn messages(body: &Value) -> Result<Value, ApiError> {
        Ok(read(&Fields::of_body(body).unwrap(), &[])?.0)
    }

    #[test]
    fn a_string_is_a_message_of_the_user_after_the_instructions() {
        assert_eq!(
            messages(&json!({ "instructions": "be brief", "input": "hi" })).unwrap(),
            json!([{ "role": "system", "content": "be brief" }, { "role": "user", "content": "hi" }])
        );
    }

    #[test]
    fn the_first_messages_of_the_system_become_one() {
        let input = json!([
            { "role": "developer", "content": [{ "type": "input_text", "text": "b" }] },
            { "role": "user", "content": "c" },
            { "type": "message", "role": "system", "content": "d" },
        ]);
        assert_eq!(
            messages(&json!({ "instructions": "a", "input": input })).unwrap(),
            json!([
                { "role": "system", "content": "a\n\nb" },
                { "role": "user", "content": "c" },
                { "role": "system", "content": "d" },
            ])
        );
    }

    #[test]
    fn earlier_items_come_after_the_instructions_and_before_the_input() {
        let earlier = [json!({ "role": "user", "content": "a" }), json!({ "role": "assistant", "content": "b" })];
        let body = json!({ "instructions": "i", "input": [{ "role": "assistant", "content": "c" }] });
        assert_eq!(
            read(&Fields::of_body(&body).unwrap(), &earlier).unwrap().0,
            json!([
                { "role": "system", "content": "i" },
                { "role": "user", "content": "a" },
                { "role": "assistant", "content": "b\nc" },
            ])
        );
    }

    #[test]
    fn items_of_the_assistant_are_one_turn_and_outputs_are_messages_of_tools() {
        let input = json!([
            { "role": "user", "content": "weather?" },
            { "type": "reasoning", "id": "rs_1", "summary": [], "content": [{ "type": "reasoning_text", "text": "look" }] },
            { "type": "message", "role": "assistant", "content": [{ "type": "output_text", "text": "I look." }] },
            { "type": "function_call", "call_id": "call_1", "name": "f", "arguments": "{\"x\":1}" },
            { "type": "custom_tool_call", "call_id": "call_2", "name": "patch", "input": "*** Begin" },
            { "type": "function_call", "call_id": "call_3", "namespace": "mcp__files", "name": "read", "arguments": "{}" },
            { "type": "function_call_output", "call_id": "call_1", "output": "sunny" },
            { "type": "custom_tool_call_output", "call_id": "call_2", "output": [{ "type": "input_text", "text": "ok" }] },
            { "type": "web_search_call", "id": "ws_1" },
            { "role": "assistant", "content": "done" },
        ]);
        let call = |id: &str, name: &str, arguments: Value| json!({ "id": id, "type": "function", "function": { "name": name, "arguments": arguments } });
        assert_eq!(
            messages(&json!({ "input": input })).unwrap(),
            json!([
                { "role": "user", "content": "weather?" },
                {
                    "role": "assistant", "content": "I look.",
                    "tool_calls": [
                        call("call_1", "f", json!({ "x": 1 })), call("call_2", "patch", json!({ "input": "*** Begin" })),
                        call("call_3", "mcp__files__read", json!({})),
                    ],
                    "reasoning_content": "look", "reasoning": "look",
                },
                { "role": "tool", "content": "sunny", "tool_call_id": "call_1", "name": "f" },
                { "role": "tool", "content": "ok", "tool_call_id": "call_2", "name": "patch" },
                { "role": "assistant", "content": "done" },
            ])
        );
    }

    #[test]
    fn images_of_outputs_are_shown_by_the_next_message_of_the_user() {
        let image = json!({ "type": "input_image", "image_url": "data:image/png;base64,aGk=", "detail": "auto" });
        let call = |id: &str| json!({ "type": "function_call", "call_id": id, "name": "f", "arguments": "{}" });
        let output = |id: &str| {
            let output = json!([{ "type": "input_text", "text": "seen" }, image]);
            json!({ "type": "function_call_output", "call_id": id, "output": output })
        };
        let input = json!([
            call("1"), call("2"), output("1"), output("2"), { "role": "user", "content": [image, { "type": "input_text", "text": "?" }] },
            call("3"), output("3"),
        ]);
        let (messages, media) = read(&Fields::of_body(&json!({ "input": input })).unwrap(), &[]).unwrap();
        let shown = json!({ "type": "image" });
        assert_eq!(messages[1]["content"], "seen");
        assert_eq!(
            messages[3],
            json!({ "role": "user", "content": [shown, shown, shown, { "type": "text", "text": "?" }] })
        );
        assert_eq!(messages[6], json!({ "role": "user", "content": [shown] }));
        assert_eq!((media.len(), media[0].path.as_str()), (4, "input[2].output[1].image_url"));
    }

    #[test]
    fn reasoning_comes_back_from_its_content_or_from_what_was_kept_of_it() {
        let of = |item: Value| messages(&json!({ "input": [item] })).unwrap()[0]["reasoning_content"].clone();
        let kept = format!("{REASONING_PREFIX}kept");
        assert_eq!(of(json!({ "type": "reasoning", "summary": [], "encrypted_content": kept })), "kept");
        let both = json!({
            "type": "reasoning", "content": [{ "type": "reasoning_text", "text": "said" }], "encrypted_content": kept
        });
        assert_eq!(of(both), "said");
    }

    #[test]
    fn an_invalid_item_is_named_by_its_path() {
        for (input, path) in [
            (json!(null), "input"),
            (json!(5), "input"),
            (json!([]), "input"),
            (json!([5]), "input[0]"),
            (json!([{ "content": "a" }]), "input[0].type"),
            (json!([{ "role": "user" }]), "input[0].content"),
            (json!([{ "role": "tool", "content": "a" }]), "input[0].role"),
            (json!([{ "role": "user", "content": [{ "type": "input_image" }] }]), "input[0].content[0].image_url"),
            (json!([{ "role": "user", "content": [{ "type": "input_file" }] }]), "input[0].content[0].type"),
            (json!([{ "type": "function_call", "name": "f" }]), "input[0].call_id"),
            (json!([{ "type": "function_call", "call_id": "c" }]), "input[0].name"),
            (json!([{ "type": "function_call_output", "call_id": "c" }]), "input[0].output"),
            (json!([{ "type": "item_reference", "id": "msg_1" }]), "input[0].type"),
        ] {
            match messages(&json!({ "input": input })).unwrap_err() {
                ApiError::InvalidRequest { param: Some(param), .. } | ApiError::Unsupported { param, .. } => {
                    assert_eq!(param, path, "{input}");
                }
                other => panic!("{other:?}"),
            }
        }
    }
}
