//! Directories with encoders that are damaged, incomplete or not supported.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};

use serde_json::{Value as Json, json};

use super::super::Directory;
use super::super::tests::{TensorSpec, safetensors};
use crate::format::gguf::Metadata;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures").join(name).join("directory")
}

/// A copy of a directory.
fn copy(name: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for file in std::fs::read_dir(fixture(name)).unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), folder.path().join(file.file_name())).unwrap();
    }
    folder
}

/// Changes values of a file, which are named by JSON pointers; `null` removes none.
fn change(folder: &Path, file: &str, changes: &[(&str, Json)]) {
    let path = folder.join(file);
    let mut content: Json = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    for (pointer, value) in changes {
        let (object, key) = pointer.rsplit_once('/').unwrap();
        content.pointer_mut(object).unwrap()[key] = value.clone();
    }
    std::fs::write(path, content.to_string()).unwrap();
}

fn error_in(folder: &Path) -> String {
    Directory::open_encoder(folder).map(drop).unwrap_err().to_string()
}

/// The error of a directory with one value changed.
fn error_of(name: &str, file: &str, pointer: &str, value: Json) -> String {
    let folder = copy(name);
    change(folder.path(), file, &[(pointer, value)]);
    error_in(folder.path())
}

const CONFIG: &str = "config.json";
const OWN: &str = "preprocessor_config.json";
const JOINED: &str = "processor_config.json";

