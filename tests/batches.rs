//! The Files and Batches APIs of OpenAI and the Message Batches API of Anthropic: every request of a batch has one answer, as a
//! client gets it, also after a crash; and other clients neither wait for batches nor see them.

#![allow(clippy::unwrap_used)]

mod common;
#[path = "support/server_process.rs"]
mod server_process;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{Method, Request, StatusCode};
use cuelight::api::{BatchOptions, ServerOptions};
use cuelight::pipeline::runtime::RuntimeOptions;
use cuelight::pipeline::simulation::SimulatedModel;
use cuelight::serving::batch::store::BatchStore;
use cuelight_engine::engine::EngineLimits;
use serde_json::{Value, json};
use tempfile::TempDir;

use common::{Answer, MODEL, Server, model, post};
use server_process::ServerProcess;

const FILES: &str = "/v1/files";
const BATCHES: &str = "/v1/batches";
const MESSAGE_BATCHES: &str = "/v1/messages/batches";
const CHAT: &str = "/v1/chat/completions";

/// Space for the files of a server.
const DISK: u64 = 8 << 20;

fn options(directory: &Path) -> ServerOptions {
    let store = BatchStore::open(directory, DISK).unwrap();
    ServerOptions { batches: Some(BatchOptions { store, parallel: 4 }), ..ServerOptions::new(MODEL) }
}

async fn start_in(directory: &TempDir, model: SimulatedModel) -> Server {
    Server::start_with(model, RuntimeOptions::default(), options(directory.path())).await
}

async fn start() -> (Server, TempDir) {
    let directory = tempfile::tempdir().unwrap();
    (start_in(&directory, model()).await, directory)
}

/// A model that computes one sequence at a time, slowly.
fn slow_model() -> SimulatedModel {
    let base = model();
    let limits = EngineLimits { max_sequences: 1, ..base.limits.clone() };
    SimulatedModel { limits, step_time: Duration::from_millis(2), ..base }
}

fn form(fields: &[(&str, &str)], file: Option<&str>) -> Request<Body> {
    let part =
        |head: String, content: &str| format!("--x\r\nContent-Disposition: form-data; {head}\r\n\r\n{content}\r\n");
    let mut body: String = fields.iter().map(|(name, value)| part(format!("name=\"{name}\""), value)).collect();
    if let Some(file) = file {
        body += &part("name=\"file\"; filename=\"requests.jsonl\"".to_owned(), file);
    }
    let request = Request::post(FILES).header("content-type", "multipart/form-data; boundary=x");
    request.body(Body::from(body + "--x--\r\n")).unwrap()
}

fn with_key(mut request: Request<Body>, key: &str) -> Request<Body> {
    request.headers_mut().insert("authorization", format!("Bearer {key}").parse().unwrap());
    request
}

fn empty(method: Method, path: &str) -> Request<Body> {
    Request::builder().method(method).uri(path).body(Body::empty()).unwrap()
}

async fn ok(server: &Server, request: Request<Body>) -> Value {
    let answer = server.call(request).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.text());
    answer.json()
}

fn lines(requests: &[Value]) -> String {
    requests.iter().map(|request| format!("{request}\n")).collect()
}

fn chat(number: usize, tokens: usize) -> Value {
    let message = json!({ "role": "user", "content": format!("question {number}") });
    json!({ "messages": [message], "max_tokens": tokens, "seed": number, "ignore_eos": true })
}

fn request(id: &str, url: &str, body: Value) -> Value {
    json!({ "custom_id": id, "method": "POST", "url": url, "body": body })
}

fn chats(count: usize, tokens: usize) -> String {
    lines(&(0..count).map(|number| request(&format!("r{number}"), CHAT, chat(number, tokens))).collect::<Vec<_>>())
}

/// Sends a file, and makes a batch of it.
async fn batch_of(server: &Server, file: &str, endpoint: &str) -> Value {
    let file = ok(server, form(&[("purpose", "batch")], Some(file))).await;
    let body = json!({ "input_file_id": file["id"], "endpoint": endpoint, "completion_window": "24h" });
    server.ok(BATCHES, &body).await
}

