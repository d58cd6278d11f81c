//! A client for a running server: used by `ps`, `load` and `stop`.

use std::error::Error;
use std::time::Duration;

use reqwest::{Method, StatusCode, Url};
use serde_json::Value;

use super::api_keys::api_keys;
use super::{CliError, async_runtime, server_address};
use crate::config::Config;

/// The server's address and the API key.
#[derive(Debug, clap::Args)]
pub struct RemoteArgs {
    /// The server's address, with or without http:// and /v1; default: where `cuelight serve` listens with the same configuration.
    #[arg(long, value_name = "URL")]
    url: Option<String>,
    /// The API key to send; default: the first key of the configuration.
    #[arg(long, value_name = "KEY")]
    api_key: Option<String>,
}

/// Why a request to the server failed.
#[derive(Debug, thiserror::Error)]
pub enum RemoteError {
    /// The address is invalid.
    #[error("--url {0:?} is not an address like http://127.0.0.1:8080")]
    Address(String),
    /// No server listens there.
    #[error("no server answers at {url} ({reason}); start one with `cuelight serve`, or name another with --url")]
    Unreachable {
        /// The server's address.
        url: Url,
        /// The cause.
        reason: String,
    },
    /// The server needs an API key, or another one.
    #[error("the server at {url} needs {} API key: set it with --api-key or CUELIGHT_API_KEY", if *.sent { "another" } else { "an" })]
    Unauthorized {
        /// The server's address.
        url: Url,
        /// Whether a key was sent.
        sent: bool,
    },
    /// Another program listens there.
    #[error("{url} answers with status {status}, but is not a Cuelight server")]
    NotCuelight {
        /// The server's address.
        url: Url,
        /// The HTTP status.
        status: StatusCode,
    },
    /// The server has no such model.
    #[error("the server has no model of this name; `cuelight ps --all` lists those that it has")]
    UnknownModel,
    /// The server refused the request.
    #[error("{0}")]
    Refused(String),
}

/// A running server.
pub struct Remote {
    url: Url,
    api_key: Option<String>,
}

impl RemoteArgs {
    /// The server that the arguments name, or else the configuration.
    ///
    /// # Errors
    /// [`RemoteError::Address`], or an error of the key file.
    pub fn server(&self, config: &Config) -> Result<Remote, CliError> {
        let url = match &self.url {
            Some(url) => url.clone(),
            None => format!("http://{}:{}", reachable(&config.host), config.port),
        };
        let url = server_address::parse(&url).ok_or_else(|| CliError::other(RemoteError::Address(url)))?;
        let api_key = match &self.api_key {
            Some(key) => Some(key.clone()),
            None => api_keys(config)?.into_iter().next(),
        };
        Ok(Remote { url, api_key })
    }
}

/// An address of this machine for a server that listens on all addresses.
fn reachable(host: &str) -> String {
    match host {
        "0.0.0.0" => "127.0.0.1".to_owned(),
        "::" => "[::1]".to_owned(),
        host if host.contains(':') => format!("[{host}]"),
        host => host.to_owned(),
    }
}

impl Remote {
    /// Sends a GET request and returns the JSON body.
    ///
    /// # Errors
    /// [`RemoteError`] when there is no server or it refuses.
    pub fn get(&self, path: &str) -> Result<Value, CliError> {
        const TIMEOUT: Duration = Duration::from_secs(10);
        self.call(Method::GET, path, None, Some(TIMEOUT))
    }

    /// Sends a POST request without a time limit and returns the JSON body.
    ///
    /// # Errors
    /// [`RemoteError`] when there is no server or it refuses.
    pub fn post(&self, path: &str, body: &Value) -> Result<Value, CliError> {
        self.call(Method::POST, path, Some(body), None)
    }

    fn call(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
        timeout: Option<Duration>,
    ) -> Result<Value, CliError> {
        let call = self.send(method, path, body, timeout);
        async_runtime::tokio_runtime()?.block_on(call).map_err(CliError::other)
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
        timeout: Option<Duration>,
    ) -> Result<Value, RemoteError> {
        let unreachable = |error| RemoteError::Unreachable { url: self.url.clone(), reason: root_cause(&error) };
        // Proxies of the environment are for other servers than the user's own.
        let client = reqwest::Client::builder().no_proxy().build().map_err(unreachable)?;
        let mut url = self.url.clone();
        url.set_path(&format!("{}{path}", self.url.path().trim_end_matches('/')));
        let mut request = client.request(method, url);
        if let Some(key) = &self.api_key {
            request = request.bearer_auth(key);
        }
        if let Some(body) = body {
            request = request.header("content-type", "application/json").body(body.to_string());
        }
        if let Some(timeout) = timeout {
            request = request.timeout(timeout);
        }
        let response = request.send().await.map_err(unreachable)?;
        let status = response.status();
        let bytes = response.bytes().await.map_err(unreachable)?;
        self.read(status, &bytes)
    }

    /// Reads a response.
    fn read(&self, status: StatusCode, body: &[u8]) -> Result<Value, RemoteError> {
        if status == StatusCode::UNAUTHORIZED {
            return Err(RemoteError::Unauthorized { url: self.url.clone(), sent: self.api_key.is_some() });
        }
        let not_cuelight = RemoteError::NotCuelight { url: self.url.clone(), status };
        let Ok(body) = serde_json::from_slice::<Value>(body) else { return Err(not_cuelight) };
        if status.is_success() {
            return Ok(body);
        }
        if body["error"]["code"] == "model_not_found" {
            return Err(RemoteError::UnknownModel);
        }
        Err(body["error"]["message"].as_str().map_or(not_cuelight, |message| RemoteError::Refused(message.to_owned())))
    }
}

/// The last cause of an error. The ones before it only say that the request failed.
fn root_cause(error: &reqwest::Error) -> String {
    let mut cause: &dyn Error = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    cause.to_string()
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::environment::Environment;

    fn server(url: Option<&str>) -> Result<Remote, CliError> {
        let config = Config::defaults(&Environment::default().home());
        RemoteArgs { url: url.map(str::to_owned), api_key: None }.server(&config)
    }

    #[test]
    fn the_default_address_is_where_serve_listens() {
        assert_eq!(server(None).unwrap().url.as_str(), "http://127.0.0.1:8080/");
        assert_eq!(server(Some("box:81")).unwrap().url.as_str(), "http://box:81/");
        assert_eq!(server(Some("http://box:81/v1")).unwrap().url.as_str(), "http://box:81/");
        assert_eq!(reachable("0.0.0.0"), "127.0.0.1");
        assert_eq!(reachable("fe80::1"), "[fe80::1]");
        assert!(server(Some("http://")).is_err());
    }

    #[test]
    fn the_message_of_a_refusal_is_passed_on() {
        let remote = server(None).unwrap();
        let error = |status, body: &str| remote.read(status, body.as_bytes()).unwrap_err().to_string();
        assert_eq!(error(StatusCode::NOT_FOUND, r#"{"error": {"message": "no such model"}}"#), "no such model");
        let unknown = error(StatusCode::NOT_FOUND, r#"{"error": {"message": "…", "code": "model_not_found"}}"#);
        assert!(unknown.contains("`cuelight ps --all`"), "{unknown}");
        assert!(error(StatusCode::NOT_FOUND, "<html>").contains("is not a Cuelight server"));
        assert!(error(StatusCode::UNAUTHORIZED, "").contains("needs an API key"));
    }
}
