//! The facts of a report.

use std::path::Path;

use cuelight_engine::backend::cpu;
use cuelight_engine::cgroup;
use cuelight_engine::load::{ComputeDevice, Kernel};
use cuelight_engine::machine::Machine;
use cuelight_engine::memory;
use cuelight_engine::roofline::Roofline;
use cuelight_engine::tuning::{Calibration, Tuning};
use serde::Serialize;
use serde_json::Value;

use super::check::Check;
use crate::cli::devices::{device_json, vulkan_devices};
use crate::cli::tuning::{Tuned, TuningSource};
use crate::config::{CalibrateMode, Config};

/// What the kernel driver for NVIDIA's GPUs creates, in containers too.
const NVIDIA_KERNEL_DRIVER: &str = "/proc/driver/nvidia/version";

/// Everything that `cuelight doctor` shows. The names of the fields are those of the JSON.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The version of the program.
    pub version: &'static str,
    /// The CPU.
    pub cpu: Cpu,
    /// The memory.
    pub memory: Memory,
    /// The limits of a container or service.
    pub limits: Limits,
    /// Measured rates, for one thread and for all that are used.
    pub speed: Vec<Speed>,
    /// The Vulkan devices, as `cuelight devices --json` shows them.
    pub gpus: Vec<Value>,
    /// Why there are no Vulkan devices.
    pub no_gpus: Option<String>,
    /// Whether the kernel has a driver for NVIDIA's GPUs, also one that no Vulkan driver uses.
    pub has_nvidia_driver: bool,
    /// What the CPU kernels have adapted.
    pub tuning: Choices,
    /// The device of the configuration that cannot be used here.
    pub missing_device: Option<String>,
    /// Each check with its result; empty until they are made from the rest.
    pub checks: Vec<Check>,
}

/// The CPU.
#[derive(Debug, Clone, Serialize)]
pub struct Cpu {
    /// Its name.
    pub name: String,
    /// Instruction set extensions that matter.
    pub features: Vec<String>,
    /// CPUs that the system schedules threads on.
    pub cpus: usize,
    /// Cores, as far as the system reports them.
    pub cores: Option<usize>,
    /// CPUs that this process may use.
    pub usable_cpus: usize,
    /// Whether the machine is virtual.
    pub is_virtual: bool,
    /// Bytes of the L2 cache of a core.
    pub l2_bytes: Option<usize>,
    /// Bytes of the last-level cache.
    pub l3_bytes: Option<usize>,
    /// The kernels that run here, slowest first.
    pub kernels: Vec<&'static str>,
    /// The kernel in use.
    pub kernel: &'static str,
    /// The kernel of the configuration, if this CPU does not have it.
    pub unsupported_kernel: Option<&'static str>,
}

/// The memory.
#[derive(Debug, Clone, Serialize)]
pub struct Memory {
    /// Bytes of the machine.
    pub total_bytes: Option<u64>,
    /// Bytes that are free for this process.
    pub available_bytes: Option<u64>,
    /// The system's use of large pages: always, madvise or never.
    pub huge_pages: Option<String>,
}

/// The limits of a container or service; what is not limited is absent.
#[derive(Debug, Clone, Serialize)]
pub struct Limits {
    /// How many CPUs may be busy.
    pub cpus: Option<f64>,
    /// Bytes of memory.
    pub memory_bytes: Option<u64>,
}

/// Measured peak rates.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Speed {
    /// Threads.
    pub threads: usize,
    /// Bytes read from memory per second.
    pub read_bytes_per_second: f64,
    /// Bytes read per second within 64 MiB.
    pub cached_read_bytes_per_second: f64,
    /// Operations per second in dot products of 8-bit integers; absent for a float32 kernel.
    pub dot_products_per_second: Option<f64>,
    /// Operations per second in float32.
    pub float_operations_per_second: f64,
}

/// What the kernels use.
#[derive(Debug, Clone, Serialize)]
pub struct Choices {
    /// Threads to compute with.
    pub threads: usize,
    /// Whether the configuration sets the threads.
    pub threads_are_set: bool,
    /// Bytes that weights are prefetched ahead; 0 leaves this to the hardware.
    pub prefetch_ahead: usize,
    /// Bytes of activations that stay in the L2 cache.
    pub rows_in_cache: usize,
    /// The fewest rows for tiles (AMX); absent without them.
    pub amx_least_rows: Option<usize>,
    /// default, stored, measured, or measured but not kept.
    pub source: &'static str,
    /// The file with the choices, or why there is none.
    pub detail: Option<String>,
    /// The setting `calibrate` is off.
    pub is_off: bool,
    /// The measurement that the choices come from; absent for defaults.
    pub calibration: Option<Calibration>,
}

