//! The time of single ops in the shapes of Llama 3.1 8B, for tuning.
//!
//! A profile of a step adds several microseconds to each op. Here an op runs many times in one command buffer, with a
//! barrier after each time, and with copies of its weights in turns that no cache holds.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cuelight_shaders::add::Add;
use cuelight_shaders::cases::CaseBatch;
use cuelight_shaders::fusion::fuse;
use cuelight_shaders::glu::{Activation, Glu};
use cuelight_shaders::gpu::RowCount;
use cuelight_shaders::matmul::Linear;
use cuelight_shaders::op::Op;
use cuelight_shaders::quant::{Format, random};
use cuelight_shaders::rms_norm::RmsNorm;

use super::one_op::{OneOp, Ready};
use super::own_device;
use crate::backend::vulkan::record::{CommandPool, Recorder};
use crate::backend::vulkan::{Device, VulkanOptions};

/// The formats of the weights: few bits, most often used; eight bits; floating point.
const WEIGHTS: [&str; 3] = ["q4_k", "q8_0", "f16"];

/// How much is measured: everything on a GPU, and little on a software device, where this only tests that ops run.
struct Extent {
    width: usize,
    inner_width: usize,
    rows: &'static [usize],
    /// More than the caches hold.
    weight_bytes: usize,
    /// A device lowers its clock when it is idle.
    warm_up: Duration,
    pass: Duration,
    passes: usize,
}

impl Extent {
    const GPU: Extent = Extent {
        width: 4096,
        inner_width: 14_336,
        rows: &[1, 16, 64, 512, 2048],
        weight_bytes: 110_000_000,
        warm_up: Duration::from_millis(150),
        pass: Duration::from_millis(12),
        passes: 5,
    };
    const SOFTWARE: Extent = Extent {
        width: 256,
        inner_width: 512,
        rows: &[1, 16],
        weight_bytes: 0,
        warm_up: Duration::ZERO,
        pass: Duration::ZERO,
        passes: 1,
    };
}

/// An op, with its inputs and the work of a row.
struct Timed {
    name: &'static str,
    op: Box<dyn Op>,
    input_widths: Vec<usize>,
    weight_bytes: usize,
    multiply_adds: usize,
}

fn product(name: &'static str, format: Format, shapes: &[(usize, usize)], gated: bool) -> Timed {
    let weights = shapes
        .iter()
        .zip(0..)
        .map(|((outputs, columns), index)| random::weight(&format!("w{index}"), format, *outputs, *columns, index));
    let linear = Linear::new(weights.collect(), vec![None; shapes.len()]).unwrap();
    let op = match gated {
        true => fuse(&linear, &Glu::new(Activation::Silu)).expect("both weights have one shape").op,
        false => Box::new(linear),
    };
    let multiply_adds = shapes.iter().map(|(outputs, columns)| outputs * columns).sum();
    let weight_bytes = multiply_adds / format.block_len() * format.block_bytes();
    Timed { name, op, input_widths: vec![shapes[0].1], weight_bytes, multiply_adds }
}

fn products(format: Format, Extent { width, inner_width, .. }: &Extent) -> Vec<Timed> {
    let (width, inner) = (*width, *inner_width);
    vec![
        product("query, key, value", format, &[(width, width), (width / 4, width), (width / 4, width)], false),
        product("output projection", format, &[(width, width)], false),
        product("gate and up", format, &[(inner, width); 2], true),
        product("down", format, &[(width, inner)], false),
    ]
}

fn norms(width: usize) -> Vec<Timed> {
    let norm = || RmsNorm::new(vec![1.0; width].into(), 1e-5);
    let timed =
        |name, op, inputs| Timed { name, op, input_widths: vec![width; inputs], weight_bytes: 0, multiply_adds: 0 };
    let fused = fuse(&Add, &norm()).expect("a sum and its norm fuse").op;
    vec![timed("norm", Box::new(norm()), 1), timed("sum and norm", fused, 2)]
}

/// The time of `repetitions` runs of the steps in turns.
fn time(device: &Device, pool: &CommandPool, steps: &[Ready], repetitions: usize) -> Duration {
    let commands = pool.allocate().unwrap();
    let mut recorder = Recorder::begin(device, commands).unwrap();
    for step in steps.iter().cycle().take(repetitions) {
        step.dispatches.iter().for_each(|dispatch| recorder.dispatch(dispatch).unwrap());
        recorder.barrier();
    }
    let commands = recorder.end().unwrap();
    let began = Instant::now();
    device.wait(device.submit(&[commands]).unwrap()).unwrap();
    let took = began.elapsed();
    pool.free(&[commands]);
    took
}

/// The shortest time of one run.
fn time_of_one(device: &Arc<Device>, extent: &Extent, timed: &Timed, rows: usize) -> Duration {
    // The weights of a prompt are read once for many rows, from any cache or from none.
    let copies = if rows > 64 { 1 } else { (extent.weight_bytes / timed.weight_bytes.max(1)).clamp(1, 12) };
    let inputs: Vec<_> = timed.input_widths.iter().map(|width| random::activations(rows * width, 3)).collect();
    let ops: Vec<_> = (0..copies).map(|_| OneOp::new(device, &*timed.op, None).unwrap()).collect();
    let steps: Vec<_> =
        ops.iter().map(|op| op.ready(&CaseBatch::of_rows(rows), RowCount::All(rows), &inputs).unwrap()).collect();
    let pool = CommandPool::new(device).unwrap();
    time(device, &pool, &steps, copies);
    let once = time(device, &pool, &steps, 8) / 8;
    let repetitions = (extent.pass.as_nanos() / once.as_nanos().max(1)).clamp(1, 4000) as usize;
    let began = Instant::now();
    while began.elapsed() < extent.warm_up {
        time(device, &pool, &steps, repetitions);
    }
    let passes = (0..extent.passes).map(|_| time(device, &pool, &steps, repetitions));
    passes.min().expect("at least one pass") / repetitions as u32
}

#[test]
#[ignore = "slow tier: it measures a GPU for a minute"]
fn how_long_products_and_norms_take() {
    let Some(device) = own_device(VulkanOptions::default()) else { return };
    let extent = if device.info.is_cpu() { Extent::SOFTWARE } else { Extent::GPU };
    println!("| op | weights | rows | us | GB/s | TFLOP/s |\n|---|---|---:|---:|---:|---:|");
    let print = |format: &str, timed: &Timed, rows: usize| {
        let took = time_of_one(&device, &extent, timed, rows).as_secs_f64();
        let (bytes, operations) = (timed.weight_bytes as f64, 2.0 * (rows * timed.multiply_adds) as f64);
        let (gigabytes, teraflops) = (bytes / took / 1e9, operations / took / 1e12);
        println!("| {} | {format} | {rows} | {:.1} | {gigabytes:.0} | {teraflops:.1} |", timed.name, took * 1e6);
    };
    for timed in norms(extent.width) {
        extent.rows.iter().for_each(|rows| print("", &timed, *rows));
    }
    for format in WEIGHTS.map(|name| name.parse::<Format>().unwrap()) {
        for timed in products(format, &extent) {
            extent.rows.iter().for_each(|rows| print(format.name(), &timed, *rows));
        }
    }
}
