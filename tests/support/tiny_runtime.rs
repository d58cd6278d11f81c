//! The whole actor tree with a tiny checkpoint of random weights, and requests whose answers are compared bit by bit.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use cuelight::core::request::{Event, GenerationRequest, SamplingParams, StopConditions};
use cuelight::pipeline::planned_file::PlannedFile;
use cuelight::pipeline::runtime::{Runtime, RuntimeOptions};
use cuelight_engine::load::{LoadOptions, plan};

/// The file of a checkpoint.
pub fn checkpoint(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/families").join(name)
}

/// Starts a runtime and waits until it is ready.
pub async fn start(options: LoadOptions, runtime: RuntimeOptions) -> Runtime {
    let runtime = Runtime::start(PlannedFile::new(plan(&options).unwrap()), runtime).await.unwrap();
    assert!(runtime.wait_ready().await.is_ok());
    runtime
}

/// A request for 24 tokens. The seed also determines its prompt.
pub fn request(seed: u64, temperature: f32) -> GenerationRequest {
    let length = 5 + (seed as usize * 29) % 90;
    GenerationRequest {
        prompt: (0..length as u64).map(|i| ((i * i + 7 * i + seed * 131) % 500) as u32).collect(),
        sampling: SamplingParams { temperature, seed: Some(seed), ..SamplingParams::default() },
        stop: StopConditions {
            max_tokens: 24,
            min_tokens: 0,
            strings: Arc::default(),
            token_ids: Vec::new(),
            ignore_eos: true,
            include_stop_string: false,
        },
        logprobs: Some(3),
        ..GenerationRequest::default()
    }
}

/// The tokens of a [`request`], with the bits of their log-probabilities.
pub async fn answer(runtime: &Runtime, request: GenerationRequest) -> Vec<(u32, u32)> {
    let permit = runtime.try_permit(1).unwrap();
    let mut generation = runtime.submit(&permit, request).await.unwrap();
    let mut tokens = Vec::new();
    while let Some(event) = generation.next().await {
        match event {
            Event::Token { token, logprobs, .. } => tokens.push((token, logprobs.unwrap().sampled.logprob.to_bits())),
            Event::Failed(error) => panic!("a request failed: {error}"),
            Event::Progress(_) | Event::Prompt { .. } | Event::Block { .. } => {}
            Event::Finished { .. } | Event::Embedded { .. } => {}
        }
    }
    assert_eq!(tokens.len(), 24);
    tokens
}
