//! Fields of the protocol that this server does not support yet.
//!
//! An unknown field is ignored. A known field is either supported or refused by name. llama.cpp's routes ignore a few that their
//! clients always send.

use serde_json::{Value, json};

use crate::api::fields::Fields;
use crate::serving::error::ApiError;

/// A field that is not supported.
struct Unsupported {
    name: &'static str,
    /// Whether a value of the field requests nothing.
    harmless: fn(&Value) -> bool,
    /// What a client can use instead, or why there is no alternative.
    advice: &'static str,
}

const fn refuse(name: &'static str, harmless: fn(&Value) -> bool, advice: &'static str) -> Unsupported {
    Unsupported { name, harmless, advice }
}

const TEXT_ONLY: &str = "input and output are text only";
const SAMPLER: &str = "this sampler is not available; use temperature, dynatemp, top_p, min_p, top_n_sigma, xtc or dry";
const NO_FUNCTIONS: &str = "use `tools` and `tool_choice`";
const ONE_ANSWER: &str = "a response is one answer; send the request again, or use `/v1/chat/completions`";
const NO_LOGPROB_TOKENS: Unsupported =
    refuse("logprob_token_ids", empty, "use `/v1/completions` or `/v1/chat/completions`");
const NO_MAX_TOKENS: &str = "use `max_output_tokens`";

/// Refused in every request that generates.
const GENERATION: &[Unsupported] = &[
    refuse("use_beam_search", off, "beam search is not available; use `n` with a temperature"),
    refuse("length_penalty", one, "it belongs to beam search, which is not available"),
    refuse("mirostat", zero, SAMPLER),
    refuse("samplers", never, "the order of samplers is fixed"),
    refuse("n_probs", zero, "use `logprobs` of `/v1/completions`"),
    refuse("mm_processor_kwargs", empty, TEXT_ONLY),
    refuse("vllm_xargs", empty, "this server has no extra arguments"),
    refuse("repetition_detection", never, "use a penalty or a stop string"),
    refuse("stream_interval", one, "every token is sent at once"),
];

/// Refused in chat completions.
const CHAT: &[Unsupported] = &[
    refuse("echo", off, "use `continue_final_message`, or `/v1/completions`"),
    refuse("best_of", one, "a chat returns all `n` answers; `/v1/completions` supports `best_of`"),
    refuse("modalities", |value| *value == json!(["text"]), TEXT_ONLY),
    refuse("audio", never, TEXT_ONLY),
    refuse("web_search_options", never, "web search is not available"),
    refuse("moderation", never, "moderation is not available"),
    refuse("functions", empty, NO_FUNCTIONS),
    refuse("function_call", |value| value == "none" || value == "auto", NO_FUNCTIONS),
    refuse("chat_template", never, "start the server with --chat-template"),
];

/// Refused in llama.cpp's `/completion`.
const COMPLETION: &[Unsupported] = &[
    refuse("n_cmpl", one, "repeat the prompt in a list"),
    refuse("image_data", empty, TEXT_ONLY),
    refuse("post_sampling_probs", off, "the probabilities are those before sampling"),
    refuse("grammar_lazy", off, "a grammar applies from the first token on"),
    NO_LOGPROB_TOKENS,
];

/// Supported or without effect in llama.cpp's `/completion`, though completions refuse them.
const COMPLETION_ACCEPTS: [&str; 3] = ["samplers", "n_probs", "stream_interval"];

/// Refused in responses.
const RESPONSES: &[Unsupported] = &[
    refuse("background", off, "a response is made while the client waits; leave it out or set it to false"),
    refuse("conversation", never, "use `previous_response_id`, or send the whole conversation in `input`"),
    refuse("prompt", never, "prompts are not stored; send `instructions` and `input`"),
    refuse("context_management", empty, "context is not managed; shorten `input` before sending"),
    refuse("max_tokens", never, NO_MAX_TOKENS),
    refuse("max_completion_tokens", never, NO_MAX_TOKENS),
    refuse("n_predict", never, NO_MAX_TOKENS),
    refuse("n", one, ONE_ANSWER),
    refuse("best_of", one, ONE_ANSWER),
    refuse("logprobs", off, "list `message.output_text.logprobs` in `include`"),
    refuse("prompt_logprobs", never, "use `/v1/chat/completions`"),
    NO_LOGPROB_TOKENS,
    refuse("continue_final_message", off, "use `/v1/chat/completions`"),
    refuse("documents", empty, "write them into `input`, or use `/v1/chat/completions`"),
];

