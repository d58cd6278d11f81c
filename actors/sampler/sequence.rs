//! One sequence at the sampler: logits in, events for its client out.

use std::time::Duration;

use cuelight_engine::engine::{Chosen, TokenId};
use cuelight_engine::format::tokenizer::{StreamDecoder, Tokenizer};
use cuelight_engine::sample::{Chooser, Draw, InvalidLogits, TokenCounts, position_logprobs, token_of};
use tokio::time::Instant;

use super::stop::StopMatcher;
use crate::client::ClientSink;
use crate::metrics::end_reason;
use crate::policy::{SampleTask, Verdict};
use crate::request::{Event, FinishReason, GenerationError, GenerationRequest, PositionLogprobs, RequestId, Usage};
use crate::trace::request::EndedRequest;

/// What a sequence remembers from one token to the next.
pub(super) struct SequenceSampler {
    request: GenerationRequest,
    /// Most tokens to generate, within the context.
    max_tokens: usize,
    seed: u64,
    counts: TokenCounts,
    generated: usize,
    decoder: StreamDecoder,
    stop: StopMatcher,
    /// For each token of the prompt, as far as they are known; taken when they are sent.
    prompt_logprobs: Option<Vec<Option<PositionLogprobs>>>,
    /// Tokens of the prompt that were found in the prefix cache.
    pub cached_tokens: usize,
    /// Somebody waits for its client to read.
    pub awaits_client: bool,
    pub times: Times,
    /// Time that turning its tokens into text took, when somebody wants to know.
    pub detokenising: Option<Duration>,
    pub sink: ClientSink,
}

/// When things happened to a request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Times {
    pub submitted: Instant,
    pub started: Option<Instant>,
    pub first_token: Option<Instant>,
    pub last_token: Option<Instant>,
    /// The token before the last.
    pub previous_token: Option<Instant>,
}

/// What a step brought for a sequence.
#[derive(Debug, Clone, Copy)]
pub(super) enum Computed<'a> {
    /// Its rows of logits.
    Logits(&'a [f32]),
    /// What the engine chose from them.
    Chosen(Chosen),
}

/// What a share of a step says about what comes next, before anybody has heard of it.
#[derive(Debug)]
pub(super) enum Choice {
    /// A part of the prompt was scored; nothing was sampled.
    Scored,
    /// This token.
    Token {
        token: TokenId,
        logprobs: Option<PositionLogprobs>,
        /// Why it is the last, as far as the token itself says; its text may still hold a stop string.
        last: Option<FinishReason>,
    },
    /// Nothing: the request wanted no token.
    Nothing,
    /// Nothing, because of a fault.
    Failed(GenerationError),
}

/// What a choice led to.
pub(super) struct Advance {
    pub verdict: Verdict,
    /// Set when the request ended: what its client is told.
    pub end: Option<Event>,
}

impl SequenceSampler {
    pub fn new(mut request: GenerationRequest, context_tokens: usize, sink: ClientSink, submitted: Instant) -> Self {
        let room = context_tokens.saturating_sub(request.prompt.len());
        SequenceSampler {
            max_tokens: request.stop.max_tokens.min(room),
            seed: request.fix_seed(),
            counts: TokenCounts::new(&request.prompt),
            generated: 0,
            decoder: StreamDecoder::continuing(),
            stop: StopMatcher::new(&request.stop.strings),
            prompt_logprobs: request.prompt_logprobs.map(|_| vec![None]),
            times: Times { submitted, started: None, first_token: None, last_token: None, previous_token: None },
            detokenising: None,
            cached_tokens: 0,
            awaits_client: false,
            request,
            sink,
        }
    }

    /// Chooses the next token by the sequence's share of a step: `task.rows` rows of logits of the same length, or what
    /// the engine chose.
    pub fn choose(
        &mut self,
        task: &SampleTask,
        computed: Computed<'_>,
        chooser: &mut Chooser,
        tokenizer: &Tokenizer,
    ) -> Choice {
        self.try_choose(task, computed, chooser, tokenizer).unwrap_or_else(|error| {
            Choice::Failed(GenerationError::Engine(format!("the model's output is not usable: {error}")))
        })
    }

