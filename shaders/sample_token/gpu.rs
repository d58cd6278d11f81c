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

use crate::gpu::{DeviceLimits, DeviceValue, Dispatch, GpuArgs, Module, Push, Region, word};

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

/// Bytes of the scratch memory of the passes over `rows` rows.
pub(crate) fn scratch_bytes(device: &DeviceLimits, rows: usize) -> u64 {
    let most_tiles = TILE_GROUP.min(device.max_workgroup_size) as usize;
    (rows * (STATE_BYTES + most_tiles * TILE_BYTES)) as u64
}

/// The memory that the passes read and write.
pub(crate) struct Rows {
    /// [rows, vocab_size]
    pub logits: DeviceValue,
    /// [rows, [`PARAMS_WORDS`](super::PARAMS_WORDS)]
    pub params: Region,
    /// `[rows]`: the tokens.
    pub tokens: Region,
    /// At least [`scratch_bytes`].
    pub scratch: Region,
}

/// The passes over the rows of `args`.
pub(crate) fn passes(args: &GpuArgs<'_>, of: &Rows) -> Vec<Dispatch> {
    let Rows { logits, params, tokens, scratch } = *of;
    let shape = Shape::new(args.device, logits.width);
    let (rows, tiles) = (args.rows.most(), shape.tiles(logits.width));
    let region = |start: usize, bytes: usize| Region { address: scratch.address + start as u64, bytes: bytes as u64 };
    let states = region(0, rows * STATE_BYTES);
    let of_tiles = rows * tiles * size_of::<u64>();
    let (best, sums) = (region(rows * STATE_BYTES, of_tiles), region(rows * STATE_BYTES + of_tiles, of_tiles));
    let push = Push::new()
        .address(logits.region.address)
        .address(params.address)
        .address(states.address)
        .address(best.address)
        .address(sums.address)
        .address(tokens.address)
        .address(args.step)
        .word(args.rows.kind())
        .size(logits.width)
        .size(tiles)
        .size(shape.tile);
    let state = [states, best, sums, tokens];
    let pass = |module, group: u32, tiles: usize| Dispatch {
        module,
        constants: vec![(0, group), (1, shape.near)],
        push: push.clone(),
        groups: [tiles, rows, 1].map(word),
        // Each pass depends on the one before, so declaring all regions for all passes adds no barrier.
        reads: [&[logits.region, params], &state[..]].concat(),
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
    use super::*;

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
