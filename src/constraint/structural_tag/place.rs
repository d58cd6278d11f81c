//! A part of the value that a client sent, with its place for error messages.

use serde_json::{Value, json};

use super::super::error::GrammarError;

/// A part of the client's value, and where it is.
pub(super) struct Place<'a> {
    pub value: &'a Value,
    /// A JSON pointer, as `#/format/tags/0`.
    pub pointer: String,
    /// Members and elements above it.
    pub depth: usize,
}

impl<'a> Place<'a> {
    /// The whole value.
    pub fn root(value: &'a Value) -> Self {
        Place { value, pointer: "#".to_owned(), depth: 0 }
    }

    /// The place of a part of it that is at hand already.
    pub fn member(mut self, name: &str) -> Self {
        self.pointer = format!("{}/{name}", self.pointer);
        self
    }

    /// A refusal of this part.
    pub fn refused(&self, message: impl Into<String>) -> GrammarError {
        GrammarError::Refused { pointer: Some(self.pointer.clone()), message: message.into() }
    }

    /// A member that is there and not null.
    pub fn get(&self, name: &str) -> Option<Place<'a>> {
        let value = self.value.get(name).filter(|value| !value.is_null())?;
        Some(Place { value, pointer: format!("{}/{name}", self.pointer), depth: self.depth + 1 })
    }

    /// A member that must be there.
    pub fn need(&self, name: &str) -> Result<Place<'a>, GrammarError> {
        self.get(name).ok_or_else(|| self.refused(format!("the field `{name}` is missing")))
    }

    /// Its text.
    pub fn text(&self) -> Result<&'a str, GrammarError> {
        self.value.as_str().ok_or_else(|| self.refused("this must be a string"))
    }

    /// A member that is true or false, by default false.
    pub fn flag(&self, name: &str) -> Result<bool, GrammarError> {
        let Some(member) = self.get(name) else { return Ok(false) };
        member.value.as_bool().ok_or_else(|| member.refused("this must be true or false"))
    }

    /// A member that is a number.
    pub fn number(&self, name: &str) -> Result<Option<u64>, GrammarError> {
        let Some(member) = self.get(name) else { return Ok(None) };
        let number = member.value.as_u64().filter(|number| *number <= 1 << 20);
        number.map(Some).ok_or_else(|| member.refused(format!("this must be a number from 0 to {}", 1 << 20)))
    }

    /// The elements of a list that is not empty.
    pub fn list(&self) -> Result<Vec<Place<'a>>, GrammarError> {
        let items = self.value.as_array().filter(|items| !items.is_empty());
        let items = items.ok_or_else(|| self.refused("this must be a list that is not empty"))?;
        let place =
            |(index, value)| Place { value, pointer: format!("{}/{index}", self.pointer), depth: self.depth + 1 };
        Ok(items.iter().enumerate().map(place).collect())
    }

    /// Refuses options that would have to be enforced and are not.
    pub fn refuse_options(&self, names: &[&str]) -> Result<(), GrammarError> {
        let is_set = |place: &Place<'_>| *place.value != json!([]) && *place.value != json!(false);
        match names.iter().find_map(|name| self.get(name).filter(is_set)) {
            Some(place) => Err(place.refused("this option cannot be enforced")),
            None => Ok(()),
        }
    }
}
