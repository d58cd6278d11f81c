//! A stage on a device after ops that the CPU computes for it in every step.

use cuelight_shaders::cost::Cost;

use super::stage::{ExpertUpload, PipelineStage, StageOutput};
use crate::engine::{CacheUnit, EngineError, Step, UnitBytes};

/// The first segment, whose inputs the ops on the host write.
const FIRST: usize = 0;

/// A stage whose first segment takes the outputs of another stage, which has one segment and runs on the CPU.
pub struct AfterHostOps {
    host: Box<dyn PipelineStage>,
    device: Box<dyn PipelineStage>,
}

impl AfterHostOps {
    /// `device` after `host`.
    #[must_use]
    pub fn new(host: impl PipelineStage, device: impl PipelineStage) -> Self {
        AfterHostOps { host: Box::new(host), device: Box::new(device) }
    }
}

impl PipelineStage for AfterHostOps {
    fn run(&mut self, segment: usize, step: &Step, inputs: &[Vec<f32>]) -> Result<StageOutput, EngineError> {
        if segment != FIRST {
            return self.device.run(segment, step, inputs);
        }
        let StageOutput { values, mut ops, .. } = self.host.run(FIRST, step, inputs)?;
        let output = self.device.run(FIRST, step, &values)?;
        ops.extend(output.ops);
        Ok(StageOutput { ops, ..output })
    }

    fn expert_upload(&self) -> Result<Box<dyn ExpertUpload>, EngineError> {
        self.device.expert_upload()
    }

    fn segments(&self) -> usize {
        self.device.segments()
    }

    fn cost(&self, segment: usize, step: &Step) -> Cost {
        let host = (segment == FIRST).then(|| self.host.cost(FIRST, step));
        host.into_iter().chain([self.device.cost(segment, step)]).sum()
    }

    fn unit_bytes(&self) -> UnitBytes {
        self.host.unit_bytes() + self.device.unit_bytes()
    }

    fn read_units(&mut self, copies: &mut [(CacheUnit, &mut [u8])]) -> Result<(), EngineError> {
        let of_host = self.host.unit_bytes();
        let parts = copies.iter_mut().map(|(unit, out)| {
            let (host, device) = out.split_at_mut(of_host.of(unit.kind()));
            ((*unit, host), (*unit, device))
        });
        let (mut host, mut device): (Vec<_>, Vec<_>) = parts.unzip();
        self.host.read_units(&mut host)?;
        self.device.read_units(&mut device)
    }

    fn write_units(&mut self, contents: &[(CacheUnit, &[u8])]) -> Result<(), EngineError> {
        let of_host = self.host.unit_bytes();
        let parts = contents.iter().map(|(unit, content)| {
            let (host, device) = content.split_at(of_host.of(unit.kind()));
            ((*unit, host), (*unit, device))
        });
        let (host, device): (Vec<_>, Vec<_>) = parts.unzip();
        self.host.write_units(&host)?;
        self.device.write_units(&device)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Adds a number to its inputs, of which there is one at least; and stores some bytes of states.
    struct Adds {
        number: f32,
        state: Vec<u8>,
    }

    impl PipelineStage for Adds {
        fn run(&mut self, segment: usize, _: &Step, inputs: &[Vec<f32>]) -> Result<StageOutput, EngineError> {
            let number = self.number + 100.0 * segment as f32;
            let values = inputs.iter().map(|input| input.iter().map(|value| 10.0 * value + number).collect()).collect();
            Ok(StageOutput { values, ..StageOutput::default() })
        }

        fn cost(&self, segment: usize, _: &Step) -> Cost {
            Cost { memory_bytes: self.number as u64 + segment as u64, ..Cost::default() }
        }

        fn unit_bytes(&self) -> UnitBytes {
            UnitBytes { block: 0, state: self.state.len() }
        }

        fn read_units(&mut self, copies: &mut [(CacheUnit, &mut [u8])]) -> Result<(), EngineError> {
            let states = copies.iter_mut().filter(|(unit, _)| matches!(unit, CacheUnit::State(_)));
            states.for_each(|(_, out)| out.copy_from_slice(&self.state));
            Ok(())
        }

        fn write_units(&mut self, contents: &[(CacheUnit, &[u8])]) -> Result<(), EngineError> {
            let states = contents.iter().filter(|(unit, _)| matches!(unit, CacheUnit::State(_)));
            states.for_each(|(_, content)| self.state.copy_from_slice(content));
            Ok(())
        }
    }

    fn stage() -> AfterHostOps {
        AfterHostOps::new(Adds { number: 1.0, state: vec![1, 2] }, Adds { number: 2.0, state: vec![3, 4, 5] })
    }

    #[test]
    fn only_the_first_segment_follows_the_host() {
        let (mut stage, step) = (stage(), Step::default());
        let mut run = |segment| stage.run(segment, &step, &[vec![5.0]]).unwrap().values;
        assert_eq!([run(0), run(1)], [[vec![512.0]], [vec![152.0]]]);
        assert_eq!([0, 1].map(|segment| stage.cost(segment, &step).memory_bytes), [3, 3]);
    }

    #[test]
    fn states_of_both_are_copied() {
        let mut stage = stage();
        assert_eq!(stage.unit_bytes(), UnitBytes { block: 0, state: 5 });
        let (mut state, mut block) = ([0; 5], []);
        stage.read_units(&mut [(CacheUnit::State(0), &mut state), (CacheUnit::Block(0), &mut block)]).unwrap();
        assert_eq!(state, [1, 2, 3, 4, 5]);
        stage.write_units(&[(CacheUnit::State(0), &[9, 8, 7, 6, 5])]).unwrap();
        stage.read_units(&mut [(CacheUnit::State(0), &mut state)]).unwrap();
        assert_eq!(state, [9, 8, 7, 6, 5]);
    }
}
