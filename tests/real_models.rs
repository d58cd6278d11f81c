//! Real models, compared with Hugging Face transformers on the same texts and the file's dequantised weights.
//!
//! `tests/fetch_models.py` downloads the files, `tests/generate/real_models.py` writes the expected values:
//! `CUELIGHT_TEST_MODELS=FOLDER cargo test --release --test real_models -- --ignored --nocapture --test-threads 1`.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};

use cuelight_engine::engine::TokenId;
use cuelight_engine::format::gguf::Gguf;
use cuelight_engine::load::{self, ActivationBits, ComputeDevice, CpuExperts, Kernel, KvType, LoadOptions};
use cuelight_engine::perplexity::{Perplexity, Scored, Scorer, Text as LongText};
use cuelight_engine::synthetic::Synthetic;
use serde::Deserialize;

#[path = "support/runner.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod runner;

use runner::{Sequence, Setup, argmax, deltas, largest, load, mean, sha256};

/// Largest mean |Δ log-prob| of a text's tokens, in nats.
const MEAN_GATE: f64 = 0.02;

/// How much less likely than the expected best token our best token may be at any position, in nats.
const REGRET_GATE: f64 = 0.1;

/// Largest relative difference of a long text's perplexity.
const PERPLEXITY_GATE: f64 = 0.003;

/// [`PERPLEXITY_GATE`] for an 8-bit cache. Qwen 2.5 differs most, because the biases of its keys make a few dimensions very large.
const PERPLEXITY_GATE_OF_Q8_0: f64 = 0.02;

/// The expected values of one model, from transformers.
#[derive(Deserialize)]
struct Expected {
    model: String,
    bytes: u64,
    sha256: String,
    perplexity: ExpectedPerplexity,
    texts: Vec<Text>,
}

/// Windows of a long text, scored by each rule.
#[derive(Deserialize)]
struct ExpectedPerplexity {
    file: String,
    context: usize,
    tokens: Vec<TokenId>,
    scored: Vec<ExpectedNats>,
}

/// The mean negative log-likelihood of the tokens that a rule scores.
#[derive(Deserialize)]
struct ExpectedNats {
    rule: String,
    tokens: usize,
    mean_nats: f64,
}

/// One text.
#[derive(Deserialize)]
struct Text {
    text: String,
    tokens: Vec<TokenId>,
    logprobs: Vec<f64>,
    /// For each position, the best token and all tokens within half a nat of it, best first.
    near: Vec<Vec<(TokenId, f64)>>,
}

impl Text {
    /// How much less likely `token` is than the best token at `position`; 0.5 if it is not in `near`.
    fn regret(&self, position: usize, token: TokenId) -> f64 {
        let near = &self.near[position];
        let found = near.iter().find(|(candidate, _)| *candidate == token);
        found.map_or(0.5, |(_, log_prob)| near[0].1 - log_prob)
    }
}

fn models_folder() -> PathBuf {
    let folder = std::env::var_os("CUELIGHT_TEST_MODELS");
    PathBuf::from(folder.expect("CUELIGHT_TEST_MODELS names the folder with the files of tests/fetch_models.py"))
}

