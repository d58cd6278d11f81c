//! What computes a model: the processor, a Vulkan device, or several of them.

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

/// Whose routed experts the processor computes for a model on a device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum CpuExperts {
    /// Those of as many layers as the device has no room for.
    #[default]
    Auto,
    /// Those of all layers.
    All,
    /// Those of so many layers, the first ones.
    Layers(usize),
}

impl fmt::Display for CpuExperts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CpuExperts::Auto => f.pad("auto"),
            CpuExperts::All => f.pad("all"),
            CpuExperts::Layers(count) => f.pad(&count.to_string()),
        }
    }
}

impl FromStr for CpuExperts {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(CpuExperts::Auto),
            "all" => Ok(CpuExperts::All),
            count => count
                .parse()
                .map(CpuExperts::Layers)
                .map_err(|_| format!("{text:?} is not auto, all, or how many layers' experts the processor computes")),
        }
    }
}

/// For which steps all experts that the host has come to the device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ExpertStreaming {
    /// For steps of so many rows that it was measured to be faster.
    #[default]
    Auto,
    /// Never: all places are the cache's.
    Off,
    /// For steps of so many rows and more.
    FromRows(usize),
}

impl fmt::Display for ExpertStreaming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ExpertStreaming::Auto => f.pad("auto"),
            ExpertStreaming::Off => f.pad("off"),
            ExpertStreaming::FromRows(rows) => f.pad(&rows.to_string()),
        }
    }
}

impl FromStr for ExpertStreaming {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match (text, text.parse::<usize>()) {
            ("auto", _) => Ok(ExpertStreaming::Auto),
            ("off", _) => Ok(ExpertStreaming::Off),
            (_, Ok(rows)) if rows > 0 => Ok(ExpertStreaming::FromRows(rows)),
            _ => {
                Err(format!("{text:?} is not auto, off, or from how many rows of a step on experts come to the device"))
            }
        }
    }
}

/// The devices that share a model's layers, in the layers' order; most often one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Devices(pub Vec<ComputeDevice>);

impl From<ComputeDevice> for Devices {
    fn from(device: ComputeDevice) -> Self {
        Devices(vec![device])
    }
}

impl fmt::Display for Devices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0.iter().map(ComputeDevice::to_string).collect::<Vec<_>>().join(","))
    }
}

impl FromStr for Devices {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // A plus for lists of lists, as the benchmark takes them.
        let devices = text.split([',', '+']).map(str::parse).collect::<Result<Vec<ComputeDevice>, _>>()?;
        if devices.iter().filter(|device| **device == ComputeDevice::Cpu).count() > 1 {
            return Err("cpu is named twice; there is one processor".to_owned());
        }
        Ok(Devices(devices))
    }
}

impl Devices {
    /// The devices of each of so many replicas: the first ones for the first, as many for each.
    ///
    /// # Errors
    /// [`UnevenDevices`].
    pub fn of_replicas(&self, replicas: usize) -> Result<Vec<Devices>, UnevenDevices> {
        let uneven = || UnevenDevices { devices: self.clone(), replicas };
        match self.0.len().checked_div(replicas) {
            Some(each) if each > 0 && self.0.len().is_multiple_of(replicas) => {
                Ok(self.0.chunks(each).map(|devices| Devices(devices.to_vec())).collect())
            }
            _ => Err(uneven()),
        }
    }
}

/// Replicas do not get as many devices each.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{replicas} replicas need as many devices each, at least one, but --device names {}: {devices}{}",
    devices.0.len(), why_not_cpu(devices)
)]
pub struct UnevenDevices {
    /// The devices.
    pub devices: Devices,
    /// How many are to share them.
    pub replicas: usize,
}

/// On one processor a second copy of the weights would only be a second thing to read for each step: rows that share a step
/// share one reading of them.
fn why_not_cpu(devices: &Devices) -> &'static str {
    if devices.0 == [ComputeDevice::Cpu] {
        ", and one processor computes one replica for all requests faster than several; leave --replicas out"
    } else {
        ""
    }
}

/// What each of several devices gets of a model, in proportion.
#[derive(Debug, Clone, PartialEq)]
pub struct Shares(pub Vec<f64>);

impl fmt::Display for Shares {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0.iter().map(f64::to_string).collect::<Vec<_>>().join(","))
    }
}

impl FromStr for Shares {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let share = |share: &str| match share.trim().parse::<f64>() {
            Ok(number) if number.is_finite() && number > 0.0 => Ok(number),
            _ => Err(format!("{share:?} is not a number above 0; shares look like 3,1")),
        };
        text.split(',').map(share).collect::<Result<Vec<_>, _>>().map(Shares)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_devices_and_shares_are_read_as_they_are_written() {
        let devices: Devices = "cpu,vulkan:1".parse().unwrap();
        assert_eq!(devices.0, [ComputeDevice::Cpu, ComputeDevice::Vulkan(1)]);
        assert_eq!(devices.to_string(), "cpu,vulkan:1");
        assert_eq!("cpu+vulkan:1".parse(), Ok(devices));
        assert!("cpu,cpu".parse::<Devices>().is_err());
        assert!("vulkan,".parse::<Devices>().is_err());
        let shares: Shares = "3,1.5".parse().unwrap();
        assert_eq!((shares.0.clone(), shares.to_string()), (vec![3.0, 1.5], "3,1.5".to_owned()));
        for wrong in ["", "1,", "0,1", "-1", "nan", "inf"] {
            assert!(wrong.parse::<Shares>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn replicas_get_devices_in_their_order_and_as_many_each() {
        let shares = |devices: &str, replicas| {
            let shares = devices.parse::<Devices>().unwrap().of_replicas(replicas);
            shares.map(|shares| shares.iter().map(Devices::to_string).collect::<Vec<_>>())
        };
        assert_eq!(shares("cpu", 1).unwrap(), ["cpu"]);
        assert_eq!(shares("vulkan:0,vulkan:1", 2).unwrap(), ["vulkan:0", "vulkan:1"]);
        assert_eq!(shares("vulkan:0,vulkan:1,vulkan:2,cpu", 2).unwrap(), ["vulkan:0,vulkan:1", "vulkan:2,cpu"]);
        let error = shares("vulkan:0,vulkan:1,vulkan:2", 2).unwrap_err().to_string();
        assert!(error.starts_with("2 replicas") && error.contains("names 3: vulkan:0,vulkan:1,vulkan:2"), "{error}");
        let error = shares("cpu", 2).unwrap_err().to_string();
        assert!(error.contains("names 1: cpu") && error.contains("leave --replicas out"), "{error}");
        assert!(shares("vulkan:0", 2).is_err() && shares("cpu", 0).is_err());
    }

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
