//! Speculation changes the number of steps and nothing else: the same tokens and the same bits of log-probability, whether
//! drafts are verified or not, on a real engine and through the whole actor tree.

#![allow(clippy::unwrap_used)]

mod common;
#[path = "support/tiny_runtime.rs"]
mod tiny_runtime;
#[path = "support/vulkan_device.rs"]
mod vulkan_device;

use std::sync::atomic::Ordering;
use std::time::Duration;

use cuelight::core::request::{Event, GenerationRequest, SamplingParams, SpeculationOptions, Usage};
use cuelight::pipeline::policy::{PolicyConfig, SpeculationMode};
use cuelight::pipeline::runtime::{Runtime, RuntimeOptions};
use cuelight::pipeline::simulation::SimulatedModel;
use cuelight_engine::load::{ComputeDevice, LoadOptions};
use serde_json::{Value, json};

use common::{Server, model};
use cuelight::api::ServerOptions;
use tiny_runtime::{answer, checkpoint, request, start};
use vulkan_device::has_device;

const MODES: [SpeculationMode; 2] = [SpeculationMode::Auto, SpeculationMode::Ngram];

fn options(speculation: SpeculationMode) -> RuntimeOptions {
    let policy = PolicyConfig { speculation, ..PolicyConfig::default() };
    RuntimeOptions { policy, ..RuntimeOptions::default() }
}

async fn runtime(name: &str, device: ComputeDevice, speculation: SpeculationMode) -> Runtime {
    let options_of_load = LoadOptions {
        threads: 2,
        context_tokens: Some(256),
        device: device.into(),
        deterministic: device != ComputeDevice::Cpu,
        ..LoadOptions::new(checkpoint(name))
    };
    start(options_of_load, options(speculation)).await
}

/// The usage of a request and its tokens.
async fn usage(runtime: &Runtime, request: GenerationRequest) -> (Vec<u32>, Usage) {
    let permit = runtime.try_permit(1).unwrap();
    let mut generation = runtime.submit(&permit, request).await.unwrap();
    let mut tokens = Vec::new();
    while let Some(event) = generation.next().await {
        match event {
            Event::Token { token, .. } => tokens.push(token),
            Event::Finished { usage, .. } => return (tokens, usage),
            Event::Failed(error) => panic!("{error}"),
            Event::Progress(_) | Event::Prompt { .. } | Event::Block { .. } | Event::Embedded { .. } => {}
        }
    }
    panic!("the request did not end");
}

/// A request whose prompt repeats itself, so that its answer is looked up there.
fn repetitive(seed: u64, temperature: f32) -> GenerationRequest {
    let mut request = request(seed, temperature);
    request.prompt = request.prompt.iter().copied().cycle().take(100).collect();
    request.sampling = SamplingParams {
        repetition_penalty: if seed.is_multiple_of(3) { 1.2 } else { 1.0 },
        presence_penalty: if seed % 3 == 1 { 0.5 } else { 0.0 },
        ..request.sampling
    };
    request
}