    fn try_choose(
        &mut self,
        task: &SampleTask,
        computed: Computed<'_>,
        chooser: &mut Chooser,
        tokenizer: &Tokenizer,
    ) -> Result<Choice, InvalidLogits> {
        if let (Computed::Logits(logits), true) = (computed, task.scores_prompt) {
            self.score_prompt(task.first_position, logits.chunks_exact(row_length(logits, task).max(1)))?;
        }
        if !task.samples {
            return Ok(Choice::Scored);
        }
        if self.max_tokens == 0 {
            return Ok(Choice::Nothing);
        }
        let (token, logprobs) = match computed {
            Computed::Chosen(chosen) => (token_of(chosen)?, None),
            Computed::Logits(logits) => {
                let row = &logits[logits.len() - row_length(logits, task)..];
                let token = self.choose_token(row, chooser, tokenizer)?;
                (token, self.request.logprobs.map(|n| position_logprobs(row, token, n)).transpose()?)
            }
        };
        self.generated += 1;
        self.counts.record(token);
        let last = match self.ends_with(token, tokenizer) {
            true => Some(FinishReason::StopToken(token)),
            false => (self.generated >= self.max_tokens).then_some(FinishReason::Length),
        };
        Ok(Choice::Token { token, logprobs, last })
    }

    fn ends_with(&self, token: TokenId, tokenizer: &Tokenizer) -> bool {
        let stop = &self.request.stop;
        stop.token_ids.contains(&token) || (!stop.ignore_eos && tokenizer.end_of_generation().contains(&token))
    }

    /// Tells the client what was chosen, and finds out whether that was the end.
    pub fn deliver(&mut self, choice: Choice, tokenizer: &Tokenizer) -> Advance {
        self.send_prompt();
        let (token, logprobs, last) = match choice {
            Choice::Token { token, logprobs, last } => (token, logprobs, last),
            Choice::Scored => return Advance { verdict: Verdict::Scored, end: None },
            Choice::Nothing => return self.finished(FinishReason::Length, String::new()),
            Choice::Failed(error) => return Advance { verdict: Verdict::Ended, end: Some(Event::Failed(error)) },
        };
        let now = Instant::now();
        self.times.first_token.get_or_insert(now);
        self.times.previous_token = self.times.last_token.replace(now);
        match last {
            Some(FinishReason::StopToken(token)) => self.stop_at_token(token, logprobs, tokenizer),
            last => self.accept(token, logprobs, last, tokenizer),
        }
    }

