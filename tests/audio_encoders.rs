//! Audio encoders, compared with Hugging Face transformers.
//!
//! `tests/generate/audio.py` writes tiny models, the spectrograms of some clips, and their embedding rows. What stands for a clip in
//! the prompt must be the same text, and the frames and rows near those of the oracle, on every device.

#![allow(clippy::unwrap_used)]

use std::path::PathBuf;

use cuelight_engine::audio::{AudioError, PreparedAudio, Window};
use cuelight_engine::engine::TokenId;
use cuelight_engine::format::gguf::write::GgufBuilder;
use cuelight_engine::load::{ComputeDevice, Kernel, LoadCancel};
use cuelight_engine::media::MediaKind;
use cuelight_engine::projector::{PreparedMedia, plan};
use cuelight_engine::tower::TowerOptions;
use cuelight_engine::vision::PreparedImage;
use proptest::prelude::*;
use serde::Deserialize;

#[path = "support/clip.rs"]
mod clips;
#[path = "support/media_prompt.rs"]
mod media_prompt;
#[path = "support/test_seed.rs"]
mod test_seed;
#[path = "support/vulkan_device.rs"]
mod vulkan_device;

use clips::float_clip;
use media_prompt::{
    DEVICE_GATE, ExpectedPrompt, GATE, GivenRows, distance, expected_in, is_whole, text_of, tower_options,
};
use test_seed::of_the_day;
use vulkan_device::has_device;

/// Largest difference of a value of a spectrogram, whose transform has other sums in transformers.
const FRAME_GATE: f32 = 2e-4;

/// Frames between those of a spectrogram that are compared.
const EVERY_FRAME: usize = 8;

/// The expected values of one model.
#[derive(Deserialize)]
struct Expected {
    /// Where its files are.
    #[serde(skip)]
    folder: PathBuf,
    row_token: String,
    placeholder: String,
    mels: usize,
    width: usize,
    row_token_id: TokenId,
    clips: Vec<ExpectedClip>,
    prompts: Vec<ExpectedPrompt>,
}

#[derive(Deserialize)]
struct ExpectedClip {
    samples: usize,
    /// What takes the place of the placeholder, with a row token for each row.
    text: String,
    /// Every eighth frame, [frames, mel bins]; empty where they are left out.
    frames: Vec<f32>,
    /// [rows, width].
    rows: Vec<f32>,
}

/// The model with this projector.
fn of(family: &str) -> Expected {
    all().into_iter().find(|expected| expected.family() == family).unwrap()
}

fn all() -> Vec<Expected> {
    let of_folder = |(folder, expected): (PathBuf, Expected)| Expected { folder, ..expected };
    expected_in("audio").into_iter().map(of_folder).collect()
}

impl Expected {
    fn path(&self, file: &str) -> PathBuf {
        self.folder.join(file)
    }

    /// The name of the projector.
    fn family(&self) -> &str {
        self.folder.file_name().unwrap().to_str().unwrap()
    }

    /// The encoder for people.
    fn tower(&self) -> &str {
        match self.family() {
            "gemma4a" => "Gemma 4 conformer, 2 layers",
            "qwen2.5o" => "Qwen 2.5 Omni Whisper, 3 layers",
            "qwen3a" => "Qwen 3 AuT, 4 layers",
            _ => "Whisper, 3 layers",
        }
    }

    /// The directories with the model, each in a layout of its own.
    fn directories(&self) -> Vec<String> {
        let names =
            std::fs::read_dir(&self.folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name.starts_with("directory")).collect()
    }

    fn options(&self) -> TowerOptions {
        tower_options(self.path("mmproj.gguf"))
    }

    fn prepare(&self, samples: usize) -> PreparedAudio {
        plan(&self.options()).unwrap().preparation().audio.unwrap().prepare(&float_clip(samples)).unwrap()
    }
}

#[test]
fn clips_are_prepared_as_by_transformers() {
    for expected in all() {
        let planned = plan(&expected.options()).unwrap();
        assert_eq!(planned.preparation().images.is_some(), ["gemma4a", "qwen2.5o"].contains(&expected.family()));
        let description = planned.describe();
        assert!(description.contains(&format!("audio: {}, ", expected.tower())), "{description}");
        let preparation = planned.preparation();
        let spec = preparation.spec(MediaKind::Audio).unwrap();
        assert!(spec.row_tokens.contains(&expected.row_token) && spec.placeholder == expected.placeholder);
        assert_eq!(spec.width, expected.width);
        for of_clip in &expected.clips {
            let prepared = expected.prepare(of_clip.samples);
            assert_eq!(text_of(&prepared.parts, &expected.row_token), of_clip.text, "{}", expected.family());
            let of_frame = expected.mels;
            let frames = prepared.windows.iter().flat_map(|window| window.frames().chunks_exact(of_frame));
            if of_clip.frames.is_empty() {
                continue;
            }
            let found: Vec<f32> = frames.step_by(EVERY_FRAME).flatten().copied().collect();
            let worst = distance(&found, &of_clip.frames);
            println!("{:12} spectrogram {worst:8.1e}", expected.family());
            assert!(worst <= FRAME_GATE, "{}: {worst}", expected.family());
        }
    }
}

