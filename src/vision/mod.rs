//! Images as input of a language model: what a vision tower makes of an image, and what takes its place in the prompt.
//!
//! [`plan()`] reads the headers of a vision tower. Its plan gives an [`ImagePreparation`], which turns the colors of an image into
//! patches and says what stands for them in the prompt, and loads a [`MediaEncoder`](crate::projector::MediaEncoder), which
//! computes the embedding rows. The language model takes these rows instead of the embeddings of tokens.
//!
//! # Layout, in reading order
//!
//! - [`error`]: why an image cannot be prepared
//! - [`family`]: the projectors, one declarative file each; [`sizes`]: the keys of a file, checked
//! - [`canvas`], [`resample`]: an image in another size
//! - [`division`]: an image as tiles; [`borders`]: a tile around an image; [`patches`]: a tile as patches; [`parts`]: what stands for tiles in the prompt
//! - [`preparation`]: all of this for one image
//! - [`positions`]: what tells a tower where patches are, [`place_tables`]: its tables on the host; [`rows`]: the order of patches, and windows of them
//! - [`tower`]: the ops before patches are merged; [`grid_convolution`]: what runs on the host between some of them
//! - [`encoder`]: runs them
//! - [`mod@plan`]: the plan of a tower, and loading by it

pub mod borders;
pub mod canvas;
pub mod division;
pub mod encoder;
pub mod error;
pub mod family;
pub mod grid_convolution;
pub mod parts;
pub mod patches;
pub mod place_tables;
pub mod plan;
pub mod positions;
pub mod preparation;
pub mod resample;
pub mod rows;
pub mod sizes;
pub mod tower;

use crate::media::{MediaPart, MediaSpec};

pub use encoder::VisionEncoder;
pub use error::ImageError;
pub use plan::{VisionPlan, plan};

/// Colors of an image: 8 bits each of red, green and blue for every pixel, row by row from the top left.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RgbImage {
    /// Pixels of a row.
    pub width: u32,
    /// Rows.
    pub height: u32,
    /// [height, width, 3]: red, green and blue.
    pub pixels: Vec<u8>,
}

/// An image as the encoder takes it.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct PreparedImage {
    /// What takes the place of the placeholder.
    pub parts: Vec<MediaPart>,
    /// What the encoder computes, one tile after the other.
    pub tiles: Vec<Tile>,
}

/// A part of an image that the encoder computes at once.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Tile {
    /// Patches of a row, and rows of patches.
    pub(crate) grid: [usize; 2],
    /// [patches, values of a patch]: the normalized colors, in the order in which the encoder computes the patches.
    pub(crate) patches: Vec<f32>,
}

impl Tile {
    /// A part of an image with its patches.
    #[must_use]
    pub fn new(grid: [usize; 2], patches: Vec<f32>) -> Self {
        Tile { grid, patches }
    }

    /// Patches of a row, and rows of patches.
    #[must_use]
    pub fn grid(&self) -> [usize; 2] {
        self.grid
    }

    /// [patches, values of a patch]: the normalized colors, in the order in which the encoder computes the patches. A patch has
    /// its red values row by row, then its green and its blue ones.
    #[must_use]
    pub fn patches(&self) -> &[f32] {
        &self.patches
    }
}

impl PreparedImage {
    /// The number of embedding rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.parts.iter().map(MediaPart::rows).sum()
    }
}

/// Turns an image into what the encoder takes. It has no weights and may be used by many threads.
pub trait ImagePreparation: Send + Sync {
    /// How the model takes images.
    fn spec(&self) -> &MediaSpec;

    /// Resizes, divides and normalizes an image.
    ///
    /// # Errors
    /// [`ImageError`] when the image has no pixels, fewer than its size says, or a shape that the model does not take.
    fn prepare(&self, image: &RgbImage) -> Result<PreparedImage, ImageError>;
}
