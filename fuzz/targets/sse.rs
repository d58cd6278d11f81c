//! The answers that `cuelight bench serve` reads: server-sent events, their JSON, and refusals.

use std::convert::Infallible;

use cuelight::cli::bench::serve::chunks::{Chunk, EventBuffer, refusal};

/// The first byte gives the size of the pieces in which the rest arrives.
pub fn run(data: &[u8]) {
    let Some((&size, stream)) = data.split_first() else { return };
    let whole = events(stream, usize::MAX);
    assert_eq!(whole, events(stream, 1 + usize::from(size)), "the events depend on how the bytes arrive");
    for event in &whole {
        assert!(event.len() <= stream.len() && !event.contains(&b'\n'));
        if let Ok(chunk) = serde_json::from_slice::<Chunk>(event) {
            let _ = (chunk.has_text(), chunk.is_finished(), chunk.usage.and_then(|usage| usage.cached_tokens()));
        }
    }
    let line = refusal(stream);
    assert!(line.chars().count() <= 200 && !line.contains('\n'), "a refusal is one short line: {line:?}");
}

/// The events of a stream that arrives in pieces of `size` bytes.
fn events(stream: &[u8], size: usize) -> Vec<Vec<u8>> {
    let (mut buffer, mut events) = (EventBuffer::default(), Vec::new());
    for bytes in stream.chunks(size) {
        let each = |event: &[u8]| -> Result<(), Infallible> {
            events.push(event.to_vec());
            Ok(())
        };
        let Ok(()) = buffer.push(bytes, each);
    }
    events
}
