//! The hosts that media may be loaded from.

use std::str::FromStr;

use reqwest::Url;

/// A host that media may be loaded from: all, or a host name or address, and a port if only one is allowed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MediaHost {
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
pub struct InvalidMediaHost(String);

impl FromStr for MediaHost {
    type Err = InvalidMediaHost;

    fn from_str(text: &str) -> Result<Self, InvalidMediaHost> {
        let invalid = || InvalidMediaHost(text.to_owned());
        if text == "*" {
            return Ok(MediaHost { host: None, port: None });
        }
        // The rules for hosts are those of URLs.
        let url = Url::parse(&format!("http://{text}/")).map_err(|_| invalid())?;
        let is_only_host = url.path() == "/"
            && url.query().is_none()
            && url.username().is_empty()
            && !text.contains(['/', '?', '#', '@']);
        let host = url.host_str().filter(|_| is_only_host).ok_or_else(invalid)?;
        let port = text.rsplit_once(':').and_then(|(_, port)| port.parse().ok());
        Ok(MediaHost { host: Some(host.to_owned()), port })
    }
}

impl MediaHost {
    /// Whether media may be loaded from the host of a URL.
    pub(super) fn allows(&self, url: &Url) -> bool {
        let Some(host) = &self.host else { return true };
        let is_port = match self.port {
            Some(port) => url.port_or_known_default() == Some(port),
            None => url.port().is_none(),
        };
        is_port && url.host_str().is_some_and(|named| named.eq_ignore_ascii_case(host))
    }
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_hosts_and_ports_of_the_list_are_allowed() {
        let allows = |host: &str, url: &str| host.parse::<MediaHost>().unwrap().allows(&Url::parse(url).unwrap());
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
            assert!(text.parse::<MediaHost>().is_err(), "{text}");
        }
    }
}
