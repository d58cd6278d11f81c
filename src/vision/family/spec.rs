//! The options of vision towers: what differs between projectors.

use cuelight_shaders::activate::Pointwise;

use crate::media::MediaPart;
use crate::tower::blocks::{BlockActivation, HeadForm};
use crate::tower::head::HeadOp;
use crate::tower::merge::Merging;
use crate::vision::division::{Division, DivisionKeys};
use crate::vision::parts::Arrangement;
use crate::vision::patches::ColorRange;
use crate::vision::positions::Encoding;
use crate::vision::resample::Filter;

/// How the vision towers of one projector are built.
#[derive(Debug)]
pub struct Family {
    /// The value of `clip.projector_type`.
    pub projector: &'static str,
    /// The tower for people.
    pub tower: &'static str,
    /// What the key `clip.use_gelu` means.
    pub gelu: Pointwise,
    /// The activation of files that state none.
    pub activation: BlockActivation,
    /// The range of colors that it takes.
    pub colors: ColorRange,
    /// Whether it has layers of attention.
    pub has_layers: bool,
    /// How heads attend.
    pub heads_form: HeadForm,
    /// How the tower encodes positions.
    pub positions: Encoding,
    /// A norm of the rows of patches before they are merged, where the file has it, and its epsilon unless it is that of the tower.
    pub norm_before_merging: Option<(&'static str, Option<f32>)>,
    /// How neighbouring patches become one row.
    pub merging: Merging,
    /// Patches of a side of the square that becomes one row, unless the file says otherwise.
    pub merge: usize,
    /// Whether such a square is one patch of the tower.
    pub merges_pixels: bool,
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
    pub parts: fn(&Arrangement) -> Vec<MediaPart>,
}
