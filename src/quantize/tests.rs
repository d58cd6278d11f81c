//! Tests of quantization on tiny files: formats, contents, refusals, importance matrices.

use std::path::Path;

use cuelight_shaders::quant::Format;
use cuelight_shaders::quant::random;

use super::*;
use crate::cancel::LoadCancel;
use crate::format::gguf::write::GgufBuilder;
use crate::format::gguf::{GGML_I32, Gguf, Metadata};

const COLUMNS: usize = 256;
const LAYERS: u32 = 8;

fn values(rows: usize, seed: u64) -> Vec<f32> {
    random::activations(rows * COLUMNS, seed)
}

/// A file with the tensors that recipes distinguish. The weights are not those of a model that runs.
fn source() -> Vec<u8> {
    builder().build()
}

fn builder() -> GgufBuilder {
    let file = GgufBuilder::new()
        .key("general.architecture", "llama")
        .key("general.file_type", 0u32)
        .key("llama.block_count", LAYERS)
        .key("llama.attention.head_count", 4u32)
        .key("llama.attention.head_count_kv", 2u32)
        .key("tokenizer.ggml.tokens", ["a", "b"].as_slice())
        .tensor_f32("token_embd.weight", &[256, 8], &values(8, 1))
        .tensor_f32("output_norm.weight", &[256], &values(1, 2));
    (0..LAYERS).fold(file, |file, layer| {
        let seed = 100 + u64::from(layer);
        ["attn_q", "attn_v", "ffn_down", "attn_norm"].iter().fold(file, |file, stem| match *stem {
            "attn_norm" => file.tensor_f32(&format!("blk.{layer}.{stem}.weight"), &[256], &values(1, seed)),
            _ => file.tensor_f32(&format!("blk.{layer}.{stem}.weight"), &[256, 4], &values(4, seed)),
        })
    })
}

fn options(recipe: &str) -> QuantizeOptions {
    QuantizeOptions {
        target: Some(recipe.parse().unwrap()),
        is_complete: true,
        threads: 2,
        ..QuantizeOptions::default()
    }
}

fn open(bytes: Vec<u8>) -> Gguf {
    Gguf::from_bytes("source.gguf", bytes).unwrap()
}

/// Quantizes to a file and reads that.
fn quantized(source: &Gguf, options: &QuantizeOptions) -> Gguf {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out.gguf");
    let plan = QuantizePlan::new(source, options).unwrap();
    let mut last = None;
    let bytes = plan.write(&path, &LoadCancel::default(), &mut |progress| last = Some(progress)).unwrap();
    let read = std::fs::read(&path).unwrap();
    assert_eq!(read.len() as u64, bytes);
    assert_eq!(last.map(|last| (last.done_bytes, last.total_bytes)), Some((plan.bytes().0, plan.bytes().0)));
    open(read)
}

fn format_of(gguf: &Gguf, tensor: &str) -> Format {
    gguf.weight(tensor).unwrap().format
}

fn distance(a: &[f32], b: &[f32]) -> f32 {
    let error: f32 = a.iter().zip(b).map(|(a, b)| (a - b) * (a - b)).sum();
    let sum: f32 = a.iter().map(|a| a * a).sum();
    (error / sum).sqrt()
}

#[test]
fn a_mixture_gives_each_tensor_its_format_and_close_values() {
    let source = open(source());
    let found = quantized(&source, &options("q4_k_m"));
    assert_eq!(format_of(&found, "token_embd.weight"), Format::Q6_K, "it is also the head");
    assert_eq!(format_of(&found, "output_norm.weight"), Format::F32);
    assert_eq!(format_of(&found, "blk.2.attn_q.weight"), Format::Q4_K);
    for (layer, expected) in [(0, Format::Q6_K), (1, Format::Q4_K), (3, Format::Q6_K), (7, Format::Q6_K)] {
        assert_eq!(format_of(&found, &format!("blk.{layer}.attn_v.weight")), expected, "layer {layer}");
        assert_eq!(format_of(&found, &format!("blk.{layer}.ffn_down.weight")), expected, "layer {layer}");
    }
    for tensor in source.tensors() {
        let (before, after) = (source.weight(&tensor.name).unwrap(), found.weight(&tensor.name).unwrap());
        let distance = distance(&before.to_f32(), &after.to_f32());
        assert!(distance < 0.1, "{}: {distance}", tensor.name);
    }
}

