//! `POST /v1/completions`: the legacy protocol, which evaluation tools use to score prompts.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use cuelight_engine::engine::TokenId;
use cuelight_engine::format::tokenizer::Tokenizer;
use serde_json::{Value, json};

use super::logprobs::{self, LegacyLogprobs, Spelling};
use super::prompt::read_completions;
use super::sampling::{self, logprobs_count};
use super::sse::{self, Chunks};
use super::usage::{UsageCount, finish_reason, stop_reason};
use super::{constraint, kv_transfer, unsupported};
use crate::api::caller::Caller;
use crate::api::extract::JsonBody;
use crate::api::fields::Fields;
use crate::api::reports::{self, Reports};
use crate::api::server::{Server, SharedServer, unix_seconds};
use crate::api::telemetry;
use crate::core::request::PositionLogprobs;
use crate::output::Delta;
use crate::serving::accept::{Accepted, accept};
use crate::serving::answers::{Answer, AnswerEvent, Answers};
use crate::serving::error::ApiError;
use crate::serving::options::{GenerationOptions, StreamOptions};
use crate::serving::prompt::PromptTokens;
use crate::serving::request::{OutputOptions, PromptInput, ServingRequest};
use crate::serving::tenancy::Tenancy;

/// Tokens generated when `max_tokens` is absent.
const DEFAULT_MAX_TOKENS: usize = 16;

pub(in crate::api) async fn create(
    State(server): State<SharedServer>,
    caller: Caller,
    JsonBody { value: body, memory }: JsonBody,
) -> Result<Response, ApiError> {
    let (request, text) = read(&server, &caller, &Fields::of_body(&body)?)?;
    drop(body);
    let accepted = accept(&server.models, server.limits(), request, memory).await?;
    let (response, answers) = CompletionResponse::new(accepted, text);
    match response.options.stream {
        Some(stream) => {
            Ok(sse::stream(answers, CompletionChunks::new(response, stream), server.options().sse_ping_interval))
        }
        None => Ok(Json(response.whole(&answers.collect().await?)).into_response()),
    }
}

fn read(server: &Server, caller: &Caller, fields: &Fields<'_>) -> Result<(ServingRequest, TextOptions), ApiError> {
    unsupported::refuse_in_completions(fields)?;
    let kv_transfer = kv_transfer::read(fields, server.options().shared_blocks.as_ref())?;
    let CompletionOptions { options, text } =
        CompletionOptions::read(fields, caller.tenancy(fields, &server.options())?)?;
    let request = ServingRequest {
        model: fields.string("model")?.map(str::to_owned),
        prompt: PromptInput::Plain { prompts: read_completions(fields)?, add_special: text.add_special },
        options: GenerationOptions { kv_transfer, ..options },
        constraint: constraint::read(fields)?,
        output: OutputOptions::plain(),
    };
    Ok((request, text))
}

/// The `n` answers with the highest mean log-probability, the best first. All answers in their order when there are `n`.
fn best_answers(answers: &[Answer], n: usize) -> Vec<&Answer> {
    let mut best: Vec<_> = answers.iter().collect();
    if n < best.len() {
        best.sort_by(|a, b| b.mean_logprob().total_cmp(&a.mean_logprob()));
        best.truncate(n);
    }
    best
}

/// The options of a request.
struct CompletionOptions {
    options: GenerationOptions,
    text: TextOptions,
}

/// Options about the text that only this protocol has.
#[derive(Clone, Copy)]
struct TextOptions {
    /// Put the prompt before the answer, with log-probabilities if the answer has some.
    echo: bool,
    /// The client set `prompt_logprobs`.
    prompt_logprobs: bool,
    /// Add BOS and EOS to a text as the model's tokenizer specifies.
    add_special: bool,
}

impl CompletionOptions {
    fn read(fields: &Fields<'_>, tenancy: Tenancy) -> Result<Self, ApiError> {
        let max_tokens = match (fields.count("max_tokens", 0)?, fields.get("n_predict")) {
            (None, Some(_)) => sampling::n_predict(fields, 0)?,
            (most, _) => Some(most.unwrap_or(DEFAULT_MAX_TOKENS)),
        };
        let logprobs = logprobs_count(fields, "logprobs")?;
        let mut options = sampling::read(fields, tenancy, max_tokens, logprobs)?;
        let text = TextOptions {
            echo: fields.bool("echo")?.unwrap_or(false),
            prompt_logprobs: options.prompt_logprobs.is_some(),
            add_special: fields.bool("add_special_tokens")?.unwrap_or(true),
        };
        if text.echo {
            // The prompt is part of the text, so the text's log-probabilities include the prompt's.
            options.prompt_logprobs = options.prompt_logprobs.max(logprobs);
        }
        Ok(CompletionOptions { options, text })
    }
}

