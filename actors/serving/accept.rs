//! Accepts a request: from what a client asks for to running sequences.

use std::sync::Arc;
use std::time::Duration;

use cuelight_engine::embedding::Product;
use cuelight_engine::engine::{AdapterUse, TokenId};
use cuelight_engine::format::chat_template::Cancellation;

use super::answers::{Answers, Choice};
use super::bad_words::banned_sequences;
use super::blocking::{off_worker, on_blocking_thread};
use super::blocks;
use super::constraint::{self, Compiled};
use super::error::ApiError;
use super::generations::Generations;
use super::media::{self, Parts};
use super::media_limits::MediaLimits;
use super::media_source::MediaField;
use super::memory::RequestBudget;
use super::options::{AdapterChoice, GenerationOptions};
use super::prompt::{PromptField, PromptTokens};
use super::prompt_limit::keep_end;
use super::request::{OutputOptions, PromptInput, ServingRequest, ToolChoice};
use super::served::Served;
use super::transcription::form::TranscriptForm;
use crate::models::Models;
use crate::output::{ArgumentChecks, OutputParser};
use crate::pipeline::runtime::{OutputRules, ServedModel};

/// The server's limits for every request.
#[derive(Debug, Clone)]
pub(crate) struct ServingLimits {
    /// No client runs before this priority.
    pub highest_priority: i32,
    /// The longest time that a request may take.
    pub request_timeout: Option<Duration>,
    /// Limits of the media of a request.
    pub media: MediaLimits,
}

/// A request that runs.
pub(crate) struct Accepted {
    /// The name of the model that answers carry.
    pub model_id: String,
    pub model: Arc<ServedModel>,
    pub prompts: Vec<PromptTokens>,
    pub options: GenerationOptions,
    pub answers: Answers,
}

/// Leases the model, takes the permit, computes the media, makes the tokens of the prompts, compiles the constraint, and submits
/// the sequences. `memory` is what the body of the request holds, and is given back before the first token is generated. What the
/// rows of media hold is given back when the request ends.
///
/// # Errors
/// [`ApiError`] with the reason when the request is not accepted.
pub(crate) async fn accept(
    models: &Models,
    limits: ServingLimits,
    request: ServingRequest,
    mut memory: impl RequestBudget,
) -> Result<Accepted, ApiError> {
    let ServingRequest { model, mut prompt, mut options, constraint, output } = request;
    options.limit_priority(limits.highest_priority);
    let served = Served::lease(models, model.as_deref()).await?;
    // The permit is taken before the expensive work, so that an overloaded server refuses at once.
    let sequences = prompt.count() * options.best_of;
    let permit = served.runtime.try_permit_for(options.tenancy.client.clone(), sequences)?;
    let model = served.model()?;
    check_generates(&served.id, &model)?;
    options.apply_recommended(model.card.sampling.stated);
    options.apply_recommended_stop(&model.stop);
    check_tokens(&options, &model)?;
    if model.card.denoising.is_some() {
        blocks::check(&served.id, &options, constraint.as_ref(), &output)?;
    }
    let adapter = adapter_of(&options, &served, &model)?;
    let rules = output_rules(&model, &output).await?;
    let body_bytes = memory.held();
    let (fields, salt) = (prompt.take_media(), options.tenancy.cache_salt.as_deref());
    check_media(&fields, &options)?;
    let encoded = media::encode(fields, &model, &limits.media, salt, &mut memory).await?;
    let parts = encoded.iter().map(|item| item.parts.clone()).collect();
    // Before the constraint: what the template says about tools is the reason why a call cannot be required.
    let prompts = tokens_of(prompt, parts, &model, &options).await?;
    let Compiled { constraint, unmarked_calls } = constraint::compile(&model, constraint, &output, &rules).await?;
    options.sampling.banned_sequences = bad_words(&mut options, constraint.is_some(), &model).await?;
    // A constraint may need special tokens that the publisher bans, and allows no others.
    let is_banned = |token: &TokenId| constraint.is_none() || !model.tokenizer.is_special(*token);
    let banned = model.card.sampling.banned_tokens.iter().copied().filter(is_banned);
    options.sampling.banned_sequences.extend(banned.map(|token| vec![token]));
    let prediction = predicted_tokens(std::mem::take(&mut options.speculation.prediction), &model).await?;
    memory.shrink_to(memory.held().saturating_sub(body_bytes));
    let mut requests = Vec::with_capacity(sequences);
    let mut choices = Vec::with_capacity(sequences);
    for prompt in &prompts {
        let parts = served.counted(options.sequences(prompt.tokens.clone(), model.limits.context_tokens))?;
        let media = media::prompt_media(prompt, &encoded, &model);
        let separates = output.parses_reasoning;
        let reasoning = || rules.reasoning(&model.tokenizer, &prompt.text, output.reasoning_budget);
        let reasoning = separates.then(reasoning).flatten();
        for mut request in parts {
            request.media = media.clone();
            request.adapter.clone_from(&adapter);
            request.constraint = constraint.clone();
            request.reasoning = reasoning.clone();
            request.visible_tokens = rules.visible_tokens.clone();
            request.speculation.prediction = prediction.clone();
            requests.push(request);
            let parser = || parser(&output, &rules, unmarked_calls.clone(), &prompt.text);
            choices.push(Choice::new(output.parses().then(parser), output.shown()));
        }
    }
    let timeout = options.timeout(limits.request_timeout);
    let generations = Generations::submit(&served, permit, requests, timeout).await?;
    let generations = if encoded.is_empty() { generations } else { generations.holding(Box::new(memory)) };
    let answers = Answers::new(generations, choices);
    Ok(Accepted { model_id: served.id, model, prompts, options, answers })
}

