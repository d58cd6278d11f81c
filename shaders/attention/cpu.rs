//! Attention on the CPU: one task for each row and KV head.

use super::cache::BLOCK_TOKENS;
use super::{Attention, MAX_HEAD_DIM};
use crate::cpu::SharedMut;
use crate::elementwise::softcap;
use crate::lanes::{add_weighted_rows, dot, exp};
use crate::op::CpuArgs;
use crate::per_kernel;

/// Writes the rows' keys and values into their slots.
pub(super) fn store(attention: &Attention, args: &CpuArgs<'_>) {
    let (key, value) = (args.inputs[1], args.inputs[2]);
    let width = attention.n_kv_heads * attention.head_dim;
    let batch = args.batch;
    args.team.for_each(args.rows, &|row| {
        let position = batch.positions[row] as usize;
        let block = batch.block_tables[batch.sequences[row] as usize][position / BLOCK_TOKENS];
        let range = row * width..(row + 1) * width;
        // SAFETY: no two rows of a step share a position of a sequence, and no two sequences a block they write.
        unsafe {
            args.kv.store(attention.layer, block, position % BLOCK_TOKENS, &key[range.clone()], &value[range]);
        }
    });
}

/// Lets every row look at its sequence.
pub(super) fn attend(attention: &Attention, args: &mut CpuArgs<'_>) {
    let query = args.inputs[0];
    let group_width = attention.n_heads / attention.n_kv_heads * attention.head_dim;
    let output = SharedMut::new(args.outputs[0]);
    let (kernel, batch, kv) = (args.kernel, args.batch, args.kv);
    args.team.for_each(args.rows * attention.n_kv_heads, &|task| {
        let (row, kv_head) = (task / attention.n_kv_heads, task % attention.n_kv_heads);
        let offset = task * group_width;
        // SAFETY: each task writes the query heads of its own row and KV head.
        let output = unsafe { output.slice(offset, group_width) };
        let view = SequenceView {
            attention,
            kv,
            block_table: batch.block_tables[batch.sequences[row] as usize],
            kv_head,
            position: batch.positions[row] as usize,
        };
        attend_group(kernel, &view, &query[offset..][..group_width], output);
    });
}

/// What one task looks at.
struct SequenceView<'a> {
    attention: &'a Attention,
    kv: &'a super::KvCache,
    block_table: &'a [u32],
    kv_head: usize,
    position: usize,
}

per_kernel! {
    /// The query heads that share one KV head, for one row; query and output are [group, head_dim].
    fn attend_group = attend_group_lanes(view: &SequenceView<'_>, query: &[f32], output: &mut [f32])
}

#[inline(always)]
fn attend_group_lanes<const FMA: bool>(view: &SequenceView<'_>, query: &[f32], output: &mut [f32]) {
    let attention = view.attention;
    let head_dim = attention.head_dim;
    let mut keys = [0.0f32; BLOCK_TOKENS * MAX_HEAD_DIM];
    let mut values = [0.0f32; BLOCK_TOKENS * MAX_HEAD_DIM];
    let (keys, values) = (&mut keys[..BLOCK_TOKENS * head_dim], &mut values[..BLOCK_TOKENS * head_dim]);
    let group = query.len() / head_dim;
    let mut softmax = vec![OnlineSoftmax::START; group];
    output.fill(0.0);

    let first = attention.first_visible(view.position);
    for block in first / BLOCK_TOKENS..=view.position / BLOCK_TOKENS {
        let start = block * BLOCK_TOKENS;
        let visible = first.saturating_sub(start)..(view.position + 1 - start).min(BLOCK_TOKENS);
        // SAFETY: all of the step's keys and values were stored before any row attends; FMA is set for AVX2 only, whose
        // detection asks for F16C.
        unsafe {
            view.kv.load::<FMA>(attention.layer, view.block_table[block], view.kv_head, visible.end, keys, values);
        }
        for head in 0..group {
            let q = &query[head * head_dim..][..head_dim];
            let y = &mut output[head * head_dim..][..head_dim];
            // Slots outside the window keep a weight of exactly 0.
            let mut scores = [f32::NEG_INFINITY; BLOCK_TOKENS];
            for slot in visible.clone() {
                scores[slot] = dot::<FMA>(q, &keys[slot * head_dim..][..head_dim]) * attention.scale;
            }
            if let Some(cap) = attention.softcap {
                for slot in visible.clone() {
                    scores[slot] = softcap(scores[slot], cap);
                }
            }
            let rescale = softmax[head].take_block(&mut scores);
            if rescale != 1.0 {
                for y in y.iter_mut() {
                    *y *= rescale;
                }
            }
            add_weighted_rows::<FMA>(
                y,
                &scores[visible.clone()],
                &values[visible.start * head_dim..visible.end * head_dim],
            );
        }
    }
    for (y, softmax) in output.chunks_exact_mut(head_dim).zip(&softmax) {
        for y in y {
            *y /= softmax.sum;
        }
    }
}

/// The running maximum and sum of one head's softmax.
#[derive(Clone, Copy)]
struct OnlineSoftmax {
    max: f32,
    sum: f32,
}

impl OnlineSoftmax {
    const START: OnlineSoftmax = OnlineSoftmax { max: f32::NEG_INFINITY, sum: 0.0 };

    /// Turns a block's scores into weights relative to the new maximum, and returns by what the earlier sums must be
    /// multiplied.
    #[inline(always)]
    fn take_block(&mut self, scores: &mut [f32; BLOCK_TOKENS]) -> f32 {
        let max = scores.iter().copied().fold(self.max, f32::max);
        let rescale = if self.max == max { 1.0 } else { exp(self.max - max) };
        for score in scores.iter_mut() {
            let weight = exp(*score - max);
            *score = if *score == f32::NEG_INFINITY { 0.0 } else { weight };
        }
        self.sum = self.sum * rescale + scores.iter().sum::<f32>();
        self.max = max;
        rescale
    }
}
