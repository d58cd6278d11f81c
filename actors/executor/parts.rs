//! A step at the device in parts: whole, or as two micro-batches of which one is computed while the other waits for experts.

use std::time::Duration;

use cuelight_engine::backend::stage::micro_batches;
use cuelight_engine::engine::{Step, StepId, StepOutput};

/// Parts that a step may have at most.
const MOST_PARTS: u64 = 2;

/// The parts of a step, and what came of those that are done.
#[derive(Debug)]
pub(super) struct Parts {
    whole: StepId,
    outcomes: Vec<Option<Result<StepOutput, String>>>,
}

/// The step that a part belongs to, and its number there. The engine knows parts by numbers of their own, so that it can
/// tell them apart.
pub(crate) fn step_and_part(part: StepId) -> (StepId, u64) {
    (StepId(part.0 / MOST_PARTS), part.0 % MOST_PARTS)
}

impl Parts {
    /// Divides a step, between sequences; one of a single sequence stays whole.
    pub fn divide(step: Step, parts: usize) -> (Self, Vec<Step>) {
        let whole = step.id;
        let mut steps = micro_batches(step, parts.clamp(1, MOST_PARTS as usize));
        for (number, step) in (0..).zip(&mut steps) {
            step.id = StepId(whole.0 * MOST_PARTS + number);
        }
        (Parts { whole, outcomes: vec![None; steps.len()] }, steps)
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.outcomes.len()
    }

    /// Takes note of what came of a part. `false` when it is none of these, or is done already.
    pub fn end(&mut self, part: StepId, outcome: Result<StepOutput, String>) -> bool {
        let (step, number) = step_and_part(part);
        let place = self.outcomes.get_mut(number as usize).filter(|place| step == self.whole && place.is_none());
        let is_new = place.is_some();
        if let Some(place) = place {
            *place = Some(outcome);
        }
        is_new
    }

    /// The outcome of the step, once every part has one: refused, if any part was. `elapsed` is what all of it took.
    pub fn outcome(&mut self, elapsed: Duration) -> Option<Result<StepOutput, String>> {
        if self.outcomes.iter().any(Option::is_none) {
            return None;
        }
        let mut outcomes = self.outcomes.drain(..).flatten();
        let first = outcomes.next()?;
        let join = |whole: Result<StepOutput, String>, part| {
            let (mut whole, part): (StepOutput, StepOutput) = (whole?, part?);
            whole.logits.extend(part.logits);
            whole.chosen.extend(part.chosen);
            whole.ops.extend(part.ops);
            whole.experts = whole.experts + part.experts;
            whole.bulk_rows = part.bulk_rows;
            Ok(StepOutput { elapsed, ..whole })
        };
        let joined = outcomes.fold(first, join);
        Some(joined.map(|output| StepOutput { id: self.whole, ..output }))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use cuelight_engine::engine::{LogitsWanted, SequenceRows};

    use super::*;

    fn step(sequences: u32) -> Step {
        let rows = |block| SequenceRows {
            tokens: vec![block],
            first_position: 0,
            block_table: vec![block],
            logits: LogitsWanted::Last,
        };
        Step { id: StepId(7), sequences: (0..sequences).map(rows).collect() }
    }

    fn output(part: &Step) -> StepOutput {
        let logits = part.sequences.iter().map(|rows| rows.tokens[0] as f32).collect();
        StepOutput { logits, elapsed: Duration::from_millis(1), ..StepOutput::empty(part.id) }
    }

    #[test]
    fn parts_that_end_in_any_order_make_the_step_in_its_order() {
        let (mut parts, steps) = Parts::divide(step(5), 2);
        assert_eq!(steps.iter().map(|step| step.sequences.len()).collect::<Vec<_>>(), [3, 2]);
        assert!(steps.iter().all(|part| step_and_part(part.id).0 == StepId(7)) && steps[0].id != steps[1].id);
        assert!(parts.end(steps[1].id, Ok(output(&steps[1]))));
        assert_eq!(parts.outcome(Duration::from_millis(3)), None);
        assert!(parts.end(steps[0].id, Ok(output(&steps[0]))));
        assert!(!parts.end(steps[0].id, Ok(output(&steps[0]))), "twice");
        let whole = parts.outcome(Duration::from_millis(3)).unwrap().unwrap();
        assert_eq!(
            (whole.id, whole.logits, whole.elapsed),
            (StepId(7), vec![0.0, 1.0, 2.0, 3.0, 4.0], Duration::from_millis(3))
        );
    }

    #[test]
    fn a_step_is_refused_when_all_its_parts_have_ended_and_one_was() {
        let (mut parts, steps) = Parts::divide(step(2), 2);
        assert!(parts.end(steps[0].id, Err("no".into())));
        assert_eq!(parts.outcome(Duration::ZERO), None);
        assert!(parts.end(steps[1].id, Ok(output(&steps[1]))));
        assert_eq!(parts.outcome(Duration::ZERO), Some(Err("no".into())));
    }

    #[test]
    fn a_single_sequence_stays_whole() {
        let (parts, steps) = Parts::divide(step(1), 2);
        assert_eq!((parts.count(), steps.len()), (1, 1));
        assert!(!Parts::divide(step(1), 2).0.end(StepId(99), Err(String::new())));
    }
}
