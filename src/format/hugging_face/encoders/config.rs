//! The values that a directory states of its encoder, each read as a type.

use std::path::{Path, PathBuf};

use serde_json::Value as Json;

use super::super::error::{HuggingFaceError, HuggingFaceFault};
use super::super::small_files::SmallFiles;
use super::spec::{EncoderFamily, Place};
use crate::media::MediaKind;

/// Most items of a list of layers.
const MOST_LAYERS: usize = 1 << 10;

/// The key of an encoder's config.
pub(super) fn section(kind: MediaKind) -> &'static str {
    match kind {
        MediaKind::Image => "vision_config",
        MediaKind::Audio => "audio_config",
    }
}

/// What a directory states of its encoder.
pub(super) struct EncoderConfig {
    folder: PathBuf,
    model: Json,
    encoder: Json,
    preprocessor: Json,
    /// The file that has it.
    preprocessor_file: &'static str,
    /// The key of the encoder's config.
    section: &'static str,
    is_in_root: bool,
    /// Numbers that the encoder's config may leave out.
    defaults: &'static [(&'static str, f64)],
}

impl EncoderConfig {
    /// Reads how media are prepared. `model` is what `config.json` has.
    pub(super) fn read(
        folder: &Path,
        model: Json,
        family: &EncoderFamily,
        small: &mut SmallFiles,
    ) -> Result<Self, HuggingFaceError> {
        let found = preprocessor(small, family.kind)?;
        if found.is_none() && family.needs_preprocessor {
            return Err(HuggingFaceFault::NoPreprocessor { object: object_of(family.kind).0 }.in_file(folder));
        }
        let (preprocessor_file, preprocessor) = found.unwrap_or_default();
        let config = EncoderConfig::of(model, family);
        Ok(EncoderConfig { folder: folder.to_owned(), preprocessor, preprocessor_file, ..config })
    }

    /// A config without a preprocessor.
    pub(super) fn of(model: Json, family: &EncoderFamily) -> Self {
        let section = section(family.kind);
        EncoderConfig {
            folder: PathBuf::new(),
            encoder: if family.is_in_root { model.clone() } else { model.get(section).cloned().unwrap_or_default() },
            model,
            is_in_root: family.is_in_root,
            preprocessor: Json::Null,
            preprocessor_file: "",
            section,
            defaults: family.defaults,
        }
    }

    /// A value; `null` is none. Keys of objects within the object are joined by a point.
    pub(super) fn get(&self, place: Place, key: &str) -> Option<&Json> {
        let object = match place {
            Place::Model => &self.model,
            Place::Encoder => &self.encoder,
            Place::Preprocessor => &self.preprocessor,
        };
        let found = key.split('.').try_fold(object, |object, key| object.get(key));
        found.filter(|value| !value.is_null())
    }

    fn fault(&self, place: Place, fault: HuggingFaceFault) -> HuggingFaceError {
        let file = if place == Place::Preprocessor { self.preprocessor_file } else { "config.json" };
        fault.in_file(&self.folder.join(file))
    }

    fn name(&self, place: Place, key: &str) -> String {
        if place == Place::Encoder && !self.is_in_root { format!("{}.{key}", self.section) } else { key.to_owned() }
    }

    /// The error of a value that is not computed.
    pub(super) fn wrong(&self, place: Place, key: &str, found: &Json, wanted: impl Into<String>) -> HuggingFaceError {
        let (key, found, wanted) = (self.name(place, key), found.to_string(), wanted.into());
        self.fault(place, HuggingFaceFault::WrongValue { key, found, wanted })
    }

    /// The error of a value that is not there.
    pub(super) fn missing(&self, place: Place, key: &str) -> HuggingFaceError {
        self.fault(place, HuggingFaceFault::MissingKey { key: self.name(place, key) })
    }

    /// A number. Some configs have the same number twice, for both directions.
    pub(super) fn optional_number(&self, place: Place, key: &str) -> Result<Option<f64>, HuggingFaceError> {
        let Some(found) = self.get(place, key) else { return Ok(None) };
        let equal = found.as_array().filter(|all| all.iter().all(|one| Some(one) == all.first()));
        let one = equal.map_or(Some(found), |all| all.first());
        let number = one.and_then(Json::as_f64).ok_or_else(|| self.wrong(place, key, found, "a number"));
        number.map(Some)
    }

    /// A whole number above 0.
    pub(super) fn optional_size(&self, place: Place, key: &str) -> Result<Option<u32>, HuggingFaceError> {
        let found = self.optional_number(place, key)?;
        found.map(|number| self.as_size(place, key, number)).transpose()
    }

    /// A number as a whole number above 0.
    fn as_size(&self, place: Place, key: &str, number: f64) -> Result<u32, HuggingFaceError> {
        if number >= 1.0 && number <= f64::from(u32::MAX) && number.fract() == 0.0 {
            Ok(number as u32)
        } else {
            Err(self.wrong(place, key, &number.into(), "a whole number above 0"))
        }
    }

    /// A number of the encoder, or that of configs without it.
    pub(super) fn number(&self, key: &str) -> Result<f64, HuggingFaceError> {
        let default = self.defaults.iter().find(|(name, _)| *name == key).map(|(_, value)| *value);
        let found = self.optional_number(Place::Encoder, key)?.or(default);
        found.ok_or_else(|| self.missing(Place::Encoder, key))
    }

    /// A size of the encoder, or that of configs without it.
    pub(super) fn size(&self, key: &str) -> Result<u32, HuggingFaceError> {
        self.as_size(Place::Encoder, key, self.number(key)?)
    }

    /// A list of layers of the encoder.
    pub(super) fn layers(&self, key: &str) -> Result<Vec<u32>, HuggingFaceError> {
        let found = self.get(Place::Encoder, key).ok_or_else(|| self.missing(Place::Encoder, key))?;
        let layer = |layer: &Json| layer.as_u64().and_then(|layer| u32::try_from(layer).ok());
        let layers = found.as_array().filter(|list| list.len() <= MOST_LAYERS);
        let layers = layers.and_then(|list| list.iter().map(layer).collect());
        layers.ok_or_else(|| self.wrong(Place::Encoder, key, found, "a list of layers"))
    }
}

/// The object of a joined file that has a preprocessor, for people, and its key.
fn object_of(kind: MediaKind) -> (&'static str, &'static str) {
    match kind {
        MediaKind::Image => ("an image_processor", "image_processor"),
        MediaKind::Audio => ("a feature_extractor", "feature_extractor"),
    }
}

/// What a directory has for its preprocessor, and the file. New processors have it among others, old ones in a file of its own.
fn preprocessor(small: &mut SmallFiles, kind: MediaKind) -> Result<Option<(&'static str, Json)>, HuggingFaceError> {
    const JOINED: &str = "processor_config.json";
    const OWN: &str = "preprocessor_config.json";
    let (_, key) = object_of(kind);
    let joined = small.json(JOINED)?.and_then(|joined| joined.get(key).filter(|found| !found.is_null()).cloned());
    match joined {
        Some(joined) => Ok(Some((JOINED, joined))),
        None => Ok(small.json(OWN)?.map(|own| (OWN, own))),
    }
}
