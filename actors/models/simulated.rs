//! Planning of simulated models, for tests of the registry.

use super::source::{ModelFactory, PlanError, PlannedModel};
use crate::pipeline::simulation::SimulatedModel;

impl ModelFactory for SimulatedModel {
    fn plan(&self, limit: Option<u64>) -> Result<PlannedModel, PlanError> {
        let memory = self.memory();
        let needed = memory.total_bytes();
        match limit {
            Some(limit) if needed > limit => {
                Err(PlanError::TooLarge(format!("the model takes {needed} bytes, but only {limit} can be free")))
            }
            _ => Ok(PlannedModel::new(memory, self.clone())),
        }
    }
}
