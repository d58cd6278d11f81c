//! The whole cast over a simulated engine, on a paused clock.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::time::Duration;

use cuelight::request::{Event, FinishReason, GenerationRequest, StopConditions, Usage};
use cuelight::runtime::{Generation, Runtime, RuntimeOptions, Status};
use cuelight::simulation::SimulatedModel;
use cuelight_engine::engine::TokenId;
use cuelight_engine::format::tokenizer::Tokenizer;

fn model() -> SimulatedModel {
    SimulatedModel::new(Arc::new(Tokenizer))
}

async fn start(model: SimulatedModel, options: RuntimeOptions) -> Runtime {
    let runtime = Runtime::start(model, options).await.unwrap();
    runtime.wait_ready().await.ok().unwrap();
    runtime
}

fn request(prompt: &str, max_tokens: usize) -> GenerationRequest {
    GenerationRequest {
        prompt: prompt.bytes().map(TokenId::from).collect(),
        sampling: Default::default(),
        stop: StopConditions { max_tokens, ..Default::default() },
        logprobs: None,
        prompt_logprobs: None,
        skip_special_tokens: true,
        priority: 0,
    }
}

/// Everything a client heard.
#[derive(Debug, Clone, PartialEq)]
struct Answer {
    text: String,
    tokens: Vec<TokenId>,
    reason: FinishReason,
    usage: Usage,
}

async fn read(mut generation: Generation) -> Answer {
    let (mut text, mut tokens) = (String::new(), Vec::new());
    loop {
        match generation.next().await.expect("a generation ends with an event") {
            Event::Prompt { .. } => {}
            Event::Token { token, text: piece, .. } => {
                tokens.push(token);
                text.push_str(&piece);
            }
            Event::Finished { reason, text: rest, usage } => {
                text.push_str(&rest);
                assert_eq!(generation.next().await, None);
                return Answer { text, tokens, reason, usage };
            }
            Event::Failed(error) => panic!("{error}"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn one_request_streams_through_all_actors() {
    let runtime = start(model(), RuntimeOptions::default()).await;
    assert_eq!(runtime.status(), Status::Ready);
    let permit = runtime.try_permit(1).unwrap();
    let answer = read(runtime.submit(&permit, request("hello", 20)).await.unwrap()).await;
    println!("{answer:?}");
    assert_eq!(answer.usage.completion_tokens, answer.tokens.len());
    assert!(!answer.text.is_empty());
    assert_eq!(runtime.snapshot().blocks_used, 0);
    runtime.shutdown(Duration::from_secs(1)).await;
}
