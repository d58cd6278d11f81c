//! Byte-pair encoding by ranked merges, on the `tokenizers` crate's merge loop.

use std::ops::Range;

use tokenizers::Model;
use tokenizers::models::bpe::BPE;

use super::pre_tokenizer::{PreTokenizer, Row};
use super::vocabulary::Vocabulary;
use super::{TokenizerError, byte_level};
use crate::engine::TokenId;
use crate::format::gguf::Gguf;

/// How text is spelled in the vocabulary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Spelling {
    /// Each byte as one printable character; see [`byte_level`].
    ByteLevel,
    /// As it is, with `▁` for a space, and `<0x0A>` for bytes of characters that are no token.
    SpaceMark,
}

/// Text without special tokens to tokens.
pub(super) struct BytePair {
    model: BPE,
    pre_tokenizer: PreTokenizer,
    spelling: Spelling,
}

impl BytePair {
    /// Reads the merges of a file whose vocabulary was read.
    pub(super) fn new(
        gguf: &Gguf,
        vocabulary: &Vocabulary,
        row: &Row,
        spelling: Spelling,
    ) -> Result<Self, TokenizerError> {
        // Merges of or into what is no token can never happen, and the model would refuse them.
        let mut merged = String::new();
        let merges = gguf
            .strings("tokenizer.ggml.merges")?
            .filter_map(|merge| {
                let space = merge.char_indices().skip(1).find(|(_, character)| *character == ' ')?.0;
                let (left, right) = (&merge[..space], &merge[space + 1..]);
                merged.clear();
                merged.extend([left, right]);
                let all_known = [left, right, &merged].iter().all(|text| vocabulary.id(text).is_some());
                all_known.then(|| (left.to_owned(), right.to_owned()))
            })
            .collect();
        let model = BPE::builder()
            .vocab_and_merges(vocabulary.ids().clone(), merges)
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
        for piece in self.pre_tokenizer.cut(text)? {
            self.spell(text, piece, &mut spelled);
            // A run of line breaks that is one token stays one, for merges do not reach all of them.
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

    /// Writes a piece as the vocabulary spells it.
    fn spell(&self, text: &str, piece: Range<usize>, out: &mut String) {
        out.clear();
        match self.spelling {
            Spelling::ByteLevel => byte_level::encode(&text.as_bytes()[piece], out),
            Spelling::SpaceMark => out.push_str(&text[piece].replace(' ', "▁")),
        }
    }
}
