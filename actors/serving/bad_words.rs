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

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use std::path::Path;

    use cuelight_engine::format::gguf::Gguf;

    use super::*;
    use crate::pipeline::simulation::tokenizer;

    fn banned(words: &[&str], tokenizer: &Tokenizer) -> Vec<Vec<TokenId>> {
        let words: Vec<String> = words.iter().map(|&word| word.to_owned()).collect();
        banned_sequences(&words, tokenizer).unwrap()
    }

    #[test]
    fn spaces_alone_are_not_part_of_a_word() {
        let [bad, no] = ["bad", "no"].map(|word| word.bytes().map(TokenId::from).collect::<Vec<_>>());
        assert_eq!(banned(&["bad", " bad", "no", " "], &tokenizer()), [bad, no]);
    }

    #[test]
    fn a_word_is_banned_within_a_text_and_after_a_space() {
        let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/families/qwen2.gguf");
        let tokenizer = Tokenizer::from_gguf(&Gguf::open(&model).unwrap()).unwrap();
        let sequences = banned(&["the"], &tokenizer);
        let text = |tokens: &Vec<TokenId>| {
            let bytes: Vec<u8> =
                tokens.iter().flat_map(|&token| tokenizer.token_bytes(token, false)).copied().collect();
            String::from_utf8(bytes).unwrap()
        };
        assert_eq!(sequences.iter().map(text).collect::<Vec<_>>(), ["the", " the"], "{sequences:?}");
    }
}
