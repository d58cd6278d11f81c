//! Models that classify texts, compared with Hugging Face transformers.
//!
//! `tests/generate/classifiers.py` writes tiny models and the logits of some texts and pairs. The tokens must be those of the
//! oracle, and logits and scores near those of the oracle, on every device and from every kind of file.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};

use cuelight_engine::embedding::{ClassScores, Pooling, Product};
use cuelight_engine::engine::{BLOCK_TOKENS, LogitsWanted, Progress, SequenceRows, Step, StepId, TokenId};
use cuelight_engine::load::{ComputeDevice, Kernel, KvType, LoadOptions, plan};
use cuelight_engine::rerank::{PairLimits, PairPrompt, QueryEncoder};
use serde::Deserialize;

#[path = "support/vulkan_device.rs"]
mod vulkan_device;

use vulkan_device::has_device;

/// Largest difference of a logit or a score.
const GATE: f32 = 1e-4;

/// [`GATE`] on a device, which may compute products with less precise numbers.
const DEVICE_GATE: f32 = 2e-2;

/// The models, and whether each has a GGUF file.
const MODELS: [(&str, bool); 3] = [("bert", true), ("modern-bert", true), ("qwen3", false)];

/// The expected values of one model.
#[derive(Deserialize)]
struct Expected {
    labels: Vec<String>,
    texts: Vec<ExpectedText>,
}

#[derive(Deserialize)]
struct ExpectedText {
    /// One text, or two.
    text: Vec<String>,
    tokens: Vec<TokenId>,
    logits: Vec<f32>,
    scores: Vec<f32>,
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/classifiers")
}

fn options(path: &Path) -> LoadOptions {
    LoadOptions { kv_type: KvType::F32, max_batched_tokens: 512, threads: 2, ..LoadOptions::new(path) }
}

/// The directory of each model, and its GGUF file.
fn files() -> impl Iterator<Item = (&'static str, PathBuf)> {
    MODELS.into_iter().flat_map(|(name, has_file)| {
        let file = has_file.then(|| folder().join(format!("{name}.gguf")));
        [folder().join(name)].into_iter().chain(file).map(move |path| (name, path))
    })
}

fn distance(left: &[f32], right: &[f32]) -> f32 {
    assert_eq!(left.len(), right.len());
    assert!(left.iter().all(|value| value.is_finite()), "{left:?}");
    left.iter().zip(right).map(|(left, right)| (left - right).abs()).fold(0.0, f32::max)
}

/// Checks the tokens, the logits and the scores of a model, each text alone.
fn check(name: &str, options: &LoadOptions, gate: f32) {
    let json = std::fs::read(folder().join(format!("{name}.json"))).unwrap();
    let expected: Expected = serde_json::from_slice(&json).unwrap();
    let planned = plan(options).unwrap_or_else(|error| panic!("{error}"));
    let (card, tokenizer) = (planned.card().clone(), planned.tokenizer().unwrap());
    assert_eq!(card.labels, expected.labels);
    assert_eq!(card.embedding.product(), Product::Classes);
    let scores = card.embedding.classes.unwrap();
    let mut engine = planned.load_engine(&mut |_| {}).unwrap();
    let mut worst = 0.0_f32;
    for (index, text) in (0..).zip(&expected.texts) {
        let (tokens, second_text) = match &text.text[..] {
            [one] => (tokenizer.encode(one, true, true).unwrap(), None),
            [first, second] => {
                let limits = PairLimits { tokens: 1000, document_tokens: usize::MAX, truncates: false };
                let prompt = PairPrompt::new(&tokenizer, None).unwrap();
                let pair = QueryEncoder::new(&prompt, &tokenizer, first).unwrap().pair(second, limits).unwrap();
                (pair.tokens, pair.second_text.map(|start| start as u32))
            }
            _ => panic!("one text or two"),
        };
        assert_eq!(tokens, text.tokens, "{name}: {:?}", text.text);
        let rows = SequenceRows {
            block_table: (0..tokens.len().div_ceil(BLOCK_TOKENS) as u32).collect(),
            tokens,
            logits: LogitsWanted::Hidden(card.embedding.pooling.rows()),
            second_text,
            ..SequenceRows::default()
        };
        let step = Step { id: StepId(index), sequences: vec![rows] };
        let Progress::Done(output) = engine.begin(step).unwrap() else { panic!("experts are computed here") };
        worst =
            worst.max(distance(&output.hidden, &text.logits)).max(distance(&scores.of(&output.hidden), &text.scores));
    }
    println!("{name:12} {worst:8.1e}");
    assert!(worst <= gate, "{name}: a score differs by {worst}");
}

