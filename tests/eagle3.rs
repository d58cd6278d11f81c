//! Draft models of EAGLE-3: compared with torch, drafting for their model, and refused for other models.
//!
//! `tests/generate/eagle3.py` writes the files and the expected values.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use cuelight_engine::engine::Engine;
use cuelight_engine::load::{Kernel, KvType, LoadOptions, Section, Source, plan};
use serde_json::{Value, json};

#[path = "support/drafts.rs"]
mod drafts;
#[path = "support/server_process.rs"]
mod server_process;
#[path = "support/test_seed.rs"]
mod test_seed;
#[path = "support/vulkan_device.rs"]
mod vulkan_device;

use drafts::{answers, deltas, metric};
use server_process::ServerProcess;
use test_seed::of_the_day;

/// Mean |Δ log-prob| of a prompt's tokens with the weights of the file and a float32 cache, in nats.
const GATE: f64 = 1e-4;

/// The draft models: two directories, and the first as a file.
const DRAFTERS: [&str; 3] = ["specforge", "speculators", "specforge.gguf"];

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/eagle3").join(name)
}

fn expected(name: &str) -> Vec<drafts::Prompt> {
    drafts::expected(&path(&format!("{}.json", name.trim_end_matches(".gguf"))))
}

fn load(options: LoadOptions) -> Box<dyn Engine> {
    plan(&options).and_then(|plan| plan.load_engine(&mut |_| {})).unwrap_or_else(|error| panic!("{error}"))
}

/// The options of a draft model for `target.gguf`.
fn drafter(name: &str) -> LoadOptions {
    LoadOptions {
        section: Section::Drafter,
        draft_of: Some(Source::File(path("target.gguf"))),
        returns_hidden: true,
        kv_type: KvType::F32,
        context_tokens: Some(256),
        threads: 1,
        ..LoadOptions::new(path(name))
    }
}

/// The draft model is on the first of the devices.
fn compare(name: &str, kernel: Kernel, devices: &str) {
    let first = devices.split(',').next().unwrap();
    let options = LoadOptions { kernel, device: first.parse().unwrap(), ..drafter(name) };
    let residuals = plan(&options).unwrap().card().residuals.clone();
    assert_eq!(residuals, if name == "speculators" { [1, 4, 8] } else { [2, 4, 5] });
    let of_model = LoadOptions { section: Section::Model, draft_of: None, residuals, ..options.clone() };
    let device = devices.parse().unwrap();
    let mut model = load(LoadOptions { source: Source::File(path("target.gguf")), device, ..of_model });
    let mut drafter = load(options);
    let mut means = Vec::new();
    for prompt in expected(name) {
        for chunk in [1, 7, 512] {
            let deltas = deltas([&mut *model, &mut *drafter], &prompt, chunk);
            means.push(deltas.iter().sum::<f64>() / deltas.len() as f64);
        }
    }
    let worst = means.iter().copied().fold(0.0, f64::max);
    println!("{name:15} {:20} largest mean {worst:8.1e}", model.limits().device);
    assert!(worst <= GATE, "{name} on {}: {means:?}", model.limits().device);
}

#[test]
fn draft_models_agree_with_torch_on_every_kernel() {
    for name in DRAFTERS {
        for kernel in Kernel::ALL.iter().copied().filter(|kernel| kernel.is_supported()) {
            compare(name, kernel, "cpu");
        }
    }
}

#[test]
fn draft_models_agree_with_torch_on_a_vulkan_device() {
    if vulkan_device::has_device() {
        // The file has the weights of the first directory.
        let setups = [("specforge", "vulkan:0"), ("speculators", "vulkan:0"), ("specforge", "cpu,vulkan:0")];
        of_the_day(setups, 3).for_each(|(name, devices)| compare(name, Kernel::detect(), devices));
    }
}

/// A config that names no layers is that of a draft model that reads the usual ones.
#[test]
fn the_usual_layers_are_read_where_a_config_names_none() {
    let copy = changed("specforge", |config| config["eagle_config"] = Value::Null);
    let plan = plan(&LoadOptions { source: Source::File(copy.path().to_owned()), ..drafter("specforge") }).unwrap();
    assert_eq!(plan.card().residuals, [2, 4, 5]);
}

async fn start(flags: &[&str]) -> ServerProcess {
    ServerProcess::start_model(&path("target.gguf"), &[&["--alias", "model"], flags].concat()).await
}

async fn embedding(server: &ServerProcess) -> Value {
    let body = json!({ "model": "model", "input": "abc dea" });
    let sent = reqwest::Client::new().post(format!("{}/v1/embeddings", server.url)).json(&body).send().await.unwrap();
    let answer: Value = sent.json().await.unwrap();
    assert!(answer["data"][0]["embedding"].as_array().is_some_and(|values| values.len() == 32), "{answer}");
    answer["data"][0]["embedding"].clone()
}

