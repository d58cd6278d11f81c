//! The tools of MCP servers in `cuelight run`: real servers over pipes and HTTP, and a model that calls tools because a grammar
//! leaves it no choice.
#![cfg(unix)]
#![allow(clippy::unwrap_used)]

#[path = "support/fake_mcp.rs"]
mod fake_mcp;
#[allow(dead_code)]
#[path = "../examples/mcp_server.rs"]
mod mcp_server;
#[path = "support/pty.rs"]
mod pty;
#[path = "support/tool_template.rs"]
mod tool_template;

use tool_template::TOOL_TEMPLATE;

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use fake_mcp::FakeServer;
use pty::{END, ENTER, Pty};
use serde_json::{Value, json};

/// Not a test: the process that `cuelight` starts as a server is this program with the name of this function.
#[test]
#[ignore = "it is the server of the other tests"]
fn serves_the_example() {
    // What the test harness prints has no end yet.
    println!();
    mcp_server::serve(Path::new(".")).unwrap();
}

/// A directory with a model's template, a file of tools and a grammar.
struct Sandbox {
    home: tempfile::TempDir,
}

impl Sandbox {
    fn new() -> Self {
        let home = tempfile::tempdir().unwrap();
        std::fs::write(home.path().join("template.jinja"), TOOL_TEMPLATE).unwrap();
        std::fs::write(home.path().join("a.txt"), "forty-two\n").unwrap();
        let sandbox = Sandbox { home };
        sandbox.servers(json!({ "files": sandbox.example() }));
        sandbox
    }

    fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    /// The entry of the example server.
    fn example(&self) -> Value {
        let program = std::env::current_exe().unwrap();
        json!({
            "command": program,
            "args": ["--exact", "serves_the_example", "--ignored", "--nocapture"],
            "cwd": self.home.path(),
        })
    }

    /// The entry of a server that is a script.
    fn script(text: &str) -> Value {
        json!({ "command": "/bin/sh", "args": ["-c", text] })
    }

    fn servers(&self, servers: Value) {
        let text = json!({ "mcpServers": servers }).to_string();
        std::fs::write(self.path("tools.json"), text).unwrap();
    }

    /// Makes every answer of the model one of these texts.
    fn say(&self, texts: &[String]) {
        let texts: Vec<String> = texts.iter().map(|text| serde_json::to_string(text).unwrap()).collect();
        std::fs::write(self.path("grammar.gbnf"), format!("root ::= {}", texts.join(" | "))).unwrap();
    }

    fn command(&self, more: &[&str]) -> Command {
        self.plain(&[&["--mcp", "tools.json"], more].concat())
    }

    /// A command that names no tools.
    fn plain(&self, more: &[&str]) -> Command {
        let model = format!("{}/tests/fixtures/families/llama.gguf", env!("CARGO_MANIFEST_DIR"));
        let mut command = Command::new(env!("CARGO_BIN_EXE_cuelight"));
        command.args(["run", &model, "--threads", "1", "--ctx-size", "4096"]);
        command.args(["--chat-template", "template.jinja"]).args(more);
        command.env_clear().env("HOME", self.home.path()).env("TERM", "xterm").current_dir(self.home.path());
        command.env("CUELIGHT_CALIBRATE", "off").env("CUELIGHT_API_KEY", "secret").stdin(Stdio::null());
        command
    }

    fn run(&self, more: &[&str]) -> Ran {
        Ran::of(self.command(more).output().unwrap())
    }

    /// One answer by the grammar.
    fn ask(&self, more: &[&str]) -> Ran {
        self.run(&[&["hello", "--grammar", "grammar.gbnf"], more].concat())
    }

    fn chat(&self, more: &[&str]) -> Pty {
        let mut pty = Pty::start(self.command(more), 200);
        pty.wait_for("chat\n>>> ");
        pty
    }
}

/// What a command wrote.
struct Ran {
    out: String,
    errors: String,
    code: i32,
}

