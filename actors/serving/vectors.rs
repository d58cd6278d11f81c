//! Vectors of sequences, of which embeddings and scores are made.
//!
//! Sequences share steps with one another and with everything else that runs. At most a window of them is submitted at a time, so
//! that a request with many texts takes a bounded number of admission slots. Dropping the computation cancels them.

use std::collections::VecDeque;
use std::sync::Arc;

use cuelight_engine::engine::TokenId;
use tokio::time::{Instant, timeout_at};

use super::accept::ServingLimits;
use super::error::ApiError;
use super::served::Served;
use super::tenancy::Tenancy;
use crate::core::request::{Event, FinishReason, GenerationError, GenerationRequest};
use crate::pipeline::runtime::{Generation, Permit, ServedModel};

/// A text, or two texts, as tokens.
pub(super) struct TextTokens {
    pub tokens: Vec<TokenId>,
    /// The index of the first token of the second text, if the model is told.
    pub second_text: Option<usize>,
}

/// Who asks for vectors, and how urgently.
pub(super) struct Requester {
    pub tenancy: Tenancy,
    pub priority: i32,
    pub limits: ServingLimits,
    /// When the request came.
    pub started: Instant,
}

/// The admission slots of a request, and the model that computes its vectors.
pub(super) struct VectorRun {
    pub served: Served,
    pub model: Arc<ServedModel>,
    requester: Requester,
    permit: Permit,
    window: usize,
}

impl VectorRun {
    /// Takes the slots for a number of sequences.
    ///
    /// # Errors
    /// [`ApiError::Submit`] while the server is overloaded or not ready.
    pub fn begin(
        served: Served,
        model: Arc<ServedModel>,
        requester: Requester,
        sequences: usize,
    ) -> Result<Self, ApiError> {
        // As many as fill a step, and as many that wait for the next.
        let window = sequences.min(2 * model.limits.max_sequences);
        let permit = served.runtime.try_permit_for(requester.tenancy.client.clone(), window)?;
        Ok(VectorRun { served, model, requester, permit, window })
    }

    /// The vector of each sequence, in their order, not normalized.
    ///
    /// # Errors
    /// [`ApiError::Timeout`], and what fails a generation.
    pub async fn vectors(&self, texts: impl Iterator<Item = TextTokens>) -> Result<Vec<Vec<f32>>, ApiError> {
        let Requester { tenancy, priority, limits, .. } = &self.requester;
        let of_text = |TextTokens { tokens, second_text }: TextTokens| GenerationRequest {
            prompt: tokens,
            second_text,
            priority: (*priority).max(limits.highest_priority),
            client: tenancy.client.clone(),
            adapter: self.served.adapter.clone(),
            embedding: Some(self.model.card.embedding.pooling),
            ..GenerationRequest::default()
        };
        self.compute_in_time(texts.map(of_text)).await
    }

    /// The vector of one sequence that has more than a text.
    ///
    /// # Errors
    /// As [`VectorRun::vectors`].
    pub async fn vector(&self, request: GenerationRequest) -> Result<Vec<f32>, ApiError> {
        let Requester { tenancy, priority, limits, .. } = &self.requester;
        let request = GenerationRequest {
            priority: (*priority).max(limits.highest_priority),
            client: tenancy.client.clone(),
            cache_salt: tenancy.cache_salt.clone(),
            adapter: self.served.adapter.clone(),
            ..request
        };
        self.compute_in_time(std::iter::once(request)).await?.pop().ok_or(ApiError::Internal)
    }

    async fn compute_in_time(
        &self,
        requests: impl Iterator<Item = GenerationRequest>,
    ) -> Result<Vec<Vec<f32>>, ApiError> {
        let Requester { limits, started, .. } = &self.requester;
        let vectors = self.compute(requests);
        match limits.request_timeout {
            Some(limit) => timeout_at(*started + limit, vectors).await.map_err(|_| ApiError::Timeout(limit))?,
            None => vectors.await,
        }
    }

    async fn compute(&self, requests: impl Iterator<Item = GenerationRequest>) -> Result<Vec<Vec<f32>>, ApiError> {
        let mut vectors = Vec::new();
        let mut running: VecDeque<Generation> = VecDeque::with_capacity(self.window);
        for request in requests {
            if running.len() == self.window
                && let Some(first) = running.pop_front()
            {
                vectors.push(vector_of(first).await?);
            }
            running.push_back(self.served.runtime.submit(&self.permit, request).await?);
        }
        for generation in running {
            vectors.push(vector_of(generation).await?);
        }
        Ok(vectors)
    }
}

/// Waits for the vector of a sequence.
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
