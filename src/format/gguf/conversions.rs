//! Values made from numbers and text, for models whose metadata is not in a GGUF file.

use super::value::{Array, Value, ValueType};

impl From<u32> for Value {
    fn from(value: u32) -> Self {
        Value::U32(value)
    }
}

impl From<f32> for Value {
    fn from(value: f32) -> Self {
        Value::F32(value)
    }
}

impl From<bool> for Value {
    fn from(value: bool) -> Self {
        Value::Bool(value)
    }
}

impl From<&str> for Value {
    fn from(value: &str) -> Self {
        Value::String(value.into())
    }
}

impl From<&[u32]> for Value {
    fn from(values: &[u32]) -> Self {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
        Value::Array(Array { element: ValueType::U32, len: values.len(), bytes: bytes.into() })
    }
}

impl From<&[u64]> for Value {
    fn from(values: &[u64]) -> Self {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
        Value::Array(Array { element: ValueType::U64, len: values.len(), bytes: bytes.into() })
    }
}

impl From<&[f32]> for Value {
    fn from(values: &[f32]) -> Self {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
        Value::Array(Array { element: ValueType::F32, len: values.len(), bytes: bytes.into() })
    }
}

impl From<&[String]> for Value {
    fn from(values: &[String]) -> Self {
        let bytes = |text: &String| [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat();
        let all = values.iter().flat_map(bytes).collect::<Vec<u8>>();
        Value::Array(Array { element: ValueType::String, len: values.len(), bytes: all.into() })
    }
}

impl From<&[bool]> for Value {
    fn from(values: &[bool]) -> Self {
        let bytes = values.iter().map(|value| u8::from(*value)).collect::<Vec<u8>>();
        Value::Array(Array { element: ValueType::Bool, len: values.len(), bytes: bytes.into() })
    }
}
