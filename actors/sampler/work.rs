//! Choosing a step's tokens as work that can be cut into parts and done anywhere.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use cuelight_engine::engine::{Chosen as ChosenByEngine, TokenId};
use cuelight_engine::format::tokenizer::Tokenizer;
use cuelight_engine::sample::Chooser;

use super::sequence::{Advance, Choice, Computed, SequenceSampler};
use crate::policy::{SampleTask, Verdict};
use crate::request::{Event, GenerationError, RequestId};

/// Logits above which sampling leaves the tokio worker: so many take about a millisecond.
const HEAVY: usize = 1 << 18;

/// One sequence and what a step brought for it.
pub(super) struct Share {
    pub task: SampleTask,
    pub sequence: Box<SequenceSampler>,
    /// What the engine chose; then it has no logits.
    pub chosen: Option<ChosenByEngine>,
    /// Its first logit in the step's; it has `task.rows` rows.
    pub offset: usize,
}

/// A share that was used.
pub(super) struct Chosen {
    pub share: Share,
    pub choice: Choice,
}

impl Chosen {
    /// The token that the sequence certainly goes on with, unless its text turns out to hold a stop string.
    pub fn next_token(&self) -> Option<(RequestId, TokenId)> {
        match self.choice {
            Choice::Token { token, last: None, .. } => Some((self.share.task.id, token)),
            _ => None,
        }
    }
}

/// What is the same for all shares of a step.
#[derive(Clone)]
pub(super) struct StepLogits {
    pub logits: Arc<Vec<f32>>,
    pub vocab_size: usize,
    pub tokenizer: Arc<Tokenizer>,
}

/// Chooses for every share: here when that is quick, else on as many blocking threads as there are processors.
///
/// # Errors
/// When the runtime shuts down.
pub(super) async fn choose(step: StepLogits, shares: Vec<Share>) -> Result<Vec<Chosen>, tokio::task::JoinError> {
    if step.logits.len() < HEAVY {
        return Ok(choose_part(&step, shares));
    }
    let parts = std::thread::available_parallelism().map_or(1, usize::from).min(shares.len()).max(1);
    let mut rest = shares;
    let mut running = Vec::with_capacity(parts);
    for part in (1..=parts).rev() {
        let mine = rest.split_off(rest.len() - rest.len() / part);
        let step = step.clone();
        running.push(tokio::task::spawn_blocking(move || choose_part(&step, mine)));
    }
    let mut chosen = Vec::new();
    for part in running {
        chosen.extend(part.await?);
    }
    Ok(chosen)
}

fn choose_part(step: &StepLogits, shares: Vec<Share>) -> Vec<Chosen> {
    let mut chooser = Chooser::default();
    let chosen = shares.into_iter().map(|mut share| {
        let choice = choose_one(step, &mut share, &mut chooser);
        Chosen { share, choice }
    });
    chosen.collect()
}

fn choose_one(step: &StepLogits, share: &mut Share, chooser: &mut Chooser) -> Choice {
    let (start, end) = (share.offset, share.offset + share.task.rows * step.vocab_size);
    // Too few rows are no distribution, and found out as such.
    let logits = Computed::Logits(step.logits.get(start..end).unwrap_or_default());
    let computed = share.chosen.map_or(logits, Computed::Chosen);
    let sequence = &mut share.sequence;
    // Nothing of a sequence that panicked is used again, so its broken state harms nobody.
    let choice = catch_unwind(AssertUnwindSafe(|| sequence.choose(&share.task, computed, chooser, &step.tokenizer)));
    choice.unwrap_or_else(|_| Choice::Failed(GenerationError::Engine("choosing its next token panicked".into())))
}

/// Tells the client of a sequence what was chosen for it.
pub(super) fn deliver(sequence: &mut SequenceSampler, choice: Choice, tokenizer: &Tokenizer) -> Advance {
    catch_unwind(AssertUnwindSafe(|| sequence.deliver(choice, tokenizer))).unwrap_or_else(|_| {
        let error = GenerationError::Engine("turning its next token into text panicked".into());
        Advance { verdict: Verdict::Ended, end: Some(Event::Failed(error)) }
    })
}
