//! The content of a message while it is read: texts, and places for media.

use cuelight_engine::media::MediaKind;
use serde_json::{Value, json};

use super::fields::{Fields, missing, wrong_type};
use crate::serving::error::ApiError;
use crate::serving::media_source::{MediaField, MediaSource};

/// Texts and media in their order. The media themselves are in another list, in the same order.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Content(Vec<Part>);

#[derive(Debug, Clone, PartialEq)]
enum Part {
    Text(String),
    Media(MediaKind),
}

impl Content {
    /// A text.
    pub fn text(text: impl Into<String>) -> Self {
        Content(vec![Part::Text(text.into())])
    }

    /// Media of these kinds.
    pub fn media(kinds: impl IntoIterator<Item = MediaKind>) -> Self {
        Content(kinds.into_iter().map(Part::Media).collect())
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

    /// Adds a media item.
    pub fn push_media(&mut self, kind: MediaKind) {
        self.0.push(Part::Media(kind));
    }

    /// Adds all of another content; a separator is between texts that meet.
    pub fn append(&mut self, separator: &str, other: Content) {
        for part in other.0 {
            match part {
                Part::Text(text) => self.push_text(separator, &text),
                Part::Media(kind) => self.push_media(kind),
            }
        }
    }

    /// Whether it has media.
    pub fn has_media(&self) -> bool {
        self.0.iter().any(|part| matches!(part, Part::Media(_)))
    }

    /// Whether it has neither a media item nor a text other than white space.
    pub fn is_blank(&self) -> bool {
        self.0.iter().all(|part| matches!(part, Part::Text(text) if text.trim().is_empty()))
    }

    /// The texts.
    pub fn into_text(self) -> String {
        self.0.into_iter().filter_map(|part| if let Part::Text(text) = part { Some(text) } else { None }).collect()
    }

    /// The content as chat templates expect it: a string, or a list of parts if it has media.
    pub fn json(self) -> Value {
        if !self.has_media() {
            return Value::String(self.into_text());
        }
        let part = |part| match part {
            Part::Text(text) => json!({ "type": "text", "text": text }),
            Part::Media(kind) => json!({ "type": kind.part_type() }),
        };
        self.0.into_iter().filter(|part| !matches!(part, Part::Text(text) if text.is_empty())).map(part).collect()
    }
}

/// Reads `image_url` of a part, OpenAI's form of an image: a URL, or an object with one.
///
/// # Errors
/// [`ApiError::InvalidRequest`] that names the field.
pub(super) fn read_image_url(part: &Fields<'_>, kind: &'static str) -> Result<MediaField, ApiError> {
    if part.get("image_url").is_none() && part.get("file_id").is_some() {
        let param = part.path("file_id");
        let message = format!("`{param}` is not supported: this server keeps no files; send the image in `image_url`");
        return Err(ApiError::Unsupported { param, message });
    }
    read_url(part, "image_url", (MediaKind::Image, kind))
}

/// Reads `audio_url` of a part, vLLM's form of audio: a URL, or an object with one.
///
/// # Errors
/// As [`read_image_url`].
pub(super) fn read_audio_url(part: &Fields<'_>) -> Result<MediaField, ApiError> {
    read_url(part, "audio_url", (MediaKind::Audio, "audio_url"))
}

fn read_url(
    part: &Fields<'_>,
    name: &'static str,
    (media, kind): (MediaKind, &'static str),
) -> Result<MediaField, ApiError> {
    let what = format!("the URL of the {}", media.one());
    let path = part.path(name);
    let (url, path) = match part.get(name) {
        Some(Value::String(url)) => (url.as_str(), path),
        Some(Value::Object(_)) => {
            let object = part.object(name)?.ok_or_else(|| missing(&path, &what))?;
            let path = object.path("url");
            (object.string("url")?.ok_or_else(|| missing(&path, &what))?, path)
        }
        Some(other) => return Err(wrong_type(&path, "a URL, or an object with one", other)),
        None => return Err(missing(&path, &what)),
    };
    let source = MediaSource::of_url(url, media, &path)?;
    Ok(MediaField { media, source, path, kind_path: part.path("type"), kind: Some(kind) })
}

/// Reads `input_audio` of a part, OpenAI's form of audio: base64 and the name of its format, which the file itself says.
///
/// # Errors
/// As [`read_image_url`].
pub(super) fn read_input_audio(part: &Fields<'_>) -> Result<MediaField, ApiError> {
    const NAME: &str = "input_audio";
    let audio = part.object(NAME)?.ok_or_else(|| missing(&part.path(NAME), "an object with `data` and `format`"))?;
    let path = audio.path("data");
    let data = audio.string("data")?.ok_or_else(|| missing(&path, "the file of the audio in base64"))?;
    // Some clients send a data URL.
    let source = match data.get(..5).is_some_and(|start| start.eq_ignore_ascii_case("data:")) {
        true => MediaSource::of_url(data, MediaKind::Audio, &path)?,
        false => MediaSource::Base64(data.to_owned()),
    };
    Ok(MediaField { media: MediaKind::Audio, source, path, kind_path: part.path("type"), kind: Some(NAME) })
}

/// Refuses media where only texts may stand.
///
/// # Errors
/// [`ApiError::Unsupported`] that names the first.
pub(super) fn refuse_media(media: &[MediaField]) -> Result<(), ApiError> {
    let Some(item) = media.first() else { return Ok(()) };
    let param = item.kind_path.clone();
    let several = item.media.several();
    let message = format!("`{param}`: only messages of users and results of tools may have {several}");
    Err(ApiError::Unsupported { param, message })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_is_a_string_unless_it_has_media() {
        let mut content = Content::default();
        content.push_text("\n", "a");
        content.push_text("\n", "b");
        assert_eq!(content.clone().json(), json!("a\nb"));
        content.push_media(MediaKind::Audio);
        content.push_text("\n", "c");
        content.append("\n", Content::text("d"));
        let text = |text| json!({ "type": "text", "text": text });
        assert_eq!(content.json(), json!([text("a\nb"), { "type": "audio" }, text("c\nd")]));
        assert_eq!(Content::media([MediaKind::Image]).json(), json!([{ "type": "image" }]));
        assert!(Content::text(" ").is_blank() && !Content::media([MediaKind::Image]).is_blank());
    }

    #[test]
    fn an_image_is_a_url_or_an_object_with_one() {
        let read = |part: Value| {
            let read = read_image_url(&Fields::of(&part, "part".to_owned())?, "image_url")?;
            Ok::<_, ApiError>((read.path, read.source))
        };
        let data = "data:image/png;base64,aGk=";
        let source = MediaSource::Base64("aGk=".to_owned());
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

    #[test]
    fn audio_is_base64_or_a_url() {
        let read = |part: Value| {
            let part = Fields::of(&part, "part".to_owned())?;
            if part.get("audio_url").is_some() { read_audio_url(&part) } else { read_input_audio(&part) }
        };
        let source = MediaSource::Base64("UklGRg==".to_owned());
        for (part, path) in [
            (json!({ "input_audio": { "data": "UklGRg==", "format": "wav" } }), "part.input_audio.data"),
            (json!({ "input_audio": { "data": "data:audio/wav;base64,UklGRg==" } }), "part.input_audio.data"),
            (json!({ "audio_url": { "url": "data:audio/wav;base64,UklGRg==" } }), "part.audio_url.url"),
        ] {
            match read(part) {
                Ok(field) => assert_eq!(
                    (field.path.as_str(), field.source, field.media),
                    (path, source.clone(), MediaKind::Audio)
                ),
                Err(error) => panic!("{error}"),
            }
        }
        for part in [json!({}), json!({ "input_audio": "UklGRg==" }), json!({ "input_audio": { "format": "wav" } })] {
            assert!(read(part.clone()).is_err(), "{part}");
        }
    }
}
