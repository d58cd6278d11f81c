//! Measures the overhead of the runtime with a simulated engine whose steps take no time. What remains is scheduler,
//! sampler, channels and HTTP.
//!
//! `cargo test --release --test throughput -- --ignored --nocapture --test-threads 1`
//!
//! The assertions leave a factor of two for a busy machine. The figures are printed.

#![allow(clippy::unwrap_used)]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use cuelight::api::ServerOptions;
use cuelight::core::request::{GenerationRequest, RequestId, SamplingParams, StopConditions};
use cuelight::pipeline::executor::EngineHost;
use cuelight::pipeline::policy::{Effect, Outcome, Policy, PolicyConfig, PolicyEvent, Submission, Verdict};
use cuelight::pipeline::runtime::{Runtime, RuntimeOptions};
use cuelight::pipeline::simulation::{SimulatedModel, tokenizer};
use cuelight::trace::{self, Tracer};
use cuelight_engine::engine::EngineLimits;

mod common;

use common::listening::Listening;

/// A model that never ends a generation, with capacity for `streams` streams.
fn endless(streams: usize) -> SimulatedModel {
    let mut model = SimulatedModel { end_one_in: u64::MAX, host: EngineHost::Thread, ..common::model() };
    model.limits = limits(streams, model.limits.vocab_size);
    model
}

fn limits(streams: usize, vocab_size: usize) -> EngineLimits {
    EngineLimits {
        vocab_size,
        context_tokens: 4096,
        kv_blocks: streams * 256,
        max_batched_tokens: streams + 256,
        max_sequences: streams,
        max_logits_rows: streams,
        device: "simulated".into(),
        ..EngineLimits::default()
    }
}

/// Tokens per second from the engine to clients that only count them.
async fn tokens_per_second(streams: usize, tracer: Tracer) -> f64 {
    let model = endless(streams);
    let counters = model.counters.clone();
    let options = RuntimeOptions { client_buffer_events: 1024, tracer, ..RuntimeOptions::default() };
    let runtime = Runtime::start(model, options).await.unwrap();
    assert!(runtime.wait_ready().await.is_ok());
    let request = GenerationRequest {
        prompt: vec![100; 5],
        sampling: SamplingParams { temperature: 0.0, ..SamplingParams::default() },
        stop: StopConditions { max_tokens: 200_000 / streams.max(64), ..StopConditions::default() },
        ..GenerationRequest::default()
    };
    let begin = Instant::now();
    let mut clients = Vec::new();
    for _ in 0..streams {
        let permit = runtime.try_permit(1).unwrap();
        let mut generation = runtime.submit(&permit, request.clone()).await.unwrap();
        clients.push(tokio::spawn(async move {
            let mut events = 0;
            while generation.next().await.is_some() {
                events += 1;
            }
            events
        }));
    }
    let mut events = 0;
    for client in clients {
        events += client.await.unwrap();
    }
    let (seconds, steps) = (begin.elapsed().as_secs_f64(), counters.steps.load(Ordering::Relaxed));
    let rate = f64::from(events) / seconds;
    println!("{streams:4} streams: {rate:.0} token events/s, {:.0} us a step", seconds * 1e6 / steps as f64);
    rate
}

#[test]
#[ignore = "needs optimisation and a quiet machine"]
fn the_pipeline_handles_two_hundred_thousand_tokens_per_second() {
    two_threads().block_on(async {
        tokens_per_second(1, Tracer::default()).await;
        for streams in [64, 256] {
            assert!(tokens_per_second(streams, Tracer::default()).await > 100_000.0);
        }
    });
}

#[test]
#[ignore = "needs optimisation and a quiet machine"]
fn tracing_costs_less_than_half_of_the_throughput() {
    let directory = tempfile::tempdir().unwrap();
    let tracer = trace::start(Some(&directory.path().join("trace.json")), None).unwrap();
    let mut shares: Vec<f64> = Vec::new();
    for _ in 0..5 {
        let (without, with) = two_threads().block_on(async {
            (tokens_per_second(64, Tracer::default()).await, tokens_per_second(64, tracer.clone()).await)
        });
        shares.push(with / without);
    }
    tracer.finish();
    shares.sort_by(f64::total_cmp);
    println!("with a trace file {shares:.2?} of the rate without");
    // Other programs may slow down single rounds.
    assert!(shares[shares.len() / 2] > 0.5);
}

