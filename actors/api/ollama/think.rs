//! Reads `think`: whether the model reasons before it answers, and how much.

use serde_json::{Map, Value};

use crate::api::fields::{Fields, wrong_type};
use crate::serving::error::ApiError;
use crate::serving::thinking::Thinking;

/// What a request says about reasoning.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Think {
    /// The model has to be one that reasons.
    pub is_required: bool,
    /// Variables of the chat template. Templates use different names for the same switch.
    pub variables: Map<String, Value>,
}

impl Think {
    /// Reads a boolean or a level. Without the field the template decides.
    ///
    /// # Errors
    /// [`ApiError::InvalidRequest`].
    pub fn read(fields: &Fields<'_>) -> Result<Self, ApiError> {
        match fields.get("think") {
            None => Ok(Think::default()),
            Some(Value::Bool(thinks)) => Ok(Self::new(*thinks, Thinking::switched(*thinks))),
            Some(Value::String(level)) => {
                Ok(Self::new(level != "none", Thinking::read_effort(level, "think")?.or_switched(true)))
            }
            Some(other) => Err(wrong_type("think", "true, false or a level such as \"high\"", other)),
        }
    }

    fn new(is_required: bool, thinking: Thinking) -> Self {
        Think { is_required, variables: thinking.variables() }
    }
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(think: Value) -> Result<Think, ApiError> {
        let body = json!({ "think": think });
        Think::read(&Fields::of_body(&body).unwrap())
    }

    #[test]
    fn a_switch_and_a_level_are_variables_of_the_template() {
        assert_eq!(read(json!(null)).unwrap(), Think::default());
        let off = read(json!(false)).unwrap();
        assert_eq!(
            (off.is_required, json!(off.variables)),
            (false, json!({ "enable_thinking": false, "thinking": false }))
        );
        let low = read(json!("low")).unwrap();
        assert!(low.is_required);
        assert_eq!(
            json!(low.variables),
            json!({ "enable_thinking": true, "thinking": true, "reasoning_effort": "low" })
        );
        assert!(!read(json!("none")).unwrap().is_required);
    }

    #[test]
    fn other_values_are_refused() {
        for think in [json!("much"), json!(1), json!([])] {
            assert!(read(think.clone()).is_err(), "{think}");
        }
    }
}
