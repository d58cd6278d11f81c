//! Text to tokens and back.
//!
//! A tokenizer is built from the metadata of a GGUF file, from a `tokenizer.json`, or from a `tokenizer.model` of SentencePiece,
//! which becomes such metadata first. The steps of encoding, in order:
//!
//! - [`special`]: splits the text at special tokens
//! - [`pre_tokenizer`]: splits the text between them into words, by the rules that the file names
//! - [`byte_pair`], [`sentence_piece`]: merge words into tokens; [`word_piece`], [`unigram`]: divide words into tokens
//!
//! And what the steps share:
//!
//! - [`vocabulary`], [`limits`]: the tokens and their bytes, and how many there may be
//! - [`footprint`]: the memory that all of this takes
//! - [`stream`]: decodes tokens to text, one at a time
//! - [`infill`]: the tokens around a gap in a text; [`pair`]: those around two texts
//! - [`gguf_keys`]: a `tokenizer.json` as the keys of a GGUF file
//! - [`piece_keys`], [`sentence_piece_model`]: a `tokenizer.model` as the keys of a GGUF file
//! - `normalization`: what SentencePiece changes in a text before it is divided
//! - `tekken`: a `tekken.json` as a `tokenizer.json`
//! - [`json`]: runs a `tokenizer.json` with the `tokenizers` crate

pub(crate) mod byte_level;
mod byte_pair;
mod error;
mod footprint;
pub(crate) mod gguf_keys;
mod infill;
mod json;
mod limits;
mod normalization;
mod pair;
pub mod piece_keys;
mod pre_tokenizer;
mod sentence_piece;
mod sentence_piece_model;
mod special;
mod stream;
mod tekken;
mod unigram;
mod vocabulary;
mod word_piece;

use std::path::Path;

use crate::cancel::LoadCancel;
use crate::engine::TokenId;
use crate::format::gguf::{Gguf, Metadata};

use byte_pair::BytePair;
pub use error::TokenizerError;
pub use infill::InfillTokens;
pub use json::JsonSettings;
use json::JsonTokenizer;
use normalization::{Ends, Normalization};
pub use pair::PairLayout;
use pair::Separation;
use sentence_piece::SentencePiece;
use special::{Fragment, SpecialTokens, token_key};
pub use stream::StreamDecoder;
use unigram::Unigram;
use vocabulary::{Spelling, TokenKind, Vocabulary};
use word_piece::WordPiece;

/// A model's tokenizer.
pub struct Tokenizer {
    encoder: Encoder,
    vocabulary: Vocabulary,
    bos: Option<TokenId>,
    eos: Option<TokenId>,
    end_of_generation: Vec<TokenId>,
    infill: Option<InfillTokens>,
    pair: Option<PairLayout>,
    /// Whether encoding adds a space at the start of a text, which decoding removes.
    adds_space: bool,
}

/// How text becomes tokens.
enum Encoder {
    /// By the rules of a GGUF file.
    Pieces(Pieces),
    /// By a `tokenizer.json`.
    Json(Box<JsonTokenizer>),
}

/// The rules of a GGUF file.
struct Pieces {
    special: SpecialTokens,
    merging: Merging,
    adds_bos: bool,
    adds_eos: bool,
}

/// How text between special tokens becomes tokens.
enum Merging {
    BytePair(Box<BytePair>),
    SentencePiece(Box<SentencePiece>),
    WordPiece(Box<WordPiece>),
    Unigram(Box<Unigram>),
}

impl Tokenizer {
    /// Builds the tokenizer that a GGUF file's metadata describes.
    ///
    /// # Errors
    /// [`TokenizerError`] naming the key, model or pre-tokenizer that cannot be used.
    pub fn from_gguf(gguf: &Gguf) -> Result<Self, TokenizerError> {
        Self::build(gguf, &LoadCancel::default())
    }

