//! Metadata by key, each value as the type that a caller needs.

use std::path::Path;

use super::error::{GgufError, GgufFault};
use super::value::{FromValue, Strings, Value};

/// The metadata of a model: typed values by key.
pub trait Metadata {
    /// The file that was opened, or the first shard, or the directory.
    fn path(&self) -> &Path;

    /// Keys and values in order.
    fn metadata(&self) -> &[(String, Value)];

    /// The value of a key.
    fn value(&self, key: &str) -> Option<&Value>;

    /// An error about this model, for the modules that interpret it.
    fn fault(&self, fault: GgufFault) -> GgufError {
        fault.in_file(self.path())
    }

    /// An integer of any width that fits.
    ///
    /// # Errors
    /// [`GgufFault::MissingKey`], [`GgufFault::WrongType`] or [`GgufFault::OutOfRange`].
    fn u32(&self, key: &str) -> Result<u32, GgufError> {
        required(self, key)
    }

    /// An integer of any width that fits, or `None` without the key.
    ///
    /// # Errors
    /// [`GgufFault::WrongType`] or [`GgufFault::OutOfRange`].
    fn optional_u32(&self, key: &str) -> Result<Option<u32>, GgufError> {
        optional(self, key)
    }

    /// An integer of any width that fits.
    ///
    /// # Errors
    /// [`GgufFault::MissingKey`], [`GgufFault::WrongType`] or [`GgufFault::OutOfRange`].
    fn u64(&self, key: &str) -> Result<u64, GgufError> {
        required(self, key)
    }

    /// An integer of any width that fits, or `None` without the key.
    ///
    /// # Errors
    /// [`GgufFault::WrongType`] or [`GgufFault::OutOfRange`].
    fn optional_u64(&self, key: &str) -> Result<Option<u64>, GgufError> {
        optional(self, key)
    }

    /// A float.
    ///
    /// # Errors
    /// [`GgufFault::MissingKey`], [`GgufFault::WrongType`] or [`GgufFault::OutOfRange`].
    fn f32(&self, key: &str) -> Result<f32, GgufError> {
        required(self, key)
    }

    /// A float, or `None` without the key.
    ///
    /// # Errors
    /// [`GgufFault::WrongType`] or [`GgufFault::OutOfRange`].
    fn optional_f32(&self, key: &str) -> Result<Option<f32>, GgufError> {
        optional(self, key)
    }

    /// A boolean.
    ///
    /// # Errors
    /// [`GgufFault::MissingKey`], [`GgufFault::WrongType`] or [`GgufFault::OutOfRange`].
    fn bool(&self, key: &str) -> Result<bool, GgufError> {
        required(self, key)
    }

    /// A boolean, or `None` without the key.
    ///
    /// # Errors
    /// [`GgufFault::WrongType`] or [`GgufFault::OutOfRange`].
    fn optional_bool(&self, key: &str) -> Result<Option<bool>, GgufError> {
        optional(self, key)
    }

    /// A string.
    ///
    /// # Errors
    /// [`GgufFault::MissingKey`], [`GgufFault::WrongType`] or [`GgufFault::OutOfRange`].
    fn str(&self, key: &str) -> Result<&str, GgufError> {
        required(self, key)
    }

    /// A string, or `None` without the key.
    ///
    /// # Errors
    /// [`GgufFault::WrongType`] or [`GgufFault::OutOfRange`].
    fn optional_str(&self, key: &str) -> Result<Option<&str>, GgufError> {
        optional(self, key)
    }

    /// An array of strings, read from the mapped file during iteration.
    ///
    /// # Errors
    /// [`GgufFault::MissingKey`], [`GgufFault::WrongType`] or [`GgufFault::OutOfRange`].
    fn strings(&self, key: &str) -> Result<Strings<'_>, GgufError> {
        required(self, key)
    }

    /// An array of integers of any width.
    ///
    /// # Errors
    /// [`GgufFault::MissingKey`], [`GgufFault::WrongType`] or [`GgufFault::OutOfRange`].
    fn integers(&self, key: &str) -> Result<Vec<i64>, GgufError> {
        required(self, key)
    }

    /// An array of integers of any width, or `None` without the key.
    ///
    /// # Errors
    /// [`GgufFault::WrongType`] or [`GgufFault::OutOfRange`].
    fn optional_integers(&self, key: &str) -> Result<Option<Vec<i64>>, GgufError> {
        optional(self, key)
    }

    /// An array of floats.
    ///
    /// # Errors
    /// [`GgufFault::MissingKey`], [`GgufFault::WrongType`] or [`GgufFault::OutOfRange`].
    fn floats(&self, key: &str) -> Result<Vec<f32>, GgufError> {
        required(self, key)
    }

    /// An array of booleans.
    ///
    /// # Errors
    /// [`GgufFault::MissingKey`], [`GgufFault::WrongType`] or [`GgufFault::OutOfRange`].
    fn bools(&self, key: &str) -> Result<Vec<bool>, GgufError> {
        required(self, key)
    }
}

/// The value of a key as a `T`, or `None` without the key.
fn optional<'a, T: FromValue<'a>>(of: &'a (impl Metadata + ?Sized), key: &str) -> Result<Option<T>, GgufError> {
    let Some(value) = of.value(key) else { return Ok(None) };
    T::from_value(value).map(Some).map_err(|mismatch| of.fault(mismatch.of_key(key, value, T::WANTED)))
}

/// The value of a key as a `T`.
fn required<'a, T: FromValue<'a>>(of: &'a (impl Metadata + ?Sized), key: &str) -> Result<T, GgufError> {
    let missing = || of.fault(GgufFault::MissingKey { key: key.to_owned(), wanted: T::WANTED });
    optional(of, key)?.ok_or_else(missing)
}
