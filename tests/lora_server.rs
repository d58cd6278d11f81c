//! Adapters of a served model: chosen by the name of the model, loaded and unloaded while the server runs.

#![allow(clippy::unwrap_used)]

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};
use zeromq::{Socket, SocketRecv, SubSocket};

#[path = "support/server_process.rs"]
mod server_process;

use server_process::ServerProcess;

fn fixture(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(path)
}

fn adapter(name: &str) -> String {
    fixture("lora").join(name).display().to_string()
}

async fn start(flags: &[&str]) -> ServerProcess {
    let flags = [&["--alias", "base"], flags].concat();
    ServerProcess::start_model(&fixture("hugging_face/llama-shards"), &flags).await
}

async fn post(server: &ServerProcess, path: &str, body: &Value) -> (u16, String) {
    let sent = reqwest::Client::new().post(format!("{}{path}", server.url)).json(body).send().await.unwrap();
    (sent.status().as_u16(), sent.text().await.unwrap())
}

/// The answer of a model to a prompt of four blocks, or the status of the refusal.
async fn complete(server: &ServerProcess, model: &str, tokens: usize) -> Result<Vec<u64>, u16> {
    let prompt: Vec<u32> = (0..64).map(|index| 5 + index * 7 % 480).collect();
    let body = json!({
        "model": model, "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": true, "return_token_ids": true,
    });
    let (status, text) = post(server, "/v1/completions", &body).await;
    if status != 200 {
        return Err(status);
    }
    let answer: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(answer["model"], model, "{answer}");
    let ids = answer["choices"][0]["token_ids"].as_array().unwrap_or_else(|| panic!("{answer}"));
    Ok(ids.iter().map(|id| id.as_u64().unwrap()).collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn adapters_and_none_in_parallel_give_the_texts_of_each_alone() {
    let [a, b] = [("a", "llama-a"), ("b", "llama-b")].map(|(name, path)| format!("{name}={}", adapter(path)));
    let names = ["base", "a", "b"];
    let mut alone = Vec::new();
    for name in names {
        // Each in a server of its own, so that no prefix is cached.
        let server = start(&["--lora", &a, "--lora", &b, "--no-prefix-cache"]).await;
        alone.push(complete(&server, name, 24).await.unwrap());
    }
    assert!(alone[0] != alone[1] && alone[1] != alone[2] && alone[0] != alone[2], "{alone:?}");
    let server = start(&["--lora", &a, "--lora", &b]).await;
    for round in 0..3 {
        let together = tokio::join!(
            complete(&server, names[0], 24),
            complete(&server, names[1], 24),
            complete(&server, names[2], 24)
        );
        let together = [together.0, together.1, together.2].map(Result::unwrap);
        assert_eq!(together.as_slice(), alone, "round {round}");
    }
    assert_eq!(complete(&server, "c", 4).await, Err(404));

    let (_, models) = server.get("/v1/models").await;
    let models: Value = serde_json::from_str(&models).unwrap();
    let of = |name: &str| models["data"].as_array().unwrap().iter().find(|model| model["id"] == name).unwrap().clone();
    assert_eq!(of("base")["parent"], Value::Null);
    assert_eq!((&of("b")["parent"], &of("b")["root"]), (&json!("base"), &json!(adapter("llama-b"))));
    let (_, listed) = server.get("/lora-adapters").await;
    let listed: Value = serde_json::from_str(&listed).unwrap();
    assert_eq!(
        (&listed[1]["id"], &listed[1]["path"], &listed[1]["scale"]),
        (&json!(1), &json!(adapter("llama-b")), &json!(1.0))
    );
    let of_number =
        |lora: Value| json!({ "prompt": [5, 6, 7], "max_tokens": 8, "temperature": 0, "lora": lora, "model": "base" });
    let text = async |body: Value| {
        let (status, text) = post(&server, "/v1/completions", &body).await;
        (status, serde_json::from_str::<Value>(&text).unwrap()["choices"][0]["text"].clone())
    };
    let mut by_name = of_number(json!([]));
    by_name["model"] = json!("b");
    let (by_name, by_number) = (text(by_name).await, text(of_number(json!([{ "id": 1, "scale": 1.0 }]))).await);
    assert_eq!((by_name.0, &by_name), (200, &by_number));
    assert_ne!(by_name, text(of_number(json!([]))).await);
    assert_eq!(text(of_number(json!([{ "id": 9 }]))).await.0, 400);
    let (status, text) = post(&server, "/v1/load_lora_adapter", &json!({ "lora_name": "c", "lora_path": "x" })).await;
    assert_eq!(status, 403, "clients may load adapters only where the server allows it");
    assert!(text.contains("start it with --allow-lora-loading"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn adapters_are_loaded_used_and_unloaded_at_run_time() {
    let server = start(&["--allow-lora-loading", "--lora-slots", "1"]).await;
    let base = complete(&server, "base", 16).await.unwrap();
    assert_eq!(complete(&server, "a", 16).await, Err(404));
    let load = |name: &str, path: &str| json!({ "lora_name": name, "lora_path": adapter(path) });
    let (status, text) = post(&server, "/v1/load_lora_adapter", &load("a", "llama-a")).await;
    assert_eq!((status, text.contains("'a'")), (200, true), "{text}");
    let with_a = complete(&server, "a", 16).await.unwrap();
    assert_ne!(with_a, base);
    for (name, path) in [("a", "llama-a"), ("base", "llama-a"), ("b", "llama-b"), ("c", "qwen35"), ("c", "nothing")] {
        let (status, text) = post(&server, "/v1/load_lora_adapter", &load(name, path)).await;
        assert_eq!(status, 400, "{name}: {text}");
    }

    // The answer of a request that runs is not changed by unloading its adapter.
    let (long, unloaded) = tokio::join!(complete(&server, "a", 300), async {
        tokio::time::sleep(Duration::from_millis(30)).await;
        post(&server, "/v1/unload_lora_adapter", &json!({ "lora_name": "a" })).await
    });
    assert_eq!(unloaded.0, 200, "{}", unloaded.1);
    if let Ok(long) = long {
        assert_eq!(long[..16], with_a);
    }
    assert_eq!(complete(&server, "a", 16).await, Err(404));
    let (status, _) = post(&server, "/v1/unload_lora_adapter", &json!({ "lora_name": "a" })).await;
    assert_eq!(status, 404);

    // Another adapter of the same name finds no prefix of the first one.
    let (status, text) = post(&server, "/v1/load_lora_adapter", &load("a", "llama-b")).await;
    assert_eq!(status, 200, "{text}");
    let with_b = complete(&server, "a", 16).await.unwrap();
    assert!(with_b != with_a && with_b != base);
    assert_eq!(complete(&server, "base", 16).await.unwrap(), base);
}

/// The value of a metric's sample; `None` if it is not scraped.
fn sample(text: &str, series: &str) -> Option<f64> {
    let line = text.lines().find(|line| line.rsplit_once(' ').is_some_and(|(name, _)| name == series))?;
    line.rsplit_once(' ')?.1.parse().ok()
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_show_which_adapters_requests_use() {
    let [a, b] = [("a", "llama-a"), ("b", "llama-b")].map(|(name, path)| format!("{name}={}", adapter(path)));
    let flags = ["--lora", &a, "--lora", &b, "--metrics-compat", "vllm", "--max-seqs", "1"];
    let server = start(&flags).await;
    let of = |adapter: &str, state: &str| {
        format!(r#"cuelight_adapter_requests{{model="base",replica="0",adapter="{adapter}",state="{state}"}}"#)
    };
    let info = |running: &str, waiting: &str| {
        let names = format!(r#"running_lora_adapters="{running}",waiting_lora_adapters="{waiting}""#);
        format!(r#"vllm:lora_requests_info{{model_name="base",max_lora="2",{names}}}"#)
    };
    let (_, text) = server.get("/metrics").await;
    assert_eq!(sample(&text, r#"cuelight_adapter_slots{model="base",replica="0"}"#), Some(2.0), "{text}");
    assert!(sample(&text, &info("", "")).is_some_and(|time| time > 1.7e9), "{text}");

    // One sequence runs at a time, so the other request waits.
    let scraped = async {
        loop {
            let (_, text) = server.get("/metrics").await;
            if [info("a", "b"), info("b", "a")].iter().any(|series| sample(&text, series).is_some()) {
                return text;
            }
        }
    };
    let both = async { tokio::join!(complete(&server, "a", 400), complete(&server, "b", 400)) };
    let (text, answers) = tokio::join!(scraped, both);
    assert!(answers.0.is_ok() && answers.1.is_ok());
    let counts =
        ["a", "b"].map(|name| ["running", "waiting"].map(|state| sample(&text, &of(name, state)).unwrap_or(0.0)));
    assert!(counts == [[1.0, 0.0], [0.0, 1.0]] || counts == [[0.0, 1.0], [1.0, 0.0]], "{counts:?}");
    // The counts follow shortly after the answers.
    let mut tries = 0..100;
    while let (_, text) = server.get("/metrics").await
        && (sample(&text, &of("a", "running")) != Some(0.0) || sample(&text, &info("", "")).is_none())
    {
        assert!(tries.next().is_some(), "{text}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The cached tokens of prompts with an adapter.
async fn cached(server: &ServerProcess, model: &str) -> u64 {
    let mut cached = 0;
    for seed in 0..6 {
        let prompt: Vec<u32> = (0..64).map(|index| 5 + (index * 7 + seed * 31) % 480).collect();
        let body = json!({ "model": model, "prompt": prompt, "max_tokens": 2, "temperature": 0 });
        let (status, text) = post(server, "/v1/completions", &body).await;
        assert_eq!(status, 200, "{text}");
        let answer: Value = serde_json::from_str(&text).unwrap();
        cached += answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap_or(0);
    }
    cached
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_server_finds_the_blocks_of_an_adapter_by_its_content() {
    let directory = tempfile::tempdir().unwrap();
    let disk = directory.path().to_str().unwrap();
    let on_disk = async |name: &str, path: &str| {
        let lora = format!("{name}={}", adapter(path));
        let mut server = start(&["--kv-disk", disk, "--lora", &lora]).await;
        let mut tries = 0..500;
        let capacity = r#"cuelight_kv_tier_capacity_bytes{model="base",replica="0",tier="disk"}"#;
        while sample(&server.get("/metrics").await.1, capacity).is_none_or(|bytes| bytes == 0.0) {
            assert!(tries.next().is_some(), "the disk tier is not ready");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let found = cached(&server, name).await;
        let answer = complete(&server, name, 8).await.unwrap();
        server.terminate();
        assert!(server.ended(Duration::from_secs(30)).await.success());
        (found, answer)
    };
    let (found, answer) = on_disk("a", "llama-a").await;
    assert_eq!(found, 0);
    let (found, again) = on_disk("a", "llama-a").await;
    assert!(found > 0, "the same adapter");
    assert_eq!(again, answer);
    let (found, other) = on_disk("a", "llama-b").await;
    assert_eq!(found, 0, "another adapter of the same name");
    assert_ne!(other, answer);
}

/// What routers read of the blocks that are stored.
#[derive(Debug, Deserialize)]
#[serde(tag = "type")]
enum CacheEvent {
    BlockStored { parent_block_hash: Option<u64>, token_ids: Vec<u32>, lora_id: Option<u64>, lora_name: Option<String> },
    BlockRemoved {},
    AllBlocksCleared,
}

#[tokio::test(flavor = "multi_thread")]
async fn blocks_of_an_adapter_are_published_with_its_name() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let endpoint = format!("tcp://127.0.0.1:{port}");
    let [a, b] = [("a", "llama-a"), ("b", "llama-b")].map(|(name, path)| format!("{name}={}", adapter(path)));
    let server = start(&["--lora", &a, "--lora", &b, "--kv-events", &endpoint]).await;
    let mut socket = SubSocket::new();
    socket.connect(&endpoint).await.unwrap();
    socket.subscribe("").await.unwrap();
    tokio::time::sleep(Duration::from_millis(500)).await;
    let mut ids = Vec::new();
    for name in ["base", "a", "b"] {
        complete(&server, name, 20).await.unwrap();
        let (mut tokens, mut chains) = (0, 0);
        while let Ok(message) = tokio::time::timeout(Duration::from_millis(300), socket.recv()).await {
            let frames = message.unwrap().into_vec();
            let (_, events, _): (f64, Vec<CacheEvent>, usize) = rmp_serde::from_slice(&frames[2]).unwrap();
            for event in events {
                let CacheEvent::BlockStored { parent_block_hash, token_ids, lora_id, lora_name } = event else {
                    continue;
                };
                assert_eq!(lora_name.as_deref(), Some(name).filter(|name| *name != "base"));
                assert_eq!(lora_id.is_some(), lora_name.is_some());
                ids.extend(lora_id.filter(|id| !ids.contains(id)));
                tokens += token_ids.len();
                chains += usize::from(parent_block_hash.is_none());
            }
        }
        assert_eq!((tokens, chains), (80, 1), "{name}: the prompt has no other parent, and the answer follows it");
    }
    assert!(ids.len() == 2 && !ids.contains(&0), "{ids:?}");
}
