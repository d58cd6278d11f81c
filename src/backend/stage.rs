//! A model on one or several devices, which compute its parts in sequence, as one [`Engine`].
//!
//! A backend turns each part of a graph into a [`PipelineStage`]. [`StagedEngine`] validates a step, passes it from stage to
//! stage, and returns the logits. With several stages, a step of several sequences is split into *micro-batches*: while the
//! second stage computes the first micro-batch, the first stage computes the second.
//!
//! Each stage but the last has a thread of its own, which lives as long as the engine. The last stage runs on the caller's
//! thread.

use std::any::Any;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use cuelight_shaders::experts::Experts;

use crate::backend::encoder_rows;
use crate::backend::ragged::validate;
use crate::engine::{
    CacheLayout, CacheUnit, Engine, EngineError, EngineLimits, ExpertResult, Progress, SampledToken, SequenceRows,
    Step, StepOutput, UnitBytes, logits_or_denoised,
};
use crate::profile::{Cost, OpSpan};
use crate::threads::wake_promptly;

/// A part of a model on a device. It consists of one segment, or of several if ops between them are computed elsewhere, or if the
/// rows of an encoder have one of their own.
pub trait PipelineStage: Send + 'static {
    /// Computes a segment for a validated step. `inputs` are the inputs of its graph, each [rows, width]; the outputs of the
    /// graph are returned. Only the KV cache persists between calls.
    ///
    /// # Errors
    /// [`EngineError::DeviceLost`] when the device fails.
    fn run(&mut self, segment: usize, step: &Step, inputs: &[Vec<f32>]) -> Result<StageOutput, EngineError>;

    /// An uploader of experts to the stage's pools.
    ///
    /// # Errors
    /// [`EngineError::DeviceLost`] when the device fails or has no pools.
    fn expert_upload(&self) -> Result<Box<dyn ExpertUpload>, EngineError> {
        Err(EngineError::DeviceLost("it has no expert pools".to_owned()))
    }

    /// The number of its segments.
    fn segments(&self) -> usize {
        1
    }

    /// The minimum work of the ops of a segment for a step.
    fn cost(&self, segment: usize, step: &Step) -> Cost;

    /// Bytes of the content of units in the stage's layers.
    fn unit_bytes(&self) -> UnitBytes {
        UnitBytes::default()
    }

    /// Copies the contents of units to memory of [`PipelineStage::unit_bytes`]. Returns when they are there.
    ///
    /// # Errors
    /// [`EngineError::DeviceLost`] when the device fails.
    fn read_units(&mut self, copies: &mut [(CacheUnit, &mut [u8])]) -> Result<(), EngineError> {
        let _ = copies;
        Ok(())
    }

    /// Replaces the contents of units by such copies.
    ///
    /// # Errors
    /// [`EngineError::DeviceLost`] when the device fails.
    fn write_units(&mut self, contents: &[(CacheUnit, &[u8])]) -> Result<(), EngineError> {
        let _ = contents;
        Ok(())
    }
}

/// Uploads experts to the pools of a stage while the stage computes. Each uploader runs on its own thread.
pub trait ExpertUpload: Send {
    /// Uploads an expert, given by its layer and number, to a slot of the pool that a segment computes with. Every computation
    /// that starts after this has returned sees the expert; computations that run meanwhile must not use the slot. Returns the
    /// number of uploaded bytes.
    ///
    /// # Errors
    /// [`EngineError::DeviceLost`] when the device fails.
    ///
    /// # Panics
    /// When the pool, slot or expert does not exist, or the pool is for experts of another shape.
    fn upload(&mut self, segment_and_slot: (usize, usize), expert: (&Experts, usize)) -> Result<u64, EngineError>;
}

/// The result of a stage for a step.
#[derive(Debug, Default)]
pub struct StageOutput {
    /// The outputs of the graph; of the last stage the logits.
    pub values: Vec<Vec<f32>>,
    /// The hidden values that leave the engine.
    pub hidden: Vec<f32>,
    /// The tokens that the last stage sampled, as in [`StepOutput::sampled`]. Their rows are not among the logits.
    pub sampled: Vec<Option<SampledToken>>,
    /// The measured ops; empty if ops are not measured.
    pub ops: Vec<OpSpan>,
}

/// A model on one or several devices.
pub struct StagedEngine {
    /// The stages in their order, each locked by the thread that runs it. There is at least one.
    stages: Vec<SharedStage>,
    /// The threads of all stages but the last.
    pipeline: Pipeline,
    limits: EngineLimits,
    cache_layout: Option<CacheLayout>,
}