async fn check(name: &str, device: ComputeDevice) {
    let plain = runtime(name, device, SpeculationMode::Off).await;
    let mut expected = Vec::new();
    for seed in 0..12 {
        let temperature = [0.0, 0.7, 1.2][seed as usize % 3];
        let request = repetitive(seed, temperature);
        expected.push((request.clone(), answer(&plain, request).await));
    }
    plain.shutdown(Duration::ZERO).await;
    for mode in MODES {
        let runtime = runtime(name, device, mode).await;
        let running = expected.iter().map(|(request, tokens)| {
            // Half of a right prediction and half of a wrong one.
            let prediction = tokens.iter().enumerate().map(|(i, (token, _))| if i < 12 { *token } else { token ^ 1 });
            let speculation = SpeculationOptions { is_off: false, prediction: prediction.collect() };
            let (runtime, request) = (runtime.clone(), GenerationRequest { speculation, ..request.clone() });
            tokio::spawn(async move { answer(&runtime, request).await })
        });
        for (task, (request, tokens)) in running.collect::<Vec<_>>().into_iter().zip(&expected) {
            assert_eq!(&task.await.unwrap(), tokens, "{name}, {mode:?}, seed {:?}", request.sampling.seed);
        }
        runtime.shutdown(Duration::ZERO).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn drafts_change_no_bit_of_an_answer() {
    check("llama-q4_0.gguf", ComputeDevice::Cpu).await;
    check("gemma3-q5_0.gguf", ComputeDevice::Cpu).await;
    check("qwen3moe.gguf", ComputeDevice::Cpu).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn drafts_change_no_bit_of_an_answer_on_vulkan() {
    if has_device() {
        check("llama-q4_0.gguf", ComputeDevice::Vulkan(0)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prediction_is_accepted_as_far_as_it_is_right() {
    let runtime = runtime("llama-q4_0.gguf", ComputeDevice::Cpu, SpeculationMode::Ngram).await;
    let off = SpeculationOptions { is_off: true, ..SpeculationOptions::default() };
    let (tokens, used) = usage(&runtime, GenerationRequest { speculation: off, ..request(1, 0.8) }).await;
    assert_eq!((used.accepted_prediction_tokens, used.rejected_prediction_tokens), (0, 0));
    let mut prediction = tokens.clone();
    prediction[20] ^= 1;
    let speculation = SpeculationOptions { is_off: false, prediction: prediction.into() };
    let (again, used) = usage(&runtime, GenerationRequest { speculation, ..request(1, 0.8) }).await;
    assert_eq!(tokens, again);
    assert!((16..=24).contains(&used.accepted_prediction_tokens), "{used:?}");
    assert!((1..=12).contains(&used.rejected_prediction_tokens), "{used:?}");
    runtime.shutdown(Duration::ZERO).await;
}

async fn serve(model: &SimulatedModel) -> Server {
    Server::start_with(model.clone(), options(SpeculationMode::Ngram), ServerOptions::default()).await
}

/// The content of an answer over HTTP, and the number of steps of all answers so far.
async fn content(server: &Server, model: &SimulatedModel, body: Value) -> (Value, u64) {
    let before = model.counters.steps.load(Ordering::Relaxed);
    let answer = server.post("/v1/chat/completions", &body).await.json();
    (answer, model.counters.steps.load(Ordering::Relaxed) - before)
}

#[tokio::test(flavor = "multi_thread")]
async fn text_that_repeats_takes_fewer_steps_for_every_option() {
    let model = SimulatedModel { repeats: true, end_one_in: u64::MAX, ..model() };
    let server = serve(&model).await;
    for (seed, more) in [
        json!({}),
        json!({ "temperature": 0 }),
        json!({ "temperature": 0, "logprobs": true, "top_logprobs": 3 }),
        json!({ "temperature": 0, "stop": ["abcab", "zz"], "min_tokens": 30 }),
        json!({ "temperature": 0, "frequency_penalty": 0.1 }),
    ]
    .into_iter()
    .enumerate()
    {
        let mut body = json!({ "messages": [{ "role": "user", "content": "again" }], "seed": seed, "max_tokens": 120 });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let (drafted, steps) = content(&server, &model, body.clone()).await;
        body["speculation"] = json!(false);
        let (plain, plain_steps) = content(&server, &model, body).await;
        assert_eq!(drafted["choices"], plain["choices"], "{more}");
        assert_eq!(drafted["usage"]["completion_tokens"], plain["usage"]["completion_tokens"], "{more}");
        if more == json!({ "temperature": 0 }) {
            assert!(10 * steps < 7 * plain_steps, "{steps} of {plain_steps} steps");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_schema_forces_takes_fewer_steps() {
    let model = SimulatedModel { end_one_in: u64::MAX, ..model() };
    let server = serve(&model).await;
    let schema = json!({
        "type": "object",
        "properties": {
            "a property with a long name": { "type": "boolean" },
            "another one of these": { "const": "a long text that is always the same" },
        },
        "required": ["a property with a long name", "another one of these"],
        "additionalProperties": false,
    });
    let mut body = json!({
        "messages": [{ "role": "user", "content": "what is it?" }],
        "response_format": { "type": "json_schema", "json_schema": { "name": "it", "strict": true, "schema": schema } },
        "seed": 3,
        "max_tokens": 300,
        // The first answer would be a draft for the second.
        "speculation": false,
    });
    let (forced, steps) = content(&server, &model, body.clone()).await;
    // For their log-probabilities each token needs a row of logits.
    body["logprobs"] = json!(true);
    let (scored, scored_steps) = content(&server, &model, body).await;
    assert_eq!(forced["choices"][0]["message"], scored["choices"][0]["message"]);
    assert_eq!(forced["usage"]["completion_tokens"], scored["usage"]["completion_tokens"]);
    assert!(2 * steps < scored_steps, "{steps} of {scored_steps} steps");
    let text = forced["choices"][0]["message"]["content"].as_str().unwrap();
    assert_eq!(
        serde_json::from_str::<Value>(text).unwrap()["another one of these"],
        "a long text that is always the same"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prediction_is_reported_and_a_wrong_one_is_refused() {
    let model = SimulatedModel { end_one_in: u64::MAX, ..model() };
    let server = serve(&model).await;
    let mut body = json!({ "messages": [{ "role": "user", "content": "again" }], "temperature": 0, "max_tokens": 60 });
    let (plain, plain_steps) = content(&server, &model, body.clone()).await;
    body["prediction"] = json!({ "type": "content", "content": plain["choices"][0]["message"]["content"] });
    let (predicted, steps) = content(&server, &model, body.clone()).await;
    assert_eq!(predicted["choices"], plain["choices"]);
    assert!(3 * steps < plain_steps, "{steps} of {plain_steps} steps");
    let details = &predicted["usage"]["completion_tokens_details"];
    assert!(details["accepted_prediction_tokens"].as_u64().unwrap() >= 40, "{details}");
    body["prediction"] = json!({ "type": "content" });
    let refused = server.post("/v1/chat/completions", &body).await;
    assert_eq!(refused.status, 400);
    assert_eq!(refused.json()["error"]["param"], "prediction.content");
}
