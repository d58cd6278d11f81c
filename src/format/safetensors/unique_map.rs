//! JSON objects in which no key may appear twice.

use std::collections::HashSet;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, Error, IgnoredAny, MapAccess, Visitor};

/// The entries of an object in order, without the key `__metadata__`. A key that appears twice is an error.
pub(super) struct UniqueMap<T>(pub Vec<(String, T)>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for UniqueMap<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Entries(PhantomData))
    }
}

struct Entries<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for Entries<T> {
    type Value = UniqueMap<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let (mut entries, mut seen) = (Vec::new(), HashSet::new());
        while let Some(key) = map.next_key::<String>()? {
            if !seen.insert(key.clone()) {
                return Err(A::Error::custom(format!("tensor {key:?} appears twice")));
            }
            if key == "__metadata__" {
                map.next_value::<IgnoredAny>()?;
                continue;
            }
            let value = map.next_value().map_err(|error| A::Error::custom(format!("tensor {key:?}: {error}")))?;
            entries.push((key, value));
        }
        Ok(UniqueMap(entries))
    }
}
