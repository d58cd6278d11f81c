//! Measures the candidates in turns, so that a load that comes and goes falls on all of them.

use std::fs;
use std::time::{Duration, Instant};

use cuelight_shaders::cpu::{Kernel, Team};
use cuelight_shaders::tuning::Tuning;

use super::choice::{Samples, best, fewer_threads_suffice, gain, gains, mean_gains, tile_rows};
use super::probe::{FORMATS, Probe};
use super::{Calibration, Measured, Subject, untuned};
use crate::backend::cpu::team::ThreadTeam;
use crate::machine::Machine;
use crate::memory;

/// The prefetch distances that are tried. A weight count that is no multiple of their number lets each of them read each
/// weight.
const PREFETCH_DISTANCES: [usize; 5] = [0, 2 << 10, 4 << 10, 8 << 10, 16 << 10];
/// The numbers of rows for which tiles are compared with dot products.
const TILE_ROWS: [usize; 8] = [1, 2, 3, 4, 5, 6, 8, 12];
/// The most rows of a product.
const MOST_ROWS: usize = 64;
/// Outputs of a weight that is read from memory (some MiB), and of one that stays in the cache.
const OUTPUTS: usize = 2048;
const CACHED_OUTPUTS: usize = 256;
/// Rounds of each comparison, also when the time is over, and at most.
const LEAST_ROUNDS: usize = 5;
const MOST_ROUNDS: usize = 200;

/// How much a calibration may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The approximate time.
    pub time: Duration,
    /// Most bytes of weights.
    pub bytes: usize,
}

impl Limits {
    /// Half a second, and weights that no last-level cache of the machine holds, as far as an eighth of the free memory
    /// allows.
    #[must_use]
    pub fn of(machine: &Machine) -> Self {
        Limits { time: Duration::from_millis(450), bytes: weight_bytes(machine.l3_bytes, memory::available()) }
    }
}

/// Bytes of weights for a last-level cache of `cache` bytes and `free` bytes of memory.
fn weight_bytes(cache: Option<usize>, free: Option<u64>) -> usize {
    let wanted = cache.unwrap_or(0).saturating_mul(2).clamp(64 << 20, 192 << 20);
    free.map_or(wanted, |free| wanted.min(usize::try_from(free / 8).unwrap_or(wanted)))
}

/// Chooses the tuning of a kernel and the number of threads. The defaults stay where nothing was clearly faster, if other
/// programs disturb the measurement, for the portable kernel, which adapts nothing, and without memory for a measurement.
///
/// # Panics
/// When the machine does not support the kernel.
#[must_use]
pub fn calibrate(machine: &Machine, kernel: Kernel, cpus: usize, limits: Limits) -> Calibration {
    let subject = Subject::new(machine, kernel, cpus.max(1));
    let default = Calibration::unmeasured(machine, subject.clone());
    let count = limits.bytes / Probe::weight_bytes(OUTPUTS);
    if kernel == Kernel::Scalar || count == 0 {
        return default;
    }
    let (started, times) = (Instant::now(), CpuTimes::now());
    let team = ThreadTeam::new(subject.cpus);
    let count = if count.is_multiple_of(PREFETCH_DISTANCES.len()) { count + 1 } else { count };
    let most_rows = TILE_ROWS[TILE_ROWS.len() - 1];
    let probes = FORMATS.map(|format| Probe::new((kernel, format), &team, (count, OUTPUTS), most_rows));
    let cached = Probe::new((kernel, FORMATS[0]), &team, (1, CACHED_OUTPUTS), MOST_ROWS);
    let ([Some(first), Some(second)], Some(mut cached)) = (probes, cached) else { return default };
    let mut probes = [first, second];

    let mut tuning = untuned(machine);
    // Each of three comparisons gets an even share of the time that is left.
    let deadline = |comparisons: u32| {
        let now = Instant::now();
        now + (started + limits.time).saturating_duration_since(now) / comparisons
    };
    let prefetch = prefetch_gains(&mut probes, &team, tuning, deadline(3));
    tuning.prefetch_ahead = best(tuning.prefetch_ahead, &prefetch);
    let mut tiles = Vec::new();
    if kernel == Kernel::AmxInt8 {
        tiles = tile_gains(&mut probes, &team, tuning, deadline(2));
        tuning.amx_least_rows = tile_rows(tuning.amx_least_rows, &tiles);
    }
    let threads = (subject.cpus > 1).then(|| thread_gains((&mut probes, &mut cached), &team, tuning, deadline(1)));
    let waiting = CpuTimes::now().zip(times).map_or(0.0, |(now, then)| now.waiting_since(then));
    let measured = Measured { prefetch, threads, tiles, waiting, seconds: started.elapsed().as_secs_f64() };
    let mut calibration = Calibration::new(subject, cpus.max(1), tuning, measured);
    if calibration.was_disturbed() {
        // Threads that wait for other programs look like threads that do not help.
        return Calibration { measured: calibration.measured, ..default };
    }
    if let Some((reads, products)) = threads
        && fewer_threads_suffice(reads, products)
    {
        calibration.threads = fewer(cpus);
    }
    calibration
}

