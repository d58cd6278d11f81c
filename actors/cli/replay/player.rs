//! Sends the requests of a recording again, and compares their answers.

use std::time::Duration;

use cuelight_engine::engine::TokenId;
use futures_util::stream::{self, StreamExt};
use tokio::time::{Instant, sleep_until};

use crate::cli::run::start::Started;
use crate::core::request::{Event, GenerationRequest};
use crate::recording::{Content, Entry};

/// How requests are sent.
pub struct Player {
    /// Requests that are answered at the same time.
    pub parallel: usize,
    /// Each request is sent at the time at which it came.
    pub keeps_pace: bool,
}

/// The result of a request.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The answer is the recorded one.
    Equal,
    /// It is not.
    Differs(Difference),
    /// The recording has no texts.
    NotCompared,
    /// There is no answer.
    Failed(String),
}

/// Where two answers differ.
#[derive(Debug, PartialEq, Eq)]
pub enum Difference {
    /// In a token, counted from 0. `None`: the answer has ended.
    Token { at: usize, recorded: Option<TokenId>, repeated: Option<TokenId> },
    /// In the reason of their end.
    Reason { recorded: String, repeated: &'static str },
}

impl Player {
    /// Sends all requests, and returns the results in their order.
    pub async fn play(&self, started: &Started, entries: &[Entry]) -> Vec<Outcome> {
        let begin = Instant::now();
        let first_ms = entries.first().map_or(0.0, |entry| entry.times.arrived_ms);
        let vocabulary = plain_tokens(started);
        let vocabulary = &vocabulary;
        let outcomes = entries.iter().enumerate().map(|(number, entry)| async move {
            if self.keeps_pace {
                let after = (entry.times.arrived_ms - first_ms).max(0.0);
                sleep_until(begin + Duration::from_secs_f64(after / 1000.0)).await;
            }
            repeat(started, entry, vocabulary, number as u64).await
        });
        // At their own pace, requests wait for their time and not for others.
        let parallel = if self.keeps_pace { entries.len().max(1) } else { self.parallel };
        stream::iter(outcomes).buffered(parallel).collect().await
    }
}

/// The tokens that prompts may be made of.
fn plain_tokens(started: &Started) -> Vec<TokenId> {
    let tokenizer = &started.model.tokenizer;
    (0..tokenizer.vocab_size() as TokenId).filter(|&token| !tokenizer.is_special(token)).collect()
}

async fn repeat(started: &Started, entry: &Entry, vocabulary: &[TokenId], number: u64) -> Outcome {
    let Some(content) = &entry.content else {
        let answer = answer_of(started, entry.stand_in(vocabulary, number)).await;
        return answer.map_or_else(Outcome::Failed, |_| Outcome::NotCompared);
    };
    if entry.has_adapter {
        return Outcome::Failed("it used a low-rank adapter, which is not recorded".to_owned());
    }
    let request = match entry.request(content, &started.model.constraints) {
        Ok(request) => request,
        Err(error) => return Outcome::Failed(format!("its constraint cannot be used: {error}")),
    };
    match answer_of(started, request).await {
        Ok((tokens, reason)) => compare(entry, content, &tokens, reason),
        Err(error) => Outcome::Failed(error),
    }
}

/// The tokens of an answer, and how it ended.
async fn answer_of(started: &Started, request: GenerationRequest) -> Result<(Vec<TokenId>, &'static str), String> {
    let permit = started.runtime.try_permit(1).map_err(|error| error.to_string())?;
    let mut generation = started.runtime.submit(&permit, request).await.map_err(|error| error.to_string())?;
    let mut tokens = Vec::new();
    loop {
        match generation.next().await {
            Some(Event::Token { token, .. }) => tokens.push(token),
            Some(Event::Block { tokens: block }) => tokens.extend(block.iter().map(|token| token.token)),
            Some(Event::Progress(_) | Event::Prompt { .. }) => {}
            Some(Event::Failed(error)) => return Err(error.to_string()),
            Some(event @ (Event::Finished { .. } | Event::Embedded { .. })) => return Ok((tokens, event.end_reason())),
            None => return Err("the model has stopped".to_owned()),
        }
    }
}

fn compare(entry: &Entry, content: &Content, tokens: &[TokenId], reason: &'static str) -> Outcome {
    // An answer that was broken off is the beginning of the whole one.
    let is_whole = ["stop_token", "stop_string", "length"].contains(&entry.reason.as_str());
    let recorded = &content.tokens;
    let same = recorded.iter().zip(tokens).take_while(|(recorded, repeated)| recorded == repeated).count();
    if same < recorded.len() || (is_whole && same < tokens.len()) {
        let (recorded, repeated) = (recorded.get(same).copied(), tokens.get(same).copied());
        return Outcome::Differs(Difference::Token { at: same, recorded, repeated });
    }
    if is_whole && entry.reason != reason {
        return Outcome::Differs(Difference::Reason { recorded: entry.reason.clone(), repeated: reason });
    }
    Outcome::Equal
}