/// Checks that the model generates text.
fn check_generates(name: &str, model: &ServedModel) -> Result<(), ApiError> {
    if !model.card.embedding.is_only {
        return Ok(());
    }
    let message = match model.card.embedding.product() {
        Product::Vectors => format!("the model `{name}` makes embeddings and generates no text; use /v1/embeddings"),
        Product::Relevance => format!("the model `{name}` is a reranker and generates no text; use /v1/rerank"),
        Product::Classes => format!("the model `{name}` classifies texts and generates none; use /classify"),
        Product::Alignment => format!("the model `{name}` generates no text"),
    };
    Err(ApiError::Unsupported { param: "model".to_owned(), message })
}

/// Checks that the tokens that a request names are in the vocabulary, and that the stop tokens leave a token to sample.
fn check_tokens(options: &GenerationOptions, model: &ServedModel) -> Result<(), ApiError> {
    let vocab_size = model.limits.vocab_size;
    if options.stop.min_tokens > 0 && options.stop.token_ids.len() >= vocab_size {
        let message = "with `min_tokens`, `stop_token_ids` must leave out at least one token of the vocabulary";
        return Err(ApiError::invalid("stop_token_ids", message));
    }
    let outside = |&token: &TokenId| token as usize >= vocab_size;
    let unknown = |name: &str, path: String, token: TokenId| {
        let message = format!("`{name}` names token {token}, but this model's vocabulary has {vocab_size} tokens");
        Err(ApiError::invalid(path, message))
    };
    let allowed = options.sampling.allowed_tokens.as_deref().unwrap_or_default();
    for (name, tokens) in [("allowed_token_ids", allowed), ("logprob_token_ids", &options.logprob_tokens)] {
        if let Some(token) = tokens.iter().copied().find(outside) {
            return unknown(name, name.to_owned(), token);
        }
    }
    match options.sampling.logit_bias.iter().map(|(token, _)| *token).find(outside) {
        None => Ok(()),
        Some(token) => unknown("logit_bias", format!("logit_bias.{token}"), token),
    }
}

/// The adapter of a request.
fn adapter_of(
    options: &GenerationOptions,
    served: &Served,
    model: &ServedModel,
) -> Result<Option<AdapterUse>, ApiError> {
    let Some(AdapterChoice { id, scale }) = options.adapter else { return Ok(served.adapter.clone()) };
    let adapter = model.adapters.as_ref().and_then(|adapters| adapters.with_scale(id, scale));
    let unknown =
        || ApiError::invalid("lora", format!("no adapter has the number {id}; GET /lora-adapters lists them"));
    adapter.map(Some).ok_or_else(unknown)
}

/// How the model writes what the client wants taken apart.
async fn output_rules(model: &Arc<ServedModel>, output: &OutputOptions) -> Result<OutputRules, ApiError> {
    if output.parses() { find_output_rules(model).await } else { Ok(OutputRules::plain()) }
}

/// How the model writes reasoning and tool calls.
///
/// # Errors
/// [`ApiError::Internal`].
pub(crate) async fn find_output_rules(model: &Arc<ServedModel>) -> Result<OutputRules, ApiError> {
    let find = || async {
        let cancellation = Cancellation::default();
        let _cancels = cancellation.on_drop();
        let model = model.clone();
        on_blocking_thread(move || Ok(model.find_output_rules(&cancellation))).await
    };
    model.output_rules.get_or_try_init(find).await.cloned()
}

