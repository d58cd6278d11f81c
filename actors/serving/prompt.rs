//! A prompt without a chat template: a text, or tokens.

use cuelight_engine::engine::TokenId;
use cuelight_engine::format::tokenizer::Tokenizer;

use super::error::ApiError;
use crate::pipeline::runtime::ServedModel;

/// A text to tokenise, or tokens to use as they are.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum PlainPrompt {
    Text(String),
    Tokens(Vec<TokenId>),
}

/// A prompt and its path in the request.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PromptField {
    pub path: String,
    pub prompt: PlainPrompt,
}

impl PromptField {
    /// The tokens to compute. `add_special` adds BOS and EOS to a text as the tokenizer specifies; ids are not changed.
    ///
    /// # Errors
    /// [`ApiError::InvalidRequest`] when a token is not in the vocabulary or there is no token.
    pub fn tokens(&self, model: &ServedModel, add_special: bool) -> Result<Vec<TokenId>, ApiError> {
        let tokens = match &self.prompt {
            PlainPrompt::Text(text) => model
                .tokenizer
                .encode(text, add_special, true)
                .map_err(|error| ApiError::invalid(&self.path, format!("`{}`: {error}", self.path)))?,
            PlainPrompt::Tokens(tokens) => tokens.clone(),
        };
        if tokens.is_empty() {
            return Err(ApiError::invalid(&self.path, format!("`{}` must have at least one token", self.path)));
        }
        check_vocabulary(&tokens, &self.path, model)?;
        Ok(tokens)
    }

    /// The prompt as text, for `echo`.
    pub fn text(&self, tokenizer: &Tokenizer, skip_special: bool) -> String {
        match &self.prompt {
            PlainPrompt::Text(text) => text.clone(),
            PlainPrompt::Tokens(tokens) => tokenizer.decode(tokens, skip_special),
        }
    }

    /// The number of bytes to tokenise.
    pub fn bytes(&self) -> usize {
        match &self.prompt {
            PlainPrompt::Text(text) => text.len(),
            PlainPrompt::Tokens(_) => 0,
        }
    }
}

/// Checks that each token is in the vocabulary.
///
/// # Errors
/// [`ApiError::InvalidRequest`] that names the index of the first that is not.
pub(crate) fn check_vocabulary(tokens: &[TokenId], path: &str, model: &ServedModel) -> Result<(), ApiError> {
    let vocab_size = model.limits.vocab_size;
    match tokens.iter().position(|&token| token as usize >= vocab_size) {
        None => Ok(()),
        Some(index) => {
            let path = format!("{path}[{index}]");
            let message = format!("`{path}` is {}, but this model's vocabulary has {vocab_size} tokens", tokens[index]);
            Err(ApiError::invalid(path, message))
        }
    }
}

/// A prompt as tokens.
pub(crate) struct PromptTokens {
    pub tokens: Vec<TokenId>,
    /// A plain prompt as text, for `echo`. The end of a rendered prompt.
    pub text: String,
}
