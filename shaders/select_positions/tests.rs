//! Every kernel against the float64 reference, and against itself with other chunks and neighbours.

use std::ops::Range;

use proptest::prelude::*;

use super::cases::{Sequences, whole};
use super::*;
use crate::cpu::{ActivationBits, Kernel, Solo};
use crate::kv::{BlockCounts, KvCache, KvType};
use crate::op::{CpuArgs, Op};
use crate::recurrent::StateCache;
use crate::testing::{supported_kernels, values};
use crate::tuning::Tuning;

fn cache_of(sequences: &Sequences, kv_type: KvType) -> KvCache {
    let cache = sequences.cache(kv_type);
    let shapes = cache.layers().into_iter().map(|layer| layer.shapes());
    KvCache::with_index_keys(shapes, BlockCounts::equal(cache.blocks), kv_type)
}

/// The output of a step.
fn run(
    op: &SelectPositions,
    kernel: Kernel,
    (sequences, kv): (&Sequences, &KvCache),
    ranges: &[(usize, Range<usize>)],
) -> Vec<Vec<f32>> {
    let step = sequences.case_step(ranges);
    let rows = step.rows.most();
    let most = op.selection.width();
    let mut output = vec![f32::NAN; rows * most];
    op.run_cpu(&mut CpuArgs {
        kernel,
        activation_bits: ActivationBits::default(),
        tuning: Tuning::default(),
        team: &Solo,
        batch: step.batch.as_batch(&step.batch.of_sequences()),
        kv,
        states: &StateCache::empty(),
        rows,
        scratch: &mut vec![f32::NAN; op.scratch_len(kernel, rows, step.batch.context_tokens())],
        inputs: &step.inputs.iter().map(Vec::as_slice).collect::<Vec<_>>(),
        outputs: &mut [&mut output],
    });
    output.chunks_exact(most).map(<[f32]>::to_vec).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn no_other_position_has_a_clearly_higher_score(
        n_heads in 1usize..20, key_dim in 1usize..70, top_k in 1usize..40, len in 1usize..140, seed: u64,
    ) {
        let op = SelectPositions::new(1, [n_heads, key_dim, top_k]).unwrap();
        let sequences = Sequences::new(op, &[len], |count, salt| values(seed ^ salt, count));
        for kernel in supported_kernels() {
            let found = run(&op, kernel, (&sequences, &cache_of(&sequences, KvType::F32)), &[(0, 0..len)]);
            for (position, found) in found.iter().enumerate() {
                let scores = &sequences.scores(0, position)[0];
                let (selected, rest) = found.split_at(top_k.min(position + 1));
                prop_assert!(selected.is_sorted_by(|a, b| a < b) && rest.iter().all(|rest| *rest == 0.0));
                let is_selected = |t: usize| selected.contains(&(t as f32));
                let lowest = selected.iter().map(|t| scores[*t as usize]).fold(f64::INFINITY, f64::min);
                let highest = (0..scores.len()).filter(|t| !is_selected(*t)).map(|t| scores[t]);
                let largest = scores.iter().fold(1.0, |largest: f64, score| largest.max(score.abs()));
                prop_assert!(highest.fold(f64::NEG_INFINITY, f64::max) <= lowest + 1e-5 * largest, "{}", kernel);
            }
        }
    }

    #[test]
    fn each_head_selects_its_last_pools_and_those_with_the_highest_scores(
        n_heads in 1usize..10, key_dim in 1usize..70, pools in 1usize..6, last in 1usize..6, len in 1usize..140,
        pool in prop::sample::select(&[1usize, 3, 16, 24, 32]), seed: u64,
    ) {
        let last = last.min(pools);
        let op = SelectPositions::new(1, [n_heads, key_dim, pools * pool]).and_then(|op| op.of_each_head(pool, last));
        let op = op.unwrap();
        let sequences = Sequences::new(op, &[len], |count, salt| values(seed ^ salt, count));
        for kernel in supported_kernels() {
            let found = run(&op, kernel, (&sequences, &cache_of(&sequences, KvType::F32)), &[(0, 0..len)]);
            for (position, found) in found.iter().enumerate() {
                for (list, scores) in found.chunks_exact(pools * pool).zip(sequences.scores(0, position)) {
                    let (selected, rest) = list.split_at(op.selection.count(position + 1));
                    prop_assert!(selected.is_sorted_by(|a, b| a < b) && rest.iter().all(|rest| *rest == 0.0));
                    let of_pool: Vec<f64> = scores.chunks(pool).map(|pool| pool.iter().copied().fold(f64::MIN, f64::max)).collect();
                    let is_selected = |index: usize| selected.contains(&((index * pool) as f32));
                    let before_last = of_pool.len().saturating_sub(last);
                    prop_assert!((before_last..of_pool.len()).all(is_selected));
                    let of = |wanted: bool| (0..before_last).filter(move |index| is_selected(*index) == wanted);
                    let lowest = of(true).map(|index| of_pool[index]).fold(f64::INFINITY, f64::min);
                    let highest = of(false).map(|index| of_pool[index]).fold(f64::NEG_INFINITY, f64::max);
                    prop_assert!(highest <= lowest + 1e-4, "{}", kernel);
                }
            }
        }
    }

    #[test]
    fn chunks_and_neighbours_change_no_position(
        n_heads in 1usize..9, key_dim in 1usize..40, pools in 1usize..20, kv_type in prop::sample::select(KvType::ALL),
        pool in prop::sample::select(&[1usize, 3, 16]), len in 2usize..100, cut in 1usize..99, integers: bool, each_head: bool, seed: u64,
    ) {
        let cut = cut.min(len - 1);
        let op = SelectPositions::new(1, [n_heads, key_dim, pools * pool]).unwrap();
        let op = if each_head { op.of_each_head(pool, 1) } else { op.pooled(pool) }.unwrap();
        let make = |count, salt| if integers { whole(count, seed ^ salt) } else { values(seed ^ salt, count) };
        let sequences = Sequences::new(op, &[len, 50], make);
        for kernel in supported_kernels() {
            let [alone, crowded] = [(); 2].map(|()| cache_of(&sequences, kv_type));
            let expected = run(&op, kernel, (&sequences, &alone), &[(0, 0..len)]);
            let mut found = run(&op, kernel, (&sequences, &crowded), &[(1, 0..20), (0, 0..cut)]).split_off(20);
            let rest = run(&op, kernel, (&sequences, &crowded), &[(0, cut..len), (1, 20..50)]);
            found.extend_from_slice(&rest[..len - cut]);
            prop_assert_eq!(expected, found);
        }
    }
}

