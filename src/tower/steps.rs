//! The rows of a tower as a step of its stage.

use crate::backend::stage::PipelineStage;
use crate::engine::{BLOCK_TOKENS, EngineError, SequenceRows, SequenceState, SlotId, Step, StepId};

/// The error of rows that are not those of the tower.
#[must_use]
pub fn invalid(reason: String) -> EngineError {
    EngineError::InvalidStep { step: StepId(0), reason }
}

/// A step of one sequence with these tokens, which are rows of a table of positions.
#[must_use]
pub fn of_tokens(tokens: Vec<u32>) -> Step {
    let block_table = (0..tokens.len().div_ceil(BLOCK_TOKENS) as u32).collect();
    Step { id: StepId(0), sequences: vec![SequenceRows { tokens, block_table, ..SequenceRows::default() }] }
}

/// A step of one sequence with these tokens, whose state begins and is of no use afterwards.
#[must_use]
pub fn with_state(tokens: Vec<u32>) -> Step {
    const SLOT: SlotId = 0;
    let mut step = of_tokens(tokens);
    for sequence in &mut step.sequences {
        sequence.state = SequenceState { from: None, to: vec![(sequence.tokens.len() as u32, SLOT)] };
    }
    step
}

/// A step of one sequence of `rows` rows.
#[must_use]
pub fn whole(rows: usize) -> Step {
    of_tokens(vec![0; rows])
}

/// The output of a segment of a stage.
///
/// # Errors
/// [`EngineError`] when the device fails or the step does not belong to the stage.
pub fn run(
    stage: &mut dyn PipelineStage,
    segment: usize,
    step: &Step,
    inputs: &[Vec<f32>],
) -> Result<Vec<f32>, EngineError> {
    run_both(stage, segment, step, inputs).map(|[_, output]| output)
}

/// The hidden values that leave a segment, none if it has none, and its output.
///
/// # Errors
/// As [`run`].
pub fn run_both(
    stage: &mut dyn PipelineStage,
    segment: usize,
    step: &Step,
    inputs: &[Vec<f32>],
) -> Result<[Vec<f32>; 2], EngineError> {
    let mut output = stage.run(segment, step, inputs)?;
    let last = output.values.pop().ok_or_else(|| invalid("a tower has no output".to_owned()))?;
    Ok([output.hidden, last])
}
