//! Attention over a paged KV cache, for a ragged batch.
//!
//! - [`cache`]: how keys and values are stored
//! - `cpu`: how the work is shared, and parts become results
//! - `gather`: the kernel
//! - [`gpu`]: keys and values on a device, and what runs there: by rows, or by tiles of them
//! - [`mod@reference`]: the formula in float64
//! - `cases`: what must come out

pub mod cache;
mod cases;
mod cpu;
mod gather;
pub mod gpu;
pub mod reference;

pub use cache::{KvCache, KvShape, KvType};
pub use cases::cases;
pub(crate) use cases::rotated_cases;

use std::sync::Arc;

use crate::cost::{Cost, CostArgs};
use crate::cpu::Kernel;
use crate::gpu::{DeviceLimits, Dispatch, GpuArgs};
use crate::op::{CpuArgs, Op, ShapeError};

/// The longest key that the kernels have room for: 512 latent values and 64 rotated ones.
pub const MAX_HEAD_DIM: usize = 576;

/// How far back a row sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Window {
    /// The last so many positions, its own included.
    Last(usize),
    /// Its own chunk: positions are cut into chunks of so many.
    Chunk(usize),
}

impl Window {
    /// The first position that a row at `position` sees.
    #[must_use]
    pub fn first_visible(self, position: usize) -> usize {
        match self {
            Window::Last(positions) => (position + 1).saturating_sub(positions),
            Window::Chunk(positions) => position - position % positions.max(1),
        }
    }

    /// The two kinds as shaders are told of them, 0 for none: the last so many, a chunk of so many.
    fn push(window: Option<Window>) -> [usize; 2] {
        match window {
            None => [0, 0],
            Some(Window::Last(positions)) => [positions, 0],
            Some(Window::Chunk(positions)) => [0, positions],
        }
    }
}

/// Grouped-query attention: stores the rows' keys and values, then lets every row look at its own sequence.
///
/// For a row at position `p`, with `t` over the positions of its sequence up to `p` that its window shows:
/// `s[t] = softcap(scale * q·k[t])`, `y = sum_t softmax(s)[t] v[t]`; query head `h` reads KV head
/// `h / (n_heads / n_kv_heads)`. With sinks the softmax of head `h` has one more score, `sinks[h]`, that brings no value.
///
/// - Inputs: query [rows, n_heads * key_dim], key [rows, n_kv_heads * key_dim], and unless values are part of the keys
///   value [rows, n_kv_heads * value_dim]; output [rows, n_heads * value_dim].
/// - Prefill chunks and decode rows mix freely; a row sees rows of its own sequence that stand in the same step.
/// - The softmax is computed online over KV blocks in the order of positions, so the result does not depend on how
///   the prompt was cut into chunks, nor on other sequences.
/// - Source: Dao et al. 2022 (online softmax over blocks); Kwon et al. 2023 (paged cache); Ainslie et al. 2023 (groups);
///   Xiao et al. 2023 (sinks); DeepSeek-AI 2024 (latent attention, whose projections are absorbed outside of this op).
#[derive(Debug, Clone)]
pub struct Attention {
    /// Which layer of the cache.
    pub layer: usize,
    /// Query heads.
    pub n_heads: usize,
    /// Key and value heads, whose number divides `n_heads`, and how long they are.
    pub kv: KvShape,
    /// Multiplies the scores, `1 / sqrt(key_dim)` for most models.
    pub scale: f32,
    /// How far back a row sees; `None`: to the beginning.
    pub window: Option<Window>,
    /// Soft cap on the scores.
    pub softcap: Option<f32>,
    /// A learned score for each query head, `[n_heads]`, which takes part in the softmax and has no value.
    pub sinks: Option<Arc<[f32]>>,
}

impl Attention {
    /// Checks the parameters against one another.
    ///
    /// # Errors
    /// [`ShapeError`] when the heads do not group, a head is too long, or sinks are not one for each head.
    pub fn checked(self) -> Result<Self, ShapeError> {
        let KvShape { n_kv_heads, key_dim, value_dim, values_in_keys } = self.kv;
        let groups = self.n_heads.checked_rem(n_kv_heads).unwrap_or(self.n_heads);
        ShapeError::check("attention", format!("{} heads modulo {n_kv_heads} kv heads", self.n_heads), groups, 0)?;
        let longest_value = if values_in_keys { key_dim } else { MAX_HEAD_DIM };
        for (what, found, most) in [("key_dim", key_dim, MAX_HEAD_DIM), ("value_dim", value_dim, longest_value)] {
            if found == 0 || found > most {
                let expected = format!("between 1 and {most}");
                return Err(ShapeError::Mismatch { op: "attention", what: what.into(), found, expected });
            }
        }
        if let Some(sinks) = &self.sinks {
            ShapeError::check("attention", "number of sinks", sinks.len(), self.n_heads)?;
        }
        Ok(self)
    }

