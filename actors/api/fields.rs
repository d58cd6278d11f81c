//! Reads the fields of a JSON object.
//!
//! A request's fields are read one by one and not derived, so that each error names the exact field by its path
//! (`messages[1].content[0].type`), says which values the field accepts, and repeats only a little of the input. As
//! clients expect, `null` means absent, and unknown fields are ignored.

use std::ops::{Bound, RangeBounds, RangeInclusive};

use serde_json::{Map, Value};

use crate::serving::error::{ApiError, clip};
use cuelight_engine::engine::TokenId;

/// A JSON object and its path in the body.
#[derive(Clone)]
pub(super) struct Fields<'a> {
    map: &'a Map<String, Value>,
    path: String,
}

impl<'a> Fields<'a> {
    /// The fields of the whole body.
    pub fn of_body(body: &'a Value) -> Result<Self, ApiError> {
        match body {
            Value::Object(map) => Ok(Fields { map, path: String::new() }),
            other => {
                Err(ApiError::invalid_body(format!("the request body must be a JSON object, not {}", kind(other))))
            }
        }
    }

    /// The fields of an object inside the body.
    pub fn of(value: &'a Value, path: String) -> Result<Self, ApiError> {
        match value {
            Value::Object(map) => Ok(Fields { map, path }),
            other => Err(wrong_type(&path, "an object", other)),
        }
    }

    /// The full path of a field.
    pub fn path(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }

    /// Every field, in the client's order.
    pub fn map(&self) -> &'a Map<String, Value> {
        self.map
    }

    /// A field of any type.
    pub fn get(&self, name: &str) -> Option<&'a Value> {
        self.map.get(name).filter(|value| !value.is_null())
    }

    pub fn bool(&self, name: &str) -> Result<Option<bool>, ApiError> {
        self.typed(name, "true or false", Value::as_bool)
    }

    pub fn string(&self, name: &str) -> Result<Option<&'a str>, ApiError> {
        self.typed(name, "a string", Value::as_str)
    }

    pub fn array(&self, name: &str) -> Result<Option<&'a Vec<Value>>, ApiError> {
        self.typed(name, "a list", Value::as_array)
    }

    pub fn object(&self, name: &str) -> Result<Option<Fields<'a>>, ApiError> {
        self.get(name).map(|value| Fields::of(value, self.path(name))).transpose()
    }

    pub fn number(&self, name: &str, range: impl RangeBounds<f64>) -> Result<Option<f32>, ApiError> {
        self.get(name).map(|value| number(value, &self.path(name), range)).transpose()
    }

    /// A share of all probability. 0 keeps only the most likely token.
    pub fn share(&self, name: &str) -> Result<Option<f32>, ApiError> {
        Ok(self.number(name, 0.0..=1.0)?.map(|share| share.max(f32::MIN_POSITIVE)))
    }

    pub fn integer(&self, name: &str, range: RangeInclusive<i64>) -> Result<Option<i64>, ApiError> {
        self.get(name).map(|value| integer(value, &self.path(name), range)).transpose()
    }

    /// An integer of at least `least`, up to a limit that no real count reaches.
    pub fn count(&self, name: &str, least: u32) -> Result<Option<usize>, ApiError> {
        let count = self.integer(name, i64::from(least)..=MOST_COUNTED)?;
        Ok(count.map(|count| usize::try_from(count).unwrap_or(usize::MAX)))
    }

    /// A list of token ids.
    pub fn token_ids(&self, name: &str) -> Result<Option<Vec<TokenId>>, ApiError> {
        self.array(name)?.map(|ids| token_ids(ids, &self.path(name))).transpose()
    }

    fn typed<T>(
        &self,
        name: &str,
        wanted: &str,
        convert: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, ApiError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        convert(value).map(Some).ok_or_else(|| wrong_type(&self.path(name), wanted, value))
    }
}

const MOST_COUNTED: i64 = 1 << 40;

/// A number within `range`.
pub(super) fn number(value: &Value, path: &str, range: impl RangeBounds<f64>) -> Result<f32, ApiError> {
    let number = value.as_f64().ok_or_else(|| wrong_type(path, "a number", value))?;
    if !range.contains(&number) {
        let message = format!("`{path}` must be {}, not {number}", describe(&range));
        return Err(ApiError::invalid(path, message));
    }
    Ok(number as f32)
}

