//! Unigram: of all ways to divide a text into tokens, the most likely one.
//!
//! Run with the `tokenizers` crate. Source: Kudo 2018, "Subword Regularization".

use tokenizers::models::unigram::Unigram as Model;
use tokenizers::normalizers::{NormalizerWrapper, Sequence};
use tokenizers::normalizers::{Precompiled, Replace};
use tokenizers::pre_tokenizers::metaspace::{Metaspace, PrependScheme};

use super::error::TokenizerError;
use super::vocabulary::Vocabulary;
use crate::engine::TokenId;
use crate::format::gguf::{Gguf, Metadata};

/// Encodes text that has no special tokens.
pub(super) struct Unigram(tokenizers::Tokenizer);

impl Unigram {
    /// The keys of the file say how text is normalized, and whether a space is added before it.
    pub(super) fn new(
        gguf: &Gguf,
        vocabulary: &Vocabulary,
        unknown: Option<TokenId>,
        adds_space: bool,
    ) -> Result<Self, TokenizerError> {
        let fault = |error: tokenizers::Error| TokenizerError::Vocabulary(error.to_string());
        let scores = gguf.floats("tokenizer.ggml.scores")?;
        if scores.len() < vocabulary.len() {
            let (n_scores, n_tokens) = (scores.len(), vocabulary.len());
            return Err(TokenizerError::Vocabulary(format!("there are {n_scores} scores for {n_tokens} tokens")));
        }
        let tokens = gguf.strings("tokenizer.ggml.tokens")?;
        let scored = tokens.zip(&scores).map(|(text, score)| (text.to_owned(), f64::from(*score))).collect();
        let unknown = unknown.map(|unknown| unknown as usize);
        let mut tokenizer = tokenizers::Tokenizer::new(Model::from(scored, unknown, false).map_err(fault)?);
        let mut normalizers: Vec<NormalizerWrapper> = Vec::new();
        if let Some(map) = charsmap(gguf)? {
            let map = Precompiled::from(&map).map_err(|error| TokenizerError::Vocabulary(error.to_string()))?;
            normalizers.push(map.into());
        }
        if gguf.optional_bool("tokenizer.ggml.remove_extra_whitespaces")?.unwrap_or(false) {
            let spaces = |pattern: &str, to: &str| {
                let pattern = tokenizers::normalizers::replace::ReplacePattern::Regex(pattern.to_owned());
                Replace::new(pattern, to).map(NormalizerWrapper::from).map_err(fault)
            };
            normalizers.extend([spaces(" {2,}", " ")?, spaces("^ | $", "")?]);
        }
        tokenizer.with_normalizer(Some(Sequence::new(normalizers))).map_err(fault)?;
        let scheme = if adds_space { PrependScheme::Always } else { PrependScheme::Never };
        tokenizer.with_pre_tokenizer(Some(Metaspace::new('▁', scheme, true)));
        Ok(Unigram(tokenizer))
    }

    /// Appends the tokens of `text`.
    pub(super) fn encode(&self, text: &str, out: &mut Vec<TokenId>) -> Result<(), TokenizerError> {
        let encoding = self.0.encode_fast(text, false).map_err(|error| TokenizerError::Pattern(error.to_string()))?;
        out.extend(encoding.get_ids());
        Ok(())
    }
}

/// The table by which SentencePiece normalizes characters.
fn charsmap(gguf: &Gguf) -> Result<Option<Vec<u8>>, TokenizerError> {
    let bytes = gguf.optional_integers("tokenizer.ggml.precompiled_charsmap")?;
    let bytes = bytes.filter(|bytes| !bytes.is_empty());
    Ok(bytes.map(|bytes| bytes.into_iter().map(|byte| byte as u8).collect()))
}
