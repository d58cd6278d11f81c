//! AttentionWeights: how much some heads attend to each of the first positions of a sequence.

use crate::attention::{KvShape, StoreKv, head_constants};
use crate::cases::{Case, CaseBatch, CaseCache, CaseStep, Expected};
use crate::cost::{Cost, CostArgs};
use crate::cpu::{Kernel, SharedMut};
use crate::gpu::{Dispatch, GpuArgs, Module, Push, RowCount, word};
use crate::kv::{BLOCK_TOKENS, KvType, Layer, MAX_HEAD_DIM, SCALE_GROUP, Storage, Store, StoredHead};
use crate::op::{CpuArgs, Op, Selection, ShapeError};
use crate::per_vector;
use crate::quant::random;
use crate::vector::{LANES, Vector, exp};

/// The weights with which some heads of an attention weigh the values of the first positions of a sequence, in the rows whose
/// hidden values are requested: `y[h][t] = softmax(scale * q[h]·k[t])` over `t < positions`.
///
/// - query: [rows, n_heads * key_dim]; output: [hidden rows, heads * positions]
/// - The keys of these positions are in the cache. All rows see all of them.
/// - Source: the weights of `MultiHeadAttention` in Whisper (github.com/openai/whisper), from which it has the times of words.
#[derive(Debug, Clone, PartialEq)]
pub struct AttentionWeights {
    layer: usize,
    kv: KvShape,
    n_heads: usize,
    scale: f32,
    positions: usize,
    /// The numbers of the heads, which shaders read as a table.
    heads: Vec<f32>,
}

impl AttentionWeights {
    /// The weights of `heads` of an attention with `n_heads` heads, which reads the keys of `kv` in a layer of the cache, for this
    /// many positions.
    ///
    /// # Errors
    /// [`ShapeError`] when there is no such head or no position, a head is too long, or KV heads do not divide the heads.
    pub fn new(
        layer: usize,
        kv: KvShape,
        (n_heads, heads): (usize, &[usize]),
        positions: usize,
        scale: f32,
    ) -> Result<Self, ShapeError> {
        const NAME: &str = "attention_weights";
        let groups = n_heads.checked_rem(kv.n_kv_heads).unwrap_or(n_heads);
        ShapeError::check(NAME, format!("{n_heads} heads modulo {} kv heads", kv.n_kv_heads), groups, 0)?;
        let last = heads.iter().max().map_or(n_heads, |last| *last);
        let sizes = [("key_dim", kv.key_dim, MAX_HEAD_DIM), ("positions", positions, usize::MAX)];
        for (what, found, most) in sizes.into_iter().chain([("number of the last head and 1", last + 1, n_heads)]) {
            if found == 0 || found > most {
                let expected = format!("between 1 and {most}");
                return Err(ShapeError::Mismatch { op: NAME, what: what.into(), found, expected });
            }
        }
        let heads = heads.iter().map(|head| *head as f32).collect();
        Ok(AttentionWeights { layer, kv, n_heads, scale, positions, heads })
    }

    fn width(&self) -> usize {
        self.heads.len() * self.positions
    }
}

