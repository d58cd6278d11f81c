//! A vocabulary of any size that tokenizers accept: all bytes, and words of lowercase letters in order of length.
//!
//! The words are all words of two letters, then all of three, and so on until the vocabulary is full. The first letter may be a
//! space. Each word is a merge of its prefix and its last letter, so text in lowercase letters needs about one token for three
//! letters, as with a real vocabulary.

use crate::format::gguf::write::GgufBuilder;
use crate::format::tokenizer::byte_level;

/// The tokenizer of a vocabulary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Vocabulary {
    /// Byte-level BPE, which merges by rank.
    BytePair {
        /// `tokenizer.ggml.pre`.
        pre_tokenizer: &'static str,
    },
    /// SentencePiece, which merges by score.
    SentencePiece,
}

/// `tokenizer.ggml.token_type`.
#[derive(Clone, Copy)]
enum TokenType {
    Normal = 1,
    Unknown = 2,
    Control = 3,
    Byte = 6,
}

const LETTERS: std::ops::RangeInclusive<char> = 'a'..='z';

impl Vocabulary {
    /// Adds the keys of a tokenizer with exactly `vocab_size` tokens.
    pub(super) fn describe(self, vocab_size: usize, file: GgufBuilder) -> GgufBuilder {
        match self {
            Vocabulary::BytePair { pre_tokenizer } => byte_pair(pre_tokenizer, vocab_size, file),
            Vocabulary::SentencePiece => sentence_piece(vocab_size, file),
        }
    }
}

fn byte_pair(pre_tokenizer: &str, vocab_size: usize, file: GgufBuilder) -> GgufBuilder {
    let encoded = |byte: u8| {
        let mut text = String::new();
        byte_level::encode(&[byte], &mut text);
        text
    };
    let mut tokens = Tokens::default();
    tokens.push("<|endoftext|>".to_owned(), TokenType::Control);
    for byte in 0..=u8::MAX {
        tokens.push(encoded(byte), TokenType::Normal);
    }
    let mut merges = Vec::new();
    for (before, letter) in words(&encoded(b' ')).take(vocab_size.saturating_sub(tokens.texts.len())) {
        merges.push(format!("{before} {letter}"));
        tokens.push(format!("{before}{letter}"), TokenType::Normal);
    }
    tokens
        .describe(vocab_size, file.key("tokenizer.ggml.model", "gpt2").key("tokenizer.ggml.pre", pre_tokenizer))
        .key("tokenizer.ggml.merges", merges)
        .key("tokenizer.ggml.bos_token_id", 0_u32)
        .key("tokenizer.ggml.eos_token_id", 0_u32)
        .key("tokenizer.ggml.add_bos_token", false)
}

fn sentence_piece(vocab_size: usize, file: GgufBuilder) -> GgufBuilder {
    const SPACE: &str = "▁";
    let mut tokens = Tokens::default();
    tokens.push("<unk>".to_owned(), TokenType::Unknown);
    tokens.push("<s>".to_owned(), TokenType::Control);
    tokens.push("</s>".to_owned(), TokenType::Control);
    for byte in 0..=u8::MAX {
        tokens.push(format!("<0x{byte:02X}>"), TokenType::Byte);
    }
    for letter in [SPACE.to_owned()].into_iter().chain(LETTERS.map(String::from)) {
        tokens.push(letter, TokenType::Normal);
    }
    for (before, letter) in words(SPACE).take(vocab_size.saturating_sub(tokens.texts.len())) {
        tokens.push(format!("{before}{letter}"), TokenType::Normal);
    }
    // Shorter words have higher scores, because longer words are merged from them.
    let scores: Vec<f32> = (0..vocab_size).map(|token| -(token as f32)).collect();
    tokens
        .describe(vocab_size, file.key("tokenizer.ggml.model", "llama").key("tokenizer.ggml.pre", "default"))
        .key("tokenizer.ggml.scores", scores)
        .key("tokenizer.ggml.unknown_token_id", 0_u32)
        .key("tokenizer.ggml.bos_token_id", 1_u32)
        .key("tokenizer.ggml.eos_token_id", 2_u32)
        .key("tokenizer.ggml.add_bos_token", true)
}

/// An infinite sequence of the words in order, each as its prefix and its last letter.
fn words(space: &str) -> impl Iterator<Item = (String, char)> {
    let mut shorter: Vec<String> = [space.to_owned()].into_iter().chain(LETTERS.map(String::from)).collect();
    std::iter::repeat_with(move || {
        let longer: Vec<(String, char)> =
            shorter.iter().flat_map(|word| LETTERS.map(move |letter| (word.clone(), letter))).collect();
        shorter = longer.iter().map(|(word, letter)| format!("{word}{letter}")).collect();
        longer
    })
    .flatten()
}

/// A list of tokens that is being built.
#[derive(Default)]
struct Tokens {
    texts: Vec<String>,
    token_types: Vec<i32>,
}

impl Tokens {
    fn push(&mut self, text: String, token_type: TokenType) {
        self.texts.push(text);
        self.token_types.push(token_type as i32);
    }

    /// Adds the first `vocab_size` tokens.
    fn describe(mut self, vocab_size: usize, file: GgufBuilder) -> GgufBuilder {
        self.texts.truncate(vocab_size);
        self.token_types.truncate(vocab_size);
        file.key("tokenizer.ggml.tokens", self.texts).key("tokenizer.ggml.token_type", self.token_types)
    }
}