/// Refuses the fields that chat completions do not support.
///
/// # Errors
/// [`ApiError::Unsupported`] that names the first such field.
pub(super) fn refuse_in_chat(fields: &Fields<'_>) -> Result<(), ApiError> {
    GENERATION.iter().chain(CHAT).try_for_each(|field| field.check(fields))
}

/// As [`refuse_in_chat`], for `/v1/completions`.
pub(super) fn refuse_in_completions(fields: &Fields<'_>) -> Result<(), ApiError> {
    GENERATION.iter().try_for_each(|field| field.check(fields))
}

/// As [`refuse_in_chat`], for `/infill`. Its clients always send `samplers`, in an order that changes little.
pub(in crate::api) fn refuse_in_infill(fields: &Fields<'_>) -> Result<(), ApiError> {
    let fits = |field: &&Unsupported| field.name != "samplers";
    GENERATION.iter().filter(fits).chain([&NO_LOGPROB_TOKENS]).try_for_each(|field| field.check(fields))
}

/// As [`refuse_in_chat`], for llama.cpp's `/completion`.
pub(in crate::api) fn refuse_in_completion(fields: &Fields<'_>) -> Result<(), ApiError> {
    let fits = |field: &&Unsupported| !COMPLETION_ACCEPTS.contains(&field.name);
    GENERATION.iter().filter(fits).chain(COMPLETION).try_for_each(|field| field.check(fields))
}

/// As [`refuse_in_chat`], for `/v1/responses`.
pub(super) fn refuse_in_responses(fields: &Fields<'_>) -> Result<(), ApiError> {
    GENERATION.iter().chain(RESPONSES).try_for_each(|field| field.check(fields))
}

impl Unsupported {
    fn check(&self, fields: &Fields<'_>) -> Result<(), ApiError> {
        match fields.get(self.name) {
            Some(value) if !(self.harmless)(value) => Err(ApiError::Unsupported {
                param: fields.path(self.name),
                message: format!("`{}` does not support this value: {}", self.name, self.advice),
            }),
            _ => Ok(()),
        }
    }
}

fn never(_: &Value) -> bool {
    false
}

fn off(value: &Value) -> bool {
    value == false
}

fn zero(value: &Value) -> bool {
    value.as_f64() == Some(0.0)
}

fn one(value: &Value) -> bool {
    value.as_f64() == Some(1.0)
}

fn empty(value: &Value) -> bool {
    match value {
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(body: &Value) -> Option<String> {
        match refuse_in_chat(&Fields::of_body(body).unwrap()) {
            Ok(()) => None,
            Err(ApiError::Unsupported { param, .. }) => Some(param),
            Err(other) => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_known_field_is_refused_unless_its_value_requests_nothing() {
        assert_eq!(refused(&json!({ "response_format": { "type": "json_object" } })), None);
        assert_eq!(refused(&json!({ "use_beam_search": false, "length_penalty": 1.0 })), None);
        assert_eq!(refused(&json!({ "mirostat": 2 })), Some("mirostat".into()));
        assert_eq!(refused(&json!({ "suffix": "only in completions", "unknown_field": 1 })), None);
    }

    #[test]
    fn fields_of_chat_completions_that_responses_would_drop_are_refused() {
        let refused = |body: &Value| refuse_in_responses(&Fields::of_body(body).unwrap()).is_err();
        for (name, value) in
            [("max_tokens", json!(5)), ("n", json!(2)), ("logprob_token_ids", json!([1])), ("documents", json!([{}]))]
        {
            assert!(refused(&json!({ name: value })), "{name}");
        }
        assert!(!refused(&json!({ "n": 1, "best_of": 1, "continue_final_message": false, "documents": [] })));
        assert!(!refused(&json!({ "max_output_tokens": 5, "max_tokens": null })));
    }

    #[test]
    fn no_field_is_listed_twice() {
        for of_route in [CHAT, COMPLETION, RESPONSES] {
            let mut names: Vec<_> = GENERATION.iter().chain(of_route).map(|field| field.name).collect();
            names.sort_unstable();
            assert!(names.windows(2).all(|pair| pair[0] != pair[1]));
        }
    }
}
