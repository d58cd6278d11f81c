//! Experts in steps of other sizes than in the table of cases: bitwise equal rows in any batch, steps that are computed in
//! several passes, tiles of every height, and invalid routes.

use std::collections::HashSet;
use std::sync::Arc;

use cuelight_shaders::cases::CaseBatch;
use cuelight_shaders::experts::{ExpertMatrix, Experts, Route, RouteWeighting, Scoring};
use cuelight_shaders::glu::Activation;
use cuelight_shaders::gpu::{Module, RowCount};
use cuelight_shaders::op::Op;
use cuelight_shaders::quant::{Format, random};

use super::one_op::{OneOp, bits};
use super::{assert_clean, device_with_matrices, shared_device};
use crate::backend::vulkan::Device;

/// Experts of shape [intermediate, hidden], of which each row uses `top_k`.
fn experts(format: Format, n_experts: usize, top_k: usize, [intermediate, hidden]: [usize; 2]) -> Experts {
    let matrix = |name: &str, outputs: usize, columns, seed| {
        let bias: Arc<[f32]> = random::activations(n_experts * outputs, seed + 10).into();
        let weight = random::weight(name, format, n_experts * outputs, columns, seed);
        ExpertMatrix::new(weight, n_experts, Some(bias)).unwrap()
    };
    let matrices = [
        matrix("gate", intermediate, hidden, 1),
        matrix("up", intermediate, hidden, 2),
        matrix("down", hidden, intermediate, 3),
    ];
    Experts::new(matrices, Activation::Silu, RouteWeighting::Output, top_k).unwrap()
}

/// Rows with their routes.
#[derive(Clone)]
struct Rows {
    x: Vec<f32>,
    routes: Vec<f32>,
    count: usize,
}

impl Rows {
    /// Rows that prefer experts with low numbers, so that some experts have many rows, some few, and some none.
    fn skewed(experts: &Experts, count: usize) -> Self {
        let (n_experts, top_k) = (experts.n_experts(), experts.top_k());
        let x = random::activations(count * experts.hidden_size(), 3).iter().map(|x| x / 64.0).collect();
        let mut routes = Vec::new();
        for row in 0..count {
            let step = 1 + row % 3 * (n_experts / 4).max(1);
            let first = (row * row) % n_experts / (1 + row % 5);
            let mut experts: Vec<usize> = Vec::new();
            for slot in 0..top_k {
                let mut expert = (first + slot * step) % n_experts;
                while experts.contains(&expert) {
                    expert = (expert + 1) % n_experts;
                }
                experts.push(expert);
            }
            routes.extend(experts.iter().map(|expert| *expert as f32));
            routes.extend((0..top_k).map(|slot| 0.5 - slot as f32 / (4.0 * top_k as f32) + row as f32 / 1e4));
        }
        Rows { x, routes, count }
    }

    /// The last `count` rows.
    fn last(&self, count: usize) -> Self {
        let of = |values: &[f32]| values[(self.count - count) * values.len() / self.count..].to_vec();
        Rows { x: of(&self.x), routes: of(&self.routes), count }
    }

    /// One row.
    fn one(&self, row: usize) -> Self {
        let of = |values: &[f32]| values.chunks_exact(values.len() / self.count).nth(row).unwrap().to_vec();
        Rows { x: of(&self.x), routes: of(&self.routes), count: 1 }
    }

    fn run(&self, op: &OneOp<'_>) -> Vec<f32> {
        let inputs = [self.x.clone(), self.routes.clone()];
        op.run(&CaseBatch::of_rows(self.count), RowCount::All(self.count), &inputs).unwrap().swap_remove(0)
    }
}

#[test]
fn a_row_of_experts_has_the_same_bits_in_a_batch_of_any_size() {
    const ROWS: usize = 70;
    let Some(device) = shared_device() else { return };
    for &format in Format::ALL.iter().filter(|format| ["Q4_K", "Q8_0", "F16"].contains(&format.name())) {
        let experts = experts(format, 9, 3, [256, 512]);
        let mut op = OneOp::new(&device, &experts, None).unwrap();
        op.deterministic = true;
        let rows = Rows::skewed(&experts, ROWS);
        let alone: Vec<u32> = (0..ROWS).flat_map(|row| bits(&rows.one(row).run(&op))).collect();
        // The counts cover single routes, small blocks and large blocks.
        for count in [2, 3, 5, 8, 17, 40, ROWS] {
            let found = bits(&rows.last(count).run(&op));
            assert!(found == alone[(ROWS - count) * 512..], "{format}: different bits in a batch of {count}");
        }
    }
    assert_clean(&device);
}