    /// [`Tokenizer::from_gguf`] that ends early when it is cancelled.
    ///
    /// # Errors
    /// Also [`TokenizerError::Cancelled`].
    pub fn build(gguf: &Gguf, cancel: &LoadCancel) -> Result<Self, TokenizerError> {
        match gguf.str("tokenizer.ggml.model")? {
            "gpt2" => Self::byte_pair(gguf, gguf.optional_str("tokenizer.ggml.pre")?, Spelling::ByteLevel, cancel),
            "gemma4" => Self::byte_pair(gguf, Some(pre_tokenizer::GEMMA4), Spelling::SpaceMark, cancel),
            "llama" => Self::sentence_piece(gguf, cancel),
            "bert" => Self::word_piece(gguf, cancel),
            "t5" => Self::unigram(gguf, cancel),
            model => Err(TokenizerError::UnknownModel { model: model.to_owned() }),
        }
    }

    /// Bytes of memory that building the tokenizer of a file takes, from the lengths of its lists. 0 if it has none.
    ///
    /// # Errors
    /// [`TokenizerError::TooLong`] for a vocabulary beyond the limits.
    pub fn memory_bytes(gguf: &Gguf) -> Result<u64, TokenizerError> {
        footprint::memory_bytes(gguf)
    }

    fn byte_pair(
        gguf: &Gguf,
        pre: Option<&str>,
        spelling: Spelling,
        cancel: &LoadCancel,
    ) -> Result<Self, TokenizerError> {
        let row = pre_tokenizer::row(pre.unwrap_or("default"))?;
        // Some Gemma files state that no BOS is added, but the model does not work without it.
        let always_bos = spelling == Spelling::SpaceMark;
        let pre_tokenizer::Rules { adds_bos, adds_eos, one_separator, .. } = row.rules;
        let separation = if one_separator { Separation::OnceAlways } else { Separation::Once };
        let defaults = Defaults { adds_bos, adds_eos, separation, ..Defaults::NONE };
        Self::pieces((gguf, cancel), defaults, spelling, false, always_bos, |vocabulary| {
            Ok(Merging::BytePair(Box::new(BytePair::new(gguf, vocabulary, row, spelling, cancel)?)))
        })
    }

    fn sentence_piece(gguf: &Gguf, cancel: &LoadCancel) -> Result<Self, TokenizerError> {
        let adds_space = gguf.optional_bool("tokenizer.ggml.add_space_prefix")?.unwrap_or(true);
        let scores = gguf.floats("tokenizer.ggml.scores")?;
        let defaults = Defaults { bos: Some(1), eos: Some(2), adds_bos: true, ..Defaults::NONE };
        Self::pieces((gguf, cancel), defaults, Spelling::SpaceMark, adds_space, false, |vocabulary| {
            let unknown = token_key(gguf, "tokenizer.ggml.unknown_token_id", vocabulary.len())?.or(Some(0));
            let normalization = Normalization::of_keys(gguf)?;
            let pieces = SentencePiece::new(vocabulary, scores, unknown, (adds_space, normalization))?;
            Ok(Merging::SentencePiece(Box::new(pieces)))
        })
    }

    /// Texts are between `[CLS]` and `[SEP]`.
    fn word_piece(gguf: &Gguf, cancel: &LoadCancel) -> Result<Self, TokenizerError> {
        let n_tokens = gguf.strings("tokenizer.ggml.tokens")?.len();
        let key = |name: &str| token_key(gguf, &format!("tokenizer.ggml.{name}_token_id"), n_tokens);
        let (cls, sep, unknown) = (key("cls")?, key("seperator")?, key("unknown")?);
        let (bos, eos, separation) = (cls.or(Some(101)), sep.or(Some(102)), Separation::OnceToldApart);
        let defaults = Defaults { bos, eos, adds_bos: true, adds_eos: true, separation };
        Self::pieces((gguf, cancel), defaults, Spelling::SpaceMark, true, false, |vocabulary| {
            let unknown = unknown.or_else(|| vocabulary.id("[UNK]"));
            Ok(Merging::WordPiece(Box::new(WordPiece::new(gguf, vocabulary, unknown)?)))
        })
    }

