//! The beginning of what a server writes, for the error about one that does not speak the protocol.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, ReadBuf};

/// Bytes that are kept.
const KEPT_BYTES: usize = 80;

/// What was read first.
#[derive(Debug, Clone, Default)]
pub struct FirstOutput(Arc<Mutex<Vec<u8>>>);

impl FirstOutput {
    /// The first line, unless it may be a message.
    pub fn stray_line(&self) -> Option<String> {
        let bytes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let text = String::from_utf8_lossy(&bytes);
        let line = text.trim_start().lines().next()?.trim_end();
        (!line.is_empty() && !line.starts_with('{')).then(|| line.to_owned())
    }

    fn add(&self, bytes: &[u8]) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let space = KEPT_BYTES - kept.len();
        kept.extend(&bytes[..bytes.len().min(space)]);
    }
}

/// A stream whose beginning is kept.
#[derive(Debug)]
pub struct Observed<R> {
    inner: R,
    first: FirstOutput,
}

impl<R> Observed<R> {
    /// Keeps the beginning of a stream in `first`.
    pub fn new(inner: R, first: FirstOutput) -> Self {
        Observed { inner, first }
    }
}

impl<R: AsyncRead + Unpin> AsyncRead for Observed<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.inner).poll_read(context, buffer);
        self.first.add(&buffer.filled()[before..]);
        polled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_is_no_message_is_found() {
        let line = |bytes: &[u8]| {
            let first = FirstOutput::default();
            first.add(bytes);
            first.add(&[b'x'; 200]);
            first.stray_line()
        };
        assert_eq!(line(b"Starting\nmore\n").as_deref(), Some("Starting"));
        assert_eq!(line(b"\n{\"jsonrpc\": \"2.0\"}\n"), None);
        assert_eq!(FirstOutput::default().stray_line(), None);
    }
}
