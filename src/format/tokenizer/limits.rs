//! Limits on vocabularies, so that a file cannot make a tokenizer that takes minutes or gigabytes to build.

use super::error::TokenizerError;

/// Most tokens. The largest real vocabularies have 262,144.
const TOKENS_MAX: usize = 1 << 22;
/// Most bytes of a token's spelling. The longest real ones, runs of spaces and separators, stay below one kilobyte.
const TOKEN_BYTES_MAX: usize = 4 << 10;
/// Most bytes of the spelling of a token that is searched for in text. Real ones stay below one hundred.
const SEARCHED_BYTES_MAX: usize = 1 << 10;
/// Most bytes of all those spellings together. Real ones have some hundred kilobytes: 6,242 unused tokens of Gemma 3.
const SEARCHED_BYTES_TOTAL_MAX: usize = 4 << 20;
/// Most merges. The longest real list has half a million.
const MERGES_MAX: usize = 1 << 23;

/// Most bytes of tokens, each counted once for each place where it can be divided. Real vocabularies have some ten million.
const DIVIDED_BYTES_MAX: usize = 1 << 30;

fn at_most(what: impl FnOnce() -> String, found: usize, unit: &'static str, most: usize) -> Result<(), TokenizerError> {
    if found > most { Err(TokenizerError::TooLong { what: what(), found, unit, most }) } else { Ok(()) }
}

/// Checks the number of tokens, before their spellings are copied.
pub(super) fn check_count(tokens: usize) -> Result<(), TokenizerError> {
    at_most(|| "the vocabulary".to_owned(), tokens, "tokens", TOKENS_MAX)
}

/// Checks the length of a token's spelling.
pub(super) fn check_token(id: usize, text: &str) -> Result<(), TokenizerError> {
    at_most(|| format!("token {id}"), text.len(), "bytes", TOKEN_BYTES_MAX)
}

/// Checks the spellings that are searched for in text, each with the number of its token.
pub(super) fn check_searched<'a>(spellings: impl Iterator<Item = (usize, &'a str)>) -> Result<(), TokenizerError> {
    let mut total = 0;
    for (id, text) in spellings {
        at_most(|| format!("special token {id}"), text.len(), "bytes", SEARCHED_BYTES_MAX)?;
        total += text.len();
    }
    at_most(|| "the list of special tokens".to_owned(), total, "bytes", SEARCHED_BYTES_TOTAL_MAX)
}

/// Checks the number of merges.
pub(super) fn check_merges(merges: usize) -> Result<(), TokenizerError> {
    at_most(|| "the list of merges".to_owned(), merges, "entries", MERGES_MAX)
}

/// Checks the lengths of tokens that are divided at each place.
pub(super) fn check_divisions(mut lengths: impl Iterator<Item = usize>) -> Result<(), TokenizerError> {
    let bytes = lengths.try_fold(0usize, |sum, length| sum.checked_add(length.checked_mul(length)?));
    at_most(|| "the divided tokens".to_owned(), bytes.unwrap_or(usize::MAX), "bytes", DIVIDED_BYTES_MAX)
}
