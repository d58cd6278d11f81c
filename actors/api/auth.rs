//! API keys: `Authorization: Bearer KEY` as OpenAI's clients send it, or `x-api-key: KEY` as Anthropic's do.

use axum::extract::{Request, State};
use axum::http::{HeaderMap, header};
use axum::middleware::Next;
use axum::response::Response;
use sha2::{Digest, Sha256};
use subtle::{Choice, ConstantTimeEq};

use super::SharedServer;
use super::caller::Caller;
use super::error::ApiError;

/// The keys that open the server, as digests of equal length so that comparing them tells nothing of their length.
pub(super) struct Keys(Vec<[u8; 32]>);

impl Keys {
    pub fn new(keys: &[String]) -> Self {
        Keys(keys.iter().map(|key| Sha256::digest(key).into()).collect())
    }

    /// Whether a key is needed at all.
    fn are_required(&self) -> bool {
        !self.0.is_empty()
    }

    /// Who calls with `key`, if it is one of these. Takes the same time whichever matches.
    fn caller(&self, key: &[u8]) -> Option<Caller> {
        let digest: [u8; 32] = Sha256::digest(key).into();
        let is_known: bool = self.0.iter().fold(Choice::from(0), |found, known| found | known.ct_eq(&digest)).into();
        is_known.then(|| Caller::with_key(&digest))
    }
}

/// Lets a request pass that has a known key, or any when no keys are set.
pub(super) async fn require_key(
    State(server): State<SharedServer>,
    mut request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    let keys = &server.keys;
    if keys.are_required() {
        let caller = presented(request.headers()).find_map(|key| keys.caller(key)).ok_or(ApiError::Unauthorized)?;
        request.extensions_mut().insert(caller);
    }
    Ok(next.run(request).await)
}

fn presented(headers: &HeaderMap) -> impl Iterator<Item = &[u8]> {
    let bearer = headers.get(header::AUTHORIZATION).and_then(|value| {
        let (scheme, key) = value.as_bytes().split_at_checked(7)?;
        scheme.eq_ignore_ascii_case(b"Bearer ").then_some(key.trim_ascii())
    });
    let api_key = headers.get("x-api-key").map(|value| value.as_bytes());
    bearer.into_iter().chain(api_key)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn each_of_several_keys_opens_and_no_other_does() {
        let keys = Keys::new(&["first".to_owned(), "second".to_owned()]);
        let opens = |key: &[u8]| keys.caller(key).is_some();
        assert!(opens(b"first") && opens(b"second"));
        assert!(!opens(b"third") && !opens(b"") && !opens(b"firs"));
    }

    #[test]
    fn a_key_comes_as_bearer_or_as_x_api_key() {
        let mut headers = HeaderMap::new();
        headers.insert(header::AUTHORIZATION, "bearer abc".parse().unwrap());
        headers.insert("x-api-key", "def".parse().unwrap());
        assert_eq!(presented(&headers).collect::<Vec<_>>(), [b"abc", b"def"]);
        headers.insert(header::AUTHORIZATION, "Basic abc".parse().unwrap());
        assert_eq!(presented(&headers).collect::<Vec<_>>(), [b"def"]);
    }
}
