//! `POST /classify`: the most likely class of each text, and the scores of all, as in vLLM.

use axum::Json;
use axum::extract::State;
use serde_json::{Value, json};

use super::fields::{keeps_logits, priority};
use crate::api::caller::Caller;
use crate::api::extract::JsonBody;
use crate::api::fields::Fields;
use crate::api::openai::embeddings::check_inputs;
use crate::api::openai::prompt::read_texts;
use crate::api::server::{Server, SharedServer, unix_seconds};
use crate::api::truncation;
use crate::serving::classify::{Classified, ClassifiedText, ClassifyOptions, ClassifyRequest, classify};
use crate::serving::error::ApiError;

pub(super) async fn create(
    State(server): State<SharedServer>,
    caller: Caller,
    JsonBody { value: body, memory }: JsonBody,
) -> Result<Json<Value>, ApiError> {
    let request = read(&server, &caller, &Fields::of_body(&body)?)?;
    drop(body);
    let classified = classify(&server.models, server.limits(), request, memory).await?;
    Ok(Json(response(&classified)))
}

fn read(server: &Server, caller: &Caller, fields: &Fields<'_>) -> Result<ClassifyRequest, ApiError> {
    if fields.get("messages").is_some() {
        let message = "`messages` is not supported: write the conversation as one text in `input`".to_owned();
        return Err(ApiError::Unsupported { param: "messages".to_owned(), message });
    }
    let inputs = read_texts(fields, "input")?;
    check_inputs(&inputs)?;
    let options = ClassifyOptions {
        cut_at: truncation::read(fields)?,
        keeps_logits: keeps_logits(fields)?,
        priority: priority(fields)?,
    };
    let tenancy = caller.tenancy(fields, &server.options())?;
    let texts = inputs.into_iter().map(ClassifiedText::One).collect();
    Ok(ClassifyRequest { model: fields.string("model")?.map(str::to_owned), texts, options, tenancy })
}

fn response(classified: &Classified) -> Value {
    let item = |(index, scores): (usize, &Vec<f32>)| {
        let label = best(scores).and_then(|class| classified.labels.get(class));
        json!({ "index": index, "label": label, "probs": scores, "num_classes": scores.len() })
    };
    let tokens = classified.prompt_tokens;
    json!({
        "id": format!("classify-{}", uuid::Uuid::new_v4().simple()),
        "object": "list",
        "created": unix_seconds(),
        "model": classified.model_id,
        "data": classified.scores.iter().enumerate().map(item).collect::<Vec<_>>(),
        "usage": { "prompt_tokens": tokens, "total_tokens": tokens },
    })
}

/// The class with the highest score; of equal ones the first.
fn best(scores: &[f32]) -> Option<usize> {
    (0..scores.len()).rev().max_by(|left, right| scores[*left].total_cmp(&scores[*right]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_has_the_label_of_its_highest_score() {
        let labels = ["bad", "fair", "good"].map(str::to_owned).to_vec();
        let scores = vec![vec![0.125, 0.25, 0.625], vec![0.5, 0.5, 0.0]];
        let answer = response(&Classified { model_id: "m".into(), labels, scores, prompt_tokens: 9 });
        let expected = json!([
            { "index": 0, "label": "good", "probs": [0.125, 0.25, 0.625], "num_classes": 3 },
            { "index": 1, "label": "bad", "probs": [0.5, 0.5, 0.0], "num_classes": 3 },
        ]);
        assert_eq!(answer["data"], expected);
        assert_eq!(answer["usage"], json!({ "prompt_tokens": 9, "total_tokens": 9 }));
    }
}
