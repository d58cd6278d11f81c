//! The keys that a GGUF file of an encoder has.

use serde_json::Value as Json;

use super::super::error::HuggingFaceError;
use super::config::EncoderConfig;
use super::spec::{Activation, BLOCK_COUNT, EncoderFamily, Place, Prepared, Source};
use crate::format::gguf::Value;
use crate::media::MediaKind;

/// What the keys of a kind of encoder start with, and the key that says that a file has one.
fn names(kind: MediaKind) -> [&'static str; 2] {
    match kind {
        MediaKind::Image => ["clip.vision", "clip.has_vision_encoder"],
        MediaKind::Audio => ["clip.audio", "clip.has_audio_encoder"],
    }
}

/// All keys of an encoder of a directory. The keys of one of several name its projector in its own section.
pub(super) fn keys(
    config: &EncoderConfig,
    family: &EncoderFamily,
    is_only: bool,
) -> Result<Vec<(String, Value)>, HuggingFaceError> {
    let [section, has_encoder] = names(family.kind);
    let projector = if is_only { "clip" } else { section };
    let mut keys: Vec<(String, Value)> =
        vec![(has_encoder.to_owned(), true.into()), (format!("{projector}.projector_type"), family.projector.into())];
    let sources = Sources { config, layers: size_of(config, family, BLOCK_COUNT)? };
    for (key, source) in family.keys.iter().copied().flatten() {
        if let Some(value) = sources.value(*source)? {
            keys.push((format!("{section}.{key}"), value));
        }
    }
    if let Some(key) = activation(config, &family.activation)? {
        keys.push((key.to_owned(), true.into()));
    }
    Ok(keys)
}

/// The size of the encoder that becomes a key.
pub(super) fn size_of(config: &EncoderConfig, family: &EncoderFamily, key: &str) -> Result<u32, HuggingFaceError> {
    let mut rules = family.keys.iter().copied().flatten();
    match rules.find(|(name, _)| *name == key) {
        Some((_, Source::Size(key))) => config.size(key),
        _ => Ok(0),
    }
}

/// The key of the activation, if GGUF files have one.
fn activation(config: &EncoderConfig, activation: &Activation) -> Result<Option<&'static str>, HuggingFaceError> {
    let Some(found) = config.get(Place::Encoder, activation.key) else {
        return Ok(activation.known.first().and_then(|(_, key)| *key));
    };
    let known = activation.known.iter().find(|(name, _)| *found == **name);
    let names = || activation.known.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(" or ");
    let key = known.map(|(_, key)| *key);
    key.ok_or_else(|| config.wrong(Place::Encoder, activation.key, found, names()))
}

/// Where values come from.
struct Sources<'a> {
    config: &'a EncoderConfig,
    /// The layers of the encoder.
    layers: u32,
}

