//! A registry: where it is, and the manifests that it has.

use std::time::Duration;

use reqwest::{Client, RequestBuilder, Response, header};
use tokio::time::timeout;

use super::manifest::Blob;
use super::name::OllamaName;
use crate::hub::download::block_on_wanted;
use crate::hub::error::HubError;
use crate::hub::progress::Progress;

/// The manifests that this program reads.
const MANIFEST_TYPES: &str =
    "application/vnd.docker.distribution.manifest.v2+json, application/vnd.oci.image.manifest.v1+json";
/// Most bytes of a manifest.
const MOST_MANIFEST_BYTES: usize = 4 << 20;

/// A registry that speaks Ollama's protocol, which is that of OCI registries.
pub(super) struct Registry {
    /// Its base URL, without a slash at the end.
    address: String,
    client: Client,
    response_timeout: Duration,
}

impl Registry {
    /// The registry of a name: the one that it names, else the configured one, which may be written without `https://`.
    ///
    /// # Errors
    /// [`HubError::NoRegistry`] when neither is there.
    pub fn of(name: &OllamaName, configured: Option<&str>, response_timeout: Duration) -> Result<Self, HubError> {
        let address = match (&name.host, configured) {
            (None, None) => return Err(HubError::NoRegistry(name.to_string())),
            (Some(host), Some(configured)) if host_of(configured) == *host => with_scheme(configured),
            (Some(host), _) => with_scheme(host),
            (None, Some(configured)) => with_scheme(configured),
        };
        let client = Client::builder()
            .user_agent(concat!("cuelight/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(response_timeout)
            .build()
            .map_err(|error| request_error(&address, "a connection", error))?;
        Ok(Registry { address, client, response_timeout })
    }

    /// Its host, with its port.
    pub fn host(&self) -> String {
        host_of(&self.address)
    }

    /// The manifest of a model, as it was sent.
    ///
    /// # Errors
    /// [`HubError::NoSuchModel`], [`HubError::Timeout`], [`HubError::Request`], [`HubError::Cancelled`], or
    /// [`HubError::BadManifest`] when it is too long.
    pub fn manifest(&self, name: &OllamaName, progress: &impl Progress) -> Result<Vec<u8>, HubError> {
        let url = format!("{}/{}/manifests/{}", self.address, name.url_path(), name.tag);
        let request = self.client.get(url).header(header::ACCEPT, MANIFEST_TYPES);
        let answer = async { timeout(self.response_timeout, self.read_manifest(name, request)).await };
        block_on_wanted(answer, progress)?.unwrap_or_else(|_| {
            Err(HubError::Timeout { hub: self.address.clone(), seconds: self.response_timeout.as_secs() })
        })
    }

    async fn read_manifest(&self, name: &OllamaName, request: RequestBuilder) -> Result<Vec<u8>, HubError> {
        let failed = |error| self.explain(name, &format!("the manifest of {name}"), error);
        let mut response = request.send().await.and_then(Response::error_for_status).map_err(failed)?;
        let mut manifest = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(failed)? {
            manifest.extend_from_slice(&chunk);
            if manifest.len() > MOST_MANIFEST_BYTES {
                let reason = format!("it has more than {MOST_MANIFEST_BYTES} bytes");
                return Err(HubError::BadManifest { model: name.to_string(), reason });
            }
        }
        Ok(manifest)
    }

    /// The request for the data of a layer, from a byte on.
    pub fn blob(&self, name: &OllamaName, blob: &Blob, first_byte: u64) -> RequestBuilder {
        let request = self.client.get(format!("{}/{}/blobs/sha256:{}", self.address, name.url_path(), blob.sha256));
        if first_byte == 0 { request } else { request.header(header::RANGE, format!("bytes={first_byte}-")) }
    }

    /// Why a request about a model failed.
    pub fn explain(&self, name: &OllamaName, what: &str, error: reqwest::Error) -> HubError {
        match error.status().map(|status| status.as_u16()) {
            Some(401 | 403 | 404) => HubError::NoSuchModel { registry: self.address.clone(), model: name.to_string() },
            _ => self.failed(what, error),
        }
    }

    /// The error for something that did not arrive.
    pub fn failed(&self, what: &str, source: impl std::error::Error + Send + Sync + 'static) -> HubError {
        request_error(&self.address, what, source)
    }
}

fn request_error(address: &str, what: &str, source: impl std::error::Error + Send + Sync + 'static) -> HubError {
    HubError::Request { hub: address.to_owned(), what: what.to_owned(), source: Box::new(source) }
}

/// A base URL without the slash at its end; HTTPS unless it says otherwise.
fn with_scheme(address: &str) -> String {
    let address = address.trim_end_matches('/');
    if address.contains("://") { address.to_owned() } else { format!("https://{address}") }
}

/// The host of a base URL, with its port.
pub(super) fn host_of(address: &str) -> String {
    let rest = address.split_once("://").map_or(address, |(_, rest)| rest);
    rest.split('/').next().unwrap_or(rest).to_owned()
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use super::*;

    fn address(name: &str, configured: Option<&str>) -> Result<(String, String), HubError> {
        let registry = Registry::of(&OllamaName::parse(name)?, configured, Duration::from_secs(1))?;
        Ok((registry.address.clone(), registry.host()))
    }

    #[test]
    fn a_registry_is_named_or_configured() {
        let both = |address: &str, host: &str| (address.to_owned(), host.to_owned());
        let local = Some("http://127.0.0.1:5000/");
        assert_eq!(address("ollama://m", local).unwrap(), both("http://127.0.0.1:5000", "127.0.0.1:5000"));
        assert_eq!(address("ollama://127.0.0.1:5000/a/m", local).unwrap().0, "http://127.0.0.1:5000");
        assert_eq!(address("ollama://reg.example/a/m", local).unwrap(), both("https://reg.example", "reg.example"));
        assert_eq!(address("ollama://m", Some("reg.example")).unwrap().0, "https://reg.example");
        assert!(matches!(address("ollama://m", None), Err(HubError::NoRegistry(_))));
    }
}
