//! `POST /v1/chat/completions`.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use cuelight_engine::engine::TokenId;
use cuelight_engine::format::tokenizer::Tokenizer;
use serde_json::{Value, json};

use super::caller::{Caller, Tenancy};
use super::error::ApiError;
use super::extract::JsonBody;
use super::fields::Fields;
use super::generation::{Answer, Generations, UsageCount, finish_reason, stop_reason};
use super::logprobs::{self, Spelling};
use super::prompt::{ChatPrompt, chat_tokens};
use super::sampling::{GenerationOptions, StreamOptions, logprobs_count};
use super::sse::{self, Chunks};
use super::{SharedServer, telemetry, unix_seconds, unsupported};
use crate::request::{Event, PositionLogprobs};
use crate::runtime::Model;

pub(super) async fn create(
    State(server): State<SharedServer>,
    caller: Caller,
    JsonBody(body): JsonBody,
) -> Result<Response, ApiError> {
    let fields = Fields::of_body(&body)?;
    unsupported::refuse_in_chat(&fields)?;
    let tenancy = Tenancy::read(&fields, &caller, server.options.tenant_isolation)?;
    let options = read_options(&fields, tenancy)?;
    let prompt = ChatPrompt::read(&fields)?;

    let served = server.served(fields.string("model")?).await?;
    // Room is taken before the costly part, so that an overloaded server says so at once.
    let permit = served.runtime.try_permit(options.n)?;
    let model = served.model()?;
    check_biases(&options, &model)?;
    let prompt = chat_tokens(prompt, &model).await?;
    let sequences = options.sequences(prompt.clone(), model.limits.context_tokens)?.collect();
    let timeout = options.timeout(server.options.request_timeout);
    let generations = Generations::submit(&served, permit, sequences, timeout).await?;

    let call = ChatCall::new(served.id, options, prompt, model.tokenizer.clone());
    match call.options.stream {
        Some(stream) => sse::stream(generations, ChatChunks::new(call, stream), server.options.sse_ping_interval).await,
        None => Ok(Json(call.response(&generations.collect().await?)).into_response()),
    }
}

fn read_options(fields: &Fields<'_>, tenancy: Tenancy) -> Result<GenerationOptions, ApiError> {
    let max_tokens = fields.count("max_completion_tokens", 1)?.or(fields.count("max_tokens", 1)?);
    let wanted = fields.bool("logprobs")?.unwrap_or(false);
    let top = logprobs_count(fields, "top_logprobs")?;
    if !wanted && top.is_some_and(|top| top > 0) {
        return Err(ApiError::invalid("top_logprobs", "`top_logprobs` needs `logprobs` to be true"));
    }
    GenerationOptions::read(fields, tenancy, max_tokens, wanted.then_some(top.unwrap_or(0)))
}

/// Checks what `logit_bias` names against the vocabulary.
pub(super) fn check_biases(options: &GenerationOptions, model: &Model) -> Result<(), ApiError> {
    let vocab_size = model.limits.vocab_size;
    match options.sampling.logit_bias.iter().find(|(token, _)| *token as usize >= vocab_size) {
        None => Ok(()),
        Some((token, _)) => {
            let message =
                format!("`logit_bias` names token {token}, but this model's vocabulary has {vocab_size} tokens");
            Err(ApiError::invalid(format!("logit_bias.{token}"), message))
        }
    }
}

/// What every part of an answer repeats or needs.
struct ChatCall {
    id: String,
    created: u64,
    model: String,
    tokenizer: Arc<Tokenizer>,
    prompt: Vec<TokenId>,
    options: GenerationOptions,
}

impl ChatCall {
    fn new(model: String, options: GenerationOptions, prompt: Vec<TokenId>, tokenizer: Arc<Tokenizer>) -> Self {
        ChatCall { id: telemetry::response_id("chatcmpl"), created: unix_seconds(), model, tokenizer, prompt, options }
    }

    fn head(&self, object: &str) -> Value {
        json!({
            "id": self.id,
            "object": object,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": concat!("cuelight-", env!("CARGO_PKG_VERSION")),
        })
    }

