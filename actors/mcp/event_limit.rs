//! A limit on the events of a server's stream, which are kept in memory until they are complete.

use std::io;

use futures_util::stream::{self, Stream};

/// Most bytes of an event, and of an answer.
pub const MAX_BYTES: usize = 16 << 20;

/// Counts the bytes since the last empty line, which ends an event.
#[derive(Debug, Default)]
struct EventCounter {
    bytes: usize,
    line_is_empty: bool,
}

impl EventCounter {
    /// Counts a chunk; returns whether no event in it is too long.
    fn accepts(&mut self, chunk: &[u8]) -> bool {
        for byte in chunk {
            self.bytes += 1;
            match byte {
                b'\r' => {}
                b'\n' if self.line_is_empty => self.bytes = 0,
                b'\n' => self.line_is_empty = true,
                _ => self.line_is_empty = false,
            }
            if self.bytes > MAX_BYTES {
                return false;
            }
        }
        true
    }
}

/// The body of a response as a stream that fails at an event that is too long.
pub fn limited(response: reqwest::Response) -> impl Stream<Item = io::Result<bytes::Bytes>> + Send + 'static {
    stream::try_unfold((response, EventCounter::default()), |(mut response, mut counter)| async move {
        let Some(chunk) = response.chunk().await.map_err(io::Error::other)? else { return Ok(None) };
        if !counter.accepts(&chunk) {
            return Err(io::Error::other(format!("an event has more than {MAX_BYTES} bytes")));
        }
        Ok(Some((chunk, (response, counter))))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_one_event_without_an_end_is_too_long() {
        let line = [b"data: ".as_slice(), &vec![b'x'; 1 << 20], b"\r\n"].concat();
        let mut counter = EventCounter::default();
        for _ in 0..40 {
            assert!(counter.accepts(&line) && counter.accepts(b"\r\n"), "each event has an end");
        }
        let accepted = (0..40).take_while(|_| counter.accepts(&line)).count();
        assert_eq!(accepted, 15);
    }
}