#[test]
fn metadata_is_kept_except_what_describes_the_formats() {
    let found = quantized(&open(source()), &options("q8_0"));
    assert_eq!(found.u32("general.file_type").unwrap(), 7);
    assert_eq!(found.u32("general.quantization_version").unwrap(), 2);
    assert_eq!(found.u32("llama.block_count").unwrap(), LAYERS);
    let tokens: Vec<&str> = found
        .value("tokenizer.ggml.tokens")
        .and_then(|value| match value {
            crate::format::gguf::Value::Array(array) => array.strings(),
            _ => None,
        })
        .unwrap()
        .collect();
    assert_eq!(tokens, ["a", "b"]);
}

#[test]
fn integers_stay_as_they_are() {
    let integers = [7_i32, 0, -1, 5, 3, 2];
    let bytes: Vec<u8> = integers.iter().flat_map(|integer| integer.to_le_bytes()).collect();
    let name = "blk.0.ffn_gate_tid2eid.weight";
    let source = open(builder().tensor(name, &[2, 3], GGML_I32, bytes).build());
    let options = options("q4_k_m");
    let plan = QuantizePlan::new(&source, &options).unwrap();
    let planned = plan.tensors.iter().find(|tensor| tensor.name == name).unwrap();
    assert_eq!((planned.types(), planned.to_bytes), (["I32", "I32"].map(str::to_owned), 24));
    let found = quantized(&source, &options);
    assert_eq!(found.integers_of(name), Some(integers.map(i64::from).into()));
}

#[test]
fn the_first_pattern_that_matches_overrides_the_mixture() {
    let overrides = ["blk\\.0\\.attn_v=q8_0", "attn_v=q5_k"].map(|text| text.parse().unwrap()).to_vec();
    let found = quantized(&open(source()), &QuantizeOptions { overrides, ..options("q4_k_m") });
    assert_eq!(format_of(&found, "blk.0.attn_v.weight"), Format::Q8_0);
    assert_eq!(format_of(&found, "blk.1.attn_v.weight"), Format::Q5_K);
    assert_eq!(format_of(&found, "blk.1.attn_q.weight"), Format::Q4_K);
}

#[test]
fn the_same_file_is_written_with_any_number_of_threads() {
    let source = open(source());
    let one = quantized(&source, &QuantizeOptions { threads: 1, ..options("q5_k_m") });
    let many = quantized(&source, &QuantizeOptions { threads: 7, ..options("q5_k_m") });
    for tensor in source.tensors() {
        assert_eq!(one.weight(&tensor.name).unwrap().bytes(), many.weight(&tensor.name).unwrap().bytes());
    }
}

#[test]
fn quantized_tensors_are_refused_unless_allowed() {
    let source = quantized(&open(source()), &options("q8_0"));
    let error = QuantizePlan::new(&source, &options("q4_k_m")).err().unwrap().to_string();
    assert!(error.contains("token_embd.weight") && error.contains("Q8_0"), "{error}");
    let allowed = QuantizeOptions { allow_requantize: true, ..options("q4_k_m") };
    assert_eq!(format_of(&quantized(&source, &allowed), "blk.1.attn_q.weight"), Format::Q4_K);
    // A tensor that has its format already needs no permission.
    assert!(QuantizePlan::new(&source, &options("q8_0")).is_ok());
}

