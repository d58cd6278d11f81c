//! Runs a vision tower and its projectors, tile by tile.

use super::family::Family;
use super::place_tables::PlaceTable;
use super::positions::Encoding;
use super::rows::TileRows;
use super::sizes::TowerSizes;
use super::tower::SegmentKind;
use super::{PreparedImage, Tile};
use crate::backend::stage::PipelineStage;
use crate::cancel::LoadCancel;
use crate::engine::{BLOCK_TOKENS, EngineError, EngineLimits, SequenceRows, Step, StepId};
use crate::mapped_file::ModelFiles;
use crate::tower::merge::Merge;
use crate::tower::steps;

/// A tower and its projectors as segments of a stage: those of the tower, the projector, and one for the output of each deep
/// segment.
pub struct VisionEncoder {
    stage: Box<dyn PipelineStage>,
    shape: TileShape,
    files: ModelFiles,
}

/// The rows of a tile, and how they are computed.
#[derive(Debug, Clone)]
pub struct TileShape {
    /// How the tower encodes positions.
    pub positions: Encoding,
    /// Patches of a side of a square tile.
    pub grid: usize,
    /// Most patches of a tile.
    pub most_patches: usize,
    /// Patches of a side of a square that becomes one row.
    pub merge: usize,
    /// Values of a patch.
    pub patch_width: usize,
    /// How patches are merged.
    pub merged: Merge,
    /// Squares of a side of a window.
    pub window: Option<usize>,
    /// The tables of positions that are not square tiles'.
    pub table: Option<PlaceTable>,
    /// The segments of the tower.
    pub segments: Vec<SegmentKind>,
}

impl TileShape {
    /// The shape of a tower's tiles, without its segments and table.
    #[must_use]
    pub fn new(sizes: &TowerSizes, family: &Family, class_rows: usize) -> Self {
        let merge = sizes.patches.merge;
        let merged = Merge { class_rows, neighbours: merge * merge, merging: family.merging, hidden: sizes.hidden };
        let most_pixels = (family.division)(&sizes.division).largest_tile(sizes.image());
        let most_patches = match family.positions.has_squares() {
            true => sizes.grid * sizes.grid,
            false => most_pixels / (sizes.patches.side * sizes.patches.side),
        };
        TileShape {
            positions: family.positions,
            grid: sizes.grid,
            most_patches,
            merge,
            patch_width: sizes.patches.width(),
            merged,
            window: sizes.windows.map(|windows| windows.squares),
            table: None,
            segments: Vec::new(),
        }
    }

    /// The most patches of a side of a tile with the proportions of the image.
    #[must_use]
    pub fn longest_side(&self) -> usize {
        self.most_patches / self.merge
    }

    /// The most rows that the tower computes.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.most_patches + self.merged.class_rows
    }

    /// The most windows of a tile. Long tiles have windows of one line of squares.
    fn windows(&self) -> usize {
        let Some(side) = self.window else { return 1 };
        let of_line = side * self.merged.neighbours;
        self.most_patches.div_ceil(of_line) + self.most_patches.div_ceil(of_line * side) + 2
    }

    /// The limits of an engine that computes one tile at once.
    #[must_use]
    pub fn limits(&self) -> EngineLimits {
        let rows = self.rows();
        EngineLimits {
            vocab_size: rows,
            context_tokens: rows,
            kv_blocks: rows.div_ceil(BLOCK_TOKENS) + self.windows(),
            max_batched_tokens: rows,
            max_sequences: self.windows(),
            ..EngineLimits::default()
        }
    }

    /// Bytes in host memory: of the tables of positions, and of the rows of a tile, which are the patches in two orders, positions, and
    /// rows between segments.
    #[must_use]
    pub fn host_bytes(&self) -> u64 {
        let deep = self.segments.iter().filter(|segment| segment.is_deep).count();
        let convolved = if self.segments.iter().any(|segment| segment.convolution.is_some()) { 2 } else { 0 };
        let hidden = (4 + deep + convolved) * self.merged.hidden;
        let rows = self.rows() * (2 * self.patch_width + hidden) * size_of::<f32>();
        (rows + self.table.as_ref().map_or(0, PlaceTable::bytes)) as u64
    }

    /// Whether a tile is one of this tower.
    fn fits(&self, tile: &Tile) -> bool {
        let [columns, rows] = tile.grid;
        let is_fitting = match self.positions.has_squares() {
            true => [columns, rows] == [self.grid; 2],
            false => [columns, rows].iter().all(|length| *length > 0 && length.is_multiple_of(self.merge)),
        };
        let patches = columns.saturating_mul(rows);
        is_fitting && patches <= self.most_patches && tile.patches.len() == patches * self.patch_width
    }

    /// The tokens of all rows: their rows in the table of positions.
    fn tokens(&self, tile: &Tile, rows: &TileRows) -> Vec<u32> {
        let first = self.merged.class_rows;
        let of_patch = |[column, row]: [usize; 2]| match self.positions {
            Encoding::Table => (first + row * tile.grid[0] + column) as u32,
            _ => 0,
        };
        (0..first as u32).chain(rows.patches().map(of_patch)).collect()
    }

    /// A step with all rows of a tile, each window a sequence of its own.
    fn step(&self, tile: &Tile, rows: &TileRows, kind: &SegmentKind) -> Step {
        let tokens = self.tokens(tile, rows);
        let positions: Vec<[u32; 3]> = match self.positions.turns() {
            Some(turns) => rows.patches().map(|place| turns.positions(place)).collect(),
            None => Vec::new(),
        };
        let windows: Vec<_> =
            if kind.is_windowed { rows.windows().collect() } else { std::iter::once(0..tokens.len()).collect() };
        let mut blocks = 0..;
        let sequence = |window: std::ops::Range<usize>| SequenceRows {
            tokens: tokens[window.clone()].to_vec(),
            block_table: blocks.by_ref().take(window.len().div_ceil(BLOCK_TOKENS)).collect(),
            rope_positions: positions.get(window).unwrap_or_default().to_vec(),
            ..SequenceRows::default()
        };
        Step { id: StepId(0), sequences: windows.into_iter().map(sequence).collect() }
    }

    /// The inputs of the tower's first segment.
    fn inputs(&self, tile: &Tile, rows: &TileRows) -> Vec<Vec<f32>> {
        let mut patches = vec![0.0; self.merged.class_rows * self.patch_width];
        patches.extend(rows.arranged(&tile.patches));
        let positions =
            self.table.as_ref().map(|table| rows.patches().flat_map(|place| table.row(tile.grid, place)).collect());
        std::iter::once(patches).chain(positions).collect()
    }
}

