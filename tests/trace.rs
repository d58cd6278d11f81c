//! Tests of the trace file: a run of the simulated pipeline is recorded, parsed and checked.
#![allow(clippy::unwrap_used)]

mod common;

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cuelight::core::request::{GenerationRequest, StopConditions};
use cuelight::pipeline::policy::PolicyConfig;
use cuelight::pipeline::runtime::{Generation, Runtime, RuntimeOptions};
use cuelight::pipeline::simulation::{Fault, SimulatedModel, tokenizer};
use cuelight::trace;
use serde_json::Value;

fn request(prompt: usize, max_tokens: usize) -> GenerationRequest {
    GenerationRequest {
        prompt: (0..prompt).map(|i| 97 + (i % 26) as u32).collect(),
        stop: StopConditions { max_tokens, ignore_eos: true, ..StopConditions::default() },
        ..GenerationRequest::default()
    }
}

async fn read(mut generation: Generation) {
    while generation.next().await.is_some() {}
}

/// Runs `requests` concurrently with a trace and returns its events.
async fn record(model: SimulatedModel, policy: PolicyConfig, requests: Vec<GenerationRequest>) -> Vec<Value> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("trace.json");
    let tracer = trace::start(Some(&path), None).unwrap();
    let options = RuntimeOptions { model_id: "simulated".into(), policy, tracer, ..RuntimeOptions::default() };
    let tracer = options.tracer.clone();
    let runtime = Runtime::start(model, options).await.unwrap();
    assert!(runtime.wait_ready().await.is_ok());
    let permit = runtime.try_permit(requests.len()).unwrap();
    let mut generations = Vec::new();
    for request in requests {
        generations.push(tokio::spawn(read(runtime.submit(&permit, request).await.unwrap())));
    }
    for generation in generations {
        generation.await.unwrap();
    }
    runtime.shutdown(Duration::from_secs(5)).await;
    tracer.finish();
    events(&path)
}

fn events(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap();
    let parsed: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
    parsed.as_array().unwrap().clone()
}

/// A span of a track, in microseconds.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Span {
    step: u64,
    from: f64,
    to: f64,
}

/// The spans whose names begin with `word`.
fn track(events: &[Value], word: &str) -> Vec<Span> {
    let spans = events.iter().filter(|event| event["ph"] == "X").filter_map(|event| {
        let (name, step) = event["name"].as_str()?.split_once(' ')?;
        let (from, duration) = (event["ts"].as_f64()?, event["dur"].as_f64()?);
        (name == word).then(|| Span { step: step.parse().unwrap(), from, to: from + duration })
    });
    spans.collect()
}

fn model() -> SimulatedModel {
    SimulatedModel { step_time: Duration::from_millis(2), ..SimulatedModel::new(tokenizer()) }
}

fn policy(steps_in_flight: usize) -> PolicyConfig {
    PolicyConfig { steps_in_flight, ..RuntimeOptions::default().policy }
}