    /// Texts are between `<s>` and `</s>`, unless the file says otherwise.
    fn unigram(gguf: &Gguf, cancel: &LoadCancel) -> Result<Self, TokenizerError> {
        let adds_space = gguf.optional_bool("tokenizer.ggml.add_space_prefix")?.unwrap_or(true);
        let separation = Separation::Twice;
        let defaults = Defaults { bos: Some(0), eos: Some(2), adds_bos: true, adds_eos: true, separation };
        Self::pieces((gguf, cancel), defaults, Spelling::SpaceMark, adds_space, false, |vocabulary| {
            let unknown = token_key(gguf, "tokenizer.ggml.unknown_token_id", vocabulary.len())?.or(Some(3));
            Ok(Merging::Unigram(Box::new(Unigram::new(gguf, vocabulary, unknown, adds_space)?)))
        })
    }

    /// The steps that all kinds share: vocabulary, special tokens and the rules for BOS and EOS.
    fn pieces(
        (gguf, cancel): (&Gguf, &LoadCancel),
        defaults: Defaults,
        spelling: Spelling,
        adds_space: bool,
        always_bos: bool,
        merging: impl FnOnce(&Vocabulary) -> Result<Merging, TokenizerError>,
    ) -> Result<Self, TokenizerError> {
        let mut entries = Vocabulary::entries(gguf, cancel)?;
        let n_tokens = entries.len();
        let token = |name: &str, default: Option<TokenId>| {
            let default = default.filter(|&token| (token as usize) < n_tokens);
            token_key(gguf, &format!("tokenizer.ggml.{name}_token_id"), n_tokens).map(|token| token.or(default))
        };
        let (bos, eos) = (token("bos", defaults.bos)?, token("eos", defaults.eos)?);
        let adds_bos = gguf.optional_bool("tokenizer.ggml.add_bos_token")?.unwrap_or(defaults.adds_bos) || always_bos;
        let adds_eos = gguf.optional_bool("tokenizer.ggml.add_eos_token")?.unwrap_or(defaults.adds_eos);
        let around = [bos.filter(|_| adds_bos), eos.filter(|_| adds_eos)];
        let pair = Some(PairLayout::of_gguf(gguf, around, defaults.separation)?);
        // First, because it makes some tokens control tokens.
        let infill = InfillTokens::of_gguf(gguf, &mut entries)?;
        let end_of_generation = special::end_of_generation(gguf, &mut entries, eos)?;
        let special = SpecialTokens::new(&entries, takes_space(gguf)?)?;
        let vocabulary = Vocabulary::new(entries, spelling)?;
        let merging = merging(&vocabulary)?;
        let encoder = Encoder::Pieces(Pieces { special, merging, adds_bos, adds_eos });
        Ok(Tokenizer { encoder, vocabulary, bos, eos, end_of_generation, infill, pair, adds_space })
    }

    /// Builds the tokenizer of a Hugging Face `tokenizer.json`.
    ///
    /// # Errors
    /// [`TokenizerError::Json`] when the file cannot be read or parsed.
    pub fn from_json(path: impl AsRef<Path>) -> Result<Self, TokenizerError> {
        json::load(path.as_ref()).map(Self::of_json)
    }

    /// [`Tokenizer::from_json`] for a text that is already in memory. Errors show `name` as its path.
    ///
    /// # Errors
    /// [`TokenizerError::Json`] when the text cannot be parsed.
    pub fn from_json_text(name: impl AsRef<Path>, text: &str) -> Result<Self, TokenizerError> {
        Self::from_json_with(name, text, &JsonSettings::default())
    }

    /// [`Tokenizer::from_json_text`] with what other files state about the tokenizer.
    ///
    /// # Errors
    /// [`TokenizerError::Json`] when the text cannot be parsed.
    pub fn from_json_with(name: impl AsRef<Path>, text: &str, settings: &JsonSettings) -> Result<Self, TokenizerError> {
        json::parse(name.as_ref(), text, settings).map(Self::of_json)
    }

