//! `cuelight quantize` as a user calls it: the written models predict a text nearly as well, and mistakes are refused.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use cuelight_engine::format::gguf::Gguf;
use cuelight_shaders::quant::Format;

#[path = "support/clip.rs"]
mod clips;
#[path = "support/wav.rs"]
mod wav_file;

/// A temporary folder with a copy of a tiny model in float32.
struct Folder(tempfile::TempDir);

struct Ran {
    code: i32,
    stdout: String,
    stderr: String,
}

impl Folder {
    fn new() -> Self {
        let folder = Folder(tempfile::tempdir().unwrap());
        let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/families/qwen2.gguf");
        std::fs::copy(fixture, folder.path("model.gguf")).unwrap();
        folder
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.0.path()).unwrap();
        let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.retain(|name| name.contains(".gguf"));
        names.sort();
        names
    }

    fn run(&self, arguments: &[&str]) -> Ran {
        self.run_with(arguments, &[])
    }

    fn run_with(&self, arguments: &[&str], variables: &[(&str, &str)]) -> Ran {
        let mut command = Command::new(env!("CARGO_BIN_EXE_cuelight"));
        command.args(arguments).env_clear().env("HOME", self.0.path()).env("CUELIGHT_CALIBRATE", "off");
        command.envs(variables.iter().copied());
        let output = command.current_dir(self.0.path()).stdin(Stdio::null()).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Ran { code: output.status.code().unwrap(), stdout: text(output.stdout), stderr: text(output.stderr) }
    }

    /// The mean of the negative log-likelihood of the tokens of a text.
    fn mean_nats(&self, model: &str) -> f64 {
        let text: String =
            (0..400).map(|word| format!("{} ", ["a", "the", "of", "and", "to"][word * word % 5])).collect();
        std::fs::write(self.path("text"), text).unwrap();
        let ran = self.run(&["perplexity", model, "text", "-c", "64", "-o", "json"]);
        assert_eq!(ran.code, 0, "{}", ran.stderr);
        serde_json::from_str::<serde_json::Value>(&ran.stdout).unwrap()["mean_nats"].as_f64().unwrap()
    }
}

impl Ran {
    #[track_caller]
    fn assert_refused(&self, words: &[&str]) {
        assert_ne!(self.code, 0, "{}", self.stdout);
        for word in words {
            assert!(self.stderr.contains(word), "{word:?} is not in: {}", self.stderr);
        }
        assert!(!self.stderr.contains("panicked"), "{}", self.stderr);
    }
}

#[test]
fn quantized_models_predict_a_text_nearly_as_well() {
    let folder = Folder::new();
    let expected = folder.mean_nats("./model.gguf");
    for (format, bound) in [("f16", 0.005), ("q8_0", 0.05), ("q5_k_m", 0.15), ("q4_k_m", 0.3)] {
        let out = format!("./{format}.gguf");
        let ran = folder.run(&["quantize", "./model.gguf", &out, format]);
        assert_eq!(ran.code, 0, "{}", ran.stderr);
        assert!(ran.stdout.contains("bits a weight"), "{}", ran.stdout);
        let found = folder.mean_nats(&out);
        println!("{format}: {found} of {expected}");
        assert!((found - expected).abs() < bound, "{format}: {found}, expected {expected}");
    }
}

