//! The chat page for browsers: `/` for a client that accepts HTML, and its assets under `/page/`.
//!
//! The files are part of the program. The page needs no key and no other host: it calls the API from the browser, with a key
//! that the user types in. The `Content-Security-Policy` keeps it from loading anything else.

use std::fmt::Write;
use std::sync::LazyLock;

use axum::extract::{Path, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use sha2::{Digest, Sha256};

use super::server::SharedServer;
use super::{ollama, probes};
use crate::serving::error::{ApiError, clip};

const HTML: &str = "text/html; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";

/// A file of the page.
struct Asset {
    name: &'static str,
    content_type: &'static str,
    text: &'static str,
    /// The digest of the text, quoted.
    etag: LazyLock<HeaderValue>,
}

/// Declares an [`Asset`] from a file of this folder.
macro_rules! asset {
    ($name:literal, $content_type:expr) => {
        Asset {
            name: $name,
            content_type: $content_type,
            text: include_str!($name),
            etag: LazyLock::new(|| etag(include_str!($name))),
        }
    };
}

static INDEX: Asset = asset!("index.html", HTML);

/// What is served under `/page/`.
static ASSETS: [Asset; 18] = [
    asset!("style.css", STYLE),
    asset!("api.js", SCRIPT),
    asset!("app.js", SCRIPT),
    asset!("attachments.js", SCRIPT),
    asset!("audio.js", SCRIPT),
    asset!("composer.js", SCRIPT),
    asset!("dom.js", SCRIPT),
    asset!("generation.js", SCRIPT),
    asset!("image.js", SCRIPT),
    asset!("inline.js", SCRIPT),
    asset!("markdown.js", SCRIPT),
    asset!("message.js", SCRIPT),
    asset!("models.js", SCRIPT),
    asset!("recorder.js", SCRIPT),
    asset!("settings.js", SCRIPT),
    asset!("sidebar.js", SCRIPT),
    asset!("store.js", SCRIPT),
    asset!("thread.js", SCRIPT),
];

/// Headers of every file of the page. No request leaves this server, and no other page may frame it.
const HEADERS: [(HeaderName, &str); 6] = [
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; media-src data:; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    // A browser asks each time whether its copy is still the same, so that a new version is used at once.
    (header::CACHE_CONTROL, "no-cache"),
    (header::VARY, "accept"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
];

/// `/`: the chat page for a client that accepts HTML, a greeting for one that names another type, and otherwise what clients of
/// Ollama look for.
pub(super) async fn index(State(server): State<SharedServer>, headers: HeaderMap) -> Response {
    let is_browser = accepts(&headers, "text/html");
    if is_browser && server.options().chat_page {
        return INDEX.response(&headers);
    }
    let greets = is_browser || accepts(&headers, "text/plain") || accepts(&headers, "application/json");
    let text = if greets { probes::GREETING } else { ollama::GREETING };
    ([(header::VARY, "accept")], text).into_response()
}

/// `/page/{name}`: a script or the style of the page.
pub(super) async fn asset(
    State(server): State<SharedServer>,
    Path(name): Path<String>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let asset = ASSETS.iter().find(|asset| server.options().chat_page && asset.name == name);
    let asset = asset.ok_or_else(|| ApiError::NotFound(clip(&format!("/page/{name}"))))?;
    Ok(asset.response(&headers))
}

impl Asset {
    /// 200 with the text, or 304 to a client that has it.
    fn response(&self, request: &HeaderMap) -> Response {
        let has = |known: &HeaderValue| known.to_str().is_ok_and(|known| names(known, &self.etag));
        let mut response = match request.get(header::IF_NONE_MATCH) {
            Some(known) if has(known) => StatusCode::NOT_MODIFIED.into_response(),
            _ => ([(header::CONTENT_TYPE, self.content_type)], self.text).into_response(),
        };
        let headers = response.headers_mut();
        headers.insert(header::ETAG, self.etag.clone());
        headers.extend(HEADERS.map(|(name, value)| (name, HeaderValue::from_static(value))));
        response
    }
}

/// Whether a list of entity tags names this one. A cache or a proxy may have made it a weak one.
fn names(list: &str, etag: &HeaderValue) -> bool {
    let tags = list.split(',').map(str::trim);
    tags.map(|tag| tag.strip_prefix("W/").unwrap_or(tag)).any(|tag| tag == "*" || tag.as_bytes() == etag.as_bytes())
}

fn etag(text: &str) -> HeaderValue {
    let quoted = Sha256::digest(text)[..12].iter().fold(String::from("\""), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    });
    HeaderValue::try_from(quoted + "\"").unwrap_or_else(|_| HeaderValue::from_static("\"\""))
}

/// Whether an `Accept` header names a type, as those of browsers do with HTML. `*/*` alone does not.
fn accepts(headers: &HeaderMap, wanted: &str) -> bool {
    let accepted = headers.get_all(header::ACCEPT).into_iter().filter_map(|value| value.to_str().ok());
    let mut kinds = accepted.flat_map(|value| value.split(',')).map(|kind| kind.split(';').next().unwrap_or_default());
    kinds.any(|kind| kind.trim().eq_ignore_ascii_case(wanted))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accepting(value: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(header::ACCEPT, HeaderValue::from_static(value))])
    }

    #[test]
    fn a_browser_accepts_html_and_a_client_of_the_api_does_not() {
        for accept in ["text/html", "text/html,application/xhtml+xml;q=0.9,*/*;q=0.8", "*/*, Text/HTML;q=0.5"] {
            assert!(accepts(&accepting(accept), "text/html"), "{accept}");
        }
        for accept in ["", "*/*", "application/json", "text/plain", "text/htmlx"] {
            assert!(!accepts(&accepting(accept), "text/html"), "{accept}");
        }
        assert!(!accepts(&HeaderMap::new(), "text/html"));
    }

    #[test]
    fn every_file_that_the_page_names_is_served_and_none_is_left_over() {
        let texts: Vec<&str> = ASSETS.iter().map(|asset| asset.text).chain([INDEX.text]).collect();
        for asset in &ASSETS {
            let spellings = [format!("\"page/{}\"", asset.name), format!("\"./{}\"", asset.name)];
            let is_named = texts.iter().any(|text| spellings.iter().any(|name| text.contains(name)));
            assert!(is_named, "{} is not used", asset.name);
        }
        let imported = texts.iter().flat_map(|text| text.split("from \"./").skip(1));
        for name in imported.filter_map(|rest| rest.split('"').next()) {
            assert!(ASSETS.iter().any(|asset| asset.name == name), "{name} is not served");
        }
    }

    #[test]
    fn the_page_names_no_other_host_and_has_no_inline_code() {
        for asset in ASSETS.iter().chain([&INDEX]) {
            let outside = asset.text.replace("http://www.w3.org/2000/svg", "");
            for forbidden in
                ["src=\"http", "href=\"http", "innerHTML", "insertAdjacentHTML", "eval(", "url(http", "style=\""]
            {
                assert!(!outside.contains(forbidden), "{} contains {forbidden}", asset.name);
            }
        }
    }

    #[test]
    fn a_digest_in_a_list_is_recognised() {
        let tag = etag("text");
        let text = tag.to_str().unwrap();
        assert!(text.len() == 26 && tag != etag("other"));
        for list in [text.to_owned(), format!("\"a\", W/{text}"), "*".to_owned()] {
            assert!(names(&list, &tag), "{list}");
        }
        assert!(!names("\"a\"", &tag) && !names("", &tag));
    }
}