/// A value of a file: its JSON pointer, the value, and what its error says.
type Refused = (&'static str, &'static str, &'static str);

const REFUSED: &[(&str, &str, &[Refused])] = &[
    (
        "vision/qwen2_5vl",
        CONFIG,
        &[
            ("/vision_config/temporal_patch_size", "4", "\"vision_config.temporal_patch_size\" is 4, but must be 2"),
            ("/vision_config/depth", "\"4\"", "\"vision_config.depth\" is \"4\", but must be a number"),
            ("/vision_config/depth", "0.5", "must be a whole number above 0"),
            ("/vision_config/depth", "null", "lacks the key \"vision_config.depth\""),
            ("/vision_config/hidden_act", "\"gelu\"", "\"vision_config.hidden_act\" is \"gelu\", but must be silu"),
            ("/vision_config/fullatt_block_indexes", "[0, 3]", "but must be every nth of the 4 layers"),
            ("/vision_config/fullatt_block_indexes", "[1]", "but must be every nth of the 4 layers"),
            ("/vision_config/fullatt_block_indexes", "[]", "but must be every nth of the 4 layers"),
            ("/vision_config/fullatt_block_indexes", "{}", "but must be a list of layers"),
        ],
    ),
    (
        "vision/qwen2_5vl",
        OWN,
        &[
            ("/patch_size", "14", "\"patch_size\" is 14.0, but must be 7, as patch_size of config.json"),
            ("/resample", "2", "\"resample\" is 2, but must be 3"),
            ("/do_resize", "false", "\"do_resize\" is false, but must be true"),
            ("/size/longest_edge", "-1", "\"size.longest_edge\" is -1.0, but must be a whole number above 0"),
            ("/image_std", "[1, 2]", "\"image_std\" is [1,2], but must be three numbers"),
            ("/image_mean", "null", "lacks the key \"image_mean\""),
        ],
    ),
    ("vision/qwen3vl", JOINED, &[("/image_processor/merge_size", "1", "\"merge_size\" is 1.0, but must be 2")]),
    (
        "vision/qwen3vl",
        CONFIG,
        &[
            ("/vision_config/deepstack_visual_indexes", "[0, 9]", "a rising list of some of the 4 layers"),
            ("/vision_config/deepstack_visual_indexes", "[2, 0]", "a rising list of some of the 4 layers"),
            ("/vision_config/num_position_embeddings", "17", "the square of a whole number"),
        ],
    ),
    (
        "vision/gemma4",
        JOINED,
        &[
            (
                "/image_processor/max_soft_tokens",
                "300",
                "\"max_soft_tokens\" is 300, but must be 70 or 140 or 280 or 560 or 1120",
            ),
            ("/image_processor/do_normalize", "true", "\"do_normalize\" is true, but must be false"),
            ("/image_processor/pooling_kernel_size", "2", "\"pooling_kernel_size\" is 2.0, but must be 3"),
        ],
    ),
    (
        "vision/gemma4",
        CONFIG,
        &[
            (
                "/vision_config/hidden_activation",
                "\"silu\"",
                "\"vision_config.hidden_activation\" is \"silu\", but must be gelu_pytorch_tanh",
            ),
            ("/vision_config/rope_parameters/rope_theta", "10", "is 10, but must be 100"),
            ("/text_config/pad_token_id", "3", "\"text_config.pad_token_id\" is 3, but must be 0"),
        ],
    ),
    (
        "vision/lfm2",
        OWN,
        &[
            ("/do_image_splitting", "false", "\"do_image_splitting\" is false, but must be true"),
            ("/max_pixels_tolerance", "3", "\"max_pixels_tolerance\" is 3, but must be 2"),
            (
                "/encoder_patch_size",
                "14",
                "\"encoder_patch_size\" is 14.0, but must be 16, as patch_size of config.json",
            ),
            ("/max_image_tokens", "0", "\"max_image_tokens\" is 0.0, but must be a whole number above 0"),
        ],
    ),
    (
        "vision/lfm2",
        CONFIG,
        &[
            ("/downsample_factor", "4", "\"downsample_factor\" is 4, but must be 2"),
            ("/vision_config/num_patches", "255", "the square of a whole number"),
        ],
    ),
    (
        "vision/lfm3",
        CONFIG,
        &[
            (
                "/downsample_factor",
                "4",
                "\"downsample_factor\" is 4.0, but must be 2, as spatial_merge_size of config.json",
            ),
            ("/projector_layer_norm_eps", "1e-5", "\"projector_layer_norm_eps\" is 0.00001, but must be 1e-6"),
            ("/vision_config/rope_parameters/rope_theta", "10000", "is 10000, but must be 1"),
            ("/vision_config/vision_rope_theta", "10000", "is 10000, but must be 1"),
        ],
    ),
    ("vision/lfm3", JOINED, &[("/image_processor/resample", "2", "\"resample\" is 2, but must be 3")]),
    (
        "vision/ling3vl",
        CONFIG,
        &[
            ("/vision_config/disable_merger_proj", "false", "is false, but must be true"),
            ("/norm_query_embeds", "true", "\"norm_query_embeds\" is true, but must be false"),
        ],
    ),
    ("vision/exaone4_5", CONFIG, &[("/vision_config/num_key_value_heads", "0", "must be a whole number above 0")]),
    (
        "vision/pixtral",
        OWN,
        &[("/size/longest_edge", "84", "is 84, but must be at most 56, image_size of config.json")],
    ),
    ("vision/pixtral", CONFIG, &[("/projector_hidden_act", "\"silu\"", "is \"silu\", but must be \"gelu\"")]),
    (
        "vision/llava",
        CONFIG,
        &[
            ("/vision_feature_layer", "[-2, -5]", "is [-2,-5], but must be one of the 3 layers"),
            ("/vision_feature_select_strategy", "\"full\"", "must be \"default\""),
        ],
    ),
    (
        "audio/gemma4a",
        JOINED,
        &[
            ("/feature_extractor/frame_length", "400", "\"frame_length\" is 400, but must be 320"),
            ("/feature_extractor/per_bin_mean", "[1.0]", "\"per_bin_mean\" is [1.0], but must be null"),
            ("/feature_extractor/feature_size", "0", "\"feature_size\" is 0.0, but must be a whole number above 0"),
        ],
    ),
    (
        "audio/gemma4a",
        CONFIG,
        &[
            (
                "/audio_config/attention_context_right",
                "2",
                "\"audio_config.attention_context_right\" is 2, but must be 0",
            ),
            ("/audio_config/hidden_act", "\"relu\"", "\"audio_config.hidden_act\" is \"relu\", but must be silu"),
        ],
    ),
    (
        "audio/qwen3a",
        CONFIG,
        &[("/audio_config/n_window_infer", "400", "\"audio_config.n_window_infer\" is 400, but must be 800")],
    ),
    ("audio/qwen3a", JOINED, &[("/feature_extractor/min_length", "0", "\"min_length\" is 0, but must be 8000")]),
    ("audio/qwen2a", CONFIG, &[("/audio_config/activation_function", "\"silu\"", "but must be gelu")]),
    ("audio/qwen2a", OWN, &[("/feature_size", "80", "\"feature_size\" is 80.0, but must be 128")]),
    ("audio/voxtral", CONFIG, &[("/audio_config/intermediate_size", "65", "must be a multiple of 16")]),
    ("audio/voxtral", JOINED, &[("/feature_extractor/hop_length", "320", "\"hop_length\" is 320, but must be 160")]),
    (
        "audio/ultravox",
        CONFIG,
        &[
            ("/projector_ln_mid", "false", "\"projector_ln_mid\" is false, but must be true"),
            ("/audio_latency_block_size", "100", "but must be null"),
            ("/model_type", "\"conformer\"", "model_type \"conformer\" has no encoder of images or audio"),
        ],
    ),
];

#[test]
fn values_that_an_encoder_does_not_compute_are_refused_with_their_file_and_key() {
    for (name, file, values) in REFUSED {
        for (pointer, value, expected) in *values {
            let error = error_of(name, file, pointer, serde_json::from_str(value).unwrap());
            assert!(error.contains(&format!("{file}: ")) && error.contains(expected), "{name} {pointer}: {error}");
        }
    }
}

#[test]
fn limits_on_pixels_have_old_and_new_names() {
    let limits = |changes: &[(&str, Json)]| {
        let folder = copy("vision/qwen2_5vl");
        change(folder.path(), OWN, changes);
        let encoder = Directory::open_encoder(folder.path()).unwrap();
        ["min", "max"].map(|limit| encoder.u32(&format!("clip.vision.image_{limit}_pixels")).unwrap())
    };
    assert_eq!(limits(&[]), [1568, 250_880]);
    assert_eq!(limits(&[("/min_pixels", json!(3136)), ("/max_pixels", json!(12_845_056))]), [3136, 12_845_056]);
    assert_eq!(limits(&[("/size", json!({ "min_pixels": 784 }))]), [784, 1_003_520]);
    assert_eq!(limits(&[("/size", Json::Null)]), [3136, 1_003_520]);
}

#[test]
fn an_encoder_without_a_preprocessor_is_refused_if_it_needs_one() {
    for (name, file) in [("vision/qwen2vl", OWN), ("vision/qwen3vl", JOINED), ("vision/gemma4", JOINED)] {
        let folder = copy(name);
        std::fs::remove_file(folder.path().join(file)).unwrap();
        let error = error_in(folder.path());
        let expected = "has neither a preprocessor_config.json nor an image_processor in processor_config.json";
        assert!(error.ends_with(expected), "{error}");
        std::fs::write(folder.path().join(file), "{").unwrap();
        assert!(error_in(folder.path()).contains(&format!("{file}: is not valid JSON")));
    }
    let audio = copy("audio/qwen2a");
    std::fs::remove_file(audio.path().join(OWN)).unwrap();
    assert_eq!(Directory::open_encoder(audio.path()).unwrap().u32("clip.audio.num_mel_bins").unwrap(), 128);
}

#[test]
fn an_audio_encoder_without_a_feature_extractor_is_refused_if_it_needs_one() {
    for name in ["audio/gemma4a", "audio/qwen3a"] {
        let folder = copy(name);
        change(folder.path(), JOINED, &[("/feature_extractor", Json::Null)]);
        let error = error_in(folder.path());
        let expected = "has neither a preprocessor_config.json nor a feature_extractor in processor_config.json";
        assert!(error.ends_with(expected), "{error}");
    }
}

#[test]
fn a_directory_has_the_encoder_of_each_kind_that_its_config_states() {
    let kinds = |folder: &Path| {
        let encoders = Directory::open_encoder(folder).unwrap();
        ["vision", "audio"]
            .map(|kind| encoders.optional_str(&format!("clip.{kind}.projector_type")).unwrap().map(str::to_owned))
    };
    assert_eq!(kinds(&fixture("audio/gemma4a")), [Some("gemma4v".to_owned()), Some("gemma4a".to_owned())]);
    let folder = copy("audio/gemma4a");
    change(folder.path(), CONFIG, &[("/audio_config", Json::Null)]);
    assert_eq!(kinds(folder.path()), [None, None]);
    let images_only = Directory::open_encoder(folder.path()).unwrap();
    assert_eq!(images_only.str("clip.projector_type").unwrap(), "gemma4v");
}

#[test]
fn weights_that_are_cut_off_or_elsewhere_are_named() {
    for name in ["vision/qwen2vl", "audio/voxtral"] {
        let folder = copy(name);
        let path = folder.path().join("model.safetensors");
        let bytes = std::fs::read(&path).unwrap();
        std::fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
        let error = error_in(folder.path());
        assert!(error.contains("model.safetensors: ") && error.contains("is the download complete?"), "{error}");
        std::fs::rename(&path, folder.path().join("consolidated.safetensors")).unwrap();
        let error = error_in(folder.path());
        assert!(error.contains("is in Mistral's own layout (consolidated.safetensors)"), "{error}");
        std::fs::remove_file(folder.path().join(CONFIG)).unwrap();
        for error in [error_in(folder.path()), Directory::open(folder.path()).map(drop).unwrap_err().to_string()] {
            assert!(error.contains("the layout of Hugging Face is needed, with config.json"), "{error}");
        }
    }
}

#[test]
fn the_models_that_the_weights_of_ultravox_leave_out_are_named() {
    let error = Directory::open(&fixture("audio/ultravox")).map(drop).unwrap_err();
    let expected = "lacks the weights of \"org/text\", which text_model_id names: load that model, with this directory as its \
                    projector";
    assert!(error.to_string().ends_with(expected) && error.lacks_language_model(), "{error}");
    let folder = copy("audio/ultravox");
    std::fs::copy(fixture("vision/qwen2vl").join("model.safetensors"), folder.path().join("model.safetensors"))
        .unwrap();
    let error = error_in(folder.path());
    assert!(error.contains("lacks the weights of \"org/audio\", which audio_model_id names"), "{error}");
}

#[test]
fn tensors_that_do_not_belong_to_a_layer_are_refused() {
    let folder = copy("audio/qwen2a");
    let path = folder.path().join("model.safetensors");
    let bytes = std::fs::read(&path).unwrap();
    let at = bytes.windows(11).position(|name| name == b"layers.0.fc").unwrap();
    let renamed = [&bytes[..at], b"layers.0.gc", &bytes[at + 11..]].concat();
    std::fs::write(&path, renamed).unwrap();
    let error = error_in(folder.path());
    assert!(error.contains("audio_tower.layers.0.gc") && error.contains("is not known for model_type"), "{error}");
}

/// An audio encoder of which the file has only these tensors, of zeros except for the last value.
fn quantized(scheme: Json, tensors: &[TensorSpec<'_>], last: f32) -> Result<Directory, String> {
    let folder = copy("audio/qwen2a");
    change(folder.path(), CONFIG, &[("/quantization_config", scheme)]);
    let mut file = safetensors(tensors);
    let end = file.len();
    file[end - 4..].copy_from_slice(&last.to_le_bytes());
    std::fs::write(folder.path().join("model.safetensors"), file).unwrap();
    Directory::open_encoder(folder.path()).map_err(|error| error.to_string())
}

#[test]
fn quantized_weights_load_if_blocks_are_all_they_need() {
    const UP: &str = "audio_tower.layers.0.fc1.weight";
    let scales = format!("{UP}_scale_inv");
    let tensors: [TensorSpec<'_>; 2] = [(UP, "F8_E4M3", &[32, 64]), (&scales, "F32", &[1, 1])];
    let scheme = json!({ "quant_method": "fp8", "weight_block_size": [128, 128] });
    let encoder = quantized(scheme, &tensors, 0.5).unwrap();
    let weight = encoder.weight("a.blk.0.ffn_up.weight").unwrap();
    assert_eq!((weight.format.name(), weight.rows, weight.columns), ("F8_E4M3", 32, 64));
    let [codes, scales, factor] = ["packed", "scale", "global_scale"].map(|part| format!("{UP}_{part}"));
    let tensors: [TensorSpec<'_>; 3] =
        [(&codes, "U8", &[32, 32]), (&scales, "F8_E4M3", &[32, 4]), (&factor, "F32", &[1])];
    let scheme = json!({ "quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized" });
    let error = quantized(scheme, &tensors, 2.0).unwrap_err();
    assert!(error.contains("tensor \"a.blk.0.ffn_up\" is packed with a factor"), "{error}");
}