#[tokio::test(start_paused = true)]
async fn a_step_is_formed_computed_and_sampled_and_spans_of_a_track_do_not_overlap() {
    let requests = (0..20).map(|i| request(10 + 40 * (i % 3), 20)).collect();
    let events = record(model(), policy(1), requests).await;
    let [formed, computed, sampled] = ["form", "compute", "sample"].map(|word| track(&events, word));
    assert!(computed.len() >= 20, "{}", computed.len());
    assert_eq!(formed.len(), computed.len());
    for spans in [&formed, &computed, &sampled] {
        assert!(spans.iter().all(|span| span.from <= span.to));
        // Timestamps have a resolution of a nanosecond, and their sums slightly less.
        assert!(spans.windows(2).all(|pair| pair[0].to <= pair[1].from + 0.01), "{spans:?}");
    }
    let by_step = |spans: &[Span]| spans.iter().map(|span| (span.step, *span)).collect::<HashMap<_, _>>();
    let (formed, sampled) = (by_step(&formed), by_step(&sampled));
    for span in &computed {
        assert!(formed[&span.step].to <= span.from + 0.01);
        // A step without logits is not sampled.
        assert!(sampled.get(&span.step).is_none_or(|sampled| span.to <= sampled.from + 0.01));
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_is_a_span_with_its_phases_inside() {
    let events = record(model(), policy(1), vec![request(30, 5), request(3, 1)]).await;
    let edges: Vec<(&str, &str, f64)> = events
        .iter()
        .filter(|event| event["cat"] == "request" && event["id"] == "1.1")
        .map(|event| (event["name"].as_str().unwrap(), event["ph"].as_str().unwrap(), event["ts"].as_f64().unwrap()))
        .collect();
    let names: Vec<(&str, &str)> = edges.iter().map(|(name, edge, _)| (*name, *edge)).collect();
    assert_eq!(
        names,
        [
            ("request 1", "b"),
            ("queue", "b"),
            ("queue", "e"),
            ("prefill", "b"),
            ("prefill", "e"),
            ("decode", "b"),
            ("decode", "e"),
            ("request 1", "e"),
        ]
    );
    assert!(edges.windows(2).all(|pair| pair[0].2 <= pair[1].2), "{edges:?}");
    let begin = events.iter().find(|event| event["name"] == "request 1" && event["ph"] == "b").unwrap();
    assert_eq!(begin["args"]["prompt_tokens"], 30);
    assert_eq!(begin["args"]["completion_tokens"], 5);
    assert_eq!(begin["args"]["reason"], "length");
}

#[tokio::test(start_paused = true)]
async fn restarts_preemptions_and_status_changes_are_recorded() {
    let steps = Arc::new(AtomicU64::new(0));
    let counted = steps.clone();
    let faults = move |_, _: &_| (counted.fetch_add(1, Ordering::Relaxed) == 7).then_some(Fault::DeviceLost);
    let mut model = SimulatedModel { faults: Some(Arc::new(faults)), ..model() };
    // Blocks for two of the four sequences at their full length, whose prompts are the same.
    model.limits.kv_blocks = 14;
    let events = record(model, policy(1), (0..4).map(|_| request(60, 60)).collect()).await;
    let named = |phase: &str| {
        let events = events.iter().filter(|event| event["ph"] == phase);
        events.map(|event| event["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let marks = named("i");
    assert!(marks.contains(&"restart executor".to_owned()), "{marks:?}");
    assert!(marks.iter().any(|mark| mark.starts_with("preempted request")), "{marks:?}");
    assert_eq!(named("B"), ["loading", "ready", "recovering", "ready", "draining"]);
}

#[tokio::test(start_paused = true)]
async fn measured_ops_follow_each_other_inside_their_step() {
    let model = SimulatedModel { profile_ops: true, weights_bytes: 1000, ..model() };
    let events = record(model, policy(1), vec![request(30, 5), request(3, 9)]).await;
    let computed: HashMap<_, _> = track(&events, "compute").into_iter().map(|span| (span.step, span)).collect();
    let ops: Vec<(&Value, Span)> = events
        .iter()
        .filter(|event| event["cat"] == "op")
        .map(|event| {
            let (from, duration) = (event["ts"].as_f64().unwrap(), event["dur"].as_f64().unwrap());
            let step = event["args"]["step"].as_u64().unwrap();
            (event, Span { step, from, to: from + duration })
        })
        .collect();
    assert_eq!(ops.len(), 2 * computed.len());
    for ((_, op), (_, next)) in ops.iter().zip(&ops[1..]) {
        assert!(op.to <= next.from + 0.01, "{op:?} {next:?}");
    }
    for (event, op) in &ops {
        let step = computed[&op.step];
        assert!(step.from <= op.from + 0.01 && op.to <= step.to + 0.01, "{op:?} of {step:?}");
        assert_eq!(event["tid"], ops[0].0["tid"]);
        assert_eq!(event["args"]["bytes"], 500);
    }
    assert_eq!(ops[1].0["name"], "simulated second");
    assert_eq!(ops[1].0["args"]["layer"], 1);
}

/// Uses the real clock, so that sampling takes time. Tried again on a machine with too much other work.
///
/// The prompts fill several steps, so there are sequences to compute while those of the step before are sampled.
/// Log-probabilities make sampling take longer than forming the next step, which checks no invariants here.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_device_computes_the_next_step_during_sampling() {
    let mut shares = Vec::new();
    for _ in 0..5 {
        let mut model = SimulatedModel { step_time: Duration::from_millis(3), ..model() };
        (model.limits.max_sequences, model.limits.max_batched_tokens, model.limits.kv_blocks) = (64, 64, 1024);
        let policy = PolicyConfig { verify: false, ..policy(2) };
        let request = || GenerationRequest { logprobs: Some(20), ..request(4, 40) };
        let events = record(model, policy, (0..64).map(|_| request()).collect()).await;
        let (computed, sampled) = (track(&events, "compute"), track(&events, "sample"));
        let overlaps = |a: &Span, b: &Span| a.step != b.step && a.from < b.to && b.from < a.to;
        let overlapping = sampled.iter().filter(|sampled| computed.iter().any(|step| overlaps(step, sampled))).count();
        // On an idle machine it is nearly every step.
        if overlapping * 10 > sampled.len() {
            return;
        }
        shares.push((overlapping, sampled.len()));
    }
    panic!("of the samplings only these overlap a step: {shares:?}");
}

#[test]
fn an_unwritable_file_is_reported_in_one_sentence() {
    let error = trace::start(Some(Path::new("/nowhere/trace.json")), None).unwrap_err();
    assert_eq!(error.to_string(), "the trace file /nowhere/trace.json cannot be written");
}

#[test]
fn an_empty_recording_is_an_empty_array() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("trace.json");
    let tracer = trace::start(Some(&path), None).unwrap();
    tracer.finish();
    tracer.finish();
    assert_eq!(events(&path), [Value::Null; 0]);
}
