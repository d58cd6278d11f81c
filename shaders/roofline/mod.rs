//! Peak rates of the machine: loops whose only purpose is to measure the speed of memory and of a kernel's
//! instructions.
//!
//! - [`read`]: sequential reads of memory
//! - [`dot_products`]: dot products of 8-bit integers, in registers only
//! - [`multiply_adds`]: multiply-adds in float32, in registers only
//! - [`gpu`]: the same on a GPU
//! - `scalar`, `avx2`, `avx512`: the instruction sets; the products of tiles are next to their
//!   [kernel](crate::matmul::integer::amx)
//! - `sizes`: how much work one call does
//!
//! Each call is the work of one thread. The caller runs many of them on a team and measures the time.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
pub mod gpu;
mod scalar;
mod sizes;

use std::hint::black_box;

use crate::cpu::Kernel;
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
    // SAFETY: the machine supports the kernel, by the check above, and so has its features.
    #[cfg(target_arch = "x86_64")]
    let sum = unsafe {
        match kernel {
            Kernel::Scalar => scalar::read(blocks),
            Kernel::Avx2 | Kernel::Avx2Integer | Kernel::AvxVnni => avx2::read(blocks, prefetch_ahead),
            Kernel::Avx512Vnni | Kernel::AmxInt8 => avx512::read(blocks, prefetch_ahead),
        }
    };
    #[cfg(not(target_arch = "x86_64"))]
    let sum = {
        let _ = prefetch_ahead;
        scalar::read(blocks)
    };
    black_box(sum);
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
            Kernel::Scalar | Kernel::Avx2 => None,
            Kernel::Avx2Integer => Some(avx2::dot_products()),
            Kernel::AvxVnni => Some(avx2::dot_products_vnni()),
            Kernel::Avx512Vnni => Some(avx512::dot_products()),
            Kernel::AmxInt8 => Some(amx::tiles::form_products(ROUNDS)),
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    None
}

/// Multiplies and adds in float32, and returns the number of operations: two for each pair of values.
///
/// # Panics
/// When the machine does not support the kernel.
#[must_use]
pub fn multiply_adds(kernel: Kernel) -> u64 {
    check(kernel);
    // SAFETY: the machine supports the kernel, by the check above, and so has its features.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        match kernel {
            Kernel::Scalar => scalar::multiply_adds(),
            Kernel::Avx2 | Kernel::Avx2Integer | Kernel::AvxVnni => avx2::multiply_adds(),
            Kernel::Avx512Vnni | Kernel::AmxInt8 => avx512::multiply_adds(),
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    scalar::multiply_adds()
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
        #[cfg(target_arch = "x86_64")]
        for kernel in supported_kernels() {
            // SAFETY: the machine supports the kernel.
            let sum = unsafe {
                match kernel {
                    Kernel::Scalar => expected,
                    Kernel::Avx2 | Kernel::Avx2Integer | Kernel::AvxVnni => avx2::read(blocks, 4096),
                    Kernel::Avx512Vnni | Kernel::AmxInt8 => avx512::read(blocks, 0),
                }
            };
            assert_eq!(sum, expected, "{kernel}");
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