#[test]
fn a_value_that_is_not_finite_is_refused_by_tensor_and_leaves_no_file() {
    let mut bad = values(4, 1);
    bad[300] = f32::NAN;
    let file =
        GgufBuilder::new().key("general.architecture", "llama").tensor_f32("blk.0.attn_q.weight", &[256, 4], &bad);
    let (source, options) = (open(file.build()), options("q4_k_m"));
    let folder = tempfile::tempdir().unwrap();
    let plan = QuantizePlan::new(&source, &options).unwrap();
    let error =
        plan.write(&folder.path().join("out.gguf"), &LoadCancel::default(), &mut |_| {}).unwrap_err().to_string();
    assert!(error.contains("blk.0.attn_q.weight") && error.contains("NaN"), "{error}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

/// Writes to `path` and cancels after `tensors` tensors; a run that needs fewer is complete. Returns the tensors that were done
/// when the run began.
fn write_some(source: &Gguf, options: &QuantizeOptions, path: &Path, tensors: usize) -> usize {
    let cancel = LoadCancel::default();
    let plan = QuantizePlan::new(source, options).unwrap();
    let mut seen = Vec::new();
    let written = plan.write(path, &cancel, &mut |progress| {
        seen.push(progress.done_bytes);
        if seen.len() > tensors {
            cancel.cancel();
        }
    });
    assert!(matches!(written, Ok(_) | Err(QuantizeError::Cancelled)), "{written:?}");
    let mut sums = plan.tensors.iter().scan(0, |sum, tensor| {
        *sum += tensor.from_bytes;
        Some(*sum)
    });
    sums.position(|sum| sum > seen[0]).unwrap_or(plan.tensors.len())
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_cancelled_quantization_continues_and_gives_the_same_file() {
    let (source, options) = (open(source()), options("q4_k_m"));
    let expected = quantized(&source, &options);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out.gguf");
    assert_eq!(write_some(&source, &options, &path, 3), 0);
    assert_eq!(names(folder.path()), ["out.gguf.partial", "out.gguf.partial.journal"]);
    assert_eq!(write_some(&source, &options, &path, 5), 3);
    assert_eq!(write_some(&source, &options, &path, usize::MAX), 8);
    assert_eq!(names(folder.path()), ["out.gguf"]);
    let found = open(std::fs::read(&path).unwrap());
    for tensor in source.tensors() {
        assert_eq!(found.weight(&tensor.name).unwrap().bytes(), expected.weight(&tensor.name).unwrap().bytes());
    }
}

#[test]
fn other_options_or_another_model_start_over() {
    let (model, q4) = (open(source()), options("q4_k_m"));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out.gguf");
    write_some(&model, &q4, &path, 3);
    assert_eq!(write_some(&model, &options("q5_k_m"), &path, 4), 0);
    let other = open(
        GgufBuilder::new()
            .key("general.architecture", "llama")
            .tensor_f32("a.weight", &[256, 4], &values(4, 1))
            .build(),
    );
    assert_eq!(write_some(&other, &q4, &path, 0), 0);
    // The same formats with another importance.
    let of_first = |value: f32| {
        let path = write(folder.path(), &importance(256, |column| 1.0 + value * column as f32));
        QuantizeOptions { importance: Some(ImportanceMatrix::open(&path).unwrap()), ..options("q4_k_m") }
    };
    write_some(&model, &of_first(1.0), &path, 5);
    assert_eq!(write_some(&model, &of_first(2.0), &path, 5), 0);
    assert_eq!(write_some(&model, &of_first(2.0), &path, usize::MAX), 5);
}

#[test]
fn damaged_partial_files_and_journals_give_the_same_file() {
    let (source, options) = (open(source()), options("q4_k_m"));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out.gguf");
    let partial = folder.path().join("out.gguf.partial");
    let journal = folder.path().join("out.gguf.partial.journal");
    write_some(&source, &options, &path, 6);
    let (file, lines) = (std::fs::read(&partial).unwrap(), std::fs::read(&journal).unwrap());
    write_some(&source, &options, &path, usize::MAX);
    let expected = std::fs::read(&path).unwrap();
    let continues = |file: &[u8], lines: &[u8]| {
        std::fs::write(&partial, file).unwrap();
        std::fs::write(&journal, lines).unwrap();
        let done = write_some(&source, &options, &path, usize::MAX);
        assert!(std::fs::read(&path).unwrap() == expected);
        assert_eq!(names(folder.path()), ["out.gguf"]);
        done
    };
    assert_eq!(continues(&file, &lines), 6);
    for part in [0, 1, 4, 7, 9] {
        assert!(continues(&file[..file.len() * part / 10], &lines) < 6, "{part} tenths of the file");
        assert!(continues(&file, &lines[..lines.len() * part / 10]) < 6, "{part} tenths of the journal");
    }
    let mut longer = file.clone();
    longer.extend([7; 5000]);
    assert_eq!(continues(&longer, &lines), 6);
    for position in [2, file.len() / 2, file.len() - 1] {
        let mut damaged = file.clone();
        damaged[position] ^= 1;
        assert!(continues(&damaged, &lines) < 6, "byte {position} of the file");
    }
    for position in (0..lines.len()).step_by(9) {
        let mut damaged = lines.clone();
        damaged[position] ^= 128;
        assert!(continues(&file, &damaged) < 6, "byte {position} of the journal");
    }
}

#[test]
fn a_file_that_another_run_writes_is_refused_and_kept() {
    let (source, options) = (open(source()), options("q4_k_m"));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out.gguf");
    write_some(&source, &options, &path, 3);
    let other = std::fs::File::open(folder.path().join("out.gguf.partial")).unwrap();
    other.try_lock().unwrap();
    let plan = QuantizePlan::new(&source, &options).unwrap();
    let error = plan.write(&path, &LoadCancel::default(), &mut |_| {}).unwrap_err();
    assert!(matches!(error, QuantizeError::Locked { .. }), "{error}");
    drop(other);
    assert_eq!(write_some(&source, &options, &path, usize::MAX), 3);
}

#[test]
fn unknown_names_are_refused_with_the_known_ones() {
    let error = "q4".parse::<Target>().unwrap_err().to_string();
    assert!(error.contains("q4_k_m") && error.contains("iq1_s") && error.contains("iq3_xs"), "{error}");
    assert!("attn_v".parse::<Override>().is_err());
    assert!("attn_v=q9".parse::<Override>().is_err());
    assert!("(=q8_0".parse::<Override>().unwrap_err().to_string().contains("regular expression"));
}

/// An importance matrix in the form of GGUF.
fn importance(columns: u64, value: impl Fn(usize) -> f32) -> Vec<u8> {
    let sums: Vec<f32> = (0..columns as usize).map(value).collect();
    GgufBuilder::new()
        .key("general.type", "imatrix")
        .tensor_f32("blk.1.attn_q.weight.in_sum2", &[columns, 1], &sums)
        .tensor_f32("blk.1.attn_q.weight.counts", &[1, 1], &[4.0])
        .build()
}

fn write(folder: &Path, bytes: &[u8]) -> std::path::PathBuf {
    let path = folder.join("imatrix");
    std::fs::write(&path, bytes).unwrap();
    path
}

#[test]
fn importance_reduces_the_error_of_important_columns() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), &importance(256, |column| if column % 8 == 0 { 400.0 } else { 0.4 }));
    let source = open(source());
    let with = QuantizeOptions { importance: Some(ImportanceMatrix::open(&path).unwrap()), ..options("q4_k_m") };
    let error = |gguf: &Gguf| {
        let (before, after) = ("blk.1.attn_q.weight", "blk.1.attn_q.weight");
        let (before, after) = (source.weight(before).unwrap().to_f32(), gguf.weight(after).unwrap().to_f32());
        let important = |values: &[f32]| values.iter().copied().step_by(8).collect::<Vec<f32>>();
        distance(&important(&before), &important(&after))
    };
    let (found, without) = (quantized(&source, &with), quantized(&source, &options("q4_k_m")));
    assert!(error(&found) < error(&without), "{} and {}", error(&found), error(&without));
    assert_eq!(found.u32("quantize.imatrix.entries_count").unwrap(), 1);
    let other = |gguf: &Gguf| gguf.weight("blk.2.attn_q.weight").unwrap().bytes().to_vec();
    assert_eq!(other(&found), other(&without), "its importance was not measured");
}

