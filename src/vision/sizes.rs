//! The sizes of a vision tower, from the keys of its file.

use cuelight_shaders::activate::Pointwise;

use super::division::DivisionKeys;
use super::family::Family;
use super::patches::Patches;
use super::positions::Encoding;
use super::resample::Filter;
use crate::checkpoint::Checkpoint;
use crate::load::LoadError;
use crate::media::MediaKind;
use crate::tower::blocks::BlockActivation;
use crate::tower::keys::Keys;

/// The sizes of a vision tower.
#[derive(Debug, Clone, PartialEq)]
pub struct TowerSizes {
    /// How images become patches.
    pub patches: Patches,
    /// Patches of a side of a tile.
    pub grid: usize,
    /// Values of a row.
    pub hidden: usize,
    /// Layers that are computed.
    pub layers: usize,
    /// Whether these are all layers, so that the norm after the last one follows.
    pub has_last_layer: bool,
    /// Heads of attention, which divide `hidden`.
    pub heads: usize,
    /// Heads of keys and values, which divide `heads`.
    pub kv_heads: usize,
    /// The epsilon of norms.
    pub epsilon: f32,
    /// The activation of the feed-forwards.
    pub activation: BlockActivation,
    /// How images become tiles.
    pub division: DivisionKeys,
    /// How they are resized, where the file says so.
    pub filter: Option<Filter>,
    /// The windows within which most layers attend.
    pub windows: Option<WindowSizes>,
    /// The layers after which rows are taken for the first layers of the text model.
    pub deep_layers: Vec<usize>,
}

/// The windows within which most layers attend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WindowSizes {
    /// Squares that become one row, of a side of a window.
    pub squares: usize,
    /// One of this many layers attends to all rows.
    pub every: usize,
}

/// Most patches of a side of a tile.
const MOST_GRID: usize = 256;
/// Most patches of a side of a square that becomes one row.
const MOST_MERGE: usize = 16;
/// Most pixels of a side of a patch.
const MOST_PATCH: usize = 256;
/// Pixels of a side of a window, where the file does not say so.
const WINDOW_PIXELS: usize = 112;
/// Most tiles of an image.
const MOST_TILES: usize = 64;

impl TowerSizes {
    /// Reads and checks the keys of a file.
    ///
    /// # Errors
    /// [`LoadError::Gguf`] when a key is missing, [`LoadError::Tower`] when it has a value that is not computed.
    pub fn read(file: &dyn Checkpoint, family: &Family) -> Result<Self, LoadError> {
        let keys = VisionKeys(Keys::new(file, MediaKind::Image));
        let stored_side = keys.0.within("patch_size", 1, MOST_PATCH)?;
        let stored_merge = keys.merge()?.unwrap_or(family.merge);
        let [side, merge] =
            if family.merges_pixels { [stored_side * stored_merge, 1] } else { [stored_side, stored_merge] };
        let image = keys.0.within("image_size", side, MOST_GRID * side)?;
        let grid = image / side;
        // The size says nothing where a table is fitted or both axes have tables.
        let is_stored = !matches!(family.positions, Encoding::Fitted(..) | Encoding::Axes(_));
        if is_stored && !grid.is_multiple_of(merge) {
            return Err(keys.0.fault("image_size", image, format!("a multiple of {merge} patches of {side} pixels")));
        }
        let hidden = keys.0.within("embedding_length", 1, 1 << 16)?;
        let (heads, (layers, has_last_layer)) = match family.has_layers {
            true => (keys.heads(hidden, family.positions)?, keys.layers()?),
            false => (1, (0, true)),
        };
        let colors = [keys.colors("image_mean")?, keys.colors("image_std")?];
        let [mean, deviation] = family.colors.normalized(colors);
        Ok(TowerSizes {
            patches: Patches { side, merge, mean, deviation },
            grid,
            hidden,
            layers,
            has_last_layer,
            heads,
            kv_heads: keys.kv_heads(heads)?,
            epsilon: file.f32(&keys.0.key("attention.layer_norm_epsilon"))?,
            activation: keys.activation(family)?,
            division: DivisionKeys { patch: side, ..keys.division(grid * side, merge * side)? },
            filter: keys.filter()?,
            windows: keys.windows(merge * side)?,
            deep_layers: keys.deep_layers(layers)?,
        })
    }

