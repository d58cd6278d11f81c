//! Prefetches of memory, for each instruction set.

/// Asks the CPU to read the cache line of an address into its first-level cache. No address faults. Nothing happens on
/// CPUs for which no instruction is known.
#[inline(always)]
pub fn prefetch(address: *const u8) {
    // SAFETY: a prefetch never faults, and every x86-64 CPU supports it.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(address.cast());
    }
    // SAFETY: as above, for aarch64.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        std::arch::asm!("prfm pldl1keep, [{}]", in(reg) address, options(nostack, readonly, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = address;
}
