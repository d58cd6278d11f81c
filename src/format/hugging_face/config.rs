//! The values of `config.json`, each read as a type.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::error::{HuggingFaceError, HuggingFaceFault};
use super::rules::Literal;

/// The kind of layers without a window.
pub(super) const FULL: &str = "full_attention";

/// The kind of layers with a window.
pub(super) const WINDOWED: &str = "sliding_attention";

/// The kinds of layers with pools, which also attend within a window.
pub(super) const POOLED: [&str; 2] = ["compressed_sparse_attention", "heavily_compressed_attention"];

/// The kinds of recurrent layers.
pub(super) const RECURRENT: [&str; 2] = ["linear_attention", "conv"];

/// A `config.json`. The values of the text model of one that also sees or hears stand for all.
pub(super) struct Config {
    path: PathBuf,
    root: Map<String, Value>,
    /// The values of `model_type`, first that of the text model.
    model_types: Vec<String>,
    /// Whether the text model has an object of its own.
    is_nested: bool,
}

/// The name that aliases give to the number of positions that a window has before a row.
pub(super) const BEFORE_ROW: &str = "positions_before_row";

impl Config {
    pub(super) fn parse(path: &Path, text: &[u8]) -> Result<Self, HuggingFaceError> {
        let root: Value = serde_json::from_slice(&with_null_for_infinity(text))
            .map_err(|error| HuggingFaceFault::BadJson(error).in_file(path))?;
        let mut root = root.as_object().cloned().unwrap_or_default();
        let of_thinker = join_thinker(&mut root);
        let of_text = root.get("text_config").and_then(Value::as_object).cloned().unwrap_or_default();
        let is_nested = !of_text.is_empty();
        let types = [of_text.get("model_type"), of_thinker.as_ref(), root.get("model_type")];
        let model_types = types.into_iter().filter_map(|name| Some(name?.as_str()?.to_owned())).collect();
        for (key, value) in of_text {
            if !value.is_null() || !root.contains_key(&key) {
                root.insert(key, value);
            }
        }
        Ok(Config { path: path.to_owned(), root, model_types, is_nested })
    }

    /// Puts the values of an object in the place of those of the whole.
    pub(super) fn take_object(&mut self, key: &str) {
        let Some(Value::Object(inner)) = self.root.remove(key) else { return };
        if let Some(name) = inner.get("model_type").and_then(Value::as_str) {
            self.model_types.insert(0, name.to_owned());
        }
        self.root.extend(inner);
    }

    /// Whether the text model has an object of its own. Published ones often state only what differs from the defaults of
    /// transformers.
    pub(super) fn is_nested(&self) -> bool {
        self.is_nested
    }

    /// Gives values the names that most configs have for them. An alias with a point is a key of an object.
    pub(super) fn add_aliases(&mut self, aliases: &[(&str, &str)]) {
        for (usual, alias) in aliases {
            let value = match alias.split_once('.') {
                Some((object, key)) => self.get(object).and_then(|object| object.get(key)),
                None => self.get(alias),
            };
            if let Some(value) = value.filter(|value| !value.is_null()).cloned() {
                self.set(usual, value);
            }
        }
    }

    /// Adds values that the config leaves out.
    pub(super) fn add_defaults(&mut self, defaults: &[(&str, Literal)]) {
        for (key, value) in defaults {
            self.root.entry(*key).or_insert_with(|| value.json());
        }
    }

    /// Sets a value.
    pub(super) fn set(&mut self, key: &str, value: Value) {
        self.root.insert(key.to_owned(), value);
    }

    /// The value of a key. `null` is no value.
    pub(super) fn get(&self, key: &str) -> Option<&Value> {
        self.root.get(key).filter(|value| !value.is_null())
    }

    /// The value of a key that is a number. Published configs have `false` for what a model does not have.
    pub(super) fn number(&self, key: &str) -> Option<&Value> {
        self.get(key).filter(|value| **value != Value::Bool(false))
    }

    /// Whether the config says `null` for a key.
    pub(super) fn is_null(&self, key: &str) -> bool {
        self.root.get(key) == Some(&Value::Null)
    }

    /// Whether a key is true, or a number above 0.
    pub(super) fn is_set(&self, key: &str) -> bool {
        self.get(key).is_some_and(|value| value.as_bool().unwrap_or(value.as_f64().is_some_and(|number| number > 0.0)))
    }

    /// The values of the keys `model_type`, first that of the text model.
    pub(super) fn model_types(&self) -> impl Iterator<Item = &str> {
        self.model_types.iter().map(String::as_str)
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
        self.number(key).map(|value| self.as_u32(key, value)).transpose()
    }

