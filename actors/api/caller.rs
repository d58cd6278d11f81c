//! The caller of a request: the client that it is scheduled for, and the cached prefixes that it may reuse.

use std::convert::Infallible;
use std::fmt::Write;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;

use super::connections::Peer;
use super::fields::Fields;
use super::options::{ClientIdentity, ServerOptions};
use crate::core::shared_limit::Client;
use crate::serving::error::ApiError;
use crate::serving::tenancy::Tenancy;

/// Where a request comes from.
#[derive(Debug, Clone, Default)]
pub(super) struct Caller {
    /// The API key as a digest that does not reveal it.
    key: Option<Arc<str>>,
    /// The address, when the connection has one.
    peer: Option<IpAddr>,
}

impl Caller {
    /// The caller with the key of this digest.
    pub fn with_key(digest: &[u8]) -> Self {
        let mut key = String::with_capacity(2 * digest.len());
        for byte in digest {
            // Writing to a string cannot fail.
            let _ = write!(key, "{byte:02x}");
        }
        Caller { key: Some(key.into()), peer: None }
    }

    /// The caller that has made a batch.
    pub fn of_owner(owner: &Client) -> Self {
        Caller { key: owner.clone(), peer: None }
    }

    /// Who the files and batches of the caller belong to: its key. Callers without keys share theirs, because an address may change
    /// until the answers are ready.
    pub fn owner(&self) -> Client {
        self.key.clone()
    }

    /// The client that the caller is: its key, or its address. An IPv6 network of 64 bits is one client.
    pub fn client(&self) -> Client {
        let address = || match self.peer? {
            IpAddr::V4(address) => Some(address.to_string().into()),
            IpAddr::V6(address) => Some(format!("{}/64", Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)).into()),
        };
        self.key.clone().or_else(address)
    }
}

impl<S: Sync> FromRequestParts<S> for Caller {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Infallible> {
        let caller = parts.extensions.get::<Caller>().cloned().unwrap_or_default();
        Ok(Caller { peer: parts.extensions.get::<Peer>().map(|peer| peer.0), ..caller })
    }
}

impl Caller {
    /// Reads `user` or `safety_identifier` where these identify clients, and `cache_salt`. With
    /// [`ServerOptions::tenant_isolation`], callers with different keys share no prefix.
    ///
    /// # Errors
    /// [`ApiError::InvalidRequest`] that names the field.
    pub fn tenancy(&self, fields: &Fields<'_>, options: &ServerOptions) -> Result<Tenancy, ApiError> {
        let user = fields.string("safety_identifier")?.or(fields.string("user")?);
        self.tenancy_of(user, fields, options)
    }

    /// As [`Self::tenancy`], for a protocol that names the `user` elsewhere.
    ///
    /// # Errors
    /// [`ApiError::InvalidRequest`] that names the field.
    pub fn tenancy_of(
        &self,
        user: Option<&str>,
        fields: &Fields<'_>,
        options: &ServerOptions,
    ) -> Result<Tenancy, ApiError> {
        let salt = fields.string("cache_salt")?;
        if salt == Some("") {
            return Err(ApiError::invalid("cache_salt", "`cache_salt` must not be empty; leave it out for none"));
        }
        let client = self.client();
        let user = user.filter(|_| options.client_identity == ClientIdentity::User);
        let key = self.key.as_deref().filter(|_| options.tenant_isolation);
        Ok(Tenancy { client: joined(client.as_deref(), user), cache_salt: joined(key, salt) })
    }
}

/// Key and word in one string. The separator keeps different pairs different.
fn joined(key: Option<&str>, word: Option<&str>) -> Option<Arc<str>> {
    match (key, word) {
        (None, None) => None,
        (key, word) => Some(format!("{}/{}", key.unwrap_or_default(), word.unwrap_or_default()).into()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(body: &Value, caller: &Caller, isolation: bool) -> Tenancy {
        let options = ServerOptions { tenant_isolation: isolation, ..ServerOptions::default() };
        caller.tenancy(&Fields::of_body(body).unwrap(), &options).unwrap()
    }

    #[test]
    fn users_are_clients_of_their_own_only_where_the_caller_is_trusted() {
        let client = |user: &str, client_identity| {
            let options = ServerOptions { client_identity, ..ServerOptions::default() };
            let body = json!({ "user": user });
            Caller::with_key(b"a").tenancy(&Fields::of_body(&body).unwrap(), &options).unwrap().client
        };
        assert_eq!(client("u", ClientIdentity::Key), client("v", ClientIdentity::Key));
        assert_ne!(client("u", ClientIdentity::User), client("v", ClientIdentity::User));
    }

    #[test]
    fn without_a_key_each_address_is_a_client() {
        let from = |address: &str| Caller { key: None, peer: Some(address.parse().unwrap()) }.client();
        assert_ne!(from("10.0.0.1"), from("10.0.0.2"));
        assert_eq!(from("2001:db8::1"), from("2001:db8::ffff:2"));
        assert_ne!(from("2001:db8::1"), from("2001:db8:0:1::1"));
    }

    #[test]
    fn requests_without_key_user_or_salt_share_one_tenancy() {
        assert_eq!(read(&json!({}), &Caller::default(), true), Tenancy::default());
    }

    #[test]
    fn each_key_is_a_client_and_with_isolation_a_tenant() {
        let (a, b) = (Caller::with_key(b"a"), Caller::with_key(b"b"));
        let body = json!({ "user": "u" });
        assert_ne!(read(&body, &a, false).client, read(&body, &b, false).client);
        assert_eq!(read(&body, &a, false).cache_salt, None);
        assert_ne!(read(&body, &a, true).cache_salt, read(&body, &b, true).cache_salt);
    }

    #[test]
    fn a_salt_differs_from_a_key_of_the_same_text() {
        let body = json!({ "cache_salt": "61" });
        let plain = read(&body, &Caller::default(), true).cache_salt;
        let of_key = read(&json!({}), &Caller::with_key(b"a"), true).cache_salt;
        assert!(plain.is_some() && of_key.is_some());
        assert_ne!(plain, of_key);
    }
}
