//! Low-rank adapters, compared with PEFT, and whether they leave other sequences alone.
//!
//! `tests/generate/lora.py` writes the adapters of directories in `tests/fixtures/hugging_face`.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use cuelight_engine::adapters::AdapterModel;
use cuelight_engine::engine::{
    AdapterLimits, AdapterUse, BLOCK_TOKENS, Engine, EngineError, LogitsWanted, Progress, SequenceRows, SequenceState,
    Step, StepId, TokenId,
};
use cuelight_engine::load::{self, CpuExperts, Devices, KvType, LoadOptions};
use serde::Deserialize;

#[path = "support/runner.rs"]
#[allow(dead_code)]
mod runner;
#[path = "support/vulkan_device.rs"]
mod vulkan_device;

use runner::{Rows, assert_same_bits, deltas, largest};
use vulkan_device::has_device;

/// Largest |Δ log-prob| of a token, in nats.
const GATE: f64 = 1e-4;

const LIMITS: AdapterLimits = AdapterLimits { slots: 8, max_rank: 8, vocabulary: false, experts: false };

/// The limits of a model whose embedding and head adapters may change, too.
const WITH_VOCABULARY: AdapterLimits = AdapterLimits { vocabulary: true, ..LIMITS };

/// The limits of a model whose experts adapters may change, too.
const WITH_EXPERTS: AdapterLimits = AdapterLimits { experts: true, ..LIMITS };

#[derive(Deserialize)]
struct Expected {
    prompts: Vec<Prompt>,
}

#[derive(Deserialize)]
struct Prompt {
    tokens: Vec<TokenId>,
    logprobs: Vec<f64>,
}

fn fixture(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(path)
}

fn prompt(adapter: &str) -> Prompt {
    let text = std::fs::read(fixture("lora").join(adapter).join("expected.json")).unwrap();
    serde_json::from_slice::<Expected>(&text).unwrap().prompts.remove(0)
}

/// The devices of a model: one, two logical devices, or the CPU and a device.
const VULKAN: [&str; 3] = ["vulkan", "vulkan:0,vulkan:0", "cpu,vulkan:0"];

fn options_on(device: &str, model: &str, adapters: Option<AdapterLimits>) -> LoadOptions {
    LoadOptions {
        device: device.parse::<Devices>().unwrap(),
        deterministic: true,
        max_batched_tokens: 512,

        context_tokens: Some(128),
        kv_type: KvType::F32,
        threads: 2,
        adapters,
        ..LoadOptions::new(fixture(model))
    }
}

/// A model, and what its adapters must fit.
struct Model {
    engine: Box<dyn Engine>,
    adapters: Option<Arc<AdapterModel>>,
    steps: u64,
}

impl Model {
    fn load(model: &str, limits: Option<AdapterLimits>) -> Model {
        Model::load_on("cpu", model, limits)
    }

    fn load_on(device: &str, model: &str, limits: Option<AdapterLimits>) -> Model {
        let plan = load::plan(&options_on(device, model, limits)).unwrap();
        let adapters = plan.adapters().cloned();
        Model { engine: plan.load_engine(&mut |_| {}).unwrap(), adapters, steps: 0 }
    }

    fn adapter(&self, name: &str, scale: f32) -> AdapterUse {
        let loaded = self.adapters.as_ref().unwrap().load(&fixture("lora").join(name), scale);
        AdapterUse { adapter: Arc::new(loaded.unwrap_or_else(|error| panic!("{error}"))), scale: 1.0 }
    }

    /// The logits of every row of prompts that are computed in one step, each with its adapter.
    fn run(&mut self, prompts: &[(&[TokenId], Option<AdapterUse>)]) -> Result<Vec<Rows>, EngineError> {
        let blocks = 3;
        let sequence = |(index, (tokens, adapter)): (usize, &(&[TokenId], Option<AdapterUse>))| SequenceRows {
            tokens: tokens.to_vec(),
            first_position: 0,
            block_table: (0..blocks).map(|block| index as u32 * blocks + block).collect(),
            state: SequenceState::in_place(self.engine.limits(), index as u32, 0, tokens.len()),
            adapter: adapter.clone(),
            logits: LogitsWanted::All,
            ..SequenceRows::default()
        };
        let sequences: Vec<SequenceRows> = prompts.iter().enumerate().map(sequence).collect();
        assert!(sequences.iter().all(|sequence| sequence.tokens.len() <= blocks as usize * BLOCK_TOKENS));
        self.steps += 1;
        let Progress::Done(output) = self.engine.begin(Step { id: StepId(self.steps), sequences })? else {
            panic!("the engine computes all experts itself")
        };
        let mut rows = output.logits.chunks_exact(self.engine.limits().vocab_size).map(<[f32]>::to_vec);
        Ok(prompts.iter().map(|(tokens, _)| rows.by_ref().take(tokens.len()).collect()).collect())
    }
}