/// The object at a path, once `field` has one of the values.
async fn once(server: &Server, path: &str, field: &str, values: &[&str]) -> Value {
    for _ in 0..2000 {
        let object = ok(server, empty(Method::GET, path)).await;
        if values.contains(&object[field].as_str().unwrap()) {
            return object;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{path} does not reach {values:?}")
}

async fn ended(server: &Server, batch: &Value) -> Value {
    let path = format!("{BATCHES}/{}", batch["id"].as_str().unwrap());
    once(server, &path, "status", &["completed", "failed", "expired", "cancelled"]).await
}

/// The lines of a file by the ids of their requests.
async fn answers(server: &Server, file: &Value) -> HashMap<String, Value> {
    let answer = server.get(&format!("{FILES}/{}/content", file.as_str().unwrap())).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.text());
    by_id(&answer.text())
}

fn by_id(text: &str) -> HashMap<String, Value> {
    let values = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let by_id: HashMap<String, Value> =
        values.map(|line| (line["custom_id"].as_str().unwrap().to_owned(), line)).collect();
    assert_eq!(by_id.len(), text.lines().count(), "a request has two answers");
    by_id
}

fn error(answer: &Answer) -> String {
    answer.json()["error"]["message"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn answers_of_a_batch_are_those_of_direct_requests() {
    let (server, _directory) = start().await;
    let mut requests: Vec<Value> =
        (0..10).map(|number| request(&format!("r{number}"), CHAT, chat(number, 6))).collect();
    requests.push(request("wrong", CHAT, json!({ "messages": [], "temperature": "hot" })));
    let batch = batch_of(&server, &lines(&requests), CHAT).await;
    assert_eq!((&batch["object"], &batch["status"]), (&json!("batch"), &json!("validating")));
    let batch = ended(&server, &batch).await;
    assert_eq!(batch["status"], "completed");
    assert_eq!(batch["request_counts"], json!({ "total": 11, "completed": 10, "failed": 1 }));
    assert_eq!(batch["usage"]["output_tokens"], 60);
    assert!(batch["completed_at"].is_u64() && batch["cancelled_at"].is_null() && batch["errors"].is_null());
    let answers_of_batch = answers(&server, &batch["output_file_id"]).await;
    for number in 0..10 {
        let line = &answers_of_batch[&format!("r{number}")];
        let direct = server.ok(CHAT, &chat(number, 6)).await;
        assert_eq!((&line["response"]["status_code"], &line["error"]), (&json!(200), &Value::Null));
        assert_eq!(line["response"]["body"]["choices"], direct["choices"]);
    }
    let failed = answers(&server, &batch["error_file_id"]).await;
    assert_eq!(failed["wrong"]["response"]["status_code"], 400);
    assert!(failed["wrong"]["response"]["body"]["error"]["message"].is_string());
}

#[tokio::test]
async fn every_endpoint_is_answered_in_a_batch() {
    let (server, _directory) = start().await;
    for (endpoint, body, field) in [
        ("/v1/completions", json!({ "prompt": "once", "max_tokens": 4, "seed": 1 }), "choices"),
        ("/v1/embeddings", json!({ "input": ["a text", "another"] }), "data"),
        ("/v1/responses", json!({ "input": "hello", "max_output_tokens": 16, "store": false }), "object"),
        ("/v1/messages", message("a", json!({}))["params"].clone(), "type"),
    ] {
        let batch = batch_of(&server, &lines(&[request("a", endpoint, body.clone())]), endpoint).await;
        let batch = ended(&server, &batch).await;
        assert_eq!(batch["request_counts"], json!({ "total": 1, "completed": 1, "failed": 0 }), "{endpoint}");
        assert!(batch["usage"]["input_tokens"].as_u64().unwrap() > 0, "{batch}");
        let answer = answers(&server, &batch["output_file_id"]).await["a"]["response"]["body"].clone();
        assert_eq!(answer[field], server.ok(endpoint, &body).await[field], "{endpoint}");
        assert!(!answer[field].is_null());
    }
}

#[tokio::test]
async fn files_are_listed_shown_and_deleted() {
    let (server, directory) = start().await;
    let text = chats(2, 3);
    let file = ok(&server, form(&[("purpose", "batch"), ("expires_after[seconds]", "3600")], Some(&text))).await;
    assert_eq!((&file["object"], &file["bytes"]), (&json!("file"), &json!(text.len())));
    assert_eq!((&file["filename"], &file["purpose"]), (&json!("requests.jsonl"), &json!("batch")));
    assert_eq!(file["expires_at"].as_u64().unwrap() - file["created_at"].as_u64().unwrap(), 3600);
    let second = ok(&server, form(&[("purpose", "batch")], Some("{}"))).await;
    let list = ok(&server, empty(Method::GET, &format!("{FILES}?limit=1"))).await;
    assert_eq!((&list["data"], &list["has_more"]), (&json!([second]), &json!(true)));
    let none = ok(&server, empty(Method::GET, &format!("{FILES}?purpose=batch_output"))).await;
    assert_eq!(none["data"], json!([]));
    let path = format!("{FILES}/{}", file["id"].as_str().unwrap());
    assert_eq!(ok(&server, empty(Method::GET, &path)).await, file);
    assert_eq!(server.get(&format!("{path}/content")).await.text(), text);
    let deleted = ok(&server, empty(Method::DELETE, &path)).await;
    assert_eq!(deleted, json!({ "id": file["id"], "object": "file", "deleted": true }));
    let missing = server.get(&path).await;
    assert_eq!(missing.status, StatusCode::NOT_FOUND);
    assert!(error(&missing).contains("there is no file"));
    let left = std::fs::read_dir(directory.path().join("files")).unwrap().count();
    assert_eq!(left, 2, "the content and the record of one file");
}

#[tokio::test]
async fn a_wrong_upload_is_refused_and_leaves_nothing() {
    let (server, directory) = start().await;
    for (fields, file, expected) in [
        (&[("purpose", "fine-tune")][..], Some("{}"), "`purpose` must be \"batch\", not \"fine-tune\""),
        (&[], Some("{}"), "`purpose` is required"),
        (&[("purpose", "batch")], None, "`file` is required"),
    ] {
        let answer = server.call(form(fields, file)).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST);
        assert!(error(&answer).starts_with(expected), "{}", answer.text());
    }
    let large = "x".repeat(DISK as usize);
    let answer = server.call(form(&[("purpose", "batch")], Some(&large))).await;
    assert_eq!(answer.status, StatusCode::INSUFFICIENT_STORAGE, "{}", answer.text());
    assert_eq!(answer.headers["x-should-retry"], "false");
    assert!(error(&answer).contains("delete files"), "{}", answer.text());
    // What was taken is given back.
    ok(&server, form(&[("purpose", "batch")], Some(&large[..large.len() / 2]))).await;
    let unfinished = || {
        let entries = std::fs::read_dir(directory.path().join("files")).unwrap();
        entries.filter(|entry| entry.as_ref().unwrap().path().extension().unwrap() == "tmp").count()
    };
    for _ in 0..500 {
        if unfinished() == 0 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{} unfinished files are left", unfinished());
}

#[tokio::test]
async fn a_wrong_line_is_named() {
    let (server, _directory) = start().await;
    for (file, line, expected) in [
        (
            format!("{}{{\"custom_id\": 7}}\n", chats(1, 1)),
            json!(2),
            "line 2 is no request of this batch: invalid type",
        ),
        (
            "hello\n".to_owned(),
            json!(1),
            "line 1 is no request of this batch: it is not JSON: expected value at column 1",
        ),
        (chats(1, 1) + &chats(1, 1), json!(2), "the same custom_id \"r0\""),
        (lines(&[request("a", "/v1/embeddings", json!({}))]), json!(1), "the endpoint of the batch is"),
        ("\n".to_owned(), json!(null), "the file has no requests"),
    ] {
        let batch = ended(&server, &batch_of(&server, &file, CHAT).await).await;
        assert_eq!((&batch["status"], &batch["output_file_id"]), (&json!("failed"), &Value::Null));
        let problem = &batch["errors"]["data"][0];
        assert_eq!(problem["line"], line);
        assert!(problem["message"].as_str().unwrap().contains(expected), "{problem}");
    }
}

#[tokio::test]
async fn a_batch_is_cancelled() {
    let directory = tempfile::tempdir().unwrap();
    let server = start_in(&directory, slow_model()).await;
    let batch = batch_of(&server, &chats(60, 20), CHAT).await;
    let path = format!("{BATCHES}/{}", batch["id"].as_str().unwrap());
    loop {
        let counts = ok(&server, empty(Method::GET, &path)).await["request_counts"].clone();
        if counts["completed"].as_u64().unwrap() >= 2 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let input = format!("{FILES}/{}", batch["input_file_id"].as_str().unwrap());
    let in_use = server.call(empty(Method::DELETE, &input)).await;
    assert_eq!(in_use.status, StatusCode::CONFLICT, "{}", in_use.text());
    let cancelling = ok(&server, empty(Method::POST, &format!("{path}/cancel"))).await;
    assert_eq!(cancelling["status"], "cancelling");
    let batch = ended(&server, &batch).await;
    assert_eq!(batch["status"], "cancelled");
    let [completed, failed] = ["completed", "failed"].map(|name| batch["request_counts"][name].as_u64().unwrap());
    assert!(completed >= 2 && failed > 0 && completed + failed == 60, "{batch}");
    let unsent = answers(&server, &batch["error_file_id"]).await;
    assert!(unsent.values().all(|line| line["error"]["code"] == "batch_cancelled" && line["response"].is_null()));
    assert_eq!(answers(&server, &batch["output_file_id"]).await.len() as u64, completed);
    let again = server.call(empty(Method::POST, &format!("{path}/cancel"))).await;
    assert_eq!(again.status, StatusCode::BAD_REQUEST);
    server.settle().await;
}

#[tokio::test]
async fn other_clients_are_served_while_a_batch_runs() {
    let directory = tempfile::tempdir().unwrap();
    let server = start_in(&directory, slow_model()).await;
    let batch = batch_of(&server, &chats(40, 60), CHAT).await;
    let path = format!("{BATCHES}/{}", batch["id"].as_str().unwrap());
    once(&server, &path, "status", &["in_progress"]).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    for number in 0..3 {
        let before = ok(&server, empty(Method::GET, &path)).await["request_counts"]["completed"].as_u64().unwrap();
        server.ok(CHAT, &chat(100 + number, 10)).await;
        let after = ok(&server, empty(Method::GET, &path)).await["request_counts"]["completed"].as_u64().unwrap();
        assert!(after < 40 && after - before <= 2, "{} requests of the batch went first", after - before);
    }
    ok(&server, empty(Method::POST, &format!("{path}/cancel"))).await;
    ended(&server, &batch).await;
}

#[tokio::test]
async fn clients_with_other_keys_see_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let options = ServerOptions { api_keys: vec!["one".into(), "two".into()], ..options(directory.path()) };
    let server = Server::start_with(model(), RuntimeOptions::default(), options).await;
    let refused = server.call(form(&[("purpose", "batch")], Some("{}"))).await;
    assert_eq!(refused.status, StatusCode::UNAUTHORIZED);
    let file = ok(&server, with_key(form(&[("purpose", "batch")], Some(&chats(2, 3))), "one")).await;
    let body = json!({ "input_file_id": file["id"], "endpoint": CHAT, "completion_window": "24h" });
    let stolen = server.call(with_key(post(BATCHES, &body), "two")).await;
    assert_eq!(stolen.status, StatusCode::BAD_REQUEST);
    assert!(error(&stolen).starts_with("`input_file_id` must be the id of a file"), "{}", stolen.text());
    let batch = ok(&server, with_key(post(BATCHES, &body), "one")).await;
    let (file, batch) = (file["id"].as_str().unwrap(), batch["id"].as_str().unwrap());
    for (method, path) in [
        (Method::GET, format!("{FILES}/{file}")),
        (Method::GET, format!("{FILES}/{file}/content")),
        (Method::DELETE, format!("{FILES}/{file}")),
        (Method::GET, format!("{BATCHES}/{batch}")),
        (Method::POST, format!("{BATCHES}/{batch}/cancel")),
        (Method::GET, format!("{FILES}/..%2F..%2Flock")),
    ] {
        let answer = server.call(with_key(empty(method, &path), "two")).await;
        assert_eq!(answer.status, StatusCode::NOT_FOUND, "{path}");
    }
    for path in [FILES, BATCHES] {
        assert_eq!(ok(&server, with_key(empty(Method::GET, path), "two")).await["data"], json!([]));
        assert_eq!(ok(&server, with_key(empty(Method::GET, path), "one")).await["data"].as_array().unwrap().len(), 1);
    }
    // The key itself is not on the disk.
    let record = std::fs::read_to_string(directory.path().join(format!("files/{file}.json"))).unwrap();
    assert!(!record.contains("\"one\""), "{record}");
}

#[tokio::test]
async fn without_a_directory_nothing_is_kept() {
    let server = Server::start(model()).await;
    for (method, path) in [(Method::GET, FILES), (Method::GET, "/batches"), (Method::GET, MESSAGE_BATCHES)] {
        let answer = server.call(empty(method, path)).await;
        assert_eq!(answer.status, StatusCode::FORBIDDEN, "{path}");
        assert!(error(&answer).contains("start it with --batches DIR"), "{}", answer.text());
    }
}

#[tokio::test]
async fn a_restarted_server_continues() {
    let directory = tempfile::tempdir().unwrap();
    let server = start_in(&directory, slow_model()).await;
    let batch = batch_of(&server, &chats(30, 20), CHAT).await;
    let path = format!("{BATCHES}/{}", batch["id"].as_str().unwrap());
    while ok(&server, empty(Method::GET, &path)).await["request_counts"]["completed"].as_u64().unwrap() < 3 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    drop(server);
    let store = reopened(directory.path()).await;
    let first = output(directory.path());
    assert!(first.lines().count() < 30, "it was not interrupted");
    let options = ServerOptions { batches: Some(BatchOptions { store, parallel: 4 }), ..ServerOptions::new(MODEL) };
    let server = Server::start_with(model(), RuntimeOptions::default(), options).await;
    let batch = ended(&server, &batch).await;
    assert_eq!(batch["request_counts"], json!({ "total": 30, "completed": 30, "failed": 0 }));
    let all = server.get(&format!("{FILES}/{}/content", batch["output_file_id"].as_str().unwrap())).await.text();
    assert!(all.starts_with(&first), "requests were answered again");
    assert_eq!(by_id(&all).len(), 30);
}

/// The store of a server that has just been dropped.
async fn reopened(directory: &Path) -> Arc<BatchStore> {
    for _ in 0..500 {
        match BatchStore::open(directory, DISK) {
            Ok(store) => return store,
            Err(error) => assert!(error.to_string().contains("used by another process"), "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the directory is still in use")
}

/// The answers so far of the only batch of a directory.
fn output(directory: &Path) -> String {
    std::fs::read_to_string(output_path(directory)).unwrap_or_default()
}

fn output_path(directory: &Path) -> PathBuf {
    let record = std::fs::read_dir(directory.join("batches")).unwrap().next().unwrap().unwrap();
    let record: Value = serde_json::from_slice(&std::fs::read(record.path()).unwrap()).unwrap();
    directory.join(format!("files/{}.jsonl", record["output_file"].as_str().unwrap()))
}

/// A request of a model whose answers take a while.
fn completion(number: usize) -> Value {
    let prompt: Vec<usize> = (0..20).map(|at| 5 + (at * at + number) % 480).collect();
    let body = json!({ "prompt": prompt, "max_tokens": 60, "seed": 3, "ignore_eos": true });
    request(&format!("r{number}"), "/v1/completions", body)
}

async fn json_of(request: reqwest::RequestBuilder) -> Value {
    let response = request.send().await.unwrap();
    assert!(response.status().is_success(), "{}", response.text().await.unwrap());
    response.json().await.unwrap()
}

#[tokio::test]
async fn a_killed_server_continues_and_a_second_one_is_refused() {
    const COUNT: usize = 60;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().to_str().unwrap();
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/families/llama-q8_0.gguf");
    let http = reqwest::Client::new();
    let flags = ["--batches", path, "--max-seqs", "1"];
    let server = ServerProcess::start_model(&model, &flags).await;
    let requests = lines(&(0..COUNT).map(completion).collect::<Vec<_>>());
    let form = format!(
        "--x\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n--x\r\n\
         Content-Disposition: form-data; name=\"file\"; filename=\"a.jsonl\"\r\n\r\n{requests}\r\n--x--\r\n"
    );
    let upload = http.post(format!("{}{FILES}", server.url)).header("content-type", "multipart/form-data; boundary=x");
    let file = json_of(upload.body(form)).await;
    let new = json!({ "input_file_id": file["id"], "endpoint": "/v1/completions", "completion_window": "24h" });
    let batch = json_of(http.post(format!("{}{BATCHES}", server.url)).json(&new)).await;
    let second = std::process::Command::new(env!("CARGO_BIN_EXE_cuelight"))
        .args(["serve", model.to_str().unwrap(), "--port", "0", "--batches", path])
        .output()
        .unwrap();
    let message = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(!second.status.success() && message.contains("used by another process"), "{message}");
    while output(directory.path()).lines().count() < 3 {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    // With SIGKILL.
    drop(server);
    let first = output(directory.path());
    let whole = first.rfind('\n').map_or(0, |end| end + 1);
    assert!(first.lines().count() < COUNT, "it was not interrupted");
    // As after a crash in the middle of a write.
    let name = output_path(directory.path());
    std::fs::write(&name, format!("{}{{\"id\": \"batch_re", &first[..whole])).unwrap();
    let server = ServerProcess::start_model(&model, &flags).await;
    let id = batch["id"].as_str().unwrap();
    let batch = loop {
        let batch = json_of(http.get(format!("{}{BATCHES}/{id}", server.url))).await;
        if batch["status"] == "completed" {
            break batch;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    assert_eq!(batch["request_counts"], json!({ "total": COUNT, "completed": COUNT, "failed": 0 }));
    let (status, all) = server.get(&format!("{FILES}/{}/content", batch["output_file_id"].as_str().unwrap())).await;
    assert_eq!(status, 200, "{all}");
    assert!(all.starts_with(&first[..whole]), "requests were answered again");
    assert_eq!(by_id(&all).len(), COUNT);
    assert_eq!(server.metric("cuelight_batches").await, 1.0);
}

fn message(id: &str, params: Value) -> Value {
    let mut whole = json!({ "max_tokens": 5, "messages": [{ "role": "user", "content": "hello" }] });
    whole.as_object_mut().unwrap().extend(params.as_object().unwrap().clone());
    json!({ "custom_id": id, "params": whole })
}

#[tokio::test]
async fn messages_are_answered_in_batches() {
    let (server, directory) = start().await;
    let requests =
        json!([message("a", json!({})), message("b", json!({})), message("c", json!({ "temperature": -1 }))]);
    let batch = server.ok(MESSAGE_BATCHES, &json!({ "requests": requests })).await;
    assert_eq!((&batch["type"], &batch["processing_status"]), (&json!("message_batch"), &json!("in_progress")));
    assert_eq!((&batch["request_counts"]["processing"], &batch["results_url"]), (&json!(3), &Value::Null));
    let path = format!("{MESSAGE_BATCHES}/{}", batch["id"].as_str().unwrap());
    let batch = once(&server, &path, "processing_status", &["ended"]).await;
    let counts = json!({ "processing": 0, "succeeded": 2, "errored": 1, "canceled": 0, "expired": 0 });
    assert_eq!(batch["request_counts"], counts);
    assert_eq!(batch["results_url"], format!("{path}/results"));
    let results = by_id(&server.get(&format!("{path}/results")).await.text());
    assert_eq!(results["a"]["result"]["type"], "succeeded");
    assert_eq!(results["a"]["result"]["message"]["type"], "message");
    let tokens = results["a"]["result"]["message"]["usage"]["output_tokens"].as_u64().unwrap();
    assert!((1..=5).contains(&tokens), "{tokens}");
    let wrong = &results["c"]["result"];
    assert_eq!((&wrong["type"], &wrong["error"]["type"]), (&json!("errored"), &json!("error")));
    assert_eq!(wrong["error"]["error"]["type"], "invalid_request_error");
    let list = ok(&server, empty(Method::GET, MESSAGE_BATCHES)).await;
    assert_eq!((&list["data"], &list["has_more"]), (&json!([batch]), &json!(false)));
    // The other protocol does not show it.
    assert_eq!(ok(&server, empty(Method::GET, BATCHES)).await["data"], json!([]));
    assert_eq!(ok(&server, empty(Method::GET, FILES)).await["data"], json!([]));
    let deleted = ok(&server, empty(Method::DELETE, &path)).await;
    assert_eq!(deleted, json!({ "id": batch["id"], "type": "message_batch_deleted" }));
    let missing = server.get(&path).await;
    assert_eq!((missing.status, &missing.json()["error"]["type"]), (StatusCode::NOT_FOUND, &json!("not_found_error")));
    assert_eq!(std::fs::read_dir(directory.path().join("files")).unwrap().count(), 0);
}

#[tokio::test]
async fn a_batch_of_messages_is_cancelled_and_its_errors_have_the_form_of_the_protocol() {
    let directory = tempfile::tempdir().unwrap();
    let server = start_in(&directory, slow_model()).await;
    let refused = server.post(MESSAGE_BATCHES, &json!({ "requests": [{ "custom_id": "a" }] })).await;
    assert_eq!((refused.status, &refused.json()["type"]), (StatusCode::BAD_REQUEST, &json!("error")));
    assert!(error(&refused).starts_with("`requests[0].params` is required"), "{}", refused.text());
    let requests: Vec<Value> =
        (0..50).map(|number| message(&format!("r{number}"), json!({ "max_tokens": 60 }))).collect();
    let batch = server.ok(MESSAGE_BATCHES, &json!({ "requests": requests })).await;
    let path = format!("{MESSAGE_BATCHES}/{}", batch["id"].as_str().unwrap());
    let early = server.get(&format!("{path}/results")).await;
    assert_eq!((early.status, &early.json()["type"]), (StatusCode::BAD_REQUEST, &json!("error")));
    assert_eq!(server.call(empty(Method::DELETE, &path)).await.status, StatusCode::BAD_REQUEST);
    let cancelled = ok(&server, empty(Method::POST, &format!("{path}/cancel"))).await;
    assert_eq!(cancelled["processing_status"], "canceling");
    assert!(cancelled["cancel_initiated_at"].is_string());
    let batch = once(&server, &path, "processing_status", &["ended"]).await;
    assert!(batch["request_counts"]["canceled"].as_u64().unwrap() > 40, "{batch}");
    let results = by_id(&server.get(&format!("{path}/results")).await.text());
    assert_eq!(results.len(), 50);
    assert!(results.values().any(|line| line["result"] == json!({ "type": "canceled" })));
}
