//! Reads `text.format`, what the answer has to match.

use cuelight_engine::constraint::Grammar;

use crate::api::fields::{Fields, missing};
use crate::api::openai::constraint::schema;
use crate::serving::error::{ApiError, clip};
use crate::serving::request::ConstraintField;

/// Reads `text.format`.
///
/// # Errors
/// [`ApiError::InvalidRequest`] that names the field.
pub(super) fn read(fields: &Fields<'_>) -> Result<Option<ConstraintField>, ApiError> {
    let Some(text) = fields.object("text")? else { return Ok(None) };
    let Some(format) = text.object("format")? else { return Ok(None) };
    let path = format.path("type");
    let kind = format.string("type")?;
    match kind.ok_or_else(|| missing(&path, "\"text\", \"json_object\" or \"json_schema\""))? {
        "text" => Ok(None),
        "json_object" => Ok(Some(ConstraintField { path: text.path("format"), grammar: Grammar::JsonObject })),
        "json_schema" => {
            let path = format.path("schema");
            let value = format.get("schema").ok_or_else(|| missing(&path, "a JSON schema"))?;
            let grammar = schema(value, &path)?;
            Ok(Some(ConstraintField { path, grammar }))
        }
        other => {
            let message = format!("`{path}` must be \"text\", \"json_object\" or \"json_schema\", not {}", clip(other));
            Err(ApiError::invalid(path, message))
        }
    }
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn format(format: Value) -> Result<Option<ConstraintField>, ApiError> {
        let body = json!({ "text": { "format": format } });
        read(&Fields::of_body(&body).unwrap())
    }

    #[test]
    fn a_format_is_text_an_object_or_a_schema() {
        assert_eq!(format(json!({ "type": "text" })).unwrap(), None);
        assert_eq!(format(json!(null)).unwrap(), None);
        assert_eq!(format(json!({ "type": "json_object" })).unwrap().unwrap().grammar, Grammar::JsonObject);
        let schema = json!({ "type": "string" });
        let read = format(json!({ "type": "json_schema", "name": "n", "strict": true, "schema": schema }));
        let expected = ConstraintField { path: "text.format.schema".into(), grammar: Grammar::JsonSchema(schema) };
        assert_eq!(read.unwrap(), Some(expected));
    }

    #[test]
    fn an_invalid_format_is_named() {
        for (value, path) in [
            (json!("json"), "text.format"),
            (json!({}), "text.format.type"),
            (json!({ "type": "xml" }), "text.format.type"),
            (json!({ "type": "json_schema", "name": "n" }), "text.format.schema"),
            (json!({ "type": "json_schema", "schema": 5 }), "text.format.schema"),
        ] {
            match format(value).unwrap_err() {
                ApiError::InvalidRequest { param: Some(param), .. } => assert_eq!(param, path),
                other => panic!("{other:?}"),
            }
        }
    }
}