/// The draft models are trained, so a good part of what they draft is right. Embeddings have none of the values for them.
#[tokio::test(flavor = "multi_thread")]
async fn a_draft_model_drafts_for_its_model_and_changes_no_bit_of_an_answer() {
    const LEAST_ACCEPTED: f64 = 0.2;
    let prompts = expected("specforge");
    let plain = start(&["--speculate", "off"]).await;
    let (expected, embedded) = (answers(&plain, &prompts).await, embedding(&plain).await);
    drop(plain);
    for name in DRAFTERS {
        let drafter = path(name);
        let flags = ["--draft", drafter.to_str().unwrap(), "--speculate", "draft", "--draft-kv-memory", "1MiB"];
        let server = start(&flags).await;
        for _ in 0..20 {
            assert_eq!(answers(&server, &prompts).await, expected, "{name}");
        }
        assert_eq!(embedding(&server).await, embedded, "{name}");
        let counts = ["cuelight_accepted_draft_tokens_total", "cuelight_draft_tokens_total"];
        let (accepted, drafted) = (metric(&server, counts[0]).await, metric(&server, counts[1]).await);
        println!("{name:15} {accepted} of {drafted} drafted tokens accepted");
        assert!(accepted > LEAST_ACCEPTED * drafted && drafted > 0.0, "{name}: {accepted} of {drafted}");
    }
}

fn cuelight(arguments: &[&str]) -> Output {
    let home = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_cuelight"));
    command.args(arguments).env_clear().env("HOME", home.path()).env("CUELIGHT_CALIBRATE", "off");
    command.stdin(Stdio::null()).output().unwrap()
}

/// The message with which the command fails.
fn refusal(arguments: &[&str]) -> String {
    let output = cuelight(arguments);
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success(), "{text}");
    text
}

#[test]
fn a_draft_model_does_not_run_alone() {
    for name in DRAFTERS {
        let drafter = path(name);
        let text = refusal(&["run", drafter.to_str().unwrap(), "text"]);
        assert!(text.contains("cannot run alone") && text.contains("--draft"), "{text}");
        let shown = cuelight(&["show", drafter.to_str().unwrap()]);
        let text = String::from_utf8(shown.stdout).unwrap();
        assert!(shown.status.success() && text.contains("eagle3") && text.contains("cannot run alone"), "{text}");
    }
}

#[test]
fn a_draft_model_of_another_model_is_refused() {
    let other = |name: &str| Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/families").join(name);
    let drafts_for = |model: &Path, drafter: &Path| {
        refusal(&["serve", "--port", "0", model.to_str().unwrap(), "--draft", drafter.to_str().unwrap()])
    };
    let text = drafts_for(&other("llama.gguf"), &path("specforge"));
    assert!(text.contains("hidden size of 32") && text.contains("64") && text.contains("specforge"), "{text}");
    let copy = changed("specforge", |config| config["vocab_size"] = json!(1000));
    let text = drafts_for(&path("target.gguf"), copy.path());
    assert!(text.contains("vocabulary of 1000 tokens") && text.contains("512"), "{text}");
    let copy = changed("specforge", |config| config["eagle_config"]["use_aux_hidden_state"] = json!(false));
    let text = drafts_for(&path("target.gguf"), copy.path());
    assert!(text.contains("use_aux_hidden_state"), "{text}");
    let copy = changed("speculators", |config| config["eagle_aux_hidden_state_layer_ids"] = json!([1, 4, 9]));
    let text = drafts_for(&path("target.gguf"), copy.path());
    assert!(text.contains("[1, 4, 9]") && text.contains("8 layers"), "{text}");
}

#[test]
fn a_model_with_several_residual_streams_hands_out_none() {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/families/gemma3n.gguf");
    let error = plan(&LoadOptions { residuals: vec![1], ..LoadOptions::new(model) }).err().unwrap().to_string();
    assert!(error.contains("gemma3n.gguf") && error.contains("do not support the architecture"), "{error}");
}

/// A copy of a draft model with another config.
fn changed(name: &str, change: impl Fn(&mut Value)) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    let mut config = serde_json::from_slice(&std::fs::read(path(name).join("config.json")).unwrap()).unwrap();
    change(&mut config);
    std::fs::write(copy.path().join("config.json"), config.to_string()).unwrap();
    std::fs::copy(path(name).join("model.safetensors"), copy.path().join("model.safetensors")).unwrap();
    copy
}