/// A whole number within `range`. `1.0` is accepted as 1.
pub(super) fn integer(value: &Value, path: &str, range: RangeInclusive<i64>) -> Result<i64, ApiError> {
    let whole = |number: f64| (number.fract() == 0.0 && number.abs() < 2f64.powi(53)).then_some(number as i64);
    let integer = value.as_i64().or_else(|| value.as_f64().and_then(whole));
    match integer {
        Some(integer) if range.contains(&integer) => Ok(integer),
        None if !value.is_number() => Err(wrong_type(path, "an integer", value)),
        _ => {
            let limits = match (*range.start(), *range.end()) {
                (i64::MIN, _) => "a 64-bit integer".to_owned(),
                (least, MOST_COUNTED..) => format!("an integer of at least {least}"),
                (least, most) => format!("an integer from {least} to {most}"),
            };
            Err(ApiError::invalid(path, format!("`{path}` must be {limits}, not {}", clip(&value.to_string()))))
        }
    }
}

/// Token ids. Whether they are in a model's vocabulary is checked later.
pub(super) fn token_ids(ids: &[Value], path: &str) -> Result<Vec<TokenId>, ApiError> {
    ids.iter()
        .enumerate()
        .map(|(index, id)| {
            id.as_u64().and_then(|id| TokenId::try_from(id).ok()).ok_or_else(|| {
                let path = format!("{path}[{index}]");
                let message = format!("`{path}` must be a token id, not {}", clip(&id.to_string()));
                ApiError::invalid(path, message)
            })
        })
        .collect()
}

/// The error for a field whose type is not `wanted`.
pub(super) fn wrong_type(path: &str, wanted: &str, value: &Value) -> ApiError {
    ApiError::invalid(path, format!("`{path}` must be {wanted}, not {}", kind(value)))
}

/// The error for a required field that is absent.
pub(super) fn missing(path: &str, wanted: &str) -> ApiError {
    ApiError::invalid(path, format!("`{path}` is required: {wanted}"))
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

fn describe(range: &impl RangeBounds<f64>) -> String {
    match (range.start_bound(), range.end_bound()) {
        (Bound::Included(least), Bound::Included(most)) => format!("a number from {least} to {most}"),
        (Bound::Excluded(least), Bound::Included(most)) => format!("a number above {least} and up to {most}"),
        (Bound::Included(least), _) => format!("a number of at least {least}"),
        (Bound::Excluded(least), _) => format!("a number above {least}"),
        (Bound::Unbounded, _) => "a number".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn message(error: &ApiError) -> (String, String) {
        match error {
            ApiError::InvalidRequest { param: Some(param), message } => (param.clone(), message.clone()),
            other => panic!("the error names no field: {other:?}"),
        }
    }

    #[test]
    fn null_means_absent() {
        let body = json!({ "seed": null });
        let fields = Fields::of_body(&body).unwrap();
        assert_eq!(fields.integer("seed", i64::MIN..=i64::MAX).unwrap(), None);
    }

    #[test]
    fn an_error_names_the_nested_field_and_the_accepted_values() {
        let body = json!({ "stream_options": { "include_usage": "yes" } });
        let options = Fields::of_body(&body).unwrap().object("stream_options").unwrap().unwrap();
        let (param, message) = message(&options.bool("include_usage").unwrap_err());
        assert_eq!(param, "stream_options.include_usage");
        assert_eq!(message, "`stream_options.include_usage` must be true or false, not a string");
    }

    #[test]
    fn numbers_outside_their_range_are_refused_with_the_range() {
        let body = json!({ "temperature": -1, "n": 0, "top_p": 0, "max_tokens": 1.5 });
        let fields = Fields::of_body(&body).unwrap();
        let (_, text) = message(&fields.number("temperature", 0.0..=2.0).unwrap_err());
        assert_eq!(text, "`temperature` must be a number from 0 to 2, not -1");
        let (_, text) = message(&fields.integer("n", 1..=128).unwrap_err());
        assert_eq!(text, "`n` must be an integer from 1 to 128, not 0");
        let open = (Bound::Excluded(0.0), Bound::Included(1.0));
        let (_, text) = message(&fields.number("top_p", open).unwrap_err());
        assert_eq!(text, "`top_p` must be a number above 0 and up to 1, not 0");
        let (_, text) = message(&fields.count("max_tokens", 1).unwrap_err());
        assert_eq!(text, "`max_tokens` must be an integer of at least 1, not 1.5");
    }

    #[test]
    fn an_invalid_token_id_is_named_by_its_path() {
        let ids = [json!(1), json!(-4)];
        assert_eq!(message(&token_ids(&ids, "prompt").unwrap_err()).0, "prompt[1]");
    }
}
