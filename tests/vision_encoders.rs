//! Vision towers, compared with Hugging Face transformers.
//!
//! `tests/generate/vision.py` writes tiny models, what its processors make of some images, and the embedding rows of these images.
//! What stands for an image in the prompt must be the same text, the colors after resizing must be near those of Pillow, and the
//! rows near those of the oracle, on every device.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};

use cuelight_engine::engine::TokenId;
use cuelight_engine::format::gguf::write::GgufBuilder;
use cuelight_engine::load::{ComputeDevice, Kernel, LoadCancel, LoadError};
use cuelight_engine::media::MediaPart;
use cuelight_engine::tower::TowerOptions;
use cuelight_engine::vision::{ImageError, PreparedImage, RgbImage, Tile, plan};
use proptest::prelude::*;
use serde::Deserialize;

#[path = "support/media_prompt.rs"]
mod media_prompt;
#[path = "support/test_seed.rs"]
mod test_seed;
#[path = "support/vulkan_device.rs"]
mod vulkan_device;

use media_prompt::{
    DEVICE_GATE, ExpectedPrompt, GATE, GivenRows, distance, expected_in, is_whole, text_of, tower_options,
};
use test_seed::of_the_day;
use vulkan_device::has_device;

/// Largest difference of a color, in steps of 8 bits.
const COLOR_GATE: f32 = 2.0;

/// The expected values of one model.
#[derive(Deserialize)]
struct Expected {
    /// Where its files are.
    #[serde(skip)]
    folder: PathBuf,
    row_token: String,
    placeholder: String,
    width: usize,
    /// Files with the same weights in other formats.
    rounded: Vec<String>,
    image_mean: [f32; 3],
    image_std: [f32; 3],
    patch: usize,
    merge: usize,
    row_token_id: TokenId,
    rows_see_each_other: bool,
    images: Vec<ExpectedImage>,
    prompts: Vec<ExpectedPrompt>,
}

#[derive(Deserialize)]
struct ExpectedImage {
    width: u32,
    height: u32,
    /// What takes the place of the placeholder, with a row token for each row.
    text: String,
    /// The colors of each tile in hexadecimal numbers, [3, height, width]; empty where they are left out.
    tiles: Vec<String>,
    /// [rows, width]; empty where they are left out.
    rows: Vec<f32>,
}

fn all() -> Vec<Expected> {
    let of_folder = |(folder, expected): (PathBuf, Expected)| Expected { folder, ..expected };
    expected_in("vision").into_iter().map(of_folder).collect()
}

impl Expected {
    fn path(&self, file: &str) -> PathBuf {
        self.folder.join(file)
    }

    /// The name of the projector.
    fn family(&self) -> &str {
        self.folder.file_name().unwrap().to_str().unwrap()
    }
}

/// The image that the generator makes by the same formula.
fn image(width: u32, height: u32) -> RgbImage {
    let color = |x: u32, y: u32, color: u32| (x * 7 + y * 13 + color * 50 + x * y % 17 * 5) % 256;
    let of_row = |y: u32| (0..width).flat_map(move |x| (0..3).map(move |index| color(x, y, index) as u8));
    RgbImage { width, height, pixels: (0..height).flat_map(of_row).collect() }
}

/// The colors of a tile in steps of 8 bits, [3, height, width].
fn colors(tile: &Tile, expected: &Expected) -> Vec<f32> {
    let (patch, merge) = (expected.patch, expected.merge);
    let [columns, rows] = tile.grid();
    let (width, height) = (columns * patch, rows * patch);
    let mut colors = vec![0.0; 3 * width * height];
    let mut patches = tile.patches().chunks_exact(3 * patch * patch);
    for square in 0..columns * rows / (merge * merge) {
        let [x, y] = [square % (columns / merge), square / (columns / merge)];
        for within in 0..merge * merge {
            let [column, row] = [x * merge + within % merge, y * merge + within / merge];
            for (index, value) in patches.next().unwrap().iter().enumerate() {
                let [color, down, right] = [index / (patch * patch), index / patch % patch, index % patch];
                let level = 255.0 * (value * expected.image_std[color] + expected.image_mean[color]);
                colors[(color * height + row * patch + down) * width + column * patch + right] = level;
            }
        }
    }
    colors
}

