//! Loads media from the servers that the operator allows.
//!
//! A URL of a client makes this server open a connection, possibly to a machine that the client cannot reach. So only the hosts of
//! a list are asked, no redirect is followed, and the answer is limited in size and time.

use std::sync::OnceLock;
use std::time::Duration;

use cuelight_engine::media::MediaKind;
use futures_util::StreamExt;
use reqwest::redirect::Policy;
use reqwest::{Client, StatusCode, Url};

use super::error::{ApiError, clip};
use super::media_limits::MediaLimits;
use super::memory::RequestBudget;

/// The longest time for a file.
const TIME_LIMIT: Duration = Duration::from_secs(20);

/// Loads the file of a media item.
///
/// # Errors
/// [`ApiError::Unsupported`] when the host is not allowed, [`ApiError::InvalidRequest`] when it gives no file within the limits.
pub(super) async fn fetch(
    url: &str,
    (kind, path): (MediaKind, &str),
    limits: &MediaLimits,
    memory: &mut impl RequestBudget,
) -> Result<Vec<u8>, ApiError> {
    let parsed = Url::parse(url).map_err(|error| ApiError::invalid(path, format!("`{path}` is not a URL: {error}")))?;
    if !limits.hosts.iter().any(|host| host.allows(&parsed)) {
        return Err(not_allowed(&parsed, (kind, path), limits.hosts.is_empty()));
    }
    let loading = load(parsed, (kind, path), limits, memory);
    tokio::time::timeout(TIME_LIMIT, loading).await.unwrap_or_else(|_| {
        let (one, seconds) = (kind.one(), TIME_LIMIT.as_secs());
        Err(ApiError::invalid(path, format!("the {one} in `{path}` did not arrive within {seconds} seconds")))
    })
}

fn not_allowed(url: &Url, (kind, path): (MediaKind, &str), none: bool) -> ApiError {
    let (host, several, one) = (clip(url.host_str().unwrap_or_default()), kind.several(), kind.one());
    let which = if none { "URLs" } else { "that host" };
    let message = format!(
        "`{path}` is a URL of {host}, but this server loads no {several} from {which}: send the {one} itself as a data URL \
         (data:{}/…;base64,…), or start the server with --media-host {host}",
        kind.part_type()
    );
    ApiError::Unsupported { param: path.to_owned(), message }
}

async fn load(
    url: Url,
    (kind, path): (MediaKind, &str),
    limits: &MediaLimits,
    memory: &mut impl RequestBudget,
) -> Result<Vec<u8>, ApiError> {
    let one = kind.one();
    // Without details: what a client learns of other servers is only whether there is a file.
    let failed = |what: &str| ApiError::invalid(path, format!("the {one} in `{path}` could not be loaded: {what}"));
    let unreachable = |error: reqwest::Error| {
        tracing::debug!(%error, "media were not loaded");
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
        if bytes.len() + chunk.len() > limits.bytes(kind).0 {
            return Err(limits.too_large(kind, path));
        }
        memory.grow(chunk.len())?;
        bytes.extend_from_slice(&chunk);
    }
    Ok(bytes)
}

/// The client for all media: no proxy, no redirect, no cookies.
fn client() -> Option<&'static Client> {
    static CLIENT: OnceLock<Option<Client>> = OnceLock::new();
    let make = || {
        let client = Client::builder().no_proxy().redirect(Policy::none()).connect_timeout(TIME_LIMIT);
        client.user_agent(concat!("cuelight/", env!("CARGO_PKG_VERSION"))).build().ok()
    };
    CLIENT.get_or_init(make).as_ref()
}
