//! Distinguishes prompt rows from decode rows in a step.

use cuelight_engine::engine::{LogitsWanted, SequenceRows, Step};

/// Whether the rows of a sequence in a step belong to its prompt, or recompute tokens that it lost.
///
/// A decode row is the only row of its sequence and wants logits. A last prompt chunk of one token looks the same and
/// counts as a decode row.
pub(crate) fn is_prefill(rows: &SequenceRows) -> bool {
    rows.tokens.len() > 1 || matches!(rows.logits, LogitsWanted::None | LogitsWanted::Hidden(_))
}

/// Number of rows of a step that belong to prompts.
pub(crate) fn prefill_rows(step: &Step) -> usize {
    step.sequences.iter().filter(|rows| is_prefill(rows)).map(|rows| rows.tokens.len()).sum()
}