#[test]
fn both_forms_of_importance_matrices_give_the_same_values() {
    let folder = tempfile::tempdir().unwrap();
    let value = |column: usize| 1.0 + column as f32;
    let gguf = ImportanceMatrix::open(&write(folder.path(), &importance(256, value))).unwrap();
    let name = b"blk.1.attn_q.weight";
    let mut binary = Vec::new();
    for number in [1, name.len() as i32] {
        binary.extend(number.to_le_bytes());
    }
    binary.extend(name);
    for number in [4_i32, 256] {
        binary.extend(number.to_le_bytes());
    }
    (0..256).for_each(|column| binary.extend(value(column).to_le_bytes()));
    let older = ImportanceMatrix::open(&write(folder.path(), &binary)).unwrap();
    assert_eq!(gguf.of("blk.1.attn_q.weight", 0), older.of("blk.1.attn_q.weight", 0));
    assert_eq!(gguf.of("blk.1.attn_q.weight", 0).unwrap()[3], 1.0);
    for length in 0..binary.len() {
        let damaged = ImportanceMatrix::open(&write(folder.path(), &binary[..length]));
        assert!(damaged.is_err(), "{length} bytes");
    }
}

/// An importance matrix for all matrices of the layers of [`source`].
fn importance_of_layers(folder: &Path) -> ImportanceMatrix {
    let stems = ["attn_q", "attn_v", "ffn_down"];
    let names = (0..LAYERS).flat_map(|layer| stems.map(|stem| format!("blk.{layer}.{stem}.weight")));
    let sums: Vec<f32> = (0..COLUMNS).map(|column| 1.0 + (column % 16) as f32).collect();
    let file = names.fold(GgufBuilder::new(), |file, name| {
        file.tensor_f32(&format!("{name}.in_sum2"), &[256, 1], &sums).tensor_f32(
            &format!("{name}.counts"),
            &[1, 1],
            &[4.0],
        )
    });
    ImportanceMatrix::open(&write(folder, &file.build())).unwrap()
}

