//! The checks of the network: whether the hub answers, and the proxies.

use std::time::Duration;

use super::check::Check;
use crate::config::Config;
use crate::core::error_chain::error_chain;
use crate::hub::Hub;

/// How long the hub may take to answer.
const TIMEOUT: Duration = Duration::from_secs(3);

/// Whether the hub answers. Sends nothing if the configuration is offline.
pub fn hub(config: &Config) -> Check {
    let hub = Hub::new(config);
    let name = hub.name();
    let token = if hub.has_token() { "with a token" } else { "without a token" };
    if config.offline {
        return Check::ok("hub", format!("{name} is not used, because `offline` is set"));
    }
    match hub.probe(TIMEOUT) {
        Ok(time) => Check::ok("hub", format!("{name} answered in {} ms, {token}", time.as_millis())),
        Err(error) => Check::ok("hub", error_chain(&error)).warn(Some(remedy(config))),
    }
}

fn remedy(config: &Config) -> String {
    let address = if config.hf_endpoint.is_some() { "correct HF_ENDPOINT" } else { "set HF_ENDPOINT to a mirror" };
    format!("{address}, set HTTPS_PROXY if this network needs a proxy, or use models from files (and `--offline`)")
}

/// The proxies of the environment, as (variable, value), which downloads go through.
pub fn proxies(proxies: &[(String, String)]) -> Check {
    let of = |(name, value): &(String, String)| format!("{name}={}", without_password(value));
    let list: Vec<String> = proxies.iter().map(of).collect();
    let result = if list.is_empty() { "none".to_owned() } else { list.join(", ") };
    let has = |wanted: &str| proxies.iter().any(|(name, _)| name.eq_ignore_ascii_case(wanted));
    let only_http = has("HTTP_PROXY") && !has("HTTPS_PROXY") && !has("ALL_PROXY");
    let remedy = "set HTTPS_PROXY too, because downloads use HTTPS".to_owned();
    Check::ok("proxy", result).warn(only_http.then_some(remedy))
}

/// A proxy's address with `***` in place of its user and password.
fn without_password(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").map_or(("", url), |(scheme, rest)| (&url[..scheme.len() + 3], rest));
    let host_end = rest.find('/').unwrap_or(rest.len());
    match rest[..host_end].rfind('@') {
        Some(at) => format!("{scheme}***{}", &rest[at..]),
        None => url.to_owned(),
    }
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use super::super::check::State;
    use super::*;
    use crate::config;

    fn config(text: &str) -> Config {
        config::of_text("test.toml".as_ref(), text).unwrap()
    }

    #[test]
    fn a_hub_that_refuses_the_connection_is_a_warning_with_a_remedy() {
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = taken.local_addr().unwrap().port();
        drop(taken);
        let check = hub(&config(&format!("[hub]\nhf_endpoint = \"http://127.0.0.1:{port}\"")));
        assert_eq!(check.state, State::Warning, "{check:?}");
        assert!(check.result.contains("cannot get an answer"), "{check:?}");
        assert!(check.remedy.unwrap().starts_with("correct HF_ENDPOINT"));
    }

    #[test]
    fn nothing_is_sent_offline() {
        let check = hub(&config("[hub]\noffline = true\nhf_endpoint = \"http://127.0.0.1:1\""));
        assert_eq!((check.state, check.remedy), (State::Ok, None));
    }

    #[test]
    fn proxies_are_listed_without_passwords() {
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(proxies(&[]).result, "none");
        let both = [pair("HTTP_PROXY", "http://me:secret@proxy:3128/"), pair("https_proxy", "proxy:3128")];
        let check = proxies(&both);
        assert_eq!((check.state, check.remedy), (State::Ok, None));
        assert_eq!(check.result, "HTTP_PROXY=http://***@proxy:3128/, https_proxy=proxy:3128");
        assert!(proxies(&both[..1]).remedy.unwrap().contains("HTTPS_PROXY"));
        assert_eq!(without_password("me:a@b@proxy"), "***@proxy");
    }
}
