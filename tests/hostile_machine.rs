//! The server keeps serving when its log cannot be written, when descriptors run out, and when signals arrive.
#![cfg(unix)]
#![allow(clippy::unwrap_used)]

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

const LONG: Duration = Duration::from_secs(60);

/// The program as a server on `port`, killed when this is dropped.
struct Serving {
    child: Child,
    port: u16,
    _home: tempfile::TempDir,
}

/// A port that was free a moment ago.
fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

impl Serving {
    /// Starts the program after the shell commands of `prepare`.
    fn spawn(prepare: &str, flags: &[&str], stderr: Stdio) -> Self {
        let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/families/llama.gguf");
        let (home, port) = (tempfile::tempdir().unwrap(), free_port());
        let mut command = Command::new("sh");
        let script = format!("{prepare} exec \"$0\" serve \"$@\"");
        command.args(["-c", &script, env!("CARGO_BIN_EXE_cuelight")]).arg(model).args(flags);
        command.args(["--port", &port.to_string()]).env_clear().env("HOME", home.path());
        command.env("CUELIGHT_CALIBRATE", "off");
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(stderr).spawn().unwrap();
        Serving { child, port, _home: home }
    }

    fn start(prepare: &str, flags: &[&str], stderr: Stdio) -> Self {
        let serving = Self::spawn(prepare, flags, stderr);
        serving.wait_ready();
        serving
    }

    fn wait_ready(&self) {
        let end = Instant::now() + LONG;
        while self.get("/ready").is_none_or(|answer| !answer.starts_with("HTTP/1.1 200")) {
            assert!(Instant::now() < end, "it is never ready");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn connect(&self) -> Option<TcpStream> {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).ok()?;
        stream.set_read_timeout(Some(LONG)).unwrap();
        Some(stream)
    }

    /// The answer to a request on a connection of its own. `None` when there is none.
    fn send(&self, request: &str) -> Option<String> {
        let mut stream = self.connect()?;
        stream.write_all(request.as_bytes()).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        (!answer.is_empty()).then_some(answer)
    }

    fn get(&self, path: &str) -> Option<String> {
        self.send(&format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"))
    }

    fn complete(&self, body: &str, headers: &str) -> Option<String> {
        self.send(&format!(
            "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n\
             {headers}content-length: {}\r\n\r\n{body}",
            body.len()
        ))
    }

    #[track_caller]
    fn assert_loses_log_lines(&self) {
        let end = Instant::now() + LONG;
        while self.metric("cuelight_log_lines_lost_total") == 0.0 {
            assert!(Instant::now() < end, "no lost line is counted");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    #[track_caller]
    fn assert_completes(&self, times: usize) {
        for index in 0..times {
            let answer = self.complete(r#"{"prompt": "a", "max_tokens": 1}"#, "").unwrap();
            assert!(answer.starts_with("HTTP/1.1 200"), "request {index}: {answer}");
        }
    }

    fn metric(&self, name: &str) -> f64 {
        let text = self.get("/metrics").unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')).unwrap();
        line.parse().unwrap()
    }

    fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args([name, &pid]).status().unwrap().success());
    }

    fn ended(&mut self, within: Duration) -> ExitStatus {
        let end = Instant::now() + within;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < end, "it still runs");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_log_whose_reader_has_gone_does_not_stop_the_server() {
    let mut serving = Serving::spawn("", &["--log-level", "debug"], Stdio::piped());
    let mut log = BufReader::new(serving.child.stderr.take().unwrap());
    let mut line = String::new();
    log.read_line(&mut line).unwrap();
    drop(log);
    serving.wait_ready();
    serving.assert_completes(50);
    serving.assert_loses_log_lines();
    serving.signal("-TERM");
    assert!(serving.ended(LONG).success());
}

#[test]
fn a_log_that_is_not_read_does_not_stop_the_server() {
    // Longer than the pipe's buffer.
    let mut serving = Serving::start("", &["--log-level", "trace"], Stdio::piped());
    serving.assert_completes(150);
    serving.signal("-TERM");
    assert!(serving.ended(LONG).success());
}

#[test]
fn a_log_on_a_full_disk_does_not_stop_the_server() {
    let full = File::options().write(true).open("/dev/full").unwrap();
    let mut serving = Serving::start("", &[], full.into());
    serving.assert_completes(50);
    serving.assert_loses_log_lines();
    serving.signal("-TERM");
    assert!(serving.ended(LONG).success());
}

#[test]
fn idle_connections_do_not_use_up_the_descriptors() {
    let serving = Serving::start("ulimit -n 256;", &[], Stdio::null());
    let idle: Vec<_> = (0..300).map(|_| serving.connect()).collect();
    assert!(idle.iter().flatten().count() > 200);
    assert!(serving.get("/health").unwrap().starts_with("HTTP/1.1 200"));
    serving.assert_completes(3);
}

#[test]
fn too_few_descriptors_are_reported_at_the_start() {
    let mut serving = Serving::spawn("ulimit -n 40;", &[], Stdio::piped());
    assert_eq!(serving.ended(LONG).code(), Some(1));
    let mut log = String::new();
    serving.child.stderr.take().unwrap().read_to_string(&mut log).unwrap();
    assert!(log.contains("may open only 40 files") && log.contains("ulimit -n"), "{log}");
}

#[test]
fn a_limit_on_memory_is_reported_at_the_start() {
    let mut serving = Serving::spawn("ulimit -v 1500000;", &["--kv-memory", "1600MiB"], Stdio::piped());
    assert_eq!(serving.ended(LONG).code(), Some(1));
    let mut log = String::new();
    serving.child.stderr.take().unwrap().read_to_string(&mut log).unwrap();
    assert!(log.contains("does not give this process 1.6 GiB") && log.contains("smaller --kv-memory"), "{log}");
}

#[test]
fn a_hangup_reloads_the_keys() {
    let mut keys = tempfile::NamedTempFile::new().unwrap();
    writeln!(keys, "first").unwrap();
    let path = keys.path().to_str().unwrap().to_owned();
    let serving = Serving::start("", &["--api-key-file", &path], Stdio::null());
    let body = r#"{"prompt": "a", "max_tokens": 1}"#;
    let accepts = |key: &str| {
        let answer = serving.complete(body, &format!("x-api-key: {key}\r\n")).unwrap();
        answer.starts_with("HTTP/1.1 200")
    };
    assert!(accepts("first") && !accepts("second"));
    std::fs::write(&path, "second\n").unwrap();
    serving.signal("-HUP");
    let end = Instant::now() + LONG;
    while !accepts("second") {
        assert!(Instant::now() < end, "the keys were not reloaded");
    }
    assert!(!accepts("first"));
    // A wrong configuration is not applied.
    std::fs::write(&path, "").unwrap();
    serving.signal("-HUP");
    std::thread::sleep(Duration::from_millis(300));
    assert!(accepts("second"));
}

#[test]
fn a_second_signal_ends_the_server_at_once() {
    let mut serving = Serving::start("", &["--drain-timeout", "10m"], Stdio::null());
    let mut stream = serving.connect().unwrap();
    let body = r#"{"prompt": "a", "max_tokens": 100000, "ignore_eos": true, "stream": true}"#;
    let request = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).unwrap();
    assert!(stream.read(&mut [0; 16]).unwrap() > 0);
    serving.signal("-TERM");
    std::thread::sleep(Duration::from_millis(300));
    serving.signal("-TERM");
    serving.ended(Duration::from_secs(5));
}
