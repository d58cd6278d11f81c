//! API keys: `Authorization: Bearer KEY` as OpenAI's clients send it, or `x-api-key: KEY` as Anthropic's do. Servers that ask for
//! KV blocks send a token that is made of the key instead.

use axum::extract::{Request, State};
use axum::http::{HeaderMap, header};
use axum::middleware::Next;
use axum::response::Response;
use subtle::{Choice, ConstantTimeEq};

use super::caller::Caller;
use super::options::ApiKey;
use super::server::SharedServer;
use crate::pipeline::kv_store::{BLOCKS_PATH, PeerKey};
use crate::serving::error::ApiError;

/// The caller that `key` belongs to, if it is an accepted key. The digests of all keys are compared in constant time.
/// Digests have equal lengths, so the time does not depend on a key's length either.
fn caller(accepted: &[ApiKey], key: &[u8]) -> Option<Caller> {
    let digest = ApiKey::of(key);
    let is_known = accepted.iter().fold(Choice::from(0), |found, known| found | known.digest().ct_eq(digest.digest()));
    bool::from(is_known).then(|| Caller::with_key(digest.digest()))
}

/// The key that another server has proved to hold by its token, if it is an accepted one.
pub(super) fn peer_key(accepted: &[ApiKey], headers: &HeaderMap) -> Option<PeerKey> {
    key_of_token(accepted, headers).map(|key| PeerKey::of_digest(*key.digest()))
}

fn key_of_token<'a>(accepted: &'a [ApiKey], headers: &HeaderMap) -> Option<&'a ApiKey> {
    let is_made_of = |key: &ApiKey, token: &[u8]| PeerKey::of_digest(*key.digest()).token().as_bytes().ct_eq(token);
    presented(headers).find_map(|token| accepted.iter().find(|key| bool::from(is_made_of(key, token))))
}

/// The caller of a request with these headers.
fn authenticate(accepted: &[ApiKey], headers: &HeaderMap, path: &str) -> Option<Caller> {
    let known = presented(headers).find_map(|key| caller(accepted, key));
    let peer = || key_of_token(accepted, headers).filter(|_| path == BLOCKS_PATH);
    known.or_else(|| peer().map(|key| Caller::with_key(key.digest())))
}

/// Passes on a request that has an accepted key, or any request when no keys are set.
pub(super) async fn require_key(
    State(server): State<SharedServer>,
    mut request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    let keys = &server.options().api_keys;
    if !keys.is_empty() {
        let caller = authenticate(keys, request.headers(), request.uri().path()).ok_or(ApiError::Unauthorized)?;
        request.extensions_mut().insert(caller);
    }
    Ok(next.run(request).await)
}

/// The keys that a request carries.
fn presented(headers: &HeaderMap) -> impl Iterator<Item = &[u8]> {
    let bearer = headers.get(header::AUTHORIZATION).and_then(|value| {
        let (scheme, key) = value.as_bytes().split_at_checked(7)?;
        scheme.eq_ignore_ascii_case(b"Bearer ").then_some(key.trim_ascii())
    });
    let api_key = headers.get("x-api-key").map(|value| value.as_bytes());
    bearer.into_iter().chain(api_key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_configured_key_is_accepted_and_no_other() {
        let keys = [ApiKey::of(b"first"), ApiKey::of(b"second")];
        let accepts = |key: &[u8]| caller(&keys, key).is_some();
        assert!(accepts(b"first") && accepts(b"second"));
        assert!(!accepts(b"third") && !accepts(b"") && !accepts(b"firs"));
    }

    #[test]
    fn a_token_of_a_key_is_accepted_for_blocks_and_for_nothing_else() {
        let keys = [ApiKey::of(b"first"), ApiKey::of(b"second")];
        let accepts = |key: &str, path: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::AUTHORIZATION, format!("Bearer {key}").parse().unwrap());
            authenticate(&keys, &headers, path).is_some()
        };
        let token = PeerKey::of("second").token();
        assert!(accepts(&token, BLOCKS_PATH) && accepts("second", BLOCKS_PATH));
        assert!(!accepts(&token, "/v1/completions") && !accepts(&PeerKey::of("third").token(), BLOCKS_PATH));
    }

    #[test]
    fn a_key_is_read_from_authorization_and_from_x_api_key() {
        let mut headers = HeaderMap::new();
        headers.insert(header::AUTHORIZATION, "bearer abc".parse().unwrap());
        headers.insert("x-api-key", "def".parse().unwrap());
        assert_eq!(presented(&headers).collect::<Vec<_>>(), [b"abc", b"def"]);
        headers.insert(header::AUTHORIZATION, "Basic abc".parse().unwrap());
        assert_eq!(presented(&headers).collect::<Vec<_>>(), [b"def"]);
    }
}
