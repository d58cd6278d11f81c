//! Whether a model reasons before it answers, and how much, as variables of its chat template.

use std::fmt;

use serde_json::{Map, Value, json};

use super::error::{ApiError, clip};

/// The efforts that requests may name, from none to the most.
pub(crate) const EFFORTS: [&str; 7] = ["none", "minimal", "low", "medium", "high", "xhigh", "max"];

/// What a request says about reasoning. What it leaves out is decided by the template.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Thinking {
    is_on: Option<bool>,
    effort: Option<&'static str>,
}

impl Thinking {
    /// On or off.
    pub fn switched(is_on: bool) -> Self {
        Thinking { is_on: Some(is_on), effort: None }
    }

    /// The model is told to reason.
    pub fn is_on(self) -> bool {
        self.is_on == Some(true)
    }

    /// What a word of the command line says: `on`, `off` or an effort.
    ///
    /// # Errors
    /// A sentence with the words that are known.
    pub fn of_word(word: &str) -> Result<Self, String> {
        match word {
            "on" => Ok(Thinking::switched(true)),
            "off" => Ok(Thinking::switched(false)),
            effort => Self::of_effort(effort)
                .map(|thinking| thinking.or_switched(true))
                .ok_or_else(|| format!("expected on, off or one of {}", EFFORTS.join(", "))),
        }
    }

    /// An effort; `none` switches reasoning off. `None` for an unknown name.
    pub fn of_effort(name: &str) -> Option<Self> {
        let effort = EFFORTS.into_iter().find(|effort| *effort == name)?;
        Some(Thinking { is_on: (effort == "none").then_some(false), effort: Some(effort) })
    }

    /// The effort that the field `path` names.
    ///
    /// # Errors
    /// [`ApiError::InvalidRequest`] for an unknown name.
    pub fn read_effort(name: &str, path: &str) -> Result<Self, ApiError> {
        Self::of_effort(name).ok_or_else(|| {
            let message = format!("`{path}` must be one of {}, not {}", EFFORTS.join(", "), clip(name));
            ApiError::invalid(path, message)
        })
    }

    /// The same, switched on or off unless it is off already.
    pub fn or_switched(self, is_on: bool) -> Self {
        Thinking { is_on: self.is_on.or(Some(is_on)), ..self }
    }

    /// Adds the variables, and leaves those that are set as they are.
    pub fn add_to(self, variables: &mut Map<String, Value>) {
        if let Some(is_on) = self.is_on {
            // Templates differ in the name of the switch.
            for name in ["enable_thinking", "thinking"] {
                variables.entry(name).or_insert(json!(is_on));
            }
        }
        if let Some(effort) = self.effort {
            variables.entry("reasoning_effort").or_insert(json!(effort));
        }
    }

    /// The variables.
    pub fn variables(self) -> Map<String, Value> {
        let mut variables = Map::new();
        self.add_to(&mut variables);
        variables
    }
}

/// The word that says the same: `default` where the template decides.
impl fmt::Display for Thinking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match (self.is_on, self.effort) {
            (_, Some(effort)) => effort,
            (Some(true), None) => "on",
            (Some(false), None) => "off",
            (None, None) => "default",
        })
    }
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_switch_has_every_name_and_no_effort_turns_it_off() {
        let variables = |thinking: Thinking| Value::Object(thinking.variables());
        assert_eq!(variables(Thinking::default()), json!({}));
        assert_eq!(variables(Thinking::switched(true)), json!({ "enable_thinking": true, "thinking": true }));
        assert_eq!(variables(Thinking::of_effort("low").unwrap()), json!({ "reasoning_effort": "low" }));
        let off = json!({ "enable_thinking": false, "thinking": false, "reasoning_effort": "none" });
        assert_eq!(variables(Thinking::of_effort("none").unwrap()), off);
        assert_eq!(variables(Thinking::of_effort("none").unwrap().or_switched(true)), off);
        assert_eq!(Thinking::of_effort("some"), None);
    }

    #[test]
    fn a_word_is_on_off_or_an_effort() {
        let variables = |word: &str| Value::Object(Thinking::of_word(word).unwrap().variables());
        assert_eq!(variables("off"), json!({ "enable_thinking": false, "thinking": false }));
        let low = json!({ "enable_thinking": true, "thinking": true, "reasoning_effort": "low" });
        assert_eq!(variables("low"), low);
        for word in ["on", "off", "low", "none"] {
            assert_eq!(Thinking::of_word(word).unwrap().to_string(), word);
        }
        assert_eq!(Thinking::default().to_string(), "default");
        assert!(Thinking::of_word("sometimes").unwrap_err().contains("on, off or one of none, minimal"));
    }

    #[test]
    fn variables_of_the_client_are_kept() {
        let mut variables = Map::from_iter([("enable_thinking".to_owned(), json!(true))]);
        Thinking::of_effort("none").unwrap().add_to(&mut variables);
        assert_eq!((&variables["enable_thinking"], &variables["thinking"]), (&json!(true), &json!(false)));
    }
}