#[test]
fn adapters_give_the_log_probabilities_of_peft() {
    let of_family = |name: &'static str| (format!("hugging_face/{name}"), format!("families/{name}.gguf"));
    let (llama, gguf) = of_family("llama-shards");
    let mut cases = vec![(gguf.clone(), "llama-b", "llama-b", LIMITS)];
    let moe = of_family("qwen3moe-small");
    for (bases, name, in_gguf, limits) in [
        ([&llama, &gguf], "llama-a", "llama-a.gguf", LIMITS),
        ([&llama, &gguf], "llama-vocabulary", "llama-vocabulary.gguf", WITH_VOCABULARY),
        ([&moe.0, &moe.1], "qwen3moe-experts", "qwen3moe-experts.gguf", WITH_EXPERTS),
    ] {
        let both = [name, in_gguf].into_iter().flat_map(|adapter| bases.map(|base| (base, adapter)));
        cases.extend(both.map(|(base, adapter)| (base.clone(), adapter, name, limits)));
    }
    for (base, name, limits) in [
        ("gemma3", "gemma3", LIMITS),
        ("phi3", "phi3", LIMITS),
        ("qwen35", "qwen35", LIMITS),
        ("granite", "granite-vocabulary", WITH_VOCABULARY),
        ("gemma3", "gemma3-vocabulary", WITH_VOCABULARY),
        ("mixtral-small", "mixtral-experts", WITH_EXPERTS),
    ] {
        let (directory, file) = of_family(base);
        cases.extend([(directory, name, name, limits), (file, name, name, limits)]);
    }
    for (base, adapter, expected, limits) in cases {
        let prompt = prompt(expected);
        let mut model = Model::load(&base, Some(limits));
        let used = model.adapter(adapter, 1.0);
        let rows = model.run(&[(&prompt.tokens, Some(used)), (&prompt.tokens, None)]).unwrap();
        let [with, without] = [0, 1].map(|row| largest(&deltas(&rows[row], &prompt.tokens, &prompt.logprobs)));
        println!("{base:34} {adapter:22} {with:8.1e} nat from PEFT, {without:8.1e} without the adapter");
        assert!(with <= GATE, "{base} with {adapter}: {with} nats from PEFT");
        assert!(without > 100.0 * GATE, "{base}: {adapter} changes nothing");
    }
}

#[test]
fn adapters_on_a_device_give_the_log_probabilities_of_peft() {
    if !has_device() {
        return;
    }
    for (base, name, device, limits) in [
        ("llama-shards", "llama-a", VULKAN[0], LIMITS),
        ("llama-shards", "llama-a", VULKAN[1], LIMITS),
        ("llama-shards", "llama-a", VULKAN[2], LIMITS),
        ("llama-shards", "llama-vocabulary", VULKAN[0], WITH_VOCABULARY),
        ("llama-shards", "llama-vocabulary", VULKAN[2], WITH_VOCABULARY),
        ("granite", "granite-vocabulary", VULKAN[0], WITH_VOCABULARY),
        ("qwen35", "qwen35", VULKAN[0], LIMITS),
        ("qwen3moe-small", "qwen3moe-experts", VULKAN[0], WITH_EXPERTS),
        ("mixtral-small", "mixtral-experts", VULKAN[2], WITH_EXPERTS),
    ] {
        let prompt = prompt(name);
        let mut model = Model::load_on(device, &format!("hugging_face/{base}"), Some(limits));
        let used = model.adapter(name, 1.0);
        let rows = model.run(&[(&prompt.tokens, Some(used)), (&prompt.tokens, None)]).unwrap();
        let [with, without] = [0, 1].map(|row| largest(&deltas(&rows[row], &prompt.tokens, &prompt.logprobs)));
        println!("{name:18} on {device:20} {with:8.1e} nat from PEFT, {without:8.1e} without the adapter");
        assert!(with <= GATE, "{base} on {device}: {with} nats from PEFT");
        assert!(without > 100.0 * GATE, "{base} on {device}: the adapter changes nothing");
    }
}

