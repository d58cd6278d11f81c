//! The limits of this process's control groups: those of a container, a batch job or a service.
//!
//! Both versions of Linux control groups are read. A group is limited by its own files and by those of every group around it.
//! Paths start at a root folder, so that tests can give a tree of their own. On a system without `/proc` there are no limits.

use std::fs;
use std::path::{Path, PathBuf};

/// A limit on memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryLimit {
    /// The limit in bytes.
    pub limit_bytes: u64,
    /// Bytes that the group can still use, including file pages that the system can reclaim from it.
    pub available_bytes: u64,
    /// The file that states the limit.
    pub file: PathBuf,
}

/// A limit on CPU time.
#[derive(Debug, Clone, PartialEq)]
pub struct CpuLimit {
    /// How many CPUs the group may keep busy.
    pub cpus: f64,
    /// The file that states the limit.
    pub file: PathBuf,
}

/// The limit that leaves the least memory; `None` without limits.
#[must_use]
pub fn memory_limit(root: &Path) -> Option<MemoryLimit> {
    let limits = groups(root, "memory").into_iter().flat_map(|(folder, version)| match version {
        Version::One => memory_of(&folder, &["memory.limit_in_bytes"], "memory.usage_in_bytes", "total_"),
        // Above `memory.high` the group is slowed down so much that it is a limit as well.
        Version::Two => memory_of(&folder, &["memory.max", "memory.high"], "memory.current", ""),
    });
    limits.min_by_key(|limit| limit.available_bytes)
}

/// The smallest limit on CPU time; `None` without limits. Sets of CPUs do not count here: the system reports them with the
/// process itself.
#[must_use]
pub fn cpu_limit(root: &Path) -> Option<CpuLimit> {
    let limits = groups(root, "cpu").into_iter().filter_map(|(folder, version)| match version {
        Version::One => {
            let quota = number(&folder.join("cpu.cfs_quota_us"))?;
            let period = number(&folder.join("cpu.cfs_period_us"))?;
            cpus(quota, period).map(|cpus| CpuLimit { cpus, file: folder.join("cpu.cfs_quota_us") })
        }
        Version::Two => {
            let file = folder.join("cpu.max");
            let text = fs::read_to_string(&file).ok()?;
            let (quota, period) = text.trim().split_once(' ')?;
            cpus(quota.parse().ok()?, period.parse().ok()?).map(|cpus| CpuLimit { cpus, file })
        }
    });
    limits.min_by(|a, b| a.cpus.total_cmp(&b.cpus))
}

fn cpus(quota: u64, period: u64) -> Option<f64> {
    (period > 0).then(|| quota as f64 / period as f64)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

/// The folders of this process's group for a controller and of all groups around it, of both versions.
fn groups(root: &Path, controller: &str) -> Vec<(PathBuf, Version)> {
    let read = |file: &str| fs::read_to_string(root.join("proc/self").join(file)).unwrap_or_default();
    let (memberships, mounts) = (read("cgroup"), read("mountinfo"));
    let mounts: Vec<Mount> = mounts.lines().filter_map(|line| Mount::parse(line, controller)).collect();
    let mut folders = Vec::new();
    for (version, group) in memberships.lines().filter_map(|line| membership(line, controller)) {
        for mount in mounts.iter().filter(|mount| mount.version == version) {
            folders.extend(mount.folders(root, group).into_iter().map(|folder| (folder, version)));
        }
    }
    folders
}

/// The group of a line of `/proc/self/cgroup`: `5:memory:/path`, or `0::/path` in version two.
fn membership<'a>(line: &'a str, controller: &str) -> Option<(Version, &'a str)> {
    let mut fields = line.splitn(3, ':');
    let (_, controllers, group) = (fields.next()?, fields.next()?, fields.next()?);
    match controllers {
        "" => Some((Version::Two, group)),
        _ if controllers.split(',').any(|name| name == controller) => Some((Version::One, group)),
        _ => None,
    }
}

/// A mounted hierarchy of groups.
struct Mount {
    version: Version,
    /// The group that is the top of the mount.
    top: String,
    point: String,
}

impl Mount {
    /// A line of `/proc/self/mountinfo`, if it is a hierarchy that has the controller.
    fn parse(line: &str, controller: &str) -> Option<Self> {
        let (mount, file_system) = line.split_once(" - ")?;
        let mut fields = mount.split(' ');
        let (top, point) = (unescaped(fields.nth(3)?), unescaped(fields.next()?));
        let mut fields = file_system.split(' ');
        let version = match fields.next()? {
            "cgroup2" => Version::Two,
            "cgroup" if fields.nth(1)?.split(',').any(|option| option == controller) => Version::One,
            _ => return None,
        };
        Some(Mount { version, top, point })
    }

    /// The folder of a group and of all groups around it within the mount.
    fn folders(&self, root: &Path, group: &str) -> Vec<PathBuf> {
        let point = root.join(self.point.trim_start_matches('/'));
        // In a container the path may be that of the host, of which only the part below the top is visible. A group outside of the
        // mount is not visible at all; then the mount itself is the best known group.
        let below = Path::new(group).strip_prefix(&self.top).unwrap_or(Path::new(""));
        let is_plain = below.components().all(|part| matches!(part, std::path::Component::Normal(_)));
        let below = if is_plain { below } else { Path::new("") };
        below.ancestors().map(|part| point.join(part)).collect()
    }
}

