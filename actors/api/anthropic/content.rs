//! Reads the content of a message: a string, or a list of blocks.

use cuelight_engine::media::MediaKind;
use serde_json::{Map, Value};

use crate::api::fields::{Fields, missing, wrong_type};
use crate::serving::error::{ApiError, clip};
use crate::serving::media_source::{MediaField, MediaSource};

/// A block of content.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Block<'a> {
    Text(&'a str),
    Thinking(&'a str),
    ToolUse { id: &'a str, name: &'a str, input: Map<String, Value> },
    Image(Box<MediaField>),
    ToolResult { id: &'a str, text: String, images: Vec<MediaField> },
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
        ("image", Author::User) => Ok(Some(Block::Image(Box::new(read_image(block)?)))),
        ("image" | "document", _) => Err(no_media(path, kind)),
        (other, _) => {
            let known = match author {
                Author::System => "\"text\"",
                Author::User => "\"text\", \"image\" or \"tool_result\"",
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
    let mut images = Vec::new();
    let mut text = match block.get("content") {
        None => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(parts)) => {
            let mut read =
                |(index, part)| read_result_part(&Fields::of(part, format!("{path}[{index}]"))?, &mut images);
            let texts = parts.iter().enumerate().filter_map(|part| read(part).transpose());
            texts.collect::<Result<Vec<_>, _>>()?.join("\n")
        }
        Some(other) => return Err(wrong_type(&path, "a string or a list of blocks", other)),
    };
    if block.bool("is_error")?.unwrap_or(false) {
        text.insert_str(0, "Error: ");
    }
    Ok(Block::ToolResult { id: required(block, "tool_use_id")?, text, images })
}

/// The text of a part. An image has none and is added to the images.
fn read_result_part<'a>(part: &Fields<'a>, images: &mut Vec<MediaField>) -> Result<Option<&'a str>, ApiError> {
    let path = part.path("type");
    match part.string("type")?.ok_or_else(|| missing(&path, "\"text\" or \"image\""))? {
        "text" => required(part, "text").map(Some),
        // The result of a search for tools, which are all in the prompt already.
        "tool_reference" => required(part, "tool_name").map(Some),
        "image" => {
            images.push(read_image(part)?);
            Ok(None)
        }
        "document" => Err(no_media(path, "document")),
        other => Err(ApiError::invalid(&path, format!("`{path}` must be \"text\" or \"image\", not {}", clip(other)))),
    }
}

fn read_image(block: &Fields<'_>) -> Result<MediaField, ApiError> {
    let path = block.path("source");
    let source = block.object("source")?.ok_or_else(|| missing(&path, "the source of the image"))?;
    let kind = source.path("type");
    let (name, is_url) = match source.string("type")?.ok_or_else(|| missing(&kind, "\"base64\" or \"url\""))? {
        "base64" => ("data", false),
        "url" => ("url", true),
        "file" => {
            let message = format!("`{kind}` cannot be file: this server keeps no files; send the image as base64");
            return Err(ApiError::Unsupported { param: kind, message });
        }
        other => {
            let message = format!("`{kind}` must be \"base64\" or \"url\", not {}", clip(other));
            return Err(ApiError::invalid(kind, message));
        }
    };
    let (text, path) = (required(&source, name)?, source.path(name));
    let source =
        if is_url { MediaSource::of_url(text, MediaKind::Image, &path)? } else { MediaSource::Base64(text.to_owned()) };
    Ok(MediaField { media: MediaKind::Image, source, path, kind_path: block.path("type"), kind: Some("image") })
}

fn no_media(path: String, kind: &str) -> ApiError {
    let message = format!("`{path}` cannot be {kind}: only text, and images in messages of users, are accepted");
    ApiError::Unsupported { param: path, message }
}

fn required<'a>(block: &Fields<'a>, name: &str) -> Result<&'a str, ApiError> {
    block.string(name)?.ok_or_else(|| missing(&block.path(name), "a string"))
}
