//! Whisper, compared with Hugging Face transformers: what it hears in a clip, and what it writes after that.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};

use cuelight_engine::audio::AudioError;
use cuelight_engine::engine::TokenId;
use cuelight_engine::load::{self, ComputeDevice, Devices, Kernel, LoadCancel, LoadOptions};
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
