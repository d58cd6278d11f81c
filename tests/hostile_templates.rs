//! Hostile chat templates: each ends with an error that names the limit, and delays nothing but its own model.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

mod common;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{MODEL, Server, model};
use cuelight::pipeline::simulation::SimulatedModel;
use cuelight_engine::format::chat_template::worker::WorkerProgram;
use cuelight_engine::format::chat_template::{
    Cancellation, ChatTemplate, ChatTemplateError, Definition, TemplateInputs,
};
use serde_json::{Value, json};

const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/chat_templates");

/// The process that renders, with limits that are reached quickly.
fn program(timeout: Duration) -> WorkerProgram {
    const MEMORY_BYTES: u64 = 64 << 20;
    let arguments = ["template-worker".to_owned(), MEMORY_BYTES.to_string(), "10".to_owned()];
    WorkerProgram {
        program: env!("CARGO_BIN_EXE_cuelight").into(),
        arguments: arguments.map(Into::into).to_vec(),
        timeout,
        memory_bytes: MEMORY_BYTES,
    }
}

fn definition(source: &str) -> Definition {
    Definition { source: source.to_owned(), tool_use: None, bos_token: "<s>".to_owned(), eos_token: "</s>".to_owned() }
}

fn template(source: &str, timeout: Duration) -> Result<ChatTemplate, ChatTemplateError> {
    ChatTemplate::in_worker(definition(source), &program(timeout))
}

fn user(content: &str) -> Value {
    json!([{ "role": "user", "content": content }])
}

fn inputs(messages: &Value) -> TemplateInputs<'_> {
    TemplateInputs { messages, tools: None, documents: None, add_generation_prompt: true, variables: None }
}

/// Is hostile to the content `bad` and harmless otherwise.
fn hostile_to_bad(attack: &str) -> String {
    format!("{{% if messages[0].content == 'bad' %}}{attack}{{% else %}}fine{{% endif %}}")
}

/// Renders a hostile conversation, which must reach a limit, and a harmless one after it, which must be rendered.
#[track_caller]
fn assert_limited(attack: &str, timeout: Duration) -> String {
    let template = template(&hostile_to_bad(attack), timeout).unwrap();
    let start = Instant::now();
    let error = template.render(&inputs(&user("bad"))).unwrap_err();
    let seconds = start.elapsed().as_secs_f64();
    assert!(matches!(error, ChatTemplateError::Limit(_)), "{error:?}");
    println!("{seconds:.2} s: {attack:.50}: {error}");
    assert_eq!(template.render(&inputs(&user("good"))).unwrap(), "fine");
    error.to_string()
}

#[test]
fn a_template_that_nests_deeply_is_refused_before_it_is_parsed() {
    let sources = [
        format!("{{{{ {} 1 }}}}", "not ".repeat(5000)),
        format!("{{{{ {}1 }}}}", "-".repeat(20000)),
        format!("{{{{ 1{} }}}}", "+1".repeat(10000)),
        format!("{{{{ 1{} }}}}", "|int".repeat(10000)),
        format!("{{{{ {}1{} }}}}", "(".repeat(10000), ")".repeat(10000)),
        "{% if a %}".repeat(10000),
    ];
    for source in sources {
        let error = template(&source, Duration::from_secs(5)).unwrap_err().to_string();
        assert!(error.starts_with("the chat template exceeds a limit: it has more than"), "{error}");
    }
}

#[test]
fn a_template_at_the_limits_of_its_source_compiles() {
    let sources = [
        format!("{{{{ {}1 }}}}", "-".repeat(512)),
        format!("{{{{ {} 1 }}}}", "not ".repeat(512)),
        format!("{{{{ 1{} }}}}", "~1".repeat(512)),
        format!("{{{{ [{}] }}}}", "[],".repeat(500)),
        format!("{}{}", "{% if a %}".repeat(100), "{% endif %}".repeat(100)),
        format!("{{% if a %}}{}{{% endif %}}", "{% elif b %}".repeat(99)),
    ];
    for source in sources {
        ChatTemplate::in_process(definition(&source)).unwrap();
        template(&source, Duration::from_secs(5)).unwrap();
    }
}

#[test]
fn values_that_nest_deeply_end_the_process_that_renders_only() {
    let nest = "{% set ns = namespace(s=[]) %}{% for a in range(2000) %}{% for b in range(2000) %}{% set ns.s = [ns.s] %}\
                {% endfor %}{% endfor %}";
    for show in ["", "{{ ns.s }}"] {
        let error = assert_limited(&format!("{nest}{show}"), Duration::from_secs(20));
        assert!(error.contains("64 MiB of memory, or nests its values too deeply"), "{error}");
    }
}