fn two_threads() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// Reads streams until the server closes them, and counts their events. A minimal client, so that the figure shows the
/// cost of the server.
fn count_events(address: SocketAddr, streams: usize, tokens: usize) -> usize {
    let body = format!("{{\"prompt\":\"hello\",\"max_tokens\":{tokens},\"temperature\":0,\"stream\":true}}");
    let request = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut open: Vec<TcpStream> = Vec::new();
    for _ in 0..streams {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        stream.set_nonblocking(true).unwrap();
        open.push(stream);
    }
    let mut buffer = vec![0; 1 << 16];
    let mut events = 0;
    while !open.is_empty() {
        let mut idle = true;
        open.retain_mut(|stream| match stream.read(&mut buffer) {
            Ok(0) => false,
            Ok(read) => {
                idle = false;
                events += buffer[..read].windows(5).filter(|window| window == b"data:").count();
                true
            }
            Err(error) => {
                assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock, "{error}");
                true
            }
        });
        if idle {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    events
}

#[test]
#[ignore = "needs optimisation and a quiet machine"]
fn http_delivers_fifty_thousand_events_per_second() {
    const STREAMS: usize = 256;
    const TOKENS: usize = 1000;
    let tokio = two_threads();
    let server = tokio.block_on(async {
        let options = RuntimeOptions { max_requests: STREAMS, ..RuntimeOptions::default() };
        Listening::start_with(endless(STREAMS), options, ServerOptions::new("m")).await
    });
    let address = server.url.trim_start_matches("http://").parse().unwrap();
    let begin = Instant::now();
    let events = count_events(address, STREAMS, TOKENS);
    let rate = events as f64 / begin.elapsed().as_secs_f64();
    println!("{STREAMS} streams: {rate:.0} SSE events/s ({events} events)");
    // A read may split an event, which is rare.
    assert!(events > STREAMS * TOKENS * 99 / 100);
    assert!(rate > 25_000.0);
    tokio.block_on(server.stop());
}

#[test]
#[ignore = "needs optimisation and a quiet machine"]
fn a_step_of_256_sequences_is_formed_in_a_tenth_of_a_millisecond() {
    const SEQUENCES: u64 = 256;
    const STEPS: usize = 150;
    const ROUNDS: usize = 10;
    let limits = limits(SEQUENCES as usize, tokenizer().vocab_size());
    let config = PolicyConfig { steps_in_flight: 1, ..PolicyConfig::default() };
    let mut policy = Policy::new(config, limits.clone());
    let mut effects = policy.on(PolicyEvent::ExecutorReady(Box::new(limits)));
    for id in 0..SEQUENCES {
        // About a thousand tokens, all prompts different.
        let prompt = (0..1000).map(|i| ((i * 7 + id * 13 + i * id) % 256) as u32).collect();
        let submission = Submission::new(RequestId(id), prompt, 2000);
        effects.extend(policy.submit(submission).unwrap());
    }
    let (mut formed, mut rounds) = (Vec::new(), Vec::new());
    loop {
        let planned = effects.into_iter().find_map(|effect| match effect {
            Effect::Run(planned) => Some(planned),
            _ => None,
        });
        let planned = planned.expect("there is always a step to form");
        let elapsed = Duration::from_millis(5) + Duration::from_micros(200) * planned.step.rows() as u32;
        // A step that samples nothing has ended here, and the next one is formed.
        effects = policy.on(PolicyEvent::StepDone { step: planned.step.id, elapsed, prefill_saturation_rows: None });
        let outcomes = planned.tasks.iter().map(|task| Outcome {
            id: task.id,
            verdict: Verdict::Tokens(vec![7]),
            forced: 0,
            pause: false,
        });
        let event = PolicyEvent::Sampled { step: planned.step.id, outcomes: outcomes.collect() };
        let begin = Instant::now();
        effects.extend(policy.on(event));
        if planned.tasks.len() == SEQUENCES as usize {
            formed.push(begin.elapsed());
        }
        if formed.len() == STEPS {
            formed.sort_unstable();
            rounds.push((formed[STEPS / 2], formed[STEPS * 99 / 100]));
            formed.clear();
            if rounds.len() == ROUNDS {
                break;
            }
            std::thread::sleep(Duration::from_secs(1));
        }
    }
    for (median, p99) in &rounds {
        println!("a step of {SEQUENCES} sequences is taken note of and the next formed in {median:?}, p99 {p99:?}");
    }
    // Other work on a shared machine lasts for seconds, and a round takes a hundredth of one.
    let (median, _) = rounds.into_iter().min().unwrap();
    assert!(median < Duration::from_micros(200), "{median:?}");
}
