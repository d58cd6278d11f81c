//! Repeats past batches.
//!
//! A request is the number of the first batch, in 8 bytes, after an empty part and the topic. Without a topic it is for the only
//! one that there is. The answers are `[empty, number, batch]`, and a last one with the number -1 and no batch. A request for an
//! unknown topic has only the last one.

use std::sync::Arc;

use tokio::io::AsyncWrite;

use super::endpoint::{KvEventsError, listen_address};
use super::history::{History, KEPT};
use super::zmtp::{self, Connection, Incoming, Kind, ZmtpError, listen};

/// The number of the last answer.
const END: [u8; 8] = (-1i64).to_be_bytes();

/// Listens, and answers in tasks of their own.
pub(super) async fn start(endpoint: &str, history: Arc<History>) -> Result<(), KvEventsError> {
    let serve = move |connection| serve(connection, Arc::clone(&history));
    let bound = listen(&listen_address(endpoint)?, Kind::Router, serve).await;
    bound.map_err(|reason| KvEventsError::Bind { endpoint: endpoint.to_owned(), reason })
}

/// Answers the requests of a client one after the other, until its connection ends. A client that takes no answers delays itself
/// alone.
async fn serve(Connection { mut from, mut to }: Connection, history: Arc<History>) -> Result<(), ZmtpError> {
    loop {
        match zmtp::read(&mut from).await? {
            Incoming::Message(frames) => answer(&mut to, &frames, &history).await?,
            Incoming::Command(name, data) => {
                if let Some(pong) = zmtp::pong(&name, &data) {
                    zmtp::write(&mut to, &pong).await?;
                }
            }
        }
    }
}

async fn answer(to: &mut (impl AsyncWrite + Unpin), request: &[Vec<u8>], history: &History) -> Result<(), ZmtpError> {
    let Some((topic, first)) = topic_and_number(request) else {
        tracing::debug!("a request for past KV events has no number of 8 bytes");
        return Ok(());
    };
    let mut next = first;
    for _ in 0..KEPT {
        // Taken one by one, so that a slow client keeps only one of them in memory.
        let Some(batch) = history.next(topic, next) else { break };
        zmtp::write_message(to, &[&[], &batch.number.to_be_bytes(), &batch.batch]).await?;
        next = batch.number + 1;
    }
    zmtp::write_message(to, &[&[], &END, &[]]).await
}

/// The topic and the first number that a request asks for: `[empty, topic, number]`, where the first two parts may be missing.
fn topic_and_number(request: &[Vec<u8>]) -> Option<(Option<&[u8]>, u64)> {
    let (number, before) = request.split_last()?;
    let number = u64::from_be_bytes(number[..].try_into().ok()?);
    Some((before.last().filter(|topic| !topic.is_empty()).map(Vec::as_slice), number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_may_name_a_topic() {
        let of = |parts: &[&[u8]]| {
            let parts: Vec<Vec<u8>> = parts.iter().map(|part| part.to_vec()).collect();
            topic_and_number(&parts).map(|(topic, number)| (topic.map(<[u8]>::to_vec), number))
        };
        let number = &5u64.to_be_bytes()[..];
        assert_eq!(of(&[b"", number]), Some((None, 5)));
        assert_eq!(of(&[number]), Some((None, 5)));
        assert_eq!(of(&[b"", b"kv@a", number]), Some((Some(b"kv@a".to_vec()), 5)));
        assert_eq!(of(&[b"kv@a", number]), Some((Some(b"kv@a".to_vec()), 5)));
        assert_eq!(of(&[b"", b"short"]), None);
        assert_eq!(of(&[]), None);
    }
}