#[test]
fn memory_is_limited() {
    let double = |step: &str, start: &str| {
        format!(
            "{{% set ns = namespace(s={start}) %}}{{% for i in range(40) %}}{step}{{% endfor %}}{{{{ ns.s | length }}}}"
        )
    };
    for attack in [
        "{{ ('a\\n' * 1000) | indent(1000000) }}".to_owned(),
        double("{% set ns.s = ns.s ~ ns.s %}", "'a'"),
        double("{% set ns.s = ns.s + ns.s %}", "'a'"),
        double("{% set ns.s = ns.s.replace('a', 'aa') %}", "'a'"),
        double("{% set ns.s = ns.s | replace('a', 'aa') %}", "'a'"),
        double("{% set t %}{{ ns.s }}{{ ns.s }}{% endset %}{% set ns.s = t %}", "'a'"),
        "{{ [1] | batch(1000000000, 'x') | list | length }}".to_owned(),
        "{{ [1] | slice(1000000000, 'x') | list | length }}".to_owned(),
        "{% set n = 90000000 %}{{ (('a' * n) ~ ('b' * n)) | length }}".to_owned(),
        "{{ (range(90000) | list * 1000) | list | length }}".to_owned(),
    ] {
        let error = assert_limited(&attack, Duration::from_secs(20));
        assert!(error.contains("64 MiB of memory"), "{error}");
    }
}

#[test]
fn memory_is_limited_at_load() {
    // Operators on constants are computed when the template is compiled.
    let error = template("{{ ('a' * 90000000) | length }}", Duration::from_secs(20)).unwrap_err();
    assert!(error.to_string().contains("64 MiB of memory"), "{error}");
}

/// Takes seconds before it is over the limit of instructions, and needs no memory.
const ENDLESS: &str = "{% for i in range(9999) %}{% for j in range(9999) %}{% endfor %}{% endfor %}";

#[test]
fn time_and_output_are_limited() {
    let error = assert_limited(ENDLESS, Duration::from_millis(50));
    assert!(error.ends_with("it takes longer than 50ms"), "{error}");
    let error = assert_limited("{% for i in range(99999) %}{{ 'x' * 9999 }}{% endfor %}", Duration::from_secs(20));
    assert!(error.ends_with("it writes a prompt of more than 32 MiB"), "{error}");
}

#[test]
fn a_cancelled_rendering_ends() {
    let endless = "{% set ns = namespace(s=[1]) %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}{{ 2 in ns.s }}";
    let template = template(&hostile_to_bad(endless), Duration::from_secs(60)).unwrap();
    let cancellation = Cancellation::default();
    let guard = cancellation.on_drop();
    let start = Instant::now();
    let messages = user("bad");
    let result = std::thread::scope(|scope| {
        let rendering = scope.spawn(|| template.render_prompt(&inputs(&messages), &cancellation));
        std::thread::sleep(Duration::from_millis(200));
        drop(guard);
        rendering.join().unwrap()
    });
    assert_eq!(result, Err(ChatTemplateError::Cancelled));
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    assert_eq!(template.render(&inputs(&user("good"))).unwrap(), "fine");
}

