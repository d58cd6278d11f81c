//! Reads `logit_bias`: what is added to the scores of tokens.

use cuelight_engine::engine::TokenId;
use serde_json::Value;

use crate::api::fields::{Fields, integer, number, wrong_type};
use crate::serving::error::{ApiError, clip};

const WANTED: &str = "an object of token ids and biases, or a list such as [[15043, 1.5], [2, false]]";

/// Reads a list of pairs of a token id and a bias, or an object. The bias `false` means that the token never appears.
///
/// # Errors
/// [`ApiError::InvalidRequest`] that names the entry, [`ApiError::Unsupported`] for a text in place of a token id.
pub(super) fn read(fields: &Fields<'_>) -> Result<Vec<(TokenId, f32)>, ApiError> {
    let path = fields.path("logit_bias");
    match fields.get("logit_bias") {
        None => Ok(Vec::new()),
        Some(Value::Array(pairs)) => {
            pairs.iter().enumerate().map(|(index, pair)| read_pair(pair, &format!("{path}[{index}]"))).collect()
        }
        Some(Value::Object(biases)) => biases.iter().map(|(token, value)| read_entry(token, value, &path)).collect(),
        Some(other) => Err(wrong_type(&path, WANTED, other)),
    }
}

fn read_pair(pair: &Value, path: &str) -> Result<(TokenId, f32), ApiError> {
    match pair.as_array().map(Vec::as_slice) {
        Some([Value::String(text), _]) => Err(is_text(text, path)),
        Some([token, value]) => {
            let token = integer(token, &format!("{path}[0]"), 0..=TokenId::MAX.into())?;
            // Cannot fail within the range.
            Ok((TokenId::try_from(token).unwrap_or(TokenId::MAX), bias(value, &format!("{path}[1]"))?))
        }
        _ => Err(wrong_type(path, "a list of a token id and a bias", pair)),
    }
}

fn read_entry(token: &str, value: &Value, path: &str) -> Result<(TokenId, f32), ApiError> {
    let id = token.parse().map_err(|_| is_text(token, path))?;
    Ok((id, bias(value, &format!("{path}.{token}"))?))
}

fn bias(value: &Value, path: &str) -> Result<f32, ApiError> {
    if *value == Value::Bool(false) { Ok(f32::NEG_INFINITY) } else { number(value, path, -1e4..=1e4) }
}

fn is_text(text: &str, path: &str) -> ApiError {
    let message = format!("`{path}` needs token ids, not the text {:?}: POST /tokenize returns them", clip(text));
    ApiError::Unsupported { param: path.to_owned(), message }
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn biases(value: &Value) -> Result<Vec<(TokenId, f32)>, ApiError> {
        let body = json!({ "logit_bias": value });
        read(&Fields::of_body(&body).unwrap())
    }

    #[test]
    fn pairs_and_objects_are_read() {
        assert_eq!(biases(&json!(null)).unwrap(), []);
        assert_eq!(biases(&json!([])).unwrap(), []);
        let expected = [(2, f32::NEG_INFINITY), (7, 1.5)];
        assert_eq!(biases(&json!([[2, false], [7, 1.5]])).unwrap(), expected);
        assert_eq!(biases(&json!({ "2": false, "7": 1.5 })).unwrap(), expected);
    }

    #[test]
    fn an_invalid_entry_is_named() {
        for (value, expected) in [
            (json!(7), "logit_bias"),
            (json!([[1, 1], 2]), "logit_bias[1]"),
            (json!([[1]]), "logit_bias[0]"),
            (json!([[-1, 1]]), "logit_bias[0][0]"),
            (json!([[1, true]]), "logit_bias[0][1]"),
            (json!([[1, 1e9]]), "logit_bias[0][1]"),
            (json!({ "1": "a" }), "logit_bias.1"),
        ] {
            match biases(&value).unwrap_err() {
                ApiError::InvalidRequest { param: Some(param), .. } => assert_eq!(param, expected, "{value}"),
                other => panic!("{other:?}"),
            }
        }
        for value in [json!([["a", 1]]), json!({ "a": 1 })] {
            assert!(matches!(biases(&value), Err(ApiError::Unsupported { .. })), "{value}");
        }
    }
}
