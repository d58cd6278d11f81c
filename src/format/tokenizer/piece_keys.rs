//! A `tokenizer.model` of SentencePiece as the keys of a GGUF file, and the tokenizer of these keys.

use std::path::{Path, PathBuf};

use super::error::TokenizerError;
use super::sentence_piece_model::{ModelFault, ModelKind, PieceModel};
use super::vocabulary::{Entry, TokenKind};
use super::{Tokenizer, footprint};
use crate::engine::TokenId;
use crate::format::gguf::Gguf;
use crate::format::gguf::write::GgufBuilder;

/// The score of tokens that are added to a model, as llama.cpp's converter writes it. No merge has a lower one.
const ADDED_SCORE: f32 = -1000.0;

/// What the other files of a directory state about the tokenizer of a `tokenizer.model`.
#[derive(Debug, Clone, Default)]
pub struct PieceSettings {
    /// The spelling of the token before a text.
    pub bos: Option<String>,
    /// The spelling of the token that ends a text.
    pub eos: Option<String>,
    /// The spelling of the token for unknown text.
    pub unknown: Option<String>,
    /// More tokens that end a text.
    pub ends: Vec<TokenId>,
    /// Whether a text begins with the token before texts; it does if nothing is stated.
    pub adds_bos: Option<bool>,
    /// Whether a text ends with the token that ends texts; it does not if nothing is stated.
    pub adds_eos: Option<bool>,
    /// Whether a space is added before a text, if it differs from the model.
    pub adds_space: Option<bool>,
    /// Tokens that the model lacks or changes.
    pub added: Vec<AddedToken>,
    /// Spellings of tokens that are structure.
    pub special: Vec<String>,
}

/// A token in addition to those of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AddedToken {
    /// Its number.
    pub id: TokenId,
    /// Its spelling.
    pub text: String,
    /// Whether it is structure and not text.
    pub is_special: bool,
}

/// A `tokenizer.model` and what other files state about it.
#[derive(Debug, Clone, Copy)]
pub struct PieceFile<'a> {
    /// Its path, for messages.
    pub path: &'a Path,
    /// Its content.
    pub bytes: &'a [u8],
    /// What other files state.
    pub settings: &'a PieceSettings,
}

