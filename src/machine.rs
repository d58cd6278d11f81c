//! What the system reports about this machine's CPU and memory.
//!
//! Paths start at a root folder, so that tests can give a tree of their own. What a system does not report is unknown.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// The CPU and the memory of a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Machine {
    /// The name of the CPU with its family, model and stepping: virtual machines give many CPUs the same name.
    pub cpu: String,
    /// The instruction set extensions that matter for kernels.
    pub features: Vec<String>,
    /// The CPUs that the system schedules threads on.
    pub cpus: usize,
    /// Cores, each of which may be several CPUs; `None` if the system does not report them. A virtual machine may report a
    /// core for each CPU although some share one.
    pub cores: Option<usize>,
    /// Bytes of the L2 cache of the first CPU.
    pub l2_bytes: Option<usize>,
    /// Bytes of the last cache of the first CPU, if it is beyond L2.
    pub l3_bytes: Option<usize>,
    /// Whether the machine is virtual.
    pub is_virtual: bool,
    /// Bytes of memory.
    pub memory_bytes: Option<u64>,
    /// The system's use of large pages: always, madvise or never.
    pub huge_pages: Option<String>,
}

/// Extensions that kernels use, in the words of the system.
const FEATURES: &[&str] = &[
    "sse4_2",
    "avx",
    "avx2",
    "fma",
    "f16c",
    "avx_vnni",
    "avx512f",
    "avx512bw",
    "avx512dq",
    "avx512vl",
    "avx512_vnni",
    "avx512_bf16",
    "avx512_fp16",
    "amx_tile",
    "amx_int8",
    "amx_bf16",
    "asimd",
    "asimddp",
    "i8mm",
    "sve",
];

impl Machine {
    /// The machine whose files are below `root`; `/` for this one.
    #[must_use]
    pub fn of(root: &Path) -> Self {
        let info = fs::read_to_string(root.join("proc/cpuinfo")).unwrap_or_default();
        let of_first = |key: &str| field(&info, key);
        let flags: BTreeSet<&str> = of_first("flags").or(of_first("Features")).unwrap_or_default().split(' ').collect();
        let caches = caches(root);
        let cache = |level: u32| caches.iter().find(|cache| cache.0 == level).map(|cache| cache.1);
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let folders = cpu_folders(root);
        Machine {
            cpu: name(&info),
            features: FEATURES.iter().filter(|name| flags.contains(*name)).map(|name| (*name).to_owned()).collect(),
            cpus: if folders.is_empty() { cpus } else { folders.len() },
            cores: cores(&folders),
            l2_bytes: cache(2),
            l3_bytes: cache(3),
            is_virtual: flags.contains("hypervisor"),
            memory_bytes: memory_bytes(root),
            huge_pages: huge_pages(root),
        }
    }
}

/// The value of the first line with this key.
fn field<'a>(info: &'a str, key: &str) -> Option<&'a str> {
    let values = info.lines().filter_map(|line| line.split_once(':'));
    values.filter(|(name, _)| name.trim() == key).map(|(_, value)| value.trim()).next()
}

fn name(info: &str) -> String {
    let name = field(info, "model name").or(field(info, "Hardware")).unwrap_or(std::env::consts::ARCH);
    // Family and model are numbers on x86; ARM has other keys.
    let keys = [("cpu family", "family"), ("model", "model"), ("stepping", "stepping"), ("CPU part", "part")];
    let numbers = keys.iter().filter_map(|(key, word)| Some(format!("{word} {}", field(info, key)?)));
    let numbers: Vec<String> = numbers.collect();
    if numbers.is_empty() { name.to_owned() } else { format!("{name} ({})", numbers.join(", ")) }
}

/// The folder of each CPU.
fn cpu_folders(root: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(root.join("sys/devices/system/cpu")).into_iter().flatten().flatten();
    let is_cpu = |name: &str| {
        name.strip_prefix("cpu").is_some_and(|number| !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()))
    };
    let cpus = entries.filter(|entry| entry.file_name().to_str().is_some_and(is_cpu));
    let folders = cpus.map(|entry| entry.path());
    // A CPU that is offline has no topology.
    folders.filter(|folder| folder.join("topology").is_dir()).collect()
}

/// The number of different cores of these CPUs.
fn cores(cpus: &[PathBuf]) -> Option<usize> {
    let read = |folder: &Path, file: &str| fs::read_to_string(folder.join("topology").join(file)).ok();
    let of_cpu = |folder: &PathBuf| Some((read(folder, "physical_package_id")?, read(folder, "core_id")?));
    let cores = cpus.iter().map(of_cpu).collect::<Option<BTreeSet<_>>>()?;
    (!cores.is_empty()).then_some(cores.len())
}

