//! Real models against what Hugging Face transformers says of the same texts with the file's dequantised weights.
//!
//! `tests/fetch_models.py` fetches the files, `tests/generate/real_models.py` wrote the answers:
//! `CUELIGHT_TEST_MODELS=FOLDER cargo test --release --test real_models -- --ignored --nocapture --test-threads 1`.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};

use cuelight_engine::engine::TokenId;
use cuelight_engine::load::{Kernel, KvType};
use serde::Deserialize;

#[path = "support/runner.rs"]
mod runner;

use runner::{Sequence, Setup, argmax, deltas, largest, load, mean, sha256};

/// Mean |Δ log-prob| of a text's tokens, in nats.
const MEAN_GATE: f64 = 0.02;

/// How much less likely than the best our likeliest token may be at any position, in nats.
const REGRET_GATE: f64 = 0.1;

/// What transformers says of one model.
#[derive(Deserialize)]
struct Expected {
    model: String,
    bytes: u64,
    sha256: String,
    texts: Vec<Text>,
}

/// One text.
#[derive(Deserialize)]
struct Text {
    text: String,
    tokens: Vec<TokenId>,
    logprobs: Vec<f64>,
    /// At each position the best token and those within half a nat of it, best first.
    near: Vec<Vec<(TokenId, f64)>>,
}

impl Text {
    /// How much less likely `token` is than the best at `position`; at least half a nat if it is not near.
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

fn check(name: &str) {
    let answers = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/fixtures/real/{name}.json"));
    let expected: Expected = serde_json::from_slice(&std::fs::read(answers).unwrap()).unwrap();
    let path = models_folder().join(&expected.model);
    let metadata = std::fs::metadata(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    assert_eq!(metadata.len(), expected.bytes, "size of {}", path.display());
    assert_eq!(sha256(&path), expected.sha256, "SHA-256 of {}", path.display());

    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let setup =
        Setup { kv_type: KvType::F16, kernel: Kernel::detect(), threads, context_tokens: 512, max_sequences: 8 };
    let mut runner = load(&path, setup);
    let mut complaints = Vec::new();
    for text in &expected.texts {
        let mut sequence = Sequence::default();
        let rows = runner.feed(&mut sequence, &text.tokens, usize::MAX);
        runner.release(sequence);
        let differences = deltas(&rows, &text.tokens, &text.logprobs);
        let regrets: Vec<f64> =
            rows.iter().enumerate().map(|(position, row)| text.regret(position, argmax(row))).collect();
        let (mean, worst, regret) = (mean(&differences), largest(&differences), largest(&regrets));
        println!("{name:28} {:6} mean {mean:.4}  worst {worst:.4}  regret {regret:.4}", text.text);
        if mean.is_nan() || mean > MEAN_GATE || regret > REGRET_GATE {
            complaints.push(format!("{}: mean |Δ log-prob| {mean:.4}, regret {regret:.4}", text.text));
        }
    }
    assert!(complaints.is_empty(), "{name} is further than {MEAN_GATE} or {REGRET_GATE}:\n{}", complaints.join("\n"));
}

#[test]
#[ignore = "needs real weights: set CUELIGHT_TEST_MODELS"]
fn smollm2_scores_texts_as_transformers_does() {
    check("smollm2-135m-instruct");
}

#[test]
#[ignore = "needs real weights: set CUELIGHT_TEST_MODELS"]
fn gemma_3_scores_texts_as_transformers_does() {
    check("gemma-3-270m");
}

#[test]
#[ignore = "needs real weights: set CUELIGHT_TEST_MODELS"]
fn qwen2_5_coder_scores_texts_as_transformers_does() {
    check("qwen2.5-coder-1.5b-instruct");
}
