//! Unigram: of all ways to divide a text into tokens, the most likely one.
//!
//! Run with the `tokenizers` crate. Source: Kudo 2018, "Subword Regularization".

use tokenizers::models::unigram::Unigram as Model;
use tokenizers::pre_tokenizers::metaspace::{Metaspace, PrependScheme};

use super::error::TokenizerError;
use super::normalization::{Ends, Normalization};
use super::vocabulary::{TokenKind, Vocabulary};
use crate::engine::TokenId;
use crate::format::gguf::{Gguf, Metadata};

/// Encodes text that has no special tokens.
pub(super) struct Unigram {
    tokenizer: tokenizers::Tokenizer,
    normalization: Normalization,
    unknown: Option<TokenId>,
    /// The token of each byte, for text that is not in the vocabulary; `None` if not all bytes have one.
    byte_tokens: Option<Vec<TokenId>>,
}

impl Unigram {
    /// The keys of the file say how text is normalized, and whether a space is added before it.
    pub(super) fn new(
        gguf: &Gguf,
        vocabulary: &Vocabulary,
        unknown: Option<TokenId>,
        adds_space: bool,
    ) -> Result<Self, TokenizerError> {
        let scores = gguf.floats("tokenizer.ggml.scores")?;
        if scores.len() < vocabulary.len() {
            let (n_scores, n_tokens) = (scores.len(), vocabulary.len());
            return Err(TokenizerError::Vocabulary(format!("there are {n_scores} scores for {n_tokens} tokens")));
        }
        let tokens = gguf.strings("tokenizer.ggml.tokens")?;
        let spelled = (0..).zip(tokens).map(|(id, text)| spelling(vocabulary, id, text));
        let scored = spelled.zip(&scores).map(|(text, score)| (text, f64::from(*score))).collect();
        let model = Model::from(scored, unknown.map(|unknown| unknown as usize), false);
        let model = model.map_err(|error| TokenizerError::Vocabulary(error.to_string()))?;
        let mut tokenizer = tokenizers::Tokenizer::new(model);
        let scheme = if adds_space { PrependScheme::Always } else { PrependScheme::Never };
        tokenizer.with_pre_tokenizer(Some(Metaspace::new('▁', scheme, true)));
        let byte_token = |byte: u8| {
            let token = vocabulary.id(&format!("<0x{byte:02X}>"));
            token.filter(|token| vocabulary.kind(*token) == Some(TokenKind::Byte))
        };
        let byte_tokens = (0..=u8::MAX).map(byte_token).collect();
        Ok(Unigram { tokenizer, normalization: Normalization::of_keys(gguf)?, unknown, byte_tokens })
    }

    /// Appends the tokens of `text`, which has these ends.
    pub(super) fn encode(&self, text: &str, ends: Ends, out: &mut Vec<TokenId>) -> Result<(), TokenizerError> {
        let text = self.normalization.apply(text, ends)?;
        let fault = |error: tokenizers::Error| TokenizerError::Pattern(error.to_string());
        let Some(byte_tokens) = &self.byte_tokens else {
            out.extend(self.tokenizer.encode_fast(&*text, false).map_err(fault)?.get_ids());
            return Ok(());
        };
        // The faster function leaves out the texts of tokens.
        let encoding = self.tokenizer.encode(&*text, false).map_err(fault)?;
        for (&token, text) in encoding.get_ids().iter().zip(encoding.get_tokens()) {
            if Some(token) == self.unknown {
                out.extend(text.bytes().map(|byte| byte_tokens[usize::from(byte)]));
            } else {
                out.push(token);
            }
        }
        Ok(())
    }
}

/// The spelling by which a token is found in text. Tokens that no text stands for have a space in it, and text has none left.
fn spelling(vocabulary: &Vocabulary, id: TokenId, text: &str) -> String {
    match vocabulary.kind(id) {
        Some(TokenKind::Normal | TokenKind::UserDefined) | None => text.to_owned(),
        Some(_) => format!(" {id}"),
    }
}