impl Report {
    /// Collects the facts and measures the speed.
    pub fn new(config: &Config, tuned: &Tuned) -> Self {
        let kernel = config.kernel.filter(|kernel| kernel.is_supported()).unwrap_or_else(Kernel::detect);
        let machine = Machine::of(Path::new("/"));
        let tuning = Choices::new(config, tuned, kernel);
        let counts = if tuning.threads == 1 { vec![1] } else { vec![1, tuning.threads] };
        let (gpus, no_gpus) = match vulkan_devices() {
            Ok(devices) => (devices.iter().map(device_json).collect(), None),
            Err(error) => (Vec::new(), Some(error.to_string())),
        };
        Report {
            version: env!("CARGO_PKG_VERSION"),
            limits: Limits::of_process(),
            memory: Memory {
                total_bytes: machine.memory_bytes,
                available_bytes: memory::available(),
                huge_pages: machine.huge_pages.clone(),
            },
            speed: counts.into_iter().map(|threads| Speed::measure(kernel, threads)).collect(),
            cpu: Cpu::new(machine, kernel, config.kernel),
            missing_device: missing_device(config, &gpus),
            gpus,
            no_gpus,
            has_nvidia_driver: Path::new(NVIDIA_KERNEL_DRIVER).exists(),
            tuning,
            checks: Vec::new(),
        }
    }
}

impl Cpu {
    fn new(machine: Machine, kernel: Kernel, wanted: Option<Kernel>) -> Self {
        let supported = Kernel::ALL.iter().filter(|kernel| kernel.is_supported());
        Cpu {
            name: machine.cpu,
            features: machine.features,
            cpus: machine.cpus,
            cores: machine.cores,
            usable_cpus: cpu::default_threads(),
            is_virtual: machine.is_virtual,
            l2_bytes: machine.l2_bytes,
            l3_bytes: machine.l3_bytes,
            kernels: supported.map(|kernel| kernel.name()).collect(),
            kernel: kernel.name(),
            unsupported_kernel: wanted.filter(|wanted| !wanted.is_supported()).map(|wanted| wanted.name()),
        }
    }
}

/// The first device of the configuration that is not a usable one of this machine.
fn missing_device(config: &Config, gpus: &[Value]) -> Option<String> {
    let usable = |name: &str| gpus.iter().any(|gpu| gpu["device"] == name && gpu["usable"] == true);
    let gpus_wanted = config.device.0.iter().filter(|device| **device != ComputeDevice::Cpu);
    gpus_wanted.map(ToString::to_string).find(|name| !usable(name))
}

impl Limits {
    fn of_process() -> Self {
        let root = Path::new("/");
        Limits {
            cpus: cgroup::cpu_limit(root).map(|limit| limit.cpus),
            memory_bytes: cgroup::memory_limit(root).map(|limit| limit.limit_bytes),
        }
    }
}

impl Speed {
    fn measure(kernel: Kernel, threads: usize) -> Self {
        let roofline = Roofline::measure(kernel, threads);
        Speed {
            threads,
            read_bytes_per_second: roofline.memory_bandwidth,
            cached_read_bytes_per_second: roofline.cache_bandwidth,
            dot_products_per_second: roofline.integer_peak,
            float_operations_per_second: roofline.float_peak,
        }
    }
}

impl Choices {
    fn new(config: &Config, Tuned { calibration, source }: &Tuned, kernel: Kernel) -> Self {
        let Tuning { prefetch_ahead, rows_in_cache, amx_least_rows } = calibration.tuning();
        let (source, detail) = match source {
            TuningSource::Default => ("default", None),
            TuningSource::Stored(file) => ("stored", Some(file.display().to_string())),
            TuningSource::Measured(file) => ("measured", Some(file.display().to_string())),
            TuningSource::NotKept(reason) => ("not kept", Some(reason.clone())),
        };
        Choices {
            threads: config.threads.map_or(calibration.threads, usize::from),
            threads_are_set: config.threads.is_some(),
            prefetch_ahead,
            rows_in_cache,
            amx_least_rows: (kernel == Kernel::AmxInt8).then_some(amx_least_rows),
            calibration: (source != "default").then(|| calibration.clone()),
            source,
            detail,
            is_off: config.calibrate == CalibrateMode::Off,
        }
    }
}
