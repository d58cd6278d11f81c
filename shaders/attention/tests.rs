//! Every kernel against the float64 reference, and against itself with other chunks and neighbours.

use std::ops::Range;

use super::cases::{Sequences, of_shape, rounding, shaped, with_selection, with_sinks, within};
use super::*;
use crate::cpu::{ActivationBits, Kernel, Solo, Team};
use crate::kv::BLOCK_TOKENS;
use crate::op::{Batch, CpuArgs, Op, Sight};
use crate::recurrent::StateCache;
use crate::testing::{assert_close, supported_kernels, values};
use crate::tuning::Tuning;
use proptest::prelude::*;

/// Windows of other kinds than the last positions, of fewer than `positions` positions.
fn other_windows(positions: usize) -> impl Strategy<Value = Window> {
    (prop::sample::select(vec![Window::Chunk, Window::From, Window::Before]), 1..positions)
        .prop_map(|(window, positions)| window(positions))
}

/// Some sequences and their cache.
struct World {
    sequences: Sequences,
    cache: KvCache,
}

impl World {
    fn new(attention: Attention, lengths: &[usize], kv_type: KvType, seed: u64) -> World {
        let values = |_, len: usize, salt: u64| values(seed ^ salt, len);
        let sequences = Sequences::new(attention.checked().unwrap(), lengths, values);
        World { cache: KvCache::new(sequences.shapes(), sequences.n_blocks(), kv_type), sequences }
    }

    /// Runs one step over `(sequence, positions)` ranges; returns the outputs of the rows.
    fn step(&self, kernel: Kernel, ranges: &[(usize, Range<usize>)]) -> Vec<Vec<f32>> {
        self.step_of_team(kernel, &Solo, ranges)
    }

    fn step_of_team(&self, kernel: Kernel, team: &dyn Team, ranges: &[(usize, Range<usize>)]) -> Vec<Vec<f32>> {
        self.step_with_sights(kernel, team, ranges, &[])
    }

    fn step_with_sights(
        &self,
        kernel: Kernel,
        team: &dyn Team,
        ranges: &[(usize, Range<usize>)],
        sights: &[Sight],
    ) -> Vec<Vec<f32>> {
        let Sequences { attention, block_tables, .. } = &self.sequences;
        let (batch, inputs) = (self.sequences.batch(ranges), self.sequences.inputs(ranges));
        let rows = batch.tokens.len();
        let width = attention.n_heads * attention.kv.value_dim;
        let mut output = vec![f32::NAN; rows * width];
        let longest = block_tables[0].len() * BLOCK_TOKENS;
        attention.run_cpu(&mut CpuArgs {
            kernel,
            activation_bits: ActivationBits::default(),
            tuning: Tuning::default(),
            team,
            batch: Batch { sights, ..batch.as_batch(&batch.of_sequences()) },
            kv: &self.cache,
            states: &StateCache::empty(),
            rows,
            scratch: &mut vec![f32::NAN; attention.scratch_len(kernel, rows, longest)],
            inputs: &inputs.iter().map(Vec::as_slice).collect::<Vec<_>>(),
            outputs: &mut [&mut output],
        });
        output.chunks_exact(width).map(<[f32]>::to_vec).collect()
    }

    fn reference(&self, sequence: usize, position: usize) -> Vec<f64> {
        self.sequences.reference(sequence, position)
    }
}

/// A team with enough threads that contexts are split. It runs the last task first.
struct ReversedTeam;

impl Team for ReversedTeam {
    fn threads(&self) -> usize {
        16
    }

