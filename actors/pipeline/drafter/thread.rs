//! The thread that loads the draft model and computes drafts.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;

use cuelight_engine::heap::release_freed;
use cuelight_engine::load::LoadCancel;
use ractor::{ActorProcessingErr, ActorRef};

use super::generator::DraftGenerator;
use crate::core::draft::{DraftReply, DraftRequest, HiddenShare};
use crate::core::panic_message::panic_message;
use crate::core::request::RequestId;
use crate::pipeline::messages::{DrafterMsg, SchedulerMsg};
use crate::pipeline::model_source::DraftModel;
use crate::pipeline::policy::PolicyEvent;

/// What the thread gets to do.
pub(super) enum DraftCommand {
    /// A request for a draft, and where the reply goes.
    Draft { request: DraftRequest, scheduler: ActorRef<SchedulerMsg> },
    /// Hidden values of the model.
    Hidden(Vec<HiddenShare>),
}

/// The thread of a draft model. It ends when this is dropped.
pub(super) struct DraftThread {
    commands: mpsc::Sender<DraftCommand>,
    progress: Arc<Progress>,
}

/// What the thread has done.
#[derive(Default)]
struct Progress {
    steps: AtomicU64,
    is_working: AtomicBool,
}

impl DraftThread {
    /// Starts the thread, which loads the model and reports to `me`.
    pub fn start(
        model: Arc<dyn DraftModel>,
        vocab_size: usize,
        cancel: LoadCancel,
        me: ActorRef<DrafterMsg>,
    ) -> std::io::Result<Self> {
        let (commands, receiver) = mpsc::channel();
        let progress = Arc::<Progress>::default();
        let worker = Worker { model, vocab_size, cancel, receiver, progress: progress.clone(), me };
        thread::Builder::new().name("cuelight-drafter".into()).spawn(move || {
            let me = worker.me.clone();
            let result = catch_unwind(AssertUnwindSafe(|| worker.run()));
            release_freed();
            let reason = match result {
                Ok(Ok(())) => return,
                Ok(Err(reason)) => reason,
                Err(panic) => format!("the draft model panicked: {}", panic_message(panic.as_ref())),
            };
            // Fails only when the actor is gone, and then the thread was expected to end.
            let _ = me.cast(DrafterMsg::Lost(reason));
        })?;
        Ok(DraftThread { commands, progress })
    }

    /// Passes a request on.
    pub fn send(&self, command: DraftCommand) -> Result<(), ActorProcessingErr> {
        self.commands.send(command).map_err(|_| "the thread of the draft model has ended".into())
    }

    /// The number of the step that it works on. If two calls return the same, it has worked on that step all the time between.
    pub fn step(&self) -> Option<u64> {
        // In this order: a step that ends between the two is not taken for the next one.
        let steps = self.progress.steps.load(Ordering::Acquire);
        self.progress.is_working.load(Ordering::Acquire).then_some(steps)
    }
}

struct Worker {
    model: Arc<dyn DraftModel>,
    vocab_size: usize,
    cancel: LoadCancel,
    receiver: mpsc::Receiver<DraftCommand>,
    progress: Arc<Progress>,
    me: ActorRef<DrafterMsg>,
}

impl Worker {
    /// Loads the model, then computes drafts until the actor is gone. The error is the reason why it cannot go on.
    fn run(self) -> Result<(), String> {
        let mut engine = self.model.load(&self.cancel).map_err(|error| error.to_string())?;
        let mut generator = DraftGenerator::new(engine.limits(), self.vocab_size);
        let _ = self.me.cast(DrafterMsg::Loaded(engine.limits().clone()));
        let mut asked = HashMap::new();
        while self.take_commands(&mut generator, &mut asked) {
            self.progress.is_working.store(true, Ordering::Release);
            let replies = generator.step(&mut engine).map_err(|error| error.to_string())?;
            self.progress.steps.fetch_add(1, Ordering::AcqRel);
            self.progress.is_working.store(false, Ordering::Release);
            for done in replies {
                if let Some(scheduler) = asked.remove(&done.id) {
                    reply(&scheduler, [done]);
                }
            }
        }
        Ok(())
    }

    /// Adds all requests that have come, and waits for one while there is nothing to do. Returns whether there is work; not
    /// when the actor is gone.
    fn take_commands(
        &self,
        generator: &mut DraftGenerator,
        asked: &mut HashMap<RequestId, ActorRef<SchedulerMsg>>,
    ) -> bool {
        loop {
            let command = if generator.is_idle() {
                self.receiver.recv().map_err(|_| mpsc::TryRecvError::Disconnected)
            } else {
                self.receiver.try_recv()
            };
            let (request, scheduler) = match command {
                Ok(DraftCommand::Draft { request, scheduler }) => (request, scheduler),
                Ok(DraftCommand::Hidden(shares)) => {
                    generator.add_hidden(shares);
                    continue;
                }
                Err(mpsc::TryRecvError::Empty) => return true,
                Err(mpsc::TryRecvError::Disconnected) => return false,
            };
            let id = request.id;
            match generator.add(request) {
                Some(refused) => reply(&scheduler, [refused]),
                None => drop(asked.insert(id, scheduler)),
            }
        }
    }
}

/// Sends replies to the scheduler that asked.
pub(super) fn reply(scheduler: &ActorRef<SchedulerMsg>, replies: impl IntoIterator<Item = DraftReply>) {
    for reply in replies {
        // Fails only when that scheduler is gone. The next one asks again.
        let _ = scheduler.cast(PolicyEvent::Drafted(reply).into());
    }
}