/// The values of hexadecimal digits.
fn bytes(digits: &str) -> Vec<f32> {
    let pairs = digits.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).unwrap());
    pairs.map(|pair| f32::from(u8::from_str_radix(pair, 16).unwrap())).collect()
}

#[test]
fn images_are_prepared_as_by_transformers() {
    for expected in all() {
        let preparation = plan(&tower_options(expected.path("mmproj.gguf"))).unwrap().preparation();
        let spec = preparation.spec();
        assert_eq!((&spec.row_tokens, &spec.placeholder), (&vec![expected.row_token.clone()], &expected.placeholder));
        assert_eq!((spec.width, spec.rows_see_each_other), (expected.width, expected.rows_see_each_other));
        for of_image in &expected.images {
            let prepared = preparation.prepare(&image(of_image.width, of_image.height)).unwrap();
            assert_eq!(text_of(&prepared.parts, &expected.row_token), of_image.text, "{}", expected.family());
            let rows: usize = prepared.rows();
            assert!(rows <= spec.max_rows);
            if of_image.tiles.is_empty() {
                continue;
            }
            assert_eq!(prepared.tiles.len(), of_image.tiles.len(), "{}", expected.family());
            for (tile, digits) in prepared.tiles.iter().zip(&of_image.tiles) {
                let worst = distance(&colors(tile, &expected), &bytes(digits));
                assert!(worst <= COLOR_GATE, "{}: {worst}", expected.family());
            }
        }
    }
}

/// Compares the rows of all images.
fn check(expected: &Expected, file: &str, options: TowerOptions, gate: f32) {
    let planned = plan(&options).unwrap_or_else(|error| panic!("{error}"));
    let preparation = planned.preparation();
    assert!(planned.tower().bytes() > 0);
    let mut encoder = planned.load(&LoadCancel::default()).unwrap_or_else(|error| panic!("{error}"));
    for of_image in expected.images.iter().filter(|image| !image.rows.is_empty()) {
        let prepared = preparation.prepare(&image(of_image.width, of_image.height)).unwrap();
        let rows = encoder.encode(&prepared, &LoadCancel::default()).unwrap();
        let largest = of_image.rows.iter().map(|value| value.abs()).fold(0.0, f32::max);
        let worst = distance(&rows, &of_image.rows) / largest;
        println!("{:12} {file:18} {:10} {worst:8.1e}", expected.family(), options.kernel.to_string());
        assert!(worst <= gate, "{} {file} {}: {worst}", expected.family(), options.kernel);
        let again = encoder.encode(&prepared, &LoadCancel::default()).unwrap();
        let bits = |rows: &[f32]| rows.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&rows), bits(&again), "{}", expected.family());
    }
}

#[test]
fn rows_agree_with_transformers_on_every_kernel() {
    for expected in all() {
        for kernel in Kernel::ALL.iter().copied().filter(|kernel| kernel.is_supported()) {
            let on_kernel = |file: &str| TowerOptions { kernel, ..tower_options(expected.path(file)) };
            check(&expected, "mmproj.gguf", on_kernel("mmproj.gguf"), GATE);
            for file in &expected.rounded {
                check(&expected, file, on_kernel(file), DEVICE_GATE);
            }
        }
    }
}

#[test]
fn a_directory_gives_the_bits_of_its_file() {
    for expected in all() {
        let of_image = &expected.images[0];
        let rows = |file: &str| {
            let planned = plan(&tower_options(expected.path(file))).unwrap_or_else(|error| panic!("{error}"));
            let prepared = planned.preparation().prepare(&image(of_image.width, of_image.height)).unwrap();
            let mut encoder = planned.load(&LoadCancel::default()).unwrap();
            (prepared.clone(), encoder.encode(&prepared, &LoadCancel::default()).unwrap())
        };
        let (of_file, of_directory) = (rows("mmproj.gguf"), rows("directory"));
        assert_eq!(of_directory.0, of_file.0, "{}", expected.family());
        assert!(of_directory.1 == of_file.1, "{}: {}", expected.family(), distance(&of_directory.1, &of_file.1));
    }
}

