//! Reads the fields that the routes of rerankers share.

use serde_json::Value;

use crate::api::fields::{Fields, missing, wrong_type};
use crate::serving::error::ApiError;
use crate::serving::score::ScoredText;

/// Most documents of a request.
pub(super) const MAX_DOCUMENTS: usize = 10_000;

/// The query, which must not be empty.
pub(super) fn query(fields: &Fields<'_>) -> Result<ScoredText, ApiError> {
    let text = fields.string("query")?.ok_or_else(|| missing("query", "a string"))?;
    not_empty(ScoredText { path: fields.path("query"), text: text.to_owned() })
}

/// A list of documents: strings, or objects with a `text`.
pub(super) fn documents(fields: &Fields<'_>, name: &str) -> Result<Vec<ScoredText>, ApiError> {
    let wanted = "a list of strings, or of objects with a `text`";
    let list = fields.array(name)?.ok_or_else(|| missing(name, wanted))?;
    texts(list, name)
}

/// One text or a list of texts, none of which is empty.
pub(super) fn one_or_more(value: &Value, name: &str) -> Result<Vec<ScoredText>, ApiError> {
    let all = match value {
        Value::Array(list) => texts(list, name)?,
        one => vec![text(one, name.to_owned())?],
    };
    all.into_iter().map(not_empty).collect()
}

fn texts(list: &[Value], name: &str) -> Result<Vec<ScoredText>, ApiError> {
    if list.is_empty() {
        return Err(ApiError::invalid(name, format!("`{name}` must not be an empty list")));
    }
    if list.len() > MAX_DOCUMENTS {
        let message = format!("`{name}` has {} texts, but at most {MAX_DOCUMENTS} are allowed", list.len());
        return Err(ApiError::invalid(name, message));
    }
    list.iter().enumerate().map(|(index, value)| text(value, format!("{name}[{index}]"))).collect()
}

fn text(value: &Value, path: String) -> Result<ScoredText, ApiError> {
    let text = match value {
        Value::String(text) => text,
        Value::Object(object) => match object.get("text") {
            Some(Value::String(text)) => text,
            Some(other) => return Err(wrong_type(&format!("{path}.text"), "a string", other)),
            None => return Err(missing(&format!("{path}.text"), "a string")),
        },
        other => return Err(wrong_type(&path, "a string, or an object with a `text`", other)),
    };
    Ok(ScoredText { path, text: text.clone() })
}

pub(super) fn not_empty(text: ScoredText) -> Result<ScoredText, ApiError> {
    match text.text.is_empty() {
        true => Err(ApiError::invalid(&text.path, format!("`{}` must not be empty", text.path))),
        false => Ok(text),
    }
}

pub(super) fn priority(fields: &Fields<'_>) -> Result<i32, ApiError> {
    Ok(fields.integer("priority", i64::from(i32::MIN)..=i64::from(i32::MAX))?.unwrap_or(0) as i32)
}

/// The names of the field in vLLM's versions, from the newest to the oldest.
const ACTIVATION: [&str; 3] = ["use_activation", "activation", "softmax"];

/// Whether scores stay logits: vLLM's `use_activation` is false.
pub(super) fn keeps_logits(fields: &Fields<'_>) -> Result<bool, ApiError> {
    for name in ACTIVATION {
        if let Some(is_used) = fields.bool(name)? {
            return Ok(!is_used);
        }
    }
    Ok(false)
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn documents_are_strings_or_objects() {
        let body = json!({ "documents": ["a", { "text": "b", "id": 7 }, ""] });
        let found = documents(&Fields::of_body(&body).unwrap(), "documents").unwrap();
        assert_eq!(found.iter().map(|text| &*text.text).collect::<Vec<_>>(), ["a", "b", ""]);
        assert_eq!(found[1].path, "documents[1]");
    }

    #[test]
    fn logits_are_kept_by_each_name_of_the_field() {
        let keeps = |body: Value| keeps_logits(&Fields::of_body(&body).unwrap());
        assert!(!keeps(json!({})).unwrap());
        for name in ACTIVATION {
            assert!(keeps(json!({ name: false })).unwrap(), "{name}");
            assert!(!keeps(json!({ name: true })).unwrap(), "{name}");
            assert!(keeps(json!({ name: 1 })).is_err(), "{name}");
        }
        assert!(!keeps(json!({ "softmax": false, "use_activation": true })).unwrap());
    }

    #[test]
    fn too_many_documents_are_refused() {
        let body = json!({ "documents": vec!["a"; MAX_DOCUMENTS + 1] });
        assert!(documents(&Fields::of_body(&body).unwrap(), "documents").is_err());
    }
}
