//! `POST /api/embed`: a vector for each text, and the older `POST /api/embeddings` for one text.

use std::time::{Duration, Instant};

use axum::Json;
use axum::extract::State;
use serde_json::{Value, json};

use super::{keep_alive, names};
use crate::api::caller::Caller;
use crate::api::extract::JsonBody;
use crate::api::fields::{Fields, wrong_type};
use crate::api::openai::embeddings::MAX_INPUTS;
use crate::api::server::{Server, SharedServer};
use crate::serving::embed::{EmbeddingOptions, EmbeddingRequest, Embeddings, embed};
use crate::serving::error::ApiError;
use crate::serving::prompt::{PlainPrompt, PromptField};

/// The vectors have length 1.
pub(super) async fn create(
    State(server): State<SharedServer>,
    caller: Caller,
    JsonBody { value: body, memory }: JsonBody,
) -> Result<Json<Value>, ApiError> {
    let started = Instant::now();
    let fields = Fields::of_body(&body)?;
    let options = EmbeddingOptions {
        cut_at: fields.bool("truncate")?.unwrap_or(true).then_some(usize::MAX),
        dimensions: fields.count("dimensions", 0)?.filter(|dimensions| *dimensions > 0),
        ..EmbeddingOptions::default()
    };
    let name = names::named(&fields)?.to_owned();
    let embeddings = run(&server, &caller, &fields, (inputs(&fields)?, options), memory).await?;
    Ok(Json(response(&name, &embeddings, started.elapsed())))
}

/// The vector is as long as the model makes it, as clients of this route expect.
pub(super) async fn create_one(
    State(server): State<SharedServer>,
    caller: Caller,
    JsonBody { value: body, memory }: JsonBody,
) -> Result<Json<Value>, ApiError> {
    let fields = Fields::of_body(&body)?;
    let text = fields.string("prompt")?.unwrap_or_default();
    let options = EmbeddingOptions { cut_at: Some(usize::MAX), keeps_length: true, ..EmbeddingOptions::default() };
    let embeddings = run(&server, &caller, &fields, (texts(&[("prompt", text)]), options), memory).await?;
    Ok(Json(json!({ "embedding": embeddings.vectors.first().map_or(&[][..], Vec::as_slice) })))
}

/// Computes the vectors and applies `keep_alive`. Without texts, the model is loaded.
async fn run(
    server: &Server,
    caller: &Caller,
    fields: &Fields<'_>,
    (inputs, options): (Vec<PromptField>, EmbeddingOptions),
    memory: impl Send,
) -> Result<Embeddings, ApiError> {
    let keep_alive = keep_alive::read(fields)?;
    let id = names::find(&server.models, names::named(fields)?).await?.id;
    let embeddings = if inputs.is_empty() {
        let model_id = server.served(Some(&id)).await?.id;
        Embeddings { model_id, vectors: Vec::new(), prompt_tokens: 0, load_time: Duration::ZERO }
    } else {
        let tenancy = caller.tenancy(fields, &server.options())?;
        let request = EmbeddingRequest { model: Some(id.clone()), inputs, options, tenancy };
        embed(&server.models, server.limits(), request, memory).await?
    };
    if let Some(keep_alive) = keep_alive {
        server.models.set_keep_alive(&id, keep_alive).await?;
    }
    Ok(embeddings)
}

/// Reads `input`: a string or a list of strings.
fn inputs(fields: &Fields<'_>) -> Result<Vec<PromptField>, ApiError> {
    let wanted = "a string or a list of strings";
    let list = match fields.get("input") {
        None => return Ok(Vec::new()),
        Some(Value::String(text)) => return Ok(texts(&[("input", text)])),
        Some(Value::Array(list)) => list,
        Some(other) => return Err(wrong_type("input", wanted, other)),
    };
    if list.len() > MAX_INPUTS {
        let message = format!("`input` has {} texts, but at most {MAX_INPUTS} are allowed", list.len());
        return Err(ApiError::invalid("input", message));
    }
    let read = |(index, value): (usize, &Value)| {
        let path = format!("input[{index}]");
        let text = value.as_str().ok_or_else(|| wrong_type(&path, "a string", value))?;
        Ok(PromptField { path, prompt: PlainPrompt::Text(text.to_owned()) })
    };
    list.iter().enumerate().map(read).collect()
}

/// The texts that are not empty, by the names of their fields.
fn texts(named: &[(&str, &str)]) -> Vec<PromptField> {
    let given = named.iter().filter(|(_, text)| !text.is_empty());
    let field = |(path, text): &(&str, &str)| PromptField {
        path: (*path).to_owned(),
        prompt: PlainPrompt::Text((*text).to_owned()),
    };
    given.map(field).collect()
}

fn response(name: &str, embeddings: &Embeddings, elapsed: Duration) -> Value {
    let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    json!({
        "model": name,
        "embeddings": embeddings.vectors,
        "total_duration": nanoseconds(elapsed),
        "load_duration": nanoseconds(embeddings.load_time),
        "prompt_eval_count": embeddings.prompt_tokens,
    })
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: &Value) -> Result<Vec<String>, ApiError> {
        let paths = inputs(&Fields::of_body(body).unwrap())?.into_iter().map(|field| field.path);
        Ok(paths.collect())
    }

    #[test]
    fn an_input_is_a_text_or_a_list_of_texts_and_may_be_empty() {
        assert_eq!(read(&json!({ "input": "a" })).unwrap(), ["input"]);
        assert_eq!(read(&json!({ "input": ["a", "b"] })).unwrap(), ["input[0]", "input[1]"]);
        for nothing in [json!({}), json!({ "input": "" }), json!({ "input": [] })] {
            assert!(read(&nothing).unwrap().is_empty(), "{nothing}");
        }
        for wrong in [json!({ "input": 7 }), json!({ "input": ["a", 7] }), json!({ "input": vec!["a"; 3000] })] {
            assert!(read(&wrong).is_err());
        }
    }

    #[test]
    fn times_are_in_nanoseconds() {
        let embeddings = Embeddings {
            model_id: "id".into(),
            vectors: vec![vec![0.5]],
            prompt_tokens: 3,
            load_time: Duration::from_micros(1),
        };
        let expected = json!({
            "model": "m:latest",
            "embeddings": [[0.5]],
            "total_duration": 2_000_000,
            "load_duration": 1000,
            "prompt_eval_count": 3,
        });
        assert_eq!(response("m:latest", &embeddings, Duration::from_millis(2)), expected);
    }
}
