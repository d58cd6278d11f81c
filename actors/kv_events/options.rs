//! Settings of the publisher.

use super::wire::EventFormat;

/// What to publish, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KvEventsOptions {
    /// Where subscribers connect, like `tcp://*:5557`.
    pub endpoint: String,
    /// Where those connect who want past batches.
    pub replay_endpoint: Option<String>,
    /// The topic; `{model}` stands for the name of the model, and `{host}` for that of this machine.
    pub topic: String,
    /// How events are encoded.
    pub format: EventFormat,
}

impl KvEventsOptions {
    /// The topic for a model.
    pub(super) fn topic_of(&self, model: &str) -> String {
        self.topic.replace("{host}", &host_name()).replace("{model}", model)
    }
}

/// The name of this machine; in a container that of the pod.
#[cfg(unix)]
fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

#[cfg(not(unix))]
fn host_name() -> String {
    "localhost".to_owned()
}
