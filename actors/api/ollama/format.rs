//! Reads `format`: what the answer has to match.

use cuelight_engine::constraint::Grammar;
use serde_json::Value;

use crate::api::fields::{Fields, wrong_type};
use crate::serving::error::{ApiError, clip};
use crate::serving::request::ConstraintField;

/// Reads `"json"` or a JSON schema. An empty string means no format.
///
/// # Errors
/// [`ApiError::InvalidRequest`].
pub(super) fn read(fields: &Fields<'_>) -> Result<Option<ConstraintField>, ApiError> {
    const WANTED: &str = "\"json\" or a JSON schema";
    let grammar = match fields.get("format") {
        None => return Ok(None),
        Some(Value::String(text)) => match text.as_str() {
            "" => return Ok(None),
            "json" => Grammar::JsonObject,
            other => {
                return Err(ApiError::invalid("format", format!("`format` must be {WANTED}, not {}", clip(other))));
            }
        },
        Some(schema @ Value::Object(_)) => Grammar::JsonSchema(schema.clone()),
        Some(other) => return Err(wrong_type("format", WANTED, other)),
    };
    Ok(Some(ConstraintField { path: "format".to_owned(), grammar }))
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn grammar(format: Value) -> Result<Option<Grammar>, ApiError> {
        let body = json!({ "format": format });
        Ok(read(&Fields::of_body(&body).unwrap())?.map(|field| field.grammar))
    }

    #[test]
    fn a_format_is_json_or_a_schema() {
        let schema = json!({ "type": "object" });
        assert_eq!(grammar(json!("json")).unwrap(), Some(Grammar::JsonObject));
        assert_eq!(grammar(schema.clone()).unwrap(), Some(Grammar::JsonSchema(schema)));
        for none in [json!(null), json!("")] {
            assert_eq!(grammar(none).unwrap(), None);
        }
        for wrong in [json!("yaml"), json!(true), json!([])] {
            assert!(grammar(wrong.clone()).is_err(), "{wrong}");
        }
    }
}
