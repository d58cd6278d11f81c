//! Sends the published messages to one subscriber, those of the topics that it asks for.
//!
//! A subscriber that does not keep up misses messages, which it notices by their numbers. One that takes nothing is cut off.

use std::sync::{Mutex, PoisonError};

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{broadcast, mpsc};

use super::history::Batch;
use super::zmtp::{self, Connection, Incoming, ZmtpError};

/// Most subscriptions of one subscriber.
const MOST_TOPICS: usize = 1000;

/// Answers to heartbeats that may wait to be sent.
const MOST_PONGS: usize = 4;

/// The beginnings of the topics that a subscriber asks for, one for each of its subscriptions.
#[derive(Default)]
struct Topics(Mutex<Vec<Vec<u8>>>);

impl Topics {
    fn change(&self, is_added: bool, topic: &[u8]) -> Result<(), ZmtpError> {
        let mut topics = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match (is_added, topics.iter().position(|known| known == topic)) {
            (true, _) if topics.len() == MOST_TOPICS => return Err(ZmtpError::Peer("has too many subscriptions")),
            (true, _) => topics.push(topic.to_owned()),
            (false, Some(known)) => drop(topics.swap_remove(known)),
            (false, None) => {}
        }
        Ok(())
    }

    fn have(&self, topic: &[u8]) -> bool {
        let topics = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        topics.iter().any(|beginning| topic.starts_with(beginning))
    }
}

/// Serves a subscriber until its connection ends.
pub(super) async fn serve(
    Connection { mut from, mut to }: Connection,
    batches: broadcast::Receiver<Batch>,
) -> Result<(), ZmtpError> {
    let topics = Topics::default();
    let (pongs, to_send) = mpsc::channel(MOST_PONGS);
    tokio::select! {
        ended = read_topics(&mut from, &topics, pongs) => ended,
        ended = send(&mut to, &topics, batches, to_send) => ended,
    }
}

/// Reads subscriptions: as messages of ZMTP 3.0, and as commands of 3.1.
async fn read_topics(
    from: &mut (impl AsyncRead + Unpin),
    topics: &Topics,
    pongs: mpsc::Sender<Vec<u8>>,
) -> Result<(), ZmtpError> {
    loop {
        match zmtp::read(from).await? {
            Incoming::Message(frames) => {
                // Other messages are none of this socket's.
                if let Some((kind @ (0 | 1), topic)) = frames.first().and_then(|frame| frame.split_first()) {
                    topics.change(*kind == 1, topic)?;
                }
            }
            Incoming::Command(name, topic) if name == b"SUBSCRIBE" => topics.change(true, &topic)?,
            Incoming::Command(name, topic) if name == b"CANCEL" => topics.change(false, &topic)?,
            Incoming::Command(name, data) => {
                if let Some(pong) = zmtp::pong(&name, &data) {
                    // A peer that takes no answers gets no more of them.
                    let _ = pongs.try_send(pong);
                }
            }
        }
    }
}

async fn send(
    to: &mut (impl AsyncWrite + Unpin),
    topics: &Topics,
    mut batches: broadcast::Receiver<Batch>,
    mut pongs: mpsc::Receiver<Vec<u8>>,
) -> Result<(), ZmtpError> {
    loop {
        tokio::select! {
            Some(pong) = pongs.recv() => zmtp::write(to, &pong).await?,
            batch = batches.recv() => match batch {
                Ok(Batch { topic, number, batch }) if topics.have(topic.as_bytes()) => {
                    zmtp::write_message(to, &[topic.as_bytes(), &number.to_be_bytes(), &batch]).await?;
                }
                Ok(_) | Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => return Ok(()),
            },
        }
    }
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subscription_is_for_all_topics_that_begin_with_it_until_it_is_cancelled() {
        let topics = Topics::default();
        assert!(!topics.have(b"kv@a"));
        for topic in [&b"kv@"[..], b"kv@", b"other"] {
            topics.change(true, topic).unwrap();
        }
        assert!(topics.have(b"kv@a") && topics.have(b"other") && !topics.have(b"kv"));
        topics.change(false, b"kv@").unwrap();
        topics.change(false, b"unknown").unwrap();
        assert!(topics.have(b"kv@a"), "it was subscribed twice");
        topics.change(false, b"kv@").unwrap();
        assert!(!topics.have(b"kv@a"));
        topics.change(true, b"").unwrap();
        assert!(topics.have(b"anything"));
        assert!((0..MOST_TOPICS).any(|_| topics.change(true, b"").is_err()), "their number is limited");
    }

    #[tokio::test]
    async fn subscriptions_are_read_as_messages_and_as_commands() {
        let topics = Topics::default();
        let mut bytes = Vec::new();
        zmtp::write_message(&mut bytes, &[b"\x01one"]).await.unwrap();
        bytes.extend(b"\x04\x0d\x09SUBSCRIBEtwo");
        zmtp::write_message(&mut bytes, &[b"\x01three"]).await.unwrap();
        zmtp::write_message(&mut bytes, &[b"\x00three"]).await.unwrap();
        let ended = read_topics(&mut &bytes[..], &topics, mpsc::channel(1).0).await;
        assert!(matches!(ended, Err(ZmtpError::Io(_))), "the bytes end");
        assert!(topics.have(b"one") && topics.have(b"two") && !topics.have(b"three"));
    }
}