#[test]
fn a_dry_run_shows_formats_and_writes_nothing() {
    let folder = Folder::new();
    let ran =
        folder.run(&["quantize", "./model.gguf", "./out.gguf", "q8_0", "--dry-run", "--tensor-type", "attn_q=q4_0"]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let row = |name: &str| ran.stdout.lines().find(|line| line.contains(name)).unwrap_or_default().to_owned();
    assert!(row("blk.0.attn_q.weight").contains("Q4_0"), "{}", ran.stdout);
    assert!(row("blk.0.ffn_up.weight").contains("Q8_0"), "{}", ran.stdout);
    assert_eq!(folder.names(), ["model.gguf"]);
}

#[test]
fn mistakes_are_refused_and_leave_no_file() {
    let folder = Folder::new();
    std::fs::write(folder.path("taken.gguf"), "taken").unwrap();
    let whole = std::fs::read(folder.path("model.gguf")).unwrap();
    std::fs::write(folder.path("truncated.gguf"), &whole[..whole.len() / 2]).unwrap();
    std::fs::write(folder.path("importance.dat"), "nothing").unwrap();
    let refused =
        |arguments: &[&str], words: &[&str]| folder.run(&[&["quantize"], arguments].concat()).assert_refused(words);
    refused(&["./model.gguf", "./out.gguf", "q4"], &["\"q4\"", "q4_k_m"]);
    refused(&["./model.gguf", "./taken.gguf", "q8_0"], &["taken.gguf", "--force"]);
    refused(&["./model.gguf", "./model.gguf", "q8_0", "--force"], &["the model itself"]);
    refused(&["./missing.gguf", "./out.gguf", "q8_0"], &["missing.gguf"]);
    refused(&["./truncated.gguf", "./out.gguf", "q8_0"], &["truncated.gguf", "outside the file"]);
    refused(&["./model.gguf", "./no/such/folder/out.gguf", "q8_0"], &["cannot write"]);
    refused(&["./model.gguf", "./out.gguf", "q8_0", "--imatrix", "importance.dat"], &["not an importance matrix"]);
    refused(&["./model.gguf", "./out.gguf", "q8_0", "--tensor-type", "attn_q"], &["attn_v=q6_k"]);
    refused(
        &["./model.gguf", "./out.gguf", "q8_0", "--tensor-type", "nomatch=q8_0"],
        &["no matrix has a name that matches the pattern \"nomatch\""],
    );
    refused(&["./model.gguf", "./out.gguf", "q4_z"], &["\"q4_z\"", "q4_k_m", "iq1_s", "nvfp4"]);
    assert_eq!(folder.names(), ["model.gguf", "taken.gguf", "truncated.gguf"]);
    assert_eq!(std::fs::read(folder.path("taken.gguf")).unwrap(), b"taken");
}

/// The copy is written once, and its model answers as a file that `quantize` wrote.
#[test]
fn a_model_is_quantized_before_it_is_loaded_and_the_copy_is_used_again() {
    let folder = Folder::new();
    let answer = |model: &str, variables: &[(&str, &str)]| {
        let ran = folder.run_with(
            &["run", model, "Hello", "--temp", "0", "--max-tokens", "8", "--ctx-size", "256"],
            &[variables, &[("CUELIGHT_CACHE_DIR", "cache")]].concat(),
        );
        assert_eq!(ran.code, 0, "{}", ran.stderr);
        (ran.stdout, ran.stderr.contains("quantizing to q8_0 once"))
    };
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/hugging_face/llama-shards");
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/families/llama-shards.gguf");
    let (directory, file) = (directory.to_str().unwrap(), file.to_str().unwrap());
    assert_eq!(folder.run(&["quantize", file, "./small.gguf", "q8_0"]).code, 0);
    let (expected, _) = answer("./small.gguf", &[]);
    let quantize = [("CUELIGHT_QUANTIZE", "q8_0")];
    assert_eq!(answer(directory, &quantize), (expected.clone(), true));
    assert_eq!(answer(directory, &quantize), (expected.clone(), false), "the copy is there");
    assert_eq!(answer(file, &quantize), (expected, true));
    assert_eq!(std::fs::read_dir(folder.path("cache/quantized")).unwrap().count(), 2);
}

#[test]
fn what_cannot_be_quantized_at_load_is_refused() {
    let folder = Folder::new();
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/hugging_face/gemma");
    let without_tokenizer = folder.run(&["quantize", directory.to_str().unwrap(), "./out.gguf", "q8_0"]);
    without_tokenizer.assert_refused(&["tokenizer.json", "missing"]);
    assert_eq!(folder.names(), ["model.gguf"]);
    assert_eq!(folder.run(&["quantize", "./model.gguf", "./small.gguf", "q4_0"]).code, 0);
    let ran = folder.run_with(&["run", "./small.gguf", "Hello"], &[("CUELIGHT_QUANTIZE", "q8_0")]);
    ran.assert_refused(&["quantized already", "F32 model, or leave out --quantize"]);
    let ran = folder.run(&["quantize", "./small.gguf", "./again.gguf", "q8_0"]);
    ran.assert_refused(&["quantized already", "F32 model, or give --allow-requantize"]);
    let ran = folder.run_with(&["run", "./model.gguf", "Hello"], &[("CUELIGHT_QUANTIZE", "q9")]);
    ran.assert_refused(&["q9", "q8_0", "q4_k_m"]);
    let ran = folder.run_with(&["serve", "--models-dir", "."], &[("CUELIGHT_QUANTIZE", "q8_0")]);
    ran.assert_refused(&["--models-dir"]);
}

/// The layers of the encoder become 8-bit integers whatever the format, and the second run uses both copies again.
#[test]
fn the_encoder_of_a_model_is_quantized_with_it() {
    let folder = Folder::new();
    std::fs::write(folder.path("clip.wav"), wav_file::wav(&clips::clip(9000))).unwrap();
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/whisper/directory");
    let transcribe = || {
        let arguments = ["transcribe", model.to_str().unwrap(), "clip.wav"];
        let ran = folder.run_with(&arguments, &[("CUELIGHT_QUANTIZE", "q5_0"), ("CUELIGHT_CACHE_DIR", "cache")]);
        assert_eq!(ran.code, 0, "{}", ran.stderr);
        ran
    };
    let first = transcribe();
    for words in ["quantizing to q5_0 once", "quantizing to q8_0 once", "-encoders-q8_0-"] {
        assert!(first.stderr.contains(words), "{words:?} is not in: {}", first.stderr);
    }
    let copy = copy_of_encoder(&folder);
    for tensor in ["a.blk.0.attn_q", "a.blk.0.attn_out", "a.blk.1.ffn_up"] {
        assert_eq!(copy.weight(&format!("{tensor}.weight")).unwrap().format, Format::Q8_0, "{tensor}");
    }
    assert!(copy.tensor("a.conv1d.1.weight").is_none(), "it is read from the model");
    let second = transcribe();
    assert!(!second.stderr.contains("quantizing"), "{}", second.stderr);
}

/// The copy has no tensor of five dimensions, which a GGUF file cannot state.
#[test]
fn the_encoder_of_a_model_with_images_of_two_frames_is_quantized_with_it() {
    let folder = Folder::new();
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/vision/qwen2vl/directory");
    let variables = [("CUELIGHT_QUANTIZE", "q8_0"), ("CUELIGHT_CACHE_DIR", "cache")];
    let ran = folder.run_with(&["run", model.to_str().unwrap(), "Hello", "--max-tokens", "2"], &variables);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert!(ran.stderr.contains("images: "), "{}", ran.stderr);
    let copy = copy_of_encoder(&folder);
    // The 16 columns of the tiny layers are no whole block of Q8_0.
    assert_eq!(copy.weight("v.blk.0.attn_out.weight").unwrap().format, Format::F16);
    assert!(copy.tensor("v.patch_embd.weight").is_none());
}

fn copy_of_encoder(folder: &Folder) -> Gguf {
    let copies = std::fs::read_dir(folder.path("cache/quantized")).unwrap().map(|copy| copy.unwrap().path());
    let copy = copies.into_iter().find(|copy| copy.to_str().unwrap().contains("-encoders-")).unwrap();
    Gguf::open(&copy).unwrap()
}

/// A directory with float32 weights, a tokenizer, a chat template and recommended sampling.
fn directory_with_text(folder: &Folder) -> PathBuf {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let directory = folder.path("tiny");
    std::fs::create_dir(&directory).unwrap();
    for entry in std::fs::read_dir(fixtures.join("hugging_face/smollm3")).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, directory.join(path.file_name().unwrap())).unwrap();
    }
    std::fs::copy(fixtures.join("tokenizer/tokenizer.json"), directory.join("tokenizer.json")).unwrap();
    std::fs::write(directory.join("chat_template.jinja"), "{{ messages[0].content }}").unwrap();
    let sampling = r#"{ "temperature": 0.25, "top_k": 7, "eos_token_id": 0 }"#;
    std::fs::write(directory.join("generation_config.json"), sampling).unwrap();
    directory
}

