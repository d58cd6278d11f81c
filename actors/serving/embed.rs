//! Embeddings: from the texts that a client sends to one vector for each. Each text is a sequence of its own.

use std::sync::Arc;
use std::time::Duration;

use cuelight_engine::embedding::{Product, normalized};
use cuelight_engine::engine::TokenId;
use tokio::time::Instant;

use super::accept::ServingLimits;
use super::blocking::off_worker;
use super::error::ApiError;
use super::prompt::PromptField;
use super::served::Served;
use super::tenancy::Tenancy;
use super::vectors::{Requester, TextTokens, VectorRun};
use crate::core::request::SubmitError;
use crate::models::Models;
use crate::pipeline::runtime::ServedModel;

/// What a client asks for.
pub(crate) struct EmbeddingRequest {
    /// The name of the model. `None`: the default.
    pub model: Option<String>,
    /// At least one.
    pub inputs: Vec<PromptField>,
    pub options: EmbeddingOptions,
    pub tenancy: Tenancy,
}

/// What the vectors are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct EmbeddingOptions {
    /// Cut texts that have more tokens than this or than the context, instead of refusing them.
    pub cut_at: Option<usize>,
    /// Keep this many leading values of each vector.
    pub dimensions: Option<usize>,
    /// Leave the vectors as long as the model makes them, instead of scaling them to length 1.
    pub keeps_length: bool,
    pub priority: i32,
}

/// The vectors of a request.
pub(crate) struct Embeddings {
    /// The name of the model that answers carry.
    pub model_id: String,
    /// One for each text.
    pub vectors: Vec<Vec<f32>>,
    /// Tokens of all texts.
    pub prompt_tokens: usize,
    /// From the start until the model and the tokens were there.
    pub load_time: Duration,
}

/// Leases the model, takes the permit, makes the tokens of the texts, and computes their vectors. `memory` is what the body of the
/// request holds, and is dropped before the first text is computed.
///
/// # Errors
/// [`ApiError`] with the reason when the request is not accepted or fails.
pub(crate) async fn embed(
    models: &Models,
    limits: ServingLimits,
    request: EmbeddingRequest,
    memory: impl Send,
) -> Result<Embeddings, ApiError> {
    let started = Instant::now();
    let EmbeddingRequest { model, inputs, options, tenancy } = request;
    let served = Served::lease(models, model.as_deref()).await?;
    let model = served.model()?;
    check(&served.id, &model, &options)?;
    let requester = Requester { tenancy, priority: options.priority, limits, started };
    let run = VectorRun::begin(served, model, requester, inputs.len())?;
    let texts = tokens_of(inputs, &run.model, options.cut_at).await?;
    let texts = run.served.counted(texts)?;
    drop(memory);
    let load_time = started.elapsed();
    let prompt_tokens = texts.iter().map(|text| text.tokens.len()).sum();
    let finish = |vector: Vec<f32>| match options {
        EmbeddingOptions { keeps_length: true, dimensions, .. } => cut(vector, dimensions),
        EmbeddingOptions { dimensions, .. } => normalized(&vector, dimensions),
    };
    let vectors = run.vectors(texts.into_iter()).await?.into_iter().map(finish).collect();
    Ok(Embeddings { model_id: run.served.id, vectors, prompt_tokens, load_time })
}

fn cut(mut vector: Vec<f32>, dimensions: Option<usize>) -> Vec<f32> {
    vector.truncate(dimensions.unwrap_or(usize::MAX));
    vector
}

/// Checks that the model makes embeddings of this many values.
fn check(name: &str, model: &ServedModel, options: &EmbeddingOptions) -> Result<(), ApiError> {
    let unsupported = |message: String| Err(ApiError::Unsupported { param: "model".to_owned(), message });
    match model.card.embedding.product() {
        Product::Vectors => {}
        Product::Relevance => {
            return unsupported(format!("the model `{name}` is a reranker and makes no embeddings; use /v1/rerank"));
        }
        Product::Classes => {
            return unsupported(format!("the model `{name}` classifies texts and makes no embeddings; use /classify"));
        }
        Product::Alignment => {
            let message = format!("the model `{name}` writes what it hears and makes no embeddings");
            return unsupported(format!("{message}; use /v1/audio/transcriptions"));
        }
    }
    let width = model.limits.hidden.width;
    if width == 0 {
        return unsupported(format!("the model `{name}` makes no embeddings"));
    }
    match options.dimensions.filter(|dimensions| *dimensions > width) {
        None => Ok(()),
        Some(dimensions) => {
            let message = format!("`dimensions` is {dimensions}, but the embeddings of this model have {width} values");
            Err(ApiError::invalid("dimensions", message))
        }
    }
}

/// The tokens of each text. Texts with more than `cut_at` tokens are cut; without it, those beyond the context are refused.
pub(super) async fn tokens_of(
    inputs: Vec<PromptField>,
    model: &Arc<ServedModel>,
    cut_at: Option<usize>,
) -> Result<Result<Vec<TextTokens>, SubmitError>, ApiError> {
    let model = model.clone();
    let bytes = inputs.iter().map(PromptField::bytes).sum();
    let read = move || {
        let mut texts = Vec::with_capacity(inputs.len());
        for input in &inputs {
            match text_tokens(input, &model, cut_at)? {
                Ok(text) => texts.push(text),
                Err(error) => return Ok(Err(error)),
            }
        }
        Ok(Ok(texts))
    };
    off_worker(bytes, read).await
}

/// The tokens of one text, as [`tokens_of`].
pub(super) fn text_tokens(
    input: &PromptField,
    model: &ServedModel,
    cut_at: Option<usize>,
) -> Result<Result<TextTokens, SubmitError>, ApiError> {
    let tokens = input.tokens(model, true, true)?.tokens;
    Ok(fitting(tokens, model, cut_at).map(|tokens| TextTokens { tokens, second_text: None }))
}

/// The tokens of a text if they fit, or the first of them. The special token that ends each text stays at the end.
fn fitting(mut tokens: Vec<TokenId>, model: &ServedModel, cut_at: Option<usize>) -> Result<Vec<TokenId>, SubmitError> {
    let context_tokens = model.limits.context_tokens;
    let most = cut_at.unwrap_or(context_tokens).min(context_tokens);
    let prompt_tokens = tokens.len();
    if prompt_tokens <= most {
        return Ok(tokens);
    }
    if cut_at.is_none() {
        return Err(SubmitError::ContextLengthExceeded { prompt_tokens, context_tokens });
    }
    let end = tokens.last().copied().filter(|last| model.tokenizer.is_special(*last));
    tokens.truncate(most);
    if let (Some(end), Some(last)) = (end, tokens.last_mut()) {
        *last = end;
    }
    Ok(tokens)
}
