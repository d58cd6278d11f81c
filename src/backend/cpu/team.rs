//! The team of threads that share the work of an op.
//!
//! A step runs hundreds of ops, each a few microseconds long, so an idle worker spins for a short time before it parks. Between
//! the ops of a step it starts at once; between steps it uses no CPU time. A worker that is late, because it was parked or was
//! preempted, finds the job closed: the caller waits only for workers that have joined the job.

use std::any::Any;
use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

use cuelight_shaders::cpu::Team;

/// The time that a worker looks for the next job before it parks: longer than the pause between two ops.
const SPIN_TIME: Duration = Duration::from_micros(100);
/// Checks for the next job between two looks at the clock. How long a check takes depends on the CPU.
const SPINS_PER_LOOK: u32 = 64;

/// Fields of [`Shared::state`]: the number of workers in the job, whether more may join, and the job's number.
const ACTIVE: u64 = 0xffff;
const OPEN: u64 = 1 << 16;
const NUMBER_SHIFT: u32 = 32;

type Panic = Box<dyn Any + Send>;

/// A fixed team of threads; the caller of [`Team::for_each`] is one of them.
pub struct ThreadTeam {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    /// Held by the caller whose job is running.
    caller: Mutex<()>,
}

struct Shared {
    /// The current job's number, [`OPEN`], and the count of [`ACTIVE`] workers in one word.
    state: AtomicU64,
    job: UnsafeCell<Option<Job>>,
    next_task: AtomicUsize,
    stop: AtomicBool,
    panic: Mutex<Option<Panic>>,
}

#[derive(Clone, Copy)]
struct Job {
    tasks: usize,
    body: *const (dyn Fn(usize) + Sync + 'static),
}

// SAFETY: `job` is written only while it is closed and no worker is active, and read only by active workers; `state`
// (release, acquire) orders the two. The body it points to is Sync.
unsafe impl Sync for Shared {}
// SAFETY: as above; the pointer inside is dereferenced only while its caller waits for the job.
unsafe impl Send for Shared {}

impl ThreadTeam {
    /// A team of `threads` threads, one of which is the caller.
    #[must_use]
    pub fn new(threads: usize) -> Self {
        let shared = Arc::new(Shared {
            state: AtomicU64::new(0),
            job: UnsafeCell::new(None),
            next_task: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            panic: Mutex::new(None),
        });
        let workers = (1..threads)
            .map_while(|index| {
                let shared = Arc::clone(&shared);
                // If the system refuses a thread, the team is smaller.
                std::thread::Builder::new().name(format!("cpu-team-{index}")).spawn(move || shared.work()).ok()
            })
            .collect();
        ThreadTeam { shared, workers, caller: Mutex::new(()) }
    }

    fn wake_all(&self) {
        self.workers.iter().map(JoinHandle::thread).for_each(Thread::unpark);
    }
}

impl Team for ThreadTeam {
    fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    fn for_each(&self, tasks: usize, body: &(dyn Fn(usize) + Sync)) {
        let guard = if tasks > 1 && !self.workers.is_empty() { self.caller.try_lock().ok() } else { None };
        if guard.is_none() {
            (0..tasks).for_each(body);
            return;
        }
        let shared = &*self.shared;
        // SAFETY: only the lifetime changes; this function returns only after every worker has finished with the body.
        let body: &'static (dyn Fn(usize) + Sync) = unsafe { std::mem::transmute(body) };
        // SAFETY: the last job is closed and no worker is active, so no thread reads it; `guard` excludes other callers.
        unsafe { *shared.job.get() = Some(Job { tasks, body }) };
        shared.next_task.store(0, Ordering::Relaxed);
        let number = (shared.state.load(Ordering::Relaxed) >> NUMBER_SHIFT).wrapping_add(1);
        shared.state.store(number << NUMBER_SHIFT | OPEN, Ordering::Release);
        self.wake_all();

        shared.take_tasks(tasks, body);
        shared.state.fetch_and(!OPEN, Ordering::Relaxed);
        let mut spins = 0u32;
        while shared.state.load(Ordering::Acquire) & ACTIVE > 0 {
            spins = spins.wrapping_add(1);
            // A worker may have been preempted by another process.
            if spins.is_multiple_of(1024) { std::thread::yield_now() } else { std::hint::spin_loop() }
        }
        let panic = shared.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(guard);
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }
}

impl Shared {
    fn work(&self) {
        let mut done = 0;
        while let Some(number) = self.join_job(done) {
            done = number;
            // SAFETY: this worker is active, so the job was written before and does not change.
            if let Some(job) = unsafe { *self.job.get() } {
                // SAFETY: the caller waits until this worker is no longer active, so the body is alive.
                self.take_tasks(job.tasks, unsafe { &*job.body });
            }
            self.state.fetch_sub(1, Ordering::Release);
        }
    }

