//! The values of `config.json`, each read as a type.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::error::{HuggingFaceError, HuggingFaceFault};

/// A `config.json`. Models that also see or hear nest the values of their text model in `text_config`.
pub(super) struct Config {
    path: PathBuf,
    root: Value,
}

impl Config {
    pub(super) fn parse(path: &Path, text: &[u8]) -> Result<Self, HuggingFaceError> {
        let root: Value =
            serde_json::from_slice(text).map_err(|error| HuggingFaceFault::BadJson(error).in_file(path))?;
        Ok(Config { path: path.to_owned(), root })
    }

    /// Gives values the names that most configs have for them.
    pub(super) fn add_aliases(&mut self, aliases: &[(&str, &str)]) {
        let Some(root) = self.root.as_object_mut() else { return };
        for (usual, alias) in aliases {
            if let Some(value) = root.get(*alias).filter(|value| !value.is_null()).cloned() {
                root.entry(*usual).or_insert(value);
            }
        }
    }

    /// Adds values that the config leaves out.
    pub(super) fn add_defaults(&mut self, defaults: &[(&str, f64)]) {
        for (key, value) in defaults {
            let Some(root) = self.root.as_object_mut() else { return };
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // Checked to be a whole positive number.
            let number = if value.fract() == 0.0 && *value > 0.0 { (*value as u64).into() } else { (*value).into() };
            root.entry(*key).or_insert(number);
        }
    }

    /// The value of a key in `text_config`, else of the key itself. `null` is no value.
    pub(super) fn get(&self, key: &str) -> Option<&Value> {
        let of_text = self.root.get("text_config").and_then(|text| text.get(key));
        of_text.filter(|value| !value.is_null()).or_else(|| self.root.get(key).filter(|value| !value.is_null()))
    }

    /// The values of the keys `model_type`, first that of the text model.
    pub(super) fn model_types(&self) -> impl Iterator<Item = &str> {
        let of_text = self.root.get("text_config").and_then(|text| text.get("model_type"));
        of_text.into_iter().chain(self.root.get("model_type")).filter_map(Value::as_str)
    }

    pub(super) fn fault(&self, fault: HuggingFaceFault) -> HuggingFaceError {
        fault.in_file(&self.path)
    }

    pub(super) fn missing(&self, key: &str) -> HuggingFaceError {
        self.fault(HuggingFaceFault::MissingKey { key: key.to_owned() })
    }

    pub(super) fn wrong(&self, key: &str, found: impl ToString, wanted: impl Into<String>) -> HuggingFaceError {
        let (key, mut found) = (key.to_owned(), found.to_string());
        if let Some((cut, _)) = found.char_indices().nth(80) {
            found.truncate(cut);
            found.push('…');
        }
        self.fault(HuggingFaceFault::WrongValue { key, found, wanted: wanted.into() })
    }

    pub(super) fn u32(&self, key: &str) -> Result<Option<u32>, HuggingFaceError> {
        self.get(key).map(|value| self.as_u32(key, value)).transpose()
    }

    pub(super) fn as_u32(&self, key: &str, value: &Value) -> Result<u32, HuggingFaceError> {
        let number = value.as_u64().and_then(|number| u32::try_from(number).ok());
        number.ok_or_else(|| self.wrong(key, value, "an unsigned 32-bit integer"))
    }

    pub(super) fn f32(&self, key: &str) -> Result<Option<f32>, HuggingFaceError> {
        self.get(key).map(|value| self.as_f32(key, value)).transpose()
    }

    pub(super) fn as_f32(&self, key: &str, value: &Value) -> Result<f32, HuggingFaceError> {
        #[allow(clippy::cast_possible_truncation)] // Hyperparameters are computed with in float32.
        let number = value.as_f64().map(|number| number as f32).filter(|number| number.is_finite());
        number.ok_or_else(|| self.wrong(key, value, "a number"))
    }

    pub(super) fn bool(&self, key: &str) -> Result<Option<bool>, HuggingFaceError> {
        let boolean = |value: &Value| value.as_bool().ok_or_else(|| self.wrong(key, value, "true or false"));
        self.get(key).map(boolean).transpose()
    }

    pub(super) fn str(&self, key: &str) -> Result<Option<&str>, HuggingFaceError> {
        let text = |value| Value::as_str(value).ok_or_else(|| self.wrong(key, value, "a string"));
        self.get(key).map(text).transpose()
    }

    pub(super) fn list(&self, key: &str) -> Result<Option<&Vec<Value>>, HuggingFaceError> {
        let list = |value| Value::as_array(value).ok_or_else(|| self.wrong(key, value, "a list"));
        self.get(key).map(list).transpose()
    }

    /// The value of a key that every model has.
    pub(super) fn size(&self, key: &str) -> Result<usize, HuggingFaceError> {
        match self.u32(key)?.ok_or_else(|| self.missing(key))? {
            0 => Err(self.wrong(key, 0, "above 0")),
            size => Ok(size as usize),
        }
    }

    /// The length of a head.
    pub(super) fn head_dim(&self) -> Result<usize, HuggingFaceError> {
        match self.u32("head_dim")? {
            Some(length) => Ok(length as usize),
            None => Ok(self.size("hidden_size")? / self.size("num_attention_heads")?),
        }
    }

    /// The kind of each layer, where the config lists them.
    pub(super) fn layer_types(&self) -> Result<Option<Vec<&str>>, HuggingFaceError> {
        let Some(list) = self.list("layer_types")? else { return Ok(None) };
        Ok(Some(list.iter().map(|kind| kind.as_str().unwrap_or_default()).collect()))
    }
}
