//! Fused ops, compared with the separate ops: the same bits in fewer dispatches.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use cuelight_shaders::attention::KvType;
use cuelight_shaders::fusion::{FusedCase, fused_cases};
use cuelight_shaders::gpu::weight::WeightLayout;
use cuelight_shaders::gpu::{DeviceLimits, DeviceValue, GpuArgs, Region, RowCount};
use cuelight_shaders::kv::{DeviceKv, plane_block_bytes};
use cuelight_shaders::lora::DeviceAdapters;
use cuelight_shaders::recurrent::DeviceStates;
use cuelight_shaders::weight::Weight;

use super::one_op::OneOp;
use super::{assert_clean, part_of, shared_device};
use crate::backend::stage::PipelineStage;
use crate::backend::vulkan::record::Hazards;
use crate::backend::vulkan::{Device, ExecutionOptions, VulkanStage};
use crate::engine::{EngineLimits, LogitsWanted, SequenceRows, Step, StepId};
use crate::format::gguf::Gguf;
use crate::graph::{Graph, MemoryLayout, MostRows, ValueId};
use crate::model::ModelGraph;
use crate::synthetic::Synthetic;

fn bits(values: &[Vec<f32>]) -> Vec<Vec<u32>> {
    values.iter().map(|value| value.iter().map(|x| x.to_bits()).collect()).collect()
}

/// Runs the steps of a case with the fused op and with its two ops in sequence, each with a separate cache.
fn assert_same_bits(device: &Arc<Device>, fused: &FusedCase, deterministic: bool) {
    let FusedCase { first, second, case } = fused;
    let ready = |op| {
        let mut op = OneOp::new(device, op, case.cache.as_ref()).unwrap();
        op.deterministic = deterministic;
        // With few of them, both weights of a gated product of some tens of rows share a workgroup.
        op.limits.compute_units = 1;
        op
    };
    let [both, one, other] = [&case.op, first, second].map(|op| ready(&**op));
    for (index, step) in case.steps.iter().enumerate() {
        let run = |op: &OneOp<'_>, inputs: &[Vec<f32>]| op.run(&step.batch, step.rows, inputs).unwrap();
        let widths = step.input_widths();
        let of_first = (1..=widths.len()).rfind(|count| first.output_widths(&widths[..*count]).is_ok()).unwrap();
        let between = run(&one, &step.inputs[..of_first]);
        let separate = run(&other, &[&between, &step.inputs[of_first..]].concat());
        let together = run(&both, &step.inputs);
        let given = together.len() - separate.len();
        let expected = [&between[..given], &separate].concat();
        assert!(bits(&together) == bits(&expected), "{} {}: step {index}", case.op.name(), case.name);
    }
}

#[test]
fn a_fused_op_has_the_same_bits_as_its_ops_in_sequence() {
    let Some(device) = shared_device() else { return };
    for deterministic in [false, true] {
        for fused in part_of(fused_cases(), 6, deterministic.into()) {
            assert_same_bits(&device, &fused, deterministic);
        }
    }
    assert_clean(&device);
}

fn limits(model: &ModelGraph) -> EngineLimits {
    EngineLimits {
        vocab_size: model.graph.output().map_or(0, |logits| model.graph.width(logits)),
        context_tokens: 512,
        kv_blocks: 32,
        max_batched_tokens: 64,
        max_sequences: 4,
        max_logits_rows: 64,
        device: String::new(),
        ..EngineLimits::default()
    }
}

/// The model on a device, with or without fused ops.
fn stage(device: &Arc<Device>, model: ModelGraph, fused: bool) -> VulkanStage {
    let limits = limits(&model);
    let graph = if fused { model.graph.fused() } else { model.graph };
    let cache = (&*model.states, KvType::F16);
    let options = ExecutionOptions::default();
    VulkanStage::new(vec![graph], Arc::clone(device), cache, limits, options, &mut |_| Ok(())).unwrap()
}

/// A step with the rows of one sequence at these positions.
fn step(positions: Range<usize>) -> Step {
    let rows = SequenceRows {
        tokens: positions.clone().map(|position| (position * position + 3) as u32 % 500).collect(),
        first_position: positions.start as u32,
        block_table: (0..32).rev().collect(),
        logits: LogitsWanted::All,
        ..SequenceRows::default()
    };
    Step { id: StepId(0), sequences: vec![rows] }
}

/// One family for each structure of layers.
const FAMILIES: [&str; 13] = [
    "llama-q4_k",
    "llama-rope-yarn",
    "qwen2",
    "qwen3moe",
    "gemma2-scale",
    "gemma3",
    "gemma4",
    "deepseek2",
    "gpt-oss-mxfp4",
    "llama4",
    "olmo3",
    "cohere2",
    "phi2",
];