/// The model of [`source`] has two query heads for each head of keys and values.
#[test]
fn recipes_with_few_bits_give_each_tensor_its_format() {
    let folder = tempfile::tempdir().unwrap();
    let source = open(source());
    let names = ["token_embd", "blk.0.attn_q", "blk.3.attn_v", "blk.0.ffn_down", "blk.3.ffn_down"];
    for (recipe, limit, expected) in [
        ("iq1_s", 0.6, ["Q5_K", "IQ1_S", "Q2_K", "Q2_K", "IQ1_S"]),
        ("iq1_m", 0.6, ["Q5_K", "IQ1_M", "Q2_K", "Q2_K", "IQ1_M"]),
        ("iq2_xxs", 0.5, ["Q5_K", "IQ2_XXS", "Q2_K", "Q2_K", "IQ2_XXS"]),
        ("iq2_xs", 0.45, ["Q5_K", "IQ2_XS", "Q2_K", "Q2_K", "IQ2_XS"]),
        ("iq2_s", 0.45, ["Q5_K", "IQ2_XS", "IQ3_S", "IQ3_S", "IQ2_XS"]),
        ("iq2_m", 0.4, ["Q5_K", "IQ2_S", "IQ3_S", "IQ3_S", "IQ2_S"]),
        ("iq3_xxs", 0.4, ["Q5_K", "IQ2_S", "IQ3_XXS", "IQ3_XXS", "IQ3_XXS"]),
        ("iq3_xs", 0.3, ["Q6_K", "IQ3_XXS", "IQ3_S", "IQ3_S", "IQ3_S"]),
        ("iq3_s", 0.2, ["Q6_K", "IQ3_S", "IQ3_S", "IQ3_S", "IQ3_S"]),
        ("iq3_m", 0.2, ["Q6_K", "IQ3_S", "Q4_K", "Q4_K", "IQ3_S"]),
    ] {
        let importance = Some(importance_of_layers(folder.path()));
        let found = quantized(&source, &QuantizeOptions { importance, ..options(recipe) });
        let formats = names.map(|name| format_of(&found, &format!("{name}.weight")).name());
        assert_eq!(formats, expected, "{recipe}");
        for tensor in source.tensors() {
            let (before, after) = (source.weight(&tensor.name).unwrap(), found.weight(&tensor.name).unwrap());
            let distance = distance(&before.to_f32(), &after.to_f32());
            assert!(distance < limit, "{recipe}: {}: {distance}", tensor.name);
        }
    }
}

