//! The options of encoders in directories: what differs between families.

use super::super::rules::{Literal, Rule};
use crate::media::MediaKind;

/// The encoders of some values of `model_type`.
pub(super) struct EncoderFamily {
    /// The values of `model_type` of the whole model.
    pub model_types: &'static [&'static str],
    /// The `model_type` of the encoder, where other encoders belong to the same values of `model_types`.
    pub encoder_type: Option<&'static str>,
    /// What it encodes.
    pub kind: MediaKind,
    /// Whether its values are those of the whole config, without an object of their own.
    pub is_in_root: bool,
    /// The value of `clip.projector_type`.
    pub projector: &'static str,
    /// The activation of its feed-forwards.
    pub activation: Activation,
    /// Numbers of the encoder that configs leave out.
    pub defaults: &'static [(&'static str, f64)],
    /// Whether a directory must say how media are prepared. Others are prepared in one way only.
    pub needs_preprocessor: bool,
    /// What configs must say, as far as they say it.
    pub requires: &'static [&'static [Requirement]],
    /// The keys of a GGUF file, without their section, and where a directory has their values.
    pub keys: &'static [&'static [KeyRule]],
    /// The tensors.
    pub parts: &'static [Part],
}

/// How configs name the activation.
pub(super) struct Activation {
    /// Its key in the config of the encoder.
    pub key: &'static str,
    /// Its values, of which the first is that of configs without the key. Each has the key that a GGUF file has for it, if any.
    pub known: &'static [(&'static str, Option<&'static str>)],
}

/// An object of a directory that has keys. Keys of objects within it are joined by a point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// The whole `config.json`.
    Model,
    /// The config of the encoder in it.
    Encoder,
    /// How media are prepared.
    Preprocessor,
}

/// What a key must be, if it is there.
#[derive(Debug, Clone, Copy)]
pub(super) enum Requirement {
    /// One of these values.
    OneOf(Place, &'static str, &'static [Literal]),
    /// The same as that of the encoder.
    OfEncoder(Place, &'static str, &'static str),
}

/// A key of a GGUF file and where a directory has its value.
pub(super) type KeyRule = (&'static str, Source);

/// Where a directory has a value. Sizes are whole numbers above 0.
#[derive(Debug, Clone, Copy)]
pub(super) enum Source {
    /// This size.
    Fixed(u32),
    /// This text.
    Text(&'static str),
    /// A size of the encoder.
    Size(&'static str),
    /// A number of the encoder.
    Number(&'static str),
    /// One size of the encoder divided by another.
    Quotient(&'static str, &'static str),
    /// A size of the whole model, or this one.
    OfModel(&'static str, u32),
    /// One divided by a number of the whole model, or by this one.
    OneBy(&'static str, f64),
    /// The patches of a side of an image, divided by the root of a number of the whole model, or of this one.
    SideByRoot(&'static str, f64),
    /// The pixels of a side of a square with as many patches as a size of the encoder says.
    SideOfPatches(&'static str),
    /// Three numbers of the preprocessor, for the colors.
    Colors(&'static str),
    /// This number for each color.
    EachColor(f32),
    /// The pixels of as many embedding rows as a size of the preprocessor says. Each size has its place, its name, and its value without
    /// it.
    PixelsOfRows {
        /// The number of rows.
        rows: (&'static str, u32),
        /// Pixels of a side of a patch.
        patch: &'static str,
        /// Patches of a side of the square that becomes one row.
        merge: (Place, &'static str, u32),
    },
    /// A size of the preprocessor.
    Prepared(Prepared),
    /// The same for this many frames, of which an image is one.
    PreparedFrames(Prepared, u32),
    /// What becomes of images that are not square, by the preprocessor.
    AspectRatio,
    /// The layer whose rows the projector reads, or this one. Negative numbers count from the end.
    FeatureLayer(i64),
    /// How many layers have one that sees all rows among them, of the layers that the encoder lists.
    FullLayers(&'static str),
    /// Whether the encoder lists a layer, for each layer.
    Marks(&'static str),
}

/// A size of the preprocessor.
#[derive(Debug, Clone, Copy)]
pub(super) struct Prepared {
    /// Its names, of which the first that is there counts.
    pub keys: &'static [&'static str],
    /// The size without any of them. No key is written if there is none.
    pub default: Option<u32>,
    /// The size of the encoder that it does not exceed.
    pub most: Option<&'static str>,
}

/// The key of a GGUF file with the number of layers.
pub(super) const BLOCK_COUNT: &str = "block_count";
/// The key of a GGUF file with the number of heads.
pub(super) const HEAD_COUNT: &str = "attention.head_count";

/// Tensors whose names start alike.
pub(super) struct Part {
    /// How the names start in a directory, after `model.` or `thinker.` if they start with it. `*` is a number.
    pub stored: &'static [&'static str],
    /// How they start in a GGUF file. `*` is the same number, or the item of `numbers` at this place.
    pub target: &'static str,
    /// A list of numbers of the encoder.
    pub numbers: Option<&'static str>,
    /// The names after the start.
    pub rules: &'static [&'static [Rule]],
    /// Whether a directory with other tensors of this part is refused.
    pub is_complete: bool,
}
