//! The queue of expert jobs between a device thread and the expert thread.
//!
//! A device waits for the experts of every layer, a few milliseconds at a time, so the latency of this path matters. The
//! device thread submits a job here and the expert thread replies to it directly. The actors are informed afterwards.
//!
//! The queue outlives the experts actor. A new worker starts with the jobs that have no reply yet, including the one that
//! the previous worker was computing. The first reply to a job counts and later ones are dropped. When the actor dies no
//! job is lost and no device has to submit a job twice.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use cuelight_engine::engine::ExpertJob;
use cuelight_engine::experts::HostExperts;
use cuelight_engine::threads::YieldHint;

use super::answer::{ExpertAnswer, ExpertsError, ReplyTo};

/// The host experts of a loaded model. They outlive the worker that computes them.
pub type SharedExperts = Arc<Mutex<HostExperts>>;

/// A queue of expert jobs. Clones share the queue.
#[derive(Clone, Default)]
pub struct ExpertJobQueue(Arc<Inner>);

#[derive(Default)]
struct Inner {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// `None` when the model has no experts on the host, or no model is loaded.
    experts: Option<SharedExperts>,
    /// Jobs without a reply, oldest first.
    jobs: VecDeque<OpenJob>,
    /// Number of jobs submitted so far.
    submitted: u64,
    /// Number of the current lease. Workers of earlier leases stop.
    current_lease: u64,
}

struct OpenJob {
    number: u64,
    job: Arc<ExpertJob>,
    yield_hint: Arc<YieldHint>,
    reply_to: ReplyTo,
    /// Whether the current worker is computing the job.
    is_taken: bool,
}

/// A job that a worker has taken from the queue.
pub(super) struct TakenJob {
    number: u64,
    pub job: Arc<ExpertJob>,
    /// The experts that compute it.
    pub experts: SharedExperts,
    /// The yield hint of the device thread that submitted it.
    pub yield_hint: Arc<YieldHint>,
}

impl ExpertJobQueue {
    /// Replaces the experts and drops all open jobs: the engine that submitted them is gone.
    pub fn set_experts(&self, experts: Option<SharedExperts>) {
        let mut state = self.state();
        let dropped = std::mem::take(&mut state.jobs);
        state.experts = experts;
        drop(state);
        // Dropped outside of the lock because a reply closure may run destructors of other types.
        drop(dropped);
    }

    /// Whether the worker computes a job.
    #[must_use]
    pub fn is_computing(&self) -> bool {
        self.state().jobs.iter().any(|open| open.is_taken)
    }

    /// Submits a job. Without experts on the host the reply is an error, sent immediately.
    ///
    /// The worker yields the CPU to the submitting thread when `yield_hint` requests it.
    pub fn submit(&self, job: ExpertJob, yield_hint: Arc<YieldHint>, reply_to: ReplyTo) {
        let mut state = self.state();
        if state.experts.is_none() {
            drop(state);
            reply_to(Err(ExpertsError::NoHostExperts { layer: job.layer }));
            return;
        }
        let number = state.submitted;
        state.submitted += 1;
        state.jobs.push_back(OpenJob { number, job: Arc::new(job), yield_hint, reply_to, is_taken: false });
        drop(state);
        self.0.changed.notify_all();
    }

