//! What both sides say first: the version and the mechanism of security, then the types of their sockets.

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};

use super::frame::{Incoming, ZmtpError, encode_command, read, write};

/// Bytes of a greeting: signature, version, mechanism, role, filler.
const GREETING_BYTES: usize = 10 + 2 + 20 + 1 + 31;

/// The bytes at the beginning of a greeting, except for 8 that mean nothing.
const SIGNATURE: [u8; 2] = [0xff, 0x7f];

/// The version of the protocol.
const VERSION: [u8; 2] = [3, 0];

/// Without security.
const MECHANISM: [u8; 20] = *b"NULL\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";

/// The property that names the type of a socket.
const SOCKET_TYPE: &[u8] = b"Socket-Type";

/// The type of this server's socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::kv_events) enum Kind {
    /// Sends to all subscribers.
    Publisher,
    /// Answers each peer.
    Router,
}

impl Kind {
    fn name(self) -> &'static [u8] {
        match self {
            Kind::Publisher => b"PUB",
            Kind::Router => b"ROUTER",
        }
    }

    /// The types of sockets that may connect.
    fn peers(self) -> &'static [&'static [u8]] {
        match self {
            Kind::Publisher => &[b"SUB", b"XSUB"],
            Kind::Router => &[b"REQ", b"DEALER", b"ROUTER"],
        }
    }
}

/// Agrees with a peer on the protocol.
///
/// # Errors
/// [`ZmtpError`] when it speaks another one.
pub(super) async fn shake_hands(
    from: &mut (impl AsyncRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
    kind: Kind,
) -> Result<(), ZmtpError> {
    write(to, &greeting()).await?;
    let mut theirs = [0; GREETING_BYTES];
    // An older version is seen before the rest of a greeting, which it does not have.
    from.read_exact(&mut theirs[..11]).await?;
    if [theirs[0], theirs[9]] != SIGNATURE || theirs[10] < VERSION[0] {
        return Err(ZmtpError::Peer("speaks another protocol than ZMTP 3"));
    }
    from.read_exact(&mut theirs[11..]).await?;
    if theirs[12..32] != MECHANISM {
        return Err(ZmtpError::Peer("asks for a mechanism of security: only NULL is supported"));
    }
    write(to, &encode_command(b"READY", &property(SOCKET_TYPE, kind.name()))).await?;
    match read(from).await? {
        Incoming::Command(name, data) if name == b"READY" => check_type(&data, kind),
        _ => Err(ZmtpError::Peer("is not ready")),
    }
}

fn greeting() -> [u8; GREETING_BYTES] {
    let mut greeting = [0; GREETING_BYTES];
    [greeting[0], greeting[9]] = SIGNATURE;
    greeting[10..12].copy_from_slice(&VERSION);
    greeting[12..32].copy_from_slice(&MECHANISM);
    greeting
}

/// The bytes of a property: a name with its length in one byte, and a value with its length in four.
fn property(name: &[u8], value: &[u8]) -> Vec<u8> {
    [&[name.len() as u8], name, &(value.len() as u32).to_be_bytes(), value].concat()
}

/// Splits `data` into the name and the value of its first property, and the rest.
fn split_property(data: &[u8]) -> Option<[&[u8]; 3]> {
    let (length, rest) = data.split_first()?;
    let (name, rest) = rest.split_at_checked(usize::from(*length))?;
    let (length, rest) = rest.split_first_chunk::<4>()?;
    let (value, rest) = rest.split_at_checked(usize::try_from(u32::from_be_bytes(*length)).ok()?)?;
    Some([name, value, rest])
}

fn check_type(mut data: &[u8], kind: Kind) -> Result<(), ZmtpError> {
    while let Some([name, value, rest]) = split_property(data) {
        if name.eq_ignore_ascii_case(SOCKET_TYPE) {
            let fits = kind.peers().contains(&value);
            return if fits { Ok(()) } else { Err(ZmtpError::Peer("has a socket of another type")) };
        }
        data = rest;
    }
    Err(ZmtpError::Peer("does not say the type of its socket"))
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_peers_of_the_same_protocol_and_a_fitting_type_are_accepted() {
        let shake = async |theirs: &[u8], kind| {
            let (mut theirs, mut ours) = (theirs, Vec::new());
            shake_hands(&mut theirs, &mut ours, kind).await
        };
        let of = |greeting: &[u8], socket: &[u8]| {
            let properties = [property(b"Identity", b""), property(b"socket-type", socket)].concat();
            [greeting, &encode_command(b"READY", &properties)].concat()
        };
        assert!(shake(&of(&greeting(), b"SUB"), Kind::Publisher).await.is_ok());
        assert!(shake(&of(&greeting(), b"DEALER"), Kind::Router).await.is_ok());
        let changed = |at: usize, to: u8| {
            let mut greeting = greeting();
            greeting[at] = to;
            greeting
        };
        for wrong in [
            of(&greeting(), b"REQ"),
            of(&changed(0, b'G'), b"SUB"),
            of(&changed(10, 1), b"SUB"),
            of(&changed(12, b'X'), b"SUB"),
            [&greeting()[..], &encode_command(b"READY", b"")].concat(),
            [&greeting()[..], &encode_command(b"ERROR", b"")].concat(),
            [&greeting()[..], &[0, 0]].concat(),
        ] {
            assert!(matches!(shake(&wrong, Kind::Publisher).await, Err(ZmtpError::Peer(_))), "{wrong:?}");
        }
    }
}
