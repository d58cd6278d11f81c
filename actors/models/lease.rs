//! What calls hold while they use a model or wait for one.

use std::sync::Arc;

use super::entry::Entry;
use super::error::ModelsError;
use super::messages::{BrokerAddress, BrokerMsg};
use crate::metrics;
use crate::pipeline::runtime::Runtime;

/// A slot in the queue of calls that wait for a model. While it is held, the model does not count as idle.
pub(super) struct WaitTicket {
    entry: Arc<Entry>,
    broker: Option<BrokerAddress>,
}

impl WaitTicket {
    /// Joins the queue, which has at most `limit` slots.
    ///
    /// # Errors
    /// [`ModelsError::Overloaded`] when the queue is full.
    pub fn take(entry: &Arc<Entry>, limit: usize, broker: Option<BrokerAddress>) -> Result<Self, ModelsError> {
        entry.join_queue(limit).inspect_err(|_| metrics::rejected_before_load(&entry.id))?;
        Ok(WaitTicket { entry: entry.clone(), broker })
    }
}

impl Drop for WaitTicket {
    fn drop(&mut self) {
        if self.entry.leave_queue() {
            notify_idle(&self.entry, self.broker.as_ref());
        }
    }
}

/// A loaded model in use by a call. It is not unloaded for being idle or for its memory until this is dropped.
pub struct ModelLease {
    entry: Arc<Entry>,
    runtime: Runtime,
    broker: Option<BrokerAddress>,
}

impl ModelLease {
    pub(super) fn new(entry: Arc<Entry>, runtime: Runtime, broker: Option<BrokerAddress>) -> Self {
        ModelLease { entry, runtime, broker }
    }

    /// The name of the model.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.entry.id
    }

    /// Whether a name can only be that of an adapter of the model.
    #[must_use]
    pub fn is_adapter_name(&self, name: &str) -> bool {
        !self.entry.has_name(name)
            && (self.entry.has_adapter(name) || self.entry.adapters.iter().any(|one| one == name))
    }

    /// The pipelines that run the model.
    #[must_use]
    pub fn runtime(&self) -> &Runtime {
        &self.runtime
    }
}

impl Drop for ModelLease {
    fn drop(&mut self) {
        if self.entry.end_call() {
            notify_idle(&self.entry, self.broker.as_ref());
        }
    }
}

fn notify_idle(entry: &Arc<Entry>, broker: Option<&BrokerAddress>) {
    if let Some(broker) = broker {
        broker.notify(BrokerMsg::Idle(entry.clone()));
    }
}
