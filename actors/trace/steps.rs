//! Steps on their way through the device, as sinks put them together from records.

use std::collections::BTreeMap;

use cuelight_engine::engine::StepId;
use tokio::time::Instant;

use super::StepShape;

/// Steps that are remembered; a few are in flight, the others were lost with their executor.
const MAX_STEPS: usize = 256;

/// The steps of one model that were formed and not computed.
#[derive(Default)]
pub(super) struct DeviceSteps {
    steps: BTreeMap<StepId, ActiveStep>,
    /// When the device finished its last step.
    free_since: Option<Instant>,
}

struct ActiveStep {
    shape: StepShape,
    begun: Option<Instant>,
}

/// A step that the device has finished.
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

    /// The device finished a step; `None` when its begin is not known.
    pub fn computed(&mut self, step: StepId, at: Instant) -> Option<ComputedStep> {
        let ActiveStep { shape, begun } = self.steps.remove(&step)?;
        // A step that was given early waited for the one before it.
        let from = self.free_since.replace(at).into_iter().chain(begun).max();
        Some(ComputedStep { from: begun.and(from)?, shape })
    }
}