/// Compares the results of tiles with those of rows computed separately, whose inputs have 15 bits. The inputs of tiles have
/// float32, or float16 with `matrices`. Returns the shaders that ran.
fn check_tiles(
    device: &Arc<Device>,
    matrices: bool,
    (n_experts, top_k): (usize, usize),
    shape: [usize; 2],
    counts: &[usize],
) -> HashSet<Module> {
    let experts = experts(Format::Q4_0, n_experts, top_k, shape);
    let rows = Rows::skewed(&experts, *counts.iter().max().unwrap());
    let tolerance = if matrices { 4e-3 } else { 1e-3 };
    let mut ran = HashSet::new();
    for &count in counts {
        let rows = rows.last(count);
        let run = |deterministic| {
            let mut op = OneOp::new(device, &experts, None).unwrap();
            op.deterministic = deterministic;
            op.limits.cooperative_matrix = op.limits.cooperative_matrix.filter(|_| matrices);
            (rows.run(&op), op.ran.take())
        };
        let ((expected, _), (found, modules)) = (run(true), run(false));
        let usual = (expected.iter().map(|y| y * y).sum::<f32>() / expected.len() as f32).sqrt();
        let worst = found.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(worst <= tolerance * usual, "{count} rows: a difference of {worst} where typical values are {usual}");
        ran.extend(modules);
    }
    assert_clean(device);
    ran
}

/// The same in float32, and in float16 matrices if the device has them.
fn check_both_tiles(experts: (usize, usize), shape: [usize; 2], counts: &[usize]) {
    if let Some(device) = shared_device() {
        assert!(check_tiles(&device, false, experts, shape, counts).contains(&Module::ExpertsTile));
    }
    if let Some(device) = device_with_matrices() {
        assert!(check_tiles(&device, true, experts, shape, counts).contains(&Module::ExpertsCooperative));
    }
}

#[test]
fn tiles_of_every_height_match_rows_computed_separately() {
    // Enough experts and outputs for many tiles of each height.
    check_both_tiles((16, 8), [512, 512], &[20, 70, 140, 280]);
}

#[test]
fn a_step_that_needs_several_passes_computes_all_rows() {
    check_both_tiles((16, 8), [32, 32], &[4000]);
}

#[test]
fn routes_with_invalid_expert_numbers_contribute_nothing() {
    let Some(device) = shared_device() else { return };
    let experts = experts(Format::F32, 4, 2, [32, 64]);
    let op = OneOp::new(&device, &experts, None).unwrap();
    for count in [1, 9, 60] {
        let mut rows = Rows::skewed(&experts, count);
        let expected = rows.run(&op);
        for (row, routes) in rows.routes.chunks_exact_mut(4).enumerate() {
            if row % 2 == 0 {
                routes[..2].copy_from_slice(&[[4.0, -1.0], [f32::NAN, 1e30], [f32::INFINITY, -7.5]][row / 2 % 3]);
            }
        }
        let found = rows.run(&op);
        for (row, (found, expected)) in found.chunks_exact(64).zip(expected.chunks_exact(64)).enumerate() {
            let expected = if row % 2 == 0 { &[0.0; 64] } else { expected };
            assert_eq!(found, expected, "row {row} of {count}");
        }
    }
    assert_clean(&device);
}

#[test]
fn invalid_logits_give_routes_to_valid_experts() {
    let Some(device) = shared_device() else { return };
    for scoring in [Scoring::Softmax, Scoring::Sigmoid] {
        let route = Route::new(scoring, 12, 3).unwrap().renormalised(true);
        let op = OneOp::new(&device, &route as &dyn Op, None).unwrap();
        let mut logits = random::activations(4 * 12, 1);
        logits[..12].fill(f32::NAN);
        logits[12..24].fill(f32::NEG_INFINITY);
        logits[24 + 5] = f32::INFINITY;
        let found = op.run(&CaseBatch::of_rows(4), RowCount::All(4), &[logits]).unwrap().swap_remove(0);
        for routes in found.chunks_exact(6) {
            let experts: HashSet<u32> = routes[..3].iter().map(|expert| *expert as u32).collect();
            assert!(experts.len() == 3 && experts.iter().all(|expert| *expert < 12), "{scoring:?}: {routes:?}");
        }
    }
    assert_clean(&device);
}
