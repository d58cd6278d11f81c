//! The kernel that runs a task, chosen by instruction set and format.

use super::{Task, scalar};
#[cfg(target_arch = "x86_64")]
use super::{avx2, integer};
use crate::cpu::Kernel;
use crate::quant::dispatch;

impl Task<'_> {
    /// Computes the task. The CPU must support the kernel.
    #[cfg(target_arch = "x86_64")]
    pub fn run(&self, kernel: Kernel) {
        let kernel = match self.integers {
            Some(_) => kernel,
            // Floating-point weights are multiplied in float32.
            None if kernel.is_integer() => Kernel::Avx2,
            None => kernel,
        };
        // SAFETY: the ops that create tasks check that the CPU supports the kernel. Every integer kernel also requires
        // AVX2.
        unsafe {
            match kernel {
                Kernel::Scalar => dispatch!(self.weight.format, F => scalar::run::<F>(self)),
                Kernel::Avx2 => dispatch!(self.weight.format, F => avx2::run::<F>(self)),
                Kernel::Avx2Integer => dispatch!(self.weight.format, F => integer::avx2::run::<F>(self)),
                Kernel::AvxVnni => dispatch!(self.weight.format, F => integer::avx2::run_vnni::<F>(self)),
                Kernel::Avx512Vnni => dispatch!(self.weight.format, F => integer::avx512::run::<F>(self)),
                Kernel::AmxInt8 => dispatch!(self.weight.format, F => integer::amx::run::<F>(self)),
            }
        }
    }

    /// Computes the task.
    #[cfg(not(target_arch = "x86_64"))]
    pub fn run(&self, _kernel: Kernel) {
        dispatch!(self.weight.format, F => scalar::run::<F>(self));
    }
}
