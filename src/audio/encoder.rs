//! Runs an audio encoder and its projector, window by window.

use super::convolution::gathered;
use super::family::Layers;
use super::front::{Front, Squares};
use super::grid::Grid;
use super::sizes::AudioSizes;
use super::{PreparedAudio, Window};
use crate::backend::stage::PipelineStage;
use crate::cancel::LoadCancel;
use crate::engine::{BLOCK_TOKENS, EngineError, EngineLimits, Step};
use crate::mapped_file::ModelFiles;
use crate::tower::steps;

/// The first convolution.
const CONVOLUTION: usize = 0;

/// An audio encoder on its device. The segments of its stage are those of convolutions, the layers, and the projector.
pub struct AudioEncoder {
    stage: Box<dyn PipelineStage>,
    sizes: AudioSizes,
    files: ModelFiles,
}

impl AudioSizes {
    /// The limits of an engine that computes one window at once.
    #[must_use]
    pub fn limits(&self) -> EngineLimits {
        let rows = self.rows_at_once();
        EngineLimits {
            vocab_size: self.rows,
            context_tokens: rows,
            kv_blocks: rows.div_ceil(BLOCK_TOKENS),
            max_batched_tokens: rows,
            max_sequences: 1,
            state_slots: usize::from(self.state().recurrent_len > 0),
            ..EngineLimits::default()
        }
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
        let (frames, front) = (window.frames.len() / self.sizes.bins, self.sizes.front);
        if frames > self.sizes.frames() || window.rows == 0 || window.rows > front.rows(frames) {
            return Err(steps::invalid(format!("a window of {frames} frames is not one of this encoder")));
        }
        let rows = match front {
            Front::OverTime(_) => {
                let convolved = self.convolve(&window.frames, frames.min(2 * window.rows))?;
                gathered(&convolved, self.sizes.blocks.hidden, window.rows, 2)
            }
            Front::OverSquares(squares) => {
                let mut rows = self.convolve_squares(squares, &window.frames)?;
                rows.truncate(window.rows * self.sizes.input_width());
                rows
            }
        };
        let rows = self.run(front.graphs(), &self.step(window.rows), rows)?;
        let merged = self.sizes.merge.apply(rows);
        let count = merged.len() / self.sizes.merge.width();
        self.run(front.graphs() + 1, &steps::whole(count), merged)
    }

    /// The step of the rows of a window.
    fn step(&self, rows: usize) -> Step {
        let period = self.sizes.period();
        let tokens = (0..rows).map(|row| (row % period) as u32).collect();
        match self.sizes.kind {
            Layers::Transformer(_) => steps::of_tokens(tokens),
            Layers::Conformer(_) => steps::with_state(tokens),
        }
    }

    /// The first convolution over time at the first `count` frames.
    fn convolve(&mut self, frames: &[f32], count: usize) -> Result<Vec<f32>, EngineError> {
        let all = gathered(frames, self.sizes.bins, count, 1);
        let of_frame = 3 * self.sizes.bins;
        let mut convolved = Vec::with_capacity(count * self.sizes.blocks.hidden);
        for frames in all.chunks(self.sizes.rows_at_once() * of_frame) {
            convolved.extend(self.run(CONVOLUTION, &steps::whole(frames.len() / of_frame), frames.to_vec())?);
        }
        Ok(convolved)
    }

    /// The rows after all convolutions over squares, [rows, values].
    fn convolve_squares(&mut self, squares: &Squares, frames: &[f32]) -> Result<Vec<f32>, EngineError> {
        let (grids, mut rows) = (self.sizes.grids(squares), Vec::new());
        for chunk in frames.chunks(squares.frames_at_once() * self.sizes.bins) {
            rows.extend(self.convolve_chunk(squares, &grids, chunk)?);
        }
        Ok(rows)
    }

    /// The rows of frames that are convolved together. Those of a chunk are followed by zeros.
    fn convolve_chunk(&mut self, squares: &Squares, grids: &[Grid], frames: &[f32]) -> Result<Vec<f32>, EngineError> {
        let own = frames.len() / self.sizes.bins;
        let mut values = frames.to_vec();
        let mut grid = Grid { times: own, ..grids[0] };
        if squares.chunk.is_some() {
            grid = grids[0];
            values.resize(grid.places(), 0.0);
        }
        for (segment, after) in grids[1..].iter().enumerate() {
            values = self.convolve_grid(segment, squares, grid, &values)?;
            grid = grid.halved(after.channels);
        }
        let mut rows = grid.joined(values, squares.joining);
        rows.truncate(squares.rows(own) * self.sizes.input_width());
        Ok(rows)
    }

    /// A convolution over squares, in steps of at most as many places as are computed at once.
    fn convolve_grid(
        &mut self,
        segment: usize,
        squares: &Squares,
        grid: Grid,
        values: &[f32],
    ) -> Result<Vec<f32>, EngineError> {
        let (places, at_once) = (grid.halved(1).places(), self.sizes.rows_at_once());
        let mut convolved = Vec::with_capacity(places * self.sizes.channels[segment]);
        for first in (0..places).step_by(at_once) {
            let some = first..places.min(first + at_once);
            let step = steps::whole(some.len());
            convolved.extend(self.run(segment, &step, grid.gathered(values, some, squares.taps))?);
        }
        Ok(convolved)
    }

    fn run(&mut self, segment: usize, step: &Step, input: Vec<f32>) -> Result<Vec<f32>, EngineError> {
        steps::run(&mut *self.stage, segment, step, &[input])
    }
}
