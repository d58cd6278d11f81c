//! How the vision towers of each projector are built, as data: one file each.
//!
//! What can be read from tensors needs no option: biases, a class token, norms before and after the layers, scales of branches,
//! norms of queries and keys, gates.

mod gemma3;
mod idefics3;
mod internvl;
mod llava;
mod pixtral;
mod qwen2_5vl;
mod qwen2vl;
mod qwen3vl;

use cuelight_shaders::activate::Pointwise;

use super::ImagePart;
use super::division::Division;
use super::parts::Arrangement;
use super::positions::Encoding;
use super::resample::Filter;

/// How the vision towers of one projector are built.
#[derive(Debug)]
pub struct Family {
    /// The value of `clip.projector_type`.
    pub projector: &'static str,
    /// The tower for people.
    pub tower: &'static str,
    /// What the key `clip.use_gelu` means.
    pub gelu: Pointwise,
    /// How the tower encodes positions.
    pub positions: Encoding,
    /// A norm of the rows of patches before they are merged, where the file has it.
    pub norm_before_merging: Option<&'static str>,
    /// How neighbouring patches become one row.
    pub merging: Merging,
    /// Patches of a side of the square that becomes one row, unless the file says otherwise.
    pub merge: usize,
    /// What turns merged rows into embedding rows.
    pub head: &'static [HeadOp],
    /// What turns the merged rows after a deep layer into values for a layer of the text model. The names of its tensors follow
    /// `v.deepstack.` and the number of the layer.
    pub deep_head: &'static [HeadOp],
    /// How images become tiles, for tiles of `side` pixels.
    pub division: fn(&DivisionKeys) -> Division,
    /// How they are resized.
    pub filter: Filter,
    /// What the chat template writes for an image.
    pub placeholder: &'static str,
    /// The token at the rows of an image.
    pub row_token: &'static str,
    /// Whether the rows of an image see each other.
    pub rows_see_each_other: bool,
    /// What takes the place of the placeholder.
    pub parts: fn(&Arrangement) -> Vec<ImagePart>,
}

/// How neighbouring patches become one row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Merging {
    /// Their values one after the other, row by row of the square.
    Joined,
    /// The mean of their values.
    Mean,
}

/// A part of what turns merged rows into embedding rows. Tensors are named without `.weight` and `.bias`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum HeadOp {
    /// A layer norm with this epsilon.
    LayerNorm(&'static str, f32),
    /// A root-mean-square norm with the epsilon of the tower.
    RmsNorm(&'static str),
    /// A matrix, with a bias where the file has one.
    Linear(&'static str),
    /// A matrix, where the file has it, for joined patches in another order: the first value of each patch, then the second one of
    /// each, and so on.
    OptionalByValue(&'static str),
    /// A matrix that is stored with a row for each input.
    LinearOfColumns(&'static str),
    /// The exact GELU.
    Gelu,
}

/// What a file says of the division of images.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DivisionKeys {
    /// Pixels of a side of a tile; of the longest side of one with the proportions of the image.
    pub side: usize,
    /// Pixels of a side of the square that becomes one row.
    pub multiple: usize,
    /// Pixels of the longest side before an image is divided.
    pub longest: Option<usize>,
    /// Fewest tiles.
    pub fewest_tiles: Option<usize>,
    /// Most tiles.
    pub most_tiles: Option<usize>,
    /// Fewest pixels of an image.
    pub fewest_pixels: Option<usize>,
    /// Most pixels of an image.
    pub most_pixels: Option<usize>,
    /// Whether the sides of an image that are longer than a tile are cut off. Otherwise the others are padded.
    pub is_cropped: bool,
}

/// All families.
pub const FAMILIES: &[&Family] = &[
    &idefics3::FAMILY,
    &gemma3::FAMILY,
    &internvl::FAMILY,
    &llava::FAMILY,
    &pixtral::FAMILY,
    &qwen2vl::FAMILY,
    &qwen2_5vl::FAMILY,
    &qwen3vl::FAMILY,
];

/// The family of a projector.
#[must_use]
pub fn of(projector: &str) -> Option<&'static Family> {
    FAMILIES.iter().find(|family| family.projector == projector).copied()
}

/// The projectors of all families, separated by commas.
#[must_use]
pub fn known() -> String {
    FAMILIES.iter().map(|family| family.projector).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn the_page_of_models_names_every_projector() {
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("docs/models.md");
        let page = std::fs::read_to_string(page).unwrap();
        for family in FAMILIES {
            assert!(page.contains(&format!("\n| `{}` |", family.projector)), "{}", family.projector);
        }
    }
}
