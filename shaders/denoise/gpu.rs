//! Denoising on a GPU, each pass over all rows at once:
//!
//! 1. `statistics.comp`: the best token and the entropy of each row, and the terms of its probabilities
//! 2. the passes of [`sample_token`](crate::sample_token): the sampled token
//! 3. `means.comp`: what each piece of the vocabulary adds to the mean embedding
//! 4. `add_pieces.comp`: the sum of the pieces
//!
//! Pieces let few rows occupy a whole GPU. They are ranges of tokens that depend on the vocabulary alone, and are added in
//! their order, so a row has the same bits in every batch.

use super::Denoise;
use crate::gpu::weight::{RUN_COLUMNS, WeightLayout};
use crate::gpu::{DeviceLimits, Dispatch, GpuArgs, Module, Push, Region, word};
use crate::sample_token::{PARAMS_WORDS, gpu as sampling};

/// Rows of a workgroup of `means.comp`.
const ROWS: usize = 4;
/// Bytes of the terms of a row.
const TERMS_BYTES: usize = 12;
/// The alignment of each part of the scratch memory.
const ALIGNMENT: u64 = 16;

/// How the vocabulary is divided.
struct Pieces {
    count: usize,
    tokens: usize,
}

impl Pieces {
    /// Pieces large enough that adding them costs little, and not more than occupy a GPU.
    fn of(vocab_size: usize) -> Self {
        const MOST: usize = 16;
        const LEAST_TOKENS: usize = 4096;
        let tokens = vocab_size.div_ceil(MOST).max(LEAST_TOKENS);
        Pieces { count: vocab_size.div_ceil(tokens), tokens }
    }
}

/// Bytes of each part of the scratch memory: the parameters of sampling, the terms, the sampled tokens, the means of pieces,
/// and the scratch memory of sampling.
fn parts(op: &Denoise, device: &DeviceLimits, rows: usize) -> [u64; 5] {
    let width = op.table.columns.div_ceil(RUN_COLUMNS) * RUN_COLUMNS;
    let means = Pieces::of(op.table.rows).count * width * size_of::<f32>();
    let of_rows = [PARAMS_WORDS * size_of::<u32>(), TERMS_BYTES, size_of::<f32>(), means].map(|bytes| rows * bytes);
    let [params, terms, sampled, means] = of_rows.map(|bytes| (bytes as u64).next_multiple_of(ALIGNMENT));
    [params, terms, sampled, means, sampling::scratch_bytes(device, rows)]
}

pub(super) fn scratch_bytes(op: &Denoise, device: &DeviceLimits, rows: usize) -> u64 {
    parts(op, device, rows).into_iter().sum()
}

/// What the passes read and write next to each other's results.
struct Run<'a> {
    op: &'a Denoise,
    args: &'a GpuArgs<'a>,
    logits: Region,
    statistics: Region,
    params: Region,
    terms: Region,
    sampled: Region,
    means: Region,
}

pub(super) fn dispatches(op: &Denoise, args: &GpuArgs<'_>) -> Vec<Dispatch> {
    let (rows, logits) = (args.rows.most(), args.inputs[0]);
    let mut rest = args.scratch;
    let [params, terms, sampled, means, scratch] = parts(op, args.device, rows).map(|bytes| {
        let (part, after) = rest.split_at(bytes);
        rest = after;
        part
    });
    let run =
        Run { op, args, logits: logits.region, statistics: args.outputs[1].region, params, terms, sampled, means };
    let of_rows = sampling::Rows { logits, params, tokens: sampled, scratch };
    let first = run.statistics();
    [first].into_iter().chain(sampling::passes(args, &of_rows)).chain([run.means(), run.add_pieces()]).collect()
}

impl Run<'_> {
    fn runs(&self) -> usize {
        self.op.table.columns.div_ceil(RUN_COLUMNS)
    }

    fn statistics(&self) -> Dispatch {
        let Run { op, args, logits, statistics, params, terms, .. } = *self;
        let push = Push::new()
            .address(logits.address)
            .address(statistics.address)
            .address(terms.address)
            .address(params.address)
            .address(args.step)
            .word(args.rows.kind())
            .size(op.table.rows);
        // Reductions are trees, so the size is a power of two.
        let size = 1 << args.device.max_workgroup_size.min(256).ilog2();
        Dispatch {
            module: Module::DenoiseStatistics,
            constants: vec![(0, size)],
            push,
            groups: [1, args.rows.most(), 1].map(word),
            reads: vec![logits],
            writes: vec![statistics, params, terms],
        }
    }

    fn means(&self) -> Dispatch {
        let Run { op, args, logits, terms, means, .. } = *self;
        let (pieces, table) = (Pieces::of(op.table.rows), &op.table);
        let push = args.weights[0]
            .push()
            .address(logits.address)
            .address(terms.address)
            .address(means.address)
            .address(args.step)
            .word(args.rows.kind())
            .size(table.rows)
            .size(self.runs())
            .size(pieces.tokens)
            .size(pieces.count)
            .float(op.least_probability())
            .float(op.scale);
        let size = args.device.subgroup_size;
        let mut constants = vec![(0, size)];
        constants.extend(WeightLayout::new(table.format, table.rows, table.columns).constants());
        let groups = [self.runs().div_ceil(size as usize), args.rows.most().div_ceil(ROWS), pieces.count];
        Dispatch {
            module: Module::DenoiseMeans,
            constants,
            push,
            groups: groups.map(word),
            reads: vec![logits, terms],
            writes: vec![means],
        }
    }

    fn add_pieces(&self) -> Dispatch {
        let Run { op, args, statistics, sampled, means, .. } = *self;
        let y = args.outputs[0].region;
        let push = Push::new()
            .address(means.address)
            .address(sampled.address)
            .address(y.address)
            .address(statistics.address)
            .address(args.step)
            .word(args.rows.kind())
            .size(op.table.columns)
            .size(self.runs())
            .size(Pieces::of(op.table.rows).count);
        let dispatch = args.each_column(Module::DenoiseAddPieces, push, op.table.columns);
        Dispatch { reads: vec![means, sampled], writes: vec![y, statistics], ..dispatch }
    }
}

#[cfg(test)]
mod tests {
    use super::super::STATISTICS;
    use super::*;

    #[test]
    fn the_shaders_have_the_same_sizes() {
        assert!(include_str!("means.comp").contains(&format!("const uint ROWS = {ROWS};")));
        assert!(include_str!("statistics.comp").contains(&format!("const uint PARAMS_WORDS = {PARAMS_WORDS};")));
        assert!(include_str!("statistics.comp").contains(&format!("[row, {STATISTICS}]")));
    }

    #[test]
    fn pieces_cover_the_vocabulary() {
        for vocab_size in [1, 4096, 4097, 151_936, 262_144] {
            let pieces = Pieces::of(vocab_size);
            assert!(pieces.count * pieces.tokens >= vocab_size && (pieces.count - 1) * pieces.tokens < vocab_size);
            assert!(pieces.count <= 16);
        }
    }
}
