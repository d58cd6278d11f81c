//! The gauges of the sequences of each adapter.

use std::collections::BTreeMap;
use std::sync::Arc;

use metrics::{Gauge, gauge};

use super::catalogue::ADAPTER_REQUESTS;
use crate::core::adapter_counts::{AdapterCounts, OfAdapter};

/// Metrics of the adapters of a replica.
pub struct AdapterMetrics {
    model_id: Arc<str>,
    replica: usize,
    /// Running and waiting, by the name of the adapter. An adapter that was used once keeps its gauges.
    gauges: BTreeMap<Arc<str>, [Gauge; 2]>,
}

impl AdapterMetrics {
    /// The metrics of a replica that has no sequences.
    pub(crate) fn new(model_id: &Arc<str>, replica: usize) -> Self {
        let mut metrics = AdapterMetrics { model_id: Arc::clone(model_id), replica, gauges: BTreeMap::new() };
        metrics.set(&AdapterCounts::new(0, 0));
        metrics
    }

    /// Records the sequences of each adapter.
    pub(crate) fn set(&mut self, counts: &AdapterCounts) {
        for (name, _) in counts.iter() {
            if !self.gauges.contains_key(name) {
                self.gauges.insert(Arc::clone(name), self.gauges_of(name));
            }
        }
        for (name, [running, waiting]) in &self.gauges {
            let OfAdapter { running: now_running, waiting: now_waiting } = counts.of(name);
            running.set(now_running as f64);
            waiting.set(now_waiting as f64);
        }
    }

    fn gauges_of(&self, name: &str) -> [Gauge; 2] {
        ["running", "waiting"].map(|state| {
            let labels = [
                ("model", self.model_id.to_string()),
                ("replica", self.replica.to_string()),
                ("adapter", name.to_owned()),
                ("state", state.to_owned()),
            ];
            gauge!(ADAPTER_REQUESTS, &labels)
        })
    }
}

impl Drop for AdapterMetrics {
    /// Sets all gauges to 0, because a stopped scheduler holds nothing.
    fn drop(&mut self) {
        self.set(&AdapterCounts::new(0, 0));
    }
}
