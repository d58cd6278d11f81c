//! Subscribers over real sockets.
#![allow(clippy::unwrap_used)]

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use tokio::io::AsyncReadExt;
use zeromq::{DealerSocket, Socket, SocketRecv, SocketSend, SubSocket, ZmqMessage};

use super::*;
use crate::core::block_hash::BlockHash;

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

async fn subscriber(endpoint: &str) -> SubSocket {
    let mut subscriber = SubSocket::new();
    subscriber.connect(endpoint).await.unwrap();
    subscriber.subscribe("kv@").await.unwrap();
    subscriber
}

/// Publishes until a subscriber gets something. What is published before its subscription has arrived is lost.
async fn publish_until_received(events: &KvEvents, model: &Arc<str>, subscriber: &mut SubSocket) -> Vec<Vec<u8>> {
    for _ in 0..400 {
        events.publish(model, 1, vec![CacheChange::Cleared]);
        if let Ok(Ok(message)) = tokio::time::timeout(Duration::from_millis(50), subscriber.recv()).await {
            return message.into_vec().into_iter().map(|frame| frame.to_vec()).collect();
        }
    }
    panic!("nothing was received");
}

async fn client(endpoint: &str) -> DealerSocket {
    let mut client = DealerSocket::new();
    client.connect(endpoint).await.unwrap();
    client
}

/// Asks for past batches: an empty part, the topic if there is one, the number.
async fn ask(client: &mut DealerSocket, topic: Option<&str>, number: u64) {
    let mut request = ZmqMessage::from(Vec::new());
    topic.into_iter().for_each(|topic| request.push_back(topic.as_bytes().to_vec().into()));
    request.push_back(number.to_be_bytes().to_vec().into());
    client.send(request).await.unwrap();
}

/// The numbers of the answers.
async fn answered(client: &mut DealerSocket) -> Vec<u64> {
    let mut numbers = Vec::new();
    loop {
        match i64::from_be_bytes(received(client).await[1][..].try_into().unwrap()) {
            -1 => return numbers,
            number => numbers.push(number as u64),
        }
    }
}

#[tokio::test]
async fn a_subscriber_gets_numbered_batches_and_missed_ones_again() {
    let options = options(Some(free_address()));
    let events = KvEvents::start(options.clone()).await.unwrap();
    let model: Arc<str> = "tiny".into();
    let mut subscriber = subscriber(&options.endpoint).await;
    let batch = publish_until_received(&events, &model, &mut subscriber).await;
    assert_eq!((&batch[0][..], batch[1].len()), (&b"kv@pod@tiny"[..], 8));
    let number = u64::from_be_bytes(batch[1][..].try_into().unwrap());
    events.publish(&model, 1, vec![CacheChange::Cleared]);
    assert_eq!(received(&mut subscriber).await[1], (number + 1).to_be_bytes());

    let mut client = client(options.replay_endpoint.as_ref().unwrap()).await;
    ask(&mut client, None, number).await;
    let again = received(&mut client).await;
    assert_eq!(again[1..], [number.to_be_bytes().to_vec(), batch[2].to_vec()]);
    assert_eq!(received(&mut client).await[1], (number + 1).to_be_bytes());
    assert_eq!(received(&mut client).await[1..], [(-1i64).to_be_bytes().to_vec(), Vec::new()]);
}

#[tokio::test]
async fn models_are_numbered_and_repeated_each_for_itself() {
    let options = options(Some(free_address()));
    let events = KvEvents::start(options.clone()).await.unwrap();
    let [one, two]: [Arc<str>; 2] = ["one".into(), "two".into()];
    let mut subscriber = subscriber(&options.endpoint).await;
    publish_until_received(&events, &one, &mut subscriber).await;
    events.publish(&two, 0, vec![CacheChange::Cleared]);
    let first = loop {
        let message = received(&mut subscriber).await;
        if message[0] == b"kv@pod@two" {
            break message;
        }
    };
    assert_eq!(first[1], 0u64.to_be_bytes());
    let mut client = client(options.replay_endpoint.as_ref().unwrap()).await;
    ask(&mut client, Some("kv@pod@two"), 0).await;
    assert_eq!(answered(&mut client).await, [0]);
    ask(&mut client, Some("kv@pod@one"), 0).await;
    assert_eq!(answered(&mut client).await.first(), Some(&0));
    for unknown in [None, Some("kv@pod@three")] {
        ask(&mut client, unknown, 0).await;
        assert!(answered(&mut client).await.is_empty(), "there are two topics, and not this one");
    }
}

