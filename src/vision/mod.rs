//! Images as input of a language model: what a vision tower makes of an image, and what takes its place in the prompt.
//!
//! [`plan()`] reads the headers of a vision tower. Its plan gives an [`ImagePreparation`], which turns the colors of an image into
//! patches and says what stands for them in the prompt, and loads an [`ImageEncoder`], which computes the embedding rows. The
//! language model takes these rows instead of the embeddings of tokens.
//!
//! # Layout, in reading order
//!
//! - [`error`]: why a tower cannot be used, and why an image cannot be prepared
//! - [`family`]: the projectors, one declarative file each; [`sizes`]: the keys of a file, checked
//! - [`canvas`], [`resample`]: an image in another size
//! - [`division`]: an image as tiles; [`patches`]: a tile as patches; [`parts`]: what stands for tiles in the prompt
//! - [`preparation`]: all of this for one image
//! - [`positions`]: what tells a tower where patches are
//! - [`tower`], [`head`]: the ops before and after patches are merged; [`merge`]: the merging between them
//! - [`encoder`]: runs them
//! - [`mod@plan`]: the plan of a tower, and loading by it

pub mod canvas;
pub mod division;
pub mod encoder;
pub mod error;
pub mod family;
pub mod head;
pub mod merge;
pub mod parts;
pub mod patches;
pub mod plan;
pub mod positions;
pub mod preparation;
pub mod resample;
pub mod sizes;
pub mod tower;

use std::path::PathBuf;

use cuelight_shaders::cpu::{ActivationBits, Kernel};
use cuelight_shaders::tuning::Tuning;

use crate::backend::vulkan::VulkanOptions;
use crate::cancel::LoadCancel;
use crate::device::ComputeDevice;
use crate::engine::EngineError;

pub use error::{ImageError, VisionError};
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

/// How a model takes images: what the chat template writes for one, and what takes its place in the prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageSpec {
    /// What the chat template writes for an image (`<start_of_image>`, `<image>`, `[IMG]`).
    pub placeholder: String,
    /// The token that stands at the rows of an image (`<image_soft_token>`, `<image>`).
    pub row_token: String,
    /// Whether the rows of an image see each other (Gemma 3), not only the rows before them.
    pub rows_see_each_other: bool,
    /// Values of an embedding row: the hidden size of the text model.
    pub width: usize,
    /// Most rows of one image, over all of its tiles.
    pub max_rows: usize,
}

/// What takes the place of the placeholder, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ImagePart {
    /// Text in which special tokens are read (`\n\n<start_of_image>`, `<fake_token_around_image><row_1_col_1>`).
    Text(String),
    /// This many embedding rows, in the order of the encoder's output.
    Rows(usize),
}

/// An image as the encoder takes it.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct PreparedImage {
    /// What takes the place of the placeholder.
    pub parts: Vec<ImagePart>,
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
        let rows = |part: &ImagePart| if let ImagePart::Rows(rows) = part { *rows } else { 0 };
        self.parts.iter().map(rows).sum()
    }
}

/// Turns an image into what the encoder takes. It has no weights and may be used by many threads.
pub trait ImagePreparation: Send + Sync {
    /// How the model takes images.
    fn spec(&self) -> &ImageSpec;

    /// Resizes, divides and normalizes an image.
    ///
    /// # Errors
    /// [`ImageError`] when the image has no pixels, fewer than its size says, or a shape that the model does not take.
    fn prepare(&self, image: &RgbImage) -> Result<PreparedImage, ImageError>;
}

/// A vision tower on its device.
pub trait ImageEncoder: Send + 'static {
    /// The embedding rows of an image, [rows, width]. Blocks. `cancel` is checked before each tile.
    ///
    /// # Errors
    /// [`EngineError`] when the device is lost, the files have changed, the image does not belong to this tower, or it was
    /// cancelled.
    fn encode(&mut self, image: &PreparedImage, cancel: &LoadCancel) -> Result<Vec<f32>, EngineError>;
}

/// Which vision tower to load, and how it computes.
#[derive(Debug, Clone)]
pub struct VisionOptions {
    /// A GGUF file with a vision tower (mmproj), or a Hugging Face directory.
    pub path: PathBuf,
    /// The device.
    pub device: ComputeDevice,
    /// Threads for CPU kernels, including the caller's own.
    pub threads: usize,
    /// The instruction set of CPU kernels.
    pub kernel: Kernel,
    /// What CPU kernels adapt to the CPU. It changes no result.
    pub tuning: Tuning,
    /// How a Vulkan device is used.
    pub vulkan: VulkanOptions,
    /// The precision to which integer CPU kernels round the inputs of products.
    pub activation_bits: ActivationBits,
}