    /// Notes how likely the prompt's tokens were; rows that came before (the sequence is replayed) are passed over.
    fn score_prompt<'a>(
        &mut self,
        first_position: usize,
        rows: impl Iterator<Item = &'a [f32]>,
    ) -> Result<(), InvalidLogits> {
        let prompt = &self.request.prompt;
        let Some(known) = &mut self.prompt_logprobs else { return Ok(()) };
        let top_n = self.request.prompt_logprobs.unwrap_or(0);
        for (row, next) in rows.zip(first_position + 1..) {
            if next == known.len() && next < prompt.len() {
                known.push(Some(position_logprobs(row, prompt[next], top_n)?));
            }
        }
        Ok(())
    }

    /// Sends what is known of the prompt, once that is all.
    fn send_prompt(&mut self) {
        let is_known = |known: &Vec<_>| known.len() == self.request.prompt.len();
        if self.prompt_logprobs.as_ref().is_some_and(is_known)
            && let Some(logprobs) = self.prompt_logprobs.take()
        {
            self.sink.send(Event::Prompt { logprobs });
        }
    }

    fn choose_token(
        &self,
        row: &[f32],
        chooser: &mut Chooser,
        tokenizer: &Tokenizer,
    ) -> Result<TokenId, InvalidLogits> {
        let stop = &self.request.stop;
        let mut banned = Vec::new();
        if self.generated < stop.min_tokens {
            banned.extend(&stop.token_ids);
            if !stop.ignore_eos {
                banned.extend(tokenizer.end_of_generation());
            }
        }
        let draw = Draw { seed: self.seed, index: self.generated as u64 };
        chooser.choose(row, &self.request.sampling, &self.counts, &banned, draw)
    }

    /// The end by a token that has no text, unless the client wants it.
    fn stop_at_token(&mut self, token: TokenId, logprobs: Option<PositionLogprobs>, tokenizer: &Tokenizer) -> Advance {
        let stop = &self.request.stop;
        let has_text = stop.token_ids.contains(&token) && stop.include_stop_string;
        let mut text = std::mem::take(&mut self.stop).finish();
        if has_text {
            text.push_str(&self.detokenise(tokenizer, token));
        }
        text.push_str(&self.decoder.finish());
        self.sink.send(Event::Token { token, text: String::new(), logprobs });
        self.finished(FinishReason::StopToken(token), text)
    }

    /// Sends a token's text to the client, unless a stop string ends it or may have begun in it.
    fn accept(
        &mut self,
        token: TokenId,
        logprobs: Option<PositionLogprobs>,
        last: Option<FinishReason>,
        tokenizer: &Tokenizer,
    ) -> Advance {
        let mut text = self.detokenise(tokenizer, token);
        let stop = &self.request.stop;
        if self.generated > stop.min_tokens || stop.min_tokens == 0 {
            let scan = self.stop.push(&text);
            text = scan.text;
            if let Some(matched) = scan.matched {
                if stop.include_stop_string {
                    text.push_str(&matched);
                }
                self.sink.send(Event::Token { token, text, logprobs });
                return self.finished(FinishReason::StopString(matched), String::new());
            }
        }
        self.sink.send(Event::Token { token, text, logprobs });
        match last {
            Some(reason) => {
                let mut rest = self.stop.finish();
                rest.push_str(&self.decoder.finish());
                self.finished(reason, rest)
            }
            None => Advance { verdict: Verdict::Token(token), end: None },
        }
    }

    fn detokenise(&mut self, tokenizer: &Tokenizer, token: TokenId) -> String {
        let from = self.detokenising.map(|_| Instant::now());
        let text = self.decoder.push(tokenizer, token, self.request.skip_special_tokens);
        if let (Some(sum), Some(from)) = (&mut self.detokenising, from) {
            *sum += from.elapsed();
        }
        text
    }

    fn finished(&self, reason: FinishReason, text: String) -> Advance {
        Advance { verdict: Verdict::Ended, end: Some(Event::Finished { reason, text, usage: self.usage() }) }
    }

    /// What is to be remembered of it after `end`.
    pub fn ended(&self, id: RequestId, end: &Event) -> EndedRequest {
        let error = match end {
            Event::Failed(error) => Some(error.to_string()),
            _ => None,
        };
        EndedRequest {
            id,
            call: self.sink.call().cloned(),
            reason: end_reason(end),
            error,
            usage: self.usage(),
            times: self.times,
            at: Instant::now(),
            max_tokens: self.max_tokens,
            temperature: self.request.sampling.temperature,
            top_p: self.request.sampling.top_p,
            detokenising: self.detokenising,
        }
    }

    pub fn usage(&self) -> Usage {
        let Times { submitted, started, first_token, last_token, .. } = self.times;
        let since = |end: Option<Instant>, start: Option<Instant>| match (end, start) {
            (Some(end), Some(start)) => end.saturating_duration_since(start),
            _ => Duration::ZERO,
        };
        Usage {
            prompt_tokens: self.request.prompt.len(),
            cached_tokens: self.cached_tokens,
            completion_tokens: self.generated,
            queue_time: since(started, Some(submitted)),
            time_to_first_token: since(first_token, Some(submitted)),
            generation_time: since(last_token, first_token),
        }
    }
}

/// Logits in each of a share's rows.
fn row_length(logits: &[f32], task: &SampleTask) -> usize {
    logits.len() / task.rows.max(1)
}
