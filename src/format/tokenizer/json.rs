//! A Hugging Face `tokenizer.json`, run by the `tokenizers` crate.

use std::path::Path;

use super::byte_pair::Spelling;
use super::vocabulary::{Entry, TokenKind, Vocabulary, byte_of};
use super::{Encoder, Tokenizer, TokenizerError};
use crate::engine::TokenId;

/// The same tokenizer twice, for whether special tokens are read is a setting there and an argument here.
pub(super) struct JsonTokenizer {
    parses_special: tokenizers::Tokenizer,
    spells_special: tokenizers::Tokenizer,
}

impl JsonTokenizer {
    pub(super) fn encode(
        &self,
        text: &str,
        add_special: bool,
        parse_special: bool,
    ) -> Result<Vec<TokenId>, TokenizerError> {
        let tokenizer = if parse_special { &self.parses_special } else { &self.spells_special };
        let encoding =
            tokenizer.encode_fast(text, add_special).map_err(|error| TokenizerError::Pattern(error.to_string()))?;
        Ok(encoding.get_ids().to_vec())
    }
}

pub(super) fn load(path: &Path) -> Result<Tokenizer, TokenizerError> {
    let fault = |reason: String| TokenizerError::Json { path: path.to_owned(), reason };
    let text = std::fs::read_to_string(path).map_err(|error| fault(error.to_string()))?;
    let description: serde_json::Value = serde_json::from_str(&text).map_err(|error| fault(error.to_string()))?;
    let parses_special: tokenizers::Tokenizer =
        text.parse().map_err(|error: tokenizers::Error| fault(error.to_string()))?;
    let mut spells_special = parses_special.clone();
    spells_special.set_encode_special_tokens(true);

    let decoder = description["decoder"].to_string();
    let spelling = if decoder.contains("ByteLevel") { Spelling::ByteLevel } else { Spelling::SpaceMark };
    // Both kinds of decoder that take a leading space away say so by these names.
    let adds_space = decoder.contains("\"Strip\"") || decoder.contains("\"Metaspace\"");
    let entries = entries(&parses_special);
    let find = |names: &[&str]| {
        let place = names.iter().find_map(|name| entries.iter().position(|(text, _)| text == name))?;
        TokenId::try_from(place).ok()
    };
    let bos = first_added(&parses_special).or_else(|| find(&["<|begin_of_text|>", "<bos>", "<s>"]));
    let eos = find(&["<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>", "<eos>", "</s>"]);
    let end_of_generation = super::special::end_spellings(&entries);
    let vocabulary = Vocabulary::new(entries, spelling)?;
    let encoder = Encoder::Json(Box::new(JsonTokenizer { parses_special, spells_special }));
    Ok(Tokenizer { encoder, vocabulary, bos, eos, end_of_generation, adds_space })
}

/// The token that the tokenizer puts before an empty text.
fn first_added(tokenizer: &tokenizers::Tokenizer) -> Option<TokenId> {
    tokenizer.encode_fast("", true).ok()?.get_ids().first().copied()
}

/// All tokens by number; numbers that are not used get a name of their own.
fn entries(tokenizer: &tokenizers::Tokenizer) -> Vec<Entry> {
    let vocab = tokenizer.get_vocab(true);
    let n_tokens = vocab.values().max().map_or(0, |&last| last as usize + 1);
    // A hostile file may number one token four billion; nobody has more unused numbers than tokens.
    let n_tokens = n_tokens.min(2 * vocab.len() + 1024);
    let mut entries: Vec<Entry> = (0..n_tokens).map(|id| (format!("[UNUSED_{id}]"), TokenKind::Unused)).collect();
    let added = tokenizer.get_added_tokens_decoder();
    for (text, id) in vocab {
        let kind = match added.get(&id) {
            Some(token) if token.special => TokenKind::Control,
            Some(_) => TokenKind::UserDefined,
            None if byte_of(&text).is_some() => TokenKind::Byte,
            None => TokenKind::Normal,
        };
        if let Some(entry) = entries.get_mut(id as usize) {
            *entry = (text, kind);
        }
    }
    entries
}
