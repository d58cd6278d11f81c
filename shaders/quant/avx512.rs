//! What AVX-512 decoders of two weight rows pass their values to.

use std::arch::x86_64::__m512;

/// The destination of values of two weight rows. A trait for the reason of [`avx2::Sink`](super::avx2::Sink).
pub trait PairSink {
    /// Receives the values `8 * eight..8 * eight + 8` of a block of each row: those of the first row in the low half. A decoder
    /// calls it with ascending `eight`.
    ///
    /// # Safety
    /// The CPU must support AVX-512 (F, DQ).
    unsafe fn take(&mut self, eight: usize, values: __m512);
}
