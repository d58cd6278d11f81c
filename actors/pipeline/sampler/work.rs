//! Samples the tokens of a step, on several threads when there are many logits.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use cuelight_engine::engine::{DenoisedRow, SampledToken, TokenId};
use cuelight_engine::format::tokenizer::Tokenizer;
use cuelight_engine::sample::TokenSampler;

use super::outcome::{Advance, Computed, NewToken, SampleOutcome};
use super::sequence::SequenceSampler;
use crate::core::request::{Event, GenerationError, RequestId};
use crate::pipeline::journal::RequestRecord;
use crate::pipeline::policy::SampleTask;

/// Number of logits from which on sampling runs on blocking threads. This many take about a millisecond.
const PARALLEL_LOGITS: usize = 1 << 18;

/// A sequence and the result of a step for it.
pub(super) struct SampleJob {
    pub task: SampleTask,
    pub sequence: Box<SequenceSampler>,
    /// The token that the engine sampled. Then there are no logits.
    pub sampled: Option<SampledToken>,
    /// Offset of its `task.rows` rows in the logits of the step, or of its `task.hidden_rows` rows in the hidden values.
    pub offset: usize,
}

/// A job with its sampling result.
pub(super) struct SampledRow {
    pub job: SampleJob,
    pub outcome: SampleOutcome,
}

impl SampledRow {
    /// The token that the sequence continues with, unless its text contains a stop string.
    pub fn next_token(&self) -> Option<(RequestId, TokenId)> {
        match self.outcome {
            SampleOutcome::Tokens { newest: NewToken { token, last: None, .. }, .. } | SampleOutcome::Known(token) => {
                Some((self.job.task.id, token))
            }
            _ => None,
        }
    }
}

/// The data that all jobs of a step share.
#[derive(Clone)]
pub(super) struct StepLogits {
    pub logits: Arc<Vec<f32>>,
    pub vocab_size: usize,
    pub hidden: Arc<Vec<f32>>,
    pub hidden_width: usize,
    /// Of canvases: as many rows as `hidden` has.
    pub denoised: Arc<Vec<DenoisedRow>>,
    pub tokenizer: Arc<Tokenizer>,
}

/// Samples every job: on this thread when there are few logits, else on one blocking thread per CPU.
///
/// # Errors
/// When the tokio runtime shuts down.
pub(super) async fn sample_all(
    step: StepLogits,
    jobs: Vec<SampleJob>,
) -> Result<Vec<SampledRow>, tokio::task::JoinError> {
    if step.logits.len() < PARALLEL_LOGITS {
        return Ok(sample_jobs(&step, jobs));
    }
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(jobs.len()).max(1);
    let mut rest = jobs;
    let mut running = Vec::with_capacity(threads);
    for left in (1..=threads).rev() {
        let mine = rest.split_off(rest.len() - rest.len() / left);
        let step = step.clone();
        running.push(tokio::task::spawn_blocking(move || sample_jobs(&step, mine)));
    }
    let mut sampled = Vec::new();
    for jobs in running {
        sampled.extend(jobs.await?);
    }
    Ok(sampled)
}

fn sample_jobs(step: &StepLogits, jobs: Vec<SampleJob>) -> Vec<SampledRow> {
    let mut sampler = TokenSampler::default();
    let sampled = jobs.into_iter().map(|mut job| {
        let outcome = sample_one(step, &mut job, &mut sampler);
        SampledRow { job, outcome }
    });
    sampled.collect()
}

fn sample_one(step: &StepLogits, job: &mut SampleJob, sampler: &mut TokenSampler) -> SampleOutcome {
    // Missing values become an empty slice, which is rejected.
    let rows = |count: usize, width: usize| job.offset..job.offset + count * width;
    let computed = match (job.sampled, job.task.hidden_rows) {
        (Some(sampled), _) => Computed::Sampled(sampled),
        (None, 0) => Computed::Logits(step.logits.get(rows(job.task.rows, step.vocab_size)).unwrap_or_default()),
        (None, count) => {
            let width = step.hidden_width;
            let values = step.hidden.get(rows(count, width)).unwrap_or_default();
            let first = job.offset / width.max(1);
            match job.task.canvas {
                Some(_) => {
                    let rows = step.denoised.get(first..first + count).unwrap_or_default();
                    Computed::Denoised { rows, hidden: values }
                }
                None => Computed::Hidden { values, width },
            }
        }
    };
    let sequence = &mut job.sequence;
    // A sequence that panicked is removed, so its inconsistent state is never used.
    let outcome = catch_unwind(AssertUnwindSafe(|| sequence.sample(&job.task, computed, sampler, &step.tokenizer)));
    outcome
        .unwrap_or_else(|_| SampleOutcome::Failed(GenerationError::Engine("sampling its next token panicked".into())))
}

/// The state of a sequence after the tokens that its client has, and its last event when only that is missing.
pub(super) fn resume(
    record: Arc<RequestRecord>,
    context_tokens: usize,
    tokenizer: &Tokenizer,
) -> Result<(Box<SequenceSampler>, Option<Event>), GenerationError> {
    let resume = AssertUnwindSafe(|| SequenceSampler::resume(record, context_tokens, tokenizer));
    let resumed = catch_unwind(resume)
        .map_err(|_| GenerationError::Engine("restoring its state after a restart panicked".into()))?;
    Ok((Box::new(resumed.0), resumed.1))
}

/// Sends a sampling result to the client of a sequence.
pub(super) fn deliver(sequence: &mut SequenceSampler, outcome: SampleOutcome, tokenizer: &Tokenizer) -> Advance {
    catch_unwind(AssertUnwindSafe(|| sequence.deliver(outcome, tokenizer))).unwrap_or_else(|_| {
        let error = GenerationError::Engine("converting its next token to text panicked".into());
        Advance::failed(0, error)
    })
}
