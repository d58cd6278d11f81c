//! The program's commands: their output, and their errors.

#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A temporary home directory for the program.
struct Home {
    directory: tempfile::TempDir,
}

struct Ran {
    code: i32,
    stdout: String,
    stderr: String,
}

impl Home {
    fn new() -> Self {
        Home { directory: tempfile::tempdir().unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn file(&self, name: &str, bytes: &[u8]) -> String {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, bytes).unwrap();
        path.to_str().unwrap().to_owned()
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_cuelight"));
        command.args(arguments).env_clear().env("HOME", self.directory.path()).stdin(Stdio::null());
        command.env("CUELIGHT_CALIBRATE", "off");
        command
    }

    fn run(&self, arguments: &[&str]) -> Ran {
        Ran::new(self.command(arguments).output().unwrap())
    }

    fn run_with(&self, arguments: &[&str], variables: &[(&str, &str)]) -> Ran {
        Ran::new(self.command(arguments).envs(variables.iter().copied()).output().unwrap())
    }
}

impl Ran {
    fn new(output: Output) -> Self {
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Ran { code: output.status.code().unwrap(), stdout: text(output.stdout), stderr: text(output.stderr) }
    }

    /// clap refused the command line with this word.
    #[track_caller]
    fn assert_refused_by_usage(&self, word: &str) {
        assert_eq!(self.code, 2, "{}", self.stderr);
        assert!(self.stderr.contains(word), "{}", self.stderr);
    }

