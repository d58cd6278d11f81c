//! Frames: a byte of flags, the length, and the body. Consecutive frames of a message, and commands.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

/// Another frame of the message follows.
const MORE: u8 = 1;

/// The length has 8 bytes instead of one.
const LONG: u8 = 2;

/// The body is a command.
const COMMAND: u8 = 4;

/// Largest body of a frame that a peer may send. Subscriptions and requests for past batches are small.
const MOST_BYTES: u64 = 4096;

/// Most frames of a message that a peer may send.
const MOST_FRAMES: usize = 8;

/// How long a peer may take nothing of what is sent to it.
const WRITE_PATIENCE: Duration = Duration::from_secs(30);

/// Bytes of a heartbeat's context that are sent back.
const CONTEXT_BYTES: usize = 16;

/// Why a connection ends.
#[derive(Debug, thiserror::Error)]
pub(in crate::kv_events) enum ZmtpError {
    /// It is broken or closed.
    #[error("the connection ended: {0}")]
    Io(#[from] io::Error),
    /// The peer does not follow the protocol, or needs what is not supported.
    #[error("the peer {0}")]
    Peer(&'static str),
    /// The peer takes nothing or says nothing.
    #[error("the peer is silent")]
    Silent,
}

/// What a peer sends.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::kv_events) enum Incoming {
    /// The frames of a message.
    Message(Vec<Vec<u8>>),
    /// The name and the data of a command.
    Command(Vec<u8>, Vec<u8>),
}

struct Frame {
    flags: u8,
    body: Vec<u8>,
}

/// Reads the next message or command.
///
/// # Errors
/// [`ZmtpError`]; the connection is of no use then.
pub(in crate::kv_events) async fn read(from: &mut (impl AsyncRead + Unpin)) -> Result<Incoming, ZmtpError> {
    let mut frames = Vec::new();
    while frames.len() < MOST_FRAMES {
        let Frame { flags, body } = read_frame(from).await?;
        if flags & COMMAND != 0 {
            return if frames.is_empty() { command(&body) } else { Err(ZmtpError::Peer("interrupts a message")) };
        }
        frames.push(body);
        if flags & MORE == 0 {
            return Ok(Incoming::Message(frames));
        }
    }
    Err(ZmtpError::Peer("sends a message of too many frames"))
}

async fn read_frame(from: &mut (impl AsyncRead + Unpin)) -> Result<Frame, ZmtpError> {
    let flags = from.read_u8().await?;
    if flags & !(MORE | LONG | COMMAND) != 0 {
        return Err(ZmtpError::Peer("sends a frame with unknown flags"));
    }
    let length = if flags & LONG == 0 { u64::from(from.read_u8().await?) } else { from.read_u64().await? };
    // Checked before memory is reserved.
    let length = usize::try_from(length.min(MOST_BYTES + 1)).unwrap_or(usize::MAX);
    if length as u64 > MOST_BYTES {
        return Err(ZmtpError::Peer("sends a frame that is too long"));
    }
    let mut body = vec![0; length];
    from.read_exact(&mut body).await?;
    Ok(Frame { flags, body })
}

fn command(body: &[u8]) -> Result<Incoming, ZmtpError> {
    let named = || {
        let (length, rest) = body.split_first()?;
        rest.split_at_checked(usize::from(*length))
    };
    let (name, data) = named().ok_or(ZmtpError::Peer("sends a malformed command"))?;
    Ok(Incoming::Command(name.to_owned(), data.to_owned()))
}

/// The bytes of a frame.
fn encode(flags: u8, body: &[u8], out: &mut Vec<u8>) {
    match u8::try_from(body.len()) {
        Ok(length) => out.extend([flags, length]),
        Err(_) => {
            out.push(flags | LONG);
            out.extend((body.len() as u64).to_be_bytes());
        }
    }
    out.extend(body);
}

/// The bytes of a command.
pub(super) fn encode_command(name: &[u8], data: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    // The names of commands are short.
    encode(COMMAND, &[&[name.len() as u8], name, data].concat(), &mut out);
    out
}

/// The bytes that answer a heartbeat, if a command is one: `PING` with a time of 2 bytes and a context.
pub(in crate::kv_events) fn pong(name: &[u8], data: &[u8]) -> Option<Vec<u8>> {
    let context = data.get(2..).filter(|_| name == b"PING")?;
    Some(encode_command(b"PONG", &context[..context.len().min(CONTEXT_BYTES)]))
}

/// Sends the frames of a message.
///
/// # Errors
/// [`ZmtpError`]; the connection is of no use then.
pub(in crate::kv_events) async fn write_message(
    to: &mut (impl AsyncWrite + Unpin),
    frames: &[&[u8]],
) -> Result<(), ZmtpError> {
    let mut bytes = Vec::with_capacity(frames.iter().map(|frame| frame.len() + 9).sum());
    for (index, frame) in frames.iter().enumerate() {
        encode(if index + 1 < frames.len() { MORE } else { 0 }, frame, &mut bytes);
    }
    write(to, &bytes).await
}

/// Sends bytes.
///
/// # Errors
/// [`ZmtpError`]; the connection is of no use then.
pub(in crate::kv_events) async fn write(to: &mut (impl AsyncWrite + Unpin), bytes: &[u8]) -> Result<(), ZmtpError> {
    let mut rest = bytes;
    while !rest.is_empty() {
        let written = timeout(WRITE_PATIENCE, to.write(rest)).await.map_err(|_| ZmtpError::Silent)??;
        if written == 0 {
            return Err(io::Error::from(io::ErrorKind::WriteZero).into());
        }
        rest = &rest[written..];
    }
    Ok(())
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use super::*;

    async fn read_all(mut bytes: &[u8]) -> Result<Incoming, ZmtpError> {
        read(&mut bytes).await
    }

    #[tokio::test]
    async fn a_message_is_read_as_it_was_written() {
        let frames: [&[u8]; 3] = [b"", &[7; 300], b"end"];
        let mut bytes = Vec::new();
        write_message(&mut bytes, &frames).await.unwrap();
        let Incoming::Message(read) = read_all(&bytes).await.unwrap() else { panic!("a message") };
        assert_eq!(read, frames);
        let ping = encode_command(b"PING", &[&[0, 9][..], &[5; 20]].concat());
        let Incoming::Command(name, data) = read_all(&ping).await.unwrap() else { panic!("a command") };
        assert_eq!(pong(&name, &data), Some(encode_command(b"PONG", &[5; 16])));
    }

    #[tokio::test]
    async fn frames_that_are_too_long_too_many_or_malformed_end_the_connection() {
        let long = [&[LONG][..], &(1u64 << 50).to_be_bytes()].concat();
        let most = [&[LONG][..], &u64::MAX.to_be_bytes()].concat();
        for wrong in [&long[..], &most, &[MORE, 0].repeat(20), &[8, 0], &[COMMAND, 1, 9], &[COMMAND, 0]] {
            let error = read_all(wrong).await.unwrap_err();
            assert!(matches!(error, ZmtpError::Peer(_)), "{wrong:?}: {error}");
        }
        assert!(matches!(read_all(&[0, 5, 1]).await, Err(ZmtpError::Io(_))));
    }
}
