//! The program `cuelight compare` with peers that are shell scripts.

#![cfg(unix)]
#![allow(clippy::unwrap_used)]

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// Prints llama-bench's JSON for its arguments, and records how it was called.
const BENCH: &str = r#"
case "$1" in --version) echo "version: 4000 (abc1234)" >&2; exit 0;; --help) echo "  -d, --n-depth <n>"; exit 0;; esac
echo "$*" >> "$0.calls"
prompts=0 generated=0 depth=0 fa=0
while [ $# -gt 0 ]; do
  case "$1" in -p) prompts=$2;; -n) generated=$2;; -d) depth=$2;; -fa) fa=$2;; esac
  shift
done
if [ "$depth" -gt 0 ] && [ "$fa" = 1 ]; then echo loading >&2; echo "error: too deep" >&2; exit 3; fi
echo "["
IFS=,
for prompt in $prompts; do
  [ "$prompt" -gt 0 ] && echo "{\"n_prompt\": $prompt, \"n_gen\": 0, \"n_depth\": $depth, \"avg_ts\": 1${fa}0.0},"
done
echo "{\"n_prompt\": 0, \"n_gen\": $generated, \"n_depth\": $depth, \"avg_ts\": 2.5}]"
"#;

/// A llama-bench that takes a depth as a prompt, as ik_llama.cpp does, and is slow without flash attention.
const FORK_BENCH: &str = r#"
case "$1" in --version) exit 1;; --help) echo "  -gp <pp,tg>"; echo "  -rtr, --run-time-repack <0|1>"; exit 0;; esac
echo "$*" >> "$0.calls"
depth=0 generated=0 fa=0
while [ $# -gt 0 ]; do
  case "$1" in -n) generated=$2;; -d) exit 4;; -gp) depth=${2%,*} generated=${2#*,};; -fa) fa=$2;; esac
  shift
done
echo "[{\"n_prompt\": $depth, \"n_gen\": $generated, \"avg_ts\": $((1 + 6 * fa)).0}]"
"#;

/// Serves with this program, with llama-server's flags.
const SERVER: &str = r#"
case "$1" in --help) echo "-fa, --flash-attn [on|off|auto]"; exit 0;; --version) exit 1;; esac
while [ $# -gt 0 ]; do
  case "$1" in -m) model=$2;; --port) port=$2;; -np) slots=$2;; --alias) alias=$2;; esac
  shift
done
exec PROGRAM serve "$model" --port "$port" --alias "$alias" --max-seqs "$slots" --ctx-size 512
"#;

/// Starts, records its process id, and never answers.
const SILENT_SERVER: &str = r#"
case "$1" in -*) [ "$1" = -m ] || exit 0;; esac
echo $$ > "$0.pid"
exec /bin/sleep 600
"#;

struct Home {
    directory: tempfile::TempDir,
}

