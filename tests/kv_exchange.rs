//! KV blocks and recurrent states of another server, with real engines: a prompt that one server computes and another continues
//! gives the same tokens and the same bits of log-probability as on one server, also when the other server fails in any way.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Bytes;
use axum::http::HeaderMap;
use axum::routing::post;
use cuelight::api::{ApiKey, ServerOptions, serve};
use cuelight::core::kv_transfer::{KvTransfer, PeerAddress};
use cuelight::core::request::GenerationRequest;
use cuelight::core::tier::{Tier, TierCounts};
use cuelight::pipeline::kv_store::{KvStoreOptions, PeerKey, PeerOptions, PeerRule, SharedBlocks};
use cuelight::pipeline::policy::PolicyConfig;
use cuelight::pipeline::runtime::{Runtime, RuntimeOptions};
use cuelight_engine::load::{KvType, LoadOptions};
use serde_json::{Value, json};
use tokio::net::TcpListener;

#[path = "support/tiny_runtime.rs"]
mod tiny_runtime;

use tiny_runtime::{answer, checkpoint, request, start};

const MODEL: &str = "llama-q4_0.gguf";

/// Requests with prompts of several blocks.
const SEEDS: [u64; 5] = [1, 2, 3, 5, 6];

fn load_options(model: &str) -> LoadOptions {
    LoadOptions { threads: 2, context_tokens: Some(256), ..LoadOptions::new(checkpoint(model)) }
}

async fn runtime(options: LoadOptions, chunk: usize, kv_store: KvStoreOptions) -> Runtime {
    let policy = PolicyConfig { prefill_chunk_tokens: chunk, ..PolicyConfig::default() };
    start(options, RuntimeOptions { policy, kv_store, ..RuntimeOptions::default() }).await
}

/// A server that computes prompts for others.
struct Prefill {
    runtime: Runtime,
    address: Arc<PeerAddress>,
}

impl Prefill {
    async fn start(options: LoadOptions, keys: &[&str]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let shared = SharedBlocks::new(PeerAddress { host: "127.0.0.1".to_owned(), port });
        let kv_store =
            KvStoreOptions { host_bytes: 64 << 20, shared: Some(shared.clone()), ..KvStoreOptions::default() };
        let runtime = runtime(options, 7, kv_store).await;
        let api_keys = keys.iter().map(|key| ApiKey::from((*key).to_owned())).collect();
        let address = Arc::clone(shared.address());
        let options = ServerOptions { api_keys, shared_blocks: Some(shared), ..ServerOptions::new("tiny") };
        tokio::spawn(serve(listener, runtime.clone(), options, std::future::pending()));
        Prefill { runtime, address }
    }

    /// Computes the prompt of a request, which another server continues.
    async fn compute(&self, request: GenerationRequest) {
        let kv_transfer = KvTransfer { from: None, shared_at: Some(self.address.clone()) };
        answer(&self.runtime, GenerationRequest { kv_transfer, ..request }).await;
    }
}

/// A server that continues prompts of others.
async fn decode(options: LoadOptions, peers: PeerOptions) -> Runtime {
    runtime(options, 512, KvStoreOptions { peers, ..KvStoreOptions::default() }).await
}

fn any() -> PeerOptions {
    PeerOptions { allowed: vec!["*".parse().unwrap()], key: None }
}

async fn continued(runtime: &Runtime, seed: u64, from: &Arc<PeerAddress>) -> Vec<(u32, u32)> {
    let kv_transfer = KvTransfer { from: Some(from.clone()), shared_at: None };
    answer(runtime, GenerationRequest { kv_transfer, ..request(seed, 0.7) }).await
}