    /// The text of a `tokenizer.json` with the tokens of a `tekken.json`. Errors show `path` as the file.
    ///
    /// # Errors
    /// [`TokenizerError`] when the text cannot be used.
    pub fn json_of_tekken(path: &Path, text: &str) -> Result<String, TokenizerError> {
        tekken::to_json(text).map_err(|fault| match fault {
            tekken::Fault::Content(reason) => TokenizerError::Tekken { path: path.to_owned(), reason },
            tekken::Fault::Long(error) => error,
        })
    }

    fn of_json(loaded: json::Loaded) -> Self {
        let json::Loaded { tokenizer, vocabulary, bos, eos, end_of_generation, infill, pair, adds_space } = loaded;
        let encoder = Encoder::Json(Box::new(tokenizer));
        Tokenizer { encoder, vocabulary, bos, eos, end_of_generation, infill, pair, adds_space }
    }

    /// The tokens of a text.
    ///
    /// `add_special` adds BOS and EOS by the model's rules. `parse_special` maps text such as `<|im_end|>` to that special
    /// token; without it the text is encoded like any other.
    ///
    /// # Errors
    /// [`TokenizerError::Pattern`] for text that exceeds the pre-tokenizer's limits.
    pub fn encode(&self, text: &str, add_special: bool, parse_special: bool) -> Result<Vec<TokenId>, TokenizerError> {
        match &self.encoder {
            Encoder::Pieces(pieces) => {
                self.encode_fragments(pieces, &pieces.special.split(text, parse_special), add_special)
            }
            Encoder::Json(tokenizer) => tokenizer.encode(text, add_special, parse_special),
        }
    }

    /// As [`Self::encode`] with `parse_special`, but special tokens are not recognised across the byte positions `guards`,
    /// which are ascending character boundaries. Text around a guard is encoded as one.
    ///
    /// # Errors
    /// As [`Self::encode`].
    pub fn encode_guarded(
        &self,
        text: &str,
        guards: &[usize],
        add_special: bool,
    ) -> Result<Vec<TokenId>, TokenizerError> {
        match &self.encoder {
            Encoder::Pieces(pieces) => {
                self.encode_fragments(pieces, &pieces.special.split_guarded(text, guards), add_special)
            }
            Encoder::Json(tokenizer) => tokenizer.encode_guarded(text, guards, add_special),
        }
    }

