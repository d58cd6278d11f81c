//! What the system reports about memory.

use std::path::Path;

use crate::cgroup::{self, MemoryLimit};

/// Memory that the system can give to a new program without swapping, within the limits of this process's control groups;
/// `None` if neither is reported.
#[must_use]
pub fn available() -> Option<u64> {
    available_in(Path::new("/")).map(|(bytes, _)| bytes)
}

/// The limit of a control group, where it leaves less memory than the machine has.
#[must_use]
pub fn limit() -> Option<MemoryLimit> {
    available_in(Path::new("/"))?.1
}

/// [`available`] and [`limit`], in the system whose files are below `root`.
fn available_in(root: &Path) -> Option<(u64, Option<MemoryLimit>)> {
    let meminfo = std::fs::read_to_string(root.join("proc/meminfo")).unwrap_or_default();
    let of_machine = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:")).and_then(kibibytes);
    match (of_machine, cgroup::memory_limit(root)) {
        (Some(bytes), Some(limit)) if bytes <= limit.available_bytes => Some((bytes, None)),
        (_, Some(limit)) => Some((limit.available_bytes, Some(limit))),
        (bytes, None) => Some((bytes?, None)),
    }
}

/// Memory of this process: what it has allocated, and its code, which counts whole because it is read from the file when it
/// runs. `None` if the system does not report it.
#[must_use]
pub fn of_program() -> Option<u64> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let code: u64 = maps.lines().filter_map(code_bytes).sum();
    Some(occupied()? + code)
}

/// The bytes of a line of `/proc/self/maps`, if it maps a part of a program or library.
fn code_bytes(line: &str) -> Option<u64> {
    let mut fields = line.split_ascii_whitespace();
    let (range, access) = (fields.next()?, fields.next()?);
    let (_, _, inode) = (fields.next()?, fields.next()?, fields.next()?);
    let (start, end) = range.split_once('-')?;
    let is_code = inode != "0" && access.ends_with('p') && !access.starts_with("---");
    let address = |text| u64::from_str_radix(text, 16).ok();
    is_code.then(|| address(end)?.checked_sub(address(start)?)).flatten()
}

/// Memory of this process that [`available`] no longer counts: the pages that it has written. Weights mapped from a file do not
/// count, because the system can reclaim their pages. `None` if the system does not report it.
#[must_use]
pub fn occupied() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    kibibytes(status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?)
}

/// Parses `"  12 kB"` to bytes.
fn kibibytes(text: &str) -> Option<u64> {
    let kib: u64 = text.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn the_limit_of_a_container_is_what_is_available() {
        let root = tempfile::tempdir().unwrap();
        let write = |file: &str, text: &str| {
            let path = root.path().join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("proc/meminfo", "MemTotal: 9000000 kB\nMemAvailable:  4194304 kB\n");
        assert_eq!(available_in(root.path()), Some((4 << 30, None)));
        write("proc/self/cgroup", "0::/\n");
        write("proc/self/mountinfo", "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
        write("sys/fs/cgroup/memory.max", "536870912\n");
        write("sys/fs/cgroup/memory.current", "104857600\n");
        let (bytes, limit) = available_in(root.path()).unwrap();
        assert_eq!((bytes, limit.as_ref().map(|limit| limit.limit_bytes)), (412 * MIB, Some(512 * MIB)));
        write("proc/meminfo", "MemAvailable: 102400 kB\n");
        assert_eq!(available_in(root.path()), Some((100 * MIB, None)), "the machine has less");
    }
}
