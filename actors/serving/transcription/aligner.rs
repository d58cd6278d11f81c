//! Asks a model when the tokens of a window are spoken: a pass over a text that is known, whose weights of attention tell it.

use cuelight_engine::audio::alignment::token_frames;
use cuelight_engine::embedding::{AttentionShape, Pooling};
use cuelight_engine::engine::TokenId;
use tokio::time::Instant;

use super::form::TranscriptForm;
use super::marks::SECONDS;
use super::request::TranscriptionRequest;
use crate::core::request::GenerationRequest;
use crate::models::Models;
use crate::pipeline::runtime::ServedModel;
use crate::serving::accept::ServingLimits;
use crate::serving::blocking::on_blocking_thread;
use crate::serving::error::ApiError;
use crate::serving::media;
use crate::serving::memory::RequestBudget;
use crate::serving::served::Served;
use crate::serving::tenancy::Tenancy;
use crate::serving::vectors::{Requester, VectorRun};

/// A window, and what is said in it.
pub(crate) struct AlignmentRequest {
    /// The name of the model. `None`: the default.
    pub model: Option<String>,
    pub window: TranscriptionRequest,
    /// The length of the window.
    pub seconds: f64,
    /// The tokens before the words: of the language, the task, and that no times follow.
    pub before: Vec<TokenId>,
    /// At least one.
    pub words: Vec<TokenId>,
    pub tenancy: Tenancy,
    pub priority: i32,
}

/// When each token of the words starts, in seconds from the start of the window, and when the last one ends. Tokens that the
/// context has no place for are left out. `memory` is held until then.
///
/// # Errors
/// [`ApiError`] when the model returns no weights of attention, and what fails a generation.
pub(crate) async fn token_starts(
    models: &Models,
    limits: ServingLimits,
    request: AlignmentRequest,
    mut memory: impl RequestBudget,
) -> Result<Vec<f64>, ApiError> {
    let started = Instant::now();
    let AlignmentRequest { model, mut window, seconds, before, mut words, tenancy, priority } = request;
    let served = Served::lease(models, model.as_deref()).await?;
    let model = served.model()?;
    let shape = shape_of(&model)?;
    let (media_limits, salt) = (limits.media.clone(), tenancy.cache_salt.clone());
    let run = VectorRun::begin(served, model, Requester { tenancy, priority, limits, started }, 1)?;
    let audio = std::mem::take(&mut window.audio);
    let encoded = media::encode(audio, &run.model, &media_limits, salt.as_deref(), &mut memory).await?;
    let parts = encoded.iter().map(|item| item.parts.clone()).collect();
    let chat = TranscriptionRequest { before: None, ..window }.chat(&TranscriptForm::of(&run.model))?;
    let mut prompt = chat.tokens(&run.model, parts).await?;
    let media = media::prompt_media(&prompt, &encoded, &run.model);
    let end = run.model.tokenizer.end_of_generation().first().ok_or(ApiError::Internal)?;
    // A text that fills the context loses its last tokens, so that the end has a place.
    let others = prompt.tokens.len() + before.len() + 2;
    words.truncate(run.model.limits.context_tokens.saturating_sub(others));
    prompt.tokens.extend(before.iter().chain(&words).chain([end]));
    // The weights are those of the start, the tokens before the words, the words and the end.
    let of_words = before.len()..before.len() + words.len() + 1;
    memory.grow((of_words.end + 1) * shape.frames * (shape.heads * size_of::<f32>() + 4 * size_of::<f64>()))?;
    let embedding = Some(Pooling::Each { from: shape.frames });
    let request = GenerationRequest { prompt: prompt.tokens, media, embedding, ..GenerationRequest::default() };
    let weights = run.vector(request).await?;
    let frames = (seconds / SECONDS + 1e-6) as usize;
    let starts = on_blocking_thread(move || Ok(token_frames(&weights, shape, of_words, frames))).await?;
    Ok(starts.into_iter().map(|frame| frame as f64 * SECONDS).collect())
}

/// The weights of attention that a model returns.
fn shape_of(model: &ServedModel) -> Result<AttentionShape, ApiError> {
    model.card.embedding.attention.ok_or_else(|| {
        let message = "this model does not tell when words are spoken".to_owned();
        ApiError::Unsupported { param: "timestamp_granularities[]".to_owned(), message }
    })
}
