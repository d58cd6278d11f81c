//! JSON schemas that values are checked with.
//!
//! The engine's grammars of schemas are made for texts that a model writes under them: they want the properties in the order of the
//! schema and one spelling of each value. A value that was written without them is compared with the schema itself.

use cuelight_engine::constraint::GrammarError;
use jsonschema::{PatternOptions, Validator};
use serde_json::Value;

/// A schema that can be compared with values.
#[derive(Debug)]
pub struct SchemaCheck(Validator);

impl SchemaCheck {
    /// Reads a schema. Compiling patterns takes milliseconds, so call it on a thread that may block.
    ///
    /// # Errors
    /// [`GrammarError::Refused`] with the place of what is no schema, or cannot be checked: a pattern that needs backtracking, a
    /// reference to another document, or an unknown draft.
    pub fn of(schema: &Value) -> Result<Self, GrammarError> {
        // Patterns come from clients: these match in a time that is linear in the length of the text.
        let options = jsonschema::options().with_pattern_options(PatternOptions::regex());
        options.should_validate_formats(true).build(schema).map(SchemaCheck).map_err(|error| {
            let place = format!("#{}", error.instance_path());
            GrammarError::Refused { message: format!("{place}: {error}"), pointer: Some(place) }
        })
    }

    /// Whether a value is an instance of the schema.
    #[must_use]
    pub fn accepts(&self, value: &Value) -> bool {
        self.0.is_valid(value)
    }
}