    /// The program failed with this code and one error line that contains these words, and printed nothing to stdout.
    #[track_caller]
    fn assert_refused(&self, code: i32, words: &[&str]) {
        assert_eq!((self.code, self.stdout.as_str()), (code, ""), "{}", self.stderr);
        let errors: Vec<&str> = self.stderr.lines().filter(|line| line.starts_with("error: ")).collect();
        assert_eq!(errors.len(), 1, "{}", self.stderr);
        for word in words {
            assert!(errors[0].contains(word), "{word:?} is not in: {}", errors[0]);
        }
        for noise in ["panicked", "backtrace", "Error {"] {
            assert!(!self.stderr.contains(noise), "{}", self.stderr);
        }
    }
}

#[test]
fn help_has_examples_and_defaults() {
    let home = Home::new();
    let help = home.run(&["--help"]);
    assert_eq!(help.code, 0);
    for word in ["Examples:", "cuelight run demo", "serve", "MODEL is"] {
        assert!(help.stdout.contains(word), "{word}");
    }
    for command in [
        "run",
        "serve",
        "ps",
        "load",
        "stop",
        "pull",
        "list",
        "rm",
        "show",
        "tokenize",
        "bench",
        "compare",
        "perplexity",
        "replay",
        "batch",
        "config",
        "completions",
        "doctor",
    ] {
        let help = home.run(&[command, "--help"]);
        assert_eq!(help.code, 0, "{command}");
        assert!(help.stdout.contains("Usage: cuelight"), "{command}");
    }
    assert!(home.run(&["serve", "--help"]).stdout.contains("[default: 8080]"));
}

#[test]
fn without_arguments_three_commands_to_try_are_shown() {
    let ran = Home::new().run(&[]);
    assert_eq!((ran.code, ran.stdout.as_str()), (2, ""));
    for command in ["cuelight run demo", "cuelight serve demo", "cuelight bench demo", "cuelight --help"] {
        assert!(ran.stderr.contains(command), "{command}: {}", ran.stderr);
    }
}

#[test]
fn run_help_begins_with_what_a_chat_user_needs() {
    let help = Home::new().run(&["run", "--help"]).stdout;
    let position = |word: &str| help.find(word).unwrap_or_else(|| panic!("{word} is not in {help}"));
    for flag in ["--system", "--temp", "--max-tokens", "--ctx-size", "--device", "--raw", "--verbose"] {
        assert!(position(flag) < position("--kv-memory"), "{flag}");
        assert!(position(flag) < position("--top-k"), "{flag}");
    }
}

#[test]
fn a_context_longer_than_that_of_the_training_causes_a_warning() {
    let home = Home::new();
    let model = fixture("llama");
    let run = |size: &str| home.run(&["run", &model, "hi", "--raw", "--max-tokens", "1", "--ctx-size", size]);
    let (trained, longer) = (run("512"), run("1024"));
    assert_eq!((trained.code, longer.code), (0, 0), "{}", longer.stderr);
    assert!(!trained.stderr.contains("was trained for"), "{}", trained.stderr);
    assert!(longer.stderr.contains("warning: the model was trained for 512 tokens"), "{}", longer.stderr);
}

#[test]
fn reasoning_is_refused_where_there_is_none() {
    let home = Home::new();
    let template = home.file("plain.jinja", b"{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}");
    let model = fixture("llama");
    let run = |more: &[&str]| home.run(&[&["run", &model, "hi", "--max-tokens", "1", "-v"], more].concat());
    for think in ["on", "low"] {
        let plain = run(&["--chat-template", &template, "--think", think]);
        plain.assert_refused(2, &["--think: this model does not reason"]);
        run(&["--think", think]).assert_refused(2, &["--think"]);
    }
    run(&["--raw", "--think", "on"]).assert_refused_by_usage("cannot be used with");
    assert_eq!(run(&["--chat-template", &template, "--think", "off"]).code, 0);
}

#[test]
fn a_model_in_the_place_of_a_command_gets_a_tip() {
    let home = Home::new();
    for model in ["./model.gguf", "demo", "org/repo:Q8_0"] {
        home.run(&[model]).assert_refused_by_usage(&format!("tip: cuelight run {model}"));
    }
    let ran = home.run(&["runn", "demo"]);
    assert!(ran.stderr.contains("'run'") && !ran.stderr.contains("cuelight run runn"), "{}", ran.stderr);
}

#[test]
fn flags_of_other_programs_get_a_tip() {
    let home = Home::new();
    for (arguments, tip) in [
        (&["run", "-m", "model.gguf"][..], "tip: the model is the first argument"),
        (&["run", "demo", "-p", "hello"], "tip: the prompt follows the model"),
        (&["run", "demo", "-n", "5"], "tip: --max-tokens N"),
        (&["run", "demo", "--ctx", "4096"], "tip: --ctx-size TOKENS"),
        (&["run", "demo", "--num_ctx=4096"], "tip: --ctx-size TOKENS"),
        (&["run", "demo", "-c", "4096"], "tip: --ctx-size TOKENS"),
        (&["serve", "demo", "--ctx", "4096"], "tip: --ctx-size TOKENS"),
        (&["serve", "demo", "--temperature", "0.2"], "tip: a request sets the temperature"),
        (&["serve", "demo", "-n", "5"], "tip: a request limits its answer"),
        (&["serve", "demo", "--seed", "1"], "tip: a request sets its seed"),
        (&["serve", "demo", "--system-prompt", "x"], "tip: a request has the system prompt"),
        (&["serve", "-m", "demo"], "cuelight serve MODEL"),
        (&["serve", "demo", "--max-model-len", "5"], "tip: --ctx-size TOKENS"),
        (&["serve", "demo", "--served-model-name", "x"], "tip: --alias NAME"),
        (&["serve", "demo", "-ngl", "9"], "'-ngl' found\n\n  tip: --device vulkan"),
        (&["serve", "demo", "-np", "4"], "tip: --max-seqs N"),
        (&["run", "demo", "hi", "-ngl", "99"], "tip: --device vulkan"),
        (&["bench", "demo", "-ngl", "99"], "tip: --device vulkan"),
        (&["bench", "-m", "demo"], "cuelight bench MODEL"),
    ] {
        home.run(arguments).assert_refused_by_usage(tip);
    }
    let unknown = home.run(&["bench", "demo", "--frobnicate"]);
    assert!(unknown.code == 2 && !unknown.stderr.contains("tip:"), "{}", unknown.stderr);
}

#[test]
fn a_name_of_ollama_is_answered_with_a_reference() {
    let home = Home::new();
    let words = ["llama3.2:1b is a name of Ollama's library", "bartowski/Llama-3.2-1B-Instruct-GGUF"];
    home.run(&["run", "llama3.2:1b", "hello"]).assert_refused(1, &words);
    home.run(&["pull", "hf.co/org/repo:Q8_0"]).assert_refused(1, &["write only the repository: org/repo:Q8_0"]);
}

#[test]
fn the_demo_is_listed_and_removed() {
    let home = Home::new();
    let file = home.file(".cache/cuelight/demo/SmolLM2-135M-Instruct.Q4_1.gguf", &[7; 3 << 20]);
    let list = home.run(&["list"]).stdout;
    assert!(list.contains("demo   Q4_1   3.0 MiB  just now"), "{list}");
    let json: serde_json::Value = serde_json::from_str(&home.run(&["list", "--json"]).stdout).unwrap();
    assert_eq!((&json[0]["model"], &json[0]["paths"][0]), (&"demo".into(), &file.clone().into()));
    home.run(&["rm", "demo"]).assert_refused(2, &["--yes"]);
    let removed = home.run(&["rm", "demo", "--yes"]);
    assert!(removed.code == 0 && removed.stderr.contains("removed demo, 3.0 MiB freed"), "{}", removed.stderr);
    assert!(!Path::new(&file).exists());
    home.run(&["rm", "demo", "--yes"]).assert_refused(1, &["demo is not in the cache"]);
}

#[test]
fn invalid_arguments_get_a_usage_error() {
    let home = Home::new();
    for (arguments, word) in [
        (&["serv", "demo"][..], "a similar subcommand exists: 'serve'"),
        (&["run"], "MODEL"),
        (&["run", "demo", "--tmep", "1"], "--temp"),
        (&["run", "demo", "--temp", "-1"], "\"-1\" is not a number from 0 up"),
        (&["serve", "demo", "--port", "99999"], "\"99999\" is not a whole number from 0 to 65535"),
        (&["serve", "demo", "--kv-memory", "2XB"], "like 2GiB"),
        (&["serve", "demo", "--device", "cuda"], "known devices: cpu, vulkan, vulkan:N"),
        (&["serve", "demo", "--max-seqs", "0"], "\"0\" is not a whole number from 1 up"),
        (&["serve", "demo", "--kernel", "mmx"], "known kernels: scalar, avx2"),
        (&["bench", "demo", "-p", "many"], "invalid value"),
        (&["bench", "demo", "-pg", "512"], "like 512,128"),
        (&["bench", "--synthetic", "llama-9b:q8_0"], "known models: llama-1b, llama-3b, llama-8b"),
        (&["bench", "--synthetic", "llama-8b:q9"], "known formats: f32, f16, bf16, q8_0"),
        (&["bench", "--synthetic", "llama-8b"], "like llama-8b:q4_k_m"),
        (&["bench", "demo", "--synthetic", "llama-8b:q8_0"], "cannot be used with"),
        (&["bench", "demo", "--write", "model.gguf"], "cannot be used with"),
        (&["bench", "--write", "model.gguf"], "--synthetic <NAME:FORMAT>"),
    ] {
        let ran = home.run(arguments);
        assert_eq!(ran.code, 2, "{arguments:?}: {}", ran.stderr);
        assert!(ran.stderr.contains(word), "{arguments:?}: {}", ran.stderr);
    }
}

#[test]
fn a_missing_model_is_reported_in_one_sentence() {
    let home = Home::new();
    for command in ["run", "show", "tokenize", "bench"] {
        home.run(
            &[command, "/no/such/model.gguf", "x"][..if command == "run" || command == "tokenize" { 3 } else { 2 }],
        )
        .assert_refused(1, &["no such file: /no/such/model.gguf"]);
    }
    home.run(&["show", "."]).assert_refused(1, &["is a directory"]);
    home.run(&["show", "nonsense"]).assert_refused(1, &["neither a file nor a model reference", "org/repo:quant"]);
    home.run(&["show", "org/repo", "--offline"]).assert_refused(1, &["org/repo is not in the cache", "offline"]);
}

#[test]
fn a_file_that_is_not_gguf_is_reported_in_one_sentence() {
    let home = Home::new();
    let text = home.file("text.gguf", b"this is a text and no model at all");
    let empty = home.file("empty.gguf", b"");
    let cut = home.file("cut.gguf", b"GGUF\x03\0\0\0");
    for path in [&text, &empty, &cut] {
        home.run(&["show", path]).assert_refused(1, &[path]);
        home.run(&["run", path, "Hello"]).assert_refused(1, &[path]);
    }
}

#[test]
fn a_configuration_error_names_its_source() {
    let home = Home::new();
    home.file(".config/cuelight/config.toml", b"[server]\nprot = 1\n");
    home.run(&["config"])
        .assert_refused(2, &["config.toml:2: unknown setting \"server.prot\"", "did you mean \"server.port\"?"]);
    let home = Home::new();
    home.run_with(&["config"], &[("CUELIGHT_PORT", "abc")])
        .assert_refused(2, &["environment variable CUELIGHT_PORT", "\"abc\""]);
    home.run(&["config", "--config", "/no/such.toml"]).assert_refused(2, &["/no/such.toml", "No such file"]);
}

#[test]
fn config_prints_the_source_of_each_value() {
    let home = Home::new();
    let file = home.file("my.toml", b"[model]\nmax_seqs = 3\n");
    let ran = home.run_with(&["config", "--config", &file, "--temp", "0.5"], &[("CUELIGHT_PORT", "81")]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    for line in [
        &format!("max_seqs = 3  # {file}:2"),
        "temp = 0.5  # flag --temp",
        "port = 81  # environment variable CUELIGHT_PORT",
        "# top_k = 40  # default",
        "# seed is not set  # default",
    ] {
        assert!(ran.stdout.lines().any(|printed| printed == line), "{line}\n{}", ran.stdout);
    }
}

#[test]
fn a_port_in_use_is_reported_before_the_model_is_located() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    Home::new()
        .run(&["serve", "/no/such/model.gguf", "--port", &port])
        .assert_refused(1, &[&format!("port {port} on 127.0.0.1 is in use"), "--port"]);
}

#[test]
fn models_to_serve_are_checked_before_any_is_loaded() {
    let home = Home::new();
    let serve = |arguments: &[&str]| home.run(&[&["serve", "--port", "0"], arguments].concat());
    serve(&[]).assert_refused(2, &["--models-dir"]);
    serve(&["demo", "--allow-pull"]).assert_refused(2, &["--allow-pull needs --models-dir"]);
    serve(&["a", "b", "--alias", "c"]).assert_refused(2, &["NAME=MODEL"]);
    serve(&["a", "b", "--max-loaded-models", "1"]).assert_refused(2, &["--max-loaded-models"]);
    serve(&["--models-dir", "/no/such/directory"]).assert_refused(1, &["/no/such/directory", "No such file"]);
    let (llama, gemma) = (fixture("llama"), fixture("gemma2"));
    serve(&[&llama, &llama]).assert_refused(2, &["two models would have the name llama", "NAME=MODEL"]);
    serve(&["/no/a.gguf", "/no/a.gguf"]).assert_refused(2, &["two models would have the name /no/a"]);
    serve(&["/no/such.gguf", "--record-texts"]).assert_refused(2, &["--record-texts needs --record"]);
    serve(&[&llama, "--kv-peer", "10.0.0.0/8", "--kv-peer-key", "secret"])
        .assert_refused(2, &["--kv-peer-key is for the ports that --kv-peer names"]);
    serve(&[&llama, "/no/such.gguf"]).assert_refused(1, &["no such file"]);
    serve(&[&llama, &gemma, "--memory", "11MiB"])
        .assert_refused(1, &["gemma2.gguf", "needs at least", "a higher --memory, "]);
    serve(&[&llama, "--keep-alive", "soon"]).assert_refused_by_usage("neither a time, like 30s or 10m, nor forever");
}

#[test]
fn replicas_need_a_device_each() {
    let home = Home::new();
    let serve = |arguments: &[&str]| home.run(&[&["serve", "--port", "0", "/no/such.gguf"], arguments].concat());
    serve(&["--replicas", "2"]).assert_refused(2, &["2 replicas", "1 is given: cpu", "leave --replicas out"]);
    let three = "vulkan:0,vulkan:1,vulkan:2";
    serve(&["--device", three, "--replicas", "2"])
        .assert_refused(2, &["2 replicas", "3 are given: vulkan:0,vulkan:1,vulkan:2"]);
    serve(&["--device", "vulkan", "--replicas", "4"]).assert_refused(2, &["4 replicas", "1 is given: vulkan:0"]);
    serve(&["--device", three, "--replicas", "3"]).assert_refused(1, &["no such file"]);
    serve(&["--replicas", "0"]).assert_refused_by_usage("--replicas");
}

#[test]
fn commands_for_a_server_report_a_missing_server() {
    let home = Home::new();
    let unused = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    for command in [&["ps"][..], &["stop", "x"], &["load", "x"]] {
        let arguments = [command, &["--url", &unused]].concat();
        home.run(&arguments).assert_refused(1, &["no server answers at", "cuelight serve"]);
    }
    home.run(&["ps", "--url", "http://"]).assert_refused(1, &["is not an address like"]);
}

fn fixture(name: &str) -> String {
    format!("{}/tests/fixtures/families/{name}.gguf", env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn a_perplexity_reports_what_was_scored() {
    let home = Home::new();
    let text = home.file("text.txt", "Some words, again and again. ".repeat(40).as_bytes());
    let run =
        |arguments: &[&str]| home.run(&[&["perplexity", &fixture("llama"), &text, "-t", "1"], arguments].concat());
    let json = |arguments: &[&str]| -> serde_json::Value {
        let ran = run(&[arguments, &["-o", "json"]].concat());
        serde_json::from_str(&ran.stdout).unwrap_or_else(|_| panic!("{}", ran.stderr))
    };
    let half = json(&["-c", "64"]);
    let windows = half["text_tokens"].as_u64().unwrap() / 64;
    assert!(windows > 2 && half["windows"] == windows && half["scored_tokens"] == windows * 31, "{half}");
    let (perplexity, nats) = (half["perplexity"].as_f64().unwrap(), half["mean_nats"].as_f64().unwrap());
    assert!((perplexity.ln() - nats).abs() < 1e-9 && half["perplexity_stderr"].as_f64() > Some(0.0), "{half}");
    let all = json(&["-c", "64", "--all-tokens"]);
    assert_eq!((&all["scored_tokens"], &all["scored"]), (&(windows * 63).into(), &"all".into()));
    let table = run(&["-c", "64"]).stdout;
    assert!(table.starts_with("| model |") && table.contains(&format!("| {windows} x 64 |")), "{table}");
    assert!(table.contains(&format!("{perplexity:.4} ± ")), "{table}");
}

#[test]
fn a_text_without_a_full_window_is_refused() {
    let home = Home::new();
    let (short, binary) = (home.file("short.txt", b"Hello"), home.file("binary", b"ab\xff\xfe"));
    let refused = |file: &str, arguments: &[&str], words: &[&str]| {
        home.run(&[&["perplexity", &fixture("llama"), file], arguments].concat()).assert_refused(1, words);
    };
    refused("/nowhere.txt", &[], &["cannot read the text /nowhere.txt", "No such file"]);
    refused(&binary, &[], &["is not UTF-8 text (at byte 2)"]);
    refused(&short, &[], &["tokens, but a window needs 512", "a longer text"]);
    refused(&short, &["-c", "2"], &["at least 3"]);
    home.run(&["perplexity", "./no.gguf", &short]).assert_refused(1, &["no such file: ./no.gguf"]);
    home.run(&["perplexity", &fixture("llama")]).assert_refused_by_usage("FILE");
}

/// The program as a server, until dropped.
struct Serving {
    child: Child,
    stderr: Arc<Mutex<String>>,
    url: String,
}

impl Serving {
    /// Starts it, and waits until it has printed this.
    fn start(home: &Home, arguments: &[&str], ready: &str) -> Self {
        let mut command = home.command(&[&["serve", "--port", "0"], arguments].concat());
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let (stderr, url) = (Arc::new(Mutex::new(String::new())), Arc::new(Mutex::new(None)));
        let (ready_sender, is_ready) = std::sync::mpsc::channel();
        let (all, ready) = (stderr.clone(), ready.to_owned());
        let found = url.clone();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                all.lock().unwrap().push_str(&format!("{line}\n"));
                if line.contains(&ready) {
                    let rest = line.split_once("http://").unwrap().1;
                    *found.lock().unwrap() = rest.split([',', ' ']).next().map(|host| format!("http://{host}"));
                    let _ = ready_sender.send(());
                }
            }
        });
        if is_ready.recv_timeout(Duration::from_secs(30)).is_err() {
            panic!("never ready: {}", stderr.lock().unwrap());
        }
        let url = url.lock().unwrap().clone().unwrap();
        Serving { child, stderr, url }
    }

