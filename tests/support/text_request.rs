//! Requests for a simulated model, whose tokens are the bytes of a text.

use cuelight::request::{GenerationRequest, SamplingParams, StopConditions};
use cuelight::runtime::{Generation, Runtime};
use cuelight_engine::engine::TokenId;

/// A request with a seed of its own, so that its answer is always the same.
pub fn request(prompt: &str, max_tokens: usize) -> GenerationRequest {
    GenerationRequest {
        prompt: prompt.bytes().map(TokenId::from).collect(),
        sampling: SamplingParams { seed: Some(1), ..SamplingParams::default() },
        stop: StopConditions { max_tokens, ..StopConditions::default() },
        skip_special_tokens: true,
        ..GenerationRequest::default()
    }
}

/// Has a runtime with room for it begin a request.
pub async fn submit(runtime: &Runtime, request: &GenerationRequest) -> Generation {
    let permit = runtime.try_permit(1).unwrap();
    runtime.submit(&permit, request.clone()).await.unwrap()
}
