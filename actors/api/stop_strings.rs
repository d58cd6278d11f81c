//! Reads the strings that end an answer, and other lists of strings.

use std::sync::Arc;

use serde_json::Value;

use super::fields::{Fields, wrong_type};
use crate::core::stop_strings::StopStrings;
use crate::serving::error::ApiError;

/// Most stop strings.
const MOST_STOPS: usize = 256;

/// Most bytes of all stop strings together. The automaton that finds them needs about sixty times as many.
const MOST_STOP_BYTES: usize = 8 << 10;

/// Reads the field `name`: a string or a list of strings, none of them empty.
///
/// # Errors
/// [`ApiError::InvalidRequest`] that names the field.
pub(super) fn read(fields: &Fields<'_>, name: &str) -> Result<Arc<StopStrings>, ApiError> {
    let strings = read_strings(fields, name)?;
    let path = fields.path(name);
    let bytes: usize = strings.iter().map(String::len).sum();
    if bytes > MOST_STOP_BYTES {
        let message = format!("`{path}` accepts at most {MOST_STOP_BYTES} bytes in total, not {bytes}");
        return Err(ApiError::invalid(path, message));
    }
    let prepared = StopStrings::new(strings).map(Arc::new);
    prepared.map_err(|error| ApiError::invalid(&path, format!("`{path}` cannot be searched for: {error}")))
}

/// Reads the field `name`: a string or a list of up to 256 strings, none of them empty.
///
/// # Errors
/// [`ApiError::InvalidRequest`] that names the field.
pub(super) fn read_strings(fields: &Fields<'_>, name: &str) -> Result<Vec<String>, ApiError> {
    let path = fields.path(name);
    let strings: Vec<(String, &Value)> = match fields.get(name) {
        None => Vec::new(),
        Some(stop @ Value::String(_)) => vec![(path.clone(), stop)],
        Some(Value::Array(list)) => {
            list.iter().enumerate().map(|(index, stop)| (format!("{path}[{index}]"), stop)).collect()
        }
        Some(other) => return Err(wrong_type(&path, "a string or a list of strings", other)),
    };
    if strings.len() > MOST_STOPS {
        let message = format!("`{path}` accepts at most {MOST_STOPS} strings, not {}", strings.len());
        return Err(ApiError::invalid(path, message));
    }
    let text = |(path, value): (String, &Value)| match value.as_str() {
        Some("") => Err(ApiError::invalid(&path, format!("`{path}` must not be empty"))),
        Some(text) => Ok(text.to_owned()),
        None => Err(wrong_type(&path, "a string", value)),
    };
    strings.into_iter().map(text).collect()
}
