//! WordPiece: the longest token that begins the rest of a word comes next.
//!
//! Run with the `tokenizers` crate. GGUF files mark the tokens that begin a word with `▁`, where `vocab.txt` marks all others
//! with `##`. Source: Devlin et al. 2018, "BERT".

use tokenizers::models::bpe::Vocab;
use tokenizers::models::wordpiece::WordPiece as Model;
use tokenizers::normalizers::bert::BertNormalizer;
use tokenizers::pre_tokenizers::bert::BertPreTokenizer;

use super::error::TokenizerError;
use super::vocabulary::{TokenKind, Vocabulary};
use crate::engine::TokenId;
use crate::format::gguf::{Gguf, Metadata};

/// The longest word that is divided into tokens, in characters; a longer one is unknown.
const LONGEST_WORD: usize = 100;

/// Encodes text that has no special tokens.
pub(super) struct WordPiece(tokenizers::Tokenizer);

impl WordPiece {
    /// The keys of the file say whether text is changed to lower case without accents; by default it is.
    pub(super) fn new(gguf: &Gguf, vocabulary: &Vocabulary, unknown: Option<TokenId>) -> Result<Self, TokenizerError> {
        let fault = |reason: String| TokenizerError::Vocabulary(reason);
        let spelled = vocabulary.ids().iter().map(|(text, id)| (spelling(text, vocabulary.kind(*id)), *id));
        let spelled: Vocab = spelled.collect();
        let unknown = unknown.and_then(|unknown| spelled.iter().find(|(_, id)| **id == unknown));
        let unknown = unknown.map(|(text, _)| text.clone()).ok_or_else(|| fault("there is no unknown token".into()))?;
        let model = Model::builder().vocab(spelled).unk_token(unknown).max_input_chars_per_word(LONGEST_WORD);
        let mut tokenizer = tokenizers::Tokenizer::new(model.build().map_err(|error| fault(error.to_string()))?);
        let lowercases = gguf.optional_bool("tokenizer.ggml.normalizer.lowercase")?.unwrap_or(true);
        let strips = gguf.optional_bool("tokenizer.ggml.normalizer.strip_accents")?.unwrap_or(lowercases);
        let normalizer = BertNormalizer::new(true, true, Some(strips), lowercases);
        tokenizer.with_normalizer(Some(normalizer)).map_err(|error| fault(error.to_string()))?;
        tokenizer.with_pre_tokenizer(Some(BertPreTokenizer));
        Ok(WordPiece(tokenizer))
    }

    /// Appends the tokens of `text`.
    pub(super) fn encode(&self, text: &str, out: &mut Vec<TokenId>) -> Result<(), TokenizerError> {
        let encoding = self.0.encode_fast(text, false).map_err(|error| TokenizerError::Pattern(error.to_string()))?;
        out.extend(encoding.get_ids());
        Ok(())
    }
}

/// The spelling in `vocab.txt` of a token in a GGUF file.
fn spelling(text: &str, kind: Option<TokenKind>) -> String {
    match text.strip_prefix('▁') {
        Some(word) => word.to_owned(),
        None if kind.is_some_and(|kind| kind == TokenKind::Normal) && !is_bracketed(text) => format!("##{text}"),
        None => text.to_owned(),
    }
}

/// Whether a token is `[CLS]` or alike, which files may not mark as a control token.
fn is_bracketed(text: &str) -> bool {
    text.len() > 2 && text.starts_with('[') && text.ends_with(']')
}