    /// Makes the caller the worker of the queue until it drops the lease or another caller takes one.
    pub(super) fn lease(&self) -> WorkerLease {
        let mut state = self.state();
        state.current_lease += 1;
        state.jobs.iter_mut().for_each(|open| open.is_taken = false);
        let number = state.current_lease;
        drop(state);
        self.0.changed.notify_all();
        WorkerLease { queue: self.clone(), number }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No foreign code runs under the lock, so a panic cannot leave the state inconsistent.
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The right to compute the jobs of the queue, until a newer lease is taken.
pub(super) struct WorkerLease {
    queue: ExpertJobQueue,
    number: u64,
}

/// Takes jobs for the owner of a [`WorkerLease`]. Moved to the thread that computes them.
pub(super) struct Worker {
    queue: ExpertJobQueue,
    number: u64,
}

impl WorkerLease {
    pub fn worker(&self) -> Worker {
        Worker { queue: self.queue.clone(), number: self.number }
    }
}

impl Drop for WorkerLease {
    fn drop(&mut self) {
        let mut state = self.queue.state();
        if state.current_lease == self.number {
            state.current_lease += 1;
        }
        drop(state);
        self.queue.0.changed.notify_all();
    }
}

impl Worker {
    /// Waits for the next job. `None` when the lease is over.
    pub fn next(&self) -> Option<TakenJob> {
        let mut state = self.queue.state();
        while state.current_lease == self.number {
            if let Some(taken) = state.take() {
                return Some(taken);
            }
            state = self.queue.0.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        None
    }

    /// Replies to a job, unless it already has a reply or was dropped.
    pub fn reply(&self, taken: TakenJob, answer: ExpertAnswer) {
        let mut state = self.queue.state();
        let Some(index) = state.jobs.iter().position(|open| open.number == taken.number) else { return };
        let open = state.jobs.remove(index);
        drop(state);
        if let Some(open) = open {
            (open.reply_to)(answer);
        }
    }
}

impl State {
    fn take(&mut self) -> Option<TakenJob> {
        let experts = self.experts.as_ref()?;
        let open = self.jobs.iter_mut().find(|open| !open.is_taken)?;
        open.is_taken = true;
        let (job, yield_hint) = (Arc::clone(&open.job), Arc::clone(&open.yield_hint));
        Some(TakenJob { number: open.number, job, experts: Arc::clone(experts), yield_hint })
    }
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use cuelight_engine::engine::{ExpertResult, StepId};
    use cuelight_engine::load::Kernel;

    use super::*;

    fn queue() -> ExpertJobQueue {
        let queue = ExpertJobQueue::default();
        let none = HostExperts::new(Vec::new(), Kernel::detect(), 1, 1, &mut |_, _| Ok(())).unwrap();
        queue.set_experts(Some(Arc::new(Mutex::new(none))));
        queue
    }

    /// Submits a job of this step and returns the channel that receives its replies.
    fn submit(queue: &ExpertJobQueue, step: u64) -> mpsc::Receiver<ExpertAnswer> {
        let (sender, replies) = mpsc::channel();
        let job = ExpertJob { step: StepId(step), layer: 3, hidden: Vec::new(), routes: Vec::new(), n_routes: 0 };
        queue.submit(job, Arc::default(), Box::new(move |answer| sender.send(answer).unwrap()));
        replies
    }

    fn answer(step: u64) -> ExpertAnswer {
        Ok(ExpertResult { step: StepId(step), layer: 3, output: vec![step as f32] })
    }

    #[test]
    fn jobs_are_computed_in_order() {
        let queue = queue();
        let lease = queue.lease();
        let worker = lease.worker();
        for (step, replies) in [1, 2].map(|step| (step, submit(&queue, step))) {
            assert!(!queue.is_computing());
            let taken = worker.next().unwrap();
            assert!(queue.is_computing());
            assert_eq!(taken.job.step, StepId(step));
            worker.reply(taken, answer(step));
            assert_eq!(replies.recv().unwrap(), answer(step));
        }
    }

    #[test]
    fn a_new_worker_repeats_unanswered_jobs_and_the_first_reply_counts() {
        let queue = queue();
        let old = queue.lease();
        let old_worker = old.worker();
        let replies = submit(&queue, 1);
        let unfinished = old_worker.next().unwrap();
        drop(old);
        assert!(old_worker.next().is_none(), "its lease is over");
        let new = queue.lease();
        let repeated = new.worker().next().unwrap();
        assert_eq!(repeated.job, unfinished.job);
        old_worker.reply(unfinished, answer(1));
        new.worker().reply(repeated, answer(2));
        assert_eq!(replies.iter().collect::<Vec<_>>(), [answer(1)]);
    }

    #[test]
    fn a_job_fails_without_experts_and_is_dropped_when_they_are_replaced() {
        let none = ExpertJobQueue::default();
        assert_eq!(submit(&none, 1).recv().unwrap(), Err(ExpertsError::NoHostExperts { layer: 3 }));
        let queue = queue();
        let replies = submit(&queue, 1);
        queue.set_experts(None);
        assert!(replies.recv().is_err(), "the job was dropped");
    }
}