#[test]
fn formats_with_few_bits_need_importance_in_layers_only() {
    let folder = tempfile::tempdir().unwrap();
    let source = open(source());
    let refusal = |options: &QuantizeOptions| QuantizePlan::new(&source, options).err().map(|error| error.to_string());
    for recipe in ["iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq2_m", "iq3_xxs", "iq3_xs"] {
        let error = refusal(&options(recipe)).unwrap();
        assert!(error.contains("blk.0.attn_q.weight") && error.contains("importance"), "{recipe}: {error}");
        assert!(options(recipe).target.unwrap().recipe().requires_importance(), "{recipe}");
    }
    for recipe in ["iq3_s", "iq3_m", "iq4_xs", "q2_k"] {
        assert_eq!(refusal(&options(recipe)), None);
        assert!(!options(recipe).target.unwrap().recipe().requires_importance(), "{recipe}");
    }
    let overrides = |text: &str| vec![text.parse().unwrap()];
    assert_eq!(refusal(&QuantizeOptions { overrides: overrides("token_embd=iq2_s"), ..options("q4_k_m") }), None);
    let of_layer = QuantizeOptions { overrides: overrides("blk.2.attn_v=iq2_s"), ..options("q4_k_m") };
    assert!(refusal(&of_layer).unwrap().contains("blk.2.attn_v"));
    // The matrix that is given has only the importance of one tensor.
    let one = ImportanceMatrix::open(&write(folder.path(), &importance(256, |_| 1.0))).unwrap();
    let error = refusal(&QuantizeOptions { importance: Some(one), ..options("iq2_xs") }).unwrap();
    assert!(error.contains("blk.0.attn_q"), "{error}");
}

#[test]
fn rules_that_depend_on_importance_are_llama_cpps() {
    let folder = tempfile::tempdir().unwrap();
    let source = open(source());
    let of_first_down = |recipe: &str, importance: Option<ImportanceMatrix>| {
        let options = QuantizeOptions { importance, ..options(recipe) };
        let plan = QuantizePlan::new(&source, &options).unwrap();
        plan.tensors.iter().find(|tensor| tensor.name == "blk.0.ffn_down.weight").unwrap().to
    };
    for (recipe, without, with) in [
        ("iq4_xs", Format::Q5_K, Format::IQ4_XS),
        ("q4_0", Format::Q4_0, Format::Q4_1),
        ("q5_0", Format::Q5_0, Format::Q5_1),
    ] {
        assert_eq!(of_first_down(recipe, None), without, "{recipe}");
        assert_eq!(of_first_down(recipe, Some(importance_of_layers(folder.path()))), with, "{recipe}");
    }
}

#[test]
fn files_end_with_padding_as_the_format_asks() {
    assert!(importance(3, |_| 1.0).len().is_multiple_of(32));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out.gguf");
    let ragged = GgufBuilder::new().key("general.architecture", "llama").tensor_f32("a.bias", &[3], &[1.0, 2.0, 3.0]);
    let (source, options) = (open(ragged.build()), options("q8_0"));
    let plan = QuantizePlan::new(&source, &options).unwrap();
    let bytes = plan.write(&path, &LoadCancel::default(), &mut |_| {}).unwrap();
    assert_eq!(bytes % 32, 0);
    assert_eq!(std::fs::metadata(&path).unwrap().len(), bytes);
}

#[test]
fn importance_of_another_model_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), &importance(128, |_| 1.0));
    let with = QuantizeOptions { importance: Some(ImportanceMatrix::open(&path).unwrap()), ..options("q4_k_m") };
    let error = QuantizePlan::new(&open(source()), &with).err().unwrap().to_string();
    assert!(error.contains("128 columns") && error.contains("256"), "{error}");
}
