//! Peak rates of the machine: loops whose only purpose is to measure the speed of memory and of a kernel's
//! instructions.
//!
//! - [`read`]: sequential reads of memory
//! - [`dot_products`]: dot products of 8-bit integers, in registers only
//! - [`multiply_adds`]: multiply-adds in float32, in registers only
//! - [`gpu`]: the same on a GPU
//! - `scalar`, `avx2`, `avx512`, `neon`: the instruction sets; the products of tiles are next to their kernel
//! - `sizes`: how much work one call does
//!
//! Each call is the work of one thread. The caller runs many of them on a team and measures the time.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
pub mod gpu;
#[cfg(target_arch = "aarch64")]
mod neon;
mod scalar;
mod sizes;

use std::hint::black_box;

use crate::cpu::{InstructionSet, Kernel};
#[cfg(target_arch = "x86_64")]
use crate::matmul::integer::amx;
use sizes::READ_BYTES;
#[cfg(target_arch = "x86_64")]
use sizes::ROUNDS;

/// Reads all bytes except the last few, which are fewer than 512. Prefetches `prefetch_ahead` bytes ahead, except in the
/// portable kernel; 0 leaves this to the hardware.
///
/// # Panics
/// When the machine does not support the kernel.
pub fn read(kernel: Kernel, bytes: &[u8], prefetch_ahead: usize) {
    check(kernel);
    let (blocks, _) = bytes.as_chunks::<READ_BYTES>();
    black_box(exclusive_or(kernel, blocks, prefetch_ahead));
}

/// The exclusive or of all words. The machine must support the kernel.
fn exclusive_or(kernel: Kernel, blocks: &[[u8; READ_BYTES]], prefetch_ahead: usize) -> u64 {
    match kernel.instruction_set() {
        // SAFETY: the machine supports the kernel, by the caller's promise, and so has its features.
        #[cfg(target_arch = "x86_64")]
        InstructionSet::Avx2 => unsafe { avx2::read(blocks, prefetch_ahead) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        InstructionSet::Avx512 => unsafe { avx512::read(blocks, prefetch_ahead) },
        // SAFETY: as above.
        #[cfg(target_arch = "aarch64")]
        InstructionSet::Neon => unsafe { neon::read(blocks, prefetch_ahead) },
        _ => scalar::read(blocks),
    }
}

/// Computes dot products of integers and returns the number of operations: two for each pair of 8-bit integers. `None`
/// for the kernels that compute in float32.
///
/// # Panics
/// When the machine does not support the kernel.
#[must_use]
pub fn dot_products(kernel: Kernel) -> Option<u64> {
    check(kernel);
    // SAFETY: the machine supports the kernel, by the check above, and so has its features.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        match kernel {
            Kernel::Avx2Integer => Some(avx2::dot_products()),
            Kernel::AvxVnni => Some(avx2::dot_products_vnni()),
            Kernel::Avx512Vnni => Some(avx512::dot_products()),
            Kernel::AmxInt8 => Some(amx::tiles::form_products(ROUNDS)),
            _ => None,
        }
    }
    // SAFETY: as above.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        match kernel {
            Kernel::NeonInteger => Some(neon::dot_products()),
            Kernel::NeonDot => Some(neon::dot_products_of_four()),
            Kernel::NeonI8mm => Some(neon::matrix_products()),
            _ => None,
        }
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    None
}

/// Multiplies and adds in float32, and returns the number of operations: two for each pair of values.
///
/// # Panics
/// When the machine does not support the kernel.
#[must_use]
pub fn multiply_adds(kernel: Kernel) -> u64 {
    check(kernel);
    match kernel.instruction_set() {
        // SAFETY: the machine supports the kernel, by the check above, and so has its features.
        #[cfg(target_arch = "x86_64")]
        InstructionSet::Avx2 => unsafe { avx2::multiply_adds() },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        InstructionSet::Avx512 => unsafe { avx512::multiply_adds() },
        // SAFETY: as above.
        #[cfg(target_arch = "aarch64")]
        InstructionSet::Neon => unsafe { neon::multiply_adds() },
        _ => scalar::multiply_adds(),
    }
}

fn check(kernel: Kernel) {
    assert!(kernel.is_supported(), "this machine cannot run the {kernel} kernel");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::supported_kernels;

    #[test]
    fn every_kernel_reads_every_byte_except_the_last_few() {
        let bytes: Vec<u8> = (0..5 * READ_BYTES + 7).map(|index| (index % 251) as u8).collect();
        let (blocks, rest) = bytes.as_chunks::<READ_BYTES>();
        assert_eq!((blocks.len(), rest.len()), (5, 7));
        let words = blocks.as_flattened().as_chunks::<8>().0;
        let expected = words.iter().fold(0, |sum: u64, word| sum ^ u64::from_le_bytes(*word));
        assert_eq!(scalar::read(blocks), expected);
        for kernel in supported_kernels() {
            for prefetch_ahead in [0, 4096] {
                assert_eq!(exclusive_or(kernel, blocks, prefetch_ahead), expected, "{kernel}");
            }
        }
        read(Kernel::Scalar, &[], 0);
    }

    #[test]
    fn only_integer_kernels_have_a_rate_of_dot_products() {
        for kernel in supported_kernels() {
            assert_eq!(dot_products(kernel).is_some(), kernel.is_integer(), "{kernel}");
            assert!(multiply_adds(kernel) > 0);
        }
    }
}
