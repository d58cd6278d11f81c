//! `POST /v1/embeddings`: a vector for each text.

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

use super::prompt::read_texts;
use crate::api::caller::Caller;
use crate::api::extract::JsonBody;
use crate::api::fields::Fields;
use crate::api::server::{Server, SharedServer};
use crate::api::truncation;
use crate::serving::blocking::off_worker;
use crate::serving::embed::{EmbeddingOptions, EmbeddingRequest, Embeddings, embed};
use crate::serving::error::ApiError;
use crate::serving::prompt::{PlainPrompt, PromptField};

/// Most texts of a request.
pub(in crate::api) const MAX_INPUTS: usize = 2048;

/// How numbers are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Encoding {
    /// As a list of numbers.
    Float,
    /// As float32 in little-endian order, in base64.
    Base64,
}

pub(in crate::api) async fn create(
    State(server): State<SharedServer>,
    caller: Caller,
    JsonBody { value: body, memory }: JsonBody,
) -> Result<Response, ApiError> {
    let fields = Fields::of_body(&body)?;
    let (request, encoding) = read(&server, &caller, &fields)?;
    drop(body);
    let embeddings = embed(&server.models, server.limits(), request, memory).await?;
    let values = embeddings.vectors.iter().map(Vec::len).sum::<usize>();
    off_worker(values * size_of::<f32>(), move || Ok(Json(response(&embeddings, encoding)).into_response())).await
}

fn read(server: &Server, caller: &Caller, fields: &Fields<'_>) -> Result<(EmbeddingRequest, Encoding), ApiError> {
    let inputs = read_texts(fields, "input")?;
    check_inputs(&inputs)?;
    let options = EmbeddingOptions {
        dimensions: fields.count("dimensions", 1)?,
        priority: fields.integer("priority", i64::from(i32::MIN)..=i64::from(i32::MAX))?.unwrap_or(0) as i32,
        cut_at: truncation::read(fields)?,
        keeps_length: false,
    };
    let encoding = encoding(fields)?;
    let tenancy = caller.tenancy(fields, &server.options())?;
    let model = fields.string("model")?.map(str::to_owned);
    Ok((EmbeddingRequest { model, inputs, options, tenancy }, encoding))
}

/// Checks that there are not too many texts, and that none is empty.
pub(in crate::api) fn check_inputs(inputs: &[PromptField]) -> Result<(), ApiError> {
    if inputs.len() > MAX_INPUTS {
        let message = format!("`input` has {} texts, but at most {MAX_INPUTS} are allowed", inputs.len());
        return Err(ApiError::invalid("input", message));
    }
    match inputs.iter().find(|input| input.prompt == PlainPrompt::Text(String::new())) {
        Some(empty) => Err(ApiError::invalid(&empty.path, format!("`{}` must not be empty", empty.path))),
        None => Ok(()),
    }
}

fn encoding(fields: &Fields<'_>) -> Result<Encoding, ApiError> {
    match fields.string("encoding_format")? {
        None | Some("float") => Ok(Encoding::Float),
        Some("base64") => Ok(Encoding::Base64),
        Some(_) => Err(ApiError::invalid("encoding_format", "`encoding_format` must be \"float\" or \"base64\"")),
    }
}

fn response(embeddings: &Embeddings, encoding: Encoding) -> Value {
    let item = |(index, vector): (usize, &Vec<f32>)| json!({ "object": "embedding", "index": index, "embedding": encoded(vector, encoding) });
    let tokens = embeddings.prompt_tokens;
    json!({
        "object": "list",
        "data": embeddings.vectors.iter().enumerate().map(item).collect::<Vec<_>>(),
        "model": embeddings.model_id,
        "usage": { "prompt_tokens": tokens, "total_tokens": tokens },
    })
}

fn encoded(vector: &[f32], encoding: Encoding) -> Value {
    match encoding {
        Encoding::Float => json!(vector),
        Encoding::Base64 => {
            json!(BASE64_STANDARD.encode(vector.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>()))
        }
    }
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_has_four_bytes_for_each_value() {
        // 00 00 80 3f 00 00 20 c0
        assert_eq!(encoded(&[1.0, -2.5], Encoding::Base64), json!("AACAPwAAIMA="));
        assert_eq!(encoded(&[1.0, -2.5], Encoding::Float), json!([1.0, -2.5]));
    }

    #[test]
    fn an_answer_has_the_index_of_each_text_and_the_tokens_of_all() {
        let embeddings = Embeddings {
            model_id: "m".into(),
            vectors: vec![vec![1.0], vec![0.5]],
            prompt_tokens: 7,
            load_time: std::time::Duration::ZERO,
        };
        let expected = json!({
            "object": "list",
            "data": [
                { "object": "embedding", "index": 0, "embedding": [1.0] },
                { "object": "embedding", "index": 1, "embedding": [0.5] },
            ],
            "model": "m",
            "usage": { "prompt_tokens": 7, "total_tokens": 7 },
        });
        assert_eq!(response(&embeddings, Encoding::Float), expected);
    }

    #[test]
    fn wrong_fields_are_named() {
        let refused = |body: &Value| {
            let fields = Fields::of_body(body).unwrap();
            let inputs = read_texts(&fields, "input").and_then(|inputs| check_inputs(&inputs));
            let error = inputs.and(encoding(&fields).map(|_| ())).unwrap_err();
            match error {
                ApiError::InvalidRequest { param: Some(param), .. } | ApiError::Unsupported { param, .. } => param,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(refused(&json!({ "input": "" })), "input");
        assert_eq!(refused(&json!({ "input": ["a", ""] })), "input[1]");
        assert_eq!(refused(&json!({ "input": vec!["a"; MAX_INPUTS + 1] })), "input");
        assert_eq!(refused(&json!({ "input": "a", "encoding_format": "int8" })), "encoding_format");
    }
}