    fn for_each(&self, tasks: usize, body: &(dyn Fn(usize) + Sync)) {
        (0..tasks).rev().for_each(body);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn every_kernel_agrees_with_the_reference(
        n_kv_heads in 1usize..4, group in 1usize..4, head_dim in 1usize..70,
        window in prop::option::of(1usize..40), softcap in prop::option::of(1.0f32..50.0),
        len in 1usize..140, kv_type in prop::sample::select(KvType::ALL), seed: u64,
    ) {
        let tolerance = rounding(kv_type);
        let attention = shaped(head_dim, n_kv_heads, group, window, softcap);
        for kernel in supported_kernels() {
            let world = World::new(attention.clone(), &[len], kv_type, seed);
            for (position, row) in world.step(kernel, &[(0, 0..len)]).iter().enumerate() {
                assert_close(row, &world.reference(0, position), tolerance);
            }
        }
    }

    #[test]
    fn heads_of_any_shape_with_sinks_agree_with_the_reference(
        n_kv_heads in 1usize..3, group in 1usize..20, key_dim in 1usize..70, value_dim in 1usize..70, in_keys: bool,
        window in prop::option::of(1usize..40), len in 1usize..140, kv_type in prop::sample::select(KvType::ALL),
        seed: u64,
    ) {
        let value_dim = if in_keys { value_dim.min(key_dim) } else { value_dim };
        let shape = KvShape { n_kv_heads, key_dim, value_dim, values_in_keys: in_keys, ..KvShape::NONE };
        let attention = with_sinks(of_shape(shape, group, window, None));
        for kernel in supported_kernels() {
            let world = World::new(attention.clone(), &[len], kv_type, seed);
            for (position, row) in world.step(kernel, &[(0, 0..len)]).iter().enumerate() {
                assert_close(row, &world.reference(0, position), rounding(kv_type));
            }
        }
    }

    #[test]
    fn chunks_and_neighbours_change_no_bit(
        head_dim in 1usize..40, window in prop::option::of(1usize..40), in_keys: bool, kv_type in prop::sample::select(KvType::ALL),
        len in 2usize..70, cut in 1usize..69, other in prop::option::of(other_windows(40)), seed: u64,
    ) {
        let cut = cut.min(len - 1);
        let shape = if in_keys { KvShape::latent(head_dim + 3, head_dim) } else { KvShape::grouped(2, head_dim) };
        let attention = with_sinks(of_shape(shape, 2, window, None));
        let attention = if let Some(window) = other { within(window, attention) } else { attention };
        for kernel in supported_kernels() {
            let alone = World::new(attention.clone(), &[len, 50], kv_type, seed);
            let whole = alone.step(kernel, &[(0, 0..len)]);
            let crowded = World::new(attention.clone(), &[len, 50], kv_type, seed);
            let mut ranges = crowded.step(kernel, &[(1, 0..20), (0, 0..cut)]).split_off(20);
            let rest = crowded.step(kernel, &[(0, cut..len), (1, 20..50)]);
            ranges.extend_from_slice(&rest[..len - cut]);
            prop_assert_eq!(whole, ranges);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn attention_to_selected_positions_agrees_with_the_reference_in_any_chunks_split_or_whole(
        group in 1usize..20, head_dim in prop::sample::select(&[16usize, 24, 130]), in_keys: bool, most in 1usize..400,
        pool in prop::sample::select(&[1usize, 4, 16]), with_last: bool,
        len in 2usize..600, cut in 1usize..599, kv_type in prop::sample::select(KvType::ALL), seed: u64,
    ) {
        let cut = cut.min(len - 1).max(len.saturating_sub(40));
        let shape = if in_keys { KvShape::latent(head_dim + 8, head_dim) } else { KvShape::grouped(2, head_dim) };
        let selection = match with_last {
            true => Selection::with_last(most.div_ceil(pool), pool, 1, shape.n_kv_heads),
            false => Selection::new(most.next_multiple_of(pool), pool),
        };
        let (most, attention) = (selection.most, with_selection(with_sinks(of_shape(shape, group, None, None)), selection));
        for kernel in supported_kernels() {
            let world = World::new(attention.clone(), &[len, 20], kv_type, seed);
            let whole = world.step(kernel, &[(0, 0..len)]);
            let shared = world.step_of_team(kernel, &ReversedTeam, &[(1, 0..3), (0, cut..len)]);
            prop_assert_eq!(&whole[cut..], &shared[3..], "{}", kernel);
            // A step in which each row sees all of its positions.
            let first = world.step(kernel, &[(0, 0..most.min(len))]);
            prop_assert_eq!(&whole[..most.min(len)], &first[..], "{}", kernel);
            for (position, row) in whole.iter().enumerate().skip(cut) {
                assert_close(row, &world.reference(0, position), rounding(kv_type));
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]
    #[test]
    fn long_contexts_agree_with_the_reference_split_or_whole(
        group in 1usize..6, head_dim in prop::sample::select(&[16usize, 24, 130]),
        window in prop::option::of(1usize..600), other in prop::option::of(other_windows(600)),
        len in 240usize..800, rows in 1usize..4, kv_type in prop::sample::select(KvType::ALL), in_keys: bool, seed: u64,
    ) {
        let tolerance = rounding(kv_type);
        let shape = if in_keys { KvShape::latent(head_dim + 8, head_dim) } else { KvShape::grouped(2, head_dim) };
        let attention = with_sinks(of_shape(shape, group, window, None));
        let attention = if let Some(window) = other { within(window, attention) } else { attention };
        for kernel in supported_kernels() {
            let world = World::new(attention.clone(), &[len, 20], kv_type, seed);
            let whole = world.step(kernel, &[(0, 0..len)]);
            // The same rows again, with a neighbour and with their context split into pieces.
            let shared = world.step_of_team(kernel, &ReversedTeam, &[(1, 0..1), (0, len - rows..len)]);
            prop_assert_eq!(&whole[len - rows..], &shared[1..], "{}", kernel);
            for (position, row) in whole.iter().enumerate().skip(len - rows) {
                assert_close(row, &world.reference(0, position), tolerance);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    /// The rows of an image or a canvas see each other, and before them what each or the first of them sees, alone and next to
    /// another sequence.
    #[test]
    fn rows_see_each_other(
        n_kv_heads in 1usize..3, group in 1usize..4, head_dim in 1usize..70, window in prop::option::of(1usize..40),
        before in 0usize..300, rows in 1usize..70, kv_type in prop::sample::select(KvType::ALL), seed: u64,
        sight in prop::sample::select(vec![Sight::EachOther, Sight::Canvas]),
        each_other in prop::sample::select(vec![EachOther::All, EachOther::FromWindow, EachOther::Before]),
    ) {
        let attention = Attention { each_other, ..shaped(head_dim, n_kv_heads, group, window, None) };
        let len = before + rows;
        let seen = |row: usize| {
            let position = if sight == Sight::Canvas { before } else { before + row };
            let first = window.map_or(0, |window| (position + 1).saturating_sub(window));
            match (sight, each_other) {
                (Sight::EachOther, EachOther::FromWindow) => first..len,
                (Sight::EachOther, EachOther::Before) => first..position + 1,
                _ => first.min(before)..len,
            }
        };
        for kernel in supported_kernels() {
            let world = World::new(attention.clone(), &[len, 50], kv_type, seed);
            if before > 0 {
                world.step(kernel, &[(0, 0..before)]);
            }
            let seeing = [(0, before..len)];
            let alone = world.step_with_sights(kernel, &Solo, &seeing, &[sight, Sight::Before]);
            for (row, found) in alone.iter().enumerate() {
                assert_close(found, &world.sequences.reference_of(0, before + row, seen(row)), rounding(kv_type));
            }
            let ranges = [(1, 0..20), seeing[0].clone()];
            let shared = world.step_with_sights(kernel, &ReversedTeam, &ranges, &[sight, Sight::Before]);
            prop_assert_eq!(&alone, &shared[20..]);
            prop_assert_eq!(&shared[..20], world.step(kernel, &[(1, 0..20)]));
        }
    }
}

#[test]
fn heads_that_the_kv_heads_do_not_divide_are_refused() {
    let mut wrong = shaped(8, 2, 2, None, None);
    wrong.n_heads = 5;
    assert_eq!(wrong.checked().unwrap_err().to_string(), "attention: 5 heads modulo 2 kv heads is 1, but must be 0");
}

#[test]
fn heads_that_are_too_long_are_refused() {
    let refused = |kv| of_shape(kv, 1, None, None).checked().unwrap_err().to_string();
    assert_eq!(refused(KvShape::grouped(1, 577)), "attention: key_dim is 577, but must be between 1 and 576");
    assert_eq!(refused(KvShape::grouped(1, 0)), "attention: key_dim is 0, but must be between 1 and 576");
    assert_eq!(refused(KvShape::latent(64, 65)), "attention: value_dim is 65, but must be between 1 and 64");
}

#[test]
fn selected_positions_are_an_input_and_the_only_limit() {
    let latent =
        with_selection(of_shape(KvShape::latent(24, 16), 4, None, None), Selection::new(7, 1)).checked().unwrap();
    assert_eq!(latent.output_widths(&[96, 24, 7]), Ok(vec![64]));
    let error = latent.output_widths(&[96, 24, 8]).unwrap_err().to_string();
    assert_eq!(error, "attention: width of the selected positions is 8, but must be 7");
    let windowed =
        with_selection(shaped(8, 2, 2, Some(5), None), Selection::new(7, 1)).checked().unwrap_err().to_string();
    assert_eq!(windowed, "attention: number of other limits of selected positions is 1, but must be 0");
}

#[test]
fn lists_of_selected_positions_are_for_equal_groups_of_heads() {
    let of_lists = |lists| with_selection(shaped(8, 4, 2, None, None), Selection::with_last(2, 3, 1, lists)).checked();
    assert_eq!(of_lists(2).unwrap().output_widths(&[64, 32, 32, 12]), Ok(vec![64]));
    let error = of_lists(3).unwrap_err().to_string();
    assert_eq!(error, "attention: 4 kv heads modulo 3 lists is 1, but must be 0");
}

#[test]
fn there_must_be_one_sink_for_each_head() {
    let wrong = Attention { sinks: Some([0.0; 3].into()), ..shaped(8, 2, 2, None, None) };
    assert_eq!(wrong.checked().unwrap_err().to_string(), "attention: number of sinks is 3, but must be 4");
}

#[test]
fn values_that_are_part_of_their_keys_are_not_an_input() {
    let latent = of_shape(KvShape::latent(24, 16), 4, None, None);
    assert_eq!(latent.output_widths(&[96, 24]), Ok(vec![64]));
    let error = latent.output_widths(&[96, 24, 16]).unwrap_err().to_string();
    assert_eq!(error, "attention: number of inputs is 3, but must be 2");
}

/// The outputs of an op that has those of `attention`, or none, for rows 0..`len` of the first sequence.
fn outputs_of(op: &dyn Op, attention: &Attention, (world, inputs): (&World, &[&[f32]]), len: usize) -> Vec<f32> {
    let batch = world.sequences.batch(&[(0, 0..len)]);
    let mut output = vec![f32::NAN; len * attention.n_heads * attention.kv.value_dim];
    op.run_cpu(&mut CpuArgs {
        kernel: Kernel::Scalar,
        activation_bits: ActivationBits::default(),
        tuning: Tuning::default(),
        team: &Solo,
        batch: batch.as_batch(&batch.of_sequences()),
        kv: &world.cache,
        states: &StateCache::empty(),
        rows: len,
        scratch: &mut vec![f32::NAN; op.scratch_len(Kernel::Scalar, len, len)],
        inputs,
        outputs: &mut [&mut output],
    });
    output
}

#[test]
fn keys_and_values_can_be_stored_before_rows_attend_to_them() {
    const LEN: usize = 40;
    for &kv_type in KvType::ALL {
        let attention = of_shape(KvShape { value_dim: 24, ..KvShape::grouped(2, 16) }, 2, None, None);
        let [at_once, apart] = [(); 2].map(|()| World::new(attention.clone(), &[LEN], kv_type, 7));
        let inputs = at_once.sequences.inputs(&[(0, 0..LEN)]);
        let [query, key, value] = [0, 1, 2].map(|input| inputs[input].as_slice());
        let store = StoreKv { layer: attention.layer, kv: attention.kv };
        let reads = Attention { stores: false, ..attention.clone() };
        assert_eq!(store.output_widths(&[32, 48]).unwrap(), [0; 0]);
        outputs_of(&store, &attention, (&apart, &[key, value]), LEN);
        let found = outputs_of(&reads, &attention, (&apart, &[query]), LEN);
        assert_eq!(found, outputs_of(&attention, &attention, (&at_once, &[query, key, value]), LEN));
    }
}