    fn encode_fragments(
        &self,
        pieces: &Pieces,
        fragments: &[Fragment<'_>],
        add_special: bool,
    ) -> Result<Vec<TokenId>, TokenizerError> {
        let mut tokens = Vec::new();
        tokens.extend(self.bos.filter(|_| add_special && pieces.adds_bos));
        let is_user_defined = |token: TokenId| self.vocabulary.kind(token) == Some(TokenKind::UserDefined);
        let mut start = true;
        for (index, fragment) in fragments.iter().enumerate() {
            // Text goes on after a user-defined token.
            let end = !matches!(fragments.get(index + 1), Some(Fragment::Token(token)) if is_user_defined(*token));
            let ends = Ends { start, end };
            match (*fragment, &pieces.merging) {
                (Fragment::Token(token), _) => tokens.push(token),
                (Fragment::Text(text), Merging::BytePair(model)) => {
                    model.encode(&self.vocabulary, text, &mut tokens)?;
                }
                (Fragment::Text(text), Merging::SentencePiece(model)) => {
                    model.encode(&self.vocabulary, text, ends, &mut tokens)?;
                }
                (Fragment::Text(text), Merging::WordPiece(model)) => model.encode(text, &mut tokens)?,
                (Fragment::Text(text), Merging::Unigram(model)) => model.encode(text, ends, &mut tokens)?,
            }
            start = matches!(fragment, Fragment::Token(_));
        }
        tokens.extend(self.eos.filter(|_| add_special && pieces.adds_eos));
        Ok(tokens)
    }

    /// The spellings of the tokens that structure a conversation: all control tokens, and the user-defined tokens that the
    /// model's chat templates write. Other user-defined tokens, such as HTML tags in Gemma's vocabulary, are text.
    #[must_use]
    pub fn markers(&self, templates: &[&str]) -> Vec<String> {
        let is_written = |text: &str| {
            let is_markup = text.starts_with(|first: char| !first.is_alphanumeric() && !first.is_whitespace());
            is_markup && templates.iter().any(|template| template.contains(text))
        };
        let spelling = |token: TokenId| {
            let kind = self.vocabulary.kind(token)?;
            let text = std::str::from_utf8(self.vocabulary.bytes(token)).ok().filter(|text| !text.is_empty())?;
            let is_marker = kind.is_special() || (kind == TokenKind::UserDefined && is_written(text));
            is_marker.then(|| text.to_owned())
        };
        (0..).take(self.vocabulary.len()).filter_map(spelling).collect()
    }

    /// The bytes of a text's first token without the space that encoding added.
    fn without_added_space<'a>(&self, token: TokenId, bytes: &'a [u8]) -> &'a [u8] {
        let is_text = self.vocabulary.kind(token) == Some(TokenKind::Normal);
        if self.adds_space && is_text { bytes.strip_prefix(b" ").unwrap_or(bytes) } else { bytes }
    }

    /// A token's bytes, which need not be whole characters. Empty for an unknown id, and for a special token if
    /// `skip_special` is set.
    #[must_use]
    pub fn token_bytes(&self, token: TokenId, skip_special: bool) -> &[u8] {
        if skip_special && self.is_special(token) { &[] } else { self.vocabulary.bytes(token) }
    }

    /// One token as text; a special token by its spelling.
    #[must_use]
    pub fn token_text(&self, token: TokenId) -> String {
        String::from_utf8_lossy(self.vocabulary.bytes(token)).into_owned()
    }

    /// Number of tokens in the vocabulary.
    #[must_use]
    pub fn vocab_size(&self) -> usize {
        self.vocabulary.len()
    }

    /// The beginning-of-text token, when the model has one.
    #[must_use]
    pub fn bos(&self) -> Option<TokenId> {
        self.bos
    }

    /// The token that [`Self::encode`] with `add_special` puts before a text.
    #[must_use]
    pub fn added_bos(&self) -> Option<TokenId> {
        match &self.encoder {
            Encoder::Pieces(pieces) => self.bos.filter(|_| pieces.adds_bos),
            Encoder::Json(tokenizer) => tokenizer.bos(),
        }
    }

    /// The tokens for filling in the middle. `None` when the model has none.
    #[must_use]
    pub fn infill(&self) -> Option<InfillTokens> {
        self.infill
    }

    /// The tokens around two texts in one sequence. `None` when the tokenizer mixes the texts.
    #[must_use]
    pub fn pair(&self) -> Option<&PairLayout> {
        self.pair.as_ref()
    }

    /// The end-of-text token, when the model has one.
    #[must_use]
    pub fn eos(&self) -> Option<TokenId> {
        self.eos
    }

    /// The tokens that end a generation (end of text, turn or message), sorted.
    #[must_use]
    pub fn end_of_generation(&self) -> &[TokenId] {
        &self.end_of_generation
    }

    /// Whether a token marks structure and is not text.
    #[must_use]
    pub fn is_special(&self, token: TokenId) -> bool {
        self.vocabulary.kind(token).is_some_and(TokenKind::is_special)
    }
}

/// The values of keys that the file lacks.
struct Defaults {
    bos: Option<TokenId>,
    eos: Option<TokenId>,
    adds_bos: bool,
    adds_eos: bool,
    separation: Separation,
}

impl Defaults {
    const NONE: Defaults =
        Defaults { bos: None, eos: None, adds_bos: false, adds_eos: false, separation: Separation::Once };
}

/// Which special tokens absorb the white space after them. Only Phi-3's do; no key states it, so the model's name decides.
fn takes_space(gguf: &Gguf) -> Result<impl Fn(&str) -> bool + use<>, TokenizerError> {
    let name = gguf.optional_str("general.name")?.unwrap_or_default().to_lowercase();
    let is_phi3 = name.contains("phi-3") || name.contains("phi3");
    Ok(move |text: &str| is_phi3 && !matches!(text, "<unk>" | "<s>" | "<|endoftext|>"))
}

#[cfg(test)]
mod tests;
