//! Media in a prompt, images and audio: which embedding rows stand at which of its positions.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use cuelight_engine::engine::{BLOCK_TOKENS, EmbeddingRows};
use cuelight_engine::media::{MediaKind, MediaPart};
use sha2::{Digest, Sha256};

/// What takes the place of a media item in the prompt.
#[derive(Debug, Clone, PartialEq)]
pub struct MediaParts {
    /// What it is.
    pub kind: MediaKind,
    /// Texts and rows.
    pub parts: Arc<[MediaPart]>,
}

/// The embedding rows of a media item, and their identity: equal hashes mean equal rows, also across processes.
#[derive(Clone, PartialEq)]
pub struct EncodedMedia {
    /// [rows, width].
    values: Arc<[f32]>,
    width: usize,
    hash: [u8; 32],
}

impl EncodedMedia {
    /// Rows of `width` values each.
    ///
    /// # Panics
    /// When `values` is not a whole number of rows.
    #[must_use]
    pub fn new(values: Arc<[f32]>, width: usize) -> Self {
        assert!(width > 0 && values.len().is_multiple_of(width), "{} values are not rows of {width}", values.len());
        let mut hash = Sha256::new_with_prefix(b"cuelight media rows");
        hash.update((width as u64).to_le_bytes());
        for values in values.chunks(1024) {
            let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            hash.update(&bytes);
        }
        EncodedMedia { width, hash: hash.finalize().into(), values }
    }

    /// The number of rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.values.len() / self.width
    }

    /// Values of a row.
    #[must_use]
    pub fn width(&self) -> usize {
        self.width
    }

    /// Bytes of the rows.
    #[must_use]
    pub fn bytes(&self) -> usize {
        size_of_val(&*self.values)
    }
}

impl fmt::Debug for EncodedMedia {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EncodedMedia({} rows of {})", self.rows(), self.width)
    }
}

/// Consecutive rows of a media item at consecutive positions of a prompt.
#[derive(Debug, Clone, PartialEq)]
pub struct MediaRun {
    /// The position of the first row.
    pub position: usize,
    /// The rows of the media item.
    pub rows: Range<usize>,
    /// The media item.
    pub media: EncodedMedia,
    /// Columns and rows of the grid that they are, for a model that rotates them by both.
    pub grid: Option<[usize; 2]>,
}

impl MediaRun {
    /// The positions of its rows.
    #[must_use]
    pub fn positions(&self) -> Range<usize> {
        self.position..self.position + self.rows.len()
    }

    /// By how much the positions after it are smaller for the rotation: a grid takes as many as its longer side.
    fn shortens(&self) -> usize {
        self.grid.map_or(0, |[columns, rows]| self.rows.len() - columns.max(rows).min(self.rows.len()))
    }

    /// The positions by which the row at `position` is rotated, if the rows begin at `start` there.
    fn rope_position(&self, position: usize, start: usize) -> [u32; 3] {
        let row = position - self.position;
        let [columns, _] = self.grid.unwrap_or([1, 1]);
        [start, start + row / columns.max(1), start + row % columns.max(1)].map(|position| position as u32)
    }

    /// Its rows at these positions, counted from the first of the positions. `None` when there are none.
    fn within(&self, positions: &Range<usize>) -> Option<EmbeddingRows> {
        let own = self.positions();
        let (from, to) = (own.start.max(positions.start), own.end.min(positions.end));
        let first = from.checked_sub(positions.start)?;
        let row = |position: usize| self.rows.start + position - own.start;
        let rows = || EmbeddingRows { first, values: self.media.values.clone(), range: row(from)..row(to) };
        (from < to).then(rows)
    }
}

/// What the rows of media in a KV block add to its identity.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MediaKey(pub [u8; 32]);

impl fmt::Debug for MediaKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MediaKey({:02x}{:02x}…)", self.0[0], self.0[1])
    }
}

/// How many rows the next step may have of a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NextRows {
    /// Any number.
    Any,
    /// At most this many, behind which rows of a media item begin that see each other.
    AtMost(usize),
    /// Exactly this many: the rows of a media item that see each other.
    Exactly(usize),
}

/// The media of a prompt. Cheap to clone.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct PromptMedia(Option<Arc<Media>>);

