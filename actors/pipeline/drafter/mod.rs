//! The Drafter actor owns the draft model: a small model that guesses how sequences continue, for the model to verify.
//!
//! The draft model may also be a layer of the model that predicts one more token. It computes with the hidden values of the
//! model, which come before the drafts that need them.
//!
//! Receives `Draft` and `Hidden` from the scheduler, `Loaded`, `Lost` and `Check` from its thread and itself. Sends `Drafted` to
//! the scheduler that asked, and tells the supervisor when the draft model is loaded.
//!
//! Loading and computing block, so they run on a thread of their own. A draft changes no token: whatever the draft model
//! computes, the model verifies it.
//!
//! Faults: an error, a panic or a draft that takes too long ends the actor. The supervisor starts another one, and steps have
//! no drafts of the draft model meanwhile.

mod generator;
mod thread;
mod trunk_store;

use std::sync::Arc;
use std::time::Duration;

use cuelight_engine::engine::{Engine, EngineLimits};
use cuelight_engine::load::LoadCancel;
use ractor::{Actor, ActorProcessingErr, ActorRef};

use self::generator::DraftGenerator;
pub use self::generator::HIDDEN_BYTES;
use self::thread::{DraftCommand, DraftThread, reply, start};
use super::messages::{DrafterMsg, SchedulerMsg};
use super::model_source::{DraftModel, EngineHost};
use super::watchdog::Watchdog;
use crate::core::draft::{DraftRequest, HiddenShare};

/// Startup arguments of the drafter.
pub struct DrafterArguments {
    /// The draft model.
    pub model: Arc<dyn DraftModel>,
    /// Size of the vocabulary of the model that verifies the drafts.
    pub vocab_size: usize,
    /// Where the draft model runs.
    pub host: EngineHost,
    /// How long a step of the draft model may take before it counts as lost.
    pub step_timeout: Duration,
    /// Called once when the draft model is loaded.
    pub on_ready: Box<dyn FnOnce() + Send + Sync>,
}

/// The state of the drafter.
pub struct DrafterState {
    drafts: Drafts,
    on_ready: Option<Box<dyn FnOnce() + Send + Sync>>,
    step_timeout: Duration,
    watchdog: Watchdog,
    cancel: LoadCancel,
}

/// Where drafts are computed.
enum Drafts {
    Thread(DraftThread),
    /// In this actor, for an engine in virtual time.
    Here(Box<dyn Engine>, Box<DraftGenerator>),
}

impl Drop for DrafterState {
    fn drop(&mut self) {
        self.cancel.cancel();
    }
}

/// The drafter actor.
pub struct Drafter;

impl Actor for Drafter {
    type Msg = DrafterMsg;
    type State = DrafterState;
    type Arguments = DrafterArguments;

    async fn pre_start(
        &self,
        me: ActorRef<DrafterMsg>,
        arguments: DrafterArguments,
    ) -> Result<DrafterState, ActorProcessingErr> {
        let DrafterArguments { model, vocab_size, host, step_timeout, on_ready } = arguments;
        let cancel = LoadCancel::default();
        let drafts = match host {
            EngineHost::Thread => Drafts::Thread(start(model, vocab_size, cancel.clone(), me.clone())?),
            EngineHost::VirtualTime => {
                let engine = model.load(&cancel).map_err(|error| error.to_string())?;
                let generator = DraftGenerator::new(engine.limits(), vocab_size);
                me.cast(DrafterMsg::Loaded(engine.limits().clone()))?;
                Drafts::Here(engine, Box::new(generator))
            }
        };
        Ok(DrafterState { drafts, on_ready: Some(on_ready), step_timeout, watchdog: Watchdog::default(), cancel })
    }

    async fn handle(
        &self,
        me: ActorRef<DrafterMsg>,
        message: DrafterMsg,
        state: &mut DrafterState,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            DrafterMsg::Loaded(limits) => state.loaded(&me, &limits),
            DrafterMsg::Draft { request, scheduler } => state.draft(request, scheduler)?,
            DrafterMsg::Hidden(shares) => state.hidden(shares)?,
            DrafterMsg::Check => state.check(&me)?,
            DrafterMsg::Lost(reason) => return Err(reason.into()),
        }
        Ok(())
    }
}

impl DrafterState {
    fn loaded(&mut self, me: &ActorRef<DrafterMsg>, limits: &EngineLimits) {
        tracing::info!(device = limits.device, context = limits.context_tokens, "the draft model is loaded");
        if let Some(on_ready) = self.on_ready.take() {
            on_ready();
        }
        if matches!(self.drafts, Drafts::Thread(_)) {
            me.send_after(self.step_timeout, || DrafterMsg::Check);
        }
    }

    fn draft(&mut self, request: DraftRequest, scheduler: ActorRef<SchedulerMsg>) -> Result<(), ActorProcessingErr> {
        match &mut self.drafts {
            Drafts::Thread(thread) => thread.send(DraftCommand::Draft { request, scheduler })?,
            Drafts::Here(engine, generator) => {
                reply(&scheduler, generator.add(request));
                while !generator.is_idle() {
                    reply(&scheduler, generator.step(engine)?);
                }
            }
        }
        Ok(())
    }

    fn hidden(&mut self, shares: Vec<HiddenShare>) -> Result<(), ActorProcessingErr> {
        match &mut self.drafts {
            Drafts::Thread(thread) => thread.send(DraftCommand::Hidden(shares))?,
            Drafts::Here(_, generator) => generator.add_hidden(shares),
        }
        Ok(())
    }

    /// Ends the actor if the thread has worked on one step since the last check.
    fn check(&mut self, me: &ActorRef<DrafterMsg>) -> Result<(), ActorProcessingErr> {
        let Drafts::Thread(thread) = &self.drafts else { return Ok(()) };
        if self.watchdog.finds_the_same(thread.step()) {
            return Err(format!("a step of the draft model takes longer than {:?}", self.step_timeout).into());
        }
        me.send_after(self.step_timeout, || DrafterMsg::Check);
        Ok(())
    }
}