#[test]
fn eight_adapters_in_a_batch_give_the_bits_of_each_alone() {
    eight_adapters_and_each_alone("cpu");
}

#[test]
fn eight_adapters_on_a_device_give_the_bits_of_each_alone() {
    if has_device() {
        eight_adapters_and_each_alone("vulkan");
        eight_adapters_and_each_alone("cpu,vulkan:0");
    }
}

fn eight_adapters_and_each_alone(device: &str) {
    let prompt = prompt("llama-a");
    let mut model = Model::load_on(device, "hugging_face/llama-shards", Some(LIMITS));
    let names = ["llama-a", "llama-b"];
    let adapters: Vec<AdapterUse> =
        (0..8).map(|index| model.adapter(names[index % 2], 0.25 + index as f32 / 4.0)).collect();
    let prompts: Vec<&[TokenId]> = (0..10).map(|index| &prompt.tokens[index..20 + 2 * index]).collect();
    let of = |index: usize| (prompts[index], adapters.get(index).cloned());
    let together = model.run(&(0..10).map(of).collect::<Vec<_>>()).unwrap();
    for (index, rows) in together.iter().enumerate() {
        let alone = model.run(&[of(index)]).unwrap();
        assert_same_bits(rows, &alone[0], &format!("sequence {index} on {device}"));
    }
    let mut plain = Model::load_on(device, "hugging_face/llama-shards", None);
    for index in [8, 9] {
        let expected = plain.run(&[(prompts[index], None)]).unwrap();
        assert_same_bits(&together[index], &expected[0], "a sequence without an adapter");
    }
    let tokens = &prompt.tokens[..20];
    let differ = model.run(&[(tokens, Some(adapters[0].clone())), (tokens, Some(adapters[2].clone()))]).unwrap();
    assert_ne!(differ[0], differ[1], "the scale of an adapter counts");
}

#[test]
fn adapters_of_experts_in_a_batch_give_the_bits_of_each_alone() {
    expert_adapters_and_each_alone("cpu");
}

#[test]
fn adapters_of_experts_on_a_device_give_the_bits_of_each_alone() {
    if has_device() {
        expert_adapters_and_each_alone("vulkan");
    }
}

fn expert_adapters_and_each_alone(device: &str) {
    let prompt = prompt("qwen3moe-experts");
    let mut model = Model::load_on(device, "hugging_face/qwen3moe-small", Some(WITH_EXPERTS));
    let adapters: Vec<AdapterUse> =
        (1..=4).map(|scale| model.adapter("qwen3moe-experts", scale as f32 / 2.0)).collect();
    let of = |index: usize| (&prompt.tokens[index..18 + 3 * index], adapters.get(index).cloned());
    let together = model.run(&(0..5).map(of).collect::<Vec<_>>()).unwrap();
    for (index, rows) in together.iter().enumerate() {
        let alone = model.run(&[of(index)]).unwrap();
        assert_same_bits(rows, &alone[0], &format!("sequence {index} on {device}"));
    }
    let plain = Model::load_on(device, "hugging_face/qwen3moe-small", None).run(&[of(4)]).unwrap();
    assert_same_bits(&together[4], &plain[0], "a sequence without an adapter");
}

#[test]
fn adapters_of_experts_need_all_experts_on_the_device() {
    if has_device() {
        let on_device = options_on("vulkan", "hugging_face/qwen3moe-small", Some(WITH_EXPERTS));
        let planned = load::plan(&LoadOptions { cpu_experts: CpuExperts::Layers(1), ..on_device });
        let error = planned.map(drop).unwrap_err().to_string();
        assert!(error.contains("some of them are left to the CPU"), "{error}");
    }
}

