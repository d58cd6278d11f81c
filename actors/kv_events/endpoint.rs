//! Addresses to listen on.

/// Why events cannot be published.
#[derive(Debug, thiserror::Error)]
pub enum KvEventsError {
    /// The address is not one of ZeroMQ over TCP.
    #[error("{0:?} is not an address like tcp://*:5557")]
    Address(String),
    /// The address cannot be listened on.
    #[error("cannot listen on {endpoint}: {reason}")]
    Bind {
        /// The address.
        endpoint: String,
        /// What the system says.
        reason: std::io::Error,
    },
    /// The actor did not start.
    #[error("the publisher of KV events did not start: {0}")]
    Start(String),
}

/// The host and the port of an address: `*` is every interface.
///
/// # Errors
/// [`KvEventsError::Address`].
pub(crate) fn listen_address(endpoint: &str) -> Result<String, KvEventsError> {
    let address = || KvEventsError::Address(endpoint.to_owned());
    let (host, port) = endpoint.strip_prefix("tcp://").and_then(|rest| rest.rsplit_once(':')).ok_or_else(address)?;
    if host.is_empty() || port.parse::<u16>().is_err() {
        return Err(address());
    }
    Ok(format!("{}:{port}", if host == "*" { "0.0.0.0" } else { host }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_is_every_interface_and_other_forms_are_refused() {
        assert_eq!(listen_address("tcp://*:5557").unwrap_or_default(), "0.0.0.0:5557");
        assert_eq!(listen_address("tcp://[::1]:1").unwrap_or_default(), "[::1]:1");
        for wrong in ["", "5557", "*:5557", "ipc:///tmp/events", "tcp://host", "tcp://:1", "tcp://host:70000"] {
            let error = listen_address(wrong).map(drop).unwrap_err().to_string();
            assert!(error.starts_with(&format!("{wrong:?} is not an address")), "{error}");
        }
    }
}