    fn spelling(&self) -> Spelling<'_> {
        Spelling { tokenizer: &self.tokenizer, as_ids: self.options.tokens_as_ids }
    }

    fn logprobs(&self, positions: &[PositionLogprobs]) -> Value {
        match self.options.logprobs {
            Some(_) => logprobs::chat(positions, self.spelling()),
            None => Value::Null,
        }
    }

    /// The whole answer at once.
    fn response(&self, answers: &[Answer]) -> Value {
        let mut usage = UsageCount::default();
        let mut choices = Vec::with_capacity(answers.len());
        for (index, answer) in answers.iter().enumerate() {
            usage.add(index, self.options.n, &answer.usage);
            choices.push(self.choice(index, answer));
        }
        let mut response = self.head("chat.completion");
        response["choices"] = Value::Array(choices);
        response["usage"] = usage.json();
        if self.options.prompt_logprobs.is_some() {
            let first = answers.first().map_or(&[][..], |answer| &answer.prompt_logprobs);
            response["prompt_logprobs"] = logprobs::prompt(first, self.spelling());
        }
        if self.options.return_token_ids {
            response["prompt_token_ids"] = json!(self.prompt);
        }
        response
    }

    fn choice(&self, index: usize, answer: &Answer) -> Value {
        let mut choice = json!({
            "index": index,
            "message": { "role": "assistant", "content": answer.text, "refusal": null },
            "logprobs": self.logprobs(&answer.logprobs),
            "finish_reason": answer.reason.as_ref().map(finish_reason),
            "stop_reason": answer.reason.as_ref().map(|reason| stop_reason(reason, &self.options.stop.token_ids)),
        });
        if self.options.return_token_ids {
            choice["token_ids"] = json!(answer.tokens);
        }
        choice
    }
}

/// The answer in `chat.completion.chunk`s: for each choice its role, its text, its finish; then the usage.
struct ChatChunks {
    call: ChatCall,
    stream: StreamOptions,
    /// Tokens so far, by choice.
    generated: Vec<usize>,
    usage: UsageCount,
}

impl ChatChunks {
    fn new(call: ChatCall, stream: StreamOptions) -> Self {
        ChatChunks { generated: vec![0; call.options.n], usage: UsageCount::default(), call, stream }
    }

    fn chunk(&self, choice: usize, delta: Value, logprobs: Value, finish: Value) -> Value {
        let mut chunk = self.call.head("chat.completion.chunk");
        chunk["choices"] = json!([{ "index": choice, "delta": delta, "logprobs": logprobs, "finish_reason": finish }]);
        if self.stream.continuous_usage {
            chunk["usage"] = UsageCount::new(self.call.prompt.len(), self.generated[choice]).json();
        } else if self.stream.include_usage {
            chunk["usage"] = Value::Null;
        }
        chunk
    }

    fn text(&self, choice: usize, text: &str, logprobs: Value) -> Value {
        self.chunk(choice, json!({ "content": text }), logprobs, Value::Null)
    }

    /// One token's chunk; none while its text is held back, unless something else rides on it.
    fn token(&mut self, choice: usize, token: TokenId, text: &str, logprobs: Option<PositionLogprobs>) -> Vec<Value> {
        self.generated[choice] += 1;
        if text.is_empty() && logprobs.is_none() && !self.call.options.return_token_ids {
            return Vec::new();
        }
        let mut chunk = self.text(choice, text, logprobs.map_or(Value::Null, |one| self.call.logprobs(&[one])));
        if self.call.options.return_token_ids {
            chunk["choices"][0]["token_ids"] = json!([token]);
        }
        vec![chunk]
    }
}

impl Chunks for ChatChunks {
    fn begin(&mut self) -> Vec<Value> {
        let role = json!({ "role": "assistant", "content": "" });
        let chunks = (0..self.call.options.n).map(|choice| {
            let mut chunk = self.chunk(choice, role.clone(), Value::Null, Value::Null);
            if self.call.options.return_token_ids {
                chunk["prompt_token_ids"] = json!(self.call.prompt);
            }
            chunk
        });
        chunks.collect()
    }

    fn on(&mut self, choice: usize, event: Event) -> Vec<Value> {
        match event {
            Event::Token { token, text, logprobs } => self.token(choice, token, &text, logprobs),
            Event::Finished { reason, text, usage } => {
                self.usage.add(choice, self.call.options.n, &usage);
                self.generated[choice] = usage.completion_tokens;
                let rest = (!text.is_empty()).then(|| self.text(choice, &text, Value::Null));
                let mut finish = self.chunk(choice, json!({}), Value::Null, json!(finish_reason(&reason)));
                finish["choices"][0]["stop_reason"] = stop_reason(&reason, &self.call.options.stop.token_ids);
                rest.into_iter().chain([finish]).collect()
            }
            Event::Prompt { .. } | Event::Failed(_) => Vec::new(),
        }
    }

    fn end(&mut self) -> Vec<Value> {
        if !self.stream.include_usage {
            return Vec::new();
        }
        let mut chunk = self.call.head("chat.completion.chunk");
        chunk["choices"] = json!([]);
        chunk["usage"] = self.usage.json();
        vec![chunk]
    }
}
