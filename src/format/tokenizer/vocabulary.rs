//! The tokens: their spelling, their kind and the bytes they stand for.

use tokenizers::models::bpe::Vocab;

use super::byte_pair::Spelling;
use super::{TokenizerError, byte_level};
use crate::engine::TokenId;
use crate::format::gguf::Gguf;

/// What a token is for; numbered in `tokenizer.ggml.token_type` as here, from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TokenKind {
    /// Text.
    Normal,
    /// Stands for what cannot be spelled.
    Unknown,
    /// Structure: never made from text unless asked for, and not part of the answer's text.
    Control,
    /// Text that is one token wherever it appears.
    UserDefined,
    /// Reserved.
    Unused,
    /// One byte, spelled `<0x0A>`.
    Byte,
}

impl TokenKind {
    fn from_number(number: i64) -> Self {
        match number {
            2 => TokenKind::Unknown,
            3 => TokenKind::Control,
            4 => TokenKind::UserDefined,
            5 => TokenKind::Unused,
            6 => TokenKind::Byte,
            _ => TokenKind::Normal,
        }
    }

    /// Whether the token is structure and not text.
    pub(super) fn is_special(self) -> bool {
        matches!(self, TokenKind::Control | TokenKind::Unknown)
    }
}

/// All tokens.
pub(super) struct Vocabulary {
    /// A map of the `tokenizers` crate, which wants a copy: making it again would take as long as making it once.
    id_of_text: Vocab,
    kinds: Vec<TokenKind>,
    /// The bytes of all tokens, one after the other, and where each token's end.
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

/// A token as it is listed: its spelling and its kind.
pub(super) type Entry = (String, TokenKind);

impl Vocabulary {
    /// Makes the vocabulary of a list of tokens; of equal ones the first counts.
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
    pub(super) fn entries(gguf: &Gguf) -> Result<Vec<Entry>, TokenizerError> {
        let tokens = gguf.strings("tokenizer.ggml.tokens")?;
        let kinds = gguf.optional_integers("tokenizer.ggml.token_type")?.unwrap_or_default();
        if !kinds.is_empty() && kinds.len() < tokens.len() {
            let (n_kinds, n_tokens) = (kinds.len(), tokens.len());
            return Err(TokenizerError::Vocabulary(format!("there are {n_kinds} token types for {n_tokens} tokens")));
        }
        let kind = |id: usize| kinds.get(id).map_or(TokenKind::Normal, |&number| TokenKind::from_number(number));
        let named = tokens.enumerate().map(|(id, text)| {
            // A token without a spelling can never be encoded, but must keep its number.
            let text = if text.is_empty() { format!("[EMPTY_{id}]") } else { text.to_owned() };
            (text, kind(id))
        });
        Ok(named.collect())
    }

    /// How many there are.
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

    /// What a token is for; `None` when there is no such token.
    pub(super) fn kind(&self, token: TokenId) -> Option<TokenKind> {
        self.kinds.get(token as usize).copied()
    }

    /// The bytes a token stands for; none when there is no such token.
    pub(super) fn bytes(&self, token: TokenId) -> &[u8] {
        let index = token as usize;
        let Some(&end) = self.ends.get(index) else { return &[] };
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.bytes[start..end]
    }
}

/// Appends the bytes that a token stands for.
fn append_bytes(text: &str, kind: TokenKind, spelling: Spelling, out: &mut Vec<u8>) {
    match (kind, spelling) {
        (TokenKind::Control | TokenKind::Unknown | TokenKind::UserDefined, _) => out.extend(text.as_bytes()),
        (TokenKind::Byte, _) if byte_of(text).is_some() => out.extend(byte_of(text)),
        (_, Spelling::ByteLevel) => byte_level::decode(text, out),
        (_, Spelling::SpaceMark) => out.extend(text.replace('▁', " ").as_bytes()),
    }
}

/// The byte that `<0x0A>` stands for.
pub(super) fn byte_of(text: &str) -> Option<u8> {
    let digits = text.strip_prefix("<0x")?.strip_suffix('>')?;
    (digits.len() == 2).then(|| u8::from_str_radix(digits, 16).ok())?
}
