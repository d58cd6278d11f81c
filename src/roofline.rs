//! The measured peak rates of this machine: bytes read from memory and operations per second.
//!
//! A step of a model cannot be faster than its [`Cost`] divided by these rates. The fraction of the peak that a step reaches
//! shows how much can still be gained.

use std::time::{Duration, Instant};

use cuelight_shaders::cpu::{Kernel, Team};
use cuelight_shaders::pages::Pages;
use cuelight_shaders::roofline as work;

use crate::backend::cpu::team::ThreadTeam;
use crate::backend::vulkan::{self, Device, DeviceInfo, Instance, VulkanError, VulkanOptions};
use crate::memory;
use crate::profile::Cost;

/// The hardware that was measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Worker {
    /// The CPU with the instructions of a kernel and a number of threads.
    Cpu(Kernel, usize),
    /// The Vulkan device of this index.
    Vulkan(usize),
}

/// The peak rates of a CPU or a device.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Roofline {
    /// The hardware.
    pub worker: Worker,
    /// Bytes read per second, with a working set much larger than the caches.
    pub memory_bandwidth: f64,
    /// Bytes read per second, with a working set that fits in large caches: 64 MiB, on a device 16 MiB.
    pub cache_bandwidth: f64,
    /// Operations per second in dot products of 8-bit integers; `None` for a float32 kernel and for a device.
    pub integer_peak: Option<f64>,
    /// Operations per second in products of float16 matrices; `None` without cooperative matrices.
    pub matrix_peak: Option<f64>,
    /// Operations per second in float32.
    pub float_peak: f64,
}

/// A working set that fits in no cache.
const MEMORY_BYTES: usize = 512 << 20;
/// A working set that fits in some last-level caches.
const CACHE_BYTES: usize = 64 << 20;
/// How far ahead reads prefetch, in bytes. Some CPUs are faster without.
const PREFETCH_DISTANCES: [usize; 2] = [0, 8 << 10];
/// Bytes that a thread reads per task.
const TASK_BYTES: usize = 1 << 20;
/// Number of passes, of which the median counts.
const PASSES: usize = 9;
/// The approximate time of a pass that measures arithmetic.
const PASS_TIME: Duration = Duration::from_millis(20);

impl Roofline {
    /// Measures the CPU. Takes about a second and 512 MiB of memory, or a quarter of the free memory if that is less.
    ///
    /// # Panics
    /// When the machine does not support the kernel.
    #[must_use]
    pub fn measure(kernel: Kernel, threads: usize) -> Self {
        Self::with_working_set(kernel, threads, working_set(memory::available()), PASS_TIME)
    }

    /// Measures a Vulkan device. Takes about a second and 1 GiB of its memory, or a quarter of the free memory if that is less.
    ///
    /// # Errors
    /// [`VulkanError`] when there is no such device or the device fails.
    pub fn measure_vulkan(index: usize) -> Result<Self, VulkanError> {
        let options = VulkanOptions::default();
        let instance = Instance::load(options.instance())?;
        let info = DeviceInfo::find(&instance, index)?;
        let measured = vulkan::roofline::measure(&Device::open(instance, info, options)?)?;
        Ok(Roofline {
            worker: Worker::Vulkan(index),
            memory_bandwidth: measured.memory_bandwidth,
            cache_bandwidth: measured.cache_bandwidth,
            integer_peak: None,
            matrix_peak: measured.matrix_peak,
            float_peak: measured.float_peak,
        })
    }

    fn with_working_set(kernel: Kernel, threads: usize, memory_bytes: usize, pass_time: Duration) -> Self {
        let team = ThreadTeam::new(threads);
        let mut pages = Pages::<u8>::zeroed_large(memory_bytes);
        // Pages that were never written would all map to one page of zeros.
        pages.fill(1);
        let integer = kernel.is_integer().then(|| {
            operations(&team, pass_time, &|| work::dot_products(kernel).expect("an integer kernel has dot products"))
        });
        Roofline {
            worker: Worker::Cpu(kernel, threads),
            matrix_peak: None,
            memory_bandwidth: bandwidth(&team, kernel, &pages),
            cache_bandwidth: bandwidth(&team, kernel, &pages[..memory_bytes.min(CACHE_BYTES)]),
            integer_peak: integer,
            float_peak: operations(&team, pass_time, &|| work::multiply_adds(kernel)),
        }
    }

    /// The minimum time for this work: the larger of the time for memory and the time for arithmetic.
    #[must_use]
    pub fn least_time(&self, bytes: u64, cost: &Cost) -> Duration {
        let memory = bytes as f64 / self.memory_bandwidth;
        let integers = cost.integer_operations as f64 / self.product_peak();
        // A device with cooperative matrices uses them for all large products.
        let arithmetic = integers + cost.float_operations as f64 / self.matrix_peak.unwrap_or(self.float_peak);
        Duration::from_secs_f64(memory.max(arithmetic))
    }

