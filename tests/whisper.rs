//! Whisper, compared with Hugging Face transformers: what it hears in a clip, and what it writes after that.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};

use std::sync::Arc;

use cuelight_engine::audio::AudioError;
use cuelight_engine::audio::alignment::token_frames;
use cuelight_engine::embedding::AttentionShape;
use cuelight_engine::engine::{
    BLOCK_TOKENS, EmbeddingRows, Engine, HiddenRows, LogitsWanted, Progress, SequenceRows, Step, StepId, TokenId,
};
use cuelight_engine::load::{self, ComputeDevice, Devices, Kernel, KvType, LoadCancel, LoadOptions};
use cuelight_engine::projector::{PreparedMedia, plan};
use cuelight_engine::tower::TowerOptions;
use serde::Deserialize;

#[path = "support/clip.rs"]
mod clips;
#[path = "support/media_prompt.rs"]
mod media_prompt;
#[path = "support/vulkan_device.rs"]
mod vulkan_device;

use clips::float_clip;
use media_prompt::{DEVICE_GATE, ExpectedPrompt, GATE, GivenRows, distance, tower_options};
use vulkan_device::has_device;

/// What `tests/generate/whisper.py` writes.
#[derive(Deserialize)]
struct Expected {
    samples: usize,
    row_token_id: TokenId,
    /// [rows, width].
    rows: Vec<f32>,
    prompts: Vec<ExpectedPrompt>,
    alignment: ExpectedAlignment,
}

/// When tokens are spoken in the clip.
#[derive(Deserialize)]
struct ExpectedAlignment {
    /// From the start of the transcript to its end.
    tokens: Vec<TokenId>,
    /// The index of the first token of words.
    first_word: usize,
    /// Rows of the encoder that are audio.
    frames: usize,
    /// [tokens, heads, rows].
    weights: Vec<f32>,
    /// The frame at which each token of words and the end begin.
    starts: Vec<usize>,
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/whisper")
}

fn directory() -> PathBuf {
    folder().join("directory")
}

fn expected() -> Expected {
    serde_json::from_slice(&std::fs::read(folder().join("expected.json")).unwrap()).unwrap()
}

/// The rows of the clip.
fn rows(options: &TowerOptions) -> Vec<f32> {
    let planned = plan(options).unwrap_or_else(|error| panic!("{error}"));
    assert!(planned.describe().contains("audio: Whisper, 3 layers, 80 mel bins"), "{}", planned.describe());
    let prepared = planned.preparation().audio.unwrap().prepare(&float_clip(expected().samples)).unwrap();
    let mut encoder = planned.load(&LoadCancel::default()).unwrap();
    encoder.encode(&PreparedMedia::Audio(prepared), &LoadCancel::default()).unwrap()
}

/// Compares the rows of the clip, and then the log-probabilities of tokens after them.
fn check(tower: &TowerOptions, model: &LoadOptions, gates: [f32; 2]) {
    let Expected { rows: expected_rows, row_token_id, prompts, .. } = expected();
    let values = rows(tower);
    let largest = expected_rows.iter().map(|value| value.abs()).fold(0.0, f32::max);
    let worst = distance(&values, &expected_rows) / largest;
    println!("{:12} rows {worst:8.1e}", tower.kernel.to_string());
    assert!(worst <= gates[0], "{worst}");
    let given =
        GivenRows { values: values.into(), row_token: row_token_id, see_each_other: false, rope_positions: vec![] };
    for prompt in &prompts {
        let worst = prompt.worst_with(model, &given);
        println!("{:12} log-probabilities {worst:8.1e}", tower.kernel.to_string());
        assert!(worst <= gates[1], "{worst}");
    }
}

#[test]
fn rows_and_log_probabilities_are_those_of_transformers_on_every_kernel() {
    for kernel in Kernel::ALL.iter().copied().filter(|kernel| kernel.is_supported()) {
        let tower = TowerOptions { kernel, ..tower_options(directory()) };
        check(&tower, &LoadOptions { kernel, ..LoadOptions::new(directory()) }, [GATE, 1e-4]);
    }
}

