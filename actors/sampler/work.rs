//! A step's sampling as work that can be cut into parts and done anywhere.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use cuelight_engine::format::tokenizer::Tokenizer;
use cuelight_engine::sample::Chooser;

use super::sequence::{Advance, SequenceSampler};
use crate::policy::{SampleTask, Verdict};
use crate::request::{Event, GenerationError};

/// Logits above which sampling leaves the tokio worker: so many take about a millisecond.
const HEAVY: usize = 1 << 18;

/// One sequence and where its logits lie in the step's.
pub(super) struct Share {
    pub task: SampleTask,
    pub sequence: Box<SequenceSampler>,
    /// Its first logit; it has `task.rows` rows.
    pub offset: usize,
}

/// A share whose logits were used.
pub(super) struct Sampled {
    pub share: Share,
    pub advance: Advance,
}

/// What is the same for all shares of a step.
#[derive(Clone)]
pub(super) struct StepLogits {
    pub logits: Arc<Vec<f32>>,
    pub vocab_size: usize,
    pub tokenizer: Arc<Tokenizer>,
}

/// Samples every share: here when that is quick, else on as many blocking threads as there are processors.
///
/// # Errors
/// When the runtime shuts down.
pub(super) async fn sample(step: StepLogits, shares: Vec<Share>) -> Result<Vec<Sampled>, tokio::task::JoinError> {
    if step.logits.len() < HEAVY {
        return Ok(sample_part(&step, shares));
    }
    let parts = std::thread::available_parallelism().map_or(1, usize::from).min(shares.len()).max(1);
    let mut rest = shares;
    let mut running = Vec::with_capacity(parts);
    for part in (1..=parts).rev() {
        let mine = rest.split_off(rest.len() - rest.len() / part);
        let step = step.clone();
        running.push(tokio::task::spawn_blocking(move || sample_part(&step, mine)));
    }
    let mut sampled = Vec::new();
    for part in running {
        sampled.extend(part.await?);
    }
    Ok(sampled)
}

fn sample_part(step: &StepLogits, shares: Vec<Share>) -> Vec<Sampled> {
    let mut chooser = Chooser::default();
    let sampled = shares.into_iter().map(|mut share| {
        let advance = sample_one(step, &mut share, &mut chooser);
        Sampled { share, advance }
    });
    sampled.collect()
}

fn sample_one(step: &StepLogits, share: &mut Share, chooser: &mut Chooser) -> Advance {
    let (start, end) = (share.offset, share.offset + share.task.rows * step.vocab_size);
    // Too few rows are no distribution, and found out as such.
    let logits = step.logits.get(start..end).unwrap_or_default();
    let sequence = &mut share.sequence;
    // Nothing of a sequence that panicked is used again, so its broken state harms nobody.
    let advance = catch_unwind(AssertUnwindSafe(|| sequence.advance(&share.task, logits, chooser, &step.tokenizer)));
    advance.unwrap_or_else(|_| {
        let error = GenerationError::Engine("sampling its next token panicked".into());
        Advance { verdict: Verdict::Ended, end: Some(Event::Failed(error)) }
    })
}