    /// Pixels of a side of a tile.
    #[must_use]
    pub fn image(&self) -> usize {
        self.grid * self.patches.side
    }
}

/// The keys of a vision tower.
struct VisionKeys<'a>(Keys<'a>);

impl VisionKeys<'_> {
    /// Patches of a side of the square that becomes one row, where the file says so.
    fn merge(&self) -> Result<Option<usize>, LoadError> {
        for name in ["projector.scale_factor", "spatial_merge_size"] {
            if self.0.optional(name)?.is_some() {
                return self.0.within(name, 1, MOST_MERGE).map(Some);
            }
        }
        Ok(None)
    }

    /// The number of heads. Rotations need heads of whole quarters.
    fn heads(&self, hidden: usize, positions: Encoding) -> Result<usize, LoadError> {
        const NAME: &str = "attention.head_count";
        let heads = self.0.within(NAME, 1, hidden)?;
        let quarters = if positions.turns().is_some() { 4 } else { 1 };
        if hidden.is_multiple_of(heads * quarters) {
            Ok(heads)
        } else {
            Err(self.0.fault(NAME, heads, format!("a divisor of {}", hidden / quarters)))
        }
    }

    /// The number of heads of keys and values, as many as those of queries unless the file says otherwise.
    fn kv_heads(&self, heads: usize) -> Result<usize, LoadError> {
        const NAME: &str = "attention.head_count_kv";
        match self.0.optional(NAME)? {
            None => Ok(heads),
            Some(found) if found > 0 && heads.is_multiple_of(found) => Ok(found),
            Some(found) => Err(self.0.fault(NAME, found, format!("a divisor of {heads}"))),
        }
    }

    /// How images are resized, where the file says so.
    fn filter(&self) -> Result<Option<Filter>, LoadError> {
        const NAME: &str = "image_resize_algo";
        match self.0.file.optional_str(&self.0.key(NAME))? {
            None => Ok(None),
            Some("bilinear") => Ok(Some(Filter::Bilinear)),
            Some("bicubic") => Ok(Some(Filter::Bicubic)),
            Some(found) => Err(self.0.fault(NAME, format!("{found:?}"), "\"bilinear\" or \"bicubic\"".to_owned())),
        }
    }

    /// Three numbers, of which a deviation is not 0.
    fn colors(&self, name: &str) -> Result<[f32; 3], LoadError> {
        let values = self.0.file.floats(&self.0.key(name))?;
        let is_usable =
            |values: &[f32; 3]| values.iter().all(|value| value.is_finite() && (name != "image_std" || *value > 0.0));
        let usable = values.first_chunk().filter(|values| is_usable(values)).copied();
        usable.ok_or_else(|| self.0.fault(name, format!("{values:?}"), "a number for each of three colors".to_owned()))
    }

    /// The number of layers that are computed: all, or those before the rows that the projector reads. And whether these are all.
    fn layers(&self) -> Result<(usize, bool), LoadError> {
        let all = self.0.within("block_count", 1, 1 << 10)?;
        match self.0.file.optional_integers(&self.0.key("feature_layer"))?.as_deref() {
            None | Some([]) => Ok((all, true)),
            Some([layer]) if (1..=all as i64).contains(layer) => Ok((*layer as usize, *layer == all as i64)),
            Some(layers) => {
                Err(self.0.fault("feature_layer", format!("{layers:?}"), format!("one of the {all} layers")))
            }
        }
    }

    fn activation(&self, family: &Family) -> Result<BlockActivation, LoadError> {
        let is_set = |name: &str| self.0.file.optional_bool(name).map(Option::unwrap_or_default);
        let activation = match (is_set("clip.use_gelu")?, is_set("clip.use_silu")?) {
            (true, _) => BlockActivation::Pointwise(family.gelu),
            (false, true) => BlockActivation::Pointwise(Pointwise::Silu),
            (false, false) => family.activation,
        };
        Ok(match (activation, self.gate_limit()?) {
            (BlockActivation::Pointwise(Pointwise::Silu), limit @ 1..) => BlockActivation::ClampedSilu(limit),
            (activation, _) => activation,
        })
    }

    /// The limit of the inputs of SiLU and of what it gates; 0 if there is none.
    fn gate_limit(&self) -> Result<u16, LoadError> {
        const NAME: &str = "swiglu_clamp";
        let limit = self.0.file.optional_f32(&self.0.key(NAME))?.unwrap_or_default();
        match limit as u16 {
            whole if f32::from(whole) == limit => Ok(whole),
            _ => Err(self.0.fault(NAME, limit, format!("a whole number up to {}", u16::MAX))),
        }
    }

    /// Whether the sides of an image that are longer than a tile are cut off. Otherwise the others are padded.
    fn is_cropped(&self) -> Result<bool, LoadError> {
        const NAME: &str = "image_aspect_ratio";
        match self.0.file.optional_str(&self.0.key(NAME))? {
            None | Some("pad") => Ok(false),
            Some("square") => Ok(true),
            Some(found) => Err(self.0.fault(NAME, format!("{found:?}"), "\"pad\" or \"square\"".to_owned())),
        }
    }

    /// The windows, whose side is a multiple of the pixels of a square.
    fn windows(&self, square: usize) -> Result<Option<WindowSizes>, LoadError> {
        let Some(every) = self.0.optional("n_wa_pattern")?.filter(|every| *every > 0) else { return Ok(None) };
        let pixels = self.0.optional("window_size")?.filter(|pixels| *pixels > 0).unwrap_or(WINDOW_PIXELS);
        Ok(Some(WindowSizes { squares: (pixels / square).max(1), every }))
    }

    /// The layers before the last one that are marked as deep.
    fn deep_layers(&self, layers: usize) -> Result<Vec<usize>, LoadError> {
        const NAME: &str = "is_deepstack_layers";
        if self.0.file.value(&self.0.key(NAME)).is_none() {
            return Ok(Vec::new());
        }
        let marks = self.0.file.bools(&self.0.key(NAME))?;
        let deep: Vec<usize> = (0..marks.len()).filter(|layer| marks[*layer]).collect();
        match deep.iter().find(|layer| **layer + 1 >= layers) {
            Some(layer) => {
                Err(self.0.fault(NAME, format!("true for layer {layer}"), format!("one before the last of {layers}")))
            }
            None => Ok(deep),
        }
    }

    fn division(&self, side: usize, multiple: usize) -> Result<DivisionKeys, LoadError> {
        let keys = DivisionKeys {
            side,
            patch: 0,
            multiple,
            longest: self.0.optional("preproc_image_size")?,
            fewest_tiles: self.0.optional("preproc_min_tiles")?,
            most_tiles: self.0.optional("preproc_max_tiles")?,
            fewest_pixels: self.0.optional("image_min_pixels")?,
            most_pixels: self.0.optional("image_max_pixels")?,
            is_cropped: self.is_cropped()?,
        };
        let limits =
            [("preproc_image_size", keys.longest, 1 << 16), ("preproc_max_tiles", keys.most_tiles, MOST_TILES)];
        match limits.iter().find(|(_, value, most)| value.is_some_and(|value| value == 0 || value > *most)) {
            Some((name, value, most)) => {
                Err(self.0.fault(name, value.unwrap_or_default(), format!("between 1 and {most}")))
            }
            None => Ok(keys),
        }
    }
}