#[test]
fn rows_and_log_probabilities_are_those_of_transformers_on_a_device() {
    if !has_device() {
        return;
    }
    let device = ComputeDevice::Vulkan(0);
    let tower = TowerOptions { device, ..tower_options(directory()) };
    let model = LoadOptions { device: device.into(), ..LoadOptions::new(directory()) };
    check(&tower, &model, [DEVICE_GATE, 5e-3]);
}

#[test]
fn a_clip_longer_than_a_window_is_refused_with_the_limit() {
    let preparation = plan(&tower_options(directory())).unwrap().preparation().audio.unwrap();
    assert_eq!(preparation.most_samples(), Some(96 * 160));
    assert_eq!(preparation.prepare(&float_clip(96 * 160)).unwrap().rows(), 48);
    let error = preparation.prepare(&float_clip(96 * 160 + 1)).unwrap_err();
    assert_eq!(error, AudioError::TooLong { samples: 96 * 160 + 1, most: 96 * 160 });
}

#[test]
fn without_its_encoder_the_model_is_refused() {
    let error = load::plan(&LoadOptions::new(directory())).map(drop).unwrap_err().to_string();
    assert!(error.contains("\"whisper\" writes what its encoder hears"), "{error}");
}

#[test]
fn its_layers_are_not_divided_among_devices() {
    if !has_device() {
        return;
    }
    let device = Devices(vec![ComputeDevice::Cpu, ComputeDevice::Vulkan(0)]);
    let options = LoadOptions { device, takes_embeddings: true, ..LoadOptions::new(directory()) };
    let error = load::plan(&options).map(drop).unwrap_err().to_string();
    assert!(error.contains("needs one device for all of its layers"), "{error}");
}

/// Two sequences with the same rows of an encoder, in the blocks of which the second reads every other one.
struct Sequences<'a> {
    engine: &'a mut dyn Engine,
    rows: Arc<[f32]>,
    row_token: TokenId,
    steps: u64,
}

impl Sequences<'_> {
    fn part(&self, sequence: u32, positions: std::ops::Range<usize>, tokens: &[TokenId]) -> SequenceRows {
        let leading = self.engine.limits().embeddings.unwrap().leading_rows;
        let blocks = (leading + 40).div_ceil(BLOCK_TOKENS) as u32;
        let is_encoder = positions.start < leading;
        let values = EmbeddingRows { first: 0, values: self.rows.clone(), range: positions.clone() };
        let of_encoder = || vec![self.row_token; positions.len()];
        SequenceRows {
            tokens: if is_encoder { of_encoder() } else { tokens.to_vec() },
            first_position: positions.start as u32,
            block_table: (0..blocks).map(|block| 2 * block + sequence).collect(),
            embeddings: if is_encoder { vec![values] } else { Vec::new() },
            logits: if is_encoder { LogitsWanted::None } else { LogitsWanted::Hidden(HiddenRows::All) },
            ..SequenceRows::default()
        }
    }

    /// The hidden values of a step.
    fn run(&mut self, sequences: Vec<SequenceRows>) -> Vec<f32> {
        self.steps += 1;
        let step = Step { id: StepId(self.steps), sequences };
        let Progress::Done(output) = self.engine.begin(step).unwrap() else { panic!("the model has no experts") };
        assert!(output.logits.is_empty());
        output.hidden
    }

    /// The weights of tokens in chunks of this many, and whether the other sequence takes part in each step.
    fn weights(&mut self, tokens: &[TokenId], chunk: usize, is_crowded: bool) -> Vec<f32> {
        let leading = self.engine.limits().embeddings.unwrap().leading_rows;
        self.run((0..2).map(|sequence| self.part(sequence, 0..leading, &[])).collect());
        let mut weights = Vec::new();
        for (index, tokens) in tokens.chunks(chunk).enumerate() {
            let first = leading + index * chunk;
            let own = self.part(0, first..first + tokens.len(), tokens);
            let other = self.part(1, first..first + 1, &tokens[..1]);
            let found = self.run([other].into_iter().filter(|_| is_crowded).chain([own]).collect());
            weights.extend_from_slice(
                &found[found.len() - found.len() / (tokens.len() + usize::from(is_crowded)) * tokens.len()..],
            );
        }
        weights
    }
}