/// Compares the rows of all clips.
fn check(expected: &Expected, options: TowerOptions, gate: f32) {
    let planned = plan(&options).unwrap_or_else(|error| panic!("{error}"));
    assert!(planned.bytes() > 0 && planned.left_out().is_none());
    let mut encoder = planned.load(&LoadCancel::default()).unwrap_or_else(|error| panic!("{error}"));
    for of_clip in &expected.clips {
        let prepared = PreparedMedia::Audio(expected.prepare(of_clip.samples));
        let rows = encoder.encode(&prepared, &LoadCancel::default()).unwrap();
        let largest = of_clip.rows.iter().map(|value| value.abs()).fold(0.0, f32::max);
        let worst = distance(&rows, &of_clip.rows) / largest;
        println!("{:12} {:6} {:10} {worst:8.1e}", expected.family(), of_clip.samples, options.kernel.to_string());
        assert!(worst <= gate, "{} {} {}: {worst}", expected.family(), of_clip.samples, options.kernel);
        let pieces = prepared.into_pieces().into_iter();
        let again = pieces.flat_map(|piece| encoder.encode(&piece, &LoadCancel::default()).unwrap());
        let bits = |rows: Vec<f32>| rows.into_iter().map(f32::to_bits).collect::<Vec<_>>();
        assert_eq!(bits(rows), bits(again.collect()), "{}", expected.family());
    }
}

#[test]
fn rows_agree_with_transformers_on_every_kernel() {
    for expected in all() {
        for kernel in Kernel::ALL.iter().copied().filter(|kernel| kernel.is_supported()) {
            check(&expected, TowerOptions { kernel, ..expected.options() }, GATE);
        }
    }
}

#[test]
fn rows_agree_with_transformers_on_a_device() {
    if !has_device() {
        return;
    }
    for expected in of_the_day(all(), 3) {
        check(&expected, TowerOptions { device: ComputeDevice::Vulkan(0), ..expected.options() }, DEVICE_GATE);
    }
}

#[test]
fn prompts_with_audio_have_the_log_probabilities_of_transformers() {
    for expected in all() {
        let mut encoder = plan(&expected.options()).unwrap().load(&LoadCancel::default()).unwrap();
        let prepared = PreparedMedia::Audio(expected.prepare(expected.clips[0].samples));
        let rows = encoder.encode(&prepared, &LoadCancel::default()).unwrap();
        let given = GivenRows {
            values: rows.into(),
            row_token: expected.row_token_id,
            see_each_other: false,
            rope_positions: Vec::new(),
        };
        let whole = expected.directories().into_iter().filter(|name| is_whole(&expected.path(name)));
        for model in ["text.gguf".to_owned()].into_iter().chain(whole) {
            for prompt in &expected.prompts {
                let worst = prompt.worst(&expected.path(&model), &given);
                println!("{:12} {model:12} {worst:8.1e}", expected.family());
                assert!(worst <= 1e-3, "{} {model}: {worst}", expected.family());
            }
        }
    }
}

#[test]
fn a_directory_gives_the_bits_of_its_file() {
    for expected in all() {
        let rows = |file: &str| {
            let planned = plan(&tower_options(expected.path(file))).unwrap_or_else(|error| panic!("{error}"));
            let preparation = planned.preparation().audio.unwrap();
            let mut encoder = planned.load(&LoadCancel::default()).unwrap();
            let of_clip = |of_clip: &ExpectedClip| {
                let prepared = PreparedMedia::Audio(preparation.prepare(&float_clip(of_clip.samples)).unwrap());
                let rows = encoder.encode(&prepared, &LoadCancel::default()).unwrap();
                (prepared, rows.into_iter().map(f32::to_bits).collect::<Vec<_>>())
            };
            expected.clips.iter().map(of_clip).collect::<Vec<_>>()
        };
        let of_file = rows("mmproj.gguf");
        for directory in expected.directories() {
            assert!(of_file == rows(&directory), "{} {directory}", expected.family());
        }
    }
}

#[test]
fn a_clip_that_gives_no_row_is_refused() {
    for expected in all() {
        let preparation = plan(&expected.options()).unwrap().preparation().audio.unwrap();
        assert_eq!(preparation.prepare(&[]), Err(AudioError::TooShort { samples: 0 }), "{}", expected.family());
    }
    let qwen = of("qwen2a");
    let preparation = plan(&qwen.options()).unwrap().preparation().audio.unwrap();
    assert_eq!(preparation.prepare(&[0.5; 320]), Err(AudioError::TooShort { samples: 320 }));
}

