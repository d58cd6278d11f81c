//! Measures the peak rates of a device: bytes read and operations per second.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cuelight_shaders::gpu::{Dispatch, Region};
use cuelight_shaders::roofline::gpu as work;

use super::buffer::Buffer;
use super::device::Device;
use super::error::VulkanError;
use super::memory::MemoryKind;
use super::record::{CommandPool, Recorder};

/// The peak rates of a device.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DeviceRoofline {
    /// Bytes read per second, with a working set larger than the caches.
    pub memory_bandwidth: f64,
    /// Bytes read per second, with a working set of 16 MiB, which fits in the caches of large devices.
    pub cache_bandwidth: f64,
    /// Operations per second in products of float16 matrices; `None` if the device has no cooperative matrices.
    pub matrix_peak: Option<f64>,
    /// Operations per second in float32.
    pub float_peak: f64,
}

/// A working set that fits in no cache.
const MEMORY_BYTES: u64 = 1 << 30;
/// A working set that fits in large caches.
const CACHE_BYTES: u64 = 16 << 20;
/// Number of passes, of which the median counts.
const PASSES: usize = 5;
/// The approximate time of a pass, much longer than a submission.
const PASS_TIME: Duration = Duration::from_millis(50);

/// Measures a device. Takes about a second and 1 GiB of its memory, or a quarter of the free memory if that is less.
///
/// # Errors
/// [`VulkanError`] when the device fails.
pub fn measure(device: &Arc<Device>) -> Result<DeviceRoofline, VulkanError> {
    let available = device.info.available_bytes(&device.instance);
    let bench = Bench::new(device, MEMORY_BYTES.min(available / 4).min(device.info.max_allocation_bytes))?;
    let limits = &device.info.limits;
    let all = bench.source.region;
    let in_caches = Region { bytes: all.bytes.min(CACHE_BYTES), ..all };
    let result = bench.result.region;
    let matrix_peak = match work::matrices(limits, 1, result) {
        Some(_) => Some(bench.rate_of_rounds(|rounds| work::matrices(limits, rounds, result).expect("checked above"))?),
        None => None,
    };
    Ok(DeviceRoofline {
        memory_bandwidth: bench.rate(work::read(limits, all, result))?,
        cache_bandwidth: bench.rate(work::read(limits, in_caches, result))?,
        matrix_peak,
        float_peak: bench.rate_of_rounds(|rounds| work::multiply_adds(limits, rounds, result))?,
    })
}

/// Times dispatches.
struct Bench {
    device: Arc<Device>,
    pool: CommandPool,
    source: Buffer,
    result: Buffer,
}

impl Bench {
    fn new(device: &Arc<Device>, bytes: u64) -> Result<Self, VulkanError> {
        let source = Buffer::new(device, "the source of the measurement", bytes, MemoryKind::Device)?;
        let result = Buffer::new(device, "the result of the measurement", 0, MemoryKind::Device)?;
        let pool = CommandPool::new(device)?;
        let mut recorder = Recorder::begin(device, pool.allocate()?)?;
        recorder.clear(&source);
        device.wait(device.submit(&[recorder.end()?])?)?;
        Ok(Bench { device: Arc::clone(device), pool, source, result })
    }

    /// The rate per second of a dispatch that handles `amount` bytes or operations.
    fn rate(&self, (dispatch, amount): (Dispatch, u64)) -> Result<f64, VulkanError> {
        let once = self.time(&dispatch, 1)?.max(Duration::from_micros(1));
        let repetitions = PASS_TIME.div_duration_f64(once).clamp(1.0, 1000.0) as usize;
        let mut rates = Vec::new();
        for _ in 0..PASSES {
            let elapsed = self.time(&dispatch, repetitions)?;
            rates.push(amount as f64 * repetitions as f64 / elapsed.as_secs_f64());
        }
        rates.sort_by(f64::total_cmp);
        Ok(rates[PASSES / 2])
    }

    /// The rate of a dispatch whose number of rounds is raised until it runs long enough to be measured.
    fn rate_of_rounds(&self, work: impl Fn(u32) -> (Dispatch, u64)) -> Result<f64, VulkanError> {
        const MOST_ROUNDS: u32 = 1 << 20;
        let mut rounds = 16;
        while rounds < MOST_ROUNDS && self.time(&work(rounds).0, 1)? < PASS_TIME / 4 {
            rounds *= 4;
        }
        self.rate(work(rounds))
    }

    /// The time of `repetitions` consecutive dispatches.
    fn time(&self, dispatch: &Dispatch, repetitions: usize) -> Result<Duration, VulkanError> {
        let commands = self.pool.allocate()?;
        let mut recorder = Recorder::begin(&self.device, commands)?;
        for _ in 0..repetitions {
            recorder.dispatch(dispatch)?;
        }
        let commands = recorder.end()?;
        let began = Instant::now();
        self.device.wait(self.device.submit(&[commands])?)?;
        let elapsed = began.elapsed();
        self.pool.free(&[commands]);
        Ok(elapsed)
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.device.settle();
    }
}