#[test]
fn every_kernel_gives_the_scores_of_transformers() {
    for kernel in Kernel::ALL.iter().copied().filter(|kernel| kernel.is_supported()) {
        for (name, path) in files() {
            check(name, &LoadOptions { kernel, ..options(&path) }, GATE);
        }
    }
}

#[test]
fn a_device_gives_the_scores_of_transformers() {
    if !has_device() {
        return;
    }
    for (name, _) in MODELS {
        let device = ComputeDevice::Vulkan(0).into();
        check(name, &LoadOptions { device, ..options(&folder().join(name)) }, DEVICE_GATE);
    }
}

#[test]
fn scores_follow_from_the_problem_and_rows_from_the_pooling() {
    let spec = |name: &str| plan(&options(&folder().join(name))).unwrap().card().embedding;
    let [bert, modern_bert, qwen3] = MODELS.map(|(name, _)| spec(name));
    assert_eq!((bert.pooling, bert.width, bert.classes), (Pooling::First, 3, Some(ClassScores::Softmax)));
    assert_eq!((modern_bert.pooling, modern_bert.classes), (Pooling::First, Some(ClassScores::Sigmoid)));
    assert_eq!((qwen3.pooling, qwen3.classes), (Pooling::Last, Some(ClassScores::Softmax)));
}

/// A copy of the directory of an encoder with changes in its config.
fn changed(change: impl Fn(&mut serde_json::Value)) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    for name in ["config.json", "model.safetensors", "tokenizer.json"] {
        std::fs::copy(folder().join("bert").join(name), copy.path().join(name)).unwrap();
    }
    let config = copy.path().join("config.json");
    let mut changed: serde_json::Value = serde_json::from_slice(&std::fs::read(&config).unwrap()).unwrap();
    change(&mut changed);
    std::fs::write(&config, changed.to_string()).unwrap();
    copy
}

#[test]
fn a_config_names_its_classes_and_its_problem() {
    let of = |change: &dyn Fn(&mut serde_json::Value)| {
        let copy = changed(change);
        plan(&options(copy.path())).map(|planned| planned.card().clone()).map_err(|error| error.to_string())
    };
    let unnamed = of(&|config| config["id2label"] = serde_json::Value::Null).unwrap();
    assert_eq!(unnamed.labels, ["LABEL_0", "LABEL_1", "LABEL_2"]);
    let regression = of(&|config| config["problem_type"] = "regression".into()).unwrap();
    assert_eq!(regression.embedding.classes, Some(ClassScores::Logits));
    let unknown = of(&|config| config["problem_type"] = "ranking".into()).unwrap_err();
    assert!(unknown.contains("classifier.problem_type") && unknown.contains("ranking"), "{unknown}");
    let gap = of(&|config| config["id2label"] = serde_json::json!({ "0": "a", "2": "c", "3": "d" })).unwrap_err();
    assert!(gap.contains("id2label"), "{gap}");
    let few = of(&|config| config["id2label"] = serde_json::json!({ "0": "a", "1": "b" })).unwrap_err();
    assert!(few.contains("classifier.output_labels") && few.contains("2 labels"), "{few}");
}
