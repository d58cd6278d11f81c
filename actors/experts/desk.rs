//! The desk between devices and the host's experts: jobs are laid on it, taken from it, and answered over it.
//!
//! A device waits for the experts of every layer, milliseconds at a time, so what lies between the two counts: a device's thread
//! hands its job to the experts' thread here, and the answer goes straight back. Actors hear of it afterwards.
//!
//! The desk outlives the Experts actor, whose thread serves it. Whoever takes its place over begins with the jobs that were not
//! answered, also with the one that the thread before was at; the first answer to a job counts, and there is no second. So when
//! the actor dies no job is lost, and nobody has to ask again.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use cuelight_engine::engine::{ExpertJob, ExpertResult};
use cuelight_engine::experts::HostExperts;
use cuelight_engine::threads::RightOfWay;

use super::ExpertsError;

/// The experts of a loaded model, which outlive whoever computes them.
pub type SharedExperts = Arc<Mutex<HostExperts>>;

/// What a job comes to.
pub type Answer = Result<ExpertResult, ExpertsError>;

/// Where the answer to a job goes; called once, on the thread that computed it.
pub type ReplyTo = Box<dyn FnOnce(Answer) + Send>;

/// The desk; clones are the same one.
#[derive(Clone, Default)]
pub struct ExpertDesk(Arc<Inner>);

#[derive(Default)]
struct Inner {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// `None`: the model has no experts on the host, or there is no model.
    experts: Option<SharedExperts>,
    /// Jobs without an answer, oldest first.
    jobs: VecDeque<OpenJob>,
    jobs_laid: u64,
    /// Counts those who served; the last of them does.
    servers: u64,
}

struct OpenJob {
    number: u64,
    job: Arc<ExpertJob>,
    way: Arc<RightOfWay>,
    reply_to: ReplyTo,
    /// Whether the one who serves is at it.
    is_taken: bool,
}

/// A job as the desk gives it out.
pub(super) struct TakenJob {
    number: u64,
    pub job: Arc<ExpertJob>,
    /// Who computes it.
    pub experts: SharedExperts,
    /// Of the thread that asked.
    pub way: Arc<RightOfWay>,
}

impl ExpertDesk {
    /// From now on these are the experts. Jobs of those before are forgotten: who waits for one has gone with them.
    pub fn set_experts(&self, experts: Option<SharedExperts>) {
        let mut state = self.state();
        let forgotten = std::mem::take(&mut state.jobs);
        state.experts = experts;
        drop(state);
        // Not under the lock: what a reply holds may be the last of its kind.
        drop(forgotten);
    }

    /// Lays a job on the desk. Without experts it is answered at once. Who computes it gives the thread that asks way.
    pub fn ask(&self, job: ExpertJob, way: Arc<RightOfWay>, reply_to: ReplyTo) {
        let mut state = self.state();
        if state.experts.is_none() {
            drop(state);
            reply_to(Err(ExpertsError::NoHostExperts { layer: job.layer }));
            return;
        }
        let number = state.jobs_laid;
        state.jobs_laid += 1;
        state.jobs.push_back(OpenJob { number, job: Arc::new(job), way, reply_to, is_taken: false });
        drop(state);
        self.0.changed.notify_all();
    }

    /// Takes the place of whoever serves the desk; it is left when the place is dropped.
    pub(super) fn serve(&self) -> Place {
        let mut state = self.state();
        state.servers += 1;
        state.jobs.iter_mut().for_each(|open| open.is_taken = false);
        let number = state.servers;
        drop(state);
        self.0.changed.notify_all();
        Place { desk: self.clone(), number }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No code of others runs under the lock, so a panic leaves nothing half done.
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A right to serve the desk, until somebody else does.
pub(super) struct Place {
    desk: ExpertDesk,
    number: u64,
}

/// What a thread needs to serve the desk on behalf of who holds the [`Place`].
pub(super) struct Clerk {
    desk: ExpertDesk,
    number: u64,
}

impl Place {
    pub fn clerk(&self) -> Clerk {
        Clerk { desk: self.desk.clone(), number: self.number }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = self.desk.state();
        if state.servers == self.number {
            state.servers += 1;
        }
        drop(state);
        self.desk.0.changed.notify_all();
    }
}

impl Clerk {
    /// Waits for a job; `None` when somebody else serves the desk, or nobody.
    pub fn next(&self) -> Option<TakenJob> {
        let mut state = self.desk.state();
        while state.servers == self.number {
            if let Some(taken) = state.take() {
                return Some(taken);
            }
            state = self.desk.0.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        None
    }

    /// Answers a job, unless it was answered or is forgotten.
    pub fn answer(&self, taken: TakenJob, answer: Answer) {
        let mut state = self.desk.state();
        let Some(place) = state.jobs.iter().position(|open| open.number == taken.number) else { return };
        let open = state.jobs.remove(place);
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
        let (job, way) = (Arc::clone(&open.job), Arc::clone(&open.way));
        Some(TakenJob { number: open.number, job, experts: Arc::clone(experts), way })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::mpsc;

    use cuelight_engine::engine::StepId;
    use cuelight_engine::load::Kernel;

    use super::*;

    fn desk() -> ExpertDesk {
        let desk = ExpertDesk::default();
        let none = HostExperts::new(Vec::new(), Kernel::detect(), 1, 1, &mut |_, _| {});
        desk.set_experts(Some(Arc::new(Mutex::new(none))));
        desk
    }

    /// Lays a job of this step on the desk; its answers come out of the channel.
    fn ask(desk: &ExpertDesk, step: u64) -> mpsc::Receiver<Answer> {
        let (reply, answers) = mpsc::channel();
        let job = ExpertJob { step: StepId(step), layer: 3, hidden: Vec::new(), routes: Vec::new(), n_routes: 0 };
        desk.ask(job, Arc::default(), Box::new(move |answer| reply.send(answer).unwrap()));
        answers
    }

    fn answer(step: u64) -> Answer {
        Ok(ExpertResult { step: StepId(step), layer: 3, output: vec![step as f32] })
    }

    #[test]
    fn jobs_are_answered_in_their_order() {
        let desk = desk();
        let place = desk.serve();
        let clerk = place.clerk();
        for (step, answers) in [1, 2].map(|step| (step, ask(&desk, step))) {
            let taken = clerk.next().unwrap();
            assert_eq!(taken.job.step, StepId(step));
            clerk.answer(taken, answer(step));
            assert_eq!(answers.recv().unwrap(), answer(step));
        }
    }

    #[test]
    fn who_takes_over_begins_with_what_was_not_answered_and_the_first_answer_counts() {
        let desk = desk();
        let old = desk.serve();
        let old_clerk = old.clerk();
        let answers = ask(&desk, 1);
        let at_it = old_clerk.next().unwrap();
        drop(old);
        assert!(old_clerk.next().is_none(), "it has left");
        let new = desk.serve();
        let again = new.clerk().next().unwrap();
        assert_eq!(again.job, at_it.job);
        old_clerk.answer(at_it, answer(1));
        new.clerk().answer(again, answer(2));
        assert_eq!(answers.iter().collect::<Vec<_>>(), [answer(1)]);
    }

    #[test]
    fn without_experts_a_job_is_answered_at_once_and_with_others_it_is_forgotten() {
        let none = ExpertDesk::default();
        assert_eq!(ask(&none, 1).recv().unwrap(), Err(ExpertsError::NoHostExperts { layer: 3 }));
        let desk = desk();
        let answers = ask(&desk, 1);
        desk.set_experts(None);
        assert!(answers.recv().is_err(), "nobody will answer");
    }
}
