//! A step on the device as one micro-batch, or as two so that one is computed while the other waits for experts.

use std::time::Duration;

use cuelight_engine::backend::stage::micro_batches;
use cuelight_engine::engine::{Step, StepId, StepOutput};

/// Maximum number of micro-batches of a step.
const MAX_MICRO_BATCHES: u64 = 2;

/// The micro-batches of a step and their results so far.
#[derive(Debug)]
pub(super) struct MicroBatches {
    step: StepId,
    results: Vec<Option<Result<StepOutput, String>>>,
}

/// The step that a micro-batch belongs to, and the index of the micro-batch within the step.
///
/// The engine sees every micro-batch as a step with an id of its own.
pub(crate) fn step_and_micro_batch(id: StepId) -> (StepId, u64) {
    (StepId(id.0 / MAX_MICRO_BATCHES), id.0 % MAX_MICRO_BATCHES)
}

impl MicroBatches {
    /// Splits a step into `count` micro-batches between its sequences. A step of one sequence is not split.
    pub fn split(step: Step, count: usize) -> (Self, Vec<Step>) {
        let id = step.id;
        let mut steps = micro_batches(step, count.clamp(1, MAX_MICRO_BATCHES as usize));
        for (index, step) in (0..).zip(&mut steps) {
            step.id = StepId(id.0 * MAX_MICRO_BATCHES + index);
        }
        (MicroBatches { step: id, results: vec![None; steps.len()] }, steps)
    }

    /// Number of micro-batches.
    pub fn count(&self) -> usize {
        self.results.len()
    }

    /// Records the result of a micro-batch. `false` when it belongs to another step or already has a result.
    pub fn record(&mut self, id: StepId, result: Result<StepOutput, String>) -> bool {
        let (step, index) = step_and_micro_batch(id);
        match self.results.get_mut(index as usize) {
            Some(slot @ None) if step == self.step => {
                *slot = Some(result);
                true
            }
            _ => false,
        }
    }

    /// The output of the step, once every micro-batch has a result. An error if any micro-batch was refused.
    /// `elapsed` is the time of the whole step.
    pub fn output(&mut self, elapsed: Duration) -> Option<Result<StepOutput, String>> {
        if self.results.iter().any(Option::is_none) {
            return None;
        }
        let mut results = self.results.drain(..).flatten();
        let first = results.next()?;
        let join = |output: Result<StepOutput, String>, next| {
            let (mut output, next): (StepOutput, StepOutput) = (output?, next?);
            output.logits.extend(next.logits);
            output.hidden.extend(next.hidden);
            output.denoised.extend(next.denoised);
            output.sampled.extend(next.sampled);
            output.ops.extend(next.ops);
            output.experts = output.experts + next.experts;
            output.prefill_saturation_rows = next.prefill_saturation_rows;
            Ok(StepOutput { elapsed, ..output })
        };
        let joined = results.fold(first, join);
        Some(joined.map(|output| StepOutput { id: self.step, ..output }))
    }
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use cuelight_engine::engine::{LogitsWanted, SequenceRows};

    use super::*;

    fn step(sequences: u32) -> Step {
        let rows = |block| SequenceRows {
            tokens: vec![block],
            first_position: 0,
            block_table: vec![block],
            logits: LogitsWanted::Last,
            ..SequenceRows::default()
        };
        Step { id: StepId(7), sequences: (0..sequences).map(rows).collect() }
    }

    fn output(micro_batch: &Step) -> StepOutput {
        let logits = micro_batch.sequences.iter().map(|rows| rows.tokens[0] as f32).collect();
        StepOutput { logits, elapsed: Duration::from_millis(1), ..StepOutput::empty(micro_batch.id) }
    }

    #[test]
    fn micro_batches_that_finish_in_any_order_are_joined_in_order() {
        let (mut micro_batches, steps) = MicroBatches::split(step(5), 2);
        assert_eq!(steps.iter().map(|step| step.sequences.len()).collect::<Vec<_>>(), [3, 2]);
        assert!(steps.iter().all(|step| step_and_micro_batch(step.id).0 == StepId(7)) && steps[0].id != steps[1].id);
        assert!(micro_batches.record(steps[1].id, Ok(output(&steps[1]))));
        assert_eq!(micro_batches.output(Duration::from_millis(3)), None);
        assert!(micro_batches.record(steps[0].id, Ok(output(&steps[0]))));
        assert!(!micro_batches.record(steps[0].id, Ok(output(&steps[0]))), "recorded twice");
        let joined = micro_batches.output(Duration::from_millis(3)).unwrap().unwrap();
        assert_eq!(
            (joined.id, joined.logits, joined.elapsed),
            (StepId(7), vec![0.0, 1.0, 2.0, 3.0, 4.0], Duration::from_millis(3))
        );
    }

    #[test]
    fn a_step_is_refused_when_one_micro_batch_was_and_all_have_ended() {
        let (mut micro_batches, steps) = MicroBatches::split(step(2), 2);
        assert!(micro_batches.record(steps[0].id, Err("no".into())));
        assert_eq!(micro_batches.output(Duration::ZERO), None);
        assert!(micro_batches.record(steps[1].id, Ok(output(&steps[1]))));
        assert_eq!(micro_batches.output(Duration::ZERO), Some(Err("no".into())));
    }

    #[test]
    fn a_step_of_one_sequence_is_not_split() {
        let (micro_batches, steps) = MicroBatches::split(step(1), 2);
        assert_eq!((micro_batches.count(), steps.len()), (1, 1));
        assert!(!MicroBatches::split(step(1), 2).0.record(StepId(99), Err(String::new())));
    }
}
