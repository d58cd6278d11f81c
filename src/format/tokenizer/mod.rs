//! Text to tokens and back.
//!
//! A tokenizer is made from what a GGUF file says of itself, or from a `tokenizer.json`. Encoding goes top-down through
//! these modules:
//!
//! - [`special`]: the text is cut at special tokens
//! - [`pre_tokenizer`]: what lies between is cut into words, as the model's name for it wants
//! - [`byte_pair`], [`sentence_piece`]: words are merged into tokens
//! - [`vocabulary`]: the tokens, and the bytes they stand for
//! - [`stream`]: tokens back to text, one at a time
//! - [`json`]: all of it by the `tokenizers` crate, for a `tokenizer.json`

pub(crate) mod byte_level;
mod byte_pair;
mod json;
mod pre_tokenizer;
mod sentence_piece;
mod special;
mod stream;
mod vocabulary;

use std::path::{Path, PathBuf};

use crate::engine::TokenId;
use crate::format::gguf::{Gguf, GgufError};

use byte_pair::{BytePair, Spelling};
use json::JsonTokenizer;
use sentence_piece::SentencePiece;
use special::{Fragment, SpecialTokens, token_key};
pub use stream::StreamDecoder;
use vocabulary::{TokenKind, Vocabulary};

/// Why there is no tokenizer, or no tokens.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    /// The file lacks a key, or a key has the wrong type.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// A kind of tokenizer that is not implemented.
    #[error("the tokenizer model {model:?} is not supported; known: gpt2, llama, gemma4")]
    UnknownModel {
        /// What its key `tokenizer.ggml.model` says.
        model: String,
    },
    /// A way to cut text that is not implemented: guessing would give wrong tokens.
    #[error("the pre-tokenizer {name:?} (key \"tokenizer.ggml.pre\") is not known; known: {known}")]
    UnknownPreTokenizer {
        /// What the file says.
        name: String,
        /// All names that are known.
        known: String,
    },
    /// The vocabulary contradicts itself.
    #[error("the tokenizer's vocabulary cannot be used: {0}")]
    Vocabulary(String),
    /// A pattern gave up on a text.
    #[error("the text cannot be cut into words: {0}")]
    Pattern(String),
    /// A `tokenizer.json` that cannot be used.
    #[error("{}: not a usable tokenizer.json: {reason}", .path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
}

/// A model's tokenizer.
pub struct Tokenizer {
    encoder: Encoder,
    vocabulary: Vocabulary,
    bos: Option<TokenId>,
    eos: Option<TokenId>,
    end_of_generation: Vec<TokenId>,
    /// Whether the first token's leading space was added by encoding and is not part of the text.
    adds_space: bool,
}

/// How text becomes tokens.
enum Encoder {
    /// From a GGUF file.
    Pieces { special: SpecialTokens, merging: Merging, adds_bos: bool, adds_eos: bool },
    /// From a `tokenizer.json`.
    Json(Box<JsonTokenizer>),
}

/// How text between special tokens becomes tokens.
enum Merging {
    BytePair(Box<BytePair>),
    SentencePiece(SentencePiece),
}

impl Tokenizer {
    /// The tokenizer that a GGUF file describes in its metadata.
    ///
    /// # Errors
    /// [`TokenizerError`] naming the key, model or pre-tokenizer that cannot be used.
    pub fn from_gguf(gguf: &Gguf) -> Result<Self, TokenizerError> {
        match gguf.str("tokenizer.ggml.model")? {
            "gpt2" => Self::byte_pair(gguf, gguf.optional_str("tokenizer.ggml.pre")?, Spelling::ByteLevel),
            "gemma4" => Self::byte_pair(gguf, Some(pre_tokenizer::GEMMA4), Spelling::SpaceMark),
            "llama" => Self::sentence_piece(gguf),
            model => Err(TokenizerError::UnknownModel { model: model.to_owned() }),
        }
    }

