//! Takes the hidden values that the drafter needs out of the output of a step.

use cuelight_engine::engine::{SequenceRows, Step};

use crate::core::draft::HiddenShare;
use crate::core::request::RequestId;

/// The hidden values of each sequence of a step, in their order.
#[derive(Debug, Default)]
pub(super) struct HiddenShares {
    shares: Vec<Share>,
    /// Values of a row that are for the drafter alone. They follow those of embeddings.
    residuals: usize,
}

#[derive(Debug)]
struct Share {
    id: RequestId,
    first_position: usize,
    rows: usize,
    /// Whether they are for the drafter, and not for the sampler.
    is_for_drafter: bool,
}

impl HiddenShares {
    /// Those of a step whose sequences belong to `ids`, of an engine that returns `residuals` values of a row for the drafter alone.
    /// Empty if none are for the drafter.
    pub fn of(step: &Step, ids: &[RequestId], residuals: usize) -> Self {
        if residuals == 0 && !step.sequences.iter().any(|sequence| sequence.returns_hidden) {
            return HiddenShares::default();
        }
        let share = |(sequence, id): (&SequenceRows, &RequestId)| Share {
            id: *id,
            first_position: sequence.first_position as usize,
            rows: sequence.hidden_rows().len(),
            is_for_drafter: sequence.returns_hidden,
        };
        HiddenShares { shares: step.sequences.iter().zip(ids).map(share).collect(), residuals }
    }

    /// Moves the values for the drafter out of `hidden`, [rows, width]. The sampler gets those of embeddings.
    pub fn take(self, hidden: &mut Vec<f32>) -> Vec<HiddenShare> {
        let rows: usize = self.shares.iter().map(|share| share.rows).sum();
        if rows == 0 {
            return Vec::new();
        }
        let (width, values) = (hidden.len() / rows, std::mem::take(hidden));
        let (mut taken, mut start) = (Vec::new(), 0);
        for Share { id, first_position, rows, is_for_drafter } in self.shares {
            let own = &values[start..start + rows * width];
            start += own.len();
            let of_embedding = width.saturating_sub(self.residuals);
            let columns = match (is_for_drafter, self.residuals) {
                (true, 0) => 0..width,
                (true, _) => of_embedding..width,
                (false, _) => 0..of_embedding,
            };
            let values = own.chunks_exact(width.max(1)).flat_map(|row| row[columns.clone()].iter().copied());
            if is_for_drafter {
                taken.push(HiddenShare { id, first_position, values: values.collect() });
            } else {
                hidden.extend(values);
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
        let taken = HiddenShares::of(&step, &ids, 0).take(&mut hidden);
        assert_eq!(taken, [share(1, 5, &[0.0, 1.0, 2.0, 3.0]), share(4, 9, &[6.0, 7.0])]);
        assert_eq!(hidden, [4.0, 5.0]);
    }

    #[test]
    fn the_drafter_gets_residuals_and_the_sampler_the_values_of_embeddings() {
        let rows = |count, returns_hidden| SequenceRows {
            tokens: vec![0; count],
            returns_hidden,
            logits: if returns_hidden { LogitsWanted::None } else { LogitsWanted::Hidden(HiddenRows::All) },
            ..SequenceRows::default()
        };
        let step = Step { id: StepId(0), sequences: vec![rows(2, true), rows(1, false)] };
        let mut hidden = (0..9_u8).map(f32::from).collect();
        let taken = HiddenShares::of(&step, &[1, 2].map(RequestId), 2).take(&mut hidden);
        let values = vec![1.0, 2.0, 4.0, 5.0];
        assert_eq!(taken, [HiddenShare { id: RequestId(1), first_position: 0, values }]);
        assert_eq!(hidden, [6.0]);
    }

    #[test]
    fn a_step_for_the_sampler_alone_is_left_as_it_is() {
        let step = Step { id: StepId(0), sequences: vec![SequenceRows { tokens: vec![0], ..SequenceRows::default() }] };
        let mut hidden = vec![1.0];
        assert_eq!(HiddenShares::of(&step, &[RequestId(1)], 0).take(&mut hidden), []);
        assert_eq!(hidden, [1.0]);
    }
}