#[test]
fn a_directory_becomes_a_file_that_predicts_the_same() {
    let folder = Folder::new();
    directory_with_text(&folder);
    let ran = folder.run(&["convert", "./tiny", "./tiny.gguf"]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert_eq!(folder.mean_nats("./tiny.gguf"), folder.mean_nats("./tiny"));

    let shown = folder.run(&["show", "./tiny.gguf"]);
    assert!(shown.stdout.contains("temperature 0.25, top_k 7"), "{}", shown.stdout);
    let [file, directory] = ["./tiny.gguf", "./tiny"].map(|model| {
        let ran = folder.run(&["tokenize", model, "the 12 hats<|end|>\n\nof  it"]);
        assert_eq!(ran.code, 0, "{}", ran.stderr);
        ran.stdout
    });
    assert_eq!(file, directory);

    let ran = folder.run(&["quantize", "./tiny", "./tiny-q8_0.gguf", "q8_0"]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let difference = (folder.mean_nats("./tiny-q8_0.gguf") - folder.mean_nats("./tiny")).abs();
    assert!(difference < 0.05, "{difference}");
}

#[test]
fn a_tokenizer_that_a_file_cannot_state_is_refused() {
    let folder = Folder::new();
    let path = directory_with_text(&folder).join("tokenizer.json");
    let text = std::fs::read_to_string(&path).unwrap();
    let mut tokenizer: serde_json::Value = serde_json::from_str(&text).unwrap();
    tokenizer["normalizer"] = serde_json::json!({ "type": "Lowercase" });
    std::fs::write(&path, tokenizer.to_string()).unwrap();
    folder.run(&["convert", "./tiny", "./tiny.gguf"]).assert_refused(&["tokenizer.json", "no known pre-tokenizer"]);
    folder.run(&["convert", "./missing", "./tiny.gguf"]).assert_refused(&["missing"]);
    assert_eq!(folder.names(), ["model.gguf"]);
}