#[test]
fn a_clip_that_is_too_long_is_refused_with_the_limit() {
    let preparation = plan(&of("gemma4a").options()).unwrap().preparation().audio.unwrap();
    assert_eq!(preparation.prepare(&[0.1; 480_000]).unwrap().rows(), 750);
    let error = preparation.prepare(&[0.1; 480_001]).unwrap_err();
    assert_eq!(error.to_string(), "the audio has 480001 samples at 16 kHz, but this model takes at most 480000 (30 s)");
}

#[test]
fn clips_of_qwen_3_have_no_limit_and_windows_of_8_seconds() {
    let preparation = plan(&of("qwen3a").options()).unwrap().preparation().audio.unwrap();
    let prepared = preparation.prepare(&vec![0.1; 16_000 * 61]).unwrap();
    let rows: Vec<usize> = prepared.windows.iter().map(Window::rows).collect();
    assert_eq!((rows, prepared.rows()), (vec![104, 104, 104, 104, 104, 104, 104, 65], 61 * 13));
}

#[test]
fn an_encoder_refuses_other_media_and_stops_when_cancelled() {
    let expected = of("qwen2a");
    let mut encoder = plan(&expected.options()).unwrap().load(&LoadCancel::default()).unwrap();
    let image = PreparedMedia::Image(PreparedImage::default());
    assert!(encoder.encode(&image, &LoadCancel::default()).is_err());
    for (frames, rows) in [(97, 1), (96, 49), (96, 0)] {
        let window = Window::new(vec![0.0; frames * expected.mels], rows);
        let foreign = PreparedMedia::Audio(PreparedAudio { parts: Vec::new(), windows: vec![window] });
        assert!(encoder.encode(&foreign, &LoadCancel::default()).is_err(), "{frames} {rows}");
    }
    let cancel = LoadCancel::default();
    cancel.cancel();
    assert!(encoder.encode(&PreparedMedia::Audio(expected.prepare(2000)), &cancel).is_err());
}

const KEYS: [(&str, u32); 5] = [
    ("num_mel_bins", 80),
    ("embedding_length", 32),
    ("attention.head_count", 4),
    ("block_count", 2),
    ("projector.stack_factor", 4),
];

fn fault(keys: &[(&str, u32)], projector: &str) -> String {
    let mut builder = GgufBuilder::new().key("general.architecture", "clip").key("clip.projector_type", projector);
    builder = builder.key("clip.has_audio_encoder", true);
    for (key, value) in keys {
        builder = builder.key(&format!("clip.audio.{key}"), *value);
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), builder.key("clip.audio.attention.layer_norm_epsilon", 1e-5_f32).build()).unwrap();
    match plan(&tower_options(file.path().to_owned())) {
        Ok(_) => panic!("{keys:?} is not an encoder"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn what_is_missing_or_has_another_size_is_named() {
    let message = fault(&KEYS, "conformer");
    assert!(
        message.contains("\"conformer\" of audio is not supported; supported are gemma4a, qwen2a, qwen2.5o"),
        "{message}"
    );
    for missing in 0..KEYS.len() {
        let mut keys = KEYS.to_vec();
        let (key, _) = keys.remove(missing);
        let message = fault(&keys, "voxtral");
        assert!(message.contains(&format!("clip.audio.{key}")), "{message}");
    }
    let message = fault(&KEYS, "voxtral");
    assert!(message.contains("a.conv1d.1.weight"), "{message}");
    for (key, value) in [
        ("num_mel_bins", 0),
        ("num_mel_bins", u32::MAX),
        ("embedding_length", 0),
        ("embedding_length", u32::MAX),
        ("attention.head_count", 5),
        ("block_count", u32::MAX),
        ("projector.stack_factor", 0),
    ] {
        let keys: Vec<_> = KEYS.iter().copied().filter(|(other, _)| *other != key).chain([(key, value)]).collect();
        let message = fault(&keys, "voxtral");
        assert!(message.contains("clip.audio."), "{key} {value}: {message}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn damaged_files_are_refused_or_planned(at in 0usize..6000, value in any::<u8>(), cut in any::<Option<u16>>()) {
        let mut bytes = std::fs::read(of("voxtral").path("mmproj.gguf")).unwrap();
        bytes[at] = value;
        bytes.truncate(cut.map_or(usize::MAX, usize::from));
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), bytes).unwrap();
        if let Ok(planned) = plan(&tower_options(file.path().to_owned())) {
            prop_assert!(planned.bytes() < 1 << 40);
            if let Some(audio) = planned.preparation().audio {
                prop_assert!(audio.prepare(&float_clip(3000)).is_ok());
            }
        }
    }
}
