//! Checks for a Vulkan device to test on.

use cuelight_engine::backend::vulkan::{Instance, InstanceOptions};

/// Whether `vulkan:0` can be used. If not, prints that the test is skipped.
pub fn has_device() -> bool {
    let devices = Instance::load(InstanceOptions::default()).and_then(|instance| instance.devices());
    let found = devices.is_ok_and(|devices| devices.first().is_some_and(|device| device.missing.is_empty()));
    if !found {
        eprintln!("SKIPPED: this machine has no usable Vulkan device");
    }
    found
}