#[test]
fn rows_agree_with_transformers_on_a_device() {
    if !has_device() {
        return;
    }
    for expected in of_the_day(all(), 3) {
        let on_device =
            |file: &str| TowerOptions { device: ComputeDevice::Vulkan(0), ..tower_options(expected.path(file)) };
        for file in ["mmproj.gguf"].into_iter().chain(expected.rounded.iter().map(String::as_str)) {
            check(&expected, file, on_device(file), DEVICE_GATE);
        }
    }
}

/// The positions by which a model rotates the tokens of a prompt, if the rows of its image are a grid.
fn rope_positions(tokens: &[TokenId], row_token: TokenId, parts: &[MediaPart]) -> Vec<[u32; 3]> {
    let Some(MediaPart::Grid([columns, rows])) = parts.first() else { return Vec::new() };
    let first = tokens.iter().position(|token| *token == row_token).unwrap();
    let after = first + columns * rows;
    let of = |index: usize| match index {
        _ if index < first => [index; 3],
        _ if index < after => [first, first + (index - first) / columns, first + (index - first) % columns],
        _ => [first + columns.max(rows) + index - after; 3],
    };
    (0..tokens.len()).map(|index| of(index).map(|position| position as u32)).collect()
}

/// Checks the prompts of a model, in these files.
fn check_prompts(expected: &Expected, encoder: &str, model: &str) {
    let planned = plan(&tower_options(expected.path(encoder))).unwrap();
    let of_image = &expected.images[0];
    let prepared = planned.preparation().prepare(&image(of_image.width, of_image.height)).unwrap();
    let rows = planned.load(&LoadCancel::default()).unwrap().encode(&prepared, &LoadCancel::default()).unwrap();
    for prompt in &expected.prompts {
        let given = GivenRows {
            values: rows.clone().into(),
            row_token: expected.row_token_id,
            see_each_other: expected.rows_see_each_other,
            rope_positions: rope_positions(&prompt.tokens, expected.row_token_id, &prepared.parts),
        };
        let worst = prompt.worst(&expected.path(model), &given);
        println!("{:12} {model:12} {worst:8.1e}", expected.family());
        assert!(worst <= 1e-3, "{} {model}: {worst}", expected.family());
    }
}

#[test]
fn prompts_with_an_image_have_the_log_probabilities_of_transformers() {
    for expected in all() {
        check_prompts(&expected, "mmproj.gguf", "text.gguf");
        if is_whole(&expected.path("directory")) {
            check_prompts(&expected, "directory", "directory");
        }
    }
}

#[test]
fn a_text_model_is_not_a_vision_tower() {
    let expected = all().remove(0);
    let Err(error) = plan(&tower_options(expected.path("text.gguf"))) else { panic!("it has no tower") };
    assert!(matches!(error, LoadError::Tower(_)), "{error}");
    assert!(error.to_string().contains("\"clip\""), "{error}");
}

/// A file of a tower with only these keys.
fn file_of_keys(keys: &[(&str, u32)], projector: &str) -> tempfile::NamedTempFile {
    let mut builder = GgufBuilder::new().key("general.architecture", "clip").key("clip.projector_type", projector);
    for (key, value) in keys {
        builder = builder.key(&format!("clip.vision.{key}"), *value);
    }
    let colors: &[f32] = &[0.5; 3];
    builder = builder.key("clip.vision.image_mean", colors).key("clip.vision.image_std", colors);
    builder = builder.key("clip.vision.attention.layer_norm_epsilon", 1e-6_f32);
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), builder.build()).unwrap();
    file
}

const KEYS: [(&str, u32); 5] =
    [("image_size", 56), ("patch_size", 7), ("embedding_length", 32), ("attention.head_count", 4), ("block_count", 2)];