/// A path of `mountinfo`, in which spaces and backslashes are octal numbers.
fn unescaped(text: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .iter()
        .fold(text.to_owned(), |text, (code, character)| text.replace(code, character))
}

/// The limits of one group.
fn memory_of(folder: &Path, limits: &[&str], usage: &str, prefix: &str) -> Vec<MemoryLimit> {
    let Some(used) = number(&folder.join(usage)) else { return Vec::new() };
    let statistics = fs::read_to_string(folder.join("memory.stat")).unwrap_or_default();
    let reclaimable: u64 = ["inactive_file", "active_file"]
        .iter()
        .filter_map(|name| statistic(&statistics, &format!("{prefix}{name}")))
        .sum();
    let occupied = used.saturating_sub(reclaimable);
    let limit = |name: &&str| {
        let file = folder.join(name);
        let limit_bytes = number(&file).filter(|bytes| *bytes < UNLIMITED)?;
        Some(MemoryLimit { limit_bytes, available_bytes: limit_bytes.saturating_sub(occupied), file })
    };
    limits.iter().filter_map(limit).collect()
}

/// Version one states no limit as a number near the largest one.
const UNLIMITED: u64 = 1 << 60;

/// The number in a file; `None` for the word `max`, for a negative number and without the file.
fn number(file: &Path) -> Option<u64> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

fn statistic(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// A tree of these files.
    pub(crate) fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (file, content) in files {
            let path = root.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        root
    }

    const V2_MOUNT: &str = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";

    #[test]
    fn the_tightest_of_nested_groups_applies_in_version_two() {
        let root = tree(&[
            ("proc/self/cgroup", "0::/outer.slice/inner.scope\n"),
            ("proc/self/mountinfo", V2_MOUNT),
            ("sys/fs/cgroup/outer.slice/memory.max", "1073741824\n"),
            ("sys/fs/cgroup/outer.slice/memory.current", "943718400\n"),
            (
                "sys/fs/cgroup/outer.slice/memory.stat",
                "anon 629145600\ninactive_file 104857600\nactive_file 209715200\n",
            ),
            ("sys/fs/cgroup/outer.slice/cpu.max", "150000 100000\n"),
            ("sys/fs/cgroup/outer.slice/inner.scope/memory.max", "max\n"),
            ("sys/fs/cgroup/outer.slice/inner.scope/memory.high", "838860800\n"),
            ("sys/fs/cgroup/outer.slice/inner.scope/memory.current", "104857600\n"),
            ("sys/fs/cgroup/outer.slice/inner.scope/cpu.max", "max 100000\n"),
        ]);
        let limit = memory_limit(root.path()).unwrap();
        assert_eq!((limit.limit_bytes, limit.available_bytes), (1024 * MIB, 424 * MIB), "file pages can be reclaimed");
        assert!(limit.file.ends_with("outer.slice/memory.max"));
        let cpu = cpu_limit(root.path()).unwrap();
        assert!((cpu.cpus - 1.5).abs() < 1e-9 && cpu.file.ends_with("outer.slice/cpu.max"), "{cpu:?}");
    }

    #[test]
    fn a_container_without_a_namespace_of_groups_sees_its_group_at_the_mount() {
        let group = "/docker/0123";
        let mounts = "40 30 0:27 /docker/0123 /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n\
                      41 30 0:28 /docker/0123 /sys/fs/cgroup/cpu,cpuacct ro - cgroup cgroup rw,cpu,cpuacct\n";
        let root = tree(&[
            ("proc/self/cgroup", &format!("4:memory:{group}\n3:cpu,cpuacct:{group}\n1:name=systemd:{group}\n")),
            ("proc/self/mountinfo", mounts),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "536870912\n"),
            ("sys/fs/cgroup/memory/memory.usage_in_bytes", "209715200\n"),
            ("sys/fs/cgroup/memory/memory.stat", "cache 1\ntotal_inactive_file 52428800\ntotal_active_file 0\n"),
            ("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "400000\n"),
            ("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n"),
        ]);
        let limit = memory_limit(root.path()).unwrap();
        assert_eq!((limit.limit_bytes, limit.available_bytes), (512 * MIB, 362 * MIB));
        assert!((cpu_limit(root.path()).unwrap().cpus - 4.0).abs() < 1e-9);
    }

    #[test]
    fn groups_without_limits_do_not_limit() {
        let root = tree(&[
            ("proc/self/cgroup", "4:memory:/a b\n3:cpu:/\n0::/../outside\n"),
            (
                "proc/self/mountinfo",
                &format!("40 30 0:27 / /sys/fs/my\\040cgroup rw - cgroup cgroup rw,memory\n{V2_MOUNT}"),
            ),
            ("sys/fs/my cgroup/a b/memory.limit_in_bytes", "9223372036854771712\n"),
            ("sys/fs/my cgroup/a b/memory.usage_in_bytes", "1\n"),
            ("sys/fs/cgroup/memory.max", "max\n"),
            ("sys/fs/cgroup/memory.current", "1\n"),
            ("sys/fs/cgroup/cpu.max", "max 100000\n"),
        ]);
        assert_eq!((memory_limit(root.path()), cpu_limit(root.path())), (None, None));
        assert_eq!(memory_limit(Path::new("/no/such/folder")), None);
        // A group outside of the mount: the mount itself counts.
        fs::write(root.path().join("sys/fs/cgroup/memory.max"), "4096\n").unwrap();
        assert_eq!(memory_limit(root.path()).unwrap().available_bytes, 4095);
    }
}
