//! How servers ask each other for KV blocks: `POST /kv/blocks` with a [`BlocksRequest`], answered by the blocks one after the other,
//! each with the header of a [block's file](super::block_file), [sealed](super::peer_key) if the request has a token.
//!
//! The answer ends before the first block that the server does not have. A client that knows the tokens of a prompt and the salt of its
//! tenant can ask for its blocks; nothing else can be learnt from them than what the prompt contains.

use cuelight_engine::engine::TokenId;
use serde::{Deserialize, Serialize};

use crate::core::block_hash::{BlockContent, BlockHash, NotAHash};

/// The path of the route.
pub const PATH: &str = "/kv/blocks";

/// Asks for consecutive blocks of a prompt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlocksRequest {
    /// What the blocks mean, as a hash: the model's content, the layout and the arithmetic. Another server has the same.
    pub meaning: String,
    /// The hash of the block before the first one, or of the scope of a prompt.
    pub before: String,
    /// The tokens of the blocks.
    pub tokens: Vec<TokenId>,
}

impl BlocksRequest {
    /// Asks for blocks, each after the one before it. `None` without blocks.
    pub(super) fn of(meaning: &str, blocks: &[BlockContent]) -> Option<Self> {
        let before = blocks.first()?.before.to_string();
        let tokens = blocks.iter().flat_map(|block| block.tokens).collect();
        Some(BlocksRequest { meaning: meaning.to_owned(), before, tokens })
    }

    /// The blocks that it asks for, hashed one after the other as they are taken.
    ///
    /// # Errors
    /// [`NotAHash`] when `before` is not one.
    pub(super) fn blocks(&self) -> Result<impl Iterator<Item = BlockContent> + Send + '_, NotAHash> {
        let before: BlockHash = self.before.parse()?;
        Ok(before.blocks_after(&self.tokens))
    }
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::prefix_scope::PrefixScope;

    #[test]
    fn a_request_gives_the_blocks_that_it_was_made_of() {
        let tokens: Vec<TokenId> = (0..53).collect();
        let all: Vec<_> = BlockHash::of_scope(&PrefixScope::default()).blocks_after(&tokens).collect();
        assert_eq!(all.len(), 3);
        for first in 0..3 {
            let request = BlocksRequest::of("model", &all[first..]).unwrap();
            assert_eq!(request.blocks().unwrap().collect::<Vec<_>>(), all[first..]);
        }
        assert_eq!(BlocksRequest::of("model", &[]), None);
    }
}
