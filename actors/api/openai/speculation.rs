//! The fields about computing several tokens of an answer in a step.

use super::messages::read_content;
use crate::api::fields::Fields;
use crate::serving::error::ApiError;
use crate::serving::options::SpeculationFields;

/// Reads `speculation` and OpenAI's `prediction`.
///
/// # Errors
/// [`ApiError::InvalidRequest`] that names the field.
pub(super) fn read(fields: &Fields<'_>) -> Result<SpeculationFields, ApiError> {
    let is_off = fields.bool("speculation")? == Some(false);
    let prediction = fields.object("prediction")?.map(|prediction| read_prediction(&prediction)).transpose()?;
    Ok(SpeculationFields { is_off, prediction: prediction.unwrap_or_default() })
}

fn read_prediction(prediction: &Fields<'_>) -> Result<String, ApiError> {
    let path = prediction.path("type");
    if prediction.string("type")? != Some("content") {
        return Err(ApiError::invalid(&path, format!("`{path}` must be \"content\"")));
    }
    let path = prediction.path("content");
    let Some(content) = prediction.get("content") else {
        return Err(ApiError::invalid(&path, format!("`{path}` must be a string or a list of text parts")));
    };
    read_content(content, &path)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read_body(body: &Value) -> Result<SpeculationFields, ApiError> {
        read(&Fields::of_body(body).unwrap())
    }

    #[test]
    fn a_prediction_is_text_or_parts_of_text() {
        let parts = json!([{ "type": "text", "text": "a" }, { "type": "text", "text": "b" }]);
        let read = |content: Value| read_body(&json!({ "prediction": { "type": "content", "content": content } }));
        assert_eq!(read(json!("a\nb")).unwrap(), read(parts).unwrap());
        assert_eq!(read(json!("a")).unwrap(), SpeculationFields { is_off: false, prediction: "a".into() });
        assert_eq!(read_body(&json!({})).unwrap(), SpeculationFields::default());
        assert!(read_body(&json!({ "speculation": false })).unwrap().is_off);
    }

    #[test]
    fn wrong_fields_are_named() {
        let cases = [
            (json!({ "speculation": "off" }), "speculation"),
            (json!({ "prediction": "text" }), "prediction"),
            (json!({ "prediction": { "content": "a" } }), "prediction.type"),
            (json!({ "prediction": { "type": "content" } }), "prediction.content"),
            (json!({ "prediction": { "type": "content", "content": 1 } }), "prediction.content"),
        ];
        for (body, name) in cases {
            match read_body(&body) {
                Err(ApiError::InvalidRequest { param: Some(param), .. }) => assert_eq!(param, name),
                other => panic!("{body}: {other:?}"),
            }
        }
    }
}
