//! The program `cuelight bench serve` against servers on real sockets: one with a simulated model, and faulty ones.

#![allow(clippy::unwrap_used)]

mod common;

use std::process::{ExitStatus, Stdio};
use std::sync::atomic::Ordering;
use std::time::Duration;

use common::listening::Listening;
use common::{MODEL, model};
use cuelight::api::ServerOptions;
use cuelight::pipeline::runtime::RuntimeOptions;
use cuelight::pipeline::simulation::SimulatedModel;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::process::Command;

struct Ran {
    status: ExitStatus,
    stdout: String,
    stderr: String,
}

impl Ran {
    /// The only round of the only server.
    fn round(&self) -> Value {
        let report: Value = serde_json::from_str(&self.stdout).unwrap_or_else(|_| panic!("{}", self.stderr));
        report["servers"][0]["rounds"][0].clone()
    }

    #[track_caller]
    fn assert_refused(&self, code: i32, words: &[&str]) {
        assert_eq!(self.status.code(), Some(code), "{}", self.stderr);
        let error = self.stderr.lines().find(|line| line.starts_with("error: ")).unwrap_or_default();
        for word in words {
            assert!(error.contains(word), "{word:?} is not in: {}", self.stderr);
        }
    }
}

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cuelight"));
    command.args(["bench", "serve"]).args(arguments).env_clear().env("HOME", env!("CARGO_TARGET_TMPDIR"));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    command
}

async fn bench(arguments: &[&str]) -> Ran {
    let output = tokio::time::timeout(Duration::from_secs(60), command(arguments).output()).await;
    let output = output.expect("the program ends in time").unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Ran { status: output.status, stdout: text(output.stdout), stderr: text(output.stderr) }
}

/// A model with a step time, so that latencies are not 0.
fn slow() -> SimulatedModel {
    SimulatedModel { step_time: Duration::from_millis(2), ..model() }
}