impl Op for AttentionWeights {
    fn name(&self) -> &'static str {
        "attention_weights"
    }

    fn output_widths(&self, inputs: &[usize]) -> Result<Vec<usize>, ShapeError> {
        ShapeError::check(self.name(), "number of inputs", inputs.len(), 1)?;
        ShapeError::check(self.name(), "width of the query", inputs[0], self.n_heads * self.kv.key_dim)?;
        Ok(vec![self.width()])
    }

    fn state_layer(&self) -> Option<usize> {
        Some(self.layer)
    }

    fn selects_rows(&self) -> Option<Selection> {
        Some(Selection::Hidden)
    }

    /// A product for each row, head and position. The keys of a sequence are read once.
    fn cost(&self, args: &CostArgs<'_>) -> Cost {
        let mut sequences: Vec<u32> = args.batch.hidden.iter().map(|row| args.batch.sequences[*row as usize]).collect();
        sequences.dedup();
        let key_bytes = args.kv_position_bytes[self.layer].kv / 2;
        let products = args.output_rows * self.width() * self.kv.key_dim;
        Cost {
            memory_bytes: (sequences.len() * self.positions) as u64 * key_bytes,
            activation_bytes: (args.output_values() * size_of::<f32>()) as u64,
            float_operations: 2 * products as u64,
            ..Cost::default()
        }
    }

    fn run_cpu(&self, args: &mut CpuArgs<'_>) {
        let (batch, kernel, query) = (args.batch, args.kernel, args.inputs[0]);
        let layer = args.kv.layer(self.layer);
        let output = SharedMut::new(args.outputs[0]);
        args.team.for_each(batch.hidden.len() * self.heads.len(), &|task| {
            let row = batch.hidden[task / self.heads.len()] as usize;
            let head = self.heads[task % self.heads.len()] as usize;
            let of_row = HeadOfRow {
                layer,
                block_table: batch.block_table(row, self.kv),
                kv_head: head / (self.n_heads / self.kv.n_kv_heads),
                query: &query[(row * self.n_heads + head) * self.kv.key_dim..][..self.kv.key_dim],
                scale: self.scale,
            };
            // SAFETY: each task writes its own part of the output. No op of this layer stores keys while this one runs.
            unsafe { weigh(kernel, &of_row, output.slice(task * self.positions, self.positions)) };
        });
    }

    fn gpu_tables(&self) -> Vec<&[f32]> {
        vec![&self.heads]
    }

    fn dispatches(&self, args: &GpuArgs<'_>) -> Vec<Dispatch> {
        const MOST_INVOCATIONS: u32 = 256;
        let (query, output, keys) = (args.inputs[0].region, args.outputs[0].region, args.kv.layers[self.layer][0]);
        let push = Push::new()
            .address(query.address)
            .address(keys.address)
            .address(args.tables[0].address)
            .address(output.address)
            .address(args.step)
            .size(self.n_heads)
            .size(self.kv.n_kv_heads)
            .size(self.positions)
            .float(self.scale);
        let mut constants = vec![(0, MOST_INVOCATIONS.min(args.device.max_workgroup_size))];
        constants.extend(head_constants(self.kv, args.kv.kv_type));
        vec![Dispatch {
            module: Module::AttentionWeights,
            constants,
            push,
            groups: [self.heads.len(), args.hidden, 1].map(word),
            reads: vec![query, keys],
            writes: vec![output],
        }]
    }
}

/// A head of a row, and the keys of its sequence.
struct HeadOfRow<'a> {
    layer: &'a Layer,
    block_table: &'a [u32],
    kv_head: usize,
    /// `[key_dim]`
    query: &'a [f32],
    scale: f32,
}

