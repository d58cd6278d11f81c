//! Embedding models, compared with Hugging Face transformers.
//!
//! `tests/generate/embeddings.py` writes tiny models and the vectors of some texts. A model's tokens must be those of the oracle,
//! and its vectors must be near those of the oracle, on every device and from every kind of file. Alone and in a batch, the bits of
//! a vector are the same.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};

use cuelight_engine::checkpoint;
use cuelight_engine::embedding::{EmbeddingSpec, Pooler, normalized};
use cuelight_engine::engine::{BLOCK_TOKENS, Engine, LogitsWanted, Progress, SequenceRows, Step, StepId, TokenId};
use cuelight_engine::format::tokenizer::Tokenizer;
use cuelight_engine::load::{ComputeDevice, Kernel, KvType, LoadOptions, plan};
use serde::Deserialize;

#[path = "support/test_seed.rs"]
mod test_seed;
#[path = "support/vulkan_device.rs"]
mod vulkan_device;

use test_seed::of_the_day;
use vulkan_device::has_device;

/// Largest difference of a value of a vector of length 1.
const GATE: f32 = 2e-5;

/// [`GATE`] on a device, which may compute products with less precise numbers.
const DEVICE_GATE: f32 = 2e-3;

/// The expected values of one model.
#[derive(Deserialize)]
struct Expected {
    model: String,
    texts: Vec<ExpectedText>,
}

#[derive(Deserialize)]
struct ExpectedText {
    text: String,
    tokens: Vec<TokenId>,
    vector: Vec<f32>,
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/embeddings")
}

fn all() -> Vec<Expected> {
    let mut paths: Vec<PathBuf> = std::fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
    paths.sort();
    assert!(!paths.is_empty());
    paths.iter().map(|path| serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()).collect()
}

fn options(path: &Path) -> LoadOptions {
    LoadOptions { kv_type: KvType::F32, max_batched_tokens: 512, threads: 2, ..LoadOptions::new(path) }
}

/// An engine that computes embeddings.
struct Embedder {
    engine: Box<dyn Engine>,
    tokenizer: Tokenizer,
    spec: EmbeddingSpec,
    steps: u64,
}

impl Embedder {
    fn load(options: &LoadOptions) -> Self {
        let planned = plan(options).unwrap_or_else(|error| panic!("{error}"));
        let (spec, tokenizer) = (planned.card().embedding, planned.tokenizer().unwrap());
        let engine = planned.load_engine(&mut |_| {}).unwrap();
        Embedder { engine, tokenizer, spec, steps: 0 }
    }

    /// The vectors of texts that share steps of up to `chunk` rows of each.
    fn vectors(&mut self, texts: &[&[TokenId]], chunk: usize) -> Vec<Vec<f32>> {
        let blocks_each = texts.iter().map(|text| text.len().div_ceil(BLOCK_TOKENS)).max().unwrap_or(0) as u32;
        let mut poolers: Vec<_> = texts.iter().map(|text| Pooler::new(self.spec.pooling, text.len())).collect();
        let longest = texts.iter().map(|text| text.len()).max().unwrap_or(0);
        for start in (0..longest).step_by(chunk) {
            let rows_of = |(index, text): (u32, &&[TokenId])| {
                let end = text.len().min(start + chunk);
                let is_last = end == text.len();
                let is_needed = is_last || self.spec.pooling.rows() == cuelight_engine::engine::HiddenRows::All;
                (start < end).then(|| SequenceRows {
                    tokens: text[start..end].to_vec(),
                    first_position: start as u32,
                    block_table: (index * blocks_each..(index + 1) * blocks_each).collect(),
                    logits: if is_needed { LogitsWanted::Hidden(self.spec.pooling.rows()) } else { LogitsWanted::None },
                    ..SequenceRows::default()
                })
            };
            let sequences = (0..).zip(texts).filter_map(rows_of).collect();
            let step = Step { id: StepId(self.steps), sequences };
            self.steps += 1;
            let returned: Vec<usize> =
                step.sequences.iter().map(|rows| rows.logits.hidden_rows(rows.tokens.len()).len()).collect();
            let lengths: Vec<usize> = step.sequences.iter().map(|rows| rows.tokens.len()).collect();
            let Progress::Done(output) = self.engine.begin(step).unwrap() else { panic!("experts are computed here") };
            assert_eq!(output.hidden.len(), returned.iter().sum::<usize>() * self.spec.width);
            let mut offset = 0;
            let taking_part = poolers.iter_mut().zip(texts).filter(|(_, text)| start < text.len());
            for (((pooler, _), count), length) in taking_part.zip(returned).zip(lengths) {
                let values = &output.hidden[offset..offset + count * self.spec.width];
                let position = if self.spec.pooling.rows() == cuelight_engine::engine::HiddenRows::Last {
                    start + length - count
                } else {
                    start
                };
                pooler.add(position, values, self.spec.width);
                offset += values.len();
            }
        }
        poolers.iter().map(|pooler| normalized(&pooler.pooled().unwrap(), None)).collect()
    }
}

