//! Tiny checkpoints of every family, compared with Hugging Face transformers.
//!
//! `tests/generate/families.py` writes the files and the expected values; `docs/testing.md` explains the gates.
//! `cargo test --test parity -- --nocapture` prints the measured figures.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};

use cuelight_engine::engine::{Engine, LogitsWanted, TokenId};
use cuelight_engine::load::{ActivationBits, ComputeDevice, CpuExperts, Kernel, KvType};
use serde::Deserialize;

#[path = "support/runner.rs"]
mod runner;

use runner::{
    Rows, Runner, Sequence, Setup, argmax, assert_same_bits, deltas, largest, load, log_probs, longest_compared, mean,
};

/// Mean |Δ log-prob| of a prompt's tokens with float32 weights and a float32 cache, in nats.
const FLOAT_GATE: f64 = 1e-4;

/// [`FLOAT_GATE`] for quantised weights, with which the integer kernels round activations to 15 bits.
const QUANTISED_GATE: f64 = 2e-3;

/// [`FLOAT_GATE`] for a float16 cache, which keeps eleven bits of every key and value.
const HALF_CACHE_GATE: f64 = 5e-3;

/// The expected values of one checkpoint, from transformers.
#[derive(Deserialize)]
struct Expected {
    model: String,
    sha256: String,
    formats: Vec<String>,
    prompts: Vec<Prompt>,
}

/// One prompt and its greedy continuation.
#[derive(Deserialize)]
struct Prompt {
    tokens: Vec<TokenId>,
    logprobs: Vec<f64>,
    top: Vec<(TokenId, f64)>,
    greedy: Vec<TokenId>,
    margins: Vec<f64>,
}

impl Expected {
    /// Every checkpoint in the folder, sorted by name.
    fn all() -> Vec<Expected> {
        let mut paths: Vec<PathBuf> = std::fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().path()).collect();
        paths.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
        paths.sort();
        paths.iter().map(|path| serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()).collect()
    }

    fn is_float(&self) -> bool {
        self.formats == ["F32"]
    }

    fn path(&self) -> PathBuf {
        folder().join(&self.model)
    }
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/families")
}

fn setup(kernel: Kernel, kv_type: KvType) -> Setup {
    Setup {
        kv_type,
        kernel,
        threads: 1,
        context_tokens: 512,
        max_sequences: 128,
        device: ComputeDevice::Cpu,
        deterministic: false,
        cpu_experts: CpuExperts::Auto,
        activation_bits: ActivationBits::default(),
    }
}

/// Every kernel that this machine supports.
fn kernels() -> Vec<Kernel> {
    Kernel::ALL.iter().copied().filter(|kernel| kernel.is_supported()).collect()
}

/// The agreement when the inputs of products are rounded to 8 bits, as in other engines.
#[test]
fn with_eight_bit_activations_every_checkpoint_is_near_transformers() {
    const EIGHT_BITS_GATE: f64 = 0.1;
    let kernel = Kernel::detect();
    for expected in Expected::all().iter().filter(|expected| !expected.is_float()) {
        let setup = Setup { activation_bits: ActivationBits::Eight, ..setup(kernel, KvType::F32) };
        let distance = Distance::measure(expected, setup, f64::INFINITY);
        let shown: Vec<String> = distance.prompt_means.iter().map(|mean| format!("{mean:8.1e}")).collect();
        println!("{:26} {kernel} in 8 bits {}", expected.model, shown.join(" "));
        let mut means = distance.prompt_means;
        means.sort_by(f64::total_cmp);
        assert!(means[means.len() / 2] <= EIGHT_BITS_GATE, "{}: {}", expected.model, shown.join(" "));
    }
}

