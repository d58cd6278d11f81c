//! Attention over a paged KV cache, for a ragged batch.
//!
//! - this file: the parameters
//! - `op`: the `impl Op`
//! - `cpu`: how threads share the work, and how partial results are merged
//! - `gather`: the CPU kernel
//! - `gpu`: the dispatches, row by row or in tiles of several rows
//! - `store`: the op that only stores keys and values
//! - [`mod@reference`]: the formula in float64
//! - `cases`: the expected results
//!
//! Keys and values are stored in the [KV cache](crate::kv).

mod cases;
mod cpu;
mod gather;
mod gpu;
mod op;
pub mod reference;
mod store;
#[cfg(test)]
mod tests;

use std::ops::Range;
use std::sync::Arc;

use crate::op::{ShapeError, Sight};
use crate::selection::Selection;

pub use crate::kv::{KvCache, KvShape, KvType, MAX_HEAD_DIM};
pub(crate) use cases::rotated_cases;
pub use cases::{cases, half_cases};
pub(crate) use gpu::{head_constants, store_keys};
pub use store::StoreKv;

/// Positions of a piece, which has a softmax of its own (`attention/pieces.glsl`).
const PIECE_TOKENS: usize = 256;

/// The positions that a row sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Window {
    /// The last positions up to its own. The value is their number.
    Last(usize),
    /// The positions of its own chunk, up to its own. The value is the number of positions of a chunk.
    Chunk(usize),
    /// The positions from this one up to its own. A row before this position sees all up to its own.
    From(usize),
    /// The positions before this one, up to its own.
    Before(usize),
}

impl Window {
    /// The first position that a row at `position` sees.
    #[must_use]
    pub fn first_visible(self, position: usize) -> usize {
        match self {
            Window::Last(positions) => (position + 1).saturating_sub(positions),
            Window::Chunk(positions) => position - position % positions.max(1),
            Window::From(first) => {
                if position < first {
                    0
                } else {
                    first
                }
            }
            Window::Before(_) => 0,
        }
    }

    /// The positions of `seen` that are before the end of the window.
    fn cut(self, seen: Range<usize>) -> Range<usize> {
        match self {
            Window::Before(end) => seen.start..seen.end.min(end),
            Window::Last(_) | Window::Chunk(_) | Window::From(_) => seen,
        }
    }

    /// A window in push constants: its number of positions, and its kind (`attention/runs.glsl`).
    fn push(window: Option<Window>) -> [usize; 2] {
        match window {
            None => [0, 0],
            Some(Window::Last(positions)) => [positions, 1],
            Some(Window::Chunk(positions)) => [positions, 2],
            Some(Window::From(first)) => [first, 3],
            Some(Window::Before(end)) => [end, 4],
        }
    }
}

/// What rows that [see each other](Sight::EachOther) see in a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum EachOther {
    /// All of them, and before them what the window of each includes.
    #[default]
    All,
    /// Those that the window of each includes, and all after it.
    FromWindow,
    /// What other rows see: those before it that its window includes.
    Before,
}

/// The rows of one sequence in a step.
#[derive(Debug, Clone, Copy)]
struct RowsInStep {
    /// What they see of each other.
    sight: Sight,
    /// The position of the first row.
    start: usize,
    /// The position after the last one that any of them sees.
    end: usize,
}

