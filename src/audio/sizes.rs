//! The sizes of an audio encoder, from the keys of its file.

use cuelight_shaders::activate::Pointwise;

use super::family::Family;
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

/// The sizes of an audio encoder.
#[derive(Debug, Clone)]
pub struct AudioSizes {
    /// Mel bins of a frame.
    pub bins: usize,
    /// Rows of a window, each of two frames.
    pub rows: usize,
    /// Layers.
    pub layers: usize,
    /// The sizes of a layer.
    pub blocks: BlockSizes,
    /// How rows become embedding rows.
    pub merge: Merge,
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
        let epsilon = file.f32(&keys.key("attention.layer_norm_epsilon"))?;
        let activation = BlockActivation::Pointwise(Pointwise::Gelu);
        Ok(AudioSizes {
            bins: keys.within("num_mel_bins", 1, 512)?,
            // A missing tensor is reported when the graph is built.
            rows: file.tensor(TABLE).map_or(1, |table| table.n_rows().clamp(1, MOST_ROWS as u64) as usize),
            layers: keys.within("block_count", 1, 1 << 10)?,
            blocks: BlockSizes { hidden, heads, epsilon, activation, rotation: None, heads_form: HeadForm::Scaled },
            merge: Merge { class_rows: 0, neighbours, merging: family.merging, hidden },
        })
    }

    /// Frames of a window.
    #[must_use]
    pub fn frames(&self) -> usize {
        2 * self.rows
    }
}