    /// Runs a command against it.
    #[track_caller]
    fn ask(&self, home: &Home, arguments: &[&str]) -> Ran {
        home.run(&[arguments, &["--url", &self.url]].concat())
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn models_are_served_listed_loaded_and_stopped() {
    let home = Home::new();
    home.file("models/found.gguf", &std::fs::read(fixture("llama-q8_0")).unwrap());
    home.file("keys", b"secret\n");
    let (first, second) = (format!("one={}", fixture("llama")), fixture("gemma2"));
    let (models, keys) = (home.path("models"), home.path("keys"));
    let arguments = [
        first.as_str(),
        &second,
        "--models-dir",
        models.to_str().unwrap(),
        "--api-key-file",
        keys.to_str().unwrap(),
        "--threads",
        "1",
    ];
    let server = Serving::start(&home, &arguments, "each loaded on its first request");

    server.ask(&home, &["ps"]).assert_refused(1, &["needs an API key", "--api-key"]);
    server.ask(&home, &["ps", "--api-key", "wrong"]).assert_refused(1, &["needs another API key"]);
    let ask = |arguments: &[&str]| server.ask(&home, &[arguments, &["--api-key", "secret"]].concat());
    let states = || -> Vec<(String, String)> {
        let ran = ask(&["ps", "--json"]);
        let report: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap_or_else(|_| panic!("{}", ran.stderr));
        let word = |model: &serde_json::Value, key: &str| model[key].as_str().unwrap().to_owned();
        report["data"].as_array().unwrap().iter().map(|model| (word(model, "id"), word(model, "state"))).collect()
    };
    let expected = |states: [&str; 3]| -> Vec<(String, String)> {
        ["one", "gemma2", "found"].iter().zip(states).map(|(id, state)| ((*id).into(), state.into())).collect()
    };
    assert_eq!(states(), expected(["ready", "ready", "unloaded"]));
    let listed = ask(&["ps"]);
    assert_eq!(listed.stdout.lines().count(), 3, "{}", listed.stdout);
    assert!(listed.stdout.starts_with("NAME") && listed.stdout.contains("MiB"), "{}", listed.stdout);
    assert!(listed.stderr.contains("1 more not loaded"), "{}", listed.stderr);

    assert_eq!(ask(&["load", "found"]).code, 0);
    assert_eq!(ask(&["stop", "one"]).code, 0);
    assert_eq!(states(), expected(["unloaded", "ready", "ready"]));
    assert_eq!(ask(&["ps", "--all"]).stdout.lines().count(), 4);
    ask(&["stop", "nope"]).assert_refused(1, &["no model of this name", "`cuelight ps --all`"]);
    let log = server.stderr.lock().unwrap().clone();
    assert_eq!(log.matches("memory plan").count(), 2, "{log}");
    assert!(
        log.contains("planned) on http://")
            && log.contains("\n  curl http://127.0.0.1:")
            && log.contains("Bearer $KEY"),
        "{log}"
    );
}

#[test]
fn a_log_of_json_has_nothing_else_and_names_no_actors() {
    let home = Home::new();
    let server = Serving::start(&home, &[&fixture("llama"), "--log-format", "json", "--threads", "1"], "\"ready\"");
    let log = server.stderr.lock().unwrap().clone();
    let lines: Vec<serde_json::Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let begin_with =
        |text: &str| lines.iter().filter(|line| line["message"].as_str().unwrap().starts_with(text)).count();
    assert_eq!((begin_with("memory plan"), begin_with("ready")), (1, 1), "{log}");
    assert!(lines.iter().all(|line| line["span"]["name"] != "Actor"), "{log}");
    let failed = home.run(&["serve", "/no/such.gguf", "--port", "0", "--log-format", "json", "--log-level", "off"]);
    let line: serde_json::Value = serde_json::from_str(&failed.stderr).unwrap();
    assert_eq!((&line["level"], &line["message"]), (&"ERROR".into(), &"no such file: /no/such.gguf".into()));
    let text = Serving::start(&home, &[&fixture("llama"), "--threads", "1"], "ready: ");
    assert!(!text.stderr.lock().unwrap().contains("Actor{"));
}

#[test]
fn an_empty_prompt_is_refused_before_anything_is_loaded() {
    Home::new().run(&["run", "/no/such/model.gguf"]).assert_refused(2, &["the prompt is empty"]);
}

#[test]
fn what_an_answer_has_to_match_is_read_before_anything_is_loaded() {
    let home = Home::new();
    let missing = ["run", "/no/such.gguf", "hi", "--json-schema", "nofile.json"];
    home.run(&missing).assert_refused(1, &["cannot read nofile.json"]);
}

#[test]
fn what_run_cannot_do_with_a_model_is_refused() {
    let home = Home::new();
    let system = ["--system", "Be brief."];
    let run = |model: &str, more: &[&str]| home.run(&[&["run", model, "hi"], more].concat());
    run("/no/such.gguf", &[&system[..], &["--raw"]].concat()).assert_refused(2, &["--system needs a chat template"]);
    let embeddings = format!("{}/tests/fixtures/embeddings/bert-mean.gguf", env!("CARGO_MANIFEST_DIR"));
    let refused = run(&embeddings, &[]);
    refused.assert_refused(1, &["makes embeddings and generates no text", "/v1/embeddings"]);
    assert!(!refused.stderr.contains("no chat template"), "{}", refused.stderr);
    let template = home.file("bad.jinja", b"{% if %}");
    run(&fixture("llama"), &["--chat-template", &template])
        .assert_refused(1, &["bad.jinja: the chat template is broken"]);
    run(&fixture("llama"), &["--vram", "8GiB"]).assert_refused(2, &["--vram has no effect on cpu alone"]);
    let hub = home.run_with(&["run", "foo/bar", "hi"], &[("HF_ENDPOINT", "http://127.0.0.1:1")]);
    hub.assert_refused(1, &["cannot get the file list of foo/bar", "check the network, or name a .gguf file"]);
}

#[test]
fn an_answer_that_is_cut_off_says_so_and_fails_if_it_had_to_match() {
    let home = Home::new();
    let schema = home.file("schema.json", br#"{"type": "string", "minLength": 9}"#);
    let (model, limits) = (fixture("llama"), ["--raw", "--ctx-size", "64", "--temp", "0"]);
    let run = |arguments: &[&str]| home.run(&[&["run", &model, "a"], &limits[..], arguments].concat());
    let cut = run(&["--max-tokens", "3"]);
    assert_eq!(cut.code, 0, "{}", cut.stderr);
    assert!(cut.stderr.ends_with("the answer was cut off: it reached --max-tokens\n"), "{}", cut.stderr);
    let unmatched = run(&["--max-tokens", "3", "--json-schema", &schema]);
    assert_eq!(unmatched.code, 1, "{}", unmatched.stderr);
    assert!(
        unmatched.stderr.ends_with("error: the answer was cut off: it reached --max-tokens\n"),
        "{}",
        unmatched.stderr
    );
}

#[test]
fn an_empty_list_names_the_command_to_download_a_model() {
    let ran = Home::new().run(&["list"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (0, ""));
    assert!(ran.stderr.contains("cuelight pull"), "{}", ran.stderr);
    Home::new().run(&["rm", "org/repo"]).assert_refused(1, &["org/repo is not in the cache"]);
}

#[test]
fn a_synthetic_model_is_measured_in_memory_and_from_a_file() {
    let home = Home::new();
    let file = home.path("model.gguf").to_str().unwrap().to_owned();
    let bench = ["bench", "-p", "8", "-n", "1", "-r", "1", "-o", "jsonl", "--synthetic", "smollm2-135m:q4_0"];
    let in_memory = home.run(&bench);
    let written = home.run(&[&bench[..], &["--write", &file]].concat());
    assert!(written.stderr.contains(&format!("wrote {file} (")), "{}", written.stderr);
    for ran in [&in_memory, &written] {
        assert_eq!(ran.code, 0, "{}", ran.stderr);
        assert_eq!(ran.stdout.lines().count(), 2);
        let test: serde_json::Value = serde_json::from_str(ran.stdout.lines().next().unwrap()).unwrap();
        assert_eq!(test["model_n_params"], 134_515_008);
    }
    assert!(in_memory.stdout.contains("smollm2-135m:q4_0") && written.stdout.contains(&file), "{}", written.stdout);
    home.run(&["bench", "-p", "0", "-n", "0", "--synthetic", "smollm2-135m:q4_0", "--write", &file])
        .assert_refused(1, &[&file, "already exists"]);
    let answered = home.run(&["run", &file, "the quick brown fox", "--max-tokens", "3"]);
    assert_eq!(answered.code, 0, "{}", answered.stderr);
}

/// Puts a file into the shared cache as hub clients do.
fn cached(home: &Home, name: &str) {
    let repository = ".cache/huggingface/hub/models--Org--Model";
    home.file(&format!("{repository}/refs/main"), b"c0ffee");
    home.file(&format!("{repository}/blobs/{name}"), &[7; 3 << 20]);
    let link = home.path(&format!("{repository}/snapshots/c0ffee/{name}.gguf"));
    std::fs::create_dir_all(link.parent().unwrap()).unwrap();
    std::os::unix::fs::symlink(Path::new("../../blobs").join(name), link).unwrap();
}

#[test]
fn cached_models_are_listed_and_removed() {
    let home = Home::new();
    cached(&home, "m.Q4_K_M");
    cached(&home, "m.Q8_0");
    let list = home.run(&["ls"]);
    assert!(list.stdout.contains("Org/Model:Q4_K_M  Q4_K_M  3.0 MiB  just now"), "{}", list.stdout);
    let json: serde_json::Value = serde_json::from_str(&home.run(&["list", "--json"]).stdout).unwrap();
    assert_eq!(json[1]["size_bytes"], 3 << 20);
    home.run(&["rm", "org/model:q8_0"]).assert_refused(2, &["--yes"]);
    let removed = home.run(&["rm", "org/model:q8_0", "--yes"]);
    assert_eq!(removed.code, 0);
    assert!(removed.stderr.contains("3.0 MiB freed"), "{}", removed.stderr);
    assert_eq!(home.run(&["list"]).stdout.lines().count(), 2);
}

#[test]
fn there_is_a_manual_page_for_each_command() {
    let home = Home::new();
    let directory = home.path("share/man");
    let ran = home.run(&["man", directory.to_str().unwrap()]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    for page in ["cuelight.1", "cuelight-serve.1", "cuelight-doctor.1"] {
        assert!(std::fs::read_to_string(directory.join(page)).unwrap().contains(".SH NAME"), "{page}");
    }
    let file = home.file("file", b"");
    home.run(&["man", &file]).assert_refused(1, &["write manual pages into", &file]);
    assert!(home.run(&["--help"]).stdout.contains("\n  man "));
}

#[test]
fn completions_exist_for_every_shell() {
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let ran = Home::new().run(&["completions", shell]);
        assert_eq!(ran.code, 0, "{shell}");
        assert!(ran.stdout.contains("tokenize"), "{shell}");
    }
    let home = Home::new();
    home.file(".config/cuelight/config.toml", b"[server]\nprot = 1\n");
    assert_eq!(home.run(&["completions", "bash"]).code, 0, "a mistake in the configuration");
}

#[test]
fn a_closed_pipe_is_not_an_error() {
    let mut child =
        Home::new().command(&["completions", "bash"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}

#[test]
fn text_that_is_not_utf8_is_refused() {
    let home = Home::new();
    let mut child = home
        .command(&["run", "/no/such/model.gguf"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(&[0xff, 0xfe]).unwrap();
    Ran::new(child.wait_with_output().unwrap()).assert_refused(1, &["standard input is not UTF-8 text"]);
}

#[test]
fn doctor_shows_the_machine_and_calibrates_on_request() {
    let home = Home::new();
    let default = home.run(&["doctor", "--offline"]);
    assert_eq!(default.code, 0, "{}", default.stderr);
    for word in
        ["\nkernel ", "(used)", "READ GB/s", "1 thread", "defaults; ", "remedy: run `cuelight doctor --calibrate`"]
    {
        assert!(default.stdout.contains(word), "{word} in {}", default.stdout);
    }
    let folder = home.path(".cache/cuelight/calibration");
    assert!(!folder.exists());
    // Measuring again overrides the setting. A disturbed measurement is not kept.
    let measured = home.run(&["doctor", "--calibrate", "--json", "--offline"]);
    assert_eq!(measured.code, 0, "{}", measured.stderr);
    let report: serde_json::Value = serde_json::from_str(&measured.stdout).unwrap();
    let tuning = &report["tuning"];
    assert!(tuning["threads"].as_u64().unwrap() >= 1 && tuning["calibration"]["measured"].is_object(), "{report:#}");
    assert!(report["speed"][0]["read_bytes_per_second"].as_f64().unwrap() > 1e6, "{report:#}");
    let kept = tuning["source"] == "measured";
    assert_eq!(kept, folder.exists() && std::fs::read_dir(&folder).unwrap().count() == 1, "{report:#}");
    assert!(kept || tuning["source"] == "not kept", "{report:#}");
}

#[test]
fn doctor_has_each_check_and_fails_only_when_nothing_could_run() {
    let home = Home::new();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    // Nothing listens on port 1, so the hub refuses the connection.
    let variables = [("HF_ENDPOINT", "http://127.0.0.1:1"), ("CUELIGHT_PORT", &port), ("CUELIGHT_DEVICE", "vulkan:99")];
    let ran = home.run_with(&["doctor", "--json"], &variables);
    assert!(ran.code == 1 && ran.stderr.contains("the check gpus"), "{}", ran.stderr);
    let report: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    let checks = report["checks"].as_array().unwrap();
    let names: Vec<_> = checks.iter().map(|check| check["check"].as_str().unwrap()).collect();
    let machine = ["cpu", "features", "kernel", "threads", "memory", "limits", "bandwidth", "calibration", "gpus"];
    assert_eq!(names, [&machine[..], &["hub", "proxy", "cache", "disk", "port"]].concat());
    let of = |name: &str| &checks[names.iter().position(|other| *other == name).unwrap()];
    for (name, state, remedy) in [
        ("gpus", "unusable", "remove the setting `device`"),
        ("hub", "warning", "correct HF_ENDPOINT"),
        ("port", "warning", "--port"),
    ] {
        assert_eq!(of(name)["state"], state, "{report:#}");
        assert!(of(name)["remedy"].as_str().unwrap().contains(remedy), "{report:#}");
    }
    assert!(of("cache")["result"].as_str().unwrap().contains(home.path(".cache").to_str().unwrap()), "{report:#}");
}

#[test]
fn the_first_start_calibrates_and_a_folder_that_cannot_be_written_is_no_error() {
    let home = Home::new();
    let (model, auto) = (fixture("llama"), [("CUELIGHT_CALIBRATE", "auto")]);
    let arguments = ["bench", &model, "-p", "4", "-n", "0", "-r", "1", "-o", "json"];
    let first = home.run_with(&arguments, &auto);
    assert_eq!(first.code, 0, "{}", first.stderr);
    assert!(first.stderr.contains("calibrated for"), "{}", first.stderr);
    // A file in the place of the folder.
    home.file("cache/calibration", b"");
    let cache = home.path("cache").to_str().unwrap().to_owned();
    let read_only = home.run_with(&arguments, &[auto[0], ("CUELIGHT_CACHE_DIR", &cache)]);
    assert_eq!(read_only.code, 0, "{}", read_only.stderr);
    assert!(read_only.stderr.contains("calibrated for"), "{}", read_only.stderr);
    // A number of threads that is set is used.
    let threads = home.run_with(&[&arguments[..], &["-t", "3"]].concat(), &auto);
    let tests: serde_json::Value = serde_json::from_str(&threads.stdout).unwrap();
    assert_eq!(tests[0]["n_threads"], 3, "{tests:#}");
}
