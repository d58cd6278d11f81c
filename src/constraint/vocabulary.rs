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
        self.trie.tokenize_with_greedy_fallback(bytes, |text| self.spell(text))
    }

    /// So that a grammar's forced text has one spelling, which is all that a mask then allows.
    fn tokenize_is_canonical(&self) -> bool {
        true
    }
}

impl Vocabulary {
    /// The tokens of a text inside another one.
    fn spell(&self, text: &str) -> Vec<TokenId> {
        let is_spelled = |tokens: &Vec<TokenId>| {
            tokens.iter().flat_map(|&token| self.tokenizer.token_bytes(token, false)).eq(text.as_bytes())
        };
        let tokens = self.encode(text);
        if is_spelled(&tokens) {
            return tokens;
        }
        // A tokenizer that begins each text with a space does so before the line break.
        let (before, all) = (self.encode("\n"), self.encode(&format!("\n{text}")));
        let tokens = all.strip_prefix(&before[..]).map(<[TokenId]>::to_vec).filter(is_spelled);
        tokens.unwrap_or_else(|| self.trie.greedy_tokenize(text.as_bytes()))
    }

    fn encode(&self, text: &str) -> Vec<TokenId> {
        self.tokenizer.encode(text, false, false).unwrap_or_default()
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::format::gguf::Gguf;
    use crate::format::gguf::write::GgufBuilder;

    /// A SentencePiece vocabulary, which begins each text with a space: bytes, single characters, and some longer pieces.
    fn sentence_pieces() -> Arc<Tokenizer> {
        let bytes = (0..=255).map(|byte| format!("<0x{byte:02X}>"));
        let pieces = ["▁", "a", "b", "c", "▁a", "bc", "abc"].map(str::to_owned);
        let tokens: Vec<String> = ["<unk>", "</s>"].map(str::to_owned).into_iter().chain(bytes).chain(pieces).collect();
        let kind = |token: usize| match token {
            0 => 2,
            1 => 3,
            2..258 => 6,
            _ => 1,
        };
        let kinds: Vec<i32> = (0..tokens.len()).map(kind).collect();
        // "bc" merges before "abc" can.
        let scores: Vec<f32> = (0..tokens.len()).map(|token| -(token as f32)).collect();
        let file = GgufBuilder::new()
            .key("tokenizer.ggml.model", "llama")
            .key("tokenizer.ggml.tokens", &tokens.iter().map(String::as_str).collect::<Vec<_>>()[..])
            .key("tokenizer.ggml.token_type", &kinds[..])
            .key("tokenizer.ggml.scores", &scores[..])
            .key("tokenizer.ggml.eos_token_id", 1u32)
            .build();
        Arc::new(Tokenizer::from_gguf(&Gguf::from_bytes("pieces.gguf", file).unwrap()).unwrap())
    }

    #[test]
    fn a_forced_text_is_spelled_as_in_the_middle_of_a_text() {
        let tokenizer = sentence_pieces();
        let environment = of(&tokenizer, tokenizer.vocab_size()).unwrap();
        let spelled = |text: &str| -> Vec<String> {
            let tokens = environment.tokenize_bytes(text.as_bytes());
            tokens.iter().map(|&token| tokenizer.token_text(token)).collect()
        };
        assert_eq!(texts(&tokenizer, "abc"), [" a", "bc"], "a text of its own begins with a space");
        assert_eq!(spelled("abc"), ["abc"]);
        assert_eq!(spelled(" abc"), [" a", "bc"]);
        assert_eq!(spelled("abc a"), ["abc", " a"]);
        assert_eq!(environment.tokenize_bytes(b"a\xFFb").len(), 3, "what is not UTF-8 is spelled too");
    }

    fn texts(tokenizer: &Tokenizer, text: &str) -> Vec<String> {
        let tokens = tokenizer.encode(text, false, false).unwrap();
        tokens.iter().map(|&token| tokenizer.token_text(token)).collect()
    }
}
