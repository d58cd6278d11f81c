//! Reads the body of a request.

use serde_json::Value;

use super::echo::Echo;
use super::keeper::Keeper;
use super::tools;
use super::{format, input};
use crate::api::caller::Caller;
use crate::api::fields::Fields;
use crate::api::openai::prompt::template_variables;
use crate::api::openai::sampling::{self, logprobs_count};
use crate::api::openai::tool_name::ClientTools;
use crate::api::openai::tools::Tools;
use crate::api::openai::{constraint, unsupported};
use crate::api::server::Server;
use crate::serving::chat_prompt::ChatPrompt;
use crate::serving::error::ApiError;
use crate::serving::options::GenerationOptions;
use crate::serving::request::{PromptInput, ServingRequest};
use crate::serving::tenancy::Tenancy;
use crate::serving::thinking::Thinking;

/// A request, read.
pub(super) struct RequestRead {
    pub serving: ServingRequest,
    pub echo: Echo,
    /// What the client knows its tools as.
    pub client_tools: ClientTools,
    /// `include` has `reasoning.encrypted_content`.
    pub keeps_reasoning: bool,
    /// Keeps the response when it is complete.
    pub keeper: Option<Keeper>,
}

/// Reads a request, which continues the conversation of the `earlier` items.
///
/// # Errors
/// [`ApiError::InvalidRequest`] or [`ApiError::Unsupported`] that names the field.
pub(super) fn read(
    server: &Server,
    caller: &Caller,
    fields: &Fields<'_>,
    earlier: &[Value],
) -> Result<RequestRead, ApiError> {
    unsupported::refuse_in_responses(fields)?;
    let options = read_options(fields, caller.tenancy(fields, &server.options())?)?;
    let mut tools = tools::read(fields)?;
    let client_tools = std::mem::take(&mut tools.client);
    let keeper = Keeper::read(&server.responses, caller.client(), fields)?;
    let echo = Echo::read(fields, &options, keeper.is_some())?;
    let serving = ServingRequest {
        model: fields.string("model")?.map(str::to_owned),
        options,
        prompt: PromptInput::Chat(Box::new(read_prompt(fields, &tools, earlier)?)),
        constraint: match format::read(fields)? {
            Some(constraint) => Some(constraint),
            None => constraint::read(fields)?,
        },
        output: tools.output_options(fields)?,
    };
    let keeps_reasoning = includes(fields, "reasoning.encrypted_content")?;
    Ok(RequestRead { serving, echo, client_tools, keeps_reasoning, keeper })
}

/// Reads what becomes the prompt, with tools that have been read, behind the `earlier` items.
///
/// # Errors
/// As [`read`].
pub(super) fn read_prompt(fields: &Fields<'_>, tools: &Tools, earlier: &[Value]) -> Result<ChatPrompt, ApiError> {
    let mut variables = template_variables(fields)?;
    if let Some(reasoning) = fields.object("reasoning")?
        && let Some(effort) = reasoning.string("effort")?
    {
        Thinking::read_effort(effort, &reasoning.path("effort"))?.add_to(&mut variables);
    }
    let (messages, media) = input::read(fields, earlier)?;
    let prompt = ChatPrompt {
        messages,
        media,
        tools: tools.for_template.clone(),
        variables,
        add_generation_prompt: true,
        ..ChatPrompt::default()
    };
    prompt.check_size().map_err(of_input)?;
    Ok(prompt)
}

/// One answer; the other fields are those of chat completions.
fn read_options(fields: &Fields<'_>, tenancy: Tenancy) -> Result<GenerationOptions, ApiError> {
    let max_tokens = fields.count("max_output_tokens", 1)?;
    let top = logprobs_count(fields, "top_logprobs")?;
    let wanted = includes(fields, "message.output_text.logprobs")?;
    let options = sampling::read(fields, tenancy, max_tokens, wanted.then_some(top.unwrap_or(0)))?;
    Ok(GenerationOptions { n: 1, best_of: 1, prompt_logprobs: None, ..options })
}

/// Whether `include` lists `name`.
fn includes(fields: &Fields<'_>, name: &str) -> Result<bool, ApiError> {
    Ok(fields.array("include")?.is_some_and(|included| included.iter().any(|one| one == name)))
}

/// An error about the messages that the input became is about the input.
pub(super) fn of_input(error: ApiError) -> ApiError {
    let rename = |param: String| if param.starts_with("messages") { "input".to_owned() } else { param };
    match error {
        ApiError::InvalidRequest { param, message } => {
            ApiError::InvalidRequest { param: param.map(rename), message: message.replace("`messages`", "`input`") }
        }
        ApiError::Unsupported { param, message } => {
            ApiError::Unsupported { param: rename(param), message: message.replace("`messages`", "`input`") }
        }
        other => other,
    }
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn prompt(body: &Value) -> Result<ChatPrompt, ApiError> {
        read_prompt(&Fields::of_body(body).unwrap(), &Tools::default(), &[])
    }

    #[test]
    fn the_effort_is_a_variable_of_the_template_and_none_turns_reasoning_off() {
        let variables = |effort: &str| {
            let body = json!({ "input": "a", "reasoning": { "effort": effort, "summary": "auto" } });
            Value::Object(prompt(&body).unwrap().variables)
        };
        assert_eq!(variables("high"), json!({ "reasoning_effort": "high" }));
        assert_eq!(
            variables("none"),
            json!({ "reasoning_effort": "none", "enable_thinking": false, "thinking": false })
        );
        let kept = json!({
            "input": "a", "reasoning": { "effort": "none" }, "chat_template_kwargs": { "enable_thinking": true }
        });
        assert_eq!(prompt(&kept).unwrap().variables["enable_thinking"], true);
    }

    #[test]
    fn one_answer_is_generated_with_the_options_of_chat_completions() {
        let body = json!({ "input": "a", "n": 3, "max_output_tokens": 7, "top_k": 5, "top_logprobs": 2 });
        let options = read_options(&Fields::of_body(&body).unwrap(), Tenancy::default()).unwrap();
        assert_eq!((options.n, options.best_of, options.max_tokens), (1, 1, Some(7)));
        assert_eq!((options.sampling.top_k, options.logprobs), (5, None));
    }

    #[test]
    fn errors_about_messages_name_the_input() {
        let error = of_input(ApiError::invalid("messages[2].tool_calls", "the template refuses `messages`: no"));
        assert_eq!(error, ApiError::invalid("input", "the template refuses `input`: no"));
    }
}