/// The two families repeat key heads for their value heads in different orders. Their architecture is all that tells them apart.
#[test]
fn value_heads_in_the_order_of_the_other_family_are_far_from_transformers() {
    let checkpoints = Expected::all();
    let expected = checkpoints.iter().find(|expected| expected.model == "qwen35moe.gguf").unwrap();
    let bytes = std::fs::read(expected.path()).unwrap();
    let (own, other) = (b"qwen35moe", b"qwen3next");
    let mut renamed = bytes.clone();
    for start in 0..bytes.len() - own.len() {
        if bytes[start..].starts_with(own) {
            renamed[start..start + own.len()].copy_from_slice(other);
        }
    }
    assert_far(&renamed, &expected.prompts[1]);
}

/// Selection matters in the prompts of its checkpoints: without it they are far from transformers.
#[test]
fn attention_to_all_positions_instead_of_selected_ones_is_far_from_transformers() {
    for (architecture, top_k, first) in
        [("deepseek32", 16_u32, 1), ("glm-dsa", 16, 1), ("qwen4exp", 16, 1), ("minimax-m3", 4, 2), ("hy_v4", 16, 1)]
    {
        let key = format!("{architecture}.attention.indexer.top_k");
        let (expected, bytes) = with_size(architecture, &key, [top_k, 512]);
        expected.prompts[first..].iter().for_each(|prompt| assert_far(&bytes, prompt));
    }
}

/// Earlier residuals matter in the prompts of their checkpoint: with that of the first layer alone they are far from the reference.
#[test]
fn one_earlier_residual_instead_of_three_is_far_from_the_reference() {
    let (expected, bytes) = with_size("kimi-k3", "kimi-k3.attn_res.block_size", [2, 512]);
    expected.prompts.iter().for_each(|prompt| assert_far(&bytes, prompt));
}

/// The checkpoint of an architecture, and its file with another value of a key, from the first to the second.
fn with_size(architecture: &str, key: &str, [stored, changed]: [u32; 2]) -> (Expected, Vec<u8>) {
    let model = format!("{architecture}.gguf");
    let expected = Expected::all().into_iter().find(|expected| expected.model == model).unwrap();
    let mut bytes = std::fs::read(expected.path()).unwrap();
    // The key, the type of its value, the value.
    let value = bytes.windows(key.len()).position(|part| part == key.as_bytes()).unwrap() + key.len() + 4;
    assert_eq!(bytes[value..value + 4], stored.to_le_bytes());
    bytes[value..value + 4].copy_from_slice(&changed.to_le_bytes());
    (expected, bytes)
}

/// Asserts that a file with these bytes is far from the expected values of a prompt.
#[track_caller]
fn assert_far(bytes: &[u8], prompt: &Prompt) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("changed.gguf");
    std::fs::write(&path, bytes).unwrap();
    let mut distance = Distance::default();
    distance.add(&mut load(&path, setup(Kernel::detect(), KvType::F32)), prompt, f64::INFINITY);
    assert!(distance.prompt_means[0] > 10.0 * FLOAT_GATE, "{:?}", distance.prompt_means);
}

/// The distance between an engine and transformers on one checkpoint.
#[derive(Default)]
struct Distance {
    prompt_means: Vec<f64>,
    worst: f64,
    top: f64,
    greedy_compared: usize,
    greedy_differences: Vec<String>,
}

impl Distance {
    /// Runs every prompt, then its continuation one token at a time. Tokens whose margin is at most `gate` count as tied.
    fn measure(expected: &Expected, setup: Setup, gate: f64) -> Distance {
        let mut runner = load(&expected.path(), setup);
        let mut distance = Distance::default();
        let longest = longest_compared(&expected.path(), setup.kv_type);
        for prompt in expected.prompts.iter().filter(|prompt| prompt.tokens.len() <= longest) {
            distance.add(&mut runner, prompt, gate);
        }
        distance
    }

