//! What a call returns, in the form that models take: text, and images for models that see.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rmcp::model::{CallToolResult, ContentBlock, ImageContent, ResourceContents};

/// Most bytes of a result's text.
pub const MAX_TEXT_BYTES: usize = 32 << 10;

/// What the model is told about a call.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ToolResult {
    /// Its text, with a note if it was cut.
    pub text: String,
    /// The files of its images.
    pub images: Vec<Vec<u8>>,
    /// Whether the tool failed.
    pub is_error: bool,
    /// How many bytes the text had before it was cut.
    pub bytes: usize,
}

impl ToolResult {
    /// A failure that no tool has described.
    #[must_use]
    pub fn error(text: &str) -> Self {
        ToolResult { text: format!("Error: {text}"), is_error: true, bytes: text.len(), ..ToolResult::default() }
    }

    /// Reads a result. Images become text unless `takes_images`, and at most `max_bytes` of the text are kept.
    #[must_use]
    pub fn read(result: CallToolResult, takes_images: bool, max_bytes: usize) -> Self {
        let mut read = ToolResult { is_error: result.is_error == Some(true), ..ToolResult::default() };
        let mut texts: Vec<String> = Vec::new();
        for block in result.content {
            texts.extend(read.text_of(block, takes_images));
        }
        // The same content as JSON, for programs.
        if texts.is_empty() && read.images.is_empty() {
            texts.extend(result.structured_content.map(|value| value.to_string()));
        }
        if texts.is_empty() {
            texts.push(if read.images.is_empty() { "(no content)" } else { "" }.to_owned());
        }
        let start = if read.is_error { "Error: " } else { "" };
        let text = format!("{start}{}", texts.join("\n"));
        read.bytes = text.len();
        read.text = cut(text, max_bytes);
        read
    }

    /// The text of a part; an image is taken instead if the model takes images.
    fn text_of(&mut self, block: ContentBlock, takes_images: bool) -> Option<String> {
        Some(match block {
            ContentBlock::Text(part) => part.text,
            ContentBlock::Resource(part) => resource_text(part.resource),
            ContentBlock::ResourceLink(link) => format!("(a resource: {} at {})", link.name, link.uri),
            ContentBlock::Image(image) if takes_images => match STANDARD.decode(&image.data) {
                Ok(file) => {
                    self.images.push(file);
                    return None;
                }
                Err(_) => format!("(an image, {}, that is not in base64)", image.mime_type),
            },
            ContentBlock::Image(image) => left_out_image(&image),
            ContentBlock::Audio(audio) => format!("(audio, {}, which is left out)", audio.mime_type),
            _ => "(content of a kind that is not known)".to_owned(),
        })
    }
}

fn left_out_image(image: &ImageContent) -> String {
    format!("(an image, {}, which is left out: this model takes no images)", image.mime_type)
}

fn resource_text(resource: ResourceContents) -> String {
    match resource {
        ResourceContents::TextResourceContents { text, .. } => text,
        ResourceContents::BlobResourceContents { uri, .. } => format!("(a binary resource: {uri})"),
        _ => "(a resource of a kind that is not known)".to_owned(),
    }
}

/// The beginning of a text that is too long, with a note for the model.
fn cut(mut text: String, max_bytes: usize) -> String {
    let bytes = text.len();
    if bytes > max_bytes {
        text.truncate(text.floor_char_boundary(max_bytes));
        let note = format!("\n(The result was cut: this is the beginning, {} of {bytes} bytes.)", text.len());
        text.push_str(&note);
    }
    text
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(result: Value, takes_images: bool) -> ToolResult {
        ToolResult::read(serde_json::from_value(result).unwrap(), takes_images, 64)
    }

    #[test]
    fn texts_and_text_resources_are_joined() {
        let content = json!([
            { "type": "text", "text": "one" },
            { "type": "resource", "resource": { "uri": "file:///a", "text": "two" } },
            { "type": "resource", "resource": { "uri": "file:///b", "blob": "AAAA" } },
        ]);
        let result = read(json!({ "content": content, "structuredContent": { "a": 1 } }), false);
        assert_eq!(result.text, "one\ntwo\n(a binary resource: file:///b)");
        assert!(!result.is_error);
    }

    #[test]
    fn structured_content_is_used_without_text_only() {
        assert_eq!(read(json!({ "content": [], "structuredContent": { "a": 1 } }), false).text, r#"{"a":1}"#);
        assert_eq!(read(json!({ "content": [] }), false).text, "(no content)");
    }

    #[test]
    fn images_are_for_models_that_take_them() {
        let image = json!({ "content": [{ "type": "image", "data": "AAEC", "mimeType": "image/png" }] });
        let seen = read(image.clone(), true);
        assert_eq!((seen.images, seen.text.as_str()), (vec![vec![0, 1, 2]], ""));
        let unseen = read(image, false);
        assert!(unseen.images.is_empty() && unseen.text.contains("image/png"), "{}", unseen.text);
    }

    #[test]
    fn a_failure_is_told_as_an_error() {
        let result = read(json!({ "content": [{ "type": "text", "text": "no such file" }], "isError": true }), false);
        assert_eq!((result.text.as_str(), result.is_error), ("Error: no such file", true));
    }

    #[test]
    fn a_long_text_is_cut_between_characters_and_says_so() {
        let result = read(json!({ "content": [{ "type": "text", "text": "é".repeat(100) }] }), false);
        assert_eq!(result.bytes, 200);
        assert!(result.text.starts_with(&"é".repeat(32)) && result.text.contains("64 of 200 bytes"), "{}", result.text);
        let odd = read(json!({ "content": [{ "type": "text", "text": format!("a{}", "é".repeat(100)) }] }), false);
        assert!(odd.text.contains("63 of 201 bytes"), "{}", odd.text);
    }
}
