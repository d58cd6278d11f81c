//! `POST /v1/score`: how relevant or similar texts are, pair by pair, as in vLLM.

use axum::Json;
use axum::extract::State;
use serde_json::{Value, json};

use super::fields::{keeps_logits, one_or_more, priority};
use crate::api::caller::Caller;
use crate::api::extract::JsonBody;
use crate::api::fields::{Fields, missing};
use crate::api::server::{Server, SharedServer, unix_seconds};
use crate::api::truncation;
use crate::serving::error::ApiError;
use crate::serving::score::{ScoreOptions, ScoreRequest, ScoredText, Scores, score};

/// The names of the texts on each side, in vLLM's versions. The first names are in messages.
const SIDES: [[&str; 4]; 2] = [["text_1", "queries", "data_1", "query"], ["text_2", "documents", "data_2", "items"]];

pub(super) async fn create(
    State(server): State<SharedServer>,
    caller: Caller,
    JsonBody { value: body, memory }: JsonBody,
) -> Result<Json<Value>, ApiError> {
    let request = read(&server, &caller, &Fields::of_body(&body)?)?;
    drop(body);
    let scores = score(&server.models, server.limits(), request, memory).await?;
    Ok(Json(response(&scores)))
}

fn read(server: &Server, caller: &Caller, fields: &Fields<'_>) -> Result<ScoreRequest, ApiError> {
    let (queries, documents) = texts(fields)?;
    let options = ScoreOptions {
        cut_at: truncation::read(fields)?,
        document_tokens: None,
        keeps_logits: keeps_logits(fields)?,
        allows_embeddings: true,
        priority: priority(fields)?,
    };
    let tenancy = caller.tenancy(fields, &server.options())?;
    Ok(ScoreRequest { model: fields.string("model")?.map(str::to_owned), queries, documents, options, tenancy })
}

/// Both sides: one text and any number, or as many on each.
fn texts(fields: &Fields<'_>) -> Result<(Vec<ScoredText>, Vec<ScoredText>), ApiError> {
    let [queries, documents] = SIDES.map(|names| side(fields, names));
    let (queries, documents) = (queries?, documents?);
    if queries.len() == 1 || queries.len() == documents.len() {
        return Ok((queries, documents));
    }
    let message = format!(
        "`text_1` has {} texts and `text_2` has {}; there must be one in `text_1`, or as many on both sides",
        queries.len(),
        documents.len()
    );
    Err(ApiError::invalid("text_1", message))
}

fn side(fields: &Fields<'_>, names: [&str; 4]) -> Result<Vec<ScoredText>, ApiError> {
    let given = names.iter().find_map(|name| Some((*name, fields.get(name)?)));
    let (name, value) = given.ok_or_else(|| missing(names[0], "a string or a list of strings"))?;
    one_or_more(value, name)
}

fn response(scores: &Scores) -> Value {
    let item = |(index, score): (usize, &f32)| json!({ "index": index, "object": "score", "score": score });
    let tokens = scores.prompt_tokens;
    json!({
        "id": format!("score-{}", uuid::Uuid::new_v4().simple()),
        "object": "list",
        "created": unix_seconds(),
        "model": scores.model_id,
        "data": scores.scores.iter().enumerate().map(item).collect::<Vec<_>>(),
        "usage": { "prompt_tokens": tokens, "total_tokens": tokens },
    })
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use super::*;

    fn counts(body: &Value) -> Result<(usize, usize), ApiError> {
        let (queries, documents) = texts(&Fields::of_body(body).unwrap())?;
        Ok((queries.len(), documents.len()))
    }

    #[test]
    fn there_is_one_query_or_one_for_each_document() {
        assert_eq!(counts(&json!({ "text_1": "a", "text_2": "b" })).unwrap(), (1, 1));
        assert_eq!(counts(&json!({ "queries": "a", "documents": ["b", "c"] })).unwrap(), (1, 2));
        assert_eq!(counts(&json!({ "text_1": ["a", "d"], "text_2": ["b", "c"] })).unwrap(), (2, 2));
        for wrong in [
            json!({ "text_1": ["a", "b"], "text_2": "c" }),
            json!({ "text_1": ["a", "b"], "text_2": ["c", "d", "e"] }),
            json!({ "text_1": "a" }),
            json!({ "text_1": [], "text_2": [] }),
            json!({ "text_1": "", "text_2": "b" }),
            json!({ "text_1": 5, "text_2": "b" }),
        ] {
            assert!(counts(&wrong).is_err(), "{wrong}");
        }
    }
}