/// The largest difference of two values.
fn distance(left: &[f32], right: &[f32]) -> f32 {
    assert_eq!(left.len(), right.len());
    left.iter().zip(right).map(|(left, right)| (left - right).abs()).fold(0.0, f32::max)
}

fn bits(vectors: &[Vec<f32>]) -> Vec<Vec<u32>> {
    vectors.iter().map(|vector| vector.iter().map(|value| value.to_bits()).collect()).collect()
}

/// Checks the tokens and vectors of a model, each text alone.
fn check(expected: &Expected, options: &LoadOptions, gate: f32) {
    let mut embedder = Embedder::load(options);
    assert!(embedder.spec.is_only);
    assert_eq!(embedder.engine.limits().max_logits_rows, 0, "it computes no logits");
    let mut worst = 0.0_f32;
    for ExpectedText { text, tokens, vector } in &expected.texts {
        let found = embedder.tokenizer.encode(text, true, true).unwrap();
        assert_eq!(found, *tokens, "{}: {text}", expected.model);
        let found = embedder.vectors(&[tokens], tokens.len()).remove(0);
        worst = worst.max(distance(&found, vector));
    }
    println!("{:22} {worst:8.1e}", expected.model);
    assert!(worst <= gate, "{}: a value differs by {worst}", expected.model);
}

#[test]
fn every_kernel_gives_the_vectors_of_transformers() {
    for kernel in Kernel::ALL.iter().copied().filter(|kernel| kernel.is_supported()) {
        for expected in &all() {
            check(expected, &LoadOptions { kernel, ..options(&folder().join(&expected.model)) }, GATE);
        }
    }
}

#[test]
fn a_device_gives_the_vectors_of_transformers() {
    if !has_device() {
        return;
    }
    for expected in of_the_day(&all(), 3) {
        let path = folder().join(&expected.model);
        let device = ComputeDevice::Vulkan(0).into();
        check(expected, &LoadOptions { device, ..options(&path) }, DEVICE_GATE);
    }
}

#[test]
fn directories_give_the_vectors_of_files() {
    let mut count = 0;
    for expected in &all() {
        let path = folder().join(expected.model.strip_suffix(".gguf").unwrap());
        if path.is_dir() {
            check(expected, &options(&path), GATE);
            count += 1;
        }
    }
    assert!(count >= 3);
}

#[test]
fn a_vector_has_the_same_bits_alone_in_a_batch_and_with_any_chunks() {
    for expected in &all() {
        let mut embedder = Embedder::load(&options(&folder().join(&expected.model)));
        let texts: Vec<&[TokenId]> = expected.texts.iter().map(|text| &text.tokens[..]).collect();
        let alone: Vec<_> = texts.iter().flat_map(|text| embedder.vectors(&[text], usize::MAX)).collect();
        let together = embedder.vectors(&texts, usize::MAX);
        assert_eq!(bits(&alone), bits(&together), "{}", expected.model);
        if embedder.engine.limits().hidden.whole_sequences {
            continue;
        }
        for chunk in [1, 7, 16] {
            assert_eq!(bits(&embedder.vectors(&texts, chunk)), bits(&alone), "{} in {chunk}", expected.model);
        }
    }
}

