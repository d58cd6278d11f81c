//! The program as a server of a real model, and a client that records when each piece of an answer arrives.
#![allow(dead_code, clippy::unwrap_used)]

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use reqwest::header::HeaderMap;
use serde_json::{Value, json};
use tokio::sync::MutexGuard;

/// One server at a time: two would disturb each other's measurements.
static MACHINE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// The model of these tests.
const MODEL_FILE: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";

/// Time limit of a request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(300);

/// A server that runs until it is stopped or dropped.
pub struct ServerProcess {
    child: Child,
    pub url: String,
    log: Arc<Mutex<Vec<String>>>,
    http: reqwest::Client,
    _machine: MutexGuard<'static, ()>,
}

/// The result of a request.
#[derive(Debug, Default)]
pub struct Answer {
    pub status: u16,
    pub headers: HeaderMap,
    pub sent: Option<Instant>,
    /// Arrival times of pieces with text; without streaming, that of the answer.
    pub pieces: Vec<Instant>,
    pub text: String,
    pub finish_reason: Option<String>,
    pub usage: Value,
    /// Whether the answer is complete: `[DONE]`, or a whole body.
    pub is_whole: bool,
    /// The error in a refusal's body or an error event.
    pub error: Value,
}

impl Answer {
    pub fn time_to_first_token(&self) -> Duration {
        self.pieces[0] - self.sent.unwrap()
    }

    pub fn gaps(&self) -> Vec<f64> {
        gaps(&self.pieces)
    }

    /// Panics unless this is a complete answer, or a refusal with Retry-After.
    #[track_caller]
    pub fn assert_answered_or_refused(&self) {
        match self.status {
            200 => assert!(self.is_whole && self.error.is_null(), "{self:?}"),
            429 | 503 => {
                let seconds: u64 = self.headers["retry-after"].to_str().unwrap().parse().unwrap();
                let milliseconds: u64 = self.headers["retry-after-ms"].to_str().unwrap().parse().unwrap();
                assert!(seconds >= 1 && milliseconds >= 1 && milliseconds <= seconds * 1000, "{self:?}");
            }
            _ => panic!("{self:?}"),
        }
    }

    /// The Retry-After time of a refusal.
    pub fn pause(&self) -> Duration {
        let milliseconds = self.headers.get("retry-after-ms").and_then(|value| value.to_str().ok()?.parse().ok());
        Duration::from_millis(milliseconds.unwrap_or(0))
    }
}

/// Milliseconds between times.
pub fn gaps(times: &[Instant]) -> Vec<f64> {
    times.windows(2).map(|pair| (pair[1] - pair[0]).as_secs_f64() * 1e3).collect()
}

/// A quantile of the values.
pub fn percentile(values: &[f64], quantile: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    assert!(!sorted.is_empty(), "nothing was measured");
    sorted[((sorted.len() - 1) as f64 * quantile).round() as usize]
}

pub fn median(values: &[f64]) -> f64 {
    percentile(values, 0.5)
}

