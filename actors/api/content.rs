//! The content of a message while it is read: texts, and places for images.

use serde_json::{Value, json};

use super::fields::{Fields, missing, wrong_type};
use crate::serving::error::ApiError;
use crate::serving::image_source::{ImageField, ImageSource};

/// Texts and images in their order. The images themselves are in another list, in the same order.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Content(Vec<Part>);

#[derive(Debug, Clone, PartialEq)]
enum Part {
    Text(String),
    Image,
}

impl Content {
    /// A text.
    pub fn text(text: impl Into<String>) -> Self {
        Content(vec![Part::Text(text.into())])
    }

    /// A number of images.
    pub fn images(count: usize) -> Self {
        Content(vec![Part::Image; count])
    }

    /// Adds a text, after a separator if there is text directly before it.
    pub fn push_text(&mut self, separator: &str, text: &str) {
        match self.0.last_mut() {
            Some(Part::Text(last)) => {
                if !last.is_empty() && !text.is_empty() {
                    last.push_str(separator);
                }
                last.push_str(text);
            }
            _ => self.0.push(Part::Text(text.to_owned())),
        }
    }

    /// Adds an image.
    pub fn push_image(&mut self) {
        self.0.push(Part::Image);
    }

    /// Adds all of another content; a separator is between texts that meet.
    pub fn append(&mut self, separator: &str, other: Content) {
        for part in other.0 {
            match part {
                Part::Text(text) => self.push_text(separator, &text),
                Part::Image => self.push_image(),
            }
        }
    }

    /// Whether it has an image.
    pub fn has_images(&self) -> bool {
        self.0.contains(&Part::Image)
    }

    /// Whether it has neither an image nor a text other than white space.
    pub fn is_blank(&self) -> bool {
        self.0.iter().all(|part| matches!(part, Part::Text(text) if text.trim().is_empty()))
    }

    /// The texts.
    pub fn into_text(self) -> String {
        self.0.into_iter().filter_map(|part| if let Part::Text(text) = part { Some(text) } else { None }).collect()
    }

    /// The content as chat templates expect it: a string, or a list of parts if it has images.
    pub fn json(self) -> Value {
        if !self.has_images() {
            return Value::String(self.into_text());
        }
        let part = |part| match part {
            Part::Text(text) => json!({ "type": "text", "text": text }),
            Part::Image => json!({ "type": "image" }),
        };
        self.0.into_iter().filter(|part| !matches!(part, Part::Text(text) if text.is_empty())).map(part).collect()
    }
}

/// Reads `image_url` of a part, OpenAI's form of an image: a URL, or an object with one.
///
/// # Errors
/// [`ApiError::InvalidRequest`] that names the field.
pub(super) fn read_image_url(part: &Fields<'_>, kind: &'static str) -> Result<ImageField, ApiError> {
    let path = part.path("image_url");
    let (url, path) = match part.get("image_url") {
        Some(Value::String(url)) => (url.as_str(), path),
        Some(Value::Object(_)) => {
            let object = part.object("image_url")?.ok_or_else(|| missing(&path, "the image's URL"))?;
            let path = object.path("url");
            (object.string("url")?.ok_or_else(|| missing(&path, "the image's URL"))?, path)
        }
        Some(other) => return Err(wrong_type(&path, "a URL, or an object with one", other)),
        None if part.get("file_id").is_some() => {
            let param = part.path("file_id");
            let message =
                format!("`{param}` is not supported: this server keeps no files; send the image in `image_url`");
            return Err(ApiError::Unsupported { param, message });
        }
        None => return Err(missing(&path, "the image's URL")),
    };
    Ok(ImageField { source: ImageSource::of_url(url, &path)?, path, kind_path: part.path("type"), kind: Some(kind) })
}

/// Refuses images where only texts may stand.
///
/// # Errors
/// [`ApiError::Unsupported`] that names the first.
pub(super) fn refuse_images(images: &[ImageField]) -> Result<(), ApiError> {
    let Some(image) = images.first() else { return Ok(()) };
    let param = image.kind_path.clone();
    let message = format!("`{param}`: only messages of users and results of tools may have images");
    Err(ApiError::Unsupported { param, message })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_is_a_string_unless_it_has_images() {
        let mut content = Content::default();
        content.push_text("\n", "a");
        content.push_text("\n", "b");
        assert_eq!(content.clone().json(), json!("a\nb"));
        content.push_image();
        content.push_text("\n", "c");
        content.append("\n", Content::text("d"));
        let text = |text| json!({ "type": "text", "text": text });
        assert_eq!(content.json(), json!([text("a\nb"), { "type": "image" }, text("c\nd")]));
        assert_eq!(Content::images(1).json(), json!([{ "type": "image" }]));
        assert!(Content::text(" ").is_blank() && !Content::images(1).is_blank());
    }

    #[test]
    fn an_image_is_a_url_or_an_object_with_one() {
        let read = |part: Value| {
            let read = read_image_url(&Fields::of(&part, "part".to_owned())?, "image_url")?;
            Ok::<_, ApiError>((read.path, read.source))
        };
        let data = "data:image/png;base64,aGk=";
        let source = ImageSource::Base64("aGk=".to_owned());
        assert_eq!(read(json!({ "image_url": data })).ok(), Some(("part.image_url".to_owned(), source.clone())));
        let object = json!({ "image_url": { "url": data, "detail": "low" } });
        assert_eq!(read(object).ok(), Some(("part.image_url.url".to_owned(), source)));
        for (part, param) in [
            (json!({}), "part.image_url"),
            (json!({ "image_url": {} }), "part.image_url.url"),
            (json!({ "image_url": 5 }), "part.image_url"),
            (json!({ "image_url": { "url": "a.png" } }), "part.image_url.url"),
            (json!({ "file_id": "file-1" }), "part.file_id"),
        ] {
            match read(part.clone()) {
                Err(
                    ApiError::InvalidRequest { param: Some(found), .. } | ApiError::Unsupported { param: found, .. },
                ) => {
                    assert_eq!(found, param, "{part}");
                }
                other => panic!("{other:?}"),
            }
        }
    }
}