#[test]
fn a_decoder_gives_hidden_values_next_to_logits() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/families/llama.gguf");
    let mut embedder = Embedder::load(&options(&path));
    assert!(!embedder.spec.is_only);
    let text: Vec<TokenId> = (0..20).collect();
    let alone = embedder.vectors(&[&text], usize::MAX);
    let rows = |block: u32, logits| SequenceRows {
        tokens: text.clone(),
        first_position: 0,
        block_table: vec![block, block + 1],
        logits,
        ..SequenceRows::default()
    };
    let hidden = LogitsWanted::Hidden(embedder.spec.pooling.rows());
    let step = Step { id: StepId(9), sequences: vec![rows(0, LogitsWanted::Last), rows(2, hidden)] };
    let Progress::Done(output) = embedder.engine.begin(step).unwrap() else { panic!() };
    assert_eq!(output.logits.len(), embedder.engine.limits().vocab_size);
    assert_eq!(bits(&[normalized(&output.hidden, None)]), bits(&alone));
}

#[test]
fn a_context_beyond_the_table_of_positions_is_cut() {
    let path = folder().join("bert-mean.gguf");
    let planned = plan(&LoadOptions { context_tokens: Some(4096), ..options(&path) }).unwrap();
    assert_eq!((planned.limits().context_tokens, planned.limits().hidden.whole_sequences), (128, true));
    let small = plan(&LoadOptions { max_batched_tokens: 16, max_sequences: 4, ..options(&path) }).unwrap();
    assert_eq!(small.limits().max_batched_tokens, 128, "the longest text fits a step");
}

#[test]
fn directories_that_pool_otherwise_are_refused() {
    let source = folder().join("bert-mean");
    let refused = |file: &str, from: &str, to: &str| {
        let copy = tempfile::tempdir().unwrap();
        for name in ["config.json", "model.safetensors", "tokenizer.json", "modules.json", "1_Pooling/config.json"] {
            let target = copy.path().join(name);
            std::fs::create_dir_all(target.parent().unwrap()).unwrap();
            std::fs::copy(source.join(name), target).unwrap();
        }
        let text = std::fs::read_to_string(copy.path().join(file)).unwrap();
        assert!(text.contains(from));
        std::fs::write(copy.path().join(file), text.replace(from, to)).unwrap();
        match checkpoint::open(copy.path()) {
            Err(error) => error.to_string(),
            Ok(_) => panic!("{file} is accepted"),
        }
    };
    let max =
        refused("1_Pooling/config.json", "\"pooling_mode_max_tokens\": false", "\"pooling_mode_max_tokens\": true");
    assert!(max.contains("1_Pooling/config.json") && max.contains("pooling_mode"), "{max}");
    let other = refused("modules.json", "models.Normalize", "models.WeightedLayerPooling");
    assert!(other.contains("modules.json") && other.contains("WeightedLayerPooling"), "{other}");
    let relative =
        refused("config.json", "\"model_type\"", "\"position_embedding_type\": \"relative_key\", \"model_type\"");
    assert!(relative.contains("position_embedding_type"), "{relative}");
}

/// The values that `tests/generate/real_embeddings.py` wrote with transformers.
#[derive(Deserialize)]
struct RealVectors {
    texts: Vec<RealText>,
}

#[derive(Deserialize)]
struct RealText {
    text: String,
    vector: Vec<f32>,
}

#[test]
#[ignore = "needs real weights: set CUELIGHT_TEST_MODELS"]
fn a_real_model_gives_the_vectors_of_transformers() {
    let folder = std::env::var_os("CUELIGHT_TEST_MODELS");
    let folder =
        PathBuf::from(folder.expect("CUELIGHT_TEST_MODELS names the folder with the files of tests/fetch_models.py"));
    let answers = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/real/all-minilm-l6-v2.json");
    let expected: RealVectors = serde_json::from_slice(&std::fs::read(answers).unwrap()).unwrap();
    let mut embedder = Embedder::load(&options(&folder.join("all-MiniLM-L6-v2")));
    for RealText { text, vector } in &expected.texts {
        let tokens = embedder.tokenizer.encode(text, true, true).unwrap();
        let worst = distance(&embedder.vectors(&[&tokens], usize::MAX)[0], vector);
        println!("{} tokens: {worst:.1e}", tokens.len());
        assert!(worst <= GATE, "{text}: a value differs by {worst}");
    }
}
