//! Lower tiers of the KV cache, with a real engine: a request whose blocks and recurrent state come from host memory or from the
//! disk gives the same tokens and the same bits of log-probability as one that is computed, also after faults and after a restart
//! of the server.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cuelight::core::tier::{Tier, TierCounts};
use cuelight::pipeline::kv_store::{KvDirectory, KvStoreOptions};
use cuelight::pipeline::policy::PolicyConfig;
use cuelight::pipeline::runtime::{Runtime, RuntimeOptions};
use cuelight_engine::engine::{
    BlockId, CacheUnit, Engine, LogitsWanted, Progress, SequenceRows, SequenceState, SlotId, Step, StepId,
};
use cuelight_engine::load::{KvType, LoadOptions, plan};

#[path = "support/actor_deaths.rs"]
mod actor_deaths;
#[path = "support/tiny_runtime.rs"]
mod tiny_runtime;
#[path = "support/vulkan_device.rs"]
mod vulkan_device;

use actor_deaths::Role;
use tiny_runtime::{answer, checkpoint, request, start};
use vulkan_device::has_device;

const SEEDS: std::ops::Range<u64> = 0..12;

type Answer = Vec<(u32, u32)>;

/// What a test runs.
#[derive(Clone)]
struct Case {
    model: &'static str,
    kv_type: KvType,
    chunk: usize,
}

impl Case {
    fn cpu(kv_type: KvType, chunk: usize) -> Self {
        Case { model: "llama-q4_0.gguf", kv_type, chunk }
    }

    /// A runtime with room for one or two requests, or with room for all.
    async fn start(&self, is_small: bool, kv_store: KvStoreOptions) -> Runtime {
        let mut options = LoadOptions {
            threads: 2,
            context_tokens: Some(256),
            kv_type: self.kv_type,
            ..LoadOptions::new(checkpoint(self.model))
        };
        if is_small {
            let memory = plan(&options).unwrap().memory().clone();
            options.kv_bytes = Some(memory.used.kv / memory.kv_blocks as u64 * 18);
            // For one or two sequences and as many checkpoints.
            options.state_bytes = memory.used.state.checked_div(memory.state_slots as u64).map(|bytes| bytes * 4);
        }
        let policy = PolicyConfig { prefill_chunk_tokens: self.chunk, ..PolicyConfig::default() };
        start(options, RuntimeOptions { policy, kv_store, ..RuntimeOptions::default() }).await
    }

    /// The answers without lower tiers.
    async fn expected(&self) -> Vec<Answer> {
        let runtime = self.start(false, KvStoreOptions::default()).await;
        let answers = answers(&runtime).await;
        runtime.shutdown(Duration::ZERO).await;
        answers
    }
}

async fn answers(runtime: &Runtime) -> Vec<Answer> {
    let mut answers = Vec::new();
    for seed in SEEDS {
        answers.push(answer(runtime, request(seed, 0.0)).await);
    }
    answers
}

fn tier(runtime: &Runtime, tier: Tier) -> TierCounts {
    runtime.snapshot().tiers[tier as usize]
}

fn host(bytes: u64) -> KvStoreOptions {
    KvStoreOptions { host_bytes: bytes, disk: None, ..KvStoreOptions::default() }
}

