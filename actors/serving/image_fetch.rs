//! Loads images from the servers that the operator allows.
//!
//! A URL of a client makes this server open a connection, possibly to a machine that the client cannot reach. So only the hosts of
//! a list are asked, no redirect is followed, and the answer is limited in size and time.

use std::str::FromStr;
use std::sync::OnceLock;
use std::time::Duration;

use futures_util::StreamExt;
use reqwest::redirect::Policy;
use reqwest::{Client, StatusCode, Url};

use super::error::{ApiError, clip};
use super::image_source::too_large;
use super::memory::RequestBudget;

/// The longest time for an image.
const TIME_LIMIT: Duration = Duration::from_secs(20);

/// A host that images may be loaded from: all, or a host name or address, and a port if only one is allowed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageHost {
    /// `None` for any host.
    host: Option<String>,
    /// `None` for the usual ports of `http` and `https`.
    port: Option<u16>,
}

/// A text that names no host.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} names no host: give a host name or an IP address, and a port unless it is the usual one, like images.example.org:8443, or * for all"
)]
pub struct InvalidImageHost(String);

impl FromStr for ImageHost {
    type Err = InvalidImageHost;

    fn from_str(text: &str) -> Result<Self, InvalidImageHost> {
        let invalid = || InvalidImageHost(text.to_owned());
        if text == "*" {
            return Ok(ImageHost { host: None, port: None });
        }
        // The rules for hosts are those of URLs.
        let url = Url::parse(&format!("http://{text}/")).map_err(|_| invalid())?;
        let is_only_host = url.path() == "/"
            && url.query().is_none()
            && url.username().is_empty()
            && !text.contains(['/', '?', '#', '@']);
        let host = url.host_str().filter(|_| is_only_host).ok_or_else(invalid)?;
        let port = text.rsplit_once(':').and_then(|(_, port)| port.parse().ok());
        Ok(ImageHost { host: Some(host.to_owned()), port })
    }
}

impl ImageHost {
    fn allows(&self, url: &Url) -> bool {
        let Some(host) = &self.host else { return true };
        let is_port = match self.port {
            Some(port) => url.port_or_known_default() == Some(port),
            None => url.port().is_none(),
        };
        is_port && url.host_str().is_some_and(|named| named.eq_ignore_ascii_case(host))
    }
}

/// Loads the file of an image.
///
/// # Errors
/// [`ApiError::Unsupported`] when the host is not allowed, [`ApiError::InvalidRequest`] when it gives no image of at most `most`
/// bytes.
pub(super) async fn fetch(
    url: &str,
    path: &str,
    hosts: &[ImageHost],
    most: usize,
    memory: &mut impl RequestBudget,
) -> Result<Vec<u8>, ApiError> {
    let parsed = Url::parse(url).map_err(|error| ApiError::invalid(path, format!("`{path}` is not a URL: {error}")))?;
    if !hosts.iter().any(|host| host.allows(&parsed)) {
        return Err(not_allowed(&parsed, path, hosts.is_empty()));
    }
    let loading = load(parsed, path, most, memory);
    tokio::time::timeout(TIME_LIMIT, loading).await.unwrap_or_else(|_| {
        let seconds = TIME_LIMIT.as_secs();
        Err(ApiError::invalid(path, format!("the image in `{path}` did not arrive within {seconds} seconds")))
    })
}

fn not_allowed(url: &Url, path: &str, none: bool) -> ApiError {
    let host = clip(url.host_str().unwrap_or_default());
    let why = if none { "this server loads no images from URLs" } else { "this server loads no images from that host" };
    let message = format!(
        "`{path}` is a URL of {host}, but {why}: send the image itself as a data URL (data:image/png;base64,…), or start the server with \
         --image-host {host}"
    );
    ApiError::Unsupported { param: path.to_owned(), message }
}

async fn load(url: Url, path: &str, most: usize, memory: &mut impl RequestBudget) -> Result<Vec<u8>, ApiError> {
    // Without details: what a client learns of other servers is only whether there is an image.
    let failed = |what: &str| ApiError::invalid(path, format!("the image in `{path}` could not be loaded: {what}"));
    let unreachable = |error: reqwest::Error| {
        tracing::debug!(%error, "an image was not loaded");
        failed("the server does not answer")
    };
    let response = client().ok_or(ApiError::Internal)?.get(url).send().await.map_err(unreachable)?;
    match response.status() {
        StatusCode::OK => {}
        status if status.is_redirection() => return Err(failed("redirects are not followed; give the final URL")),
        status => return Err(failed(&format!("the server answers with status {}", status.as_u16()))),
    }
    let mut bytes = Vec::new();
    let mut chunks = response.bytes_stream();
    while let Some(chunk) = chunks.next().await {
        let chunk = chunk.map_err(unreachable)?;
        if bytes.len() + chunk.len() > most {
            return Err(too_large(path, most));
        }
        memory.grow(chunk.len())?;
        bytes.extend_from_slice(&chunk);
    }
    Ok(bytes)
}

/// The client for all images: no proxy, no redirect, no cookies.
fn client() -> Option<&'static Client> {
    static CLIENT: OnceLock<Option<Client>> = OnceLock::new();
    let make = || {
        let client = Client::builder().no_proxy().redirect(Policy::none()).connect_timeout(TIME_LIMIT);
        client.user_agent(concat!("cuelight/", env!("CARGO_PKG_VERSION"))).build().ok()
    };
    CLIENT.get_or_init(make).as_ref()
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_hosts_and_ports_of_the_list_are_allowed() {
        let allows = |host: &str, url: &str| host.parse::<ImageHost>().unwrap().allows(&Url::parse(url).unwrap());
        for (host, url) in [
            ("example.org", "https://example.org/a.png"),
            ("example.org", "http://EXAMPLE.org/a.png?b#c"),
            ("example.org:8080", "http://example.org:8080/a.png"),
            ("example.org:443", "https://example.org/a.png"),
            ("10.0.0.7", "http://10.0.0.7/a.png"),
            ("[::1]:80", "http://[::1]/a.png"),
            ("*", "http://anything:99/"),
        ] {
            assert!(allows(host, url), "{host} {url}");
        }
        for (host, url) in [
            ("example.org", "https://example.org:8443/a.png"),
            ("example.org", "https://example.org.evil.net/"),
            ("example.org", "https://sub.example.org/"),
            ("example.org", "https://example.org@evil.net/"),
            ("example.org:8080", "http://example.org/"),
            ("10.0.0.7", "http://10.0.0.70/"),
        ] {
            assert!(!allows(host, url), "{host} {url}");
        }
    }

    #[test]
    fn a_text_that_is_no_host_is_refused() {
        for text in ["", "a/b", "http://a", "a?b", "user@a", "a b", "a:99999"] {
            assert!(text.parse::<ImageHost>().is_err(), "{text}");
        }
    }
}
