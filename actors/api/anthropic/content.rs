//! Reads the content of a message: a string, or a list of blocks.

use serde_json::{Map, Value};

use crate::api::fields::{Fields, missing, wrong_type};
use crate::serving::error::{ApiError, clip};

/// A block of content.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Block<'a> {
    Text(&'a str),
    Thinking(&'a str),
    ToolUse { id: &'a str, name: &'a str, input: Map<String, Value> },
    ToolResult { id: &'a str, text: String },
}

/// Who may write which blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Author {
    System,
    User,
    Assistant,
}

/// Reads the content at `path`.
///
/// # Errors
/// [`ApiError::InvalidRequest`] or [`ApiError::Unsupported`] that names the field by its path.
pub(super) fn read<'a>(content: &'a Value, path: &str, author: Author) -> Result<Vec<Block<'a>>, ApiError> {
    match content {
        Value::String(text) => Ok(vec![Block::Text(text)]),
        Value::Array(blocks) => {
            let read = |(index, block)| read_block(&Fields::of(block, format!("{path}[{index}]"))?, author);
            blocks.iter().enumerate().filter_map(|block| read(block).transpose()).collect()
        }
        other => Err(wrong_type(path, "a string or a list of blocks", other)),
    }
}

/// `None` for a block that only Anthropic's models can read.
fn read_block<'a>(block: &Fields<'a>, author: Author) -> Result<Option<Block<'a>>, ApiError> {
    let path = block.path("type");
    let kind = block.string("type")?.ok_or_else(|| missing(&path, "the type of the block"))?;
    match (kind, author) {
        ("text", _) => Ok(Some(Block::Text(required(block, "text")?))),
        ("thinking", Author::Assistant) => Ok(Some(Block::Thinking(required(block, "thinking")?))),
        ("redacted_thinking", Author::Assistant) => Ok(None),
        ("tool_use", Author::Assistant) => read_tool_use(block).map(Some),
        ("tool_result", Author::User) => read_tool_result(block).map(Some),
        ("image" | "document", _) => Err(no_media(path, kind)),
        (other, _) => {
            let known = match author {
                Author::System => "\"text\"",
                Author::User => "\"text\" or \"tool_result\"",
                Author::Assistant => "\"text\", \"thinking\", \"redacted_thinking\" or \"tool_use\"",
            };
            Err(ApiError::invalid(&path, format!("`{path}` must be {known} in this message, not {}", clip(other))))
        }
    }
}

fn read_tool_use<'a>(block: &Fields<'a>) -> Result<Block<'a>, ApiError> {
    Ok(Block::ToolUse {
        id: required(block, "id")?,
        name: required(block, "name")?,
        input: block.object("input")?.map(|input| input.map().clone()).unwrap_or_default(),
    })
}

fn read_tool_result<'a>(block: &Fields<'a>) -> Result<Block<'a>, ApiError> {
    let path = block.path("content");
    let mut text = match block.get("content") {
        None => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(parts)) => {
            let read = |(index, part)| read_result_part(&Fields::of(part, format!("{path}[{index}]"))?);
            parts.iter().enumerate().map(read).collect::<Result<Vec<_>, _>>()?.join("\n")
        }
        Some(other) => return Err(wrong_type(&path, "a string or a list of blocks", other)),
    };
    if block.bool("is_error")?.unwrap_or(false) {
        text.insert_str(0, "Error: ");
    }
    Ok(Block::ToolResult { id: required(block, "tool_use_id")?, text })
}

fn read_result_part<'a>(part: &Fields<'a>) -> Result<&'a str, ApiError> {
    let path = part.path("type");
    match part.string("type")?.ok_or_else(|| missing(&path, "\"text\""))? {
        "text" => required(part, "text"),
        // The result of a search for tools, which are all in the prompt already.
        "tool_reference" => required(part, "tool_name"),
        kind @ ("image" | "document") => Err(no_media(path, kind)),
        other => Err(ApiError::invalid(&path, format!("`{path}` must be \"text\", not {}", clip(other)))),
    }
}

fn no_media(path: String, kind: &str) -> ApiError {
    let message = format!("`{path}` cannot be {kind}: this model accepts text only");
    ApiError::Unsupported { param: path, message }
}

fn required<'a>(block: &Fields<'a>, name: &str) -> Result<&'a str, ApiError> {
    block.string(name)?.ok_or_else(|| missing(&block.path(name), "a string"))
}
