//! The contract of a block format.

#[cfg(target_arch = "x86_64")]
use super::integer::MAX_BLOCK_LEN;
use super::integer::{IntegerBlock, IntegerLayout};
use super::pack::Packing;
#[cfg(target_arch = "x86_64")]
use super::{avx2, avx512};

/// One block format: its sizes, and how the bytes of a block decode to values.
pub trait BlockFormat {
    /// Values in a block.
    const BLOCK_LEN: usize;
    /// Bytes in a block.
    const BLOCK_BYTES: usize;
    /// Bytes of the float32 scale at the start of a block of floating-point codes; 0 for formats without one.
    const SCALE_BYTES: usize = 0;
    /// The format's number in a GGUF tensor table, or one that no other format has.
    const GGML_ID: u32;
    /// Whether GGUF files have the format.
    const IS_IN_GGUF: bool = true;
    /// The format's usual name.
    const NAME: &'static str;
    /// The layout of the integers in a block; `None` for formats that the integer kernels do not support.
    const INTEGERS: Option<IntegerLayout> = None;
    /// Whether the format has a [`Self::decode_pair_avx512`].
    const DECODES_PAIRS: bool = false;
    /// How values become blocks of the format.
    const PACKING: Packing = Packing::Never;

    /// Decodes one block: `block` has [`Self::BLOCK_BYTES`] bytes, `out` has [`Self::BLOCK_LEN`] values.
    ///
    /// This is the definition of the format. Every other decoder must produce the same bits.
    fn decode(block: &[u8], out: &mut [f32]);

    /// Unpacks one block for the integer kernels. Fields that the format's layout does not use are left unchanged.
    ///
    /// The values computed from the unpacked block equal those of [`Self::decode`], bit for bit.
    ///
    /// # Panics
    /// When the format has no integers (see [`Self::INTEGERS`]).
    #[inline(always)]
    fn integers(block: &[u8], out: &mut IntegerBlock) {
        let _ = (block, out);
        unreachable!("{} has no integers", Self::NAME)
    }

    /// Stores the integers of a block: the inverse of [`Self::integers`].
    ///
    /// # Panics
    /// When the format cannot be packed from integers (see [`Self::PACKING`]).
    fn pack(integers: &IntegerBlock, block: &mut [u8]) {
        let _ = (integers, block);
        unreachable!("{} is not packed from integers", Self::NAME)
    }

    /// Stores one value, rounded to the nearest that the format has.
    ///
    /// # Panics
    /// When the format does not store values by themselves (see [`Self::PACKING`]).
    fn pack_value(value: f32, block: &mut [u8]) {
        let _ = (value, block);
        unreachable!("{} does not store values by themselves", Self::NAME)
    }

    /// Decodes consecutive blocks.
    #[inline(always)]
    fn decode_blocks(bytes: &[u8], out: &mut [f32]) {
        for (block, out) in bytes.chunks_exact(Self::BLOCK_BYTES).zip(out.chunks_exact_mut(Self::BLOCK_LEN)) {
            Self::decode(block, out);
        }
    }

    /// Decodes one block inside a function compiled for AVX2, FMA and F16C, and passes the values to `sink`, eight at a
    /// time and in order. Only for formats whose block length is a multiple of eight, and for formats with one value per
    /// block: for these, `block` is a multiple of eight values.
    ///
    /// The default leaves it to the compiler to vectorise [`Self::decode`]. A format overrides it where intrinsics are
    /// faster. The values equal those of [`Self::decode`], bit for bit.
    ///
    /// # Safety
    /// The CPU must support AVX2, FMA and F16C.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn decode_eights_avx2(block: &[u8], sink: &mut impl avx2::Sink) {
        // SAFETY: the caller guarantees the CPU features.
        unsafe { decode_in_memory::<Self>(block, sink) };
    }

    /// Like [`Self::decode_eights_avx2`], for one block of each of four rows.
    ///
    /// Formats with long blocks override it to interleave the rows: a sink that sums has one dependent chain of
    /// additions per row, and only work on the other rows hides their latency.
    ///
    /// # Safety
    /// The CPU must support AVX2, FMA and F16C.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn decode_four_rows_avx2<S: avx2::Sink>(blocks: [&[u8]; 4], [a, b, c, d]: [&mut S; 4]) {
        // SAFETY: the caller guarantees the CPU features.
        unsafe {
            Self::decode_eights_avx2(blocks[0], a);
            Self::decode_eights_avx2(blocks[1], b);
            Self::decode_eights_avx2(blocks[2], c);
            Self::decode_eights_avx2(blocks[3], d);
        }
    }

    /// Decodes one block of each of two rows inside a function compiled for AVX-512 (F, BW, DQ, VBMI). The values equal those of
    /// [`Self::decode`], bit for bit.
    ///
    /// # Safety
    /// The CPU must support these features.
    ///
    /// # Panics
    /// When the format has none (see [`Self::DECODES_PAIRS`]).
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn decode_pair_avx512(blocks: [&[u8]; 2], sink: &mut impl avx512::PairSink) {
        let _ = (blocks, sink);
        unreachable!("{} is not decoded in pairs", Self::NAME)
    }

    /// Decodes consecutive blocks inside a function compiled for AVX2, FMA and F16C.
    ///
    /// # Safety
    /// The CPU must support AVX2, FMA and F16C.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn decode_blocks_avx2(bytes: &[u8], out: &mut [f32]) {
        if Self::BLOCK_LEN == 1 {
            let (eights, last) = bytes.split_at(bytes.len() - bytes.len() % (avx2::LANES * Self::BLOCK_BYTES));
            let (out, last_out) = out.split_at_mut(eights.len() / Self::BLOCK_BYTES);
            // SAFETY: the caller guarantees the CPU features.
            unsafe { Self::decode_eights_avx2(eights, &mut avx2::Store { out }) };
            return Self::decode_blocks(last, last_out);
        }
        for (block, out) in bytes.chunks_exact(Self::BLOCK_BYTES).zip(out.chunks_exact_mut(Self::BLOCK_LEN)) {
            // SAFETY: the caller guarantees the CPU features.
            unsafe { Self::decode_eights_avx2(block, &mut avx2::Store { out }) };
        }
    }
}

/// Decodes a block with [`BlockFormat::decode`], and passes the values to `sink`.
///
/// # Safety
/// The CPU must support AVX2.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(super) unsafe fn decode_in_memory<F: BlockFormat + ?Sized>(block: &[u8], sink: &mut impl avx2::Sink) {
    let mut values = [0.0; MAX_BLOCK_LEN];
    F::decode(block, &mut values[..F::BLOCK_LEN]);
    for (eight, values) in values[..F::BLOCK_LEN].chunks_exact(avx2::LANES).enumerate() {
        // SAFETY: the caller guarantees the CPU features.
        unsafe { sink.take(eight, avx2::load(values)) };
    }
}
