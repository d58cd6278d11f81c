//! Blocks that are denoised: each step of a block has rows for all of its tokens, a *canvas*.
//!
//! When all tokens of a sequence are computed, its next block begins as a canvas at the positions after them. The sampler answers
//! each step with the canvas of the next one, and at last with the tokens of the block. These are computed as those of a prompt
//! are, which overwrites what the canvas left in the KV cache. So a sequence is a prompt and a canvas in turn.
//!
//! The canvas is kept here, and nothing of it in the engine. A sequence that is preempted continues with it once its tokens are
//! computed again.

use std::sync::Arc;

use cuelight_engine::engine::TokenId;

use super::batch::Batch;
use super::kv_blocks::BlockManager;
use super::residency::Victims;
use super::sequence::{Rank, Sequence};
use super::{CanvasState, Effect, Policy};
use crate::core::request::RequestId;

impl Sequence {
    /// Tokens of a block; 0 for a sequence that generates one token after the other.
    pub fn block_tokens(&self) -> usize {
        self.denoising.map_or(0, |denoising| denoising.rule.tokens)
    }

    /// Whether its next rows are those of a canvas.
    pub fn wants_canvas(&self) -> bool {
        let is_computed = self.in_flight == 0 && self.remaining() == 0;
        self.denoising.is_some() && is_computed && !self.paused && self.loading.is_none()
    }

    /// The canvas of its next step.
    pub fn next_canvas(&self) -> Option<CanvasState> {
        let begin = |position| self.denoising.map(|denoising| denoising.begin(position));
        self.canvas.clone().or_else(|| Some(CanvasState { block: begin(self.planned)?, hidden: Arc::default() }))
    }

    /// Adds tokens that are known now. With them the block that was denoised is finished.
    pub fn add_tokens(&mut self, tokens: &[TokenId]) {
        self.tokens.extend(tokens);
        self.canvas = None;
    }
}

impl Policy {
    /// Adds the canvases of sequences that have computed all of their tokens, those that are least recently served first.
    pub(super) fn add_canvases(&mut self, batch: &mut Batch, effects: &mut Vec<Effect>) {
        let running = self.running.iter().map(|rank| &self.sequences[&rank.id]);
        let wanting = running.filter(|sequence| sequence.wants_canvas() && !sequence.is_suspect());
        let mut order: Vec<_> = wanting.map(|sequence| (sequence.last_step, sequence.rank)).collect();
        order.sort_unstable();
        for (_, rank) in order {
            // An earlier sequence of this loop may have preempted it.
            if self.running.contains(&rank) {
                self.add_canvas(rank, Victims::Behind(rank), batch, effects);
            }
        }
    }

    /// Adds the canvas of a sequence, if all of it fits the step and there are blocks for it.
    pub(super) fn add_canvas(&mut self, rank: Rank, victims: Victims, batch: &mut Batch, effects: &mut Vec<Effect>) {
        let sequence = &self.sequences[&rank.id];
        let Some(canvas) = sequence.next_canvas() else { return };
        let rows = canvas.block.tokens.len();
        if batch.is_full() || rows > batch.canvas_rows_left() {
            return;
        }
        let blocks = BlockManager::blocks_for(sequence.planned + rows);
        let missing = blocks.saturating_sub(sequence.blocks.len());
        if self.make_available(missing, victims, effects) {
            self.grow(rank.id, blocks);
            let sequence = self.sequences.get_mut(&rank.id).expect("the sequence exists");
            batch.push_canvas(sequence, canvas);
        }
    }

    /// A step of a block is sampled: it continues with this canvas.
    pub(super) fn denoised(&mut self, id: RequestId, canvas: CanvasState) {
        let Some(sequence) = self.sequences.get_mut(&id) else { return };
        sequence.canvas = Some(canvas);
        // It is past the step that failed.
        sequence.suspect_until = 0;
    }

    /// The longest prompt and answer of a request: of an answer in blocks, whole blocks only.
    #[must_use]
    pub fn context_tokens_after(&self, prompt_tokens: usize) -> usize {
        let context_tokens = self.context_tokens();
        match self.limits.canvas {
            Some(canvas) => {
                let left = context_tokens.saturating_sub(prompt_tokens);
                prompt_tokens + left - left % canvas.tokens
            }
            None => context_tokens,
        }
    }
}