impl Home {
    fn new() -> Self {
        Home { directory: tempfile::tempdir().unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn script(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, format!("#!/bin/sh{}", text.replace("PROGRAM", env!("CARGO_BIN_EXE_cuelight")))).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let model = format!("{}/tests/fixtures/families/llama-q4_0.gguf", env!("CARGO_MANIFEST_DIR"));
        let mut command = Command::new(env!("CARGO_BIN_EXE_cuelight"));
        command.args(["compare", &model, "--threads", "1"]).args(arguments);
        command.env_clear().env("HOME", self.directory.path()).stdin(Stdio::null());
        command.env("CUELIGHT_CALIBRATE", "off");
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn compare(&self, peer: &Path, arguments: &[&str]) -> Output {
        self.command(&[&["--peer", peer.to_str().unwrap()], arguments].concat()).output().unwrap()
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn report(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", text(&output.stderr)))
}

#[test]
fn runs_alternate_and_the_peers_better_setting_counts() {
    let home = Home::new();
    let peer = home.script("bin/llama-bench", BENCH);
    let output = home.compare(&home.path("bin"), &["--only", "prefill,decode", "--rounds", "2", "-o", "json"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let report = report(&output);
    assert_eq!(report["contenders"][1]["name"], "4000 (abc1234)");
    let names: Vec<&str> = report["rows"].as_array().unwrap().iter().map(|row| row["test"].as_str().unwrap()).collect();
    assert_eq!(names, ["prefill 512", "prefill 2048", "decode 128"]);
    let prefill = &report["rows"][0];
    let results = prefill["results"].as_array().unwrap();
    assert_eq!(results.len(), 3, "this program, and the peer with two settings");
    let ours = results.iter().find(|result| result["setting"].is_null()).unwrap();
    assert_eq!(ours["samples"].as_array().unwrap().len(), 2);
    let best = results.iter().find(|result| result["is_best"] == true && !result["setting"].is_null()).unwrap();
    assert_eq!((&best["setting"], &best["samples"]), (&json!("fa on"), &json!([110.0, 110.0])));
    let (ratio, ours) = (prefill["ratios"][0]["ratio"].as_f64().unwrap(), ours["median"].as_f64().unwrap());
    assert!((ratio - ours / 110.0).abs() < 1e-9);
    let calls = std::fs::read_to_string(peer.with_file_name("llama-bench.calls")).unwrap();
    let settings: Vec<&str> = calls.lines().map(|line| line.rsplit(' ').next().unwrap()).collect();
    assert_eq!(settings, ["0", "1", "1", "0"], "every second round runs in reverse order");
    let order: Vec<String> =
        text(&output.stderr).lines().filter(|line| line.starts_with("round")).map(str::to_owned).collect();
    assert!(order[0].contains("cuelight") && order[5].contains("cuelight"), "{order:#?}");
}

#[test]
fn a_fork_with_other_flags_repacks_and_generates_after_a_prompt() {
    let home = Home::new();
    let peer = home.script("ik/llama-bench", FORK_BENCH);
    let output = home.compare(&home.path("ik"), &["--only", "decode,depth", "--rounds", "2", "--activation-bits", "8"]);
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{stderr}");
    assert!(stdout.contains("cuelight 8 bits, peers 8 bits"), "{stdout}");
    assert!(stdout.lines().any(|line| line.contains("at depth 2048") && line.contains("| 7.00 (7.00–7.00), fa on |")));
    let calls = std::fs::read_to_string(peer.with_file_name("llama-bench.calls")).unwrap();
    let depths: Vec<&str> = calls.lines().filter(|call| call.contains("-gp 2048,128")).collect();
    assert!(calls.lines().all(|call| call.contains("-rtr 1")), "{calls}");
    assert_eq!(depths.len(), 3, "without flash attention it is clearly slower, so it runs once: {calls}");
    let progress: Vec<&str> = stderr.lines().filter(|line| line.starts_with("  decode 128")).collect();
    assert!(progress[0].contains("tok/s (11 runs left, about "), "{stderr}");
    assert!(progress.last().unwrap().ends_with("tok/s"), "{stderr}");
}

#[test]
fn a_failed_peer_is_reported_and_the_other_rows_are_measured() {
    let home = Home::new();
    home.script("bin/llama-bench", BENCH);
    let output = home.compare(&home.path("bin"), &["--only", "decode,depth", "--rounds", "1", "--flash-attn", "on"]);
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    let row = |name: &str| stdout.lines().find(|line| line.contains(name)).unwrap_or_else(|| panic!("{stdout}"));
    assert!(row("| decode 128, tok/s |").contains("| 2.50, fa on |"), "{stdout}");
    assert!(row("| decode 128 at depth 2048").ends_with("| - | - |"), "{stdout}");
    let error = &stderr[stderr.find("error: 1 measurement failed").unwrap_or_else(|| panic!("{stderr}"))..];
    for words in ["4000 (abc1234) (fa on), decode at depth 2048", "exit status: 3", "loading\n", "error: too deep"] {
        assert!(error.contains(words), "{words}: {error}");
    }
}

#[test]
fn servers_are_started_and_measured() {
    let home = Home::new();
    home.script("bin/llama-server", SERVER);
    let arguments = ["--only", "serve,memory,start", "--clients", "1,3", "--rounds", "1", "-o", "json"];
    let output = home.compare(&home.path("bin"), &[&arguments[..], &["--flash-attn", "off"]].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let report = report(&output);
    assert_eq!(
        report["contenders"][1]["name"],
        json!(home.path("bin")),
        "a build without a version is named by its directory"
    );
    for row in report["rows"].as_array().unwrap() {
        let has_figure = cfg!(target_os = "linux") || row["test"] != "peak memory";
        let results = row["results"].as_array().unwrap();
        assert_eq!(results.len(), if has_figure { 2 } else { 0 }, "{row}");
        assert!(results.iter().all(|result| result["median"].as_f64().unwrap() > 0.0), "{row}");
        assert_eq!(row["ratios"][0]["ratio"].is_f64(), has_figure, "{row}");
    }
    assert_eq!(report["rows"].as_array().unwrap().len(), 6);
}

#[test]
fn ctrl_c_prints_the_results_so_far_and_kills_the_peer() {
    let home = Home::new();
    let server = home.script("bin/llama-server", SILENT_SERVER);
    let arguments = ["--peer", server.to_str().unwrap(), "--only", "start", "--rounds", "1", "--flash-attn", "off"];
    let child = home.command(&arguments).spawn().unwrap();
    let pid_file = server.with_file_name("llama-server.pid");
    let start = Instant::now();
    let peer = loop {
        match std::fs::read_to_string(&pid_file).ok().filter(|pid| pid.ends_with('\n')) {
            Some(pid) => break pid.trim().to_owned(),
            None => std::thread::sleep(Duration::from_millis(10)),
        }
        assert!(start.elapsed() < Duration::from_secs(60), "the peer was never started");
    };
    let signal = |signal: &str, pid: &str| {
        let mut kill = Command::new("kill");
        kill.args([signal, pid]).stderr(Stdio::null()).status().unwrap().success()
    };
    assert!(signal("-INT", &child.id().to_string()));
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("| cold start, ms ↓ |"), "{}", text(&output.stdout));
    let start = Instant::now();
    while signal("-0", &peer) {
        assert!(start.elapsed() < Duration::from_secs(10), "the peer {peer} still runs");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_server_that_exits_is_reported_with_its_last_lines() {
    let home = Home::new();
    home.script("bin/llama-server", "\n[ \"$1\" = -m ] && echo \"cannot map the model\" >&2\nexit 1\n");
    let output = home.compare(&home.path("bin"), &["--only", "start", "--rounds", "2", "--flash-attn", "off"]);
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("error: 1 measurement failed") && stderr.contains("cannot map the model"), "{stderr}");
    assert!(text(&output.stdout).contains("| cold start, ms ↓ |"));
}

#[test]
fn without_a_peer_the_error_names_programs_and_directories() {
    let home = Home::new();
    home.script("bin/llama-bench", BENCH);
    let refused = |command: &mut Command, code: i32, words: &[&str]| {
        let output = command.output().unwrap();
        let stderr = text(&output.stderr);
        assert_eq!((output.status.code(), text(&output.stdout)), (Some(code), String::new()), "{stderr}");
        for word in words {
            assert!(stderr.contains(word), "{word}: {stderr}");
        }
    };
    let folder = home.path("empty");
    std::fs::create_dir(&folder).unwrap();
    let folder = folder.to_str().unwrap();
    refused(home.command(&[]).env("PATH", folder), 1, &["llama-bench nor llama-server", "PATH", folder, "--peer"]);
    refused(&mut home.command(&["--peer", folder]), 1, &["no peer in", "build/bin"]);
    refused(&mut home.command(&["--peer", "/nowhere"]), 1, &["no peer at /nowhere"]);
    let bin = home.path("bin");
    let bin = bin.to_str().unwrap();
    refused(&mut home.command(&["--peer", bin, "--only", "start"]), 1, &["lacks the program for serving", "--only"]);
    refused(&mut home.command(&["--peer", bin, "--only", "speed"]), 2, &["prefill", "serve"]);
    let found = home.command(&["--only", "decode", "--rounds", "1"]).env("PATH", bin).output().unwrap();
    assert!(found.status.success(), "a peer in PATH is found: {}", text(&found.stderr));
}