/// Grouped-query attention: stores the keys and values of the rows, then computes the attention of every row to its own
/// sequence.
///
/// For a row at position `p`, where `t` are the positions of its sequence up to `p`, or all with `sees_later`, that its
/// window includes:
/// `s[t] = softcap(scale * q·k[t])`, `y = sum_t softmax(s)[t] v[t]`; query head `h` reads KV head
/// `h / (n_heads / n_kv_heads)`. With sinks the softmax of head `h` has one more score, `sinks[h]`, which has no value. With
/// slopes `slopes[h] |p - t|` is subtracted from the scores of head `h` (ALiBi).
///
/// - Inputs: query [rows, n_heads * key_dim], key [rows, n_kv_heads * key_dim], and unless values are part of the keys
///   value [rows, n_kv_heads * value_dim]; output [rows, n_heads * value_dim].
/// - With selected positions, a row sees only those: the last input has them, ascending, as many as [`Selection::count`] says
///   ([`SelectPositions`](crate::select_positions::SelectPositions)). The softmax then proceeds over them in the
///   same pieces, as if they were adjacent. KV heads may be divided into groups with a list of positions each.
/// - With pools, a row sees an entry of each whole pool of positions up to its own, or of the selected pools, and then the positions
///   of its window. The entries are an input in the place of values, [rows, key_dim]; those of the last rows of pools are stored.
/// - A step may mix prefill chunks and decode rows. A row sees the rows of its own sequence in the same step.
/// - Rows of a sequence may see each other, or be a canvas: see [`Sight`].
/// - The softmax is computed online over KV blocks in the order of positions. So the result does not depend on the
///   chunks of the prompt, nor on other sequences.
/// - Source: Dao et al. 2022 (online softmax over blocks); Kwon et al. 2023 (paged cache); Ainslie et al. 2023
///   (groups); Xiao et al. 2023 (sinks); Press et al. 2022 (slopes); DeepSeek-AI 2024 (latent attention, whose projections
///   are absorbed outside of this op); DeepSeek-AI 2026, "DeepSeek-V4" (pools).
#[derive(Debug, Clone)]
pub struct Attention {
    /// The layer of the cache.
    pub layer: usize,
    /// Whether the keys and values of the rows are inputs, which are stored in the cache. If not, an earlier op has
    /// stored them for the same layer of the cache, and the query is the only input.
    pub stores: bool,
    /// The number of query heads.
    pub n_heads: usize,
    /// The number of key and value heads, which divides `n_heads`, and their lengths.
    pub kv: KvShape,
    /// The factor of the scores: `1 / sqrt(key_dim)` for most models.
    pub scale: f32,
    /// The positions that a row sees; `None`: all up to its own.
    pub window: Option<Window>,
    /// Whether a row also sees the rows of its sequence after it. All of these are then in the same step. A window of
    /// last positions extends as far ahead of a row as back.
    pub sees_later: bool,
    /// What rows that [see each other](Sight::EachOther) see.
    pub each_other: EachOther,
    /// Soft cap on the scores.
    pub softcap: Option<f32>,
    /// A learned score for each query head, `[n_heads]`, which joins the softmax without a value.
    pub sinks: Option<Arc<[f32]>>,
    /// How much the scores of each query head fall with each position between row and key, `[n_heads]`.
    pub slopes: Option<Arc<[f32]>>,
    /// If rows see only selected positions, or entries of selected pools, how many. The last input is as wide as the most of all lists
    /// of a row, whose number divides `n_kv_heads`.
    pub selection: Option<Selection>,
}

/// A place of the cache that a row sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Cell {
    /// The position, or the last one of the pool.
    position: usize,
    /// Whether it is the entry of a pool.
    is_entry: bool,
}

impl Attention {
    /// Checks the parameters.
    ///
    /// # Errors
    /// [`ShapeError`] when the KV heads do not divide the heads, a head is too long, the number of sinks or slopes is not
    /// that of the heads, rows that see later rows are in chunks, or selected positions or pools are limited in another way.
    pub fn checked(self) -> Result<Self, ShapeError> {
        let KvShape { n_kv_heads, key_dim, value_dim, values_in_keys, pool, .. } = self.kv;
        let groups = self.n_heads.checked_rem(n_kv_heads).unwrap_or(self.n_heads);
        ShapeError::check("attention", format!("{} heads modulo {n_kv_heads} kv heads", self.n_heads), groups, 0)?;
        let longest_value = if values_in_keys { key_dim } else { MAX_HEAD_DIM };
        for (what, found, most) in [("key_dim", key_dim, MAX_HEAD_DIM), ("value_dim", value_dim, longest_value)] {
            if found == 0 || found > most {
                let expected = format!("between 1 and {most}");
                return Err(ShapeError::Mismatch { op: "attention", what: what.into(), found, expected });
            }
        }
        if let (true, Some(Window::Chunk(positions) | Window::From(positions) | Window::Before(positions))) =
            (self.sees_later, self.window)
        {
            ShapeError::check("attention", "positions of a chunk of rows that see later rows", positions, 0)?;
        }
        let has_window = matches!(self.window, Some(Window::Last(_) | Window::Chunk(_))) && !self.sees_later;
        let lacks_window = usize::from(self.kv.is_windowed && !has_window);
        ShapeError::check("attention", "layers of windows without one", lacks_window, 0)?;
        if self.selection.is_some() || pool > 0 {
            let has_other_window = match self.window {
                Some(Window::Last(_)) => pool == 0,
                window => window.is_some() || pool > 0,
            };
            let others = [has_other_window, self.sees_later, self.slopes.is_some()];
            let count = others.into_iter().filter(|other| *other).count();
            ShapeError::check("attention", "number of other limits of selected positions", count, 0)?;
            let of_selection = self.selection.map_or(pool, |selection| selection.entry_pool());
            ShapeError::check("attention", "positions of a selected pool with an entry", of_selection, pool)?;
            let lists = self.selection.map_or(1, |selection| selection.lists);
            let rest = n_kv_heads.checked_rem(lists).unwrap_or(n_kv_heads);
            ShapeError::check("attention", format!("{n_kv_heads} kv heads modulo {lists} lists"), rest, 0)?;
        }
        for (what, of_heads) in [("number of sinks", &self.sinks), ("number of slopes", &self.slopes)] {
            let found = of_heads.as_ref().map_or(self.n_heads, |values| values.len());
            ShapeError::check("attention", what, found, self.n_heads)?;
        }
        Ok(self)
    }

