//! Typed metadata: the value of a key, and its conversion to the type that a caller needs.

use std::fmt;

use cuelight_shaders::weight::SharedBytes;

use super::error::GgufFault;

/// The value of a key.
#[derive(Clone)]
#[allow(missing_docs)]
pub enum Value {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    String(Box<str>),
    Array(Array),
    U64(u64),
    I64(i64),
    F64(f64),
}

/// An array. Its elements stay in the file's bytes.
#[derive(Clone)]
pub struct Array {
    /// The type of every element, never [`ValueType::Array`].
    pub(super) element: ValueType,
    pub(super) len: usize,
    /// The bytes of `len` well-formed elements.
    pub(super) bytes: SharedBytes,
}

/// The type of a value, numbered as in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum ValueType {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Bool,
    String,
    Array,
    U64,
    I64,
    F64,
}

impl ValueType {
    /// Every type; the index is its number in the file.
    const ALL: [ValueType; 13] = [
        ValueType::U8,
        ValueType::I8,
        ValueType::U16,
        ValueType::I16,
        ValueType::U32,
        ValueType::I32,
        ValueType::F32,
        ValueType::Bool,
        ValueType::String,
        ValueType::Array,
        ValueType::U64,
        ValueType::I64,
        ValueType::F64,
    ];

    /// The type with this number.
    #[must_use]
    pub fn from_id(id: u32) -> Option<Self> {
        Self::ALL.get(usize::try_from(id).ok()?).copied()
    }

    /// The number in the file.
    #[must_use]
    pub fn id(self) -> u32 {
        self as u32
    }

    /// Bytes of one value; `None` for strings and arrays, which store their length.
    #[must_use]
    pub fn fixed_bytes(self) -> Option<usize> {
        match self {
            ValueType::U8 | ValueType::I8 | ValueType::Bool => Some(1),
            ValueType::U16 | ValueType::I16 => Some(2),
            ValueType::U32 | ValueType::I32 | ValueType::F32 => Some(4),
            ValueType::U64 | ValueType::I64 | ValueType::F64 => Some(8),
            ValueType::String | ValueType::Array => None,
        }
    }

    fn name(self) -> &'static str {
        match self {
            ValueType::U8 => "u8",
            ValueType::I8 => "i8",
            ValueType::U16 => "u16",
            ValueType::I16 => "i16",
            ValueType::U32 => "u32",
            ValueType::I32 => "i32",
            ValueType::F32 => "f32",
            ValueType::Bool => "bool",
            ValueType::String => "string",
            ValueType::Array => "array",
            ValueType::U64 => "u64",
            ValueType::I64 => "i64",
            ValueType::F64 => "f64",
        }
    }
}

impl Value {
    /// A value of a type with a fixed size, from exactly its bytes; `None` for other types or sizes.
    pub(super) fn from_fixed(value_type: ValueType, bytes: &[u8]) -> Option<Value> {
        Some(match value_type {
            ValueType::U8 => Value::U8(u8::from_le_bytes(bytes.try_into().ok()?)),
            ValueType::I8 => Value::I8(i8::from_le_bytes(bytes.try_into().ok()?)),
            ValueType::U16 => Value::U16(u16::from_le_bytes(bytes.try_into().ok()?)),
            ValueType::I16 => Value::I16(i16::from_le_bytes(bytes.try_into().ok()?)),
            ValueType::U32 => Value::U32(u32::from_le_bytes(bytes.try_into().ok()?)),
            ValueType::I32 => Value::I32(i32::from_le_bytes(bytes.try_into().ok()?)),
            ValueType::F32 => Value::F32(f32::from_le_bytes(bytes.try_into().ok()?)),
            ValueType::Bool => Value::Bool(u8::from_le_bytes(bytes.try_into().ok()?) != 0),
            ValueType::U64 => Value::U64(u64::from_le_bytes(bytes.try_into().ok()?)),
            ValueType::I64 => Value::I64(i64::from_le_bytes(bytes.try_into().ok()?)),
            ValueType::F64 => Value::F64(f64::from_le_bytes(bytes.try_into().ok()?)),
            ValueType::String | ValueType::Array => return None,
        })
    }

