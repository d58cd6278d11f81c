//! Instruction sets and the thread team that CPU kernels run on.

use std::fmt;
use std::str::FromStr;

/// The instruction set of a CPU kernel, and whether it computes products in float32 or in integers.
///
/// It is chosen once at start ([`Kernel::detect`]) and passed to every op, so that a test can force each kernel. Within
/// one kernel the sums of a row are formed in one fixed order that does not depend on the other rows of the batch.
/// Different kernels may differ in the last bits. All integer kernels round the input of every product with quantised
/// weights in the same way, to the number of bits of [`ActivationBits`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kernel {
    /// Portable Rust, one value at a time: the fallback, and the baseline for the other kernels.
    Scalar,
    /// AVX2 with FMA and F16C (x86-64-v3), float32 products.
    Avx2,
    /// AVX2 with integer products.
    Avx2Integer,
    /// AVX2 with the integer dot products of AVX-VNNI.
    AvxVnni,
    /// AVX-512 (F, BW, DQ, VL) with the integer dot products of VNNI.
    Avx512Vnni,
    /// AVX-512 as above, and AMX products of tiles of bytes for more than a few rows.
    AmxInt8,
    /// NEON, which every aarch64 CPU has, float32 products.
    Neon,
    /// NEON with integer products.
    NeonInteger,
    /// NEON with the integer dot products of the extension `dotprod`.
    NeonDot,
    /// NEON as above, and the products of small matrices of bytes of the extension `i8mm` for more than one row.
    NeonI8mm,
}

/// The instructions that kernels use outside of integer products.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InstructionSet {
    /// Those that the compiler may use for any CPU of the target.
    Portable,
    /// AVX2, FMA and F16C.
    Avx2,
    /// AVX-512 (F, BW, DQ, VL), and those of AVX2.
    Avx512,
    /// NEON, part of every aarch64 CPU.
    Neon,
}

impl Kernel {
    /// Every kernel: of those that one CPU can run, the slowest first.
    pub const ALL: &[Kernel] = &[
        Kernel::Scalar,
        Kernel::Avx2,
        Kernel::Avx2Integer,
        Kernel::AvxVnni,
        Kernel::Avx512Vnni,
        Kernel::AmxInt8,
        Kernel::Neon,
        Kernel::NeonInteger,
        Kernel::NeonDot,
        Kernel::NeonI8mm,
    ];

    /// The fastest kernel that this machine can run.
    #[must_use]
    pub fn detect() -> Kernel {
        Kernel::ALL.iter().copied().rfind(|kernel| kernel.is_supported()).unwrap_or(Kernel::Scalar)
    }

    /// Whether this machine can run the kernel.
    #[must_use]
    pub fn is_supported(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::is_x86_feature_detected as detected;

            use crate::matmul::integer::amx::tiles;
            let avx2 = || detected!("avx2") && detected!("fma") && detected!("f16c");
            let avx512 =
                || detected!("avx512f") && detected!("avx512bw") && detected!("avx512dq") && detected!("avx512vl");
            match self {
                Kernel::Scalar => true,
                Kernel::Avx2 | Kernel::Avx2Integer => avx2(),
                Kernel::AvxVnni => avx2() && detected!("avxvnni"),
                Kernel::Avx512Vnni => avx2() && avx512() && detected!("avx512vnni"),
                Kernel::AmxInt8 => Kernel::Avx512Vnni.is_supported() && tiles::is_supported(),
                Kernel::Neon | Kernel::NeonInteger | Kernel::NeonDot | Kernel::NeonI8mm => false,
            }
        }
        #[cfg(target_arch = "aarch64")]
        {
            use std::arch::is_aarch64_feature_detected as detected;

            match self {
                Kernel::Scalar | Kernel::Neon | Kernel::NeonInteger => true,
                Kernel::NeonDot => detected!("dotprod"),
                Kernel::NeonI8mm => detected!("dotprod") && detected!("i8mm"),
                Kernel::Avx2 | Kernel::Avx2Integer | Kernel::AvxVnni | Kernel::Avx512Vnni | Kernel::AmxInt8 => false,
            }
        }
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        {
            self == Kernel::Scalar
        }
    }

    /// The instructions that the kernel uses outside of integer products.
    #[inline(always)]
    #[must_use]
    pub fn instruction_set(self) -> InstructionSet {
        match self {
            Kernel::Scalar => InstructionSet::Portable,
            Kernel::Avx2 | Kernel::Avx2Integer | Kernel::AvxVnni => InstructionSet::Avx2,
            Kernel::Avx512Vnni | Kernel::AmxInt8 => InstructionSet::Avx512,
            Kernel::Neon | Kernel::NeonInteger | Kernel::NeonDot | Kernel::NeonI8mm => InstructionSet::Neon,
        }
    }

    /// Whether products with quantised weights are computed in integers.
    #[must_use]
    pub fn is_integer(self) -> bool {
        match self {
            Kernel::Scalar | Kernel::Avx2 | Kernel::Neon => false,
            Kernel::Avx2Integer | Kernel::AvxVnni | Kernel::Avx512Vnni | Kernel::AmxInt8 => true,
            Kernel::NeonInteger | Kernel::NeonDot | Kernel::NeonI8mm => true,
        }
    }

    /// The name of the kernel, which [`FromStr`] accepts.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Kernel::Scalar => "scalar",
            Kernel::Avx2 => "avx2",
            Kernel::Avx2Integer => "avx2-integer",
            Kernel::AvxVnni => "avx-vnni",
            Kernel::Avx512Vnni => "avx512-vnni",
            Kernel::AmxInt8 => "amx-int8",
            Kernel::Neon => "neon",
            Kernel::NeonInteger => "neon-integer",
            Kernel::NeonDot => "neon-dot",
            Kernel::NeonI8mm => "neon-i8mm",
        }
    }
}

impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Kernel {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        Kernel::ALL.iter().copied().find(|kernel| kernel.name() == name).ok_or_else(|| {
            let known: Vec<_> = Kernel::ALL.iter().map(|kernel| kernel.name()).collect();
            format!("unknown kernel {name:?}; known kernels: {}", known.join(", "))
        })
    }
}

/// The number of bits to which the integer kernels round the input of a product with quantised weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ActivationBits {
    /// 15, in two planes of bytes: as accurate as float16.
    #[default]
    Fifteen,
    /// 8, in one plane, as in other engines: half the products, but log-probabilities change by some hundredths.
    Eight,
}

impl ActivationBits {
    /// Every number of bits.
    pub const ALL: &[ActivationBits] = &[ActivationBits::Fifteen, ActivationBits::Eight];
}

impl fmt::Display for ActivationBits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            ActivationBits::Fifteen => "15",
            ActivationBits::Eight => "8",
        })
    }
}

impl FromStr for ActivationBits {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = ActivationBits::ALL.iter().copied().find(|bits| bits.to_string() == text);
        known.ok_or_else(|| format!("activations are rounded to 15 or 8 bits, not to {text:?}"))
    }
}

/// The threads that share the work of one op.
pub trait Team: Sync {
    /// The number of threads, including the caller.
    fn threads(&self) -> usize;

    /// Runs `body(task)` once for each task in `0..tasks`, in any order and on any thread. Returns when all tasks are
    /// done. A panic in `body` propagates to the caller.
    fn for_each(&self, tasks: usize, body: &(dyn Fn(usize) + Sync));
}

/// A team of one thread: the caller.
pub struct Solo;

impl Team for Solo {
    fn threads(&self) -> usize {
        1
    }

    fn for_each(&self, tasks: usize, body: &(dyn Fn(usize) + Sync)) {
        for task in 0..tasks {
            body(task);
        }
    }
}

/// Runs `body(index, chunk)` once for each chunk of `len` values, as one task of the team. The last chunk may be shorter.
pub fn for_each_chunk<T: Send>(team: &dyn Team, values: &mut [T], len: usize, body: &(dyn Fn(usize, &mut [T]) + Sync)) {
    let (total, len, shared) = (values.len(), len.max(1), SharedMut::new(values));
    team.for_each(total.div_ceil(len), &|index| {
        let start = index * len;
        // SAFETY: chunks do not overlap, and each belongs to one task.
        body(index, unsafe { shared.slice(start, len.min(total - start)) });
    });
}

/// A mutable slice that several tasks of a [`Team`] write at once, each to its own range.
pub struct SharedMut<'a, T> {
    start: *mut T,
    len: usize,
    borrow: std::marker::PhantomData<&'a mut [T]>,
}

// SAFETY: access goes through `slice`, whose caller promises that no two live ranges overlap.
unsafe impl<T: Send> Sync for SharedMut<'_, T> {}

impl<'a, T> SharedMut<'a, T> {
    /// Borrows the slice for the duration of the parallel section.
    pub fn new(slice: &'a mut [T]) -> Self {
        SharedMut { start: slice.as_mut_ptr(), len: slice.len(), borrow: std::marker::PhantomData }
    }

    /// The address of an element, for prefetches.
    #[must_use]
    pub fn address(&self, offset: usize) -> *const T {
        self.start.wrapping_add(offset)
    }

    /// The range `offset..offset + len`.
    ///
    /// # Panics
    /// When the range reaches beyond the slice.
    ///
    /// # Safety
    /// No other live range, on this or another thread, may overlap it.
    #[allow(clippy::mut_from_ref)]
    #[must_use]
    pub unsafe fn slice(&self, offset: usize, len: usize) -> &mut [T] {
        // SAFETY: inside the slice by the check; not aliased by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.checked(offset, len), len) }
    }

    /// The range `offset..offset + len`, which others may read too.
    ///
    /// # Panics
    /// When the range reaches beyond the slice.
    ///
    /// # Safety
    /// No live range of [`SharedMut::slice`] may overlap it.
    #[must_use]
    pub unsafe fn read(&self, offset: usize, len: usize) -> &[T] {
        // SAFETY: inside the slice by the check; not written by the caller's promise.
        unsafe { std::slice::from_raw_parts(self.checked(offset, len), len) }
    }

    /// The start of a range; checks that the range is inside.
    fn checked(&self, offset: usize, len: usize) -> *mut T {
        assert!(offset <= self.len && len <= self.len - offset, "range {offset}+{len} of a slice of {}", self.len);
        self.start.wrapping_add(offset)
    }
}
