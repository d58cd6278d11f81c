//! Sampling on a GPU: four passes, each over all rows at once.
//!
//! 1. `largest.comp`: finds the best token of each tile of a row, and logits that are not finite
//! 2. `truncate.comp`: finds the best token of the row, which is the result of greedy sampling; for a draw it finds the
//!    *cutoff*, the last token by rank that is kept
//! 3. `weigh.comp`: sums the kept weights of each tile
//! 4. `draw.comp`: finds the tile, and in it the token, at which the running sum exceeds the random number
//!
//! Passes 1 and 3 use one workgroup per tile, so that a single row occupies a whole GPU. The other two read one entry
//! per tile, or the few tokens near the best. A workgroup returns immediately if its row requests no token or already
//! has its result.

use super::Terms;
use crate::gpu::{DeviceLimits, Dispatch, GpuArgs, Module, Push, Region, word};

/// Words of the parameters of a row: mode, inverse temperature, top_k, magnitude of the floor, top_p (2), random number
/// (2).
pub(super) const WORDS: usize = 8;

/// The mode of a row, as in `row.glsl`.
const NOTHING: u32 = 0;
const BEST: u32 = 1;
const DRAW: u32 = 2;

/// Encodes the parameters of a row for `row.glsl`.
pub(super) fn words(terms: Option<&Terms>) -> [u32; WORDS] {
    let Some(terms) = terms else { return [NOTHING; WORDS] };
    let Terms { greedy, inverse_temperature, top_k, floor, top_p, random } = *terms;
    let mode = if greedy { BEST } else { DRAW };
    let halves = |number: u64| [number as u32, (number >> 32) as u32];
    let ([p_low, p_high], [random_low, random_high]) = (halves(top_p), halves(random));
    [mode, inverse_temperature.to_bits(), top_k, floor.abs().to_bits(), p_low, p_high, random_low, random_high]
}

/// Decodes the result of [`words`].
pub(super) fn of_words(words: &[u32; WORDS]) -> Option<Terms> {
    let [mode, inverse_temperature, top_k, floor, p_low, p_high, random_low, random_high] = *words;
    let number = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
    (mode != NOTHING).then(|| Terms {
        greedy: mode == BEST,
        inverse_temperature: f32::from_bits(inverse_temperature),
        top_k,
        floor: -f32::from_bits(floor),
        top_p: number(p_low, p_high),
        random: number(random_low, random_high),
    })
}

/// How a row is split into tiles, and the sizes of the workgroups.
struct Shape {
    /// Invocations of a workgroup that processes a tile.
    tile_group: u32,
    /// Invocations of a workgroup that processes a row.
    row_group: u32,
    /// Tokens in a tile; a multiple of `tile_group`.
    tile: usize,
    /// Capacity for tokens near the best in the shared memory of `truncate.comp`.
    near: u32,
}

impl Shape {
    fn new(device: &DeviceLimits, vocab_size: usize) -> Self {
        /// Large enough to keep the invocations of a workgroup busy, small enough that a row occupies a GPU.
        const TILE: usize = 4096;
        // Reductions are trees, so the sizes are powers of two.
        let group = |wanted: u32| 1 << wanted.min(device.max_workgroup_size).ilog2();
        let tile_group: u32 = group(TILE_GROUP);
        // `draw.comp` has one invocation for each tile.
        let least = vocab_size.div_ceil(tile_group as usize).next_multiple_of(tile_group as usize);
        // The shared memory of `truncate.comp` holds four 64-bit numbers per invocation and two 32-bit numbers per near
        // token.
        let (most, near) = match device.shared_memory_bytes >> 10 {
            48.. => (1024, 1024),
            32.. => (512, 1024),
            _ => (256, 512),
        };
        // With many subgroups the barriers cost more than the additional invocations save.
        let row_group = group(most.min(32 * device.subgroup_size));
        Shape { tile_group, row_group, tile: least.max(TILE), near }
    }

