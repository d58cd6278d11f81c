//! The key of servers that exchange blocks. It is never sent: a request carries a token that only holders of the key can make, and
//! a block a seal that only they can make. The token is of no use for a seal.

use std::fmt;

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use super::model_content::hex;
use super::unit_file::{HEADER_BYTES, header};
use crate::core::cached_unit::UnitContent;

/// Bytes of a seal. With a key it stands at the end of a header, where the checksums are without one.
const SEAL_BYTES: usize = 32;

/// What is authenticated, as the first part of it.
const REQUEST: &[u8] = b"cuelight kv request";
const BLOCK: &[u8] = b"cuelight kv block";

/// A key, which is not shown.
#[derive(Clone, PartialEq, Eq)]
pub struct PeerKey([u8; 32]);

impl fmt::Debug for PeerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PeerKey(hidden)")
    }
}

impl PeerKey {
    /// A key.
    #[must_use]
    pub fn of(key: &str) -> Self {
        PeerKey(Sha256::digest(key).into())
    }

    /// The key with this SHA-256 digest.
    #[must_use]
    pub fn of_digest(digest: [u8; 32]) -> Self {
        PeerKey(digest)
    }

    /// What a request carries instead of the key.
    #[must_use]
    pub fn token(&self) -> String {
        hex(&self.authenticate(&[REQUEST]))
    }

    /// The HMAC-SHA256 of the parts.
    fn authenticate(&self, parts: &[&[u8]]) -> [u8; SEAL_BYTES] {
        // HMAC fills up a key with zeros.
        let mut key = [0; 64];
        key[..self.0.len()].copy_from_slice(&self.0);
        let mut mac = Hmac::<Sha256>::new(&key.into());
        parts.iter().for_each(|part| mac.update(part));
        mac.finalize().into_bytes().into()
    }
}

/// What makes the headers of the units that servers send each other.
#[derive(Debug, Clone)]
pub(super) struct Seal {
    /// Without a key, a header has checksums, which any server can make.
    pub key: Option<PeerKey>,
    /// What the units mean, as a hash.
    pub meaning: String,
}

impl Seal {
    /// The header of a unit with this content and these bytes.
    pub fn header(&self, content: &UnitContent, bytes: &[u8]) -> [u8; HEADER_BYTES] {
        let mut header = header(content, bytes);
        if let Some(key) = &self.key {
            let (text, seal) = header.split_at_mut(HEADER_BYTES - SEAL_BYTES);
            // The text has a fixed length, so no other parts give the same sequence of bytes.
            seal.copy_from_slice(&key.authenticate(&[BLOCK, text, bytes, self.meaning.as_bytes()]));
        }
        header
    }

    /// Whether a header belongs to a unit with this content and these bytes.
    pub fn is_on(&self, found: &[u8; HEADER_BYTES], content: &UnitContent, bytes: &[u8]) -> bool {
        bool::from(found.ct_eq(&self.header(content, bytes)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::block_hash::{BlockContent, BlockHash};

    #[test]
    fn only_holders_of_the_key_seal_a_block() {
        let block = BlockContent {
            hash: BlockHash([1; 32]),
            before: BlockHash([2; 32]),
            tokens: [3; 16],
            has_media: false,
            is_portable: true,
        };
        let content = UnitContent::of_block(block);
        let seal = |key: Option<&str>, meaning: &str| Seal { key: key.map(PeerKey::of), meaning: meaning.to_owned() };
        let with_key = seal(Some("secret"), "model");
        let header = with_key.header(&content, b"block");
        assert!(with_key.is_on(&header, &content, b"block"));
        assert!(!with_key.is_on(&header, &content, b"other"));
        let other_tokens = UnitContent::of_block(BlockContent { tokens: [4; 16], ..block });
        for other in [other_tokens, UnitContent::of_state_after(block)] {
            assert!(!with_key.is_on(&header, &other, b"block"));
        }
        for other in [seal(None, "model"), seal(Some("other"), "model"), seal(Some("secret"), "another model")] {
            assert!(!with_key.is_on(&other.header(&content, b"block"), &content, b"block"), "{other:?}");
        }
        assert!(seal(None, "a").is_on(&seal(None, "b").header(&content, b"block"), &content, b"block"), "a checksum");
    }

    #[test]
    fn a_token_is_made_of_the_key_and_does_not_show_it() {
        assert_eq!(PeerKey::of("secret").token(), PeerKey::of_digest(Sha256::digest("secret").into()).token());
        assert_ne!(PeerKey::of("secret").token(), PeerKey::of("other").token());
        assert_eq!(format!("{:?}", PeerKey::of("secret")), "PeerKey(hidden)");
    }
}
