//! Estimates the memory of a JSON document as [`serde_json::Value`]s without building them.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// Bytes of a value without what it points to.
const SLOT: usize = size_of::<Value>();

/// Bytes that the heap adds to each allocation.
const ALLOCATION: usize = 16;

/// Elements for which the first allocation of a list has space.
const FIRST_ELEMENTS: usize = 4;

/// Bytes of a member of an object: its hash, its key and its value, and its entry in the index.
const MEMBER: usize = SLOT + size_of::<String>() + 4 * size_of::<usize>();

/// The estimated memory of the parsed document, in bytes. At least what it needs, at most about three times as much.
///
/// # Errors
/// When the text is not JSON, or its values are nested deeper than the parser accepts.
pub(super) fn estimate(json: &[u8]) -> Result<usize, serde_json::Error> {
    let mut bytes = 0;
    let mut deserializer = serde_json::Deserializer::from_slice(json);
    Size(&mut bytes).deserialize(&mut deserializer)?;
    deserializer.end()?;
    Ok(bytes)
}

/// The estimated memory of an object that exists, in bytes.
pub(super) fn of_object(object: &Map<String, Value>) -> usize {
    let mut bytes = 0;
    // A value that exists has no syntax errors.
    let _ = Size(&mut bytes).deserialize(object);
    bytes
}

/// Adds the size of a value.
struct Size<'a>(&'a mut usize);

impl<'de> DeserializeSeed<'de> for Size<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Size<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<(), E> {
        *self.0 += text.len() + ALLOCATION;
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<(), A::Error> {
        let mut count = 0;
        while elements.next_element_seed(Size(self.0))?.is_some() {
            count += 1;
        }
        *self.0 += list_bytes(count, SLOT);
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<(), A::Error> {
        let mut count = 0;
        while let Some(key) = members.next_key::<KeyLength>()? {
            *self.0 += key.0 + ALLOCATION;
            members.next_value_seed(Size(self.0))?;
            count += 1;
        }
        *self.0 += list_bytes(count, MEMBER);
        Ok(())
    }
}

/// Bytes of a list that grew to `count` elements. While it grows, the old and the new allocation exist.
fn list_bytes(count: usize, element: usize) -> usize {
    match count {
        0 => 0,
        1..=FIRST_ELEMENTS => FIRST_ELEMENTS * element + ALLOCATION,
        _ => 3 * count * element + ALLOCATION,
    }
}

/// The length of an object's key, in bytes.
struct KeyLength(usize);

impl<'de> serde::Deserialize<'de> for KeyLength {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Key;
        impl<'de> Visitor<'de> for Key {
            type Value = KeyLength;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a key")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<KeyLength, E> {
                Ok(KeyLength(text.len()))
            }
        }
        deserializer.deserialize_str(Key)
    }
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_documents_that_become_large_are_recognised() {
        let nested = format!("[{}]", vec!["[0]"; 1 << 16].join(","));
        let bytes = estimate(nested.as_bytes()).unwrap();
        assert!(bytes > 100 * nested.len(), "{bytes} for {}", nested.len());
        let text = serde_json::to_string(&"a".repeat(1 << 16)).unwrap();
        assert!((1 << 16..1 << 17).contains(&estimate(text.as_bytes()).unwrap()));
    }

    #[test]
    fn what_the_parser_refuses_is_refused() {
        let deep = "[".repeat(200) + &"]".repeat(200);
        for wrong in ["", "{", "[1,]", "1 2", deep.as_str()] {
            assert!(estimate(wrong.as_bytes()).is_err(), "{wrong}");
            assert!(serde_json::from_str::<Value>(wrong).is_err());
        }
        assert!(estimate(br#"{"a": [1, null, true, "\u00e9", {"b": -1.5}]}"#).is_ok());
    }
}
