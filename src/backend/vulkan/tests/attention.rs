//! Attention of many rows to caches and queries that the table of cases does not have.

use std::ops::Range;
use std::sync::Arc;

use cuelight_shaders::attention::{Attention, EachOther, KvShape, KvType, Window};
use cuelight_shaders::cases::{CaseBatch, CaseCache};
use cuelight_shaders::gpu::{Module, RowCount};
use cuelight_shaders::quant::random;

use super::one_op::{OneOp, bits};
use super::{assert_clean, shared_device};
use crate::backend::vulkan::Device;

const KV: KvShape = KvShape { n_kv_heads: 2, key_dim: 64, value_dim: 64, ..KvShape::NONE };

/// A row sees 16 positions, of one KV head for every four heads.
fn attention(scale: f32) -> Attention {
    Attention {
        layer: 0,
        stores: true,
        n_heads: 8,
        kv: KV,
        scale,
        window: Some(Window::Last(16)),
        sees_later: false,
        each_other: EachOther::All,
        softcap: None,
        sinks: None,
        slopes: None,
        selection: None,
    }
}

/// Queries, keys and values of rows.
fn inputs(positions: Range<usize>, factor_of_queries: f32) -> Vec<Vec<f32>> {
    let of_width = |seed: u64, width: usize| -> Vec<f32> {
        positions.clone().flat_map(|position| random::activations(width, 8 * position as u64 + seed)).collect()
    };
    let mut inputs = vec![of_width(0, 8 * KV.key_dim), of_width(1, KV.key_width()), of_width(2, KV.value_width())];
    inputs[0].iter_mut().for_each(|value| *value *= factor_of_queries);
    inputs
}

fn run(op: &OneOp<'_>, positions: Range<usize>, inputs: &[Vec<f32>]) -> Vec<u32> {
    let rows = positions.len();
    let batch = CaseBatch {
        positions: positions.map(|position| position as u32).collect(),
        block_tables: vec![vec![3, 0, 2, 1]],
        sequences: vec![0; rows],
        ..CaseBatch::of_rows(rows)
    };
    bits(&op.run(&batch, RowCount::All(rows), inputs).unwrap()[0])
}

fn cache(kv_type: KvType) -> CaseCache {
    CaseCache::of_kv(vec![KV], kv_type, 4)
}

fn assert_ran(device: &Device, op: &OneOp<'_>, kv_type: KvType) {
    let matrices = device.info.limits.cooperative_matrix.is_some() && kv_type != KvType::F32;
    assert_eq!(op.ran.borrow().contains(&Module::AttentionAttendMatrices), matrices);
}

#[test]
fn slots_that_no_row_sees_may_hold_anything() {
    let Some(device) = shared_device() else { return };
    let attention = attention(0.2);
    let after = |device: &Arc<Device>, kv_type, garbage: f32| {
        let op = OneOp::new(device, &attention, Some(&cache(kv_type))).unwrap();
        let mut before = inputs(0..64, 1.0);
        for (values, position) in before[1..].iter_mut().flat_map(|all| all.chunks_exact_mut(KV.key_width()).zip(0..)) {
            if !(9..40).contains(&position) {
                values.fill(garbage);
            }
        }
        run(&op, 0..64, &before);
        let found = run(&op, 24..40, &inputs(24..40, 1.0));
        assert_ran(device, &op, kv_type);
        found
    };
    for &kv_type in KvType::ALL {
        let expected = after(&device, kv_type, 1.0);
        assert!(expected.iter().all(|value| f32::from_bits(*value).is_finite()));
        assert!(after(&device, kv_type, f32::NAN) == expected, "{kv_type}");
    }
    assert_clean(&device);
}

#[test]
fn queries_beyond_the_range_of_float16_give_the_same_bits() {
    const FACTOR: f32 = (1_u64 << 40) as f32;
    let Some(device) = shared_device() else { return };
    let of_queries = |factor: f32| {
        let attention = attention(0.2 / factor);
        let op = OneOp::new(&device, &attention, Some(&cache(KvType::F16))).unwrap();
        let found = run(&op, 0..40, &inputs(0..40, factor));
        assert_ran(&device, &op, KvType::F16);
        found
    };
    assert!(of_queries(FACTOR) == of_queries(1.0));
    assert_clean(&device);
}