    fn add(&mut self, runner: &mut Runner<impl Engine>, prompt: &Prompt, gate: f64) {
        let mut sequence = Sequence::default();
        let rows = runner.feed(&mut sequence, &prompt.tokens, usize::MAX);
        let differences = deltas(&rows, &prompt.tokens, &prompt.logprobs);
        self.prompt_means.push(mean(&differences));
        self.worst = largest(&[self.worst, largest(&differences)]);
        let mut last = rows.last().unwrap().clone();
        let last_log_probs = log_probs(&last);
        for &(token, expected) in &prompt.top {
            self.top = largest(&[self.top, (last_log_probs[token as usize] - expected).abs()]);
        }
        for (step, (&token, &margin)) in prompt.greedy.iter().zip(&prompt.margins).enumerate() {
            let ours = argmax(&last);
            if margin > gate {
                self.greedy_compared += 1;
                if ours != token {
                    let length = prompt.tokens.len();
                    self.greedy_differences
                        .push(format!("prompt of {length}, step {step}: {ours} instead of {token} (margin {margin})"));
                }
            }
            last = runner.feed(&mut sequence, &[token], 1).remove(0);
        }
        runner.release(sequence);
    }

    fn print(&self, name: &str, variant: &str) {
        let means: Vec<String> = self.prompt_means.iter().map(|mean| format!("{mean:9.1e}")).collect();
        let agreed = self.greedy_compared - self.greedy_differences.len();
        println!(
            "{name:26} {variant:16} {}  worst {:8.1e}  top-5 {:8.1e}  greedy {agreed}/{}",
            means.join(" "),
            self.worst,
            self.top,
            self.greedy_compared
        );
    }

    /// The failures, if any.
    fn failures(&self, gate: f64) -> Vec<String> {
        let over = self.prompt_means.iter().filter(|mean| mean.is_nan() || **mean > gate);
        let mut failures: Vec<String> = over.map(|mean| format!("mean |Δ log-prob| {mean:.2e} > {gate}")).collect();
        failures.extend(self.greedy_differences.iter().cloned());
        failures
    }
}

