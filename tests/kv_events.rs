//! KV events with a real engine: a reader of the messages alone knows which prompts a server holds, also after evictions and
//! after the executor was lost.

#![allow(clippy::unwrap_used)]

use std::collections::{HashMap, HashSet};
use std::net::TcpListener;
use std::time::Duration;

use cuelight::core::request::Event as Answer;
use cuelight::kv_events::{EventFormat, KvEvents, KvEventsOptions};
use cuelight::pipeline::kv_store::{KvDirectory, KvStoreOptions};
use cuelight::pipeline::runtime::{Runtime, RuntimeOptions};
use cuelight_engine::engine::BLOCK_TOKENS;
use cuelight_engine::load::{LoadOptions, plan};
use serde::Deserialize;
use zeromq::{Socket, SocketRecv, SubSocket};

#[path = "support/actor_deaths.rs"]
mod actor_deaths;
#[path = "support/tiny_runtime.rs"]
mod tiny_runtime;

use actor_deaths::Role;
use tiny_runtime::{answer, checkpoint, request, start};

/// An event, as a reader in another language declares it.
#[derive(Debug, Deserialize)]
#[serde(tag = "type")]
enum Event {
    BlockStored {
        block_hashes: Vec<u64>,
        parent_block_hash: Option<u64>,
        token_ids: Vec<u32>,
        block_size: usize,
        medium: String,
    },
    BlockRemoved {
        block_hashes: Vec<u64>,
        medium: String,
    },
    AllBlocksCleared,
}

/// What a router knows from the messages.
struct Reader {
    socket: SubSocket,
    next: Option<u64>,
    /// The text up to the end of each block.
    texts: HashMap<u64, Vec<u32>>,
    /// The blocks that have copies in lower tiers, by medium.
    copies: HashMap<String, HashSet<u64>>,
    events: usize,
}

impl Reader {
    async fn connect(endpoint: &str) -> Self {
        let mut socket = SubSocket::new();
        socket.connect(endpoint).await.unwrap();
        socket.subscribe("kv@pod@tiny").await.unwrap();
        Reader { socket, next: None, texts: HashMap::new(), copies: HashMap::new(), events: 0 }
    }

    /// Reads messages until none comes for a moment.
    async fn read(&mut self) {
        while let Ok(message) = tokio::time::timeout(Duration::from_millis(300), self.socket.recv()).await {
            let frames = message.unwrap().into_vec();
            let number = u64::from_be_bytes(frames[1][..].try_into().unwrap());
            assert!(self.next.is_none_or(|next| next == number), "a message is missing before {number}");
            self.next = Some(number + 1);
            let (at, events, replica): (f64, Vec<Event>, usize) = rmp_serde::from_slice(&frames[2]).unwrap();
            assert!(at > 1.7e9 && replica == 0);
            events.into_iter().for_each(|event| self.apply(event));
        }
    }

    fn apply(&mut self, event: Event) {
        self.events += 1;
        match event {
            Event::BlockStored { block_hashes, parent_block_hash, token_ids, block_size, medium }
                if medium != "GPU" =>
            {
                assert_eq!((parent_block_hash, token_ids.len(), block_size), (None, 0, BLOCK_TOKENS));
                let copies = self.copies.entry(medium).or_default();
                block_hashes.into_iter().for_each(|hash| assert!(copies.insert(hash), "a block was copied twice"));
            }
            Event::BlockRemoved { block_hashes, medium } if medium != "GPU" => {
                let copies = self.copies.entry(medium).or_default();
                block_hashes.iter().for_each(|hash| assert!(copies.remove(hash)));
            }
            Event::BlockStored { block_hashes, parent_block_hash, token_ids, block_size, .. } => {
                assert_eq!((block_size, token_ids.len()), (BLOCK_TOKENS, BLOCK_TOKENS * block_hashes.len()));
                let mut text = parent_block_hash.map_or_else(Vec::new, |parent| self.texts[&parent].clone());
                for (hash, tokens) in block_hashes.into_iter().zip(token_ids.chunks(BLOCK_TOKENS)) {
                    text.extend(tokens);
                    assert_eq!(self.texts.insert(hash, text.clone()), None, "a block was stored twice");
                }
            }
            Event::BlockRemoved { block_hashes, .. } => {
                block_hashes.iter().for_each(|hash| assert!(self.texts.remove(hash).is_some()));
            }
            Event::AllBlocksCleared => {
                self.texts.clear();
                self.copies.clear();
            }
        }
    }

    /// The number of copies in a lower tier.
    fn copies(&self, medium: &str) -> usize {
        self.copies.get(medium).map_or(0, HashSet::len)
    }

    /// The longest beginning of a prompt that the server is known to hold, in tokens.
    fn held(&self, prompt: &[u32]) -> usize {
        let blocks = prompt.len() / BLOCK_TOKENS;
        let is_held = |blocks: &usize| self.texts.values().any(|text| text[..] == prompt[..blocks * BLOCK_TOKENS]);
        (1..=blocks).take_while(is_held).last().unwrap_or(0) * BLOCK_TOKENS
    }
}