fn parser(
    output: &OutputOptions,
    rules: &OutputRules,
    unmarked_calls: Option<ArgumentChecks>,
    prompt: &str,
) -> OutputParser {
    let tools = (output.tool_choice != ToolChoice::None).then(|| output.tools.clone());
    rules.parser(output.parses_reasoning, tools, unmarked_calls, prompt)
}

/// Checks what a prompt with media cannot have.
fn check_media(fields: &[MediaField], options: &GenerationOptions) -> Result<(), ApiError> {
    let unsupported = |param: &str, message: &str| {
        Err(ApiError::Unsupported { param: param.to_owned(), message: format!("{message}; leave `{param}` out") })
    };
    if fields.is_empty() {
        Ok(())
    } else if options.prompt_logprobs.is_some() {
        unsupported("prompt_logprobs", "the tokens of a prompt with images or audio have no log-probabilities")
    } else if options.most_prompt_tokens.is_some() {
        unsupported("truncate_prompt_tokens", "a prompt with images or audio is not cut")
    } else {
        Ok(())
    }
}

async fn tokens_of(
    prompt: PromptInput,
    media: Parts,
    model: &Arc<ServedModel>,
    options: &GenerationOptions,
) -> Result<Vec<PromptTokens>, ApiError> {
    let chat = match prompt {
        PromptInput::Plain { prompts, add_special } => return plain_tokens(prompts, model, add_special, options).await,
        PromptInput::Chat(chat) => *chat,
        PromptInput::Transcription(request) => request.chat(&TranscriptForm::of(model))?,
    };
    let mut tokens = chat.tokens(model, media).await?;
    if let Some(most) = options.prompt_limit(model.limits.context_tokens) {
        keep_end(&mut tokens.tokens, most, model.tokenizer.bos());
    }
    Ok(vec![tokens])
}

/// The sequences of tokens that must not appear in the answer.
///
/// # Errors
/// [`ApiError`] when a word has no tokens, or when tokens are forbidden that the format of the answer may need.
async fn bad_words(
    options: &mut GenerationOptions,
    is_constrained: bool,
    model: &Arc<ServedModel>,
) -> Result<Vec<Vec<TokenId>>, ApiError> {
    let words = std::mem::take(&mut options.bad_words);
    let forbidding =
        [(!words.is_empty(), "bad_words"), (options.sampling.allowed_tokens.is_some(), "allowed_token_ids")];
    if let Some((_, field)) = forbidding.into_iter().find(|(forbids, _)| is_constrained && *forbids) {
        let message = format!(
            "`{field}` may forbid what the format of the answer or a required tool call needs; leave one of them out"
        );
        return Err(ApiError::invalid(field, message));
    }
    let (model, bytes) = (model.clone(), words.iter().map(String::len).sum());
    let encode = move || {
        let invalid = |error| ApiError::invalid("bad_words", format!("`bad_words`: {error}"));
        banned_sequences(&words, &model.tokenizer).map_err(invalid)
    };
    off_worker(bytes, encode).await
}

/// The tokens of the answer that the client expects.
async fn predicted_tokens(text: String, model: &Arc<ServedModel>) -> Result<Arc<[TokenId]>, ApiError> {
    let (model, bytes) = (model.clone(), text.len());
    let encode = move || {
        let encoded = model.tokenizer.encode(&text, false, false);
        let invalid = |error| ApiError::invalid("prediction.content", format!("`prediction.content`: {error}"));
        encoded.map(Arc::from).map_err(invalid)
    };
    off_worker(bytes, encode).await
}

async fn plain_tokens(
    prompts: Vec<PromptField>,
    model: &Arc<ServedModel>,
    add_special: bool,
    options: &GenerationOptions,
) -> Result<Vec<PromptTokens>, ApiError> {
    let (model, skip_special) = (model.clone(), options.skip_special_tokens);
    let most = options.prompt_limit(model.limits.context_tokens).unwrap_or(usize::MAX);
    let bytes = prompts.iter().map(PromptField::bytes).sum();
    let tokens_of = move |prompt: &PromptField| {
        let mut read = prompt.tokens(&model, add_special, skip_special)?;
        if keep_end(&mut read.tokens, most, model.tokenizer.bos()) {
            read.text = model.tokenizer.decode(&read.tokens, skip_special);
        }
        Ok(read)
    };
    off_worker(bytes, move || prompts.iter().map(tokens_of).collect()).await
}