/// Compares every logit of a prompt in two chunks and of two decode steps.
#[test]
fn models_have_the_same_logits_with_and_without_fused_ops() {
    let Some(device) = shared_device() else { return };
    let families = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/families");
    // A software device compiles the shaders of a family for ten seconds.
    for name in part_of(FAMILIES.to_vec(), 3, 0) {
        let path = families.join(format!("{name}.gguf"));
        let gguf = Gguf::open(&path).unwrap();
        let [mut separate, mut fused] =
            [false, true].map(|fused| stage(&device, ModelGraph::build(&gguf).unwrap(), fused));
        for positions in [0..40, 40..45, 45..46, 46..47] {
            let [expected, found] =
                [&mut separate, &mut fused].map(|stage| stage.run(0, &step(positions.clone()), &[]).unwrap().values);
            assert!(bits(&found) == bits(&expected), "{name}, rows at {positions:?}");
        }
    }
    assert_clean(&device);
}

/// The number of dispatches and of barriers between them, for one row.
fn dispatches_and_barriers(graph: &Graph, kv: &DeviceKv) -> [usize; 2] {
    let device = DeviceLimits {
        subgroup_size: 32,
        max_workgroup_size: 1024,
        max_groups: [65535; 3],
        shared_memory_bytes: 48 << 10,
        compute_units: 132,
        cooperative_matrix: Some([16; 3]),
    };
    const WEIGHTS: u64 = 1 << 40;
    let layout = MemoryLayout::new(graph, MostRows { all: 1, selected: 1, hidden: 1 });
    let value = |value: &ValueId| {
        let (address, width) = (4 * layout.offset(*value) as u64, graph.width(*value));
        DeviceValue { region: Region { address, bytes: 4 * width as u64 }, width }
    };
    let (mut hazards, mut counts) = (Hazards::default(), [0, 0]);
    for node in graph.nodes() {
        let values = |values: &[ValueId]| values.iter().map(value).collect::<Vec<_>>();
        let layout_of = |weight: &Weight| WeightLayout::new(weight.format, weight.rows, weight.columns).at(WEIGHTS);
        let weights: Vec<_> = node.op.weights().into_iter().map(layout_of).collect();
        let tables = vec![Region { address: WEIGHTS, bytes: 4 }; node.op.gpu_tables().len()];
        let dispatches = node.op.dispatches(&GpuArgs {
            device: &device,
            deterministic: false,
            step: WEIGHTS,
            rows: RowCount::All(1),
            selected: 1,
            hidden: 1,
            sequences: 1,
            context_tokens: 256,
            inputs: &values(&node.inputs),
            outputs: &values(&node.outputs),
            weights: &weights,
            tables: &tables,
            kv,
            states: &DeviceStates::default(),
            adapters: &DeviceAdapters::default(),
            scratch: Region { address: 1 << 30, bytes: 1 << 30 },
        });
        for dispatch in dispatches {
            counts[0] += 1;
            counts[1] += usize::from(hazards.add(&dispatch.reads, &dispatch.writes));
        }
    }
    counts
}

/// The same per layer, averaged over the layers of the model.
fn of_layer(model: &str, fused: bool) -> [usize; 2] {
    let synthetic: Synthetic = model.parse().unwrap();
    let ModelGraph { graph, states, .. } = ModelGraph::build(&synthetic.outline().unwrap().0).unwrap();
    let mut address = 1 << 50;
    let layers = states.iter().map(|state| {
        plane_block_bytes(state.kv, KvType::F16).map(|bytes| {
            address += bytes;
            Region { address: address - bytes, bytes }
        })
    });
    let kv = DeviceKv { kv_type: KvType::F16, layers: layers.collect(), indexes: Vec::new() };
    let graph = if fused { graph.fused() } else { graph };
    let [dispatches, barriers] = dispatches_and_barriers(&graph, &kv);
    println!("{model}, fused {fused}: {dispatches} dispatches, {barriers} barriers in all");
    [dispatches, barriers].map(|count| count / states.len())
}

#[test]
fn fusion_reduces_the_dispatches_and_barriers_of_a_layer() {
    assert_eq!([false, true].map(|fused| of_layer("llama-8b:q4_k_m", fused)), [[16, 12], [10, 8]]);
    assert_eq!([false, true].map(|fused| of_layer("qwen3-30b-a3b:q4_k_m", fused)), [[19, 15], [15, 12]]);
}