/// What is common to all parts of one response.
struct CompletionResponse {
    id: String,
    created: u64,
    model: String,
    tokenizer: Arc<Tokenizer>,
    prompts: Vec<PromptTokens>,
    options: GenerationOptions,
    text: TextOptions,
}

impl CompletionResponse {
    fn new(accepted: Accepted, text: TextOptions) -> (Self, Answers) {
        let Accepted { model_id, model, prompts, options, answers } = accepted;
        let response = CompletionResponse {
            id: telemetry::response_id("cmpl-"),
            created: unix_seconds(),
            model: model_id,
            tokenizer: model.tokenizer.clone(),
            prompts,
            options,
            text,
        };
        (response, answers)
    }

    fn head(&self) -> Value {
        json!({
            "id": self.id,
            "object": "text_completion",
            "created": self.created,
            "model": self.model,
            "system_fingerprint": concat!("cuelight-", env!("CARGO_PKG_VERSION")),
        })
    }

    /// The prompt of a choice. The answers to one prompt are consecutive.
    fn prompt(&self, choice: usize) -> &PromptTokens {
        &self.prompts[choice / self.options.n]
    }

    fn spelling(&self) -> Spelling<'_> {
        Spelling { tokenizer: &self.tokenizer, as_ids: self.options.tokens_as_ids }
    }

    /// Empty log-probabilities of a choice's text.
    fn legacy_logprobs(&self) -> LegacyLogprobs {
        LegacyLogprobs::new(self.options.skip_special_tokens)
    }

    fn echo_logprobs(&self, choice: usize, positions: &[Option<PositionLogprobs>], to: &mut LegacyLogprobs) {
        for (token, position) in self.prompt(choice).tokens.iter().zip(positions) {
            match position {
                Some(position) => to.push(position, self.spelling()),
                None => to.push_first(*token, self.spelling()),
            }
        }
    }

    /// Whether the echoed prompt has log-probabilities.
    fn scores_echo(&self) -> bool {
        self.text.echo && self.options.logprobs.is_some()
    }

    /// The response without streaming.
    fn whole(&self, answers: &[Answer]) -> Value {
        let mut usage = UsageCount::default();
        for (index, answer) in answers.iter().enumerate() {
            if let Some(finish) = &answer.finish {
                usage.add(index, self.options.best_of, finish);
            }
        }
        let best = answers.chunks(self.options.best_of).flat_map(|answers| best_answers(answers, self.options.n));
        let choices = best.enumerate().map(|(index, answer)| self.choice(index, answer)).collect();
        let mut response = self.head();
        response["choices"] = Value::Array(choices);
        response["usage"] = usage.json();
        reports::add_to_whole(self.options.reports, answers, &mut response);
        kv_transfer::add_to_whole(&self.options.kv_transfer, &mut response);
        response
    }

    fn choice(&self, index: usize, answer: &Answer) -> Value {
        let prompt = self.prompt(index);
        let text = if self.text.echo { format!("{}{}", prompt.text, answer.text) } else { answer.text.clone() };
        let finish = answer.finish.as_ref();
        let mut choice = json!({
            "index": index,
            "text": text,
            "logprobs": self.whole_logprobs(index, answer),
            "finish_reason": finish.map(finish_reason),
            "stop_reason": finish.map(|finish| stop_reason(finish, &self.options.stop.token_ids)),
        });
        if self.text.prompt_logprobs {
            choice["prompt_logprobs"] = logprobs::prompt(&answer.prompt_logprobs, self.spelling());
        }
        if self.options.return_token_ids {
            choice["prompt_token_ids"] = json!(prompt.tokens);
            choice["token_ids"] = json!(answer.tokens);
        }
        choice
    }

    fn whole_logprobs(&self, index: usize, answer: &Answer) -> Value {
        if self.options.logprobs.is_none() {
            return Value::Null;
        }
        let mut logprobs = self.legacy_logprobs();
        if self.scores_echo() {
            self.echo_logprobs(index, &answer.prompt_logprobs, &mut logprobs);
        }
        for position in &answer.logprobs {
            logprobs.push(position, self.spelling());
        }
        logprobs.take()
    }
}

/// The response in chunks: for each choice the echoed prompt, its text and its finish; then the usage.
struct CompletionChunks {
    response: CompletionResponse,
    stream: StreamOptions,
    choices: Vec<ChoiceState>,
    usage: UsageCount,
    reports: Reports,
}

struct ChoiceState {
    /// Tokens generated so far.
    generated: usize,
    logprobs: LegacyLogprobs,
    /// The choice's first chunk carries the prompt's tokens.
    is_first_chunk: bool,
}

