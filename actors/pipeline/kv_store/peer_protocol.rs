//! How servers ask each other for KV blocks and recurrent states: `POST /kv/blocks` with a [`UnitsRequest`], answered by the units
//! one after the other, each with the header of a [unit's file](super::unit_file), [sealed](super::peer_key) if the request has a
//! token.
//!
//! The answer ends before the first unit that the server does not have. A client that knows the tokens of a prompt and the salt of
//! its tenant can ask for its units; nothing else can be learnt from them than what the prompt contains.

use cuelight_engine::engine::{BLOCK_TOKENS, TokenId, UnitKind};
use serde::{Deserialize, Serialize};

use crate::core::block_hash::{BlockHash, NotAHash};
use crate::core::cached_unit::UnitContent;

/// The path of the route.
pub const PATH: &str = "/kv/blocks";

/// Why a request says nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidRequest {
    /// The hash is malformed.
    #[error("`before` is malformed: {0}")]
    NotAHash(#[from] NotAHash),
    /// A state is not asked for by one block.
    #[error("a state is asked for by the {BLOCK_TOKENS} tokens before it, not by {0}")]
    NotOneBlock(usize),
}

/// Asks for consecutive blocks of a prompt, or for the state after a block.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnitsRequest {
    /// What the units mean, as a hash: the model's content, the layout and the arithmetic. Another server has the same.
    pub meaning: String,
    /// The hash of the block before the first one, or of the scope of a prompt.
    pub before: String,
    /// The tokens of the blocks.
    pub tokens: Vec<TokenId>,
    /// Whether it asks for the recurrent state after the only block instead.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub state: bool,
}

impl UnitsRequest {
    /// Asks for units of one kind: blocks, each after the one before it, or a state. `None` without units.
    pub(super) fn of(meaning: &str, units: &[UnitContent]) -> Option<Self> {
        let first = units.first()?;
        let tokens = units.iter().flat_map(|unit| unit.block.tokens).collect();
        let (before, state) = (first.block.before.to_string(), first.kind == UnitKind::State);
        Some(UnitsRequest { meaning: meaning.to_owned(), before, tokens, state })
    }

    /// The units that it asks for, hashed one after the other as they are taken.
    ///
    /// # Errors
    /// [`InvalidRequest`].
    pub(super) fn units(&self) -> Result<impl Iterator<Item = UnitContent> + Send + '_, InvalidRequest> {
        let before: BlockHash = self.before.parse()?;
        if self.state && self.tokens.len() != BLOCK_TOKENS {
            return Err(InvalidRequest::NotOneBlock(self.tokens.len()));
        }
        let kind = if self.state { UnitKind::State } else { UnitKind::Block };
        Ok(before.blocks_after(&self.tokens).map(move |block| UnitContent { block, kind }))
    }
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::prefix_scope::PrefixScope;

    #[test]
    fn a_request_gives_the_units_that_it_was_made_of() {
        let tokens: Vec<TokenId> = (0..53).collect();
        let blocks = || BlockHash::of_scope(&PrefixScope::default()).blocks_after(&tokens);
        let all: Vec<_> = blocks().map(UnitContent::of_block).collect();
        assert_eq!(all.len(), 3);
        for first in 0..3 {
            let request = UnitsRequest::of("model", &all[first..]).unwrap();
            assert_eq!(request.units().unwrap().collect::<Vec<_>>(), all[first..]);
        }
        for state in blocks().map(UnitContent::of_state_after) {
            let request = UnitsRequest::of("model", &[state]).unwrap();
            assert_eq!(request.units().unwrap().collect::<Vec<_>>(), [state]);
        }
        assert_eq!(UnitsRequest::of("model", &[]), None);
    }

    #[test]
    fn requests_of_servers_that_know_no_states_are_for_blocks() {
        let json = format!(r#"{{"meaning":"model","before":"{}","tokens":[]}}"#, "0".repeat(64));
        let request: UnitsRequest = serde_json::from_str(&json).unwrap();
        assert!(!request.state);
        assert_eq!(serde_json::to_string(&request).unwrap(), json);
    }
}
