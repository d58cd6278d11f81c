//! The sizes of an audio encoder, from the keys of its file.

use cuelight_shaders::activate::Pointwise;
use cuelight_shaders::layer_state::LayerState;

use super::family::{Family, Layers};
use super::front::{Front, Squares};
use super::grid::{Grid, TAPS};
use crate::checkpoint::Checkpoint;
use crate::load::LoadError;
use crate::media::MediaKind;
use crate::tower::blocks::{BlockActivation, BlockSizes, HeadForm};
use crate::tower::keys::Keys;
use crate::tower::merge::Merge;

/// The tensor of the table of positions, one row for each of a window.
pub const TABLE: &str = "a.position_embd.weight";
/// Most rows of a window.
const MOST_ROWS: usize = 1 << 14;
/// Most rows that become one.
const MOST_NEIGHBOURS: usize = 64;
/// Most outputs of a convolution over squares.
const MOST_CHANNELS: u64 = 1 << 14;
/// Places that a convolution over squares computes at once, if a window has no more rows.
const PLACES_AT_ONCE: usize = 1024;

/// The sizes of an audio encoder.
#[derive(Debug, Clone)]
pub struct AudioSizes {
    /// Mel bins of a frame.
    pub bins: usize,
    /// Most rows of a window.
    pub rows: usize,
    /// Layers.
    pub layers: usize,
    /// The sizes of a layer.
    pub blocks: BlockSizes,
    /// How rows become embedding rows.
    pub merge: Merge,
    /// The convolutions before the layers.
    pub front: Front,
    /// The kind of layers.
    pub kind: Layers,
    /// The outputs of each convolution over squares.
    pub channels: Vec<usize>,
}

impl AudioSizes {
    /// Reads and checks the keys of a file.
    ///
    /// # Errors
    /// [`LoadError::Gguf`] when a key is missing, [`LoadError::Tower`] when it has a value that is not computed.
    pub fn read(file: &dyn Checkpoint, family: &Family) -> Result<Self, LoadError> {
        let keys = Keys::new(file, MediaKind::Audio);
        let hidden = keys.within("embedding_length", 1, 1 << 16)?;
        let heads = keys.within("attention.head_count", 1, hidden)?;
        if !hidden.is_multiple_of(heads) {
            return Err(keys.fault("attention.head_count", heads, format!("a divisor of {hidden}")));
        }
        let neighbours = match family.neighbours {
            Some(neighbours) => neighbours,
            None => keys.within("projector.stack_factor", 1, MOST_NEIGHBOURS)?,
        };
        let epsilon = match family.epsilon {
            Some(epsilon) => epsilon,
            None => file.f32(&keys.key("attention.layer_norm_epsilon"))?,
        };
        let activation = BlockActivation::Pointwise(Pointwise::Gelu);
        Ok(AudioSizes {
            bins: keys.within("num_mel_bins", 1, 512)?,
            rows: most_rows(file, family.front),
            layers: keys.within("block_count", 1, 1 << 10)?,
            blocks: BlockSizes {
                hidden,
                heads,
                kv_heads: heads,
                epsilon,
                activation,
                rotation: None,
                heads_form: HeadForm::Scaled,
            },
            merge: Merge { class_rows: 0, neighbours, merging: family.merging, hidden },
            front: family.front,
            kind: family.layers,
            channels: channels(file, family.front),
        })
    }

    /// Most frames of a window.
    #[must_use]
    pub fn frames(&self) -> usize {
        match self.front {
            Front::OverTime(_) => 2 * self.rows,
            Front::OverSquares(squares) => squares.window,
        }
    }

    /// The rows that one step computes at most: those of a window, or of a part of its convolutions.
    #[must_use]
    pub fn rows_at_once(&self) -> usize {
        match self.front {
            Front::OverTime(_) => self.rows,
            Front::OverSquares(_) => self.rows.max(PLACES_AT_ONCE),
        }
    }

    /// The grids before each convolution over squares and after the last one, for frames that are convolved together.
    #[must_use]
    pub fn grids(&self, squares: &Squares) -> Vec<Grid> {
        let mut grids = vec![Grid { times: squares.frames_at_once(), bins: self.bins, channels: 1 }];
        for channels in &self.channels {
            grids.push(grids[grids.len() - 1].halved(*channels));
        }
        grids
    }

    /// Values of a row before the layers' graph.
    #[must_use]
    pub fn input_width(&self) -> usize {
        match self.front {
            Front::OverTime(_) => 3 * self.blocks.hidden,
            Front::OverSquares(squares) => self.grids(squares).last().map_or(0, |grid| grid.bins * grid.channels),
        }
    }

    /// The rows after which positions begin again.
    #[must_use]
    pub fn period(&self) -> usize {
        match (self.kind, self.front) {
            (Layers::Conformer(conformer), _) => conformer.span,
            (Layers::Transformer(_), Front::OverTime(_)) => self.rows,
            (Layers::Transformer(_), Front::OverSquares(squares)) => squares.rows_at_once(),
        }
    }

    /// What a layer stores of a window.
    #[must_use]
    pub fn state(&self) -> LayerState {
        match self.kind {
            Layers::Transformer(_) => LayerState::of_kv(self.blocks.kv()),
            Layers::Conformer(conformer) => conformer.state(&self.blocks),
        }
    }

    /// Bytes of the rows of a window in host memory: its frames, what is gathered of them, and rows between graphs.
    #[must_use]
    pub fn host_bytes(&self) -> u64 {
        let values = match self.front {
            Front::OverTime(_) => {
                let (of_frame, of_row) = (4 * self.bins + self.blocks.hidden, 5 * self.blocks.hidden);
                self.frames() * of_frame + self.rows * of_row
            }
            Front::OverSquares(squares) => {
                let of_grids: usize = self.grids(squares).iter().map(|grid| grid.places() * grid.channels).sum();
                let most = self.channels.iter().max().copied().unwrap_or(1);
                let gathered = self.rows_at_once() * (TAPS + 1) * most;
                self.frames() * self.bins
                    + of_grids
                    + gathered
                    + self.rows * (self.input_width() + 3 * self.blocks.hidden)
            }
        };
        (values * size_of::<f32>()) as u64
    }
}

/// Most rows of a window.
fn most_rows(file: &dyn Checkpoint, front: Front) -> usize {
    match front {
        Front::OverTime(Some(rows)) => rows,
        // A missing tensor is reported when the graph is built.
        Front::OverTime(None) => {
            file.tensor(TABLE).map_or(1, |table| table.n_rows().clamp(1, MOST_ROWS as u64) as usize)
        }
        Front::OverSquares(squares) => squares.rows(squares.window),
    }
}

/// The outputs of each convolution over squares, by the sizes of the kernels. Others are reported when the graphs are built.
fn channels(file: &dyn Checkpoint, front: Front) -> Vec<usize> {
    let Front::OverSquares(squares) = front else { return Vec::new() };
    let (mut inputs, mut channels) = (1, Vec::new());
    for stem in squares.stems {
        let values = file
            .tensor(&format!("{stem}.weight"))
            .map_or(0, |kernel| kernel.n_rows().saturating_mul(kernel.n_columns()));
        inputs = (values / (TAPS as u64 * inputs)).clamp(1, MOST_CHANNELS);
        channels.push(inputs as usize);
    }
    channels
}
