//! Rerankers, compared with Hugging Face transformers.
//!
//! `tests/generate/rerankers.py` writes tiny models and the scores of some documents. The tokens of a query and a document must be
//! those of the oracle, and the score near that of the oracle, on every device and from every kind of file. Alone and in a batch,
//! the bits of a score are the same.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};

use cuelight_engine::checkpoint;
use cuelight_engine::embedding::{EmbeddingSpec, Pooling, Relevance, sigmoid};
use cuelight_engine::engine::{
    BLOCK_TOKENS, Engine, HiddenRows, LogitsWanted, Progress, SequenceRows, Step, StepId, TokenId,
};
use cuelight_engine::format::gguf::write::GgufBuilder;
use cuelight_engine::format::tokenizer::Tokenizer;
use cuelight_engine::load::{ComputeDevice, Kernel, KvType, LoadOptions, plan};
use cuelight_engine::rerank::{Pair, PairLimits, PairPrompt, QueryEncoder};
use serde::Deserialize;
use serde_json::{Value, json};

#[path = "support/vulkan_device.rs"]
mod vulkan_device;

use vulkan_device::has_device;

/// Largest difference of a logit or a score.
const GATE: f32 = 1e-4;

/// [`GATE`] on a device, which may compute products with less precise numbers.
const DEVICE_GATE: f32 = 2e-2;

/// The expected values of one model.
#[derive(Deserialize)]
struct Expected {
    model: String,
    pairs: Vec<ExpectedPair>,
}

#[derive(Deserialize)]
struct ExpectedPair {
    query: String,
    document: String,
    tokens: Vec<TokenId>,
    logit: f32,
    score: f32,
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/rerankers")
}

fn all() -> Vec<Expected> {
    ["bert", "xlm-roberta", "modern-bert", "qwen3", "qwen3-answers"].map(expected).into()
}

fn expected(name: &str) -> Expected {
    serde_json::from_slice(&std::fs::read(folder().join(format!("{name}.json"))).unwrap()).unwrap()
}

fn options(path: &Path) -> LoadOptions {
    LoadOptions { kv_type: KvType::F32, max_batched_tokens: 2048, threads: 2, ..LoadOptions::new(path) }
}

struct Reranker {
    engine: Box<dyn Engine>,
    tokenizer: Tokenizer,
    prompt: PairPrompt,
    spec: EmbeddingSpec,
    relevance: Relevance,
    steps: u64,
}

impl Reranker {
    fn load(options: &LoadOptions) -> Self {
        let planned = plan(options).unwrap_or_else(|error| panic!("{error}"));
        let (card, tokenizer) = (planned.card().clone(), planned.tokenizer().unwrap());
        let prompt = PairPrompt::new(&tokenizer, card.rerank_template.as_deref()).unwrap();
        let engine = planned.load_engine(&mut |_| {}).unwrap();
        let (spec, relevance) = (card.embedding, card.embedding.relevance.unwrap());
        Reranker { engine, tokenizer, prompt, spec, relevance, steps: 0 }
    }

    fn pair(&self, ExpectedPair { query, document, .. }: &ExpectedPair) -> Pair {
        let limits = PairLimits { tokens: 1000, document_tokens: usize::MAX, truncates: false };
        QueryEncoder::new(&self.prompt, &self.tokenizer, query).unwrap().pair(document, limits).unwrap()
    }

    /// The logits of pairs that share a step.
    fn logits(&mut self, pairs: &[Pair]) -> Vec<f32> {
        let mut next_block = 0;
        let rows_of = |pair: &Pair| {
            let blocks = pair.tokens.len().div_ceil(BLOCK_TOKENS) as u32;
            next_block += blocks;
            SequenceRows {
                tokens: pair.tokens.clone(),
                block_table: (next_block - blocks..next_block).collect(),
                logits: LogitsWanted::Hidden(self.spec.pooling.rows()),
                second_text: pair.second_text.map(|start| start as u32),
                ..SequenceRows::default()
            }
        };
        let step = Step { id: StepId(self.steps), sequences: pairs.iter().map(rows_of).collect() };
        self.steps += 1;
        let Progress::Done(output) = self.engine.begin(step).unwrap() else { panic!("experts are computed here") };
        assert_eq!(output.hidden.len(), pairs.len() * self.spec.width);
        output.hidden.chunks(self.spec.width).map(|values| self.relevance.logit(values)).collect()
    }
}