impl Ran {
    fn of(output: Output) -> Self {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        Ran { out: text(output.stdout), errors: text(output.stderr), code: output.status.code().unwrap_or(-1) }
    }
}

/// A call as the model writes it.
fn call(tool: &str, arguments: Value) -> String {
    format!("<tool_call>\n{{\"name\": \"{tool}\", \"arguments\": {arguments}}}\n</tool_call>")
}

/// Waits until something is true.
#[track_caller]
fn wait_until(mut is_true: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while !is_true() {
        assert!(Instant::now() < end, "it never became true");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Whether a process runs. One that has ended and was not waited for does not.
fn runs(process: &str) -> bool {
    let output = Command::new("ps").args(["-o", "stat=", "-p", process]).output().unwrap();
    let state = String::from_utf8(output.stdout).unwrap();
    !state.trim().is_empty() && !state.trim().starts_with('Z')
}

#[test]
fn the_model_gets_results_and_answers() {
    let sandbox = Sandbox::new();
    sandbox.say(&[call("files__read", json!({ "path": "a.txt" })), "The answer.".to_owned()]);
    // The random model chooses one of the two texts.
    let answered =
        (0..40).map(|seed| sandbox.ask(&["--allow-tool", "files.read", "--temp", "5", "--seed", &seed.to_string()]));
    let is_whole = |ran: &Ran| ran.code == 0 && ran.errors.contains("tool files.read");
    let ran = answered.into_iter().find(is_whole).expect("a seed calls the tool and answers then");
    assert_eq!(ran.out, "The answer.\n");
    assert!(ran.errors.contains("tool files.read {\"path\":\"a.txt\"} → 10 B in 0."), "{}", ran.errors);
}

#[test]
fn rounds_are_limited_and_results_are_cut() {
    let sandbox = Sandbox::new();
    std::fs::write(sandbox.path("big.txt"), "word ".repeat(2000)).unwrap();
    sandbox.say(&[call("files__time", json!({}))]);
    let ran = sandbox.ask(&["--allow-tool", "*"]);
    assert_eq!((ran.out.trim(), ran.code), ("", 1), "{}", ran.errors);
    assert!(ran.errors.contains("called tools 32 times in a row"), "{}", ran.errors);
    assert_eq!(ran.errors.matches("tool files.time").count(), 32);

    sandbox.say(&[call("files__read", json!({ "path": "big.txt" }))]);
    let ran = sandbox.ask(&["--allow-tool", "*"]);
    assert!(ran.errors.contains("→ 9.8 KiB in") && ran.code == 1, "{}", ran.errors);
    assert!(ran.errors.contains("with the results of the tools the prompt has"), "{}", ran.errors);
}

#[test]
fn without_a_terminal_only_allowed_tools_run() {
    let sandbox = Sandbox::new();
    let calls = call("files__read", json!({ "path": "a.txt" })) + "\n" + &call("files__time", json!({}));
    sandbox.say(&[calls]);
    let ran = sandbox.ask(&["--allow-tool", "files.time", "--allow-tool", "files.raed"]);
    assert!(
        ran.errors.contains("tool files.read {\"path\":\"a.txt\"} was refused: without a terminal"),
        "{}",
        ran.errors
    );
    assert!(ran.errors.contains("tool files.time {} →") && !ran.errors.contains("files.read {\"path\":\"a.txt\"} →"));
    assert!(ran.errors.contains("warning: --allow-tool files.raed matches no tool"), "{}", ran.errors);
}

#[test]
fn failures_of_calls_are_results() {
    let sandbox = Sandbox::new();
    sandbox.say(&[call("files__read", json!({ "path": "../x" }))]);
    let ran = sandbox.ask(&["--allow-tool", "*"]);
    assert!(ran.errors.contains("→ Error: there is no file \"../x\" in"), "{}", ran.errors);
    sandbox.say(&[call("files__wait", json!({ "seconds": 60 }))]);
    let mut slow = Pty::start(
        sandbox.command(&["hi", "--grammar", "grammar.gbnf", "--allow-tool", "*", "--tool-timeout", "200ms"]),
        200,
    );
    slow.wait_for("the tool did not answer within 0.2 s, and the call was cancelled in 0.20 s");
}

#[test]
fn a_chat_asks_before_a_call() {
    let sandbox = Sandbox::new();
    sandbox.say(&[call("files__time", json!({}))]);
    let mut chat = sandbox.chat(&["--grammar", "grammar.gbnf"]);
    let asked = chat.enter("hello", "Run it? [y]es, [n]o, [a]lways this tool: ");
    assert!(asked.contains("tool files.time {}"), "{asked}");
    // The question is repeated until the reply is clear.
    chat.enter("perhaps", "this tool: ");
    chat.enter("n", "this tool: ");
    let ran = chat.enter("y", "this tool: ");
    assert!(ran.contains("tool files.time {} → 10 B in 0."), "{ran}");
    let ended = chat.enter("a", "\n>>> ");
    assert!(ended.contains("called tools 32 times in a row"), "{ended}");
    let listed = chat.enter("/tools", "\n>>> ");
    assert!(listed.contains("files.time  without asking"), "{listed}");
    assert!(listed.contains("files.read  after asking (only reads)  Reads a text file."), "{listed}");
    chat.enter("/save chat.json", "\n>>> ");
    let saved: Value = serde_json::from_str(&std::fs::read_to_string(sandbox.path("chat.json")).unwrap()).unwrap();
    let messages = saved["messages"].as_array().unwrap();
    assert_eq!(messages[1]["tool_calls"][0]["function"], json!({ "name": "files__time", "arguments": "{}" }));
    assert_eq!(
        (&messages[2]["role"], &messages[2]["tool_call_id"]),
        (&json!("tool"), &messages[1]["tool_calls"][0]["id"])
    );
    assert_eq!(messages[2]["content"], "Error: the user does not allow this call");
    assert!(chat.enter("/load chat.json", "\n>>> ").contains("continuing after 66 messages"));
    chat.send(END);
    assert_eq!(chat.exit_code(), 0);
}

#[test]
fn ctrl_c_ends_a_call_and_the_chat_continues() {
    let sandbox = Sandbox::new();
    let server = FakeServer::start();
    sandbox.servers(json!({ "web": { "url": server.url() } }));
    sandbox.say(&[call("web__slow", json!({}))]);
    let mut chat = sandbox.chat(&["--grammar", "grammar.gbnf", "--allow-tool", "*"]);
    chat.send("hello");
    chat.send(ENTER);
    wait_until(|| server.received("tools/call") == 1);
    chat.send("\u{3}");
    let stopped = chat.wait_for("\n>>> ");
    assert!(stopped.contains("stopped; the conversation keeps"), "{stopped}");
    wait_until(|| server.received("notifications/cancelled") == 1);
    assert!(chat.enter("/save chat.json", "\n>>> ").contains("saved 4 messages"));
    chat.enter("/tools", "\n>>> ");
    chat.send("hello");
    chat.send(ENTER);
    wait_until(|| server.received("tools/call") == 2);
    chat.send("\u{3}");
    chat.wait_for("\n>>> ");
}

#[test]
fn ctrl_c_at_the_question_ends_it() {
    let sandbox = Sandbox::new();
    sandbox.say(&[call("files__time", json!({}))]);
    let mut chat = sandbox.chat(&["--grammar", "grammar.gbnf"]);
    chat.enter("hello", "this tool: ");
    chat.send("\u{3}");
    assert!(chat.wait_for("\n>>> ").contains("stopped"));
}

#[test]
fn a_question_of_the_command_line_asks_on_the_terminal() {
    let sandbox = Sandbox::new();
    sandbox.say(&[call("files__time", json!({}))]);
    let mut command = sandbox.command(&["hello", "--grammar", "grammar.gbnf"]);
    let out = std::fs::File::create(sandbox.path("out.txt")).unwrap();
    command.arg("--no-markdown");
    let mut pty = Pty::start_with_output(command, 200, out);
    pty.wait_for("tool files.time {}");
    pty.wait_for("this tool: ");
    pty.send("a");
    pty.send(ENTER);
    pty.wait_for("called tools 32 times");
    assert_eq!(pty.exit_code(), 1);
    assert_eq!(std::fs::read_to_string(sandbox.path("out.txt")).unwrap().trim(), "", "only the answer is there");
}

#[test]
fn http_servers_get_headers_and_their_tools_follow_changes() {
    let sandbox = Sandbox::new();
    let server = FakeServer::start();
    let headers = json!({ "X-Key": "${CUELIGHT_API_KEY}" });
    sandbox.servers(json!({ "web": { "type": "http", "url": server.url(), "headers": headers } }));
    sandbox.say(&[call("web__change", json!({}))]);
    let mut chat = sandbox.chat(&["--grammar", "grammar.gbnf", "--allow-tool", "web.*"]);
    let listed = chat.enter("/tools", "\n>>> ");
    // They are on two pages.
    assert!(listed.contains("web.change  without asking") && listed.contains("web.slow"), "{listed}");
    assert!(!listed.contains("web.added") && server.header("x-key").as_deref() == Some("secret"), "{listed}");
    let ran = chat.enter("hello", "\n>>> ");
    assert!(ran.contains("tool web.change {} → 7 B in"), "{ran}");
    wait_until(|| server.has_announced());
    let changed = chat.enter("again", "\n>>> ");
    assert!(changed.contains("the tools of the MCP server web have changed"), "{changed}");
    assert!(chat.enter("/tools", "\n>>> ").contains("web.added"));
}

#[test]
fn a_server_that_was_killed_is_started_again() {
    let sandbox = Sandbox::new();
    let program = std::env::current_exe().unwrap();
    let script =
        format!("echo $$ >> pids; exec '{}' --exact serves_the_example --ignored --nocapture", program.display());
    sandbox.servers(json!({ "files": { "command": "sh", "args": ["-c", script], "cwd": sandbox.home.path() } }));
    sandbox.say(&[call("files__time", json!({}))]);
    let pids = || -> Vec<String> {
        std::fs::read_to_string(sandbox.path("pids")).unwrap().lines().map(str::to_owned).collect()
    };
    let mut chat = sandbox.chat(&["--grammar", "grammar.gbnf"]);
    chat.enter("hello", "this tool: ");
    assert!(Command::new("kill").args(["-9", &pids()[0]]).status().unwrap().success());
    wait_until(|| !runs(&pids()[0]));
    let failed = chat.enter("y", "this tool: ");
    assert!(
        failed.contains("the server of the tool has ended; it is started again before the next question"),
        "{failed}"
    );
    chat.send("\u{3}");
    chat.wait_for("\n>>> ");
    let again = chat.enter("hello", "this tool: ");
    assert!(again.contains("the MCP server files had ended and was started again"), "{again}");
    assert!(chat.enter("y", "this tool: ").contains("→ 10 B in"));
    let second = pids()[1].clone();
    assert!(runs(&second));
    chat.send("\u{3}");
    chat.wait_for("\n>>> ");
    chat.send(END);
    assert_eq!(chat.exit_code(), 0);
    assert!(!runs(&second), "it ends with the program");
}

#[test]
fn servers_end_with_the_program_when_a_signal_ends_it() {
    let sandbox = Sandbox::new();
    // Neither the end of its input nor a request ends this one's helper.
    let program = std::env::current_exe().unwrap();
    let helper = "sh -c 'trap \"\" TERM; echo $$ > helper; while :; do sleep 1; done' </dev/null >/dev/null 2>&1 &";
    let script = format!("{helper} exec '{}' --exact serves_the_example --ignored --nocapture", program.display());
    sandbox.servers(json!({ "files": { "command": "sh", "args": ["-c", script], "cwd": sandbox.home.path() } }));
    for signal in ["-TERM", "-HUP"] {
        let mut chat = sandbox.chat(&[]);
        // The helper may start after the server.
        let written = || std::fs::read_to_string(sandbox.path("helper")).unwrap_or_default();
        wait_until(|| written().ends_with('\n'));
        let helper = written();
        std::fs::remove_file(sandbox.path("helper")).unwrap();
        assert!(runs(helper.trim()));
        assert!(Command::new("kill").args([signal, &chat.id().to_string()]).status().unwrap().success());
        chat.exit_code();
        wait_until(|| !runs(helper.trim()));
    }
}

#[test]
fn servers_that_do_not_start_are_named_with_the_end_of_their_errors() {
    let sandbox = Sandbox::new();
    let web = FakeServer::start();
    for (entry, parts) in [
        (json!({ "command": "no-such-program" }), &["the program no-such-program was not found"][..]),
        (json!({ "command": "./no-such-program" }), &["./no-such-program does not exist"]),
        (json!({ "command": "sh", "cwd": "/no/such/directory" }), &["/no/such/directory is not a directory"]),
        (Sandbox::script("echo 'no key' >&2; exit 3"), &["it ended before it answered", "no key"]),
        (json!({ "url": format!("{}/closed", web.url()) }), &["(HTTP status 401); put a token into `headers`"]),
        (json!({ "url": format!("{}/moved", web.url()) }), &["redirects to /mcp"]),
        (json!({ "url": format!("{}/none", web.url()) }), &["HTTP status 404"]),
        (json!({ "url": "http://127.0.0.1:9/mcp" }), &["refused"]),
        (json!({ "type": "sse", "url": "http://127.0.0.1:9/" }), &["the transport \"sse\" is not supported"]),
        (json!({ "command": "x", "env": { "A": "${NOT_SET}" } }), &["the environment variable NOT_SET is not set"]),
    ] {
        sandbox.servers(json!({ "good": sandbox.example(), "bad": entry }));
        let ran = sandbox.run(&["hello"]);
        assert_eq!(ran.code, 1, "{}", ran.errors);
        assert!(ran.errors.contains("server bad"), "{}", ran.errors);
        for part in parts {
            assert!(ran.errors.contains(part), "{part}: {}", ran.errors);
        }
    }
    std::fs::write(sandbox.path("tools.json"), "{").unwrap();
    assert!(sandbox.run(&["hello"]).errors.contains("tools.json is not JSON"));
    std::fs::remove_file(sandbox.path("tools.json")).unwrap();
    assert!(sandbox.run(&["hello"]).errors.contains("cannot read tools.json"));
}

#[test]
fn servers_do_not_get_the_secrets_of_this_program() {
    let sandbox = Sandbox::new();
    sandbox.servers(json!({ "bad": Sandbox::script("echo \"home $HOME key [$CUELIGHT_API_KEY]\" >&2; exit 1") }));
    let ran = sandbox.run(&["hello"]);
    assert!(ran.errors.contains(&format!("home {} key []", sandbox.home.path().display())), "{}", ran.errors);
}

#[test]
fn a_model_that_cannot_call_tools_is_refused() {
    let sandbox = Sandbox::new();
    let plain = "{% for message in messages %}{{ message.content }}{% endfor %}";
    std::fs::write(sandbox.path("template.jinja"), plain).unwrap();
    let ran = sandbox.run(&["hello", "--max-tokens", "4"]);
    assert!(ran.errors.contains("--mcp: this model cannot call tools") && ran.code == 2, "{}", ran.errors);
    let ran = sandbox.run(&["hello", "--raw"]);
    assert!(ran.errors.contains("--mcp: without a chat template") && ran.code == 2, "{}", ran.errors);
    std::fs::write(sandbox.path("conf.toml"), "[tools]\nmcp = \"tools.json\"\n").unwrap();
    let mut command = sandbox.plain(&["hello", "--max-tokens", "4", "--config", "conf.toml"]);
    let ran = Ran::of(command.output().unwrap());
    assert!(ran.errors.contains("those of the configuration are left out") && ran.code == 0, "{}", ran.errors);
}
