//! A prompt without a chat template: a text, tokens, both mixed, or a text with a gap.

use cuelight_engine::engine::TokenId;
use cuelight_engine::format::tokenizer::Tokenizer;

use super::error::ApiError;
use super::infill::Infill;
use super::media_insertion::MediaSpan;
use crate::pipeline::runtime::ServedModel;

/// A text to tokenise, tokens to use as they are, texts and tokens in turn, or a text with a gap.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum PlainPrompt {
    Text(String),
    Tokens(Vec<TokenId>),
    Mixed(Vec<PromptPart>),
    Infill(Box<Infill>),
}

/// Part of a mixed prompt.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum PromptPart {
    Text(String),
    Token(TokenId),
}

impl PromptPart {
    fn text(&self) -> Option<&str> {
        match self {
            PromptPart::Text(text) => Some(text),
            PromptPart::Token(_) => None,
        }
    }
}

/// A prompt and its path in the request.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PromptField {
    pub path: String,
    pub prompt: PlainPrompt,
}

impl PromptField {
    /// The tokens to compute, and the text for `echo`. `add_special` adds BOS and EOS to a text as the tokenizer specifies; ids
    /// are not changed.
    ///
    /// # Errors
    /// [`ApiError::InvalidRequest`] when a token is not in the vocabulary or there is no token, [`ApiError::Unsupported`] when
    /// the model cannot fill a gap.
    pub fn tokens(&self, model: &ServedModel, add_special: bool, skip_special: bool) -> Result<PromptTokens, ApiError> {
        let (tokens, files_left_out) = match &self.prompt {
            PlainPrompt::Text(text) => (encode(text, &self.path, model, add_special)?, 0),
            PlainPrompt::Tokens(tokens) => (tokens.clone(), 0),
            PlainPrompt::Mixed(parts) => (self.mixed_tokens(parts, model, add_special)?, 0),
            PlainPrompt::Infill(infill) => {
                infill.tokens(&model.tokenizer, &self.path, add_special, model.limits.context_tokens)?
            }
        };
        if tokens.is_empty() {
            return Err(ApiError::invalid(&self.path, format!("`{}` must have at least one token", self.path)));
        }
        check_vocabulary(&tokens, &self.path, model)?;
        let text = self.text(&model.tokenizer, skip_special);
        Ok(PromptTokens { tokens, media: Vec::new(), text, files_left_out })
    }

    /// BOS comes before a text at the start only, and EOS is not added: the client marks the ends with its own ids.
    fn mixed_tokens(
        &self,
        parts: &[PromptPart],
        model: &ServedModel,
        add_special: bool,
    ) -> Result<Vec<TokenId>, ApiError> {
        let begins_with_text = parts.first().is_some_and(|part| part.text().is_some());
        let bos = model.tokenizer.added_bos().filter(|_| add_special && begins_with_text);
        let mut tokens = Vec::from_iter(bos);
        for (index, part) in parts.iter().enumerate() {
            let path = || format!("{}[{index}]", self.path);
            match part {
                PromptPart::Text(text) => tokens.extend(encode(text, &path(), model, false)?),
                PromptPart::Token(token) if (*token as usize) < model.limits.vocab_size => tokens.push(*token),
                PromptPart::Token(token) => return Err(not_in_vocabulary(*token, path(), model)),
            }
        }
        Ok(tokens)
    }

    /// The prompt as text, for `echo`; of a mixed prompt its texts, and of a text with a gap what is before it.
    fn text(&self, tokenizer: &Tokenizer, skip_special: bool) -> String {
        match &self.prompt {
            PlainPrompt::Text(text) => text.clone(),
            PlainPrompt::Tokens(tokens) => tokenizer.decode(tokens, skip_special),
            PlainPrompt::Mixed(parts) => parts.iter().filter_map(PromptPart::text).collect(),
            PlainPrompt::Infill(infill) => infill.prefix.clone(),
        }
    }

    /// The number of bytes to tokenise.
    pub fn bytes(&self) -> usize {
        match &self.prompt {
            PlainPrompt::Text(text) => text.len(),
            PlainPrompt::Tokens(_) => 0,
            PlainPrompt::Mixed(parts) => parts.iter().filter_map(PromptPart::text).map(str::len).sum(),
            PlainPrompt::Infill(infill) => infill.bytes(),
        }
    }
}

fn encode(text: &str, path: &str, model: &ServedModel, add_special: bool) -> Result<Vec<TokenId>, ApiError> {
    let encoded = model.tokenizer.encode(text, add_special, true);
    encoded.map_err(|error| ApiError::invalid(path, format!("`{path}`: {error}")))
}

/// Checks that each token is in the vocabulary.
///
/// # Errors
/// [`ApiError::InvalidRequest`] that names the index of the first that is not.
pub(crate) fn check_vocabulary(tokens: &[TokenId], path: &str, model: &ServedModel) -> Result<(), ApiError> {
    let vocab_size = model.limits.vocab_size;
    match tokens.iter().position(|&token| token as usize >= vocab_size) {
        None => Ok(()),
        Some(index) => Err(not_in_vocabulary(tokens[index], format!("{path}[{index}]"), model)),
    }
}

fn not_in_vocabulary(token: TokenId, path: String, model: &ServedModel) -> ApiError {
    let vocab_size = model.limits.vocab_size;
    let message = format!("`{path}` is {token}, but this model's vocabulary has {vocab_size} tokens");
    ApiError::invalid(path, message)
}

/// A prompt as tokens.
pub(crate) struct PromptTokens {
    pub tokens: Vec<TokenId>,
    /// Where its media are.
    pub media: Vec<MediaSpan>,
    /// A plain prompt as text, for `echo`. The end of a rendered prompt, or all of it where that is wanted.
    pub text: String,
    /// Files of a text with a gap that do not fit the context.
    pub files_left_out: usize,
}