/// A pseudo-random number from a seed: the SplitMix64 finalizer (Steele et al. 2014).
pub fn random(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// A text of about `tokens` tokens, different for each seed.
pub fn text(tokens: usize, seed: u64) -> String {
    const WORDS: [&str; 16] = [
        "time", "work", "life", "case", "week", "hand", "place", "fact", "side", "home", "word", "city", "line",
        "area", "idea", "form",
    ];
    let word = |index: usize| WORDS[random(seed ^ (index as u64) << 20) as usize % WORDS.len()];
    (0..tokens).map(word).collect::<Vec<_>>().join(" ")
}

/// A chat request whose answer has exactly `tokens` tokens.
pub fn chat(prompt: &str, tokens: usize) -> Value {
    conversation(json!([{ "role": "user", "content": prompt }]), tokens)
}

pub fn conversation(messages: Value, tokens: usize) -> Value {
    json!({ "model": "default", "messages": messages, "max_tokens": tokens, "ignore_eos": true, "temperature": 0 })
}

/// A client that does not use a connection again which the server may be closing: one that was opened but not used is closed
/// after the time for headers, 10 s.
fn client() -> reqwest::Client {
    reqwest::Client::builder().pool_idle_timeout(Duration::from_secs(5)).build().unwrap()
}

impl ServerProcess {
    /// Starts it with real weights and these flags, and waits until it is ready.
    pub async fn start(flags: &[&str]) -> Self {
        let folder = std::env::var_os("CUELIGHT_TEST_MODELS");
        let folder = folder.expect("CUELIGHT_TEST_MODELS names the folder with the files of tests/fetch_models.py");
        Self::start_model(&PathBuf::from(folder).join(MODEL_FILE), flags).await
    }

    /// Starts it with a model and these flags, and waits until it is ready.
    pub async fn start_model(model: &Path, flags: &[&str]) -> Self {
        Self::start_model_in(model, flags, &[]).await
    }

    /// The same with environment variables; the program gets only these and HOME.
    pub async fn start_model_in(model: &Path, flags: &[&str], variables: &[(&str, &str)]) -> Self {
        let machine = MACHINE.lock().await;
        let mut command = Command::new(env!("CARGO_BIN_EXE_cuelight"));
        command.arg("serve").arg(model).args(["--port", "0"]).args(flags);
        command.env_clear().env("HOME", env!("CARGO_TARGET_TMPDIR")).env("CUELIGHT_CALIBRATE", "off");
        command.envs(variables.iter().copied());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (url, log) = listen(&mut child).await;
        ServerProcess { child, url, log, http: client(), _machine: machine }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its standard error so far.
    pub fn log(&self) -> String {
        self.log.lock().unwrap().join("\n")
    }

    /// Sends SIGTERM, as an init system does.
    pub fn terminate(&self) {
        assert!(Command::new("kill").args(["-TERM", &self.pid().to_string()]).status().unwrap().success());
    }

    /// Its exit status; panics if it does not exit in time.
    pub async fn ended(&mut self, within: Duration) -> ExitStatus {
        let end = Instant::now() + within;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < end, "it still runs:\n{}", self.log());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    pub async fn get(&self, path: &str) -> (u16, String) {
        let response = self.http.get(format!("{}{path}", self.url)).send().await.unwrap();
        (response.status().as_u16(), response.text().await.unwrap())
    }

    /// A metric, summed over its labels.
    pub async fn metric(&self, name: &str) -> f64 {
        let (status, text) = self.get("/metrics").await;
        assert_eq!(status, 200, "{text}");
        let values = text.lines().filter_map(|line| {
            let (found, rest) = line.split_at(line.find(['{', ' '])?);
            (found == name).then(|| rest.rsplit(' ').next()?.parse::<f64>().ok())?
        });
        let values: Vec<f64> = values.collect();
        assert!(!values.is_empty(), "there is no {name} in\n{text}");
        values.iter().sum()
    }

    /// Requests running, requests waiting, and KV blocks in use.
    pub async fn occupancy(&self) -> [f64; 3] {
        let (running, waiting) = (self.metric("cuelight_requests_running"), self.metric("cuelight_requests_waiting"));
        [running.await, waiting.await, self.metric("cuelight_kv_blocks_used").await]
    }

    /// Waits until no request is in flight and no KV block is in use.
    #[track_caller]
    pub fn assert_empties(&self, within: Duration) -> impl Future<Output = ()> {
        let end = Instant::now() + within;
        async move {
            loop {
                let occupancy = self.occupancy().await;
                if occupancy == [0.0; 3] {
                    return;
                }
                assert!(Instant::now() < end, "running, waiting, blocks: {occupancy:?}");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    }

    /// Makes the next step fail (`actors/pipeline/faults.rs`), in a build with the feature `fault-injection`.
    pub async fn fault(&self, kind: &str) {
        let url = format!("{}/debug/fault", self.url);
        let answer = self.http.post(url).json(&json!({ "kind": kind })).send().await.unwrap();
        assert_eq!(answer.status(), 204);
    }

    /// Resident memory in MiB.
    pub fn resident_mib(&self) -> f64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<f64>().unwrap() / 1024.0
    }

    /// Sends a request without streaming.
    pub async fn call(&self, body: &Value) -> Answer {
        let call = async {
            let (response, mut answer) = self.begin(body, None).await;
            let body: Value = response.json().await.unwrap();
            answer.pieces.push(Instant::now());
            answer.text = body["choices"][0]["message"]["content"].as_str().unwrap_or_default().to_owned();
            answer.finish_reason = body["choices"][0]["finish_reason"].as_str().map(str::to_owned);
            answer.is_whole = answer.status == 200;
            answer.usage = body["usage"].clone();
            answer.error = body["error"].clone();
            answer
        };
        tokio::time::timeout(REQUEST_TIMEOUT, call).await.expect("the request ends in time")
    }

    /// Sends a streaming request.
    pub async fn stream(&self, body: &Value) -> Answer {
        self.stream_while(body, |_| true).await
    }

    /// Sends a streaming request, and disconnects when `continues` returns false.
    pub async fn stream_while(&self, body: &Value, continues: impl FnMut(&Answer) -> bool) -> Answer {
        self.stream_with_key(body, None, continues).await
    }

    /// The same with an API key.
    pub async fn stream_with_key(
        &self,
        body: &Value,
        key: Option<&str>,
        continues: impl FnMut(&Answer) -> bool,
    ) -> Answer {
        let mut body = body.clone();
        body["stream"] = json!(true);
        body["stream_options"] = json!({ "include_usage": true });
        tokio::time::timeout(REQUEST_TIMEOUT, self.read_stream(&body, key, continues))
            .await
            .expect("the stream ends in time")
    }

    async fn begin(&self, body: &Value, key: Option<&str>) -> (reqwest::Response, Answer) {
        let request = self.http.post(format!("{}/v1/chat/completions", self.url)).json(body);
        let request = key.into_iter().fold(request, |request, key| request.bearer_auth(key));
        let sent = Some(Instant::now());
        let response = request.send().await.unwrap();
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        (response, Answer { status, headers, sent, ..Answer::default() })
    }

    async fn read_stream(&self, body: &Value, key: Option<&str>, mut continues: impl FnMut(&Answer) -> bool) -> Answer {
        let (mut response, mut answer) = self.begin(body, key).await;
        if answer.status != 200 {
            answer.error = response.json::<Value>().await.unwrap()["error"].clone();
            return answer;
        }
        let mut pending = Vec::new();
        while let Some(bytes) = response.chunk().await.unwrap_or(None) {
            pending.extend_from_slice(&bytes);
            while let Some(end) = pending.iter().position(|&byte| byte == b'\n') {
                let line: Vec<u8> = pending.drain(..=end).collect();
                let Some(data) = line.strip_prefix(b"data: ") else { continue };
                answer.add_event(data.trim_ascii());
                if !continues(&answer) {
                    return answer;
                }
            }
        }
        answer
    }
}

impl Answer {
    /// Adds one event of a stream.
    fn add_event(&mut self, data: &[u8]) {
        if data == b"[DONE]" {
            self.is_whole = true;
            return;
        }
        let chunk: Value = serde_json::from_slice(data).unwrap();
        let choice = &chunk["choices"][0];
        if let Some(text) = choice["delta"]["content"].as_str().filter(|text| !text.is_empty()) {
            self.pieces.push(Instant::now());
            self.text.push_str(text);
        }
        if let Some(reason) = choice["finish_reason"].as_str() {
            self.finish_reason = Some(reason.to_owned());
        }
        if chunk["usage"].is_object() {
            self.usage = chunk["usage"].clone();
        }
        if chunk["error"].is_object() {
            self.error = chunk["error"].clone();
        }
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Collects the server's standard error, and waits until the server is ready.
///
/// Returns its address.
async fn listen(child: &mut Child) -> (String, Arc<Mutex<Vec<String>>>) {
    let log = Arc::new(Mutex::new(Vec::new()));
    let lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let (ready, url) = tokio::sync::oneshot::channel();
    let lines_read = log.clone();
    std::thread::spawn(move || {
        let mut ready = Some(ready);
        for line in lines.map_while(Result::ok) {
            if line.starts_with("ready: ")
                && let (Some(ready), Some((_, url))) = (ready.take(), line.rsplit_once(' '))
            {
                let _ = ready.send(url.to_owned());
            }
            lines_read.lock().unwrap().push(line);
        }
    });
    let url = tokio::time::timeout(Duration::from_secs(60), url).await;
    match url {
        Ok(Ok(url)) => (url, log),
        _ => panic!("it is not ready:\n{}", log.lock().unwrap().join("\n")),
    }
}
