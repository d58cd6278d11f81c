//! A product with synthetic weights, to measure the kernels that serve a model.

use std::sync::Arc;
use std::time::Instant;

use cuelight_shaders::attention::KvCache;
use cuelight_shaders::cpu::{ActivationBits, Kernel, Team};
use cuelight_shaders::matmul::Linear;
use cuelight_shaders::op::{Batch, CpuArgs, Op};
use cuelight_shaders::quant::Format;
use cuelight_shaders::recurrent::StateCache;
use cuelight_shaders::tuning::Tuning;
use cuelight_shaders::weight::{SharedBytes, Weight};

/// The formats that are measured: those of the quantization recipe that is downloaded by default.
pub const FORMATS: [&str; 2] = ["Q4_K", "Q6_K"];
/// Columns of a weight.
const COLUMNS: usize = 2048;
/// Every byte of the weights: any value that gives ordinary numbers.
const FILL: u8 = 0x11;

/// Several weights of the same shape, used in turns, so that each is read from memory if all together fit in no cache.
pub struct Probe {
    kernel: Kernel,
    outputs: usize,
    linears: Vec<Linear>,
    next: usize,
    input: Vec<f32>,
    output: Vec<f32>,
    scratch: Vec<f32>,
    kv: KvCache,
    states: StateCache,
}

impl Probe {
    /// `count` weights of `outputs` outputs, for products of up to `rows` rows. `None` if the format does not exist.
    #[must_use]
    pub fn new(
        (kernel, format): (Kernel, &str),
        team: &dyn Team,
        (count, outputs): (usize, usize),
        rows: usize,
    ) -> Option<Self> {
        let format: Format = format.parse().ok()?;
        let row_bytes = format.row_bytes(COLUMNS)?;
        let filled = || -> SharedBytes { vec![FILL; outputs * row_bytes].into() };
        // A kernel that packs weights makes its own copies.
        let shared = kernel.is_integer().then(filled);
        let linear = |_| {
            let bytes = shared.clone().unwrap_or_else(filled);
            let weight = Weight::new("probe", format, outputs, COLUMNS, bytes).ok()?;
            let mut linear = Linear::new(vec![weight], vec![None::<Arc<[f32]>>]).ok()?;
            linear.prepare_cpu(kernel, team);
            Some(linear)
        };
        let linears = (0..count.max(1)).map(linear).collect::<Option<Vec<_>>>()?;
        let scratch = vec![0.0; linears[0].scratch_len(kernel, rows, 0)];
        let input = (0..rows * COLUMNS).map(|index| (index % 29) as f32 / 14.0 - 1.0).collect();
        let (kv, states) = (KvCache::empty(), StateCache::empty());
        let output = vec![0.0; rows * outputs];
        Some(Probe { kernel, outputs, linears, next: 0, input, output, scratch, kv, states })
    }

    /// Bytes of a weight of each format with these outputs, all together.
    #[must_use]
    pub fn weight_bytes(outputs: usize) -> usize {
        let row_bytes = |name: &str| name.parse::<Format>().ok()?.row_bytes(COLUMNS);
        FORMATS.iter().map(|name| row_bytes(name).unwrap_or(COLUMNS) * outputs).sum()
    }

    /// Multiplies `rows` rows with the next weight, and returns the products per second: those of one value and one
    /// weight.
    pub fn rate(&mut self, team: &dyn Team, tuning: Tuning, rows: usize) -> f64 {
        let linear = &self.linears[self.next];
        self.next = (self.next + 1) % self.linears.len();
        let batch = Batch::default();
        let started = Instant::now();
        linear.run_cpu(&mut CpuArgs {
            kernel: self.kernel,
            activation_bits: ActivationBits::default(),
            tuning,
            team,
            batch,
            kv: &self.kv,
            states: &self.states,
            rows,
            scratch: &mut self.scratch,
            inputs: &[&self.input[..rows * COLUMNS]],
            outputs: &mut [&mut self.output[..rows * self.outputs]],
        });
        (rows * self.outputs * COLUMNS) as f64 / started.elapsed().as_secs_f64()
    }
}
