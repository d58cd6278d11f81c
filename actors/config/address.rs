//! Addresses among the settings. Their form is checked when they are read, so that an error names where they were given.

use std::str::FromStr;

use reqwest::Url;

use crate::kv_events::listen_address;

/// The URL of a server that is asked over HTTP or HTTPS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpUrl(pub String);

impl FromStr for HttpUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match is_url(text, &["http", "https"]) {
            true => Ok(HttpUrl(text.to_owned())),
            false => Err(format!("{text:?} is not a URL like https://example.com")),
        }
    }
}

/// The URL of an OpenTelemetry collector, which is sent to without TLS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CollectorUrl(pub String);

impl FromStr for CollectorUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match is_url(text, &["http"]) {
            true => Ok(CollectorUrl(text.to_owned())),
            false => Err(format!(
                "{text:?} is not a URL like http://localhost:4318; for TLS, run a collector next to the server"
            )),
        }
    }
}

/// An address on which routers are told about the KV cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventsAddress(pub String);

impl FromStr for EventsAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        listen_address(text).map(|_| EventsAddress(text.to_owned())).map_err(|error| error.to_string())
    }
}

/// An origin whose web pages may use the server, or `*` for all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageOrigin(pub String);

impl FromStr for PageOrigin {
    type Err = String;

    /// Browsers send an origin without a path, so one with a path would match no page.
    fn from_str(text: &str) -> Result<Self, String> {
        let is_host = |host: &str| !host.is_empty() && host.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'/');
        let is_origin = text.split_once("://").is_some_and(|(scheme, host)| !scheme.is_empty() && is_host(host));
        match is_origin || text == "*" {
            true => Ok(PageOrigin(text.to_owned())),
            false => Err(format!("{text:?} is neither an origin like https://example.com, without a path, nor *")),
        }
    }
}

fn is_url(text: &str, schemes: &[&str]) -> bool {
    Url::parse(text).is_ok_and(|url| schemes.contains(&url.scheme()) && url.has_host())
}