    /// Waits for an open job other than `done` and becomes active in it; `None` when the team ends.
    fn join_job(&self, done: u64) -> Option<u64> {
        let mut spins = 0_u32;
        let mut started = None;
        loop {
            if self.stop.load(Ordering::Relaxed) {
                return None;
            }
            let state = self.state.load(Ordering::Relaxed);
            let number = state >> NUMBER_SHIFT;
            if state & OPEN != 0 && number != done {
                let joined = self.state.compare_exchange(state, state + 1, Ordering::Acquire, Ordering::Relaxed);
                if joined.is_ok() {
                    return Some(number);
                }
                continue;
            }
            spins = spins.wrapping_add(1);
            if spins.is_multiple_of(SPINS_PER_LOOK) && started.get_or_insert_with(Instant::now).elapsed() > SPIN_TIME {
                std::thread::park();
                started = None;
            } else {
                std::hint::spin_loop();
            }
        }
    }

    fn take_tasks(&self, tasks: usize, body: &(dyn Fn(usize) + Sync)) {
        let result = catch_unwind(AssertUnwindSafe(|| {
            loop {
                let task = self.next_task.fetch_add(1, Ordering::Relaxed);
                if task >= tasks {
                    return;
                }
                body(task);
            }
        }));
        if let Err(panic) = result {
            self.panic.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(panic);
        }
    }
}

impl Drop for ThreadTeam {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.wake_all();
        for worker in self.workers.drain(..) {
            // A worker catches its panics, so the result is always `Ok`.
            let _ = worker.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_runs_once_with_any_team_size() {
        for threads in 1..5 {
            let team = ThreadTeam::new(threads);
            for tasks in [0, 1, 2, 7, 100] {
                let counts: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
                team.for_each(tasks, &|task| {
                    counts[task].fetch_add(1, Ordering::Relaxed);
                });
                assert!(
                    counts.iter().all(|count| count.load(Ordering::Relaxed) == 1),
                    "{threads} threads, {tasks} tasks"
                );
            }
        }
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_team_stays_usable() {
        let team = ThreadTeam::new(3);
        let result = catch_unwind(AssertUnwindSafe(|| team.for_each(64, &|task| assert_ne!(task, 40, "task forty"))));
        assert!(result.is_err());
        let sum = AtomicUsize::new(0);
        team.for_each(10, &|task| {
            sum.fetch_add(task, Ordering::Relaxed);
        });
        assert_eq!(sum.into_inner(), 45);
    }

    #[test]
    fn a_body_may_use_the_team_again() {
        let team = ThreadTeam::new(2);
        let sum = AtomicUsize::new(0);
        team.for_each(4, &|_| {
            team.for_each(5, &|task| {
                sum.fetch_add(task, Ordering::Relaxed);
            });
        });
        assert_eq!(sum.into_inner(), 40);
    }

    #[test]
    fn parked_workers_wake_up() {
        let team = ThreadTeam::new(2);
        for _ in 0..3 {
            std::thread::sleep(Duration::from_millis(20));
            let sum = AtomicUsize::new(0);
            team.for_each(100, &|task| {
                sum.fetch_add(task, Ordering::Relaxed);
            });
            assert_eq!(sum.into_inner(), 4950);
        }
    }
}