#[derive(Debug, PartialEq)]
struct Media {
    /// By position.
    runs: Vec<MediaRun>,
    /// Whether the rows of a run see each other.
    rows_see_each_other: bool,
    /// The keys of the blocks that have rows of media.
    keys: BTreeMap<usize, MediaKey>,
}

impl PromptMedia {
    /// The runs of a prompt, by ascending positions without overlaps.
    #[must_use]
    pub fn new(runs: Vec<MediaRun>, rows_see_each_other: bool) -> Self {
        debug_assert!(runs.is_sorted_by(|one, next| one.positions().end <= next.position), "runs overlap");
        if runs.is_empty() {
            return PromptMedia(None);
        }
        let keys = keys(&runs, rows_see_each_other);
        PromptMedia(Some(Arc::new(Media { runs, rows_see_each_other, keys })))
    }

    /// Whether the prompt has no media item.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// The runs, by position.
    #[must_use]
    pub fn runs(&self) -> &[MediaRun] {
        self.0.as_ref().map_or(&[], |media| &media.runs)
    }

    /// The number of positions with rows of media.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.runs().iter().map(|run| run.rows.len()).sum()
    }

    /// The most rows that must be in one step.
    #[must_use]
    pub fn most_rows_at_once(&self) -> usize {
        let together = self.0.iter().filter(|media| media.rows_see_each_other);
        together.flat_map(|media| &media.runs).map(|run| run.rows.len()).max().unwrap_or(0)
    }

    /// What media add to the identity of block number `index` of the prompt. `None` when it has no row of a media item.
    #[must_use]
    pub fn key_of_block(&self, index: usize) -> Option<MediaKey> {
        self.0.as_ref()?.keys.get(&index).copied()
    }

    /// How many rows may be computed next, from `position` on.
    #[must_use]
    pub fn next_rows(&self, position: usize) -> NextRows {
        let Some(media) = self.0.as_ref().filter(|media| media.rows_see_each_other) else { return NextRows::Any };
        match media.runs.iter().map(MediaRun::positions).find(|run| run.end > position) {
            None => NextRows::Any,
            Some(run) if run.start > position => NextRows::AtMost(run.start - position),
            // Rows before this one are in the cache already, where they were computed with all rows of the media item.
            Some(run) => NextRows::Exactly(run.end - position),
        }
    }

    /// The positions in time, and of the row and the column of a media item, by which the model rotates the rows at these positions.
    /// Empty if these are the positions themselves.
    ///
    /// Source: Wang et al. 2024, "Qwen2-VL" (M-RoPE).
    #[must_use]
    pub fn rope_positions(&self, positions: Range<usize>) -> Vec<[u32; 3]> {
        if self.runs().iter().all(|run| run.grid.is_none()) {
            return Vec::new();
        }
        positions.map(|position| self.rope_position(position)).collect()
    }

    fn rope_position(&self, position: usize) -> [u32; 3] {
        let mut shorter = 0;
        for run in self.runs().iter().take_while(|run| run.position <= position) {
            if run.grid.is_some() && run.positions().contains(&position) {
                return run.rope_position(position, run.position - shorter);
            }
            shorter += run.shortens();
        }
        [(position - shorter) as u32; 3]
    }

    /// The embedding rows at these positions.
    #[must_use]
    pub fn rows_at(&self, positions: Range<usize>) -> Vec<EmbeddingRows> {
        self.runs().iter().filter_map(|run| run.within(&positions)).collect()
    }
}

