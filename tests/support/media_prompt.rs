//! Tiny models with an encoder of images or audio, and what is compared with transformers: what stands for an item in the prompt,
//! and the log-probabilities of prompts with its rows.

#![allow(dead_code)]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use cuelight_engine::engine::{
    BLOCK_TOKENS, EmbeddingRows, Engine, LogitsWanted, Progress, SequenceRows, SequenceState, Step, StepId, TokenId,
};
use cuelight_engine::load::{self, ActivationBits, ComputeDevice, Kernel, KvType, LoadOptions, Tuning, VulkanOptions};
use cuelight_engine::media::MediaPart;
use cuelight_engine::tower::TowerOptions;
use serde::Deserialize;
use serde::de::DeserializeOwned;

/// Largest difference of a value of a row, relative to the largest value.
pub const GATE: f32 = 1e-4;

/// [`GATE`] on a device, which may compute products with less precise numbers, and for weights whose products are rounded.
pub const DEVICE_GATE: f32 = 2e-3;

/// What each folder of `tests/fixtures/KIND` expects, in the order of their names, and the folder.
pub fn expected_in<T: DeserializeOwned>(kind: &str) -> Vec<(PathBuf, T)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(kind);
    let mut folders: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    folders.sort();
    assert!(!folders.is_empty());
    let read = |folder: PathBuf| {
        let expected = serde_json::from_slice(&std::fs::read(folder.join("expected.json")).unwrap()).unwrap();
        (folder, expected)
    };
    folders.into_iter().map(read).collect()
}

/// Whether a directory has a language model and its tokenizer next to the encoder.
pub fn is_whole(directory: &Path) -> bool {
    directory.join("tokenizer.json").exists()
}

/// The encoders of a file on two threads of the CPU.
pub fn tower_options(path: PathBuf) -> TowerOptions {
    TowerOptions {
        path,
        copy: None,
        device: ComputeDevice::Cpu,
        threads: 2,
        kernel: Kernel::detect(),
        tuning: Tuning::default(),
        vulkan: VulkanOptions::default(),
        activation_bits: ActivationBits::default(),
    }
}

/// The text of an item in the prompt, with a token for each row.
pub fn text_of(parts: &[MediaPart], row_token: &str) -> String {
    let of_part = |part: &MediaPart| match part {
        MediaPart::Text(text) => text.clone(),
        rows => row_token.repeat(rows.rows()),
    };
    parts.iter().map(of_part).collect()
}

/// The log-probabilities of a prompt with the first item.
#[derive(Deserialize)]
pub struct ExpectedPrompt {
    /// The tokens, with the row token at each row.
    pub tokens: Vec<TokenId>,
    /// Of the last next tokens: where an encoder's rows are the first ones, of those after them.
    logprobs: Vec<f32>,
    /// The best tokens after the last one.
    top: Vec<(TokenId, f32)>,
}

/// The rows of an item in a prompt.
pub struct GivenRows {
    /// [rows, width].
    pub values: Arc<[f32]>,
    /// The token that stands at each.
    pub row_token: TokenId,
    /// Whether they see each other.
    pub see_each_other: bool,
    /// The positions by which the model rotates the tokens of the prompt, if they are not those of the prompt.
    pub rope_positions: Vec<[u32; 3]>,
}

/// The largest difference of two values.
pub fn distance(left: &[f32], right: &[f32]) -> f32 {
    assert_eq!(left.len(), right.len());
    left.iter().zip(right).map(|(left, right)| (left - right).abs()).fold(0.0, f32::max)
}

impl ExpectedPrompt {
    /// The largest difference of a log-probability of the language model in this file.
    pub fn worst(&self, model: &Path, given: &GivenRows) -> f32 {
        self.worst_with(&LoadOptions::new(model), given)
    }

    /// As [`ExpectedPrompt::worst`], of a model that is loaded with these options.
    pub fn worst_with(&self, options: &LoadOptions, given: &GivenRows) -> f32 {
        let found = log_probabilities(options, &self.tokens, given);
        let of_next = |(row, next): (&Vec<f32>, &TokenId)| row[*next as usize];
        let of_next = found.iter().zip(&self.tokens[1..]).map(of_next);
        let of_next: Vec<f32> = of_next.skip(self.tokens.len() - 1 - self.logprobs.len()).collect();
        let last = found.last().unwrap();
        let [top, expected_top] = [
            self.top.iter().map(|(token, _)| last[*token as usize]).collect::<Vec<f32>>(),
            self.top.iter().map(|(_, logprob)| *logprob).collect(),
        ];
        distance(&of_next, &self.logprobs).max(distance(&top, &expected_top))
    }
}

/// The log-probabilities after each token of a prompt, whose rows have these embeddings. Rows of an encoder to which layers attend have
/// none.
fn log_probabilities(options: &LoadOptions, tokens: &[TokenId], given: &GivenRows) -> Vec<Vec<f32>> {
    let options = LoadOptions { kv_type: KvType::F32, threads: 2, takes_embeddings: true, ..options.clone() };
    let mut engine = load::plan(&options).unwrap().load_engine(&mut |_| {}).unwrap();
    let block_table: Vec<u32> = (0..tokens.len().div_ceil(BLOCK_TOKENS) as u32).collect();
    let (mut first_position, mut used, mut all) = (0, 0, Vec::new());
    let is_row = |token: &TokenId| *token == given.row_token;
    let leading = engine.limits().embeddings.unwrap().leading_rows;
    for (index, run) in (0..).zip(tokens.chunk_by(|a, b| is_row(a) == is_row(b))) {
        let is_given = is_row(&run[0]);
        let range = used..used + if is_given { run.len() } else { 0 };
        used = range.end;
        let logits = if all.len() < leading { LogitsWanted::None } else { LogitsWanted::All };
        let rows = EmbeddingRows { first: 0, values: Arc::clone(&given.values), range };
        let positions = given.rope_positions.iter().skip(first_position as usize).take(run.len());
        let sequence = SequenceRows {
            tokens: run.to_vec(),
            first_position,
            block_table: block_table.clone(),
            logits,
            embeddings: if is_given { vec![rows] } else { Vec::new() },
            sees_later: is_given && given.see_each_other,
            rope_positions: positions.copied().collect(),
            state: SequenceState::in_place(engine.limits(), 0, first_position, run.len()),
            ..SequenceRows::default()
        };
        first_position += run.len() as u32;
        let step = Step { id: StepId(index), sequences: vec![sequence] };
        let Progress::Done(output) = engine.begin(step).unwrap() else { panic!("the model has no experts") };
        let of_row = |row: &[f32]| {
            let sum: f64 = row.iter().map(|logit| f64::from(*logit).exp()).sum();
            row.iter().map(|logit| (f64::from(*logit) - sum.ln()) as f32).collect::<Vec<f32>>()
        };
        if logits == LogitsWanted::None {
            all.resize(all.len() + run.len(), vec![f32::NAN; engine.limits().vocab_size]);
        } else {
            all.extend(output.logits.chunks_exact(output.logits.len() / run.len()).map(of_row));
        }
    }
    all
}
