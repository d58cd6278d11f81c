//! The kernel that runs a task, chosen by instruction set and format.

#[cfg(target_arch = "x86_64")]
use super::avx2;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
use super::integer;
#[cfg(target_arch = "aarch64")]
use super::neon;
use super::{Task, scalar};
use crate::cpu::Kernel;
use crate::quant::dispatch;

impl Task<'_> {
    /// Computes the task. The CPU must support the kernel.
    pub fn run(&self, kernel: Kernel) {
        let kernel = if self.integers.is_some() { kernel } else { kernel.for_float_weights() };
        match kernel {
            Kernel::Scalar => dispatch!(self.weight.format, F => scalar::run::<F>(self)),
            // SAFETY: the ops that create tasks check that the CPU supports the kernel. Every kernel of x86-64 except the
            // portable one also requires AVX2.
            #[cfg(target_arch = "x86_64")]
            _ => unsafe { self.run_x86_64(kernel) },
            // SAFETY: the ops that create tasks check that the CPU supports the kernel.
            #[cfg(target_arch = "aarch64")]
            _ => unsafe { self.run_aarch64(kernel) },
            #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
            _ => unreachable!("this CPU has no {kernel} kernel"),
        }
    }

    /// # Safety
    /// The CPU must support the kernel.
    #[cfg(target_arch = "x86_64")]
    unsafe fn run_x86_64(&self, kernel: Kernel) {
        // SAFETY: the caller guarantees the CPU features.
        unsafe {
            match kernel {
                Kernel::Avx2 => dispatch!(self.weight.format, F => avx2::run::<F>(self)),
                Kernel::Avx2Integer => dispatch!(self.weight.format, F => integer::avx2::run::<F>(self)),
                Kernel::AvxVnni => dispatch!(self.weight.format, F => integer::avx2::run_vnni::<F>(self)),
                Kernel::Avx512Vnni => dispatch!(self.weight.format, F => integer::avx512::run::<F>(self)),
                Kernel::AmxInt8 => dispatch!(self.weight.format, F => integer::amx::run::<F>(self)),
                _ => unreachable!("no x86-64 CPU has the {kernel} kernel"),
            }
        }
    }

    /// # Safety
    /// The CPU must support the kernel.
    #[cfg(target_arch = "aarch64")]
    unsafe fn run_aarch64(&self, kernel: Kernel) {
        // SAFETY: the caller guarantees the CPU features.
        unsafe {
            match kernel {
                Kernel::Neon => dispatch!(self.weight.format, F => neon::run::<F>(self)),
                Kernel::NeonInteger => dispatch!(self.weight.format, F => integer::neon::run::<F>(self)),
                Kernel::NeonDot => dispatch!(self.weight.format, F => integer::neon::run_dot::<F>(self)),
                Kernel::NeonI8mm => dispatch!(self.weight.format, F => integer::neon::run_i8mm::<F>(self)),
                _ => unreachable!("no aarch64 CPU has the {kernel} kernel"),
            }
        }
    }
}