/// Measures each checkpoint for which `choose` is true with these kernels, prints the table, and fails with all failures.
fn check(choose: impl Fn(&Expected) -> bool, kernels: &[Kernel], kv_type: KvType, gate: f64) {
    let mut failures = Vec::new();
    let mut measured = 0;
    for expected in Expected::all().iter().filter(|expected| choose(expected)) {
        for &kernel in kernels {
            let distance = Distance::measure(expected, setup(kernel, kv_type), gate);
            let variant = format!("{kernel}, KV {kv_type:?}");
            distance.print(&expected.model, &variant);
            let found = distance.failures(gate);
            failures.extend(found.iter().map(|failure| format!("{} ({variant}): {failure}", expected.model)));
            measured += 1;
        }
    }
    assert!(measured > 0, "no checkpoint was measured");
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn float_checkpoints_agree_with_transformers_to_rounding() {
    check(Expected::is_float, &kernels(), KvType::F32, FLOAT_GATE);
}

#[test]
fn quantised_checkpoints_agree_with_transformers_on_the_dequantised_weights() {
    check(|expected| !expected.is_float(), &kernels(), KvType::F32, QUANTISED_GATE);
}

#[test]
fn checkpoints_with_a_float16_cache_agree_within_its_gate() {
    check(Expected::is_float, &[Kernel::detect()], KvType::F16, HALF_CACHE_GATE);
}

#[test]
fn every_checkpoint_is_the_file_of_its_expected_values() {
    let all = Expected::all();
    for family in ["llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3", "mixtral", "gpt-oss", "deepseek3"] {
        for float in [true, false] {
            let found = all.iter().any(|expected| expected.model.starts_with(family) && expected.is_float() == float);
            assert!(found, "no checkpoint of {family} with float32 weights: {float}");
        }
    }
    for expected in &all {
        assert_eq!(runner::sha256(&expected.path()), expected.sha256, "{} was changed", expected.model);
    }
}

#[test]
fn logits_have_the_same_bits_in_any_chunks_and_any_batch() {
    for name in [
        "llama.gguf",
        "llama-q4_k.gguf",
        "mistral-window.gguf",
        "gemma2-q5_1.gguf",
        "gemma3.gguf",
        "qwen3-q8_0.gguf",
        "gpt-oss-mxfp4.gguf",
        "deepseek3-q4_0.gguf",
        "deepseek32.gguf",
        "glm-dsa.gguf",
        "glm5-next.gguf",
        "qwen4exp.gguf",
        "deepseek4.gguf",
        "minimax-m3.gguf",
        "minimax-m3-local.gguf",
        "hy_v4.gguf",
        "llama4.gguf",
        "gemma3n.gguf",
        "gemma4.gguf",
        "phi3.gguf",
        "mistral3.gguf",
        "cohere2.gguf",
        "starcoder2.gguf",
        "lfm2.gguf",
        "lfm3.gguf",
        "bailingmoe3.gguf",
        "kimi-k3.gguf",
        "kimi-k3-wide.gguf",
        "granitehybrid.gguf",
        "falcon-h1.gguf",
        "nemotron_h.gguf",
        "bloom.gguf",
        "mamba.gguf",
        "jamba.gguf",
    ] {
        let expected = Expected::all().into_iter().find(|expected| expected.model == name).unwrap();
        // Longer ones take minutes in chunks of one token.
        let prompt = expected.prompts.iter().rfind(|prompt| prompt.tokens.len() <= 100).unwrap();
        let tokens: Vec<TokenId> = prompt.tokens.iter().chain(&prompt.greedy).copied().collect();
        for kernel in kernels() {
            for kv_type in [KvType::F32, KvType::F16] {
                is_invariant(&expected, &tokens, setup(kernel, kv_type));
            }
        }
    }
}

/// Runs `tokens` in different chunks, batches and thread counts and compares each row of logits, bit by bit, with one step.
fn is_invariant(expected: &Expected, tokens: &[TokenId], setup: Setup) {
    let mut runner = load(&expected.path(), setup);
    let mut sequence = Sequence::default();
    let whole = runner.feed(&mut sequence, tokens, usize::MAX);
    runner.release(sequence);
    let same =
        |rows: &Rows, how: &str| assert_same_bits(rows, &whole, &format!("{}, {setup:?}, {how}", expected.model));

    for chunk in [1, 7, 512] {
        let mut sequence = Sequence::default();
        same(&runner.feed(&mut sequence, tokens, chunk), &format!("chunks of {chunk}"));
        runner.release(sequence);
    }
    for chunk in [1, 7, 64] {
        same(&in_batch(&mut runner, tokens, chunk, &expected.prompts), &format!("among 16, chunks of {chunk}"));
    }
    let mut two_threads = load(&expected.path(), Setup { threads: 2, ..setup });
    same(&two_threads.feed(&mut Sequence::default(), tokens, 32), "two threads, chunks of 32");
}

/// Feeds `tokens` in chunks while up to 16 other sequences run in the same steps, some of them starting later.
fn in_batch(runner: &mut Runner<impl Engine>, tokens: &[TokenId], chunk: usize, prompts: &[Prompt]) -> Rows {
    const OTHERS: usize = 16;
    let mut sequence = Sequence::default();
    let mut others: Vec<Sequence> = (0..OTHERS).map(|_| Sequence::default()).collect();
    let mut fed = [0; OTHERS];
    let mut rows = Rows::new();
    for (round, piece) in tokens.chunks(chunk).enumerate() {
        let mut shares: Vec<runner::RunnerRows<'_>> = Vec::new();
        for (index, other) in others.iter_mut().enumerate().take(round * 3 + 1) {
            let text = &prompts[index % prompts.len()].tokens;
            let end = (fed[index] + 1 + index % 5).min(text.len());
            if fed[index] < end {
                shares.push((other, &text[fed[index]..end], LogitsWanted::Last));
                fed[index] = end;
            }
        }
        let ours = round % (shares.len() + 1);
        shares.insert(ours, (&mut sequence, piece, LogitsWanted::All));
        rows.extend(runner.step(&mut shares).swap_remove(ours));
    }
    runner.release(sequence);
    others.into_iter().for_each(|other| runner.release(other));
    rows
}