/// Compares the weights of attention and the frames of tokens, alone and next to others, in chunks of any size.
fn check_alignment(tower: &TowerOptions, model: &LoadOptions, gate: f32, is_exact: bool) {
    let Expected { row_token_id, alignment: expected, .. } = expected();
    let options = LoadOptions { kv_type: KvType::F32, threads: 2, takes_embeddings: true, ..model.clone() };
    let plan = load::plan(&options).unwrap();
    let shape = AttentionShape { heads: 3, frames: 48 };
    assert_eq!(plan.card().embedding.attention, Some(shape));
    let mut engine = plan.load_engine(&mut |_| {}).unwrap();
    assert_eq!(engine.limits().hidden.width, shape.values());
    let mut sequences = Sequences { engine: &mut *engine, rows: rows(tower).into(), row_token: row_token_id, steps: 0 };
    let alone = sequences.weights(&expected.tokens, expected.tokens.len(), false);
    let worst = distance(&alone, &expected.weights);
    println!("{:12} weights of attention {worst:8.1e}", tower.kernel.to_string());
    assert!(worst <= gate, "{worst}");
    let words = expected.first_word - 1..expected.tokens.len() - 1;
    assert_eq!(token_frames(&alone, shape, words, expected.frames), expected.starts);
    for (chunk, is_crowded) in [(1, false), (5, true)] {
        let found = sequences.weights(&expected.tokens, chunk, is_crowded);
        assert!(if is_exact { found == alone } else { distance(&found, &alone) <= gate }, "chunks of {chunk}");
    }
}

/// What a directory with these alignment heads returns, or why it is refused.
fn attention_with(alignment_heads: serde_json::Value) -> Result<Option<AttentionShape>, String> {
    let copy = tempfile::tempdir().unwrap();
    for file in std::fs::read_dir(directory()).unwrap().map(|file| file.unwrap()) {
        std::fs::copy(file.path(), copy.path().join(file.file_name())).unwrap();
    }
    let path = copy.path().join("generation_config.json");
    let mut generation: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    generation["alignment_heads"] = alignment_heads;
    std::fs::write(&path, generation.to_string()).unwrap();
    let options = LoadOptions { takes_embeddings: true, ..LoadOptions::new(copy.path()) };
    load::plan(&options).map(|plan| plan.card().embedding.attention).map_err(|error| error.to_string())
}

#[test]
fn without_stated_heads_those_of_the_last_half_of_the_layers_are_used_and_others_are_refused() {
    use serde_json::json;
    for nothing in [json!(null), json!([])] {
        assert_eq!(attention_with(nothing), Ok(Some(AttentionShape { heads: 4, frames: 48 })));
    }
    assert_eq!(attention_with(json!([[0, 3]])), Ok(Some(AttentionShape { heads: 1, frames: 48 })));
    for wrong in [json!([[2, 0]]), json!([[0, 4]]), json!([[0]]), json!([0, 1]), json!([[0, -1]]), json!("all")] {
        let error = attention_with(wrong.clone()).unwrap_err();
        assert!(error.contains("alignment_heads"), "{wrong}: {error}");
    }
}

#[test]
fn tokens_are_spoken_when_transformers_says_on_every_kernel() {
    for kernel in Kernel::ALL.iter().copied().filter(|kernel| kernel.is_supported()) {
        let tower = TowerOptions { kernel, ..tower_options(directory()) };
        check_alignment(&tower, &LoadOptions { kernel, ..LoadOptions::new(directory()) }, 1e-4, true);
    }
}

#[test]
fn tokens_are_spoken_when_transformers_says_on_a_device() {
    if !has_device() {
        return;
    }
    let device = ComputeDevice::Vulkan(0);
    let tower = TowerOptions { device, ..tower_options(directory()) };
    check_alignment(&tower, &LoadOptions { device: device.into(), ..LoadOptions::new(directory()) }, 5e-3, false);
}
