//! Runs an audio encoder and its projector, window by window.

use super::convolution::gathered;
use super::sizes::AudioSizes;
use super::{PreparedAudio, Window};
use crate::backend::stage::PipelineStage;
use crate::cancel::LoadCancel;
use crate::engine::{BLOCK_TOKENS, EngineError, EngineLimits, Step};
use crate::mapped_file::ModelFiles;
use crate::tower::steps;

/// The segments of the stage: the first convolution, the layers, the projector.
const CONVOLUTION: usize = 0;
const LAYERS: usize = 1;
const HEAD: usize = 2;

/// An audio encoder on its device.
pub struct AudioEncoder {
    stage: Box<dyn PipelineStage>,
    sizes: AudioSizes,
    files: ModelFiles,
}

impl AudioSizes {
    /// The limits of an engine that computes one window at once.
    #[must_use]
    pub fn limits(&self) -> EngineLimits {
        EngineLimits {
            vocab_size: self.rows,
            context_tokens: self.rows,
            kv_blocks: self.rows.div_ceil(BLOCK_TOKENS),
            max_batched_tokens: self.rows,
            max_sequences: 1,
            ..EngineLimits::default()
        }
    }

    /// Bytes of the rows of a window in host memory: its frames, what is gathered of them, and rows between segments.
    #[must_use]
    pub fn host_bytes(&self) -> u64 {
        let (of_frame, of_row) = (4 * self.bins + self.blocks.hidden, 5 * self.blocks.hidden);
        ((self.frames() * of_frame + self.rows * of_row) * size_of::<f32>()) as u64
    }
}

impl AudioEncoder {
    /// The encoder of a stage with its segments.
    #[must_use]
    pub fn new(stage: Box<dyn PipelineStage>, sizes: AudioSizes, files: ModelFiles) -> Self {
        AudioEncoder { stage, sizes, files }
    }

    /// The embedding rows of a clip, [rows, width]. Blocks. `cancel` is checked before each window.
    ///
    /// # Errors
    /// [`EngineError`] when the device is lost, the files have changed, the audio does not belong to this encoder, or it was
    /// cancelled.
    pub fn encode(&mut self, audio: &PreparedAudio, cancel: &LoadCancel) -> Result<Vec<f32>, EngineError> {
        let mut rows = Vec::new();
        for window in &audio.windows {
            cancel.check().map_err(|_| EngineError::Cancelled)?;
            rows.extend(self.encode_window(window)?);
        }
        self.files.check().map_err(EngineError::FileChanged)?;
        Ok(rows)
    }

    fn encode_window(&mut self, window: &Window) -> Result<Vec<f32>, EngineError> {
        let frames = window.frames.len() / self.sizes.bins;
        if frames > self.sizes.frames() || window.rows == 0 || window.rows > frames.div_ceil(2) {
            return Err(steps::invalid(format!("a window of {frames} frames is not one of this encoder")));
        }
        let convolved = self.convolve(&window.frames, frames.min(2 * window.rows))?;
        let rows = gathered(&convolved, self.sizes.blocks.hidden, window.rows, 2);
        let step = steps::of_tokens((0..window.rows as u32).collect());
        let rows = self.run(LAYERS, &step, rows)?;
        let merged = self.sizes.merge.apply(rows);
        let count = merged.len() / self.sizes.merge.width();
        self.run(HEAD, &steps::whole(count), merged)
    }

    /// The first convolution at the first `count` frames, in steps of at most as many rows as a window has after the second.
    fn convolve(&mut self, frames: &[f32], count: usize) -> Result<Vec<f32>, EngineError> {
        let all = gathered(frames, self.sizes.bins, count, 1);
        let of_frame = 3 * self.sizes.bins;
        let mut convolved = Vec::with_capacity(count * self.sizes.blocks.hidden);
        for frames in all.chunks(self.sizes.rows * of_frame) {
            convolved.extend(self.run(CONVOLUTION, &steps::whole(frames.len() / of_frame), frames.to_vec())?);
        }
        Ok(convolved)
    }

    fn run(&mut self, segment: usize, step: &Step, input: Vec<f32>) -> Result<Vec<f32>, EngineError> {
        steps::run(&mut *self.stage, segment, step, &[input])
    }
}
