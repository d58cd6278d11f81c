//! Products of many rows, in every way that a device has, against the reference.

use std::sync::Arc;

use cuelight_shaders::attention::KvType;
use cuelight_shaders::embed::Embed;
use cuelight_shaders::matmul::{Linear, reference};
use cuelight_shaders::quant::{Format, random};
use cuelight_shaders::weight::Weight;

use crate::backend::vulkan::{Device, DeviceInfo, ExecutionOptions, Instance, VulkanEngine, VulkanOptions};
use crate::engine::{Engine, EngineLimits, LogitsWanted, Progress, SequenceRows, Step, StepId};
use crate::graph::Graph;

/// The first device, if there is one: as it is, and without its matrices where it has them.
fn devices() -> Vec<Arc<Device>> {
    let options = VulkanOptions { validation: true, ..VulkanOptions::default() };
    let Ok(instance) = Instance::load(options.instance()) else {
        eprintln!("SKIPPED: no Vulkan loader or driver here");
        return Vec::new();
    };
    let info = DeviceInfo::find(&instance, 0).unwrap();
    let mut infos = vec![info.clone()];
    if info.limits.cooperative_matrix.is_some() {
        let mut without = info;
        without.limits.cooperative_matrix = None;
        infos.push(without);
    } else {
        eprintln!("SKIPPED: {} has no cooperative matrices; matrices of float16 are not tested", info.name);
    }
    let open = |info| Device::open(Arc::clone(&instance), info, options.clone()).unwrap();
    infos.into_iter().map(open).collect()
}

/// `x w^T + b` on the device: the rows of `x` come from an embedding.
fn run(device: &Arc<Device>, weight: &Weight, bias: Option<&[f32]>, x: &[f32], deterministic: bool) -> Vec<f32> {
    let rows = x.len() / weight.columns;
    let mut graph = Graph::default();
    // A step's tokens are below the number of logits, so that x repeats itself after as many rows (see `input`).
    let distinct = rows.min(weight.rows);
    let table = Weight::from_f32("x", distinct, weight.columns, &x[..distinct * weight.columns]);
    let input = graph.push_one(Embed::new(table, 1.0), &[]).unwrap();
    let linear = Linear::new(vec![weight.clone()], vec![bias.map(Arc::from)]).unwrap();
    graph.push_one(linear, &[input]).unwrap();
    let limits = EngineLimits {
        vocab_size: weight.rows,
        context_tokens: 1024,
        kv_blocks: rows.div_ceil(16),
        max_batched_tokens: rows,
        max_sequences: 1,
        max_logits_rows: rows,
        device: String::new(),
    };
    let options = ExecutionOptions { deterministic, ..ExecutionOptions::default() };
    let mut engine =
        VulkanEngine::new(graph, Arc::clone(device), (&[], KvType::F16), limits, options, &mut |_| {}).unwrap();
    let sequence = SequenceRows {
        tokens: (0..rows).map(|row| (row % distinct) as u32).collect(),
        first_position: 0,
        block_table: (0..rows.div_ceil(16) as u32).collect(),
        logits: LogitsWanted::All,
    };
    match engine.begin(Step { id: StepId(0), sequences: vec![sequence] }).unwrap() {
        Progress::Done(output) => output.logits,
        Progress::AwaitExperts(_) => unreachable!("there are no experts"),
    }
}

/// Rows of x for a weight.
fn input(weight: &Weight, rows: usize, seed: u64) -> Vec<f32> {
    let distinct = random::activations(rows.min(weight.rows) * weight.columns, seed);
    distinct.iter().copied().cycle().take(rows * weight.columns).collect()
}

/// Float16 keeps 11 bits of x and of w, and a driver may cut where it should round.
const HALF_TOLERANCE: f64 = 2.0 / 1024.0;
const FLOAT_TOLERANCE: f64 = 2e-6;

fn check(device: &Arc<Device>, weight: &Weight, bias: Option<&[f32]>, x: &[f32]) {
    let matrices = device.info().limits.cooperative_matrix.is_some();
    let tolerance = if matrices { HALF_TOLERANCE } else { FLOAT_TOLERANCE };
    let found = run(device, weight, bias, x, false);
    let expected = reference::linear(weight, bias, x);
    assert_eq!(found.len(), expected.len());
    for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
        let error = (f64::from(*found) - expected.value).abs();
        let (row, output) = (index / weight.rows, index % weight.rows);
        assert!(
            error <= tolerance * expected.magnitude,
            "{weight:?}, matrices {matrices}, row {row}, output {output}: {found}, expected {expected:?}"
        );
    }
    assert_eq!(device.instance().complaints(), Vec::<String>::new());
}

#[test]
fn products_of_many_rows_agree_with_the_reference_in_every_format() {
    for device in devices() {
        for (index, &format) in Format::ALL.iter().enumerate() {
            let columns = if format.block_len() == 256 { 512 } else { 160 };
            // Beyond whole tiles in both directions.
            let (rows, outputs) = ([9, 16, 37, 70, 130][index % 5], [70, 33, 200][index % 3]);
            let weight = random::weight("w", format, outputs, columns, 5);
            let bias = (index % 2 == 0).then(|| random::activations(outputs, 6));
            check(&device, &weight, bias.as_deref(), &input(&weight, rows, 7));
        }
    }
}

#[test]
fn rows_that_end_inside_a_run_are_multiplied_to_their_end() {
    for device in devices() {
        for columns in [1, 31, 33, 100] {
            let values = random::activations(19 * columns, 3);
            let weight = Weight::from_f32("w", 19, columns, &values);
            check(&device, &weight, None, &input(&weight, 20, 4));
        }
    }
}

#[test]
fn large_tiles_are_whole_and_partial() {
    for device in devices() {
        let weight = random::weight("w", Format::Q4_K, 1100, 256, 1);
        check(&device, &weight, None, &input(&weight, 530, 2));
    }
}

#[test]
fn activations_beyond_float16_stay_finite_and_small_ones_keep_their_bits() {
    for device in devices() {
        let weight = random::weight("w", Format::Q8_0, 40, 64, 1);
        let mut x = input(&weight, 20, 2);
        for (row, x) in x.chunks_exact_mut(64).enumerate() {
            let scale = [1.0, 1e6, 1e-7, 1e30, 1e-30, 3e5, 0.0][row % 7];
            x.iter_mut().for_each(|x| *x *= scale);
        }
        check(&device, &weight, None, &x);
    }
}

#[test]
fn deterministic_products_have_the_same_bits_for_any_number_of_rows() {
    for device in devices() {
        let weight = random::weight("w", Format::Q5_K, 50, 512, 1);
        let x = input(&weight, 40, 2);
        let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
        let together = run(&device, &weight, None, &x, true);
        let alone: Vec<f32> = x.chunks_exact(512).flat_map(|x| run(&device, &weight, None, x, true)).collect();
        assert_eq!(bits(&together), bits(&alone));
    }
}
