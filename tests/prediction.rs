//! Layers for multi-token prediction: compared with torch, and drafting for their own model.
//!
//! `tests/generate/prediction.py` writes the files and the expected values.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use cuelight_engine::engine::{Engine, LogitsWanted, Progress, SequenceRows, Step, StepId, TokenId};
use cuelight_engine::load::{ComputeDevice, Kernel, KvType, LoadError, LoadOptions, Section, plan};

#[path = "support/drafts.rs"]
mod drafts;
#[path = "support/server_process.rs"]
mod server_process;
#[path = "support/test_seed.rs"]
mod test_seed;
#[path = "support/vulkan_device.rs"]
mod vulkan_device;

use drafts::{Prompt, answers, deltas, metric, run};
use server_process::ServerProcess;
use test_seed::of_the_day;

/// Mean |Δ log-prob| of a prompt's tokens with float32 weights and a float32 cache, in nats.
const GATE: f64 = 1e-4;

/// The files, without their ending.
const NAMES: [&str; 4] = ["qwen35", "glm4moe", "deepseek3", "bailingmoe3"];

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/prediction").join(format!("{name}.gguf"))
}

fn expected(name: &str) -> Vec<Prompt> {
    drafts::expected(&file(name).with_extension("json"))
}

fn load(path: &Path, section: Section, kernel: Kernel, device: ComputeDevice) -> Box<dyn Engine> {
    let options = LoadOptions {
        section,
        returns_hidden: true,
        kv_type: KvType::F32,
        context_tokens: Some(256),
        threads: 1,
        kernel,
        device: device.into(),
        ..LoadOptions::new(path)
    };
    plan(&options).and_then(|plan| plan.load_engine(&mut |_| {})).unwrap_or_else(|error| panic!("{error}"))
}

fn compare(name: &str, path: &Path, kernel: Kernel, device: ComputeDevice) {
    let [mut trunk, mut layer] = [Section::Model, Section::Prediction].map(|part| load(path, part, kernel, device));
    let mut means = Vec::new();
    for prompt in expected(name) {
        for chunk in [1, 7, 512] {
            let deltas = deltas([&mut *trunk, &mut *layer], &prompt, chunk);
            means.push(deltas.iter().sum::<f64>() / deltas.len() as f64);
        }
    }
    let worst = means.iter().copied().fold(0.0, f64::max);
    println!("{name:12} {:20} largest mean {worst:8.1e}", trunk.limits().device);
    assert!(means.iter().all(|mean| *mean <= GATE), "{name} on {}: {means:?}", trunk.limits().device);
}

#[test]
fn layers_agree_with_torch_on_every_kernel() {
    for name in NAMES {
        for kernel in Kernel::ALL.iter().copied().filter(|kernel| kernel.is_supported()) {
            compare(name, &file(name), kernel, ComputeDevice::Cpu);
        }
    }
}

#[test]
fn layers_agree_with_torch_on_a_vulkan_device() {
    if vulkan_device::has_device() {
        let compare = |name: &str| compare(name, &file(name), Kernel::detect(), ComputeDevice::Vulkan(0));
        of_the_day(NAMES, 2).for_each(compare);
    }
}

/// A directory has the layer in a part of its own, or after the last layer.
#[test]
fn layers_of_directories_agree_with_torch() {
    for name in NAMES {
        compare(name, &file(name).with_extension(""), Kernel::detect(), ComputeDevice::Cpu);
    }
}

#[test]
fn returned_hidden_values_change_no_logits() {
    let [mut with, mut without] = [true, false].map(|returns_hidden| {
        let options = LoadOptions { returns_hidden, context_tokens: Some(256), ..LoadOptions::new(file("glm4moe")) };
        plan(&options).unwrap().load_engine(&mut |_| {}).unwrap()
    });
    let tokens: Vec<TokenId> = (0..40).map(|index| 97 + index * 7 % 20).collect();
    let logits = run(&mut *with, &tokens, 0, &[]).logits;
    let rows =
        SequenceRows { tokens, block_table: (0..12).collect(), logits: LogitsWanted::All, ..SequenceRows::default() };
    let Progress::Done(plain) = without.begin(Step { id: StepId(0), sequences: vec![rows] }).unwrap() else { panic!() };
    assert!(logits.iter().zip(&plain.logits).all(|(a, b)| a.to_bits() == b.to_bits()) && plain.hidden.is_empty());
}

#[test]
fn a_file_without_such_a_layer_is_refused() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/families/llama-q8_0.gguf");
    let options = LoadOptions { section: Section::Prediction, ..LoadOptions::new(&file) };
    let Err(LoadError::Model(error)) = plan(&options) else { panic!("there is no layer to load") };
    let text = error.to_string();
    assert!(text.contains("llama-q8_0.gguf") && text.contains("no layer for multi-token prediction"), "{text}");
    let mut command = Command::new(env!("CARGO_BIN_EXE_cuelight"));
    let home = tempfile::tempdir().unwrap();
    command.args(["serve", "--port", "0", "--draft", "mtp"]).arg(file).env_clear().env("HOME", home.path());
    let output = command.env("CUELIGHT_CALIBRATE", "off").stdin(Stdio::null()).output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && text.contains("no layer for multi-token prediction"), "{text}");
}

async fn start(name: &str, flags: &[&str]) -> ServerProcess {
    ServerProcess::start_model(&file(name), &[&["--alias", "model"], flags].concat()).await
}

/// The layers are trained, so a good part of what they draft is right.
#[tokio::test(flavor = "multi_thread")]
async fn a_layer_drafts_for_its_model_and_changes_no_bit_of_an_answer() {
    const LEAST_ACCEPTED: f64 = 0.2;
    for name in NAMES {
        let plain = start(name, &["--speculate", "off"]).await;
        let prompts = expected(name);
        let expected = answers(&plain, &prompts).await;
        drop(plain);
        let flags = ["--draft", "mtp", "--speculate", "draft", "--draft-kv-memory", "1MiB"];
        let server = start(name, &flags).await;
        for _ in 0..20 {
            assert_eq!(answers(&server, &prompts).await, expected, "{name}");
        }
        let counts = ["cuelight_accepted_draft_tokens_total", "cuelight_draft_tokens_total"];
        let (accepted, drafted) = (metric(&server, counts[0]).await, metric(&server, counts[1]).await);
        println!("{name:12} {accepted} of {drafted} drafted tokens accepted");
        assert!(accepted > LEAST_ACCEPTED * drafted && drafted > 0.0, "{name}: {accepted} of {drafted}");
    }
}
