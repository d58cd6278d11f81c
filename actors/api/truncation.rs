//! The field of vLLM that lets the server cut prompts and texts that are too long.

use super::fields::Fields;
use crate::serving::error::ApiError;

const NAME: &str = "truncate_prompt_tokens";

/// How many tokens are kept: `truncate_prompt_tokens`, of which -1 stands for as many as fit the context.
///
/// # Errors
/// [`ApiError::InvalidRequest`] when it is neither -1 nor positive.
pub(super) fn read(fields: &Fields<'_>) -> Result<Option<usize>, ApiError> {
    match fields.integer(NAME, -1..=i64::from(u32::MAX))? {
        Some(0) => Err(ApiError::invalid(NAME, format!("`{NAME}` must be -1 or at least 1, not 0"))),
        Some(tokens) => Ok(Some(usize::try_from(tokens).unwrap_or(usize::MAX))),
        None => Ok(None),
    }
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn limits_are_positive_or_the_context() {
        let read = |value: Value| read(&Fields::of_body(&json!({ "truncate_prompt_tokens": value })).unwrap());
        assert_eq!(read(json!(-1)).unwrap(), Some(usize::MAX));
        assert_eq!(read(json!(5)).unwrap(), Some(5));
        assert_eq!(read(json!(null)).unwrap(), None);
        for wrong in [json!(0), json!(-2), json!("a")] {
            assert!(read(wrong).is_err());
        }
    }
}
