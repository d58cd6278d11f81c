//! The speed of the ops: bytes of weights and multiply-adds per second.
//!
//! Run:  cargo bench --bench ops            (all)
//!       cargo bench --bench ops -- linear  (some)
//!
//! `items` are multiply-adds; `bytes` are bytes of weights read.

use std::ops::Range;

use cuelight_engine::backend::cpu::default_threads;
use cuelight_engine::backend::cpu::team::ThreadTeam;
use cuelight_shaders::attention::{Attention, EachOther};
use cuelight_shaders::cpu::{ActivationBits, Kernel, Solo, Team};
use cuelight_shaders::experts::{ExpertMatrix, Experts, RouteWeighting};
use cuelight_shaders::glu::Activation;
use cuelight_shaders::kv::{BLOCK_TOKENS, KvCache, KvShape, KvType};
use cuelight_shaders::matmul::Linear;
use cuelight_shaders::op::{Batch, CpuArgs, Op};
use cuelight_shaders::quant::{Format, random};
use cuelight_shaders::recurrent::StateCache;
use cuelight_shaders::tuning::Tuning;
use divan::counter::{BytesCount, ItemsCount};

fn main() {
    println!("kernel: {}, threads of the model benches: {}", Kernel::detect(), default_threads());
    divan::main();
}

/// One thread, one row, and a matrix that fits the second-level cache in most formats: the speed of decoding weights.
#[divan::bench(args = Format::ALL)]
fn linear_one_row(bencher: divan::Bencher<'_, '_>, format: &Format) {
    bench_linears(bencher, &[linear(*format, 1024, 768)], 1, &Solo);
}

/// One thread, a few rows: concurrent decoding.
#[divan::bench(args = Format::ALL)]
fn linear_eight_rows(bencher: divan::Bencher<'_, '_>, format: &Format) {
    bench_linears(bencher, &[linear(*format, 1024, 768)], 8, &Solo);
}

/// One thread, a chunk of a prompt: the speed of arithmetic.
#[divan::bench(args = Format::ALL, sample_count = 20)]
fn linear_prefill(bencher: divan::Bencher<'_, '_>, format: &Format) {
    bench_linears(bencher, &[linear(*format, 1024, 768)], 256, &Solo);
}

/// All Linears of SmolLM2-135M (30 layers in Q4_1, the output head in Q8_0) on all threads, for several numbers of
/// rows.
#[divan::bench(args = [1, 8, 128], sample_count = 20)]
fn linears_of_smollm2(bencher: divan::Bencher<'_, '_>, rows: usize) {
    const LAYER: [(usize, usize); 7] =
        [(576, 576), (192, 576), (192, 576), (576, 576), (1536, 576), (1536, 576), (576, 1536)];
    let layers = LAYER.iter().cycle().take(30 * LAYER.len());
    let mut linears: Vec<Linear> = layers.map(|&(outputs, columns)| linear(Format::Q4_1, outputs, columns)).collect();
    linears.push(linear(Format::Q8_0, 49152, 576));
    bench_linears(bencher, &linears, rows, &ThreadTeam::new(default_threads()));
}

/// The attention of one layer of SmolLM2-135M on one thread: a decode row at this position.
#[divan::bench(args = [128, 512, 2048])]
fn attention_decode(bencher: divan::Bencher<'_, '_>, depth: u32) {
    bench_attention(bencher, depth..depth + 1);
}

/// The same attention for a whole prompt.
#[divan::bench(args = [128, 512], sample_count = 20)]
fn attention_prefill(bencher: divan::Bencher<'_, '_>, tokens: u32) {
    bench_attention(bencher, 0..tokens);
}