/// Checks the tokens and scores of a model, each pair alone.
fn check(expected: &Expected, options: &LoadOptions, gate: f32) {
    let mut reranker = Reranker::load(options);
    assert!(reranker.spec.is_only);
    assert_eq!(reranker.engine.limits().max_logits_rows, 0, "it computes no logits of tokens");
    let mut worst = 0.0_f32;
    for pair in &expected.pairs {
        let found = reranker.pair(pair);
        assert_eq!(found.tokens, pair.tokens, "{}: {} {}", expected.model, pair.query, pair.document);
        let logit = reranker.logits(&[found])[0];
        assert!(logit.is_finite(), "{}: {logit}", expected.model);
        worst = worst.max((logit - pair.logit).abs()).max((sigmoid(logit) - pair.score).abs());
    }
    println!("{:22} {worst:8.1e}", expected.model);
    assert!(worst <= gate, "{}: a score differs by {worst}", expected.model);
}

#[test]
fn every_kernel_gives_the_scores_of_transformers() {
    for kernel in Kernel::ALL.iter().copied().filter(|kernel| kernel.is_supported()) {
        for expected in &all() {
            check(expected, &LoadOptions { kernel, ..options(&folder().join(&expected.model)) }, GATE);
        }
    }
}

#[test]
fn a_device_gives_the_scores_of_transformers() {
    if !has_device() {
        return;
    }
    for expected in &all() {
        let path = folder().join(&expected.model);
        let device = ComputeDevice::Vulkan(0).into();
        check(expected, &LoadOptions { device, ..options(&path) }, DEVICE_GATE);
    }
}

#[test]
fn directories_give_the_scores_of_files() {
    for name in ["bert", "xlm-roberta", "modern-bert"] {
        check(&expected(name), &options(&folder().join(name)), GATE);
    }
}

/// The tokens of both answers are stated by a module, by the key of vLLM, or became the only row of a head.
#[test]
fn directories_of_models_that_answer_give_the_scores_of_their_answers() {
    let expected = expected("qwen3-answers");
    check(&expected, &options(&folder().join("qwen3-answers-converted")), GATE);
    let from_token = changed_directory("qwen3-answers", "config.json", |config| {
        config["architectures"] = json!(["Qwen3ForSequenceClassification"]);
        config["classifier_from_token"] = json!(["no", "yes"]);
    });
    check(&expected, &options(from_token.path()), GATE);
}

#[test]
fn other_answers_are_refused_by_name() {
    let refused = |file: &str, change: &dyn Fn(&mut Value)| {
        let copy = changed_directory("qwen3-answers", file, change);
        match checkpoint::open(copy.path()) {
            Err(error) => error.to_string(),
            Ok(_) => panic!("it is accepted"),
        }
    };
    let other = refused("1_LogitScore/config.json", &|config| config["true_token_id"] = json!(5));
    assert!(other.contains("1_LogitScore/config.json") && other.contains("true_token_id"), "{other}");
    let one = refused("1_LogitScore/config.json", &|config| config["false_token_id"] = Value::Null);
    assert!(one.contains("false_token_id"), "{one}");
    let digits = refused("config.json", &|config| config["classifier_from_token"] = json!(["0", "1"]));
    assert!(digits.contains("classifier_from_token"), "{digits}");
    let llama = refused("1_LogitScore/config.json", &|config| config["true_token_id"] = json!(999_999_999));
    assert!(llama.contains("qwen3"), "{llama}");
}

/// A copy of a directory with changes in one of its JSON files. Without the module of answers unless that is the file.
fn changed_directory(name: &str, file: &str, change: impl Fn(&mut Value)) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    let is_module = file.starts_with("1_LogitScore");
    let modules = ["modules.json", "1_LogitScore/config.json"].iter().filter(|_| is_module);
    std::fs::create_dir(copy.path().join("1_LogitScore")).unwrap();
    for name_of_file in ["config.json", "model.safetensors", "tokenizer.json"].iter().chain(modules) {
        std::fs::copy(folder().join(name).join(name_of_file), copy.path().join(name_of_file)).unwrap();
    }
    let path = copy.path().join(file);
    let mut changed: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    change(&mut changed);
    std::fs::write(&path, changed.to_string()).unwrap();
    copy
}