fn from_peers(runtime: &Runtime) -> TierCounts {
    runtime.snapshot().tiers[Tier::Peer as usize]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_continued_prompt_gives_the_same_bits_with_every_type_of_the_cache() {
    for (model, kv_type) in [
        (MODEL, KvType::F16),
        (MODEL, KvType::F32),
        (MODEL, KvType::Q8_0),
        ("gemma2.gguf", KvType::F16),
        ("glm-dsa.gguf", KvType::F16),
        ("minimax-m3.gguf", KvType::F16),
    ] {
        let options = || LoadOptions { kv_type, ..load_options(model) };
        let alone = runtime(options(), 512, KvStoreOptions::default()).await;
        let (prefill, decode) = (Prefill::start(options(), &[]).await, decode(options(), any()).await);
        let mut blocks = 0;
        for seed in SEEDS {
            prefill.compute(request(seed, 0.0)).await;
            let expected = answer(&alone, request(seed, 0.7)).await;
            assert_eq!(continued(&decode, seed, &prefill.address).await, expected, "{model}");
            blocks += (request(seed, 0.0).prompt.len() - 1) as u64 / 16;
        }
        let counts = from_peers(&decode);
        assert!(counts.blocks.loaded > 0 && counts.blocks.lost == 0, "{model}: {counts:?}");
        assert_eq!(
            counts.blocks.loaded + counts.blocks.declined,
            blocks,
            "{model}: the others were expected to be computed faster"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prompt_is_continued_with_its_recurrent_state() {
    for model in ["qwen35.gguf", "lfm2.gguf", "mamba2.gguf"] {
        let alone = runtime(load_options(model), 512, KvStoreOptions::default()).await;
        let prefill = Prefill::start(load_options(model), &[]).await;
        let decode = decode(load_options(model), any()).await;
        for seed in SEEDS {
            prefill.compute(request(seed, 0.0)).await;
            let expected = answer(&alone, request(seed, 0.7)).await;
            assert_eq!(continued(&decode, seed, &prefill.address).await, expected, "{model}");
        }
        let counts = from_peers(&decode);
        assert!(counts.states.loaded > 0 && counts.states.lost == 0, "{model}: {counts:?}");
        assert_eq!(counts.blocks.loaded > 0, model != "mamba2.gguf", "{model}: {counts:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_state_is_computed_instead() {
    const MODEL: &str = "qwen35.gguf";
    let alone = runtime(load_options(MODEL), 512, KvStoreOptions::default()).await;
    let prefill = Prefill::start(load_options(MODEL), &[]).await;
    for fault in [Fault::FlippedBit, Fault::CutOff, Fault::OtherBytes, Fault::Refusal] {
        let decode = decode(load_options(MODEL), any()).await;
        let peer = faulty(fault, prefill.address.clone()).await;
        prefill.compute(request(2, 0.0)).await;
        assert_eq!(continued(&decode, 2, &peer).await, answer(&alone, request(2, 0.7)).await, "{fault:?}");
        let counts = from_peers(&decode);
        assert_eq!((counts.states.lost, counts.blocks.loaded), (1, 0), "{fault:?}: it is asked for first");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_at_the_same_time_are_continued_together() {
    let alone = runtime(load_options(MODEL), 512, KvStoreOptions::default()).await;
    let prefill = Prefill::start(load_options(MODEL), &[]).await;
    let decode = decode(load_options(MODEL), any()).await;
    let both = SEEDS.map(|seed| {
        let (prefill, decode) = (&prefill, &decode);
        async move {
            prefill.compute(request(seed, 0.0)).await;
            continued(decode, seed, &prefill.address).await
        }
    });
    let answers = futures_util::future::join_all(both).await;
    for (seed, found) in SEEDS.into_iter().zip(answers) {
        assert_eq!(found, answer(&alone, request(seed, 0.7)).await);
    }
    assert_eq!(from_peers(&decode).blocks.lost, 0);
}

/// What is wrong with another server's answers.
#[derive(Debug, Clone, Copy)]
enum Fault {
    FlippedBit,
    CutOff,
    OtherBytes,
    Refusal,
}

/// A server that passes the answers of another one on with a fault.
async fn faulty(fault: Fault, behind: Arc<PeerAddress>) -> Arc<PeerAddress> {
    let forward = move |body: Bytes| async move {
        let request = reqwest::Client::new().post(format!("http://{behind}/kv/blocks"));
        let response = request.header("content-type", "application/json").body(body).send().await.unwrap();
        let mut bytes = response.bytes().await.unwrap().to_vec();
        assert!(bytes.len() > 1000);
        match fault {
            // Of the last block.
            Fault::FlippedBit => *bytes.last_mut().unwrap() ^= 4,
            Fault::CutOff => bytes.truncate(bytes.len() - 100),
            Fault::OtherBytes => bytes.fill(7),
            Fault::Refusal => return (axum::http::StatusCode::SERVICE_UNAVAILABLE, b"no".to_vec()),
        }
        (axum::http::StatusCode::OK, bytes)
    };
    listen(Router::new().route("/kv/blocks", post(forward))).await
}

/// Starts a server.
async fn listen(app: Router) -> Arc<PeerAddress> {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async { axum::serve(listener, app).await });
    Arc::new(PeerAddress { host: "127.0.0.1".to_owned(), port })
}

#[tokio::test(flavor = "multi_thread")]
async fn damaged_blocks_are_computed_instead() {
    let alone = runtime(load_options(MODEL), 512, KvStoreOptions::default()).await;
    let prefill = Prefill::start(load_options(MODEL), &[]).await;
    for fault in [Fault::FlippedBit, Fault::CutOff, Fault::OtherBytes, Fault::Refusal] {
        let decode = decode(load_options(MODEL), any()).await;
        let peer = faulty(fault, prefill.address.clone()).await;
        prefill.compute(request(2, 0.0)).await;
        assert_eq!(continued(&decode, 2, &peer).await, answer(&alone, request(2, 0.7)).await, "{fault:?}");
        assert_eq!(from_peers(&decode).blocks.lost, 1, "{fault:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_gone_or_silent_costs_little_time() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let gone = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
    let alone = runtime(load_options(MODEL), 512, KvStoreOptions::default()).await;
    let decode = decode(load_options(MODEL), any()).await;
    let silent_port = silent.local_addr().unwrap().port();
    for (seed, host, port) in [(1, "unknown.invalid", 1), (2, "127.0.0.1", gone), (3, "127.0.0.1", silent_port)] {
        let began = Instant::now();
        let peer = Arc::new(PeerAddress { host: host.to_owned(), port });
        assert_eq!(continued(&decode, seed, &peer).await, answer(&alone, request(seed, 0.7)).await);
        assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
    }
    let counts = from_peers(&decode);
    assert!(counts.blocks.loaded == 0 && counts.blocks.lost >= 3, "each of them was asked: {counts:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn blocks_are_loaded_only_from_allowed_servers_of_the_same_model() {
    let other = Prefill::start(load_options("gemma2.gguf"), &[]).await;
    let other_type = Prefill::start(LoadOptions { kv_type: KvType::F32, ..load_options(MODEL) }, &[]).await;
    let same = Prefill::start(load_options(MODEL), &["secret"]).await;
    let alone = runtime(load_options(MODEL), 512, KvStoreOptions::default()).await;
    let expected = answer(&alone, request(2, 0.7)).await;
    let allow = |rule: &str| vec![rule.parse::<PeerRule>().unwrap()];
    let key = |key: &str| Some(PeerKey::of(key));
    let [open, port] = [&other.address, &same.address].map(|address| format!("127.0.0.0/8:{}", address.port));
    for (server, allowed, key, is_loaded) in [
        (&other, allow("*"), None, false),
        (&other_type, allow("*"), None, false),
        (&same, allow("*"), None, false),
        (&same, allow(&port), key("wrong"), false),
        (&same, allow("10.0.0.0/8"), key("secret"), false),
        (&same, allow(&open), key("secret"), false),
        // The key is for the ports that are named.
        (&same, allow("127.0.0.0/8"), key("secret"), false),
        (&same, allow(&port), key("secret"), true),
    ] {
        let decode = decode(load_options(MODEL), PeerOptions { allowed, key }).await;
        server.compute(request(2, 0.0)).await;
        assert_eq!(continued(&decode, 2, &server.address).await, expected);
        assert_eq!(from_peers(&decode).blocks.loaded > 0, is_loaded);
    }
}

/// A server that has no key and passes on the answers of another one.
async fn keyless(behind: Arc<PeerAddress>) -> Arc<PeerAddress> {
    let forward = move |headers: HeaderMap, body: Bytes| async move {
        assert!(!headers.values().any(|value| value == "Bearer secret"), "the key is not sent");
        let request = reqwest::Client::new().post(format!("http://{behind}/kv/blocks"));
        let request = request.header("content-type", "application/json").body(body);
        request.send().await.unwrap().bytes().await.unwrap()
    };
    listen(Router::new().route("/kv/blocks", post(forward))).await
}

/// With a key, blocks are taken only from servers that have it.
#[tokio::test(flavor = "multi_thread")]
async fn with_a_key_blocks_of_servers_without_it_are_not_used() {
    let open = Prefill::start(load_options(MODEL), &[]).await;
    open.compute(request(2, 0.0)).await;
    let keyless = keyless(open.address.clone()).await;
    let alone = runtime(load_options(MODEL), 512, KvStoreOptions::default()).await;
    let expected = answer(&alone, request(2, 0.7)).await;
    for (key, is_loaded) in [(None, true), (Some(PeerKey::of("secret")), false)] {
        let rule = format!("127.0.0.1:{}", keyless.port).parse().unwrap();
        let decode = decode(load_options(MODEL), PeerOptions { allowed: vec![rule], key }).await;
        assert_eq!(continued(&decode, 2, &keyless).await, expected);
        assert_eq!(from_peers(&decode).blocks.loaded > 0, is_loaded);
    }
}

/// A server that refuses with a body without end, and one that sends to another server.
#[tokio::test(flavor = "multi_thread")]
async fn neither_the_body_of_a_refusal_nor_a_redirection_is_followed() {
    let refuse = || async {
        let parts = futures_util::stream::repeat_with(|| Ok::<_, std::io::Error>(Bytes::from_static(&[b'a'; 10_000])));
        (axum::http::StatusCode::BAD_REQUEST, axum::body::Body::from_stream(parts))
    };
    let prefill = Prefill::start(load_options(MODEL), &[]).await;
    prefill.compute(request(2, 0.0)).await;
    let there = format!("http://{}/kv/blocks", prefill.address);
    let redirect = move || async move { axum::response::Redirect::temporary(&there) };
    let alone = runtime(load_options(MODEL), 512, KvStoreOptions::default()).await;
    let expected = answer(&alone, request(2, 0.7)).await;
    for app in [Router::new().route("/kv/blocks", post(refuse)), Router::new().route("/kv/blocks", post(redirect))] {
        let (peer, began) = (listen(app).await, Instant::now());
        let decode = decode(load_options(MODEL), any()).await;
        assert_eq!(continued(&decode, 2, &peer).await, expected);
        assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
        assert_eq!((from_peers(&decode).blocks.loaded, from_peers(&decode).blocks.lost), (0, 1));
    }
}

/// The answer of a server to a completion.
async fn complete(server: &PeerAddress, body: &Value) -> (u16, Value) {
    let response =
        reqwest::Client::new().post(format!("http://{server}/v1/completions")).json(body).send().await.unwrap();
    (response.status().as_u16(), response.json().await.unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_router_passes_the_parameters_of_one_server_to_another() {
    let prefill = Prefill::start(load_options(MODEL), &[]).await;
    let decode = decode(load_options(MODEL), any()).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = PeerAddress { host: "127.0.0.1".to_owned(), port: listener.local_addr().unwrap().port() };
    tokio::spawn(serve(listener, decode.clone(), ServerOptions::new("tiny"), std::future::pending()));
    let prompt = request(2, 0.0).prompt;
    let body = json!({ "prompt": prompt, "max_tokens": 8, "temperature": 0, "ignore_eos": true });
    let (_, expected) = complete(&prefill.address, &body).await;
    assert_eq!(expected.get("kv_transfer_params"), None);

    let mut first = body.clone();
    first["max_tokens"] = json!(1);
    first["kv_transfer_params"] = json!({ "do_remote_decode": true, "do_remote_prefill": false });
    let (_, first) = complete(&prefill.address, &first).await;
    let mut second = body.clone();
    second["kv_transfer_params"] = first["kv_transfer_params"].clone();
    let (_, second) = complete(&address, &second).await;
    assert_eq!(second["choices"][0]["text"], expected["choices"][0]["text"]);
    assert_eq!(second["usage"]["prompt_tokens_details"]["cached_tokens"], (prompt.len() - 1) / 16 * 16);
    assert!(from_peers(&decode).blocks.loaded > 0);

    let ask = |server: &PeerAddress, body: &Value| {
        reqwest::Client::new().post(format!("http://{server}/kv/blocks")).json(body).send()
    };
    let nothing = json!({ "meaning": "", "before": "", "tokens": [] });
    let (status, refused) =
        complete(&address, &json!({ "prompt": "a", "kv_transfer_params": { "do_remote_decode": true } })).await;
    assert_eq!((status, &refused["error"]["param"]), (400, &json!("kv_transfer_params.do_remote_decode")));
    assert_eq!(ask(&address, &nothing).await.unwrap().status(), 404, "it shares no blocks");
    for wrong in [nothing, json!({}), json!({ "meaning": 1, "before": "", "tokens": [] })] {
        assert_eq!(ask(&prefill.address, &wrong).await.unwrap().status(), 400);
    }
}
