//! The messages between a process that renders and its parent: a length of four bytes, then that many bytes.
//!
//! Requests are JSON: a [`Definition`](crate::format::chat_template::Definition) first, then inputs. A reply is one byte for
//! its kind and a text.

use std::io::{self, Read, Write};

use crate::format::chat_template::error::ChatTemplateError;

/// Most bytes of a message. The longest reply is a prompt, which has its own limit.
pub(super) const MAX_BYTES: usize = 256 << 20;

const TEXT: u8 = b'T';
const ERROR: u8 = b'E';

/// Writes one message.
pub(super) fn write(stream: &mut impl Write, message: &[u8]) -> io::Result<()> {
    let length = u32::try_from(message.len()).ok().filter(|_| message.len() <= MAX_BYTES);
    let length = length.ok_or_else(|| io::Error::from(io::ErrorKind::FileTooLarge))?;
    if message.len() <= SMALL_BYTES {
        // One write, so that the reader wakes up once.
        return stream.write_all(&[&length.to_le_bytes()[..], message].concat());
    }
    stream.write_all(&length.to_le_bytes())?;
    stream.write_all(message)
}

const SMALL_BYTES: usize = 64 << 10;

/// Reads one message; `None` at the end of the stream.
pub(super) fn read(stream: &mut impl Read) -> io::Result<Option<Vec<u8>>> {
    let mut length = [0; 4];
    match stream.read_exact(&mut length) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        other => other?,
    }
    let length = u32::from_le_bytes(length);
    if length as usize > MAX_BYTES {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    let mut message = Vec::new();
    stream.take(length.into()).read_to_end(&mut message)?;
    if message.len() == length as usize { Ok(Some(message)) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

/// A reply as a message.
pub(super) fn encode_reply(reply: Result<String, ChatTemplateError>) -> Vec<u8> {
    let (kind, text) = match reply {
        Ok(text) => (TEXT, text),
        Err(error) => (ERROR, serde_json::to_string(&error).unwrap_or_default()),
    };
    let mut message = Vec::with_capacity(1 + text.len());
    message.push(kind);
    message.extend_from_slice(text.as_bytes());
    message
}

/// The reply in a message.
pub(super) fn decode_reply(mut message: Vec<u8>) -> Result<String, ChatTemplateError> {
    let broken = || ChatTemplateError::Worker("its reply makes no sense".to_owned());
    match message.first() {
        Some(&TEXT) => {
            message.remove(0);
            String::from_utf8(message).map_err(|_| broken())
        }
        Some(&ERROR) => Err(serde_json::from_slice(&message[1..]).unwrap_or_else(|_| broken())),
        _ => Err(broken()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_and_replies_arrive_unchanged() {
        for length in [0, 1, SMALL_BYTES, SMALL_BYTES + 1] {
            let (message, mut stream) = (vec![7; length], Vec::new());
            write(&mut stream, &message).unwrap();
            assert_eq!(read(&mut stream.as_slice()).unwrap(), Some(message));
        }
        assert_eq!(read(&mut [].as_slice()).unwrap(), None);
        assert!(read(&mut [9, 0, 0, 0, 1].as_slice()).is_err());
        assert!(read(&mut [0xff; 8].as_slice()).is_err());
        for reply in [Ok("tä".to_owned()), Err(ChatTemplateError::Refused("no".to_owned()))] {
            assert_eq!(decode_reply(encode_reply(reply.clone())), reply);
        }
        assert!(matches!(decode_reply(Vec::new()), Err(ChatTemplateError::Worker(_))));
    }
}
