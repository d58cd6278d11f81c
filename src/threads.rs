//! Cores for threads that feed a device, beside threads that compute on all of them.
//!
//! A thread that waits for a device starts the next piece of work on it when the last is done. When it wakes on a machine whose
//! cores are all busy, Linux may leave it waiting for a millisecond or four, with the device idle. Two things help: it asks for
//! short turns ([`wake_promptly`]), and those who compute look between two tasks whether it waits ([`RightOfWay`]).

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Tells threads that compute whether one that feeds a device has something to do and is not at it: then it waits for a core.
///
/// Only advice, so nothing is ordered by it.
#[derive(Debug, Default)]
pub struct RightOfWay {
    calls: AtomicUsize,
    at_work: AtomicBool,
}

impl RightOfWay {
    /// There is something to do for the thread.
    pub fn call(&self) {
        self.calls.fetch_add(1, Ordering::Relaxed);
    }

    /// The thread takes up what it was called for.
    pub fn take(&self) {
        self.calls.fetch_sub(1, Ordering::Relaxed);
    }

    /// The thread is at work. While it waits for its device, nobody needs to make room.
    pub fn while_at_work<T>(&self, work: impl FnOnce() -> T) -> T {
        self.at_work.store(true, Ordering::Relaxed);
        let done = work();
        self.at_work.store(false, Ordering::Relaxed);
        done
    }

    /// Whether the thread waits for a core.
    #[must_use]
    pub fn is_wanted(&self) -> bool {
        self.calls.load(Ordering::Relaxed) > 0 && !self.at_work.load(Ordering::Relaxed)
    }
}

/// Asks the system to let this thread run as soon as it has something to do, at the price of shorter turns.
///
/// For a thread that mostly waits and starts what others compute, on a machine whose cores are all busy. Since version 6.6 Linux
/// lets a thread that computes finish what is left of its turn, most of a millisecond, before one that wakes; since 6.12
/// not when the one that wakes asks for shorter turns. Elsewhere, and where it is not allowed, this does nothing. It takes
/// nothing from other threads: the share of a thread is as it was.
#[cfg(target_os = "linux")]
pub fn wake_promptly() {
    /// The shortest turn that Linux gives, in nanoseconds.
    const TURN: u64 = 100_000;
    let size = size_of::<libc::sched_attr>() as libc::c_uint;
    // SAFETY: a struct of integers, for which zero is a value.
    let mut attributes: libc::sched_attr = unsafe { std::mem::zeroed() };
    // SAFETY: writes at most `size` bytes, of this thread's (0) attributes.
    let got = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size, 0) };
    if got == 0 && attributes.sched_policy == libc::SCHED_OTHER as u32 {
        attributes.sched_runtime = TURN;
        // SAFETY: reads `attributes.size` bytes, which the kernel set to what it wrote.
        let _ = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
    }
}

/// Does nothing here; for Linux it is described above.
#[cfg(not(target_os = "linux"))]
pub fn wake_promptly() {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn way_is_made_for_who_is_called_and_not_at_it() {
        let way = RightOfWay::default();
        assert!(!way.is_wanted());
        way.call();
        way.call();
        assert!(way.is_wanted());
        way.take();
        way.while_at_work(|| assert!(!way.is_wanted(), "it is at the first, and the second has time"));
        assert!(way.is_wanted());
        way.take();
        assert!(!way.is_wanted());
    }

    #[test]
    fn a_thread_may_ask_to_wake_promptly_anywhere() {
        std::thread::spawn(wake_promptly).join().expect("it asks, and takes no for an answer");
    }
}
