//! The kernel that runs a task, chosen by instruction set and format.

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
use super::integer;
#[cfg(target_arch = "aarch64")]
use super::neon;
use super::{Task, scalar};
#[cfg(target_arch = "x86_64")]
use super::{avx2, avx512, avx512_bf16};
use crate::cpu::{InstructionSet, Kernel};
use crate::quant::dispatch;

impl Task<'_> {
    /// Computes the task.
    ///
    /// # Safety
    /// The CPU supports the kernel, and no other task writes these outputs meanwhile.
    pub unsafe fn run(&self, kernel: Kernel) {
        // SAFETY: the caller guarantees the CPU features. Every kernel of x86-64 except the portable one also requires AVX2.
        unsafe {
            match (self.integers, self.rounded) {
                (Some(_), _) => self.run_in_integers(kernel),
                #[cfg(target_arch = "x86_64")]
                (_, Some(rows)) => avx512_bf16::run(self, rows),
                _ => self.run_in_floats(kernel.instruction_set()),
            }
        }
    }

    /// # Safety
    /// The CPU must support the instruction set.
    unsafe fn run_in_floats(&self, instruction_set: InstructionSet) {
        // SAFETY: the caller guarantees the CPU features.
        unsafe {
            match instruction_set {
                InstructionSet::Portable => dispatch!(self.weight.format, F => scalar::run::<F>(self)),
                #[cfg(target_arch = "x86_64")]
                InstructionSet::Avx2 => dispatch!(self.weight.format, F => avx2::run::<F>(self)),
                #[cfg(target_arch = "x86_64")]
                InstructionSet::Avx512 => dispatch!(self.weight.format, F => avx512::run::<F>(self)),
                #[cfg(target_arch = "aarch64")]
                InstructionSet::Neon => dispatch!(self.weight.format, F => neon::run::<F>(self)),
                #[allow(unreachable_patterns, reason = "the sets of other CPUs")]
                _ => unreachable!("this CPU has no {instruction_set:?}"),
            }
        }
    }

    /// # Safety
    /// The CPU must support the kernel.
    unsafe fn run_in_integers(&self, kernel: Kernel) {
        // SAFETY: the caller guarantees the CPU features.
        unsafe {
            match kernel {
                #[cfg(target_arch = "x86_64")]
                Kernel::Avx2Integer => dispatch!(self.weight.format, F => integer::avx2::run::<F>(self)),
                #[cfg(target_arch = "x86_64")]
                Kernel::AvxVnni => dispatch!(self.weight.format, F => integer::avx2::run_vnni::<F>(self)),
                #[cfg(target_arch = "x86_64")]
                Kernel::Avx512Vnni => dispatch!(self.weight.format, F => integer::avx512::run::<F>(self)),
                #[cfg(target_arch = "x86_64")]
                Kernel::AmxInt8 => dispatch!(self.weight.format, F => integer::amx::run::<F>(self)),
                #[cfg(target_arch = "aarch64")]
                Kernel::NeonInteger => dispatch!(self.weight.format, F => integer::neon::run::<F>(self)),
                #[cfg(target_arch = "aarch64")]
                Kernel::NeonDot => dispatch!(self.weight.format, F => integer::neon::run_dot::<F>(self)),
                #[cfg(target_arch = "aarch64")]
                Kernel::NeonI8mm => dispatch!(self.weight.format, F => integer::neon::run_i8mm::<F>(self)),
                _ => unreachable!("the {kernel} kernel does not compute in integers on this CPU"),
            }
        }
    }
}
