//! `POST /infill`: the text of a gap in a file, for editors.

use axum::extract::State;
use axum::response::Response;
use serde_json::Value;

use super::options;
use super::respond::respond;
use super::response_fields::ResponseFields;
use crate::api::caller::Caller;
use crate::api::extract::JsonBody;
use crate::api::fields::{Fields, missing};
use crate::api::openai::{constraint, unsupported};
use crate::api::server::{Server, SharedServer};
use crate::serving::error::ApiError;
use crate::serving::infill::{Infill, InfillFile};
use crate::serving::prompt::{PlainPrompt, PromptField};
use crate::serving::request::{OutputOptions, PromptInput, ServingRequest};

pub(super) async fn create(
    State(server): State<SharedServer>,
    caller: Caller,
    JsonBody { value: body, memory }: JsonBody,
) -> Result<Response, ApiError> {
    let fields = Fields::of_body(&body)?;
    let request = read(&server, &caller, &fields)?;
    let response_fields = ResponseFields::read(&fields)?;
    drop(body);
    respond(&server, request, response_fields, memory).await
}

/// Tokens that other files leave for an answer without a limit.
const RESERVED_TOKENS: usize = 256;

fn read(server: &Server, caller: &Caller, fields: &Fields<'_>) -> Result<ServingRequest, ApiError> {
    unsupported::refuse_in_infill(fields)?;
    let options = options::read(fields, caller.tenancy(fields, &server.options())?)?;
    let reserved_tokens = options.max_tokens.unwrap_or(RESERVED_TOKENS);
    let prompt = PlainPrompt::Infill(Box::new(Infill { reserved_tokens, ..read_gap(fields)? }));
    let prompts = vec![PromptField { path: fields.path("input_suffix"), prompt }];
    Ok(ServingRequest {
        model: fields.string("model")?.map(str::to_owned),
        prompt: PromptInput::Plain { prompts, add_special: true },
        options,
        constraint: constraint::read(fields)?,
        output: OutputOptions::plain(),
    })
}

/// `prompt` is the part of the cursor's line before it, which editors send apart from the lines before.
fn read_gap(fields: &Fields<'_>) -> Result<Infill, ApiError> {
    let required = |name: &str| fields.string(name)?.ok_or_else(|| missing(&fields.path(name), "a string"));
    let mut prefix = required("input_prefix")?.to_owned();
    prefix.push_str(fields.string("prompt")?.unwrap_or_default());
    let suffix = required("input_suffix")?.to_owned();
    Ok(Infill { prefix, suffix, files: read_files(fields)?, ..Infill::default() })
}

fn read_files(fields: &Fields<'_>) -> Result<Vec<InfillFile>, ApiError> {
    let path = fields.path("input_extra");
    let read_one = |(index, file): (usize, &Value)| {
        let file = Fields::of(file, format!("{path}[{index}]"))?;
        let name = file.string("filename")?.unwrap_or("tmp").to_owned();
        let text = file.string("text")?.ok_or_else(|| missing(&file.path("text"), "a string"))?.to_owned();
        Ok(InfillFile { name, text })
    };
    fields.array("input_extra")?.into_iter().flatten().enumerate().map(read_one).collect()
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn gap(body: &Value) -> Result<Infill, ApiError> {
        read_gap(&Fields::of_body(body).unwrap())
    }

    #[test]
    fn the_line_of_the_cursor_follows_the_lines_before() {
        let gap = gap(&json!({
            "input_prefix": "a\n", "prompt": "  b", "input_suffix": "c",
            "input_extra": [{ "filename": "x", "text": "y" }, { "text": "z" }],
        }))
        .unwrap();
        let file = |name: &str, text: &str| InfillFile { name: name.to_owned(), text: text.to_owned() };
        let files = vec![file("x", "y"), file("tmp", "z")];
        assert_eq!((gap.prefix.as_str(), gap.suffix.as_str(), gap.files), ("a\n  b", "c", files));
    }

    #[test]
    fn each_invalid_field_is_named() {
        let with = |name: &str, value: Value| {
            let mut body = json!({ "input_prefix": "", "input_suffix": "" });
            body[name] = value;
            body
        };
        for (body, expected) in [
            (json!({ "input_suffix": "" }), "input_prefix"),
            (json!({ "input_prefix": "" }), "input_suffix"),
            (with("prompt", json!([1])), "prompt"),
            (with("input_extra", json!("x")), "input_extra"),
            (with("input_extra", json!([7])), "input_extra[0]"),
            (with("input_extra", json!([{ "text": "a" }, {}])), "input_extra[1].text"),
            (with("input_extra", json!([{ "text": "a", "filename": 1 }])), "input_extra[0].filename"),
        ] {
            match gap(&body).unwrap_err() {
                ApiError::InvalidRequest { param: Some(param), .. } => assert_eq!(param, expected, "{body}"),
                other => panic!("{other:?}"),
            }
        }
    }
}