    /// Query heads that share a KV head.
    fn group(&self) -> usize {
        self.n_heads / self.kv.n_kv_heads
    }

    /// The first position that a row at `position` sees.
    fn first_visible(&self, position: usize) -> usize {
        self.window.map_or(0, |window| window.first_visible(position))
    }
}

impl Op for Attention {
    fn name(&self) -> &'static str {
        "attention"
    }

    fn output_widths(&self, inputs: &[usize]) -> Result<Vec<usize>, ShapeError> {
        let expected = if self.kv.values_in_keys { 2 } else { 3 };
        ShapeError::check(self.name(), "number of inputs", inputs.len(), expected)?;
        ShapeError::check(self.name(), "width of the query", inputs[0], self.n_heads * self.kv.key_dim)?;
        ShapeError::check(self.name(), "width of the key", inputs[1], self.kv.key_width())?;
        if let Some(&value) = inputs.get(2) {
            ShapeError::check(self.name(), "width of the value", value, self.kv.value_width())?;
        }
        Ok(vec![self.n_heads * self.kv.value_dim])
    }

    fn kv_layer(&self) -> Option<usize> {
        Some(self.layer)
    }

    fn scratch_len(&self, _: Kernel, rows: usize, context_tokens: usize) -> usize {
        cpu::scratch_len(self, rows, context_tokens)
    }

    /// Two products for each row, head and position seen, `q·k` and the weighted sum of values; the softmax is not counted.
    fn cost(&self, args: &CostArgs<'_>) -> Cost {
        let (mut positions, mut seen) = (0, 0);
        let rows = args.batch.sequences.iter().zip(args.batch.positions);
        let mut last = None;
        for (&sequence, &position) in rows {
            let (first, end) = (self.first_visible(position as usize), position as usize + 1);
            seen += end - first;
            // A sequence's rows are consecutive: the first brings all that it sees, each further row its own position.
            positions += if last.replace(sequence) == Some(sequence) { 1 } else { end - first };
        }
        Cost {
            memory_bytes: positions as u64 * args.kv_position_bytes[self.layer],
            activation_bytes: args.activation_bytes(),
            float_operations: 2 * (seen * self.n_heads * (self.kv.key_dim + self.kv.value_dim)) as u64,
            ..Cost::default()
        }
    }

    fn run_cpu(&self, args: &mut CpuArgs<'_>) {
        cpu::store(self, args);
        cpu::attend(self, args);
    }

    fn gpu_tables(&self) -> Vec<&[f32]> {
        self.sinks.as_deref().into_iter().collect()
    }

    fn gpu_scratch_bytes(&self, device: &DeviceLimits, rows: usize, context_tokens: usize) -> u64 {
        gpu::scratch_bytes(self, device, rows, context_tokens)
    }

    fn dispatches(&self, args: &GpuArgs<'_>) -> Vec<Dispatch> {
        gpu::dispatches(self, args)
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use super::cases::{Sequences, in_chunks, of_shape, rounding, shaped, with_sinks};
    use super::*;
    use crate::cpu::{ActivationBits, Kernel, Solo, Team};
    use crate::testing::{assert_close, supported_kernels, values};
    use proptest::prelude::*;

    /// Some sequences, their cache, and how to run attention over parts of them.
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

        /// One step over `(sequence, positions)` parts; returns the rows' outputs.
        fn step(&self, kernel: Kernel, parts: &[(usize, Range<usize>)]) -> Vec<Vec<f32>> {
            self.step_of_team(kernel, &Solo, parts)
        }

        fn step_of_team(&self, kernel: Kernel, team: &dyn Team, parts: &[(usize, Range<usize>)]) -> Vec<Vec<f32>> {
            let Sequences { attention, block_tables, .. } = &self.sequences;
            let (batch, inputs) = (self.sequences.batch(parts), self.sequences.inputs(parts));
            let rows = batch.tokens.len();
            let width = attention.n_heads * attention.kv.value_dim;
            let mut output = vec![f32::NAN; rows * width];
            let longest = block_tables[0].len() * cache::BLOCK_TOKENS;
            attention.run_cpu(&mut CpuArgs {
                kernel,
                activation_bits: ActivationBits::default(),
                team,
                batch: batch.as_batch(&batch.tables()),
                kv: &self.cache,
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

    /// As many as asks for contexts to be shared; does the last task first.
    struct Crew;

    impl Team for Crew {
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
            let shape = KvShape { n_kv_heads, key_dim, value_dim, values_in_keys: in_keys };
            let attention = with_sinks(of_shape(shape, group, window, None));
            for kernel in supported_kernels() {
                let world = World::new(attention.clone(), &[len], kv_type, seed);
                for (position, row) in world.step(kernel, &[(0, 0..len)]).iter().enumerate() {
                    assert_close(row, &world.reference(0, position), rounding(kv_type));
                }
            }
        }

        #[test]
        fn chunks_and_neighbours_do_not_change_a_bit(
            head_dim in 1usize..40, window in prop::option::of(1usize..40), in_keys: bool, kv_type in prop::sample::select(KvType::ALL),
            len in 2usize..70, cut in 1usize..69, chunk in prop::option::of(1usize..40), seed: u64,
        ) {
            let cut = cut.min(len - 1);
            let shape = if in_keys { KvShape::latent(head_dim + 3, head_dim) } else { KvShape::grouped(2, head_dim) };
            let attention = with_sinks(of_shape(shape, 2, window, None));
            let attention = if let Some(chunk) = chunk { in_chunks(attention, chunk) } else { attention };
            for kernel in supported_kernels() {
                let alone = World::new(attention.clone(), &[len, 50], kv_type, seed);
                let whole = alone.step(kernel, &[(0, 0..len)]);
                let crowded = World::new(attention.clone(), &[len, 50], kv_type, seed);
                let mut parts = crowded.step(kernel, &[(1, 0..20), (0, 0..cut)]).split_off(20);
                let rest = crowded.step(kernel, &[(0, cut..len), (1, 20..50)]);
                parts.extend_from_slice(&rest[..len - cut]);
                prop_assert_eq!(whole, parts);
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(12))]
        #[test]
        fn long_contexts_agree_with_the_reference_however_they_are_shared(
            group in 1usize..6, head_dim in prop::sample::select(&[16usize, 24, 130]),
            window in prop::option::of(1usize..600), chunk in prop::option::of(1usize..600),
            len in 240usize..800, rows in 1usize..4, kv_type in prop::sample::select(KvType::ALL), in_keys: bool, seed: u64,
        ) {
            let tolerance = rounding(kv_type);
            let shape = if in_keys { KvShape::latent(head_dim + 8, head_dim) } else { KvShape::grouped(2, head_dim) };
            let attention = with_sinks(of_shape(shape, group, window, None));
            let attention = if let Some(chunk) = chunk { in_chunks(attention, chunk) } else { attention };
            for kernel in supported_kernels() {
                let world = World::new(attention.clone(), &[len, 20], kv_type, seed);
                let whole = world.step(kernel, &[(0, 0..len)]);
                // The same rows once more, with a neighbour, and their context cut into pieces.
                let shared = world.step_of_team(kernel, &Crew, &[(1, 0..1), (0, len - rows..len)]);
                prop_assert_eq!(&whole[len - rows..], &shared[1..], "{}", kernel);
                for (position, row) in whole.iter().enumerate().skip(len - rows) {
                    assert_close(row, &world.reference(0, position), tolerance);
                }
            }
        }
    }

    #[test]
    fn heads_that_do_not_group_are_refused() {
        let mut wrong = shaped(8, 2, 2, None, None);
        wrong.n_heads = 5;
        assert_eq!(
            wrong.checked().unwrap_err().to_string(),
            "attention: 5 heads modulo 2 kv heads is 1, but must be 0"
        );
    }

    #[test]
    fn heads_that_are_too_long_are_refused() {
        let refused = |kv| of_shape(kv, 1, None, None).checked().unwrap_err().to_string();
        assert_eq!(refused(KvShape::grouped(1, 577)), "attention: key_dim is 577, but must be between 1 and 576");
        assert_eq!(refused(KvShape::grouped(1, 0)), "attention: key_dim is 0, but must be between 1 and 576");
        assert_eq!(refused(KvShape::latent(64, 65)), "attention: value_dim is 65, but must be between 1 and 64");
    }

    #[test]
    fn sinks_are_one_for_each_head() {
        let wrong = Attention { sinks: Some([0.0; 3].into()), ..shaped(8, 2, 2, None, None) };
        assert_eq!(wrong.checked().unwrap_err().to_string(), "attention: number of sinks is 3, but must be 4");
    }

    #[test]
    fn values_that_are_part_of_their_keys_are_no_input() {
        let latent = of_shape(KvShape::latent(24, 16), 4, None, None);
        assert_eq!(latent.output_widths(&[96, 24]), Ok(vec![64]));
        let error = latent.output_widths(&[96, 24, 16]).unwrap_err().to_string();
        assert_eq!(error, "attention: number of inputs is 3, but must be 2");
    }
}
