//! The check of the port that `cuelight serve` would listen on.

use std::io::ErrorKind;
use std::net::TcpListener;

use super::check::Check;
use crate::config::Config;

/// Whether the port of the configuration is free.
pub fn port(config: &Config) -> Check {
    let (host, port) = (&config.host, config.port);
    let check = |result: String| Check::ok("port", result);
    match TcpListener::bind((host.as_str(), port)) {
        Ok(_) if port == 0 => check(format!("a free one on {host} at each start")),
        Ok(_) => check(format!("{port} on {host} is free")),
        Err(error) if error.kind() == ErrorKind::AddrInUse => check(format!("{port} on {host} is in use")).warn(Some(
            "choose another port with --port, unless the program there is your Cuelight (see `cuelight ps`)".to_owned(),
        )),
        Err(error) => check(format!("{port} on {host} cannot be used: {error}"))
            .warn(Some("choose another address with --host, or a port above 1023 with --port".to_owned())),
    }
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use super::super::check::State;
    use super::*;
    use crate::config;

    fn check(port: u16) -> Check {
        super::port(&config::of_text("test.toml".as_ref(), &format!("[server]\nport = {port}")).unwrap())
    }

    #[test]
    fn a_port_in_use_gets_a_remedy() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let check = check(taken.local_addr().unwrap().port());
        assert_eq!(check.state, State::Warning, "{check:?}");
        assert!(check.result.ends_with("is in use") && check.remedy.unwrap().contains("--port"));
    }

    #[test]
    fn any_free_port_is_fine() {
        assert_eq!(check(0).state, State::Ok);
    }
}
