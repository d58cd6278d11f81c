//! Adapts CPU kernels to the CPU: a short measurement chooses the [`Tuning`] and the number of threads.
//!
//! - `probe`: products with synthetic weights
//! - `measure`: runs the candidates in turns
//! - [`choice`]: chooses from the measured rates
//! - [`store`]: keeps the result in a file
//!
//! No choice changes a result, so a wrong one costs time only. The default stays unless another value is clearly faster.

pub mod choice;
mod measure;
mod probe;
pub mod store;

use cuelight_shaders::cpu::Kernel;
use serde::{Deserialize, Serialize};

use crate::machine::Machine;

pub use cuelight_shaders::tuning::Tuning;
pub use measure::{Limits, calibrate};

/// With more than this share of time lost to other programs, a measurement does not count.
const MOST_WAITING: f64 = 0.2;

/// What a calibration is valid for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Subject {
    /// The version of this program, whose kernels were measured.
    pub version: String,
    /// The name of the CPU.
    pub cpu: String,
    /// The kernel.
    pub kernel: String,
    /// The threads that the process may use.
    pub cpus: usize,
}

impl Subject {
    /// The kernel on this machine with `cpus` threads.
    #[must_use]
    pub fn new(machine: &Machine, kernel: Kernel, cpus: usize) -> Self {
        let version = env!("CARGO_PKG_VERSION").to_owned();
        Subject { version, cpu: machine.cpu.clone(), kernel: kernel.to_string(), cpus }
    }
}

/// The choices for a CPU, and the measurements behind them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Calibration {
    /// What was measured.
    #[serde(flatten)]
    pub subject: Subject,
    /// The number of threads to compute with.
    pub threads: usize,
    /// See [`Tuning::prefetch_ahead`].
    pub prefetch_ahead: usize,
    /// See [`Tuning::rows_in_cache`].
    pub rows_in_cache: usize,
    /// See [`Tuning::amx_least_rows`].
    pub amx_least_rows: usize,
    /// The measurements.
    pub measured: Measured,
}

/// The measurements of a calibration. What was not measured is empty.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// For each prefetch distance in bytes, its speed relative to that of the default distance.
    pub prefetch: Vec<(usize, f64)>,
    /// The speed of all threads relative to that of half of them: of the product of one row, and of many rows.
    pub threads: Option<(f64, f64)>,
    /// For some numbers of rows, the speed of products of tiles relative to that of dot products.
    pub tiles: Vec<(usize, f64)>,
    /// The share of the time in which this program's threads were ready but other programs used the CPU.
    pub waiting: f64,
    /// The duration in seconds.
    pub seconds: f64,
}

impl Calibration {
    /// The choices without a measurement: the defaults, and sizes from what the system reports about caches.
    #[must_use]
    pub fn unmeasured(machine: &Machine, subject: Subject) -> Self {
        let tuning = untuned(machine);
        let threads = subject.cpus;
        Self::new(subject, threads, tuning, Measured::default())
    }

    fn new(subject: Subject, threads: usize, tuning: Tuning, measured: Measured) -> Self {
        let Tuning { prefetch_ahead, rows_in_cache, amx_least_rows } = tuning;
        Calibration { subject, threads, prefetch_ahead, rows_in_cache, amx_least_rows, measured }
    }

    /// The values for the kernels.
    #[must_use]
    pub fn tuning(&self) -> Tuning {
        let (prefetch_ahead, rows_in_cache) = (self.prefetch_ahead, self.rows_in_cache);
        Tuning { prefetch_ahead, rows_in_cache, amx_least_rows: self.amx_least_rows }.clamped()
    }

    /// Whether other programs used so much of the CPU that the choices are the defaults, and should be measured later.
    #[must_use]
    pub fn was_disturbed(&self) -> bool {
        self.measured.waiting > MOST_WAITING
    }

    /// Whether the values are ones that a calibration can choose.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        let tuning = Tuning {
            prefetch_ahead: self.prefetch_ahead,
            rows_in_cache: self.rows_in_cache,
            amx_least_rows: self.amx_least_rows,
        };
        tuning == tuning.clamped() && (1..=self.subject.cpus).contains(&self.threads)
    }
}

/// The tuning without a measurement. Half of an L2 cache holds activations, the other half the weights that pass through.
#[must_use]
pub fn untuned(machine: &Machine) -> Tuning {
    let default = Tuning::default();
    let rows_in_cache = machine.l2_bytes.map_or(default.rows_in_cache, |bytes| bytes / 2);
    Tuning { rows_in_cache, ..default }.clamped()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn half_of_the_l2_cache_holds_activations() {
        let unknown = Machine::of(Path::new("/no/such/folder"));
        assert_eq!(untuned(&unknown), Tuning::default());
        let rows_in_cache = |l2: usize| untuned(&Machine { l2_bytes: Some(l2), ..unknown.clone() }).rows_in_cache;
        assert_eq!([1 << 20, 2 << 20, 256 << 10].map(rows_in_cache), [512 << 10, 1 << 20, 128 << 10]);
        assert_eq!([0, usize::MAX].map(rows_in_cache), [64 << 10, 16 << 20], "sizes that no cache has");
    }
}
