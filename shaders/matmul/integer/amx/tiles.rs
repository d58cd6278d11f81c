//! The tile instructions of AMX: eight registers of up to sixteen rows of 64 bytes, and the product of two of them.
//!
//! Rust has no stable functions for them, so they are inline assembly, one instruction each. No type of Rust lives in a
//! tile register, so what one instruction leaves there is what the next one finds.

use std::arch::asm;
use std::arch::x86_64::{__cpuid, __cpuid_count, _xgetbv};
use std::sync::OnceLock;

/// Tile registers.
pub(super) const TILES: usize = 8;
/// Rows of a tile at most.
pub(super) const TILE_ROWS: usize = 16;
/// Bytes of a tile's row at most.
pub(super) const ROW_BYTES: usize = 64;

/// The shapes of the tiles, as `ldtilecfg` reads them.
#[repr(C, align(64))]
#[derive(Clone, Debug)]
pub(super) struct Shapes {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

impl Shapes {
    /// Rows, and bytes of a row, of each tile; (0, 0) for one that is not used.
    pub(super) const fn new(shapes: [(usize, usize); TILES]) -> Self {
        let mut new = Shapes { palette: 1, start_row: 0, reserved: [0; 14], row_bytes: [0; 16], rows: [0; 16] };
        let mut tile = 0;
        while tile < TILES {
            let (rows, row_bytes) = shapes[tile];
            assert!(rows <= TILE_ROWS && row_bytes <= ROW_BYTES && (rows == 0) == (row_bytes == 0));
            (new.rows[tile], new.row_bytes[tile]) = (rows as u8, row_bytes as u16);
            tile += 1;
        }
        new
    }

    /// Rows, and bytes of a row, of a tile.
    #[cfg(test)]
    pub(super) fn of(&self, tile: usize) -> (usize, usize) {
        (self.rows[tile].into(), self.row_bytes[tile].into())
    }
}

/// The tile registers of this thread, as long as the value lives; the only one, since there is one set of registers.
///
/// Tiles are named by constants below [`TILES`] that have a shape. Rows in memory are `stride` bytes apart, and pointers
/// must be good for what the shape says is read or written.
#[allow(clippy::missing_safety_doc)]
pub(super) trait Tiles {
    /// Gives the tiles their shapes.
    unsafe fn configure(shapes: &Shapes) -> Self;
    /// Makes a tile zero.
    unsafe fn zero<const TILE: usize>(&mut self);
    /// Reads a tile.
    unsafe fn load<const TILE: usize>(&mut self, rows: *const u8, stride: usize);
    /// Writes a tile.
    unsafe fn store<const TILE: usize>(&mut self, rows: *mut u8, stride: usize);
    /// `SUMS[m][n] += sum over k of A[m][k] * B[k / 4][n][k % 4]`, with `SUMS` in 32-bit integers, `A` in signed bytes, and
    /// `B` in groups of four signed bytes.
    unsafe fn add_products<const SUMS: usize, const A: usize, const B: usize>(&mut self);
}

/// The machine's own tiles.
pub(super) struct Amx(());

// SAFETY (of every block below): the caller has AMX and leave to use it, and vouches for tiles and pointers, as the trait
// says. Memory is read and written by assembly that does not claim to leave it alone.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Tiles for Amx {
    #[inline(always)]
    unsafe fn configure(shapes: &Shapes) -> Self {
        unsafe { asm!("ldtilecfg [{}]", in(reg) shapes, options(nostack, preserves_flags)) };
        Amx(())
    }

    #[inline(always)]
    unsafe fn zero<const TILE: usize>(&mut self) {
        unsafe { asm!("tilezero tmm{}", const TILE, options(nostack, preserves_flags)) };
    }

    #[inline(always)]
    unsafe fn load<const TILE: usize>(&mut self, rows: *const u8, stride: usize) {
        unsafe {
            asm!("tileloadd tmm{}, [{} + {}]", const TILE, in(reg) rows, in(reg) stride, options(nostack, preserves_flags));
        }
    }

    #[inline(always)]
    unsafe fn store<const TILE: usize>(&mut self, rows: *mut u8, stride: usize) {
        unsafe {
            asm!("tilestored [{} + {}], tmm{}", in(reg) rows, in(reg) stride, const TILE, options(nostack, preserves_flags));
        }
    }

    #[inline(always)]
    unsafe fn add_products<const SUMS: usize, const A: usize, const B: usize>(&mut self) {
        unsafe {
            asm!("tdpbssd tmm{}, tmm{}, tmm{}", const SUMS, const A, const B, options(nostack, preserves_flags));
        }
    }
}

impl Drop for Amx {
    #[inline(always)]
    fn drop(&mut self) {
        // Tiles in use make every switch of threads save 8 KiB, and keep the core from resting.
        // SAFETY: there is an `Amx`, so the machine has the instruction.
        unsafe { asm!("tilerelease", options(nostack, preserves_flags)) };
    }
}

/// Whether this machine multiplies tiles of bytes, lets this process do so, and does it right.
pub fn is_supported() -> bool {
    static SUPPORTED: OnceLock<bool> = OnceLock::new();
    // SAFETY: the check runs only where there is AMX, and leave to use it.
    *SUPPORTED.get_or_init(|| has_tiles() && ask_leave() && unsafe { check::<Amx>() })
}

