//! Subscribers over real sockets.
#![allow(clippy::unwrap_used)]

use std::net::TcpListener;
use std::time::Duration;

use zeromq::{DealerSocket, Socket, SocketRecv, SocketSend, SubSocket, ZmqMessage};

use super::*;

/// An address that nothing listens on.
fn free_address() -> String {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    format!("tcp://127.0.0.1:{port}")
}

fn options(replay_endpoint: Option<String>) -> KvEventsOptions {
    let topic = "kv@pod@{model}".to_owned();
    KvEventsOptions { endpoint: free_address(), replay_endpoint, topic, format: EventFormat::Array }
}

async fn received(socket: &mut impl SocketRecv) -> Vec<Vec<u8>> {
    let message = tokio::time::timeout(Duration::from_secs(20), socket.recv()).await.unwrap().unwrap();
    message.into_vec().into_iter().map(|frame| frame.to_vec()).collect()
}

#[tokio::test]
async fn a_subscriber_gets_numbered_batches_and_missed_ones_again() {
    let options = options(Some(free_address()));
    let events = KvEvents::start(options.clone()).await.unwrap();
    let model: Arc<str> = "tiny".into();
    let mut subscriber = SubSocket::new();
    subscriber.connect(&options.endpoint).await.unwrap();
    subscriber.subscribe("kv@").await.unwrap();
    // What is published before the subscription has arrived is lost, so it is repeated.
    let batch = loop {
        events.publish(&model, 1, vec![CacheChange::Cleared]);
        if let Ok(Ok(message)) = tokio::time::timeout(Duration::from_millis(50), subscriber.recv()).await {
            break message.into_vec();
        }
    };
    assert_eq!((&batch[0][..], batch[1].len()), (&b"kv@pod@tiny"[..], 8));
    let number = u64::from_be_bytes(batch[1][..].try_into().unwrap());
    events.publish(&model, 1, vec![CacheChange::Cleared]);
    assert_eq!(received(&mut subscriber).await[1], (number + 1).to_be_bytes());

    let mut client = DealerSocket::new();
    client.connect(options.replay_endpoint.as_ref().unwrap()).await.unwrap();
    let mut request = ZmqMessage::from(Vec::new());
    request.push_back(number.to_be_bytes().to_vec().into());
    client.send(request).await.unwrap();
    let again = received(&mut client).await;
    assert_eq!(again[1..], [number.to_be_bytes().to_vec(), batch[2].to_vec()]);
    assert_eq!(received(&mut client).await[1], (number + 1).to_be_bytes());
    assert_eq!(received(&mut client).await[1..], [(-1i64).to_be_bytes().to_vec(), Vec::new()]);
}

#[tokio::test]
async fn an_address_in_use_is_an_error_that_names_it() {
    let options = options(None);
    let port = options.endpoint.rsplit_once(':').unwrap().1;
    let _taken = TcpListener::bind(format!("127.0.0.1:{port}")).unwrap();
    let error = KvEvents::start(options.clone()).await.unwrap_err().to_string();
    assert!(error.starts_with(&format!("cannot listen on {}: ", options.endpoint)), "{error}");
}

#[test]
fn without_an_address_nothing_is_published() {
    let events = KvEvents::default();
    assert!(!events.is_on());
    events.publish(&"model".into(), 0, vec![CacheChange::Cleared]);
}
