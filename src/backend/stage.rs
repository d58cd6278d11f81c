//! Parts of a model on devices, one after the other, as one [`Engine`].
//!
//! A [`Stage`] is what a backend makes of a part of a graph. [`StagedEngine`] checks a step, hands it from stage to stage, and
//! returns the logits. With several stages a step of several sequences is cut into *micro-batches*: while the second stage
//! computes the first of them, the first stage computes the second.

use std::panic::resume_unwind;
use std::sync::mpsc;
use std::thread;
use std::time::Instant;

use cuelight_shaders::experts::Experts;

use crate::backend::ragged::validate;
use crate::engine::{
    Chosen, Engine, EngineError, EngineLimits, ExpertResult, Progress, SequenceRows, Step, StepOutput,
};
use crate::profile::{Cost, OpSpan};

/// A part of a model on a device, in one piece or, where ops between them are computed elsewhere, in several.
pub trait Stage: Send + 'static {
    /// Computes a piece for a step that was checked: takes the values that its graph takes, each [rows, width], and returns
    /// those that it gives. Nothing but the KV cache remains from one call to the next.
    ///
    /// # Errors
    /// [`EngineError::DeviceLost`] when the device fails.
    fn run(&mut self, piece: usize, step: &Step, inputs: &[Vec<f32>]) -> Result<StageOutput, EngineError>;

    /// Somebody who brings experts to the stage's pools.
    ///
    /// # Errors
    /// [`EngineError::DeviceLost`] when the device fails, or has no pools.
    fn expert_upload(&self) -> Result<Box<dyn ExpertUpload>, EngineError> {
        Err(EngineError::DeviceLost("it has no pools of experts".to_owned()))
    }

    /// The least that the ops of all pieces have to do for a step.
    fn cost(&self, step: &Step) -> Cost;
}

/// Brings experts to the pools of a stage while that computes: each on a thread of its own.
pub trait ExpertUpload: Send {
    /// Brings an expert, by its layer and number, to a place of the pool that a piece computes with. Whatever the stage is
    /// asked for after this has returned finds it there; what it computes meanwhile must not use that place. Returns the bytes
    /// that were brought.
    ///
    /// # Errors
    /// [`EngineError::DeviceLost`] when the device fails.
    ///
    /// # Panics
    /// When there is no such pool, place or expert, or the pool is for experts of another shape.
    fn bring(&mut self, piece_and_place: (usize, usize), expert: (&Experts, usize)) -> Result<u64, EngineError>;
}

/// What a stage made of a step.
#[derive(Debug, Default)]
pub struct StageOutput {
    /// The values that the part's graph gives; for the last part the logits.
    pub values: Vec<Vec<f32>>,
    /// What the last part chose itself, as in [`StepOutput::chosen`]: the logits are without those rows.
    pub chosen: Vec<Option<Chosen>>,
    /// What each op took, where they are measured.
    pub ops: Vec<OpSpan>,
}

/// A model on one or several devices.
pub struct StagedEngine {
    stages: Vec<Box<dyn Stage>>,
    limits: EngineLimits,
}

/// What one stage hands to the next: a micro-batch's number and values.
type Handed = (usize, Vec<Vec<f32>>);

impl StagedEngine {
    /// The engine of these stages, in the order of their parts.
    ///
    /// # Panics
    /// When there is none.
    #[must_use]
    pub fn new(stages: Vec<Box<dyn Stage>>, limits: EngineLimits) -> Self {
        assert!(!stages.is_empty(), "a model has at least one part");
        StagedEngine { stages, limits }
    }

