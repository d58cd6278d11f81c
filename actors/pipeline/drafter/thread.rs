//! The thread that loads the draft model and computes drafts.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc;

use cuelight_engine::load::LoadCancel;
use ractor::ActorRef;

use super::generator::DraftGenerator;
use crate::core::draft::{DraftReply, DraftRequest, HiddenShare};
use crate::core::request::RequestId;
use crate::pipeline::companion_thread::{CompanionThread, Progress};
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

/// The thread of a draft model.
pub(super) type DraftThread = CompanionThread<DraftCommand>;

/// Starts the thread, which loads the model and reports to `me`.
///
/// # Errors
/// When the system starts no thread.
pub(super) fn start(
    model: Arc<dyn DraftModel>,
    vocab_size: usize,
    cancel: LoadCancel,
    me: ActorRef<DrafterMsg>,
) -> std::io::Result<DraftThread> {
    let actor = me.clone();
    let run = move |receiver: mpsc::Receiver<DraftCommand>, progress: &Progress| {
        Worker { model, vocab_size, cancel, receiver, progress, me }.run()
    };
    // Fails only when the actor is gone, and then the thread was expected to end.
    let lost = move |reason| drop(actor.cast(DrafterMsg::Lost(reason)));
    CompanionThread::start(("cuelight-drafter", "draft model"), run, lost)
}

struct Worker<'a> {
    model: Arc<dyn DraftModel>,
    vocab_size: usize,
    cancel: LoadCancel,
    receiver: mpsc::Receiver<DraftCommand>,
    progress: &'a Progress,
    me: ActorRef<DrafterMsg>,
}

impl Worker<'_> {
    /// Loads the model, then computes drafts until the actor is gone. The error is the reason why it cannot go on.
    fn run(self) -> Result<(), String> {
        let mut engine = self.model.load(&self.cancel).map_err(|error| error.to_string())?;
        let mut generator = DraftGenerator::new(engine.limits(), self.vocab_size);
        let _ = self.me.cast(DrafterMsg::Loaded(engine.limits().clone()));
        let mut asked = HashMap::new();
        while self.take_commands(&mut generator, &mut asked) {
            let replies = self.progress.of(|| generator.step(&mut engine)).map_err(|error| error.to_string())?;
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
