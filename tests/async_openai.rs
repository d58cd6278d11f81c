//! The `async-openai` crate against a listening server.
#![allow(clippy::unwrap_used, deprecated)]

mod common;

use async_openai::Client;
use async_openai::config::OpenAIConfig;
use async_openai::error::OpenAIError;
use async_openai::types::chat::{
    ChatCompletionRequestMessage, ChatCompletionRequestUserMessage, ChatCompletionStreamOptions,
    CreateChatCompletionRequest, CreateChatCompletionRequestArgs, FinishReason, Role, StopConfiguration,
};
use async_openai::types::completions::CreateCompletionRequestArgs;
use cuelight::api::ServerOptions;
use cuelight::pipeline::simulation::SimulatedModel;
use futures_util::StreamExt;

use common::listening::Listening;
use common::{MODEL, model};

const KEY: &str = "the-key";

async fn start() -> (Listening, Client<OpenAIConfig>) {
    let model = SimulatedModel { end_one_in: u64::MAX, ..model() };
    let options = ServerOptions { api_keys: vec![KEY.into()], ..ServerOptions::new(MODEL) };
    let server = Listening::start(model, options).await;
    let client = client(&server, KEY);
    (server, client)
}

fn client(server: &Listening, key: &str) -> Client<OpenAIConfig> {
    Client::with_config(OpenAIConfig::new().with_api_base(format!("{}/v1", server.url)).with_api_key(key))
}

fn request() -> CreateChatCompletionRequest {
    let message = ChatCompletionRequestMessage::User(ChatCompletionRequestUserMessage::from("hi"));
    CreateChatCompletionRequestArgs::default()
        .model(MODEL)
        .messages([message])
        .max_completion_tokens(12u32)
        .temperature(0.0)
        .build()
        .unwrap()
}

#[tokio::test]
async fn models_chat_and_completions_answer() {
    let (server, client) = start().await;
    let models = client.models().list().await.unwrap();
    assert_eq!(models.data[0].id, MODEL);
    assert_eq!(client.models().retrieve(MODEL).await.unwrap().id, MODEL);

    let answer = client.chat().create(request()).await.unwrap();
    let choice = &answer.choices[0];
    assert_eq!((choice.message.role, choice.finish_reason), (Role::Assistant, Some(FinishReason::Length)));
    let usage = answer.usage.unwrap();
    assert_eq!((usage.completion_tokens, usage.total_tokens), (12, usage.prompt_tokens + 12));

    let completion = CreateCompletionRequestArgs::default()
        .model(MODEL)
        .prompt("the sky is")
        .max_tokens(5u32)
        .temperature(0.0)
        .logprobs(2u8)
        .echo(true)
        .build()
        .unwrap();
    let answer = client.completions().create(completion).await.unwrap();
    assert!(answer.choices[0].text.starts_with("the sky is"));
    let logprobs = answer.choices[0].logprobs.as_ref().unwrap();
    assert_eq!(logprobs.token_logprobs[0], None);
    assert_eq!(logprobs.tokens.len() as u32, answer.usage.unwrap().total_tokens);
    server.stop().await;
}

#[tokio::test]
async fn a_stream_has_the_text_of_the_whole_answer_and_then_the_usage() {
    let (server, client) = start().await;
    let whole = client.chat().create(request()).await.unwrap();
    let options = ChatCompletionStreamOptions { include_usage: Some(true), include_obfuscation: None };
    let streamed = CreateChatCompletionRequest { stream_options: Some(options), ..request() };
    let mut stream = client.chat().create_stream(streamed).await.unwrap();
    let (mut text, mut finish, mut usage) = (String::new(), None, None);
    while let Some(chunk) = stream.next().await {
        let chunk = chunk.unwrap();
        assert!(usage.is_none(), "the usage is last");
        usage = chunk.usage;
        for choice in chunk.choices {
            text.push_str(choice.delta.content.as_deref().unwrap_or(""));
            finish = finish.or(choice.finish_reason);
        }
    }
    assert_eq!(Some(text), whole.choices[0].message.content);
    assert_eq!(finish, Some(FinishReason::Length));
    assert_eq!(usage.unwrap().completion_tokens, 12);
    server.stop().await;
}

#[tokio::test]
async fn several_answers_with_seed_stop_and_logprobs() {
    let (server, client) = start().await;
    let seeded = CreateChatCompletionRequest { n: Some(2), temperature: Some(1.0), seed: Some(3), ..request() };
    let first = client.chat().create(seeded.clone()).await.unwrap();
    let second = client.chat().create(seeded).await.unwrap();
    assert_eq!(first.choices[0].message, second.choices[0].message);
    assert_eq!(first.choices[1].message, second.choices[1].message);
    assert_ne!(first.choices[0].message, first.choices[1].message);

    let whole = client.chat().create(request()).await.unwrap().choices[0].message.content.clone().unwrap();
    let stop = whole[3..6].to_owned();
    let stopped = CreateChatCompletionRequest { stop: Some(StopConfiguration::String(stop.clone())), ..request() };
    let stopped = client.chat().create(stopped).await.unwrap();
    assert_eq!(stopped.choices[0].finish_reason, Some(FinishReason::Stop));
    assert_eq!(stopped.choices[0].message.content.as_deref(), whole.split(&stop).next());

    let scored = CreateChatCompletionRequest { logprobs: Some(true), top_logprobs: Some(2), ..request() };
    let scored = client.chat().create(scored).await.unwrap();
    let content = scored.choices[0].logprobs.as_ref().unwrap().content.as_ref().unwrap();
    assert_eq!((content.len(), content[0].top_logprobs.len()), (12, 2));
    server.stop().await;
}

#[tokio::test]
async fn errors_have_their_code_and_param() {
    let (server, client) = start().await;
    let failure = |result: Result<_, OpenAIError>| match result {
        Err(OpenAIError::ApiError(error)) => (error.status_code.as_u16(), error.api_error.code, error.api_error.param),
        Err(other) => panic!("{other:?}"),
        Ok(_) => panic!("no error"),
    };
    let hot = CreateChatCompletionRequest { temperature: Some(-1.0), ..request() };
    let error = failure(client.chat().create(hot).await);
    assert_eq!(error, (400, Some("invalid_value".into()), Some("temperature".into())));
    let other = CreateChatCompletionRequest { model: "other".into(), ..request() };
    let error = failure(client.chat().create(other).await);
    assert_eq!(error, (404, Some("model_not_found".into()), Some("model".into())));
    let error = failure(self::client(&server, "wrong").chat().create(request()).await);
    assert_eq!(error, (401, Some("invalid_api_key".into()), None));
    server.stop().await;
}