    fn byte_pair(gguf: &Gguf, pre: Option<&str>, spelling: Spelling) -> Result<Self, TokenizerError> {
        let row = pre_tokenizer::row(pre.unwrap_or("default"))?;
        // Gemma's files may say that no BOS is added, though the model does not work without.
        let always_bos = spelling == Spelling::SpaceMark;
        let defaults = Defaults { bos: None, eos: None, adds_bos: row.rules.adds_bos };
        Self::pieces(gguf, defaults, spelling, false, always_bos, |vocabulary| {
            Ok(Merging::BytePair(Box::new(BytePair::new(gguf, vocabulary, row, spelling)?)))
        })
    }

    fn sentence_piece(gguf: &Gguf) -> Result<Self, TokenizerError> {
        let adds_space = gguf.optional_bool("tokenizer.ggml.add_space_prefix")?.unwrap_or(true);
        let scores = gguf.floats("tokenizer.ggml.scores")?;
        let unknown = gguf.optional_u32("tokenizer.ggml.unknown_token_id")?.or(Some(0));
        let defaults = Defaults { bos: Some(1), eos: Some(2), adds_bos: true };
        Self::pieces(gguf, defaults, Spelling::SpaceMark, adds_space, false, |vocabulary| {
            SentencePiece::new(vocabulary, scores, unknown, adds_space).map(Merging::SentencePiece)
        })
    }

    /// What all kinds have in common: vocabulary, special tokens and the rules for BOS and EOS.
    fn pieces(
        gguf: &Gguf,
        defaults: Defaults,
        spelling: Spelling,
        adds_space: bool,
        always_bos: bool,
        merging: impl FnOnce(&Vocabulary) -> Result<Merging, TokenizerError>,
    ) -> Result<Self, TokenizerError> {
        let mut entries = Vocabulary::entries(gguf)?;
        let n_tokens = entries.len();
        let token = |name: &str, default: Option<TokenId>| {
            let default = default.filter(|&token| (token as usize) < n_tokens);
            token_key(gguf, &format!("tokenizer.ggml.{name}_token_id"), n_tokens).map(|token| token.or(default))
        };
        let (bos, eos) = (token("bos", defaults.bos)?, token("eos", defaults.eos)?);
        let adds_bos = gguf.optional_bool("tokenizer.ggml.add_bos_token")?.unwrap_or(defaults.adds_bos) || always_bos;
        let adds_eos = gguf.optional_bool("tokenizer.ggml.add_eos_token")?.unwrap_or(false);
        let end_of_generation = special::end_of_generation(gguf, &mut entries, eos)?;
        let special = SpecialTokens::new(&entries, takes_space(gguf)?)?;
        let vocabulary = Vocabulary::new(entries, spelling)?;
        let merging = merging(&vocabulary)?;
        let encoder = Encoder::Pieces { special, merging, adds_bos, adds_eos };
        Ok(Tokenizer { encoder, vocabulary, bos, eos, end_of_generation, adds_space })
    }

    /// The tokenizer of a Hugging Face `tokenizer.json`.
    ///
    /// # Errors
    /// [`TokenizerError::Json`] when the file cannot be read or understood.
    pub fn from_json(path: impl AsRef<Path>) -> Result<Self, TokenizerError> {
        json::load(path.as_ref())
    }