impl CompletionChunks {
    fn new(response: CompletionResponse, stream: StreamOptions) -> Self {
        let state = |_| ChoiceState { generated: 0, logprobs: response.legacy_logprobs(), is_first_chunk: true };
        let choices: Vec<_> = (0..response.prompts.len() * response.options.n).map(state).collect();
        let reports = Reports::new(response.options.reports, choices.len());
        CompletionChunks { choices, usage: UsageCount::default(), reports, response, stream }
    }

    fn chunk(&mut self, choice: usize, text: &str, logprobs: Value, tokens: &[TokenId]) -> Value {
        let prompt = self.response.prompt(choice);
        let state = &mut self.choices[choice];
        let mut body = json!({
            "index": choice,
            "text": text,
            "logprobs": logprobs,
            "finish_reason": null,
            "stop_reason": null,
        });
        if self.response.options.return_token_ids {
            if state.is_first_chunk {
                body["prompt_token_ids"] = json!(prompt.tokens);
            }
            body["token_ids"] = json!(tokens);
        }
        state.is_first_chunk = false;
        let mut chunk = self.response.head();
        chunk["choices"] = json!([body]);
        if self.stream.continuous_usage {
            chunk["usage"] = UsageCount::new(prompt.tokens.len(), state.generated).json();
        } else if self.stream.include_usage {
            chunk["usage"] = Value::Null;
        }
        chunk
    }

    fn echo(&mut self, choice: usize, positions: &[Option<PositionLogprobs>]) -> Value {
        let logprobs = if self.response.scores_echo() {
            self.response.echo_logprobs(choice, positions, &mut self.choices[choice].logprobs);
            self.choices[choice].logprobs.take()
        } else {
            Value::Null
        };
        let text = self.response.prompt(choice).text.clone();
        self.chunk(choice, &text, logprobs, &[])
    }

    /// The chunk of one token, or of a block. None while its text is held back, unless the chunk carries something else.
    fn tokens(
        &mut self,
        choice: usize,
        tokens: &[TokenId],
        text: &str,
        logprobs: Option<PositionLogprobs>,
    ) -> Vec<Value> {
        let state = &mut self.choices[choice];
        state.generated += tokens.len();
        if text.is_empty() && logprobs.is_none() && !self.response.options.return_token_ids {
            return Vec::new();
        }
        let logprobs = match logprobs {
            Some(position) => {
                state.logprobs.push(&position, self.response.spelling());
                state.logprobs.take()
            }
            None => Value::Null,
        };
        vec![self.chunk(choice, text, logprobs, tokens)]
    }
}

impl Chunks for CompletionChunks {
    fn begin(&mut self) -> Vec<Value> {
        // An echo with log-probabilities waits for them.
        if !self.response.text.echo || self.response.scores_echo() {
            return Vec::new();
        }
        (0..self.choices.len()).map(|choice| self.echo(choice, &[])).collect()
    }

    fn on(&mut self, choice: usize, event: AnswerEvent) -> Vec<Value> {
        self.reports.on(choice, &event);
        let mut chunks = match event {
            AnswerEvent::Progress(_) if !self.response.options.reports.progress => Vec::new(),
            AnswerEvent::Progress(progress) => {
                let chunk = self.chunk(choice, "", Value::Null, &[]);
                self.reports.with_progress(|| chunk, &progress).into_iter().collect()
            }
            AnswerEvent::Prompt(logprobs) if self.response.scores_echo() => vec![self.echo(choice, &logprobs)],
            AnswerEvent::Prompt(_) => Vec::new(),
            AnswerEvent::Token { token, logprobs, deltas } => self.tokens(choice, &[token], &text_of(deltas), logprobs),
            AnswerEvent::Block { tokens, deltas } => self.tokens(choice, &tokens, &text_of(deltas), None),
            AnswerEvent::Finished { finish, deltas } => {
                self.usage.add(choice, self.response.options.n, &finish);
                self.choices[choice].generated = finish.usage.completion_tokens;
                let mut last = self.chunk(choice, &text_of(deltas), Value::Null, &[]);
                last["choices"][0]["finish_reason"] = json!(finish_reason(&finish));
                last["choices"][0]["stop_reason"] = stop_reason(&finish, &self.response.options.stop.token_ids);
                vec![last]
            }
        };
        self.reports.add_timings(choice, &mut chunks);
        chunks
    }

    fn end(&mut self) -> Vec<Value> {
        if !self.stream.include_usage {
            return Vec::new();
        }
        let mut chunk = self.response.head();
        chunk["choices"] = json!([]);
        chunk["usage"] = self.usage.json();
        vec![chunk]
    }
}

/// The text of an answer that is not taken apart.
fn text_of(deltas: Vec<Delta>) -> String {
    deltas.into_iter().filter_map(Delta::into_text).collect()
}
