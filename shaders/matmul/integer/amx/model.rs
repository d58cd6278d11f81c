//! A model of the tile instructions in plain Rust, to test the kernel on CPUs without AMX.
//!
//! Like the hardware, it rejects tiles without a shape and operands whose shapes do not match.

use super::tiles::{ROW_BYTES, Shapes, TILE_ROWS, TILES, Tiles};

/// Tiles in memory.
pub(super) struct AmxModel {
    shapes: Shapes,
    tiles: [[[u8; ROW_BYTES]; TILE_ROWS]; TILES],
}

impl AmxModel {
    fn shape(&self, tile: usize) -> (usize, usize) {
        let shape = self.shapes.of(tile);
        assert!(shape.0 > 0, "tile {tile} has no shape");
        shape
    }
}

// SAFETY (of every block below): the caller guarantees the validity of the pointers, as the trait requires.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Tiles for AmxModel {
    // Nothing is inlined into the kernels that tests compile for it, which would take minutes.
    unsafe fn configure(shapes: &Shapes) -> Self {
        // The tiles of the hardware start as zero. These do not, because the kernel must not rely on it.
        AmxModel { shapes: shapes.clone(), tiles: [[[0x77; ROW_BYTES]; TILE_ROWS]; TILES] }
    }

    #[inline(never)]
    unsafe fn zero<const TILE: usize>(&mut self) {
        self.shape(TILE);
        self.tiles[TILE] = [[0; ROW_BYTES]; TILE_ROWS];
    }

    #[inline(never)]
    unsafe fn load<const TILE: usize>(&mut self, rows: *const u8, stride: usize) {
        let (shape_rows, row_bytes) = self.shape(TILE);
        self.tiles[TILE] = [[0; ROW_BYTES]; TILE_ROWS];
        for (index, row) in self.tiles[TILE][..shape_rows].iter_mut().enumerate() {
            let bytes = unsafe { std::slice::from_raw_parts(rows.add(index * stride), row_bytes) };
            row[..row_bytes].copy_from_slice(bytes);
        }
    }

    #[inline(never)]
    unsafe fn store<const TILE: usize>(&mut self, rows: *mut u8, stride: usize) {
        let (shape_rows, row_bytes) = self.shape(TILE);
        for (index, row) in self.tiles[TILE][..shape_rows].iter().enumerate() {
            let bytes = unsafe { std::slice::from_raw_parts_mut(rows.add(index * stride), row_bytes) };
            bytes.copy_from_slice(&row[..row_bytes]);
        }
    }

    #[inline(never)]
    unsafe fn add_products<const SUMS: usize, const A: usize, const B: usize>(&mut self) {
        let ((rows, sums_bytes), (a_rows, a_bytes), (b_rows, b_bytes)) =
            (self.shape(SUMS), self.shape(A), self.shape(B));
        assert!(SUMS != A && SUMS != B && A != B, "the three tiles must differ");
        assert!(rows == a_rows && sums_bytes == b_bytes && a_bytes == 4 * b_rows, "the shapes do not match");
        for row in 0..rows {
            for k in 0..a_bytes {
                let a = i32::from(self.tiles[A][row][k] as i8);
                let b = self.tiles[B][k / 4];
                for (sum, b) in
                    self.tiles[SUMS][row][..sums_bytes].as_chunks_mut::<4>().0.iter_mut().zip(b.as_chunks::<4>().0)
                {
                    *sum = (i32::from_le_bytes(*sum) + a * i32::from(b[k % 4] as i8)).to_le_bytes();
                }
            }
        }
    }
}
