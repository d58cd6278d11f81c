//! Reads how much the model is to think, as variables of the chat template.

use serde_json::{Map, Value};

use crate::api::fields::{Fields, missing};
use crate::serving::error::{ApiError, clip};
use crate::serving::thinking::Thinking;

/// Reads `thinking` and `output_config.effort`. Without them the template decides.
///
/// # Errors
/// [`ApiError::InvalidRequest`] that names the field.
pub(super) fn template_variables(fields: &Fields<'_>) -> Result<Map<String, Value>, ApiError> {
    let mut variables = thinking(fields)?.variables();
    if let Some(config) = fields.object("output_config")?
        && let Some(effort) = config.string("effort")?
    {
        Thinking::read_effort(effort, &config.path("effort"))?.add_to(&mut variables);
    }
    Ok(variables)
}

/// Reads `thinking.budget_tokens`: most tokens of reasoning.
///
/// # Errors
/// [`ApiError::InvalidRequest`] that names the field.
pub(super) fn budget(fields: &Fields<'_>) -> Result<Option<usize>, ApiError> {
    match fields.object("thinking")? {
        Some(thinking) => thinking.count("budget_tokens", 1),
        None => Ok(None),
    }
}

fn thinking(fields: &Fields<'_>) -> Result<Thinking, ApiError> {
    const KINDS: &str = "\"enabled\", \"adaptive\" or \"disabled\"";
    let Some(thinking) = fields.object("thinking")? else { return Ok(Thinking::default()) };
    let path = thinking.path("type");
    match thinking.string("type")?.ok_or_else(|| missing(&path, KINDS))? {
        "enabled" | "adaptive" | "between_tools" => Ok(Thinking::switched(true)),
        "disabled" => Ok(Thinking::switched(false)),
        other => Err(ApiError::invalid(&path, format!("`{path}` must be {KINDS}, not {}", clip(other)))),
    }
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn variables(body: &Value) -> Value {
        Value::Object(template_variables(&Fields::of_body(body).unwrap()).unwrap())
    }

    #[test]
    fn thinking_and_effort_are_variables_of_the_template() {
        assert_eq!(variables(&json!({})), json!({}));
        let off = json!({ "thinking": { "type": "disabled" } });
        assert_eq!(variables(&off), json!({ "enable_thinking": false, "thinking": false }));
        for kind in ["enabled", "adaptive", "between_tools"] {
            let body =
                json!({ "thinking": { "type": kind, "budget_tokens": 1024 }, "output_config": { "effort": "high" } });
            let expected = json!({ "enable_thinking": true, "thinking": true, "reasoning_effort": "high" });
            assert_eq!(variables(&body), expected, "{kind}");
        }
    }
}
