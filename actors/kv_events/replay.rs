//! Repeats past batches.
//!
//! A request is the number of the first batch, in 8 bytes. The answers are `[empty, number, batch]`, and a last one with the number
//! -1 and no batch.

use std::sync::Arc;

use bytes::Bytes;
use zeromq::{RouterSocket, Socket, SocketRecv, SocketSend, ZmqMessage, ZmqResult};

use super::endpoint::{KvEventsError, listen_address};
use super::history::History;

/// The number of the last answer.
const END: [u8; 8] = (-1i64).to_be_bytes();

/// Listens, and answers in a task of its own.
pub(super) async fn start(endpoint: &str, history: Arc<History>) -> Result<(), KvEventsError> {
    let mut socket = RouterSocket::new();
    let bound = socket.bind(&listen_address(endpoint)?).await;
    bound.map_err(|error| KvEventsError::Bind { endpoint: endpoint.to_owned(), reason: error.to_string() })?;
    tokio::spawn(async move {
        loop {
            let answered = answer(&mut socket, &history).await;
            answered.unwrap_or_else(|error| tracing::debug!(%error, "a request for past KV events failed"));
        }
    });
    Ok(())
}

async fn answer(socket: &mut RouterSocket, history: &History) -> ZmqResult<()> {
    let request = socket.recv().await?.into_vec();
    let [client, .., first] = &request[..] else { return Ok(()) };
    let Ok(first) = <[u8; 8]>::try_from(&first[..]) else {
        tracing::debug!("a request for past KV events has no number of 8 bytes");
        return Ok(());
    };
    let past = history.from(u64::from_be_bytes(first)).into_iter();
    let answers = past.map(|(number, batch)| (number.to_be_bytes(), batch)).chain([(END, Bytes::new())]);
    for (number, batch) in answers {
        let mut message = ZmqMessage::from(client.to_vec());
        message.push_back(Bytes::new());
        message.push_back(Bytes::copy_from_slice(&number));
        message.push_back(batch);
        socket.send(message).await?;
    }
    Ok(())
}
