//! `POST /v1/chat/completions`.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use cuelight_engine::engine::TokenId;
use cuelight_engine::format::tokenizer::Tokenizer;
use serde_json::{Value, json};

use super::generation::{Answer, Generations, UsageCount, finish_reason, stop_reason};
use super::logprobs::{self, Spelling};
use super::prompt::ChatPrompt;
use super::sampling::{GenerationOptions, StreamOptions, logprobs_count};
use super::sse::{self, Chunks};
use super::unsupported;
use crate::api::caller::{Caller, Tenancy};
use crate::api::error::ApiError;
use crate::api::extract::JsonBody;
use crate::api::fields::Fields;
use crate::api::server::{SharedServer, unix_seconds};
use crate::api::telemetry;
use crate::core::request::{Event, PositionLogprobs};
use crate::pipeline::runtime::ServedModel;

pub(in crate::api) async fn create(
    State(server): State<SharedServer>,
    caller: Caller,
    JsonBody { value: body, memory }: JsonBody,
) -> Result<Response, ApiError> {
    let fields = Fields::of_body(&body)?;
    unsupported::refuse_in_chat(&fields)?;
    let tenancy = Tenancy::read(&fields, &caller, &server.options())?;
    let mut options = read_options(&fields, tenancy)?;
    options.limit_priority(server.options().highest_priority);
    let prompt = ChatPrompt::read(&fields)?;

    let served = server.served(fields.string("model")?).await?;
    // The permit is taken before the expensive work, so that an overloaded server refuses at once.
    let permit = served.runtime.try_permit_for(options.tenancy.client.clone(), options.best_of)?;
    drop(body);
    let model = served.model()?;
    check_tokens(&options, &model)?;
    let prompt = prompt.tokens(&model).await?;
    drop(memory);
    let sequences = served.counted(options.sequences(prompt.clone(), model.limits.context_tokens))?.collect();
    let timeout = options.timeout(server.options().request_timeout);
    let generations = Generations::submit(&served, permit, sequences, timeout).await?;

    let response = ChatResponse::new(served.id, options, prompt, model.tokenizer.clone());
    match response.options.stream {
        Some(stream) => {
            Ok(sse::stream(generations, ChatChunks::new(response, stream), server.options().sse_ping_interval))
        }
        None => Ok(Json(response.whole(&generations.collect().await?)).into_response()),
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

/// Checks that the tokens of `logit_bias` are in the vocabulary, and that the stop tokens leave a token to sample.
pub(super) fn check_tokens(options: &GenerationOptions, model: &ServedModel) -> Result<(), ApiError> {
    let vocab_size = model.limits.vocab_size;
    if options.stop.min_tokens > 0 && options.stop.token_ids.len() >= vocab_size {
        let message = "with `min_tokens`, `stop_token_ids` must leave out at least one token of the vocabulary";
        return Err(ApiError::invalid("stop_token_ids", message));
    }
    match options.sampling.logit_bias.iter().find(|(token, _)| *token as usize >= vocab_size) {
        None => Ok(()),
        Some((token, _)) => {
            let message =
                format!("`logit_bias` names token {token}, but this model's vocabulary has {vocab_size} tokens");
            Err(ApiError::invalid(format!("logit_bias.{token}"), message))
        }
    }
}

/// What is common to all parts of one response.
struct ChatResponse {
    id: String,
    created: u64,
    model: String,
    tokenizer: Arc<Tokenizer>,
    prompt: Vec<TokenId>,
    options: GenerationOptions,
}

impl ChatResponse {
    fn new(model: String, options: GenerationOptions, prompt: Vec<TokenId>, tokenizer: Arc<Tokenizer>) -> Self {
        ChatResponse {
            id: telemetry::response_id("chatcmpl"),
            created: unix_seconds(),
            model,
            tokenizer,
            prompt,
            options,
        }
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

    /// The response without streaming.
    fn whole(&self, answers: &[Answer]) -> Value {
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

/// The response as `chat.completion.chunk`s: for each choice its role, its text and its finish; then the usage.
struct ChatChunks {
    response: ChatResponse,
    stream: StreamOptions,
    /// Tokens generated so far, by choice.
    generated: Vec<usize>,
    usage: UsageCount,
}

impl ChatChunks {
    fn new(response: ChatResponse, stream: StreamOptions) -> Self {
        ChatChunks { generated: vec![0; response.options.n], usage: UsageCount::default(), response, stream }
    }

    fn chunk(&self, choice: usize, delta: Value, logprobs: Value, finish: Value) -> Value {
        let mut chunk = self.response.head("chat.completion.chunk");
        chunk["choices"] = json!([{ "index": choice, "delta": delta, "logprobs": logprobs, "finish_reason": finish }]);
        if self.stream.continuous_usage {
            chunk["usage"] = UsageCount::new(self.response.prompt.len(), self.generated[choice]).json();
        } else if self.stream.include_usage {
            chunk["usage"] = Value::Null;
        }
        chunk
    }

    fn text(&self, choice: usize, text: &str, logprobs: Value) -> Value {
        self.chunk(choice, json!({ "content": text }), logprobs, Value::Null)
    }

    /// The chunk of one token. None while its text is held back, unless the chunk carries something else.
    fn token(&mut self, choice: usize, token: TokenId, text: &str, logprobs: Option<PositionLogprobs>) -> Vec<Value> {
        self.generated[choice] += 1;
        if text.is_empty() && logprobs.is_none() && !self.response.options.return_token_ids {
            return Vec::new();
        }
        let mut chunk = self.text(choice, text, logprobs.map_or(Value::Null, |one| self.response.logprobs(&[one])));
        if self.response.options.return_token_ids {
            chunk["choices"][0]["token_ids"] = json!([token]);
        }
        vec![chunk]
    }
}

impl Chunks for ChatChunks {
    fn begin(&mut self) -> Vec<Value> {
        let role = json!({ "role": "assistant", "content": "" });
        let chunks = (0..self.response.options.n).map(|choice| {
            let mut chunk = self.chunk(choice, role.clone(), Value::Null, Value::Null);
            if self.response.options.return_token_ids {
                chunk["prompt_token_ids"] = json!(self.response.prompt);
            }
            chunk
        });
        chunks.collect()
    }

    fn on(&mut self, choice: usize, event: Event) -> Vec<Value> {
        match event {
            Event::Token { token, text, logprobs } => self.token(choice, token, &text, logprobs),
            Event::Finished { reason, text, usage } => {
                self.usage.add(choice, self.response.options.n, &usage);
                self.generated[choice] = usage.completion_tokens;
                let rest = (!text.is_empty()).then(|| self.text(choice, &text, Value::Null));
                let mut finish = self.chunk(choice, json!({}), Value::Null, json!(finish_reason(&reason)));
                finish["choices"][0]["stop_reason"] = stop_reason(&reason, &self.response.options.stop.token_ids);
                rest.into_iter().chain([finish]).collect()
            }
            Event::Prompt { .. } | Event::Failed(_) => Vec::new(),
        }
    }

    fn end(&mut self) -> Vec<Value> {
        if !self.stream.include_usage {
            return Vec::new();
        }
        let mut chunk = self.response.head("chat.completion.chunk");
        chunk["choices"] = json!([]);
        chunk["usage"] = self.usage.json();
        vec![chunk]
    }
}
