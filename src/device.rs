//! What computes a model: the processor, or a Vulkan device.

use std::fmt;
use std::str::FromStr;

/// A device, as `--device` names it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum ComputeDevice {
    /// The processor.
    #[default]
    Cpu,
    /// The Vulkan device of that number, in the loader's order.
    Vulkan(usize),
}

impl fmt::Display for ComputeDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ComputeDevice::Cpu => f.pad("cpu"),
            ComputeDevice::Vulkan(index) => f.pad(&format!("vulkan:{index}")),
        }
    }
}

impl FromStr for ComputeDevice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let unknown =
            || format!("unknown device {text:?}; known devices: cpu, vulkan, vulkan:N (see `cuelight devices`)");
        match text.split_once(':').unwrap_or((text, "0")) {
            ("cpu", _) if text == "cpu" => Ok(ComputeDevice::Cpu),
            ("vulkan", index) => index.parse().map(ComputeDevice::Vulkan).map_err(|_| unknown()),
            _ => Err(unknown()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_read_as_they_are_written() {
        for (text, device) in [
            ("cpu", ComputeDevice::Cpu),
            ("vulkan:0", ComputeDevice::Vulkan(0)),
            ("vulkan:12", ComputeDevice::Vulkan(12)),
        ] {
            assert_eq!(text.parse(), Ok(device));
            assert_eq!(device.to_string(), text);
        }
        assert_eq!("vulkan".parse(), Ok(ComputeDevice::Vulkan(0)), "the first");
        for wrong in ["", "cpu:1", "vulkan:", "vulkan:x", "cuda", "vulkan:-1"] {
            let error = wrong.parse::<ComputeDevice>().unwrap_err();
            assert!(error.contains("cuelight devices"), "{wrong}: {error}");
        }
    }
}
