//! Draft models that compute with the hidden values of a model: what torch computes with them, their rows in an engine, and answers of
//! a server that uses them.

use std::path::Path;

use cuelight_engine::engine::{
    Engine, EngineLimits, LogitsWanted, Progress, SequenceRows, SequenceState, Step, StepId, StepOutput, TokenId,
};
use serde::Deserialize;
use serde_json::{Value, json};

use super::server_process::ServerProcess;

#[derive(Deserialize)]
struct Expected {
    prompts: Vec<Prompt>,
}

/// A prompt and what torch computes with it.
#[derive(Deserialize)]
pub struct Prompt {
    pub tokens: Vec<TokenId>,
    /// Of each token from the third on.
    pub logprobs: Vec<f64>,
    /// Tokens that the drafter continues the prompt with, and their log-probabilities.
    pub draft: Vec<(TokenId, f64)>,
}

/// The prompts of a file of expected values.
pub fn expected(path: &Path) -> Vec<Prompt> {
    serde_json::from_slice::<Expected>(&std::fs::read(path).unwrap()).unwrap().prompts
}

/// Computes rows of one sequence that is alone in the engine.
pub fn run(engine: &mut dyn Engine, tokens: &[TokenId], position: usize, hidden: &[f32]) -> StepOutput {
    let rows = SequenceRows {
        tokens: tokens.to_vec(),
        first_position: position as u32,
        block_table: (0..12).collect(),
        state: SequenceState::in_place(engine.limits(), 0, position as u32, tokens.len()),
        logits: LogitsWanted::All,
        returns_hidden: true,
        hidden: hidden.to_vec(),
        ..SequenceRows::default()
    };
    match engine.begin(Step { id: StepId(0), sequences: vec![rows] }).unwrap() {
        Progress::Done(output) => output,
        Progress::AwaitExperts(_) => panic!("the engine computes its experts"),
    }
}

fn log_prob(logits: &[f32], token: TokenId) -> f64 {
    let highest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|logit| f64::from(logit - highest).exp()).sum();
    f64::from(logits[token as usize] - highest) - sum.ln()
}

/// What a drafter reads of the rows that a model returns.
fn read_of_model(model: &EngineLimits, drafter: &EngineLimits, hidden: &[f32]) -> Vec<f32> {
    let first = if model.hidden.residuals > 0 { model.hidden.width } else { 0 };
    let own = vec![0.0; drafter.hidden.reads.own];
    hidden.chunks_exact(model.hidden.row_width()).flat_map(|row| [&row[first..], &own].concat()).collect()
}

/// What a drafter reads of a row of its own.
fn read_of_own(drafter: &EngineLimits, own: &[f32]) -> Vec<f32> {
    let before = if drafter.hidden.reads.own > 0 { drafter.hidden.reads.of_model } else { 0 };
    [&vec![0.0; before], own].concat()
}

/// The number of a token's logit.
fn logit_of(drafter: &EngineLimits, token: TokenId) -> TokenId {
    let of_tokens = drafter.logit_tokens.as_ref();
    of_tokens.map_or(token, |logits| logits.tokens.iter().position(|other| *other == token).unwrap() as TokenId)
}

/// |Δ log-prob| of the drafter's rows and of its draft, when prompts are computed in chunks.
pub fn deltas([model, drafter]: [&mut dyn Engine; 2], prompt: &Prompt, chunk: usize) -> Vec<f64> {
    let limits = [model.limits().clone(), drafter.limits().clone()];
    let width = limits[1].hidden.width;
    let known = &prompt.tokens[..prompt.tokens.len() - 1];
    let (mut rows, mut own) = (Vec::new(), Vec::new());
    for (index, tokens) in known.chunks(chunk).enumerate() {
        let position = index * chunk;
        let hidden = run(model, tokens, position, &[]).hidden;
        assert_eq!(hidden.len(), tokens.len() * limits[0].hidden.row_width());
        let next = &prompt.tokens[position + 1..][..tokens.len()];
        let output = run(drafter, next, position, &read_of_model(&limits[0], &limits[1], &hidden));
        rows.extend(output.logits.chunks_exact(limits[1].vocab_size).map(<[f32]>::to_vec));
        own = output.hidden[(tokens.len() - 1) * width..].to_vec();
    }
    let log_prob_of = |row: &[f32], token| log_prob(row, logit_of(&limits[1], token));
    let last = rows.pop().unwrap();
    let compared = rows.iter().zip(&prompt.tokens[2..]).zip(&prompt.logprobs);
    let mut deltas: Vec<f64> =
        compared.map(|((row, token), expected)| (log_prob_of(row, *token) - expected).abs()).collect();
    assert_eq!(deltas.len(), prompt.logprobs.len());
    let mut row = last;
    for (index, (token, expected)) in prompt.draft.iter().enumerate() {
        deltas.push((log_prob_of(&row, *token) - expected).abs());
        let output = run(drafter, &[*token], known.len() + index, &read_of_own(&limits[1], &own));
        (row, own) = (output.logits, output.hidden);
    }
    deltas
}

/// The token ids and log-probabilities of an answer.
async fn complete(server: &ServerProcess, prompt: &[TokenId], temperature: f32) -> Value {
    let body = json!({
        "model": "model", "prompt": prompt, "max_tokens": 60, "temperature": temperature, "seed": 1, "ignore_eos": true,
        "return_token_ids": true, "logprobs": 1,
    });
    let sent = reqwest::Client::new().post(format!("{}/v1/completions", server.url)).json(&body).send().await.unwrap();
    let answer: Value = sent.json().await.unwrap();
    assert_eq!(answer["choices"][0]["token_ids"].as_array().map(Vec::len), Some(60), "{answer}");
    answer["choices"][0].clone()
}

/// The answers to several requests at the same time, each prompt with two temperatures.
pub async fn answers(server: &ServerProcess, prompts: &[Prompt]) -> Vec<Value> {
    let all = prompts.iter().flat_map(|prompt| [0.0, 0.8].map(|temperature| (prompt, temperature)));
    futures_util::future::join_all(all.map(|(prompt, temperature)| complete(server, &prompt.tokens, temperature))).await
}

/// A metric of the drafts of the draft model.
pub async fn metric(server: &ServerProcess, name: &str) -> f64 {
    let (_, text) = server.get("/metrics").await;
    let line = text.lines().find(|line| line.starts_with(name) && line.contains("source=\"draft_model\""));
    line.and_then(|line| line.rsplit(' ').next()?.parse().ok()).unwrap_or(0.0)
}
