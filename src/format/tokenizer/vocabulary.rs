//! The tokens of a model: their spelling, kind and bytes.

use tokenizers::models::bpe::Vocab;

use super::byte_level;
use super::error::TokenizerError;
use super::limits;
use crate::cancel::LoadCancel;
use crate::engine::TokenId;
use crate::format::gguf::{Gguf, Metadata};

/// How a vocabulary spells text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Spelling {
    /// Each byte as one printable character; see [`byte_level`].
    ByteLevel,
    /// As text, with `▁` for a space, and `<0x0A>` for the bytes of characters that are not in the vocabulary.
    SpaceMark,
}

/// The kind of a token. The variants are in the order of the numbers in `tokenizer.ggml.token_type`, from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TokenKind {
    /// Text.
    Normal,
    /// Replaces text that cannot be encoded.
    Unknown,
    /// Structure: encoded from text only on request, and not part of an answer's text.
    Control,
    /// Text that is always encoded as this token.
    UserDefined,
    /// Reserved.
    Unused,
    /// One byte, spelled `<0x0A>`.
    Byte,
}

impl TokenKind {
    /// The kind with this number in `tokenizer.ggml.token_type`.
    pub(super) fn from_number(number: i64) -> Self {
        match number {
            2 => TokenKind::Unknown,
            3 => TokenKind::Control,
            4 => TokenKind::UserDefined,
            5 => TokenKind::Unused,
            6 => TokenKind::Byte,
            _ => TokenKind::Normal,
        }
    }

    /// The number in `tokenizer.ggml.token_type`.
    pub(super) fn number(self) -> i32 {
        self as i32 + 1
    }

    /// Whether the token marks structure and is not text.
    pub(super) fn is_special(self) -> bool {
        matches!(self, TokenKind::Control | TokenKind::Unknown)
    }
}

/// All tokens.
pub(super) struct Vocabulary {
    /// In the map type of the `tokenizers` crate, which needs a copy of it.
    id_of_text: Vocab,
    kinds: Vec<TokenKind>,
    /// The bytes of all tokens, concatenated.
    bytes: Vec<u8>,
    /// The end of each token's bytes.
    ends: Vec<usize>,
}

/// A token in a file's list: its spelling and kind.
pub(super) type Entry = (String, TokenKind);

impl Vocabulary {
    /// Builds the vocabulary of a list of tokens. Of tokens with equal spelling, the first is used for encoding.
    pub(super) fn new(entries: Vec<Entry>, spelling: Spelling) -> Result<Self, TokenizerError> {
        if entries.is_empty() {
            return Err(TokenizerError::Vocabulary("the vocabulary is empty".to_owned()));
        }
        TokenId::try_from(entries.len()).map_err(|_| TokenizerError::Vocabulary("too many tokens".to_owned()))?;
        let mut vocabulary = Vocabulary {
            id_of_text: Vocab::with_capacity(entries.len()),
            kinds: Vec::with_capacity(entries.len()),
            bytes: Vec::new(),
            ends: Vec::with_capacity(entries.len()),
        };
        for (id, (text, kind)) in (0..).zip(entries) {
            append_bytes(&text, kind, spelling, &mut vocabulary.bytes);
            vocabulary.ends.push(vocabulary.bytes.len());
            vocabulary.kinds.push(kind);
            vocabulary.id_of_text.entry(text).or_insert(id);
        }
        Ok(vocabulary)
    }

    /// The tokens that a file lists.
    pub(super) fn entries(gguf: &Gguf, cancel: &LoadCancel) -> Result<Vec<Entry>, TokenizerError> {
        let tokens = gguf.strings("tokenizer.ggml.tokens")?;
        limits::check_count(tokens.len())?;
        let kinds = gguf.optional_integers("tokenizer.ggml.token_type")?.unwrap_or_default();
        if !kinds.is_empty() && kinds.len() < tokens.len() {
            let (n_kinds, n_tokens) = (kinds.len(), tokens.len());
            return Err(TokenizerError::Vocabulary(format!("there are {n_kinds} token types for {n_tokens} tokens")));
        }
        let kind = |id: usize| kinds.get(id).map_or(TokenKind::Normal, |&number| TokenKind::from_number(number));
        let named = tokens.enumerate().map(|(id, text)| {
            cancel.check()?;
            limits::check_token(id, text)?;
            // A token with an empty spelling can never be encoded, but must keep its id.
            let text = if text.is_empty() { format!("[EMPTY_{id}]") } else { text.to_owned() };
            Ok((text, kind(id)))
        });
        let entries = named.collect::<Result<Vec<Entry>, TokenizerError>>()?;
        let is_searched = |kind: TokenKind| kind == TokenKind::UserDefined || kind.is_special();
        let searched = entries.iter().enumerate().filter(|(_, (_, kind))| is_searched(*kind));
        limits::check_searched(searched.map(|(id, (text, _))| (id, text.as_str())))?;
        Ok(entries)
    }

    /// Number of tokens.
    pub(super) fn len(&self) -> usize {
        self.kinds.len()
    }

    /// The token with this spelling.
    pub(super) fn id(&self, text: &str) -> Option<TokenId> {
        self.id_of_text.get(text).copied()
    }

    /// All spellings and their tokens.
    pub(super) fn ids(&self) -> &Vocab {
        &self.id_of_text
    }

    /// The kind of a token; `None` for an unknown id.
    pub(super) fn kind(&self, token: TokenId) -> Option<TokenKind> {
        self.kinds.get(token as usize).copied()
    }

    /// The bytes of a token; empty for an unknown id.
    pub(super) fn bytes(&self, token: TokenId) -> &[u8] {
        let index = token as usize;
        let Some(&end) = self.ends.get(index) else { return &[] };
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.bytes[start..end]
    }
}

/// Appends the bytes of a token.
fn append_bytes(text: &str, kind: TokenKind, spelling: Spelling, out: &mut Vec<u8>) {
    match (kind, spelling) {
        (TokenKind::Control | TokenKind::Unknown | TokenKind::UserDefined, _) => out.extend(text.as_bytes()),
        (TokenKind::Byte, _) if byte_of(text).is_some() => out.extend(byte_of(text)),
        (_, Spelling::ByteLevel) => byte_level::decode(text, out),
        (_, Spelling::SpaceMark) => out.extend(text.replace('▁', " ").as_bytes()),
    }
}

/// The byte of a spelling such as `<0x0A>`.
pub(super) fn byte_of(text: &str) -> Option<u8> {
    let digits = text.strip_prefix("<0x")?.strip_suffix('>')?;
    (digits.len() == 2).then(|| u8::from_str_radix(digits, 16).ok())?
}
