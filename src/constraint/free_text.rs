//! Free text before a trigger, where the tokens that may come next are always the same.

use std::sync::Arc;

use super::mask::TokenMask;
use crate::engine::TokenId;
use crate::format::tokenizer::Tokenizer;

/// Bytes of the longest character.
const CHARACTER: usize = 4;

/// The free text of one sequence up to here.
#[derive(Clone)]
pub(super) struct FreeText {
    rules: Arc<Rules>,
    /// The last bytes of the text.
    tail: Vec<u8>,
}

struct Rules {
    tokenizer: Arc<Tokenizer>,
    triggers: Vec<Vec<u8>>,
    /// The tokens that may come first.
    mask: TokenMask,
}

impl FreeText {
    /// An empty text. `mask`: the tokens that may come first.
    pub fn new(tokenizer: Arc<Tokenizer>, triggers: &[String], mask: TokenMask) -> Self {
        let triggers = triggers.iter().map(|trigger| trigger.clone().into_bytes()).collect();
        FreeText { rules: Arc::new(Rules { tokenizer, triggers, mask }), tail: Vec::new() }
    }

    /// The tokens that may come next. `None` inside a character, and where a trigger may have begun.
    pub fn mask(&self) -> Option<&TokenMask> {
        let is_whole = self.tail.utf8_chunks().last().is_none_or(|chunk| chunk.invalid().is_empty());
        let begins = |trigger: &Vec<u8>| (1..trigger.len()).any(|end| self.tail.ends_with(&trigger[..end]));
        (is_whole && !self.rules.triggers.iter().any(begins)).then_some(&self.rules.mask)
    }

    /// Adds a token. Returns whether the text is still free.
    pub fn push(&mut self, token: TokenId) -> bool {
        self.tail.extend_from_slice(self.rules.tokenizer.token_bytes(token, false));
        let triggers = &self.rules.triggers;
        let is_found = |trigger: &Vec<u8>| self.tail.windows(trigger.len().max(1)).any(|bytes| bytes == trigger);
        let is_free = !triggers.iter().any(is_found);
        let kept = triggers.iter().map(Vec::len).max().unwrap_or_default().max(CHARACTER);
        self.tail.drain(..self.tail.len().saturating_sub(kept));
        is_free
    }
}
