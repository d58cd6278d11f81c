//! Takes the hidden values that the drafter needs out of the output of a step.

use cuelight_engine::engine::{SequenceRows, Step};

use crate::core::draft::HiddenShare;
use crate::core::request::RequestId;

/// The hidden values of each sequence of a step, in their order.
#[derive(Debug, Default)]
pub(super) struct HiddenShares(Vec<Share>);

#[derive(Debug)]
struct Share {
    id: RequestId,
    first_position: usize,
    rows: usize,
    /// Whether they are for the drafter, and not for the sampler.
    is_for_drafter: bool,
}

impl HiddenShares {
    /// Those of a step whose sequences belong to `ids`. Empty if none are for the drafter.
    pub fn of(step: &Step, ids: &[RequestId]) -> Self {
        if !step.sequences.iter().any(|sequence| sequence.returns_hidden) {
            return HiddenShares::default();
        }
        let share = |(sequence, id): (&SequenceRows, &RequestId)| Share {
            id: *id,
            first_position: sequence.first_position as usize,
            rows: sequence.hidden_rows().len(),
            is_for_drafter: sequence.returns_hidden,
        };
        HiddenShares(step.sequences.iter().zip(ids).map(share).collect())
    }

    /// Moves the values for the drafter out of `hidden`, [rows, width].
    pub fn take(self, hidden: &mut Vec<f32>) -> Vec<HiddenShare> {
        let rows: usize = self.0.iter().map(|share| share.rows).sum();
        if rows == 0 {
            return Vec::new();
        }
        let (width, values) = (hidden.len() / rows, std::mem::take(hidden));
        let (mut taken, mut start) = (Vec::new(), 0);
        for Share { id, first_position, rows, is_for_drafter } in self.0 {
            let own = &values[start..start + rows * width];
            start += own.len();
            if is_for_drafter {
                taken.push(HiddenShare { id, first_position, values: own.to_vec() });
            } else {
                hidden.extend(own);
            }
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use cuelight_engine::engine::{HiddenRows, LogitsWanted, StepId};

    use super::*;

    #[test]
    fn the_sampler_keeps_the_hidden_values_that_the_drafter_does_not_get() {
        let rows = |count, first_position, returns_hidden| SequenceRows {
            tokens: vec![0; count],
            first_position,
            returns_hidden,
            ..SequenceRows::default()
        };
        let embedding = SequenceRows { logits: LogitsWanted::Hidden(HiddenRows::Last), ..rows(3, 0, false) };
        let sequences = vec![rows(2, 5, true), embedding, rows(4, 0, false), rows(1, 9, true)];
        let step = Step { id: StepId(0), sequences };
        let ids = [1, 2, 3, 4].map(RequestId);
        let mut hidden = (0..8_u8).map(f32::from).collect();
        let share = |id, first_position, values: &[f32]| HiddenShare {
            id: RequestId(id),
            first_position,
            values: values.to_vec(),
        };
        let taken = HiddenShares::of(&step, &ids).take(&mut hidden);
        assert_eq!(taken, [share(1, 5, &[0.0, 1.0, 2.0, 3.0]), share(4, 9, &[6.0, 7.0])]);
        assert_eq!(hidden, [4.0, 5.0]);
    }

    #[test]
    fn a_step_for_the_sampler_alone_is_left_as_it_is() {
        let step = Step { id: StepId(0), sequences: vec![SequenceRows { tokens: vec![0], ..SequenceRows::default() }] };
        let mut hidden = vec![1.0];
        assert_eq!(HiddenShares::of(&step, &[RequestId(1)]).take(&mut hidden), []);
        assert_eq!(hidden, [1.0]);
    }
}