fn fault(keys: &[(&str, u32)], projector: &str) -> String {
    let file = file_of_keys(keys, projector);
    match plan(&tower_options(file.path().to_owned())) {
        Ok(_) => panic!("{keys:?} is not a tower"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn an_unknown_projector_is_refused_with_the_known_ones() {
    let message = fault(&KEYS, "qformer");
    assert!(message.contains("\"qformer\" of images is not supported; supported are idefics3, gemma3"), "{message}");
}

#[test]
fn a_missing_key_and_a_missing_tensor_are_named() {
    for missing in 0..KEYS.len() {
        let mut keys = KEYS.to_vec();
        let (key, _) = keys.remove(missing);
        let message = fault(&keys, "gemma3");
        assert!(message.contains(&format!("clip.vision.{key}")), "{message}");
    }
    let message = fault(&KEYS, "gemma3");
    assert!(message.contains("v.patch_embd.weight"), "{message}");
}

#[test]
fn sizes_that_no_tower_has_are_refused() {
    for (key, value) in [
        ("image_size", 0),
        ("image_size", u32::MAX),
        ("patch_size", 0),
        ("patch_size", u32::MAX),
        ("embedding_length", 0),
        ("embedding_length", u32::MAX),
        ("attention.head_count", 0),
        ("attention.head_count", 5),
        ("attention.head_count_kv", 0),
        ("attention.head_count_kv", 3),
        ("block_count", u32::MAX),
        ("projector.scale_factor", 0),
        ("projector.scale_factor", 3),
        ("preproc_max_tiles", u32::MAX),
        ("preproc_image_size", 0),
        ("swiglu_clamp", 1 << 16),
    ] {
        let keys: Vec<_> = KEYS.iter().copied().filter(|(other, _)| *other != key).chain([(key, value)]).collect();
        let message = fault(&keys, "gemma3");
        assert!(message.contains("clip.vision."), "{key} {value}: {message}");
    }
}

/// A copy of the directory of a model.
fn copied_directory(family: &str) -> tempfile::TempDir {
    let expected = all().into_iter().find(|expected| expected.family() == family).unwrap();
    let folder = tempfile::tempdir().unwrap();
    for file in std::fs::read_dir(expected.path("directory")).unwrap().map(Result::unwrap) {
        std::fs::copy(file.path(), folder.path().join(file.file_name())).unwrap();
    }
    folder
}

/// The error of a directory.
fn fault_of_directory(folder: &Path) -> String {
    let Err(error) = plan(&tower_options(folder.to_owned())) else { panic!("it is a tower") };
    error.to_string()
}

#[test]
fn limits_that_no_value_is_within_are_refused_with_their_tensors() {
    let folder = copied_directory("gemma4-e");
    let path = folder.path().join("model.safetensors");
    let mut bytes = std::fs::read(&path).unwrap();
    let header = usize::try_from(u64::from_le_bytes(*bytes.first_chunk().unwrap())).unwrap();
    let tensors: serde_json::Value = serde_json::from_slice(&bytes[8..8 + header]).unwrap();
    let least = &tensors["model.vision_tower.encoder.layers.0.self_attn.k_proj.output_min"]["data_offsets"][0];
    let start = 8 + header + usize::try_from(least.as_u64().unwrap()).unwrap();
    for value in [50.0_f32, f32::NAN] {
        bytes[start..start + 4].copy_from_slice(&value.to_le_bytes());
        std::fs::write(&path, &bytes).unwrap();
        let message = fault_of_directory(folder.path());
        let expected = "number of values from v.blk.0.attn_k.output_min to v.blk.0.attn_k.output_max is 0";
        assert!(message.contains(expected), "{message}");
    }
}

#[test]
fn kernels_that_have_no_middle_are_refused_with_their_tensor() {
    let folder = copied_directory("lfm3");
    let path = folder.path().join("model.safetensors");
    let bytes = std::fs::read(&path).unwrap();
    let header = usize::try_from(u64::from_le_bytes(*bytes.first_chunk().unwrap())).unwrap();
    let tensors = String::from_utf8(bytes[8..8 + header].to_vec()).unwrap();
    let mut tensors: serde_json::Value = serde_json::from_str(&tensors).unwrap();
    let kernel = &mut tensors["model.vision_tower.layers.1.conv.spatial_conv.weight"];
    kernel["shape"] = serde_json::json!([16, 1, 2, 2]);
    let end = kernel["data_offsets"][0].as_u64().unwrap() + 16 * 4 * 4;
    kernel["data_offsets"][1] = end.into();
    let tensors = tensors.to_string();
    let length = (tensors.len() as u64).to_le_bytes();
    std::fs::write(&path, [&length, tensors.as_bytes(), &bytes[8 + header..]].concat()).unwrap();
    let message = fault_of_directory(folder.path());
    assert!(message.contains("v.blk.1.conv2d_spatial.weight"), "{message}");
}

#[test]
fn another_way_to_resize_images_is_refused() {
    let expected = all().into_iter().find(|expected| expected.family() == "lfm3").unwrap();
    let mut bytes = std::fs::read(expected.path("mmproj.gguf")).unwrap();
    let at = bytes.windows(7).position(|text| text == b"bicubic").unwrap();
    bytes[at..at + 7].copy_from_slice(b"nearest");
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), bytes).unwrap();
    let message = fault_of_directory(file.path());
    assert!(
        message.contains("clip.vision.image_resize_algo") && message.contains("\"bilinear\" or \"bicubic\""),
        "{message}"
    );
}

#[test]
fn tables_that_are_shorter_than_tiles_are_refused() {
    let folder = copied_directory("gemma4");
    let path = folder.path().join("processor_config.json");
    let stated = std::fs::read_to_string(&path).unwrap();
    assert!(stated.contains("\"max_soft_tokens\": 70"));
    std::fs::write(&path, stated.replace("\"max_soft_tokens\": 70", "\"max_soft_tokens\": 280")).unwrap();
    let message = fault_of_directory(folder.path());
    let expected = "tensor \"v.position_embd.weight\" is [420, 16], but the metadata says [1680, 16]";
    assert!(message.contains(expected), "{message}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn damaged_files_are_refused_or_planned(at in 0usize..6000, value in any::<u8>(), cut in any::<Option<u16>>()) {
        let mut bytes = std::fs::read(all().iter().find(|expected| expected.family() == "internvl").unwrap().path("mmproj.gguf")).unwrap();
        bytes[at] = value;
        bytes.truncate(cut.map_or(usize::MAX, usize::from));
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), bytes).unwrap();
        if let Ok(planned) = plan(&tower_options(file.path().to_owned())) {
            prop_assert!(planned.tower().bytes() < 1 << 40);
            prop_assert!(planned.preparation().prepare(&image(20, 10)).is_ok());
        }
    }
}