/// Multiplies tiles in registers alone, `rounds` times four, and says how many operations those were: two for each pair of
/// bytes.
///
/// # Safety
/// Tiles must be supported ([`is_supported`]).
pub unsafe fn form_products(rounds: u64) -> u64 {
    // SAFETY: as the caller's; every tile has the full shape.
    unsafe { form_products_with::<Amx>(rounds) }
}

/// # Safety
/// As [`Tiles`].
pub(super) unsafe fn form_products_with<T: Tiles>(rounds: u64) -> u64 {
    const SUMS: u64 = 4;
    // SAFETY: every tile has the full shape; the rest is the caller's.
    unsafe {
        let mut tiles = T::configure(&Shapes::new([(TILE_ROWS, ROW_BYTES); TILES]));
        tiles.zero::<0>();
        tiles.zero::<1>();
        for _ in 0..rounds {
            tiles.add_products::<2, 0, 1>();
            tiles.add_products::<3, 0, 1>();
            tiles.add_products::<4, 0, 1>();
            tiles.add_products::<5, 0, 1>();
        }
    }
    2 * rounds * SUMS * (TILE_ROWS * TILE_ROWS * ROW_BYTES) as u64
}

/// Whether the processor has tiles and products of bytes, and the system saves tiles when it switches threads.
fn has_tiles() -> bool {
    const OSXSAVE: u32 = 1 << 27;
    const AMX_TILE: u32 = 1 << 24;
    const AMX_INT8: u32 = 1 << 25;
    const XCR0_TILE_SHAPES_AND_DATA: u64 = 0b11 << 17;
    if __cpuid(0).eax < 7 || __cpuid(1).ecx & OSXSAVE == 0 {
        return false;
    }
    let features = __cpuid_count(7, 0).edx;
    // SAFETY: OSXSAVE says that there is XGETBV.
    let saved = unsafe { enabled_states() };
    features & AMX_TILE != 0
        && features & AMX_INT8 != 0
        && saved & XCR0_TILE_SHAPES_AND_DATA == XCR0_TILE_SHAPES_AND_DATA
}

#[target_feature(enable = "xsave")]
fn enabled_states() -> u64 {
    // SAFETY: register 0 is there wherever the instruction is.
    unsafe { _xgetbv(0) }
}

/// Asks the kernel to let this process use tiles, which most need no room for; true where it does.
#[cfg(target_os = "linux")]
fn ask_leave() -> bool {
    const ARCH_REQ_XCOMP_PERM: libc::c_ulong = 0x1023;
    const XFEATURE_XTILEDATA: libc::c_ulong = 18;
    // SAFETY: the call reads and writes no memory of ours.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0 }
}

/// Other systems have their own ways, which nobody has tried yet.
#[cfg(not(target_os = "linux"))]
fn ask_leave() -> bool {
    false
}

/// Multiplies tiles of every number of rows, and compares with plain arithmetic.
///
/// An emulator or a hypervisor that gets tiles wrong, or a fault of the machine, then costs speed and not results.
///
/// # Safety
/// As [`Tiles`].
pub(super) unsafe fn check<T: Tiles>() -> bool {
    const K: usize = 32;
    let byte = |index: usize| (index.wrapping_mul(0x9e37_79b9) >> 13) as i8;
    // Further apart than a row, as activations are.
    let a: [[i8; K + 16]; TILE_ROWS] = std::array::from_fn(|m| std::array::from_fn(|k| byte(m * 101 + k)));
    let b: [[[i8; 4]; 16]; K / 4] = std::array::from_fn(|k| {
        std::array::from_fn(|n| std::array::from_fn(|four| byte(7000 + k * 64 + n * 4 + four)))
    });
    (1..=TILE_ROWS).all(|rows| {
        const UNTOUCHED: i32 = 0x5a5a_5a5a;
        let mut sums = [[UNTOUCHED; 16]; TILE_ROWS];
        let unused = (0, 0);
        let shapes = [(rows, K), (K / 4, ROW_BYTES), (rows, ROW_BYTES), unused, unused, unused, unused, unused];
        // SAFETY: the arrays are as large as the shapes; the caller has what the tiles need.
        unsafe {
            let mut tiles = T::configure(&Shapes::new(shapes));
            tiles.load::<0>(a.as_ptr().cast(), size_of_val(&a[0]));
            tiles.load::<1>(b.as_ptr().cast(), ROW_BYTES);
            tiles.zero::<2>();
            tiles.add_products::<2, 0, 1>();
            tiles.store::<2>(sums.as_mut_ptr().cast(), ROW_BYTES);
        }
        let product = |m: usize, n: usize| (0..K).map(|k| i32::from(a[m][k]) * i32::from(b[k / 4][n][k % 4])).sum();
        let expected = |m: usize, n: usize| if m < rows { product(m, n) } else { UNTOUCHED };
        sums.iter().enumerate().all(|(m, sums)| sums.iter().enumerate().all(|(n, &sum)| sum == expected(m, n)))
    })
}
