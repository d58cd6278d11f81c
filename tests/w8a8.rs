//! Hugging Face directories that were quantized to 8-bit weights and activations: they load, and predict nearly what the originals
//! predict.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

use cuelight_engine::checkpoint;
use cuelight_engine::engine::{Engine, TokenId};
use cuelight_engine::format::safetensors::write::{NewFiles, NewTensor, WriteError};
use cuelight_engine::format::safetensors::{Safetensors, Tensor};
use cuelight_engine::load::{self, ActivationBits, ComputeDevice, CpuExperts, Kernel, KvType, LoadOptions};
use cuelight_engine::quantize::w8a8::{self, InputMaxima, W8a8Error, W8a8Options, W8a8Plan};
use cuelight_shaders::op::{InputObserver, MatrixInput};

#[path = "support/runner.rs"]
#[allow(dead_code)]
mod runner;

use runner::{Rows, Runner, Sequence, Setup, log_probs, mean};

/// Mean |Δ log-prob| in nats of directories whose values differ by rounding of float32 only.
const SAME: f64 = 2e-5;

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/hugging_face")
}

fn names() -> Vec<String> {
    let entries = std::fs::read_dir(fixtures()).unwrap();
    let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn tokens() -> Vec<TokenId> {
    (0..48).map(|index| (index * 37 + 11) % 250).collect()
}

/// The logits of a text. The kernel rounds no activations.
fn logits(path: &Path) -> Rows {
    let setup = Setup {
        kv_type: KvType::F32,
        kernel: Kernel::Scalar,
        threads: 1,
        context_tokens: 256,
        max_sequences: 64,
        device: ComputeDevice::Cpu,
        deterministic: false,
        cpu_experts: CpuExperts::Auto,
        activation_bits: ActivationBits::default(),
    };
    feed(&mut runner::load(path, setup))
}

fn feed(runner: &mut Runner<impl Engine>) -> Rows {
    runner.feed(&mut Sequence::default(), &tokens(), usize::MAX)
}

/// Mean |Δ log-prob| of the tokens that follow.
fn delta(a: &Rows, b: &Rows) -> f64 {
    let next = tokens();
    let of_row =
        |row: usize| (log_probs(&a[row])[next[row + 1] as usize] - log_probs(&b[row])[next[row + 1] as usize]).abs();
    mean(&(0..next.len() - 1).map(of_row).collect::<Vec<_>>())
}

/// The largest inputs of a model's matrices on the same text.
fn measured(path: &Path) -> InputMaxima {
    let maxima = Arc::new(Mutex::new(InputMaxima::default()));
    let options = LoadOptions {
        context_tokens: Some(256),
        max_sequences: 64,
        kv_type: KvType::F32,
        threads: 1,
        kernel: Kernel::Scalar,
        observer: Some(maxima.clone()),
        ..LoadOptions::new(path)
    };
    feed(&mut Runner::new(load::plan(&options).unwrap().load_engine(&mut |_| {}).unwrap()));
    std::mem::take(&mut *maxima.lock().unwrap())
}

/// Very different maxima for the columns of all groups.
fn uneven(plan: &W8a8Plan<'_>, origins: &cuelight_engine::format::hugging_face::Origins) -> InputMaxima {
    let mut maxima = InputMaxima::default();
    for group in &plan.groups {
        let columns = origins.tensors()[group.norm].tensor.shape[0];
        let rows: Vec<f32> = (0..columns).map(|column| 10_f32.powi((column * 7 % 5) as i32 - 2)).collect();
        for tensor in &group.tensors {
            maxima.observe(MatrixInput { tensor, matrix: 0, matrices: 1, columns, rows: &rows });
        }
    }
    maxima
}

fn options(strength: Option<&str>) -> W8a8Options {
    let smoothing = strength.map(|strength| strength.parse().unwrap());
    W8a8Options { smoothing, threads: 2, ..W8a8Options::default() }
}

/// Quantizes a directory into another folder; with a strength, by the maxima on the text.
fn quantized(model: &Path, options: W8a8Options) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let origins = w8a8::open(model).unwrap();
    let plan = W8a8Plan::new(model, &origins, options).unwrap();
    let maxima = options.smoothing.map(|_| measured(model)).unwrap_or_default();
    plan.write(&out, &maxima, &Default::default(), &mut |_| {}).unwrap();
    (folder, out)
}