fn load_options() -> LoadOptions {
    LoadOptions { threads: 2, context_tokens: Some(256), ..LoadOptions::new(checkpoint("llama-q4_0.gguf")) }
}

/// Bytes of a KV block.
fn block_bytes() -> u64 {
    let memory = plan(&load_options()).unwrap().memory().clone();
    memory.used.kv / memory.kv_blocks as u64
}

/// A runtime with a cache of 18 blocks, less than the prompts of all requests need.
async fn small_runtime(kv_events: KvEvents, kv_store: KvStoreOptions) -> Runtime {
    let options = LoadOptions { kv_bytes: Some(block_bytes() * 18), ..load_options() };
    start(options, RuntimeOptions { model_id: "tiny".into(), kv_events, kv_store, ..RuntimeOptions::default() }).await
}

/// A publisher and its reader.
async fn publish() -> (KvEvents, Reader) {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let endpoint = format!("tcp://127.0.0.1:{port}");
    let options = KvEventsOptions {
        endpoint: endpoint.clone(),
        replay_endpoint: None,
        topic: "kv@pod@{model}".into(),
        format: EventFormat::Map,
    };
    let events = KvEvents::start(options).await.unwrap();
    let reader = Reader::connect(&endpoint).await;
    // Its subscription arrives before the first message.
    tokio::time::sleep(Duration::from_millis(500)).await;
    (events, reader)
}

/// The tokens of a prompt that the server itself finds in its cache when it computes them again.
async fn cached(runtime: &Runtime, seed: u64) -> usize {
    let permit = runtime.try_permit(1).unwrap();
    let mut generation = runtime.submit(&permit, request(seed, 0.0)).await.unwrap();
    loop {
        match generation.next().await.unwrap() {
            Answer::Finished { usage, .. } => return usage.cached_tokens,
            Answer::Failed(error) => panic!("{error}"),
            _ => {}
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_of_the_messages_knows_what_the_server_holds() {
    let (events, mut reader) = publish().await;
    let runtime = small_runtime(events, KvStoreOptions::default()).await;
    for round in 0..3 {
        for seed in 0..8 {
            answer(&runtime, request(seed, 0.0)).await;
        }
        reader.read().await;
        for seed in [7, 0, 7, 3] {
            let prompt = request(seed, 0.0).prompt;
            // The last token is always computed.
            let known = reader.held(&prompt[..prompt.len() - 1]);
            assert_eq!(cached(&runtime, seed).await, known, "round {round}, seed {seed}");
            reader.read().await;
        }
        if round == 1 {
            assert!(Role::Executor.kill(&runtime, 0));
            answer(&runtime, request(1, 0.0)).await;
            reader.read().await;
            assert_eq!(reader.held(&request(7, 0.0).prompt), 0, "the executor is lost, and its cache");
        }
    }
    assert!(reader.events > 60, "{}", reader.events);
    assert!(!reader.texts.is_empty());
    runtime.shutdown(Duration::ZERO).await;
    reader.read().await;
    assert!(reader.texts.is_empty(), "the model is unloaded");
}

/// Waits until the reader knows as many copies as the tiers have, and the host and the disk have at least these. Blocks are on
/// their way for a while.
async fn knows_copies(reader: &mut Reader, runtime: &Runtime, [host, disk]: [usize; 2]) {
    for _ in 0..60 {
        reader.read().await;
        let known = ["CPU", "DISK", "REMOTE"].map(|medium| reader.copies(medium));
        if known == runtime.snapshot().tiers.map(|tier| tier.blocks.present) && known[0] >= host && known[1] >= disk {
            return;
        }
    }
    panic!("{:?} of {:?}", reader.copies, runtime.snapshot().tiers);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_of_the_messages_knows_the_copies_in_lower_tiers() {
    let folder = tempfile::tempdir().unwrap();
    let directory = KvDirectory::open(folder.path()).unwrap();
    let tiers = KvStoreOptions {
        host_bytes: 8 * block_bytes(),
        disk: Some((directory, 40 * block_bytes())),
        ..KvStoreOptions::default()
    };
    let (events, mut reader) = publish().await;
    let runtime = small_runtime(events.clone(), tiers.clone()).await;
    for round in 0..2 {
        for seed in 0..8 {
            answer(&runtime, request(seed, 0.0)).await;
        }
        knows_copies(&mut reader, &runtime, [5, 5]).await;
        if round == 0 {
            assert!(Role::Executor.kill(&runtime, 0));
            answer(&runtime, request(1, 0.0)).await;
            knows_copies(&mut reader, &runtime, [5, 5]).await;
        }
    }
    runtime.shutdown(Duration::from_secs(20)).await;
    reader.read().await;
    assert!(reader.copies.is_empty(), "the model is unloaded");
    let runtime = small_runtime(events, tiers).await;
    answer(&runtime, request(9, 0.0)).await;
    // The files of the first runtime.
    knows_copies(&mut reader, &runtime, [0, 5]).await;
    runtime.shutdown(Duration::ZERO).await;
}