/// The level and the bytes of each cache of the first CPU that holds data.
fn caches(root: &Path) -> Vec<(u32, usize)> {
    let folders = fs::read_dir(root.join("sys/devices/system/cpu/cpu0/cache")).into_iter().flatten().flatten();
    let cache = |folder: &Path| {
        let read = |file: &str| fs::read_to_string(folder.join(file)).ok().map(|text| text.trim().to_owned());
        let holds_data = read("type")? != "Instruction";
        let level = read("level")?.parse().ok()?;
        holds_data.then_some((level, bytes(&read("size")?)?))
    };
    folders.filter_map(|folder| cache(&folder.path())).collect()
}

/// Bytes of a size like "1024K".
fn bytes(size: &str) -> Option<usize> {
    let (number, unit) = match size.as_bytes().last()? {
        b'K' => (&size[..size.len() - 1], 1 << 10),
        b'M' => (&size[..size.len() - 1], 1 << 20),
        _ => (size, 1),
    };
    number.parse::<usize>().ok()?.checked_mul(unit)
}

fn memory_bytes(root: &Path) -> Option<u64> {
    let info = fs::read_to_string(root.join("proc/meminfo")).ok()?;
    field(&info, "MemTotal")?.strip_suffix(" kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// The choice in brackets, as in `always [madvise] never`.
fn huge_pages(root: &Path) -> Option<String> {
    let text = fs::read_to_string(root.join("sys/kernel/mm/transparent_hugepage/enabled")).ok()?;
    Some(text.split_once('[')?.1.split_once(']')?.0.to_owned())
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use super::*;
    use crate::cgroup::tests::tree;

    #[test]
    fn two_threads_of_one_core_are_one_core() {
        const CPU: &str = "sys/devices/system/cpu";
        let cpuinfo = "processor\t: 0\ncpu family\t: 25\nmodel\t\t: 17\nmodel name\t: AMD EPYC\nstepping\t: 1\n\
                       flags\t\t: fpu avx2 fma hypervisor avx512f\n\nprocessor\t: 1\nmodel name\t: other\n";
        let mut files = vec![
            ("proc/cpuinfo".to_owned(), cpuinfo),
            ("proc/meminfo".to_owned(), "MemTotal:       2048 kB\nMemFree: 1 kB\n"),
            ("sys/kernel/mm/transparent_hugepage/enabled".to_owned(), "always [madvise] never\n"),
            (format!("{CPU}/cpufreq/topology/core_id"), "9\n"),
            (format!("{CPU}/cpu0/cache/index0/type"), "Instruction\n"),
            (format!("{CPU}/cpu0/cache/index0/level"), "2\n"),
            (format!("{CPU}/cpu0/cache/index0/size"), "64K\n"),
            (format!("{CPU}/cpu0/cache/index2/type"), "Unified\n"),
            (format!("{CPU}/cpu0/cache/index2/level"), "2\n"),
            (format!("{CPU}/cpu0/cache/index2/size"), "1024K\n"),
            (format!("{CPU}/cpu0/cache/index3/type"), "Unified\n"),
            (format!("{CPU}/cpu0/cache/index3/level"), "3\n"),
            (format!("{CPU}/cpu0/cache/index3/size"), "32M\n"),
        ];
        for cpu in ["cpu0", "cpu1"] {
            files.push((format!("{CPU}/{cpu}/topology/physical_package_id"), "0\n"));
            files.push((format!("{CPU}/{cpu}/topology/core_id"), "0\n"));
        }
        let files: Vec<(&str, &str)> = files.iter().map(|(file, text)| (&**file, *text)).collect();
        let machine = Machine::of(tree(&files).path());
        assert_eq!(machine.cpu, "AMD EPYC (family 25, model 17, stepping 1)");
        assert_eq!(machine.features, ["avx2", "fma", "avx512f"]);
        assert_eq!((machine.cpus, machine.cores, machine.is_virtual), (2, Some(1), true));
        assert_eq!((machine.l2_bytes, machine.l3_bytes), (Some(1 << 20), Some(32 << 20)));
        assert_eq!((machine.memory_bytes, machine.huge_pages.as_deref()), (Some(2 << 20), Some("madvise")));
    }

    #[test]
    fn a_system_that_reports_nothing_has_a_machine_of_unknown_parts() {
        let machine = Machine::of(Path::new("/no/such/folder"));
        assert_eq!(machine.cpu, std::env::consts::ARCH);
        assert!(machine.cpus >= 1 && machine.cores.is_none() && machine.l2_bytes.is_none());
        assert!(machine.memory_bytes.is_none() && machine.huge_pages.is_none() && machine.features.is_empty());
    }

    #[test]
    fn sizes_that_are_not_numbers_are_unknown() {
        assert_eq!(
            ["512K", "2M", "100", "K", "", "xK"].map(bytes),
            [Some(512 << 10), Some(2 << 20), Some(100), None, None, None]
        );
        assert_eq!(bytes("99999999999999999999K"), None);
    }
}