/// Attention of the rows at these positions of one sequence. `items` are visible positions, `bytes` are those of the
/// cache.
fn bench_attention(bencher: divan::Bencher<'_, '_>, positions: Range<u32>) {
    let (n_heads, n_kv_heads, head_dim) = (9, 3, 64);
    let shape = KvShape::grouped(n_kv_heads, head_dim);
    let attention = Attention {
        layer: 0,
        stores: true,
        n_heads,
        kv: shape,
        scale: 0.125,
        window: None,
        sees_later: false,
        each_other: EachOther::All,
        softcap: None,
        sinks: None,
        slopes: None,
        selection: None,
    };
    let blocks: Vec<u32> = (0..positions.end.div_ceil(BLOCK_TOKENS as u32)).collect();
    let kv = KvCache::new(vec![shape], blocks.len(), KvType::F16);
    let rows = positions.len();
    let query = random::activations(rows * n_heads * head_dim, 1);
    let key_value = random::activations(rows * shape.key_width(), 2);
    let mut output = vec![0.0; query.len()];
    let seen: usize = positions.clone().map(|position| position as usize + 1).sum();
    let positions: Vec<u32> = positions.collect();
    let zeros = vec![0; rows];
    let batch = Batch {
        tokens: &zeros,
        positions: &positions,
        sequences: &zeros,
        block_tables: &[&blocks],
        ..Batch::default()
    };
    bencher
        .counter(ItemsCount::new(seen))
        .counter(BytesCount::new(seen * shape.block_bytes(KvType::F16) as usize / BLOCK_TOKENS))
        .bench_local(|| {
            attention.run_cpu(&mut CpuArgs {
                kernel: Kernel::detect(),
                activation_bits: ActivationBits::default(),
                tuning: Tuning::default(),
                team: &Solo,
                batch,
                kv: &kv,
                states: &StateCache::empty(),
                rows,
                scratch: &mut [],
                inputs: &[&query, &key_value, &key_value],
                outputs: &mut [&mut output],
            });
        });
}

/// One thread writes experts in the layout of a device: the cost of an upload without the transfer. The experts have
/// the shape of those of Qwen3 30B A3B, and there are more of them than any CPU cache holds.
#[divan::bench(args = [Format::Q4_0, Format::Q4_K, Format::Q6_K, Format::Q8_0, Format::MXFP4, Format::BF16], sample_count = 10)]
fn expert_for_a_device(bencher: divan::Bencher<'_, '_>, format: &Format) {
    const HIDDEN: usize = 2048;
    const INTERMEDIATE: usize = 768;
    const N_EXPERTS: usize = 32;
    let matrix = |name: &str, outputs: usize, columns| {
        let weight = random::weight(name, *format, N_EXPERTS * outputs, columns, 1);
        ExpertMatrix::new(weight, N_EXPERTS, None).expect("a whole number of experts")
    };
    let matrices = [
        matrix("gate", INTERMEDIATE, HIDDEN),
        matrix("up", INTERMEDIATE, HIDDEN),
        matrix("down", HIDDEN, INTERMEDIATE),
    ];
    let mut experts = Experts::new(matrices, Activation::Silu, RouteWeighting::Output, 8).expect("they fit together");
    experts.prepare_cpu(Kernel::detect(), &Solo);
    let mut bytes = vec![0; experts.expert_bytes()];
    bencher.counter(BytesCount::new(bytes.len() * N_EXPERTS)).bench_local(|| {
        (0..N_EXPERTS).for_each(|expert| experts.write_expert(expert, &mut bytes));
    });
}

fn linear(format: Format, outputs: usize, columns: usize) -> Linear {
    let weight = random::weight("bench", format, outputs, columns, 1);
    let mut linear = Linear::new(vec![weight], vec![None]).expect("one weight and no bias always fit");
    linear.prepare_cpu(Kernel::detect(), &Solo);
    linear
}

/// Runs the ops one after the other, each on an input of `rows` rows.
fn bench_linears(bencher: divan::Bencher<'_, '_>, linears: &[Linear], rows: usize, team: &dyn Team) {
    let weights = || linears.iter().flat_map(Linear::weights);
    let widest = |width: fn((usize, usize)) -> usize| {
        rows * weights().map(|weight| width((weight.rows, weight.columns))).max().unwrap_or(0)
    };
    let input = random::activations(widest(|(_, columns)| columns), 2);
    let mut output = vec![0.0; widest(|(outputs, _)| outputs)];
    let scratch_len = linears.iter().map(|op| op.scratch_len(Kernel::detect(), rows, 0)).max().unwrap_or(0);
    let mut scratch = vec![0.0; scratch_len];
    let kv = KvCache::empty();
    let batch = Batch::default();
    bencher
        .counter(ItemsCount::new(rows * weights().map(|weight| weight.rows * weight.columns).sum::<usize>()))
        .counter(BytesCount::new(weights().map(|weight| weight.bytes().len()).sum::<usize>()))
        .bench_local(|| {
            for op in linears {
                let weight = op.weights()[0];
                op.run_cpu(&mut CpuArgs {
                    kernel: Kernel::detect(),
                    activation_bits: ActivationBits::default(),
                    tuning: Tuning::default(),
                    team,
                    batch,
                    kv: &kv,
                    states: &StateCache::empty(),
                    rows,
                    scratch: &mut scratch,
                    inputs: &[&input[..rows * weight.columns]],
                    outputs: &mut [&mut output[..rows * weight.rows]],
                });
            }
        });
}
