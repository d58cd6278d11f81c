//! Models that generate blocks of tokens: compared with transformers, and invariant under everything around them.
//!
//! `tests/generate/diffusion.py` writes the file and the expected values.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::Command;

use cuelight_engine::engine::{
    Canvas, DenoisedRow, Engine, LogitsWanted, Progress, RowSamplingParams, SampledToken, SequenceRows, Step, StepId,
    StepOutput, TokenId,
};
use cuelight_engine::load::{CompanionMemory, ComputeDevice, CpuExperts, Devices, Kernel, KvType, LoadOptions, plan};
use cuelight_engine::memory::MemoryId;
use cuelight_engine::sample::{Denoised, Denoising, DenoisingRule};
use serde::Deserialize;

#[path = "support/actor_deaths.rs"]
mod actor_deaths;
#[path = "support/server_process.rs"]
mod server_process;
#[path = "support/simulated_clients.rs"]
mod simulated_clients;
#[path = "support/test_seed.rs"]
mod test_seed;
#[path = "support/text_request.rs"]
mod text_request;
#[path = "support/vulkan_device.rs"]
mod vulkan_device;

use test_seed::of_the_day;
use vulkan_device::has_device;

/// Mean distance of entropies and expected embeddings from those of transformers, with float32 weights and a float32 cache.
const GATE: f64 = 1e-4;

/// [`GATE`] for a float16 cache.
const HALF_GATE: f64 = 5e-3;

#[derive(Deserialize)]
struct Expected {
    prompts: Vec<Prompt>,
}

#[derive(Deserialize)]
struct Prompt {
    tokens: Vec<TokenId>,
    rows: Vec<Rows>,
    generated: Vec<Generated>,
}

/// A step of a canvas, which follows from the one before it.
#[derive(Deserialize)]
struct Rows {
    canvas: Vec<TokenId>,
    temperature: f32,
    best: Vec<TokenId>,
    margins: Vec<f64>,
    entropies: Vec<f64>,
    /// The first values of each row.
    means: Vec<Vec<f64>>,
}

/// Blocks, and the steps that each took.
#[derive(Deserialize)]
struct Generated {
    seed: u64,
    tokens: Vec<TokenId>,
    steps: Vec<usize>,
}

fn file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/diffusion/diffusion-gemma.gguf")
}

fn expected() -> Vec<Prompt> {
    let bytes = std::fs::read(file().with_extension("json")).unwrap();
    serde_json::from_slice::<Expected>(&bytes).unwrap().prompts
}

/// An engine and the rule of its blocks.
fn load(path: &Path, kernel: Kernel, kv_type: KvType, threads: usize) -> (Box<dyn Engine>, DenoisingRule) {
    load_with(LoadOptions { kv_type, threads, kernel, device: ComputeDevice::Cpu.into(), ..LoadOptions::new(path) })
}

/// The same on a Vulkan device, with results that do not depend on the batch.
fn load_on_device(device: Devices, kv_type: KvType) -> (Box<dyn Engine>, DenoisingRule) {
    load_with(LoadOptions { kv_type, device, deterministic: true, ..LoadOptions::new(file()) })
}

fn load_with(options: LoadOptions) -> (Box<dyn Engine>, DenoisingRule) {
    let options = LoadOptions { context_tokens: Some(256), ..options };
    let plan = plan(&options).unwrap_or_else(|error| panic!("{error}"));
    let rule = plan.card().denoising.unwrap();
    (plan.load_engine(&mut |_| {}).unwrap(), rule)
}

fn rows(tokens: &[TokenId], position: usize, first_block: u32) -> SequenceRows {
    SequenceRows {
        tokens: tokens.to_vec(),
        first_position: position as u32,
        block_table: (first_block..first_block + 12).collect(),
        ..SequenceRows::default()
    }
}

fn canvas_rows(tokens: &[TokenId], position: usize, first_block: u32, canvas: Canvas, hidden: &[f32]) -> SequenceRows {
    let (logits, hidden) = (LogitsWanted::All, hidden.to_vec());
    SequenceRows { canvas: Some(canvas), logits, hidden, ..rows(tokens, position, first_block) }
}