#[test]
fn every_directory_is_quantized_or_has_nothing_to_quantize() {
    let (mut left, mut deltas) = (Vec::new(), Vec::new());
    for name in names() {
        let model = fixtures().join(&name);
        let origins = w8a8::open(&model).unwrap();
        match W8a8Plan::new(&model, &origins, options(None)) {
            Err(W8a8Error::NothingToQuantize { .. }) => left.push(name),
            Err(error) => panic!("{error}"),
            Ok(plan) => {
                let count = plan.tensors.iter().filter(|tensor| tensor.is_quantized).count();
                let delta = delta(&logits(&model), &logits(&quantized(&model, options(None)).1));
                println!("{name:24} {count:3} of {:3} tensors, {delta:8.1e} nats", plan.tensors.len());
                // The largest are those of models that choose other experts or positions.
                assert!(delta > 0.0 && delta < 0.3, "{name}: {delta} nats");
                deltas.push(delta);
            }
        }
    }
    println!("mean {:.1e} nats; nothing to quantize: {left:?}", mean(&deltas));
    assert!(mean(&deltas) < 0.05);
    // Their matrices have a row for each input, or inputs that are no multiple of 32.
    assert!(left.iter().all(|name| name.starts_with("gpt2") || name.starts_with("mamba")), "{left:?}");
}

/// Factors move without a change of the results, in every family that has norms that only matrices read.
#[test]
fn smoothing_alone_changes_no_results() {
    let mut smoothed = Vec::new();
    for name in names() {
        let model = fixtures().join(&name);
        let origins = w8a8::open(&model).unwrap();
        let mut plan = match W8a8Plan::new(&model, &origins, options(Some("0.5"))) {
            Ok(plan) => plan,
            Err(W8a8Error::NothingToQuantize { .. } | W8a8Error::NothingToSmooth { .. }) => continue,
            Err(error) => panic!("{error}"),
        };
        let maxima = uneven(&plan, &origins);
        plan.tensors.iter_mut().for_each(|tensor| tensor.is_quantized = false);
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("out");
        plan.write(&out, &maxima, &Default::default(), &mut |_| {}).unwrap();
        let read = Safetensors::open(&out).unwrap();
        let norm = &origins.tensors()[plan.groups[0].norm].tensor;
        let new = read.bytes(read.tensor(&norm.name).unwrap()).unwrap();
        assert_ne!(new.as_slice(), origins.bytes(norm).unwrap().as_slice(), "{name}: the norm has changed");
        let delta = delta(&logits(&model), &logits(&out));
        println!("{name:24} {:3} norms, {delta:8.1e} nats", plan.groups.len());
        plan.unsmoothed.iter().for_each(|one| println!("    {}: {}", one.norm, one.reason));
        assert!(delta < SAME, "{name}: {delta} nats");
        smoothed.push(name);
    }
    for family in ["llama-shards", "gemma", "gemma3", "qwen3moe-small", "mixtral-small", "starcoder2", "command-r"] {
        assert!(smoothed.iter().any(|name| name == family), "{family} is not among {smoothed:?}");
    }
}

/// A copy of a directory in which tensors have other values.
fn changed(model: &Path, change: impl Fn(&Tensor, &mut [f32])) -> tempfile::TempDir {
    let (files, folder) = (Safetensors::open(model).unwrap(), tempfile::tempdir().unwrap());
    std::fs::copy(model.join("config.json"), folder.path().join("config.json")).unwrap();
    let one =
        |tensor: &Tensor| NewTensor { name: tensor.name.clone(), dtype: tensor.dtype, shape: tensor.shape.clone() };
    let new = NewFiles::new(files.tensors().iter().map(one).collect(), usize::MAX);
    let bytes = |index: usize| {
        let tensor = &files.tensors()[index];
        let bytes = files.bytes(tensor).unwrap();
        let read = bytes.as_slice().as_chunks::<4>().0.iter().map(|value| f32::from_le_bytes(*value));
        let mut values: Vec<f32> = read.collect();
        change(tensor, &mut values);
        Ok(values.into_iter().flat_map(f32::to_le_bytes).collect::<Vec<u8>>().into())
    };
    new.write::<WriteError>(folder.path(), &mut |index| bytes(index)).unwrap();
    folder
}

