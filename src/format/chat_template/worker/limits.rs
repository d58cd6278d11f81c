//! What a process that renders may use. It sets the limits for itself.

use std::io;
use std::time::Duration;

/// The stack on which templates run. Values may nest as deeply as fits.
pub const STACK_BYTES: usize = 64 << 20;

/// Limits the memory of this process, and lets it leave no image of its memory when it ends at a limit.
///
/// # Errors
/// [`io::Error`] when the system refuses.
pub fn limit_memory(bytes: u64) -> io::Result<()> {
    set(libc::RLIMIT_CORE, 0)?;
    set(libc::RLIMIT_DATA, bytes + STACK_BYTES as u64)
}

/// Ends this process when it uses this much more time on the CPU.
///
/// # Errors
/// [`io::Error`] when the system refuses.
pub fn limit_cpu_time(more: Duration) -> io::Result<()> {
    set(libc::RLIMIT_CPU, used_cpu_seconds()? + more.as_secs() + 1)
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
type Resource = libc::__rlimit_resource_t;
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
type Resource = libc::c_int;

/// Lowers the limit in force; the highest one that may be set stays.
fn set(resource: Resource, value: u64) -> io::Result<()> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the call fills the struct that it gets, which lives as long as the call.
    check(unsafe { libc::getrlimit(resource, &raw mut limit) })?;
    limit.rlim_cur = limit.rlim_max.min(value);
    // SAFETY: the call reads the struct that it gets, which lives as long as the call.
    check(unsafe { libc::setrlimit(resource, &raw const limit) })
}

fn used_cpu_seconds() -> io::Result<u64> {
    let mut used = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call fills the struct that it gets, which lives as long as the call.
    check(unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut used) })?;
    Ok(u64::try_from(used.tv_sec).unwrap_or_default())
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
