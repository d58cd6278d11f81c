//! The thread of a model next to that of the pipeline: a draft model, or an encoder of media.
//!
//! It loads its model, then works on what it is sent. A watchdog sees whether it still makes progress.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;

use cuelight_engine::heap::release_freed;
use ractor::ActorProcessingErr;

use crate::core::panic_message::panic_message;

/// A thread that works on jobs. It ends when this is dropped.
pub(super) struct CompanionThread<J> {
    /// What it computes with, for messages: "draft model".
    what: &'static str,
    jobs: mpsc::Sender<J>,
    progress: Arc<Progress>,
}

/// What a thread has done.
#[derive(Default)]
pub(super) struct Progress {
    steps: AtomicU64,
    is_working: AtomicBool,
}

impl Progress {
    /// Counts a step of work.
    pub fn of<T>(&self, work: impl FnOnce() -> T) -> T {
        self.is_working.store(true, Ordering::Release);
        let result = work();
        self.steps.fetch_add(1, Ordering::AcqRel);
        self.is_working.store(false, Ordering::Release);
        result
    }
}

impl<J: Send + 'static> CompanionThread<J> {
    /// Starts a thread that does `run` until there are no more jobs. Its error, or that it panicked, is the reason that `lost`
    /// gets.
    ///
    /// # Errors
    /// When the system starts no thread.
    pub fn start(
        (name, what): (&str, &'static str),
        run: impl FnOnce(mpsc::Receiver<J>, &Progress) -> Result<(), String> + Send + 'static,
        lost: impl FnOnce(String) + Send + 'static,
    ) -> std::io::Result<Self> {
        let (jobs, receiver) = mpsc::channel();
        let progress = Arc::<Progress>::default();
        let own = progress.clone();
        thread::Builder::new().name(name.to_owned()).spawn(move || {
            let result = catch_unwind(AssertUnwindSafe(|| run(receiver, &own)));
            release_freed();
            match result {
                Ok(Ok(())) => {}
                Ok(Err(reason)) => lost(reason),
                Err(panic) => lost(format!("the {what} panicked: {}", panic_message(panic.as_ref()))),
            }
        })?;
        Ok(CompanionThread { what, jobs, progress })
    }

    /// Passes a job on.
    pub fn send(&self, job: J) -> Result<(), ActorProcessingErr> {
        self.jobs.send(job).map_err(|_| format!("the thread of the {} has ended", self.what).into())
    }

    /// The number of the step that it works on. If two calls return the same, it has worked on that step all the time between.
    pub fn step(&self) -> Option<u64> {
        // In this order: a step that ends between the two is not taken for the next one.
        let steps = self.progress.steps.load(Ordering::Acquire);
        self.progress.is_working.load(Ordering::Acquire).then_some(steps)
    }
}