    /// What type it is.
    #[must_use]
    pub fn value_type(&self) -> ValueType {
        match self {
            Value::U8(_) => ValueType::U8,
            Value::I8(_) => ValueType::I8,
            Value::U16(_) => ValueType::U16,
            Value::I16(_) => ValueType::I16,
            Value::U32(_) => ValueType::U32,
            Value::I32(_) => ValueType::I32,
            Value::F32(_) => ValueType::F32,
            Value::Bool(_) => ValueType::Bool,
            Value::String(_) => ValueType::String,
            Value::Array(_) => ValueType::Array,
            Value::U64(_) => ValueType::U64,
            Value::I64(_) => ValueType::I64,
            Value::F64(_) => ValueType::F64,
        }
    }

    /// Of an array of numbers, an array with only its element number `index`, or the last one; else the value itself.
    #[must_use]
    pub fn element(&self, index: usize) -> Value {
        let Value::Array(Array { element, len, bytes }) = self else { return self.clone() };
        let (Some(size), Some(last)) = (element.fixed_bytes(), len.checked_sub(1)) else { return self.clone() };
        let start = index.min(last) * size;
        let bytes = bytes.as_slice()[start..start + size].to_vec().into();
        Value::Array(Array { element: *element, len: 1, bytes })
    }

    fn integer(&self) -> Option<i128> {
        match *self {
            Value::U8(value) => Some(value.into()),
            Value::I8(value) => Some(value.into()),
            Value::U16(value) => Some(value.into()),
            Value::I16(value) => Some(value.into()),
            Value::U32(value) => Some(value.into()),
            Value::I32(value) => Some(value.into()),
            Value::U64(value) => Some(value.into()),
            Value::I64(value) => Some(value.into()),
            _ => None,
        }
    }

    fn array(&self) -> Option<&Array> {
        if let Value::Array(array) = self { Some(array) } else { None }
    }
}

/// For people: short strings in quotes, long strings and arrays by their size.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN_CHARS: usize = 80;
        match self {
            Value::F32(value) => write!(f, "{value}"),
            Value::F64(value) => write!(f, "{value}"),
            Value::Bool(value) => write!(f, "{value}"),
            Value::String(text) if text.chars().nth(SHOWN_CHARS).is_none() => write!(f, "{text:?}"),
            Value::String(text) => {
                let start: String = text.chars().take(SHOWN_CHARS).collect();
                write!(f, "{start:?}… ({} bytes)", text.len())
            }
            Value::Array(array) => write!(f, "[{} x {}]", array.len, array.element.name()),
            _ => write!(f, "{}", self.integer().unwrap_or_default()),
        }
    }
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {self}", self.value_type().name())
    }
}

impl Array {
    /// Number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Appends the array as a file stores it.
    pub(super) fn put(&self, out: &mut Vec<u8>) {
        out.extend(self.element.id().to_le_bytes());
        out.extend((self.len as u64).to_le_bytes());
        out.extend(self.bytes.as_slice());
    }

    /// The elements, when they are strings.
    #[must_use]
    pub fn strings(&self) -> Option<Strings<'_>> {
        (self.element == ValueType::String).then(|| Strings { bytes: self.bytes.as_slice(), left: self.len })
    }

    /// The elements, when they have a fixed size.
    fn values(&self) -> Option<impl Iterator<Item = Value>> {
        let size = self.element.fixed_bytes()?;
        Some(self.bytes.as_slice().chunks_exact(size).filter_map(|bytes| Value::from_fixed(self.element, bytes)))
    }
}

/// The strings of an array, in order, read from the file's bytes.
#[derive(Debug, Clone)]
pub struct Strings<'a> {
    bytes: &'a [u8],
    left: usize,
}

impl Strings<'_> {
    /// Bytes of all strings together.
    #[must_use]
    pub fn text_bytes(&self) -> usize {
        self.bytes.len().saturating_sub(self.left * size_of::<u64>())
    }
}

