//! The words of a text, as groups of its tokens.
//!
//! Source: `split_to_word_tokens` of `tokenizer.py` in Whisper's own program (github.com/openai/whisper).

use cuelight_engine::engine::TokenId;
use cuelight_engine::format::tokenizer::Tokenizer;

/// Languages without spaces between words. Their characters count as words.
const WITHOUT_SPACES: [&str; 6] = ["zh", "ja", "th", "lo", "my", "yue"];

/// What is a word of its own.
const PUNCTUATION: &str = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~";

/// A word, and the number of its tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TokenGroup {
    pub text: String,
    pub tokens: usize,
}

/// The words of a text in a language, or of any language with spaces.
pub(super) fn of(tokens: &[TokenId], tokenizer: &Tokenizer, language: Option<&str>) -> Vec<TokenGroup> {
    let characters = characters(tokens, tokenizer);
    match language.is_some_and(|language| WITHOUT_SPACES.contains(&language)) {
        true => characters,
        false => joined(characters),
    }
}

/// The shortest groups that are whole characters. Bytes that are no characters end one, too.
fn characters(tokens: &[TokenId], tokenizer: &Tokenizer) -> Vec<TokenGroup> {
    let (mut groups, mut bytes, mut count) = (Vec::new(), Vec::new(), 0);
    for (index, token) in tokens.iter().enumerate() {
        bytes.extend_from_slice(tokenizer.token_bytes(*token, true));
        count += 1;
        let is_cut = |error: std::str::Utf8Error| error.error_len().is_none();
        if index + 1 == tokens.len() || !std::str::from_utf8(&bytes).is_err_and(is_cut) {
            groups.push(TokenGroup { text: String::from_utf8_lossy(&bytes).into_owned(), tokens: count });
            (bytes, count) = (Vec::new(), 0);
        }
    }
    groups
}

/// Groups that are joined where neither a space nor punctuation begins a word.
fn joined(characters: Vec<TokenGroup>) -> Vec<TokenGroup> {
    let mut words: Vec<TokenGroup> = Vec::new();
    for group in characters {
        match words.last_mut() {
            Some(word) if !group.text.starts_with(' ') && !PUNCTUATION.contains(group.text.trim()) => {
                word.text.push_str(&group.text);
                word.tokens += group.tokens;
            }
            _ => words.push(group),
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipeline::simulation::tokenizer_of_words;

    fn words(tokens: &[&str], language: Option<&str>) -> Vec<(String, usize)> {
        let tokenizer = tokenizer_of_words(&["\u{120}The", "\u{120}harb", "our", ",", "..."]);
        let id = |token: &&str| tokenizer.encode(token, false, false).expect("every byte is a token");
        let of_words = ["\u{120}The", "\u{120}harb", "our", ",", "..."];
        let known = |token: &&str| match of_words.iter().position(|word| word.replace('\u{120}', " ") == **token) {
            Some(index) => vec![257 + index as TokenId],
            None => id(token),
        };
        let tokens: Vec<TokenId> = tokens.iter().flat_map(known).collect();
        of(&tokens, &tokenizer, language).into_iter().map(|group| (group.text, group.tokens)).collect()
    }

    fn expected(words: &[(&str, usize)]) -> Vec<(String, usize)> {
        words.iter().map(|(text, tokens)| ((*text).to_owned(), *tokens)).collect()
    }

    #[test]
    fn a_space_or_punctuation_begins_a_word() {
        let found = words(&[" The", " harb", "our", ",", " The", "..."], Some("en"));
        assert_eq!(found, expected(&[(" The", 1), (" harbour", 2), (",", 1), (" The...", 2)]));
        assert_eq!(words(&["our", " The"], None), expected(&[("our", 1), (" The", 1)]));
        assert_eq!(words(&[], None), []);
    }

    #[test]
    fn without_spaces_each_character_is_a_word() {
        assert_eq!(words(&["港口"], Some("zh")), expected(&[("港", 3), ("口", 3)]));
        assert_eq!(words(&["é"], Some("fr")), expected(&[("é", 2)]));
        let tokenizer = tokenizer_of_words(&[]);
        let broken = of(&[0xe6, 97, 0xe6], &tokenizer, Some("zh"));
        let texts: Vec<(&str, usize)> = broken.iter().map(|group| (group.text.as_str(), group.tokens)).collect();
        assert_eq!(texts, [("\u{fffd}a", 2), ("\u{fffd}", 1)]);
    }
}
