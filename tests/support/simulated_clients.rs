//! Clients of a simulated model: random requests, what their clients receive, and how these behave.
#![allow(dead_code, clippy::unwrap_used)]

use std::sync::Arc;
use std::time::Duration;

use cuelight::core::request::{BlockToken, Event, FinishReason, GenerationError, GenerationRequest, SamplingParams};
use cuelight::core::stop_strings::StopStrings;
use cuelight::pipeline::runtime::Generation;
use cuelight_engine::engine::TokenId;
use tokio::time::sleep;

use super::text_request::request;

/// A token that some engines fail on.
pub const POISON: TokenId = 1;

/// What a client received for a request.
#[derive(Debug, Clone, Default)]
pub struct Received {
    pub text: String,
    pub tokens: Vec<TokenId>,
    /// The sizes of blocks, for a model that generates these.
    pub blocks: Vec<usize>,
    /// The bits of the log-probabilities of prompt and answer.
    pub logprobs: Vec<u32>,
    pub end: Option<Result<FinishReason, GenerationError>>,
    /// As reported by the server.
    pub time_to_first_token: Duration,
}

/// Times are not compared.
impl PartialEq for Received {
    fn eq(&self, other: &Self) -> bool {
        (&self.text, &self.tokens, &self.blocks, &self.logprobs, &self.end)
            == (&other.text, &other.tokens, &other.blocks, &other.logprobs, &other.end)
    }
}

impl Received {
    pub fn take(&mut self, event: Event) {
        assert_eq!(self.end, None, "an event after the last one");
        match event {
            Event::Progress(_) => {}
            Event::Prompt { logprobs } => {
                self.logprobs.extend(logprobs.iter().flatten().map(|position| position.sampled.logprob.to_bits()));
            }
            Event::Token { token, text, logprobs } => {
                self.tokens.push(token);
                self.text.push_str(&text);
                self.logprobs.extend(logprobs.iter().map(|position| position.sampled.logprob.to_bits()));
            }
            Event::Block { tokens } => {
                self.blocks.push(tokens.len());
                for BlockToken { token, text } in tokens {
                    self.tokens.push(token);
                    self.text.push_str(&text);
                }
            }
            Event::Finished { reason, text, usage } => {
                assert_eq!(usage.completion_tokens, self.tokens.len());
                self.text.push_str(&text);
                self.end = Some(Ok(reason));
                self.time_to_first_token = usage.time_to_first_token;
            }
            Event::Embedded { .. } => {}
            Event::Failed(error) => self.end = Some(Err(error)),
        }
    }
}

/// Reads all events, with a pause before each.
pub async fn read_slowly(mut generation: Generation, pause: Duration) -> Received {
    let mut received = Received::default();
    while let Some(event) = generation.next().await {
        received.take(event);
        // Even a pause of zero waits for the next millisecond of the clock.
        if !pause.is_zero() {
            sleep(pause).await;
        }
    }
    assert!(received.end.is_some(), "the stream ended without a last event");
    received
}

pub async fn read(generation: Generation) -> Received {
    read_slowly(generation, Duration::ZERO).await
}

/// The SplitMix64 random number generator.
pub struct Dice(pub u64);

impl Dice {
    pub fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % sides
    }

    pub fn client(&mut self) -> Client {
        match self.roll(40) {
            0..8 => Client::LeavesAfter(Duration::from_millis(self.roll(2000))),
            8..12 => Client::ReadsSlowly,
            12 => Client::Stalls,
            _ => Client::Reads,
        }
    }

    pub fn request(&mut self) -> GenerationRequest {
        // Half of all prompts share a prefix with others.
        let common = [
            "",
            "",
            "a system prompt that many share, of several blocks; ",
            "another one, also longer than one block: ",
        ];
        let mut prompt = common[self.roll(4) as usize].to_owned();
        prompt.extend((0..1 + self.roll(80)).map(|_| char::from(b'a' + self.roll(26) as u8)));
        let mut request = request(&prompt, 1 + self.roll(80) as usize);
        request.cache_salt = (self.roll(5) == 0).then(|| "salt".into());
        request.client = (self.roll(3) == 0).then(|| format!("client {}", self.roll(3)).into());
        request.sampling = SamplingParams {
            temperature: self.roll(3) as f32 / 2.0,
            top_k: 10 * self.roll(2) as usize,
            frequency_penalty: self.roll(2) as f32,
            seed: Some(self.roll(1000)),
            ..Default::default()
        };
        request.priority = self.roll(3) as i32 - 1;
        request.prompt_logprobs = (self.roll(10) == 0).then_some(1);
        if self.roll(5) == 0 {
            let stop = char::from(b'a' + self.roll(26) as u8).to_string() + "e";
            request.stop.strings = Arc::new(StopStrings::new(vec![stop]).unwrap());
        }
        if self.roll(100) == 0 {
            request.prompt.push(POISON);
        }
        request
    }
}

/// How a client behaves.
#[derive(Debug, Clone, Copy)]
pub enum Client {
    Reads,
    ReadsSlowly,
    /// It reads nothing for so long that it is cut off unless its answer fits its buffer.
    Stalls,
    LeavesAfter(Duration),
}

impl Client {
    /// Reads the events of a request in this client's way. `stall` is how long a client that stalls waits before it reads.
    pub async fn read(self, mut generation: Generation, stall: Duration) -> Received {
        let patience = match self {
            Client::Reads => return read(generation).await,
            Client::ReadsSlowly => return read_slowly(generation, Duration::from_millis(40)).await,
            Client::Stalls => {
                sleep(stall).await;
                return read(generation).await;
            }
            Client::LeavesAfter(patience) => patience,
        };
        let mut received = Received::default();
        let leave = sleep(patience);
        tokio::pin!(leave);
        loop {
            tokio::select! {
                event = generation.next() => match event {
                    Some(event) => received.take(event),
                    None => return received,
                },
                () = &mut leave => return received,
            }
        }
    }
}
