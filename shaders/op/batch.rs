//! The rows of one step.

use crate::kv::KvShape;
use crate::lora::adapter::AdapterUse;
use crate::sample_token::params::RowSamplingParams;

/// The rows of one step: their tokens, positions and sequences, and the rows whose logits or hidden values are requested.
#[derive(Clone, Copy, Default)]
pub struct Batch<'a> {
    /// `[rows]` token ids.
    pub tokens: &'a [u32],
    /// `[rows]` position of each row in its sequence.
    pub positions: &'a [u32],
    /// `[rows]` positions in time, and of the row and the column of an image, by which models with
    /// [`RopeAxes`](crate::rope::RopeAxes) rotate. Empty when all three are `positions`.
    pub rope_positions: &'a [[u32; 3]],
    /// `[rows]` indices into `block_tables`. The rows of a sequence are consecutive, at consecutive positions.
    pub sequences: &'a [u32],
    /// The KV blocks of each sequence, in the order of positions.
    pub block_tables: &'a [&'a [u32]],
    /// The same in layers that keep the positions of a window ([`KvShape::is_windowed`]): any number in the place of blocks before it.
    /// Empty when these layers have the same blocks.
    pub window_tables: &'a [&'a [u32]],
    /// The rows that reach the output head, ascending.
    pub selected: &'a [u32],
    /// The rows whose hidden values are returned, ascending.
    pub hidden: &'a [u32],
    /// The slot with the recurrent state before the first row of each sequence, or [`NO_SLOT`](crate::recurrent::NO_SLOT)
    /// if it starts with zeros. Empty for a model without recurrent state.
    pub state_from: &'a [u32],
    /// `[rows]` slot that gets the recurrent state after each row, or [`NO_SLOT`](crate::recurrent::NO_SLOT). Every
    /// sequence has one after its last row. It may be the one that the sequence starts from. Empty as above.
    pub state_to: &'a [u32],
    /// The adapter of each sequence, if it has one. Empty when no sequence has one.
    pub adapters: &'a [Option<&'a AdapterUse>],
    /// The slot on the device of each sequence's adapter; any number for a sequence without one. Empty on the CPU, which has no
    /// slots, and when no sequence has an adapter.
    pub adapter_slots: &'a [u32],
    /// What the rows of each sequence see of each other. Empty when all rows see only those before them.
    pub sights: &'a [Sight],
    /// The position of the first row of the second of two texts in each sequence, or [`NO_SECOND_TEXT`]. Empty when no sequence has
    /// one.
    pub second_texts: &'a [u32],
    /// How each of the `selected` rows is denoised. Empty for a model without canvases.
    pub denoised: &'a [DenoiseParams],
}

/// The entry of a sequence of one text.
pub const NO_SECOND_TEXT: u32 = u32::MAX;

/// What the rows of a sequence in a step see of each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Sight {
    /// Each row sees those before it.
    #[default]
    Before,
    /// Each row sees all of them, and of the positions before them what it would see by itself: the rows of an image.
    EachOther,
    /// The rows are a canvas: they see each other, and of the positions before them what the first of them sees.
    Canvas,
}

/// How a row of a canvas is denoised.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DenoiseParams {
    /// Divides the logits before their entropy and the expected embedding are computed; above 0.
    pub temperature: f32,
    /// How the row's token is sampled.
    pub sampling: RowSamplingParams,
}

/// The rows that an op keeps of all rows of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Selection {
    /// Those whose logits are requested.
    #[default]
    Logits,
    /// Those whose hidden values are requested.
    Hidden,
}

impl<'a> Batch<'a> {
    /// The numbers of the selected rows.
    #[must_use]
    pub fn selection(&self, selection: Selection) -> &'a [u32] {
        match selection {
            Selection::Logits => self.selected,
            Selection::Hidden => self.hidden,
        }
    }

    /// The KV blocks of a row's sequence in a layer of this shape, in the order of positions.
    #[must_use]
    pub fn block_table(&self, row: usize, kv: KvShape) -> &'a [u32] {
        let is_windowed = kv.is_windowed && !self.window_tables.is_empty();
        let tables = if is_windowed { self.window_tables } else { self.block_tables };
        tables[self.sequences[row] as usize]
    }

    /// The number of rows of the step.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.tokens.len()
    }

    /// The adapter of a row of an op with `rows` rows: all rows of the step, or those that reach the output head.
    #[must_use]
    pub fn adapter_of(&self, row: usize, rows: usize) -> Option<&'a AdapterUse> {
        if self.adapters.is_empty() {
            return None;
        }
        let row = if rows == self.rows() { row } else { self.selected[row] as usize };
        self.adapters[self.sequences[row] as usize]
    }

    /// The position of a row on an axis, by which it is rotated.
    #[must_use]
    pub fn rope_position(&self, row: usize, axis: usize) -> u32 {
        if self.rope_positions.is_empty() { self.positions[row] } else { self.rope_positions[row][axis] }
    }

    /// What a row sees of the other rows of its sequence.
    #[must_use]
    pub fn sight(&self, row: usize) -> Sight {
        if self.sights.is_empty() { Sight::Before } else { self.sights[self.sequences[row] as usize] }
    }

    /// Whether a row is part of a canvas.
    #[must_use]
    pub fn is_canvas(&self, row: usize) -> bool {
        self.sight(row) == Sight::Canvas
    }

    /// Whether a row belongs to the second of two texts.
    #[must_use]
    pub fn is_of_second_text(&self, row: usize) -> bool {
        !self.second_texts.is_empty() && self.positions[row] >= self.second_texts[self.sequences[row] as usize]
    }

    /// The first row of each run of rows of one sequence.
    pub fn run_starts(&self) -> impl Iterator<Item = usize> {
        let sequences = self.sequences;
        (0..sequences.len()).filter(move |&row| row == 0 || sequences[row] != sequences[row - 1])
    }
}
