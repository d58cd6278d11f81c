//! What the machine can do at most with a kernel's instructions: work without any purpose but its speed.
//!
//! - [`read`]: memory, in order
//! - [`dot_products`]: dot products of 8-bit integers, on registers alone
//! - [`multiply_adds`]: multiplications with additions in float32, on registers alone
//! - [`gpu`]: the like on a GPU
//! - `scalar`, `avx2`, `avx512`: the instruction sets; the products of tiles are with their
//!   [kernel](crate::matmul::integer::amx)
//!
//! Each is one thread's part; whoever measures runs many parts on a team, by the clock.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
pub mod gpu;
mod scalar;

use std::hint::black_box;

use crate::cpu::Kernel;
#[cfg(target_arch = "x86_64")]
use crate::matmul::integer::amx;

/// How often each register is used in one call of [`dot_products`] or [`multiply_adds`]: some tens of microseconds.
const ROUNDS: u64 = 1 << 14;

/// How far ahead memory is asked for, in bytes: as in the kernels of [`matmul`](crate::matmul).
const PREFETCH_AHEAD: usize = 8 * 1024;

/// Bytes read in a row by one round of [`read`].
const READ_BYTES: usize = 512;

/// Reads all bytes but for the last few, fewer than 512.
///
/// # Panics
/// When the machine does not support the kernel.
pub fn read(kernel: Kernel, bytes: &[u8]) {
    check(kernel);
    let (blocks, _) = bytes.as_chunks::<READ_BYTES>();
    // SAFETY: the machine supports the kernel, by the check above, and so has its features.
    #[cfg(target_arch = "x86_64")]
    let sum = unsafe {
        match kernel {
            Kernel::Scalar => scalar::read(blocks),
            Kernel::Avx2 | Kernel::Avx2Integer | Kernel::AvxVnni => avx2::read(blocks),
            Kernel::Avx512Vnni | Kernel::AmxInt8 => avx512::read(blocks),
        }
    };
    #[cfg(not(target_arch = "x86_64"))]
    let sum = scalar::read(blocks);
    black_box(sum);
}

/// Forms dot products of integers and says how many operations those were: two for each pair of 8-bit integers. `None`
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

/// Multiplies and adds in float32, and says how many operations those were: two for each pair of values.
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
    fn every_kernel_reads_every_byte_but_the_last_few() {
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
                    Kernel::Avx2 | Kernel::Avx2Integer | Kernel::AvxVnni => avx2::read(blocks),
                    Kernel::Avx512Vnni | Kernel::AmxInt8 => avx512::read(blocks),
                }
            };
            assert_eq!(sum, expected, "{kernel}");
        }
        read(Kernel::Scalar, &[]);
    }

    #[test]
    fn a_kernel_has_a_peak_for_what_it_computes_with() {
        for kernel in supported_kernels() {
            assert_eq!(dot_products(kernel).is_some(), kernel.is_integer(), "{kernel}");
            assert!(multiply_adds(kernel) > 0);
        }
    }
}