async fn listening() -> Listening {
    Listening::start(slow(), ServerOptions::new(MODEL)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_closed_loop_sends_the_requested_load_and_counts_answers() {
    let server = listening().await;
    let wanted = ["-c", "4", "-n", "20", "--prompt-tokens", "100", "--output-tokens", "12", "-o", "json", "--detail"];
    let ran = bench(&[&[server.url.as_str()], &wanted[..], &["--goodput", "ttft:60000"]].concat()).await;
    assert!(ran.status.success(), "{}", ran.stderr);
    let round = ran.round();
    assert_eq!((&round["succeeded"], &round["failed"]), (&json!(20), &json!(0)));
    assert_eq!((&round["output_tokens"], &round["counted_by_server"]), (&json!(240), &json!(true)));
    assert_eq!(round["peak_concurrency"], 4);
    assert_eq!(round["goodput"]["share"], 1.0);
    assert_eq!(round["schedule_delay_ms"], Value::Null);
    let requests = round["requests"].as_array().unwrap();
    assert_eq!(requests.len(), 20);
    for request in requests {
        // A word has five tokens in this tokenizer.
        let prompt_tokens = request["prompt_tokens"].as_i64().unwrap();
        assert!((prompt_tokens - 100).abs() <= 3, "{request}");
        assert_eq!(request["output_tokens"], 12);
        assert!(request["ttft_ms"].as_f64() < request["e2e_ms"].as_f64(), "{request}");
    }
    let (ttft, e2e) = (&round["ttft_ms"], &round["e2e_ms"]);
    assert!(ttft["p50"].as_f64() <= ttft["p95"].as_f64() && ttft["p95"].as_f64() <= e2e["max"].as_f64());
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_open_loop_keeps_its_rate() {
    let server = listening().await;
    let wanted = ["--rate", "50", "--duration", "1", "--prompt-tokens", "20-60", "--output-tokens", "2-6"];
    let ran = bench(&[&[server.url.as_str()], &wanted[..], &["--seed", "3", "-o", "json"]].concat()).await;
    let round = ran.round();
    let sent = round["succeeded"].as_u64().unwrap() + round["failed"].as_u64().unwrap();
    assert!((30..=70).contains(&sent), "{sent} requests were sent in a second");
    assert_eq!(round["schedule_delay_ms"]["count"], json!(sent));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unstreamed_answers_and_text_completions_are_measured() {
    let server = listening().await;
    let wanted =
        ["-n", "4", "--prompt-tokens", "39", "--output-tokens", "5", "-o", "json", "--endpoint", "completions"];
    let whole = bench(&[&[server.url.as_str()], &wanted[..], &["--no-stream"]].concat()).await.round();
    assert_eq!(
        (&whole["succeeded"], &whole["output_tokens"], &whole["prompt_tokens"]),
        (&json!(4), &json!(20), &json!(156))
    );
    assert_eq!((&whole["ttft_ms"], &whole["itl_ms"]), (&Value::Null, &Value::Null));
    let streamed = bench(&[&[server.url.as_str()], &wanted[..]].concat()).await.round();
    assert_eq!(streamed["ttft_ms"]["count"], 4);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn refusals_are_counted_with_and_without_retry_after() {
    let limited = RuntimeOptions { max_requests: 1, ..RuntimeOptions::default() };
    let one_at_a_time = SimulatedModel { step_time: Duration::from_millis(5), ..model() };
    let server = Listening::start_with(one_at_a_time, limited, ServerOptions::new(MODEL)).await;
    let wanted = ["--rate", "1000", "-n", "60", "--prompt-tokens", "40", "--output-tokens", "100", "-o", "json"];
    let ran = bench(&[&[server.url.as_str()], &wanted[..]].concat()).await;
    assert!(ran.status.success(), "some were answered: {}", ran.stderr);
    let round = ran.round();
    assert!(round["failed"].as_u64() > Some(0));
    assert_eq!(round["failures"][0]["kind"], "HTTP 429 with Retry-After");
    assert_eq!(round["failures"].as_array().unwrap().len(), 1, "{round}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn several_servers_alternate_and_share_a_table() {
    let (first, second) = (listening().await, listening().await);
    let file = tempfile::NamedTempFile::new().unwrap();
    let wanted = ["-n", "4", "--prompt-tokens", "40", "--output-tokens", "5", "--rounds", "3", "--output-file"];
    let path = file.path().to_str().unwrap();
    let ran = bench(&[&[first.url.as_str(), &second.url], &wanted[..], &[path]].concat()).await;
    assert!(ran.status.success(), "{}", ran.stderr);
    for words in ["[2]/[1]", "3 rounds", &first.url, &second.url] {
        assert!(ran.stdout.contains(words), "{words}: {}", ran.stdout);
    }
    let report: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let rounds: Vec<usize> =
        report["servers"].as_array().unwrap().iter().map(|server| server["rounds"].as_array().unwrap().len()).collect();
    assert_eq!(rounds, [3, 3]);
    first.stop().await;
    second.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ctrl_c_prints_the_results_so_far() {
    let model = slow();
    let counters = model.counters.clone();
    let server = Listening::start(model, ServerOptions::new(MODEL)).await;
    let wanted = ["-c", "2", "--duration", "600", "--prompt-tokens", "40", "--output-tokens", "5"];
    let child = command(&[&[server.url.as_str()], &wanted[..]].concat()).spawn().unwrap();
    // Far more steps than calibration and warm-up need.
    while counters.steps.load(Ordering::Relaxed) < 200 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let pid = child.id().unwrap().to_string();
    assert!(std::process::Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    let output = child.wait_with_output().await.unwrap();
    assert_eq!(output.status.code(), Some(130));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("answered") && text.contains("ttft"), "{text}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_are_one_clear_sentence() {
    let locked = ServerOptions { api_keys: vec!["right".into()], ..ServerOptions::new(MODEL) };
    let server = Listening::start(model(), locked).await;
    let url = server.url.as_str();
    bench(&[url]).await.assert_refused(1, &["/v1/models", "needs an --api-key"]);
    bench(&[url, "--api-key", "wrong"]).await.assert_refused(1, &["needs another --api-key"]);
    let right = [url, "--api-key", "right"];
    bench(&[&right[..], &["--model", "nope"]].concat()).await.assert_refused(1, &["404", "`nope` does not exist"]);
    bench(&[&right[..], &["--prompt-tokens", "9999"]].concat()).await.assert_refused(1, &["400", "context"]);
    bench(&[&format!("{url}/elsewhere")]).await.assert_refused(1, &["needs an --api-key"]);
    bench(&["http://127.0.0.1:1"]).await.assert_refused(1, &["no server answers at http://127.0.0.1:1", "refused"]);
    bench(&["127.0.0.1:1/v1"]).await.assert_refused(1, &["no server answers at http://127.0.0.1:1"]);
    bench(&["ftp://127.0.0.1"]).await.assert_refused(2, &["http://127.0.0.1:8080"]);
    bench(&[url, "--prompt-tokens", "9-3"]).await.assert_refused(2, &["64-512"]);
    bench(&[url, "-c", "2", "--rate", "2"]).await.assert_refused(2, &["--rate"]);
    bench(&[url, "--goodput", "speed:2"]).await.assert_refused(2, &["ttft:500"]);
    bench(&[url, "--output-file", "/nowhere/x.json"]).await.assert_refused(1, &["cannot write /nowhere/x.json"]);
    server.stop().await;
}

#[test]
fn a_model_named_serve_is_measured_by_its_path() {
    let run = |arguments: &[&str]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_cuelight"));
        let output = command.arg("bench").args(arguments).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (code, error) = run(&["./serve"]);
    assert!(code == Some(1) && error.contains("no such file: ./serve"), "{error}");
    let (code, error) = run(&["serve"]);
    assert!(code == Some(2) && error.contains("<URL>"), "{error}");
    let (code, error) = run(&[]);
    assert!(code == Some(2) && error.contains("<MODEL>"), "{error}");
}

/// A server that answers every request with these bytes and closes the connection, or if the answer does not announce that, when
/// the next request arrives on it; `None` never answers.
async fn faulty_server(answer: impl Fn(bool) -> Option<String> + Send + Sync + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let answer = std::sync::Arc::new(answer);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let answer = answer.clone();
            tokio::spawn(async move {
                // The requests of these tests fit into one read.
                let mut request = vec![0; 65536];
                let length = stream.read(&mut request).await.unwrap_or(0);
                let wants_stream = String::from_utf8_lossy(&request[..length]).contains("\"stream\":true");
                match answer(wants_stream) {
                    Some(answer) => {
                        let _ = stream.write_all(answer.as_bytes()).await;
                        if !answer.contains("connection: close") {
                            let _ = stream.read(&mut request).await;
                        }
                    }
                    None => std::future::pending().await,
                }
            });
        }
    });
    url
}

const UNSTREAMED: &str = r#"{"choices":[{"message":{"content":"a"},"finish_reason":"length"}]}"#;

fn ok(kind: &str, body: &str) -> String {
    format!("HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\nconnection: close\r\n\r\n{body}")
}

/// The result, and the kind of the first failure, for a server that streams this text and answers calibration correctly.
async fn failure_of(stream: &'static str) -> (Ran, String) {
    let url = faulty_server(move |wants_stream| {
        Some(if wants_stream { ok("text/event-stream", stream) } else { ok("application/json", UNSTREAMED) })
    });
    let url = url.await;
    let ran = bench(&[&url, "--model", "m", "-n", "2", "--warmup", "0", "-o", "json", "--prompt-tokens", "8"]).await;
    let kind = ran.round()["failures"][0]["kind"].as_str().unwrap_or("none").to_owned();
    (ran, kind)
}

#[tokio::test(flavor = "multi_thread")]
async fn broken_answers_are_counted_by_kind() {
    for (stream, kind) in [
        ("data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n", "disconnected"),
        (
            "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\ndata: {\"error\":{\"message\":\"lost\"}}\n\n",
            "error in the stream",
        ),
        ("data: <html>\n\n", "unreadable answer"),
        ("data: [DONE]\n\n", "empty answer"),
    ] {
        let (ran, counted) = failure_of(stream).await;
        assert_eq!(counted, kind, "{}", ran.stderr);
        ran.assert_refused(1, &["no request was answered"]);
    }
    let chunk = "data: {\"choices\":[{\"delta\":{\"content\":\"a\"},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n";
    let (ran, _) = failure_of(chunk).await;
    assert_eq!((&ran.round()["succeeded"], &ran.round()["output_tokens"]), (&json!(2), &json!(2)));
    assert!(ran.stderr.contains("does not report token counts"), "{}", ran.stderr);
}

/// llama-server does so: every second request on a connection would break off.
#[tokio::test(flavor = "multi_thread")]
async fn connections_that_close_after_an_answer_break_no_request() {
    const CHUNK: &str =
        "data: {\"choices\":[{\"delta\":{\"content\":\"a\"},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n";
    let url = faulty_server(|wants_stream| {
        let (kind, body) = if wants_stream { ("text/event-stream", CHUNK) } else { ("application/json", UNSTREAMED) };
        Some(format!("HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: {}\r\n\r\n{body}", body.len()))
    });
    let url = url.await;
    let wanted = ["--model", "m", "-n", "8", "-c", "2", "--warmup", "0", "-o", "json", "--prompt-tokens", "8"];
    let ran = bench(&[&[url.as_str()], &wanted[..]].concat()).await;
    assert_eq!(ran.round()["succeeded"], 8, "{}", ran.stderr);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_to_a_silent_server_times_out() {
    let url = faulty_server(|wants_stream| (!wants_stream).then(|| ok("application/json", UNSTREAMED))).await;
    let wanted = ["--model", "m", "-n", "2", "--warmup", "0", "-o", "json", "--timeout", "0.3"];
    let ran = bench(&[&[url.as_str()], &wanted[..]].concat()).await;
    assert_eq!(ran.round()["failures"][0]["kind"], "timed out");
    let html = faulty_server(|_| Some(ok("text/html", "<html>"))).await;
    bench(&[&html]).await.assert_refused(1, &["/v1/models", "invalid response"]);
}
