//! The keys of a file, each read as a type and checked.

use crate::checkpoint::Checkpoint;
use crate::format::gguf::Value;
use crate::model::arch::Family;
use crate::model::error::ModelError;

/// A larger size means a damaged file, which would otherwise fail later with a less clear error.
const LARGEST_SIZE: usize = 1 << 24;

/// The keys of a file's architecture.
pub(super) struct Keys<'a> {
    pub(super) checkpoint: &'a dyn Checkpoint,
    pub(super) architecture: String,
    /// The values of keys that this file may leave out.
    omitted: &'static [(&'static str, f32)],
}

impl<'a> Keys<'a> {
    pub(super) fn new(checkpoint: &'a dyn Checkpoint, family: &Family) -> Result<Self, ModelError> {
        let architecture = checkpoint.str("general.architecture")?.to_owned();
        let of_images = format!("{architecture}.vision.");
        let has_images = checkpoint.metadata().iter().any(|(key, _)| key.starts_with(&of_images));
        Ok(Keys { checkpoint, architecture, omitted: if has_images { family.omitted_with_images } else { &[] } })
    }

    pub(super) fn name(&self, key: &str) -> String {
        format!("{}.{key}", self.architecture)
    }

    /// The file's name, for errors.
    pub(super) fn file(&self) -> String {
        self.checkpoint.path().display().to_string()
    }

    /// The error of a file without a key that it must have.
    pub(super) fn missing(&self, key: &str) -> ModelError {
        self.invalid(key, "missing", "present")
    }

    pub(super) fn invalid(&self, key: &str, found: impl ToString, expected: impl Into<String>) -> ModelError {
        ModelError::Hyperparameter {
            file: self.file(),
            key: self.name(key),
            found: found.to_string(),
            expected: expected.into(),
        }
    }

    pub(super) fn size(&self, key: &str) -> Result<usize, ModelError> {
        let size = self.checkpoint.u32(&self.name(key))? as usize;
        self.checked_size(key, size)
    }

    /// The number of layers without those for multi-token prediction, which come last and are not computed. Some converters leave
    /// these out, but write how many the model has.
    pub(super) fn layers(&self) -> Result<usize, ModelError> {
        let (all, extra) =
            (self.size("block_count")?, self.checkpoint.optional_u32(&self.name("nextn_predict_layers"))?);
        let extra = extra.unwrap_or(0) as usize;
        let Some(first) = all.checked_sub(extra).filter(|first| *first > 0) else {
            return Err(self.invalid("nextn_predict_layers", extra, format!("below {all}")));
        };
        let has = |tensor: &str| self.checkpoint.tensor(&format!("blk.{first}.{tensor}.weight")).is_some();
        Ok(if has("attn_norm") && !has("nextn.eh_proj") { all } else { first })
    }

    pub(super) fn optional_size(&self, key: &str) -> Result<Option<usize>, ModelError> {
        let size = self.checkpoint.optional_u32(&self.name(key))?;
        size.map(|size| self.checked_size(key, size as usize)).transpose()
    }

    pub(super) fn checked_size(&self, key: &str, size: usize) -> Result<usize, ModelError> {
        if (1..=LARGEST_SIZE).contains(&size) {
            return Ok(size);
        }
        Err(self.invalid(key, size, format!("between 1 and {LARGEST_SIZE}")))
    }

    /// A number of the file, or the one of a key that it may leave out.
    fn number(&self, key: &str) -> Result<Option<f32>, ModelError> {
        let omitted = || self.omitted.iter().find(|(name, _)| *name == key).map(|(_, value)| *value);
        Ok(self.checkpoint.optional_f32(&self.name(key))?.or_else(omitted))
    }

    pub(super) fn positive(&self, key: &str) -> Result<f32, ModelError> {
        let value = match self.number(key)? {
            Some(value) => value,
            None => self.checkpoint.f32(&self.name(key))?,
        };
        self.checked_positive(key, value)
    }

    /// A positive value; `None` when it is 0 or absent.
    pub(super) fn optional_positive(&self, key: &str) -> Result<Option<f32>, ModelError> {
        let value = self.number(key)?.filter(|value| *value != 0.0);
        value.map(|value| self.checked_positive(key, value)).transpose()
    }

    /// [`Keys::optional_positive`] of the first of these keys that the file has. Converters have different names for some values.
    pub(super) fn first_positive(&self, keys: &[&str]) -> Result<Option<f32>, ModelError> {
        let first = keys.iter().find(|key| self.checkpoint.value(&self.name(key)).is_some());
        self.optional_positive(first.unwrap_or(&keys[0]))
    }

    pub(super) fn checked_positive(&self, key: &str, value: f32) -> Result<f32, ModelError> {
        if value > 0.0 && value.is_finite() { Ok(value) } else { Err(self.invalid(key, value, "above 0")) }
    }

    /// A size for each layer: the key holds one for all layers or an array.
    pub(super) fn size_of_layers(&self, key: &str, n_layers: usize) -> Result<Option<Vec<usize>>, ModelError> {
        let sizes = self.size_or_none_of_layers(key, n_layers)?;
        sizes.map(|sizes| sizes.into_iter().map(|size| self.checked_size(key, size)).collect()).transpose()
    }

    /// As [`Keys::size_of_layers`], but layers may have 0.
    pub(super) fn size_or_none_of_layers(&self, key: &str, n_layers: usize) -> Result<Option<Vec<usize>>, ModelError> {
        let name = self.name(key);
        if !matches!(self.checkpoint.value(&name), Some(Value::Array(_))) {
            let size = self.checkpoint.optional_u32(&name)?.map(|size| size as usize);
            let checked = size.map(|size| if size == 0 { Ok(0) } else { self.checked_size(key, size) });
            return Ok(checked.transpose()?.map(|size| vec![size; n_layers]));
        }
        let sizes = self.checkpoint.integers(&name)?;
        if sizes.len() < n_layers {
            return Err(self.invalid(key, sizes.len(), format!("one size for each of {n_layers} layers")));
        }
        let checked = |size: &i64| match usize::try_from(*size) {
            Ok(0) => Ok(0),
            size => self.checked_size(key, size.unwrap_or(0)),
        };
        sizes[..n_layers].iter().map(checked).collect::<Result<_, _>>().map(Some)
    }

    /// A truth value for each layer.
    pub(super) fn bool_of_layers(&self, key: &str, n_layers: usize) -> Result<Vec<bool>, ModelError> {
        let name = self.name(key);
        // Some files have the numbers 0 and 1, and some also values for the layers that are not computed.
        let numbers =
            self.checkpoint.integers(&name).map(|numbers| numbers.into_iter().map(|number| number != 0).collect());
        let mut values: Vec<bool> = numbers.or_else(|_| self.checkpoint.bools(&name))?;
        if values.len() < n_layers {
            let expected = format!("one truth value for each of {n_layers} layers");
            return Err(self.invalid(key, values.len(), expected));
        }
        values.truncate(n_layers);
        Ok(values)
    }
}
