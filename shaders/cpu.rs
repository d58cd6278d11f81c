//! Instruction sets and the thread team that CPU kernels run on.

use std::fmt;
use std::str::FromStr;

/// The instruction set a CPU kernel is written for, and whether products are formed in float32 or in integers.
///
/// Chosen once at start ([`Kernel::detect`]) and passed to every op, so that a test can force each one.
/// Within one kernel a row's sums are formed in one fixed order, whatever the other rows of the batch;
/// different kernels may differ in the last bits. The integer kernels round the input of every product with quantised
/// weights to as many bits as [`ActivationBits`] says, all in the same way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kernel {
    /// Portable Rust, one value at a time: the fallback and the yardstick for the others.
    Scalar,
    /// AVX2 with FMA and F16C (x86-64-v3), float32 products.
    Avx2,
    /// The same with integer products.
    Avx2Integer,
    /// The same with the integer dot products of AVX-VNNI.
    AvxVnni,
    /// AVX-512 (F, BW, DQ, VL) with the integer dot products of VNNI.
    Avx512Vnni,
    /// The same, and for more than a few rows the products of tiles of bytes of AMX.
    AmxInt8,
}

impl Kernel {
    /// Every kernel, slowest first.
    pub const ALL: &[Kernel] =
        &[Kernel::Scalar, Kernel::Avx2, Kernel::Avx2Integer, Kernel::AvxVnni, Kernel::Avx512Vnni, Kernel::AmxInt8];

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

            use crate::matmul::integer::amx;
            let avx2 = || detected!("avx2") && detected!("fma") && detected!("f16c");
            let avx512 =
                || detected!("avx512f") && detected!("avx512bw") && detected!("avx512dq") && detected!("avx512vl");
            match self {
                Kernel::Scalar => true,
                Kernel::Avx2 | Kernel::Avx2Integer => avx2(),
                Kernel::AvxVnni => avx2() && detected!("avxvnni"),
                Kernel::Avx512Vnni => avx2() && avx512() && detected!("avx512vnni"),
                Kernel::AmxInt8 => Kernel::Avx512Vnni.is_supported() && amx::tiles::is_supported(),
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        {
            self == Kernel::Scalar
        }
    }

    /// Whether products with quantised weights are formed in integers.
    #[must_use]
    pub fn is_integer(self) -> bool {
        match self {
            Kernel::Scalar | Kernel::Avx2 => false,
            Kernel::Avx2Integer | Kernel::AvxVnni | Kernel::Avx512Vnni | Kernel::AmxInt8 => true,
        }
    }

    /// The name that `--kernel` takes.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Kernel::Scalar => "scalar",
            Kernel::Avx2 => "avx2",
            Kernel::Avx2Integer => "avx2-integer",
            Kernel::AvxVnni => "avx-vnni",
            Kernel::Avx512Vnni => "avx512-vnni",
            Kernel::AmxInt8 => "amx-int8",
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

/// To how many bits the integer kernels round the input of a product with quantised weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ActivationBits {
    /// 15, in two planes of bytes: as good as float16.
    #[default]
    Fifteen,
    /// 8, in one plane, as other engines do: half the products, and log-probabilities that move by some hundredths.
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
    /// How many threads take part, the caller included.
    fn threads(&self) -> usize;

    /// Runs `body(task)` once for each task in `0..tasks`, in any order and on any thread, and returns when all are done.
    /// A panic in `body` reaches the caller.
    fn for_each(&self, tasks: usize, body: &(dyn Fn(usize) + Sync));
}

/// A team of one: the caller does everything.
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

/// A mutable slice that several tasks of a [`Team`] write at once, each its own part.
pub struct SharedMut<'a, T> {
    start: *mut T,
    len: usize,
    borrow: std::marker::PhantomData<&'a mut [T]>,
}

// SAFETY: access goes through `slice`, whose caller promises that no two live parts overlap.
unsafe impl<T: Send> Sync for SharedMut<'_, T> {}

impl<'a, T> SharedMut<'a, T> {
    /// Takes the slice for the time of the parallel section.
    pub fn new(slice: &'a mut [T]) -> Self {
        SharedMut { start: slice.as_mut_ptr(), len: slice.len(), borrow: std::marker::PhantomData }
    }

    /// The part `offset..offset + len`.
    ///
    /// # Panics
    /// When the part reaches beyond the slice.
    ///
    /// # Safety
    /// No other live part, on this or another thread, may overlap it.
    #[allow(clippy::mut_from_ref)]
    #[must_use]
    pub unsafe fn slice(&self, offset: usize, len: usize) -> &mut [T] {
        assert!(offset <= self.len && len <= self.len - offset, "part {offset}+{len} of a slice of {}", self.len);
        // SAFETY: inside the slice by the line above; not aliased by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(offset), len) }
    }
}