#[test]
fn impossible_sizes_are_refused() {
    let refused = |sizes| SelectPositions::new(0, sizes).unwrap_err().to_string();
    assert_eq!(refused([0, 8, 8]), format!("select_positions: n_heads is 0, but must be between 1 and {}", usize::MAX));
    assert_eq!(refused([8, 577, 8]), "select_positions: key_dim is 577, but must be between 1 and 576");
    let op = SelectPositions::new(0, [2, 8, 4]).unwrap();
    assert_eq!(op.output_widths(&[16, 8, 2]), Ok(vec![4]));
    assert_eq!(op.pooled(2).unwrap().output_widths(&[16, 8, 2]), Ok(vec![5]));
    let error = op.pooled(3).unwrap_err().to_string();
    assert_eq!(error, "select_positions: 4 positions modulo 3 is 1, but must be 0");
    let by_heads = op.of_each_head(2, 1).unwrap();
    assert_eq!(by_heads.output_widths(&[16, 8]), Ok(vec![8]));
    let error = op.of_each_head(2, 3).unwrap_err().to_string();
    assert_eq!(error, "select_positions: number of last pools is 3, but must be between 1 and 2");
    let error = op.output_widths(&[16, 8, 3]).unwrap_err().to_string();
    assert_eq!(error, "select_positions: number of weights is 3, but must be 2");
}