#[test]
fn an_image_without_pixels_is_refused() {
    let expected = all().remove(0);
    let preparation = plan(&tower_options(expected.path("mmproj.gguf"))).unwrap().preparation();
    let empty = preparation.prepare(&RgbImage::default());
    assert_eq!(empty, Err(ImageError::Empty { width: 0, height: 0 }));
    let huge = RgbImage { width: 60_000, height: 60_000, pixels: vec![0; 300] };
    assert!(matches!(preparation.prepare(&huge), Err(ImageError::WrongLength { .. })));
}

#[test]
fn thin_images_take_little_memory() {
    for expected in all() {
        let preparation = plan(&tower_options(expected.path("mmproj.gguf"))).unwrap().preparation();
        for (width, height) in [(1, 1_000_000), (1_000_000, 1)] {
            let thin = RgbImage { width, height, pixels: vec![9; 3_000_000] };
            assert!(!preparation.prepare(&thin).unwrap().tiles.is_empty(), "{}", expected.family());
        }
    }
}

#[test]
fn an_encoder_refuses_the_tiles_of_another_tower_and_stops_when_cancelled() {
    let expected = all().remove(0);
    let planned = plan(&tower_options(expected.path("mmproj.gguf"))).unwrap();
    let preparation = planned.preparation();
    let mut encoder = planned.load(&LoadCancel::default()).unwrap();
    let foreign = PreparedImage { parts: Vec::new(), tiles: vec![Tile::default()] };
    assert!(encoder.encode(&foreign, &LoadCancel::default()).is_err());
    let prepared = preparation.prepare(&image(20, 20)).unwrap();
    let cancel = LoadCancel::default();
    cancel.cancel();
    assert!(encoder.encode(&prepared, &cancel).is_err());
}