/// The number of threads that all threads are compared with.
fn fewer(cpus: usize) -> usize {
    cpus.div_ceil(2).max(1)
}

/// Runs rounds until the deadline.
fn rounds(deadline: Instant, mut round: impl FnMut()) {
    for done in 0..MOST_ROUNDS {
        if done >= LEAST_ROUNDS && Instant::now() >= deadline {
            return;
        }
        round();
    }
}

/// The gain of each prefetch distance over the default in the product of one row, on average over the formats.
fn prefetch_gains(probes: &mut [Probe; 2], team: &dyn Team, tuning: Tuning, deadline: Instant) -> Vec<(usize, f64)> {
    let samples = PREFETCH_DISTANCES.map(|candidate| Samples { candidate, rates: Vec::new() });
    let mut of_formats = [samples.clone(), samples];
    probes[0].rate(team, tuning, 1);
    rounds(deadline, || {
        for (probe, samples) in probes.iter_mut().zip(&mut of_formats) {
            for Samples { candidate, rates } in samples {
                rates.push(probe.rate(team, Tuning { prefetch_ahead: *candidate, ..tuning }, 1));
            }
        }
    });
    mean_gains(&of_formats.map(|samples| gains(tuning.prefetch_ahead, &samples)))
}

/// The gain of tiles over dot products for some numbers of rows.
fn tile_gains(probes: &mut [Probe; 2], team: &dyn Team, tuning: Tuning, deadline: Instant) -> Vec<(usize, f64)> {
    let mut rates = TILE_ROWS.map(|rows| (rows, [Vec::new(), Vec::new()]));
    rounds(deadline, || {
        for (rows, [tiles, dots]) in &mut rates {
            for probe in &mut *probes {
                tiles.push(probe.rate(team, Tuning { amx_least_rows: 1, ..tuning }, *rows));
                dots.push(probe.rate(team, Tuning { amx_least_rows: 16, ..tuning }, *rows));
            }
        }
    });
    rates.iter().map(|(rows, [tiles, dots])| (*rows, gain(tiles, dots))).collect()
}

/// The gains of all threads over half of them, for the product of one row, which reads memory, and of many rows.
fn thread_gains(
    (probes, cached): (&mut [Probe; 2], &mut Probe),
    all: &ThreadTeam,
    tuning: Tuning,
    deadline: Instant,
) -> (f64, f64) {
    const IN_A_ROW: usize = 3;
    let half = ThreadTeam::new(fewer(all.threads()));
    let mut rates = [all, &half].map(|team| (team, Vec::new(), Vec::new()));
    rounds(deadline, || {
        for (team, reads, products) in &mut rates {
            // The threads of the other team look for work a little longer, and those of this one wake up.
            std::thread::sleep(Duration::from_micros(200));
            cached.rate(*team, tuning, MOST_ROWS);
            for _ in 0..IN_A_ROW {
                reads.extend(probes.each_mut().map(|probe| probe.rate(*team, tuning, 1)));
                products.push(cached.rate(*team, tuning, MOST_ROWS));
            }
        }
    });
    let [(_, reads, products), (_, reads_of_half, products_of_half)] = &rates;
    (gain(reads, reads_of_half), gain(products, products_of_half))
}

