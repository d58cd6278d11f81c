//! Where a media item of a request is: in the request itself, or at a URL.

use std::borrow::Cow;

use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use cuelight_engine::media::MediaKind;

use super::error::{ApiError, clip};
use super::media_limits::MediaLimits;

/// Clients differ in whether they pad.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// A media item of a request, and the fields that it comes from.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct MediaField {
    /// What it is.
    pub media: MediaKind,
    /// Path of the field with the item: `messages[0].content[1].image_url.url`.
    pub path: String,
    /// Path of the field that asks for the item, for models that take none: `messages[0].content[1].type`.
    pub kind_path: String,
    /// What it asks for: `image_url`; `None` if it is the field itself that is refused.
    pub kind: Option<&'static str>,
    pub source: MediaSource,
}

/// Where a media item is.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum MediaSource {
    /// Its file.
    File(Vec<u8>),
    /// Its file in base64.
    Base64(String),
    /// At an address that begins with `http://` or `https://`.
    Url(String),
}

impl MediaSource {
    /// The item of a URL: one with the data itself, or one to load them from.
    ///
    /// # Errors
    /// [`ApiError::InvalidRequest`] when it is neither.
    pub fn of_url(url: &str, kind: MediaKind, path: &str) -> Result<Self, ApiError> {
        let example = match kind {
            MediaKind::Image => "data:image/png;base64,iVBORw0KGgo…",
            MediaKind::Audio => "data:audio/wav;base64,UklGR…",
        };
        let lower = |length: usize| url.get(..length).unwrap_or_default().to_ascii_lowercase();
        if lower(5) == "data:" {
            return data_of(&url[5..]).map(|data| MediaSource::Base64(data.to_owned())).ok_or_else(|| {
                let message =
                    format!("`{path}` is not a data URL with base64: it must be like {example}, not {}", clip(url));
                ApiError::invalid(path, message)
            });
        }
        if lower(7) == "http://" || lower(8) == "https://" {
            return Ok(MediaSource::Url(url.to_owned()));
        }
        let message = format!(
            "`{path}` must be a data URL ({example}), or a URL that begins with https:// or http://, not {}",
            clip(url)
        );
        Err(ApiError::invalid(path, message))
    }
}

/// The base64 of a data URL, of which `rest` is what follows `data:`. Other parameters, such as a character set, are ignored, and
/// so is the media type: the file says what it is.
fn data_of(rest: &str) -> Option<&str> {
    let (head, data) = rest.split_once(',')?;
    head.split(';').skip(1).any(|parameter| parameter.trim().eq_ignore_ascii_case("base64")).then_some(data)
}

/// Decodes base64, of at most as many bytes as a file may have.
///
/// # Errors
/// [`ApiError::InvalidRequest`] when it is no base64 or has too many bytes.
pub(super) fn decode_base64(
    text: &str,
    (kind, path): (MediaKind, &str),
    limits: &MediaLimits,
) -> Result<Vec<u8>, ApiError> {
    let (most, _) = limits.bytes(kind);
    // Some clients break lines.
    let text: Cow<'_, str> = match text.bytes().any(|byte| byte.is_ascii_whitespace()) {
        true => text.split_ascii_whitespace().collect::<String>().into(),
        false => text.into(),
    };
    // Up to two characters of the last four are padding.
    if text.len() / 4 * 3 > most.saturating_add(2) {
        return Err(limits.too_large(kind, path));
    }
    let invalid = |error| ApiError::invalid(path, format!("`{path}` is not valid base64: {error}"));
    let decoded = BASE64.decode(text.as_bytes()).map_err(invalid)?;
    if decoded.len() > most { Err(limits.too_large(kind, path)) } else { Ok(decoded) }
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn decoded(text: &str, image_bytes: usize) -> Result<Vec<u8>, ApiError> {
        let limits = MediaLimits { image_bytes, ..MediaLimits::default() };
        decode_base64(text, (MediaKind::Image, "url"), &limits)
    }

    fn base64_of(url: &str) -> Option<String> {
        match MediaSource::of_url(url, MediaKind::Image, "url").ok()? {
            MediaSource::Base64(text) => Some(text),
            _ => None,
        }
    }

    #[test]
    fn data_urls_are_read_as_clients_write_them() {
        for url in [
            "data:image/png;base64,aGk=",
            "data:image/jpeg;base64,aGk=",
            "DATA:image/png;BASE64,aGk=",
            "data:;base64,aGk=",
            "data:image/png;charset=utf-8;base64,aGk=",
            "data:image/png; base64,aGk=",
        ] {
            assert_eq!(base64_of(url).as_deref(), Some("aGk="), "{url}");
        }
        for url in ["data:image/png,hi", "data:image/png;base64", "data:", "base64,aGk=", "data:base64,aGk="] {
            assert_eq!(base64_of(url), None, "{url}");
        }
    }

    #[test]
    fn only_data_and_the_web_are_sources() {
        let url = "HTTPS://example.org/a.png";
        assert_eq!(MediaSource::of_url(url, MediaKind::Image, "url").unwrap(), MediaSource::Url(url.to_owned()));
        for url in ["file:///etc/passwd", "/etc/passwd", "ftp://a/b", "", "a", "é"] {
            let error = MediaSource::of_url(url, MediaKind::Audio, "messages[0].url").unwrap_err().to_string();
            assert!(error.contains("`messages[0].url`") && error.contains("https://"), "{error}");
        }
    }

    #[test]
    fn base64_may_have_no_padding_and_several_lines_but_not_too_many_bytes() {
        for text in ["aGVsbG8=", "aGVsbG8", "aGVs\nbG8=\n"] {
            assert_eq!(decoded(text, 100).unwrap(), b"hello");
        }
        assert!(decoded("aGVs*", 100).unwrap_err().to_string().contains("base64"));
        assert!(decoded("aGVsbG8haGVsbG8h", 8).unwrap_err().to_string().contains("--max-image-size"));
    }

    proptest! {
        #[test]
        fn any_text_is_a_source_or_an_error(text in "(data:|http://|)?[ -~é\\n]{0,60}") {
            if let Ok(MediaSource::Base64(data)) = MediaSource::of_url(&text, MediaKind::Image, "url") {
                let _ = decoded(&data, 1000);
            }
        }

        #[test]
        fn what_was_encoded_is_decoded(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let url = format!("data:image/png;base64,{}", BASE64.encode(&bytes));
            let data = base64_of(&url).unwrap();
            prop_assert_eq!(decoded(&data, 200).unwrap(), bytes);
        }
    }
}
