//! What takes the place of an image in the prompt.

use crate::media::MediaPart;

/// The tiles of a prepared image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrangement {
    /// Columns and rows of tiles; 0 if the image is not divided. An overview follows the tiles of a divided image.
    pub tiles: [usize; 2],
    /// Columns and rows of the embedding rows of a tile.
    pub rows: [usize; 2],
    /// Those of the last tile, which is the overview of a divided image.
    pub overview: [usize; 2],
}

impl Arrangement {
    /// The embedding rows of a tile.
    #[must_use]
    pub fn rows_of_tile(&self) -> usize {
        self.rows[0] * self.rows[1]
    }

    /// The number of tiles, with the overview.
    #[must_use]
    pub fn count(&self) -> usize {
        match self.tiles[0] * self.tiles[1] {
            0 => 1,
            tiles => tiles + 1,
        }
    }
}

/// Parts under construction. Neighbouring texts become one, so that tokens may join them.
#[derive(Debug, Default)]
pub struct Parts(Vec<MediaPart>);

impl Parts {
    /// Appends a text.
    #[must_use]
    pub fn text(mut self, text: &str) -> Self {
        match self.0.last_mut() {
            Some(MediaPart::Text(last)) => last.push_str(text),
            Some(MediaPart::Rows(_) | MediaPart::Grid(_)) | None => self.0.push(MediaPart::Text(text.to_owned())),
        }
        self
    }

    /// Appends embedding rows.
    #[must_use]
    pub fn rows(mut self, count: usize) -> Self {
        match self.0.last_mut() {
            Some(MediaPart::Rows(last)) => *last += count,
            Some(MediaPart::Text(_) | MediaPart::Grid(_)) | None => self.0.push(MediaPart::Rows(count)),
        }
        self
    }

    /// Appends the embedding rows of a grid of columns and rows.
    #[must_use]
    pub fn grid(mut self, grid: [usize; 2]) -> Self {
        self.0.push(MediaPart::Grid(grid));
        self
    }

    /// All parts.
    #[must_use]
    pub fn into_parts(self) -> Vec<MediaPart> {
        self.0
    }
}
