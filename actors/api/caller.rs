//! Who makes a call: whose share of the engine it takes, and whose cached prefixes it may use.

use std::convert::Infallible;
use std::fmt::Write;
use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;

use super::error::ApiError;
use super::fields::Fields;

/// The key that a call came with, as a word that does not tell it.
#[derive(Debug, Clone, Default)]
pub(super) struct Caller {
    key: Option<Arc<str>>,
}

impl Caller {
    /// The caller with the key of this digest.
    pub fn with_key(digest: &[u8]) -> Self {
        let mut key = String::with_capacity(2 * digest.len());
        for byte in digest {
            // Writing to a string cannot fail.
            let _ = write!(key, "{byte:02x}");
        }
        Caller { key: Some(key.into()) }
    }
}

impl<S: Sync> FromRequestParts<S> for Caller {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Infallible> {
        Ok(parts.extensions.get::<Caller>().cloned().unwrap_or_default())
    }
}

/// What a call's origin means to the scheduler.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Tenancy {
    /// Clients share the engine fairly: each user of each key is one.
    pub client: Option<Arc<str>>,
    /// Prefixes are shared within one salt.
    pub cache_salt: Option<Arc<str>>,
}

impl Tenancy {
    /// Reads `user` or `safety_identifier`, and `cache_salt`. With `isolation` callers of different keys share no prefix.
    ///
    /// # Errors
    /// [`ApiError::InvalidRequest`] that names the field.
    pub fn read(fields: &Fields<'_>, caller: &Caller, isolation: bool) -> Result<Self, ApiError> {
        let user = fields.string("safety_identifier")?.or(fields.string("user")?);
        let salt = fields.string("cache_salt")?;
        if salt == Some("") {
            return Err(ApiError::invalid("cache_salt", "`cache_salt` must not be empty; leave it out for none"));
        }
        let key = caller.key.as_deref();
        Ok(Tenancy { client: joined(key, user), cache_salt: joined(key.filter(|_| isolation), salt) })
    }
}

/// Both parts in one word, in which neither can be mistaken for the other.
fn joined(key: Option<&str>, word: Option<&str>) -> Option<Arc<str>> {
    match (key, word) {
        (None, None) => None,
        (key, word) => Some(format!("{}/{}", key.unwrap_or_default(), word.unwrap_or_default()).into()),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(body: &Value, caller: &Caller, isolation: bool) -> Tenancy {
        Tenancy::read(&Fields::of_body(body).unwrap(), caller, isolation).unwrap()
    }

    #[test]
    fn without_key_user_and_salt_all_are_one() {
        assert_eq!(read(&json!({}), &Caller::default(), true), Tenancy::default());
    }

    #[test]
    fn keys_are_clients_and_with_isolation_tenants() {
        let (a, b) = (Caller::with_key(b"a"), Caller::with_key(b"b"));
        let body = json!({ "user": "u" });
        assert_ne!(read(&body, &a, false).client, read(&body, &b, false).client);
        assert_eq!(read(&body, &a, false).cache_salt, None);
        assert_ne!(read(&body, &a, true).cache_salt, read(&body, &b, true).cache_salt);
    }

    #[test]
    fn a_salt_is_its_own_whatever_key_it_comes_with() {
        let body = json!({ "cache_salt": "61" });
        let plain = read(&body, &Caller::default(), true).cache_salt;
        let of_key = read(&json!({}), &Caller::with_key(b"a"), true).cache_salt;
        assert!(plain.is_some() && of_key.is_some());
        assert_ne!(plain, of_key);
    }
}
