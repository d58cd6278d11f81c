//! A row of logits on a GPU: four passes, each over all rows at once.
//!
//! 1. `largest.comp`: the best token of each tile of a row, and whether a logit is unusable
//! 2. `truncate.comp`: the best of the row, which settles a greedy choice; for a draw the *cutoff*, the last token by rank that is
//!    kept
//! 3. `weigh.comp`: the sum of what is kept of each tile
//! 4. `draw.comp`: the tile in which the sum passes the random number, and the token in it
//!
//! The first and the third give each tile to a workgroup and so fill a GPU with a single row; the others look at a row's tiles, or
//! at the few tokens near the best. A row that asks for nothing, or is settled, ends a workgroup at once.

use super::Terms;
use crate::gpu::{DeviceLimits, Dispatch, GpuArgs, Module, Push, Region};

/// Words of a row of choices: kind, inverse temperature, top_k, the magnitude of the floor, top_p and the random number.
pub(super) const WORDS: usize = 8;

/// What a row asks for, as `row.glsl` has it.
const NOTHING: u32 = 0;
const BEST: u32 = 1;
const DRAW: u32 = 2;

/// The row of choices that `row.glsl` reads.
pub(super) fn words(terms: Option<&Terms>) -> [u32; WORDS] {
    let Some(terms) = terms else { return [NOTHING; WORDS] };
    let Terms { greedy, inverse_temperature, top_k, floor, top_p, random } = *terms;
    let kind = if greedy { BEST } else { DRAW };
    let halves = |number: u64| [number as u32, (number >> 32) as u32];
    let ([p_low, p_high], [random_low, random_high]) = (halves(top_p), halves(random));
    [kind, inverse_temperature.to_bits(), top_k, floor.abs().to_bits(), p_low, p_high, random_low, random_high]
}

/// What a row of words stands for.
pub(super) fn of_words(words: &[u32; WORDS]) -> Option<Terms> {
    let [kind, inverse_temperature, top_k, floor, p_low, p_high, random_low, random_high] = *words;
    let number = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
    (kind != NOTHING).then(|| Terms {
        greedy: kind == BEST,
        inverse_temperature: f32::from_bits(inverse_temperature),
        top_k,
        floor: -f32::from_bits(floor),
        top_p: number(p_low, p_high),
        random: number(random_low, random_high),
    })
}

/// How a row is cut, and by what workgroups it is looked at.
struct Shape {
    /// Invocations of a workgroup for a tile.
    tile_group: u32,
    /// Invocations of a workgroup for a row.
    row_group: u32,
    /// Tokens in a tile; a multiple of `tile_group`.
    tile: usize,
    /// Tokens near the best that `truncate.comp` keeps at hand.
    near: u32,
}

impl Shape {
    fn new(device: &DeviceLimits, vocab_size: usize) -> Self {
        /// Enough to keep a workgroup's invocations busy, little enough that a row fills a GPU.
        const TILE: usize = 4096;
        // Sums are trees: sizes are powers of two.
        let group = |wished: u32| 1 << wished.min(device.max_workgroup_size).ilog2();
        let tile_group: u32 = group(TILE_GROUP);
        // `draw.comp` has an invocation for each tile.
        let least = vocab_size.div_ceil(tile_group as usize).next_multiple_of(tile_group as usize);
        // `truncate.comp` shares four numbers of 64 bits for each invocation, and two of 32 for each token near the best.
        let (most, near) = match device.shared_memory_bytes >> 10 {
            48.. => (1024, 1024),
            32.. => (512, 1024),
            _ => (256, 512),
        };
        // Waiting for one another costs more than it helps where subgroups are many.
        let row_group = group(most.min(32 * device.subgroup_size));
        Shape { tile_group, row_group, tile: least.max(TILE), near }
    }

    fn tiles(&self, vocab_size: usize) -> usize {
        vocab_size.div_ceil(self.tile)
    }
}

/// Invocations that share a tile, where the device allows as many. There are never more tiles.
const TILE_GROUP: u32 = 256;

/// Bytes of a row's state, and of each of its tiles.
const STATE_BYTES: usize = 16;
const TILE_BYTES: usize = 2 * size_of::<u64>();

pub(super) fn scratch_bytes(device: &DeviceLimits, rows: usize) -> u64 {
    let most_tiles = TILE_GROUP.min(device.max_workgroup_size) as usize;
    (rows * (STATE_BYTES + most_tiles * TILE_BYTES)) as u64
}

pub(super) fn dispatches(args: &GpuArgs<'_>) -> Vec<Dispatch> {
    let [logits, choices] = args.inputs else { return Vec::new() };
    let output = args.outputs[0].region;
    let shape = Shape::new(args.device, logits.width);
    let (rows, tiles) = (args.rows.most(), shape.tiles(logits.width));
    let part =
        |start: usize, bytes: usize| Region { address: args.scratch.address + start as u64, bytes: bytes as u64 };
    let states = part(0, rows * STATE_BYTES);
    let of_tiles = rows * tiles * size_of::<u64>();
    let (best, sums) = (part(rows * STATE_BYTES, of_tiles), part(rows * STATE_BYTES + of_tiles, of_tiles));
    let push = Push::new()
        .address(logits.region.address)
        .address(choices.region.address)
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
        groups: [tiles, rows, 1].map(|groups| u32::try_from(groups).unwrap_or(u32::MAX)),
        // Each pass stands on the one before: to say of all of them that they use everything costs no barrier.
        reads: [&[logits.region, choices.region], &state[..]].concat(),
        writes: state.to_vec(),
    };
    vec![
        pass(Module::ChooseLargest, shape.tile_group, tiles),
        pass(Module::ChooseTruncate, shape.row_group, 1),
        pass(Module::ChooseWeigh, shape.tile_group, tiles),
        pass(Module::ChooseDraw, shape.tile_group, 1),
    ]
}

#[cfg(test)]
mod tests {
    use super::super::TokenChoice;
    use super::*;

    #[test]
    fn words_say_what_is_asked_for() {
        let choice = TokenChoice { temperature: 0.5, top_k: 40, top_p: 0.9, min_p: 0.25, random: u64::MAX - 7 };
        for choice in [choice, TokenChoice { top_k: 1, ..choice }, TokenChoice { min_p: 1.0, top_p: 1.0, ..choice }] {
            let terms = Terms::of(&choice);
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
