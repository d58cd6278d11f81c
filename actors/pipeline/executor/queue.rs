//! The steps that wait for the device, and the tokens that they wait for.

use std::collections::{BTreeMap, HashMap, VecDeque};

use cuelight_engine::engine::{StepId, TokenId};

use crate::core::request::RequestId;
use crate::pipeline::policy::PlannedStep;

/// Number of sampled steps whose tokens are kept. No planned step waits for a token of an older step.
const KEPT_STEPS: usize = 8;

/// A first-in first-out queue of steps. The first step may have to wait for its tokens.
#[derive(Debug, Default)]
pub(super) struct StepQueue {
    steps: VecDeque<PlannedStep>,
    /// The next tokens of the requests that continue, by the step that produced them.
    tokens: BTreeMap<StepId, HashMap<RequestId, TokenId>>,
    /// A step was refused and the scheduler may not know it yet. Steps that it sends until then are invalid.
    awaits_resync: bool,
}

impl StepQueue {
    pub fn push(&mut self, step: PlannedStep) {
        if !self.awaits_resync {
            self.steps.push_back(step);
        }
    }

    /// Records the tokens that a step produced for the requests that continue.
    pub fn record_tokens(&mut self, step: StepId, tokens: Vec<(RequestId, TokenId)>) {
        self.tokens.insert(step, tokens.into_iter().collect());
        while self.tokens.len() > KEPT_STEPS {
            self.tokens.pop_first();
        }
    }

    /// Drops all steps, and those that arrive before [`Self::resync`].
    pub fn drop_until_resync(&mut self) {
        self.steps.clear();
        self.awaits_resync = true;
    }

    /// The scheduler has handled the refused step.
    pub fn resync(&mut self) {
        self.awaits_resync = false;
    }

    /// Takes the next step with all its tokens. `None` while a token is missing or no step waits.
    pub fn pop(&mut self) -> Option<PlannedStep> {
        let first = self.steps.front()?;
        if !first.awaits.iter().all(|awaited| self.tokens.contains_key(&awaited.from)) {
            return None;
        }
        let mut planned = self.steps.pop_front()?;
        self.fill_in(&mut planned);
        Some(planned)
    }

    /// Inserts the awaited tokens and removes the rows of requests that ended.
    fn fill_in(&self, planned: &mut PlannedStep) {
        let mut ended = Vec::new();
        for awaited in &planned.awaits {
            match self.tokens.get(&awaited.from).and_then(|tokens| tokens.get(&awaited.id)) {
                Some(&token) => planned.step.sequences[awaited.sequence].tokens = vec![token],
                None => ended.push((awaited.sequence, awaited.id)),
            }
        }
        // In reverse order, so that the remaining indices stay valid.
        for &(sequence, id) in ended.iter().rev() {
            planned.step.sequences.remove(sequence);
            planned.ids.remove(sequence);
            planned.tasks.retain(|task| task.id != id);
        }
        planned.awaits.clear();
    }
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use cuelight_engine::engine::{LogitsWanted, SequenceRows, Step};

    use super::*;
    use crate::pipeline::policy::{AwaitedToken, SampleTask};

    /// A step with one row per request. `from` is the step that produces their tokens.
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
                ..SequenceRows::default()
            };
            planned.step.sequences.push(rows);
            planned.ids.push(id);
            planned.tasks.push(SampleTask {
                id,
                rows: 1,
                first_position: 5,
                scores_prompt: false,
                hidden_rows: 0,
                samples: true,
                draft: None,
                canvas: None,
            });
            planned.awaits.extend(from.map(|from| AwaitedToken { sequence, id, from: StepId(from) }));
        }
        planned
    }

    #[test]
    fn a_step_waits_for_its_tokens_and_drops_rows_without_one() {
        let mut queue = StepQueue::default();
        queue.push(step(1, &[7, 8, 9], Some(0)));
        assert_eq!(queue.pop(), None);
        queue.record_tokens(StepId(0), vec![(RequestId(9), 90), (RequestId(7), 70)]);
        let PlannedStep { step: Step { sequences, .. }, ids, tasks, .. } = queue.pop().unwrap();
        assert_eq!(ids, [RequestId(7), RequestId(9)]);
        let rows: Vec<_> = sequences.iter().map(|rows| (rows.block_table[0], rows.tokens[0])).collect();
        assert_eq!(rows, [(7, 70), (9, 90)]);
        assert_eq!(tasks.iter().map(|task| task.id.0).collect::<Vec<_>>(), [7, 9]);
    }

    #[test]
    fn tokens_may_arrive_before_the_step() {
        let mut queue = StepQueue::default();
        queue.record_tokens(StepId(0), vec![(RequestId(7), 70)]);
        queue.push(step(1, &[7], Some(0)));
        assert_eq!(queue.pop().unwrap().step.sequences[0].tokens, [70]);
    }

    #[test]
    fn after_a_refused_step_all_steps_are_dropped_until_resync() {
        let mut queue = StepQueue::default();
        queue.push(step(1, &[7], None));
        queue.drop_until_resync();
        queue.push(step(2, &[7], None));
        assert_eq!(queue.pop(), None);
        queue.resync();
        queue.push(step(3, &[7], None));
        assert_eq!(queue.pop().unwrap().step.id, StepId(3));
    }
}
