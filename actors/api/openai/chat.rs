//! `POST /v1/chat/completions`.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use cuelight_engine::engine::TokenId;
use cuelight_engine::format::tokenizer::Tokenizer;
use serde_json::{Value, json};

use super::chat_delta::DeltaEncoder;
use super::logprobs::{self, Spelling};
use super::prompt::read_chat;
use super::sampling::{self, logprobs_count};
use super::sse::{self, Chunks};
use super::tool_name::ClientTools;
use super::tools::Tools;
use super::usage::{UsageCount, finish_reason, stop_reason};
use super::{constraint, custom_tool, kv_transfer, unsupported};
use crate::api::caller::Caller;
use crate::api::extract::JsonBody;
use crate::api::fields::Fields;
use crate::api::reports::{self, Reports};
use crate::api::server::{Server, SharedServer, unix_seconds};
use crate::api::telemetry;
use crate::core::request::PositionLogprobs;
use crate::output::Delta;
use crate::serving::accept::{Accepted, accept};
use crate::serving::answers::{Answer, AnswerEvent, Answers, Finish, ToolCall};
use crate::serving::error::ApiError;
use crate::serving::options::{GenerationOptions, StreamOptions};
use crate::serving::request::{PromptInput, ServingRequest};
use crate::serving::tenancy::Tenancy;

pub(in crate::api) async fn create(
    State(server): State<SharedServer>,
    caller: Caller,
    JsonBody { value: body, memory }: JsonBody,
) -> Result<Response, ApiError> {
    let (request, client_tools) = read(&server, &caller, &Fields::of_body(&body)?)?;
    drop(body);
    let accepted = accept(&server.models, server.limits(), request, memory).await?;
    let (response, answers) = ChatResponse::new(accepted, client_tools);
    match response.options.stream {
        Some(stream) => Ok(sse::stream(answers, ChatChunks::new(response, stream), server.options().sse_ping_interval)),
        None => Ok(Json(response.whole(&answers.collect().await?)).into_response()),
    }
}

/// Reads the request, and what the client knows its tools as.
fn read(server: &Server, caller: &Caller, fields: &Fields<'_>) -> Result<(ServingRequest, ClientTools), ApiError> {
    unsupported::refuse_in_chat(fields)?;
    let tenancy = caller.tenancy(fields, &server.options())?;
    let kv_transfer = kv_transfer::read(fields, server.options().shared_blocks.as_ref())?;
    let mut tools = Tools::read(fields)?;
    let client_tools = std::mem::take(&mut tools.client);
    let request = ServingRequest {
        model: fields.string("model")?.map(str::to_owned),
        options: GenerationOptions { kv_transfer, ..read_options(fields, tenancy)? },
        prompt: PromptInput::Chat(Box::new(read_chat(fields)?)),
        constraint: constraint::read(fields)?,
        output: tools.output_options(fields)?,
    };
    Ok((request, client_tools))
}

fn read_options(fields: &Fields<'_>, tenancy: Tenancy) -> Result<GenerationOptions, ApiError> {
    let max_tokens = fields.count("max_completion_tokens", 1)?.or(fields.count("max_tokens", 1)?);
    let max_tokens = max_tokens.or(sampling::n_predict(fields, 1)?);
    let wanted = fields.bool("logprobs")?.unwrap_or(false);
    let top = logprobs_count(fields, "top_logprobs")?;
    if !wanted && top.is_some_and(|top| top > 0) {
        return Err(ApiError::invalid("top_logprobs", "`top_logprobs` needs `logprobs` to be true"));
    }
    sampling::read(fields, tenancy, max_tokens, wanted.then_some(top.unwrap_or(0)))
}

/// What is common to all parts of one response.
struct ChatResponse {
    id: String,
    created: u64,
    model: String,
    tokenizer: Arc<Tokenizer>,
    prompt: Vec<TokenId>,
    options: GenerationOptions,
    client_tools: ClientTools,
}

impl ChatResponse {
    fn new(accepted: Accepted, client_tools: ClientTools) -> (Self, Answers) {
        let Accepted { model_id, model, mut prompts, options, answers } = accepted;
        let response = ChatResponse {
            id: telemetry::response_id("chatcmpl-"),
            created: unix_seconds(),
            model: model_id,
            tokenizer: model.tokenizer.clone(),
            prompt: prompts.pop().map(|prompt| prompt.tokens).unwrap_or_default(),
            options,
            client_tools,
        };
        (response, answers)
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
            if let Some(finish) = &answer.finish {
                usage.add(index, self.options.n, finish);
            }
            choices.push(self.choice(index, answer));
        }
        let mut response = self.head("chat.completion");
        response["choices"] = Value::Array(choices);
        response["usage"] = usage.json();
        reports::add_to_whole(self.options.reports, answers, &mut response);
        kv_transfer::add_to_whole(&self.options.kv_transfer, &mut response);
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
        let finish = answer.finish.as_ref();
        let mut choice = json!({
            "index": index,
            "message": message(answer, &self.client_tools),
            "logprobs": self.logprobs(&answer.logprobs),
            "finish_reason": finish.map(finish_reason),
            "stop_reason": finish.map(|finish| stop_reason(finish, &self.options.stop.token_ids)),
        });
        if self.options.return_token_ids {
            choice["token_ids"] = json!(answer.tokens);
        }
        choice
    }
}

