//! Byte-pair encoding by ranked merges, with the merge loop of the `tokenizers` crate.

use std::ops::Range;

use tokenizers::Model;
use tokenizers::models::bpe::BPE;

use super::byte_level;
use super::error::TokenizerError;
use super::limits;
use super::pre_tokenizer::{PreTokenizer, Row};
use super::vocabulary::{Spelling, TokenKind, Vocabulary};
use crate::cancel::LoadCancel;
use crate::engine::TokenId;
use crate::format::gguf::{Gguf, Metadata};

/// Encodes text that has no special tokens.
pub(super) struct BytePair {
    model: BPE,
    pre_tokenizer: PreTokenizer,
    spelling: Spelling,
}

impl BytePair {
    /// Reads the merges of a file.
    pub(super) fn new(
        gguf: &Gguf,
        vocabulary: &Vocabulary,
        row: &Row,
        spelling: Spelling,
        cancel: &LoadCancel,
    ) -> Result<Self, TokenizerError> {
        let listed = gguf.strings("tokenizer.ggml.merges")?;
        limits::check_merges(listed.len())?;
        // A merge whose parts or result are not tokens can never apply, and the model would refuse it.
        // Control tokens are never merged from text.
        let is_text = |id: TokenId| vocabulary.kind(id) != Some(TokenKind::Control);
        let mut merged = String::new();
        let merges = listed
            .take_while(|_| !cancel.is_cancelled())
            .filter_map(|merge| {
                let space = merge.char_indices().skip(1).find(|(_, character)| *character == ' ')?.0;
                let (left, right) = (&merge[..space], &merge[space + 1..]);
                merged.clear();
                merged.extend([left, right]);
                let all_known = [left, right, &merged].iter().all(|text| vocabulary.id(text).is_some_and(is_text));
                all_known.then(|| (left.to_owned(), right.to_owned()))
            })
            .collect();
        cancel.check()?;
        let mut ids = vocabulary.ids().clone();
        ids.retain(|_, id| is_text(*id));
        let model = BPE::builder()
            .vocab_and_merges(ids, merges)
            .ignore_merges(row.rules.whole_pieces)
            .byte_fallback(spelling == Spelling::SpaceMark)
            .build()
            .map_err(|error| TokenizerError::Vocabulary(error.to_string()))?;
        Ok(BytePair { model, pre_tokenizer: PreTokenizer::new(row)?, spelling })
    }

    /// Appends the tokens of `text`.
    pub(super) fn encode(
        &self,
        vocabulary: &Vocabulary,
        text: &str,
        out: &mut Vec<TokenId>,
    ) -> Result<(), TokenizerError> {
        let mut spelled = String::new();
        for piece in self.pre_tokenizer.split(text)? {
            self.spell(text, piece, &mut spelled);
            // A run of line breaks that is one token stays one: merges do not cover all such runs.
            let is_break = self.spelling == Spelling::SpaceMark && spelled.starts_with('\n');
            if let Some(id) = vocabulary.id(&spelled).filter(|_| is_break) {
                out.push(id);
                continue;
            }
            let tokens =
                self.model.tokenize(&spelled).map_err(|error| TokenizerError::Vocabulary(error.to_string()))?;
            out.extend(tokens.into_iter().map(|token| token.id));
        }
        Ok(())
    }

    /// Writes a piece in the vocabulary's spelling.
    fn spell(&self, text: &str, piece: Range<usize>, out: &mut String) {
        out.clear();
        match self.spelling {
            Spelling::ByteLevel => byte_level::encode(&text.as_bytes()[piece], out),
            Spelling::SpaceMark => out.push_str(&text[piece].replace(' ', "▁")),
        }
    }
}
