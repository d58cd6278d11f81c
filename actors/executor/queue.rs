//! The steps that wait for the device, and the tokens that they wait for.

use std::collections::{BTreeMap, HashMap, VecDeque};

use cuelight_engine::engine::{StepId, TokenId};

use crate::policy::PlannedStep;
use crate::request::RequestId;

/// Sampled steps whose tokens are remembered; no formed step awaits one of an older step.
const REMEMBERED: usize = 8;

/// First come, first served; the first may have to wait for its tokens.
#[derive(Debug, Default)]
pub(super) struct StepQueue {
    steps: VecDeque<PlannedStep>,
    /// The tokens that the last steps brought to requests that go on.
    tokens: BTreeMap<StepId, HashMap<RequestId, TokenId>>,
    /// A step failed, and the scheduler may not know of it yet: what it sends was formed in error.
    out_of_step: bool,
}

impl StepQueue {
    pub fn push(&mut self, step: PlannedStep) {
        if !self.out_of_step {
            self.steps.push_back(step);
        }
    }

    /// Takes note of what a step brought to those of its requests that go on.
    pub fn bring(&mut self, step: StepId, tokens: Vec<(RequestId, TokenId)>) {
        self.tokens.insert(step, tokens.into_iter().collect());
        while self.tokens.len() > REMEMBERED {
            self.tokens.pop_first();
        }
    }

    /// Forgets all steps, and those that come until the scheduler says that it knows.
    pub fn fall_out_of_step(&mut self) {
        self.steps.clear();
        self.out_of_step = true;
    }

    /// The scheduler knows of the failure.
    pub fn resync(&mut self) {
        self.out_of_step = false;
    }

    /// The next step with all its tokens, when they are there.
    pub fn pop(&mut self) -> Option<PlannedStep> {
        let first = self.steps.front()?;
        if !first.awaits.iter().all(|awaited| self.tokens.contains_key(&awaited.from)) {
            return None;
        }
        let mut planned = self.steps.pop_front()?;
        self.fill_in(&mut planned);
        Some(planned)
    }

    /// Puts the awaited tokens in their places, and leaves out the rows of requests that ended.
    fn fill_in(&self, planned: &mut PlannedStep) {
        let mut left_out = Vec::new();
        for awaited in &planned.awaits {
            match self.tokens.get(&awaited.from).and_then(|tokens| tokens.get(&awaited.id)) {
                Some(&token) => planned.step.sequences[awaited.sequence].tokens = vec![token],
                None => left_out.push((awaited.sequence, awaited.id)),
            }
        }
        // From the end, so that the places before stay what they are.
        for &(sequence, id) in left_out.iter().rev() {
            planned.step.sequences.remove(sequence);
            planned.tasks.retain(|task| task.id != id);
        }
        planned.awaits.clear();
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use cuelight_engine::engine::{LogitsWanted, SequenceRows, Step};

    use super::*;
    use crate::policy::{AwaitedToken, SampleTask};

    /// A step with a row for each request; `from` says which step brings their tokens.
    fn step(id: u64, requests: &[u64], from: Option<u64>) -> PlannedStep {
        let mut planned = PlannedStep::default();
        planned.step.id = StepId(id);
        for (sequence, &request) in requests.iter().enumerate() {
            let id = RequestId(request);
            let rows = SequenceRows {
                tokens: vec![0],
                first_position: 5,
                block_table: vec![request as u32],
                logits: LogitsWanted::Last,
            };
            planned.step.sequences.push(rows);
            planned.tasks.push(SampleTask { id, rows: 1, first_position: 5, scores_prompt: false, samples: true });
            planned.awaits.extend(from.map(|from| AwaitedToken { sequence, id, from: StepId(from) }));
        }
        planned
    }

    #[test]
    fn a_step_waits_for_its_tokens_and_leaves_out_who_gets_none() {
        let mut queue = StepQueue::default();
        queue.push(step(1, &[7, 8, 9], Some(0)));
        assert_eq!(queue.pop(), None);
        queue.bring(StepId(0), vec![(RequestId(9), 90), (RequestId(7), 70)]);
        let PlannedStep { step: Step { sequences, .. }, tasks, .. } = queue.pop().unwrap();
        let rows: Vec<_> = sequences.iter().map(|rows| (rows.block_table[0], rows.tokens[0])).collect();
        assert_eq!(rows, [(7, 70), (9, 90)]);
        assert_eq!(tasks.iter().map(|task| task.id.0).collect::<Vec<_>>(), [7, 9]);
    }

    #[test]
    fn tokens_may_come_before_the_step() {
        let mut queue = StepQueue::default();
        queue.bring(StepId(0), vec![(RequestId(7), 70)]);
        queue.push(step(1, &[7], Some(0)));
        assert_eq!(queue.pop().unwrap().step.sequences[0].tokens, [70]);
    }

    #[test]
    fn after_a_failure_steps_are_forgotten_until_the_scheduler_knows() {
        let mut queue = StepQueue::default();
        queue.push(step(1, &[7], None));
        queue.fall_out_of_step();
        queue.push(step(2, &[7], None));
        assert_eq!(queue.pop(), None);
        queue.resync();
        queue.push(step(3, &[7], None));
        assert_eq!(queue.pop().unwrap().step.id, StepId(3));
    }
}