impl PieceFile<'_> {
    /// Builds the tokenizer: that of a GGUF file with the same vocabulary.
    ///
    /// # Errors
    /// [`TokenizerError::SentencePiece`] when the file is damaged or not supported, [`TokenizerError::TooLong`] for a vocabulary
    /// beyond the limits.
    pub fn tokenizer(self) -> Result<Tokenizer, TokenizerError> {
        Tokenizer::from_gguf(&self.gguf()?)
    }

    /// Adds the keys of the tokenizer to a GGUF file with `n_tokens` rows in its embedding.
    ///
    /// # Errors
    /// As [`PieceFile::tokenizer`].
    pub fn add_keys(self, n_tokens: usize, file: GgufBuilder) -> Result<GgufBuilder, TokenizerError> {
        let model = self.model()?;
        let mut entries = self.entries(&model)?;
        let missing = entries.len()..n_tokens;
        entries.extend(missing.map(|id| (format!("[UNUSED_{id}]"), TokenKind::Unused)));
        Ok(self.keys(&model, &entries, file))
    }

    /// Bytes of memory that building the tokenizer takes.
    ///
    /// # Errors
    /// As [`PieceFile::tokenizer`].
    pub fn memory_bytes(self) -> Result<u64, TokenizerError> {
        let (gguf, lists) = (self.gguf()?, 3 * self.bytes.len() as u64);
        Ok(footprint::memory_bytes(&gguf)? + lists)
    }

    /// A GGUF file that has only the keys of the tokenizer.
    fn gguf(self) -> Result<Gguf, TokenizerError> {
        let file = self.add_keys(0, GgufBuilder::new())?;
        Ok(Gguf::from_bytes(&self.path.to_string_lossy(), file.build())?)
    }

    fn fault(self, reason: String) -> TokenizerError {
        TokenizerError::SentencePiece { path: PathBuf::from(self.path), reason }
    }

    fn model(&self) -> Result<PieceModel<'_>, TokenizerError> {
        PieceModel::parse(self.bytes).map_err(|fault| match fault {
            ModelFault::Reason(reason) => self.fault(reason),
            ModelFault::Limit(error) => error,
        })
    }

    /// The tokens of the model and those that are added to it. Ids between them that no token has get a placeholder.
    fn entries(&self, model: &PieceModel<'_>) -> Result<Vec<Entry>, TokenizerError> {
        let mut entries: Vec<Entry> = model.pieces.iter().map(|piece| (piece.text.to_owned(), piece.kind)).collect();
        // No real vocabulary has more unused ids than tokens.
        let most = 2 * entries.len() + 1024;
        for AddedToken { id, text, is_special } in &self.settings.added {
            let id = *id as usize;
            if id >= most {
                return Err(
                    self.fault(format!("the added token {text:?} has the number {id}; it must be below {most}"))
                );
            }
            let missing = entries.len()..=id;
            entries.extend(missing.map(|id| (format!("[UNUSED_{id}]"), TokenKind::Unused)));
            let kind = match entries[id].1 {
                // Pieces keep their kind where a list repeats them.
                kind if entries[id].0 == *text && kind != TokenKind::Normal => kind,
                _ if *is_special => TokenKind::Control,
                _ => TokenKind::UserDefined,
            };
            entries[id] = (text.clone(), kind);
        }
        for (text, kind) in &mut entries {
            if *kind == TokenKind::UserDefined && self.settings.special.contains(text) {
                *kind = TokenKind::Control;
            }
        }
        Ok(entries)
    }

    fn keys(&self, model: &PieceModel<'_>, entries: &[Entry], file: GgufBuilder) -> GgufBuilder {
        let tokens: Vec<&str> = entries.iter().map(|(text, _)| text.as_str()).collect();
        let kinds: Vec<i32> = entries.iter().map(|(_, kind)| kind.number()).collect();
        let scores = (0..entries.len()).map(|id| model.pieces.get(id).map_or(ADDED_SCORE, |piece| piece.score));
        let name = match model.kind {
            ModelKind::BytePair => "llama",
            ModelKind::Unigram => "t5",
        };
        let mut file = file
            .key("tokenizer.ggml.model", name)
            .key("tokenizer.ggml.pre", "default")
            .key("tokenizer.ggml.tokens", tokens)
            .key("tokenizer.ggml.scores", scores.collect::<Vec<f32>>())
            .key("tokenizer.ggml.token_type", kinds)
            .key("tokenizer.ggml.add_space_prefix", self.settings.adds_space.unwrap_or(model.adds_space))
            .key("tokenizer.ggml.remove_extra_whitespaces", model.removes_spaces);
        if !model.charsmap.is_empty() {
            file = file.key("tokenizer.ggml.precompiled_charsmap", model.charsmap.to_vec());
        }
        self.special_keys(model, entries, file)
    }

    /// Adds the keys of single tokens, and whether texts begin and end with one.
    fn special_keys(&self, model: &PieceModel<'_>, entries: &[Entry], file: GgufBuilder) -> GgufBuilder {
        let settings = self.settings;
        let id = |text: &Option<String>| {
            let text = text.as_ref()?;
            entries.iter().position(|(spelling, _)| spelling == text).and_then(|id| TokenId::try_from(id).ok())
        };
        let eos = id(&settings.eos).or(model.eos);
        let mut others = settings.ends.iter().copied().filter(|end| Some(*end) != eos);
        let named = [
            ("bos", id(&settings.bos).or(model.bos)),
            ("eos", eos),
            ("unknown", id(&settings.unknown).or(model.unknown)),
            ("padding", model.padding),
            ("eot", others.next()),
            ("eom", others.next()),
        ];
        let file = named.into_iter().fold(file, |file, (name, token)| match token {
            Some(token) => file.key(&format!("tokenizer.ggml.{name}_token_id"), token),
            None => file,
        });
        file.key("tokenizer.ggml.add_bos_token", settings.adds_bos.unwrap_or(true))
            .key("tokenizer.ggml.add_eos_token", settings.adds_eos.unwrap_or(false))
    }
}
