//! Experts on the host, through the whole cast: the same bits as experts in the engine, and nothing lost when they die.

#![allow(clippy::unwrap_used)]

use std::path::PathBuf;

use cuelight::loader::ModelSource;
use cuelight::request::{Event, GenerationRequest, SamplingParams, StopConditions};
use cuelight::runtime::{Runtime, RuntimeOptions};
use cuelight_engine::engine::Engine;
use cuelight_engine::load::{CpuExperts, LoadOptions, LoadProgress, LoadedModel, plan};

struct Fixture(LoadOptions);

impl ModelSource for Fixture {
    type Engine = Box<dyn Engine>;

    fn load(&self, progress: &mut dyn FnMut(LoadProgress)) -> Result<LoadedModel<Box<dyn Engine>>, String> {
        plan(&self.0).and_then(|plan| plan.load(progress)).map_err(|error| error.to_string())
    }
}

fn options(name: &str, cpu_experts: CpuExperts) -> LoadOptions {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/families").join(name);
    LoadOptions { threads: 2, context_tokens: Some(256), cpu_experts, ..LoadOptions::new(path) }
}

async fn runtime(name: &str, cpu_experts: CpuExperts) -> Runtime {
    let runtime = Runtime::start(Fixture(options(name, cpu_experts)), RuntimeOptions::default()).await.unwrap();
    assert!(runtime.wait_ready().await.is_ok());
    runtime
}

fn request(seed: u64) -> GenerationRequest {
    let length = 5 + (seed * 29) % 90;
    GenerationRequest {
        prompt: (0..length).map(|i| ((i * i + 7 * i + seed * 131) % 500) as u32).collect(),
        sampling: SamplingParams { temperature: 0.8, seed: Some(seed), ..SamplingParams::default() },
        stop: StopConditions {
            max_tokens: 24,
            min_tokens: 0,
            strings: Vec::new(),
            token_ids: Vec::new(),
            ignore_eos: true,
            include_stop_string: false,
        },
        logprobs: Some(3),
        ..GenerationRequest::default()
    }
}

/// Tokens with the bits of their log-probabilities, of requests that run side by side.
async fn answers(runtime: &Runtime, seeds: &[u64]) -> Vec<Vec<(u32, u32)>> {
    let mut generations = Vec::new();
    for seed in seeds {
        let permit = runtime.try_permit(1).unwrap();
        generations.push((runtime.submit(&permit, request(*seed)).await.unwrap(), permit));
    }
    let mut answers = Vec::new();
    for (mut generation, _permit) in generations {
        let mut tokens = Vec::new();
        while let Some(event) = generation.next().await {
            match event {
                Event::Token { token, logprobs, .. } => {
                    tokens.push((token, logprobs.unwrap().chosen.logprob.to_bits()));
                }
                Event::Failed(error) => panic!("a request failed: {error}"),
                Event::Prompt { .. } | Event::Finished { .. } => {}
            }
        }
        assert_eq!(tokens.len(), 24);
        answers.push(tokens);
    }
    answers
}

#[tokio::test(flavor = "multi_thread")]
async fn experts_on_the_host_give_the_bits_of_experts_in_the_engine() {
    for name in ["qwen3moe.gguf", "qwen2moe.gguf", "mixtral-q4_0.gguf", "glm4moe.gguf"] {
        let alone = runtime(name, CpuExperts::Auto).await;
        let seeds = [1, 2, 3, 4, 5, 6];
        let mut expected = Vec::new();
        for seed in seeds {
            expected.extend(answers(&alone, &[seed]).await);
        }
        for cpu_experts in [CpuExperts::All, CpuExperts::Layers(1)] {
            let apart = runtime(name, cpu_experts).await;
            assert_eq!(answers(&apart, &seeds).await, expected, "{name} with experts of {cpu_experts}");
            // Once more: by now steps are computed in two parts as well.
            assert_eq!(answers(&apart, &seeds).await, expected, "{name} with experts of {cpu_experts}");
        }
    }
}

#[test]
fn the_plan_says_what_lies_where() {
    let plan = plan(&options("qwen3moe.gguf", CpuExperts::Layers(2))).unwrap();
    let device = &plan.limits().device;
    assert!(device.contains("+ the experts of 2 of 3 layers on cpu ("), "{device}");
}

#[test]
fn a_model_without_experts_takes_the_option_and_leaves_nothing_to_the_host() {
    let plan = plan(&options("qwen3.gguf", CpuExperts::All)).unwrap();
    assert!(!plan.limits().device.contains("experts"), "{}", plan.limits().device);
}

#[cfg(feature = "fault-injection")]
#[tokio::test(flavor = "multi_thread")]
async fn experts_that_die_in_the_middle_of_a_step_are_replaced_and_no_token_is_another() {
    let runtime = runtime("qwen3moe.gguf", CpuExperts::All).await;
    let seeds = [1, 2, 3, 4];
    let expected = answers(&runtime, &seeds).await;
    for _ in 0..3 {
        cuelight::faults::Fault::Experts.arm();
        assert_eq!(answers(&runtime, &seeds).await, expected);
    }
}