/// The expected values of a model, and its file.
fn expected(name: &str) -> (Expected, PathBuf) {
    let answers = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/fixtures/real/{name}.json"));
    let expected: Expected = serde_json::from_slice(&std::fs::read(answers).unwrap()).unwrap();
    let path = models_folder().join(&expected.model);
    let metadata = std::fs::metadata(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    assert_eq!(metadata.len(), expected.bytes, "size of {}", path.display());
    assert_eq!(sha256(&path), expected.sha256, "SHA-256 of {}", path.display());
    (expected, path)
}

fn check(name: &str, device: ComputeDevice) {
    let (expected, path) = expected(name);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let setup = Setup {
        kv_type: KvType::F16,
        kernel: Kernel::detect(),
        threads,
        context_tokens: 512,
        max_sequences: 8,
        device,
        deterministic: false,
        cpu_experts: CpuExperts::Auto,
        activation_bits: ActivationBits::default(),
    };
    let mut runner = load(&path, setup);
    let mut failures = Vec::new();
    for text in &expected.texts {
        let mut sequence = Sequence::default();
        let rows = runner.feed(&mut sequence, &text.tokens, usize::MAX);
        runner.release(sequence);
        let differences = deltas(&rows, &text.tokens, &text.logprobs);
        let regrets: Vec<f64> =
            rows.iter().enumerate().map(|(position, row)| text.regret(position, argmax(row))).collect();
        let (mean, worst, regret) = (mean(&differences), largest(&differences), largest(&regrets));
        println!("{name:28} {device:9} {:6} mean {mean:.4}  worst {worst:.4}  regret {regret:.4}", text.text);
        if mean.is_nan() || mean > MEAN_GATE || regret > REGRET_GATE {
            failures.push(format!("{}: mean |Δ log-prob| {mean:.4}, regret {regret:.4}", text.text));
        }
    }
    assert!(failures.is_empty(), "{name} is further than {MEAN_GATE} or {REGRET_GATE}:\n{}", failures.join("\n"));
}

/// Compares perplexities by each rule with a float16 cache, and by the first with an 8-bit cache.
fn check_perplexity(name: &str) {
    let (Expected { perplexity: expected, .. }, path) = expected(name);
    let mut failures = Vec::new();
    let cases = [
        (KvType::F16, PERPLEXITY_GATE, &expected.scored[..]),
        (KvType::Q8_0, PERPLEXITY_GATE_OF_Q8_0, &expected.scored[..1]),
    ];
    for (kv_type, gate, rules) in cases {
        let (context_tokens, path) = (Some(expected.context), path.clone());
        let options =
            LoadOptions { context_tokens, max_sequences: 1, kv_bytes: None, kv_type, ..LoadOptions::new(path) };
        let mut loaded = load::plan(&options).unwrap().load(&mut |_| {}).unwrap();
        let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(&expected.file)).unwrap();
        let text = LongText::new(&loaded.tokenizer, &text).unwrap();
        assert_eq!(text.tokens, expected.tokens, "tokens of {}", expected.file);
        for ExpectedNats { rule, tokens, mean_nats } in rules {
            let scored = if rule == "all" { Scored::All } else { Scored::LaterHalf };
            let (mut perplexity, mut scorer) = (Perplexity::default(), Scorer::new(&mut loaded.engine));
            for window in text.windows(expected.context, scored).unwrap() {
                scorer.score(&window, &mut perplexity).unwrap();
            }
            assert_eq!(perplexity.tokens, *tokens, "scored by the rule {rule}");
            let (ours, theirs) = (perplexity.value(), mean_nats.exp());
            let percent = (ours / theirs - 1.0) * 100.0;
            println!(
                "{name:28} {kv_type:5} {rule:10} {tokens} tokens  {ours:.4}  expected {theirs:.4}  {percent:+.3} %"
            );
            if percent.is_nan() || percent.abs() > 100.0 * gate {
                failures.push(format!(
                    "{kv_type}, {rule}: {ours:.4} instead of {theirs:.4}, a difference of more than {gate}"
                ));
            }
        }
    }
    assert!(failures.is_empty(), "{name}:\n{}", failures.join("\n"));
}

#[test]
#[ignore = "needs real weights: set CUELIGHT_TEST_MODELS"]
fn smollm2_scores_texts_as_transformers_does() {
    check("smollm2-135m-instruct", ComputeDevice::Cpu);
}

#[test]
#[ignore = "needs real weights: set CUELIGHT_TEST_MODELS"]
fn gemma_3_scores_texts_as_transformers_does() {
    check("gemma-3-270m", ComputeDevice::Cpu);
}

#[test]
#[ignore = "needs real weights: set CUELIGHT_TEST_MODELS"]
fn qwen2_5_coder_scores_texts_as_transformers_does() {
    check("qwen2.5-coder-1.5b-instruct", ComputeDevice::Cpu);
}

#[test]
#[ignore = "needs real weights: set CUELIGHT_TEST_MODELS, and a Vulkan device"]
fn smollm2_scores_texts_as_transformers_does_on_a_vulkan_device() {
    check("smollm2-135m-instruct", ComputeDevice::Vulkan(0));
}

#[test]
#[ignore = "needs real weights: set CUELIGHT_TEST_MODELS, and a Vulkan device"]
fn gemma_3_scores_texts_as_transformers_does_on_a_vulkan_device() {
    check("gemma-3-270m", ComputeDevice::Vulkan(0));
}

#[test]
#[ignore = "needs real weights: set CUELIGHT_TEST_MODELS"]
fn smollm2_has_the_perplexity_of_its_dequantised_weights_on_a_long_text() {
    check_perplexity("smollm2-135m-instruct");
}

#[test]
#[ignore = "needs real weights: set CUELIGHT_TEST_MODELS"]
fn gemma_3_has_the_perplexity_of_its_dequantised_weights_on_a_long_text() {
    check_perplexity("gemma-3-270m");
}

#[test]
#[ignore = "needs real weights: set CUELIGHT_TEST_MODELS"]
fn qwen2_5_coder_has_the_perplexity_of_its_dequantised_weights_on_a_long_text() {
    check_perplexity("qwen2.5-coder-1.5b-instruct");
}

/// Compares tensors, shapes and formats with files that llama-quantize wrote.
#[test]
#[ignore = "needs real weights: set CUELIGHT_TEST_MODELS"]
fn synthetic_models_have_the_tensors_that_llama_cpp_writes() {
    for (file, description) in
        [("gemma-3-270m.Q4_K_M.gguf", "gemma3-270m:q4_k_m"), ("SmolLM2-135M-Instruct.Q4_1.gguf", "smollm2-135m:q4_1")]
    {
        let real = Gguf::open(models_folder().join(file)).unwrap();
        let (ours, _pending) = description.parse::<Synthetic>().unwrap().outline().unwrap();
        for tensor in real.tensors() {
            let same = ours.tensor(&tensor.name).unwrap();
            assert_eq!((&same.dims, same.format()), (&tensor.dims, tensor.format()), "{file}: {}", tensor.name);
        }
        assert_eq!(ours.tensors().len(), real.tensors().len(), "{file}");
    }
}
