//! The tokens of a model as a tree of bytes.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use toktrie::{TokEnv, TokRxInfo, TokTrie, TokenizerEnv};

use super::error::GrammarError;
use crate::engine::TokenId;
use crate::format::tokenizer::Tokenizer;

/// The tree, with the tokenizer for texts that a grammar forces.
struct Vocabulary {
    trie: TokTrie,
    tokenizer: Arc<Tokenizer>,
}

impl TokenizerEnv for Vocabulary {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<TokenId> {
        let encode = |text: &str| self.tokenizer.encode(text, false, false).unwrap_or_default();
        self.trie.tokenize_with_greedy_fallback(bytes, encode)
    }
}

/// The tree of a tokenizer's tokens, padded to the `rows` logits of the model.
///
/// # Errors
/// [`GrammarError::Vocabulary`] when no token ends a generation, or the tokens do not fit into a tree.
pub(super) fn of(tokenizer: &Arc<Tokenizer>, rows: usize) -> Result<TokEnv, GrammarError> {
    let vocabulary_error = |reason: &str| GrammarError::Vocabulary(reason.to_owned());
    let ends: Vec<TokenId> =
        tokenizer.end_of_generation().iter().copied().filter(|&token| (token as usize) < rows).collect();
    let &end = ends.first().ok_or_else(|| vocabulary_error("no token ends a generation"))?;
    let size = u32::try_from(rows).map_err(|_| vocabulary_error("it has too many tokens"))?;
    let words: Vec<Vec<u8>> = (0..size).map(|token| bytes_of(tokenizer, token)).collect();
    // The library checks its own tree with assertions.
    let trie =
        catch_unwind(AssertUnwindSafe(|| TokTrie::from(&TokRxInfo::new(size, end), &words).with_eos_tokens(&ends)));
    let trie = trie.map_err(|_| vocabulary_error("its tokens do not fit into a tree"))?;
    Ok(Arc::new(Vocabulary { trie, tokenizer: tokenizer.clone() }))
}

/// The spellings and numbers of the special tokens below `rows`.
pub(super) fn special(tokenizer: &Tokenizer, rows: usize) -> Vec<(String, TokenId)> {
    let all = 0..tokenizer.vocab_size().min(rows) as TokenId;
    all.filter(|&token| tokenizer.is_special(token)).map(|token| (tokenizer.token_text(token), token)).collect()
}

/// The bytes of a token. A special token has a mark before its spelling, so that no text matches it.
fn bytes_of(tokenizer: &Tokenizer, token: TokenId) -> Vec<u8> {
    let bytes = if (token as usize) < tokenizer.vocab_size() { tokenizer.token_bytes(token, false) } else { &[] };
    match tokenizer.is_special(token) && !bytes.is_empty() {
        true => [&[TokTrie::SPECIAL_TOKEN_MARKER], bytes].concat(),
        false => bytes.to_vec(),
    }
}