    /// The number of query heads that share a KV head.
    fn group(&self) -> usize {
        self.n_heads / self.kv.n_kv_heads
    }

    /// The list of selected positions that a KV head reads, of the `lists` of a row.
    fn list(&self, kv_head: usize, lists: usize) -> usize {
        kv_head * lists / self.kv.n_kv_heads
    }

    /// The selection, if some row of sequences up to this length does not see all of its positions. Otherwise the selected
    /// positions need not be read.
    fn selects(&self, context_tokens: usize) -> Option<Selection> {
        self.selection.filter(|selection| selection.is_partial(context_tokens))
    }

    /// Whether rows see [cells](Attention::cell) that are not adjacent.
    fn lists_cells(&self, context_tokens: usize) -> bool {
        self.kv.pool > 0 || self.selects(context_tokens).is_some()
    }

    /// The most positions, and entries of pools, that a row of sequences up to this length sees.
    fn most_visible(&self, context_tokens: usize) -> usize {
        if self.kv.pool > 0 {
            return self.entries(context_tokens) + self.window_len(context_tokens);
        }
        self.selects(context_tokens).map_or(context_tokens, |selection| selection.most)
    }

    /// The entries of pools that a row sees whose position is the last of the first `seen` ones.
    fn entries(&self, seen: usize) -> usize {
        match self.selection {
            _ if self.kv.pool == 0 => 0,
            Some(selection) => selection.count(seen),
            None => seen / self.kv.pool,
        }
    }

    /// The positions of the window of a row whose position is the last of the first `seen` ones.
    fn window_len(&self, seen: usize) -> usize {
        seen - self.first_visible(seen.saturating_sub(1)).min(seen)
    }

    /// What the row at `position` sees at `index` of the cells that it sees, if these are not adjacent positions. `selected` has its
    /// selected positions or pools, if it does not see all.
    fn cell(&self, position: usize, selected: Option<&[f32]>, index: usize) -> Cell {
        let of_list = |index: usize| selected.map_or(index, |selected| selected[index] as usize);
        let pool = self.kv.pool;
        if pool == 0 {
            return Cell { position: of_list(index), is_entry: false };
        }
        let entries = self.entries(position + 1);
        match index.checked_sub(entries) {
            None => Cell { position: (of_list(index) + 1) * pool - 1, is_entry: true },
            Some(index) => Cell { position: self.first_visible(position) + index, is_entry: false },
        }
    }

    /// The first position that a row at `position` sees, or 0 if positions are selected.
    fn first_visible(&self, position: usize) -> usize {
        self.window.map_or(0, |window| window.first_visible(position))
    }

    /// The positions that the row at `position` of these rows of a sequence sees; the indices of its cells if these are listed.
    fn visible(&self, position: usize, rows: RowsInStep) -> Range<usize> {
        if self.kv.pool > 0 {
            return 0..self.entries(position + 1) + self.window_len(position + 1);
        }
        let seen = self.visible_without_end(position, rows);
        match self.window {
            Some(window) => window.cut(seen),
            None => seen,
        }
    }

    /// The same as if no window ended before the row.
    fn visible_without_end(&self, position: usize, RowsInStep { sight, start, end }: RowsInStep) -> Range<usize> {
        match (sight, self.each_other) {
            (Sight::Before, _) | (Sight::EachOther, EachOther::Before) => {}
            (Sight::EachOther, EachOther::All) => return self.first_visible(position).min(start)..end,
            (Sight::EachOther, EachOther::FromWindow) => return self.first_visible(position)..end,
            (Sight::Canvas, _) => return self.first_visible(start)..end,
        }
        let after = match self.window {
            _ if !self.sees_later => self.selection.map_or(position + 1, |selection| selection.count(position + 1)),
            Some(Window::Last(positions)) => end.min(position + positions),
            Some(Window::Chunk(_) | Window::From(_) | Window::Before(_)) | None => end,
        };
        self.first_visible(position)..after
    }
}
