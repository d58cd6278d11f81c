//! Embeddings that a step gives in the place of those of tokens.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use cuelight_engine::engine::{EmbeddingRows, Engine, LogitsWanted, Progress, SequenceRows, Step, StepId, TokenId};
use cuelight_engine::format::gguf::Gguf;
use cuelight_engine::load::{ComputeDevice, Kernel, KvType, LoadOptions, plan};

#[path = "support/vulkan_device.rs"]
mod vulkan_device;

use vulkan_device::has_device;

const TOKENS: [TokenId; 12] = [3, 17, 5, 40, 8, 99, 21, 7, 60, 2, 33, 12];

fn model(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/families").join(name)
}

fn load(name: &str, device: ComputeDevice, kernel: Kernel) -> Box<dyn Engine> {
    let options = LoadOptions {
        kv_type: KvType::F32,
        threads: 2,
        takes_embeddings: true,
        device: device.into(),
        deterministic: true,
        kernel,
        ..LoadOptions::new(model(name))
    };
    plan(&options).unwrap().load_engine(&mut |_| {}).unwrap()
}

/// The logits of each sequence's last row, in one step.
fn logits(engine: &mut dyn Engine, sequences: Vec<SequenceRows>) -> Vec<f32> {
    let blocks = (0..).map(|block| vec![block]);
    let with_block = |(rows, block_table)| SequenceRows { block_table, logits: LogitsWanted::Last, ..rows };
    let step = Step { id: StepId(0), sequences: sequences.into_iter().zip(blocks).map(with_block).collect() };
    match engine.begin(step).unwrap() {
        Progress::Done(output) => output.logits,
        Progress::AwaitExperts(_) => panic!("the model has no experts"),
    }
}

fn of_tokens() -> SequenceRows {
    SequenceRows { tokens: TOKENS.into(), ..SequenceRows::default() }
}

/// The same sequence with other tokens at 2..5 and 8, whose embeddings are given.
fn of_embeddings(engine: &dyn Engine) -> SequenceRows {
    let table = Gguf::open(model("llama.gguf")).unwrap().weight("token_embd.weight").unwrap().to_f32();
    let width = engine.limits().embeddings.unwrap().width;
    let of = |tokens: &[TokenId]| -> Arc<[f32]> {
        tokens.iter().flat_map(|token| &table[*token as usize * width..][..width]).copied().collect()
    };
    let mut tokens = TOKENS.to_vec();
    tokens[2..5].fill(0);
    tokens[8] = 1;
    let embeddings = vec![
        EmbeddingRows { first: 2, values: of(&TOKENS[..5]), range: 2..5 },
        EmbeddingRows { first: 8, values: of(&TOKENS[8..9]), range: 0..1 },
    ];
    SequenceRows { tokens, embeddings, ..SequenceRows::default() }
}

fn check(device: ComputeDevice, kernel: Kernel) {
    let mut engine = load("llama.gguf", device, kernel);
    let expected = logits(&mut *engine, vec![of_tokens()]);
    let given = of_embeddings(&*engine);
    assert_eq!(logits(&mut *engine, vec![given.clone()]), expected, "{device} {kernel}");
    let both = logits(&mut *engine, vec![of_tokens(), given]);
    assert_eq!(both, [&expected[..], &expected].concat(), "{device} {kernel}");
    let later = logits(&mut *engine, vec![SequenceRows { sees_later: true, ..of_tokens() }]);
    assert!(later.iter().all(|value| value.is_finite()));
    assert_ne!(later, expected, "{device} {kernel}: earlier rows see later ones");
}

/// Models that rotate by the positions of images: text has the same bits whether it states its positions or not, and a row that
/// moves on one axis has other values.
fn check_axes(device: ComputeDevice, kernel: Kernel) -> Vec<Vec<f32>> {
    let of_model = |name: &str| {
        let mut engine = load(name, device, kernel);
        let at = |positions: &dyn Fn(u32) -> [u32; 3]| SequenceRows {
            rope_positions: (0..TOKENS.len() as u32).map(positions).collect(),
            ..of_tokens()
        };
        let expected = logits(&mut *engine, vec![of_tokens()]);
        let text = logits(&mut *engine, vec![at(&|position| [position; 3]), of_tokens()]);
        assert_eq!(text, [&expected[..], &expected].concat(), "{name} {device} {kernel}");
        let image = logits(&mut *engine, vec![at(&|position| [position, position + 3, position % 4])]);
        assert_ne!(image, expected, "{name} {device} {kernel}");
        image
    };
    ["qwen2vl.gguf", "qwen3vl.gguf"].map(of_model).into()
}

#[test]
fn rows_rotate_by_the_positions_of_images_alike_everywhere() {
    let expected = check_axes(ComputeDevice::Cpu, Kernel::Scalar);
    let mut others: Vec<(ComputeDevice, Kernel)> =
        Kernel::ALL.iter().filter(|kernel| kernel.is_supported()).map(|kernel| (ComputeDevice::Cpu, *kernel)).collect();
    others.extend(has_device().then_some((ComputeDevice::Vulkan(0), Kernel::Scalar)));
    for (device, kernel) in others {
        for (expected, found) in expected.iter().flatten().zip(check_axes(device, kernel).iter().flatten()) {
            assert!((expected - found).abs() < 2e-2, "{device} {kernel}: {found} instead of {expected}");
        }
    }
}

#[test]
fn a_given_embedding_counts_as_that_of_its_token() {
    for kernel in Kernel::ALL.iter().copied().filter(|kernel| kernel.is_supported()) {
        check(ComputeDevice::Cpu, kernel);
    }
}

#[test]
fn a_given_embedding_counts_as_that_of_its_token_on_a_device() {
    if has_device() {
        check(ComputeDevice::Vulkan(0), Kernel::detect());
    }
}
