//! `POST /api/chat`.

use axum::extract::State;
use axum::response::Response;

use super::answer::Form;
use super::call::Call;
use super::{format, messages, options};
use crate::api::caller::Caller;
use crate::api::extract::JsonBody;
use crate::api::fields::Fields;
use crate::api::openai::tools::Tools;
use crate::api::server::{Server, SharedServer};
use crate::serving::chat_prompt::ChatPrompt;
use crate::serving::error::ApiError;
use crate::serving::request::{OutputOptions, PromptInput, ServingRequest};

pub(super) async fn create(
    State(server): State<SharedServer>,
    caller: Caller,
    JsonBody { value: body, memory }: JsonBody,
) -> Result<Response, ApiError> {
    let fields = Fields::of_body(&body)?;
    let call = Call::read(&server, &fields, Form::Chat).await?;
    if fields.array("messages")?.is_none_or(Vec::is_empty) {
        return call.load(&server).await;
    }
    let (request, context_tokens) = read(&server, &caller, &fields, &call)?;
    drop(body);
    call.answer(&server, request, context_tokens, memory).await
}

fn read(
    server: &Server,
    caller: &Caller,
    fields: &Fields<'_>,
    call: &Call,
) -> Result<(ServingRequest, Option<usize>), ApiError> {
    let options = options::read(fields, caller.tenancy(fields, &server.options())?)?;
    let tools = Tools::read(fields)?;
    let mut media = Vec::new();
    let prompt = ChatPrompt {
        messages: messages::read(fields, &mut media)?,
        media,
        tools: tools.for_template.clone(),
        variables: call.think.variables.clone(),
        add_generation_prompt: true,
        ..ChatPrompt::default()
    };
    prompt.check_size()?;
    let request = ServingRequest {
        model: Some(call.id.clone()),
        prompt: PromptInput::Chat(Box::new(prompt)),
        options: options.generation,
        constraint: format::read(fields)?,
        output: OutputOptions { parses_reasoning: true, ..tools.output_options(fields)? },
    };
    Ok((request, options.context_tokens))
}