    /// Runs the micro-batches through all stages; each stage but the last has a thread, which ends with the step.
    fn run_staged(&mut self, batches: &[Step]) -> Result<StageOutput, EngineError> {
        let (last, earlier) = self.stages.split_last_mut().ok_or_else(no_stage)?;
        thread::scope(|scope| {
            let (first, mut handed) = mpsc::channel::<Handed>();
            for batch in 0..batches.len() {
                // It is received by a stage below, or not needed when that one fails.
                let _ = first.send((batch, Vec::new()));
            }
            drop(first);
            let mut threads = Vec::new();
            for stage in earlier {
                let (give, next) = mpsc::channel::<Handed>();
                let take = std::mem::replace(&mut handed, next);
                threads.push(scope.spawn(move || {
                    run_stage(stage.as_mut(), batches, &take, |number, output| {
                        let _ = give.send((number, output.values));
                    })
                }));
            }
            let (mut logits, mut chosen) = (Vec::new(), Vec::new());
            // Batches come in their order, so their logits follow one another.
            let ops_of_last = run_stage(last.as_mut(), batches, &handed, |_, mut output| {
                logits.append(&mut output.values.pop().unwrap_or_default());
                chosen.append(&mut output.chosen);
            });
            // If this stage failed, those before find nobody to hand to, and end.
            drop(handed);
            let mut ops = Vec::new();
            for thread in threads {
                ops.extend(thread.join().unwrap_or_else(|panic| resume_unwind(panic))?);
            }
            ops.extend(ops_of_last?);
            Ok(StageOutput { values: vec![logits], chosen, ops })
        })
    }
}

/// Runs what is handed to a stage until nothing more comes.
fn run_stage(
    stage: &mut dyn Stage,
    batches: &[Step],
    handed: &mpsc::Receiver<Handed>,
    mut give: impl FnMut(usize, StageOutput),
) -> Result<Vec<OpSpan>, EngineError> {
    let mut ops = Vec::new();
    for (number, inputs) in handed {
        let mut output = stage.run(0, &batches[number], &inputs)?;
        ops.append(&mut output.ops);
        give(number, output);
    }
    Ok(ops)
}

fn no_stage() -> EngineError {
    EngineError::DeviceLost("the model has no stage".to_owned())
}

/// Cuts a step into at most `most` parts of about as many rows each. A sequence stays whole: its later rows see the earlier.
#[must_use]
pub fn micro_batches(step: Step, most: usize) -> Vec<Step> {
    let id = step.id;
    let rows_each = step.rows().div_ceil(most.max(1));
    let mut batches: Vec<Step> = Vec::new();
    let mut open: Vec<SequenceRows> = Vec::new();
    for sequence in step.sequences {
        open.push(sequence);
        if open.iter().map(|sequence| sequence.tokens.len()).sum::<usize>() >= rows_each {
            batches.push(Step { id, sequences: std::mem::take(&mut open) });
        }
    }
    if !open.is_empty() {
        batches.push(Step { id, sequences: open });
    }
    batches
}

impl Engine for StagedEngine {
    fn limits(&self) -> &EngineLimits {
        &self.limits
    }

    fn begin(&mut self, step: Step) -> Result<Progress, EngineError> {
        let started = Instant::now();
        let id = step.id;
        validate(&step, &self.limits).map_err(|reason| EngineError::InvalidStep { step: id, reason })?;
        let mut output = match &mut self.stages[..] {
            _ if step.rows() == 0 => StageOutput::default(),
            [only] => only.run(0, &step, &[])?,
            stages => {
                let batches = micro_batches(step, stages.len());
                self.run_staged(&batches)?
            }
        };
        let logits = output.values.pop().unwrap_or_default();
        let StageOutput { chosen, ops, .. } = output;
        let elapsed = started.elapsed();
        Ok(Progress::Done(StepOutput { logits, chosen, elapsed, ops, ..StepOutput::empty(id) }))
    }

    fn cost(&self, step: &Step) -> Option<Cost> {
        Some(self.stages.iter().map(|stage| stage.cost(step)).sum())
    }

    fn resume(&mut self, result: ExpertResult) -> Result<Progress, EngineError> {
        let reason = "no step of this engine waits for experts".to_owned();
        Err(EngineError::InvalidStep { step: result.step, reason })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Arc, Condvar};
    use std::time::Duration;

    use super::*;
    use crate::engine::{LogitsWanted, StepId};

    fn limits() -> EngineLimits {
        EngineLimits {
            vocab_size: 100,
            context_tokens: 64,
            kv_blocks: 16,
            max_batched_tokens: 32,
            max_sequences: 8,
            max_logits_rows: 8,
            device: String::new(),
        }
    }

    fn step(lengths: &[usize]) -> Step {
        let sequence = |(index, length): (usize, &usize)| SequenceRows {
            tokens: vec![index as u32; *length],
            first_position: 0,
            block_table: vec![index as u32],
            logits: LogitsWanted::Last,
        };
        Step { id: StepId(1), sequences: lengths.iter().enumerate().map(sequence).collect() }
    }