/// The message of a whole answer.
fn message(answer: &Answer, client_tools: &ClientTools) -> Value {
    let content = (!answer.text.is_empty() || answer.calls.is_empty()).then_some(&answer.text);
    let mut message = json!({ "role": "assistant", "content": content, "refusal": null });
    if !answer.reasoning.is_empty() {
        // Clients read either name.
        message["reasoning_content"] = json!(answer.reasoning);
        message["reasoning"] = json!(answer.reasoning);
    }
    if !answer.calls.is_empty() {
        message["tool_calls"] = answer.calls.iter().map(|call| call_json(call, client_tools)).collect();
    }
    message
}

fn call_json(ToolCall { id, name, arguments }: &ToolCall, client_tools: &ClientTools) -> Value {
    match client_tools.is_custom(name) {
        true => {
            let input = custom_tool::input(arguments);
            json!({ "id": id, "type": "custom", "custom": { "name": name, "input": input } })
        }
        false => json!({ "id": id, "type": "function", "function": { "name": name, "arguments": arguments } }),
    }
}

/// The response as `chat.completion.chunk`s: for each choice its role, its text and its finish; then the usage.
struct ChatChunks {
    response: ChatResponse,
    stream: StreamOptions,
    /// Tokens generated so far, by choice.
    generated: Vec<usize>,
    /// By choice.
    encoders: Vec<DeltaEncoder>,
    usage: UsageCount,
    reports: Reports,
}

impl ChatChunks {
    fn new(response: ChatResponse, stream: StreamOptions) -> Self {
        let n = response.options.n;
        let encoders = (0..n).map(|_| DeltaEncoder::default()).collect();
        let reports = Reports::new(response.options.reports, n);
        ChatChunks { generated: vec![0; n], encoders, usage: UsageCount::default(), reports, response, stream }
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

    /// The chunks of some deltas; the first has the log-probabilities.
    fn deltas(&self, choice: usize, deltas: Vec<Value>, logprobs: Value) -> Vec<Value> {
        let mut logprobs = Some(logprobs);
        let chunk = |delta| self.chunk(choice, delta, logprobs.take().unwrap_or_default(), Value::Null);
        deltas.into_iter().map(chunk).collect()
    }

    /// The chunks of one token, or of a block. None while its text is held back, unless there is something else to send.
    fn tokens(
        &mut self,
        choice: usize,
        tokens: &[TokenId],
        deltas: Vec<Delta>,
        logprobs: Option<PositionLogprobs>,
    ) -> Vec<Value> {
        self.generated[choice] += tokens.len();
        let has_more = logprobs.is_some() || self.response.options.return_token_ids;
        let mut deltas = self.encoders[choice].encode(deltas, &self.response.client_tools);
        if deltas.is_empty() && has_more {
            deltas.push(json!({ "content": "" }));
        }
        let logprobs = logprobs.map_or(Value::Null, |one| self.response.logprobs(&[one]));
        let mut chunks = self.deltas(choice, deltas, logprobs);
        if self.response.options.return_token_ids
            && let Some(first) = chunks.first_mut()
        {
            first["choices"][0]["token_ids"] = json!(tokens);
        }
        chunks
    }

    fn finished(&mut self, choice: usize, finish: &Finish, deltas: Vec<Delta>) -> Vec<Value> {
        self.usage.add(choice, self.response.options.n, finish);
        self.generated[choice] = finish.usage.completion_tokens;
        let mut deltas = self.encoders[choice].encode(deltas, &self.response.client_tools);
        deltas.extend(self.encoders[choice].end());
        let mut chunks = self.deltas(choice, deltas, Value::Null);
        let mut last = self.chunk(choice, json!({}), Value::Null, json!(finish_reason(finish)));
        last["choices"][0]["stop_reason"] = stop_reason(finish, &self.response.options.stop.token_ids);
        chunks.push(last);
        chunks
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

    fn on(&mut self, choice: usize, event: AnswerEvent) -> Vec<Value> {
        self.reports.on(choice, &event);
        let mut chunks = match event {
            AnswerEvent::Progress(progress) => {
                let chunk = || self.chunk(choice, json!({}), Value::Null, Value::Null);
                self.reports.with_progress(chunk, &progress).into_iter().collect()
            }
            AnswerEvent::Token { token, logprobs, deltas } => self.tokens(choice, &[token], deltas, logprobs),
            AnswerEvent::Block { tokens, deltas } => self.tokens(choice, &tokens, deltas, None),
            AnswerEvent::Finished { finish, deltas } => self.finished(choice, &finish, deltas),
            AnswerEvent::Prompt(_) => Vec::new(),
        };
        self.reports.add_timings(choice, &mut chunks);
        chunks
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
