//! Runs a vision tower and its projector, tile by tile.

use super::family::Family;
use super::merge::Merge;
use super::patches::in_order;
use super::positions::{Encoding, Rotation};
use super::sizes::TowerSizes;
use super::{ImageEncoder, PreparedImage, Tile};
use crate::backend::stage::PipelineStage;
use crate::cancel::LoadCancel;
use crate::engine::{BLOCK_TOKENS, EngineError, EngineLimits, SequenceRows, Step, StepId};
use crate::mapped_file::ModelFiles;

/// The segment of the stage with the ops of the tower, and that with those of the projector.
const TOWER: usize = 0;
const HEAD: usize = 1;

/// A tower and its projector as the two segments of a stage.
pub struct TowerEncoder {
    stage: Box<dyn PipelineStage>,
    shape: TileShape,
    files: ModelFiles,
}

/// The rows of a tile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TileShape {
    /// Patches of a side, of a tile that is not square at most.
    pub grid: usize,
    /// Patches of a side of a square that becomes one row.
    pub merge: usize,
    /// Values of a patch.
    pub patch_width: usize,
    /// How patches are merged.
    pub merged: Merge,
    /// The rotation of queries and keys; `None` for a tower with a table of positions, whose tiles are square.
    pub rotation: Option<Rotation>,
}

impl TileShape {
    /// The rows of a tower's tile.
    #[must_use]
    pub fn new(sizes: &TowerSizes, family: &Family, class_rows: usize) -> Self {
        let merge = sizes.patches.merge;
        let merged = Merge { class_rows, patches: merge * merge, merging: family.merging, hidden: sizes.hidden };
        let rotation = (family.positions == Encoding::Rotation).then(|| sizes.rotation());
        TileShape { grid: sizes.grid, merge, patch_width: sizes.patches.width(), merged, rotation }
    }

    /// The rows that the tower computes.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.grid * self.grid + self.merged.class_rows
    }

    /// The limits of an engine that computes one tile at once.
    #[must_use]
    pub fn limits(&self) -> EngineLimits {
        let rows = self.rows();
        EngineLimits {
            vocab_size: rows,
            context_tokens: rows,
            kv_blocks: rows.div_ceil(BLOCK_TOKENS),
            max_batched_tokens: rows,
            max_sequences: 1,
            ..EngineLimits::default()
        }
    }

    /// Bytes of the rows of a tile in host memory: the patches, factors of rotations, the tower's rows and the merged ones.
    #[must_use]
    pub fn host_bytes(&self) -> u64 {
        let copies = if self.rotation.is_some() { 4 } else { 2 };
        (self.rows() * (self.patch_width + copies * self.merged.hidden) * size_of::<f32>()) as u64
    }

    /// Whether a tile is one of this tower.
    fn fits(&self, tile: &Tile) -> bool {
        let [columns, rows] = tile.grid;
        let is_fitting = |length: usize| match self.rotation {
            Some(_) => (1..=self.grid).contains(&length) && length % self.merge == 0,
            None => length == self.grid,
        };
        is_fitting(columns) && is_fitting(rows) && tile.patches.len() == columns * rows * self.patch_width
    }

    /// The rows of the table of positions, in the order of the rows of a tile. Towers without a table do not read them.
    fn positions(&self, tile: &Tile) -> Vec<u32> {
        let first = self.merged.class_rows;
        let of_patch = |[column, row]: [usize; 2]| first + row * tile.grid[0] + column;
        (0..first).chain(in_order(tile.grid, self.merge).map(of_patch)).map(|position| position as u32).collect()
    }

    /// The inputs of the tower's graph.
    fn inputs(&self, tile: &Tile) -> Vec<Vec<f32>> {
        let rotation = self.rotation.map(|rotation| rotation.factors(tile.grid, self.merge));
        std::iter::once(self.with_class_rows(&tile.patches)).chain(rotation.into_iter().flatten()).collect()
    }

    /// The rows of patches after those of class tokens, which are 0.
    fn with_class_rows(&self, patches: &[f32]) -> Vec<f32> {
        let mut rows = vec![0.0; self.merged.class_rows * self.patch_width];
        rows.extend_from_slice(patches);
        rows
    }
}

/// A step of one sequence with these tokens.
fn step(tokens: Vec<u32>) -> Step {
    let block_table = (0..tokens.len().div_ceil(BLOCK_TOKENS) as u32).collect();
    Step { id: StepId(0), sequences: vec![SequenceRows { tokens, block_table, ..SequenceRows::default() }] }
}

fn invalid(reason: String) -> EngineError {
    EngineError::InvalidStep { step: StepId(0), reason }
}

impl TowerEncoder {
    /// The tower of a stage whose two segments are tower and projector.
    #[must_use]
    pub fn new(stage: Box<dyn PipelineStage>, shape: TileShape, files: ModelFiles) -> Self {
        TowerEncoder { stage, shape, files }
    }

    fn encode_tile(&mut self, tile: &Tile) -> Result<Vec<f32>, EngineError> {
        let shape = self.shape;
        if !shape.fits(tile) {
            let [columns, rows] = tile.grid;
            return Err(invalid(format!("a tile of {columns} x {rows} patches is not one of this tower")));
        }
        let rows = self.run(TOWER, shape.positions(tile), &shape.inputs(tile))?;
        let merged = shape.merged.apply(rows);
        let count = merged.len() / shape.merged.width();
        self.run(HEAD, vec![0; count], &[merged])
    }

    /// The output of a segment for rows with these tokens and inputs.
    fn run(&mut self, segment: usize, tokens: Vec<u32>, inputs: &[Vec<f32>]) -> Result<Vec<f32>, EngineError> {
        let mut output = self.stage.run(segment, &step(tokens), inputs)?;
        output.values.pop().ok_or_else(|| invalid("a vision tower has no output".to_owned()))
    }
}

impl ImageEncoder for TowerEncoder {
    fn encode(&mut self, image: &PreparedImage, cancel: &LoadCancel) -> Result<Vec<f32>, EngineError> {
        let mut rows = Vec::new();
        for tile in &image.tiles {
            cancel.check().map_err(|_| EngineError::Cancelled)?;
            rows.extend(self.encode_tile(tile)?);
        }
        self.files.check().map_err(EngineError::FileChanged)?;
        Ok(rows)
    }
}