/// A column of activations that is 1024 times as large as the others, with columns of weights that are as much smaller: the same
/// model.
#[test]
fn smoothing_keeps_what_an_outlier_would_lose() {
    const FACTOR: f32 = 1024.0;
    let model = fixtures().join("llama-rope-llama3");
    let readers = ["q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"];
    let outlier = changed(&model, |tensor, values| {
        if tensor.name.ends_with("input_layernorm.weight") || tensor.name.ends_with("post_attention_layernorm.weight") {
            values[3] *= FACTOR;
        }
        if readers.iter().any(|reader| tensor.name.contains(reader)) {
            values.chunks_exact_mut(tensor.shape[1]).for_each(|row| row[3] /= FACTOR);
        }
    });
    let expected = logits(&model);
    let same = delta(&expected, &logits(outlier.path()));
    let of_model = delta(&expected, &logits(&quantized(&model, options(None)).1));
    let plain = delta(&expected, &logits(&quantized(outlier.path(), options(None)).1));
    let smoothed = delta(&expected, &logits(&quantized(outlier.path(), options(Some("0.5"))).1));
    println!("the same {same:.1e}, without outlier {of_model:.1e}, with {plain:.1e}, smoothed {smoothed:.1e} nats");
    assert!(same < SAME, "{same}");
    assert!(smoothed < 0.06 && plain > 10.0 * smoothed, "{plain} and {smoothed}");
}

#[test]
fn large_models_are_written_to_several_files() {
    let model = fixtures().join("qwen3moe-small");
    let (_folder, whole) = quantized(&model, options(None));
    let (_other, parts) = quantized(&model, W8a8Options { most_file_bytes: 40_000, ..options(None) });
    assert!(!whole.join("model.safetensors.index.json").exists());
    let index = std::fs::read_to_string(parts.join("model.safetensors.index.json")).unwrap();
    assert!(index.contains("model-00002-of-"), "{index}");
    assert_eq!(logits(&whole), logits(&parts));
}

#[test]
fn configs_state_what_is_quantized() {
    let (_folder, out) = quantized(&fixtures().join("qwen3moe-small"), options(None));
    let config: serde_json::Value = serde_json::from_slice(&std::fs::read(out.join("config.json")).unwrap()).unwrap();
    let stated = &config["quantization_config"];
    assert_eq!((&stated["quant_method"], &stated["format"]), (&"compressed-tensors".into(), &"int-quantized".into()));
    let group = &stated["config_groups"]["group_0"];
    assert_eq!((&group["weights"]["strategy"], &group["weights"]["num_bits"]), (&"channel".into(), &8.into()));
    assert_eq!(
        (&group["input_activations"]["strategy"], &group["input_activations"]["dynamic"]),
        (&"token".into(), &true.into())
    );
    let ignored: Vec<&str> = stated["ignore"].as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect();
    for name in ["lm_head", "model.embed_tokens", "model.layers.0.mlp.gate"] {
        assert!(ignored.contains(&name), "{name} is not in {ignored:?}");
    }
    assert!(!ignored.contains(&"model.layers.0.self_attn.q_proj"), "{ignored:?}");
    let checkpoint = checkpoint::open(&out).unwrap();
    assert_eq!(checkpoint.weight("blk.1.attn_q.weight").unwrap().format.name(), "Q8_0");
}

/// A temporary folder in which commands run.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        let folder = Folder(tempfile::tempdir().unwrap());
        let model = folder.0.path().join("model");
        std::fs::create_dir(&model).unwrap();
        for entry in std::fs::read_dir(fixtures().join("llama-shards")).unwrap() {
            let entry = entry.unwrap();
            std::fs::copy(entry.path(), model.join(entry.file_name())).unwrap();
        }
        let text: String = (0..400).map(|word| ["a ", "the ", "of ", "and ", "to "][word * word % 5]).collect();
        std::fs::write(folder.0.path().join("text"), text).unwrap();
        folder
    }

    fn names(&self, inside: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.0.path().join(inside)).unwrap();
        let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.retain(|name| !name.starts_with('.'));
        names.sort();
        names
    }

    /// Whether a command succeeded, and what it printed.
    fn run(&self, arguments: &[&str]) -> (bool, String) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_cuelight"));
        command.args(arguments).env_clear().env("HOME", self.0.path()).env("CUELIGHT_CALIBRATE", "off");
        let output = command.current_dir(self.0.path()).stdin(Stdio::null()).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.success(), text(&output.stdout) + &text(&output.stderr))
    }

    #[track_caller]
    fn printed(&self, arguments: &[&str]) -> String {
        let (is_done, text) = self.run(arguments);
        assert!(is_done, "{arguments:?}: {text}");
        text
    }

    #[track_caller]
    fn assert_refused(&self, arguments: &[&str], words: &[&str]) {
        let (is_done, text) = self.run(arguments);
        assert!(!is_done && !text.contains("panicked"), "{arguments:?}: {text}");
        for word in words {
            assert!(text.contains(word), "{word:?} is not in: {text}");
        }
    }
}

