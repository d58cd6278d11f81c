//! The protocol of Text Embeddings Inference: `POST /rerank` with `texts`, and `POST /embed`. Answers are bare lists.

use axum::Json;
use axum::extract::State;
use serde_json::{Value, json};

use super::fields::one_or_more;
use super::order::Ordering;
use crate::api::caller::Caller;
use crate::api::extract::JsonBody;
use crate::api::fields::Fields;
use crate::api::server::SharedServer;
use crate::serving::embed::{EmbeddingOptions, EmbeddingRequest, embed as embed_texts};
use crate::serving::error::ApiError;
use crate::serving::prompt::{PlainPrompt, PromptField};
use crate::serving::score::{ScoreOptions, ScoredText};

/// The scores of `texts`, from the most relevant to the least.
pub(super) async fn rerank(
    server: SharedServer,
    caller: Caller,
    JsonBody { value: body, memory }: JsonBody,
) -> Result<Json<Value>, ApiError> {
    let fields = Fields::of_body(&body)?;
    let options = ScoreOptions {
        cut_at: truncates(&fields)?.then_some(usize::MAX),
        keeps_logits: fields.bool("raw_scores")?.unwrap_or(false),
        ..ScoreOptions::default()
    };
    let returns_texts = fields.bool("return_text")?.unwrap_or(false);
    let ordering = Ordering::read((&server, &caller), &fields, "texts", (options, returns_texts))?;
    drop(body);
    let ordered = ordering.run(&server, memory).await?;
    let result = |(index, score): &(usize, f32)| match &ordered.texts {
        Some(texts) => json!({ "index": index, "score": score, "text": texts[*index] }),
        None => json!({ "index": index, "score": score }),
    };
    Ok(Json(ordered.ranked.iter().map(result).collect()))
}

/// A vector for each of `inputs`.
pub(super) async fn embed(
    State(server): State<SharedServer>,
    caller: Caller,
    JsonBody { value: body, memory }: JsonBody,
) -> Result<Json<Value>, ApiError> {
    let fields = Fields::of_body(&body)?;
    if fields.get("prompt_name").is_some() {
        let message = "`prompt_name` is not supported: write the prompt before each text".to_owned();
        return Err(ApiError::Unsupported { param: "prompt_name".to_owned(), message });
    }
    let field = |ScoredText { path, text }| PromptField { path, prompt: PlainPrompt::Text(text) };
    let inputs = one_or_more(fields.get("inputs").unwrap_or(&Value::Null), "inputs")?;
    let request = EmbeddingRequest {
        model: fields.string("model")?.map(str::to_owned),
        inputs: inputs.into_iter().map(field).collect(),
        options: EmbeddingOptions {
            cut_at: truncates(&fields)?.then_some(usize::MAX),
            dimensions: fields.count("dimensions", 1)?,
            keeps_length: fields.bool("normalize")? == Some(false),
            priority: 0,
        },
        tenancy: caller.tenancy(&fields, &server.options())?,
    };
    drop(body);
    let embeddings = embed_texts(&server.models, server.limits(), request, memory).await?;
    Ok(Json(json!(embeddings.vectors)))
}

/// Whether texts that are too long are cut. They are cut at their ends only.
pub(super) fn truncates(fields: &Fields<'_>) -> Result<bool, ApiError> {
    match fields.string("truncation_direction")? {
        None | Some("right" | "Right") => Ok(fields.bool("truncate")?.unwrap_or(false)),
        Some(_) => {
            let message = "`truncation_direction` must be \"right\": texts are cut at their ends".to_owned();
            Err(ApiError::Unsupported { param: "truncation_direction".to_owned(), message })
        }
    }
}