#[test]
fn a_program_that_cannot_render_is_named() {
    for (path, expected) in
        [("/no/such/program", "/no/such/program cannot be started"), ("/bin/false", "exit status: 1")]
    {
        let program = WorkerProgram { program: path.into(), ..program(Duration::from_secs(5)) };
        let error = ChatTemplate::in_worker(definition("x"), &program).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn the_process_renders_the_bytes_of_transformers() {
    let mut equal = 0;
    for name in ["instructions", "python", "turns"] {
        let file =
            |ending: &str| std::fs::read_to_string(Path::new(FIXTURES).join(name).with_extension(ending)).unwrap();
        let template = template(&file("jinja"), Duration::from_secs(20)).unwrap();
        for case in serde_json::from_str::<Vec<Value>>(&file("json")).unwrap() {
            let conversation = &case["conversation"];
            let inputs = TemplateInputs {
                tools: conversation.get("tools"),
                add_generation_prompt: conversation["add_generation_prompt"] == true,
                variables: conversation.get("variables").and_then(Value::as_object),
                ..inputs(&conversation["messages"])
            };
            if let Some(expected) = case["expected"].as_str() {
                assert_eq!(template.render(&inputs).unwrap(), expected, "{name}");
                equal += 1;
            }
        }
    }
    assert_eq!(equal, 20);
}

#[test]
fn numbers_arrive_unchanged() {
    let messages =
        json!([{ "role": "user", "content": [31.245_270_191_439_438, 121.487_919_511_619_45, 1e-7, -0.0, u64::MAX] }]);
    let source = "{{ messages | tojson }}";
    let here = ChatTemplate::in_process(definition(source)).unwrap();
    let there = template(source, Duration::from_secs(20)).unwrap();
    assert_eq!(there.render(&inputs(&messages)).unwrap(), here.render(&inputs(&messages)).unwrap());
}

/// Prints what the other process adds to an ordinary chat.
#[test]
#[ignore = "prints times, which depend on the load of the machine"]
fn times_of_rendering_a_small_chat() {
    let source = std::fs::read_to_string(Path::new(FIXTURES).join("turns.jinja")).unwrap();
    let messages = json!([
        { "role": "system", "content": "Answer briefly." },
        { "role": "user", "content": "What is the capital of France?" },
        { "role": "assistant", "content": "Paris." },
        { "role": "user", "content": "And of Spain?" },
    ]);
    let median = |template: &ChatTemplate| {
        let mut times: Vec<Duration> = (0..2000)
            .map(|_| {
                let start = Instant::now();
                template.render(&inputs(&messages)).unwrap();
                start.elapsed()
            })
            .collect();
        times.sort_unstable();
        times[times.len() / 2]
    };
    let here = median(&ChatTemplate::in_process(definition(&source)).unwrap());
    let there = median(&template(&source, Duration::from_secs(20)).unwrap());
    println!("median of 2000 renderings: {here:?} in this process, {there:?} in another");
}

fn chat(content: &str) -> Value {
    json!({ "model": MODEL, "max_tokens": 1, "messages": user(content) })
}

/// A server whose template takes its whole time of 300 ms on the content `bad`.
async fn slow_server() -> Server {
    let template = template(&hostile_to_bad(ENDLESS), Duration::from_millis(300)).unwrap();
    Server::start(SimulatedModel { chat_template: Some(Arc::new(template)), ..model() }).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_template_delays_neither_probes_nor_other_models() {
    let (slow, other) = (slow_server().await, Server::start(model()).await);
    let hostile = async {
        // More conversations than rendering slots and worker threads.
        let body = chat("bad");
        let calls = (0..4).map(|_| slow.post("/v1/chat/completions", &body));
        let answers = futures_util::future::join_all(calls).await;
        for answer in answers {
            assert_eq!(answer.status, 400, "{}", answer.text());
            assert!(answer.text().contains("it takes longer than 300ms"), "{}", answer.text());
        }
    };
    let honest = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let mut slowest = Duration::ZERO;
        for _ in 0..20 {
            let start = Instant::now();
            assert_eq!(slow.get("/health").await.status, 200);
            other.ok("/v1/chat/completions", &chat("hello")).await;
            slowest = slowest.max(start.elapsed());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        slowest
    };
    let (slowest, ()) = tokio::join!(honest, hostile);
    println!("slowest probe and chat: {slowest:?}");
    assert!(slowest < Duration::from_millis(1500), "{slowest:?}");
    assert_eq!(slow.post("/v1/chat/completions", &chat("good")).await.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_leaves_frees_its_rendering_slot() {
    let server = slow_server().await;
    let body = chat("bad");
    for _ in 0..6 {
        let call = server.post("/v1/chat/completions", &body);
        assert!(tokio::time::timeout(Duration::from_millis(100), call).await.is_err());
    }
    // Six conversations in two slots would take six seconds.
    let start = Instant::now();
    assert_eq!(server.post("/v1/chat/completions", &chat("good")).await.status, 200);
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
}

/// Prints what a request takes with either kind of rendering, and without any.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "prints times, which depend on the load of the machine"]
async fn times_of_a_small_request() {
    let source = std::fs::read_to_string(Path::new(FIXTURES).join("turns.jinja")).unwrap();
    let with = |template: ChatTemplate| SimulatedModel { chat_template: Some(Arc::new(template)), ..model() };
    let here = Server::start(with(ChatTemplate::in_process(definition(&source)).unwrap())).await;
    let there = Server::start(with(template(&source, Duration::from_secs(20)).unwrap())).await;
    let chat = json!({ "model": MODEL, "messages": user("What is the capital of France?") });
    let plain = json!({ "model": MODEL, "prompt": "What is the capital of France?" });
    let mut medians = Vec::new();
    for (server, body) in [(&here, &plain), (&here, &chat), (&there, &chat)] {
        let mut times = Vec::new();
        for _ in 0..1000 {
            let start = Instant::now();
            server.ok("/tokenize", body).await;
            times.push(start.elapsed());
        }
        times.sort_unstable();
        medians.push(times[times.len() / 2]);
    }
    println!(
        "median of 1000: {:?} without template, {:?} in this process, {:?} in another",
        medians[0], medians[1], medians[2]
    );
}
