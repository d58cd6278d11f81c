//! A `tokenizer.model` of SentencePiece: a protobuf with the pieces and the rules of normalization.
//!
//! Only the fields that encoding needs are read, in place. Source: `sentencepiece_model.proto` (Google's SentencePiece).

use super::error::TokenizerError;
use super::limits;
use super::vocabulary::TokenKind;

/// What a file says. Texts and tables stay in its bytes.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct PieceModel<'a> {
    /// The pieces in the order of their ids.
    pub pieces: Vec<Piece<'a>>,
    pub kind: ModelKind,
    /// The table by which characters are normalized; empty for none.
    pub charsmap: &'a [u8],
    /// Whether a space is added before a text.
    pub adds_space: bool,
    /// Whether spaces at the ends of a text, and those after a space, are removed.
    pub removes_spaces: bool,
    /// The ids for unknown text, for the beginning and the end of a text, and for padding.
    pub unknown: Option<u32>,
    pub bos: Option<u32>,
    pub eos: Option<u32>,
    pub padding: Option<u32>,
}

/// A piece of text with its score.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Piece<'a> {
    pub text: &'a str,
    pub score: f32,
    pub kind: TokenKind,
}

/// How pieces are chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ModelKind {
    /// The most likely division of a text.
    Unigram,
    /// Merges of neighbours by score.
    BytePair,
}

/// Why a file cannot be used.
#[derive(Debug)]
pub(super) enum ModelFault {
    /// A reason for people.
    Reason(String),
    /// Beyond the limits on vocabularies.
    Limit(TokenizerError),
}

impl From<TokenizerError> for ModelFault {
    fn from(error: TokenizerError) -> Self {
        ModelFault::Limit(error)
    }
}

impl From<&str> for ModelFault {
    fn from(reason: &str) -> Self {
        ModelFault::Reason(reason.to_owned())
    }
}

/// The value of a field as its bytes say. Numbers of 64 bits in a fixed length do not occur in fields that are read.
#[derive(Debug, Clone, Copy)]
enum Wire<'a> {
    Number(u64),
    Bytes(&'a [u8]),
    Float(f32),
    Other,
}

/// The fields of a message, each with its number.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    /// A number of seven bits in each byte, the lowest first.
    fn varint(&mut self) -> Option<u64> {
        let mut value = 0u64;
        for place in 0..10 {
            let (byte, rest) = self.0.split_first()?;
            self.0 = rest;
            value |= u64::from(byte & 0x7f) << (7 * place);
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    fn field(&mut self) -> Option<(u64, Wire<'a>)> {
        let tag = self.varint()?;
        let value = match tag & 7 {
            0 => Wire::Number(self.varint()?),
            1 => self.take(8).map(|_| Wire::Other)?,
            2 => {
                let length = usize::try_from(self.varint()?).ok()?;
                Wire::Bytes(self.take(length)?)
            }
            5 => Wire::Float(f32::from_le_bytes(self.take(4)?.try_into().ok()?)),
            _ => return None,
        };
        Some((tag >> 3, value))
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u64, Wire<'a>), ModelFault>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_none() {
            // What follows has no meaning.
            self.0 = &[];
        }
        Some(field.ok_or_else(|| "it is no complete protobuf, so it is not of SentencePiece or damaged".into()))
    }
}

impl<'a> PieceModel<'a> {
    /// Reads a file.
    ///
    /// # Errors
    /// [`ModelFault`] for bytes that are no such file, a kind of model that is not supported, and a vocabulary beyond the limits.
    pub(super) fn parse(bytes: &'a [u8]) -> Result<Self, ModelFault> {
        let mut model = PieceModel {
            pieces: Vec::new(),
            kind: ModelKind::Unigram,
            charsmap: &[],
            adds_space: true,
            removes_spaces: true,
            unknown: Some(0),
            bos: Some(1),
            eos: Some(2),
            padding: None,
        };
        for field in Fields(bytes) {
            match field? {
                (1, Wire::Bytes(piece)) => {
                    limits::check_count(model.pieces.len() + 1)?;
                    model.pieces.push(Piece::parse(model.pieces.len(), piece)?);
                }
                (2, Wire::Bytes(trainer)) => model.read_trainer(trainer)?,
                (3, Wire::Bytes(normalizer)) => model.read_normalizer(normalizer)?,
                _ => {}
            }
        }
        if model.pieces.is_empty() { Err("it has no pieces".into()) } else { Ok(model) }
    }

    /// Reads what the trainer was told: the kind of model, and the ids of single tokens. -1 is none.
    fn read_trainer(&mut self, message: &'a [u8]) -> Result<(), ModelFault> {
        for field in Fields(message) {
            let (number, Wire::Number(value)) = field? else { continue };
            let id = u32::try_from(value).ok();
            match (number, value) {
                (3, 1) => self.kind = ModelKind::Unigram,
                (3, 2) => self.kind = ModelKind::BytePair,
                (3, _) => return Err("its model is one of words or characters, but must be unigram or BPE".into()),
                (24, 1) => return Err("it marks the ends of words, which is not supported".into()),
                (40, _) => self.unknown = id,
                (41, _) => self.bos = id,
                (42, _) => self.eos = id,
                (43, _) => self.padding = id,
                _ => {}
            }
        }
        Ok(())
    }

    fn read_normalizer(&mut self, message: &'a [u8]) -> Result<(), ModelFault> {
        for field in Fields(message) {
            match field? {
                (2, Wire::Bytes(table)) => self.charsmap = table,
                (3, Wire::Number(flag)) => self.adds_space = flag != 0,
                (4, Wire::Number(flag)) => self.removes_spaces = flag != 0,
                (5, Wire::Number(0)) => return Err("it does not mark spaces, which is not supported".into()),
                _ => {}
            }
        }
        Ok(())
    }
}

impl<'a> Piece<'a> {
    fn parse(id: usize, message: &'a [u8]) -> Result<Self, ModelFault> {
        let mut piece = Piece { text: "", score: 0.0, kind: TokenKind::Normal };
        for field in Fields(message) {
            match field? {
                (1, Wire::Bytes(text)) => {
                    let not_text = |_| ModelFault::Reason(format!("piece {id} is not valid UTF-8"));
                    piece.text = str::from_utf8(text).map_err(not_text)?;
                }
                (2, Wire::Float(score)) => piece.score = score,
                (3, Wire::Number(kind)) => piece.kind = TokenKind::from_number(kind.cast_signed()),
                _ => {}
            }
        }
        limits::check_token(id, piece.text)?;
        if piece.score.is_nan() {
            return Err(ModelFault::Reason(format!("the score of piece {id} is not a number")));
        }
        Ok(piece)
    }
}