/// The key of each block that has rows of media. Rows that see each other depend on all rows of their run, so the key of each of
/// its blocks takes in the whole media item.
fn keys(runs: &[MediaRun], rows_see_each_other: bool) -> BTreeMap<usize, MediaKey> {
    let mut hashes: BTreeMap<usize, Sha256> = BTreeMap::new();
    for run in runs {
        let MediaRun { position, rows, media, grid } = run;
        let positions = run.positions();
        for block in position / BLOCK_TOKENS..positions.end.div_ceil(BLOCK_TOKENS) {
            let hash = hashes.entry(block).or_insert_with(|| Sha256::new_with_prefix([u8::from(rows_see_each_other)]));
            hash.update(media.hash);
            // Relative to the block, so that the same media item at another place of another prompt has the same key there.
            let offset = *position as i64 - (block * BLOCK_TOKENS) as i64;
            let columns = grid.map_or(0, |[columns, _]| columns as i64);
            for number in [offset, rows.start as i64, rows.end as i64, columns] {
                hash.update(number.to_le_bytes());
            }
        }
    }
    hashes.into_iter().map(|(block, hash)| (block, MediaKey(hash.finalize().into()))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn media(value: f32, rows: usize) -> EncodedMedia {
        EncodedMedia::new(vec![value; rows * 2].into(), 2)
    }

    fn run(position: usize, rows: Range<usize>, media: &EncodedMedia) -> MediaRun {
        MediaRun { position, rows, media: media.clone(), grid: None }
    }

    #[test]
    fn rows_of_a_grid_are_rotated_by_their_row_and_column() {
        let item = media(1.0, 6);
        let grid = |position| MediaRun { grid: Some([3, 2]), ..run(position, 0..6, &item) };
        let media = PromptMedia::new(vec![grid(2), grid(9)], false);
        let first = [[2, 2, 2], [2, 2, 3], [2, 2, 4], [2, 3, 2], [2, 3, 3], [2, 3, 4]];
        let expected = [
            &[[0; 3], [1; 3]][..],
            &first,
            &[[5; 3]],
            &first.map(|three| three.map(|one| one + 4)),
            &[[9; 3], [10; 3]],
        ];
        assert_eq!(media.rope_positions(0..17), expected.concat());
        assert_eq!(media.rope_positions(7..10), expected.concat()[7..10]);
        assert_eq!(media.rope_positions(100..101), [[94; 3]]);
        assert!(PromptMedia::new(vec![run(2, 0..6, &item)], false).rope_positions(0..9).is_empty());
    }

    #[test]
    fn rows_are_found_by_their_positions() {
        let media = media(1.0, 30);
        let media = PromptMedia::new(vec![run(5, 0..10, &media), run(20, 10..30, &media)], false);
        let found = |positions| -> Vec<(usize, Range<usize>)> {
            media.rows_at(positions).into_iter().map(|rows| (rows.first, rows.range)).collect()
        };
        assert_eq!(found(0..5), []);
        assert_eq!(found(0..6), [(5, 0..1)]);
        assert_eq!(found(7..25), [(0, 2..10), (13, 10..15)]);
        assert_eq!(found(40..50), []);
        assert_eq!((media.rows(), media.most_rows_at_once()), (30, 0));
        assert_eq!(media.next_rows(7), NextRows::Any);
    }

    #[test]
    fn rows_that_see_each_other_are_computed_at_once() {
        let media = media(1.0, 10);
        let media = PromptMedia::new(vec![run(5, 0..10, &media)], true);
        assert_eq!(media.next_rows(0), NextRows::AtMost(5));
        assert_eq!(media.next_rows(5), NextRows::Exactly(10));
        assert_eq!(media.next_rows(8), NextRows::Exactly(7), "behind rows of the cache");
        assert_eq!(media.next_rows(15), NextRows::Any);
        assert_eq!(media.most_rows_at_once(), 10);
    }

    #[test]
    fn only_blocks_with_rows_have_keys_and_these_depend_on_the_media_its_rows_and_their_place() {
        let (one, two) = (media(1.0, 40), media(2.0, 40));
        let keys = |runs: Vec<MediaRun>| {
            let media = PromptMedia::new(runs, false);
            (0..4).map(|block| media.key_of_block(block)).collect::<Vec<_>>()
        };
        let first = keys(vec![run(18, 0..20, &one)]);
        assert_eq!(first.iter().map(Option::is_some).collect::<Vec<_>>(), [false, true, true, false]);
        assert_eq!(first, keys(vec![run(18, 0..20, &media(1.0, 40))]));
        for other in [run(18, 0..20, &two), run(19, 0..20, &one), run(18, 1..21, &one), run(18, 0..21, &one)] {
            let other = keys(vec![other]);
            assert!(other[1] != first[1] && other[2] != first[2]);
        }
        assert_ne!(PromptMedia::new(vec![run(18, 0..20, &one)], true).key_of_block(1), first[1]);
        assert!(PromptMedia::new(Vec::new(), true).is_empty());
    }
}
