//! Requests for a simulated model, whose tokens are the bytes of a text.

use cuelight::core::request::{GenerationRequest, SamplingParams, StopConditions};
use cuelight::pipeline::runtime::{Generation, Runtime};
use cuelight_engine::engine::TokenId;

/// A request with a fixed seed, so its answer is always the same.
pub fn request(prompt: &str, max_tokens: usize) -> GenerationRequest {
    GenerationRequest {
        prompt: prompt.bytes().map(TokenId::from).collect(),
        sampling: SamplingParams { seed: Some(1), ..SamplingParams::default() },
        stop: StopConditions { max_tokens, ..StopConditions::default() },
        skip_special_tokens: true,
        ..GenerationRequest::default()
    }
}

/// Submits a request to a runtime that has a free slot for it.
pub async fn submit(runtime: &Runtime, request: &GenerationRequest) -> Generation {
    let permit = runtime.try_permit(1).unwrap();
    runtime.submit(&permit, request.clone()).await.unwrap()
}