impl<'a> Iterator for Strings<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        self.left = self.left.checked_sub(1)?;
        // Lengths and UTF-8 were checked when the file was opened. They are checked again because another process may have
        // changed the mapped file since; a string that is then invalid reads as empty.
        let (length, rest) = self.bytes.split_first_chunk::<8>()?;
        let length = usize::try_from(u64::from_le_bytes(*length)).ok()?;
        let (string, rest) = rest.split_at_checked(length)?;
        self.bytes = rest;
        Some(str::from_utf8(string).unwrap_or_default())
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for Strings<'_> {}

/// Why a value cannot be converted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mismatch {
    /// Another type.
    Type,
    /// The right type, but too large or too small.
    Range,
}

impl Mismatch {
    pub(super) fn of_key(self, key: &str, value: &Value, wanted: &'static str) -> GgufFault {
        let key = key.to_owned();
        match self {
            Mismatch::Type => GgufFault::WrongType { key, found: format!("{value:?}"), wanted },
            Mismatch::Range => GgufFault::OutOfRange { key, found: format!("{value:?}"), wanted },
        }
    }
}

/// A type that a metadata value can be converted to.
pub trait FromValue<'a>: Sized {
    /// The type's name for people: "an unsigned 32-bit integer".
    const WANTED: &'static str;

    /// Converts the value.
    ///
    /// # Errors
    /// [`Mismatch`] when the value has another type or is out of range.
    fn from_value(value: &'a Value) -> Result<Self, Mismatch>;
}

impl FromValue<'_> for u32 {
    const WANTED: &'static str = "an unsigned 32-bit integer";

    fn from_value(value: &Value) -> Result<Self, Mismatch> {
        value.integer().ok_or(Mismatch::Type)?.try_into().map_err(|_| Mismatch::Range)
    }
}

impl FromValue<'_> for u64 {
    const WANTED: &'static str = "an unsigned 64-bit integer";

    fn from_value(value: &Value) -> Result<Self, Mismatch> {
        value.integer().ok_or(Mismatch::Type)?.try_into().map_err(|_| Mismatch::Range)
    }
}

impl FromValue<'_> for f32 {
    const WANTED: &'static str = "a 32-bit float";

    fn from_value(value: &Value) -> Result<Self, Mismatch> {
        match *value {
            Value::F32(value) => Ok(value),
            #[allow(clippy::cast_possible_truncation)] // The caller asks for a 32-bit float.
            Value::F64(value) => Ok(value as f32),
            _ => Err(Mismatch::Type),
        }
    }
}

impl FromValue<'_> for bool {
    const WANTED: &'static str = "a boolean";

    fn from_value(value: &Value) -> Result<Self, Mismatch> {
        if let Value::Bool(value) = *value { Ok(value) } else { Err(Mismatch::Type) }
    }
}

impl<'a> FromValue<'a> for &'a str {
    const WANTED: &'static str = "a string";

    fn from_value(value: &'a Value) -> Result<Self, Mismatch> {
        if let Value::String(text) = value { Ok(text) } else { Err(Mismatch::Type) }
    }
}

impl<'a> FromValue<'a> for Strings<'a> {
    const WANTED: &'static str = "an array of strings";

    fn from_value(value: &'a Value) -> Result<Self, Mismatch> {
        value.array().and_then(Array::strings).ok_or(Mismatch::Type)
    }
}

/// Converts every element of an array.
fn elements<'a, T>(value: &'a Value, read: impl Fn(Value) -> Result<T, Mismatch> + 'a) -> Result<Vec<T>, Mismatch> {
    value.array().and_then(Array::values).ok_or(Mismatch::Type)?.map(read).collect()
}

impl FromValue<'_> for Vec<i64> {
    const WANTED: &'static str = "an array of integers";

    fn from_value(value: &Value) -> Result<Self, Mismatch> {
        elements(value, |value| value.integer().ok_or(Mismatch::Type)?.try_into().map_err(|_| Mismatch::Range))
    }
}

impl FromValue<'_> for Vec<f32> {
    const WANTED: &'static str = "an array of floats";

    fn from_value(value: &Value) -> Result<Self, Mismatch> {
        elements(value, |value| f32::from_value(&value))
    }
}

impl FromValue<'_> for Vec<bool> {
    const WANTED: &'static str = "an array of booleans";

    fn from_value(value: &Value) -> Result<Self, Mismatch> {
        elements(value, |value| bool::from_value(&value))
    }
}