    /// Adds its number to what it is given, or to the first token of each sequence.
    struct Adds {
        number: f32,
        fails: bool,
    }

    impl Stage for Adds {
        fn run(&mut self, _piece: usize, step: &Step, inputs: &[Vec<f32>]) -> Result<StageOutput, EngineError> {
            if self.fails {
                return Err(EngineError::DeviceLost("injected".into()));
            }
            let tokens = || step.sequences.iter().map(|sequence| sequence.tokens[0] as f32).collect();
            let values: Vec<f32> = inputs.first().cloned().unwrap_or_else(tokens);
            Ok(StageOutput {
                values: vec![values.iter().map(|value| value * 10.0 + self.number).collect()],
                ..StageOutput::default()
            })
        }

        fn cost(&self, _step: &Step) -> Cost {
            Cost { memory_bytes: 1, ..Cost::default() }
        }
    }

    fn stage(number: u8, fails: bool) -> Box<dyn Stage> {
        Box::new(Adds { number: f32::from(number), fails })
    }

    fn run(stages: Vec<Box<dyn Stage>>, lengths: &[usize]) -> Result<Vec<f32>, EngineError> {
        match StagedEngine::new(stages, limits()).begin(step(lengths))? {
            Progress::Done(output) => Ok(output.logits),
            Progress::AwaitExperts(_) => panic!("no experts here"),
        }
    }

    #[test]
    fn a_step_goes_through_all_stages_and_its_sequences_stay_in_order() {
        let three = || vec![stage(1, false), stage(2, false), stage(3, false)];
        assert_eq!(run(three(), &[4, 1, 1, 9]).unwrap(), [123.0, 1123.0, 2123.0, 3123.0]);
        assert_eq!(run(three(), &[1]).unwrap(), [123.0]);
        assert_eq!(run(three(), &[]).unwrap(), [0.0; 0]);
        assert_eq!(run(vec![stage(5, false)], &[1, 1]).unwrap(), [5.0, 15.0]);
    }

    #[test]
    fn a_stage_that_fails_fails_the_step_wherever_it_stands() {
        for failing in 0..3 {
            let stages = (0..3).map(|index| stage(0, index == failing)).collect();
            assert_eq!(run(stages, &[1, 1, 1]).unwrap_err(), EngineError::DeviceLost("injected".into()));
        }
    }

    /// Waits until another stage is at work too.
    struct Meets {
        at_work: Arc<(Mutex<usize>, Condvar)>,
        met: Arc<AtomicUsize>,
    }

    impl Stage for Meets {
        fn run(&mut self, _piece: usize, _step: &Step, _inputs: &[Vec<f32>]) -> Result<StageOutput, EngineError> {
            let (count, changed) = &*self.at_work;
            let mut here = count.lock().unwrap();
            *here += 1;
            changed.notify_all();
            let (mut here, _) = changed.wait_timeout_while(here, Duration::from_millis(500), |here| *here < 2).unwrap();
            if *here >= 2 {
                self.met.fetch_add(1, Ordering::Relaxed);
            }
            *here = here.saturating_sub(1);
            Ok(StageOutput { values: vec![vec![0.0]], ..StageOutput::default() })
        }

        fn cost(&self, _step: &Step) -> Cost {
            Cost::default()
        }
    }

    #[test]
    fn stages_work_at_the_same_time_on_different_micro_batches() {
        let (at_work, met) = (Arc::default(), Arc::new(AtomicUsize::new(0)));
        let stage = || -> Box<dyn Stage> { Box::new(Meets { at_work: Arc::clone(&at_work), met: Arc::clone(&met) }) };
        run(vec![stage(), stage()], &[1, 1]).unwrap();
        assert!(met.load(Ordering::Relaxed) >= 1);
    }

    #[test]
    fn micro_batches_have_about_as_many_rows_each_and_whole_sequences() {
        let rows = |lengths: &[usize], most| -> Vec<usize> {
            micro_batches(step(lengths), most).iter().map(Step::rows).collect()
        };
        assert_eq!(rows(&[1; 8], 2), [4, 4]);
        assert_eq!(rows(&[20], 2), [20]);
        assert_eq!(rows(&[9, 1, 1, 1], 2), [9, 3]);
        assert_eq!(rows(&[1, 1], 3), [1, 1]);
    }
}
