//! The rows of an encoder at the start of sequences: they go through a graph of their own before the other rows of a step.

use crate::engine::{EmbeddingLimits, EmbeddingRows, SequenceRows, Step};

/// Divides a step: the rows of the encoder, and all others. Sequences without rows of a kind are not among these.
pub(super) fn divide(step: Step, limits: Option<EmbeddingLimits>) -> [Step; 2] {
    let leading = limits.map_or(0, |limits| limits.leading_rows);
    let nothing = || Step { id: step.id, sequences: Vec::new() };
    let [mut encoder, mut others] = [nothing(), nothing()];
    if leading == 0 {
        return [encoder, step];
    }
    for mut sequence in step.sequences {
        if let Some(rows) = take_leading(&mut sequence, leading) {
            encoder.sequences.push(rows);
        }
        if !sequence.tokens.is_empty() {
            others.sequences.push(sequence);
        }
    }
    [encoder, others]
}

/// Takes the rows before position `leading` from a sequence, if it has some.
fn take_leading(sequence: &mut SequenceRows, leading: usize) -> Option<SequenceRows> {
    let count = leading_rows(sequence, leading);
    if count == 0 {
        return None;
    }
    let others = sequence.tokens.split_off(count);
    let rows = SequenceRows {
        tokens: std::mem::replace(&mut sequence.tokens, others),
        first_position: sequence.first_position,
        block_table: sequence.block_table.clone(),
        adapter: sequence.adapter.clone(),
        embeddings: std::mem::take(&mut sequence.embeddings),
        ..SequenceRows::default()
    };
    sequence.first_position += count as u32;
    sequence.rope_positions.drain(..count.min(sequence.rope_positions.len()));
    Some(rows)
}

/// How many of a sequence's rows are before position `leading`.
fn leading_rows(sequence: &SequenceRows, leading: usize) -> usize {
    leading.saturating_sub(sequence.first_position as usize).min(sequence.tokens.len())
}

/// The input of the graph, [rows, width].
pub(super) fn input(encoder: &Step, width: usize) -> Vec<f32> {
    let given = encoder.sequences.iter().flat_map(|sequence| &sequence.embeddings);
    let of_rows =
        |EmbeddingRows { values, range, .. }: &EmbeddingRows| values[range.start * width..range.end * width].to_vec();
    given.flat_map(of_rows).collect()
}

/// Checks that a sequence gives all of its rows of the encoder and no others, and wants nothing of them.
pub(super) fn validate(index: usize, sequence: &SequenceRows, leading: usize) -> Result<(), String> {
    if leading == 0 {
        return Ok(());
    }
    let count = leading_rows(sequence, leading);
    let given: usize = sequence.embeddings.iter().map(|rows| rows.range.len()).sum();
    if given != count {
        return Err(format!("sequence {index} has {count} rows of the encoder, but gives {given}"));
    }
    let rows = sequence.tokens.len();
    let (wanted, hidden) = (sequence.logits.rows(rows), sequence.hidden_rows());
    if count > rows - wanted || (!hidden.is_empty() && hidden.start < count) {
        return Err(format!("sequence {index} wants results of rows of the encoder"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::engine::{LogitsWanted, StepId};

    const LIMITS: EmbeddingLimits = EmbeddingLimits { width: 2, deep_layers: 0, leading_rows: 4 };

    /// Rows from a position on, the first `given` of which are those of a recording from that position on.
    fn rows(first_position: u32, count: usize, given: usize) -> SequenceRows {
        let values: Arc<[f32]> = (0..8).map(|value| value as f32).collect();
        let first = first_position as usize;
        let embeddings = (given > 0).then(|| EmbeddingRows { first: 0, values, range: first..first + given });
        SequenceRows {
            tokens: (first_position..).take(count).collect(),
            first_position,
            block_table: vec![7],
            embeddings: embeddings.into_iter().collect(),
            ..SequenceRows::default()
        }
    }

    #[test]
    fn a_step_is_divided_where_the_rows_of_the_encoder_end() {
        let last = SequenceRows { logits: LogitsWanted::Last, ..rows(2, 5, 2) };
        let step = Step { id: StepId(3), sequences: vec![rows(0, 3, 3), last, rows(9, 1, 0)] };
        let [encoder, others] = divide(step, Some(LIMITS));
        let tokens = |step: &Step| step.sequences.iter().map(|rows| rows.tokens.clone()).collect::<Vec<_>>();
        assert_eq!(tokens(&encoder), [vec![0, 1, 2], vec![2, 3]]);
        assert_eq!(tokens(&others), [vec![4, 5, 6], vec![9]]);
        let first = &others.sequences[0];
        assert_eq!((first.first_position, first.logits, first.embeddings.len()), (4, LogitsWanted::Last, 0));
        assert_eq!(
            (encoder.id, encoder.logits_rows(), &encoder.sequences[1].block_table[..]),
            (StepId(3), 0, &[7][..])
        );
        assert_eq!(input(&encoder, 2), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 4.0, 5.0, 6.0, 7.0]);
    }

    #[test]
    fn without_an_encoder_nothing_is_divided() {
        let step = || Step { id: StepId(1), sequences: vec![rows(0, 3, 2)] };
        for limits in [None, Some(EmbeddingLimits { leading_rows: 0, ..LIMITS })] {
            assert_eq!(divide(step(), limits), [Step { id: StepId(1), sequences: vec![] }, step()]);
        }
    }

    #[test]
    fn a_sequence_gives_every_row_of_the_encoder_and_wants_nothing_of_them() {
        let wanting = |logits, count| SequenceRows { logits, ..rows(0, count, count.min(4)) };
        for valid in [rows(0, 6, 4), rows(3, 1, 1), rows(4, 2, 0), wanting(LogitsWanted::Last, 5)] {
            assert_eq!(validate(0, &valid, 4), Ok(()));
        }
        for (invalid, reason) in [
            (rows(0, 6, 3), "has 4 rows of the encoder, but gives 3"),
            (rows(4, 2, 1), "has 0 rows of the encoder, but gives 1"),
            (wanting(LogitsWanted::Last, 4), "wants results of rows of the encoder"),
            (wanting(LogitsWanted::All, 5), "wants results of rows of the encoder"),
        ] {
            assert!(validate(0, &invalid, 4).unwrap_err().contains(reason), "{reason}");
        }
    }
}