    fn tiles(&self, vocab_size: usize) -> usize {
        vocab_size.div_ceil(self.tile)
    }
}

/// Invocations of a workgroup that processes a tile, if the device allows as many. A row never has more tiles.
const TILE_GROUP: u32 = 256;

/// Bytes of the state of a row, and of each of its tiles.
const STATE_BYTES: usize = 16;
const TILE_BYTES: usize = 2 * size_of::<u64>();

pub(super) fn scratch_bytes(device: &DeviceLimits, rows: usize) -> u64 {
    let most_tiles = TILE_GROUP.min(device.max_workgroup_size) as usize;
    (rows * (STATE_BYTES + most_tiles * TILE_BYTES)) as u64
}

pub(super) fn dispatches(args: &GpuArgs<'_>) -> Vec<Dispatch> {
    let [logits, params] = args.inputs else { return Vec::new() };
    let output = args.outputs[0].region;
    let shape = Shape::new(args.device, logits.width);
    let (rows, tiles) = (args.rows.most(), shape.tiles(logits.width));
    let region =
        |start: usize, bytes: usize| Region { address: args.scratch.address + start as u64, bytes: bytes as u64 };
    let states = region(0, rows * STATE_BYTES);
    let of_tiles = rows * tiles * size_of::<u64>();
    let (best, sums) = (region(rows * STATE_BYTES, of_tiles), region(rows * STATE_BYTES + of_tiles, of_tiles));
    let push = Push::new()
        .address(logits.region.address)
        .address(params.region.address)
        .address(states.address)
        .address(best.address)
        .address(sums.address)
        .address(output.address)
        .address(args.step)
        .word(args.rows.kind())
        .size(logits.width)
        .size(tiles)
        .size(shape.tile);
    let state = [states, best, sums, output];
    let pass = |module, group: u32, tiles: usize| Dispatch {
        module,
        constants: vec![(0, group), (1, shape.near)],
        push: push.clone(),
        groups: [tiles, rows, 1].map(word),
        // Each pass depends on the one before, so declaring all regions for all passes adds no barrier.
        reads: [&[logits.region, params.region], &state[..]].concat(),
        writes: state.to_vec(),
    };
    vec![
        pass(Module::SampleTokenLargest, shape.tile_group, tiles),
        pass(Module::SampleTokenTruncate, shape.row_group, 1),
        pass(Module::SampleTokenWeigh, shape.tile_group, tiles),
        pass(Module::SampleTokenDraw, shape.tile_group, 1),
    ]
}

#[cfg(test)]
mod tests {
    use super::super::RowSamplingParams;
    use super::*;

    #[test]
    fn words_round_trip() {
        let params = RowSamplingParams { temperature: 0.5, top_k: 40, top_p: 0.9, min_p: 0.25, random: u64::MAX - 7 };
        for params in
            [params, RowSamplingParams { top_k: 1, ..params }, RowSamplingParams { min_p: 1.0, top_p: 1.0, ..params }]
        {
            let terms = Terms::of(&params);
            assert_eq!(of_words(&words(Some(&terms))), Some(terms));
        }
        assert_eq!(of_words(&words(None)), None);
    }

    #[test]
    fn a_row_never_has_more_tiles_than_a_workgroup_has_invocations() {
        let device = |max_workgroup_size, shared_memory_bytes| DeviceLimits {
            subgroup_size: 32,
            max_workgroup_size,
            max_groups: [65_535; 3],
            shared_memory_bytes,
            compute_units: 132,
            cooperative_matrix: None,
        };
        for device in [device(1024, 48 << 10), device(128, 16 << 10), device(1000, 32 << 10)] {
            for vocab_size in [1, 512, 4097, 151_936, 262_144, 1 << 23] {
                let shape = Shape::new(&device, vocab_size);
                assert!(shape.tiles(vocab_size) <= shape.tile_group as usize, "{vocab_size}");
                assert!(shape.tile.is_multiple_of(shape.tile_group as usize) && shape.tile_group.is_power_of_two());
            }
        }
    }
}