/// A device has slots for some adapters. Others take their place one after the other, and each comes back with the same bits.
#[test]
fn adapters_take_the_slots_of_those_that_are_not_used() {
    if !has_device() {
        return;
    }
    let prompt = prompt("llama-a");
    let tokens = &prompt.tokens[..20];
    let limits = AdapterLimits { slots: 2, ..LIMITS };
    let mut model = Model::load_on("vulkan", "hugging_face/llama-shards", Some(limits));
    let adapters: Vec<AdapterUse> = (1..=3).map(|scale| model.adapter("llama-b", scale as f32)).collect();
    let of = |index: usize| (tokens, Some(adapters[index].clone()));
    let first: Vec<Rows> = (0..3).map(|index| model.run(&[of(index)]).unwrap().remove(0)).collect();
    assert!(first[0] != first[1] && first[1] != first[2]);
    for pair in [[1, 2], [0, 1], [2, 0], [2, 1], [0, 2]] {
        let rows = model.run(&pair.map(of)).unwrap();
        for (rows, index) in rows.iter().zip(pair) {
            assert_same_bits(rows, &first[index], &format!("adapter {index} of {pair:?}"));
        }
    }
    let error = model.run(&[of(0), of(1), of(2)]).unwrap_err().to_string();
    assert!(error.contains("3 adapters, but the engine's limit is 2"), "{error}");
}

#[test]
fn a_model_without_adapters_refuses_steps_with_one() {
    let used = Model::load("hugging_face/llama-shards", Some(LIMITS)).adapter("llama-a", 1.0);
    let mut plain = Model::load("hugging_face/llama-shards", None);
    assert!(plain.adapters.is_none());
    let error = plain.run(&[(&[5, 6], Some(used))]).unwrap_err();
    assert!(error.to_string().contains("1 adapters, but the engine's limit is 0"), "{error}");
}

#[test]
fn the_memory_of_adapters_is_planned() {
    let bytes = |device, slots| {
        let limits = AdapterLimits { slots, ..LIMITS };
        let options = options_on(device, "hugging_face/llama-shards", (slots > 0).then_some(limits));
        load::plan(&options).unwrap().memory().used.adapters
    };
    let one = bytes("cpu", 1);
    assert!(one > 10_000 && bytes("cpu", 0) == 0, "{one}");
    assert_eq!(bytes("cpu", 3), 3 * one);
    if !has_device() {
        return;
    }
    // The device has a copy in addition.
    for device in VULKAN {
        assert_eq!(bytes(device, 0), 0);
        let (one_there, four_there) = (bytes(device, 1), bytes(device, 4));
        let of_three = four_there - one_there;
        assert!(
            of_three > 3 * one && of_three < 7 * one,
            "{device}: {of_three} bytes of three adapters of {one} bytes"
        );
    }
}

#[test]
fn adapters_that_do_not_fit_are_refused_by_name() {
    let small = Model::load("hugging_face/llama-shards", Some(AdapterLimits { slots: 1, max_rank: 3, ..LIMITS }));
    let error = |model: &Model, name: &str| {
        let loaded = model.adapters.as_ref().unwrap().load(&fixture("lora").join(name), 1.0);
        loaded.map(drop).unwrap_err().to_string()
    };
    assert!(error(&small, "llama-a").contains("rank 4; at most 3 is allowed"), "{}", error(&small, "llama-a"));
    let llama = Model::load("hugging_face/llama-shards", Some(LIMITS));
    let of_another = error(&llama, "qwen35");
    assert!(of_another.contains("tensor") && of_another.contains("layers.0"), "{of_another}");
    assert!(error(&llama, "nothing").contains("nothing"));
    for name in ["llama-vocabulary", "llama-vocabulary.gguf"] {
        let unreserved = error(&llama, name);
        assert!(unreserved.contains("for which the model reserves no memory"), "{unreserved}");
    }
    let moe = Model::load("hugging_face/qwen3moe-small", Some(LIMITS));
    for name in ["qwen3moe-experts", "qwen3moe-experts.gguf"] {
        let unreserved = error(&moe, name);
        assert!(unreserved.contains("changes experts, for which the model reserves no memory"), "{unreserved}");
    }
    let gemma = Model::load("hugging_face/gemma3", Some(LIMITS));
    let architecture = error(&gemma, "llama-a.gguf");
    assert!(architecture.contains(r#""llama", but the model is of "gemma3""#), "{architecture}");
}
