//! Protection of a local server against web pages.
//!
//! A browser lets any page send simple requests to any server. Two checks keep a page of another site from using a server
//! without a key:
//!
//! - A request with an `Origin` header is refused unless the origin is this server's own, is allowed by
//!   [`ServerOptions::cors_origins`], or, on a loopback address, is a page of this machine.
//! - On a loopback address, a request is refused when its `Host` header is not a name of this machine. Otherwise a site
//!   whose name resolves to 127.0.0.1 (DNS rebinding) would share its origin with this server.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderName, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::options::ServerOptions;
use crate::serving::error::{ApiError, clip};

/// Which origins and host names are accepted.
#[derive(Debug)]
pub(super) struct Guard {
    origins: Vec<String>,
    hosts: Vec<String>,
    /// The server listens on a loopback address.
    is_loopback: bool,
}

/// Passes on a request whose origin and host name are accepted. Answers a plain `OPTIONS` request itself.
pub(super) async fn check(State(guard): State<Arc<Guard>>, request: Request, next: Next) -> Result<Response, ApiError> {
    let authority = authority(&request)?;
    if let Some(authority) = &authority {
        guard.check_host(authority.host())?;
    }
    if let Some(origin) = text(request.headers(), header::ORIGIN) {
        guard.check_origin(origin, authority.as_ref())?;
    }
    let is_preflight = request.headers().contains_key(header::ACCESS_CONTROL_REQUEST_METHOD);
    if request.method() == Method::OPTIONS && !is_preflight {
        return Ok((StatusCode::NO_CONTENT, [(header::ALLOW, "GET, POST, OPTIONS")]).into_response());
    }
    Ok(next.run(request).await)
}

/// The host and port that a request is addressed to. `None` for HTTP/1.0 without a `Host` header.
fn authority(request: &Request) -> Result<Option<Authority>, ApiError> {
    match (request.uri().authority(), text(request.headers(), header::HOST)) {
        (Some(authority), _) => Ok(Some(authority.clone())),
        (None, Some(host)) => host.parse().map(Some).map_err(|_| ApiError::HostNotAllowed(clip(host))),
        (None, None) => Ok(None),
    }
}

fn text(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    // Neither check accepts the replacement for a value that is not text.
    headers.get(name).map(|value| value.to_str().unwrap_or("?"))
}

impl Guard {
    /// The rules of a server with these options. `is_loopback`: it listens on a loopback address.
    pub fn new(options: &ServerOptions, is_loopback: bool) -> Self {
        let hosts = options.allowed_hosts.iter().map(|host| host.to_ascii_lowercase()).collect();
        Guard { origins: options.cors_origins.clone(), hosts, is_loopback }
    }

    fn check_host(&self, host: &str) -> Result<(), ApiError> {
        let is_allowed = || self.hosts.iter().any(|allowed| allowed == "*" || *allowed == name(host));
        if !self.is_loopback || is_this_machine(host) || is_allowed() {
            return Ok(());
        }
        Err(ApiError::HostNotAllowed(clip(host)))
    }

    /// Whether pages of all origins may use the server.
    pub fn accepts_all_pages(&self) -> bool {
        self.origins.iter().any(|allowed| allowed == "*")
    }

    /// Whether pages of this origin may use the server, even if it is not the server's own.
    pub fn accepts_page(&self, origin: &str) -> bool {
        let is_local = || self.is_loopback && host(origin).is_some_and(|origin| is_this_machine(origin.host()));
        self.accepts_all_pages() || self.origins.iter().any(|allowed| allowed == origin) || is_local()
    }

    fn check_origin(&self, origin: &str, server: Option<&Authority>) -> Result<(), ApiError> {
        let is_own = || host(origin).is_some_and(|origin| Some(&origin) == server);
        if self.accepts_page(origin) || is_own() {
            return Ok(());
        }
        Err(ApiError::OriginNotAllowed(clip(origin)))
    }
}

/// The host and port of an origin.
fn host(origin: &str) -> Option<Authority> {
    origin.split_once("://").and_then(|(_, authority)| authority.parse().ok())
}

/// A host name in lower case, without the final dot.
fn name(host: &str) -> String {
    host.trim_end_matches('.').to_ascii_lowercase()
}

/// Whether a host is `localhost`, a name below it, or a loopback or unspecified address.
fn is_this_machine(host: &str) -> bool {
    let address: Result<IpAddr, _> = host.trim_start_matches('[').trim_end_matches(']').parse();
    match address.map(|address| address.to_canonical()) {
        Ok(address) => address.is_loopback() || address.is_unspecified(),
        Err(_) => name(host) == "localhost" || name(host).ends_with(".localhost"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guard(origins: &[&str], hosts: &[&str], is_loopback: bool) -> Guard {
        let strings = |list: &[&str]| list.iter().map(|&text| text.to_owned()).collect();
        let options =
            ServerOptions { cors_origins: strings(origins), allowed_hosts: strings(hosts), ..ServerOptions::default() };
        Guard::new(&options, is_loopback)
    }

    #[test]
    fn a_loopback_server_answers_to_the_names_of_this_machine() {
        let guard = guard(&[], &["chat.example"], true);
        for host in
            ["localhost", "LOCALHOST.", "a.localhost", "127.0.0.1", "127.8.9.1", "[::1]", "0.0.0.0", "Chat.Example"]
        {
            assert_eq!(guard.check_host(host), Ok(()), "{host}");
        }
        for host in ["evil.example", "localhost.evil.example", "notlocalhost", "192.168.1.2", ""] {
            assert!(guard.check_host(host).is_err(), "{host}");
        }
    }

    #[test]
    fn a_public_server_answers_to_any_name() {
        assert_eq!(guard(&[], &[], false).check_host("chat.example"), Ok(()));
        assert_eq!(guard(&[], &["*"], true).check_host("chat.example"), Ok(()));
    }

    #[test]
    fn an_origin_is_the_servers_own_or_configured_or_local() {
        let server: Authority = "chat.example:8080".parse().unwrap();
        let allows = |guard: &Guard, origin: &str| guard.check_origin(origin, Some(&server)).is_ok();
        let public = guard(&["https://app.example"], &[], false);
        assert!(allows(&public, "http://chat.example:8080") && allows(&public, "https://app.example"));
        for origin in ["http://chat.example", "http://localhost:3000", "https://evil.example", "null", ""] {
            assert!(!allows(&public, origin), "{origin}");
        }
        let local = guard(&[], &[], true);
        assert!(allows(&local, "http://localhost:3000") && allows(&local, "tauri://localhost"));
        assert!(allows(&local, "http://[::1]:8080") && !allows(&local, "null"));
        assert!(allows(&guard(&["*"], &[], true), "null"));
    }
}