#[test]
fn a_directory_is_smoothed_quantized_and_used() {
    let folder = Folder::new();
    let smooth = ["--smooth", "0.5", "--calibration", "text", "-c", "64"];
    let dry = folder.printed(&[&["quantize", "./model", "out", "w8a8", "--dry-run"], &smooth[..]].concat());
    let row = dry.lines().find(|line| line.contains("layers.0.self_attn.q_proj.weight")).unwrap_or_default();
    assert!(row.contains("| I8 | yes |"), "{dry}");
    assert_eq!(folder.names("."), ["model", "text"]);
    let printed = folder.printed(&[&["quantize", "./model", "out", "w8a8"], &smooth[..]].concat());
    assert!(printed.contains("bits a weight") && printed.contains("4 norms smoothed"), "{printed}");
    assert_eq!(
        folder.names("out"),
        ["config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]
    );
    let nats = |model: &str| {
        let printed = folder.printed(&["perplexity", model, "text", "-c", "64", "-o", "json"]);
        serde_json::from_str::<serde_json::Value>(&printed).unwrap()["mean_nats"].as_f64().unwrap()
    };
    let (before, after) = (nats("./model"), nats("./out"));
    assert!((before - after).abs() < 0.05, "{before} and {after}");
    assert_eq!(folder.names("."), ["model", "out", "text"]);
    folder.printed(&["quantize", "./model", "out", "w8a8", "--clip", "percentile:99", "--force"]);
    assert_eq!(folder.names("."), ["model", "out", "text"]);
}

#[test]
fn mistakes_are_refused_and_leave_nothing() {
    let folder = Folder::new();
    std::fs::create_dir(folder.0.path().join("other")).unwrap();
    std::fs::create_dir(folder.0.path().join("busy.partial")).unwrap();
    let gguf = fixtures().join("../families/llama-shards.gguf");
    let gguf = gguf.to_str().unwrap();
    folder.printed(&["quantize", "./model", "done", "w8a8"]);
    let refused =
        |arguments: &[&str], words: &[&str]| folder.assert_refused(&[&["quantize"], arguments].concat(), words);
    refused(&[gguf, "out", "w8a8"], &["llama-shards.gguf", "no Hugging Face directory"]);
    refused(&["./done", "out", "w8a8"], &["done", "quantized already"]);
    refused(&["./model", "done", "w8a8"], &["exists", "--force"]);
    refused(&["./model", "other", "w8a8", "--force"], &["other", "not replaced"]);
    refused(&["./model", "model", "w8a8", "--force"], &["give another place"]);
    refused(&["./model", "model/out", "w8a8"], &["inside of the directory"]);
    refused(&["./model", "no/such/out", "w8a8"], &["cannot write"]);
    refused(&["./model", "busy", "w8a8"], &["busy.partial", "in the way"]);
    refused(&["./model", "out", "w8a8", "--smooth", "0.5"], &["--calibration"]);
    refused(&["./model", "out", "w8a8", "--calibration", "text"], &["--smooth"]);
    refused(&["./model", "out", "w8a8", "--smooth", "0.5", "--calibration", "missing"], &["missing"]);
    refused(&["./model", "out", "w8a8", "--smooth", "2", "--calibration", "text"], &["from 0 to 1"]);
    refused(&["./model", "out", "w8a8", "--smooth", "0.5", "--calibration", "text", "-c", "100000"], &["text"]);
    refused(&["./model", "out", "w8a8", "--clip", "percentile:40"], &["percentile:99.9"]);
    refused(&["./model", "out", "w8a8", "--allow-requantize"], &["--allow-requantize is not for w8a8"]);
    refused(&["./model", "out", "q8_0", "--clip", "max"], &["--clip is only for w8a8"]);
    refused(&["./model", "out", "w9"], &["q4_k_m", "w8a8"]);
    assert_eq!(folder.names("."), ["busy.partial", "done", "model", "other", "text"]);
    assert_eq!(folder.names("other"), Vec::<String>::new());
}
