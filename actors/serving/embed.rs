//! Embeddings: from the texts that a client sends to one vector for each.
//!
//! Each text is a sequence of its own, so texts share steps with one another and with everything else that runs. At most a window
//! of them is submitted at a time, so that a request with many texts takes a bounded number of admission slots.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use cuelight_engine::embedding::normalized;
use cuelight_engine::engine::TokenId;
use tokio::time::{Instant, timeout_at};

use super::accept::ServingLimits;
use super::blocking::off_worker;
use super::error::ApiError;
use super::prompt::PromptField;
use super::served::Served;
use super::tenancy::Tenancy;
use crate::core::request::{Event, FinishReason, GenerationError, GenerationRequest, SubmitError};
use crate::models::Models;
use crate::pipeline::runtime::{Generation, Permit, ServedModel};

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
    /// Cut texts that are longer than the context, instead of refusing them.
    pub truncates: bool,
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
    // As many as fill a step, and as many that wait for the next.
    let window = inputs.len().min(2 * model.limits.max_sequences);
    let permit = served.runtime.try_permit_for(tenancy.client.clone(), window)?;
    let texts = tokens_of(inputs, &model, options.truncates).await?;
    let texts = served.counted(texts)?;
    drop(memory);
    let load_time = started.elapsed();
    let prompt_tokens = texts.iter().map(Vec::len).sum();
    let of_text = |tokens: Vec<TokenId>| GenerationRequest {
        prompt: tokens,
        priority: options.priority.max(limits.highest_priority),
        client: tenancy.client.clone(),
        adapter: served.adapter.clone(),
        embedding: Some(model.card.embedding.pooling),
        ..GenerationRequest::default()
    };
    let requests = texts.into_iter().map(of_text);
    let vectors = compute(&served, &permit, requests, window);
    let vectors = match limits.request_timeout {
        Some(limit) => timeout_at(started + limit, vectors).await.map_err(|_| ApiError::Timeout(limit))??,
        None => vectors.await?,
    };
    let finish = |vector: Vec<f32>| match options {
        EmbeddingOptions { keeps_length: true, dimensions, .. } => cut(vector, dimensions),
        EmbeddingOptions { dimensions, .. } => normalized(&vector, dimensions),
    };
    let vectors = vectors.into_iter().map(finish).collect();
    Ok(Embeddings { model_id: served.id, vectors, prompt_tokens, load_time })
}

fn cut(mut vector: Vec<f32>, dimensions: Option<usize>) -> Vec<f32> {
    vector.truncate(dimensions.unwrap_or(usize::MAX));
    vector
}

/// Checks that the model makes embeddings of this many values.
fn check(name: &str, model: &ServedModel, options: &EmbeddingOptions) -> Result<(), ApiError> {
    let width = model.limits.hidden.width;
    if width == 0 {
        let message = format!("the model `{name}` makes no embeddings");
        return Err(ApiError::Unsupported { param: "model".to_owned(), message });
    }
    match options.dimensions.filter(|dimensions| *dimensions > width) {
        None => Ok(()),
        Some(dimensions) => {
            let message = format!("`dimensions` is {dimensions}, but the embeddings of this model have {width} values");
            Err(ApiError::invalid("dimensions", message))
        }
    }
}

/// The tokens of each text.
async fn tokens_of(
    inputs: Vec<PromptField>,
    model: &Arc<ServedModel>,
    truncates: bool,
) -> Result<Result<Vec<Vec<TokenId>>, SubmitError>, ApiError> {
    let model = model.clone();
    let bytes = inputs.iter().map(PromptField::bytes).sum();
    let read = move || {
        let mut texts = Vec::with_capacity(inputs.len());
        for input in &inputs {
            let tokens = input.tokens(&model, true, true)?.tokens;
            match fitting(tokens, &model, truncates) {
                Ok(tokens) => texts.push(tokens),
                Err(error) => return Ok(Err(error)),
            }
        }
        Ok(Ok(texts))
    };
    off_worker(bytes, read).await
}

/// The tokens of a text if they fit the context, or the first of them. The special token that ends each text stays at the end.
fn fitting(mut tokens: Vec<TokenId>, model: &ServedModel, truncates: bool) -> Result<Vec<TokenId>, SubmitError> {
    let context_tokens = model.limits.context_tokens;
    let prompt_tokens = tokens.len();
    if prompt_tokens <= context_tokens {
        return Ok(tokens);
    }
    if !truncates {
        return Err(SubmitError::ContextLengthExceeded { prompt_tokens, context_tokens });
    }
    let end = tokens.last().copied().filter(|last| model.tokenizer.is_special(*last));
    tokens.truncate(context_tokens);
    if let (Some(end), Some(last)) = (end, tokens.last_mut()) {
        *last = end;
    }
    Ok(tokens)
}

/// The vector of each request, in their order. At most `window` of them are submitted at a time.
async fn compute(
    served: &Served,
    permit: &Permit,
    requests: impl Iterator<Item = GenerationRequest>,
    window: usize,
) -> Result<Vec<Vec<f32>>, ApiError> {
    let mut vectors = Vec::new();
    let mut running: VecDeque<Generation> = VecDeque::with_capacity(window);
    for request in requests {
        if running.len() == window
            && let Some(first) = running.pop_front()
        {
            vectors.push(vector_of(first).await?);
        }
        running.push_back(served.runtime.submit(permit, request).await?);
    }
    for generation in running {
        vectors.push(vector_of(generation).await?);
    }
    Ok(vectors)
}

/// Waits for the vector of a text.
async fn vector_of(mut generation: Generation) -> Result<Vec<f32>, ApiError> {
    loop {
        match generation.next().await {
            Some(Event::Embedded { vector, .. }) => return Ok(vector),
            Some(Event::Failed(error)) => return Err(error.into()),
            Some(Event::Finished { reason: FinishReason::Cancelled, .. }) => {
                return Err(GenerationError::ShuttingDown.into());
            }
            Some(Event::Progress(_) | Event::Prompt { .. } | Event::Token { .. } | Event::Block { .. }) => {}
            Some(Event::Finished { .. }) | None => {
                return Err(GenerationError::Engine("it stopped without an embedding".to_owned()).into());
            }
        }
    }
}
