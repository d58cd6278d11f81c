//! `POST /predict`: the classes of a text, or of two texts that are read together, as in Text Embeddings Inference. Answers are
//! bare lists.

use axum::Json;
use axum::extract::State;
use serde_json::{Value, json};

use super::fields::{MAX_DOCUMENTS, not_empty};
use super::tei::truncates;
use crate::api::caller::Caller;
use crate::api::extract::JsonBody;
use crate::api::fields::{Fields, missing, wrong_type};
use crate::api::server::SharedServer;
use crate::serving::classify::{ClassifiedText, ClassifyOptions, ClassifyRequest, classify};
use crate::serving::error::ApiError;
use crate::serving::prompt::{PlainPrompt, PromptField};
use crate::serving::score::ScoredText;

/// What `inputs` may be.
const WANTED: &str = "a text, a list of two texts, or a list of lists of one or two texts";

/// Every class of each text with its score, from the highest to the lowest.
pub(super) async fn create(
    State(server): State<SharedServer>,
    caller: Caller,
    JsonBody { value: body, memory }: JsonBody,
) -> Result<Json<Value>, ApiError> {
    let fields = Fields::of_body(&body)?;
    let (texts, is_batch) = inputs(&fields)?;
    let options = ClassifyOptions {
        cut_at: truncates(&fields)?.then_some(usize::MAX),
        keeps_logits: fields.bool("raw_scores")?.unwrap_or(false),
        priority: 0,
    };
    let model = fields.string("model")?.map(str::to_owned);
    let tenancy = caller.tenancy(&fields, &server.options())?;
    drop(body);
    let request = ClassifyRequest { model, texts, options, tenancy };
    let classified = classify(&server.models, server.limits(), request, memory).await?;
    let mut answers = classified.scores.iter().map(|scores| predictions(&classified.labels, scores));
    Ok(Json(if is_batch { answers.collect() } else { answers.next().unwrap_or_default() }))
}

/// The texts, and whether they are a batch, whose answer is a list of lists.
fn inputs(fields: &Fields<'_>) -> Result<(Vec<ClassifiedText>, bool), ApiError> {
    const NAME: &str = "inputs";
    let value = fields.get(NAME).ok_or_else(|| missing(NAME, WANTED))?;
    match value {
        Value::Array(list) if list.first().is_some_and(Value::is_array) => {
            if list.len() > MAX_DOCUMENTS {
                let message = format!("`{NAME}` has {} texts, but at most {MAX_DOCUMENTS} are allowed", list.len());
                return Err(ApiError::invalid(NAME, message));
            }
            let text = |(index, value)| text(value, &format!("{NAME}[{index}]"));
            Ok((list.iter().enumerate().map(text).collect::<Result<_, _>>()?, true))
        }
        Value::Array(_) => Ok((vec![text(value, NAME)?], false)),
        Value::String(_) => Ok((vec![one(plain(value, NAME)?)], false)),
        other => Err(wrong_type(NAME, WANTED, other)),
    }
}

/// A list of one or two texts.
fn text(value: &Value, path: &str) -> Result<ClassifiedText, ApiError> {
    let wanted = "a list of one or two texts";
    let list = value.as_array().ok_or_else(|| wrong_type(path, wanted, value))?;
    let item = |index: usize| plain(&list[index], &format!("{path}[{index}]"));
    match list.len() {
        1 => Ok(one(item(0)?)),
        2 => Ok(ClassifiedText::Pair([item(0)?, item(1)?])),
        length => Err(ApiError::invalid(path, format!("`{path}` has {length} texts, but must be {WANTED}"))),
    }
}

fn plain(value: &Value, path: &str) -> Result<ScoredText, ApiError> {
    let text = value.as_str().ok_or_else(|| wrong_type(path, "a string", value))?;
    not_empty(ScoredText { path: path.to_owned(), text: text.to_owned() })
}

fn one(ScoredText { path, text }: ScoredText) -> ClassifiedText {
    ClassifiedText::One(PromptField { path, prompt: PlainPrompt::Text(text) })
}

/// Equal scores stay in the order of the classes.
fn predictions(labels: &[String], scores: &[f32]) -> Value {
    let mut classes: Vec<(&String, f32)> = labels.iter().zip(scores.iter().copied()).collect();
    classes.sort_by(|(_, left), (_, right)| right.total_cmp(left));
    classes.into_iter().map(|(label, score)| json!({ "score": score, "label": label })).collect()
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(body: &Value) -> Result<(Vec<usize>, bool), ApiError> {
        let (texts, is_batch) = inputs(&Fields::of_body(body).unwrap())?;
        let count = |text: &ClassifiedText| if matches!(text, ClassifiedText::One(_)) { 1 } else { 2 };
        Ok((texts.iter().map(count).collect(), is_batch))
    }

    #[test]
    fn inputs_are_a_text_a_pair_or_a_batch() {
        for (body, expected) in [
            (json!("a"), (vec![1], false)),
            (json!(["a"]), (vec![1], false)),
            (json!(["a", "b"]), (vec![2], false)),
            (json!([["a"], ["b", "c"]]), (vec![1, 2], true)),
            (json!([["a"]]), (vec![1], true)),
        ] {
            assert_eq!(kinds(&json!({ "inputs": body })).unwrap(), expected);
        }
    }

    #[test]
    fn other_inputs_are_refused() {
        for wrong in [
            json!(5),
            json!([]),
            json!(""),
            json!(["a", "b", "c"]),
            json!([["a"], "b"]),
            json!([["a", "b", "c"]]),
            json!([[]]),
            json!(["a", 1]),
            json!(["a", ""]),
        ] {
            assert!(kinds(&json!({ "inputs": wrong })).is_err(), "{wrong}");
        }
        assert!(kinds(&json!({})).is_err());
    }

    #[test]
    fn classes_are_in_the_order_of_their_scores() {
        let labels = ["a", "b", "c"].map(str::to_owned);
        let expected = json!([
            { "score": 0.5, "label": "b" },
            { "score": 0.25, "label": "a" },
            { "score": 0.25, "label": "c" },
        ]);
        assert_eq!(predictions(&labels, &[0.25, 0.5, 0.25]), expected);
    }
}
