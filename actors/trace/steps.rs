//! Steps on the device, as sinks reconstruct them from records.

use std::collections::BTreeMap;

use cuelight_engine::engine::StepId;
use tokio::time::Instant;

use super::record::StepShape;

/// Maximum number of tracked steps. A few are in flight, and others were lost with their executor.
const MAX_STEPS: usize = 256;

/// The steps of one pipeline that were formed and are not computed yet.
#[derive(Default)]
pub(super) struct DeviceSteps {
    steps: BTreeMap<StepId, ActiveStep>,
    /// When the device finished its previous step.
    idle_since: Option<Instant>,
}

struct ActiveStep {
    shape: StepShape,
    begun: Option<Instant>,
}

/// A step that the device has computed.
pub(super) struct ComputedStep {
    pub from: Instant,
    pub shape: StepShape,
}

impl DeviceSteps {
    pub fn formed(&mut self, step: StepId, shape: &StepShape) {
        self.steps.insert(step, ActiveStep { shape: shape.clone(), begun: None });
        if self.steps.len() > MAX_STEPS {
            self.steps.pop_first();
        }
    }

    pub fn begun(&mut self, step: StepId, at: Instant) {
        if let Some(active) = self.steps.get_mut(&step) {
            active.begun = Some(at);
        }
    }

    /// Records that the device finished a step. `None` when its start is unknown.
    pub fn computed(&mut self, step: StepId, at: Instant) -> Option<ComputedStep> {
        let ActiveStep { shape, begun } = self.steps.remove(&step)?;
        // A step that was sent early waited for the one before it.
        let from = self.idle_since.replace(at).into_iter().chain(begun).max();
        Some(ComputedStep { from: begun.and(from)?, shape })
    }
}
