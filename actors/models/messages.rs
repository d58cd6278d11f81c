//! The messages to the broker, and its address.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use ractor::{ActorRef, MessagingErr};
use tokio::sync::oneshot;

use super::entry::Entry;
use super::error::ModelsError;
use super::registry::Registry;
use super::source::{PlanError, PlannedModel};

/// Messages to the broker.
pub(super) enum BrokerMsg {
    /// Continue where the previous broker stopped, if there was one.
    TakeOver,
    /// Load a model whose phase is [`Phase::Queued`](super::entry::Phase::Queued).
    Load(Arc<Entry>),
    /// The memory plan of a model, or why it cannot be loaded.
    Planned { entry: Arc<Entry>, planned: Box<Result<PlannedModel, PlanError>> },
    /// The pipelines of a model are ready, or have failed and are gone.
    Loaded { entry: Arc<Entry>, result: Result<(), String> },
    /// The pipelines of a model gave up: they failed too often, or the file changed.
    GaveUp { entry: Arc<Entry>, cause: UnloadCause },
    /// Unload a model when its calls have ended, or after `drain`. The reply is sent when its memory is free.
    Unload { entry: Arc<Entry>, drain: Duration, reply: oneshot::Sender<Result<(), ModelsError>> },
    /// The engines of a model are dropped.
    Unloaded { entry: Arc<Entry>, cause: UnloadCause },
    /// The last call of a model ended.
    Idle(Arc<Entry>),
    /// The keep-alive time of a model may be over.
    KeepAliveExpired(Arc<Entry>),
    /// Load nothing more, and stop all pipelines after at most `drain`.
    Shutdown { drain: Duration, reply: oneshot::Sender<()> },
}

/// Why a model is unloaded.
pub(super) enum UnloadCause {
    /// By request.
    Request,
    /// Its keep-alive time is over.
    Idle,
    /// Another model needs its memory.
    Memory,
    /// Its pipelines gave up, for this reason.
    Fault(String),
    /// Its file changed. The text says how.
    FileChanged(String),
}

impl UnloadCause {
    /// The cause as one word, for metrics and logs.
    pub fn word(&self) -> &'static str {
        match self {
            UnloadCause::Request => "request",
            UnloadCause::Idle => "idle",
            UnloadCause::Memory => "memory",
            UnloadCause::Fault(_) => "failed",
            UnloadCause::FileChanged(_) => "file_changed",
        }
    }
}

/// The address of the current broker.
#[derive(Clone, Default)]
pub(super) struct BrokerAddress(Arc<RwLock<Option<ActorRef<BrokerMsg>>>>);

impl BrokerAddress {
    /// Pause after the death of a broker before the next one is started or a message is sent again.
    pub const RESTART_PAUSE: Duration = Duration::from_millis(100);

    /// The actor. `None` before the first one has started.
    pub fn actor(&self) -> Option<ActorRef<BrokerMsg>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sends a message that a new broker could also derive from the entries. It is lost when the broker is dead.
    pub fn notify(&self, message: BrokerMsg) {
        if let Some(actor) = self.actor() {
            let _ = actor.cast(message);
        }
    }

    /// Sends a message that must not be lost. When the broker is dead, it is sent to the next one.
    pub async fn deliver(&self, registry: &Registry, mut message: BrokerMsg) {
        while let Some(actor) = self.actor() {
            match actor.cast(message) {
                Err(MessagingErr::SendErr(undelivered)) if !registry.is_stopping() => message = undelivered,
                _ => return,
            }
            tokio::time::sleep(Self::RESTART_PAUSE).await;
        }
    }

    pub fn set(&self, actor: ActorRef<BrokerMsg>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Some(actor);
    }
}