/// The segment of the rows of an encoder, in the only stage of a model that has one.
const ENCODER_SEGMENT: usize = 1;

type SharedStage = Arc<Mutex<Box<dyn PipelineStage>>>;

/// A micro-batch between two stages.
struct MicroBatch {
    step: Step,
    /// The inputs of the next stage.
    values: Vec<Vec<f32>>,
    /// The hidden values that the last stage returned.
    hidden: Vec<f32>,
    /// The tokens that the last stage sampled.
    sampled: Vec<Option<SampledToken>>,
    /// The measured ops of each stage that has run.
    ops: Vec<Vec<OpSpan>>,
}

/// Why a micro-batch was not computed.
enum Failure {
    Error(EngineError),
    Panic(Box<dyn Any + Send>),
}

/// A micro-batch, or the failure of the stage that had it.
type Message = Result<MicroBatch, Failure>;

impl StagedEngine {
    /// The engine of these stages, in the order of their parts. Starts a thread for each stage but the last.
    ///
    /// # Errors
    /// When the system starts no thread.
    ///
    /// # Panics
    /// When there is no stage.
    pub fn new(stages: Vec<Box<dyn PipelineStage>>, limits: EngineLimits) -> io::Result<Self> {
        assert!(!stages.is_empty(), "a model has at least one part");
        let stages: Vec<SharedStage> = stages.into_iter().map(|stage| Arc::new(Mutex::new(stage))).collect();
        let pipeline = Pipeline::start(&stages[..stages.len() - 1])?;
        Ok(StagedEngine { stages, pipeline, limits, cache_layout: None })
    }

    /// Lets callers copy units of the cache, whose content `description` describes ([`CacheLayout::description`]).
    #[must_use]
    pub fn with_cache_copies(self, description: String) -> Self {
        let bytes = self.stages.iter().map(|stage| lock(stage).unit_bytes()).sum();
        StagedEngine { cache_layout: Some(CacheLayout { bytes, description }), ..self }
    }

    /// Runs the micro-batches through all stages. Waits for all of them, even if one fails, so that none is left for the
    /// next step.
    fn run_staged(&mut self, batches: Vec<Step>) -> Result<StageOutput, EngineError> {
        let last = self.stages.last().ok_or_else(no_stage)?;
        let count = batches.len();
        for step in batches {
            self.pipeline.send(MicroBatch {
                values: step.graph_inputs(&self.limits),
                step,
                hidden: Vec::new(),
                sampled: Vec::new(),
                ops: Vec::new(),
            })?;
        }
        let mut done = Vec::with_capacity(count);
        for _ in 0..count {
            let message = self.pipeline.receive()?;
            // After a failure the result is discarded, so the last stage need not run.
            let has_failed = done.iter().any(Message::is_err);
            done.push(if has_failed { message } else { run_stage(last, message) });
        }
        match done.into_iter().collect::<Result<Vec<_>, _>>() {
            Ok(batches) => Ok(concatenated(batches)),
            Err(Failure::Error(error)) => Err(error),
            Err(Failure::Panic(panic)) => resume_unwind(panic),
        }
    }
}

/// The threads of all stages but the last, connected by channels.
struct Pipeline {
    /// To the first thread. Dropped to end the threads.
    first: Option<mpsc::Sender<Message>>,
    /// From the last thread.
    results: mpsc::Receiver<Message>,
    threads: Vec<JoinHandle<()>>,
}

impl Pipeline {
    fn start(stages: &[SharedStage]) -> io::Result<Self> {
        let (first, mut results) = mpsc::channel();
        let mut threads = Vec::with_capacity(stages.len());
        for (index, stage) in stages.iter().enumerate() {
            let (output, next) = mpsc::channel();
            let (stage, input) = (Arc::clone(stage), std::mem::replace(&mut results, next));
            let work = move || serve_stage(&stage, &input, &output);
            threads.push(thread::Builder::new().name(format!("cuelight-stage-{index}")).spawn(work)?);
        }
        Ok(Pipeline { first: Some(first), results, threads })
    }

    fn send(&self, batch: MicroBatch) -> Result<(), EngineError> {
        let is_sent = self.first.as_ref().is_some_and(|first| first.send(Ok(batch)).is_ok());
        if is_sent { Ok(()) } else { Err(threads_ended()) }
    }

    fn receive(&self) -> Result<Message, EngineError> {
        self.results.recv().map_err(|_| threads_ended())
    }
}

