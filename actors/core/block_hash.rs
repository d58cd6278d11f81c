//! The identity of a full KV block: a hash of its tokens and of everything before them.

use std::fmt;
use std::str::FromStr;

use cuelight_engine::engine::{BLOCK_TOKENS, TokenId};
use sha2::{Digest, Sha256};

use super::prefix_scope::{AdapterIdentity, PrefixScope};
use super::prompt_media::MediaKey;

/// The SHA-256 hash of what determines a block's keys and values: the scope of its prompt, and all tokens and media up to its
/// end. No two contents with the same hash are known for this function, so equal hashes mean equal contents, also across processes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockHash(pub [u8; 32]);

impl BlockHash {
    /// What takes the place of the block before the first one: the tenant's salt and the adapter.
    #[must_use]
    pub fn of_scope(scope: &PrefixScope) -> Self {
        let mut hash = Sha256::new_with_prefix(b"cuelight prefix scope");
        // Each part with a length or a mark, so that different scopes never give the same bytes.
        match &scope.salt {
            Some(salt) => {
                hash.update([1]);
                hash.update((salt.len() as u64).to_le_bytes());
                hash.update(salt.as_bytes());
            }
            None => hash.update([0]),
        }
        if let Some(adapter) = &scope.adapter {
            match &adapter.identity {
                AdapterIdentity::Content(digest) => hash.update(digest),
                AdapterIdentity::Process(number) => hash.update(number.to_le_bytes()),
            }
            hash.update(adapter.scale_bits.to_le_bytes());
            hash.update(adapter.name.as_bytes());
        }
        BlockHash(hash.finalize().into())
    }

    /// The block of these tokens after this one; `media` is the key of its rows of media.
    #[must_use]
    pub fn then(&self, tokens: &[TokenId; BLOCK_TOKENS], media: Option<&MediaKey>) -> Self {
        let mut hash = Sha256::new_with_prefix(self.0);
        for token in tokens {
            hash.update(token.to_le_bytes());
        }
        // Only blocks with rows of media have more bytes.
        if let Some(MediaKey(key)) = media {
            hash.update(key);
        }
        BlockHash(hash.finalize().into())
    }

    /// The blocks of these tokens, which are text, one after the other, after this one. Tokens that fill no block are left out.
    pub fn blocks_after(self, tokens: &[TokenId]) -> impl Iterator<Item = BlockContent> {
        let mut before = self;
        tokens.as_chunks::<BLOCK_TOKENS>().0.iter().map(move |tokens| {
            let hash = before.then(tokens, None);
            let before = std::mem::replace(&mut before, hash);
            BlockContent { hash, before, tokens: *tokens, has_media: false, is_portable: true }
        })
    }

    /// The first eight bytes as a number, for protocols whose hashes have that size.
    #[must_use]
    pub fn short(&self) -> u64 {
        let [a, b, c, d, e, f, g, h, ..] = self.0;
        u64::from_le_bytes([a, b, c, d, e, f, g, h])
    }
}

impl FromStr for BlockHash {
    type Err = NotAHash;

    /// Reads 64 hexadecimal digits, in lower case.
    fn from_str(digits: &str) -> Result<Self, NotAHash> {
        let (pairs, rest) = digits.as_bytes().as_chunks::<2>();
        let pairs: &[[u8; 2]; 32] = pairs.try_into().map_err(|_| NotAHash)?;
        let digit = |digit: u8| char::from(digit).to_digit(16).filter(|_| !digit.is_ascii_uppercase());
        let mut hash = [0; 32];
        for (byte, [high, low]) in hash.iter_mut().zip(pairs) {
            *byte = (digit(*high).ok_or(NotAHash)? * 16 + digit(*low).ok_or(NotAHash)?) as u8;
        }
        if rest.is_empty() { Ok(BlockHash(hash)) } else { Err(NotAHash) }
    }
}

/// A text that is no hash of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("it is not the hash of a KV block, which has 64 hexadecimal digits")]
pub struct NotAHash;

impl fmt::Display for BlockHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for BlockHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.short())
    }
}

/// A full block and what it contains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockContent {
    /// Its identity.
    pub hash: BlockHash,
    /// The block before it, or the scope of a first block.
    pub before: BlockHash,
    /// Its tokens.
    pub tokens: [TokenId; BLOCK_TOKENS],
    /// Whether some of these stand for rows of media, so that its tokens do not say what it contains.
    pub has_media: bool,
    /// Whether it means the same in another process. The number of an adapter does not.
    pub is_portable: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::prefix_scope::ScopeAdapter;

    #[test]
    fn other_scopes_tokens_and_prefixes_have_other_hashes() {
        let salted = |salt: &str| PrefixScope { salt: Some(salt.into()), adapter: None };
        let adapter = |identity, scale_bits, name: &str| {
            let adapter = ScopeAdapter { identity, scale_bits, name: name.into() };
            PrefixScope { salt: None, adapter: Some(adapter) }
        };
        let (number, content) = (AdapterIdentity::Process, |digest| AdapterIdentity::Content([digest; 32]));
        let adapters = [
            (number(1), 0, "a"),
            (number(2), 0, "a"),
            (content(1), 0, "a"),
            (content(2), 0, "a"),
            (content(1), 1, "a"),
            (content(1), 0, "b"),
        ];
        let adapters = adapters.map(|(identity, scale_bits, name)| adapter(identity, scale_bits, name));
        assert_eq!(adapters.each_ref().map(PrefixScope::is_portable), [false, false, true, true, true, true]);
        let scopes = [PrefixScope::default(), salted(""), salted("a"), salted("b")].into_iter().chain(adapters);
        let mut hashes: Vec<BlockHash> = scopes.map(|scope| BlockHash::of_scope(&scope)).collect();
        for scope in hashes.clone() {
            hashes.extend([scope.then(&[1; BLOCK_TOKENS], None), scope.then(&[2; BLOCK_TOKENS], None)]);
        }
        let first = hashes[0].then(&[1; BLOCK_TOKENS], None);
        hashes.push(first.then(&[1; BLOCK_TOKENS], None));
        hashes.extend([1, 2].map(|key| hashes[0].then(&[1; BLOCK_TOKENS], Some(&MediaKey([key; 32])))));
        let all = hashes.len();
        hashes.sort_unstable();
        hashes.dedup();
        assert_eq!(hashes.len(), all);
        assert_eq!(
            first,
            BlockHash::of_scope(&PrefixScope::default()).then(&[1; BLOCK_TOKENS], None),
            "nothing random"
        );
        assert_eq!(first.to_string().len(), 64);
        assert_eq!(first.to_string().parse(), Ok(first));
        for wrong in ["", "0", &"f".repeat(63), &"f".repeat(65), &"F".repeat(64), &"é".repeat(32)] {
            assert_eq!(wrong.parse::<BlockHash>(), Err(NotAHash), "{wrong}");
        }
    }
}