    /// The tokens of a text. `add_special`: with BOS and EOS as the model wants them; `parse_special`: text such as
    /// `<|im_end|>` becomes that token, where otherwise it is spelled out.
    ///
    /// # Errors
    /// [`TokenizerError::Pattern`] for text made to exhaust the pre-tokenizer.
    pub fn encode(&self, text: &str, add_special: bool, parse_special: bool) -> Result<Vec<TokenId>, TokenizerError> {
        let (special, merging, adds_bos, adds_eos) = match &self.encoder {
            Encoder::Pieces { special, merging, adds_bos, adds_eos } => (special, merging, *adds_bos, *adds_eos),
            Encoder::Json(tokenizer) => return tokenizer.encode(text, add_special, parse_special),
        };
        let mut tokens = Vec::new();
        tokens.extend(self.bos.filter(|_| add_special && adds_bos));
        let mut at_start = true;
        for fragment in special.cut(text, parse_special) {
            match (fragment, merging) {
                (Fragment::Token(token), _) => tokens.push(token),
                (Fragment::Text(text), Merging::BytePair(model)) => {
                    model.encode(&self.vocabulary, text, &mut tokens)?;
                }
                (Fragment::Text(text), Merging::SentencePiece(model)) => {
                    model.encode(&self.vocabulary, text, at_start, &mut tokens);
                }
            }
            at_start = matches!(fragment, Fragment::Token(_));
        }
        tokens.extend(self.eos.filter(|_| add_special && adds_eos));
        Ok(tokens)
    }

    /// The text of tokens; bytes that are no UTF-8 become U+FFFD. Special tokens have no text when `skip_special` is
    /// set; numbers that are no token never have.
    #[must_use]
    pub fn decode(&self, tokens: &[TokenId], skip_special: bool) -> String {
        let mut decoder = StreamDecoder::default();
        let mut text: String = tokens.iter().map(|&token| decoder.push(self, token, skip_special)).collect();
        text.push_str(&decoder.finish());
        text
    }

    /// A token's bytes without the space that encoding adds at the start of a text.
    fn without_added_space<'a>(&self, token: TokenId, bytes: &'a [u8]) -> &'a [u8] {
        let is_text = self.vocabulary.kind(token) == Some(TokenKind::Normal);
        if self.adds_space && is_text { bytes.strip_prefix(b" ").unwrap_or(bytes) } else { bytes }
    }

    /// The bytes a token stands for: none for a special token when `skip_special` is set, nor for a number that is no
    /// token. They need not be whole characters.
    #[must_use]
    pub fn token_bytes(&self, token: TokenId, skip_special: bool) -> &[u8] {
        if skip_special && self.is_special(token) { &[] } else { self.vocabulary.bytes(token) }
    }

    /// A token on its own as text, special ones by their spelling.
    #[must_use]
    pub fn token_text(&self, token: TokenId) -> String {
        String::from_utf8_lossy(self.vocabulary.bytes(token)).into_owned()
    }

    /// How many tokens there are.
    #[must_use]
    pub fn vocab_size(&self) -> usize {
        self.vocabulary.len()
    }

    /// The token at the beginning of a text, when the model has one.
    #[must_use]
    pub fn bos(&self) -> Option<TokenId> {
        self.bos
    }

    /// The token at the end of a text, when the model has one.
    #[must_use]
    pub fn eos(&self) -> Option<TokenId> {
        self.eos
    }

    /// The tokens that end a generation, sorted: end of text, of turn, of message.
    #[must_use]
    pub fn end_of_generation(&self) -> &[TokenId] {
        &self.end_of_generation
    }

    /// Whether a token is structure and not text.
    #[must_use]
    pub fn is_special(&self, token: TokenId) -> bool {
        self.vocabulary.kind(token).is_some_and(TokenKind::is_special)
    }
}

/// What holds when the file does not say.
struct Defaults {
    bos: Option<TokenId>,
    eos: Option<TokenId>,
    adds_bos: bool,
}

/// Which special tokens take the white space after them; files do not say, only Phi-3's do it.
fn takes_space(gguf: &Gguf) -> Result<impl Fn(&str) -> bool + use<>, TokenizerError> {
    let name = gguf.optional_str("general.name")?.unwrap_or_default().to_lowercase();
    let is_phi3 = name.contains("phi-3") || name.contains("phi3");
    Ok(move |text: &str| is_phi3 && !matches!(text, "<unk>" | "<s>" | "<|endoftext|>"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
