//! The text side of a model: its tokenizer and chat template.

use super::error::LoadError;
use super::options::ChatTemplateOptions;
use crate::cancel::LoadCancel;
use crate::checkpoint::Checkpoint;
use crate::format::chat_template::{ChatTemplate, ChatTemplateError, Definition};
use crate::format::tokenizer::{Tokenizer, TokenizerError};

/// The checkpoint's tokenizer.
///
/// # Errors
/// [`LoadError`] when the file has no tokenizer, or one that is not supported.
pub fn tokenizer(checkpoint: &dyn Checkpoint) -> Result<Tokenizer, LoadError> {
    tokenizer_cancellable(checkpoint, &LoadCancel::default())
}

/// [`tokenizer`] that ends early when it is cancelled.
pub(super) fn tokenizer_cancellable(checkpoint: &dyn Checkpoint, cancel: &LoadCancel) -> Result<Tokenizer, LoadError> {
    checkpoint.tokenizer(cancel).map_err(|error| in_file(checkpoint, error))
}

/// Bytes of memory that the file's tokenizer takes.
pub(super) fn tokenizer_bytes(checkpoint: &dyn Checkpoint) -> Result<u64, LoadError> {
    checkpoint.tokenizer_bytes().map_err(|error| in_file(checkpoint, error))
}

fn in_file(checkpoint: &dyn Checkpoint, error: TokenizerError) -> LoadError {
    match error {
        TokenizerError::Gguf(error) => LoadError::Gguf(error),
        TokenizerError::Cancelled(cancelled) => LoadError::Cancelled(cancelled),
        source => LoadError::Tokenizer { path: checkpoint.path().to_owned(), source },
    }
}

/// The given chat template, else the file's, else `None`.
///
/// # Errors
/// [`LoadError::ChatTemplate`] when it does not compile or is over a limit.
pub fn chat_template(
    checkpoint: &dyn Checkpoint,
    options: &ChatTemplateOptions,
    tokenizer: &Tokenizer,
) -> Result<Option<ChatTemplate>, LoadError> {
    // A given template replaces all templates of the file.
    let (path, source, tool_use) = match &options.given {
        Some(given) => (&*given.path, Some(given.source.as_str()), None),
        None => (
            checkpoint.path(),
            checkpoint.optional_str("tokenizer.chat_template")?,
            checkpoint.optional_str("tokenizer.chat_template.tool_use")?,
        ),
    };
    let text = |token: Option<u32>| token.map(|token| tokenizer.token_text(token)).unwrap_or_default();
    let definition = source.map(|source| Definition {
        source: source.to_owned(),
        tool_use: tool_use.map(str::to_owned),
        bos_token: text(tokenizer.bos()),
        eos_token: text(tokenizer.eos()),
    });
    let compiled = definition.map(|definition| compile(definition, options, tokenizer)).transpose();
    compiled.map_err(|source| LoadError::ChatTemplate { path: path.to_owned(), source })
}

fn compile(
    definition: Definition,
    options: &ChatTemplateOptions,
    tokenizer: &Tokenizer,
) -> Result<ChatTemplate, ChatTemplateError> {
    let sources: Vec<&str> =
        [Some(&definition.source), definition.tool_use.as_ref()].into_iter().flatten().map(String::as_str).collect();
    let markers = if options.parse_special_in_content { Vec::new() } else { tokenizer.markers(&sources) };
    let template = match &options.worker {
        Some(program) => ChatTemplate::in_worker(definition, program),
        None => ChatTemplate::in_process(definition),
    }?;
    template.with_plain_content(&markers)
}