/// A disk tier. The threads of a runtime that ended may hold the directory for a moment longer.
fn disk(directory: &Path, host_bytes: u64) -> KvStoreOptions {
    for _ in 0..1000 {
        if let Ok(held) = KvDirectory::open(directory) {
            return KvStoreOptions { host_bytes, disk: Some((held, 1 << 30)), ..KvStoreOptions::default() };
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("the directory is still held");
}

/// Waits until the disk tier can be used.
async fn wait_for_disk(runtime: &Runtime) {
    for _ in 0..1000 {
        if tier(runtime, Tier::Disk).capacity_bytes > 0 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the disk tier is not ready");
}

/// The files of blocks in a directory.
fn files(directory: &Path) -> Vec<PathBuf> {
    files_of(directory, "kv")
}

/// The files with an extension in a directory of tiers.
fn files_of(directory: &Path, extension: &str) -> Vec<PathBuf> {
    let folders = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_dir());
    let files = folders.flat_map(|folder| fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()));
    files.filter(|path| path.extension().is_some_and(|found| found == extension)).collect()
}

async fn check_host(case: Case) {
    let expected = case.expected().await;
    let runtime = case.start(true, host(64 << 20)).await;
    for _ in 0..2 {
        assert_eq!(answers(&runtime).await, expected);
    }
    let counts = tier(&runtime, Tier::Host);
    assert!(counts.blocks.loaded > 0 && counts.blocks.stored > 0 && counts.blocks.lost == 0, "{counts:?}");
    runtime.shutdown(Duration::ZERO).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn blocks_from_host_memory_give_the_same_bits_with_every_type_and_chunk() {
    for (kv_type, chunk) in [(KvType::F16, 7), (KvType::F32, 512), (KvType::Q8_0, 1)] {
        check_host(Case::cpu(kv_type, chunk)).await;
    }
    // Layers with windows, and layers with index keys.
    for model in ["gemma2.gguf", "glm-dsa.gguf"] {
        check_host(Case { model, ..Case::cpu(KvType::F16, 512) }).await;
    }
}

/// Where a prompt is in an engine's cache.
type Places = (&'static [BlockId], SlotId);

/// The bits of the logits after these rows of a prompt.
fn logits(engine: &mut impl Engine, id: u64, (blocks, slot): Places, rows: std::ops::Range<u32>) -> Vec<u32> {
    let sequence = SequenceRows {
        tokens: rows.clone().map(|token| token * 7 % 500).collect(),
        first_position: rows.start,
        block_table: blocks.to_vec(),
        state: SequenceState::in_place(engine.limits(), slot, rows.start, rows.len()),
        logits: LogitsWanted::Last,
        ..SequenceRows::default()
    };
    match engine.begin(Step { id: StepId(id), sequences: vec![sequence] }).unwrap() {
        Progress::Done(output) => output.logits.iter().map(|value| value.to_bits()).collect(),
        Progress::AwaitExperts(_) => panic!("no experts here"),
    }
}

/// The units of a prompt, as far as they have bytes.
fn units(engine: &impl Engine, (blocks, slot): Places) -> Vec<CacheUnit> {
    let bytes = engine.cache_layout().unwrap().bytes;
    let all = blocks.iter().copied().map(CacheUnit::Block).chain([CacheUnit::State(slot)]);
    all.filter(|unit| bytes.of(unit.kind()) > 0).collect()
}

/// Copies the units of a prompt to other ones, of the same engine and of another one, and continues the prompt there.
fn check_copies(model: &str, device: &str, kv_type: KvType) {
    let load = || {
        let options = LoadOptions {
            threads: 2,
            context_tokens: Some(256),
            device: device.parse().unwrap(),
            kv_type,
            ..LoadOptions::new(checkpoint(model))
        };
        plan(&options).and_then(|plan| plan.load_engine(&mut |_| {})).unwrap()
    };
    let (mut engine, mut other) = (load(), load());
    let layout = engine.cache_layout().unwrap();
    assert_eq!(Some(&layout), other.cache_layout().as_ref());
    let (first, second): (Places, Places) = ((&[3, 0, 5], 1), (&[6, 7, 1], 0));
    logits(&mut engine, 0, first, 0..40);
    let of_unit = |unit: CacheUnit| (unit, vec![0xff; layout.bytes.of(unit.kind())]);
    let mut copies: Vec<_> = units(&engine, first).into_iter().map(of_unit).collect();
    let mut to_read: Vec<(CacheUnit, &mut [u8])> =
        copies.iter_mut().map(|(unit, bytes)| (*unit, &mut bytes[..])).collect();
    engine.read_units(&mut to_read).unwrap();
    assert!(copies.iter().all(|(_, bytes)| bytes.iter().any(|byte| *byte != 0xff)));
    let contents = copies.iter().map(|(_, bytes)| &bytes[..]);
    let contents: Vec<(CacheUnit, &[u8])> = units(&engine, second).into_iter().zip(contents).collect();
    engine.write_units(&contents).unwrap();
    other.write_units(&contents).unwrap();
    let expected = logits(&mut engine, 1, first, 40..41);
    assert_eq!(logits(&mut engine, 2, second, 40..41), expected, "{model} {device} {kv_type}, other units");
    assert_eq!(logits(&mut other, 1, second, 40..41), expected, "{model} {device} {kv_type}, another engine");
}

#[test]
fn copied_units_give_the_same_bits_in_other_places_and_engines() {
    let recurrent = RECURRENT.map(|model| (model, KvType::F16));
    let attention = KvType::ALL.iter().map(|kv_type| ("llama-q4_0.gguf", *kv_type));
    for (model, kv_type) in attention.chain(recurrent) {
        check_copies(model, "cpu", kv_type);
        // A software device compiles the shaders of each model again.
        let is_typical = ["llama-q4_0.gguf", "qwen35.gguf"].contains(&model);
        if is_typical && has_device() {
            check_copies(model, "vulkan:0", kv_type);
            // The layers are divided between two engines.
            check_copies(model, "cpu,vulkan:0", kv_type);
        }
    }
}

/// As [`answers`], of requests at the same time.
async fn concurrent_answers(runtime: &Runtime) -> Vec<Answer> {
    futures_util::future::join_all(SEEDS.map(|seed| answer(runtime, request(seed, 0.0)))).await
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_at_the_same_time_with_preemption_give_the_same_bits() {
    let case = Case::cpu(KvType::F16, 7);
    let expected = case.expected().await;
    let runtime = case.start(true, host(64 << 20)).await;
    for _ in 0..3 {
        assert_eq!(concurrent_answers(&runtime).await, expected);
    }
    assert!(tier(&runtime, Tier::Host).blocks.loaded > 0);
    runtime.shutdown(Duration::ZERO).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn host_memory_outlives_the_executor_and_the_scheduler() {
    let case = Case::cpu(KvType::F16, 512);
    let expected = case.expected().await;
    let runtime = case.start(true, host(64 << 20)).await;
    assert_eq!(answers(&runtime).await, expected);
    let before = tier(&runtime, Tier::Host).bytes;
    for role in [Role::Executor, Role::Scheduler] {
        assert!(role.kill(&runtime, 0));
        let loaded = tier(&runtime, Tier::Host).blocks.loaded;
        assert_eq!(answers(&runtime).await, expected, "after {role:?} died");
        let counts = tier(&runtime, Tier::Host);
        let of_new_scheduler = role == Role::Scheduler && counts.blocks.loaded > 0;
        assert!(counts.bytes >= before && (counts.blocks.loaded > loaded || of_new_scheduler), "{counts:?}");
    }
    runtime.shutdown(Duration::ZERO).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_server_finds_the_blocks_of_the_disk() {
    let directory = tempfile::tempdir().unwrap();
    let case = Case::cpu(KvType::Q8_0, 512);
    let expected = case.expected().await;
    // Without and with host memory above the disk: blocks are written when they are evicted, and at the end.
    for host_bytes in [0, 1 << 20] {
        let runtime = case.start(true, disk(directory.path(), host_bytes)).await;
        wait_for_disk(&runtime).await;
        assert_eq!(answers(&runtime).await, expected);
        runtime.shutdown(Duration::from_secs(30)).await;
        drop(runtime);
    }
    assert!(files(directory.path()).len() >= 12, "{}", files(directory.path()).len());
    let runtime = case.start(true, disk(directory.path(), 0)).await;
    wait_for_disk(&runtime).await;
    assert_eq!(answers(&runtime).await, expected);
    let counts = tier(&runtime, Tier::Disk);
    assert!(counts.blocks.loaded > 0 && counts.blocks.lost == 0, "{counts:?}");
    runtime.shutdown(Duration::from_secs(30)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn blocks_of_another_type_of_values_are_not_used() {
    let directory = tempfile::tempdir().unwrap();
    for kv_type in [KvType::F16, KvType::F32] {
        let case = Case::cpu(kv_type, 512);
        let runtime = case.start(true, disk(directory.path(), 0)).await;
        wait_for_disk(&runtime).await;
        assert_eq!(tier(&runtime, Tier::Disk).bytes, 0, "{kv_type} finds what another type has left");
        assert_eq!(answers(&runtime).await, case.expected().await);
        runtime.shutdown(Duration::from_secs(30)).await;
    }
}

/// Flips bits in the files, cuts one in five, and leaves half-written ones with the names that a crash leaves.
fn damage(files: &[PathBuf]) {
    for (index, file) in files.iter().enumerate() {
        let mut bytes = fs::read(file).unwrap();
        let at = bytes.len() * (index % 7) / 7;
        bytes[at] ^= 0x55;
        fs::write(file.with_added_extension("tmp"), &bytes[..at]).unwrap();
        fs::write(file, if index % 5 == 4 { &bytes[..at] } else { &bytes[..] }).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn damaged_files_never_change_an_answer() {
    let directory = tempfile::tempdir().unwrap();
    let case = Case::cpu(KvType::F16, 512);
    let expected = case.expected().await;
    let runtime = case.start(true, disk(directory.path(), 0)).await;
    wait_for_disk(&runtime).await;
    answers(&runtime).await;
    runtime.shutdown(Duration::from_secs(30)).await;
    drop(runtime);
    damage(&files(directory.path()));
    let runtime = case.start(true, disk(directory.path(), 0)).await;
    wait_for_disk(&runtime).await;
    assert_eq!(answers(&runtime).await, expected);
    let counts = tier(&runtime, Tier::Disk);
    assert!(counts.blocks.lost > 0, "{counts:?}");
    runtime.shutdown(Duration::from_secs(30)).await;
}

/// Models with recurrent layers of each kind: the gated delta rule, short convolutions, Mamba 2 next to attention, Mamba 2
/// alone, which has no keys and values, layers that attend to entries of pools, of which the newest is state, and n-grams, of whose
/// tokens the last are.
const RECURRENT: [&str; 6] =
    ["qwen35.gguf", "lfm2.gguf", "granitehybrid.gguf", "mamba2.gguf", "deepseek4.gguf", "qwen4exp.gguf"];

fn recurrent(model: &'static str, chunk: usize) -> Case {
    Case { model, ..Case::cpu(KvType::F16, chunk) }
}

/// A message that begins as the prompt of a seed, and its answer.
async fn next_messages(runtime: &Runtime, seeds: std::ops::Range<u64>) -> Vec<Answer> {
    let mut answers = Vec::new();
    for seed in seeds {
        let mut next = request(seed, 0.0);
        next.prompt.extend((0..20).map(|token| (token * 13 + 1) % 500));
        answers.push(answer(runtime, next).await);
    }
    answers
}

#[tokio::test(flavor = "multi_thread")]
async fn states_from_host_memory_give_the_same_bits_with_every_kind_of_recurrent_layer() {
    for (model, chunk) in RECURRENT.into_iter().zip([512, 7, 1, 512, 7, 1]) {
        let case = recurrent(model, chunk);
        let (expected, next) = {
            let runtime = case.start(false, KvStoreOptions::default()).await;
            let expected = (answers(&runtime).await, next_messages(&runtime, SEEDS).await);
            runtime.shutdown(Duration::ZERO).await;
            expected
        };
        let runtime = case.start(true, host(64 << 20)).await;
        for _ in 0..2 {
            assert_eq!(answers(&runtime).await, expected, "{model}");
            assert_eq!(next_messages(&runtime, SEEDS).await, next, "{model}");
        }
        let counts = tier(&runtime, Tier::Host);
        assert!(counts.states.loaded > 0 && counts.states.lost + counts.blocks.lost == 0, "{model}: {counts:?}");
        assert_eq!(counts.blocks.stored > 0, model != "mamba2.gguf", "{model}: {counts:?}");
        runtime.shutdown(Duration::ZERO).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_at_the_same_time_give_the_same_bits_with_states_in_tiers() {
    let case = recurrent("qwen35.gguf", 7);
    let expected = case.expected().await;
    let runtime = case.start(true, host(64 << 20)).await;
    for _ in 0..3 {
        assert_eq!(concurrent_answers(&runtime).await, expected);
    }
    for role in [Role::Executor, Role::Scheduler] {
        assert!(role.kill(&runtime, 0));
        assert_eq!(answers(&runtime).await, expected, "after {role:?} died");
    }
    assert!(tier(&runtime, Tier::Host).states.loaded > 0);
    runtime.shutdown(Duration::ZERO).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_server_finds_the_states_of_the_disk_and_notices_damaged_ones() {
    for model in ["qwen35.gguf", "mamba2.gguf"] {
        let directory = tempfile::tempdir().unwrap();
        let case = recurrent(model, 512);
        let expected = case.expected().await;
        let runtime = case.start(true, disk(directory.path(), 0)).await;
        wait_for_disk(&runtime).await;
        assert_eq!(answers(&runtime).await, expected);
        runtime.shutdown(Duration::from_secs(30)).await;
        drop(runtime);
        let runtime = case.start(true, disk(directory.path(), 0)).await;
        wait_for_disk(&runtime).await;
        assert_eq!(answers(&runtime).await, expected);
        let counts = tier(&runtime, Tier::Disk);
        assert!(counts.states.loaded > 0 && counts.states.lost + counts.blocks.lost == 0, "{model}: {counts:?}");
        runtime.shutdown(Duration::from_secs(30)).await;
        drop(runtime);
        let states = files_of(directory.path(), "state");
        assert!(!states.is_empty());
        damage(&states);
        let runtime = case.start(true, disk(directory.path(), 0)).await;
        wait_for_disk(&runtime).await;
        assert_eq!(answers(&runtime).await, expected);
        let counts = tier(&runtime, Tier::Disk);
        assert!(counts.states.lost > 0 && counts.states.loaded == 0, "{model}: {counts:?}");
        runtime.shutdown(Duration::from_secs(30)).await;
    }
}
