//! Tests of every op on a Vulkan device with the validation layer enabled. Any device is suitable, including lavapipe, Mesa's
//! Vulkan implementation for the CPU.
//!
//! - `one_op`: runs one op through the same memory, recorder and pipelines as a model
//! - `attention`: attention to caches and queries of other values
//! - `cases`: the table of cases that the CPU tests also run
//! - `sampling`: tokens sampled on the device, compared with the host's
//! - `experts`: experts in steps of many sizes
//! - `fused`: fused ops, compared with the separate ops
//! - `invariance`: bitwise equal results in any batch, with and without staging buffers
//! - `matmul`: products of many rows, with every kernel of the device
//! - `speed`: the time of single ops, for tuning
//! - `validation`: the validation layer reports errors when it should
//!
//! Without a device or without the layer, tests print `SKIPPED` and pass. With the feature `require-vulkan` they fail.

#![allow(clippy::unwrap_used)]

mod attention;
mod cases;
mod experts;
mod fused;
mod invariance;
mod matmul;
mod one_op;
mod sampling;
mod speed;
#[path = "../../../../tests/support/test_seed.rs"]
mod test_seed;
mod validation;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use cuelight_shaders::cases::Case;

use self::test_seed::test_seed;
use super::{Device, Instance, VulkanOptions};

/// One of the devices that the tests share, so that most pipelines are compiled once; `None` if there is no device. A software
/// device compiles shaders on one thread, so there is a device for each of two cores.
fn shared_device() -> Option<Arc<Device>> {
    static SHARED: [OnceLock<Result<Arc<Device>, String>>; 2] = [OnceLock::new(), OnceLock::new()];
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local!(static MINE: usize = NEXT.fetch_add(1, Ordering::Relaxed) % SHARED.len());
    let shared = &SHARED[MINE.with(|mine| *mine)];
    device_or_skip(shared.get_or_init(|| open(VulkanOptions { validation: true, ..VulkanOptions::default() })).clone())
}

/// Some of the cases: the first, the last, and one in `SAMPLE` of the others. Compiling their shaders takes a software device
/// minutes, so all cases run in the slow tier only. The choice changes from day to day; the seed is printed.
fn sampled(cases: Vec<Case>) -> Vec<Case> {
    const SAMPLE: u64 = 24;
    let seed = test_seed();
    println!("cases are sampled with the seed {seed}");
    let last = cases.len().saturating_sub(1);
    let is_in_sample = |index: &usize| (*index as u64 + seed).is_multiple_of(SAMPLE) || *index == 0 || *index == last;
    cases.into_iter().enumerate().filter(|(index, _)| is_in_sample(index)).map(|(_, case)| case).collect()
}

/// One of `parts` equal parts of the cases, which take turns from day to day. On a day each `turn` has another part.
fn part_of<T>(cases: Vec<T>, parts: usize, turn: usize) -> Vec<T> {
    let first = (test_seed() as usize + turn) % parts;
    cases.into_iter().skip(first).step_by(parts).collect()
}

/// The shared device, if it has cooperative matrices. Few devices do, so this prints `SKIPPED` but never fails.
fn device_with_matrices() -> Option<Arc<Device>> {
    let device = shared_device()?;
    let has_matrices = device.info.limits.cooperative_matrix.is_some();
    if !has_matrices {
        eprintln!("SKIPPED: {} has no cooperative matrices", device.info.name);
    }
    has_matrices.then_some(device)
}

/// A separate device, for tests that break it or need other options.
fn own_device(options: VulkanOptions) -> Option<Arc<Device>> {
    device_or_skip(open(options))
}

fn open(options: VulkanOptions) -> Result<Arc<Device>, String> {
    let instance = Instance::load(options.instance()).map_err(|error| error.to_string())?;
    let devices = instance.devices().map_err(|error| error.to_string())?;
    let usable = devices.into_iter().find(|device| device.missing.is_empty());
    let device = usable.ok_or("this machine has no usable Vulkan device")?;
    Device::open(instance, device, options).map_err(|error| error.to_string())
}

fn device_or_skip(device: Result<Arc<Device>, String>) -> Option<Arc<Device>> {
    match device {
        Ok(device) => {
            if device.options.validation && !device.instance().is_validated() {
                skip("the Vulkan validation layer is not installed");
            }
            Some(device)
        }
        Err(reason) => {
            skip(&reason);
            None
        }
    }
}

/// Reports that something is not tested; panics if Vulkan tests are required.
fn skip(reason: &str) {
    if cfg!(feature = "require-vulkan") {
        panic!("Vulkan tests are required, but {reason}");
    }
    eprintln!("SKIPPED: {reason}");
}

/// Asserts that the validation layer has reported nothing.
#[track_caller]
fn assert_clean(device: &Device) {
    let messages = device.instance().messages();
    assert!(messages.is_empty(), "the validation layer reports:\n{}", messages.join("\n"));
}
