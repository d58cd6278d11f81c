//! CPU time for threads that submit work to a device, while other threads compute on all cores.
//!
//! A thread that waits for a device submits the next work when the device is done. If all cores are busy, Linux may delay the
//! thread by one to four milliseconds, while the device is idle. Two measures help: the thread requests short time slices
//! ([`wake_promptly`]), and compute threads check between two tasks whether it waits for a core ([`YieldHint`]).

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Signals to compute threads that a thread which submits work to a device waits for a core: it has work and is not running.
///
/// The signal is only a hint, so its atomic operations are relaxed.
#[derive(Debug, Default)]
pub struct YieldHint {
    requests: AtomicUsize,
    working: AtomicBool,
}

impl YieldHint {
    /// Records that the thread has received work.
    pub fn request(&self) {
        self.requests.fetch_add(1, Ordering::Relaxed);
    }

    /// Records that the thread has started on the work.
    pub fn accept(&self) {
        self.requests.fetch_sub(1, Ordering::Relaxed);
    }

    /// Runs `work` on the thread. Meanwhile, including waits for the device, other threads need not yield.
    pub fn while_working<T>(&self, work: impl FnOnce() -> T) -> T {
        self.working.store(true, Ordering::Relaxed);
        let done = work();
        self.working.store(false, Ordering::Relaxed);
        done
    }

    /// Whether the thread waits for a core.
    #[must_use]
    pub fn is_wanted(&self) -> bool {
        self.requests.load(Ordering::Relaxed) > 0 && !self.working.load(Ordering::Relaxed)
    }
}

/// Asks the system to schedule this thread soon after it wakes, in return for shorter time slices.
///
/// For a thread that mostly waits and submits work to others, on a machine whose cores are all busy. Since version 6.6 Linux
/// lets a running thread finish its time slice, most of a millisecond, before a waking thread runs; since 6.12 a waking
/// thread with shorter time slices preempts it. On other systems, and without permission, this does nothing. The thread's
/// share of CPU time does not change.
#[cfg(target_os = "linux")]
pub fn wake_promptly() {
    /// The shortest time slice of Linux, in nanoseconds.
    const TIME_SLICE: u64 = 100_000;
    let size = size_of::<libc::sched_attr>() as libc::c_uint;
    // SAFETY: a struct of integers, for which zero is valid.
    let mut attributes: libc::sched_attr = unsafe { std::mem::zeroed() };
    // SAFETY: writes at most `size` bytes with the attributes of this thread (0).
    let got = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size, 0) };
    if got == 0 && attributes.sched_policy == libc::SCHED_OTHER as u32 {
        attributes.sched_runtime = TIME_SLICE;
        // SAFETY: reads `attributes.size` bytes, which the kernel has set to the size that it wrote.
        let _ = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
    }
}

/// Does nothing on this system.
#[cfg(not(target_os = "linux"))]
pub fn wake_promptly() {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_yield_is_wanted_while_a_request_waits_and_no_work_runs() {
        let yield_hint = YieldHint::default();
        assert!(!yield_hint.is_wanted());
        yield_hint.request();
        yield_hint.request();
        assert!(yield_hint.is_wanted());
        yield_hint.accept();
        yield_hint.while_working(|| assert!(!yield_hint.is_wanted(), "it is running, so the second request can wait"));
        assert!(yield_hint.is_wanted());
        yield_hint.accept();
        assert!(!yield_hint.is_wanted());
    }

    #[test]
    fn wake_promptly_never_fails() {
        std::thread::spawn(wake_promptly).join().expect("a refusal is ignored");
    }
}
