//! Every op on a Vulkan device, with the validation layer looking on. Any device will do, and lavapipe is one: Mesa's Vulkan
//! on the processor.
//!
//! - `one_op`: an op on a device, through the same memory, recorder and pipelines as a model
//! - `cases`: what each op must compute, from the table that the CPU's tests run too
//! - `choice`: tokens chosen on the device beside the host's
//! - `experts`: experts in steps of every size
//! - `fused`: ops that are computed together beside the same apart
//! - `invariance`: the same bits in any batch, and by any way to the device
//! - `matmul`: products of many rows, by every kernel that the device has
//! - `validation`: that the layer complains when it should
//!
//! Where there is no device, or no layer, the tests say so and pass; with the feature `require-vulkan` they fail.

#![allow(clippy::unwrap_used)]

mod cases;
mod choice;
mod experts;
mod fused;
mod invariance;
mod matmul;
mod one_op;
mod validation;

use std::sync::{Arc, OnceLock};

use super::{Device, Instance, VulkanOptions};

/// The device that the tests of this program share, so that each pipeline is made once; `None` where there is none.
fn shared_device() -> Option<Arc<Device>> {
    static SHARED: OnceLock<Result<Arc<Device>, String>> = OnceLock::new();
    found(SHARED.get_or_init(|| open(VulkanOptions { validation: true, ..VulkanOptions::default() })).clone())
}

/// The shared device, if it multiplies matrices of float16. Few do, so that this is told but never fails.
fn device_with_matrices() -> Option<Arc<Device>> {
    let device = shared_device()?;
    let has_matrices = device.info.limits.cooperative_matrix.is_some();
    if !has_matrices {
        eprintln!("SKIPPED: {} has no cooperative matrices", device.info.name);
    }
    has_matrices.then_some(device)
}

/// A device of its own, for tests that break it or want it otherwise.
fn own_device(options: VulkanOptions) -> Option<Arc<Device>> {
    found(open(options))
}

fn open(options: VulkanOptions) -> Result<Arc<Device>, String> {
    let instance = Instance::load(options.instance()).map_err(|error| error.to_string())?;
    let devices = instance.devices().map_err(|error| error.to_string())?;
    let usable = devices.into_iter().find(|device| device.missing.is_empty());
    let device = usable.ok_or("this machine has no usable Vulkan device")?;
    Device::open(instance, device, options).map_err(|error| error.to_string())
}

fn found(device: Result<Arc<Device>, String>) -> Option<Arc<Device>> {
    match device {
        Ok(device) => {
            if device.options.validation && !device.instance().is_validated() {
                skip("the Vulkan validation layer is not installed: nobody looks on");
            }
            Some(device)
        }
        Err(reason) => {
            skip(&reason);
            None
        }
    }
}

/// Says that something is not tested, or fails where it must be.
fn skip(reason: &str) {
    if cfg!(feature = "require-vulkan") {
        panic!("Vulkan must be tested here, but {reason}");
    }
    eprintln!("SKIPPED: {reason}");
}

/// Asserts that the validation layer had nothing to complain of.
#[track_caller]
fn assert_clean(device: &Device) {
    let complaints = device.instance().complaints();
    assert!(complaints.is_empty(), "the validation layer complains:\n{}", complaints.join("\n"));
}