impl VisionEncoder {
    /// The tower of a stage with the segments of `shape` and its projectors.
    #[must_use]
    pub fn new(stage: Box<dyn PipelineStage>, shape: TileShape, files: ModelFiles) -> Self {
        VisionEncoder { stage, shape, files }
    }

    /// The embedding rows of an image, [rows, width]. Blocks. `cancel` is checked before each tile.
    ///
    /// # Errors
    /// [`EngineError`] when the device is lost, the files have changed, the image does not belong to this tower, or it was
    /// cancelled.
    pub fn encode(&mut self, image: &PreparedImage, cancel: &LoadCancel) -> Result<Vec<f32>, EngineError> {
        let mut rows = Vec::new();
        for tile in &image.tiles {
            cancel.check().map_err(|_| EngineError::Cancelled)?;
            rows.extend(self.encode_tile(tile)?);
        }
        self.files.check().map_err(EngineError::FileChanged)?;
        Ok(rows)
    }

    fn encode_tile(&mut self, tile: &Tile) -> Result<Vec<f32>, EngineError> {
        if !self.shape.fits(tile) {
            let [columns, rows] = tile.grid;
            return Err(steps::invalid(format!("a tile of {columns} x {rows} patches is not one of this tower")));
        }
        let rows = TileRows::new(tile.grid, self.shape.merge, self.shape.window);
        let outputs = self.run_tower(tile, &rows)?;
        let first = self.shape.segments.len();
        let mut projected = Vec::with_capacity(outputs.len());
        for (head, output) in (first..).zip(outputs) {
            let merged = self.shape.merged.apply(output);
            let count = merged.len() / self.shape.merged.width();
            projected.push(rows.line_by_line(&self.run(head, &steps::whole(count), &[merged])?));
        }
        Ok(side_by_side(&projected, rows.squares()))
    }

    /// The rows after the last segment of the tower, then those after each deep one.
    fn run_tower(&mut self, tile: &Tile, rows: &TileRows) -> Result<Vec<Vec<f32>>, EngineError> {
        let (mut inputs, mut outputs) = (self.shape.inputs(tile, rows), vec![Vec::new()]);
        for (index, kind) in self.shape.segments.clone().into_iter().enumerate() {
            let step = self.shape.step(tile, rows, &kind);
            let [hidden, output] = steps::run_both(&mut *self.stage, index, &step, &inputs)?;
            outputs.extend(kind.is_deep.then(|| output.clone()));
            inputs = match kind.convolution {
                Some(convolution) => {
                    let places: Vec<_> = rows.patches().collect();
                    vec![hidden, convolution.apply(&output, tile.grid, &places)]
                }
                None => vec![output],
            };
        }
        outputs[0] = inputs.pop().unwrap_or_default();
        Ok(outputs)
    }

    fn run(&mut self, segment: usize, step: &Step, inputs: &[Vec<f32>]) -> Result<Vec<f32>, EngineError> {
        steps::run(&mut *self.stage, segment, step, inputs)
    }
}

/// Rows of several values, each [rows, its width], as rows of all of them.
fn side_by_side(values: &[Vec<f32>], rows: usize) -> Vec<f32> {
    let row = |index: usize| {
        values.iter().flat_map(move |values| {
            let width = values.len() / rows;
            &values[index * width..][..width]
        })
    };
    (0..rows).flat_map(row).copied().collect()
}