    /// The peak rate of the arithmetic that the kernel uses for products.
    #[must_use]
    pub fn product_peak(&self) -> f64 {
        self.integer_peak.or(self.matrix_peak).unwrap_or(self.float_peak)
    }
}

/// The largest working set that leaves enough free memory.
fn working_set(available: Option<u64>) -> usize {
    let quarter = available.map_or(MEMORY_BYTES, |bytes| usize::try_from(bytes / 4).unwrap_or(MEMORY_BYTES));
    quarter.min(MEMORY_BYTES)
}

/// Bytes per second of a sequential read, with the better of two prefetch distances.
fn bandwidth(team: &ThreadTeam, kernel: Kernel, bytes: &[u8]) -> f64 {
    let rates = PREFETCH_DISTANCES.map(|distance| bandwidth_at(team, kernel, bytes, distance));
    rates.into_iter().fold(0.0, f64::max)
}

fn bandwidth_at(team: &ThreadTeam, kernel: Kernel, bytes: &[u8], prefetch_ahead: usize) -> f64 {
    let pass = || {
        let started = Instant::now();
        team.for_each(bytes.len().div_ceil(TASK_BYTES), &|task| {
            let end = bytes.len().min((task + 1) * TASK_BYTES);
            work::read(kernel, &bytes[task * TASK_BYTES..end], prefetch_ahead);
        });
        bytes.len() as f64 / started.elapsed().as_secs_f64()
    };
    median(&pass)
}

/// Operations per second of `work`, which returns the number of operations that it did.
fn operations(team: &ThreadTeam, pass_time: Duration, work: &(dyn Fn() -> u64 + Sync)) -> f64 {
    // As many tasks as keep every thread busy for the time of a pass.
    let started = Instant::now();
    let of_task = work();
    let task_time = started.elapsed().max(Duration::from_micros(1));
    let tasks = team.threads() * (pass_time.as_nanos().div_ceil(task_time.as_nanos())).min(100_000) as usize;
    let pass = || {
        let started = Instant::now();
        team.for_each(tasks, &|_| {
            work();
        });
        (of_task * tasks as u64) as f64 / started.elapsed().as_secs_f64()
    };
    median(&pass)
}

/// The median of several passes, after one warm-up pass for the threads and the clock rate.
fn median(pass: &dyn Fn() -> f64) -> f64 {
    pass();
    let mut values: Vec<f64> = (0..PASSES).map(|_| pass()).collect();
    values.sort_by(f64::total_cmp);
    values[PASSES / 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_supported_kernel_can_be_measured() {
        for kernel in Kernel::ALL.iter().copied().filter(|kernel| kernel.is_supported()) {
            let roofline = Roofline::with_working_set(kernel, 2, 4 << 20, Duration::from_micros(100));
            assert!(roofline.memory_bandwidth > 1e6 && roofline.cache_bandwidth > 1e6, "{roofline:?}");
            assert!(roofline.float_peak > 1e6 && roofline.product_peak() > 1e6, "{roofline:?}");
            assert_eq!(roofline.integer_peak.is_some(), kernel.is_integer());
        }
    }

    #[test]
    fn the_minimum_time_is_that_of_the_bottleneck() {
        let roofline = Roofline {
            worker: Worker::Cpu(Kernel::Avx2Integer, 1),
            matrix_peak: None,
            memory_bandwidth: 10.0,
            cache_bandwidth: 20.0,
            integer_peak: Some(100.0),
            float_peak: 50.0,
        };
        let cost = Cost { integer_operations: 200, float_operations: 50, ..Cost::default() };
        assert_eq!(roofline.least_time(50, &cost), Duration::from_secs(5));
        assert_eq!(roofline.least_time(20, &cost), Duration::from_secs(3));
    }

    #[test]
    fn a_vulkan_device_can_be_measured() {
        match Roofline::measure_vulkan(0) {
            Ok(roofline) => {
                assert!(roofline.memory_bandwidth > 1e6 && roofline.cache_bandwidth > 1e6, "{roofline:?}");
                assert!(roofline.float_peak > 1e6 && roofline.product_peak() > 1e6, "{roofline:?}");
            }
            Err(
                error @ (VulkanError::NoLoader(_)
                | VulkanError::NoDriver
                | VulkanError::NoSuchDevice { .. }
                | VulkanError::Unsuitable { .. }),
            ) => {
                if cfg!(feature = "require-vulkan") {
                    panic!("Vulkan tests are required, but {error}");
                }
                eprintln!("SKIPPED: {error}");
            }
            Err(error) => panic!("{error}"),
        }
    }

    #[test]
    fn the_working_set_is_at_most_a_quarter_of_the_free_memory() {
        assert_eq!(working_set(None), 512 << 20);
        assert_eq!(working_set(Some(1 << 30)), 256 << 20);
        assert_eq!(working_set(Some(1 << 40)), 512 << 20);
    }
}
