//! The tile instructions of AMX: eight registers of up to sixteen rows of 64 bytes, and the product of two of them.
//!
//! Rust has no stable intrinsics for them, so they are inline assembly, one instruction each. The compiler never
//! allocates tile registers, so their contents are preserved between the instructions.

use std::arch::asm;
use std::arch::x86_64::{__cpuid, __cpuid_count, _xgetbv};
use std::sync::OnceLock;

/// The number of tile registers.
pub(super) const TILES: usize = 8;
/// The most rows of a tile.
pub(super) const TILE_ROWS: usize = 16;
/// The most bytes of a row of a tile.
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
    /// The rows of each tile and the bytes of a row; (0, 0) for an unused tile.
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

    /// The rows of a tile and the bytes of a row.
    #[cfg(test)]
    pub(super) fn of(&self, tile: usize) -> (usize, usize) {
        (self.rows[tile].into(), self.row_bytes[tile].into())
    }
}

/// The tile registers of this thread. Only one value may exist at a time, because a thread has one set of registers.
///
/// Safety: a tile is a constant below [`TILES`] and must have a shape. Rows in memory are `stride` bytes apart, and
/// pointers must be valid for the bytes that the shape determines.
#[allow(clippy::missing_safety_doc)]
pub(super) trait Tiles {
    /// Sets the shapes of the tiles.
    unsafe fn configure(shapes: &Shapes) -> Self;
    /// Sets a tile to zero.
    unsafe fn zero<const TILE: usize>(&mut self);
    /// Loads a tile from memory.
    unsafe fn load<const TILE: usize>(&mut self, rows: *const u8, stride: usize);
    /// Stores a tile to memory.
    unsafe fn store<const TILE: usize>(&mut self, rows: *mut u8, stride: usize);
    /// `SUMS[m][n] += sum over k of A[m][k] * B[k / 4][n][k % 4]`, with `SUMS` in 32-bit integers, `A` in signed bytes,
    /// and `B` in groups of four signed bytes.
    unsafe fn add_products<const SUMS: usize, const A: usize, const B: usize>(&mut self);
}

/// The tiles of the hardware.
pub(super) struct Amx(());

// SAFETY (of every block below): the caller guarantees that AMX is available and permitted, and the validity of tiles
// and pointers, as the trait requires. The assembly does not have the option `nomem`, so the compiler knows that it
// accesses memory.
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
        // While tiles are in use, every context switch saves 8 KiB, and the core cannot enter deep idle states.
        // SAFETY: an `Amx` exists, so the CPU supports the instruction.
        unsafe { asm!("tilerelease", options(nostack, preserves_flags)) };
    }
}

/// Whether the CPU supports tile products of bytes, the system permits them, and they give correct results.
pub fn is_supported() -> bool {
    static SUPPORTED: OnceLock<bool> = OnceLock::new();
    // SAFETY: the check runs only if AMX is available and permitted.
    *SUPPORTED.get_or_init(|| has_tiles() && request_permission() && unsafe { check::<Amx>() })
}

/// Multiplies tiles in registers, `rounds` times four, and returns the number of operations: two for each pair of
/// bytes.
///
/// # Safety
/// Tiles must be supported ([`is_supported`]).
pub unsafe fn form_products(rounds: u64) -> u64 {
    // SAFETY: the caller guarantees that tiles are supported; every tile has the full shape.
    unsafe { form_products_with::<Amx>(rounds) }
}

/// # Safety
/// As [`Tiles`].
pub(super) unsafe fn form_products_with<T: Tiles>(rounds: u64) -> u64 {
    const SUMS: u64 = 4;
    // SAFETY: every tile has the full shape; the caller guarantees the rest.
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

/// Whether the CPU supports tiles and byte products, and the system saves tiles on context switches.
fn has_tiles() -> bool {
    const OSXSAVE: u32 = 1 << 27;
    const AMX_TILE: u32 = 1 << 24;
    const AMX_INT8: u32 = 1 << 25;
    const XCR0_TILE_SHAPES_AND_DATA: u64 = 0b11 << 17;
    if __cpuid(0).eax < 7 || __cpuid(1).ecx & OSXSAVE == 0 {
        return false;
    }
    let features = __cpuid_count(7, 0).edx;
    // SAFETY: the OSXSAVE bit is set, so XGETBV is available.
    let saved = unsafe { enabled_states() };
    features & AMX_TILE != 0
        && features & AMX_INT8 != 0
        && saved & XCR0_TILE_SHAPES_AND_DATA == XCR0_TILE_SHAPES_AND_DATA
}

#[target_feature(enable = "xsave")]
fn enabled_states() -> u64 {
    // SAFETY: register 0 exists wherever the instruction does.
    unsafe { _xgetbv(0) }
}

/// Requests permission to use tiles from the Linux kernel; returns whether it is granted. Linux requires this because
/// most processes do not need memory for the state of tiles.
#[cfg(target_os = "linux")]
fn request_permission() -> bool {
    const ARCH_REQ_XCOMP_PERM: libc::c_ulong = 0x1023;
    const XFEATURE_XTILEDATA: libc::c_ulong = 18;
    // SAFETY: the call does not access memory of this process.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0 }
}

/// Other operating systems are not supported yet.
#[cfg(not(target_os = "linux"))]
fn request_permission() -> bool {
    false
}

/// Multiplies tiles with every number of rows and compares the results with plain arithmetic.
///
/// If an emulator, a hypervisor or the hardware computes tiles incorrectly, the kernel is not used.
///
/// # Safety
/// As [`Tiles`].
pub(super) unsafe fn check<T: Tiles>() -> bool {
    const K: usize = 32;
    let byte = |index: usize| (index.wrapping_mul(0x9e37_79b9) >> 13) as i8;
    // The stride is larger than a row, as with activations.
    let a: [[i8; K + 16]; TILE_ROWS] = std::array::from_fn(|m| std::array::from_fn(|k| byte(m * 101 + k)));
    let b: [[[i8; 4]; 16]; K / 4] = std::array::from_fn(|k| {
        std::array::from_fn(|n| std::array::from_fn(|four| byte(7000 + k * 64 + n * 4 + four)))
    });
    (1..=TILE_ROWS).all(|rows| {
        const UNTOUCHED: i32 = 0x5a5a_5a5a;
        let mut sums = [[UNTOUCHED; 16]; TILE_ROWS];
        let unused = (0, 0);
        let shapes = [(rows, K), (K / 4, ROW_BYTES), (rows, ROW_BYTES), unused, unused, unused, unused, unused];
        // SAFETY: the arrays have the sizes of the shapes; the caller guarantees that tiles are supported.
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