    /// A size. A list with the same size for every layer stands for that size.
    pub(super) fn as_u32(&self, key: &str, value: &Value) -> Result<u32, HuggingFaceError> {
        let list = value.as_array().filter(|list| list.iter().all(|item| *item == list[0]));
        let value = list.and_then(|list| list.first()).unwrap_or(value);
        let number = value.as_u64().and_then(|number| u32::try_from(number).ok());
        number.ok_or_else(|| self.wrong(key, value, "an unsigned 32-bit integer"))
    }

    pub(super) fn f32(&self, key: &str) -> Result<Option<f32>, HuggingFaceError> {
        self.number(key).map(|value| self.as_f32(key, value)).transpose()
    }

    pub(super) fn as_f32(&self, key: &str, value: &Value) -> Result<f32, HuggingFaceError> {
        #[allow(clippy::cast_possible_truncation)] // Hyperparameters are computed with in float32.
        let number = value.as_f64().map(|number| number as f32).filter(|number| number.is_finite());
        number.ok_or_else(|| self.wrong(key, value, "a number"))
    }

    /// A factor, or an item of a list of factors: "key" or "key.1". 1 if there is none.
    pub(super) fn number_at(&self, path: &str) -> Result<f32, HuggingFaceError> {
        let (key, index) = path.split_once('.').unwrap_or((path, ""));
        let value =
            self.get(key).and_then(|value| index.parse::<usize>().map_or(Some(value), |index| value.get(index)));
        value.map_or(Ok(1.0), |value| self.as_f32(path, value))
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

    /// The length of a head; with latent attention that of its rotated section.
    pub(super) fn head_dim(&self) -> Result<usize, HuggingFaceError> {
        match self.u32("qk_rope_head_dim")?.or(self.u32("head_dim")?) {
            Some(length) => Ok(length as usize),
            None => Ok(self.size("hidden_size")? / self.size("num_attention_heads")?),
        }
    }

    /// [`Config::head_dim`], small enough for a list of its values.
    pub(super) fn checked_head_dim(&self) -> Result<usize, HuggingFaceError> {
        self.checked_head(self.head_dim()?)
    }

    /// A length of a head that is small enough for a list of its values.
    pub(super) fn checked_head(&self, length: usize) -> Result<usize, HuggingFaceError> {
        const MOST: usize = 1 << 16;
        if length <= MOST { Ok(length) } else { Err(self.wrong("head_dim", length, format!("at most {MOST}"))) }
    }

    /// The kind of each layer, where the config lists them.
    pub(super) fn layer_types(&self) -> Result<Option<Vec<&str>>, HuggingFaceError> {
        let Some(list) = self.list("layer_types")? else { return Ok(None) };
        Ok(Some(list.iter().map(|kind| kind.as_str().unwrap_or_default()).collect()))
    }
}

/// Puts the values of the part that understands in the place of those of the whole, which may also speak. The name of the whole
/// stays; that of the part is returned.
pub(super) fn join_thinker(root: &mut Map<String, Value>) -> Option<Value> {
    let Some(Value::Object(mut thinker)) = root.remove("thinker_config") else { return None };
    let model_type = thinker.remove("model_type");
    root.extend(thinker);
    model_type
}

/// A JSON text whose numbers that JSON does not have are `null`: Python writes them without quotes.
fn with_null_for_infinity(text: &[u8]) -> Vec<u8> {
    const OTHERS: [&[u8]; 3] = [b"-Infinity", b"Infinity", b"NaN"];
    let (mut changed, mut at, mut is_quoted) = (Vec::with_capacity(text.len()), 0, false);
    while at < text.len() {
        let other = OTHERS.iter().find(|other| !is_quoted && text[at..].starts_with(other));
        let taken = match (other, text[at]) {
            (Some(other), _) => other.len(),
            (None, b'\\') if is_quoted => 2.min(text.len() - at),
            (None, _) => 1,
        };
        is_quoted ^= text[at] == b'"';
        changed.extend_from_slice(if other.is_some() { b"null" } else { &text[at..at + taken] });
        at += taken;
    }
    changed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn infinities_are_null_outside_of_strings() {
        let changed = |text: &str| String::from_utf8_lossy(&with_null_for_infinity(text.as_bytes())).into_owned();
        assert_eq!(changed("[0.0, Infinity, -Infinity, NaN]"), "[0.0, null, null, null]");
        for same in [r#"{"a": "NaN", "b\"": "\\", "c": 1}"#, "\\", "{"] {
            assert_eq!(changed(same), same);
        }
    }
}
