//! The tokens of texts that must not appear in an answer, by the rules of vLLM's `bad_words`.

use cuelight_engine::engine::TokenId;
use cuelight_engine::format::tokenizer::{Tokenizer, TokenizerError};

/// The sequences of tokens that spell each word: within a text, and after a space.
///
/// # Errors
/// [`TokenizerError`] when a word cannot be converted to tokens.
pub(super) fn banned_sequences(words: &[String], tokenizer: &Tokenizer) -> Result<Vec<Vec<TokenId>>, TokenizerError> {
    let mut sequences = Vec::new();
    for word in words {
        let word = word.trim_start();
        for text in [word.to_owned(), format!(" {word}")] {
            let tokens = without_spaces(tokenizer.encode(&text, false, false)?, tokenizer);
            if !tokens.is_empty() && !sequences.contains(&tokens) {
                sequences.push(tokens);
            }
        }
    }
    Ok(sequences)
}

/// The tokens without those at the beginning that are only spaces, which would ban the word after one kind of space alone.
fn without_spaces(tokens: Vec<TokenId>, tokenizer: &Tokenizer) -> Vec<TokenId> {
    let is_space = |&token: &TokenId| tokenizer.token_bytes(token, false).iter().all(|&byte| byte == b' ');
    tokens.into_iter().skip_while(is_space).collect()
}