#[test]
fn a_score_has_the_same_bits_alone_and_in_a_batch() {
    for expected in &all() {
        let mut reranker = Reranker::load(&options(&folder().join(&expected.model)));
        let pairs: Vec<Pair> = expected.pairs.iter().map(|pair| reranker.pair(pair)).collect();
        let alone: Vec<u32> =
            pairs.iter().map(|pair| reranker.logits(std::slice::from_ref(pair))[0].to_bits()).collect();
        let together: Vec<u32> = reranker.logits(&pairs).into_iter().map(f32::to_bits).collect();
        assert_eq!(alone, together, "{}", expected.model);
    }
}

#[test]
fn a_model_of_two_kinds_of_text_is_told_which_is_which() {
    let expected = expected("bert");
    let mut reranker = Reranker::load(&options(&folder().join(&expected.model)));
    let pair = reranker.pair(&expected.pairs[0]);
    assert_eq!(pair.second_text, Some(12));
    let told = reranker.logits(std::slice::from_ref(&pair))[0];
    let untold = reranker.logits(&[Pair { second_text: None, ..pair }])[0];
    assert!((told - untold).abs() > 100.0 * GATE, "{told} {untold}");
}

#[test]
fn pooling_follows_from_what_tokens_see() {
    let spec = |name: &str| plan(&options(&folder().join(name))).unwrap().card().embedding;
    let bert = spec("bert.gguf");
    assert_eq!((bert.pooling, bert.width, bert.relevance), (Pooling::First, 1, Some(Relevance::Logit)));
    assert_eq!(bert.pooling.rows(), HiddenRows::First);
    let modern_bert = spec("modern-bert.gguf");
    assert_eq!((modern_bert.pooling, modern_bert.width), (Pooling::First, 1), "the first row has the mean");
    let qwen3 = spec("qwen3.gguf");
    assert_eq!((qwen3.pooling, qwen3.width, qwen3.relevance), (Pooling::Last, 2, Some(Relevance::YesOrNo)));
}

/// A copy of the encoder without some keys and tensors, and with a key and rows of the head if given.
fn changed(without: &str, key: Option<(&str, u32)>, head_rows: usize) -> tempfile::NamedTempFile {
    let source = checkpoint::open(&folder().join("bert.gguf")).unwrap();
    let mut file = GgufBuilder::new();
    for (name, value) in source.metadata().iter().filter(|(name, _)| name != without) {
        file = file.key(name, value);
    }
    if let Some((name, value)) = key {
        file = file.key(name, value);
    }
    for tensor in source.tensors().iter().filter(|tensor| tensor.name != without) {
        let values = source.weight(&tensor.name).unwrap().to_f32();
        let repeats = if tensor.name.starts_with("cls.output") { head_rows } else { 1 };
        let mut dims = tensor.dims.clone();
        if repeats > 1 {
            *dims.last_mut().unwrap() = repeats as u64;
        }
        file = file.tensor_f32(&tensor.name, &dims, &values.repeat(repeats));
    }
    let copy = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(copy.path(), file.build()).unwrap();
    copy
}

#[test]
fn a_head_makes_a_reranker_if_the_file_does_not_say_so() {
    let file = changed("bert.pooling_type", None, 1);
    check(&expected("bert"), &options(file.path()), GATE);
}

#[test]
fn other_heads_are_refused_by_name() {
    let refused = |file: &tempfile::NamedTempFile| match plan(&options(file.path())) {
        Err(error) => error.to_string(),
        Ok(_) => panic!("it is accepted"),
    };
    let labels = refused(&changed("", Some(("bert.classifier.pooling_type", 4)), 1));
    assert!(labels.contains("classifier.pooling_type"), "{labels}");
    let headless = refused(&changed("cls.output.weight", None, 1));
    assert!(headless.contains("cls.output.weight"), "{headless}");
}