/// The time that the threads of this process have run, and waited for a CPU, in nanoseconds.
#[derive(Debug, Clone, Copy)]
struct CpuTimes {
    ran: u64,
    waited: u64,
}

impl CpuTimes {
    /// The times of the threads that exist now; `None` if the system does not report them.
    fn now() -> Option<Self> {
        let threads = fs::read_dir("/proc/self/task").ok()?.flatten();
        let of_thread =
            threads.filter_map(|thread| Self::parse(&fs::read_to_string(thread.path().join("schedstat")).ok()?));
        of_thread.reduce(|a, b| CpuTimes { ran: a.ran + b.ran, waited: a.waited + b.waited })
    }

    fn parse(text: &str) -> Option<Self> {
        let mut numbers = text.split_whitespace().map_while(|number| number.parse().ok());
        Some(CpuTimes { ran: numbers.next()?, waited: numbers.next()? })
    }

    /// The share of the time since then that was spent waiting.
    fn waiting_since(self, then: Self) -> f64 {
        let (ran, waited) = (self.ran.saturating_sub(then.ran), self.waited.saturating_sub(then.waited));
        waited as f64 / (ran + waited).max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn every_supported_kernel_can_be_calibrated() {
        let machine = Machine::of(Path::new("/"));
        let limits = Limits { time: Duration::ZERO, bytes: Probe::weight_bytes(OUTPUTS) };
        for kernel in Kernel::ALL.iter().copied().filter(|kernel| kernel.is_supported()) {
            let calibration = calibrate(&machine, kernel, 2, limits);
            assert!(calibration.is_valid(), "{calibration:?}");
            let distances = if kernel == Kernel::Scalar { 0 } else { PREFETCH_DISTANCES.len() };
            assert_eq!(calibration.measured.prefetch.len(), distances);
            assert_eq!(calibration.measured.threads.is_some(), kernel != Kernel::Scalar);
            assert_eq!(calibration.measured.tiles.is_empty(), kernel != Kernel::AmxInt8);
        }
    }

    #[test]
    fn without_memory_the_defaults_stay() {
        let machine = Machine::of(Path::new("/"));
        let limits = Limits { time: Duration::ZERO, bytes: 0 };
        let calibration = calibrate(&machine, Kernel::detect(), 3, limits);
        assert_eq!((calibration.threads, calibration.tuning()), (3, untuned(&machine)));
        assert_eq!(calibration.measured, Measured::default());
    }

    #[test]
    fn the_weights_fit_in_no_cache_but_in_the_free_memory() {
        const MIB: usize = 1 << 20;
        assert_eq!(weight_bytes(None, None), 64 * MIB);
        assert_eq!(weight_bytes(Some(48 * MIB), Some(1 << 40)), 96 * MIB);
        assert_eq!(weight_bytes(Some(500 * MIB), Some(1 << 40)), 192 * MIB);
        assert_eq!(weight_bytes(Some(48 * MIB), Some(80 << 20)), 10 * MIB);
    }

    #[test]
    fn the_share_of_waiting_comes_from_the_times_of_the_system() {
        let times = |text| CpuTimes::parse(text);
        let waiting = |now, then| Some(times(now)?.waiting_since(times(then)?));
        assert_eq!(waiting("400 100 7\n", "100 0 3\n"), Some(0.25));
        assert_eq!(waiting("100 0 3\n", "100 0 3\n"), Some(0.0));
        assert!(times("").is_none() && times("x 1").is_none());
    }
}