per_vector! {
    /// Writes the weights of the first positions, as many as `weights` has.
    ///
    /// # Safety
    /// No thread may write the keys at the same time.
    unsafe fn weigh = weigh_vectors(of_row: &HeadOfRow<'_>, weights: &mut [f32])
}

/// # Safety
/// As [`Vector`]; no thread may write the keys at the same time.
#[inline(always)]
unsafe fn weigh_vectors<V: Vector>(of_row: &HeadOfRow<'_>, weights: &mut [f32]) {
    // SAFETY: the caller fulfils the same conditions.
    unsafe {
        match &of_row.layer.store {
            Store::F16(planes) => weigh_stored::<V, _>(of_row, planes, weights),
            Store::F32(planes) => weigh_stored::<V, _>(of_row, planes, weights),
            Store::Q8(planes) => weigh_stored::<V, _>(of_row, planes, weights),
        }
    }
}

/// # Safety
/// As [`weigh_vectors`].
#[inline(always)]
unsafe fn weigh_stored<V: Vector, S: Storage>(of_row: &HeadOfRow<'_>, storage: &S, weights: &mut [f32]) {
    let head = |block: usize| storage.head(of_row.layer.head_index(of_row.block_table[block], of_row.kv_head));
    let (whole, rest) = weights.as_chunks_mut::<LANES>();
    // The positions of the last block after the end have no weight.
    let mut last = [f32::NEG_INFINITY; LANES];
    // SAFETY: the blocks are those of the row's sequence, vectors have as many values as a block has positions, and the caller
    // fulfils the other conditions.
    unsafe {
        let mut greatest = f32::NEG_INFINITY;
        for (block, scores) in whole.iter_mut().enumerate() {
            let found = scores_of::<V, _>(of_row, head(block));
            found.store(scores.as_mut_ptr());
            greatest = greatest.max(found.greatest());
        }
        if !rest.is_empty() {
            scores_of::<V, _>(of_row, head(whole.len())).store(last.as_mut_ptr());
            last[rest.len()..].fill(f32::NEG_INFINITY);
            greatest = last.iter().copied().fold(greatest, f32::max);
        }
        let mut sums = V::splat(0.0);
        for scores in whole.iter_mut().chain((!rest.is_empty()).then_some(&mut last)) {
            let weights = exp(V::load(scores.as_ptr()).subtract(V::splat(greatest)));
            weights.store(scores.as_mut_ptr());
            sums = sums.add(weights);
        }
        let mut sum_of = [0.0; LANES];
        sums.store(sum_of.as_mut_ptr());
        let sum: f32 = sum_of.iter().sum();
        whole.as_flattened_mut().iter_mut().for_each(|weight| *weight /= sum);
        rest.iter_mut().zip(last).for_each(|(weight, last)| *weight = last / sum);
    }
}

/// The scores of the positions of a block: one chain of additions over the dimensions each.
///
/// # Safety
/// As [`StoredHead`].
#[inline(always)]
unsafe fn scores_of<V: Vector, H: StoredHead>(of_row: &HeadOfRow<'_>, keys: H) -> V {
    // SAFETY: the dimensions are those of the head; the caller fulfils the other conditions.
    unsafe {
        let mut sum = V::splat(0.0);
        for (group, query) in of_row.query.chunks(SCALE_GROUP).enumerate() {
            let scales = keys.key_scales::<V>(group);
            for (dim, query) in (group * SCALE_GROUP..).zip(query) {
                sum = V::splat(*query).multiply_add(keys.keys::<V>(dim, scales), sum);
            }
        }
        sum.multiply(V::splat(of_row.scale))
    }
}

/// The weights in float64. `query` is `[n_heads * key_dim]`, `key` is [positions, n_kv_heads * key_dim].
#[must_use]
pub fn reference(op: &AttentionWeights, query: &[f32], key: &[f32]) -> Vec<f64> {
    let KvShape { n_kv_heads, key_dim, .. } = op.kv;
    let of_head = |head: usize| {
        let kv_head = head / (op.n_heads / n_kv_heads);
        let query = &query[head * key_dim..][..key_dim];
        let score = |position: usize| -> f64 {
            let key = &key[(position * n_kv_heads + kv_head) * key_dim..][..key_dim];
            let product: f64 = query.iter().zip(key).map(|(q, k)| f64::from(*q) * f64::from(*k)).sum();
            product * f64::from(op.scale)
        };
        let scores: Vec<f64> = (0..op.positions).map(score).collect();
        let greatest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<f64> = scores.iter().map(|score| (score - greatest).exp()).collect();
        let sum: f64 = weights.iter().sum();
        weights.into_iter().map(move |weight| weight / sum)
    };
    op.heads.iter().flat_map(|head| of_head(*head as usize)).collect()
}

/// Every type of cache, with some or all heads, heads that share keys, heads that are not whole vectors, positions that are not
/// whole blocks, and rows of two sequences of which some are requested.
#[must_use]
pub fn cases() -> Vec<Case> {
    let shapes = [
        ([2, 2, 64], &[1][..], 48),
        ([4, 2, 40], &[0, 3], 37),
        ([8, 8, 16], &[7, 0, 2, 3, 4, 5, 6, 1], 300),
        ([1, 1, 1], &[0], 1),
    ];
    let of_type = |&kv_type: &KvType| {
        shapes.map(|([n_heads, n_kv_heads, key_dim], heads, positions)| {
            let kv = KvShape::grouped(n_kv_heads, key_dim);
            let scale = 1.0 / (key_dim as f32).sqrt();
            let op = AttentionWeights::new(1, kv, (n_heads, heads), positions, scale).expect("the shape is valid");
            case(op, kv_type)
        })
    };
    KvType::ALL.iter().flat_map(of_type).collect()
}

/// Two sequences whose rows are stored in one step, in which the last two rows of the first and the last of the second are
/// requested.
fn case(op: AttentionWeights, kv_type: KvType) -> Case {
    let (rows, kv) = (op.positions + 2, op.kv);
    let blocks = rows.div_ceil(BLOCK_TOKENS);
    // Integers from -2 to 2, and 127 in each group of 32, which adds nothing to a product: every type of cache has them exactly.
    let whole = |width: usize, seed: u64, in_groups: f32| -> Vec<f32> {
        let mut values: Vec<f32> =
            random::activations(2 * rows * width, seed).iter().map(|value| (2.0 * value).round()).collect();
        let groups = values.chunks_mut(kv.key_dim).flat_map(|head| head.chunks_mut(SCALE_GROUP));
        groups.filter(|group| group.len() > 1).for_each(|group| group[group.len() / 2] = in_groups);
        values
    };
    let query = whole(op.n_heads * kv.key_dim, 1, 0.0);
    let [key, value] = [2, 3].map(|seed| whole(kv.key_width(), seed, 127.0));
    let hidden = vec![rows as u32 - 2, rows as u32 - 1, 2 * rows as u32 - 1];
    let expected = |row: &u32| {
        let row = *row as usize;
        let (query_width, key_width) = (op.n_heads * kv.key_dim, kv.key_width());
        let key = &key[row / rows * rows * key_width..][..rows * key_width];
        reference(&op, &query[row * query_width..][..query_width], key)
    };
    let expected = Expected::within(2e-5, hidden.iter().flat_map(expected));
    let batch = CaseBatch {
        tokens: vec![0; 2 * rows],
        positions: (0..2 * rows as u32).map(|row| row % rows as u32).collect(),
        sequences: (0..2 * rows).map(|row| (row / rows) as u32).collect(),
        block_tables: [0, 1].map(|first| (0..blocks as u32).rev().map(|block| 2 * block + first).collect()).into(),
        hidden,
        ..CaseBatch::default()
    };
    let inputs = vec![key, value, query];
    let step = CaseStep { batch, rows: RowCount::All(2 * rows), inputs, expected: vec![expected] };
    let cache = Some(CaseCache::of_kv(vec![KvShape::NONE, kv], kv_type, 2 * blocks));
    let name =
        format!("{kv_type}, {} of {} heads of {}, {} positions", op.heads.len(), op.n_heads, kv.key_dim, op.positions);
    let op = Box::new(Stored { store: StoreKv { layer: op.layer, kv }, weights: op });
    Case { name, op, cache, steps: vec![step] }
}

/// Stores keys and values, and then weighs them: inputs are key, value and query.
#[derive(Debug)]
struct Stored {
    store: StoreKv,
    weights: AttentionWeights,
}

impl Op for Stored {
    fn name(&self) -> &'static str {
        self.weights.name()
    }

    fn output_widths(&self, inputs: &[usize]) -> Result<Vec<usize>, ShapeError> {
        self.store.output_widths(&inputs[..2])?;
        self.weights.output_widths(&inputs[2..])
    }

    fn state_layer(&self) -> Option<usize> {
        self.weights.state_layer()
    }

    fn selects_rows(&self) -> Option<Selection> {
        self.weights.selects_rows()
    }

    fn scratch_len(&self, kernel: Kernel, rows: usize, context_tokens: usize) -> usize {
        self.weights.scratch_len(kernel, rows, context_tokens)
    }

    fn run_cpu(&self, args: &mut CpuArgs<'_>) {
        let inputs = args.inputs;
        args.inputs = &inputs[..2];
        self.store.run_cpu(args);
        args.inputs = &inputs[2..];
        self.weights.run_cpu(args);
    }

    fn gpu_tables(&self) -> Vec<&[f32]> {
        self.weights.gpu_tables()
    }

    fn dispatches(&self, args: &GpuArgs<'_>) -> Vec<Dispatch> {
        let store = self.store.dispatches(&GpuArgs { inputs: &args.inputs[..2], outputs: &[], ..*args });
        let weights = self.weights.dispatches(&GpuArgs { inputs: &args.inputs[2..], ..*args });
        store.into_iter().chain(weights).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::{ActivationBits, Solo};
    use crate::kv::KvCache;
    use crate::recurrent::StateCache;
    use crate::testing::supported_kernels;
    use crate::tuning::Tuning;
    use proptest::prelude::*;

    fn check(case: &Case, kernel: Kernel) -> Result<(), String> {
        let step = &case.steps[0];
        let cache = case.cache.as_ref().unwrap();
        let kv = KvCache::new(cache.shapes.clone(), cache.blocks, cache.kv_type);
        let mut output = vec![f32::NAN; step.expected[0].len()];
        case.op.run_cpu(&mut CpuArgs {
            kernel,
            activation_bits: ActivationBits::default(),
            tuning: Tuning::default(),
            team: &Solo,
            batch: step.batch.as_batch(&step.batch.of_sequences()),
            kv: &kv,
            states: &StateCache::empty(),
            rows: step.rows.most(),
            scratch: &mut [],
            inputs: &step.inputs.iter().map(Vec::as_slice).collect::<Vec<_>>(),
            outputs: &mut [&mut output],
        });
        case.check(0, &[output])
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]
        #[test]
        fn every_kernel_has_the_weights_of_the_reference(
            n_kv_heads in 1usize..4, group in 1usize..4, key_dim in 1usize..70, positions in 1usize..100, head in 0usize..12,
            kv_type in prop::sample::select(KvType::ALL),
        ) {
            let n_heads = n_kv_heads * group;
            let kv = KvShape::grouped(n_kv_heads, key_dim);
            let op = AttentionWeights::new(1, kv, (n_heads, &[head % n_heads, 0]), positions, 0.25).unwrap();
            let case = case(op, kv_type);
            for kernel in supported_kernels() {
                prop_assert_eq!(check(&case, kernel), Ok(()));
            }
        }
    }

    #[test]
    fn impossible_sizes_are_refused() {
        let refused = |heads: &[usize], positions| {
            AttentionWeights::new(0, KvShape::grouped(2, 8), (4, heads), positions, 1.0).unwrap_err().to_string()
        };
        let of_head = "attention_weights: number of the last head and 1 is 5, but must be between 1 and 4";
        assert_eq!([refused(&[0, 4], 9), refused(&[], 9)], [of_head; 2]);
        assert!(refused(&[0], 0).contains("positions is 0"));
        let op = AttentionWeights::new(0, KvShape::grouped(2, 8), (4, &[1, 2]), 9, 1.0).unwrap();
        assert_eq!(op.output_widths(&[32]), Ok(vec![18]));
        assert!(op.output_widths(&[16]).is_err());
    }
}