fn run(engine: &mut dyn Engine, sequences: Vec<SequenceRows>) -> StepOutput {
    match engine.begin(Step { id: StepId(0), sequences }).unwrap() {
        Progress::Done(output) => output,
        Progress::AwaitExperts(_) => panic!("the engine computes its experts"),
    }
}

fn greedy(temperature: f32, rows: usize) -> Canvas {
    Canvas { temperature, sampling: RowSamplingParams::GREEDY, draws: vec![0; rows] }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// The distances of entropies and of expected embeddings for the canvases of a prompt that is computed in chunks.
fn distances(engine: &mut dyn Engine, prompt: &Prompt, chunk: usize) -> [Vec<f64>; 2] {
    let (mut entropies, mut means, mut hidden) = (Vec::new(), Vec::new(), Vec::new());
    for (index, tokens) in prompt.tokens.chunks(chunk).enumerate() {
        run(engine, vec![rows(tokens, index * chunk, 0)]);
    }
    let width = engine.limits().canvas.unwrap().width;
    for step in &prompt.rows {
        let canvas = greedy(step.temperature, step.canvas.len());
        let output = run(engine, vec![canvas_rows(&step.canvas, prompt.tokens.len(), 0, canvas, &hidden)]);
        assert_eq!((output.denoised.len(), output.logits.len()), (step.canvas.len(), 0));
        for (index, DenoisedRow { best, sampled, entropy }) in output.denoised.iter().enumerate() {
            assert_eq!(*sampled, SampledToken::Token(*best));
            assert!(*best == step.best[index] || step.margins[index] < GATE, "row {index}");
            entropies.push((f64::from(*entropy) - step.entropies[index]).abs());
            let found = &output.hidden[index * width..];
            means.extend(
                step.means[index].iter().zip(found).map(|(expected, found)| (f64::from(*found) - expected).abs()),
            );
        }
        hidden = output.hidden;
    }
    [entropies, means]
}

#[test]
fn canvases_agree_with_transformers_on_every_kernel() {
    for kernel in Kernel::ALL.iter().copied().filter(|kernel| kernel.is_supported()) {
        let (mut engine, _) = load(&file(), kernel, KvType::F32, 1);
        let mut worst = [0.0_f64; 2];
        for prompt in expected() {
            for chunk in [1, 7, 512] {
                let means = distances(&mut *engine, &prompt, chunk).map(|distances| mean(&distances));
                worst = [0, 1].map(|kind| worst[kind].max(means[kind]));
            }
        }
        println!("{kernel}: mean distance of entropies {:.1e}, of embeddings {:.1e}", worst[0], worst[1]);
        assert!(worst.iter().all(|worst| *worst <= GATE), "{kernel}: {worst:?}");
    }
}

/// Generates blocks as the pipeline does: a canvas until it is finished, then its tokens.
fn generate(engine: &mut dyn Engine, denoising: Denoising, prompt: &[TokenId], blocks: usize) -> Generated {
    let (mut tokens, mut steps) = (prompt.to_vec(), Vec::new());
    let mut computed = 0;
    for _ in 0..blocks {
        run(engine, vec![rows(&tokens[computed..], computed, 0)]);
        computed = tokens.len();
        let (mut block, mut hidden) = (denoising.begin(computed), Vec::new());
        let finished = loop {
            let canvas = denoising.canvas(&block);
            let output = run(engine, vec![canvas_rows(&block.tokens, computed, 0, canvas, &hidden)]);
            hidden = output.hidden;
            steps.push(block.steps + 1);
            match denoising.advance(block, &output.denoised).unwrap() {
                Denoised::Again(next) => block = next,
                Denoised::Finished(tokens) => break tokens,
            }
            steps.pop();
        };
        tokens.extend(finished);
    }
    Generated { seed: denoising.seed, tokens: tokens.split_off(prompt.len()), steps }
}

#[test]
fn blocks_are_refused_with_a_draft_model_and_without_space() {
    let refused = |options: LoadOptions| plan(&options).err().unwrap().to_string();
    let draft = vec![CompanionMemory { memory: MemoryId::Host, bytes: 1 }];
    let with_draft = LoadOptions { draft, device: ComputeDevice::Cpu.into(), ..LoadOptions::new(file()) };
    assert!(refused(with_draft).contains("a draft model is of no use"));
    let short = LoadOptions { context_tokens: Some(16), ..LoadOptions::new(file()) };
    assert!(refused(short).contains("a block has"));
}

#[test]
fn commands_that_compute_token_after_token_refuse_blocks() {
    let folder = tempfile::tempdir().unwrap();
    let text = folder.path().join("text");
    std::fs::write(&text, "some text").unwrap();
    let (model, text, out) = (file(), text.as_path(), folder.path().join("out.gguf"));
    for (command, arguments) in [
        ("bench", vec![model.as_path()]),
        ("perplexity", vec![model.as_path(), text]),
        ("imatrix", vec![model.as_path(), text, Path::new("--output"), out.as_path()]),
    ] {
        let mut program = Command::new(env!("CARGO_BIN_EXE_cuelight"));
        program.arg(command).args(arguments).env_clear().env("HOME", folder.path()).env("CUELIGHT_CALIBRATE", "off");
        let output = program.output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        let expected = format!("cuelight {command} cannot measure models that generate blocks of tokens");
        assert!(!output.status.success() && error.contains(&expected), "{error}");
    }
}

/// A directory of the same weights gives the same bits.
#[test]
fn a_directory_computes_what_the_file_does() {
    let engines = [file(), file().with_extension("")];
    let [(mut of_file, rule), (mut of_directory, other)] =
        engines.map(|path| load(&path, Kernel::detect(), KvType::F16, 1));
    assert_eq!(rule, other);
    let prompt = &expected()[1];
    for step in &prompt.rows {
        let [expected, found] = [&mut of_file, &mut of_directory].map(|engine| {
            run(&mut **engine, vec![rows(&prompt.tokens, 0, 0)]);
            let canvas = greedy(step.temperature, step.canvas.len());
            run(&mut **engine, vec![canvas_rows(&step.canvas, prompt.tokens.len(), 0, canvas, &[])])
        });
        assert_eq!((expected.denoised, expected.hidden), (found.denoised, found.hidden));
    }
}

#[test]
fn canvases_agree_with_transformers_on_a_device() {
    if !has_device() {
        return;
    }
    let setups = [
        ("vulkan:0", CpuExperts::Auto, KvType::F32, GATE),
        ("vulkan:0", CpuExperts::Auto, KvType::F16, HALF_GATE),
        ("vulkan:0", CpuExperts::All, KvType::F32, GATE),
        ("cpu,vulkan:0", CpuExperts::Auto, KvType::F32, GATE),
    ];
    for (devices, cpu_experts, kv_type, gate) in of_the_day(setups, 2) {
        let device = devices.parse().unwrap();
        let (mut engine, _) = load_with(LoadOptions { device, cpu_experts, kv_type, ..LoadOptions::new(file()) });
        for (prompt, chunk) in expected().iter().zip([7, 512, 64]) {
            let means = distances(&mut *engine, prompt, chunk).map(|distances| mean(&distances));
            println!(
                "{devices}, CPU experts {cpu_experts}, {kv_type}: mean distance of entropies {:.1e}, of embeddings {:.1e}",
                means[0], means[1]
            );
            assert!(means.iter().all(|mean| *mean <= gate), "{devices} {kv_type}: {means:?}");
        }
    }
}

/// transformers' `generate` with the random numbers of Cuelight gives the same blocks in as many steps.
#[test]
fn blocks_are_those_of_transformers() {
    let (engine, rule) = load(&file(), Kernel::detect(), KvType::F32, 1);
    assert_generates_blocks_of_transformers(engine, rule);
    if has_device() {
        let (engine, rule) = load_on_device(ComputeDevice::Vulkan(0).into(), KvType::F32);
        assert_generates_blocks_of_transformers(engine, rule);
    }
}

fn assert_generates_blocks_of_transformers(mut engine: Box<dyn Engine>, rule: DenoisingRule) {
    let sampling = RowSamplingParams { temperature: 1.0, ..RowSamplingParams::GREEDY };
    let vocab_size = engine.limits().vocab_size;
    for prompt in expected() {
        for Generated { seed, tokens, steps } in &prompt.generated {
            let denoising = Denoising { rule, sampling, seed: *seed, vocab_size };
            let found = generate(&mut *engine, denoising, &prompt.tokens, steps.len());
            assert_eq!((&found.tokens, &found.steps), (tokens, steps), "{} tokens, seed {seed}", prompt.tokens.len());
        }
    }
}

#[test]
fn a_canvas_does_not_depend_on_its_neighbours_threads_or_chunks() {
    for kernel in Kernel::ALL.iter().copied().filter(|kernel| kernel.is_supported()) {
        for kv_type in KvType::ALL {
            let engines = [1, 2].map(|threads| load(&file(), kernel, *kv_type, threads).0);
            assert_does_not_depend_on_the_batch(engines, &format!("{kernel} {kv_type}"));
        }
    }
}

#[test]
fn a_canvas_on_a_device_does_not_depend_on_its_neighbours_or_chunks() {
    if !has_device() {
        return;
    }
    for kv_type in of_the_day(KvType::ALL, KvType::ALL.len()) {
        let engines = [(); 2].map(|()| load_on_device(ComputeDevice::Vulkan(0).into(), *kv_type).0);
        assert_does_not_depend_on_the_batch(engines, &format!("device, {kv_type}"));
    }
}

/// Compares a canvas alone, on the first engine, with the same next to other sequences, after a prompt in chunks.
fn assert_does_not_depend_on_the_batch([mut alone, mut shared]: [Box<dyn Engine>; 2], name: &str) {
    let prompts = expected();
    let step = &prompts[2].rows[0];
    let before = prompts[2].tokens.len();
    let canvas = || {
        let mut canvas = greedy(step.temperature, step.canvas.len());
        canvas.sampling.temperature = 0.7;
        canvas.draws = (1..=step.canvas.len() as u64).map(|row| row.wrapping_mul(0x9E37_79B9_7F4A_7C15)).collect();
        canvas
    };
    run(&mut *alone, vec![rows(&prompts[2].tokens, 0, 0)]);
    let expected = run(&mut *alone, vec![canvas_rows(&step.canvas, before, 0, canvas(), &[])]);
    for (index, tokens) in prompts[2].tokens.chunks(7).enumerate() {
        run(&mut *shared, vec![rows(&prompts[1].tokens[..index + 1], 0, 12), rows(tokens, index * 7, 0)]);
    }
    let other = canvas_rows(&step.canvas, 5, 24, greedy(0.5, step.canvas.len()), &[]);
    run(&mut *shared, vec![rows(&prompts[0].tokens, 0, 24)]);
    let sequences =
        vec![rows(&prompts[1].tokens[..9], 0, 12), other, canvas_rows(&step.canvas, before, 0, canvas(), &[])];
    let found = run(&mut *shared, sequences);
    let own = step.canvas.len();
    assert_eq!(found.denoised[own..], expected.denoised, "{name}");
    assert_eq!(found.hidden[found.hidden.len() / 2..], expected.hidden, "{name}");
}

mod pipeline {
    //! The whole pipeline with a simulated engine.

    use std::sync::Arc;
    use std::time::Duration;

    use cuelight::core::request::{FinishReason, GenerationError, GenerationRequest, SubmitError};
    use cuelight::core::stop_strings::StopStrings;
    use cuelight::pipeline::runtime::{Runtime, RuntimeOptions, Status};
    use cuelight::pipeline::simulation::{Fault, SimulatedModel, tokenizer};
    use cuelight::pipeline::supervisor::RestartPolicy;
    use tokio::time::sleep;

    use super::actor_deaths::Role;
    use super::simulated_clients::{Received, read};
    use super::text_request::{request, submit};

    const BLOCK: usize = 12;

    fn model() -> SimulatedModel {
        let model = SimulatedModel::new(tokenizer()).with_blocks(BLOCK);
        SimulatedModel { step_time: Duration::from_millis(5), row_time: Duration::from_micros(50), ..model }
    }

    async fn start(model: SimulatedModel) -> Runtime {
        let restarts = RestartPolicy { max_restarts: usize::MAX, ..Default::default() };
        let runtime = Runtime::start(model, RuntimeOptions { restarts, ..Default::default() }).await.unwrap();
        runtime.wait_ready().await.ok().unwrap();
        runtime
    }

    async fn alone(request: &GenerationRequest) -> Received {
        read(submit(&start(model()).await, request).await).await
    }

    /// Requests of different lengths, seeds and ends.
    fn requests() -> Vec<GenerationRequest> {
        let of = |i: usize| {
            let mut request = request(&format!("{}request {i}", "a common beginning; ".repeat(i % 3)), 10 + 9 * i);
            request.sampling.seed = Some(i as u64);
            request.sampling.temperature = [0.0, 0.7, 1.0][i % 3];
            request.stop.ignore_eos = i.is_multiple_of(2);
            if i.is_multiple_of(4) {
                request.stop.strings = Arc::new(StopStrings::new(vec!["ab".into(), "q".into()]).unwrap());
            }
            request
        };
        (0..16).map(of).collect()
    }

    fn assert_nothing_is_held(runtime: &Runtime) {
        let counts = runtime.snapshot();
        assert_eq!((counts.running, counts.waiting, counts.blocks_used), (0, 0, 0));
    }

    async fn all_at_once(runtime: &Runtime, requests: &[GenerationRequest]) -> Vec<Received> {
        let mut streams = Vec::new();
        for request in requests {
            streams.push(tokio::spawn(read(submit(runtime, request).await)));
        }
        let mut received = Vec::new();
        for stream in streams {
            received.push(stream.await.unwrap());
        }
        received
    }

    async fn all_alone(requests: &[GenerationRequest]) -> Vec<Received> {
        let mut expected = Vec::new();
        for request in requests {
            expected.push(alone(request).await);
        }
        expected
    }

    #[tokio::test(start_paused = true)]
    async fn answers_are_cut_on_output_and_come_in_blocks() {
        let asked = request("hello", 2 * BLOCK + 5);
        let received =
            read(submit(&start(SimulatedModel { end_one_in: u64::MAX, ..model() }).await, &asked).await).await;
        assert_eq!((received.blocks, received.end), (vec![BLOCK, BLOCK, 5], Some(Ok(FinishReason::Length))));
        let all = received.text;
        let mut asked = asked;
        let stop: String = all.chars().skip(BLOCK + 2).take(3).collect();
        asked.stop.strings = Arc::new(StopStrings::new(vec![stop.clone()]).unwrap());
        let received =
            read(submit(&start(SimulatedModel { end_one_in: u64::MAX, ..model() }).await, &asked).await).await;
        assert_eq!(received.text, all[..all.find(&stop).unwrap()]);
        assert_eq!(received.end, Some(Ok(FinishReason::StopString(stop))));
    }

    #[tokio::test(start_paused = true)]
    async fn the_context_has_space_for_whole_blocks_only() {
        let runtime = start(SimulatedModel { end_one_in: u64::MAX, ..model() }).await;
        let context = runtime.model().unwrap().limits.context_tokens;
        let received = read(submit(&runtime, &request(&"x".repeat(context - 2 * BLOCK - 5), 1000)).await).await;
        assert_eq!((received.tokens.len(), received.end), (2 * BLOCK, Some(Ok(FinishReason::Length))));
        let permit = runtime.try_permit(1).unwrap();
        let refused = runtime.submit(&permit, request(&"x".repeat(context - BLOCK + 1), 5)).await.err();
        assert!(matches!(refused, Some(SubmitError::ContextLengthExceeded { .. })));
    }

    #[tokio::test(start_paused = true)]
    async fn batches_and_preemption_change_no_token() {
        let requests = requests();
        let expected = all_alone(&requests).await;
        assert!(
            expected.iter().filter(|received| matches!(received.end, Some(Ok(FinishReason::StopToken(_))))).count() > 2
        );
        for kv_blocks in [256, 34] {
            let mut model = model();
            model.limits.kv_blocks = kv_blocks;
            let runtime = start(model).await;
            assert_eq!(all_at_once(&runtime, &requests).await, expected);
            assert_nothing_is_held(&runtime);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn faults_of_the_engine_change_no_token() {
        let requests = requests();
        let expected = all_alone(&requests).await;
        for (fault, every) in [(Fault::Panic, 23), (Fault::DeviceLost, 31), (Fault::InvalidStep, 11)] {
            let injected = fault.clone();
            let faults = Arc::new(move |step: u64, _: &_| step.is_multiple_of(every).then(|| injected.clone()));
            let runtime = start(SimulatedModel { faults: Some(faults), ..model() }).await;
            assert_eq!(all_at_once(&runtime, &requests).await, expected, "{fault:?}");
            assert_nothing_is_held(&runtime);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn rows_that_are_no_distribution_fail_their_request_alone() {
        let faults = Arc::new(|step: u64, _: &_| (step == 3).then_some(Fault::NotANumber));
        let runtime = start(SimulatedModel { faults: Some(faults), ..model() }).await;
        let received = read(submit(&runtime, &request("hello", 50)).await).await;
        assert!(matches!(received.end, Some(Err(GenerationError::Engine(_)))), "{received:?}");
        let request = request("hello", 50);
        assert_eq!(read(submit(&runtime, &request).await).await, alone(&request).await);
    }

    #[tokio::test(start_paused = true)]
    async fn streams_survive_the_death_of_any_actor() {
        let requests = requests();
        let expected = all_alone(&requests).await;
        for role in [Role::Sampler, Role::Scheduler, Role::Executor] {
            for moment in 0..12 {
                let runtime = start(model()).await;
                let killer = tokio::spawn({
                    let runtime = runtime.clone();
                    async move {
                        sleep(Duration::from_millis(7 * moment)).await;
                        role.kill(&runtime, 0);
                    }
                });
                assert_eq!(all_at_once(&runtime, &requests).await, expected, "{role:?} at {moment}");
                killer.await.unwrap();
                sleep(Duration::from_secs(1)).await;
                assert_eq!(runtime.status(), Status::Ready);
                assert_nothing_is_held(&runtime);
            }
        }
    }
}

mod server {
    //! A server of the file.

    use serde_json::{Value, json};

    use super::server_process::ServerProcess;
    use super::{Prompt, TokenId, expected, file};

    const FLAGS: &[&str] = &["--alias", "model", "--kv-type", "f32"];

    async fn start(flags: &[&str]) -> ServerProcess {
        ServerProcess::start_model(&file(), &[FLAGS, flags].concat()).await
    }

    async fn post(server: &ServerProcess, path: &str, body: &Value) -> (u16, String) {
        let sent = reqwest::Client::new().post(format!("{}{path}", server.url)).json(body).send().await.unwrap();
        (sent.status().as_u16(), sent.text().await.unwrap())
    }

    fn body(prompt: &[TokenId], seed: u64, max_tokens: usize) -> Value {
        json!({
            "model": "model", "prompt": prompt, "max_tokens": max_tokens, "temperature": 1.0, "seed": seed,
            "ignore_eos": true, "return_token_ids": true,
        })
    }

    async fn complete(server: &ServerProcess, body: &Value) -> Value {
        let (status, text) = post(server, "/v1/completions", body).await;
        assert_eq!(status, 200, "{text}");
        serde_json::from_str(&text).unwrap()
    }

    fn token_ids(answer: &Value) -> Vec<TokenId> {
        serde_json::from_value(answer["choices"][0]["token_ids"].clone()).unwrap()
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn answers_are_those_of_transformers_alone_and_in_a_batch() {
        let (server, prompts) = (start(&[]).await, expected());
        let mut asked = Vec::new();
        for Prompt { tokens, generated, .. } in &prompts {
            for one in generated {
                let body = body(tokens, one.seed, one.tokens.len());
                let answer = complete(&server, &body).await;
                assert_eq!(token_ids(&answer), one.tokens);
                assert_eq!(answer["usage"]["completion_tokens"], one.tokens.len());
                asked.push((body, one.tokens.clone()));
            }
        }
        for _ in 0..3 {
            let answers = asked.iter().map(|(body, _)| complete(&server, body));
            for (answer, (_, expected)) in futures_util::future::join_all(answers).await.iter().zip(&asked) {
                assert_eq!(&token_ids(answer), expected);
            }
        }
        let (_, metrics) = server.get("/metrics").await;
        let blocks = metrics.lines().find(|line| line.starts_with("cuelight_blocks_total"));
        assert_eq!(blocks.and_then(|line| line.rsplit(' ').next()), Some("72"), "4 times 6 answers of 3 blocks");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_stream_has_a_chunk_for_each_block_and_ends_where_the_request_says() {
        let (server, prompts) = (start(&[]).await, expected());
        let mut body = body(&prompts[1].tokens, 1, 40);
        let whole = complete(&server, &body).await;
        let text = whole["choices"][0]["text"].as_str().unwrap().to_owned();
        assert_eq!((token_ids(&whole).len(), &whole["choices"][0]["finish_reason"]), (40, &json!("length")));
        body["stream"] = json!(true);
        body["stream_options"] = json!({ "include_usage": true });
        let (_, stream) = post(&server, "/v1/completions", &body).await;
        let chunks = stream.lines().filter_map(|line| serde_json::from_str::<Value>(line.strip_prefix("data: ")?).ok());
        let chunks: Vec<Value> = chunks.collect();
        let sizes = chunks.iter().filter_map(|chunk| chunk["choices"][0]["token_ids"].as_array().map(Vec::len));
        assert_eq!(sizes.filter(|size| *size > 0).collect::<Vec<_>>(), [16, 16, 8]);
        let texts = chunks.iter().filter_map(|chunk| chunk["choices"][0]["text"].as_str());
        assert_eq!(texts.collect::<String>(), text);
        assert_eq!(chunks.last().unwrap()["usage"]["completion_tokens"], 40);
        let stop = &text[text.len() / 2..text.len() / 2 + 2];
        let mut body = super::server::body(&prompts[1].tokens, 1, 40);
        body["stop"] = json!([stop]);
        let stopped = complete(&server, &body).await;
        assert_eq!(stopped["choices"][0]["text"], text[..text.find(stop).unwrap()]);
        assert_eq!(stopped["choices"][0]["finish_reason"], "stop");
        let used = stopped["usage"]["completion_tokens"].as_u64().unwrap();
        assert!(used < 40 && token_ids(&stopped).len() as u64 == used, "{stopped}");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn what_needs_one_token_after_the_other_is_refused() {
        let (server, prompts) = (start(&[]).await, expected());
        for (field, value) in [
            ("logprobs", json!(1)),
            ("prompt_logprobs", json!(1)),
            ("logit_bias", json!({ "5": 1 })),
            ("frequency_penalty", json!(0.5)),
            ("min_tokens", json!(3)),
            ("guided_regex", json!("a+")),
            ("bad_words", json!(["a"])),
            ("dynatemp_range", json!(0.5)),
            ("best_of", json!(2)),
        ] {
            let mut body = body(&prompts[0].tokens, 1, 5);
            body[field] = value;
            let (status, text) = post(&server, "/v1/completions", &body).await;
            let error: Value = serde_json::from_str(&text).unwrap();
            assert_eq!((status, &error["error"]["param"]), (400, &json!(field)), "{text}");
            assert!(text.contains("generates blocks of tokens"), "{text}");
        }
        let (status, text) = post(&server, "/v1/embeddings", &json!({ "model": "model", "input": "a" })).await;
        assert!(status == 400 && text.contains("makes no embeddings"), "{text}");
        let long = vec![300; 500];
        let (status, text) = post(&server, "/v1/completions", &body(&long, 1, 5)).await;
        assert!(status == 400 && text.contains("context_length_exceeded"), "{text}");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn an_answer_is_the_same_with_any_step_size_and_little_memory() {
        let prompts = expected();
        let one = &prompts[2].generated[0];
        for flags in [["--max-batched-tokens", "32"], ["--prefill-chunk", "5"], ["--kv-memory", "400KiB"]] {
            let server = start(&flags).await;
            let answers = (0..6).map(|_| {
                let server = &server;
                let body = body(&prompts[2].tokens, one.seed, one.tokens.len());
                async move { complete(server, &body).await }
            });
            for answer in futures_util::future::join_all(answers).await {
                assert_eq!(token_ids(&answer), one.tokens, "{flags:?}");
            }
        }
    }
}
