//! What this machine can do at most: bytes read from memory a second, operations a second. Measured, not looked up.
//!
//! A model's step cannot be faster than its [`Cost`] over these; the share it reaches says what is left.

use std::time::{Duration, Instant};

use cuelight_shaders::cpu::{Kernel, Team};
use cuelight_shaders::pages::Pages;
use cuelight_shaders::roofline as work;

use crate::backend::cpu::team::ThreadTeam;
use crate::backend::vulkan::{self, Device, DeviceInfo, Instance, VulkanError, VulkanOptions};
use crate::memory;
use crate::profile::Cost;

/// What does the work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Worker {
    /// The processor, with a kernel's instructions and so many threads.
    Processor(Kernel, usize),
    /// The Vulkan device of that number.
    Vulkan(usize),
}

/// The limits of a machine with so many threads and a kernel's instructions, or of a device.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Roofline {
    /// What did the work.
    pub worker: Worker,
    /// Bytes a second from memory: a working set far beyond the caches.
    pub memory_bandwidth: f64,
    /// Bytes a second with a working set that large caches hold: 64 MiB, on a device 16 MiB.
    pub cache_bandwidth: f64,
    /// Operations a second in dot products of 8-bit integers; `None` for a kernel that computes in float32, and for a device.
    pub integer_peak: Option<f64>,
    /// Operations a second in products of float16 matrices, for a device that has them.
    pub matrix_peak: Option<f64>,
    /// Operations a second in float32.
    pub float_peak: f64,
}

/// A working set that no cache holds.
const MEMORY_BYTES: usize = 512 << 20;
/// A working set that some last-level caches hold.
const CACHE_BYTES: usize = 64 << 20;
/// What a thread reads at a time.
const PART_BYTES: usize = 1 << 20;
/// Of so many passes the one in the middle counts.
const PASSES: usize = 9;
/// A pass over registers is repeated for this long.
const PASS_TIME: Duration = Duration::from_millis(20);

impl Roofline {
    /// Measures: about a second, and 512 MiB of memory, or a quarter of what is free.
    ///
    /// # Panics
    /// When the machine does not support the kernel.
    #[must_use]
    pub fn measure(kernel: Kernel, threads: usize) -> Self {
        Self::with_working_set(kernel, threads, working_set(memory::available()), PASS_TIME)
    }

    /// Measures a Vulkan device: about a second, and a GiB of its memory, or a quarter of what is free.
    ///
    /// # Errors
    /// [`VulkanError`] when there is no such device, or it fails.
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
        // Untouched pages would all be one page of zeros.
        pages.fill(1);
        let integer = kernel.is_integer().then(|| {
            operations(&team, pass_time, &|| work::dot_products(kernel).expect("an integer kernel has dot products"))
        });
        Roofline {
            worker: Worker::Processor(kernel, threads),
            matrix_peak: None,
            memory_bandwidth: bandwidth(&team, kernel, &pages),
            cache_bandwidth: bandwidth(&team, kernel, &pages[..memory_bytes.min(CACHE_BYTES)]),
            integer_peak: integer,
            float_peak: operations(&team, pass_time, &|| work::multiply_adds(kernel)),
        }
    }

    /// The least time for this much work: the longer of what memory takes and what arithmetic takes.
    #[must_use]
    pub fn least_time(&self, bytes: u64, cost: &Cost) -> Duration {
        let memory = bytes as f64 / self.memory_bandwidth;
        let integers = cost.integer_operations as f64 / self.product_peak();
        // A device with matrices has them for whatever is large.
        let arithmetic = integers + cost.float_operations as f64 / self.matrix_peak.unwrap_or(self.float_peak);
        Duration::from_secs_f64(memory.max(arithmetic))
    }

    /// The peak of what the kernel forms products with.
    #[must_use]
    pub fn product_peak(&self) -> f64 {
        self.integer_peak.or(self.matrix_peak).unwrap_or(self.float_peak)
    }
}

/// The largest working set that leaves the machine room.
fn working_set(available: Option<u64>) -> usize {
    let quarter = available.map_or(MEMORY_BYTES, |bytes| usize::try_from(bytes / 4).unwrap_or(MEMORY_BYTES));
    quarter.min(MEMORY_BYTES)
}

/// Bytes a second in order.
fn bandwidth(team: &ThreadTeam, kernel: Kernel, bytes: &[u8]) -> f64 {
    let pass = || {
        let started = Instant::now();
        team.for_each(bytes.len().div_ceil(PART_BYTES), &|part| {
            let end = bytes.len().min((part + 1) * PART_BYTES);
            work::read(kernel, &bytes[part * PART_BYTES..end]);
        });
        bytes.len() as f64 / started.elapsed().as_secs_f64()
    };
    median(&pass)
}

/// Operations a second, of work that says how many it did.
fn operations(team: &ThreadTeam, pass_time: Duration, work: &(dyn Fn() -> u64 + Sync)) -> f64 {
    // So many parts in a row that a pass takes its time on every thread.
    let started = Instant::now();
    let of_part = work();
    let part_time = started.elapsed().max(Duration::from_micros(1));
    let parts = team.threads() * (pass_time.as_nanos().div_ceil(part_time.as_nanos())).min(100_000) as usize;
    let pass = || {
        let started = Instant::now();
        team.for_each(parts, &|_| {
            work();
        });
        (of_part * parts as u64) as f64 / started.elapsed().as_secs_f64()
    };
    median(&pass)
}

/// The middle of several passes; one before them wakes the threads and the clock rate.
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
    fn every_kernel_of_this_machine_is_measured() {
        for kernel in Kernel::ALL.iter().copied().filter(|kernel| kernel.is_supported()) {
            let roofline = Roofline::with_working_set(kernel, 2, 4 << 20, Duration::from_micros(100));
            assert!(roofline.memory_bandwidth > 1e6 && roofline.cache_bandwidth > 1e6, "{roofline:?}");
            assert!(roofline.float_peak > 1e6 && roofline.product_peak() > 1e6, "{roofline:?}");
            assert_eq!(roofline.integer_peak.is_some(), kernel.is_integer());
        }
    }

    #[test]
    fn the_least_time_is_that_of_the_scarcer_thing() {
        let roofline = Roofline {
            worker: Worker::Processor(Kernel::Avx2Integer, 1),
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
    fn a_vulkan_device_is_measured_where_there_is_one() {
        match Roofline::measure_vulkan(0) {
            Ok(roofline) => {
                assert!(roofline.memory_bandwidth > 1e6 && roofline.cache_bandwidth > 1e6, "{roofline:?}");
                assert!(roofline.float_peak > 1e6 && roofline.product_peak() > 1e6, "{roofline:?}");
            }
            Err(error) => eprintln!("SKIPPED: {error}"),
        }
    }

    #[test]
    fn a_small_machine_gets_a_small_working_set() {
        assert_eq!(working_set(None), 512 << 20);
        assert_eq!(working_set(Some(1 << 30)), 256 << 20);
        assert_eq!(working_set(Some(1 << 40)), 512 << 20);
    }
}
