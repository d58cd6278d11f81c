//! `cuelight devices`: the devices that can compute a model on this machine.

use cuelight_engine::backend::vulkan::{DeviceInfo, Instance, InstanceOptions, VulkanError};
use cuelight_engine::load::{ComputeDevice, Kernel};
use cuelight_engine::memory;
use serde_json::json;

use super::terminal::{Align, print, table};
use super::{CliError, Context};
use crate::config::ByteSize;

/// List the devices for --device, and the features that each lacks.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Prints the list. Without Vulkan, a notice names what to install; the CPU is always in the list.
pub fn execute(args: &Args, context: &Context) -> Result<(), CliError> {
    let (devices, missing) = match vulkan_devices() {
        Ok(devices) => (devices, None),
        Err(error @ (VulkanError::NoLoader(_) | VulkanError::NoDriver)) => (Vec::new(), Some(error)),
        Err(error) => return Err(CliError::other(error)),
    };
    if args.json {
        let list: Vec<_> = std::iter::once(cpu_json()).chain(devices.iter().map(device_json)).collect();
        return print(&format!("{:#}\n", serde_json::Value::from(list)));
    }
    let columns = [
        ("DEVICE", Align::Left),
        ("NAME", Align::Left),
        ("KIND", Align::Left),
        ("MEMORY", Align::Right),
        ("DRIVER", Align::Left),
    ];
    let size = |bytes: u64| ByteSize(bytes).to_string();
    let cpu = vec![
        ComputeDevice::Cpu.to_string(),
        Kernel::detect().to_string(),
        "cpu".to_owned(),
        memory::available().map_or_else(|| "-".to_owned(), size),
        "-".to_owned(),
    ];
    let row = |device: &DeviceInfo| {
        let name = ComputeDevice::Vulkan(device.index).to_string();
        vec![name, device.name.clone(), device.kind.to_owned(), size(device.memory_bytes), device.driver.clone()]
    };
    let rows: Vec<Vec<String>> = std::iter::once(cpu).chain(devices.iter().map(row)).collect();
    print(&table(&columns, &rows))?;
    for device in &devices {
        for missing in &device.missing {
            context.terminal.notice(&format!("vulkan:{} cannot be used: it lacks {missing}", device.index));
        }
        for lacking in &device.lacking {
            context.terminal.notice(&format!("vulkan:{} lacks {lacking}", device.index));
        }
    }
    if let Some(missing) = missing {
        context.terminal.notice(&missing.to_string());
    }
    Ok(())
}

/// The Vulkan devices of this machine, at least one.
pub(super) fn vulkan_devices() -> Result<Vec<DeviceInfo>, VulkanError> {
    let devices = Instance::load(InstanceOptions::default())?.devices()?;
    if devices.is_empty() { Err(VulkanError::NoDriver) } else { Ok(devices) }
}

fn cpu_json() -> serde_json::Value {
    json!({
        "device": ComputeDevice::Cpu.to_string(),
        "kernel": Kernel::detect().name(),
        "kind": "cpu",
        "memory_bytes": memory::available(),
        "usable": true,
    })
}

/// All facts of a device, for programs.
pub(super) fn device_json(device: &DeviceInfo) -> serde_json::Value {
    json!({
        "device": ComputeDevice::Vulkan(device.index).to_string(),
        "name": device.name,
        "kind": device.kind,
        "driver": device.driver,
        "vulkan": format!("{}.{}", device.api_version.0, device.api_version.1),
        "memory_bytes": device.memory_bytes,
        "max_allocation_bytes": device.max_allocation_bytes,
        "subgroup_size": device.limits.subgroup_size,
        "shared_memory_bytes": device.limits.shared_memory_bytes,
        "max_workgroup_size": device.limits.max_workgroup_size,
        "cooperative_matrix": device.limits.cooperative_matrix,
        "missing": device.missing,
        "lacking": device.lacking,
        "usable": device.missing.is_empty(),
    })
}