/// What a peer says first: its greeting, and that it is ready.
fn greeting(socket: &[u8]) -> Vec<u8> {
    let start = [&[0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0x7f, 3, 0][..], b"NULL", &[0; 48]].concat();
    let ready = [&[5][..], b"READY", &[11], b"Socket-Type", &[0, 0, 0, socket.len() as u8], socket].concat();
    [&start[..], &[4, ready.len() as u8], &ready].concat()
}

fn connect(endpoint: &str) -> TcpStream {
    TcpStream::connect(endpoint.strip_prefix("tcp://").unwrap()).unwrap()
}

/// What a connection sends until it is closed.
fn read_to_end(mut stream: TcpStream) -> Vec<u8> {
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let (mut bytes, mut buffer) = (Vec::new(), [0; 1000]);
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return bytes,
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return bytes,
            read => bytes.extend(&buffer[..read.expect("the connection is closed")]),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frame_of_any_announced_length_ends_its_connection_and_nothing_else() {
    let options = options(Some(free_address()));
    let events = KvEvents::start(options.clone()).await.unwrap();
    for (endpoint, socket) in
        [(&options.endpoint, b"SUB".as_slice()), (options.replay_endpoint.as_ref().unwrap(), b"REQ")]
    {
        let greeting = greeting(socket);
        for (begin, length) in [(64, 1 << 50), (64, u64::MAX), (greeting.len(), 1 << 40), (greeting.len(), u64::MAX)] {
            let mut bomb = connect(endpoint);
            bomb.write_all(&[&greeting[..begin], &[2], &length.to_be_bytes()].concat()).unwrap();
            tokio::task::spawn_blocking(|| read_to_end(bomb)).await.unwrap();
        }
    }
    let mut subscriber = subscriber(&options.endpoint).await;
    publish_until_received(&events, &"tiny".into(), &mut subscriber).await;
    let mut client = client(options.replay_endpoint.as_ref().unwrap()).await;
    ask(&mut client, None, 0).await;
    assert_eq!(answered(&mut client).await.first(), Some(&0));
}

/// The clock is not the real one: it goes on when nothing else happens.
#[tokio::test(start_paused = true)]
async fn a_peer_that_says_nothing_is_cut_off() {
    let options = options(None);
    let _events = KvEvents::start(options.clone()).await.unwrap();
    let address = options.endpoint.strip_prefix("tcp://").unwrap();
    let mut silent = tokio::net::TcpStream::connect(address).await.unwrap();
    let (mut said, began) = (Vec::new(), tokio::time::Instant::now());
    silent.read_to_end(&mut said).await.unwrap();
    assert_eq!(said.len(), 64, "a greeting");
    assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_subscriber_that_reads_nothing_delays_no_other() {
    let options = options(Some(free_address()));
    let events = KvEvents::start(options.clone()).await.unwrap();
    let mut stalled = connect(&options.endpoint);
    stalled.write_all(&[&greeting(b"SUB")[..], &[0, 1, 1]].concat()).unwrap();
    let mut subscriber = subscriber(&options.endpoint).await;
    let model: Arc<str> = "tiny".into();
    publish_until_received(&events, &model, &mut subscriber).await;
    // More than the system keeps for a connection.
    let changes = vec![CacheChange::Removed(BlockHash([7; 32])); 20_000];
    let mut last = None;
    for _ in 0..400 {
        events.publish(&model, 1, changes.clone());
        let message = received(&mut subscriber).await;
        let number = u64::from_be_bytes(message[1][..].try_into().unwrap());
        assert!(last.is_none_or(|last| last + 1 == number));
        last = (message[2].len() > 100_000).then_some(number);
    }
    let replay = options.replay_endpoint.as_ref().unwrap();
    let mut stalled_client = connect(replay);
    stalled_client.write_all(&greeting(b"DEALER")).unwrap();
    let request = [&[1, 0, 0, 8][..], &[0; 8]].concat();
    stalled_client.write_all(&request.repeat(10)).unwrap();
    let mut client = client(replay).await;
    ask(&mut client, None, last.unwrap()).await;
    assert_eq!(answered(&mut client).await, [last.unwrap()]);
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
