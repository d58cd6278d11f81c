//! A running server, for the commands that speak to one.

use std::error::Error;
use std::time::Duration;

use reqwest::{Method, StatusCode, Url};
use serde_json::Value;

use super::serve::api_keys;
use super::{CliError, model};
use crate::config::Config;

/// Which server, and how to be let in.
#[derive(Debug, clap::Args)]
pub struct RemoteArgs {
    /// The server's address; unset: the one that `cuelight serve` would have with the same configuration.
    #[arg(long, value_name = "URL")]
    url: Option<String>,
    /// The key to send; unset: the first of the configuration.
    #[arg(long, value_name = "KEY")]
    api_key: Option<String>,
}

/// Why a server did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum RemoteError {
    /// Not an address.
    #[error("--url {0:?} is no address like http://127.0.0.1:8080")]
    Address(String),
    /// Nobody there.
    #[error("no server answers at {url} ({reason}); start one with `cuelight serve`, or name another with --url")]
    Unreachable {
        /// What was called.
        url: Url,
        /// Why not.
        reason: String,
    },
    /// A key is needed, or another one.
    #[error("the server at {url} wants {} API key: give it with --api-key or in CUELIGHT_API_KEY", if *.sent { "another" } else { "an" })]
    Unauthorized {
        /// What was called.
        url: Url,
        /// Whether a key was sent.
        sent: bool,
    },
    /// Somebody else is there.
    #[error("{url} answers with status {status}, but not as a Cuelight server does")]
    Stranger {
        /// What was called.
        url: Url,
        /// Its status.
        status: StatusCode,
    },
    /// It says no.
    #[error("{0}")]
    Refused(String),
}

/// A server to call.
pub struct Remote {
    url: Url,
    api_key: Option<String>,
}

impl RemoteArgs {
    /// The server that these arguments or else the configuration mean.
    ///
    /// # Errors
    /// [`RemoteError::Address`], or a key file that cannot be read.
    pub fn server(&self, config: &Config) -> Result<Remote, CliError> {
        let url = match &self.url {
            Some(url) if url.contains("://") => url.clone(),
            Some(host) => format!("http://{host}"),
            None => format!("http://{}:{}", reachable(&config.host), config.port),
        };
        let parsed = Url::parse(&url).ok().filter(|parsed| parsed.has_host());
        let url = parsed.ok_or_else(|| CliError::other(RemoteError::Address(url)))?;
        let api_key = match &self.api_key {
            Some(key) => Some(key.clone()),
            None => api_keys(config)?.into_iter().next(),
        };
        Ok(Remote { url, api_key })
    }
}

/// A name for this machine where a server says that it listens on all of its addresses.
fn reachable(host: &str) -> String {
    match host {
        "0.0.0.0" => "127.0.0.1".to_owned(),
        "::" => "[::1]".to_owned(),
        host if host.contains(':') => format!("[{host}]"),
        host => host.to_owned(),
    }
}

impl Remote {
    /// Gets what is at `path`.
    ///
    /// # Errors
    /// [`RemoteError`].
    pub fn get(&self, path: &str) -> Result<Value, CliError> {
        const PATIENCE: Duration = Duration::from_secs(10);
        self.call(Method::GET, path, None, Some(PATIENCE))
    }

    /// Posts `body` to `path`, and waits for as long as the server takes.
    ///
    /// # Errors
    /// [`RemoteError`].
    pub fn post(&self, path: &str, body: &Value) -> Result<Value, CliError> {
        self.call(Method::POST, path, Some(body), None)
    }

    fn call(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
        patience: Option<Duration>,
    ) -> Result<Value, CliError> {
        let call = self.send(method, path, body, patience);
        model::tokio_runtime()?.block_on(call).map_err(CliError::other)
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
        patience: Option<Duration>,
    ) -> Result<Value, RemoteError> {
        let unreachable = |error| RemoteError::Unreachable { url: self.url.clone(), reason: root_cause(&error) };
        // The environment's proxies are not meant for a server of one's own.
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
        if let Some(patience) = patience {
            request = request.timeout(patience);
        }
        let response = request.send().await.map_err(unreachable)?;
        let status = response.status();
        let bytes = response.bytes().await.map_err(unreachable)?;
        self.read(status, &bytes)
    }

    /// What an answer says.
    fn read(&self, status: StatusCode, body: &[u8]) -> Result<Value, RemoteError> {
        if status == StatusCode::UNAUTHORIZED {
            return Err(RemoteError::Unauthorized { url: self.url.clone(), sent: self.api_key.is_some() });
        }
        let stranger = RemoteError::Stranger { url: self.url.clone(), status };
        let Ok(body) = serde_json::from_slice::<Value>(body) else { return Err(stranger) };
        if status.is_success() {
            return Ok(body);
        }
        Err(body["error"]["message"].as_str().map_or(stranger, |message| RemoteError::Refused(message.to_owned())))
    }
}

/// The last cause of an error: those before it only say that a call failed.
fn root_cause(error: &reqwest::Error) -> String {
    let mut cause: &dyn Error = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    cause.to_string()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::config::environment::Environment;

    fn server(url: Option<&str>) -> Result<Remote, CliError> {
        let config = Config::defaults(&Environment::default().home());
        RemoteArgs { url: url.map(str::to_owned), api_key: None }.server(&config)
    }

    #[test]
    fn the_address_is_the_one_that_serve_would_have() {
        assert_eq!(server(None).unwrap().url.as_str(), "http://127.0.0.1:8080/");
        assert_eq!(server(Some("box:81")).unwrap().url.as_str(), "http://box:81/");
        assert_eq!(reachable("0.0.0.0"), "127.0.0.1");
        assert_eq!(reachable("fe80::1"), "[fe80::1]");
        assert!(server(Some("http://")).is_err());
    }

    #[test]
    fn what_a_server_says_no_with_is_passed_on() {
        let remote = server(None).unwrap();
        let error = |status, body: &str| remote.read(status, body.as_bytes()).unwrap_err().to_string();
        assert_eq!(error(StatusCode::NOT_FOUND, r#"{"error": {"message": "no such model"}}"#), "no such model");
        assert!(error(StatusCode::NOT_FOUND, "<html>").contains("not as a Cuelight server"));
        assert!(error(StatusCode::UNAUTHORIZED, "").contains("wants an API key"));
    }
}