impl Drop for Pipeline {
    fn drop(&mut self) {
        // Each thread ends when the one before it has ended.
        self.first = None;
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}

/// Runs a stage for every micro-batch that arrives, until the channel is closed.
fn serve_stage(stage: &SharedStage, input: &mpsc::Receiver<Message>, output: &mpsc::Sender<Message>) {
    wake_promptly();
    for message in input {
        if output.send(run_stage(stage, message)).is_err() {
            return;
        }
    }
}

/// Runs a stage for a micro-batch. A failure of an earlier stage is passed on.
fn run_stage(stage: &SharedStage, message: Message) -> Message {
    let mut batch = message?;
    let result = catch_unwind(AssertUnwindSafe(|| lock(stage).run(0, &batch.step, &batch.values)));
    let output = result.map_err(Failure::Panic)?.map_err(Failure::Error)?;
    batch.values = output.values;
    batch.hidden = output.hidden;
    batch.sampled = output.sampled;
    batch.ops.push(output.ops);
    Ok(batch)
}

fn lock(stage: &SharedStage) -> MutexGuard<'_, Box<dyn PipelineStage>> {
    stage.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Computes a step on a stage that has the whole model: first the rows of an encoder, which the others read.
fn run_alone(stage: &mut dyn PipelineStage, limits: &EngineLimits, step: Step) -> Result<StageOutput, EngineError> {
    let [encoder, others] = encoder_rows::divide(step, limits.embeddings);
    let mut ops = Vec::new();
    if let Some(embeddings) = limits.embeddings.filter(|_| encoder.rows() > 0) {
        let input = encoder_rows::input(&encoder, embeddings.values());
        ops = stage.run(ENCODER_SEGMENT, &encoder, &[input])?.ops;
    }
    if others.rows() == 0 {
        return Ok(StageOutput { ops, ..StageOutput::default() });
    }
    let output = stage.run(0, &others, &others.graph_inputs(limits))?;
    ops.extend(output.ops);
    Ok(StageOutput { ops, ..output })
}

/// The result of a step from its micro-batches, in their order. Ops are ordered by stage.
fn concatenated(batches: Vec<MicroBatch>) -> StageOutput {
    let (mut logits, mut hidden, mut sampled) = (Vec::new(), Vec::new(), Vec::new());
    let mut ops_of_stages: Vec<Vec<OpSpan>> = Vec::new();
    for mut batch in batches {
        logits.append(&mut batch.values.pop().unwrap_or_default());
        hidden.append(&mut batch.hidden);
        sampled.append(&mut batch.sampled);
        ops_of_stages.resize_with(batch.ops.len().max(ops_of_stages.len()), Vec::new);
        ops_of_stages.iter_mut().zip(batch.ops).for_each(|(all, ops)| all.extend(ops));
    }
    StageOutput { values: vec![logits], hidden, sampled, ops: ops_of_stages.concat() }
}

fn no_stage() -> EngineError {
    EngineError::DeviceLost("the model has no stage".to_owned())
}

fn threads_ended() -> EngineError {
    EngineError::DeviceLost("the threads of its stages have ended".to_owned())
}

/// Splits a step into at most `most` micro-batches of similar numbers of rows. A sequence is never split, because its later rows
/// depend on the earlier ones.
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
        let mut output = match &self.stages[..] {
            _ if step.rows() == 0 => StageOutput::default(),
            [only] => run_alone(&mut **lock(only), &self.limits, step)?,
            stages => {
                let batches = micro_batches(step, stages.len());
                self.run_staged(batches)?
            }
        };
        let (logits, denoised) = logits_or_denoised(&self.limits, output.values.pop().unwrap_or_default());
        let StageOutput { hidden, sampled, ops, .. } = output;
        let elapsed = started.elapsed();
        Ok(Progress::Done(StepOutput { logits, hidden, denoised, sampled, elapsed, ops, ..StepOutput::empty(id) }))
    }

    fn cost(&self, step: &Step) -> Option<Cost> {
        let [encoder, others] = encoder_rows::divide(step.clone(), self.limits.embeddings);
        let of_encoder = self.stages.iter().filter(|_| encoder.rows() > 0);
        let of_encoder = of_encoder.map(|stage| lock(stage).cost(ENCODER_SEGMENT, &encoder));
        Some(of_encoder.chain(self.stages.iter().map(|stage| lock(stage).cost(0, &others))).sum())
    }

    fn cache_layout(&self) -> Option<CacheLayout> {
        self.cache_layout.clone()
    }

    fn read_units(&mut self, copies: &mut [(CacheUnit, &mut [u8])]) -> Result<(), EngineError> {
        let mut left: Vec<(CacheUnit, &mut [u8])> = copies.iter_mut().map(|(unit, out)| (*unit, &mut **out)).collect();
        for stage in &self.stages {
            let mut stage = lock(stage);
            let bytes = stage.unit_bytes();
            let mut here = Vec::with_capacity(left.len());
            for (unit, rest) in &mut left {
                let (own, later) = std::mem::take(rest).split_at_mut(bytes.of(unit.kind()));
                *rest = later;
                here.push((*unit, own));
            }
            stage.read_units(&mut here)?;
        }
        Ok(())
    }

    fn write_units(&mut self, contents: &[(CacheUnit, &[u8])]) -> Result<(), EngineError> {
        let mut start = UnitBytes::default();
        for stage in &self.stages {
            let mut stage = lock(stage);
            let end = start + stage.unit_bytes();
            let here = contents.iter().map(|(unit, content)| {
                let kind = unit.kind();
                (*unit, &content[start.of(kind)..end.of(kind)])
            });
            stage.write_units(&here.collect::<Vec<_>>())?;
            start = end;
        }
        Ok(())
    }

    fn resume(&mut self, result: ExpertResult) -> Result<Progress, EngineError> {
        let reason = "no step of this engine waits for experts".to_owned();
        Err(EngineError::InvalidStep { step: result.step, reason })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Condvar;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread::ThreadId;
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
            ..EngineLimits::default()
        }
    }

    fn step(lengths: &[usize]) -> Step {
        let sequence = |(index, length): (usize, &usize)| SequenceRows {
            tokens: vec![index as u32; *length],
            first_position: 0,
            block_table: vec![index as u32],
            logits: LogitsWanted::Last,
            ..SequenceRows::default()
        };
        Step { id: StepId(1), sequences: lengths.iter().enumerate().map(sequence).collect() }
    }

    /// Appends a digit to its input values, or to the first token of each sequence.
    struct Adds {
        number: f32,
        fails: bool,
    }

    impl PipelineStage for Adds {
        fn run(&mut self, _segment: usize, step: &Step, inputs: &[Vec<f32>]) -> Result<StageOutput, EngineError> {
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

        fn cost(&self, _segment: usize, _step: &Step) -> Cost {
            Cost { memory_bytes: 1, ..Cost::default() }
        }
    }

    fn stage(number: u8, fails: bool) -> Box<dyn PipelineStage> {
        Box::new(Adds { number: f32::from(number), fails })
    }

    fn run(stages: Vec<Box<dyn PipelineStage>>, lengths: &[usize]) -> Result<Vec<f32>, EngineError> {
        match StagedEngine::new(stages, limits()).unwrap().begin(step(lengths))? {
            Progress::Done(output) => Ok(output.logits),
            Progress::AwaitExperts(_) => panic!("no experts here"),
        }
    }

    #[test]
    fn a_step_runs_through_all_stages_and_its_sequences_keep_their_order() {
        let three = || vec![stage(1, false), stage(2, false), stage(3, false)];
        assert_eq!(run(three(), &[4, 1, 1, 9]).unwrap(), [123.0, 1123.0, 2123.0, 3123.0]);
        assert_eq!(run(three(), &[1]).unwrap(), [123.0]);
        assert_eq!(run(three(), &[]).unwrap(), [0.0; 0]);
        assert_eq!(run(vec![stage(5, false)], &[1, 1]).unwrap(), [5.0, 15.0]);
    }

    #[test]
    fn a_failing_stage_fails_the_step_at_any_position() {
        for failing in 0..3 {
            let stages = (0..3).map(|index| stage(0, index == failing)).collect();
            assert_eq!(run(stages, &[1, 1, 1]).unwrap_err(), EngineError::DeviceLost("injected".into()));
        }
    }

    /// Records the thread of each run; panics or fails in the steps of these numbers.
    struct Recording {
        threads: Arc<Mutex<Vec<ThreadId>>>,
        panics_in: Option<u64>,
        fails_in: Option<u64>,
    }

    impl Recording {
        fn stage(threads: &Arc<Mutex<Vec<ThreadId>>>) -> Self {
            Recording { threads: Arc::clone(threads), panics_in: None, fails_in: None }
        }
    }

    impl PipelineStage for Recording {
        fn run(&mut self, _segment: usize, step: &Step, _inputs: &[Vec<f32>]) -> Result<StageOutput, EngineError> {
            self.threads.lock().unwrap().push(thread::current().id());
            assert_ne!(self.panics_in, Some(step.id.0), "an injected panic");
            if self.fails_in == Some(step.id.0) {
                return Err(EngineError::DeviceLost("injected".into()));
            }
            Ok(StageOutput { values: vec![vec![step.id.0 as f32]], ..StageOutput::default() })
        }

        fn cost(&self, _segment: usize, _step: &Step) -> Cost {
            Cost::default()
        }
    }

    fn logits(engine: &mut StagedEngine, id: u64) -> Result<Vec<f32>, EngineError> {
        match engine.begin(Step { id: StepId(id), ..step(&[1, 1, 1]) })? {
            Progress::Done(output) => Ok(output.logits),
            Progress::AwaitExperts(_) => panic!("no experts here"),
        }
    }

    #[test]
    fn each_stage_but_the_last_keeps_its_thread_across_steps() {
        let threads: [Arc<Mutex<Vec<ThreadId>>>; 3] = Default::default();
        let stages = threads.iter().map(|threads| Box::new(Recording::stage(threads)) as _).collect();
        let mut engine = StagedEngine::new(stages, limits()).unwrap();
        for id in 0..4 {
            assert_eq!(logits(&mut engine, id).unwrap(), [id as f32; 3]);
        }
        let of_stage = threads.each_ref().map(|threads| {
            let mut threads = threads.lock().unwrap().clone();
            assert_eq!(threads.len(), 12, "three micro-batches in each of four steps");
            threads.dedup();
            threads
        });
        let [first, second, last] = of_stage.each_ref().map(|threads| threads.as_slice());
        assert_eq!((first.len(), second.len()), (1, 1), "one thread in all steps");
        assert_ne!(first, second);
        assert_eq!(last, [thread::current().id()]);
        drop(engine);
        let owners = threads.each_ref().map(Arc::strong_count);
        assert_eq!(owners, [1; 3], "the threads have ended and dropped their stages");
    }

    #[test]
    fn a_panic_reaches_the_caller_and_later_steps_still_run() {
        for panicking in 0..3 {
            let stage = |index| {
                let panics_in = (index == panicking).then_some(1);
                Box::new(Recording { panics_in, fails_in: Some(2), ..Recording::stage(&Arc::default()) }) as _
            };
            let mut engine = StagedEngine::new((0..3).map(stage).collect(), limits()).unwrap();
            assert_eq!(logits(&mut engine, 0).unwrap(), [0.0; 3]);
            assert!(catch_unwind(AssertUnwindSafe(|| logits(&mut engine, 1))).is_err());
            assert_eq!(logits(&mut engine, 2), Err(EngineError::DeviceLost("injected".into())));
            assert_eq!(logits(&mut engine, 3).unwrap(), [3.0; 3]);
        }
    }

    /// Waits until another stage runs too.
    struct Meets {
        running: Arc<(Mutex<usize>, Condvar)>,
        met: Arc<AtomicUsize>,
    }

    impl PipelineStage for Meets {
        fn run(&mut self, _segment: usize, _step: &Step, _inputs: &[Vec<f32>]) -> Result<StageOutput, EngineError> {
            let (count, changed) = &*self.running;
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

        fn cost(&self, _segment: usize, _step: &Step) -> Cost {
            Cost::default()
        }
    }

    #[test]
    fn stages_run_concurrently_on_different_micro_batches() {
        let (running, met) = (Arc::default(), Arc::new(AtomicUsize::new(0)));
        let stage =
            || -> Box<dyn PipelineStage> { Box::new(Meets { running: Arc::clone(&running), met: Arc::clone(&met) }) };
        run(vec![stage(), stage()], &[1, 1]).unwrap();
        assert!(met.load(Ordering::Relaxed) >= 1);
    }

    #[test]
    fn micro_batches_have_similar_numbers_of_rows_and_whole_sequences() {
        let rows = |lengths: &[usize], most| -> Vec<usize> {
            micro_batches(step(lengths), most).iter().map(Step::rows).collect()
        };
        assert_eq!(rows(&[1; 8], 2), [4, 4]);
        assert_eq!(rows(&[20], 2), [20]);
        assert_eq!(rows(&[9, 1, 1, 1], 2), [9, 3]);
        assert_eq!(rows(&[1, 1], 3), [1, 1]);
    }
}