impl Sources<'_> {
    /// The value of a key; `None` for one that is left out.
    fn value(&self, source: Source) -> Result<Option<Value>, HuggingFaceError> {
        Ok(match source {
            Source::Fixed(size) => Some(size.into()),
            Source::Text(text) => Some(text.into()),
            Source::Size(key) => Some(self.config.size(key)?.into()),
            Source::Number(key) => Some((self.config.number(key)? as f32).into()),
            Source::Quotient(key, by) => Some(self.quotient(key, by)?.into()),
            Source::OfModel(key, default) => {
                Some(self.config.optional_size(Place::Model, key)?.unwrap_or(default).into())
            }
            Source::OneBy(key, default) => Some(((1.0 / self.of_model(key, default)?) as u32).into()),
            Source::SideByRoot(key, default) => Some(self.side_by_root(self.of_model(key, default)?)?.into()),
            Source::SideOfPatches(key) => Some(self.side_of_patches(key)?.into()),
            Source::Colors(key) => Some(self.colors(key)?[..].into()),
            Source::EachColor(value) => Some([value; 3][..].into()),
            Source::PixelsOfRows { rows, patch, merge } => Some(self.pixels_of_rows(rows, patch, merge)?.into()),
            Source::Prepared(prepared) => self.prepared(prepared)?.map(Value::from),
            Source::PreparedFrames(prepared, frames) => self.prepared(prepared)?.map(|size| (size / frames).into()),
            Source::AspectRatio => self.aspect_ratio().map(Value::from),
            Source::FeatureLayer(default) => self.feature_layer(default)?.map(|layer| [layer][..].into()),
            Source::FullLayers(key) => Some(self.full_layers(key)?.into()),
            Source::Marks(key) => self.marks(key)?.map(|marks| marks[..].into()),
        })
    }

    fn of_model(&self, key: &str, default: f64) -> Result<f64, HuggingFaceError> {
        Ok(self.config.optional_number(Place::Model, key)?.unwrap_or(default))
    }

    fn quotient(&self, key: &str, by: &str) -> Result<u32, HuggingFaceError> {
        let (size, divisor) = (self.config.size(key)?, self.config.size(by)?);
        if size.is_multiple_of(divisor) {
            Ok(size / divisor)
        } else {
            Err(self.config.wrong(Place::Encoder, key, &size.into(), format!("a multiple of {divisor}")))
        }
    }

    fn side_by_root(&self, rows: f64) -> Result<u32, HuggingFaceError> {
        let patches = self.config.size("image_size")? / self.config.size("patch_size")?;
        Ok((f64::from(patches) / rows.sqrt()) as u32)
    }

    fn side_of_patches(&self, key: &str) -> Result<u32, HuggingFaceError> {
        let (patches, pixels) = (self.config.size(key)?, self.config.size("patch_size")?);
        let side = patches.isqrt();
        if side.saturating_mul(side) == patches {
            Ok(side.saturating_mul(pixels))
        } else {
            Err(self.config.wrong(Place::Encoder, key, &patches.into(), "the square of a whole number"))
        }
    }

    fn pixels_of_rows(
        &self,
        (rows, default_rows): (&str, u32),
        patch: &str,
        (place, merge, default_merge): (Place, &str, u32),
    ) -> Result<u32, HuggingFaceError> {
        let rows = self.config.optional_size(Place::Preprocessor, rows)?.unwrap_or(default_rows);
        let merge = self.config.optional_size(place, merge)?.unwrap_or(default_merge);
        let side = self.config.size(patch)?.saturating_mul(merge);
        Ok(side.saturating_mul(side).saturating_mul(rows))
    }

    fn colors(&self, key: &str) -> Result<[f32; 3], HuggingFaceError> {
        let place = Place::Preprocessor;
        let found = self.config.get(place, key).ok_or_else(|| self.config.missing(place, key))?;
        let numbers =
            || -> Option<Vec<f32>> { found.as_array()?.iter().map(|one| Some(one.as_f64()? as f32)).collect() };
        let colors = numbers().and_then(|numbers| <[f32; 3]>::try_from(numbers).ok());
        colors.ok_or_else(|| self.config.wrong(place, key, found, "three numbers"))
    }

    fn prepared(&self, prepared: Prepared) -> Result<Option<u32>, HuggingFaceError> {
        let place = Place::Preprocessor;
        let Some(key) = prepared.keys.iter().find(|key| self.config.get(place, key).is_some()) else {
            return Ok(prepared.default);
        };
        let found = self.config.optional_size(place, key)?;
        let most = prepared.most.map(|most| self.config.size(most)).transpose()?;
        match (found, prepared.most.zip(most)) {
            (Some(size), Some((name, most))) if size > most => {
                Err(self.config.wrong(place, key, &size.into(), format!("at most {most}, {name} of config.json")))
            }
            _ => Ok(found),
        }
    }

    fn aspect_ratio(&self) -> Option<&'static str> {
        let is_set = |key: &str| self.config.get(Place::Preprocessor, key) == Some(&Json::Bool(true));
        is_set("do_center_crop").then(|| if is_set("do_pad") { "pad" } else { "square" })
    }

    /// The layer whose rows the projector reads, where it is not the last.
    fn feature_layer(&self, default: i64) -> Result<Option<u32>, HuggingFaceError> {
        const KEY: &str = "vision_feature_layer";
        let wanted = || format!("one of the {} layers", self.layers);
        let stated = self.config.get(Place::Model, KEY);
        let layer = stated.map_or(Some(default), Json::as_i64);
        let from_start = layer.map(|layer| if layer < 0 { i64::from(self.layers) + layer + 1 } else { layer });
        let layer = from_start.and_then(|layer| u32::try_from(layer).ok());
        match layer.filter(|layer| (1..=self.layers).contains(layer)) {
            Some(layer) => Ok(Some(layer).filter(|layer| *layer < self.layers)),
            None => Err(self.config.wrong(Place::Model, KEY, stated.unwrap_or(&default.into()), wanted())),
        }
    }

    /// One of this many layers is listed, always the last of them.
    fn full_layers(&self, key: &str) -> Result<u32, HuggingFaceError> {
        let listed = self.config.layers(key)?;
        let every = listed.first().map_or(0, |first| first.saturating_add(1));
        let regular = (0..self.layers).filter(|layer| every > 0 && (layer + 1).is_multiple_of(every));
        if every > 0 && regular.eq(listed.iter().copied()) {
            Ok(every)
        } else {
            let wanted = format!("every nth of the {} layers", self.layers);
            Err(self.config.wrong(Place::Encoder, key, &listed.into(), wanted))
        }
    }

    /// No key is written if none is listed.
    fn marks(&self, key: &str) -> Result<Option<Vec<bool>>, HuggingFaceError> {
        let listed = self.config.layers(key)?;
        let is_rising = listed.windows(2).all(|pair| pair[0] < pair[1]);
        if !is_rising || listed.last().is_some_and(|last| *last >= self.layers) {
            let wanted = format!("a rising list of some of the {} layers", self.layers);
            return Err(self.config.wrong(Place::Encoder, key, &listed.into(), wanted));
        }
        let marks = || (0..self.layers).map(|layer| listed.contains(&layer)).collect();
        Ok((!listed.is_empty()).then(marks))
    }
}
