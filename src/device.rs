//! The devices that compute a model: the CPU, a Vulkan device, or several of them.

use std::fmt;
use std::str::FromStr;

/// Why a text is not a device or a setting of devices.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseDeviceError {
    /// Not the name of a device.
    #[error("unknown device {text:?}; known devices: cpu, vulkan, vulkan:N")]
    UnknownDevice {
        /// The text.
        text: String,
    },
    /// The list contains the CPU more than once.
    #[error("cpu is listed twice, but there is one CPU")]
    CpuTwice,
    /// Not a setting of [`CpuExperts`].
    #[error("{text:?} is not auto, all, or the number of layers whose experts the CPU computes")]
    CpuExperts {
        /// The text.
        text: String,
    },
    /// Not a setting of [`ExpertStreaming`].
    #[error("{text:?} is not auto, off, or the number of rows from which a step's experts are streamed to the device")]
    ExpertStreaming {
        /// The text.
        text: String,
    },
    /// Not a share.
    #[error("{text:?} is not a number above 0; shares look like 3,1")]
    Share {
        /// The text.
        text: String,
    },
}

/// A device, written as `cpu` or `vulkan:N`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum ComputeDevice {
    /// The CPU.
    #[default]
    Cpu,
    /// The Vulkan device of this index, in the loader's order.
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
    type Err = ParseDeviceError;

    fn from_str(text: &str) -> Result<Self, ParseDeviceError> {
        let unknown = || ParseDeviceError::UnknownDevice { text: text.to_owned() };
        match text.split_once(':').unwrap_or((text, "0")) {
            ("cpu", _) if text == "cpu" => Ok(ComputeDevice::Cpu),
            ("vulkan", index) => index.parse().map(ComputeDevice::Vulkan).map_err(|_| unknown()),
            _ => Err(unknown()),
        }
    }
}

/// The layers whose routed experts the CPU computes for a model on a device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum CpuExperts {
    /// As many layers as necessary for the rest to fit in device memory.
    #[default]
    Auto,
    /// All layers.
    All,
    /// The first layers, this many.
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
    type Err = ParseDeviceError;

    fn from_str(text: &str) -> Result<Self, ParseDeviceError> {
        match text {
            "auto" => Ok(CpuExperts::Auto),
            "all" => Ok(CpuExperts::All),
            count => count
                .parse()
                .map(CpuExperts::Layers)
                .map_err(|_| ParseDeviceError::CpuExperts { text: text.to_owned() }),
        }
    }
}

/// The steps for which all experts on the host are streamed to the device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ExpertStreaming {
    /// Steps of as many rows as streaming was measured to be faster for.
    #[default]
    Auto,
    /// No steps: all slots on the device belong to the cache.
    Off,
    /// Steps of at least this many rows.
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
    type Err = ParseDeviceError;

    fn from_str(text: &str) -> Result<Self, ParseDeviceError> {
        match (text, text.parse::<usize>()) {
            ("auto", _) => Ok(ExpertStreaming::Auto),
            ("off", _) => Ok(ExpertStreaming::Off),
            (_, Ok(rows)) if rows > 0 => Ok(ExpertStreaming::FromRows(rows)),
            _ => Err(ParseDeviceError::ExpertStreaming { text: text.to_owned() }),
        }
    }
}

/// The devices that share a model's layers, in the order of the layers. Usually one.
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
    type Err = ParseDeviceError;

    fn from_str(text: &str) -> Result<Self, ParseDeviceError> {
        // The benchmark takes comma-separated lists of lists, in which a plus separates devices.
        let devices = text.split([',', '+']).map(str::parse).collect::<Result<Vec<ComputeDevice>, _>>()?;
        if devices.iter().filter(|device| **device == ComputeDevice::Cpu).count() > 1 {
            return Err(ParseDeviceError::CpuTwice);
        }
        Ok(Devices(devices))
    }
}

impl Devices {
    /// Divides the devices among replicas: equal numbers, in order.
    ///
    /// # Errors
    /// [`UnevenDevices`] when the number of devices is not a multiple of the number of replicas.
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

/// The devices cannot be divided evenly among the replicas.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{replicas} replicas need the same number of devices each, at least one, but {} given: {devices}{}",
    counted(devices),
    why_not_cpu(devices)
)]
pub struct UnevenDevices {
    /// The devices.
    pub devices: Devices,
    /// The number of replicas.
    pub replicas: usize,
}

fn counted(devices: &Devices) -> String {
    if devices.0.len() == 1 { "1 is".to_owned() } else { format!("{} are", devices.0.len()) }
}

/// Several replicas on one CPU would read the weights once each per step; in one replica all rows of a step share one reading.
fn why_not_cpu(devices: &Devices) -> &'static str {
    if devices.0 == [ComputeDevice::Cpu] { "; on one CPU a single replica is faster than several" } else { "" }
}

/// The proportions in which several devices share a model.
#[derive(Debug, Clone, PartialEq)]
pub struct Shares(pub Vec<f64>);

impl fmt::Display for Shares {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0.iter().map(f64::to_string).collect::<Vec<_>>().join(","))
    }
}

impl FromStr for Shares {
    type Err = ParseDeviceError;

    fn from_str(text: &str) -> Result<Self, ParseDeviceError> {
        let share = |share: &str| match share.trim().parse::<f64>() {
            Ok(number) if number.is_finite() && number > 0.0 => Ok(number),
            _ => Err(ParseDeviceError::Share { text: share.to_owned() }),
        };
        text.split(',').map(share).collect::<Result<Vec<_>, _>>().map(Shares)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_devices_and_shares_parse_and_print() {
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
    fn replicas_get_equal_numbers_of_devices_in_order() {
        let shares = |devices: &str, replicas| {
            let shares = devices.parse::<Devices>().unwrap().of_replicas(replicas);
            shares.map(|shares| shares.iter().map(Devices::to_string).collect::<Vec<_>>())
        };
        assert_eq!(shares("cpu", 1).unwrap(), ["cpu"]);
        assert_eq!(shares("vulkan:0,vulkan:1", 2).unwrap(), ["vulkan:0", "vulkan:1"]);
        assert_eq!(shares("vulkan:0,vulkan:1,vulkan:2,cpu", 2).unwrap(), ["vulkan:0,vulkan:1", "vulkan:2,cpu"]);
        let error = shares("vulkan:0,vulkan:1,vulkan:2", 2).unwrap_err().to_string();
        assert!(
            error.starts_with("2 replicas") && error.contains("3 are given: vulkan:0,vulkan:1,vulkan:2"),
            "{error}"
        );
        let error = shares("cpu", 2).unwrap_err().to_string();
        assert!(error.contains("1 is given: cpu") && error.contains("a single replica"), "{error}");
        assert!(shares("vulkan:0", 2).is_err() && shares("cpu", 0).is_err());
    }

    #[test]
    fn devices_parse_and_print() {
        for (text, device) in [
            ("cpu", ComputeDevice::Cpu),
            ("vulkan:0", ComputeDevice::Vulkan(0)),
            ("vulkan:12", ComputeDevice::Vulkan(12)),
        ] {
            assert_eq!(text.parse(), Ok(device));
            assert_eq!(device.to_string(), text);
        }
        assert_eq!("vulkan".parse(), Ok(ComputeDevice::Vulkan(0)), "the default is the first");
        for wrong in ["", "cpu:1", "vulkan:", "vulkan:x", "cuda", "vulkan:-1"] {
            assert_eq!(wrong.parse::<ComputeDevice>(), Err(ParseDeviceError::UnknownDevice { text: wrong.to_owned() }));
        }
    }
}
